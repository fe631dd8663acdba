"""Typed access to the values of a JSON document, with errors that name the path of a wrong value."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from attnviz.models.wording import shortened, visible

T = TypeVar("T")

MOST = 10**15
"""Upper limit of counts."""

_KINDS = {type(None): "nothing", list: "a list", dict: "an object"}


class Entry:
    """A value of a document; ``parent`` is the object or list that has it under ``key``.

    Its methods raise ValueError, with the value's path, if it is something else.
    """

    __slots__ = "key", "parent", "value"

    def __init__(self, value: Any, parent: "Entry | None" = None, key: str | int = "") -> None:
        self.value, self.parent, self.key = value, parent, key

    @property
    def path(self) -> str:
        """Its path: ``roles[3].score``."""
        if self.parent is None:
            return ""
        own = f"[{self.key}]" if isinstance(self.key, int) else f".{visible(self.key)}"
        return f"{self.parent.path}{own}".removeprefix(".")

    def __getitem__(self, key: str) -> "Entry":
        """A value of an object; an entry of None if the key is missing."""
        return Entry(self._object().get(key), self, key)

    def fields(self) -> dict[str, "Entry"]:
        """The values of an object."""
        return {key: self[key] for key in self._object()}

    def each(self, n: int | None = None) -> list["Entry"]:
        """The values of a list, of length ``n`` if given."""
        if type(self.value) is not list or n not in (None, len(self.value)):
            raise self.refused("a list" if n is None else f"a list of {n}")
        return [Entry(value, self, index) for index, value in enumerate(self.value)]

    def text(self) -> str:
        """A string."""
        if type(self.value) is not str:
            raise self.refused("a string")
        return self.value

    def flag(self) -> bool:
        """True or false."""
        if type(self.value) is not bool:
            raise self.refused("true or false")
        return self.value

    def whole(self, least: int = 0, most: int = MOST) -> int:
        """An int in a range."""
        if type(self.value) is not int or not least <= self.value <= most:
            raise self.refused(f"a whole number {f'from {least} to {most}' if most < MOST else f'of at least {least}'}")
        return self.value

    def number(self, least: float, most: float, rounding: float = 0.0) -> float:
        """A number in a range, widened by ``rounding``."""
        if type(self.value) not in (int, float) or not least - rounding <= self.value <= most + rounding:
            raise self.refused(f"a number from {least:g} to {most:g}")
        return float(self.value)

    def maybe(self, read: Callable[["Entry"], T]) -> T | None:
        """``read`` of it; None if it is None."""
        return None if self.value is None else read(self)

    def refused(self, expected: str) -> ValueError:
        """The ValueError that something else was expected."""
        found = _KINDS.get(type(self.value)) or shortened(json.dumps(self.value), 40)
        return ValueError(f"expected {expected} for {self.path or 'the document'}, found {found}")

    def _object(self) -> dict[str, Any]:
        if type(self.value) is not dict:
            raise self.refused("an object")
        return self.value


def read_entry(path: Path) -> Entry:
    """The document of a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: not JSON, or with NaN or infinite numbers.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe would be waited for
        raise OSError("something that is no file")
    try:
        content = path.read_text(encoding="utf-8")
        return Entry(json.loads(content, parse_constant=_finite, parse_float=_finite))
    except UnicodeDecodeError as error:
        raise ValueError("found no UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"found broken JSON ({error})") from error
    except RecursionError as error:
        raise ValueError("found lists in lists without an end") from error


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"found {text}, which is no number of JSON")
    return value
