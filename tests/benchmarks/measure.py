"""Timing whole processes and functions, always several runs of each rival in turn."""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RUNS = 5


@dataclass(frozen=True)
class Row:
    """One line of the table: attnviz against a named rival, and the largest ratio that is fine."""

    what: str
    ours: float
    rival: str
    theirs: float
    unit: str
    limit: str
    passed: bool


def processes(commands: Sequence[Sequence[str]], runs: int = RUNS) -> list[tuple[float, float]]:
    """Median seconds and median peak memory (MiB) of each command, run in turn after one warm-up."""
    measured: list[list[tuple[float, float]]] = [[] for _ in commands]
    for turn in range(runs + 1):
        for place, command in enumerate(commands):
            result = _one_process(command)
            if turn:
                measured[place].append(result)
    return [(statistics.median(s for s, _ in of), statistics.median(m for _, m in of)) for of in measured]


def functions(calls: Sequence[Callable[[], object]], runs: int = RUNS) -> list[float]:
    """Median seconds of each call, in turn after one warm-up."""
    measured: list[list[float]] = [[] for _ in calls]
    for turn in range(runs + 1):
        for place, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            if turn:
                measured[place].append(time.perf_counter() - begin)
    return [statistics.median(seconds) for seconds in measured]


def _one_process(command: Sequence[str]) -> tuple[float, float]:
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_environment())
    assert process.stderr is not None
    message = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    if status:
        sys.exit(f"{' '.join(command)} failed:\n{message.decode()}")
    return seconds, usage.ru_maxrss / 1024


def _environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1"}


def peak_memory() -> float:
    """This process's largest memory so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
