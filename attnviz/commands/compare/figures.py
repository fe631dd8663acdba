"""What the figures of a comparison show, planned before anything is drawn: arrays, labels, limits, texts.

:mod:`attnviz.commands.compare.drawing` draws the plans. Sizes are in pixels at :data:`attnviz.figures.heatmaps.DPI`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnviz.commands.compare.differences import LARGEST_DISTANCE, Differences, HeadDifference
from attnviz.commands.compare.sizes import (
    FULL_PITCH,
    MEAN_COLUMN,
    fitting_pitch,
    grid_layout,
    label_size,
    number_form,
    room_for_cells,
)
from attnviz.commands.compare.words import (
    ENDS,
    MAP_SCALE,
    Worded,
    bar_words,
    difference_caption,
    grid_caption,
    largest_in_words,
    map_caption,
    pooling_note,
    short,
    side_lines,
)
from attnviz.errors import UsageError
from attnviz.figures.colours import Array
from attnviz.figures.look import Look
from attnviz.model.head_ids import HeadId
from attnviz.model.wording import counted

__all__ = [
    "DifferenceGridPlan",
    "DifferenceMapPlan",
    "DifferencePlan",
    "difference_plans",
    "extreme_pool",
    "plan_difference",
    "plan_difference_grid",
    "plan_difference_map",
    "rounded_up",
]


_SHARE_OF_ROOM = 0.85


@dataclass(frozen=True)
class DifferencePlan(Worded):
    """The difference of one head's patterns, B - A, ready to draw.

    Attributes:
        values: [m, m], -1 to 1, rows attend to columns; pooled where n was too large to draw.
        labels: [m], shown texts; of a pooled cell, its first.
        differing: [m], where the two sides have different tokens.
        quiet: [m], labels to draw in grey (special tokens and other sinks).
        largest: row and column of the largest difference; None where there is none beyond rounding.
        vmax: the difference at either end of the colour scale.
        room: pixels that the square of cells may take.
        unit: ``token`` or ``word``.
        pooled: how many rows and columns one cell stands for.
    """

    values: Array
    labels: tuple[str, ...]
    differing: tuple[bool, ...]
    quiet: tuple[bool, ...]
    largest: tuple[int, int] | None
    vmax: float
    room: int
    unit: str
    pooled: int

    @property
    def cell(self) -> int:
        """Pixels a cell."""
        return max(1, min(44, self.room // len(self.values)))

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
        return label_size(self.cell)

    @property
    def numbers(self) -> str:
        """How numbers are written into the cells: ``full`` (+0.31), ``short`` (+.31), or empty for not at all."""
        return number_form(self.cell, len(self.values))


@dataclass(frozen=True)
class DifferenceGridPlan(Worded):
    """The differences of many heads in one picture, a row a layer (or several) and a column a head.

    Attributes:
        heads: id, Jensen-Shannon distance and values [m, m] (B - A, -1 to 1) of each.
        vmax: the difference at either end of the colour scale.
        size: pixels of one pattern.
        pitch: pixels from one pattern to the next.
        beside: patterns side by side; where there are more columns, layers go on in further rows.
    """

    heads: tuple[tuple[HeadId, float, Array], ...]
    vmax: float
    size: int
    pitch: int
    beside: int

    @property
    def full(self) -> bool:
        """Whether there is room for id and distance above each pattern."""
        return self.pitch >= FULL_PITCH

    @property
    def named(self) -> bool:
        """Whether an id stands above each pattern; else columns are numbered."""
        return self.full or self.rows > 1

    @property
    def rows(self) -> int:
        """Rows of a layer."""
        return math.ceil(len(self.columns) / self.beside)

    @property
    def layers(self) -> list[int]:
        """The rows from top to bottom."""
        return sorted({head.layer for head, _, _ in self.heads})

    @property
    def columns(self) -> list[int]:
        """The columns from left to right."""
        return sorted({head.head for head, _, _ in self.heads})


@dataclass(frozen=True)
class DifferenceMapPlan(Worded):
    """The Jensen-Shannon distance of every head, and the mean of every layer.

    Attributes:
        distances: [n_layers, n_heads], 0 to 0.833.
        means: [n_layers].
        changed: [n_layers, n_heads], where the two sides have different labels.
        vmax: the distance that is strongest.
        cell: pixels a cell, width and height.
    """

    distances: NDArray[np.float64]
    means: NDArray[np.float64]
    changed: NDArray[np.bool_]
    vmax: float
    cell: tuple[int, int]


def extreme_pool(values: Array, factor: int) -> Array:
    """The value furthest from 0, with its sign, of every ``factor`` x ``factor`` block, [ceil(n / factor)] squared."""
    if factor == 1:
        return values
    m = math.ceil(len(values) / factor)
    padded = np.zeros((m * factor, m * factor), dtype=values.dtype)
    padded[: len(values), : len(values)] = values
    blocks = padded.reshape(m, factor, m, factor)
    most, least = blocks.max(axis=(1, 3)), blocks.min(axis=(1, 3))
    pooled: Array = np.where(most >= -least, most, least)
    return pooled


def rounded_up(largest: float) -> float:
    """The end of a scale: the first digit counted up, so that 0.37 gives 0.4; 1 for nothing at all."""
    if largest <= 0:
        return 1.0
    step = 10.0 ** math.floor(math.log10(largest))
    return float(f"{math.ceil(largest / step - 1e-9) * step:.1g}")


def difference_plans(found: Differences, heads: Sequence[HeadDifference], look: Look) -> Iterator[DifferencePlan]:
    """The plan of each head's difference, layer by layer, so that a layer is recomputed once."""
    for head, values in _values(found, heads):
        yield plan_difference(found, head, values, look)


def plan_difference(found: Differences, head: HeadDifference, values: Array, look: Look) -> DifferencePlan:
    """Plan the picture of one head's difference.

    Args:
        found: the comparison.
        head: of which head.
        values: [n, n], B - A, of that head.
        look: width and scale.

    Raises:
        UsageError: the scale is logarithmic.
    """
    labels, room, pooled = room_for_cells([short(label) for label in found.labels], look)
    largest = head.largest
    marked = None if head.rounding else (largest.query // pooled, largest.key // pooled)
    notes = [
        f"label {head.labels if head.label_changed else f'{head.labels} (both)'} · "
        f"total variation {head.total_variation:.2f} · {largest_in_words(found, head)}",
        *side_lines(found),
    ]
    if pooled > 1:
        notes.append(pooling_note(pooled, "cell"))
    vmax = _vmax(found, look, head)
    return DifferencePlan(
        values=extreme_pool(values, pooled),
        labels=tuple(labels[::pooled]),
        differing=tuple(any(found.differing[first : first + pooled]) for first in range(0, len(labels), pooled)),
        quiet=found.quiet[::pooled],
        largest=marked,
        vmax=vmax,
        room=room,
        unit=found.unit,
        pooled=pooled,
        title=f"{head.id}  Jensen-Shannon distance {head.distance:.3f}, rank {head.rank} of {len(found.heads)}",
        notes=tuple(notes),
        caption=difference_caption(found, head, vmax, look.scale == "per-head", pooled),
        scale=bar_words(look.scale == "per-head"),
        ends=ENDS,
    )


def plan_difference_grid(found: Differences, heads: Sequence[HeadDifference], look: Look) -> DifferenceGridPlan:
    """Plan one picture of the differences of all the given heads, at least one.

    Raises:
        UsageError: the width is too small for so many heads side by side, or the scale is not shared.
    """
    layers, columns = ({head.id[axis] for head in heads} for axis in (0, 1))
    beside, pitch, largest = grid_layout(len(columns), len(layers), look)
    pooled = math.ceil(len(found.labels) / largest)
    small = tuple((head.id, head.distance, extreme_pool(values, pooled)) for head, values in _values(found, heads))
    notes = [
        *side_lines(found),
        f"In each square rows attend to columns ({counted(len(found.labels), found.unit)})."
        f"{' Beside each id: the Jensen-Shannon distance.' if pitch >= FULL_PITCH else ''}",
    ]
    if pooled > 1:
        notes.append(pooling_note(pooled, "pixel"))
    model = found.first.checkpoint
    count = f"{model.n_layers} layers × {model.n_heads} heads"
    if len(heads) < len(found.heads):
        count = f"{len(heads)} of {len(found.heads)} heads"
    m = math.ceil(len(found.labels) / pooled)
    size = largest // m * m
    if look.width is not None and size < _SHARE_OF_ROOM * largest:
        size = largest  # cells differ by one pixel, a quarter of a point at most, rather than waste the room
    vmax = _vmax(found, look, None)
    nothing = "" if found.any_beyond_rounding else "; no weight differs beyond rounding"
    return DifferenceGridPlan(
        heads=small,
        vmax=vmax,
        size=size,
        pitch=pitch,
        beside=beside,
        title=f"What changed: {count}{nothing}",
        notes=tuple(notes),
        caption=grid_caption(found, count, vmax, pooled),
        scale=bar_words(False),
        ends=ENDS,
    )


def plan_difference_map(found: Differences, look: Look) -> DifferenceMapPlan:
    """Plan the map of all heads by Jensen-Shannon distance.

    Raises:
        UsageError: the width is too small for so many heads side by side.
    """
    model = found.first.checkpoint
    shape = model.n_layers, model.n_heads
    distances, changed = np.zeros(shape), np.zeros(shape, dtype=np.bool_)
    for head in found.heads:
        distances[head.id], changed[head.id] = head.distance, head.label_changed
    vmax = min(rounded_up(float(distances.max())), LARGEST_DISTANCE) if found.any_beyond_rounding else LARGEST_DISTANCE
    wide = 54 if model.n_heads <= 16 else 34
    if look.width is not None:
        wide = min(80, fitting_pitch(model.n_heads + MEAN_COLUMN, look.width, 14))
    notes = [
        *side_lines(found),
        "Jensen-Shannon distance (root nats): 0 for equal patterns, 0.83 for no key in common.",
    ]
    if changed.any():
        notes.append(f"Corner marked: another label on B ({changed.sum()} of {changed.size} heads).")
    return DifferenceMapPlan(
        distances=distances,
        means=distances.mean(axis=1),
        changed=changed,
        vmax=vmax,
        cell=(wide, max(24, min(40, wide))),
        title="Jensen-Shannon distance of every head",
        notes=tuple(notes),
        caption=map_caption(found, vmax),
        scale=MAP_SCALE,
        ends=(),
    )


def _values(found: Differences, heads: Sequence[HeadDifference]) -> Iterator[tuple[HeadDifference, Array]]:
    layer, values = -1, np.empty(0, np.float32)
    for head in sorted(heads, key=lambda head: head.id):
        if head.id.layer != layer:
            layer, values = head.id.layer, found.layer_differences(head.id.layer)
        yield head, values[head.id.head]


def _vmax(found: Differences, look: Look, head: HeadDifference | None) -> float:
    """Where the colour scale ends: at the largest difference of all heads, or of this one where each has its own."""
    if look.scale == "log":
        raise UsageError("differences have signs, which a logarithmic scale cannot show: expected shared or per-head.")
    own = head is not None and look.scale == "per-head"
    rounding = head.rounding if own and head is not None else not found.any_beyond_rounding
    largest = abs(head.largest.difference) if own and head is not None else found.largest
    return 1.0 if rounding else rounded_up(largest)
