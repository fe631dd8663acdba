"""The view ``lines``, planned: tokens left and right, one line for every weight between them.

The head view of bertviz (Vig 2019) as a plan for a vector picture; :mod:`attnviz.figures.line_drawing`
draws it. Lines too weak to see are left out so that files stay small; the plan says from which weight on,
and what share of the attention is left out. In a long text of which only one token's attention is shown,
runs of tokens without a line share a row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from attnviz.errors import UsageError
from attnviz.figures.colours import Array
from attnviz.figures.line_rows import Positions, Rows, breaks_between, every_row, gathered_rows
from attnviz.figures.look import FAINTEST, Look
from attnviz.model.head_ids import HeadId

__all__ = ["FAINTEST_LINE", "MOST_HEADS", "MOST_LINES", "WHOLE_ROWS", "LinesPlan", "plan_lines", "too_many"]

FAINTEST_LINE = 0.02
"""Weights below are not drawn unless a lower threshold is asked for."""

MOST_HEADS = 8
"""Heads in one picture: as many as there are colours that everybody can tell apart."""

MOST_LINES = 2000
"""Lines in one picture; where there would be more, the threshold is raised."""

WHOLE_ROWS = 32
"""Up to so many tokens each has a row of its own, whichever have lines."""

_MOST_ON_REQUEST = 20_000
_GAP = 0.9
_LONGEST_LABEL = 20


@dataclass(frozen=True)
class LinesPlan:
    """Lines from attending tokens on the left to attended tokens on the right.

    Attributes:
        labels: [n], of each row its token as shown, the same on both sides, or how many tokens share it.
        quiet: [n], labels to draw in grey (special tokens and other sinks, and rows that tokens share).
        counts: [n], how many tokens each row stands for: one, but where some without a line share a row.
        breaks: rows before which a new segment of the text begins.
        heads: id and label of each head, in the order of the colours.
        head, query, key: [m], of each line its place in ``heads``, its row left and its row right.
        weights: [m], the attention weights, from weak to strong: the order of drawing.
        strengths: [m], 0-1, the weights under the scale of the look; the logarithmic one begins at the threshold.
        largest: [n_heads], the largest weight of each head, drawn or not.
        hidden: [n_heads], share of the attention of each head that is below the threshold, 0-1.
        threshold: weights below it are not drawn.
        from_positions: the only rows that lines start from; None for all.
        scale: one of :data:`attnviz.figures.look.SCALES`.
        title: what is shown.
        notes: further lines, such as the text; :attr:`reading` adds the threshold.
        unit: ``token`` or ``word``.
    """

    labels: tuple[str, ...]
    quiet: tuple[bool, ...]
    counts: tuple[int, ...]
    breaks: tuple[int, ...]
    heads: tuple[tuple[HeadId, str], ...]
    head: Positions
    query: Positions
    key: Positions
    weights: Array
    strengths: Array
    largest: tuple[float, ...]
    hidden: tuple[float, ...]
    threshold: float
    from_positions: tuple[int, ...] | None
    scale: str
    title: str
    notes: tuple[str, ...]
    unit: str

    @property
    def rows(self) -> Array:
        """[n], how far below the first each row stands, in rows; a new segment begins after a gap."""
        gaps = np.zeros(len(self.labels), np.float32)
        gaps[list(self.breaks)] = _GAP
        rows: Array = np.arange(len(self.labels), dtype=np.float32) + gaps.cumsum(dtype=np.float32)
        return rows

    @property
    def extent(self) -> float:
        """How many rows the picture is high, gaps between segments included."""
        return float(self.rows[-1]) + 1

    @property
    def scale_key(self) -> tuple[tuple[float, str], ...]:
        """Examples for reading the lines: strength 0-1 and what it stands for."""
        if self.scale == "per-head":
            shares = (0.25, 0.5, 1.0)
            if len(self.heads) > 1:
                return tuple(zip(shares, ("¼ of its largest", "½", "largest"), strict=True))
            return tuple((share, f"{share * self.largest[0]:.2g}") for share in shares)
        weights = sorted({self.threshold, *(weight for weight in (0.1, 0.5, 1.0) if weight > 1.5 * self.threshold)})
        strengths = _strengths(np.array(weights, np.float32), 1.0, self.scale, self.threshold)
        return tuple((float(strength), f"{weight:.3g}") for strength, weight in zip(strengths, weights, strict=True))

    @property
    def left_out(self) -> str:
        """The threshold, and what share of the attention it hides."""
        if max(self.hidden) == 0:
            return f"all weights are drawn, none is below {self.threshold:.3g}"
        least, most = _percent(min(self.hidden)), _percent(max(self.hidden))
        share = most if least == most else f"{least} to {most}"
        if least != most and least.startswith("under") and not most.startswith("over"):
            share = f"up to {most}"
        each = "" if len(self.heads) == 1 else " of each head"
        chosen = "" if self.from_positions is None else f" from the chosen {self.unit}"
        chosen += "s" if chosen and len(self.from_positions or ()) > 1 else ""
        return f"weights below {self.threshold:.3g}, {share} of the attention{chosen}{each}, are not drawn"

    @property
    def gathered(self) -> str:
        """That tokens share rows; empty where none do."""
        return f"runs of {self.unit}s without a line share a row" if max(self.counts) > 1 else ""

    @property
    def reading(self) -> tuple[str, ...]:
        """The lines above the picture: the notes, what is not drawn, and which tokens share a row."""
        said = [self.left_out, *([self.gathered] if self.gathered else [])]
        return (*self.notes, *(f"{sentence[0].upper()}{sentence[1:]}." for sentence in said))

    @property
    def legend(self) -> tuple[str, ...]:
        """[n_heads], what each colour stands for."""
        names = [f"{head} {label}" for head, label in self.heads]
        if self.scale != "per-head":
            return tuple(names)
        return tuple(f"{name} (up to {largest:.2g})" for name, largest in zip(names, self.largest, strict=True))

    @property
    def written(self) -> dict[int, str]:
        """Weights to write beside the rows attended to, where one row's attention in one head is all there is."""
        if self.from_positions is None or len(self.from_positions) > 1 or len(self.heads) > 1:
            return {}
        return {int(key): f"{weight:.2f}" for key, weight in zip(self.key, self.weights, strict=True)}

    def described(self) -> str:
        """What the picture shows, scale and threshold included, to follow the head's name in a caption."""
        scale = {
            "shared": "on a scale from 0 to 1 that is the same for every head",
            "per-head": "on a scale from 0 to the head's own largest weight",
            "log": "on a logarithmic scale from the least weight drawn to 1, the same for every head",
        }[self.scale]
        return (
            f"lines run from the {self.unit} that attends (left) to the {self.unit} attended to (right), their width "
            f"and opacity the attention weight {scale}; {self.left_out}{f'; {self.gathered}' if self.gathered else ''}"
        )


def plan_lines(
    patterns: Sequence[Array],
    labels: Sequence[str],
    *,
    heads: Sequence[tuple[HeadId, str]],
    quiet: Sequence[bool],
    title: str,
    look: Look,
    notes: Sequence[str] = (),
    unit: str = "token",
    from_positions: Sequence[int] | None = None,
    threshold: float | None = None,
    most_lines: int = MOST_LINES,
    segments: Sequence[int | None] = (),
) -> LinesPlan:
    """Plan the lines of up to eight heads.

    Args:
        patterns: one [n, n] a head, weights 0-1; row = query (attends from), column = key (attended to).
        labels: [n], texts of the positions.
        heads: id and label of each head.
        quiet: [n], which labels stand back.
        title: what is shown.
        look: its scale decides how strong a line is for its weight.
        notes: further lines, such as the text.
        unit: what a position is, ``token`` or ``word``.
        from_positions: rows whose attention alone is shown; None for all.
        threshold: the least weight to draw. By default 0.02, or as much more as it takes that no more
            than ``most_lines`` remain.
        most_lines: see ``threshold``.
        segments: [n], the segment of each position, None for special ones; empty where there is only one.

    Raises:
        UsageError: more than eight heads, none, or a threshold that is no weight or leaves too many lines.
        ValueError: the arguments do not fit each other.
    """
    n = len(labels)
    _check(patterns, n, heads, quiet, segments, from_positions)
    weights = np.stack([np.asarray(pattern, np.float32) for pattern in patterns])
    attending = list(range(n)) if from_positions is None else sorted(set(from_positions))
    shown = np.zeros_like(weights)
    shown[:, attending] = weights[:, attending]
    least = _default_threshold(shown, most_lines) if threshold is None else _asked_threshold(threshold, shown)
    head, query, key = ((shown >= least) & (shown > 0)).nonzero()
    order = np.argsort(shown[head, query, key], kind="stable")
    head, query, key = head[order], query[order], key[order]
    largest = tuple(float(pattern.max()) for pattern in weights)
    drawn = shown[head, query, key]
    breaks = breaks_between(segments)
    whole = from_positions is None or n <= WHOLE_ROWS
    rows = every_row(n) if whole else gathered_rows(n, {*attending, *key.tolist()}, breaks)
    return LinesPlan(
        labels=_row_labels(rows, labels, unit),
        quiet=tuple(quiet[first] or count > 1 for first, count in zip(rows.first, rows.counts, strict=True)),
        counts=rows.counts,
        breaks=tuple(rows.row_of[list(breaks)].tolist()),
        heads=tuple(heads),
        head=head,
        query=rows.row_of[query],
        key=rows.row_of[key],
        weights=drawn,
        strengths=_strengths(drawn, np.array(largest, np.float32)[head], look.scale, least),
        largest=largest,
        hidden=tuple(_share_below(pattern, least) for pattern in shown),
        threshold=least,
        from_positions=None if from_positions is None else tuple(rows.row_of[attending].tolist()),
        scale=look.scale,
        title=title,
        notes=tuple(notes),
        unit=unit,
    )


def too_many(heads: int) -> str:
    """What to say where so many heads cannot share a picture."""
    return (
        f"expected 1 to {MOST_HEADS} heads in one picture of lines, as many as colours can be told apart, found "
        f"{heads}; choose some with --select (select=...)."
    )


def _check(
    patterns: Sequence[Array],
    n: int,
    heads: Sequence[object],
    quiet: Sequence[bool],
    segments: Sequence[int | None],
    from_positions: Sequence[int] | None,
) -> None:
    if not 1 <= len(heads) <= MOST_HEADS:
        raise UsageError(too_many(len(heads)))
    shapes = {pattern.shape for pattern in patterns}
    if shapes != {(n, n)} or len(patterns) != len(heads) or len(quiet) != n or len(segments) not in (0, n):
        raise ValueError(
            f"patterns must be [n, n], one a head, with n labels, n marks of quiet ones, and n segments or none. Got "
            f"{len(patterns)} patterns of {sorted(shapes)}, {len(heads)} heads, {n} labels, {len(quiet)} marks and "
            f"{len(segments)} segments."
        )
    if from_positions is not None and not all(0 <= position < n for position in from_positions):
        raise ValueError(f"from_positions must be 0 to {n - 1}. Got {list(from_positions)}.")


def _default_threshold(weights: Array, most: int) -> float:
    """The faintest line's weight, or the least of three decimals that leaves no more than the most lines."""
    strong = weights[weights >= FAINTEST_LINE]
    if len(strong) <= most:
        return FAINTEST_LINE
    too_weak = float(np.partition(strong, -most - 1)[-most - 1])
    return math.floor(too_weak * 1000 + 1) / 1000


def _asked_threshold(threshold: float, weights: Array) -> float:
    if not isinstance(threshold, Real) or not 0 <= threshold <= 1:
        found = f"{threshold:g}" if isinstance(threshold, Real) else repr(threshold)
        raise UsageError(f"expected a threshold from 0 to 1, an attention weight, found {found}.")
    left = int(((weights >= threshold) & (weights > 0)).sum())
    if left > _MOST_ON_REQUEST:
        raise UsageError(
            f"a threshold of {threshold:g} leaves {left:,} lines, but a picture holds {_MOST_ON_REQUEST:,}; "
            "raise the threshold, or choose fewer heads."
        )
    return threshold


def _share_below(pattern: Array, threshold: float) -> float:
    """Of one head's attention, the share on weights that are not drawn; 0 where there is no attention at all."""
    total = float(pattern.sum(dtype=np.float64))
    return float(pattern[pattern < threshold].sum(dtype=np.float64)) / total if total > 0 else 0.0


def _strengths(weights: Array, largest: Array | float, scale: str, threshold: float) -> Array:
    """How strong the lines are, 0-1; on the logarithmic scale the faintest one drawn has 0."""
    if scale == "log":
        least = min(max(threshold, FAINTEST), 0.99)
        strengths = 1 - np.log(np.maximum(weights, least)) / np.log(least)
    else:
        strengths = weights / (np.where(largest, largest, 1) if scale == "per-head" else 1)
    clipped: Array = np.clip(strengths, 0, 1).astype(np.float32)
    return clipped


def _percent(share: float) -> str:
    if 0 < share < 0.01:
        return "under 1%"
    return f"{100 * share:.0f}%" if share <= 0.99 or share == 1 else "over 99%"


def _row_labels(rows: Rows, labels: Sequence[str], unit: str) -> tuple[str, ...]:
    """Of each row the text of its token, cut where it is long, or how many tokens share it."""
    return tuple(
        f"… {count} {unit}s" if count > 1 else _cut(labels[first])
        for first, count in zip(rows.first, rows.counts, strict=True)
    )


def _cut(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"
