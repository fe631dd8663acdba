"""Maps of all heads: layers × heads, coloured by a number, with the numbers in the cells."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    label_pixels,
    label_size,
    name_axis,
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

_CELL = (0.42, 0.25)
_AXES, _BAR, _NAME = 0.35, 0.55, 0.2
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


@dataclass(frozen=True)
class HeadMapPlan(PanelPlan):
    """A figure of maps, one below the other."""

    maps: tuple[HeadMap, ...]  # from top to bottom

    def page(self, style: Style) -> Figure:
        """A new figure with every map of the plan, each with its colour bar."""
        columns = [head_map.values.shape[1] + 1.2 * len(head_map.beside) for head_map in self.maps]
        natural = max(_cell_width(head_map) * n for head_map, n in zip(self.maps, columns, strict=True))
        width = page_width(style, natural + _AXES + 2 * MARGIN)
        room = width - _AXES - 2 * MARGIN
        names = [wrapped(head_map.name, 8, room * DPI) if head_map.name else [] for head_map in self.maps]
        heights = []
        for head_map, lines in zip(self.maps, names, strict=True):
            across = room / max(columns)
            cell = min(_CELL[1], max(across, 0.12))
            if head_map.texts:  # those that do not fit are turned
                fits = across >= _cell_width(head_map) * _TEXT_SIZES[-1] / _TEXT_SIZES[0]
                cell = _TEXT_HEIGHT if fits else _cell_width(head_map)
            bar = _BAR + (0.15 if head_map.reference else 0.0) if head_map.bar else 0.0
            legend = legend_height(head_map.legend, width) if head_map.legend else 0.0
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
            drawn.append((first, head_map.values, _draw(first, head_map, "\n".join(lines), style), head_map))
            for ax, (name, values) in zip(others, head_map.beside, strict=True):
                column = np.asarray(values)[:, None]
                cells = draw_matrix(ax, column, head_map, style)
                ax.set_xticks([0], [name], fontsize=7, color=style.ink)
                ax.tick_params(length=0, pad=3)
                drawn.append((ax, column, cells, head_map))
            if head_map.bar:
                head_map.colour_bar(axes, style)
            if head_map.legend:
                add_legend(part, head_map.legend, style)
        run_layout(page)
        for ax, values, cells, head_map in drawn:
            _write(ax, values, cells, head_map)
        return page

    def draw(self, ax: Axes, style: Style) -> Cells:
        """Draw the first map on the caller's Axes, with its numbers where cells have room; returns the cells."""
        head_map = self.maps[0]
        cells = _draw(ax, head_map, head_map.name, style)
        run_layout(ax.figure)
        _write(ax, head_map.values, cells, head_map)
        return cells


def _cell_width(head_map: HeadMap) -> float:
    widest = max((text_width(line, _TEXT_SIZES[0]) for line in _lines(head_map)), default=0) / DPI
    return max(0.3, widest + 0.06) if head_map.texts else _CELL[0]


def _lines(head_map: HeadMap) -> set[str]:
    return {line for row in head_map.texts for text in row for line in text.split("\n")}


def _write(ax: Axes, values: Array, cells: Cells, head_map: HeadMap) -> None:
    if values is not head_map.values or not head_map.texts:
        write_numbers(ax, values, cells, format_number)
        return
    width, height = cell_points(ax, values.shape)
    most = max(text.count("\n") + 1 for row in head_map.texts for text in row)
    ways = [(angle, size) for angle in (0, 90) for size in _TEXT_SIZES]
    for angle, size in [*ways, (0 if width >= height else 90, _TEXT_SIZES[-1])]:
        along, across = (width, height) if angle == 0 else (height, width)
        room = along / PIXEL - 3
        if across >= 1.2 * size * most and max(text_width(line, size) for line in _lines(head_map)) <= room:
            break
    else:
        if across < 1.2 * size or room < 20:
            return
    texts: dict[tuple[int, ...], str] = {
        cell: "\n".join(fitted(line, size, room) for line in head_map.texts[cell[0]][cell[1]].split("\n"))
        for cell in np.ndindex(*values.shape)
    }
    family = font_families(texts.values())
    write_texts(ax, values, cells, texts, size=size, rotation=angle, va="center", linespacing=1.1, family=family)


def _draw(ax: Axes, head_map: HeadMap, name: str, style: Style) -> Cells:
    n_layers, n_heads = head_map.values.shape
    cells = draw_matrix(ax, head_map.values, head_map, style)
    for edges, line in ((n_layers, ax.axhline), (n_heads, ax.axvline)):
        for edge in range(1, edges):
            line(edge - 0.5, color=style.frame, linewidth=0.6 * PIXEL)
    width, height = cell_points(ax, head_map.values.shape)
    row, column = head_map.axes
    widest = text_width(str(n_heads - 1), 7) + 5
    for axis, what, names, numbers, cell, pixels in (
        (ax.yaxis, row, head_map.rows, head_map.layers, height, 13),
        (ax.xaxis, column, head_map.columns, range(n_heads), width, max(14, widest)),
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
