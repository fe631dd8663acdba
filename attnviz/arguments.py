"""Checks of what callers pass from Python, where every command expects the same."""

from numbers import Integral
from typing import TypeGuard

from attnviz.errors import TextError, UsageError

__all__ = ["check_switch", "check_texts", "check_whole", "is_whole"]


def is_whole(given: object) -> TypeGuard[int]:
    """Whether this is a whole number, of Python or NumPy; True and False are none."""
    return isinstance(given, Integral) and not isinstance(given, bool)


def check_whole(name: str, given: object, least: int = 0) -> None:
    """Refuse what is no whole number, or too small.

    Raises:
        UsageError: with what was found.
    """
    if not is_whole(given) or given < least:
        raise UsageError(f"expected {name} as a whole number from {least} on, found {given!r}.")


def check_switch(name: str, given: object) -> None:
    """Refuse what is neither True nor False: a list of names, say, which would count as True.

    Raises:
        UsageError: with what was found.
    """
    if not isinstance(given, bool):
        raise UsageError(f"expected {name} as True or False, found {given!r}.")


def check_texts(text: object, pair: object, advice: str) -> None:
    """Refuse what is no text.

    Args:
        text: to check.
        pair: a second text, or None.
        advice: what to do instead, at the end of the message.

    Raises:
        TextError: with the type that was found.
    """
    if not isinstance(text, str) or not isinstance(pair, str | None):
        found = type(text if not isinstance(text, str) else pair).__name__
        raise TextError(f"expected text (and pair) as a string, found {found}; {advice}.")
