"""One head planned for drawing: its raw pattern beside its norm-weighted attention, and the norms between the two.

Sizes are in pixels at :data:`attnviz.figures.heatmaps.DPI`; :mod:`attnviz.commands.outputs.drawing` draws the plan.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attnviz.commands.outputs.contributions import HeadContribution, LayerContributions
from attnviz.commands.outputs.measure import WrittenOutputs
from attnviz.errors import UsageError
from attnviz.figures.colours import Array
from attnviz.figures.fonts import fitted, text_width
from attnviz.figures.heatmaps import DPI, max_pool
from attnviz.figures.look import Look
from attnviz.figures.view_drawing import MARGIN, PIXEL, label_size

__all__ = [
    "BETWEEN",
    "WeightedPlan",
    "check_scale",
    "percent",
    "plan_weighted",
    "signed",
    "weighted_arrays",
    "weighted_plans",
]

BETWEEN = 64
"""Pixels between two panels side by side: the numbers of the strip stand there."""

_PANEL, _LARGEST, _LONGEST = 640, 1024, 110
_SIDE_BY_SIDE = 5.0


@dataclass(frozen=True)
class WeightedPlan:
    """One head's raw and norm-weighted attention, ready to draw.

    Attributes:
        pattern: [m, m], raw weights; rows attend to columns; pooled where n was too large to draw.
        weighted: [m, m], ||A f(x)|| of the same cells.
        value_norms: [m], ||f(x)|| of the keys.
        labels: [n], drawable texts of the positions.
        quiet: [n], sinks, drawn in grey.
        pattern_top, weighted_top: the dark ends of the two colour scales.
        size: pixels of each square.
        stacked: whether the panels stand above each other.
        room: pixels that the widest label takes.
        pooled: how many rows and columns one cell stands for.
        title: model and head.
        notes: the text and how to read the picture.
        caption: one sentence.
    """

    pattern: Array
    weighted: Array
    value_norms: Array
    labels: tuple[str, ...]
    quiet: tuple[bool, ...]
    pattern_top: float
    weighted_top: float
    size: int
    stacked: bool
    room: int
    pooled: int
    title: str
    notes: tuple[str, ...]
    caption: str

    @property
    def quiet_cells(self) -> Array:
        """[m], 1 for cells that hold sinks only."""
        m = len(self.value_norms)
        groups = [self.quiet[cell * self.pooled : (cell + 1) * self.pooled] for cell in range(m)]
        return np.array([float(all(group)) for group in groups], np.float32)


def check_scale(look: Look) -> None:
    """Raise UsageError for a scale that norms are not drawn on."""
    if look.scale == "log":
        raise UsageError("norms are not drawn on a logarithmic scale: expected shared or per-head.")


def percent(share: float | None) -> str:
    """A share in whole percent, with a proper minus; a dash for what cannot be measured."""
    return "–" if share is None else f"{100 * share:.0f} %".replace("-0 %", "0 %").replace("-", "−")


def signed(value: float) -> str:
    """Logits with their sign, a proper minus; 0.00 without one."""
    text = f"{value:+.2f}"
    return text.replace("-", "−") if float(text) else text[1:]


def weighted_arrays(writing: LayerContributions, head: int) -> tuple[Array, Array, Array]:
    """Pattern [n, n], norm-weighted attention [n, n] and norms of the values [n], to draw."""
    pattern, weighted, norms = (
        values.float().cpu().numpy()
        for values in (writing.pattern[head], writing.norms(head), writing.value_norms(head))
    )
    return pattern, weighted, norms


def weighted_plans(found: WrittenOutputs, heads: Sequence[HeadContribution], look: Look) -> Iterator[WeightedPlan]:
    """The plan of each head in the order given; a layer's heads are recomputed once where they stand together.

    Raises:
        UsageError: the scale is logarithmic.
    """
    writing: LayerContributions | None = None
    for head in heads:
        if writing is None or writing.layer != head.id.layer:
            (writing,) = found.each_layer([head.id.layer])
        yield plan_weighted(found, head, weighted_arrays(writing, head.id.head), look)


def plan_weighted(
    found: WrittenOutputs, head: HeadContribution, arrays: tuple[Array, Array, Array], look: Look
) -> WeightedPlan:
    """Plan the picture of one head.

    Args:
        found: what the heads of the text write.
        head: its numbers.
        arrays: from :func:`weighted_arrays`.
        look: theme, width, and scale: the norm-weighted attention ends at the largest of all heads (``shared``), or of
            this one (``per-head``); the raw pattern at 1, or likewise at its largest weight.

    Raises:
        UsageError: the scale is logarithmic.
    """
    check_scale(look)
    pattern, weighted, norms = arrays
    labels = tuple(fitted(label, label_size(0), DPI, _LONGEST) for label in found.tokens.labels)
    size, pooled, stacked, room = _geometry(labels, look)
    own = look.scale == "per-head"
    tops = (float(pattern.max()), head.largest) if own else (1.0, found.largest)
    title = f"{found.title} {head.id}: attention by weight and by norm"
    reading = (
        "Rows attend to columns. f(x) = (x W_V + b_V) W_O is what the head writes of a token (Kobayashi et al. 2020)"
    )
    greyed = f"; grey: {found.sinks}." if found.sinks else "."
    blocks = f"Each cell is the largest of {pooled} × {pooled} (for drawing only)."
    return WeightedPlan(
        pattern=max_pool(pattern, pooled),
        weighted=max_pool(weighted, pooled),
        value_norms=_pooled(norms, pooled),
        labels=labels,
        quiet=found.tokens.sink,
        pattern_top=tops[0],
        weighted_top=tops[1] or 1.0,
        size=size,
        stacked=stacked,
        room=room,
        pooled=pooled,
        title=title,
        notes=(found.text_line, _summary(found, head), reading + greyed, *([blocks] if pooled > 1 else [])),
        caption=_caption(found, head, tops, own, blocks if pooled > 1 else ""),
    )


def _summary(found: WrittenOutputs, head: HeadContribution) -> str:
    """What the head's output amounts to, and how much its sinks get by weight and by norm."""
    if head.projection_share is None:
        return "No share of the output is given: the text has no content tokens."
    share = (
        f"{percent(head.projection_share)} of the attention output’s norm in layer {head.id.layer} "
        f"({percent(head.norm_share)} of its heads’ norms)"
    )
    if head.sink is None:
        return f"{share}."
    return f"{share}; on {found.sinks}: {percent(head.sink)} by weight, {percent(head.sink_by_norm)} by norm."


def _caption(found: WrittenOutputs, head: HeadContribution, tops: tuple[float, float], own: bool, blocks: str) -> str:
    scale = f"colours from 0 to {tops[0]:.2g} (weights) and to {tops[1]:.2g} (norms), " + (
        "the head’s largest" if own else "the same for every head"
    )
    pooled = f"; {blocks[0].lower()}{blocks[1:-1]}" if blocks else ""
    return (
        f"{found.title} on {found.text_line}, head {head.id}: raw attention A[q, k] beside norm-weighted attention "
        f"‖A[q, k] f(x_k)‖ (Kobayashi et al. 2020), with ‖f(x_k)‖ of every key above it; rows attend to columns; "
        f"{scale}; {_summary(found, head)[:-1]}{pooled}."
    )


def _geometry(labels: Sequence[str], look: Look) -> tuple[int, int, bool, int]:
    """Pixels of a square, positions pooled into one cell, whether stacked, and pixels of the widest label.

    Labels are cut to :data:`_LONGEST`, so that every width that a look may have leaves room.
    """
    n = len(labels)
    if look.width is None:
        pooled = math.ceil(n / _LARGEST)
        m = math.ceil(n / pooled)
        cell = max(1, min(44, round(_PANEL / m)))
        return m * cell, pooled, False, _label_room(labels, cell * PIXEL)
    stacked = look.width < _SIDE_BY_SIDE
    room = _label_room(labels, 0)
    for _ in range(2):  # the cells decide how large the labels are, and these how much room is left
        free = round(look.width * DPI) - 2 * MARGIN - room - 10
        free = free - 2 if stacked else (free - BETWEEN - 4) // 2
        pooled = math.ceil(n / free)
        size = min(free, 44 * math.ceil(n / pooled))
        room = _label_room(labels, size / math.ceil(n / pooled) * PIXEL)
    return size, pooled, stacked, room


def _label_room(labels: Sequence[str], cell: float) -> int:
    return math.ceil(max(text_width(label, label_size(cell), DPI) for label in labels))


def _pooled(norms: Array, factor: int) -> Array:
    """The largest of every so many keys."""
    starts = range(0, len(norms), factor)
    return np.array([norms[start : start + factor].max() for start in starts], np.float32)
