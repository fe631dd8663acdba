"""What to draw, planned before anything is drawn: arrays, labels, limits and texts, no axes in sight.

Sizes are in pixels, :data:`DPI` to the inch, or twice as many where the user chose a width: every cell of a
heatmap is a whole number of pixels wide, so that the picture is exact, neither blurred nor uneven.
:mod:`attnviz.figures.heatmap_drawing` draws the plans.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from attnviz.commands.heads.findings import Findings, HeadFindings
from attnviz.figures.colours import Array, Pixels, colour_levels
from attnviz.figures.fonts import drawable, fitted, text_width
from attnviz.figures.look import PLAIN, Look
from attnviz.model.tokens import visible
from attnviz.model.wording import ordinal, quoted

__all__ = [
    "DPI",
    "HeatmapPlan",
    "each_pattern",
    "heatmap_plans",
    "margins",
    "max_pool",
    "named_every",
    "names_note",
    "number_size",
    "plan_heatmap",
    "quotes",
]

DPI = 150

_LONGEST_LABEL = 20
_MOST_CELLS = 1024
_NUMBERED = 24
_LEAST_FOR_NUMBERS = 14.0
_SHORTER = (
    (" where a token repeats", " on repeats"),
    ("uniform attention", "uniform"),
    ("profile's best offset", "profile's offset"),
    ("no positional pattern", "no pattern"),
    (" on repeats", ""),
)
"""Words of the evidence that may be said shortly where there is no room: first the first, then the others too."""


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
        vmax: the weight at the strong end of the scale.
        look: theme, scale and width.
        notes: what was done to the pattern for drawing only.
        subject: model and text.
        dropped: what was left out, and that rows were renormalised; empty where nothing was.
    """

    values: Array
    labels: tuple[str, ...]
    quiet: tuple[bool, ...]
    title: str
    evidence: str
    unit: str
    pooled: int = 1
    vmax: float = 1.0
    look: Look = PLAIN
    notes: tuple[str, ...] = ()
    subject: str = ""
    dropped: str = ""

    @property
    def dpi(self) -> int:
        """Pixels to the inch."""
        return DPI if self.look.width is None else 2 * DPI

    def pixels(self, length: float) -> int:
        """Pixels of a length that is given in pixels at :data:`DPI`."""
        return round(length * self.dpi / DPI)

    @cached_property
    def cell(self) -> int:
        """Pixels a cell."""
        m = len(self.values)
        if self.look.width is None:
            return max(1, min(44, round(960 / m)))
        return max(1, min(self.pixels(44), _room(self.labels, self.look) // m))

    @property
    def size(self) -> int:
        """Pixels of the square of cells."""
        return self.cell * len(self.values)

    @property
    def ticks(self) -> range:
        """The cells whose labels are written: all, or as many as fit without overprinting."""
        return range(0, len(self.values), math.ceil(self.pixels(13) / self.cell))

    @property
    def font_size(self) -> float:
        """Of the labels, in points."""
        largest = 9.0 if self.look.width is None else 7.0
        return max(5.5, min(largest, 0.8 * self.cell * 72 / self.dpi))

    @property
    def number_size(self) -> float | None:
        """Of the weights written into the cells, in points; None where they are too many, or the cells too small."""
        return number_size(len(self.values), self.cell * 72 / self.dpi)

    def evidence_lines(self, size: float, room: float, lines: int) -> list[str]:
        """The evidence in so many lines, broken between its parts, as fully as all of it has room.

        Args:
            size: of the letters, in points.
            room: pixels of a line; only what is too long however shortly it is said is cut.
            lines: how many; those not needed are empty.
        """
        words = self.evidence
        for full, short in (("", ""), *_SHORTER):
            words = words.replace(full, short)
            shown = _parted(words, size, self.dpi, room)
            if len(shown) <= lines and all(text_width(drawable(line), size, self.dpi) <= room for line in shown):
                break
        shown = [*shown[: lines - 1], " · ".join(shown[lines - 1 :])]
        return [fitted(line, size, self.dpi, room) for line in [*shown, *[""] * (lines - len(shown))]]

    @property
    def levels(self) -> Pixels:
        """[m, m], each weight's step of the colour scale."""
        return colour_levels(self.values, self.vmax, self.look.scale)

    @property
    def hundredths(self) -> Pixels:
        """[m, m], the weights as they are written, in hundredths."""
        shown: Pixels = np.floor(np.clip(self.values, 0, 1) * 100 + 0.5).astype(np.uint8)
        return shown


def number_size(m: int, cell: float) -> float | None:
    """The font size of weights in cells that are so many points wide; None where they cannot be read."""
    return min(7.0, 0.36 * cell) if m <= _NUMBERED and cell >= _LEAST_FOR_NUMBERS else None


def plan_heatmap(
    pattern: Array,
    labels: Sequence[str],
    *,
    quiet: Sequence[bool],
    title: str,
    evidence: str = "",
    unit: str = "token",
    look: Look = PLAIN,
    notes: Sequence[str] = (),
    subject: str = "",
    dropped: str = "",
) -> HeatmapPlan:
    """Plan the heatmap of one head.

    Args:
        pattern: [n, n], weights 0-1; row = query (attends from), column = key (attended to).
        labels: [n], texts of the positions.
        quiet: [n], which labels stand back.
        title: id and label of the head.
        evidence: its score and baseline.
        unit: what a position is, ``token`` or ``word``.
        look: theme, scale and width.
        notes: what was done to the pattern for drawing only.
        subject: model and text.
        dropped: what was left out of the pattern, and what that did to the rest; part of the title.

    Raises:
        ValueError: labels or quiet do not fit the pattern.
    """
    n = len(pattern)
    if pattern.shape != (n, n) or len(labels) != n or len(quiet) != n:
        raise ValueError(
            f"pattern must have shape (n, n) with n labels. Got {pattern.shape}, {len(labels)} labels and "
            f"{len(quiet)} marks of quiet ones."
        )
    shown = [_short(label) for label in labels]
    most = _MOST_CELLS if look.width is None else min(_MOST_CELLS, _room(shown, look))
    pooled = math.ceil(n / most)
    values = max_pool(pattern, pooled)
    largest = float(values.max()) if look.scale == "per-head" else 1.0
    by_pooling = [f"each cell is the largest of {pooled} × {pooled} weights (pooled for drawing only)"]
    return HeatmapPlan(
        values=values,
        labels=tuple(shown[::pooled]),
        quiet=tuple(quiet[::pooled]),
        title=title,
        evidence=evidence,
        unit=unit,
        pooled=pooled,
        vmax=largest if largest > 0 else 1.0,
        look=look,
        notes=(*notes, *(by_pooling if pooled > 1 else ())),
        subject=subject,
        dropped=dropped,
    )


def max_pool(pattern: Array, factor: int) -> Array:
    """The largest of every ``factor`` x ``factor`` block, [ceil(n / factor)] squared."""
    if factor == 1:
        return pattern
    m = math.ceil(len(pattern) / factor)
    padded = np.zeros((m * factor, m * factor), dtype=pattern.dtype)
    padded[: len(pattern), : len(pattern)] = pattern
    rows = padded[::factor]  # a maximum of whole rows is many times faster than one over two short axes
    for row in range(1, factor):
        rows = np.maximum(rows, padded[row::factor])
    pooled: Array = rows[:, ::factor]
    for column in range(1, factor):
        pooled = np.maximum(pooled, rows[:, column::factor])
    return pooled


def heatmap_plans(findings: Findings, heads: Sequence[HeadFindings], look: Look = PLAIN) -> Iterator[HeatmapPlan]:
    """The plan of each head's heatmap, in order."""
    subject = f"{visible(findings.checkpoint.short_name)} · {quotes(findings)}"
    for head, pattern in each_pattern(findings, heads):
        yield plan_heatmap(
            pattern,
            findings.units.labels,
            quiet=findings.units.sink,
            title=f"{head.id}  {head.label}",
            evidence=_evidence(head),
            unit=findings.units.name,
            look=look,
            subject=subject,
            dropped=findings.dropped,
        )


def each_pattern(findings: Findings, heads: Sequence[HeadFindings]) -> Iterator[tuple[HeadFindings, Array]]:
    """Each head with its pattern; a layer's patterns are recomputed once and then dropped."""
    layer = -1
    patterns: list[Tensor] = []
    for head in heads:
        if head.id.layer != layer:
            layer, patterns = head.id.layer, list(findings.layer_patterns(head.id.layer))
        yield head, patterns[head.id.head].float().numpy()


def quotes(findings: Findings) -> str:
    """The text, or both texts of a pair, as :func:`quoted` shows them."""
    return " / ".join(quoted(text) for text in (findings.text, findings.pair) if text is not None)


def named_every(cell: float, pooled: int = 1) -> int:
    """Every which position is named beside cells of so many points, so that labels do not touch."""
    return math.ceil(13 * 72 / DPI / cell) * pooled


def names_note(every: int, unit: str) -> str:
    """That labels were left out: ``Every 4th token is named.``; empty where none was."""
    return "" if every == 1 else f"Every {ordinal(every)} {unit} is named."


def _evidence(head: HeadFindings) -> str:
    """The score of the pattern behind the label, or of the nearest, beside its baseline."""
    pattern = head.strongest
    if pattern is None or pattern.score is None:
        return "not measurable on this text"
    if pattern.kind in ("syntactic", "profile"):
        arrow = "dep → head" if pattern.direction == "dependent_to_head" else "head → dep"
        offset = "profile's best offset" if pattern.offset is None else f"offset {pattern.offset:+d}"
        baseline = f"{offset}: {pattern.baseline:.2f}"
        return f"{_short(visible(pattern.name))} ({arrow}) {pattern.score:.2f} · {baseline} · n = {pattern.n}"
    if pattern.margin <= 0:
        return "no positional pattern above uniform attention"
    name = pattern.name if head.deciding else f"nearest: {pattern.name}"
    uniform = pattern.baseline or 0.0
    shown = f"{uniform:.2f}" if uniform >= 0.01 else f"{uniform:.1g}"
    repeats = "" if pattern.on_repeats is None else f" ({pattern.on_repeats:.2f} where a token repeats)"
    return f"{name} {pattern.score:.2f}{repeats} · uniform attention {shown} · n = {pattern.n}"


def _parted(words: str, size: float, dpi: float, room: float) -> list[str]:
    """What ``·`` parts, in as many lines of so many pixels as it takes."""
    lines: list[str] = []
    for part in words.split(" · "):
        longer = f"{lines[-1]} · {part}" if lines else part
        if lines and text_width(drawable(longer), size, dpi) <= room:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"


def margins(look: Look) -> tuple[int, int]:
    """Beside the labels, and right of the cells for the colour bar, in pixels at :data:`DPI`."""
    beside, right = (44, 110) if look.width is None else (34, 92)
    return beside, right if look.scale == "shared" else right + 14


def _room(labels: Sequence[str], look: Look) -> int:
    """Pixels for the cells of a figure of so many inches, whatever the size of its labels."""
    assert look.width is not None
    dpi = 2 * DPI
    total = round(look.width * dpi)
    longest = min(math.ceil(max(text_width(drawable(label), 7.0, dpi) for label in set(labels))), total // 4)
    return total - longest - sum(margins(look)) * dpi // DPI
