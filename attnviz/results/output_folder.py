"""Results on disk: every file whole or not at all, and nothing touched that attnviz did not write."""

import errno
import json
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.errors import OutputError, UsageError

__all__ = ["Layout", "OutputFolder", "check_folder", "json_text"]


_COMMANDS = Path(__file__).parents[1] / "commands"
_MANIFESTS = tuple(sorted(f"{folder.name}.json" for folder in _COMMANDS.iterdir() if (folder / "report.py").exists()))
"""What every command calls its document."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Layout:
    """The files of one command.

    Attributes:
        manifest: the JSON document, which lists all the files.
        table: the CSV file.
        table_text: from the document to the content of the table.
        others: what the names of all the other files match.
        same: keys of the document; where they are equal to those of an earlier run, its files are kept.
        folders: that some of these are in.
    """

    manifest: str
    table: str
    table_text: Callable[[dict[str, Any]], str]
    others: re.Pattern[str]
    same: tuple[str, ...]
    folders: tuple[str, ...] = ()

    def owns(self, name: str) -> bool:
        """Whether a file of this name, relative to the output folder, is one of the command's."""
        return name == self.table or bool(self.others.fullmatch(name))


class OutputFolder:
    """A folder that receives all of a run's files at once, or none of them.

    Files are first written to a hidden folder inside, and moved when all are there; an error, a full disk or Ctrl-C
    leaves what was there before. The folder always tells of one analysis: a rerun of the same (by the keys ``same`` of
    the layout) replaces the document, the table and files of the same name, and leaves all others; any other run of
    the same command removes them. A file that attnviz did not write is neither replaced nor deleted.

    Use as a context manager::

        with OutputFolder(path, layout) as folder:
            folder.write("overview.png", data)
            folder.commit(document)
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        """Nothing is touched before the context is entered."""
        self.path, self.layout = path, layout
        self._staging: Path | None = None
        self._created: list[Path] = []  # the innermost first
        self._staged: dict[str, None] = {}  # in order, each once
        self.committed = False
        self.removed = 0

    @property
    def count(self) -> int:
        """How many files this run has written."""
        return len(self._staged)

    def __enter__(self) -> "OutputFolder":
        """Make the folder and check that it can be written to.

        Raises:
            OutputError: it is a file, cannot be written to, or holds foreign files of our names.
        """
        with self._as_output_error("make the folder", self.path):
            if self.path.exists() and not self.path.is_dir():
                raise OutputError(
                    f"cannot write to {self.path}: it is a file; expected a folder, or a new name, for -o."
                )
            self._created = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                self._refuse_foreign(name for name in self._names_below() if self.layout.owns(name))
                self._staging = Path(tempfile.mkdtemp(prefix=".attnviz-", dir=self.path))
            except BaseException:
                self._remove_created()
                raise
        return self

    def write(self, name: str, content: bytes | str) -> None:
        """Write one file, by its path relative to the folder; it appears there on :meth:`commit`.

        Raises:
            OutputError: the disk is full, or the like.
        """
        assert self._staging is not None
        target = self._staging / name
        with self._as_output_error("write", self.path / name):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        self._staged[name] = None

    def commit(self, content: dict[str, Any]) -> dict[str, Any]:
        """Write the table and the document, then move every file to its place.

        Args:
            content: the document.

        Returns:
            what is written: the content, and a list of the command's files in the folder.

        Raises:
            OutputError: a file that attnviz did not write has the name of one of these.
        """
        manifest = self.layout.manifest
        self.write(self.layout.table, self.layout.table_text(content))
        earlier, kept = self._earlier(), self.kept(content)
        complete = {**content, "files": sorted({*self._staged, *kept, manifest})}
        self.write(manifest, json_text(complete))
        assert self._staging is not None
        self._refuse_foreign(self._staged)
        with self._as_output_error("write to", self.path):
            for name in self._staged:
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        with _uninterrupted(), self._as_output_error("write to", self.path, unchanged=False):
            for name in sorted(self._staged, key=lambda name: name != manifest):
                (self._staging / name).replace(self.path / name)
            stale = earlier - kept - set(self._staged)
            for name in stale:
                (self.path / name).unlink(missing_ok=True)
            self.removed = len(stale)
            for below in (self.path / folder for folder in self.layout.folders):
                if stale and below.is_dir() and not any(below.iterdir()):
                    below.rmdir()
            self.committed = True
        self._created.clear()
        return complete

    def kept(self, content: dict[str, Any]) -> set[str]:
        """What earlier runs wrote here that a run with this document leaves, or replaces by the same name."""
        manifest = _document(self.path / self.layout.manifest)
        same = all(manifest.get(key) == content.get(key) for key in self.layout.same)
        return self._earlier() if same else set()

    def __exit__(self, *_: object) -> None:
        """Remove the hidden folder, and folders made for nothing."""
        with _uninterrupted():
            if self._staging is not None:
                shutil.rmtree(self._staging, ignore_errors=True)
            self._remove_created()

    def _earlier(self) -> set[str]:
        """What earlier runs wrote here, by their own document; only names that we give are believed."""
        manifest = _document(self.path / self.layout.manifest)
        ours = {name for name in _listed(manifest) if self.layout.owns(name)}
        return ours | ({self.layout.manifest} if manifest else set())

    def _refuse_foreign(self, names: Iterable[str]) -> None:
        earlier = self._earlier()
        foreign = sorted(name for name in {*names, self.layout.manifest} - earlier if (self.path / name).exists())
        for folder in self.layout.folders:
            below = self.path / folder
            if below.is_symlink() or (below.exists() and not below.is_dir()):
                foreign.append(folder)
        if not foreign:
            return
        some = f"{', '.join(foreign[:3])}{', …' if len(foreign) > 3 else ''}"
        listed = {name: set(foreign) & _listed(_document(self.path / name)) for name in _MANIFESTS}
        if set().union(*listed.values()) == set(foreign):
            others = ", ".join(name for name, files in listed.items() if files)
            holds = f"results of another attnviz command ({others}), with files of the same names ({some})"
        else:
            no_list = f"no {self.layout.manifest} of attnviz lists it"
            holds = f"{some}, which attnviz did not write ({no_list}) and will not replace"
        raise OutputError(f"{self.path} holds {holds}; choose another folder with -o.")

    def _names_below(self) -> list[str]:
        places = (self.path, *(self.path / folder for folder in self.layout.folders))
        return [path.relative_to(self.path).as_posix() for place in places for path in place.glob("*")]

    def _remove_created(self) -> None:
        for folder in self._created:
            try:
                folder.rmdir()
            except OSError:
                return

    @contextmanager
    def _as_output_error(self, action: str, path: Path, *, unchanged: bool = True) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"cannot {action} {path}: {error.strerror or error}; "
                f"{'nothing was changed' if unchanged else 'its files may be of two runs: run again'}. "
                f"Choose another folder with -o{', or make room' if error.errno in _FULL else ''}."
            ) from error


def _document(path: Path) -> dict[str, Any]:
    """A document that attnviz wrote; empty where it is another's, or none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and "attnviz" in content else {}


def _listed(document: dict[str, Any]) -> set[str]:
    """The files that a document lists."""
    files = document.get("files", [])
    return {str(name) for name in files} if isinstance(files, list) else set()


def json_text(content: dict[str, Any]) -> str:
    """The document as JSON; ASCII only, so that no text can steer a terminal."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def check_folder(folder: object) -> None:
    """Refuse what names no folder.

    Raises:
        UsageError: it is no text or path, or empty.
    """
    if not isinstance(folder, str | Path) or not str(folder).strip() or "\0" in str(folder):
        raise UsageError(f"expected a folder as a text or a Path ('.' for this one), found {folder!r}.")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back for the moment in which files are moved."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
