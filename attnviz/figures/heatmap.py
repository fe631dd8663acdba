"""The heatmap of one head, on a page or on the caller's Axes; every cell is a whole number of pixels wide."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnviz.figures.colours import outer_ink
from attnviz.figures.files import DPI, figure_style
from attnviz.figures.fonts import drawable, fitted, font_families, outer_size, text_width
from attnviz.figures.look import Look
from attnviz.figures.matrix import (
    LONGEST,
    Array,
    Labels,
    draw_matrix,
    hundredths,
    label_size,
    named_every,
    write_numbers,
)
from attnviz.figures.page import MARGIN, bar_inches, colour_bar, new_page, page_width, settled

__all__ = ["AIR", "HeatmapPage", "HeatmapPlan", "draw_heatmap", "heatmap_figure", "heatmap_named_every",
           "heatmap_page", "heatmap_pooling"]  # fmt: skip

AIR = 5
"""Pixels of a cell's width that its number leaves free."""

_MOST_CELLS, _SIDE, _LARGEST_CELL = 1024, 960, 44
"""Pixels at DPI: of the largest and of the usual side of a heatmap, and of the largest cell."""

_AXIS_NAME, _BAR, _SLACK = 24, 0.55, 0.08


@dataclass(frozen=True)
class HeatmapPlan:
    """One head's pattern, ready to draw.

    Attributes:
        stem, caption: of the file.
        title: id and label.
        evidence: the score behind the label, with its baseline.
        notes: further lines, the same for every head of a text.
        values: [m, m], rows attend to columns; pooled by :func:`heatmap_pooling`.
        labels: of the positions, before pooling.
        norm: from weights to colours.
        bar_norm, bar: the scale of the colour bar, the same for every head, and what it is.
        pooled: positions in one cell.
        colours: others than those of the look.
        outlined: row and column of a cell to outline.
        forms: a value as text in its cell, the fullest form first.
        signed: numbers of the colour bar above 0 have a plus.
    """

    stem: str
    caption: str
    title: str
    evidence: str
    notes: tuple[str, ...]
    values: Array
    labels: Labels
    norm: Normalize
    bar_norm: Normalize
    bar: str
    pooled: int = 1
    colours: Colormap | None = None
    outlined: tuple[int, int] | None = None
    forms: tuple[Callable[[float], str], ...] = (hundredths,)
    signed: bool = False


@dataclass(frozen=True)
class HeatmapPage:
    """A page with a heatmap, without its numbers.

    Attributes:
        figure: the page; the first of its texts are the lines of title and evidence.
        axes: of the cells.
        cells: what carries the colours.
        left, top, cell: where the cells begin and how wide one is, in pixels at ``dpi``.
        dpi: of the file.
    """

    figure: Figure
    axes: Axes
    cells: AxesImage | QuadMesh
    left: int
    top: int
    cell: int
    dpi: int


def heatmap_pooling(labels: Sequence[str], look: Look) -> int:
    """How many positions share a cell, so that every cell has a pixel.

    Args:
        labels: of the positions.
        look: its width on the page.
    """
    most = _MOST_CELLS if look.width is None else min(_MOST_CELLS, _room(labels, look))
    return math.ceil(len(labels) / most)


def heatmap_named_every(labels: Sequence[str], pooled: int, look: Look) -> int:
    """Every which position is named beside the cells."""
    return named_every(_cell(labels, math.ceil(len(labels) / pooled), look) * 72 / _dpi(look), pooled)


def heatmap_figure(plan: HeatmapPlan, look: Look, vector: bool = False) -> Figure:
    """A new figure with one heatmap, its weights where cells have room, colour bar, title and notes."""
    with figure_style():
        page = heatmap_page(plan, look, vector)
        _write(page.axes, plan, page.cells)
        return page.figure


def heatmap_page(plan: HeatmapPlan, look: Look, vector: bool = False) -> HeatmapPage:
    """A new page with all but the numbers in the cells."""
    texts, m, dpi = plan.labels.texts, len(plan.values), _dpi(look)
    cell = _cell(texts, m, look)
    points, side = cell * 72 / dpi, cell * m / dpi
    longest = _longest(texts, label_size(points)) / DPI
    width = page_width(look, side + longest + 2 * MARGIN + _AXIS_NAME / DPI + _SLACK)
    across = min(side, width - longest - 2 * MARGIN)
    body = side + longest + _AXIS_NAME / DPI + max(_BAR, bar_inches(plan.bar, across)) + _SLACK
    figure = new_page(plan.title, (plan.evidence, *plan.notes), look, width=width, body=body)
    ax = figure.add_subplot()
    cells = _draw(ax, plan, look, vector=vector, points=points)
    colour_bar(figure, ax, plan.bar_norm, plan.bar, look, colours=plan.colours, signed=plan.signed, across=across)
    settled(figure)
    figure.set_layout_engine("none")
    box, pixel = ax.get_window_extent(), dpi / DPI
    cell = max(1, min(cell, int(min(box.width, box.height) * pixel / m)))
    whole_width, whole_height = (inches * dpi for inches in figure.get_size_inches())
    left, top = round(box.x0 * pixel) + 1, round(whole_height - box.y1 * pixel) + 1
    place = left / whole_width, 1 - (top + cell * m) / whole_height
    ax.set_position((*place, cell * m / whole_width, cell * m / whole_height))
    return HeatmapPage(figure, ax, cells, left, top, cell, dpi)


def draw_heatmap(ax: Axes, plan: HeatmapPlan, look: Look) -> AxesImage | QuadMesh:
    """Draw the heatmap on the caller's Axes, which keep their size: cells, weights, labels, title.

    Returns:
        what carries the colours, for ``figure.colorbar``.
    """
    cells = _draw(ax, plan, look)
    title = "\n".join(drawable(line) for line in (plan.title, plan.evidence) if line)
    style: dict[str, Any] = {"color": outer_ink(look), "family": font_families([title]), "parse_math": False}
    ax.set_title(title, loc="left", fontsize=outer_size("axes.titlesize", 9), **style)
    settled(ax.figure)
    _write(ax, plan, cells)
    return cells


def _draw(
    ax: Axes, plan: HeatmapPlan, look: Look, *, vector: bool = False, points: float | None = None
) -> AxesImage | QuadMesh:
    """Cells, labels of positions and names of the axes."""
    cells = draw_matrix(
        ax, plan.values, plan.norm, look, labels=plan.labels, pooled=plan.pooled, colours=plan.colours,
        vector=vector, outlined=plan.outlined, cell=points,
    )  # fmt: skip
    box = ax.get_window_extent()
    side = box.height * DPI / ax.figure.dpi if points is None else points * len(plan.values) * DPI / 72
    size, ink = outer_size("axes.labelsize", 7.5), outer_ink(look, "axes.labelcolor")
    for name, setting in (("key (attended to)", ax.set_xlabel), ("query (attends from)", ax.set_ylabel)):
        shown = name if text_width(name, size, DPI) <= side + 20 else name.partition(" ")[0]
        setting(shown, fontsize=size, color=ink, labelpad=2)
    return cells


def _write(ax: Axes, plan: HeatmapPlan, cells: AxesImage | QuadMesh) -> None:
    """The numbers, as fully as all of them fit."""
    any(write_numbers(ax, plan.values, cells, form, air=AIR) for form in plan.forms)


def _dpi(look: Look) -> int:
    return DPI if look.width is None else 2 * DPI


def _cell(labels: Sequence[str], m: int, look: Look) -> int:
    """Pixels of a cell in the file, where m of them share a row."""
    if look.width is None:
        return max(1, min(_LARGEST_CELL, round(_SIDE / m)))
    return max(1, min(2 * _LARGEST_CELL, _room(labels, look) // m))


def _room(labels: Sequence[str], look: Look) -> int:
    """Pixels for the cells in a file of a chosen width."""
    assert look.width is not None
    beside = _longest(labels, label_size(100)) + _AXIS_NAME + 2 * MARGIN * DPI
    return round((look.width * DPI - beside) * _dpi(look) / DPI)


def _longest(labels: Sequence[str], size: float) -> float:
    """Pixels of the longest label as it is drawn, and of its tick."""
    return max(text_width(fitted(label, size, DPI, LONGEST), size, DPI) for label in set(labels)) + 10
