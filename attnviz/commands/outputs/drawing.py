"""The picture of one head's writing drawn, on the caller's Axes or in a new figure. No pyplot."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import StepPatch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from attnviz.commands.outputs.figures import BETWEEN, WeightedPlan
from attnviz.figures.colours import Array
from attnviz.figures.fonts import fitted, text_width, wrapped
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look
from attnviz.figures.view_bars import BAR_HEIGHT, draw_colour_bar
from attnviz.figures.view_drawing import (
    MARGIN,
    PIXEL,
    cell_points,
    contrasting_ink,
    draw_cells,
    few_enough,
    name_positions,
    page_width,
    value_size,
    view_page,
    written,
)

__all__ = ["draw_norms", "draw_value_norms", "weighted_figure"]

_NUMBER = 16
"""Pixels by which the last number of a colour bar may stand beyond its end."""

_NAME, _STRIP, _GAP = 24, 60, 8
_MOST_WRITTEN = 24


def draw_norms(ax: Axes, plan: WeightedPlan, look: Look, *, sides: str = "lb") -> AxesImage | QuadMesh:
    """Draw norm-weighted attention on the caller's Axes, with its numbers where cells are few and large enough.

    Args:
        ax: any matplotlib Axes; only these are changed.
        plan: from :func:`attnviz.commands.outputs.figures.plan_weighted`.
        look: theme.
        sides: where positions are named: left (``l``), bottom (``b``).

    Returns:
        the image or mesh that carries the cells.
    """
    norm = Normalize(0.0, plan.weighted_top, clip=True)
    cells = draw_cells(ax, plan.weighted, norm, look, mesh=few_enough(2 * plan.weighted.size), weights=False)
    _write_norms(ax, plan.weighted, norm, look)
    name_positions(ax, plan.labels, plan.quiet, look, pooled=plan.pooled, sides=sides)
    return cells


def draw_value_norms(ax: Axes, plan: WeightedPlan, look: Look) -> tuple[StepPatch, StepPatch]:
    """Draw ||f(x)|| of every key as bars that stand over the columns of a pattern of the same width.

    Returns:
        the bars of content tokens and those of sinks.
    """
    m = len(plan.value_norms)
    edges = np.arange(m + 1) - 0.5
    quiet = plan.quiet_cells
    strong = look.colour_map()(0.75)
    content = ax.stairs(plan.value_norms * (1 - quiet), edges, fill=True, fc=strong, ec="none")
    sinks = ax.stairs(plan.value_norms * quiet, edges, fill=True, fc=look.greys.quiet, ec="none")
    margin = m / max(ax.get_window_extent().width - 2, m)
    top = 1.08 * float(plan.value_norms.max()) or 1.0
    ax.set(xlim=(-0.5 - margin, m - 0.5 + margin), ylim=(0, top), xticks=[], facecolor=look.greys.paper)
    ax.yaxis.set_major_locator(MaxNLocator(2, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.tick_params(labelsize=6.5, length=2, width=PIXEL, pad=2, color=look.greys.frame, labelcolor=look.greys.ink)
    for name, spine in ax.spines.items():
        spine.set(linewidth=PIXEL, edgecolor=look.greys.frame, visible=name in ("left", "bottom"))
    return content, sinks


def weighted_figure(plan: WeightedPlan, look: Look) -> Figure:
    """A new figure: the raw pattern, the norms of the values and the norm-weighted pattern, with two colour bars."""
    side, labels = plan.size + 2, plan.room + 12
    left = MARGIN + plan.room + 8
    raw = (left, _NAME if plan.stacked else 2 * _NAME + _STRIP)
    strip = (left if plan.stacked else left + side + BETWEEN, raw[1] + side + _GAP + _NAME if plan.stacked else _NAME)
    weighted = (strip[0], strip[1] + _STRIP + _NAME)
    width = page_width(look, weighted[0] + side + MARGIN)
    body = weighted[1] + side + labels
    with figure_style():
        long, places, words = _bars(plan, width, look)
        more = 17 * (max(len(wrapped(text, 7.5, DPI, long)) for text in words) - 1)
        page = view_page(plan.title, plan.notes, width, body + BAR_HEIGHT + more, look)
        ax = page.axes(*raw, side, side)
        mesh = few_enough(2 * plan.pattern.size)
        draw_cells(ax, plan.pattern, Normalize(0.0, plan.pattern_top, clip=True), look, mesh=mesh)
        sides = "l" if plan.stacked else "lb"
        name_positions(ax, plan.labels, plan.quiet, look, pooled=plan.pooled, sides=sides)
        _name(ax, "by weight: A[q, k]", look)
        bars = page.axes(*strip, side, _STRIP)
        draw_value_norms(bars, plan, look)
        _name(bars, "‖f(x)‖ of each key", look)
        right = page.axes(*weighted, side, side)
        draw_norms(right, plan, look, sides="lb" if plan.stacked else "b")
        _name(right, "by norm: ‖A[q, k] f(x)‖", look)
        for place, top, text in zip(places, (plan.pattern_top, plan.weighted_top), words, strict=True):
            draw_colour_bar(page.axes(place, body + 24, long, 12), Normalize(0.0, top), text, look)
        return page.figure


def _bars(plan: WeightedPlan, width: int, look: Look) -> tuple[int, tuple[int, int], list[str]]:
    """Of the colour bars, one below each panel, or side by side where panels are stacked: length, lefts, names."""
    whose = "scale of this head" if look.scale == "per-head" else "scale of all heads"
    names: tuple[tuple[str, ...], tuple[str, ...]]
    if plan.stacked:
        between = MARGIN + BETWEEN // 2 + _NUMBER
        long = (width - 2 * MARGIN - between - _NUMBER) // 2
        places = (MARGIN, MARGIN + between + long)
        names = (("A",), ("‖A f(x)‖",))
    else:
        long = min(plan.size - _NUMBER, 420)
        places = (MARGIN + plan.room + 8, MARGIN + plan.room + 8 + plan.size + 2 + BETWEEN)
        names = (("attention weight A", "A"), ("norm-weighted ‖A f(x)‖", "‖A f(x)‖"))
    words = []
    for (name, *shorter), top in zip(names, (plan.pattern_top, plan.weighted_top), strict=True):
        ending = f"({whose})" if top != 1.0 or look.scale == "per-head" else "(0–1)"
        tries = (f"{name} {ending}", *(f"{short} {ending}" for short in shorter))
        words.append(next((text for text in tries if text_width(text, 7.5, DPI) <= long), tries[-1]))
    return long, places, words


def _name(ax: Axes, name: str, look: Look) -> None:
    room = ax.get_window_extent().width * DPI / ax.figure.dpi
    ax.set_title(fitted(name, 7.5, DPI, room), loc="left", fontsize=7.5, pad=3, color=look.greys.ink, parse_math=False)


def _write_norms(ax: Axes, values: Array, norm: Normalize, look: Look) -> None:
    """Norms into the cells where there is room for them, but for those that round to nothing."""
    if len(values) > _MOST_WRITTEN:
        return
    texts = {place: written(float(value)) for place, value in np.ndenumerate(values)}
    size = value_size(tuple(set(texts.values())), *cell_points(ax, len(values), len(values)), air=4)
    if size is None:
        return
    painted = np.asarray(look.colour_map()(np.asarray(norm(values))))
    style: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False, "size": size}
    for (row, column), text in texts.items():
        if text != "0.00":
            ax.text(column, row, text, color=contrasting_ink(painted[row, column]), **style)
