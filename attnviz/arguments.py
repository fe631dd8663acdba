"""Checks of arguments that several commands take."""

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TypeGuard

from attnviz.errors import TextError, UsageError
from attnviz.memory import bytes_of

_LONGEST = 200  # most characters of a wrong value in a message

_MOST_LISTED = 10  # most names in a message


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the known name that is most like a wrong one, after a space; empty where none is."""
    near = difflib.get_close_matches(name.casefold(), list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def one_of(name: str, known: Collection[str], all_of_them: str) -> str:
    """What was expected of a name: the known ones, or of more than ten the nearest and ``all_of_them``, where they are.

    It ends with a full stop.
    """
    listed = ", ".join(known) if len(known) <= _MOST_LISTED else f"{len(known)} names; {all_of_them}"
    return f"expected one of {listed}.{did_you_mean(name, known)}"


def relation_named(name: str) -> str:
    """The relation's name in Universal Dependencies for the words that people type; any other name as it is."""
    return {"subject": "nsubj", "object": "obj"}.get(name.casefold(), name)


def is_there(name: str | Path, kind: Callable[[Path], bool] = Path.exists) -> bool:
    """Whether there is a file or folder of this name, of a kind such as ``Path.is_file``.

    A text may be too long for a name, or have a null character, which none can have.
    """
    try:
        return kind(Path(name))
    except (OSError, ValueError):
        return False


def as_found(value: object) -> str:
    """A wrong value for a message, on one line and shortened; by its type where Python cannot write it.

    That is so of whole numbers of more than 4,300 digits.
    """
    try:
        text = " ".join(map(str.strip, repr(value).splitlines()))
    except Exception:  # noqa: BLE001 - whatever the object's own function raises
        return f"a value of type {type(value).__name__} that cannot be written"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def is_whole(value: object) -> TypeGuard[int]:
    """Whether this is an int of Python or NumPy, not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_whole(name: str, value: object, least: int = 0, most: int | None = None) -> None:
    """Raise UsageError unless it is an int in range."""
    if not is_whole(value) or value < least:
        raise UsageError(f"expected {name} as a whole number from {least} on, found {as_found(value)}.")
    if most is not None and value > most:
        raise UsageError(f"expected {name} as a whole number up to {most}, found {as_found(value)}.")


def check_share(name: str, value: object) -> None:
    """Raise UsageError unless it is a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        flag = name.replace("_", "-")
        raise UsageError(f"expected --{flag} ({name}=...) as a number from 0 to 1, found {as_found(value)}.")


_LEAST_BARE = 1_000_000  # the smallest number of bytes that is taken without a unit: whoever writes 24 means gigabytes


def n_bytes(name: str, value: object) -> int:
    """A size in bytes, from a whole number of them or a text such as ``64M`` or ``1.5 GiB`` (units of 1,024).

    Raises:
        UsageError: it is no size, below one byte, or a small number without a unit.
    """
    size = bytes_of(value) if isinstance(value, str) else int(value) if is_whole(value) else None
    without_unit = str(value).strip()[-1:].isdigit()
    if size is None or size < (_LEAST_BARE if without_unit else 1):
        raise UsageError(
            f"expected --{name} ({name}=...) as a size such as 64M or 24GB, or as a number of bytes from "
            f"{_LEAST_BARE:,} on, found {as_found(value)}."
        )
    return size


def check_texts(text: object, pair: object = None) -> None:
    """Raise TextError unless it is a text, and the pair a text or None."""
    if not isinstance(text, str) or not isinstance(pair, str | None):
        found = type(text if not isinstance(text, str) else pair).__name__
        raise TextError(f"expected text (and pair) as a string, found {found}; give one text at a time.")


def check_kind(name: str, value: object, annotation: object) -> None:
    """Raise UsageError unless the value has the annotated type, for the types of :data:`_KINDS`."""
    for kind, (expected, is_one) in _KINDS.items():
        if annotation in (kind, kind | None):  # type: ignore[operator]
            if not (is_one(value) or (value is None and annotation != kind)):
                raise UsageError(f"expected {name} as {expected}, found {as_found(value)}.")
            return
    if "Callable" in str(annotation) and not (value is None or callable(value)):
        raise UsageError(f"expected {name} as a function, found {as_found(value)}.")


def _fits(value: object) -> bool:
    """Whether it is a whole number that fits into 64 bits."""
    return is_whole(value) and abs(value) < 2**64


def _are_paths(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(x, str | Path) for x in value)


_KINDS: dict[object, tuple[str, Callable[[object], bool]]] = {
    bool: ("True or False", lambda value: isinstance(value, bool)),
    int: ("a whole number", _fits),
    str: ("a string", lambda value: isinstance(value, str)),
    Path: ("a pathlib.Path", lambda value: isinstance(value, Path)),
    str | int: ("a string, or a whole number", lambda value: isinstance(value, str) or _fits(value)),
    str | Path: ("a path", lambda value: isinstance(value, str | Path)),
    Sequence[str | Path]: ("a list of paths", _are_paths),
    str | Path | Sequence[str | Path]: (
        "a text or a path, or a list of these",
        lambda value: isinstance(value, str | Path) or _are_paths(value),
    ),
}
