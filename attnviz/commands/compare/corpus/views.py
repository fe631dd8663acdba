"""The figures over a corpus: heads by their mean distance, and the best heads of both models, a row for each role."""

import math
from collections.abc import Iterator
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

from attnviz.commands.compare.corpus.measure import CorpusComparison, HeadChange, RoleComparison
from attnviz.commands.compare.corpus.report import CHOSEN_HERE, headline, role_headline, with_intervals
from attnviz.commands.compare.report import side_lines, sides_in_words
from attnviz.figures.fonts import fitted
from attnviz.figures.lines import HEAD_COLOURS
from attnviz.figures.page import PagePlan, chart_page, dress_chart, dress_scores
from attnviz.figures.style import Style, text_colour
from attnviz.judge.roles import BestHeads
from attnviz.measures.intervals import ERROR_RATE
from attnviz.present.figure_context import caption_of
from attnviz.present.published import role_name
from attnviz.present.tables import listed_of
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


DISTANCES = Drawing(
    _plan_ranked, lambda plan, style, _: chart_page(plan, style, _draw_ranked, width=5.6, body=2.7), _draw_ranked
)


_ROW = 0.3  # height in inches
_APART = 0.16  # half the distance of A and B, in rows


@dataclass(frozen=True)
class _RolesPlan(PagePlan):
    rows: tuple[BestHeads, ...]  # the largest difference first
    models: tuple[str, str]


def _plan_roles(result: RoleComparison, choices: ViewOptions) -> Iterator[_RolesPlan]:
    known = with_intervals(result)
    rows = tuple(known[: choices.top or None])
    listed = f"{listed_of(len(rows), len(known))} roles with an interval, the largest difference first"
    yield _RolesPlan(
        stem="compare-roles",
        caption=caption_of(
            f"The best head of each model by role, {sides_in_words(result)}",
            role_headline(result),
            f"{listed}; below each role the best head of A and of B, and n",
            CHOSEN_HERE,
        ),
        title=role_headline(result),
        notes=(f"{result.source}; {listed}.",),
        rows=rows,
        models=result.side_names,
    )


def _draw_roles(ax: Axes, plan: _RolesPlan, style: Style) -> PathCollection:
    ink, y = style.ink, np.arange(len(plan.rows))
    for side, colour, shift in zip("ab", HEAD_COLOURS[style.theme], (-_APART, _APART), strict=False):
        roles = [getattr(row, side) for row in plan.rows]
        lows, highs = zip(*(role.interval for role in roles), strict=True)
        ax.hlines(y + shift, lows, highs, colors=colour, lw=1.2)
        ax.vlines([role.baseline for role in roles], y + shift - _APART, y + shift + _APART, colors=ink, lw=0.8)
        dots = ax.scatter([role.score for role in roles], y + shift, s=20, color=colour, clip_on=False, zorder=5)
    names = [
        f"{fitted(role_name(row.role, None), 7, 130)}\n{row.a.id}, {row.b.id}, n = {min(row.a.n, row.b.n):,}"
        for row in plan.rows
    ]
    dress_scores(ax, style, names, "score")
    return dots


def _roles_figure(plan: _RolesPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    look: dict[str, Any] = {"marker": "o", "ms": 4.5, "lw": 1.2}
    handles: list[Artist] = [
        Line2D([], [], color=colour, label=f"{side}: {model}", **look)
        for side, model, colour in zip("AB", plan.models, HEAD_COLOURS[style.theme], strict=False)
    ]
    handles.append(Line2D([], [], color=style.ink, marker="|", ls="", label="its guess"))
    return chart_page(plan, style, _draw_roles, width=5.6, body=_ROW * len(plan.rows) + 0.6, handles=handles)


ROLES = Drawing(
    _plan_roles,
    _roles_figure,
    _draw_roles,
    missing=lambda result: "" if with_intervals(result) else "these texts are too few for an interval",
)
