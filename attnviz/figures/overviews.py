"""The overview planned: every head of a model in one picture, labelled and marked by the family of its role.

Sizes are in pixels, as in :mod:`attnviz.figures.heatmaps`; :mod:`attnviz.figures.overview_drawing` draws the plan.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.colors import to_rgb

from attnviz.commands.heads.findings import Findings, HeadFindings
from attnviz.errors import UsageError
from attnviz.figures.colours import Array, Pixels, colour_levels, colour_table, magnified
from attnviz.figures.families import FAMILIES, NO_ROLE, Family, family_of_label
from attnviz.figures.fonts import text_width, wrapped
from attnviz.figures.heatmaps import DPI, each_pattern, max_pool
from attnviz.figures.look import PLAIN, Look
from attnviz.model.head_ids import HeadId
from attnviz.model.tokens import visible
from attnviz.model.wording import counted, quoted

__all__ = ["LegendEntry", "OverviewPlan", "labels_from_profile", "model_overview_plan", "plan_overview"]

_LARGEST = 120
_WIDEST_LEGEND = 860
_NARROW = 5.0
_BETWEEN, _LEAST_PITCH, _HEADER = 5, 10, 15
"""Pixels at :data:`DPI`: between squares, of the narrowest column, and for the names of columns above them."""


@dataclass(frozen=True)
class LegendEntry:
    """One family of the legend, what it is called there, and where its mark is centred in the image."""

    family: Family
    name: str
    left: int
    middle: int


@dataclass(frozen=True)
class OverviewPlan:
    """Many heads in one picture, a row a layer and a column a head.

    Attributes:
        image: [height, width, 3], the grid of patterns, frames included, a pixel a pixel; below it is the room for
            the legend.
        cells: for each head its id, its label, and the left and top of its pattern in the image.
        layers: the layers from top to bottom, and the tops of their rows.
        size: pixels of one pattern.
        pitch: pixels from one column of the grid to the next.
        title: what is shown, first line in bold.
        notes: how to read it.
        legend: the families that occur.
        look: theme, scale and width.
        pooled: how many rows and columns one cell of a pattern stands for.
        columns: heads named above the grid, and the middles of their columns, where there is no room for an id above
            each pattern; empty where there is.
    """

    image: Pixels
    cells: tuple[tuple[HeadId, str, int, int], ...]
    layers: tuple[tuple[int, int], ...]
    size: int
    pitch: int
    title: str
    notes: tuple[str, ...]
    legend: tuple[LegendEntry, ...] = ()
    look: Look = PLAIN
    pooled: int = 1
    columns: tuple[tuple[int, int], ...] = ()

    @property
    def dpi(self) -> int:
        """Pixels to the inch."""
        return _dpi(self.look)

    def pixels(self, length: float) -> int:
        """Pixels of a length that is given in pixels at :data:`DPI`."""
        return round(length * self.dpi / DPI)

    @property
    def origin(self) -> tuple[int, int]:
        """Left and top of the image in its figure, in pixels: room for layer names, title and notes."""
        more = len(self.heading) - 1
        if self.look.width is None:
            return 56, 52 + 28 * more + 20 * len(self.notes)
        return self.pixels(_margins(self.look)[0]), self.pixels(40 + 21 * more + 17 * len(self.notes))

    @cached_property
    def heading(self) -> tuple[str, ...]:
        """The title in lines."""
        size = 11 if self.look.width is None else 8.5
        return tuple(wrapped(self.title, size, self.dpi, _text_room(self.look, self.image.shape[1]), "bold"))

    @property
    def families(self) -> dict[HeadId, Family]:
        """The family of each head's label."""
        return {head: family_of_label(label) for head, label, _, _ in self.cells}


def plan_overview(
    heads: Iterable[tuple[HeadId, str, Array]],
    *,
    title: str,
    notes: Sequence[str] = (),
    unit: str = "token",
    look: Look = PLAIN,
    labels_note: str = "",
) -> OverviewPlan:
    """Plan one picture of all the given heads.

    Args:
        heads: id, label and pattern [n, n] of each, at least one; all of the same n. Patterns are
            pooled as they come, so an iterator need not hold them all.
        title: what is shown.
        notes: further lines; how to read the picture is added.
        unit: what a position is, ``token`` or ``word``.
        look: theme, scale and width.
        labels_note: what labels rest on besides the text.

    Raises:
        UsageError: the width is too small for so many columns.
    """
    small, n, pooled = _pooled(heads, _LARGEST * _dpi(look) // DPI)
    rows, columns = sorted({head.layer for head, _, _ in small}), sorted({head.head for head, _, _ in small})
    m = len(small[0][2])
    largest, pitch = _LARGEST, 0
    if look.width is not None:
        pitch = _narrow_pitch(len(columns), look)
        largest = pitch - _px(_BETWEEN, look)
        again = math.ceil(m / largest)
        small, pooled = [(head, label, max_pool(values, again)) for head, label, values in small], pooled * again
        m = len(small[0][2])
    size = m * max(1, largest // m)
    if look.width is not None and size < 0.85 * largest:
        size = largest  # cells differ by one pixel, a quarter of a point at most, rather than waste the room
    if look.width is None:
        pitch = max(size, 104) + 14
    header = _header(columns, pitch, size, look)
    above = _px(16, look) if header else _head_room(look)
    begin = _px(_HEADER, look) if header else 0
    image, cells = _grid(small, (rows, columns), (size, pitch, above, begin), look)
    text_room = _text_room(look, image.shape[1])
    room = max(image.shape[1], _WIDEST_LEGEND) if look.width is None else text_room
    legend, below = _legend([label for _, label, _, _ in cells], image.shape[0], room, look)
    paper = np.full((below, image.shape[1], 3), colour_table(look.theme)[0], dtype=np.uint8)
    lines = [*notes, " ".join([_reading(n, unit, look), *([labels_note] if labels_note else [])])]
    if pooled > 1:
        lines.append(f"Each pixel is the largest of {pooled} × {pooled} weights (pooled for drawing only).")
    note_size = 7.5 if look.width is None else 6.5
    lines = [line for note in lines for line in wrapped(note, note_size, _dpi(look), text_room)]
    height = size + above + _px(6, look)
    layers = tuple((layer, begin + rows.index(layer) * height + above) for layer in rows)
    image = np.concatenate([image, paper])
    return OverviewPlan(image, cells, layers, size, pitch, title, tuple(lines), legend, look, pooled, header)


def model_overview_plan(findings: Findings, heads: Sequence[HeadFindings], look: Look = PLAIN) -> OverviewPlan:
    """The plan of one picture with all the given heads."""
    model = findings.checkpoint
    count = f"{model.n_layers} layers × {model.n_heads} heads"
    if len(heads) < len(findings.heads):
        count = f"{len(heads)} of {len(findings.heads)} heads"
    dropped = f" ({findings.dropped})" if findings.dropped else ""
    return plan_overview(
        ((head.id, head.label, pattern) for head, pattern in each_pattern(findings, heads)),
        title=f"{visible(model.short_name)}: {count}{dropped}",
        notes=[quoted(text) for text in (findings.text, findings.pair) if text is not None],
        unit=findings.units.name,
        look=look,
        labels_note="Syntactic labels are those of the model’s stored profile." if labels_from_profile(heads) else "",
    )


def labels_from_profile(heads: Iterable[HeadFindings]) -> bool:
    """Whether any of the heads has its label from a stored profile of the model, and not from the text."""
    return any(head.deciding is not None and head.deciding.kind == "profile" for head in heads)


def _legend_name(family: Family, labels: Iterable[str]) -> str:
    """A family as the legend of an overview names it; heads without a role by their labels."""
    if family is not NO_ROLE:
        return family.name
    return " or ".join(sorted({label for label in labels if family_of_label(label) is NO_ROLE}))


def _pooled(
    heads: Iterable[tuple[HeadId, str, Array]], largest: int
) -> tuple[list[tuple[HeadId, str, Array]], int, int]:
    small: list[tuple[HeadId, str, Array]] = []
    n = pooled = 1
    for head, label, pattern in heads:
        n = len(pattern)
        pooled = math.ceil(n / largest)
        small.append((head, label, max_pool(pattern, pooled)))
    return small, n, pooled


def _grid(
    small: Sequence[tuple[HeadId, str, Array]],
    grid: tuple[list[int], list[int]],
    lengths: tuple[int, int, int, int],
    look: Look,
) -> tuple[Pixels, tuple[tuple[HeadId, str, int, int], ...]]:
    """The image without its legend, and the cells; lengths are size, pitch, above each pattern and above all."""
    rows, columns = grid
    size, pitch, above, begin = lengths
    table = colour_table(look.theme)
    height = size + above + _px(6, look)
    image = np.full((begin + len(rows) * height, len(columns) * pitch, 3), table[0], dtype=np.uint8)
    frame = np.round(np.array(to_rgb(look.greys.frame)) * 255).astype(np.uint8)
    cells = []
    for head, label, values in small:
        left, top = columns.index(head.head) * pitch + 1, begin + rows.index(head.layer) * height + above
        image[top - 1 : top + size + 1, left - 1 : left + size + 1] = frame
        vmax = float(values.max()) if look.scale == "per-head" else 1.0
        levels = colour_levels(values, vmax or 1.0, look.scale)
        image[top : top + size, left : left + size] = table[_enlarged(levels, size)]
        cells.append((head, label, left, top))
    return image, tuple(cells)


def _narrow_pitch(n_columns: int, look: Look) -> int:
    """Pixels from one column to the next in a figure of a chosen width.

    Raises:
        UsageError: too few.
    """
    assert look.width is not None
    beside = sum(_margins(look))
    pitch = min(_px(134, look), (round(look.width * _dpi(look)) - _px(beside, look)) // n_columns)
    if pitch < _px(_LEAST_PITCH, look):
        least = math.ceil((beside + _LEAST_PITCH * n_columns) * 10 / DPI) / 10
        raise UsageError(
            f"expected a width of at least {least:g} inches for an overview with {n_columns} heads in a row, found "
            f"{look.width:g}: choose a larger --width (width=...), fewer heads (--select), or other figures."
        )
    return pitch


def _header(columns: Sequence[int], pitch: int, size: int, look: Look) -> tuple[tuple[int, int], ...]:
    """Every nth head and the middle of its column, if an id above each pattern would run into the next one."""
    widest = text_width(f"H{columns[-1]}", 5.5, _dpi(look), "bold") + _px(3, look)
    if look.width is None or widest <= pitch:
        return ()
    step = math.ceil(widest / pitch)
    return tuple((columns[at], at * pitch + 1 + size // 2) for at in range(0, len(columns), step))


def _enlarged(levels: Pixels, size: int) -> Pixels:
    """Every cell as a square, all together of this size; of the same size where that is a multiple."""
    m = len(levels)
    if size % m == 0:
        return magnified(levels, size // m)
    nearest = np.arange(size) * m // size
    return levels[nearest][:, nearest]


def _legend(labels: Sequence[str], top: int, room: int, look: Look) -> tuple[tuple[LegendEntry, ...], int]:
    """The entries of the families that occur, in rows as wide as the room, and the height that they need."""
    present = {family_of_label(label) for label in labels}
    size = 7.0 if look.width is None else 6.0
    entries: list[LegendEntry] = []
    left, row = _px(8, look), 0
    for family in (family for family in FAMILIES if family in present):
        name = _legend_name(family, labels)
        width = math.ceil(text_width(name, size, _dpi(look))) + _px(40, look)
        if left > _px(8, look) and left + width > room:
            left, row = _px(8, look), row + 1
        entries.append(LegendEntry(family, name, left, top + _px(16 + 20 * row, look)))
        left += width
    return tuple(entries), _px(20 * (row + 1) + 8, look)


def _reading(n: int, unit: str, look: Look) -> str:
    nothing, most = ("white", "dark blue") if look.theme == "light" else ("black", "light blue")
    scale = {
        "shared": f"{nothing} is 0, {most} 1, the same for every head",
        "per-head": f"{nothing} is 0, {most} the largest weight of each head",
        "log": f"{nothing} is 0.0001 or less, {most} 1, log scale, the same for every head",
    }[look.scale]
    return f"In each square rows attend to columns ({counted(n, unit)}); {scale}."


def _dpi(look: Look) -> int:
    if look.width is None:
        return DPI
    return 4 * DPI if look.width < _NARROW else 2 * DPI  # where a square has few pixels, finer ones


def _px(length: float, look: Look) -> int:
    return round(length * _dpi(look) / DPI)


def _margins(look: Look) -> tuple[int, int]:
    """Left and right of the grid, in pixels at :data:`DPI`."""
    return (56, 116) if look.width is None else (34, 92 if look.scale == "shared" else 106)


def _text_room(look: Look, grid: int) -> int:
    """Pixels for title and notes beside a grid of so many."""
    if look.width is None:
        return max(grid + 56 + 116, 1020) - 56 - 16
    return round(look.width * _dpi(look)) - _px(_margins(look)[0] + 8, look)


def _head_room(look: Look) -> int:
    """Pixels above each pattern for its id and label."""
    return 38 if look.width is None else _px(30, look)
