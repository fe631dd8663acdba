"""Checks of what callers pass from Python, where every command expects the same."""

import re
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TypeGuard

from attnviz.errors import TextError, UsageError


def is_whole(given: object) -> TypeGuard[int]:
    """Whether this is a whole number, of Python or NumPy; True and False are none."""
    return isinstance(given, Integral) and not isinstance(given, bool)


def check_whole(name: str, given: object, least: int = 0, most: int | None = None) -> None:
    """Raise UsageError unless it is a whole number in range."""
    if not is_whole(given) or given < least:
        raise UsageError(f"expected {name} as a whole number from {least} on, found {given!r}.")
    if most is not None and given > most:
        raise UsageError(f"expected {name} as a whole number up to {most}, found {given}.")


def check_share(name: str, given: object) -> None:
    """Raise UsageError unless it is a number from 0 to 1."""
    if isinstance(given, bool) or not isinstance(given, Real) or not 0 <= float(given) <= 1:
        raise UsageError(f"expected --{name} ({name}=...) as a number from 0 to 1, found {given!r}.")


_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)(?:I?B)?")
_UNITS = "", "K", "M", "G", "T"


def n_bytes(name: str, given: object) -> int:
    """A size in bytes, from a whole number of them or a text such as ``64M`` or ``1.5 GiB`` (units of 1,024).

    Raises:
        UsageError: it is no size, or none of anything.
    """
    found = _SIZE.fullmatch(given.replace(" ", "").upper()) if isinstance(given, str) else None
    if found is not None:
        size = int(float(found[1]) * 1024 ** _UNITS.index(found[2]))
    else:
        size = int(given) if is_whole(given) else 0
    if size < 1:
        raise UsageError(
            f"expected --{name} ({name}=...) as a size such as 64M, 1G or a number of bytes, found {given!r}."
        )
    return size


def check_switch(name: str, given: object) -> None:
    """Raise UsageError unless it is True or False; a list of names, say, would count as True."""
    check_kind(name, given, bool)


def check_texts(text: object, pair: object = None) -> None:
    """Raise TextError unless it is a text, and the pair a text or None."""
    if not isinstance(text, str) or not isinstance(pair, str | None):
        found = type(text if not isinstance(text, str) else pair).__name__
        raise TextError(f"expected text (and pair) as a string, found {found}; give one text at a time.")


def check_callback(name: str, given: object) -> None:
    """Raise UsageError unless it is a function or None."""
    if not (given is None or callable(given)):
        raise UsageError(f"expected {name} as a function, found {given!r}.")


def check_kind(name: str, given: object, annotation: object) -> None:
    """Raise UsageError unless it is of the kind that a parameter's annotation says, for the kinds of :data:`_KINDS`."""
    for kind, (expected, is_one) in _KINDS.items():
        if annotation in (kind, kind | None):  # type: ignore[operator]
            if not (is_one(given) or (given is None and annotation != kind)):
                raise UsageError(f"expected {name} as {expected}, found {given!r}.")
            return
    if "Callable" in str(annotation):
        check_callback(name, given)


def _are_paths(given: object) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(x, str | Path) for x in given)


_KINDS: dict[object, tuple[str, Callable[[object], bool]]] = {
    bool: ("True or False", lambda given: isinstance(given, bool)),
    int: ("a whole number", is_whole),
    str: ("a string", lambda given: isinstance(given, str)),
    Path: ("a pathlib.Path", lambda given: isinstance(given, Path)),
    str | Path: ("a path", lambda given: isinstance(given, str | Path)),
    Sequence[str | Path]: ("a list of paths", _are_paths),
}
