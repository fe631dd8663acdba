"""One run at a time in a folder: locks of the operating system on the folder itself, which end with their process.

Where there are none (Windows, some network drives), runs do not wait for each other.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


PATIENCE = 10.0
"""Seconds for which a run waits until another one has moved its files."""

_POLL = 0.05


class LockedError(Exception):
    """Another run holds the folder."""


def lock(folder: Path) -> int | None:
    """Lock a folder until :func:`unlock`, or the end of the process.

    Returns:
        what :func:`unlock` takes; None where folders cannot be locked.

    Raises:
        LockedError: another run holds it.
    """
    if fcntl is None:
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that may be written to, but not read
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise LockedError from error
        return None
    return descriptor


def unlock(held: int | None) -> None:
    """Give a folder free again."""
    if held is not None:
        os.close(held)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While the block runs, no other run is in such a block of this folder; wait for it, but not for long.

    Raises:
        LockedError: another run holds it, and goes on holding it.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            held = lock(folder)
            break
        except LockedError:
            if time.monotonic() >= until:
                raise
            time.sleep(_POLL)
    try:
        yield
    finally:
        unlock(held)
