"""Where the squares of many heads go: a row a layer and a column a head, or packed where that would be mostly empty.

Lengths are pixels at :data:`attnviz.figures.look.DPI`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from attnviz.errors import UsageError
from attnviz.figures.fonts import text_width
from attnviz.figures.look import DPI, Look, file_dpi
from attnviz.figures.matrix import label_pixels, label_size, named_every
from attnviz.figures.page import MARGIN
from attnviz.model.head_ids import HeadId

# side of a square, in a figure as wide as its content, and of a width that the user chose
_LARGEST, _LARGEST_CHOSEN = 120, 240
# from one square to the next: with a name and a text above; with a name; of the narrowest grid
_ROOMY, _COMFORTABLE, _LEAST = 104, 60, 10
LAYER_NAMES = 34
"""Pixels for the names of layers."""

_NUMBERS = 15  # room for the numbers of columns
_PACKED = 4  # heads side by side, at least, of those that are packed
_HIGHEST = 1000  # of a grid whose layers go on in further rows


@dataclass(frozen=True)
class GridLayout:
    """Where the squares of a grid of heads go."""

    layers: tuple[int, ...]  # their numbers, from top to bottom
    columns: tuple[int, ...]  # the numbers of heads, from left to right
    across: int  # squares side by side; where there are more columns, a layer goes on in further rows
    rows: int  # of a layer
    pitch: float  # from one square to the next
    square: float  # side of a square
    marked: bool  # whether a mark, and a text, stand on a line of their own above each square
    size: float  # of the letters of ids, in points
    named: bool  # whether an id stands above each square, and not only the number above each column
    above: float  # room above each square for its texts
    packed: tuple[HeadId, ...] = ()  # heads one after the other, where they would leave most of a grid empty
    tokens: float = 0  # room left of each row of squares and below each column, for the names of tokens

    @property
    def row(self) -> float:
        """From one row to the next."""
        return self.square + self.above + 6

    @property
    def first(self) -> float:
        """Where the first row begins."""
        return 0 if self.named else _NUMBERS

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height."""
        width, height = self.across * self.pitch, self.first + len(self.layers) * self.rows * self.row
        return width + self.tokens, height + self.tokens

    def corner(self, head: HeadId) -> tuple[float, float]:
        """Left and top of a head's square."""
        further, column = divmod(self._place(head), self.across)
        row = further if self.packed else self.layers.index(head.layer) * self.rows + further
        return self.tokens + column * self.pitch + 1, self.first + row * self.row + self.above

    def sides(self, head: HeadId) -> str:
        """Where the tokens of a packed head are named: left (``l``) of a row's first, below (``b``) a column's last."""
        place = self._place(head)
        return "l" * (place % self.across == 0) + "b" * (place + self.across >= len(self.packed))

    def _place(self, head: HeadId) -> int:
        return self.packed.index(head) if self.packed else self.columns.index(head.head)


def grid_pooling(
    n_positions: int, heads: Iterable[HeadId], look: Look, *, marked: bool = False, labels: Sequence[str] = ()
) -> int:
    """How many positions a row of a small matrix stands for, so that every cell has a pixel.

    ``marked`` says whether the heads will have marks of families, ``labels`` are as for :func:`planned_grid`.

    Raises:
        UsageError: the width is too small for so many heads.
    """
    square = planned_grid(heads, 1, look, marked, labels).square * file_dpi(look) / DPI
    return math.ceil(n_positions / int(square))


def planned_grid(heads: Iterable[HeadId], m: int, look: Look, marked: bool, labels: Sequence[str] = ()) -> GridLayout:
    """The grid on a new page, of matrices [m, m]; with ``labels`` few heads are packed, and their tokens named."""
    ids = list(heads)
    packed, columns = bool(labels) or _sparse(ids), len({head.head for head in ids})
    if look.width is None:
        square = (_LARGEST_CHOSEN if labels else _LARGEST) // m * m
        across = min(len(ids), max(_PACKED, math.ceil(math.sqrt(2 * len(ids))))) if packed else columns
        grid = _layout(ids, across, max(square, _ROOMY) + 14, marked, packed)
        return replace(grid, square=square, tokens=_beside(labels, square))
    room = (look.width - 2 * MARGIN) * DPI - LAYER_NAMES
    if room / columns < _LEAST and not (packed and _wrapped(ids, room, marked, packed)):
        least = math.ceil((columns * _LEAST + LAYER_NAMES + 2 * MARGIN * DPI) / DPI * 10) / 10
        raise UsageError(
            f"expected a width of at least {least:g} inches for a figure with {columns} heads in a row, found "
            f"{look.width:g}: choose a larger --width (width=...), fewer heads (--select), or other figures."
        )
    return fitting_grid(ids, room, marked, labels)


def fitting_grid(ids: Sequence[HeadId], room: float, marked: bool, labels: Sequence[str] = ()) -> GridLayout:
    """The grid in so many pixels; few heads are packed, where they fit on a page so, and named ``labels`` with them."""
    tokens, grid = 0.0, _wrapped(ids, room, marked, packed=True, least=_ROOMY) if labels else None
    for _ in range(3 if grid else 0):  # which tokens are named, and how large, depends on the squares
        tokens = max(tokens, _beside(labels, grid.square)) if grid else 0
        grid = _wrapped(ids, room - tokens, marked, packed=True, least=_ROOMY)
    if grid and grid.pitch >= _ROOMY:
        return replace(grid, tokens=tokens)
    grid = _wrapped(ids, room, marked, packed=True) if _sparse(ids) else None
    n = len({head.head for head in ids})
    in_rows = _layout(ids, n, min(room / n, _LARGEST_CHOSEN + 14), marked, packed=False)
    return grid or _wrapped(ids, room, marked, packed=False) or in_rows


def _beside(labels: Sequence[str], square: float) -> float:
    """Pixels that the names of tokens take beside a square, of as many of them as there is room for."""
    if not labels:
        return 0
    cell = square / len(labels) * 72 / DPI
    return label_pixels(labels[:: named_every(cell)], label_size(cell)) + 16


def _wrapped(
    ids: Sequence[HeadId], room: float, marked: bool, packed: bool, least: float = _COMFORTABLE
) -> GridLayout | None:
    """A grid of squares large enough for names, in further rows where one has no room; None if no page has either.

    One row is enough where there are so many pixels, ``least``, from one square to the next.
    """
    n = len(ids) if packed else len({head.head for head in ids})
    fewest = n if room / n >= least else max(1, int(room // _ROOMY))
    for most in range(fewest, n + 1):
        across = math.ceil(n / math.ceil(n / most))
        if room / across < _COMFORTABLE:
            return None
        pitch = min(room / across, _LARGEST_CHOSEN + 14)
        grid = _layout(ids, across, pitch, marked, packed)
        if across == n or grid.extent[1] <= _HIGHEST:
            return grid
    return None


def _sparse(ids: Sequence[HeadId]) -> bool:
    """Whether the heads, in their grid of layers and columns, would leave at least half of it empty."""
    return 2 * len(ids) <= len({head.layer for head in ids}) * len({head.head for head in ids})


def _layout(ids: Sequence[HeadId], across: int, pitch: float, marked: bool, packed: bool) -> GridLayout:
    """The grid of squares as large as there is room from one to the next."""
    layers, columns = (tuple(sorted(set(numbers))) for numbers in zip(*ids, strict=True))
    if packed:
        layers, columns = (0,), tuple(range(len(ids)))
    rows, size = math.ceil(len(columns) / across), 7.0 if pitch >= _COMFORTABLE else 5.5
    named = rows > 1 or packed or text_width(f"H{columns[-1]}", size, DPI, "bold") + 3 <= pitch
    above = 4 + 15 * named + 14 * marked
    square = min(_LARGEST_CHOSEN, max(4.0, pitch - (14 if pitch >= _COMFORTABLE else 4)))
    in_turn = tuple(ids) if packed else ()
    return GridLayout(layers, columns, across, rows, pitch, square, marked, size, named, above, in_turn)
