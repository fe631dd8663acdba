"""The figure of a card: the head in words, its pattern, roles, place among the other heads, hits and failures."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attnviz.commands.card.measure import Card
from attnviz.commands.card.page_view import page_data
from attnviz.commands.card.wording import RESTS, Standing, not_measured, paragraphs, standings
from attnviz.commands.heads.relations import without_relations
from attnviz.commands.heads.views import HEADS
from attnviz.commands.profile.examples_view import (
    STACKED_BELOW,
    Sentences,
    draw_sentences,
    sentence_handles,
    sentences_height,
)
from attnviz.commands.profile.show import NamedExample, named_examples
from attnviz.figures.fonts import fitted, text_width
from attnviz.figures.heatmap import HeatmapPlan, draw_heatmap
from attnviz.figures.matrix import label_pixels, label_size
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, add_legend, dress_chart, legend_height, new_page, page_width
from attnviz.figures.style import DPI, Style, figure_style
from attnviz.models.wording import visible
from attnviz.present.figure_context import sentence
from attnviz.present.published import role_name, shown_baseline
from attnviz.present.view import Drawing, ViewOptions, page_drawing
from attnviz.profiles.store import StoredRole

_ROLES = 6
"""Roles drawn, the clearest first."""

_WIDTH, _LEFT, _SIDE, _ROLE, _STRIP, _TITLED = 7.0, 0.52, 4.6, 0.17, 0.42, 0.5
"""Inches: natural width, largest side of the pattern, height of a role and of a strip, and what a chart takes more;
the second is the share of the width that the pattern has where charts stand beside it."""

_TEXT = 7.0
_OWN = {"light": "#0072B2", "dark": "#56B4E9"}
_NAMES = 0.34
"""Most of the width of the charts that names of roles take."""


@dataclass(frozen=True)
class CardPlan(PagePlan):
    """The parts of a card."""

    pattern: HeatmapPlan
    roles: tuple[StoredRole, ...]
    standings: tuple[Standing, ...]
    hits: tuple[NamedExample, ...]
    failures: tuple[NamedExample, ...]
    heading: str  # of the sentences


def plan_card(card: Card, choices: ViewOptions, stem: str = "card") -> CardPlan:
    """Plan the page of one head."""
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
    words = [f"{heading}: {text}" for heading, text in paragraphs(card).items() if heading != RESTS]
    title = f"{card.head} of {visible(card.checkpoint.short_name)}"
    shown = card.shown_examples
    named = [] if shown is None else named_examples(shown)
    return CardPlan(
        stem=stem,
        caption=sentence(title, *words, f"pattern: {of.text_line}", colours, pairs, not_measured(card)),
        title=title,
        notes=(*words, f"Pattern: {of.text_line}. {colours} {pairs}".strip(), not_measured(card)),
        pattern=replace(pattern, title="", evidence=""),
        roles=roles[:_ROLES],
        standings=tuple(standings(card)),
        hits=tuple(each for each in named if each.example.hit),
        failures=tuple(each for each in named if not each.example.hit),
        heading="" if shown is None else f"{role_name(shown.role, shown.direction)}: clearest hits and failures",
    )


def _card_figure(plan: CardPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """A new figure: the pattern, beside it or below it roles and strips; then hits and failures."""
    width = page_width(style, _WIDTH)
    charts = [_TITLED + _ROLE * len(plan.roles)] * bool(plan.roles) + [_STRIP] * len(plan.standings)
    apart = width >= STACKED_BELOW and bool(charts)
    room = width * _LEFT if apart else width
    rows, columns = plan.pattern.values.shape
    beside = label_pixels(plan.pattern.labels.texts, label_size(100)) / DPI + 0.5
    side = min(_SIDE, room - beside - 2 * MARGIN)
    heights = [max(0.8, min(1.6, rows / columns) * side) + beside, *charts]
    upper = max(heights[0], sum(charts)) if apart else sum(heights)
    handles = _handles(style) if plan.roles else []
    sentences = _sentences(plan, width)
    lower = sentences_height(sentences, width) + MARGIN if sentences else 0.0
    marks = sentence_handles(style) if sentences else []
    with figure_style():
        body = [upper + legend_height(handles, width), lower + legend_height(marks, width)]
        page = new_page(plan.title, plan.notes, style, width=width, body=sum(body[: 1 + bool(sentences)]), run_on=False)
        parts: Any = page.subfigures(1 + bool(sentences), 1, height_ratios=body[: 1 + bool(sentences)], squeeze=False)
        above = parts[0, 0]
        if apart:
            left, right = above.add_gridspec(1, 2, width_ratios=(_LEFT, 1 - _LEFT))
            below = [*charts, max(0.01, upper - sum(charts))]
            cells = [left, *right.subgridspec(len(below), 1, height_ratios=below)]
        else:
            cells = [*above.add_gridspec(len(heights), 1, height_ratios=heights)]
        axes = [above.add_subplot(cell) for cell in cells[: len(heights)]]
        wide = width * (1 - _LEFT) if apart else width
        if plan.roles:
            _draw_roles(axes[1], plan.roles, style, wide)
            add_legend(above, handles, style)
        for ax, each in zip(axes[len(axes) - len(plan.standings) :], plan.standings, strict=True):
            _draw_strip(ax, each, style, wide - 0.6 if apart else side)
        if sentences:
            draw_sentences(parts[1, 0].subplots(), sentences, width, style)
            add_legend(parts[1, 0], marks, style)
        draw_heatmap(axes[0], plan.pattern, style)
        axes[0].clear()  # its labels are chosen for the size that the Axes have, which is known only now
        draw_heatmap(axes[0], plan.pattern, style)
        return page


def _sentences(plan: CardPlan, width: float) -> list[Sentences]:
    """Hits and failures: in two columns side by side, else one below the other."""
    if not plan.heading:
        return []
    if width < STACKED_BELOW:
        return [(plan.heading, [*plan.hits, *plan.failures])]
    pairs = chain.from_iterable(zip_longest(plan.hits, plan.failures))
    return [(plan.heading, [each for each in pairs if each is not None])]


def _handles(style: Style) -> list[Any]:
    line: dict[str, Any] = {"lw": 0, "color": style.greys.muted}
    return [
        Line2D([], [], color=_OWN[style.theme], marker="o", ms=4, lw=1.2, label="score, with its interval"),
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


def _plans(card: Card, choices: ViewOptions) -> Iterator[CardPlan]:
    yield plan_card(card, choices)


CARD = Drawing(_plans, _card_figure)
PAGE = page_drawing("card", page_data)
