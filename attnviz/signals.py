"""Interruptions: Ctrl-C, SIGTERM and a terminal that closes (SIGHUP) are one, and wait while files are moved."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGTERM", "SIGINT") if hasattr(signal, name))
"""Those that interrupt; Ctrl-C last, so that all others are back where they were when it raises."""

_Handler = Callable[[int, FrameType | None], None]

_BURST = 1.0
"""Seconds in which several signals are one: systemd sends SIGTERM and SIGHUP together."""


class Interrupted(KeyboardInterrupt):
    """A signal; a KeyboardInterrupt itself that passes through ``exec`` ends the process even where it is caught."""


def interruption(error: type[BaseException] = Interrupted) -> _Handler:
    """A handler that raises such an error, once in a burst."""
    last = -_BURST

    def interrupt(*_: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before >= _BURST:
            raise error

    return interrupt


def insist(*errors: type[BaseException]) -> None:
    """Interrupt again where one of these errors comes in a destructor or a callback, in which Python only prints it."""

    def again(unraisable: "sys.UnraisableHookArgs") -> None:
        if not issubclass(unraisable.exc_type, errors):
            sys.__unraisablehook__(unraisable)
            return
        timer = threading.Timer(_BURST, os.kill, [os.getpid(), signal.SIGTERM])  # wakes the main thread
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again


def take(handler: _Handler) -> dict[int, _Handler | int]:
    """Give the signals to a handler, but those that are ignored (nohup), or not Python's.

    Returns:
        who had them before.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}  # they go to the main thread
    before = {number: found for number in SIGNALS if (found := signal.getsignal(number)) not in (None, signal.SIG_IGN)}
    for number in before:
        signal.signal(number, handler)
    return before


@contextmanager
def handled(handler: _Handler) -> Iterator[None]:
    """While the block runs, the handler gets the signals; see :func:`take`."""
    before = take(handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold the signals back while the block runs; those that came are raised at its end."""
    came: list[int] = []
    with handled(lambda number, _: came.append(number)):
        yield
    for number in dict.fromkeys(came):
        signal.raise_signal(number)


def ignore() -> None:
    """Ignore the signals from now on: the work is done, and the process ends."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
