"""Where results go: the folder that the user names, or one of the model and the text."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from attnviz.errors import OutputError, UsageError

__all__ = ["check_out", "check_working_folder", "is_file", "results_folder"]

_LONGEST = 40
"""Characters of a text in the name of its folder."""

_UNNAMED = ("heads", "profile")
"""The commands whose folders do not begin with their names."""


def results_folder(
    out: str | None, command: str, models: Sequence[str], texts: Sequence[str], corpora: Sequence[Path] = ()
) -> Path:
    """The folder of a run: ``out``, or else ``attnviz-out/COMMAND-MODEL/TEXT-HASH``, without the command for some.

    TEXT is the beginning of the texts and of the corpora's names; the hash, of all texts and of the corpora's places,
    tells those apart that begin alike.
    """
    if out is not None:
        return Path(out)
    named = [command] * (command not in _UNNAMED) + [_model_in_path(model) for model in models]
    words = _slug(" ".join([*texts, *(corpus.stem for corpus in corpora)]))
    places = "\0".join([*texts, *(str(corpus.absolute()) for corpus in corpora)])
    digest = hashlib.sha256(places.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return Path("attnviz-out") / "-".join(named) / (f"{words or 'text'}-{digest}" if places else "repeats")


def check_out(out: str | None) -> None:
    """Refuse an empty name of a folder, which Path would take for this one, and one that no folder can have.

    Raises:
        UsageError: it is empty or blank, or has a null character.
    """
    if out is not None and not out.strip():
        raise UsageError("-o is empty; expected a folder (. for this one).")
    if out is not None and "\0" in out:
        raise UsageError(f"-o has a null character, {out!r}; expected the name of a folder.")


def check_working_folder() -> None:
    """Refuse to work in a folder that was removed, in which torch's libraries end the process.

    Raises:
        OutputError: it was.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise OutputError(f"the working folder was removed ({error.strerror}); change to one that exists.") from error


def is_file(name: str) -> bool:
    """Whether there is a file of this name; a text may be too long for one."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def _slug(text: str) -> str:
    """The words of a text in small letters with hyphens between, as far as they can be part of a file's name here."""
    writable = text.lower().encode(sys.getfilesystemencoding(), "ignore").decode(sys.getfilesystemencoding())
    words = "".join(character if character.isalnum() else " " for character in writable).split()
    return "-".join(words)[:_LONGEST].strip("-")


def _model_in_path(model: str) -> str:
    """A model as part of a folder's name: the last part of a checkpoint folder, or the name, slashes replaced."""
    from attnviz.model.sources import BUILT_IN

    folder = Path(model).expanduser()
    name = folder.resolve().name if model not in BUILT_IN and folder.is_dir() else model.replace("/", "--")
    return name or "model"
