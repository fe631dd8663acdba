"""Patterns pooled for drawing block by block, so that no pattern of a long text is in memory."""

from collections.abc import Iterable, Iterator

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings
from attnviz.figures.matrix import Array, PooledPattern


def pooled_patterns(
    shown: Analysis, heads: Iterable[HeadFindings], factor: int, own: bool = False
) -> Iterator[tuple[HeadFindings, Array]]:
    """Yield each head with its pooled pattern: of every ``factor`` × ``factor`` weights the largest.

    With ``own``, weights are divided by the head's largest.
    """
    n_queries, n_keys = len(shown.units), len(shown.keys)
    for head, pooled in shown.read(heads, lambda _: PooledPattern(n_queries, n_keys, factor)):
        yield head, pooled.cells / largest(pooled.cells) if own else pooled.cells


def largest(cells: Array) -> float:
    """The largest weight, for the end of a scale; 1 without any."""
    return float(cells.max()) or 1.0
