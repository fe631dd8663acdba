"""Lines of a file, each with its place, and the errors that name one."""

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from attnviz.errors import CorpusError, TextError, UsageError


class Place(NamedTuple):
    """A line of a file, or a row of a table without lines, counted from 1; prints as ``path:line``.

    Without a path it is a text in memory, or a row of a table there.
    """

    path: Path | None
    line: int
    is_row: bool = False

    def __str__(self) -> str:
        if self.path is None:
            return f"{'row' if self.is_row else 'text'} {self.line}"
        return f"{self.path}, row {self.line}" if self.is_row else f"{self.path}:{self.line}"


def lines(path: Path) -> Iterator[tuple[Place, str]]:
    """Every line with its place, without its line end (of any system) and a byte order mark."""
    try:
        with path.open("rb") as file:
            for number, data in enumerate(_split(file), 1):
                place = Place(path, number)
                yield place, _decoded(data.removeprefix(codecs.BOM_UTF8) if number == 1 else data, place)
    except OSError as error:
        raise cannot_read(path, error) from error


def _split(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; a carriage return alone ends them where the file has no line feed."""
    for number, line in enumerate(file):
        if number == 0 and not line.endswith(b"\n"):
            yield from line.removesuffix(b"\r").split(b"\r")
        else:
            yield line.removesuffix(b"\n").removesuffix(b"\r")


def filled_lines(path: Path) -> Iterator[tuple[Place, str]]:
    """The :func:`lines` that are not blank."""
    return ((place, line) for place, line in lines(path) if line.strip())


def _decoded(data: bytes, place: Place) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        character = len(data[: error.start].decode("utf-8")) + 1
        found = f"byte 0x{data[error.start]:02x} as character {character} of the line"
        raise broken(place, "text encoded as UTF-8", found) from error


def broken(place: Place | Path, expected: str, found: str) -> CorpusError | TextError:
    """The error of a line that is not as expected; a TextError of a text in memory."""
    kind = TextError if isinstance(place, Place) and place.path is None else CorpusError
    return kind(f"{place}: expected {expected}, found {found.removesuffix('.')}.")


@contextmanager
def naming_row(place: Place | None) -> Iterator[None]:
    """Name the line of a file, the row of a table or the text of a list in what is raised inside the block."""
    try:
        yield
    except (TextError, UsageError) as error:
        if place is None:
            raise
        kind = type(error) if place.path is None else CorpusError
        raise kind(f"{place}: {error}") from error


def cannot_read(path: Path, error: OSError) -> CorpusError:
    """The error of a file that the system does not give."""
    found = error.strerror or type(error).__name__
    return CorpusError(f"expected a file that can be read at {path}, found: {found}; check its name and permissions.")
