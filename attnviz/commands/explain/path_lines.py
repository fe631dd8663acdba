"""The lines of the figure of a layer: arrows from panel to panel and the residual stream, in inches of the page."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.transforms import Bbox

from attnviz.figures.page import MARGIN

Point = tuple[float, float]

STACKS = {
    "split": (("query", "key", "value"), 3),
    "normed heads": (("normed query", "normed key"), 3),
    "turned heads": (("turned query", "turned key"), 3),
    "gates": (("gate", "expanded"), 2),
    "activated gate": (("activated",), 2),
}
"""Panels that stand one above the other, from the top, and for how many there is room."""

GAP, STRIP = 0.13, 0.35
"""Inches between neighbours in a row, and of the free strip above a row."""

_STREAM, _TURN, _FLOOR = 0.15, 0.65, 0.85
"""Heights of the residual stream, of turns to the next row and of the values, as shares of the strip between rows."""


class Block(NamedTuple):
    """Panels or an operation with their words; counted from the left end and the middle of the row until placed."""

    name: str
    boxes: list[Bbox]  # of the panels, from the top, or of the operation
    right: float
    above: float
    below: float
    strip: float = 0.0  # lower end of the free strip above its row

    @property
    def box(self) -> Bbox:
        """The middle one."""
        return self.boxes[len(self.boxes) // 2]


def arrows(blocks: Sequence[Block]) -> Iterator[list[Point]]:
    """From every node to the next; what a head's values and a gate multiply goes below the nodes between."""
    for one, other in pairwise(blocks):
        side_by_side = one.name in STACKS and other.name in STACKS
        if side_by_side and one.strip == other.strip:
            for start, box in zip(one.boxes, other.boxes, strict=False):
                yield [(start.x1, middle(start)), (box.x0, middle(box))]
            continue
        turn, level = one.right + 0.6 * GAP, other.strip + _TURN * STRIP
        around = () if one.strip == other.strip else (level, 0.6 * MARGIN)  # to the next row
        for start, share in _starts(one):
            for box in other.boxes:
                yield _bent(start.x1, middle(start), turn, *around, box.y0 + share * box.height, box.x0)
    named = {block.name: block for block in blocks}
    yield _values(named)
    if "gates" in named:  # below the activated gate, to where it multiplies
        start, level = named["gates"].boxes[1], middle(named["gates"].boxes[1])
        yield [(start.x1, level), (named["gated"].box.x0, level)]


def _starts(one: Block) -> list[tuple[Bbox, float]]:
    """The panels that an arrow leaves from, and at which share of the next panel's height it arrives."""
    if one.name == "activated gate":
        return [(one.box, 0.8)]
    return [(one.box, 0.5)] if len(one.boxes) == 1 else [(one.boxes[0], 0.8), (one.boxes[1], 0.5)]


def _values(named: dict[str, Block]) -> list[Point]:
    """From the values to where they are weighted: below the row, or above it where they stand in the row before."""
    split, pattern, weighted = (named[name] for name in ("split", "pattern", "weighted"))
    below = split.strip == weighted.strip
    entry = weighted.box.y0 + (0.2 if below else 0.8) * weighted.box.height
    strips = [block.strip for block in named.values() if block.strip < split.strip]
    floor = max(strips) + _FLOOR * STRIP
    start, turns = split.boxes[2], (split.right + 0.6 * GAP, floor, pattern.right + 0.5 * GAP, entry)
    return _bent(start.x1, middle(start), *turns, weighted.box.x0)


def residual(half: Sequence[Block], edge: float) -> list[Point]:
    """From beside the first panel of a half above everything to its sum."""
    start, total = half[0], next(block for block in half if block.name == "+")
    left, centre = start.right + 0.25 * GAP, (total.box.x0 + total.box.x1) / 2
    up, down = (block.strip + _STREAM * STRIP for block in (start, total))
    turns = (up, centre) if up == down else (up, edge, down, centre)
    return _bent(left, middle(start.box), left, *turns, total.box.y1)[1:]


def _bent(x: float, y: float, *turns: float) -> list[Point]:
    """A line from (x, y) that goes across to the first of the turns, up or down to the next, and so on."""
    points = [(x, y)]
    for number, turn in enumerate(turns):
        x, y = (x, turn) if number % 2 else (turn, y)
        points.append((x, y))
    return points


def middle(box: Bbox) -> float:
    """The height of a box's middle."""
    return float(box.y0 + box.y1) / 2
