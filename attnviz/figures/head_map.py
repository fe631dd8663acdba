"""A map of all heads: layers × heads, coloured by a number, with the numbers in the cells; one or more on a page."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Polygon, Rectangle

from attnviz.figures.colours import outer_ink
from attnviz.figures.files import DPI, figure_style
from attnviz.figures.fonts import text_width, wrapped
from attnviz.figures.look import Look
from attnviz.figures.matrix import Array, cell_points, draw_matrix, write_numbers
from attnviz.figures.page import MARGIN, PIXEL, Mark, colour_bar, new_page, page_width, settled, written

__all__ = ["HeadMap", "HeadMapPlan", "draw_head_map", "head_map_figure"]

_CELL = (0.42, 0.25)
_SMALL_CELL = 0.19
_GAP, _AXES, _BAR, _NAME = 0.18, 0.35, 0.55, 0.2
_CORNER = "#d95f02"


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
    natural = max(_CELL[0] * (each.values.shape[1] + 1.2 * len(each.beside)) + _AXES for each in plan.maps)
    width = page_width(look, natural + 2 * MARGIN)
    across = (width - _AXES - 2 * MARGIN) / max(each.values.shape[1] + 1.2 * len(each.beside) for each in plan.maps)
    cell = min(_CELL[1], max(across, 0.12))
    room = (width - _AXES - 2 * MARGIN) * DPI
    maps = [replace(each, name="\n".join(wrapped(each.name, 8, DPI, room))) for each in plan.maps]
    heights = [
        len(each.values) * cell + _AXES + _NAME * len(each.name.splitlines())
        + (_BAR + 0.15 * bool(each.mark)) * bool(each.bar)
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
        settled(page)
        for ax, values, cells, each in drawn:
            brackets = each.bracketed if values is each.values else ()
            write_numbers(ax, values, cells, each.write, bracketed=brackets)
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
    write_numbers(ax, each.values, cells, each.write, bracketed=each.bracketed)
    return cells


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
