"""Checks of what callers pass from Python, where every command expects the same."""

import inspect
import re
from collections.abc import Callable, Sequence
from functools import wraps
from numbers import Integral
from pathlib import Path
from typing import ParamSpec, TypeGuard, TypeVar

from attnviz.errors import TextError, UsageError
from attnviz.memory import out_of_memory_named

P = ParamSpec("P")
R = TypeVar("R")

MOST_EXAMPLES = 100
"""Examples of a kind that can be asked for, of each role of each head: all are in memory."""

LARGEST_SEED = 2**63 - 1
"""The largest that torch takes."""


def is_whole(given: object) -> TypeGuard[int]:
    """Whether this is a whole number, of Python or NumPy; True and False are none."""
    return isinstance(given, Integral) and not isinstance(given, bool)


def check_whole(name: str, given: object, least: int = 0, most: int | None = None) -> None:
    """Refuse what is no whole number, too small, or too large.

    Raises:
        UsageError: with what was found.
    """
    if not is_whole(given) or given < least:
        raise UsageError(f"expected {name} as a whole number from {least} on, found {given!r}.")
    if most is not None and given > most:
        raise UsageError(f"expected {name} as a whole number up to {most}, found {given}.")


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


def check_sampling(limit: object, batch_size: object, seed: object) -> None:
    """Refuse what says how much of corpora is read, and how, where it is no whole number or out of range.

    Raises:
        UsageError: with what was found.
    """
    if limit is not None:
        check_whole("limit", limit, 1)
    check_whole("batch_size", batch_size, 1)
    check_whole("seed", seed, most=LARGEST_SEED)


def check_switch(name: str, given: object) -> None:
    """Refuse what is neither True nor False: a list of names, say, which would count as True.

    Raises:
        UsageError: with what was found.
    """
    _check_kind(name, given, bool)


def check_texts(text: object, pair: object, advice: str) -> None:
    """Refuse what is no text, or a pair that is neither a text nor None; ``advice`` says what to do instead.

    Raises:
        TextError: with the type that was found.
    """
    if not isinstance(text, str) or not isinstance(pair, str | None):
        found = type(text if not isinstance(text, str) else pair).__name__
        raise TextError(f"expected text (and pair) as a string, found {found}; {advice}.")


def check_callback(name: str, given: object) -> None:
    """Raise UsageError unless it is a function or None."""
    if not (given is None or callable(given)):
        raise UsageError(f"expected {name} as a function, found {given!r}.")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """A function that refuses switches, numbers, names, files and callbacks of other kinds than its signature says.

    All others it checks by itself, with messages that say more.

    Raises:
        UsageError: by the function, with what was expected and found.
        OutOfMemoryError: by the function, whatever a library raised for want of memory.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, given in signature.bind(*args, **kwargs).arguments.items():
            if name not in ("text", "pair", "layer"):
                parameter = signature.parameters[name]
                for each in given if parameter.kind is parameter.VAR_POSITIONAL else [given]:
                    _check_kind(name, each, parameter.annotation)
        with out_of_memory_named():
            return function(*args, **kwargs)

    return call


def _check_kind(name: str, given: object, annotation: object) -> None:
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
