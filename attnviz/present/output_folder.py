"""What a run writes, beside its place and then put there whole. Files of others, and those that it has read, stay."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from attnviz.arguments import as_found, is_there
from attnviz.errors import OutputError, UsageError
from attnviz.locks import lock, unlock
from attnviz.signals import held_back

# the file that says which command wrote a folder, and which files: ``{"command": "heads", "files": [...]}``
MARKER = ".attnviz.json"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LONGEST = 40  # characters of a text in the name of its folder


class OutputFolder:
    """Writes all of a run's files at once, or none of them.

    Files are written to a hidden folder beside, which takes the place of the folder when all are there: an error, a
    full disk or an interruption leaves what was there before. The run that was there goes, as a whole; files that the
    marker does not list are the user's, and stay. A folder without a marker is not replaced.
    """

    def __init__(self, path: Path, command: str, inputs: Sequence[Path] = ()) -> None:
        self.path = path
        self.inputs = inputs  # what the run reads, which stays
        self.written: dict[str, None] = {}  # in order, each once
        self.in_place = False
        self._command = command.partition(".")[0]
        self._place = path  # what a link leads to, once the context is entered
        self._made: list[Path] = []  # parents, the innermost first
        self._lock: int | None = None  # on the hidden folder, as long as the run lives
        self._token = secrets.token_hex(4)

    def __enter__(self) -> "OutputFolder":
        """Make the hidden folder; OutputError where it cannot be written to, or is not of this command."""
        with self._as_output_error("write to"):
            self._place = self.path.resolve()
            self._made = [folder for folder in self._place.parents if not folder.exists()]
            self._place.parent.mkdir(parents=True, exist_ok=True)
            with self._alone():
                self._refuse()
                self._beside("new").mkdir()
                self._lock = lock(self._beside("new"))
                name = escape(self._place.name[:_LONGEST])
                for path in self._place.parent.glob(f".{name}-new-[0-9]*-{'[0-9a-f]' * 8}"):
                    with suppress(BlockingIOError):  # of runs that were killed; those of living ones are locked
                        held = lock(path)
                        if held is not None:
                            shutil.rmtree(path, ignore_errors=True)
                            unlock(held)
        return self

    @contextmanager
    def _alone(self) -> Iterator[None]:
        held = lock(self._place.parent, wait=True)
        try:
            yield
        finally:
            unlock(held)

    def _beside(self, what: str) -> Path:
        return self._place.with_name(f".{self._place.name[:_LONGEST]}-{what}-{os.getpid()}-{self._token}")

    def _refuse(self) -> None:
        place = self._place
        if place.exists() and not place.is_dir():
            raise OutputError(f"cannot write to {self.path}: it is a file; expected a folder, or a new name, for -o.")
        if place in (Path.cwd(), *Path.cwd().parents) or place.is_mount():
            raise OutputError(
                f"cannot write to {self.path}: the folder is replaced as a whole, and this one is in use; expected a "
                "folder inside it, or a new name, for -o."
            )
        if not place.is_dir() or not any(place.iterdir()):
            return
        command, listed = self._marker()
        if command is None:
            some = ", ".join(sorted(path.name for path in place.iterdir())[:3])
            raise OutputError(
                f"{self.path} holds {some}, and no {MARKER} that says that attnviz wrote it; nothing was changed. "
                "Choose another folder with -o."
            )
        if command != self._command:
            raise OutputError(
                f"{self.path} holds results of attnviz {command}; nothing was changed. Choose another folder with -o."
            )
        for read in self.inputs:
            if read.resolve() in [place / name for name in listed]:
                raise OutputError(
                    f"{self.path} holds {read.name}, which this run reads; nothing was changed. Choose another folder "
                    "with -o."
                )

    def _marker(self) -> tuple[str | None, frozenset[str]]:
        """The command that wrote the folder, and its files; None and no file without a marker."""
        try:
            if not (self._place / MARKER).is_file():  # a pipe would be waited for
                return None, frozenset()
            content = json.loads((self._place / MARKER).read_bytes())
            return str(content["command"]), frozenset(map(str, content["files"]))
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None, frozenset()

    def write(self, name: str, content: bytes | str) -> None:
        """Stage one file by its path relative to the folder."""
        target = self.staged(name)
        with self._as_output_error("write"):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        self.written[name] = None

    def staged(self, name: str) -> Path:
        """Where a file stands until :meth:`put_in_place`."""
        return self._beside("new") / name

    def put_in_place(self) -> None:
        """Replace the folder by what was written; the user's files move to it, or OutputError where a name is taken."""
        self.write(MARKER, json.dumps({"command": self._command, "files": [*self.written, MARKER]}) + "\n")
        with held_back(), self._as_output_error("write to"), self._alone():
            self._refuse()
            foreign = list(self._foreign(self._marker()[1] | {MARKER}))
            for name in foreign:
                taken = self.staged(name)
                if taken.exists() or any(parent.is_file() for parent in taken.parents):
                    raise OutputError(
                        f"{self.path} holds {name}, which attnviz did not write and will not replace; nothing was "
                        "changed. Move it away, or choose another folder with -o."
                    )
            old = self._beside("old")
            moves = [(self._place, old)] if self._place.exists() else []
            moves += [(self._beside("new"), self._place), *((old / name, self._place / name) for name in foreign)]
            done: list[tuple[Path, Path]] = []
            try:
                for source, target in moves:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    source.rename(target)
                    done.append((source, target))
            except OSError:
                for source, target in reversed(done):
                    target.rename(source)
                raise
            shutil.rmtree(old, ignore_errors=True)
            self._made.clear()
            self.in_place = True

    def _foreign(self, listed: frozenset[str], inside: str = "") -> Iterator[str]:
        """Files, links and whole folders that the marker does not list."""
        for path in (self._place / inside).iterdir() if self._place.exists() else ():
            name = inside + path.name
            if path.is_symlink() or not path.is_dir():
                if name not in listed:
                    yield name
            elif self.staged(name).is_dir() or any(other.startswith(f"{name}/") for other in listed):
                yield from self._foreign(listed, f"{name}/")
            else:
                yield name

    def __exit__(self, *_: object) -> None:
        with held_back():
            shutil.rmtree(self._beside("new"), ignore_errors=True)
            unlock(self._lock)
            for folder in self._made:
                with suppress(OSError):
                    folder.rmdir()

    @contextmanager
    def _as_output_error(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            room = ", or make room" if error.errno in _FULL else ""
            raise OutputError(
                f"cannot {action} {self.path}: {error.strerror or error}; nothing was changed. Choose another folder "
                f"with -o{room}."
            ) from error


@dataclass(frozen=True)
class OutputFile:
    """One file that the user names, beside the folder of a run."""

    path: Path
    option: str  # that names it, for messages
    # what attnviz writes near the beginning of such a file, so that a later run may replace it; without one a
    # file that is there is never replaced
    mark: bytes = b""

    def refuse(self, used: Sequence[Path] = ()) -> None:
        """Raise UsageError for a place that cannot be written to, or where something else is that would be lost.

        ``used`` are the run's other files.
        """
        named = f"{self.option} {self.path}"
        if self.path in (Path(), Path("-")):
            raise UsageError(f"{self.option} is empty, . or -: expected the name of a file.")
        if not is_there(self.path.parent, Path.is_dir):
            raise UsageError(f"{named}: expected a file in a folder that is there, found no {self.path.parent}.")
        if self.path.resolve() in [other.resolve() for other in used]:
            raise UsageError(f"{named}: this run reads or writes that file itself: expected another name.")
        if is_there(self.path) and not is_there(self.path, self._is_own):
            raise UsageError(f"{named} is there already, and stays: expected the name of a new file.")

    def _is_own(self, path: Path) -> bool:
        if not (self.mark and path.is_file()):
            return False
        with path.open("rb") as file:
            return self.mark in file.read(1000)

    def write(self, content: bytes | str) -> None:
        """Write the whole file, or nothing: UsageError as of :meth:`refuse`, OutputError where it cannot be written."""
        place = self.path.resolve()
        staged = place.with_name(f".attnviz-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            self.refuse()
            staged.write_bytes(content.encode() if isinstance(content, str) else content)
            staged.replace(place)
        except (OSError, UnicodeEncodeError) as error:
            raise OutputError(f"cannot write {self.path}: {error}.") from error
        finally:
            staged.unlink(missing_ok=True)


def folder_named(folder: object) -> Path:
    """The folder of a name, ``~`` expanded; UsageError if it names none."""
    named = isinstance(folder, str | Path) and str(folder).strip() and "\0" not in str(folder)
    if not named or re.search("[\ud800-\udc7f\udd00-\udfff]", str(folder)):  # which stand for no byte of a name
        raise UsageError(f"expected a folder as a text or a Path, found {as_found(folder)}.")
    try:
        return Path(str(folder)).expanduser()
    except RuntimeError as error:
        raise UsageError(f"expected a folder, found {str(folder)!r}, which is of no user here: {error}") from error


def text_folder(
    texts: Sequence[str], corpora: Sequence[Path] = (), models: Sequence[Path] = (), without: str = "repeats"
) -> str:
    """``TEXT-HASH``: the beginning of texts and names of corpora, or ``without`` any; a hash of all texts and paths."""
    text = " ".join([*texts, *(corpus.stem for corpus in corpora)]).lower()
    encoding = sys.getfilesystemencoding()  # which may lack letters
    text = text.encode(encoding, "ignore").decode(encoding)
    words = "-".join("".join(letter if letter.isalnum() else " " for letter in text).split())[:_LONGEST].strip("-")
    identity = "\0".join([*texts, *(str(path.absolute()) for path in (*corpora, *models))])
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    words = words or ("text" if texts or corpora else without)
    return f"{words}-{digest}" if identity else words
