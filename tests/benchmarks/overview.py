"""One picture of 144 heads at 448 tokens, timed: attnviz's overview, or a grid of subplots.

python -m tests.benchmarks.overview attnviz|subplots
"""

import io
import sys
import time

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from attnviz.figures.families import family_of_label
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, grid_pooling
from attnviz.figures.matrix import max_pool
from attnviz.figures.style import PLAIN, figure_bytes
from attnviz.models.head_ids import all_heads
from tests.benchmarks.measure import peak_memory

LAYERS = HEADS = 12
TOKENS = 448
TITLE, BAR = "model: 12 layers × 12 heads", "attention weight"


def ours(patterns: np.ndarray) -> bytes:
    """attnviz: exact pixels, labels and marks."""
    ids, label = all_heads(LAYERS, HEADS), "previous-token"
    pooled, _ = grid_pooling(TOKENS, ids, PLAIN, marked=True)
    cells = tuple(
        HeadCell(id, max_pool(pattern, pooled), label, family_of_label(label))
        for id, pattern in zip(ids, patterns, strict=True)
    )
    plan = HeadGridPlan("overview", "", TITLE, ("“a text”",), cells=cells, norm=PLAIN.norm(), bar=BAR)
    return figure_bytes(plan.figure(PLAIN), "png")


def subplots(patterns: np.ndarray) -> bytes:
    """matplotlib: as many pixels, labels over each."""
    figure = Figure(figsize=(11.6, 14), dpi=150)
    FigureCanvasAgg(figure)
    for i, (ax, pattern) in enumerate(zip(figure.subplots(LAYERS, HEADS).flat, patterns, strict=True)):
        image = ax.imshow(pattern, cmap="Blues", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
        ax.set_title(f"L{i // HEADS}H{i % HEADS}\nprevious-token", fontsize=6, loc="left")
    figure.suptitle(TITLE)
    figure.colorbar(image, ax=figure.axes, label=BAR)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


if __name__ == "__main__":
    given = np.random.default_rng(0).random((LAYERS * HEADS, TOKENS, TOKENS), dtype=np.float32) ** 8
    draw = {"attnviz": ours, "subplots": subplots}[sys.argv[1]]
    begin = time.perf_counter()
    assert len(draw(given)) > 10_000
    print(time.perf_counter() - begin, peak_memory())
