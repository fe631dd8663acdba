"""Ctrl-C, or a scheduler's SIGTERM, at a moment that suits: what is in hand is finished first."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptions_noted"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interruptions_noted() -> Iterator[Callable[[], bool]]:
    """While the block runs a first Ctrl-C (or SIGTERM) is noted; a second one interrupts at once.

    Yields:
        whether there was one; ask between two pieces of work, and raise KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals go to the main thread
        return
    noted: list[int] = []

    def note(number: int, _: Any) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = [signal.signal(number, note) for number in _SIGNALS]
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
