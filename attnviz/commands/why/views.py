"""The figures of an account: sources of the query × sources of the key, and the chain of heads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from attnviz.commands.why.measure import Account
from attnviz.commands.why.report import REST, short_name
from attnviz.figures.fonts import fitted, font_families
from attnviz.figures.heatmap import HeatmapPlan, draw_heatmap, heatmap_figure
from attnviz.figures.matrix import Array, Labels
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, new_page, page_width
from attnviz.figures.style import DPI, Style, figure_style
from attnviz.models.head_ids import HeadId
from attnviz.models.wording import percent, rounded, signed
from attnviz.present.figure_context import sentence
from attnviz.present.view import Drawing, ViewOptions
from attnviz.trace.residual_parts import Source

_SIDE = 8
"""Sources of a side with a row or column of their own."""

_SHORT = "FF: feed-forward network; b: bias, b_O: that of attention."
"""What :func:`short_name` shortens."""

_COLUMN, _ROW, _HALF = 1.15, 0.62, 0.22
_EDGE = {"light": "#4292c6", "dark": "#4f9bd1"}


def _plan_sources(result: Account, choices: ViewOptions) -> Iterator[HeatmapPlan]:
    """Plan the matrix of the first key's difference."""
    key, of = result.keys[0], result.figure_context
    values, rows, columns = _largest(key.differences, result.scores.query_sources, result.scores.key_sources)
    end = float(np.abs(values).max()) or 1.0
    norm = Normalize(-end, end, clip=True)
    where = f"{result.label(result.query)} → {result.label(key.key)}"
    score = f"score {rounded(key.score)}, {signed(key.difference)} from the mean of {result.scores.n_keys} keys"
    beside = [f"{name} {signed(difference)}" for name, (_, difference) in key.extras.items()]
    yield HeatmapPlan(
        stem="why",
        caption=sentence(
            f"Why {result.label(result.query)} attends to {result.label(key.key)} in {result.head} of {of.subject}",
            f"parts of the difference of its score from the mean over the keys that it may attend to: {score}",
            "rows: parts of the query; columns: parts of the key; the largest first, the others together",
            *beside,
            f"colours from −{end:.3g} to {end:.3g}",
        ),
        title=f"{result.head}  {where}",
        evidence=score,
        notes=of.notes(_SHORT, *(f"Not drawn: {each}." for each in beside)),
        values=values,
        labels=Labels(rows, tuple(name == REST for name in rows)),
        keys=Labels(columns, tuple(name == REST for name in columns)),
        one_text=True,
        norm=norm,
        bar_norm=norm,
        bar="part of the difference of scores",
        colours=choices.style.diverging_map(),
        signed=True,
        forms=(_in_cell, lambda value: _in_cell(value).replace("0.", ".")),
    )


def _in_cell(value: float) -> str:
    """``+0.31``; '' for what rounds to zero."""
    return signed(value) if abs(value) >= 0.005 else ""


def _largest(
    differences: Tensor, rows: Sequence[Source], columns: Sequence[Source]
) -> tuple[Array, tuple[str, ...], tuple[str, ...]]:
    """The sources with the largest parts on each side, the others summed as one row and one column."""
    values, names = differences, []
    for sources in (rows, columns):
        order = values.abs().sum(1).argsort(descending=True, stable=True)
        shown = order if len(order) <= _SIDE + 1 else order[:_SIDE]
        rest = values[order[len(shown) :]].sum(0, keepdim=True)
        names.append((*(short_name(sources[at]) for at in shown.tolist()), *[REST] * (len(shown) < len(order))))
        values = torch.cat([values[shown], rest][: 1 + (len(shown) < len(order))]).T
    return values.double().numpy(), names[0], names[1]


@dataclass(frozen=True)
class Node:
    """A source: at a row and a column of its row, below a node of the row above."""

    name: str
    below: tuple[str, ...]  # the second line, and a shorter one; empty for none
    share: str  # on the edge to the node above; '' of the first
    head: bool
    followed: bool


@dataclass(frozen=True)
class ChainPlan(PagePlan):
    """Rows of nodes, from the explained head down; the first node of each row is the one that is followed."""

    rows: tuple[tuple[Node, ...], ...]


def _plan_chain(result: Account, _: ViewOptions) -> Iterator[ChainPlan]:
    """Plan the tree of the chain."""
    of, query, key = result.figure_context, result.query, result.keys[0].key
    rows: list[tuple[Node, ...]] = [(Node(str(result.head), _pair(result, query, key), "", head=True, followed=True),)]
    took = []
    for step in result.chain:
        below = () if step.key is None else _pair(result, step.position, step.key)
        if step.key is not None:
            took.append(f"{step.source} took {percent(step.key_share)} of its part from {result.label(step.key)}")
        nodes = [
            Node(short_name(source), below * on, percent(share), isinstance(source, HeadId), followed=on)
            for source, share in step.branches
            for on in [source == step.source]
        ]
        rows.append((*nodes, Node(REST, (), percent(step.rest), head=False, followed=False)))
    yield ChainPlan(
        stem="why-chain",
        caption=sentence(
            f"Where the score of {result.head} at {result.label(query)} → {result.label(key)} came "
            f"from, of {of.subject}",
            "on each edge the share of the score's difference from its mean over the keys",
            *took,
        ),
        title=f"{result.head}: where its score came from",
        notes=of.notes(f"{_SHORT} On each edge: share of the difference.", *(f"{each}." for each in took)),
        rows=tuple(rows),
    )  # fmt: skip


def _pair(result: Account, query: int, key: int) -> tuple[str, str]:
    labels = result.tokens.labels
    return f"{labels[query]} #{query} → {labels[key]} #{key}", f"#{query} → #{key}"


def _chain_figure(plan: ChainPlan, style: Style, _: bool = False) -> Figure:
    """A new figure with the tree."""
    width = page_width(style, _COLUMN * max(map(len, plan.rows)) + 2 * MARGIN)
    with figure_style():
        page = new_page(plan.title, plan.notes, style, width=width, body=_ROW * len(plan.rows))
        _draw_chain(page.add_subplot(), plan, style)
        return page


def _draw_chain(ax: Axes, plan: ChainPlan, style: Style) -> Axes:
    """Draw the tree on Axes."""
    columns = max(map(len, plan.rows))
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(len(plan.rows) - 0.5, -0.5), facecolor="none")
    ax.set_axis_off()
    inches = ax.get_window_extent().width / ax.figure.dpi if ax.figure else 1.0
    room = inches / columns * DPI
    greys = style.greys
    for down, row in enumerate(plan.rows):
        for at, node in enumerate(row):
            properties: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False, "zorder": 3}
            ink = greys.ink if node.head else greys.muted
            if node.share:
                edge = (_EDGE[style.theme], 1.8) if node.followed else (greys.frame, 2 * PIXEL)
                ax.plot([0, at], [down - 1 + _HALF, down - _HALF], color=edge[0], lw=edge[1], zorder=1)
                paper = {"facecolor": greys.paper, "edgecolor": "none", "pad": 0.8}
                middle = down - _HALF - 0.32 * (1 - 2 * _HALF)
                ax.text(0.68 * at, middle, node.share, size=6.5, color=greys.ink, bbox=paper, **properties)
            name = fitted(node.name, 7.5, DPI, room)
            ax.text(at, down - 0.08 * bool(node.below), name, size=7.5, color=ink, family=font_families([name]),
                    weight="bold" if node.followed else "normal", **properties)  # fmt: skip
            if node.below:
                wide = (1.4 if len(row) == 1 else 1.25) * room
                below = next((text for text in node.below if fitted(text, 6.0, DPI, wide) == text), node.below[-1])
                ax.text(at, down + 0.12, below, size=6.0, color=ink, family=font_families([below]), **properties)
    return ax


def _why_no_chain(result: Account) -> str:
    return "" if result.depth > 1 else "it shows the chain of heads, which --depth 2 (depth=2) follows"


SOURCES = Drawing(_plan_sources, heatmap_figure, draw_heatmap)
CHAIN = Drawing(_plan_chain, _chain_figure, _draw_chain, missing=_why_no_chain)
