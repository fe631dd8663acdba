"""Several matrices over the same positions in one figure, on one scale; columns may be other positions than rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnviz.figures.fonts import fitted, text_width
from attnviz.figures.matrix import (
    Array,
    Cells,
    Labels,
    cell_points,
    draw_matrix,
    hundredths,
    label_pixels,
    label_size,
    name_axis,
    named_every,
    write_numbers,
)
from attnviz.figures.page import MARGIN, PIXEL, ColourScale, PanelPlan, page_width, run_layout
from attnviz.figures.style import DPI, Style

_NAME, _GAP, _BAR = 0.2, 0.13, 0.55
_PAGE, _LEAST_TILE, _SHRUNK = 7.0, 0.28, 0.75
_LARGEST_CELL = 0.3
_HIGHEST = 6.5
_FLATTEST = 0.15  # height of a tile of few rows, as a share of its width
_NAME_SIZES = (8.0, 7.5, 7.0, 6.5, 6.0, 5.5)


class Tile(NamedTuple):
    """One matrix of a figure."""

    name: str  # above it
    values: Array  # [rows, columns]
    shorter: tuple[str, ...] = ()  # shorter names, the fullest first


@dataclass(frozen=True, kw_only=True)
class TilesPlan(ColourScale, PanelPlan):
    """Matrices to draw."""

    tiles: tuple[Tile, ...]
    labels: Labels  # of the positions
    keys: Labels | None = None  # of the columns, if other positions than the rows
    pooled: int = 1  # positions in one cell
    rules: tuple[float, ...] = ()  # lines between blocks: 4 for one before row and column 4
    target: float = 1.6  # inches of a tile's longer side, if there is room

    def page(self, style: Style) -> Figure:
        """A new figure with every tile of the plan, one colour bar, title and notes."""
        labels, keys = self.labels, self.keys or self.labels
        columns, tile, side, below = _geometry(labels.texts, len(self.tiles), self.target, style, keys.texts)
        high = tile * len(labels.texts) / len(keys.texts)
        width = page_width(style, side + columns * (tile + _GAP) + 2 * MARGIN)
        rows = math.ceil(len(self.tiles) / columns)
        page = self.new_page(style, width=width, body=0.8 * below + rows * (high + _NAME + _GAP) + _BAR)
        names, size = _names(self.tiles, tile * DPI)
        drawn = []
        for index, (each, name) in enumerate(zip(self.tiles, names, strict=True)):
            row, column = divmod(index, columns)
            ax = page.add_subplot(rows, columns, index + 1)
            beside = None if column else labels, None if row < rows - 1 else keys
            cells = self._draw(ax, each, name, size, style, *beside, tile * 72 / len(each.values.T))
            drawn.append((ax, each.values, cells))
        self.colour_bar([ax for ax, *_ in drawn], style, columns * (tile + _GAP))
        run_layout(page)
        for ax, values, cells in drawn:
            write_numbers(ax, values, cells, hundredths)
        return page

    def draw(self, ax: Axes, style: Style) -> Cells:
        """Draw the last matrix on the caller's Axes, with numbers if they fit; returns the cells."""
        tile = self.tiles[-1]
        (name,), size = _names([tile], ax.get_window_extent().width / ax.figure.dpi * DPI)
        cells = self._draw(ax, tile, name, size, style, self.labels, self.keys or self.labels)
        run_layout(ax.figure)
        write_numbers(ax, tile.values, cells, hundredths)
        return cells

    def _draw(
        self,
        ax: Axes,
        tile: Tile,
        name: str,
        size: float,
        style: Style,
        labels: Labels | None,
        keys: Labels | None,
        cell: float | None = None,
    ) -> Cells:
        cells = draw_matrix(ax, tile.values, self, style)
        for rule in self.rules:
            for line in (ax.axhline, ax.axvline):
                line(rule / self.pooled - 0.5, color=style.ink, linewidth=2 * PIXEL)
        rows, columns = tile.values.shape
        width, height = cell_points(ax, tile.values.shape, cell)
        for axis, named, n, points in ((ax.yaxis, labels, rows, height), (ax.xaxis, keys, columns, width)):
            if named is not None:
                name_axis(axis, named, n, points, self.pooled, style)
        ax.set_box_aspect(max(_FLATTEST, rows / columns))
        ax.set_title(name, loc="left", fontsize=size, pad=3, color=style.ink, parse_math=False)
        return cells


def _names(tiles: Sequence[Tile], room: float) -> tuple[list[str], float]:
    """The fullest form of name with which every tile's fits a width in pixels, and their size in points."""
    ways = [(tile.name, *tile.shorter) for tile in tiles]
    forms = [[way[min(form, len(way) - 1)] for way in ways] for form in range(max(map(len, ways)))]
    for names in forms:
        for size in _NAME_SIZES:
            if all(text_width(name, size) <= room for name in names):
                return names, size
    return [fitted(name, size, room) for name in names], size


def tile_pooling(
    labels: Sequence[str], count: int, target: float, style: Style, keys: Sequence[str] = ()
) -> tuple[int, int]:
    """Positions per cell, so that every cell has a pixel, and the interval of labels, in positions.

    ``count``: tiles; ``target``: as for :class:`TilesPlan`; ``keys``: labels of the columns if other positions.
    """
    _, inches, *_ = _geometry(labels, count, target, style, keys)
    n = len(keys or labels)
    pooled = max(1, math.ceil(n / (inches * DPI)))
    return pooled, named_every(inches * 72 / n * pooled, pooled)


def _geometry(
    labels: Sequence[str], count: int, target: float, style: Style, keys: Sequence[str] = ()
) -> tuple[int, float, float, float]:
    """Tiles per row, width of a tile, and width of the labels beside and below it, in inches."""
    n = len(keys or labels)
    tall = max(_FLATTEST, len(labels) / n)
    cell = min(target / max(n, len(labels)), _LARGEST_CELL)
    wanted = cell * n
    side = _beside(labels, cell)
    room = (style.room or _PAGE) - side - 2 * MARGIN
    columns = count
    if count * (_SHRUNK * wanted + _GAP) > room:
        columns = max(1, math.floor((room + _GAP) / (wanted + _GAP)))
        columns = math.ceil(count / math.ceil(count / columns))  # rows of like length
    largest = wanted if style.room is None else min(n * _LARGEST_CELL, room / max(1, tall))
    tile = min(room / columns - _GAP, largest)
    while columns < count:
        if math.ceil(count / columns) * (tall * tile + _NAME + _GAP) <= _HIGHEST:
            break
        columns += 1
        tile = max(_LEAST_TILE, min(room / columns - _GAP, largest))
    return columns, tile, side, _beside(keys or labels, cell)


def _beside(labels: Sequence[str], cell: float) -> float:  # inches of labels beside cells of a size in inches
    return label_pixels(labels, label_size(cell * 72)) / DPI + 0.06
