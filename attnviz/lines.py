"""The view ``lines``, planned: tokens left and right, one line for every weight between them.

The head view of bertviz (Vig 2019) as a plan for a vector picture; :mod:`attnviz.line_drawing`
draws it. Sizes are in pixels at :data:`attnviz.figures.DPI`. Lines too weak to see are left out
so that files stay small; the plan says from which weight on, and what share of the attention is
left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.colours import Array
from attnviz.errors import UsageError
from attnviz.figures import DPI
from attnviz.heads import HeadId
from attnviz.look import FAINTEST, Look

__all__ = ["FAINTEST_LINE", "MOST_HEADS", "MOST_LINES", "LinesPlan", "Positions", "plan_lines"]

FAINTEST_LINE = 0.02
"""Weights below are not drawn unless a lower threshold is asked for."""

MOST_HEADS = 8
"""Heads in one picture: as many as there are colours that everybody can tell apart."""

MOST_LINES = 2000
"""Lines in one picture; where there would be more, the threshold is raised."""

_MOST_ON_REQUEST = 20_000
_ROWS_AT_FULL_PITCH = 512
_LEAST_PITCH, _LARGEST_PITCH, _COMFORTABLE_HEIGHT = 11, 24, 1200
_GAP = 0.9
_LONGEST_LABEL = 20

Positions = NDArray[np.intp]


@dataclass(frozen=True)
class LinesPlan:
    """Lines from attending tokens on the left to attended tokens on the right.

    Attributes:
        labels: [n], shown texts, the same on both sides.
        quiet: [n], labels to draw in grey (special tokens and other sinks).
        breaks: rows before which a new segment of the text begins.
        heads: id and label of each head, in the order of the colours.
        head, query, key: [m], of each line its place in ``heads``, its row left and its row right.
        weights: [m], the attention weights, from weak to strong: the order of drawing.
        strengths: [m], 0-1, the weights under the scale of the look; the logarithmic one begins at the threshold.
        largest: [n_heads], the largest weight of each head, drawn or not.
        hidden: [n_heads], share of the attention of each head that is below the threshold, 0-1.
        threshold: weights below it are not drawn.
        from_positions: the only rows that lines start from; None for all.
        scale: one of :data:`attnviz.look.SCALES`.
        title: what is shown.
        notes: further lines, such as the text; :attr:`reading` adds the threshold.
        unit: ``token`` or ``word``.
    """

    labels: tuple[str, ...]
    quiet: tuple[bool, ...]
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
    def pitch(self) -> float:
        """Pixels from row to row: less for longer texts, and below 11 beyond 512 rows, where labels are thinned."""
        return _pitch(len(self.labels))

    @property
    def rows(self) -> Array:
        """[n], how far below the first each row stands, in rows; a new segment begins after a gap."""
        gaps = np.zeros(len(self.labels), np.float32)
        gaps[list(self.breaks)] = _GAP
        rows: Array = np.arange(len(self.labels), dtype=np.float32) + gaps.cumsum(dtype=np.float32)
        return rows

    @property
    def height(self) -> int:
        """Pixels of all rows together."""
        return math.ceil((float(self.rows[-1]) + 1) * self.pitch)

    @property
    def named(self) -> tuple[int, ...]:
        """The rows whose labels are written: all, or as many as fit; those in ``from_positions`` always."""
        step = _step(len(self.labels))
        chosen = self.from_positions or ()
        others = [row for row in range(0, len(self.labels), step) if all(abs(row - other) >= step for other in chosen)]
        return tuple(sorted({*others, *chosen}))

    @property
    def font_size(self) -> float:
        """Of the labels, in points."""
        return max(4.8, min(9.0, 0.8 * self.pitch * 72 / DPI))

    @property
    def widest(self) -> float:
        """Width of the strongest line, in points."""
        return min(3.0, max(1.2, 0.3 * self.pitch * 72 / DPI * (1.0 if len(self.heads) == 1 else 0.7)))

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
        shares = [_percent(min(self.hidden)), _percent(max(self.hidden))]
        share = shares[0] if shares[0] == shares[1] else " to ".join(shares)
        each = "" if len(self.heads) == 1 else " of each head"
        chosen = "" if self.from_positions is None else f" from the chosen {self.unit}"
        chosen += "s" if chosen and len(self.from_positions or ()) > 1 else ""
        return f"weights below {self.threshold:.3g}, {share} of the attention{chosen}{each}, are not drawn"

    @property
    def reading(self) -> tuple[str, ...]:
        """The lines above the picture: the notes, what is not drawn, and which labels are left out."""
        step = _step(len(self.labels))
        thinned = [] if step == 1 else [f"Every {step}{ {2: 'nd', 3: 'rd'}.get(step, 'th') } {self.unit} is named."]
        return (*self.notes, f"{self.left_out[0].upper()}{self.left_out[1:]}.", *thinned)

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
            f"and opacity the attention weight {scale}; {self.left_out}"
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
    return LinesPlan(
        labels=tuple(label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…" for label in labels),
        quiet=tuple(quiet),
        breaks=_breaks(segments),
        heads=tuple(heads),
        head=head,
        query=query,
        key=key,
        weights=drawn,
        strengths=_strengths(drawn, np.array(largest, np.float32)[head], look.scale, least),
        largest=largest,
        hidden=tuple(_share_below(pattern, least) for pattern in shown),
        threshold=least,
        from_positions=None if from_positions is None else tuple(attending),
        scale=look.scale,
        title=title,
        notes=tuple(notes),
        unit=unit,
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
        raise UsageError(
            f"expected 1 to {MOST_HEADS} heads in one picture of lines, as many as colours can be told apart, found "
            f"{len(heads)}; choose some with --select (select=...)."
        )
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
    if not 0 <= threshold <= 1:
        raise UsageError(f"expected a threshold from 0 to 1, an attention weight, found {threshold:g}.")
    found = int(((weights >= threshold) & (weights > 0)).sum())
    if found > _MOST_ON_REQUEST:
        raise UsageError(
            f"a threshold of {threshold:g} leaves {found:,} lines, but a picture holds {_MOST_ON_REQUEST:,}; "
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


def _breaks(segments: Sequence[int | None]) -> tuple[int, ...]:
    """The positions at which the segment is another than that of the last token that had one."""
    found, current = [], None
    for position, segment in enumerate(segments):
        if segment is not None and current is not None and segment != current:
            found.append(position)
        current = current if segment is None else segment
    return tuple(found)


def _pitch(n: int) -> float:
    if n > _ROWS_AT_FULL_PITCH:
        return _LEAST_PITCH * _ROWS_AT_FULL_PITCH / n
    return max(_LEAST_PITCH, min(_LARGEST_PITCH, round(_COMFORTABLE_HEIGHT / n)))


def _step(n: int) -> int:
    return math.ceil(_LEAST_PITCH / _pitch(n))
