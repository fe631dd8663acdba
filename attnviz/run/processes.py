"""Several processes on one corpus, and the file of an unfinished run.

Of N processes, as torchrun starts them on one machine or on many, each reads the whole corpus and measures every N-th
text; at the end the first adds up all counts. torch is imported only where it is needed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from attnviz.errors import OutputError, ProcessError
from attnviz.memory import is_out_of_memory

_PATIENCE = timedelta(days=7)  # timeout of a process that waits for the others


@dataclass(frozen=True)
class Process:
    """This process among those that share the work."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0  # on its machine

    @property
    def first(self) -> bool:
        return self.rank == 0

    def owns(self, number: int) -> bool:
        """Whether it measures the text with this number."""
        return number % self.count == self.rank


def this_process() -> Process:
    """This process, from torchrun's environment variables, a single one without these; ProcessError for wrong ones."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    values = [os.environ.get(name, default) for name, default in zip(names, ("0", "1", "0"), strict=True)]
    if not all(value.isdecimal() for value in values) or int(values[0]) >= int(values[1]):
        variables = ", ".join(f"{name}={value!r}" for name, value in zip(names, values, strict=True))
        raise ProcessError(f"expected RANK below WORLD_SIZE, whole numbers as torchrun sets them, found {variables}.")
    return Process(*map(int, values))


def own_file(path: Path, process: Process) -> Path:
    """The path, with the number of the process in its name if there are several."""
    return path if process.count == 1 else path.with_name(f"{path.name}-{process.rank + 1}-of-{process.count}")


def remove_kept(path: Path, process: Process) -> None:
    """Delete the saved files of this run's processes."""
    for rank in range(process.count):
        own_file(path, replace(process, rank=rank)).unlink(missing_ok=True)


@contextmanager
def joined_processes(process: Process) -> Iterator[None]:
    """Connect several processes while the block runs; ProcessError where that cannot be."""
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
    """In the first process the states of all, by rank, else an empty list; ProcessError where another has stopped."""
    if process.count == 1:
        return [state]
    from torch import distributed

    states: list[Any] | None = [None] * process.count if process.first else None
    try:
        distributed.gather_object(state, states)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise ProcessError("another process has stopped before it was done; see its message.") from error
    return states or []


class Unfinished:
    """The file of an unfinished run, replaced whole at each save; only a run with the same settings can resume it."""

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.path = path
        self._settings = settings

    def load(self) -> dict[str, Any] | None:
        """The state of an earlier run with the same settings, if any; OutputError for another or a damaged file."""
        if self.path is None or not self.path.exists():
            return None
        import torch

        with self.restoring():
            if not self.path.is_file():
                raise ValueError("a folder, or a pipe, which would be waited for")
            content = torch.load(self.path, weights_only=True)
            settings, state = dict(content["settings"]), dict(content["state"])
        other = [name for name in {**settings, **self._settings} if settings.get(name) != self._settings.get(name)]
        if other:
            changes = ", ".join(f"{name} {settings.get(name)}, now {self._settings.get(name)}" for name in other)
            raise OutputError(
                f"{self.path} holds what an interrupted run with other settings has measured ({changes}); give the "
                "same settings to go on, another folder with -o, or delete it to begin anew."
            )
        return state

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Turn any error while the file is read and restored into one OutputError."""
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise OutputError(
                f"expected what an interrupted run has measured in {self.path}, found something else, or a damaged "
                "file; delete it to begin anew, or choose another folder with -o."
            ) from error

    def save(self, state: dict[str, Any]) -> None:
        """Write the file atomically; OutputError where the folder cannot be written to."""
        if self.path is None:
            return
        import torch

        new = self.path.with_name(f"{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with new.open("wb") as file:
                torch.save({"settings": self._settings, "state": state}, file)
            new.replace(self.path)
        except OSError as error:
            raise OutputError(
                f"cannot keep what was measured in {self.path}: {error.strerror or error}; free some space or make the "
                "folder writable there, or choose another folder with -o."
            ) from error
        finally:
            with suppress(OSError):
                new.unlink()

    def remove(self) -> None:
        """Delete the file, of a run that cannot be resumed."""
        if self.path is not None:
            remove_kept(self.path, Process())
