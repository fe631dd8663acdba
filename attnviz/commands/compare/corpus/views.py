"""The figure of a comparison over a corpus: heads ranked by mean distance, with intervals and the maximum."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from attnviz.commands.compare.corpus.measure import CorpusComparison, HeadChange
from attnviz.commands.compare.corpus.report import headline
from attnviz.commands.compare.wording import side_lines, sides_in_words
from attnviz.figures.page import PagePlan, dress_chart, new_page, page_width
from attnviz.figures.style import Style, figure_style, text_colour
from attnviz.measures.intervals import ERROR_RATE
from attnviz.present.figure_context import caption_of
from attnviz.present.view import Drawing, ViewOptions

_HEADROOM = 1.3  # height of the Axes as a multiple of the largest distance, so that names have room above it
_ID_INCHES, _RANK_INCHES, _AXES_SHARE = 0.11, 0.2, 0.85
"""Least distances of ids and of ranks in inches, and rough share of the Axes in the figure's width."""


@dataclass(frozen=True)
class _RankedPlan(PagePlan):
    """Heads, the most different first, and the largest possible distance."""

    heads: tuple[HeadChange, ...]
    largest: float


def _plan_ranked(result: CorpusComparison, choices: ViewOptions) -> Iterator[_RankedPlan]:
    intervals = "too few texts for intervals"
    if result.judged:
        intervals = f"lines: intervals at {ERROR_RATE} over all heads together; none where not known"
    yield _RankedPlan(
        "compare-corpus-distances",
        caption_of(
            "Mean Jensen-Shannon distance (root nats) between the attention of each head in A and in B, the most "
            f"different head first, {sides_in_words(result)}",
            intervals,
            f"the largest possible distance is {result.largest:.2f}",
            headline(result),
            "heads are named where their names have room",
        ),
        headline(result),
        (*side_lines(result), f"The most different head first; {intervals}."),
        tuple(result.select(choices.select)),
        result.largest,
    )


def _draw_ranked(ax: Axes, plan: _RankedPlan, style: Style) -> PathCollection:
    """Draw distances by rank with intervals and maximum; returns the dots."""
    greys = style.greys
    x, y = np.arange(1, len(plan.heads) + 1), np.array([head.distance for head in plan.heads])
    ends = np.array([head.interval or (head.distance, head.distance) for head in plan.heads])  # [n_heads, 2]
    ax.vlines(x, ends[:, 0], ends[:, 1], colors=greys.muted, lw=0.8, zorder=2)
    apart = _inches_between(ax, plan.heads)
    size = float(np.clip(0.85 * apart * 72, 1.5, 5.1)) ** 2  # so that dots of neighbours do not overlap
    colour = to_hex(style.colour_map()(0.75))
    dots = ax.scatter(x, y, s=size, color=colour, edgecolors=greys.paper, lw=0.3, zorder=4)
    top = _HEADROOM * float(ends.max()) or plan.largest
    ax.set(xlim=(1 - max(1, _ID_INCHES / apart * 0.75), len(x) + 1), ylim=(0, top), facecolor=greys.paper)
    _name_largest(ax, plan.largest, top, style)
    _name_heads(ax, ends[:, 1].tolist(), plan.heads, style)
    least = _RANK_INCHES / apart
    every = next((step for step in (1, 5, 10) if step >= least), 10 * math.ceil(least / 10))
    ticks = [1, *range(max(every, 2), len(x) + 1, every)]
    ax.set_xticks(ticks, [str(plan.heads[at - 1].rank) for at in ticks])
    ax.set_xlabel("heads by rank", fontsize=8, color=text_colour(style, "axes.labelcolor"))
    ax.set_ylabel("mean distance (root nats)", fontsize=8, color=text_colour(style, "axes.labelcolor"))
    ax.grid(visible=False, axis="x")
    dress_chart(ax, style, "y", ("left", "bottom"))
    return dots


def _inches_between(ax: Axes, heads: Sequence[HeadChange]) -> float:
    """Rough distance of two heads side by side."""
    page = ax.get_figure(root=True)
    assert page is not None
    return float(_AXES_SHARE * page.get_figwidth() / (len(heads) + 1))


def _name_heads(ax: Axes, highest: Sequence[float], heads: Sequence[HeadChange], style: Style) -> None:
    """Write the ids of heads that moved and fit side by side, the most different first, above their marks."""
    apart, last = _ID_INCHES / _inches_between(ax, heads), -math.inf
    halo = withStroke(linewidth=2, foreground=style.greys.paper)  # where the line of the largest possible crosses
    neighbours = math.ceil(apart / 2)
    for at, head in enumerate(heads, start=1):
        if not head.distance or at - last < apart:
            continue
        last, top = at, max(highest[max(0, at - 1 - neighbours) : at + neighbours])
        ax.annotate(
            str(head.id),
            (at, top),
            xytext=(0, 4),
            textcoords="offset points",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=6,
            color=style.greys.ink,
            zorder=5,
            path_effects=[halo],
        )


def _name_largest(ax: Axes, largest: float, top: float, style: Style) -> None:
    """Draw the largest possible distance as a line unless it lies above the Axes, and name it above them."""
    if largest <= top:
        ax.axhline(largest, color=style.greys.ink, lw=0.8, ls=(0, (4, 3)), zorder=1)
    where = "(dashed)" if largest <= top else "↑"
    ax.annotate(
        f"largest possible {largest:.2f} {where}",
        (1, 1),
        ha="right",
        xycoords="axes fraction",
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=7,
        color=style.greys.ink,
    )


def _ranked_figure(plan: _RankedPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    with figure_style():
        page = new_page(plan.title, plan.notes, style, width=page_width(style, 5.6), body=2.7)
        _draw_ranked(page.subplots(), plan, style)
        return page


DISTANCES = Drawing(_plan_ranked, _ranked_figure, _draw_ranked)
