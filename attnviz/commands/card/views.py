"""The figure of a card: the head in words, its pattern, roles, place among the other heads, hits and failures."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attnviz.commands.card.measure import Card
from attnviz.commands.card.page_view import of_pattern, page_data
from attnviz.commands.card.sentences_drawing import (
    STACKED_BELOW,
    Sentences,
    draw_sentences,
    sentence_handles,
    sentences_height,
)
from attnviz.commands.card.wording import RESTS, Standing, evidence_of, in_words, not_measured, paragraphs, standings
from attnviz.commands.heads.views import HEADS
from attnviz.commands.profile.show import NamedExample, named_examples, which_examples
from attnviz.figures.fonts import fitted, text_width
from attnviz.figures.heatmap import HeatmapPlan, draw_heatmap
from attnviz.figures.matrix import label_pixels, label_size
from attnviz.figures.page import (
    MARGIN,
    PIXEL,
    PagePlan,
    add_legend,
    dress_chart,
    frozen,
    legend_height,
    new_page,
    page_width,
)
from attnviz.figures.style import DPI, Style, figure_style
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

    feet: tuple[str, ...]  # below the picture
    pattern: HeatmapPlan
    roles: tuple[StoredRole, ...]
    standings: tuple[Standing, ...]
    sentences: tuple[NamedExample, ...]  # hits, then failures
    heading: str  # of the sentences


def plan_card(card: Card, choices: ViewOptions, stem: str = "card") -> CardPlan:
    """Plan the page of one head."""
    roles, of = card.roles, card.part.figure_context
    pattern: HeatmapPlan = next(iter(HEADS.plans(card.analysis, of_pattern(card, choices))))
    missed = ", dashed where it misses them" * any(not outline.found for outline in pattern.outlines)
    shared = choices.style.scaled_for(card.analysis.longest).scale == "shared"
    shown = card.shown_examples
    hits = [each for each in card.examples[:1] if card.text in {hit.text for hit in each.best} - {*card.texts}]
    no_role = " a role that it does not pass," * (shown is None)
    which = (f"on a hit of {role_name(each.role, each.direction)},{no_role} " for each in hits)
    about_pattern = [
        f"Pattern: {''.join(which)}{of.text_line}.",
        "Colours: attention weight, 0 to 1; not written below .005." if shared else f"Colours: {pattern.bar}.",
        f"Outlined: pairs of its first role{missed}." * bool(pattern.outlines),
        f"Roles: the {_ROLES} clearest of {len(roles)}." * (len(roles) > _ROLES),
        "" if shown is None or shown.role != "broad" else which_examples([shown]),
    ]
    words = [f"{heading}: {text}" for heading, text in paragraphs(card).items() if heading != RESTS]
    does = f" {in_words(roles[0], briefly=True).rpartition(' (')[0]}" if roles else ""
    title = f"{card.head} of {card.checkpoint.short_name}{does}"
    feet = (" ".join(filter(None, about_pattern)), evidence_of(roles), not_measured(card))
    return CardPlan(
        stem=stem,
        caption=sentence(title, *words, *feet),
        title=title,
        notes=tuple(words),
        feet=feet,
        pattern=replace(pattern, title="", evidence=""),
        roles=roles[:_ROLES],
        standings=tuple(standings(card)),
        sentences=() if shown is None else tuple(named_examples(shown)),
        heading="" if shown is None else f"{role_name(shown.role, shown.direction)}: clearest hits and failures",
    )


def _card_figure(plan: CardPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """A new figure: the pattern, beside it or below it roles and strips; then hits and failures."""
    width = page_width(style, _WIDTH)
    heights = [_TITLED + _ROLE * len(plan.roles)] * bool(plan.roles) + [_STRIP] * len(plan.standings)
    apart = width >= STACKED_BELOW and bool(heights)
    rows, columns = plan.pattern.values.shape
    beside = label_pixels(plan.pattern.labels.texts, label_size(100)) / DPI + 0.5
    side = min(_SIDE, width * (_LEFT if apart else 1) - beside - 2 * MARGIN)
    across = width * (1 - _LEFT) if apart else width
    marks, legend = _handles(plan, style), sentence_handles(style)
    pattern = max(0.8, min(1.6, rows / columns) * side) + beside
    charts = sum(heights) + legend_height(marks, across) if heights else 0.0
    sentences = _sentences(plan, width)
    below = sentences_height(sentences, width) + legend_height(legend, width) + MARGIN if sentences else 0.0
    parts = [max(pattern, charts)] if apart else [pattern, *[charts] * bool(heights)]
    with figure_style():
        shown = [*parts, *[below] * bool(sentences)]
        page = new_page(plan.title, plan.notes, style, width=width, body=sum(shown), feet=plan.feet)
        strips: list[Any] = list(page.subfigures(len(shown), 1, height_ratios=shown, squeeze=False)[:, 0])
        if apart:
            strips[:1] = strips[0].subfigures(1, 2, width_ratios=(_LEFT, 1 - _LEFT))
        if heights:
            _draw_charts(strips[1], plan, heights, max(0.01, parts[0] - charts) if apart else 0.0, style, across)
            add_legend(strips[1], marks, style, across)
        if sentences:
            draw_sentences(strips[-1].subplots(), sentences, width, style)
            add_legend(strips[-1], legend, style)
        ax = strips[0].add_subplot()
        draw_heatmap(ax, plan.pattern, style)
        ax.clear()  # its labels are chosen for the size that the Axes have, which is known only now
        draw_heatmap(ax, plan.pattern, style)
        frozen(page)
        return page


def _draw_charts(part: Any, plan: CardPlan, heights: Sequence[float], free: float, style: Style, width: float) -> None:
    """Roles, and a strip for each statistic, from top to bottom; ``free`` inches stay below."""
    ratios = [*heights, *[free] * bool(free)]
    cells = part.add_gridspec(len(ratios), 1, height_ratios=ratios)
    axes = [part.add_subplot(cells[at]) for at in range(len(heights))]
    names = _draw_roles(axes[0], plan.roles, style, width) if plan.roles else 0.0
    for ax, each in zip(axes[bool(plan.roles) :], plan.standings, strict=True):
        _draw_strip(ax, each, style, width - names - 3 * MARGIN)


def _sentences(plan: CardPlan, width: float) -> list[Sentences]:
    """Hits and failures: in two columns side by side, else one below the other."""
    shown = list(plan.sentences)
    if width >= STACKED_BELOW:
        hits, failures = ([each for each in shown if each.example.hit is hit] for hit in (True, False))
        shown = [each for pair in zip_longest(hits, failures) for each in pair if each is not None]
    return [(plan.heading, shown)] if shown else []


def _handles(plan: CardPlan, style: Style) -> list[Any]:
    """Entries of the legend of the charts."""
    own, line = _OWN[style.theme], dict[str, Any](lw=0, color=style.greys.muted)
    label, width = ("this head, interval", 1.2) if plan.roles else ("this head", 0)
    dots: list[Any] = [Line2D([], [], color=own, marker="o", ms=4, lw=width, label=label)]
    if any(shown_baseline(role.baseline) is not None for role in plan.roles):
        dots.append(Line2D([], [], **line, marker="D", mfc="none", ms=4, label="baseline"))
    if any(role.untrained is not None for role in plan.roles):
        dots.append(Line2D([], [], **line, marker="x", ms=4, label="best untrained head"))
    return [*dots, *[Line2D([], [], **line, marker="|", ms=6, mew=PIXEL, label="other heads")] * bool(plan.standings)]


def _draw_roles(ax: Axes, roles: tuple[StoredRole, ...], style: Style, width: float) -> float:
    """A row a role: score with its interval, baseline, control; returns the inches that the names take."""
    own, muted = _OWN[style.theme], style.greys.muted
    for row, role in enumerate(roles):
        ax.plot(role.interval, [row, row], color=own, lw=1.2)
        ax.plot(role.score, row, "o", color=own, ms=4)
        if (baseline := shown_baseline(role.baseline)) is not None:
            ax.plot(baseline, row, "D", color=muted, mfc="none", ms=4)
        if role.untrained is not None:
            ax.plot(role.untrained, row, "x", color=muted, ms=4)
    names = [fitted(role_name(role.role, role.direction), _TEXT, DPI, _NAMES * width * DPI) for role in roles]
    least = min(0.0, *(min(role.interval[0], role.baseline) for role in roles))
    ax.set(xlim=(least - 0.02, 1.02), ylim=(len(roles) - 0.5, -0.5), facecolor=style.greys.paper)
    dress_chart(ax, style, "both", ("bottom",))
    ax.set_yticks(range(len(roles)), names, fontsize=_TEXT, parse_math=False)
    return max(text_width(name, _TEXT, DPI) for name in names) / DPI


def _draw_strip(ax: Axes, standing: Standing, style: Style, width: float) -> None:
    """All heads as small marks on a line of a width in inches, this one as a dot."""
    values, own = standing.others, _OWN[style.theme]
    ax.plot(values, [0] * len(values), "|", color=style.greys.muted, ms=6, mew=PIXEL, alpha=0.8)
    ax.plot(standing.value, 0, "o", color=own, ms=5, clip_on=False)
    top = max(values) or 1.0
    ax.set(ylim=(-1, 1), xlim=(-0.02 * top, 1.02 * top), yticks=(), facecolor="none")
    dress_chart(ax, style, "y", ("bottom",))
    ax.locator_params(axis="x", nbins=max(2, math.floor(width)))
    fits = [form for form in standing.forms if text_width(form, _TEXT, DPI) <= width * DPI]
    title = fitted([*fits, standing.forms[-1]][0], _TEXT, DPI, width * DPI)
    ax.set_title(title, loc="left", fontsize=_TEXT, color=style.greys.ink, pad=1)


def _plans(card: Card, choices: ViewOptions) -> Iterator[CardPlan]:
    yield plan_card(card, choices)


CARD = Drawing(_plans, _card_figure)
PAGE = page_drawing("card", page_data)
