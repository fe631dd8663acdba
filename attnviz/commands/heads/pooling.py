"""Patterns as they are drawn, pooled while their rows pass, so that a picture of a long text needs no whole pattern."""

from collections.abc import Iterable, Iterator

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings
from attnviz.figures.matrix import Array, PooledPattern


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
