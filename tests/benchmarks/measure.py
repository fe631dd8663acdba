"""Timing whole processes and functions, always several runs of each rival in turn."""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

RUNS = int(os.environ.get("RUNS", "5"))
"""Of each rival, after one to warm up; fewer where somebody only wants to see that the benchmark runs."""

Commands = Sequence[Sequence[str]]


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


def at_most(what: str, ours: float, rival: str, theirs: float, unit: str, limit: float) -> Row:
    return Row(what, ours, rival, theirs, unit, f"at most {limit}x", ours / theirs <= limit)


def faster(what: str, ours: float, rival: str, theirs: float, limit: float) -> Row:
    return Row(what, ours, rival, theirs, "s", f"at most 1/{limit:g}", theirs / ours >= limit)


def below(what: str, ours: float, rival: str, theirs: float, unit: str, limit: float) -> Row:
    """A limit that is a number of seconds or bytes."""
    return Row(what, ours, rival, theirs, unit, f"{limit:g} {unit}", ours <= limit)


def processes(commands: Commands, runs: int = RUNS, *, warm_up: bool = True) -> list[list[float]]:
    """Medians of seconds, peak memory (MiB) and CPU seconds of each command, run in turn after one warm-up."""
    return printed([[sys.executable, "-S", "-c", _LAUNCH, *command] for command in commands], runs, warm_up=warm_up)


def printed(commands: Commands, runs: int = RUNS, *, warm_up: bool = True) -> list[list[float]]:
    """Medians of the numbers that each command prints, run in turn after one warm-up."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have theirs, and so has attnviz
    measured: list[list[list[float]]] = [[] for _ in commands]
    for turn in range(not warm_up, runs + 1):
        for place, command in enumerate(commands):
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
            if turn:
                measured[place].append([float(number) for number in done.stdout.split()])
    return [_medians(of_command) for of_command in measured]


def _medians(rows: Iterable[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def functions(
    calls: Sequence[Callable[[], object]],
    runs: int = RUNS,
    clock: Callable[[], float] = time.perf_counter,
    of_runs: Callable[[Sequence[float]], float] = statistics.median,
) -> list[float]:
    """Seconds of each call by a clock, in turn after one warm-up: the median, or another number of the runs."""
    measured: list[list[float]] = []
    for turn in range(runs + 1):
        seconds = []
        for call in calls:
            begin = clock()
            call()
            seconds.append(clock() - begin)
        if turn:
            measured.append(seconds)
    return [of_runs(column) for column in zip(*measured, strict=True)]


_LAUNCH = """
import os, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(time.perf_counter() - begin, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime)
sys.exit(status != 0)
"""
"""Started from here, a process would count what this one has in memory as its own peak (Linux keeps it over exec)."""


def peak_memory() -> float:
    """This process's largest memory so far, MiB; on Linux without that of the process which started it."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
