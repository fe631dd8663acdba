"""Checks of arguments that several commands take."""

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_args, get_origin

from attnviz.errors import TextError, UsageError

_LONGEST = 200  # most characters of a wrong value in a message
_MOST_LISTED = 10  # most names in a message

# surrogates that stand for no byte: no command line has them, but a string of Python may
_NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the known name that is most like a wrong one, after a space; empty where none is."""
    near = difflib.get_close_matches(name.casefold(), list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def one_of(name: str, known: Collection[str], all_of_them: str) -> str:
    """A sentence on what was expected: the known names, or of more than ten the nearest and ``all_of_them``."""
    listed = ", ".join(known) if len(known) <= _MOST_LISTED else f"{len(known)} names; {all_of_them}"
    return f"expected one of {listed}.{did_you_mean(name, known)}"


def relation_named(name: str) -> str:
    """The relation's name in Universal Dependencies for the words that people type; any other name as it is."""
    return {"subject": "nsubj", "object": "obj"}.get(name.casefold(), name)


def is_there(name: str | Path, kind: Callable[[Path], bool] = Path.exists) -> bool:
    """Whether there is a file or folder of this name, of a kind such as ``Path.is_file``; a text may be too long."""
    try:
        return name != "" and kind(Path(name))
    except (OSError, ValueError):
        return False


def as_found(value: object) -> str:
    """A wrong value for a message, on one line and shortened; by its type where Python cannot write it."""
    try:
        written = repr(str(value)) if isinstance(value, Path) else repr(value)
        text = " ".join(map(str.strip, written.splitlines()))
    except Exception:  # noqa: BLE001 - whatever the object's own function raises
        return f"a value of type {type(value).__name__} that cannot be written"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def utf8(name: str, typed: str | bytes, advice: str = "expected text encoded as UTF-8.") -> str:
    """A text as UTF-8, whatever the locale; bytes that are not UTF-8 reach Python as lone surrogates."""
    if isinstance(typed, str):
        typed = typed.encode("utf-8", "surrogatepass" if _NO_BYTE.search(typed) else "surrogateescape")
    try:
        return typed.decode()
    except UnicodeDecodeError as error:
        found = f"found byte 0x{typed[error.start]:02x} at byte {error.start}"
        raise TextError(f"{name} is not valid UTF-8: {found}; {advice}") from error


def values_of(given: Any) -> Any:
    """The values of an array or column of NumPy, torch, pandas, polars or pyarrow as Python has them, else as given."""
    convert = (getattr(given, name, None) for name in ("tolist", "to_list", "to_pylist"))
    return next((function() for function in convert if function is not None), given)


def as_list(given: object, what: str = "a list of texts, or the path of a file of texts") -> list[Any]:
    """A list, from a list, or an array or column of a library; UsageError unless it has entries."""
    try:
        items = values_of(given)
    except RuntimeError:  # of torch: a tensor that is sparse, or on the device meta
        items = None
    if isinstance(items, str | bytes) or not isinstance(items, Sequence) or not items:
        found = as_found(given) if isinstance(given, str | Sequence) else type(given).__name__
        raise UsageError(f"expected {what}, found {found}.")
    return list(items)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether this is an int of Python or NumPy, not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def flag_of(name: str) -> str:
    """The option of the command line that is an argument of Python: ``--batch-size``."""
    return "--span" if name == "spans" else f"--{name.replace('_', '-')}"


def spelled(name: str) -> str:
    """An option as the command line and Python spell it: ``--seed (seed=...)``."""
    return f"{flag_of(name)} ({name}=...)"


_SIZE = r"([0-9]{1,18}(?:\.[0-9]{1,6})?) *([KMGTP]?)(?:i?B|bytes)?"
_LEAST_BARE = 1_000_000  # the smallest number of bytes that is taken without a unit: whoever writes 24 means gigabytes


def n_bytes(name: str, value: object) -> int:
    """A size in bytes, from a whole number of them or a text such as ``64M`` or ``1.5 GiB`` (units of 1,024).

    UsageError for no size, one below a byte, or a small number without a unit.
    """
    size = int(value) if is_whole(value) else None
    match = re.fullmatch(_SIZE, value.strip(), re.IGNORECASE) if isinstance(value, str) else None
    if match is not None:
        size = int(float(match[1]) * 1024 ** "_KMGTP".index(match[2].upper() or "_"))
    without_unit = str(value).strip()[-1:].isdigit()
    if size is None or size < (_LEAST_BARE if without_unit else 1):
        raise UsageError(
            f"expected {spelled(name)} as a size such as 64M or 24GB, or as a number of bytes from "
            f"{_LEAST_BARE:,} on, found {as_found(value)}."
        )
    return size


def choices_of(annotation: Any) -> tuple[str, ...]:
    """The valid values of an argument with this annotation; none where it has no choices."""
    return next((get_args(part) for part in (annotation, *get_args(annotation)) if get_origin(part) is Literal), ())


def check_kind(name: str, value: object, annotation: object) -> None:
    """Raise UsageError unless the value has the annotated type, for choices, functions and the types of :data:`_KINDS`.

    A text, or the second of a pair, that is none is a TextError.
    """
    for kind, (expected, is_one) in _KINDS.items():
        if annotation in (kind, kind | None):  # type: ignore[operator]
            if not (is_one(value) or (value is None and annotation != kind)):
                one = isinstance(value, str) and expected.startswith("a list of")
                advice = f": write {[part.strip() for part in value.split(',')]}" if one else ""  # type: ignore[attr-defined]
                kind_of_error = TextError if name in ("text", "pair") else UsageError
                raise kind_of_error(f"expected {name} as {expected}, found {as_found(value)}{advice}.")
            return
    choices, is_callable = choices_of(annotation), "Callable" in str(annotation)
    if (value is None and type(None) in get_args(annotation)) or (is_callable and callable(value)):
        return
    if choices and not (isinstance(value, str) and value in choices):
        others = ", or a function" if is_callable else ""
        raise UsageError(f"unknown {name} {as_found(value)}: expected one of {', '.join(choices)}{others}.")
    if is_callable and not choices:
        raise UsageError(f"expected {name} as a function, found {as_found(value)}.")


def _fits(value: object) -> bool:
    return is_whole(value) and abs(value) < 2**64


def _is_string(value: object) -> bool:
    return isinstance(value, str)


def _is_path(value: object) -> bool:
    """Whether a file could have this name: it has no null character and no half of a character."""
    try:
        return isinstance(value, str | Path) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _is_place(value: object) -> bool:
    return isinstance(value, str) or _fits(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _list_of(is_one: Callable[[object], bool], or_one: bool = False) -> Callable[[object], bool]:
    def holds(value: object) -> bool:
        is_list = isinstance(value, Sequence | Set) and not isinstance(value, str)
        return all(map(is_one, value)) if is_list else or_one and is_one(value)  # type: ignore[call-overload]

    return holds


_KINDS: dict[object, tuple[str, Callable[[object], bool]]] = {
    bool: ("True or False", lambda value: isinstance(value, bool)),
    int: ("a whole number", _fits),
    float: ("a number", _is_number),
    str: ("one string", _is_string),
    Path: ("a pathlib.Path", lambda value: isinstance(value, Path)),
    str | int: ("a string, or a whole number", _is_place),
    str | Path: ("a path", _is_path),
    Sequence[str]: ("a list of strings", _list_of(_is_string)),
    Sequence[str | Path]: ("a list of paths", _list_of(_is_path)),
    str | Sequence[str]: ("a string, or a list of strings", _list_of(_is_string, or_one=True)),
    str | int | Sequence[str | int]: (
        "a string or a whole number, or a list of these",
        _list_of(_is_place, or_one=True),
    ),
    str | Path | Sequence[str | Path]: (
        "a text or a path, or a list of these",
        _list_of(lambda value: isinstance(value, str | Path), or_one=True),
    ),
}
