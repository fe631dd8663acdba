"""A map of all heads: layers × heads, coloured by a number, with the numbers in the cells; one or more on a page."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Polygon, Rectangle

from attnviz.figures.colours import outer_ink
from attnviz.figures.files import DPI, figure_style
from attnviz.figures.fonts import fitted, font_families, text_width, wrapped
from attnviz.figures.look import Look
from attnviz.figures.matrix import Array, cell_points, contrasting_ink, draw_matrix, write_numbers
from attnviz.figures.page import (
    MARGIN,
    PIXEL,
    Mark,
    add_legend,
    colour_bar,
    legend_height,
    new_page,
    page_width,
    settled,
    written,
)

__all__ = ["HeadMap", "HeadMapPlan", "draw_head_map", "head_map_figure"]

_CELL = (0.42, 0.25)
_SMALL_CELL = 0.19
_GAP, _AXES, _BAR, _NAME = 0.18, 0.35, 0.55, 0.2
_CORNER = "#d95f02"
_TEXT_SIZES = (6.5, 6.0, 5.5)
_TEXT_HEIGHT = 0.3


@dataclass(frozen=True)
class HeadMap:
    """One map: a number of every head.

    Attributes:
        values: [n_layers, n_heads]; NaN, which is hatched, where not measurable.
        norm: from values to colours.
        bar: what the colours are, and on which scale; empty for no colour bar.
        name: above the map; empty for none.
        colours: others than those of the look.
        mark: a value to point out on the colour bar.
        write: a value as text in its cell.
        texts: [n_layers][n_heads], what stands in the cells instead of the values; may have several lines.
        legend: of the colours, where they stand for kinds and not for a scale.
        beside: columns of their own to the right, such as the mean of each layer: name and [n_layers] values.
        corners: heads, (layer, head), with a marked corner.
        outlined: heads with an outline.
        bracketed: heads whose number stands in brackets.
        signed: numbers of the bar above 0 have a plus.
        cut: there are values above the scale.
    """

    values: Array
    norm: Normalize
    bar: str
    name: str = ""
    colours: Colormap | None = None
    mark: Mark | None = None
    write: Callable[[float], str] = field(default=written)
    texts: tuple[tuple[str, ...], ...] = ()
    legend: tuple[Artist, ...] = ()
    beside: tuple[tuple[str, Array], ...] = ()
    corners: frozenset[tuple[int, int]] = frozenset()
    outlined: frozenset[tuple[int, int]] = frozenset()
    bracketed: frozenset[tuple[int, int]] = frozenset()
    signed: bool = False
    cut: bool = False


@dataclass(frozen=True)
class HeadMapPlan:
    """A figure of maps, one below the other.

    Attributes:
        stem, caption: of the file.
        title, notes: above the maps.
        maps: from top to bottom.
        columns: maps in a row; where there are several, all are on the scale of the first, with one colour bar.
    """

    stem: str
    caption: str
    title: str
    notes: tuple[str, ...]
    maps: tuple[HeadMap, ...]
    columns: int = 1


def head_map_figure(plan: HeadMapPlan, look: Look, vector: bool = False) -> Figure:
    """A new figure with every map of the plan, each with its colour bar."""
    if plan.columns > 1:
        return _in_columns(plan, look, vector)
    cells_across = max(each.values.shape[1] + 1.2 * len(each.beside) for each in plan.maps)
    natural = max(_cell_width(each) * (each.values.shape[1] + 1.2 * len(each.beside)) + _AXES for each in plan.maps)
    width = page_width(look, natural + 2 * MARGIN)
    across = (width - _AXES - 2 * MARGIN) / cells_across
    room = (width - _AXES - 2 * MARGIN) * DPI
    maps = [replace(each, name="\n".join(wrapped(each.name, 8, DPI, room))) for each in plan.maps]
    heights = [
        len(each.values) * _cell_height(each, across) + _AXES + _NAME * len(each.name.splitlines())
        + (_BAR + 0.15 * bool(each.mark)) * bool(each.bar)
        + (legend_height(each.legend, width) if each.legend else 0.0)
        for each in maps
    ]  # fmt: skip
    with figure_style():
        page = new_page(plan.title, plan.notes, look, width=width, body=sum(heights))
        rows: Any = page.subfigures(len(maps), 1, height_ratios=heights, squeeze=False)[:, 0]
        drawn = []
        for part, each in zip(rows, maps, strict=True):
            part.set_facecolor(look.greys.paper)
            ratios = [each.values.shape[1], *(1.1 for _ in each.beside)]
            axes = part.subplots(1, len(ratios), squeeze=False, gridspec_kw={"width_ratios": ratios})[0]
            drawn.append((axes[0], each.values, _draw(axes[0], each, look, vector), each))
            for ax, (name, values) in zip(axes[1:], each.beside, strict=True):
                column = np.asarray(values)[:, None]
                cells = draw_matrix(ax, column, each.norm, look, colours=each.colours, vector=vector)
                ax.set_xticks([0], [name], fontsize=7, color=look.greys.ink)
                ax.tick_params(length=0, pad=3)
                drawn.append((ax, column, cells, each))
            if each.bar:
                colour_bar(
                    part, list(axes), each.norm, each.bar, look, colours=each.colours, mark=each.mark, cut=each.cut,
                    signed=each.signed,
                )  # fmt: skip
            if each.legend:
                add_legend(part, each.legend, look)
        settled(page)
        for ax, values, cells, each in drawn:
            _write(ax, values, cells, each)
        return page


def _in_columns(plan: HeadMapPlan, look: Look, vector: bool) -> Figure:
    """Maps in rows, with the numbers of layers at the left, of heads below, and one colour bar."""
    first, rows = plan.maps[0], math.ceil(len(plan.maps) / plan.columns)
    n_layers, n_heads = first.values.shape
    width = page_width(look, plan.columns * (n_heads * _SMALL_CELL + _GAP) + _AXES + 2 * MARGIN)
    cell = ((width - 2 * MARGIN - _AXES) / plan.columns - _GAP) / n_heads
    body = rows * (n_layers * min(_SMALL_CELL, max(cell, 0.1)) + _NAME + _GAP) + _AXES + _BAR
    with figure_style():
        page = new_page(plan.title, plan.notes, look, width=width, body=body)
        axes = page.subplots(rows, plan.columns, squeeze=False)
        cells = [_draw(ax, each, look, vector) for ax, each in zip(axes.flat, plan.maps, strict=True)]
        for place, ax in np.ndenumerate(axes):
            for axis, name, outer in (("x", "xlabel", place[0] == rows - 1), ("y", "ylabel", place[1] == 0)):
                if not outer:
                    ax.set(**{name: "", f"{axis}ticks": []})
        colour_bar(page, list(axes.flat), first.norm, first.bar, look, colours=first.colours, cut=first.cut)
        settled(page)
        for ax, each, drawn in zip(axes.flat, plan.maps, cells, strict=True):
            write_numbers(ax, each.values, drawn, each.write, air=2)
        return page


def draw_head_map(ax: Axes, plan: HeadMapPlan, look: Look) -> AxesImage | QuadMesh:
    """Draw the first map of a plan on the caller's Axes, with its numbers where cells have room.

    Returns:
        what carries the colours, for ``figure.colorbar``.
    """
    each = plan.maps[0]
    cells = _draw(ax, each, look, False)
    settled(ax.figure)
    _write(ax, each.values, cells, each)
    return cells


def _cell_width(each: HeadMap) -> float:
    """Inches of a cell whose content has room."""
    lines = {line for row in each.texts for text in row for line in text.split("\n")}
    widest = max((text_width(line, _TEXT_SIZES[0], DPI) for line in lines), default=0) / DPI
    return max(0.3, widest + 0.06) if each.texts else _CELL[0]


def _cell_height(each: HeadMap, across: float) -> float:
    """Inches of a cell of that width; texts that have no room in it are turned."""
    if not each.texts:
        return min(_CELL[1], max(across, 0.12))
    fits = across >= _cell_width(each) * _TEXT_SIZES[-1] / _TEXT_SIZES[0]
    return _TEXT_HEIGHT if fits else _cell_width(each)


def _write(ax: Axes, values: Array, cells: AxesImage | QuadMesh, each: HeadMap) -> None:
    """What stands in the cells, as far as it can be read: their texts, upright or turned, or else their values."""
    if not each.texts or values is not each.values:
        write_numbers(ax, values, cells, each.write, bracketed=each.bracketed if values is each.values else ())
        return
    width, height = cell_points(ax, values.shape[1], values.shape[0])
    lines = [line for row in each.texts for text in row for line in text.split("\n")]
    most = max(text.count("\n") + 1 for row in each.texts for text in row)
    ways = [(angle, size) for angle in (0, 90) for size in _TEXT_SIZES]
    for angle, size in [*ways, (0 if width >= height else 90, _TEXT_SIZES[-1])]:
        along, across = (width, height) if angle == 0 else (height, width)
        room = (along - 3 * PIXEL) / PIXEL
        if across >= 1.2 * size * most and (max(text_width(line, size, DPI) for line in lines) <= room):
            break
    else:
        if across < 1.2 * size or room < 20:
            return
    painted = np.asarray(cells.cmap(np.asarray(cells.norm(np.nan_to_num(values)))))
    for (layer, head), value in np.ndenumerate(values):
        cut = "\n".join(fitted(line, size, DPI, room) for line in each.texts[layer][head].split("\n"))
        ink = contrasting_ink(painted[layer, head] if np.isfinite(value) else (1.0, 1.0, 1.0))
        ax.text(head, layer, cut, size=size, rotation=angle, color=ink, ha="center", va="center", linespacing=1.1,
                family=font_families([cut]), parse_math=False)  # fmt: skip


def _draw(ax: Axes, each: HeadMap, look: Look, vector: bool) -> AxesImage | QuadMesh:
    """Cells, rules, and the numbers of layers and heads."""
    n_layers, n_heads = each.values.shape
    cells = draw_matrix(ax, each.values, each.norm, look, colours=each.colours, vector=vector)
    with rc_context({"hatch.linewidth": 0.5}):
        for layer, head in np.argwhere(~np.isfinite(each.values)):
            box = (head - 0.5, layer - 0.5)
            ax.add_patch(Rectangle(box, 1, 1, fill=False, edgecolor=look.greys.frame, linewidth=0, hatch="//"))
    for edges, line in ((n_layers, ax.axhline), (n_heads, ax.axvline)):
        for place in range(1, edges):
            line(place - 0.5, color=look.greys.frame, linewidth=0.6 * PIXEL)
    width, height = cell_points(ax, n_heads, n_layers)
    widest = text_width(str(n_heads - 1), 7, DPI) + 5
    heads = range(0, n_heads, math.ceil(max(14, widest) * PIXEL / width))
    layers = range(0, n_layers, math.ceil(13 * PIXEL / height))
    ax.set_xticks(heads, [str(head) for head in heads], fontsize=7, color=outer_ink(look, "xtick.color"))
    ax.set_yticks(layers, [str(layer) for layer in layers], fontsize=7, color=outer_ink(look, "ytick.color"))
    ax.tick_params(length=0, pad=3)
    ink = outer_ink(look, "axes.labelcolor")
    ax.set_xlabel("head", fontsize=8, color=ink, labelpad=2)
    ax.set_ylabel("layer", fontsize=8, color=ink, labelpad=2)
    if each.name:
        ax.set_title(each.name, loc="left", fontsize=8, pad=4, color=look.greys.ink, parse_math=False)
    _point_out(ax, each, look)
    return cells


def _point_out(ax: Axes, each: HeadMap, look: Look) -> None:
    style: dict[str, Any] = {"linewidth": 0, "facecolor": _CORNER, "zorder": 3}
    for layer, head in sorted(each.corners):
        x, y = head + 0.5, layer - 0.5
        ax.add_patch(Polygon([(x - 0.3, y), (x, y), (x, y + 0.4)], **style))
    for layer, head in sorted(each.outlined):
        box = (head - 0.5, layer - 0.5)
        ax.add_patch(Rectangle(box, 1, 1, fill=False, edgecolor=look.greys.ink, linewidth=1.2, zorder=3))
