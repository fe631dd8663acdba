"""Several matrices in one figure: over the same positions, on one scale; and maps of all heads, layers × heads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnviz.figures.fonts import fitted, font_families, text_width, wrapped
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
    write_texts,
)
from attnviz.figures.page import (
    MARGIN,
    PIXEL,
    ColourScale,
    PanelPlan,
    add_legend,
    format_number,
    legend_height,
    page_width,
    run_layout,
)
from attnviz.figures.style import DPI, Style, text_colour
from attnviz.models.head_ids import number_of

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


_CELL = (0.42, 0.25)
_AXES, _REFERENCE = 0.35, 0.15
_TEXT_SIZES = (6.5, 6.0, 5.5)
_TEXT_HEIGHT = 0.3
_LEAST_ROW, _MOST_ROWS = 0.05, 8.0  # inches of a row with a name, and about of all


@dataclass(frozen=True)
class HeadMap(ColourScale):
    """One map: a number of every head and its colour scale; an empty ``bar`` for no colour bar."""

    values: Array  # [n_layers, n_heads]; NaN, which is hatched, where not measurable
    layers: Sequence[int]
    name: str = ""  # above the map; empty for none
    # [n_layers][n_heads], written instead of the values; may have several lines
    texts: tuple[tuple[str, ...], ...] = ()
    legend: tuple[Artist, ...] = ()  # legend of categorical colours
    # extra columns at the right, such as layer means: name and [n_layers] values
    beside: tuple[tuple[str, Array], ...] = ()
    rows: tuple[str, ...] = ()  # names of rows, and of columns; empty for the numbers of layers and of heads
    columns: tuple[str, ...] = ()
    axes: tuple[str, str] = ("layer", "head")  # what rows and columns are

    @property
    def cell_width(self) -> float:  # inches, wide enough for the texts
        widest = max((text_width(line, _TEXT_SIZES[0]) for line in self._lines), default=0) / DPI
        return max(0.3, widest + 0.06) if self.texts else _CELL[0]

    @property
    def _lines(self) -> set[str]:
        return {line for row in self.texts for text in row for line in text.split("\n")}

    def write(self, ax: Axes, values: Array, cells: Cells) -> None:
        """Write texts or values, or the values of a column beside, into cells that have room."""
        if values is not self.values or not self.texts:
            write_numbers(ax, values, cells, format_number)
            return
        width, height = cell_points(ax, values.shape)
        most = max(text.count("\n") + 1 for row in self.texts for text in row)
        ways = [(angle, size) for angle in (0, 90) for size in _TEXT_SIZES]
        for angle, size in [*ways, (0 if width >= height else 90, _TEXT_SIZES[-1])]:
            along, across = (width, height) if angle == 0 else (height, width)
            room = along / PIXEL - 3
            if across >= 1.2 * size * most and max(text_width(line, size) for line in self._lines) <= room:
                break
        else:
            if across < 1.2 * size or room < 20:
                return
        texts: dict[tuple[int, ...], str] = {
            cell: "\n".join(fitted(line, size, room) for line in self.texts[cell[0]][cell[1]].split("\n"))
            for cell in np.ndindex(*values.shape)
        }
        family = font_families(texts.values())
        write_texts(ax, values, cells, texts, size=size, rotation=angle, va="center", linespacing=1.1, family=family)

    def draw(self, ax: Axes, name: str, style: Style) -> Cells:
        """Draw cells, names of rows and columns, and the name above."""
        n_layers, n_heads = self.values.shape
        cells = draw_matrix(ax, self.values, self, style)
        for edges, line in ((n_layers, ax.axhline), (n_heads, ax.axvline)):
            for edge in range(1, edges):
                line(edge - 0.5, color=style.frame, linewidth=0.6 * PIXEL)
        width, height = cell_points(ax, self.values.shape)
        row, column = self.axes
        widest = text_width(str(n_heads - 1), 7) + 5
        for axis, what, names, numbers, cell, pixels in (
            (ax.yaxis, row, self.rows, self.layers, height, 13),
            (ax.xaxis, column, self.columns, range(n_heads), width, max(14, widest)),
        ):
            if names:
                name_axis(axis, Labels(names), len(names), cell, 1, style)
            else:
                ticks = range(0, len(numbers), math.ceil(pixels * PIXEL / cell))
                ink = text_colour(style, f"{axis.axis_name}tick.color")
                axis.set_ticks(ticks, [str(number_of(numbers[tick])) for tick in ticks], fontsize=7, color=ink)
            axis.labelpad = 2
            axis.set_label_text(what, fontsize=8, color=text_colour(style, "axes.labelcolor"))
        ax.tick_params(length=0, pad=3)
        if name:
            ax.set_title(name, loc="left", fontsize=8, pad=4, color=style.ink, parse_math=False)
        return cells


@dataclass(frozen=True)
class HeadMapPlan(PanelPlan):
    """A figure of maps, one below the other."""

    maps: tuple[HeadMap, ...]  # from top to bottom

    def page(self, style: Style) -> Figure:
        """A new figure with every map of the plan, each with its colour bar."""
        columns = [head_map.values.shape[1] + 1.2 * len(head_map.beside) for head_map in self.maps]
        natural = max(head_map.cell_width * n for head_map, n in zip(self.maps, columns, strict=True))
        width = page_width(style, natural + _AXES + 2 * MARGIN)
        room = width - _AXES - 2 * MARGIN
        names = [wrapped(head_map.name, 8, room * DPI) if head_map.name else [] for head_map in self.maps]
        heights = []
        for head_map, lines in zip(self.maps, names, strict=True):
            across = room / max(columns)
            cell = min(_CELL[1], max(across, 0.12))
            if head_map.texts:  # those that do not fit are turned
                fits = across >= head_map.cell_width * _TEXT_SIZES[-1] / _TEXT_SIZES[0]
                cell = _TEXT_HEIGHT if fits else head_map.cell_width
            bar = _BAR + (_REFERENCE if head_map.reference else 0.0) if head_map.bar else 0.0
            legend = legend_height(head_map.legend, width)
            if head_map.rows:  # many heads on one page
                cell = min(cell, max(_LEAST_ROW, _MOST_ROWS / len(head_map.rows)))
            below = label_pixels(head_map.columns, label_size(72 * across)) / DPI if head_map.columns else 0.0
            heights.append(len(head_map.values) * cell + _AXES + below + _NAME * len(lines) + bar + legend)
        page, parts = self.parts(style, heights, width=width)
        drawn = []
        for part, head_map, lines in zip(parts, self.maps, names, strict=True):
            part.set_facecolor(style.paper)
            ratios = [head_map.values.shape[1], *(1.1 for _ in head_map.beside)]
            axes = part.subplots(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
            first, *others = axes
            drawn.append((first, head_map.values, head_map.draw(first, "\n".join(lines), style), head_map))
            for ax, (name, values) in zip(others, head_map.beside, strict=True):
                column = np.asarray(values)[:, None]
                cells = draw_matrix(ax, column, head_map, style)
                ax.set_xticks([0], [name], fontsize=7, color=style.ink)
                ax.tick_params(length=0, pad=3)
                drawn.append((ax, column, cells, head_map))
            if head_map.bar:
                head_map.colour_bar(axes, style)
            add_legend(part, head_map.legend, style)
        run_layout(page)
        for ax, values, cells, head_map in drawn:
            head_map.write(ax, values, cells)
        return page

    def draw(self, ax: Axes, style: Style) -> Cells:
        """Draw the first map on the caller's Axes, with its numbers where cells have room; returns the cells."""
        head_map = self.maps[0]
        cells = head_map.draw(ax, head_map.name, style)
        run_layout(ax.figure)
        head_map.write(ax, head_map.values, cells)
        return cells
