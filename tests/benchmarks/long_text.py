"""attnviz on one long text without figures, timed from tokens to findings.

python -m tests.benchmarks.long_text FOLDER TEXT
"""

import sys
import time

import attnviz
from tests.benchmarks.measure import peak_memory

if __name__ == "__main__":
    folder, text = sys.argv[1:]
    stamps: list[float] = []
    analysis = attnviz.analyze(text, folder, syntax=False, progress=lambda *_: stamps.append(time.perf_counter()))
    assert len(analysis.tokens) == 1024
    print(time.perf_counter() - stamps[0], peak_memory())
