"""Telling of progress, whoever wants to know: a display, a notebook, nobody."""

from collections.abc import Callable

__all__ = ["Progress", "tell"]

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (0: not known)."""


def tell(progress: Progress | None, what: str, done: int, total: int) -> None:
    """Tell of progress, if anyone wants to know."""
    if progress is not None:
        progress(what, done, total)
