"""Where results go: the folder that the user names, or one of the model and the text."""

from collections.abc import Sequence
from pathlib import Path

from attnviz.errors import OutputError, UsageError
from attnviz.results.folder_names import text_folder

_UNNAMED = ("heads", "profile")
"""The commands whose folders do not begin with their names."""


def results_folder(
    out: str | None, command: str, models: Sequence[str], texts: Sequence[str], corpora: Sequence[Path] = ()
) -> Path:
    """The folder of a run: ``out``, or else ``attnviz-out/COMMAND-MODEL/TEXT-HASH``, without the command for some.

    A form of a command (``compare.corpus``) goes where the command does.
    """
    if out is not None:
        return Path(out)
    command = command.partition(".")[0]
    named = [command] * (command not in _UNNAMED) + [_model_in_path(model) for model in models]
    return Path("attnviz-out") / "-".join(named) / text_folder(texts, corpora)


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


def _model_in_path(model: str) -> str:
    """A model as part of a folder's name: the last part of a checkpoint folder, or the name, slashes replaced."""
    from attnviz.model.sources import BUILT_IN

    folder = Path(model).expanduser()
    name = folder.resolve().name if model not in BUILT_IN and folder.is_dir() else model.replace("/", "--")
    return name or "model"
