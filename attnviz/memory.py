"""One error for every failed allocation, sizes in words, and the memory that is free."""

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnviz.errors import OutOfMemoryError

# what helps, whichever command it is
LESS_MEMORY = (
    'a shorter text, a smaller --batch-size (batch_size=...) or --dtype bfloat16 (dtype="bfloat16") takes less memory'
)

# tensors of the size of a block of rows that are in memory at once: scores, masked scores and weights, both sides
TENSORS_OF_A_BLOCK = 6

# what torch says: the first of a GPU, the others of the CPU (Linux and macOS, Windows)
_OF_TORCH = ("out of memory", "can't allocate memory", "not enough memory")
_MEMINFO = Path("/proc/meminfo")
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")

MOST_MASKS = 2**26  # bytes of masks that are kept during a pass


def memory_size(n_bytes: float) -> str:
    """Bytes with a unit: ``6.4 GB``."""
    power = next((power for power in range(len(_UNITS)) if n_bytes / 1000**power < 999.5), len(_UNITS) - 1)
    return f"{n_bytes / 1000**power:.3g} {_UNITS[power]}"


def row_blocks(n: int, row_bytes: int, memory: float) -> Iterator[tuple[int, int]]:
    """The first and past-the-last query of each chunk of n, for rows of so many bytes in all heads and texts."""
    size = max(1, int(min(n, memory // (TENSORS_OF_A_BLOCK * row_bytes))))
    yield from ((first, min(first + size, n)) for first in range(0, n, size))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; torch's own error of a GPU is a RuntimeError, and that of the CPU has no class."""
    if isinstance(error, MemoryError | OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_TORCH)


@contextmanager
def out_of_memory_named() -> Iterator[None]:
    """Turn a failed allocation inside the block into OutOfMemoryError, which says what takes less."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError(f"out of memory; {LESS_MEMORY}.") from error


def peak_memory() -> int | None:
    """Bytes of this process's largest memory so far; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def free_memory() -> float:
    """Bytes that the machine can still give, with swap; infinite on other systems than Linux."""
    if not _MEMINFO.is_file():
        return math.inf
    sizes = dict(re.findall(r"^(\w+): *(\d+) kB", _MEMINFO.read_text(encoding="ascii"), re.MULTILINE))
    return 1024.0 * (int(sizes["MemAvailable"]) + int(sizes["SwapFree"]))
