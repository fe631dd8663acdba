"""The chart of a profile: relations beside their baselines."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attnviz.commands.profile.measure import Profile
from attnviz.figures.fonts import fitted, font_families, text_width
from attnviz.figures.page import PIXEL, PagePlan, add_legend, dress_chart, legend_height, new_page, page_width
from attnviz.figures.style import DPI, Style, figure_style, outer_ink
from attnviz.judge.roles import ERROR_RATE, Role
from attnviz.judge.rules import MARGIN as PASS_MARGIN
from attnviz.measures.relations import RelationCount
from attnviz.models.wording import counted, signed, visible
from attnviz.present.figure_context import sentence
from attnviz.present.view import ViewOptions

MOST_RELATIONS = 60
"""Most relations in one figure; the most frequent."""

_TWO_LINES_BELOW, _THREE_LINES_BELOW = 6.0, 3.0
"""Widths of a page in inches below which the texts beside a relation take two or three lines."""

_GAP = 12
_NEEDED = "#D55E00"


class _Row(NamedTuple):
    """A relation and its best head, with its largest baseline."""

    relation: RelationCount
    best: Role

    @property
    def baseline(self) -> str:
        """Name of the largest baseline; an offset by its number."""
        name = max(self.best.baselines, key=self.best.baselines.__getitem__)
        return f"{self.relation.offset:+d}".replace("-", "−") if name == "fixed offset" else name


@dataclass(frozen=True)
class _RelationsPlan(PagePlan):
    rows: tuple[_Row, ...]  # the largest gain above the baseline first


def plan_relations(profile: Profile, _: ViewOptions) -> Iterator[_RelationsPlan]:
    """Plan the best head of each judged relation, beside its largest baseline."""
    best: dict[str, Role] = {}
    for role in profile.roles:
        kind, name = role.role.partition(":")[::2]
        if kind == "syntactic":
            best[name] = max(best.get(name, role), role, key=attrgetter("score"))
    relations = [relation for relation in profile.relations or () if relation.relation in best][:MOST_RELATIONS]
    rows = [_Row(relation, best[relation.relation]) for relation in relations]
    notes = [
        f"Each relation's best head, chosen and scored on the same corpus ({profile.trees}), beside the largest of its "
        f"baselines. It passes {100 * PASS_MARGIN:.0f} points above that (after Voita et al. 2019), if the interval of "
        f"the difference, at {ERROR_RATE:g} over all heads together, is above 0, and above an untrained copy. +1: the "
        "head of the relation is the next word after the dependent; dep → head: the dependent attends to its head."
    ]
    left_out = len(profile.relations or ()) - len(rows)
    if left_out:
        notes.append(f"{counted(left_out, 'rarer relation')} left out.")
    title = f"{profile.checkpoint.short_name}: best head against its largest baseline, "
    title += f"{sum(row.best.passed for row in rows)} of {len(rows)} relations pass"
    instances = sum(each.n for each in relations if ":" not in each.relation)  # a subtype's count for its relation, too
    source = profile.source("syntactic", f"n = {instances:,} instances")
    rows.sort(key=lambda row: (-row.best.margin, row.relation.relation))
    caption = sentence(title, profile.trees, source)
    yield _RelationsPlan("relations", caption, title, (*notes, source), tuple(rows))


def draw_relations(ax: Axes, plan: _RelationsPlan, style: Style) -> PathCollection:
    """Draw accuracies by relation, with texts on both sides of the Axes; returns the dots of the best heads."""
    greys, (strong, pale) = style.greys, _blues(style)
    y, heads = np.arange(len(plan.rows)), [row.best for row in plan.rows]
    scores, baselines = ([head.score for head in heads], np.array([head.baseline for head in heads]))
    lows, highs = zip(*(head.interval for head in heads), strict=True)
    rules = [pale if head.passed else greys.frame for head in heads]
    ax.hlines(y, baselines, scores, colors=rules, lw=3, alpha=0.6, zorder=2)
    ax.hlines(y, lows, highs, colors=greys.ink, lw=0.6, zorder=3)
    ax.vlines(baselines + PASS_MARGIN, y - 0.4, y + 0.4, colors=_NEEDED, lw=1, zorder=4)
    shades = [strong if head.passed else pale for head in heads]
    dots = ax.scatter(scores, y, s=40, c=shades, edgecolors=greys.paper, lw=0.5, clip_on=False, zorder=5)
    ax.scatter(baselines, y, s=15, c=greys.paper, edgecolors=greys.ink, lw=0.8, clip_on=False, zorder=6)
    lines = _lines_beside(style)
    _write_beside(ax, plan.rows, style, lines)
    ax.set(xlim=(0, 1), ylim=(len(plan.rows) - 0.4, -0.6), facecolor=greys.paper)
    ax.set_xticks(np.linspace(0, 1, 6 if lines == 1 else 3))
    ax.set_yticks(range(len(plan.rows)), [])
    ax.set_xlabel("accuracy", fontsize=8, color=outer_ink(style, "axes.labelcolor"))
    dress_chart(ax, style, "both", ("bottom",))
    return dots


def _lines_beside(style: Style) -> int:
    """Lines of the texts beside a relation."""
    width = style.width or math.inf
    return 1 + (width < _TWO_LINES_BELOW) + (width < _THREE_LINES_BELOW)


def _write_beside(ax: Axes, rows: Sequence[_Row], style: Style, lines: int) -> None:
    """Write relation and n on the left, head, direction, baseline and gain on the right, in columns of some lines.

    In three lines the head is on the left.
    """
    arrows = [(row.best.direction or "").replace("_to_", " → ").replace("dependent", "dep") for row in rows]
    columns = [
        ("right", ["relation", *(fitted(visible(row.relation.relation), 7, DPI, 130) for row in rows)]),
        ("right", ["n", *(f"{row.relation.n:,}" for row in rows)]),
        ("left", ["head", *(str(row.best.id) for row in rows)]),
        ("left", ["direction", *arrows]),
        ("left", ["baseline", *(row.baseline for row in rows)]),
        ("right", ["gain", *(signed(row.best.margin) for row in rows)]),
    ]
    if lines > 1:
        stacks = [columns[first : first + lines] for first in range(0, len(columns), lines)]
        columns = [
            (stack[0][0], ["\n".join(texts) for texts in zip(*(texts for _, texts in stack), strict=True)])
            for stack in stacks
        ]
    n_left = 2 if lines == 1 else 1
    for edge, of_side in ((0, columns[:n_left][::-1]), (1, columns[n_left:])):
        pixels = _GAP / 2
        for side, texts in of_side:
            width = max(text_width(line, 7, DPI) for text in texts for line in text.split("\n"))
            _write_column(ax, texts, edge, pixels + width * (side == "right") if edge else -pixels, side, style)
            pixels += width + _GAP


def _write_column(ax: Axes, texts: list[str], edge: int, pixels: float, side: str, style: Style) -> None:
    """Write a heading, and a text beside each row, at a distance in pixels from an edge of the Axes."""
    properties: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "ha": side, "annotation_clip": False}
    properties |= {"parse_math": False, "linespacing": 1.05}
    ax.annotate(
        texts[0], (edge, 1), xycoords="axes fraction", xytext=(pixels * PIXEL, 5), va="baseline",
        color=style.greys.muted, **properties,
    )  # fmt: skip
    for y, text in enumerate(texts[1:]):
        ax.annotate(
            text, (edge, y), xycoords=("axes fraction", "data"), xytext=(pixels * PIXEL, 0), color=outer_ink(style),
            va="center" if "\n" in text else "center_baseline", family=font_families([text]), **properties,
        )  # fmt: skip


def relations_figure(plan: _RelationsPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """Draw accuracy and baseline by relation, with a legend."""
    greys, (strong, pale) = style.greys, _blues(style)
    dot: dict[str, Any] = {"marker": "o", "ls": "", "mec": greys.paper, "mew": 0.5, "ms": 6}
    handles: list[Artist] = [
        Line2D([], [], **dot | {"mec": greys.ink, "ms": 4}, mfc=greys.paper, label="largest baseline"),
        Line2D([], [], **dot, mfc=strong, label="best head, passes"),
        Line2D([], [], **dot, mfc=pale, label="best head, does not pass"),
        Line2D([], [], marker="|", ls="", mec=_NEEDED, ms=7, label=f"{100 * PASS_MARGIN:.0f} points above it"),
        Line2D([], [], color=greys.ink, lw=0.6, label="interval"),
    ]
    width = page_width(style, 7.6)
    row = 0.06 + 0.1 * _lines_beside(style)
    with figure_style():
        body = row * (len(plan.rows) + 2) + 0.7 + legend_height(handles, width)
        page = new_page(plan.title, plan.notes, style, width=width, body=body)
        draw_relations(page.subplots(), plan, style)
        add_legend(page, handles, style)
        return page


def _blues(style: Style) -> tuple[str, str]:
    """Colours of passed (strong) and failed (pale)."""
    return to_hex(style.colour_map()(0.75)), to_hex(style.colour_map()(0.4))
