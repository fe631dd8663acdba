"""Checks of what callers pass from Python, where every command expects the same."""

from attnviz.errors import TextError, UsageError

__all__ = ["check_counts", "check_switch", "check_texts"]


def check_counts(**counts: object) -> None:
    """Refuse what is no whole number from 0 on.

    Raises:
        UsageError: with the name of what is none.
    """
    for name, given in counts.items():
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise UsageError(f"expected {name} as a whole number from 0 on, found {given!r}.")


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
