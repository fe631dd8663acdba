"""What to draw, planned before anything is drawn: arrays, labels, limits and texts, no axes in sight.

Sizes are in pixels at :data:`DPI`: every cell of a heatmap is a whole number of pixels wide, so that
the picture is exact, neither blurred nor uneven. :mod:`attnviz.drawing` draws the plans.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from attnviz.colours import Array, Pixels, colour_levels, colour_table, magnified
from attnviz.findings import Findings, HeadFindings
from attnviz.heads import HeadId
from attnviz.tokens import visible

__all__ = [
    "DPI",
    "HeatmapPlan",
    "OverviewPlan",
    "heatmap_plans",
    "max_pool",
    "model_overview_plan",
    "plan_heatmap",
    "plan_overview",
    "quoted",
]

DPI = 150

_FRAME_RGB = (154, 154, 154)
_LONGEST_LABEL = 20
_LONGEST_QUOTE = 90
_LARGEST_HEATMAP = 1024
_OVERVIEW_CELL = 120


@dataclass(frozen=True)
class HeatmapPlan:
    """One head's pattern, ready to draw.

    Attributes:
        values: [m, m], rows attend to columns; pooled where n was too large to draw.
        labels: [m], shown texts; of a pooled cell, its first.
        quiet: [m], labels to draw in grey (special tokens and other sinks).
        title: id and label.
        evidence: the score behind the label, with its baseline.
        unit: ``token`` or ``word``.
        pooled: how many rows and columns one cell stands for.
        vmax: the weight that is darkest.
    """

    values: Array
    labels: tuple[str, ...]
    quiet: tuple[bool, ...]
    title: str
    evidence: str
    unit: str
    pooled: int = 1
    vmax: float = 1.0

    @property
    def cell(self) -> int:
        """Pixels a cell."""
        return max(1, min(44, round(960 / len(self.values))))

    @property
    def size(self) -> int:
        """Pixels of the square of cells."""
        return self.cell * len(self.values)

    @property
    def ticks(self) -> range:
        """The cells whose labels are written: all, or as many as fit without overprinting."""
        return range(0, len(self.values), math.ceil(13 / self.cell))

    @property
    def font_size(self) -> float:
        """Of the labels, in points."""
        return max(5.5, min(9.0, 0.8 * self.cell * 72 / DPI))


@dataclass(frozen=True)
class OverviewPlan:
    """Many heads in one picture, a row a layer and a column a head.

    Attributes:
        image: [height, width, 3], the grid of patterns, frames included, a pixel a pixel.
        cells: for each head its id, its label, and the left and top of its pattern in the image.
        layers: the layers from top to bottom, and the tops of their rows.
        size: pixels of one pattern.
        title: what is shown, first line in bold.
        notes: how to read it.
    """

    image: Pixels
    cells: tuple[tuple[HeadId, str, int, int], ...]
    layers: tuple[tuple[int, int], ...]
    size: int
    title: str
    notes: tuple[str, ...]

    @property
    def pitch(self) -> int:
        """Pixels from one column of the grid to the next."""
        return _pitch(self.size)

    @property
    def origin(self) -> tuple[int, int]:
        """Left and top of the image in its figure, in pixels: room for layer names, title and notes."""
        return 56, 52 + 20 * len(self.notes)


def plan_heatmap(
    pattern: Array,
    labels: Sequence[str],
    *,
    quiet: Sequence[bool],
    title: str,
    evidence: str = "",
    unit: str = "token",
) -> HeatmapPlan:
    """Plan the heatmap of one head.

    Args:
        pattern: [n, n], weights 0-1; row = query (attends from), column = key (attended to).
        labels: [n], texts of the positions.
        quiet: [n], which labels stand back.
        title: id and label of the head.
        evidence: its score and baseline.
        unit: what a position is, ``token`` or ``word``.

    Raises:
        ValueError: labels or quiet do not fit the pattern.
    """
    n = len(pattern)
    if pattern.shape != (n, n) or len(labels) != n or len(quiet) != n:
        raise ValueError(
            f"pattern must have shape (n, n) with n labels. Got {pattern.shape}, {len(labels)} labels and "
            f"{len(quiet)} marks of quiet ones."
        )
    pooled = math.ceil(n / 1024)
    return HeatmapPlan(
        values=max_pool(pattern, pooled),
        labels=tuple(_short(label) for label in labels[::pooled]),
        quiet=tuple(quiet[::pooled]),
        title=title,
        evidence=evidence,
        unit=unit,
        pooled=pooled,
    )


def plan_overview(
    heads: Iterable[tuple[HeadId, str, Array]], *, title: str, notes: Sequence[str] = (), unit: str = "token"
) -> OverviewPlan:
    """Plan one picture of all the given heads.

    Args:
        heads: id, label and pattern [n, n] of each, at least one; all of the same n. Patterns are
            pooled as they come, so an iterator need not hold them all.
        title: what is shown.
        notes: further lines; how to read the picture is added.
        unit: what a position is, ``token`` or ``word``.
    """
    small = []
    for head, label, pattern in heads:
        n = len(pattern)
        pooled = math.ceil(n / 120)
        small.append((head, label, max_pool(pattern, pooled)))
    m = len(small[0][2])
    size = m * max(1, 120 // m)
    rows = sorted({head.layer for head, _, _ in small})
    columns = sorted({head.head for head, _, _ in small})
    width, height = _pitch(size), size + 44
    image = np.full((len(rows) * height, len(columns) * width, 3), 255, dtype=np.uint8)
    cells, table = [], colour_table()
    for head, label, values in small:
        left, top = columns.index(head.head) * width + 1, rows.index(head.layer) * height + 38
        image[top - 1 : top + size + 1, left - 1 : left + size + 1] = _FRAME_RGB
        image[top : top + size, left : left + size] = table[magnified(colour_levels(values), size // m)]
        cells.append((head, _short_label(label), left, top))
    reading = [
        f"In each square rows attend to columns ({n} {unit}s); white is 0, dark blue 1, the same for every head."
    ]
    if pooled > 1:
        reading.append(f"Each pixel is the largest of {pooled} × {pooled} weights (pooled for drawing only).")
    layers = tuple((layer, rows.index(layer) * height + 38) for layer in rows)
    return OverviewPlan(image, tuple(cells), layers, size, title, (*notes, *reading))


def max_pool(pattern: Array, factor: int) -> Array:
    """The largest of every ``factor`` x ``factor`` block, [ceil(n / factor)] squared."""
    if factor == 1:
        return pattern
    m = math.ceil(len(pattern) / factor)
    padded = np.zeros((m * factor, m * factor), dtype=pattern.dtype)
    padded[: len(pattern), : len(pattern)] = pattern
    pooled: Array = padded.reshape(m, factor, m, factor).max(axis=(1, 3))
    return pooled


def heatmap_plans(findings: Findings, heads: Sequence[HeadFindings]) -> Iterator[HeatmapPlan]:
    """The plan of each head's heatmap, in order."""
    for head, pattern in _patterns(findings, heads):
        yield plan_heatmap(
            pattern,
            findings.units.labels,
            quiet=findings.units.sink,
            title=f"{head.id}  {head.label}",
            evidence=_evidence(head),
            unit=findings.units.name,
        )


def model_overview_plan(findings: Findings, heads: Sequence[HeadFindings]) -> OverviewPlan:
    """The plan of one picture with all the given heads."""
    model = findings.checkpoint
    count = f"{model.n_layers} layers × {model.n_heads} heads"
    if len(heads) < len(findings.heads):
        count = f"{len(heads)} of {len(findings.heads)} heads"
    return plan_overview(
        ((head.id, head.label, pattern) for head, pattern in _patterns(findings, heads)),
        title=f"{visible(model.short_name)}: {count}",
        notes=[quoted(text) for text in (findings.text, findings.pair) if text is not None],
        unit=findings.units.name,
    )


def quoted(text: str) -> str:
    """The text in quotation marks, cut where it is long, without anything invisible in it."""
    shown = visible(text)
    return f"“{shown if len(shown) <= _LONGEST_QUOTE else shown[: _LONGEST_QUOTE - 1] + '…'}”"


def _patterns(findings: Findings, heads: Sequence[HeadFindings]) -> Iterator[tuple[HeadFindings, Array]]:
    """Each head with its pattern; a layer's patterns are recomputed once and then dropped."""
    layer = -1
    patterns: list[Tensor] = []
    for head in heads:
        if head.id.layer != layer:
            layer, patterns = head.id.layer, list(findings.layer_patterns(head.id.layer))
        yield head, patterns[head.id.head].float().numpy()


def _evidence(head: HeadFindings) -> str:
    """The score of the pattern behind the label, or of the nearest, beside its baseline."""
    pattern = head.strongest
    if pattern is None or pattern.score is None:
        return "not measurable on this text"
    if pattern.kind in ("syntactic", "profile"):
        arrow = "dep → head" if pattern.direction == "dependent_to_head" else "head → dep"
        offset = "profile's best offset" if pattern.offset is None else f"offset {pattern.offset:+d}"
        baseline = f"{offset}: {pattern.baseline:.2f}"
        return f"{visible(pattern.name)} ({arrow}) {pattern.score:.2f} · {baseline} · n = {pattern.n}"
    if pattern.margin <= 0:
        return "no positional pattern above uniform attention"
    name = pattern.name if head.deciding else f"nearest: {pattern.name}"
    uniform = pattern.baseline or 0.0
    shown = f"{uniform:.2f}" if uniform >= 0.01 else f"{uniform:.1g}"
    repeats = "" if pattern.on_repeats is None else f" ({pattern.on_repeats:.2f} where a token repeats)"
    return f"{name} {pattern.score:.2f}{repeats} · uniform attention {shown} · n = {pattern.n}"


def _pitch(size: int) -> int:
    """A column of the overview holds a pattern or a label, whichever is wider, and a gap."""
    return max(size, 104) + 14


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"


def _short_label(label: str) -> str:
    return label.replace("syntactic:", "syn: ")
