"""Telling of progress, whoever wants to know: a display, a notebook, nobody."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (0: not known)."""


def tell(progress: Progress | None, what: str, done: int, total: int) -> None:
    """Tell of progress, if anyone wants to know."""
    if progress is not None:
        progress(what, done, total)


def report_once(warn: Callable[[str], None] | None) -> Callable[[str], None]:
    """A function that hands on each message once."""
    told: set[str] = set()

    def once(message: str) -> None:
        if warn is not None and message not in told:
            warn(message)
        told.add(message)

    return once


def named(part: str, progress: Progress | None) -> Progress:
    """Progress that names the part of the work that it is of, where it has a name."""
    if progress is None:
        return lambda *_: None
    return (lambda name, done, total: progress(f"{name}, {part}", done, total)) if part else progress
