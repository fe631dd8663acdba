"""Several processes on one corpus, on one machine or on many, as torchrun starts them.

Each of N reads the whole corpus and measures every N-th text; at the end the first adds up what all have counted.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from attnviz.errors import ProcessError

__all__ = ["Process", "gathered", "joined_processes", "own_file", "this_process"]

_PATIENCE = timedelta(days=7)
"""How long a process that is done waits for the others."""


@dataclass(frozen=True)
class Process:
    """This process among those that share the work: its number, how many there are, its number on its machine."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether it is the one that writes and prints."""
        return self.rank == 0

    def owns(self, number: int) -> bool:
        """Whether the text with this number is its own to measure."""
        return number % self.count == self.rank


def this_process() -> Process:
    """This process, as torchrun's environment describes it; alone without one.

    Raises:
        ProcessError: that environment makes no sense.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    values = [os.environ.get(name, default) for name, default in zip(names, ("0", "1", "0"), strict=True)]
    if not all(value.isdecimal() for value in values) or int(values[0]) >= int(values[1]):
        given = ", ".join(f"{name}={value!r}" for name, value in zip(names, values, strict=True))
        raise ProcessError(f"expected RANK below WORLD_SIZE, whole numbers as torchrun sets them, found {given}.")
    return Process(*map(int, values))


def own_file(path: Path, process: Process) -> Path:
    """The file's name with the number of the process, where there are several."""
    return path if process.count == 1 else path.with_name(f"{path.name}-{process.rank + 1}-of-{process.count}")


@contextmanager
def joined_processes(process: Process) -> Iterator[None]:
    """Connect the processes while the block runs; nothing to do for one alone.

    Raises:
        ProcessError: this torch cannot, or the others are not to be found.
    """
    if process.count == 1:
        yield
        return
    from torch import distributed

    if not distributed.is_available():
        raise ProcessError("this build of torch has no torch.distributed; start attnviz without torchrun.")
    try:
        distributed.init_process_group("gloo", timeout=_PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise ProcessError(f"cannot connect {process.count} processes: {error}; start them with torchrun.") from error
    try:
        yield
    finally:
        distributed.destroy_process_group()


def gathered(process: Process, state: Any) -> list[Any]:
    """In the first process, what every process has counted, by rank; in the others nothing.

    Raises:
        ProcessError: another process has stopped.
    """
    if process.count == 1:
        return [state]
    from torch import distributed

    states: list[Any] | None = [None] * process.count if process.first else None
    try:
        distributed.gather_object(state, states)
    except RuntimeError as error:
        raise ProcessError("another process has stopped before it was done; see its message.") from error
    return states or []
