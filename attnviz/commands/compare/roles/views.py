"""The figure of the best heads of two models: their scores side by side, a row for each role."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attnviz.commands.compare.corpus.measure import RoleComparison
from attnviz.commands.compare.roles.report import CHOSEN_HERE, headline, with_intervals
from attnviz.commands.compare.wording import sides_in_words
from attnviz.figures.fonts import fitted
from attnviz.figures.lines import HEAD_COLOURS
from attnviz.figures.page import PagePlan, chart_page, dress_scores
from attnviz.figures.style import Style
from attnviz.judge.roles import BestHeads
from attnviz.present.figure_context import caption_of
from attnviz.present.published import role_name
from attnviz.present.tables import listed_of
from attnviz.present.view import Drawing, ViewOptions

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
            headline(result),
            f"{listed}; below each role the best head of A and of B, and n",
            CHOSEN_HERE,
        ),
        title=headline(result),
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
