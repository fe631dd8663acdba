"""Progress callbacks."""

from collections.abc import Callable

# Called with what is being done, how much of it is done, and how much there is (0: not known).
Progress = Callable[[str, int, int], None]


def tell(progress: Progress | None, what: str, done: int, total: int) -> None:
    """Call ``progress`` unless it is None."""
    if progress is not None:
        progress(what, done, total)


def report_once(warn: Callable[[str], None] | None) -> Callable[[str], None]:
    """Wrap ``warn`` so that repeated messages are dropped."""
    reported: set[str] = set()

    def once(message: str) -> None:
        if warn is not None and message not in reported:
            warn(message)
        reported.add(message)

    return once


def with_suffix(part: str, progress: Progress | None) -> Progress:
    """Append the name of a part of the work to what is reported; '' for a part without name."""
    if progress is None:
        return lambda *_: None
    return (lambda name, done, total: progress(f"{name}, {part}", done, total)) if part else progress
