"""Where everything of a grid of heads goes, on a new page or on the caller's Axes.

Lengths are pixels at :data:`attnviz.figures.files.DPI`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from attnviz.errors import UsageError
from attnviz.figures.files import DPI
from attnviz.figures.fonts import text_width
from attnviz.figures.look import Look
from attnviz.figures.page import MARGIN
from attnviz.model.head_ids import HeadId

__all__ = ["LAYER_NAMES", "GridLayout", "fine", "fitting_grid", "grid_pooling", "planned_grid"]

_LARGEST, _LARGEST_CHOSEN = 120, 240
"""Side of a square, in a figure as wide as its content, and of a width that the user chose."""

_ROOMY, _COMFORTABLE, _LEAST = 104, 60, 10
"""From one square to the next: with a name and a text above; with a name; of the narrowest grid."""

LAYER_NAMES = 34
"""For the names of layers."""

_HIGHEST = 1000
"""Of a grid whose layers go on in further rows."""


@dataclass(frozen=True)
class GridLayout:
    """Where everything goes.

    Attributes:
        layers, columns: the numbers of layers from top to bottom and of heads from left to right.
        across: squares side by side; where there are more columns, a layer goes on in further rows.
        pitch: from one square to the next.
        square: side of a square.
        marked: whether a mark, and a text, stand on a line of their own above each square.
    """

    layers: tuple[int, ...]
    columns: tuple[int, ...]
    across: int
    pitch: float
    square: float
    marked: bool

    @property
    def rows(self) -> int:
        """Rows of a layer."""
        return math.ceil(len(self.columns) / self.across)

    @property
    def size(self) -> float:
        """Of the letters of ids, in points."""
        return 7.0 if self.pitch >= _COMFORTABLE else 5.5

    @property
    def named(self) -> bool:
        """Whether an id stands above each square, and not only the number above each column."""
        return self.rows > 1 or text_width(f"H{self.columns[-1]}", self.size, DPI, "bold") + 3 <= self.pitch

    @property
    def above(self) -> float:
        """Room above each square for its texts."""
        return 4 + 15 * self.named + 14 * self.marked

    @property
    def row(self) -> float:
        """From one row to the next."""
        return self.square + self.above + 6

    @property
    def first(self) -> float:
        """Room above the first row for the numbers of columns."""
        return 0 if self.named else 15

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height."""
        return self.across * self.pitch, self.first + len(self.layers) * self.rows * self.row

    def corner(self, head: HeadId) -> tuple[float, float]:
        """Left and top of a head's square."""
        further, column = divmod(self.columns.index(head.head), self.across)
        row = self.layers.index(head.layer) * self.rows + further
        return column * self.pitch + 1, self.first + row * self.row + self.above


def grid_pooling(n_positions: int, heads: Iterable[HeadId], look: Look, *, marked: bool = False) -> int:
    """How many positions a row of a small matrix stands for, so that every cell has a pixel.

    Args:
        n_positions: of the patterns.
        heads: that the grid will show.
        look: its width on the page.
        marked: whether the heads will have marks of families.

    Raises:
        UsageError: the width is too small for so many heads.
    """
    grid = planned_grid(heads, 1, look, marked)
    return math.ceil(n_positions / int(grid.square * fine(look)))


def planned_grid(heads: Iterable[HeadId], m: int, look: Look, marked: bool) -> GridLayout:
    """The grid on a new page, of matrices [m, m]."""
    ids = list(heads)
    if look.width is not None:
        room = (look.width - 2 * MARGIN) * DPI - LAYER_NAMES
        columns = len({head.head for head in ids})
        if room / columns < _LEAST:
            least = math.ceil((columns * _LEAST + LAYER_NAMES + 2 * MARGIN * DPI) / DPI * 10) / 10
            raise UsageError(
                f"expected a width of at least {least:g} inches for a figure with {columns} heads in a row, found "
                f"{look.width:g}: choose a larger --width (width=...), fewer heads (--select), or other figures."
            )
        return fitting_grid(ids, room, marked)
    square = _LARGEST // m * m
    return replace(_one_row(ids, marked), pitch=max(square, _ROOMY) + 14, square=square)


def fitting_grid(ids: Sequence[HeadId], room: float, marked: bool) -> GridLayout:
    """The grid in so many pixels; where heads would be small, layers go on in further rows if these fit on a page."""
    one = _one_row(ids, marked)
    n = len(one.columns)
    for most in range(max(1, int(room // _ROOMY)), n):
        across = math.ceil(n / math.ceil(n / most))
        if room / n >= _COMFORTABLE or room / across < _COMFORTABLE:
            break
        grid = replace(one, across=across, pitch=room / across, square=_side(room / across))
        if grid.extent[1] <= _HIGHEST:
            return grid
    pitch = min(room / n, _LARGEST_CHOSEN + 14)
    return replace(one, pitch=pitch, square=_side(pitch))


def _one_row(ids: Sequence[HeadId], marked: bool) -> GridLayout:
    layers, columns = (tuple(sorted({head[axis] for head in ids})) for axis in (0, 1))
    return GridLayout(layers, columns, len(columns), _LARGEST + 14, _LARGEST, marked)


def _side(pitch: float) -> float:
    return min(_LARGEST_CHOSEN, max(4.0, pitch - (14 if pitch >= _COMFORTABLE else 4)))


def fine(look: Look) -> int:
    """Pixels of the image for one at DPI: a picture of a chosen width has 300 an inch."""
    return 1 if look.width is None else 2
