"""Running out of memory: told from every other error, wherever a library raised it, and named in one way."""

import errno
import math
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from attnviz.errors import AttnvizError, OutOfMemoryError

LESS_MEMORY = (
    'a shorter text, a smaller --batch-size (batch_size=...) or --dtype bfloat16 (dtype="bfloat16") takes less memory'
)
"""What helps, whichever command it is."""

_SAID = re.compile(
    r"can(no|.)?t allocate memory(?! in static TLS)|out of memory|(unable|failed) to allocate|bad_alloc"
    r"|failed to map segment|ALLOC_FAILED",
    re.IGNORECASE,
)
"""How torch (its allocators for CPU, CUDA and MPS), Rust's libraries and the loader of shared libraries say it."""

_LIMITED = re.compile("^(can't start new thread|error return without exception set|Could not reserve memory)")
"""What else it looks like where memory is limited, and may have other causes where it is not."""

_ASKED = re.compile(r"allocate ([\d.]+) ?(bytes|[KMGTP]?i?B)\b", re.IGNORECASE)
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def memory_size(n_bytes: float) -> str:
    """So many bytes as people read them: ``6.4 GB``."""
    power = next((power for power in range(len(_UNITS)) if n_bytes / 1000**power < 999.5), len(_UNITS) - 1)
    return f"{n_bytes / 1000**power:.3g} {_UNITS[power]}"


def out_of_memory(error: BaseException) -> OutOfMemoryError | None:
    """The error to raise where this one, or one that caused it, is of memory that could not be had; None for others."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    found = next(filter(_is_of_memory, causes), None)
    if found is None or isinstance(found, OutOfMemoryError):
        return found
    asked = _ASKED.search(str(found))
    how_much = f": {memory_size(_bytes(*asked.groups()))} more could not be had" if asked else ""
    return OutOfMemoryError(f"out of memory{how_much}{limit_note()}; {LESS_MEMORY}.")


def address_space() -> float:
    """The bytes of address space that this process may have (``ulimit -v``); infinite where nobody has set that."""
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if allowed == resource.RLIM_INFINITY else allowed


def limit_note() -> str:
    """That somebody has limited the memory of this process, in brackets; empty where nobody has."""
    return f" (ulimit -v allows {memory_size(address_space())})" if math.isfinite(address_space()) else ""


@contextmanager
def out_of_memory_named() -> Iterator[None]:
    """While the block runs, whatever is raised for want of memory becomes an OutOfMemoryError, and lets go of it.

    Raises:
        OutOfMemoryError: with how much was asked for, where that is known, and what takes less.
    """
    try:
        yield
    except Exception as error:
        if (shortage := out_of_memory(error)) is None or shortage is error:
            raise
        traceback.clear_frames(error.__traceback__)  # of what was measured so far, so that there is memory again
        raise shortage from error


def _is_of_memory(error: BaseException) -> bool:
    """By its class, number or words; torch's class for it is no MemoryError, and most libraries have none."""
    if isinstance(error, MemoryError | OutOfMemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if math.isfinite(address_space()) and _LIMITED.search(str(error)):
        return True
    quotes = isinstance(error, AttnvizError | LookupError | TypeError | ValueError)  # perhaps a text that says so
    return not quotes and _SAID.search(str(error)) is not None


def _bytes(number: str, unit: str) -> float:
    power = [each[0].lower() for each in _UNITS].index(unit[0].lower())
    return float(number) * float(1024 if "i" in unit else 1000) ** power
