"""Heatmap of one head; every cell is a whole number of pixels wide."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attnviz.figures.fonts import drawable, font_families, text_width
from attnviz.figures.matrix import (
    LANE,
    Array,
    Bracket,
    Cells,
    Labels,
    Outline,
    bracket_lanes,
    cell_points,
    draw_brackets,
    draw_matrix,
    hundredths,
    label_pixels,
    label_size,
    named_every,
    numbers,
    write_numbers,
)
from attnviz.figures.page import (
    MARGIN,
    PIXEL,
    ColourScale,
    PagePlan,
    bar_inches,
    colour_bar,
    fix_axes,
    freeze_layout,
    heading,
    new_page,
    page_width,
    run_layout,
)
from attnviz.figures.style import DPI, Style, figure_style, file_dpi, text_colour

# pixels at DPI: of the largest and of the usual side of a heatmap, and of the largest cell
_MOST_CELLS, _SIDE, _LARGEST_CELL = 1024, 960, 44
_TICK, _AXIS_NAME, _BAR, _SLACK = 10, 24, 0.55, 0.08
_AXIS_TEXT = 7.5  # font size in points
OF_TWO_TEXTS = ("target (attends from)", "source (attended to)")  # names of rows and columns of cross-attention


@dataclass(frozen=True, kw_only=True)
class HeatmapPlan(ColourScale, PagePlan):
    """One head's pattern, ready to draw."""

    evidence: str  # score of the label with its baseline, between title and notes
    values: Array  # [rows, columns], rows attend to columns; pooled by heatmap_pooling
    labels: Labels  # of the positions, before pooling
    bar_norm: Normalize  # the scale of the colour bar, the same for every head
    pooled: int = 1  # positions in one cell
    outlines: tuple[Outline, ...] = ()  # frames around cells
    forms: tuple[Callable[[float], str], ...] = (hundredths,)  # a value as text in its cell, the fullest form first
    keys: Labels | None = None  # of the columns, if other positions than the rows
    row_brackets: tuple[Bracket, ...] = ()  # of named stretches of the rows, before pooling
    column_brackets: tuple[Bracket, ...] = ()
    axes: tuple[str, str] = ("query (attends from)", "key (attended to)")  # names of rows and columns


def heatmap_pooling(labels: Sequence[str], style: Style, n_keys: int = 0) -> tuple[int, int]:
    """Positions per cell, so that every cell has a pixel, and the interval of labels, in positions.

    ``labels`` are those of the rows; ``n_keys``: columns, if another number.
    """
    n = max(len(labels), n_keys)
    most = _MOST_CELLS if style.room is None else min(_MOST_CELLS, _room(labels, style))
    pooled = math.ceil(n / most)
    return pooled, named_every(_cell(labels, math.ceil(n / pooled), style) * 72 / file_dpi(style), pooled)


def has_numbers(values: Array, labels: Sequence[str], style: Style) -> bool:
    """Whether a heatmap of these weights, in hundredths, has numbers in its cells; ``labels`` are those of the rows."""
    points = _cell(labels, max(values.shape), style) * 72 / file_dpi(style)
    return bool(numbers(values, hundredths, points, points)[0])


def heatmap_figure(plan: HeatmapPlan, style: Style, vector: bool = False) -> Figure:
    """A new figure with one heatmap, weights in the cells if they fit, colour bar, title and notes."""
    return HeatmapPage(plan, style, vector).filled(plan)


class HeatmapPage:
    """A page with its layout, in which cells are whole pixels; it is filled with one head after the other.

    Of the heads title, evidence and values differ; lines of title and evidence are as many and in the same fonts.
    """

    @figure_style()
    def __init__(self, plan: HeatmapPlan, style: Style, vector: bool = False) -> None:
        self.style = style
        texts = plan.labels.texts
        dpi = file_dpi(style)
        rows, columns = plan.values.shape
        cell = _cell(texts, max(rows, columns), style)
        points = cell * 72 / dpi
        size = label_size(points)
        beside, below = (
            (label_pixels(labels.texts, size) + _TICK) / DPI for labels in (plan.labels, plan.keys or plan.labels)
        )
        right, above = (_lanes(brackets) * LANE / 72 for brackets in (plan.row_brackets, plan.column_brackets))
        width = page_width(style, cell * columns / dpi + beside + right + 2 * MARGIN + _AXIS_NAME / DPI + _SLACK)
        across = min(cell * columns / dpi, width - beside - right - 2 * MARGIN)
        body = cell * rows / dpi + below + above + _AXIS_NAME / DPI + max(_BAR, bar_inches(plan.bar, across)) + _SLACK
        figure = new_page(plan.title, (plan.evidence, *plan.notes), style, width=width, body=body)
        ax = figure.add_subplot()
        self.figure, self.ax = figure, ax
        self.cells = _draw(ax, plan, style, vector=vector, points=points)
        self.texts, self.names = figure.texts[: len(self.lines(plan))], len(ax.texts)
        colour_bar(figure, ax, replace(plan, norm=plan.bar_norm), style, across=across)
        freeze_layout(figure)
        box = ax.get_window_extent()
        pixel = DPI / dpi
        cell = max(1, min(cell, int(min(box.width / columns, box.height / rows) / pixel)))
        fix_axes(figure, ax, cell * columns * pixel, cell * rows * pixel)

    def lines(self, plan: HeatmapPlan) -> list[tuple[str, float, str]]:
        """The lines of title and evidence, with size and weight."""
        return heading(plan.title, (plan.evidence,), self.style, self.figure.get_figwidth())

    @figure_style()
    def filled(self, plan: HeatmapPlan) -> Figure:
        """The page with a head's title, evidence and cells, and with its weights in the cells if they fit."""
        for text, (line, *_) in zip(self.texts, self.lines(plan), strict=True):
            text.set_text(line)
        self.cells.set_norm(plan.norm)
        self.cells.set_array(plan.values)
        for number in self.ax.texts[self.names :]:
            number.remove()
        any(write_numbers(self.ax, plan.values, self.cells, form) for form in plan.forms)  # as fully as all of them fit
        return self.figure


def draw_heatmap(ax: Axes, plan: HeatmapPlan, style: Style) -> Cells:
    """Draw cells, weights, labels and title on the caller's Axes, which keep their size; returns the cells."""
    cells = _draw(ax, plan, style)
    title = "\n".join(drawable(line) for line in (plan.title, plan.evidence) if line and not style.bare)
    pad = 6 + LANE * _lanes(plan.column_brackets)
    family = font_families([title])
    ax.set_title(title, loc="left", fontsize=9, pad=pad, color=text_colour(style), family=family, parse_math=False)
    run_layout(ax.figure)
    any(write_numbers(ax, plan.values, cells, form) for form in plan.forms)
    return cells


def _draw(ax: Axes, plan: HeatmapPlan, style: Style, *, vector: bool = False, points: float | None = None) -> Cells:
    cells = draw_matrix(
        ax,
        plan.values,
        plan.norm,
        style,
        labels=plan.labels,
        keys=plan.keys or plan.labels,
        pooled=plan.pooled,
        colours=plan.colours,
        vector=vector,
        outlines=plan.outlines,
        cell=points,
    )
    width, height = cell_points(ax, plan.values.shape, points)
    draw_brackets(ax.xaxis, plan.column_brackets, width, plan.pooled, style)
    draw_brackets(ax.yaxis, plan.row_brackets, height, plan.pooled, style)
    look: dict[str, Any] = {"fontsize": _AXIS_TEXT, "color": text_colour(style, "axes.labelcolor")}
    rows, columns = plan.values.shape
    for axis, name, side in ((ax.yaxis, plan.axes[0], height * rows), (ax.xaxis, plan.axes[1], width * columns)):
        fits = text_width(name, _AXIS_TEXT) <= side / PIXEL + 20
        axis.set_label_text(name if fits else name.partition(" ")[0], **look)
        axis.labelpad = 2
    return cells


def _lanes(brackets: Sequence[Bracket]) -> int:
    return max(bracket_lanes(brackets), default=-1) + 1


def _cell(labels: Sequence[str], m: int, style: Style) -> int:  # pixels of a cell in the file, with m cells a row
    if style.room is None:
        return max(1, min(_LARGEST_CELL, round(_SIDE / m)))
    return max(1, min(2 * _LARGEST_CELL, _room(labels, style) // m))


def _room(labels: Sequence[str], style: Style) -> int:  # pixels for the cells in a file of a chosen width
    assert style.room is not None
    beside = label_pixels(labels, label_size(100)) + _TICK + _AXIS_NAME + 2 * MARGIN * DPI
    return round((style.room * DPI - beside) * file_dpi(style) / DPI)
