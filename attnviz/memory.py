"""Out-of-memory errors of every library as one exception, and the memory that is free."""

import errno
import math
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from attnviz.errors import AttnvizError, OutOfMemoryError

LESS_MEMORY = (
    'a shorter text, a smaller --batch-size (batch_size=...) or --dtype bfloat16 (dtype="bfloat16") takes less memory'
)
"""What helps, whichever command it is."""

TENSORS_OF_A_BLOCK = 6
"""Tensors of the size of a block of rows that are in memory at once: scores, masked scores and weights, both sides."""

_SAID = re.compile(
    r"can(no|.)?t allocate memory(?! in static TLS)|out of memory|(unable|failed) to allocate|bad_alloc"
    r"|failed to map segment|ALLOC_FAILED",
    re.IGNORECASE,
)
"""How torch (its allocators for CPU, CUDA and MPS), Rust's libraries and the loader of shared libraries say it."""

_LIMITED = re.compile("^(can't start new thread|error return without exception set|Could not reserve memory)")
"""What else it looks like where memory is limited, and may have other causes where it is not."""

_SIZE = r"([0-9]{1,18}(?:\.[0-9]{1,6})?) *([KMGTP]?)(?:i?B|bytes)?"
_ASKED = re.compile(rf"(?<=allocate ){_SIZE}(?<=[bs])\b", re.IGNORECASE)
_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
"""Where Linux tells of memory, and of the limits of control groups."""

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def memory_size(n_bytes: float) -> str:
    """Bytes with a unit: ``6.4 GB``."""
    power = next((power for power in range(len(_UNITS)) if n_bytes / 1000**power < 999.5), len(_UNITS) - 1)
    return f"{n_bytes / 1000**power:.3g} {_UNITS[power]}"


def bytes_of(text: str) -> int | None:
    """Bytes of a size such as ``64M``, ``1.5 GiB`` or ``20 bytes``; None for another text.

    All units are of 1,024, also GB: so torch writes them, too.
    """
    match = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE)
    return None if match is None else int(float(match[1]) * 1024 ** "_KMGTP".index(match[2].upper() or "_"))


def out_of_memory(error: BaseException) -> OutOfMemoryError | None:
    """The error to raise if this one, or one of its causes, is a failed allocation; else None."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    shortage = next(filter(_is_of_memory, causes), None)
    if shortage is None or isinstance(shortage, OutOfMemoryError):
        return shortage
    requested = _ASKED.search(str(shortage))
    size = requested and bytes_of(requested[0])
    how_much = f": {memory_size(size)} more could not be had" if size else ""
    return OutOfMemoryError(f"out of memory{how_much}{limit_note()}; {LESS_MEMORY}.")


def address_space() -> float:
    """Limit of this process's address space in bytes (``ulimit -v``); infinite without one."""
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if allowed == resource.RLIM_INFINITY else allowed


def free_address_space() -> float:
    """Bytes left of :func:`address_space`; infinite without a limit, or where the system does not say."""
    try:
        import resource

        pages = int(_read(_PROC / "self/statm").split()[0])
    except (ImportError, OSError, ValueError, IndexError):
        return math.inf
    return address_space() - pages * resource.getpagesize()


def peak_memory() -> int | None:
    """Bytes of this process's largest memory so far; None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def free_memory() -> float:
    """Bytes that this process can still allocate, swap included, under the limits of its control groups.

    The page cache of files counts as free. Infinite on other systems than Linux.
    """
    try:
        of_machine = _sizes(_read(_PROC / "meminfo"))
        free, swap = of_machine["MemAvailable"] * 1024.0, of_machine["SwapFree"] * 1024
    except (OSError, KeyError):
        return math.inf
    groups = ""
    with suppress(OSError):
        groups = _read(_PROC / "self/cgroup")
    for line in groups.splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "memory"):
            path = PurePosixPath(name.lstrip("/"))
            for part in (path, *path.parents):
                free = min(free, _free_in_group(_GROUPS / controllers / part))
    return free + swap


def _free_in_group(folder: Path) -> float:
    """Bytes left to a control group (v2 or v1); infinite without a limit."""
    second = (folder / "memory.max").is_file()
    limit, usage = ("memory.max", "memory.current") if second else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    try:
        most, used = int(_read(folder / limit)), int(_read(folder / usage))
        of_files = _sizes(_read(folder / "memory.stat"))
    except (OSError, ValueError):  # there is none, or its limit is "max"
        return math.inf
    total = "" if second else "total_"
    return most - used + sum(of_files.get(f"{total}{kind}_file", 0) for kind in ("active", "inactive"))


def _sizes(content: str) -> dict[str, int]:
    """Parse ``name: number`` lines."""
    lines = (line.replace(":", " ").split() for line in content.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def limit_note() -> str:
    """The limit of this process's address space, in brackets; empty without one."""
    return f" (ulimit -v allows {memory_size(address_space())})" if math.isfinite(address_space()) else ""


@contextmanager
def out_of_memory_named() -> Iterator[None]:
    """Turn failed allocations inside the block into OutOfMemoryError, and free what their frames hold.

    Raises:
        OutOfMemoryError: with the size requested, where known, and what needs less.
    """
    try:
        yield
    except Exception as error:
        if (shortage := out_of_memory(error)) is None or shortage is error:
            raise
        traceback.clear_frames(error.__traceback__)  # of what was measured so far, so that there is memory again
        raise shortage from error


def _is_of_memory(error: BaseException) -> bool:
    """Whether class, errno or message says so: torch's error is no MemoryError, and most libraries have none."""
    if isinstance(error, MemoryError | OutOfMemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if math.isfinite(address_space()) and _LIMITED.search(str(error)):
        return True
    quotes = isinstance(error, AttnvizError | LookupError | TypeError | ValueError)  # perhaps a text that says so
    return not quotes and _SAID.search(str(error)) is not None
