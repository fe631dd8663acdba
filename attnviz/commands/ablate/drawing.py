"""Planned figures of an ablation drawn on matplotlib Axes, the caller's own or new ones. No pyplot."""

import math
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.colors import Colormap, FuncNorm, Normalize
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from attnviz.commands.ablate.views import CurvePlan, GradientPlan, HeadsPlan, ImportancePlan, Scatter
from attnviz.figures.fonts import fitted, text_width, wrapped
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look
from attnviz.figures.view_bars import bar_place, draw_colour_bar
from attnviz.figures.view_drawing import (
    MARGIN,
    PIXEL,
    Numbers,
    cell_points,
    contrasting_ink,
    dress_grid,
    page_width,
    value_size,
    view_page,
    written,
)

__all__ = [
    "curve_figure",
    "draw_curve",
    "draw_gradient",
    "draw_heads",
    "draw_importance",
    "gradient_figure",
    "heads_figure",
    "importance_figure",
    "importance_norm",
]

_BLUE = {"light": "#2171b5", "dark": "#6baed6"}
_ORANGE = {"light": "#b35806", "dark": "#f1a340"}
_LEFT, _AXIS, _ROW, _PANEL, _GAP = 56, 50, 22, 300, 34
_MOST_COLUMNS = 16
_PLOT = 380


def importance_norm(plan: ImportancePlan) -> Normalize:
    """From damage to colours, by the square root of its size, so that one large head does not hide the others."""
    low = -plan.top if plan.signed else 0.0
    return FuncNorm((_root, _square), low, plan.top, clip=True)


def draw_importance(ax: Axes, plan: ImportancePlan, look: Look) -> QuadMesh:
    """Draw the map on the caller's Axes: cells, values where there is room, hatching where nothing was removed.

    Returns:
        the mesh that carries the cells.
    """
    n_layers, n_heads = plan.values.shape
    edges = [np.arange(n + 1) - 0.5 for n in (n_heads, n_layers)]
    norm, colours, paper = importance_norm(plan), _colours(plan, look), look.greys.paper
    masked = np.ma.masked_invalid(plan.values)
    mesh = ax.pcolormesh(*edges, masked, cmap=colours, norm=norm, edgecolors=paper, linewidth=PIXEL)
    dress_grid(ax, n_layers, n_heads, look)
    texts = {place: _cell(plan, place) for place, value in np.ndenumerate(plan.values) if math.isfinite(value)}
    size = value_size(tuple(set(texts.values())), *cell_points(ax, n_heads, n_layers))
    for (layer, head), value in np.ndenumerate(plan.values):
        if not math.isfinite(value):
            with rc_context({"hatch.linewidth": 0.5}):
                ax.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, fc=paper, ec=look.greys.frame, lw=PIXEL, hatch="//"))  # fmt: skip  # noqa: E501
        elif size is not None and n_heads <= _MOST_COLUMNS:
            ink = contrasting_ink(colours(norm(value)))
            ax.text(head, layer, texts[layer, head], size=size, color=ink, ha="center", va="center", parse_math=False)
    return mesh


def importance_figure(plan: ImportancePlan, look: Look) -> Figure:
    """A new figure with the map, its colour bar, title and notes."""
    n_layers, n_heads = plan.values.shape
    natural = 58 if n_heads <= 12 else 48 if n_heads <= _MOST_COLUMNS else 30
    width = page_width(look, _LEFT + n_heads * natural + MARGIN)
    cell = natural if look.width is None else max(1, min(90, (width - _LEFT - MARGIN) // n_heads))
    row = max(14, min(40, round(0.75 * cell)))
    body, rows = n_heads * cell, n_layers * row
    with figure_style():
        left, length, below = bar_place(plan.bar, width, _LEFT)
        page = view_page(plan.title, plan.notes, width, rows + _AXIS + below, look)
        draw_importance(page.axes(_LEFT, 0, body, rows), plan, look)
        bar = page.axes(left, rows + _AXIS + 24, length, 12)
        draw_colour_bar(bar, importance_norm(plan), plan.bar, look, colours=_colours(plan, look))
        return page.figure


def draw_heads(ax: Axes, plan: HeadsPlan, panel: int, look: Look, *, named: bool = True) -> ErrorbarContainer:
    """Draw one panel of heads with intervals on the caller's Axes, the one that matters most at the top.

    Args:
        ax: any matplotlib Axes; only these are changed.
        plan: from :func:`attnviz.commands.ablate.views.plan_heads`.
        panel: 0 for the first measure, 1 for the second one.
        look: theme.
        named: write the names of the heads at the left.

    Returns:
        dots and bars.
    """
    estimates, ink = plan.values[panel], look.greys.ink
    rows = np.arange(len(estimates))
    values = np.array([each.value for each in estimates])
    ends = np.array([[each.value if end is None else end for end in (each.low, each.high)] for each in estimates]).T
    for row in rows[::2]:
        ax.axhspan(row - 0.5, row + 0.5, color=ink, alpha=0.05, linewidth=0)
    ax.axvline(plan.middle[panel], color=look.greys.quiet, lw=0.9, ls=":")
    below = min(values.min(), ends.min()) < 0
    if below:
        ax.axvline(0, color=look.greys.frame, lw=PIXEL)
    errors = np.abs(ends - values)
    drawn = ax.errorbar(values, rows, xerr=errors, fmt="o", ms=3.5, lw=1.2, color=_BLUE[look.theme])
    ax.set(ylim=(len(estimates) - 0.5, -0.5), facecolor="none")
    if not below:
        ax.set_xlim(left=0)
    ax.set_yticks(rows, plan.names if named else [""] * len(rows), fontsize=7, color=ink)
    _dress(ax, look)
    ax.tick_params(axis="y", length=0)
    measure = plan.measures[panel]
    _name_axis(ax, f"{measure.title} ({measure.unit})", look, short=measure.title)
    return drawn


def heads_figure(plan: HeadsPlan, look: Look) -> Figure:
    """A new figure with a panel a measure, title and notes."""
    left = MARGIN + round(max(text_width(name, 7, DPI) for name in plan.names)) + 6
    width = page_width(look, left + 2 * _PANEL + _GAP + MARGIN)
    panel, height = (width - left - MARGIN - _GAP) // 2, max(2, len(plan.names)) * _ROW
    with figure_style():
        page = view_page(plan.title, plan.notes, width, height + _AXIS, look)
        for number in range(2):
            ax = page.axes(left + number * (panel + _GAP), 0, panel, height)
            draw_heads(ax, plan, number, look, named=number == 0)
        return page.figure


def draw_curve(ax: Axes, plan: CurvePlan, look: Look) -> list[Line2D]:
    """Draw the three lines with their bands on the caller's Axes.

    Returns:
        the lines: least important first, sum of one at a time, random order.
    """
    ink, quiet, blue = look.greys.ink, look.greys.quiet, _BLUE[look.theme]
    lines = []
    for line, colour, style, marker in (
        (plan.least, blue, "-", "o"),
        (plan.singles, blue, "--", ""),
        (plan.random, _ORANGE[look.theme], ":", "s"),
    ):
        if line.low is not None and line.high is not None and line is not plan.singles:
            ax.fill_between(plan.removed, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
        lines += ax.plot(
            plan.removed, line.values, color=colour, ls=style, lw=1.4, marker=marker, ms=3, label=line.name
        )
    ax.axhline(0, color=quiet, lw=PIXEL)
    ax.set(xlim=(0, plan.removed[-1] * 1.02), facecolor="none")
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    room = ax.get_window_extent().width * DPI / ax.figure.dpi
    size = 7 if room >= 330 else 5.5
    names = [fitted(line.get_label(), size, DPI, room - 80) for line in lines]  # type: ignore[arg-type]
    ax.legend(lines, names, loc="upper left", fontsize=size, facecolor=look.greys.paper, edgecolor="none",
              framealpha=0.85, labelcolor=ink)  # fmt: skip
    _dress(ax, look)
    ax.tick_params(axis="y", labelsize=7, length=2, labelcolor=ink)
    _name_axis(ax, "heads removed", look)
    ax.set_ylabel(plan.unit, fontsize=7.5, color=ink, labelpad=2, parse_math=False)
    return lines


def curve_figure(plan: CurvePlan, look: Look) -> Figure:
    """A new figure with the curve, title and notes."""
    left = _LEFT + 24
    width = page_width(look, 720)
    with figure_style():
        page = view_page(plan.title, plan.notes, width, _PLOT + _AXIS, look)
        draw_curve(page.axes(left, 0, width - left - MARGIN, _PLOT), plan, look)
        return page.figure


def draw_gradient(ax: Axes, plan: GradientPlan, panel: Scatter, look: Look) -> PathCollection:
    """Draw one measure against the importance by gradients on the caller's Axes, a dot a head.

    Returns:
        the dots.
    """
    ink = look.greys.ink
    dots = ax.scatter(plan.gradients, panel.values, s=10, color=_BLUE[look.theme], linewidths=0)
    if panel.logarithmic:
        ax.set(xscale="log", yscale="log")
    elif panel.values.min() < 0:
        ax.axhline(0, color=look.greys.frame, lw=PIXEL)
    ax.set_facecolor("none")
    ax.margins(0.12)
    _name_dots(ax, plan, panel.values, look)
    correlation = "–" if panel.correlation is None else f"{panel.correlation:.2f}".replace("-", "−")
    room = ax.get_window_extent().width * DPI / ax.figure.dpi
    title = "\n".join(wrapped(f"{panel.measure.title}: rank correlation {correlation}", 7.5, DPI, room))
    ax.set_title(title, loc="left", fontsize=7.5, color=ink, pad=4, parse_math=False)
    _dress(ax, look, logarithmic=panel.logarithmic)
    _name_axis(ax, "importance by gradients", look)
    ax.set_ylabel(panel.measure.unit, fontsize=7.5, color=ink, labelpad=1, parse_math=False)
    ax.tick_params(axis="y", labelsize=6.5, labelcolor=ink)
    return dots


def gradient_figure(plan: GradientPlan, look: Look) -> Figure:
    """A new figure with a panel a measure, title and notes; side by side where there is room."""
    width = page_width(look, 860)
    beside = width >= 700
    left = _LEFT + 30
    panel = (width - 2 * left - MARGIN) // 2 if beside else width - left - MARGIN
    above = 22 if panel > 260 else 38  # titles go on in a second line
    height = min(340, panel)
    pitch = above + height + _AXIS
    with figure_style():
        page = view_page(plan.title, plan.notes, width, pitch * (1 if beside else 2), look)
        for number, scatter in enumerate(plan.panels):
            across, down = (number, 0) if beside else (0, number)
            ax = page.axes(left + across * (panel + left), down * pitch + above, panel, height)
            draw_gradient(ax, plan, scatter, look)
        return page.figure


def _name_dots(ax: Axes, plan: GradientPlan, values: Numbers, look: Look) -> None:
    """Names beside the dots that matter most, left out where they would stand on another name."""
    taken: list[tuple[float, float, float, float]] = []
    ax.autoscale_view()
    scale = 72 / ax.figure.dpi
    for x, y, name in zip(plan.gradients, values, plan.names, strict=True):
        if not name:
            continue
        across, up = (float(each) * scale for each in ax.transData.transform((x, y)))
        wide = text_width(name, 6, DPI) * PIXEL
        before = across + 5 + wide > ax.get_window_extent().x1 * scale  # no room after it
        box = (across - 4 - wide, up - 4, across, up + 4) if before else (across, up - 4, across + 4 + wide, up + 4)
        if any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
            continue
        taken.append(box)
        ax.annotate(name, (x, y), xytext=(-3 if before else 3, 0), textcoords="offset points", fontsize=6, va="center",
                    ha="right" if before else "left", color=look.greys.ink, annotation_clip=False)  # fmt: skip


def _dress(ax: Axes, look: Look, *, logarithmic: bool = False) -> None:
    for spine in ax.spines.values():
        spine.set(linewidth=PIXEL, edgecolor=look.greys.frame)
    style: dict[str, Any] = {"width": PIXEL, "color": look.greys.frame, "labelcolor": look.greys.ink}
    ax.tick_params(axis="both", labelsize=7, length=2, pad=2, **style)
    ax.tick_params(which="minor", length=0)
    if logarithmic:
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_minor_formatter(NullFormatter())
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high <= 10 * low else (1.0,), numticks=6))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        room = ax.get_window_extent().width * DPI / ax.figure.dpi
        ax.xaxis.set_major_locator(MaxNLocator(int(np.clip(room // 60, 2, 6)), steps=[1, 2, 5, 10]))
        for axis in (ax.xaxis, ax.yaxis):
            if len(axis.get_ticklabels()) and axis.get_major_formatter().__class__.__name__ == "ScalarFormatter":
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))


def _name_axis(ax: Axes, name: str, look: Look, *, short: str = "") -> None:
    """Below the Axes; where the name does not fit, the short one."""
    room = ax.get_window_extent().width * DPI / ax.figure.dpi
    if short and text_width(name, 7.5, DPI) > room + MARGIN:
        name = short
    ax.set_xlabel(
        fitted(name, 7.5, DPI, room + MARGIN), fontsize=7.5, color=look.greys.ink, labelpad=2, parse_math=False
    )


def _cell(plan: ImportancePlan, place: tuple[int, ...]) -> str:
    text = written(float(plan.values[place])).replace("-", "−")
    return f"({text})" if plan.unsure[place] else text


def _colours(plan: ImportancePlan, look: Look) -> Colormap:
    return look.diverging_map() if plan.signed else look.colour_map()


def _root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _square(values: Any) -> Any:
    return np.sign(values) * np.square(values)
