"""Interruptions: Ctrl-C, SIGTERM and SIGHUP are treated alike, and wait while files are moved."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGTERM", "SIGINT") if hasattr(signal, name))
"""Signals that interrupt; Ctrl-C last, so that the others have their handlers back when it raises."""

_Handler = Callable[[int, FrameType | None], None]

_BURST = 1.0  # seconds in which several signals are one: systemd sends SIGTERM and SIGHUP together


class Interrupted(KeyboardInterrupt):
    """Raised by a signal; a plain KeyboardInterrupt that passes through ``exec`` ends the process though caught."""


def interruption(error: type[BaseException] = Interrupted) -> _Handler:
    """Make a handler that raises this error, once in a burst of signals; see :func:`delivered`."""
    last = -_BURST

    def interrupt(number: int, _: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before >= _BURST:
            _came.append(number)
            raise error

    return interrupt


_came: list[int] = []  # signals whose error was raised, and has not arrived


def raise_again() -> None:
    """Raise Interrupted if an interruption was raised before, and a library has swallowed it."""
    if _came:
        raise Interrupted


@contextmanager
def delivered(error: type[BaseException] = Interrupted) -> Iterator[None]:
    """Raise this error at the end of the block, however it ends, if an interruption was raised in it.

    Libraries swallow it, or turn it into another: torch's C++ tells of it as a shape that it cannot determine.
    """
    try:
        yield
    finally:
        if _came:
            _came.clear()
            raise error


def insist(*errors: type[BaseException]) -> None:
    """Interrupt again after one of these errors in a destructor or a callback, where Python prints and drops it."""

    def again(unraisable: "sys.UnraisableHookArgs") -> None:
        if not issubclass(unraisable.exc_type, errors):
            sys.__unraisablehook__(unraisable)
            return
        timer = threading.Timer(_BURST, os.kill, [os.getpid(), signal.SIGTERM])  # wakes the main thread
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again


def take(handler: _Handler) -> dict[int, _Handler | int]:
    """Install a handler for the signals, except for those that are ignored (nohup) or handled outside Python.

    Returns:
        the previous handlers by signal; empty outside the main thread, which alone can have handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    current = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: each for number, each in current.items() if each not in (None, signal.SIG_IGN)}
    for number in before:
        signal.signal(number, handler)
    return before


@contextmanager
def handled(handler: _Handler) -> Iterator[None]:
    """Install a handler while the block runs; see :func:`take`."""
    before = take(handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def held_back() -> Iterator[None]:
    """Defer signals until the block ends."""
    came: list[int] = []
    with handled(lambda number, _: came.append(number)):
        yield
    for number in dict.fromkeys(came):
        signal.raise_signal(number)


def ignore() -> None:
    """Ignore the signals until the process ends."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
