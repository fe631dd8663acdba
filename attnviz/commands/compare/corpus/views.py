"""The figures of a comparison over a corpus: heads ranked by mean distance, beside noise and maximum."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from attnviz.commands.compare.corpus.measure import CorpusComparison, HeadChange
from attnviz.commands.compare.corpus.report import changed_line
from attnviz.commands.compare.wording import side_lines, sides_in_words
from attnviz.figures.page import PagePlan, add_legend, dress_chart, legend_height, new_page, page_width
from attnviz.figures.style import Style, figure_style, outer_ink
from attnviz.present.figure_context import sentence
from attnviz.present.view import Drawing, ViewOptions

_NOISE = "#D55E00"
_ROOM = 1.3
_ID_INCHES, _RANK_INCHES, _AXES_SHARE = 0.11, 0.2, 0.85
"""Least distances of ids and of ranks in inches, and rough share of the Axes in the figure's width."""


@dataclass(frozen=True)
class _RankedPlan(PagePlan):
    """Heads, the most different first, and the largest possible distance."""

    heads: tuple[HeadChange, ...]
    largest: float


def _plan_ranked(result: CorpusComparison, choices: ViewOptions) -> Iterator[_RankedPlan]:
    heads = tuple(result.select(choices.select))
    intervals = "lines: intervals at 0.05 over all heads together" if result.judged else "too few texts for intervals"
    noise = "each beside its distance between two passes of A with dropout" if result.dropout else ""
    yield _RankedPlan(
        "compare-corpus-distances",
        sentence(
            "Mean Jensen-Shannon distance (root nats) between the attention of each head in A and in B, the most "
            f"different head first, {sides_in_words(result)}",
            noise,
            intervals,
            f"the largest possible distance is {result.largest:.2f}",
            changed_line(result),
            "heads that changed are named where their names have room" if result.changed else "",
        ),
        changed_line(result),
        (*side_lines(result), "The most different head first."),
        heads,
        result.largest,
    )


def _draw_ranked(ax: Axes, plan: _RankedPlan, style: Style) -> PathCollection:
    """Draw distances by rank with intervals, dropout noise and maximum; returns the dots."""
    greys, (strong, pale) = style.greys, _blues(style)
    x, y = np.arange(1, len(plan.heads) + 1), np.array([head.distance for head in plan.heads])
    highs = [head.interval[1] for head in plan.heads if head.interval]
    noise = [(at, head.noise) for at, head in zip(x, plan.heads, strict=True) if head.noise is not None]
    top = _ROOM * max([*y, *highs, *(value for _, value in noise)]) or plan.largest
    ends = [(at, *head.interval) for at, head in zip(x, plan.heads, strict=True) if head.interval]
    if ends:
        ranks, low, high = zip(*ends, strict=True)
        ax.vlines(ranks, low, high, colors=greys.muted, lw=0.8, zorder=2)
    apart = _inches_between(ax, plan.heads)
    size = float(np.clip(0.85 * apart * 72, 1.5, 5.1)) ** 2  # so that dots of neighbours do not overlap
    if noise:
        ranks, values = zip(*noise, strict=True)
        ax.scatter(ranks, values, s=size, marker="_", color=_NOISE, lw=1, zorder=3)
    colours = [strong if head.changed else pale for head in plan.heads]
    dots = ax.scatter(x, y, s=size, c=colours, edgecolors=greys.paper, lw=0.3, zorder=4)
    ax.set(xlim=(1 - max(1, _ID_INCHES / apart * 0.75), len(x) + 1), ylim=(0, top), facecolor=greys.paper)
    _name_largest(ax, plan.largest, top, style)
    _name_changed(ax, plan.heads, style)
    least = _RANK_INCHES / apart
    every = next((step for step in (1, 5, 10) if step >= least), 10 * math.ceil(least / 10))
    ticks = [1, *range(max(every, 2), len(x) + 1, every)]
    ax.set_xticks(ticks, [str(plan.heads[at - 1].rank) for at in ticks])
    ax.set_xlabel("heads by rank", fontsize=8, color=outer_ink(style, "axes.labelcolor"))
    ax.set_ylabel("mean distance (root nats)", fontsize=8, color=outer_ink(style, "axes.labelcolor"))
    ax.grid(visible=False, axis="x")
    dress_chart(ax, style, "y", ("left", "bottom"))
    return dots


def _inches_between(ax: Axes, heads: Sequence[HeadChange]) -> float:
    """Rough distance of two heads side by side."""
    page = ax.get_figure(root=True)
    assert page is not None
    return float(_AXES_SHARE * page.get_figwidth() / (len(heads) + 1))


def _name_changed(ax: Axes, heads: Sequence[HeadChange], style: Style) -> None:
    """Write the ids of changed heads that fit side by side, the most different first, above all marks there."""
    apart, last = _ID_INCHES / _inches_between(ax, heads), -math.inf
    halo = withStroke(linewidth=2, foreground=style.greys.paper)  # where the line of the largest possible crosses
    highest = [max(head.distance, head.noise or 0.0, *(head.interval or ())) for head in heads]
    beside = math.ceil(apart / 2)
    for at, head in enumerate(heads, start=1):
        if head.changed and at - last >= apart:
            last = at
            own, top = highest[at - 1], max(highest[max(0, at - 1 - beside) : at + beside])
            ax.vlines(at, own, top, colors=style.greys.muted, lw=0.5, linestyles="dotted", zorder=1)
            ax.annotate(str(head.id), (at, top), xytext=(0, 4), textcoords="offset points", rotation=90, ha="center",
                        va="bottom", fontsize=6, color=style.greys.ink, zorder=5, path_effects=[halo])  # fmt: skip


def _name_largest(ax: Axes, largest: float, top: float, style: Style) -> None:
    """Draw the largest possible distance as a line unless it lies above the Axes, and name it above them."""
    if largest <= top:
        ax.axhline(largest, color=style.greys.ink, lw=0.8, ls=(0, (4, 3)), zorder=1)
    ax.annotate(f"largest possible {largest:.2f} {'(dashed)' if largest <= top else '↑'}", (1, 1), ha="right",
                xycoords="axes fraction", xytext=(0, 3), textcoords="offset points", fontsize=7,
                color=style.greys.ink)  # fmt: skip


def _handles(plan: _RankedPlan, style: Style) -> Sequence[Artist]:
    strong, pale = _blues(style)
    dot: dict[str, Any] = {"marker": "o", "ls": "", "mec": style.greys.paper, "mew": 0.3, "ms": 5}
    changed, handles = {head.changed for head in plan.heads}, list[Artist]()
    if True in changed:
        handles.append(Line2D([], [], **dot, mfc=strong, label="head that changed"))
    if False in changed:
        handles.append(Line2D([], [], **dot, mfc=pale, label="other head" if handles else "head"))
    if any(head.interval for head in plan.heads):
        handles.append(Line2D([], [], color=style.greys.muted, lw=0.8, label="interval"))
    if any(head.noise is not None for head in plan.heads):
        handles.append(Line2D([], [], marker="_", ls="", color=_NOISE, ms=6, label="A twice, with dropout"))
    return handles


def _ranked_figure(plan: _RankedPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    handles, width = _handles(plan, style), page_width(style, 5.6)
    with figure_style():
        page = new_page(plan.title, plan.notes, style, width=width, body=2.7 + legend_height(handles, width))
        _draw_ranked(page.subplots(), plan, style)
        add_legend(page, handles, style)
        return page


def _blues(style: Style) -> tuple[str, str]:
    """Colours of changed heads (strong) and of others (pale)."""
    return to_hex(style.colour_map()(0.75)), to_hex(style.colour_map()(0.4))


DISTANCES = Drawing(_plan_ranked, _ranked_figure, _draw_ranked)
