"""Locks: of models and of matplotlib between threads, and of folders between runs."""

import os
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


P = ParamSpec("P")
R = TypeVar("R")

# held where a model is opened, run or recomputed, and where matplotlib draws. Threads share a model's hooks,
# transformers' registry of attention and matplotlib's settings.
IN_USE = threading.RLock()


def alone(function: Callable[P, R]) -> Callable[P, R]:
    """Let no other thread use a model, or draw, while the function runs."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with IN_USE:
            return function(*args, **kwargs)

    return call


def lock(folder: Path, *, wait: bool = False) -> int | None:
    """Lock a folder itself (flock), until :func:`unlock` or the end of the process; no lock file is left in it.

    ``wait`` for another run that holds it, else BlockingIOError. None where folders cannot be locked (Windows, some
    network drives): runs do not wait for each other there.
    """
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (AttributeError, OSError) as error:  # no fcntl, a folder that cannot be read, or locks that are not there
        unlock(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor


def unlock(held: int | None) -> None:
    """Release a lock."""
    if held is not None:
        os.close(held)
