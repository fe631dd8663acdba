"""A sentence pair under one head: the shares of its four blocks, and the heatmap with rules between the blocks.

For a pattern ``A`` over n positions, of which the segments A and B and the special tokens S hold a, b and s
(n = a + b + s):

    share(X to Y) = mean over q in X of sum over k in Y of A[q, k]        X in {A, B}, Y in {A, B, S}

Under uniform attention it is abs(Y) / n. The shares of one segment sum to 1: what A and B do not get goes
to the special tokens. As queries the special tokens are left out.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnviz.commands.heads.findings import Findings, HeadFindings
from attnviz.errors import UsageError
from attnviz.figures.colours import Array, outer_ink
from attnviz.figures.fonts import fitted, text_width
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI, max_pool, named_every, names_note
from attnviz.figures.look import FAINTEST, Look
from attnviz.figures.view_bars import bar_place, draw_colour_bar
from attnviz.figures.view_drawing import (
    MARGIN,
    PIXEL,
    Numbers,
    draw_cells,
    few_enough,
    label_size,
    name_positions,
    page_width,
    text_line,
    view_page,
)
from attnviz.model.tokens import visible
from attnviz.model.wording import counted, quoted

__all__ = [
    "PairHeatmapPlan",
    "PairSegments",
    "both_texts",
    "draw_pair_heatmap",
    "pair_heatmap_figure",
    "pair_segments",
    "percent",
    "plan_pair_heatmap",
]

_SQUARE, _LONGEST, _BESIDE, _LINES = 900, 110, 140, 84
_NARROW = 420


@dataclass(frozen=True)
class PairSegments:
    """Which positions belong to A, to B and to the special tokens.

    Attributes:
        members: the positions of each of the three, in order.
        n: positions.
    """

    members: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    n: int

    @property
    def uniform(self) -> Numbers:
        """Shares on A, B and the special tokens under uniform attention, [3]."""
        return np.array([len(group) / self.n for group in self.members])

    def shares(self, patterns: Array) -> Numbers:
        """From A and from B to A, B and the special tokens; each row sums to 1.

        Args:
            patterns: [.., n, n], rows sum to 1.

        Returns:
            [.., 2, 3].
        """
        onto = np.stack([patterns[..., list(group)].sum(-1, dtype=np.float64) for group in self.members], -1)
        return np.stack([onto[..., list(group), :].mean(-2) for group in self.members[:2]], -2)


def pair_segments(findings: Findings) -> PairSegments:
    """The segments of a sentence pair, over the units of the findings.

    Raises:
        UsageError: there was no pair, or nothing is left of one of the texts.
    """
    if findings.pair is None:
        raise UsageError("pair needs --pair: expected two texts, found one; give the second with --pair (pair=...).")
    units, segments = findings.units, findings.tokens.segments
    groups: tuple[list[int], list[int], list[int]] = ([], [], [])
    for unit, members in enumerate(units.members):
        segment = segments[members[0]]
        groups[2 if segment is None else segment].append(unit)
    for name, group in zip(("first", "second"), groups, strict=False):
        if not group:
            raise UsageError(f"pair needs two texts: no {units.name} is left of the {name} one after tokenization.")
    return PairSegments((tuple(groups[0]), tuple(groups[1]), tuple(groups[2])), len(units))


def both_texts(findings: Findings) -> str:
    """Both texts of a pair, quoted and named A and B, with the number of tokens or words, as part of a sentence."""
    a, b = (quoted(text) for text in (findings.text, findings.pair or ""))
    return f"text A, {a}, and text B, {b} ({counted(len(findings.units), findings.units.name)} in all)"


def percent(share: float) -> str:
    """A share in whole percent."""
    return f"{100 * share:.0f}"


@dataclass(frozen=True)
class PairHeatmapPlan:
    """One head's pattern over a sentence pair, ready to draw.

    Attributes:
        values: [m, m], rows attend to columns; pooled where n was too large to draw.
        labels: [n], drawable texts of the positions.
        quiet: [n], labels to draw in grey.
        spans: of A and of B: first position and the one after the last.
        shares: [2, 3], see :class:`PairSegments`.
        uniform: [3], the same under uniform attention.
        head: id and label.
        model: short name, safe to show.
        text: both texts, quoted, with the number of tokens or words.
        texts: the same as part of a sentence.
        unit: ``token`` or ``word``.
        largest: weight of the head, 0-1.
        cell: pixels a cell.
        pooled: how many rows and columns one cell stands for.
        beside: whether there is room for the shares beside the rows.
    """

    values: Array
    labels: tuple[str, ...]
    quiet: tuple[bool, ...]
    spans: tuple[tuple[int, int], tuple[int, int]]
    shares: Numbers
    uniform: Numbers
    head: str
    model: str
    text: str
    texts: str
    unit: str
    largest: float
    cell: int
    pooled: int
    beside: bool

    @property
    def size(self) -> int:
        """Pixels of the square of cells."""
        return self.cell * len(self.values)

    @property
    def title(self) -> str:
        """Model, head and label."""
        return f"{self.model} {self.head}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Both texts, and how to read the shares."""
        notes = [
            f"A / B: {self.text}",
            f"Shares of a text’s attention on A, B and the special tokens; {self._uniform}.",
        ]
        if not self.beside:
            notes.append("; ".join(self._from(segment) for segment in range(2)).replace("from", "From", 1) + ".")
        every = names_note(named_every((self.size + 2) * PIXEL / len(self.values), self.pooled), self.unit)
        if every:
            notes.append(every)
        if self.pooled > 1:
            notes.append(f"Each cell is the largest of {self.pooled} × {self.pooled} weights (for drawing only).")
        return tuple(notes)

    def caption(self, look: Look) -> str:
        """One sentence: model, texts, head, shares beside uniform attention, scale, pooling if any."""
        shown = f"attention weights of {self.head}"
        shares = "; ".join(self._from(segment) for segment in range(2))
        scale = {
            "shared": "colours from 0 to 1",
            "per-head": f"colours from 0 to the head’s largest weight, {self.largest:.2f}",
            "log": f"logarithmic colours from {FAINTEST:g} to 1",
        }[look.scale]
        pooled = f"; each cell is the largest of {self.pooled} × {self.pooled} weights" if self.pooled > 1 else ""
        return f"{self.model} on {self.texts}: {shown}; {shares} ({self._uniform}); {scale}{pooled}."

    def lines(self, segment: int) -> str:
        """The shares of one segment as they stand beside its rows."""
        targets = zip(("A", "B", "special"), self.shares[segment], strict=True)
        return "\n".join([f"from {'AB'[segment]}", *(f"→ {name} {percent(share)} %" for name, share in targets)])

    @property
    def _uniform(self) -> str:
        a, b, special = (percent(share) for share in self.uniform)
        return f"uniform attention: {a} % on A, {b} % on B, {special} % on special tokens"

    def _from(self, segment: int) -> str:
        a, b, special = (percent(share) for share in self.shares[segment])
        return f"from {'AB'[segment]} {a} % to A, {b} % to B, {special} % to special tokens"


def plan_pair_heatmap(
    findings: Findings, head: HeadFindings, pattern: Array, segments: PairSegments, look: Look
) -> PairHeatmapPlan:
    """Plan the heatmap of one head over a sentence pair.

    Args:
        findings: of the pair.
        head: id and label.
        pattern: [n, n], of that head.
        segments: from :func:`pair_segments`.
        look: its width decides the size of the cells.
    """
    units = findings.units
    labels = tuple(fitted(label, label_size(0), DPI, _LONGEST) for label in units.labels)
    cell, pooled, beside = _grid(labels, look)
    a, b = ((group[0], group[-1] + 1) for group in segments.members[:2])
    return PairHeatmapPlan(
        values=max_pool(pattern, pooled),
        labels=labels,
        quiet=units.sink,
        spans=(a, b),
        shares=segments.shares(pattern),
        uniform=segments.uniform,
        head=f"{head.id} ({visible(head.label)})",
        model=visible(findings.checkpoint.short_name),
        text=text_line(findings),
        texts=both_texts(findings),
        unit=units.name,
        largest=float(pattern.max()),
        cell=cell,
        pooled=pooled,
        beside=beside,
    )


def draw_pair_heatmap(ax: Axes, plan: PairHeatmapPlan, look: Look) -> AxesImage | QuadMesh:
    """Draw the pattern on the caller's Axes, with rules around the blocks and the shares beside their rows.

    Args:
        ax: any matplotlib Axes, with room to the right for the shares; only these are changed.
        plan: from :func:`plan_pair_heatmap`.
        look: theme and scale.

    Returns:
        the image or mesh that carries the cells.
    """
    cells = draw_cells(ax, plan.values, look.norm(plan.largest), look, mesh=few_enough(plan.values.size))
    name_positions(ax, plan.labels, plan.quiet, look, pooled=plan.pooled)
    rule: dict[str, Any] = {"color": look.greys.ink, "lw": 0.6, "alpha": 0.7}
    for edge in sorted({edge for span in plan.spans for edge in span}):
        ax.axhline(edge / plan.pooled - 0.5, **rule)
        ax.axvline(edge / plan.pooled - 0.5, **rule)
    style: dict[str, Any] = {"fontsize": 7.5, "color": outer_ink(look), "parse_math": False}
    height = ax.get_window_extent().height * DPI / ax.figure.dpi
    middles = [1 - sum(span) / 2 / len(plan.labels) for span in plan.spans]
    apart = max(0.0, _LINES / height - (middles[0] - middles[1])) / 2
    for segment, (middle, away, side) in enumerate(zip(middles, (apart, -apart), "AB", strict=True)):
        place = sum(plan.spans[segment]) / 2 / len(plan.labels)
        at: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
        ax.annotate(side, (place, 1), xytext=(0, 3), ha="center", weight="bold", **at, **style)
        if plan.beside:
            ax.annotate(plan.lines(segment), (1, middle + away), xytext=(5, 0), va="center", **at, **style)
    return cells


def pair_heatmap_figure(plan: PairHeatmapPlan, look: Look) -> Figure:
    """A new figure with one head's heatmap over a pair, colour bar, title and notes."""
    room = _label_room(plan.labels, plan.cell)
    left, above = MARGIN + room + 8, 24
    width = page_width(look, left + plan.size + 2 + _BESIDE + MARGIN)
    body = above + plan.size + 2 + room + 12
    scale = {"shared": "shared scale", "per-head": "scale of this head", "log": "log scale"}[look.scale]
    name = f"attention weight ({scale})"
    bar_left, length, height = bar_place(name, width, left)
    with figure_style():
        page = view_page(plan.title, plan.notes, width, body + height, look)
        draw_pair_heatmap(page.axes(left, above, plan.size + 2, plan.size + 2), plan, look)
        draw_colour_bar(page.axes(bar_left, body + 24, length, 12), look.norm(plan.largest), name, look)
        return page.figure


def _grid(labels: tuple[str, ...], look: Look) -> tuple[int, int, bool]:
    """Pixels a cell, positions pooled into one, and whether the shares fit beside."""
    n = len(labels)
    if look.width is None:
        pooled = math.ceil(n / _SQUARE)
        return max(1, min(44, round(_SQUARE / math.ceil(n / pooled)))), pooled, True
    beside = page_width(look, 0) >= _NARROW
    room = page_width(look, 0) - 2 * MARGIN - 10 - _label_room(labels, 44) - _BESIDE * beside
    pooled = math.ceil(n / max(room, 1))
    return max(1, min(44, room // math.ceil(n / pooled))), pooled, beside


def _label_room(labels: tuple[str, ...], cell: int) -> int:
    return math.ceil(max(text_width(label, label_size(cell * PIXEL), DPI) for label in labels))
