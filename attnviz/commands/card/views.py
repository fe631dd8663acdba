"""The figure of a card: the head in words, its pattern, its roles, and where it stands among the other heads."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attnviz.commands.card.measure import Card
from attnviz.commands.card.wording import Standing, not_measured, sentences, standings
from attnviz.commands.heads.relations import without_relations
from attnviz.commands.heads.views import HEADS
from attnviz.figures.fonts import fitted, text_width
from attnviz.figures.heatmap import HeatmapPlan, draw_heatmap
from attnviz.figures.matrix import label_pixels, label_size
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, add_legend, dress_chart, legend_height, new_page, page_width
from attnviz.figures.style import DPI, Style, figure_style
from attnviz.models.wording import visible
from attnviz.present.figure_context import sentence
from attnviz.present.published import role_name, shown_baseline
from attnviz.present.view import Drawing, ViewOptions
from attnviz.profiles.store import StoredRole

_ROLES = 6
"""Roles drawn, the clearest first."""

_WIDTH, _SIDE, _ROLE, _STRIP, _TITLED = 5.2, 4.6, 0.17, 0.42, 0.5
"""Inches: natural width, largest side of the pattern, height of a role and of a strip, and what a chart takes more."""

_TEXT = 7.0
_OWN = {"light": "#0072B2", "dark": "#56B4E9"}
_NAMES = 0.34
"""Most of the width that names of roles take."""


@dataclass(frozen=True)
class CardPlan(PagePlan):
    """The parts of a card."""

    pattern: HeatmapPlan
    roles: tuple[StoredRole, ...]
    standings: tuple[Standing, ...]


def _plan_card(card: Card, choices: ViewOptions) -> Iterator[CardPlan]:
    """Plan the page."""
    roles, of = card.roles, card.part.figure_context
    outlined = bool(roles) and roles[0].relation is not None and not without_relations(card.part)
    wanted = replace(choices, select=(str(card.head),), relations=outlined)
    pattern: HeatmapPlan = next(iter(HEADS.plans(card.analysis, wanted)))
    pairs = "Outlined: pairs of its relation, dashed where it misses them." if pattern.outlines else ""
    colours = (
        "Colours: attention weight, 0 to 1."
        if choices.style.scaled_for(card.analysis.longest).scale == "shared"
        else f"Colours: {pattern.bar}."
    )
    words = " ".join(sentences(card))
    title = f"{card.head} of {visible(card.checkpoint.short_name)}"
    yield CardPlan(
        stem="card",
        caption=sentence(title, words, f"pattern: {of.text_line}", colours, pairs, not_measured(card)),
        title=title,
        notes=(words, f"Pattern: {of.text_line}. {colours} {pairs}".strip(), not_measured(card)),
        pattern=replace(pattern, title="", evidence=""),
        roles=roles[:_ROLES],
        standings=tuple(standings(card)),
    )


def _card_figure(plan: CardPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """A new figure: pattern, roles, strips, from top to bottom."""
    width = page_width(style, _WIDTH)
    rows, columns = plan.pattern.values.shape
    beside = label_pixels(plan.pattern.labels.texts, label_size(100)) / DPI + 0.5
    side = min(_SIDE, width - beside - 2 * MARGIN)
    handles = _handles(style) if plan.roles else []
    heights = [max(0.8, min(1.6, rows / columns) * side) + beside]
    heights += [_TITLED + _ROLE * len(plan.roles)] * bool(plan.roles) + [_STRIP] * len(plan.standings)
    with figure_style():
        below = legend_height(handles, width) if handles else 0.0
        page = new_page(plan.title, plan.notes, style, width=width, body=sum(heights) + below)
        grid = page.add_gridspec(len(heights), 1, height_ratios=heights)
        axes = [page.add_subplot(grid[at]) for at in range(len(heights))]
        if plan.roles:
            _draw_roles(axes[1], plan.roles, style, width)
            add_legend(page, handles, style)
        for ax, each in zip(axes[len(axes) - len(plan.standings) :], plan.standings, strict=True):
            _draw_strip(ax, each, style, side)
        draw_heatmap(axes[0], plan.pattern, style)
        axes[0].clear()  # its labels are chosen for the size that the Axes have, which is known only now
        draw_heatmap(axes[0], plan.pattern, style)
        return page


def _handles(style: Style) -> list[Any]:
    line: dict[str, Any] = {"lw": 0, "color": style.greys.muted}
    return [
        Line2D([], [], color=_OWN[style.theme], marker="o", ms=4, lw=1.2, label="score over the corpus, interval"),
        Line2D([], [], **line, marker="|", ms=7, mew=1.4, label="baseline"),
        Line2D([], [], **line, marker="x", ms=4, label="best untrained head"),
    ]


def _draw_roles(ax: Axes, roles: tuple[StoredRole, ...], style: Style, width: float) -> None:
    """A row a role: score with its interval, baseline, control."""
    own, muted = _OWN[style.theme], style.greys.muted
    for row, role in enumerate(roles):
        ax.plot(role.interval, [row, row], color=own, lw=1.2)
        ax.plot(role.score, row, "o", color=own, ms=4)
        if (baseline := shown_baseline(role.baseline)) is not None:
            ax.plot(baseline, row, "|", color=muted, ms=7, mew=1.4)
        if role.untrained is not None:
            ax.plot(role.untrained, row, "x", color=muted, ms=4)
    names = [fitted(role_name(role.role, role.direction), _TEXT, DPI, _NAMES * width * DPI) for role in roles]
    least = min(0.0, *(min(role.interval[0], role.baseline) for role in roles))
    ax.set(xlim=(least - 0.02, 1.02), ylim=(len(roles) - 0.5, -0.5), facecolor=style.greys.paper)
    dress_chart(ax, style, "both", ("bottom",))
    ax.set_yticks(range(len(roles)), names, fontsize=_TEXT, parse_math=False)


def _draw_strip(ax: Axes, standing: Standing, style: Style, width: float) -> None:
    """All heads as small marks on a line of a width in inches, this one as a dot."""
    values, own = standing.others, _OWN[style.theme]
    ax.plot(values, [0] * len(values), "|", color=style.greys.muted, ms=6, mew=PIXEL, alpha=0.8)
    ax.plot(standing.value, 0, "o", color=own, ms=5, clip_on=False)
    top = max(values) or 1.0
    ax.set(ylim=(-1, 1), xlim=(-0.02 * top, 1.02 * top), yticks=(), facecolor="none")
    dress_chart(ax, style, "y", ("bottom",))
    ax.locator_params(axis="x", nbins=max(2, math.floor(width)))
    forms = standing.shown, standing.shown.partition(" (")[0]
    title = fitted(forms[text_width(forms[0], _TEXT, DPI) > width * DPI], _TEXT, DPI, width * DPI)
    ax.set_title(title, loc="left", fontsize=_TEXT, color=style.greys.ink, pad=1)


CARD = Drawing(_plan_card, _card_figure)
