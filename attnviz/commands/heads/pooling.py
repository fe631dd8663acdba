"""Patterns as they are drawn, pooled while their rows pass, so that a picture of a long text needs no whole pattern."""

import math
from collections.abc import Iterable, Iterator

import numpy as np
from torch import Tensor

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings
from attnviz.figures.matrix import Array, max_pool


class PooledPattern:
    """What :func:`attnviz.figures.matrix.max_pool` makes of a pattern whose rows come in blocks.

    Attributes:
        cells: [ceil(n_queries / factor), ceil(n_keys / factor)], the largest weight of each block of weights so far.
    """

    def __init__(self, n_queries: int, n_keys: int, factor: int, dtype: type = np.float32) -> None:
        self._factor = factor
        self.cells: Array = np.zeros((math.ceil(n_queries / factor), math.ceil(n_keys / factor)), dtype)

    def add(self, first: int, rows: Tensor) -> None:
        """The next rows, [rows, n_keys], from query ``first`` on; hidden keys at the end may lack."""
        weights = rows.numpy().astype(self.cells.dtype, copy=False)
        if before := first % self._factor:  # rows of the first cells that were in the last block
            weights = np.pad(weights, [(before, 0), (0, 0)])
        pooled = max_pool(weights, self._factor)
        cells = self.cells[first // self._factor :][: len(pooled), : pooled.shape[1]]
        np.maximum(cells, pooled, out=cells)


def pooled_patterns(
    shown: Analysis, heads: Iterable[HeadFindings], factor: int, own: bool = False
) -> Iterator[tuple[HeadFindings, Array]]:
    """Each head with its pattern as it is drawn: of every ``factor`` × ``factor`` weights the largest.

    With ``own`` they are shares of the head's largest weight.
    """
    n_queries, n_keys = len(shown.units), len(shown.keys)
    for head, pooled in shown.read(heads, lambda _: PooledPattern(n_queries, n_keys, factor)):
        yield head, pooled.cells / largest(pooled.cells) if own else pooled.cells


def largest(cells: Array) -> float:
    """The largest weight, for the end of a scale; 1 where there is none."""
    return float(cells.max()) or 1.0
