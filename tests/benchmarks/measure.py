"""Timing whole processes and functions, always several runs of each rival in turn."""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

RUNS = int(os.environ.get("RUNS", "5"))
"""Of each rival, after one to warm up; fewer where somebody only wants to see that the benchmark runs."""


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


def processes(
    commands: Sequence[Sequence[str]], runs: int = RUNS, *, warm_up: bool = True
) -> list[tuple[float, float]]:
    """Median seconds and median peak memory (MiB) of each command, run in turn after one warm-up."""
    measured: list[list[tuple[float, float]]] = [[] for _ in commands]
    for turn in range(not warm_up, runs + 1):
        for place, command in enumerate(commands):
            result = _one_process(command)
            if turn:
                measured[place].append(result)
    return [(statistics.median(s for s, _ in of), statistics.median(m for _, m in of)) for of in measured]


def functions(
    calls: Sequence[Callable[[], object]], runs: int = RUNS, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Median seconds of each call by a clock, in turn after one warm-up."""
    measured: list[list[float]] = [[] for _ in calls]
    for turn in range(runs + 1):
        for place, call in enumerate(calls):
            begin = clock()
            call()
            if turn:
                measured[place].append(clock() - begin)
    return [statistics.median(seconds) for seconds in measured]


_LAUNCH = """
import os, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(time.perf_counter() - begin, usage.ru_maxrss / 1024)
sys.exit(status != 0)
"""
"""Started from here, a process would count what this one has in memory as its own peak (Linux keeps it over exec)."""


def _one_process(command: Sequence[str]) -> tuple[float, float]:
    launched = [sys.executable, "-S", "-c", _LAUNCH, *command]
    done = subprocess.run(launched, capture_output=True, text=True, env=_environment(), check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    seconds, peak = map(float, done.stdout.split())
    return seconds, peak


def _environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1"}


def peak_memory() -> float:
    """This process's largest memory so far, MiB; on Linux without that of the process which started it."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
