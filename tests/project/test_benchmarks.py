"""What the benchmark measures: of each process its own time and memory."""

import sys
import time

import numpy as np
import pytest

from tests.benchmarks.measure import functions, processes

pytestmark = pytest.mark.thorough
PYTHON = sys.executable


def test_the_memory_of_a_process_is_its_own():
    large = np.ones(400 * 2**20, dtype=np.uint8)
    commands = [[PYTHON, "-c", "pass"], [PYTHON, "-c", "b'x' * (200 * 2 ** 20)"]]
    (_, small, _), (_, larger, _) = processes(commands, runs=1)
    assert small < 100
    assert small + 190 < larger < small + 300
    assert large.all()


def test_times_are_those_of_the_calls_and_a_failure_ends_the_benchmark():
    ((seconds, _, busy),) = processes([[PYTHON, "-c", "import time; time.sleep(0.5)"]], runs=1)
    assert seconds >= 0.5 > busy
    order = []
    (first, _) = functions([lambda: order.append("a") or time.sleep(0.1), lambda: order.append("b")], runs=2)
    assert first >= 0.1
    assert order == ["a", "b"] * 3
    with pytest.raises(SystemExit, match="luck"):
        processes([[PYTHON, "-c", "raise SystemExit('no such luck')"]])
