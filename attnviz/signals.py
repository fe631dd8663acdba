"""Interruptions: Ctrl-C, SIGTERM and SIGHUP are treated alike, and wait while files are moved."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGTERM", "SIGINT") if hasattr(signal, name))


class Interrupted(BaseException):
    """Raised by a signal; of a KeyboardInterrupt typer makes an exit without a message."""


def interruption(came: list[int]) -> Callable[[int, Any], None]:
    """A handler that notes a signal in ``came`` and raises Interrupted; within a second (timeout sends two) once."""
    last = float("-inf")

    def interrupt(number: int, _: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before >= 1:
            came.append(number)
            raise Interrupted

    return interrupt


@contextmanager
def handled(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Handle the signals while the block runs, but for those that are ignored (nohup) or handled outside Python."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # which alone can have handlers
        earlier = {number: signal.getsignal(number) for number in SIGNALS}
        before = {number: own for number, own in earlier.items() if own not in (None, signal.SIG_IGN)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)


@contextmanager
def held_back() -> Iterator[None]:
    """Defer signals until the block ends."""
    came: list[int] = []
    with handled(lambda number, _: came.append(number)):
        yield
    for number in dict.fromkeys(came):
        signal.raise_signal(number)
