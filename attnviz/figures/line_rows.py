"""Rows of a picture of lines: one a token, or one for a run of tokens; and which of them can be named."""

from bisect import bisect, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SHORTEST_RUN", "Positions", "Rows", "breaks_between", "every_row", "gathered_rows", "spaced_out"]

SHORTEST_RUN = 3
"""Fewer neighbours than these keep rows of their own."""

Positions = NDArray[np.intp]


@dataclass(frozen=True)
class Rows:
    """Which positions of the text stand in which row.

    Attributes:
        row_of: [n], the row of each position.
        first: [rows], the first position of each row.
        counts: [rows], how many positions each row stands for.
    """

    row_of: Positions
    first: tuple[int, ...]
    counts: tuple[int, ...]


def every_row(n: int) -> Rows:
    """A row for each of n positions."""
    return Rows(np.arange(n), tuple(range(n)), (1,) * n)


def gathered_rows(n: int, alone: Collection[int], breaks: Collection[int]) -> Rows:
    """A row for each position that is to stand alone, and one for each run of at least three others.

    Args:
        n: positions.
        alone: those that have a row of their own.
        breaks: positions before which a new segment begins; no run goes across.
    """
    own = np.zeros(n, bool)
    own[list(alone)] = True
    starts = np.ones(n, bool)
    starts[1:] = own[1:] | own[:-1]
    starts[list(breaks)] = True
    lengths = np.diff(np.append(starts.nonzero()[0], n))
    starts |= np.repeat(lengths < SHORTEST_RUN, lengths)
    first = starts.nonzero()[0]
    counts = np.diff(np.append(first, n))
    return Rows(starts.cumsum() - 1, tuple(first.tolist()), tuple(counts.tolist()))


def breaks_between(segments: Sequence[int | None]) -> tuple[int, ...]:
    """The positions at which the segment is another than that of the last token that had one."""
    found, current = [], None
    for position, segment in enumerate(segments):
        if segment is not None and current is not None and segment != current:
            found.append(position)
        current = current if segment is None else segment
    return tuple(found)


def spaced_out(places: Sequence[float], ranks: Sequence[float], least: float) -> tuple[int, ...]:
    """As many places as can stand at least so far apart, those of higher rank first, in equal ranks from the top.

    Args:
        places: ascending.
        ranks: one a place.
        least: the distance between two that are chosen.
    """
    chosen: list[tuple[float, int]] = []
    for i in sorted(range(len(places)), key=lambda i: (-ranks[i], i)):
        at = bisect(chosen, (places[i], i))
        if all(abs(places[i] - place) >= least for place, _ in chosen[max(at - 1, 0) : at + 1]):
            insort(chosen, (places[i], i))
    return tuple(i for _, i in chosen)
