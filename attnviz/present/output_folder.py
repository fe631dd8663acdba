"""Atomic writing of results; files that attnviz did not write are never touched."""

import errno
import hashlib
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnviz.arguments import as_found
from attnviz.errors import OutputError, UsageError
from attnviz.locks import lock, unlock
from attnviz.models.wording import quoted
from attnviz.present.documents import caption_files, files_of, json_text, read_document, texts_of
from attnviz.present.report import FileLayout
from attnviz.signals import held_back

_FULL = (errno.ENOSPC, errno.EDQUOT)

PATIENCE = 10.0
"""Seconds to wait for another run that is moving its files."""

_POLL = 0.05

_LONGEST = 40
"""Characters of a text in the name of its folder."""

_STAGING = re.compile(r"\.attnviz-([0-9]+)-[a-z0-9_]{8}")
"""Name of a run's hidden folder, with the id of its process."""


class OutputFolder:
    """Writes all of a run's files at once, or none of them.

    Files are first written to a hidden folder inside, and moved when all are there; an error, a full disk or an
    interruption leaves what was there before. The folder always holds one analysis: a rerun of the same (by the keys
    ``same`` of the layout) replaces the document, the table and files of the same name, and leaves all others; any
    other run of the same command removes them, but pictures of another text on request only. A file that attnviz did
    not write is neither replaced nor deleted. Runs move their files one after the other, and remove the hidden folders
    of runs that were killed.

    Use as a context manager::

        with OutputFolder(path, layout) as folder:
            folder.write("overview.png", data)
            folder.commit(document)
    """

    def __init__(self, path: Path, layout: FileLayout, overwrite: bool = False) -> None:
        """Touch nothing before the context is entered; ``overwrite``: remove pictures of another text, too."""
        self.path, self.layout, self.overwrite = path, layout, overwrite
        self._staging = path / f".attnviz-{os.getpid()}-{secrets.token_hex(4)}"
        self._lock: int | None = None  # on the hidden folder, as long as the run lives
        self._created: list[Path] = []  # the innermost first
        self.written: dict[str, None] = {}  # the files of this run, in order, each once
        self.below = 0  # files that this run wrote to result folders below this one
        self.committed = False
        self.removed = 0

    def __enter__(self) -> "OutputFolder":
        """Make the folder and check that it can be written to.

        Raises:
            OutputError: it is a file, cannot be written to, holds foreign files of our names, or another run holds it.
        """
        try:
            with self._as_output_error("make the folder", self.path):
                if self.path.exists() and not self.path.is_dir():
                    raise OutputError(
                        f"cannot write to {self.path}: it is a file; expected a folder, or a new name, for -o."
                    )
                self._created = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
                self.path.mkdir(parents=True, exist_ok=True)
                with self.alone():
                    below = [path for folder in ("", *self.layout.folders) for path in (self.path / folder).glob("*")]
                    names = [path.relative_to(self.path).as_posix() for path in below]
                    self._refuse_foreign(filter(self.layout.owns, names))
                    self._clear_stale()
                    self._staging.mkdir(mode=0o700)
                    self._lock = lock(self._staging)
        except BaseException:
            self.__exit__()
            raise
        return self

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs from moving files here inside the block.

        Raises:
            OutputError: another run has not finished within :data:`PATIENCE`.
        """
        until = time.monotonic() + PATIENCE
        while True:
            try:
                held = lock(self.path)
                break
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    processes = " or ".join(sorted(set(self._others().values())))
                    who = f"another run of attnviz (process {processes})" if processes else "another program"
                    raise OutputError(
                        f"cannot write to {self.path}: {who} is moving its files there, and is not done; nothing was "
                        "changed. Wait for it, or choose another folder with -o."
                    ) from error
                time.sleep(_POLL)
        try:
            yield
        finally:
            unlock(held)

    def refuse_other_texts(self, texts: Iterable[str]) -> None:
        """Check that no pictures of other texts (or corpora, by path) would be removed, unless ``overwrite``.

        Raises:
            OutputError: some would; the message names both texts.
        """
        earlier, now = read_document(self.path / self.layout.manifest), frozenset(texts)
        if self.overwrite or not earlier or (before := texts_of(earlier)) == now:
            return
        pictures = self._earlier() - {self.layout.manifest, self.layout.table}
        if any((self.path / name).exists() for name in pictures):
            raise OutputError(
                f"{self.path} holds pictures of {_named(before)}; this run is of {_named(now)} and would remove them. "
                "Choose another folder with -o, or remove them with --overwrite (in Python overwrite=True)."
            )

    def write(self, name: str, content: bytes | str, *, more: bool = False) -> None:
        """Stage one file by its path relative to the folder; :meth:`commit` moves it there.

        ``more`` appends to what this run has staged.

        Raises:
            OutputError: the disk is full, or the like.
        """
        target = self._staging / name
        with self._as_output_error("write", self.path / name):
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("ab" if more else "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
        self.written[name] = None

    def commit(self, content: dict[str, Any], captions: dict[str, str] | None = None) -> dict[str, Any]:
        """Write the captions, the table and the document, then move every file to its place.

        Args:
            content: the document.
            captions: of this run's figures, by file name.

        Returns:
            the document as written: the content, and a list of the command's files in the folder.

        Raises:
            OutputError: a file that attnviz did not write has the name of one of these.
        """
        manifest = self.layout.manifest
        with self.alone():
            self.refuse_other_texts(texts_of(content))
            earlier, before = self._earlier(), read_document(self.path / manifest)
            same = all(before.get(key) == content.get(key) for key in self.layout.same)
            kept = {name for name in earlier if same and self._has(name)}
            for name, text in caption_files(self.path, kept, captions).items() if captions else ():
                self.write(name, text)
            self.write(self.layout.table, self.layout.table_text(content))
            complete = {**content, "files": sorted({*self.written, *kept, manifest})}
            self.write(manifest, json_text(complete))
            self._refuse_foreign(self.written)
            self._move(earlier - kept - {manifest})
        self._created.clear()
        return complete

    def _move(self, stale: set[str]) -> None:
        """Remove the files of another analysis, then move the document, which lists all files, and then those.

        So the document lists every file at any time, and no file is of another analysis than it: a run that is killed
        meanwhile leaves files missing, but none that the next run would not know as attnviz's own.
        """
        manifest = self.layout.manifest
        with self._as_output_error("write to", self.path):
            for name in self.written:
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        with held_back(), self._as_output_error("write to", self.path, unchanged=False):
            self.removed = sum(self._has(name) for name in stale - set(self.written))
            for name in stale:
                (self.path / name).unlink(missing_ok=True)
            for name in (manifest, *(name for name in self.written if name != manifest)):
                (self._staging / name).replace(self.path / name)
            for below in (self.path / folder for folder in self.layout.folders):
                if stale and below.is_dir() and not any(below.iterdir()):
                    below.rmdir()
            self.committed = True

    def __exit__(self, *_: object) -> None:
        """Remove the staging folder, and other new folders that stayed empty."""
        with held_back():
            shutil.rmtree(self._staging, ignore_errors=True)
            unlock(self._lock)
            self._lock = None
            for folder in self._created:
                with suppress(OSError):
                    folder.rmdir()

    def _others(self) -> dict[Path, str]:
        """Staging folders of other runs, alive or not, by path, with the ids of their processes."""
        names = {path: _STAGING.fullmatch(path.name) for path in self.path.glob(".attnviz-*") if path != self._staging}
        return {path: name[1] for path, name in names.items() if name and path.is_dir() and not path.is_symlink()}

    def _clear_stale(self) -> None:
        """Remove the staging folders of runs that were killed; those of living ones are locked."""
        for path in self._others():
            with suppress(BlockingIOError):
                if (held := lock(path)) is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    unlock(held)

    def _has(self, name: str) -> bool:
        return os.path.lexists(self.path / name)

    def _earlier(self) -> set[str]:
        """Files of earlier runs as their document lists them; names that the command never gives are ignored."""
        manifest = read_document(self.path / self.layout.manifest)
        ours = {name for name in files_of(manifest) if self.layout.owns(name)}
        return ours | ({self.layout.manifest} if manifest else set())

    def _refuse_foreign(self, names: Iterable[str]) -> None:
        earlier, names = self._earlier(), {*names, self.layout.manifest}
        paths = {name: self.path / name for name in sorted(names | earlier)}
        if folders := [name for name, path in paths.items() if path.is_dir() and not path.is_symlink()]:
            raise OutputError(
                f"{self.path} holds a folder named {folders[0]}, where attnviz writes a file of that name; move it "
                "away, or choose another folder with -o."
            )
        foreign = sorted(name for name in names - earlier if self._has(name))
        for folder in self.layout.folders:
            below = self.path / folder
            if below.is_symlink() or (below.exists() and not below.is_dir()):
                foreign.append(folder)
        if not foreign:
            return
        some = f"{', '.join(foreign[:3])}{', …' if len(foreign) > 3 else ''}"
        documents = sorted(path.name for path in self.path.glob("*.json"))
        listed = {name: set(foreign) & files_of(read_document(self.path / name)) for name in documents}
        if set().union(*listed.values()) == set(foreign):
            others = ", ".join(name for name, files in listed.items() if files)
            holds = f"results of another attnviz command ({others}), with files of the same names ({some})"
        else:
            no_list = f"no {self.layout.manifest} of attnviz lists it"
            holds = f"{some}, which attnviz did not write ({no_list}) and will not replace"
        raise OutputError(f"{self.path} holds {holds}; choose another folder with -o.")

    @contextmanager
    def _as_output_error(self, action: str, path: Path, *, unchanged: bool = True) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"cannot {action} {path}: {error.strerror or error}; "
                f"{'nothing was changed' if unchanged else 'some of its files may be missing: run again'}. "
                f"Choose another folder with -o{', or make room' if error.errno in _FULL else ''}."
            ) from error


def _named(texts: frozenset[str]) -> str:
    some = [quoted(text) for text in sorted(texts)[:2]]
    return ", ".join([*some, *["…"] * (len(texts) > 2)]) or "random tokens"


def folder_named(folder: object) -> Path:
    """The folder of a name, ``~`` expanded.

    Raises:
        UsageError: it is no text or path, or empty, or begins with the home of an unknown user.
    """
    named = isinstance(folder, str | Path) and str(folder).strip() and "\0" not in str(folder)
    if not named or re.search("[\ud800-\udc7f\udd00-\udfff]", str(folder)):  # which stand for no byte of a name
        raise UsageError(f"expected a folder as a text or a Path ('.' for this one), found {as_found(folder)}.")
    try:
        return Path(str(folder)).expanduser()
    except RuntimeError as error:
        raise UsageError(f"expected a folder, found {str(folder)!r}, which is of no user here: {error}") from error


def text_folder(
    texts: Sequence[str], corpora: Sequence[Path] = (), models: Sequence[Path] = (), without: str = "repeats"
) -> str:
    """``TEXT-HASH``: the beginning of the texts and of the corpora's names, or what is written ``without`` any.

    The hash is of all texts and all paths, also those of the models' folders, whose names may be alike.
    """
    words = _slug(" ".join([*texts, *(corpus.stem for corpus in corpora)]))
    identity = "\0".join([*texts, *(str(path.absolute()) for path in (*corpora, *models))])
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    words = words or ("text" if texts or corpora else without)
    return f"{words}-{digest}" if identity else words


def _slug(text: str) -> str:
    """Words in lower case, joined by hyphens, without what this file system cannot have in a name."""
    writable = text.lower().encode(sys.getfilesystemencoding(), "ignore").decode(sys.getfilesystemencoding())
    words = "".join(character if character.isalnum() else " " for character in writable).split()
    return "-".join(words)[:_LONGEST].strip("-")
