"""How a plan of lines stands on a page: the pitch of its rows, which are named, the size of letters and lines."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnviz.figures.colours import Array
from attnviz.figures.heatmaps import DPI
from attnviz.figures.line_rows import Positions, spaced_out
from attnviz.figures.lines import LinesPlan

__all__ = ["LEAST_DISTANCE", "SMALLEST_LETTERS", "LinesLayout", "laid_out"]

LEAST_DISTANCE = 12
"""Pixels from one name to the next; where rows stand closer, some have no name."""

SMALLEST_LETTERS = 5.5
"""Points; letters of this size are no higher than :data:`LEAST_DISTANCE`."""

_LARGEST_LETTERS = 9.0
_LARGEST_PITCH, _COMFORTABLE_HEIGHT = 24, 1200
_FIRST, _LAST = 1e6, -1e6


@dataclass(frozen=True)
class LinesLayout:
    """A plan at a given pitch.

    Attributes:
        plan: what is drawn.
        pitch: pixels from row to row.
    """

    plan: LinesPlan
    pitch: float

    @property
    def height(self) -> float:
        """Pixels of all rows together."""
        return self.plan.extent * self.pitch

    @cached_property
    def named(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The rows that are named left and right: all, or as many as fit, those with more of the drawn attention first.

        Left the rows that lines were asked of come before all others.
        """
        plan = self.plan
        everything = tuple(range(len(plan.labels)))
        if self.pitch >= LEAST_DISTANCE:
            return everything, everything
        places = (plan.rows * self.pitch).tolist()
        left, right = (self._ranks(touched) for touched in (plan.query, plan.key))
        left[list(plan.from_positions or ())] = _FIRST
        return spaced_out(places, left.tolist(), LEAST_DISTANCE), spaced_out(places, right.tolist(), LEAST_DISTANCE)

    def _ranks(self, touched: Positions) -> Array:
        """Of each row the sum of the weights drawn there, in powers of two, so that near equals are named evenly."""
        sums = np.bincount(touched, self.plan.weights, len(self.plan.labels))
        ranks: Array = np.where(sums > 0, np.round(np.log2(np.maximum(sums, 1e-9))), _LAST).astype(np.float32)
        return ranks

    @property
    def reading(self) -> tuple[str, ...]:
        """The lines above the picture: those of the plan, and that not every row is named."""
        if self.pitch >= LEAST_DISTANCE:
            return self.plan.reading
        first = "those that give (left) or get (right) more attention come first"
        return (*self.plan.reading, f"Not every {self.plan.unit} is named; {first}.")

    @property
    def font_size(self) -> float:
        """Of the names, in points."""
        return max(SMALLEST_LETTERS, min(_LARGEST_LETTERS, 0.8 * self.pitch * 72 / DPI))

    @property
    def widest(self) -> float:
        """Width of the strongest line, in points: narrow where rows stand close, so that paper shows between."""
        alone = 1.0 if len(self.plan.heads) == 1 else 0.7
        return min(3.0, max(0.6, 0.3 * self.pitch * 72 / DPI * alone))

    @property
    def thinnest(self) -> float:
        """Width of a line of no strength, in points."""
        return min(0.5, 0.4 * self.widest)


def laid_out(plan: LinesPlan, room: float) -> LinesLayout:
    """The plan at the pitch that suits its number of rows, or closer, so that all fit into so many pixels."""
    suits = max(LEAST_DISTANCE, min(_LARGEST_PITCH, round(_COMFORTABLE_HEIGHT / len(plan.labels))))
    return LinesLayout(plan, min(suits, room / plan.extent))
