"""Libraries written in Rust: a panic of theirs prints to standard error by itself, and is no Exception in Python."""

import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["is_panic", "panics_unprinted"]

_ALONE = threading.RLock()
_PRINTED = re.compile(rb"\n?thread '[^']*' (\([0-9]+\) )?panicked at .*", re.DOTALL)
_STANDARD_ERROR = 2


def is_panic(error: BaseException) -> bool:
    """Whether it is what pyo3 makes of a panic, a class that no module gives access to."""
    return type(error).__name__ == "PanicException"


@contextmanager
def panics_unprinted() -> Iterator[None]:
    """While the block runs, standard error is held back; what a panic wrote there is dropped, all else passed on.

    The library writes to the file descriptor, so that is what is exchanged, by one thread at a time.
    """
    panicked = False
    with ExitStack() as stack:
        try:
            stack.enter_context(_ALONE)
            held = stack.enter_context(tempfile.TemporaryFile())
            own = os.dup(_STANDARD_ERROR)
        except OSError:  # no room for a file, or standard error is closed
            yield
            return
        stack.callback(os.close, own)
        os.dup2(held.fileno(), _STANDARD_ERROR)
        try:
            yield
        except BaseException as error:
            panicked = is_panic(error)
            raise
        finally:
            os.dup2(own, _STANDARD_ERROR)
            held.seek(0)
            written = held.read()
            _pass_on(_PRINTED.sub(b"", written) if panicked else written)


def _pass_on(written: bytes) -> None:
    while written:
        try:
            written = written[os.write(_STANDARD_ERROR, written) :]
        except OSError:  # a full disk, as for any other message
            return
