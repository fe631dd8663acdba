"""The figure of a comparison over a corpus: heads ranked by mean distance, with intervals and the maximum."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from attnviz.commands.compare.corpus.measure import CorpusComparison, HeadChange
from attnviz.commands.compare.corpus.report import headline
from attnviz.commands.compare.roles.views import ROLES  # noqa: F401 - a view of this form, too
from attnviz.commands.compare.wording import side_lines, sides_in_words
from attnviz.figures.page import PagePlan, chart_page, dress_chart
from attnviz.figures.style import Style, text_colour
from attnviz.measures.intervals import ERROR_RATE
from attnviz.present.figure_context import caption_of
from attnviz.present.view import Drawing, ViewOptions

_HEADROOM = 1.3  # height of the Axes as a multiple of the largest distance, so that names have room above it
_ID_INCHES, _RANK_INCHES = 0.11, 0.2  # least distances of ids and of ranks
_AXES_SHARE = 0.85  # rough share of the Axes in the figure's width


@dataclass(frozen=True)
class _RankedPlan(PagePlan):
    heads: tuple[HeadChange, ...]  # the most different first
    largest: float  # possible distance


def _plan_ranked(result: CorpusComparison, choices: ViewOptions) -> Iterator[_RankedPlan]:
    intervals = "too few texts for intervals"
    if result.judged:
        intervals = f"lines: intervals at {ERROR_RATE} over all heads together; none where not known"
    said = headline(result)
    yield _RankedPlan(
        stem="compare-corpus-distances",
        caption=caption_of(
            "Mean Jensen-Shannon distance (root nats) between the attention of each head in A and in B, the most "
            f"different head first, {sides_in_words(result)}",
            intervals,
            f"the largest possible distance is {result.largest:.2f}",
            said,
            "heads are named where their names have room",
        ),
        title=said,
        notes=(*side_lines(result), f"The most different head first; {intervals}."),
        heads=tuple(result.select(choices.select)),
        largest=result.largest,
    )


def _draw_ranked(ax: Axes, plan: _RankedPlan, style: Style) -> PathCollection:
    heads = plan.heads
    x = np.arange(1, len(heads) + 1)
    y = np.array([head.distance for head in heads])
    ends = np.array([head.interval or (head.distance, head.distance) for head in heads])  # [n_heads, 2]
    ax.vlines(x, ends[:, 0], ends[:, 1], colors=style.muted, lw=0.8, zorder=2)
    page = ax.get_figure(root=True)
    assert page is not None
    apart = float(_AXES_SHARE * page.get_figwidth() / (len(heads) + 1))  # inches of two heads side by side, roughly
    size = float(np.clip(0.85 * apart * 72, 1.5, 5.1)) ** 2  # so that dots of neighbours do not overlap
    colour = to_hex(style.colour_map()(0.75))
    dots = ax.scatter(x, y, s=size, color=colour, edgecolors=style.paper, lw=0.3, zorder=4)
    top = _HEADROOM * float(ends.max()) or plan.largest
    ax.set(xlim=(1 - max(1, _ID_INCHES / apart * 0.75), len(x) + 1), ylim=(0, top), facecolor=style.paper)
    note: dict[str, Any] = {"textcoords": "offset points", "color": style.ink}
    where = "↑"
    if plan.largest <= top:
        ax.axhline(plan.largest, color=style.ink, lw=0.8, ls=(0, (4, 3)), zorder=1)
        where = "(dashed)"
    largest = f"largest possible {plan.largest:.2f} {where}"
    ax.annotate(largest, (1, 1), xytext=(0, 3), xycoords="axes fraction", ha="right", fontsize=7, **note)
    place: dict[str, Any] = {"xytext": (0, 4), "rotation": 90, "ha": "center", "va": "bottom", "zorder": 5}
    halo = withStroke(linewidth=2, foreground=style.paper)  # where the line of the largest possible crosses
    last = -math.inf
    room = _ID_INCHES / apart
    for rank, head in enumerate(heads, start=1):  # ids of heads that moved and fit side by side, above their marks
        if head.distance and rank - last >= room:
            last = rank
            neighbours = math.ceil(room / 2)
            highest = float(ends[max(0, rank - 1 - neighbours) : rank + neighbours, 1].max())
            ax.annotate(str(head.id), (rank, highest), fontsize=6, path_effects=[halo], **place, **note)
    least = _RANK_INCHES / apart
    every = next((step for step in (1, 5, 10) if step >= least), 10 * math.ceil(least / 10))
    ticks = [1, *range(max(every, 2), len(x) + 1, every)]
    ax.set_xticks(ticks, [str(heads[tick - 1].rank) for tick in ticks])
    ink = text_colour(style, "axes.labelcolor")
    ax.set_xlabel("heads by rank", fontsize=8, color=ink)
    ax.set_ylabel("mean distance (root nats)", fontsize=8, color=ink)
    ax.grid(visible=False, axis="x")
    dress_chart(ax, style, "y", ("left", "bottom"))
    return dots


def _ranked_figure(plan: _RankedPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    return chart_page(plan, style, _draw_ranked, width=5.6, body=2.7)


DISTANCES = Drawing(_plan_ranked, _ranked_figure, _draw_ranked)
