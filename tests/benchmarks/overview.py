"""One picture of 144 heads at 448 tokens, timed: attnviz's overview, or a grid of subplots.

python -m tests.benchmarks.overview attnviz|subplots
"""

import io
import sys
import time

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from attnviz.figures.overviews import plan_overview
from attnviz.figures.rendering import overview_file
from attnviz.model.head_ids import HeadId
from tests.benchmarks.measure import peak_memory

LAYERS = HEADS = 12
TOKENS = 448


def ours(patterns: np.ndarray) -> bytes:
    """attnviz: exact pixels, labels and marks."""
    heads = ((HeadId(i // HEADS, i % HEADS), "previous-token", pattern) for i, pattern in enumerate(patterns))
    return overview_file(plan_overview(heads, title="model: 12 layers × 12 heads", notes=["“a text”"]), "png")


def subplots(patterns: np.ndarray) -> bytes:
    """matplotlib: as many pixels, labels over each."""
    figure = Figure(figsize=(11.6, 14), dpi=150)
    FigureCanvasAgg(figure)
    for i, (ax, pattern) in enumerate(zip(figure.subplots(LAYERS, HEADS).flat, patterns, strict=True)):
        image = ax.imshow(pattern, cmap="Blues", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
        ax.set_title(f"L{i // HEADS}H{i % HEADS}\nprevious-token", fontsize=6, loc="left")
    figure.suptitle("model: 12 layers × 12 heads")
    figure.colorbar(image, ax=figure.axes, label="attention weight")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


if __name__ == "__main__":
    given = np.random.default_rng(0).random((LAYERS * HEADS, TOKENS, TOKENS), dtype=np.float32)
    given **= 8
    draw = {"attnviz": ours, "subplots": subplots}[sys.argv[1]]
    begin = time.perf_counter()
    assert len(draw(given)) > 10_000
    print(time.perf_counter() - begin, peak_memory())
