"""The arrows in the figure of a layer, and the residual stream around its halves, between placed panels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from attnviz.commands.explain.path import Node, PathPlan
from attnviz.figures.look import Look
from attnviz.figures.page import MARGIN

__all__ = ["Placed", "draw_lines"]

_RESIDUAL = {"light": "#b35806", "dark": "#f1a340"}
_STREAM, _TURN, _FLOOR = 0.15, 0.65, 0.85
"""Heights of the residual stream, of turns to the next row and of the values, as shares of the strip between rows."""

_Point = tuple[float, float]


@dataclass(frozen=True)
class Placed:
    """A node where the layout placed it, in inches from the lower left: its panels, and all with its words."""

    node: Node
    row: int
    boxes: tuple[Bbox, ...]
    outer: Bbox

    @classmethod
    def of(cls, node: Node, row: int, artists: Sequence[Axes | Text]) -> "Placed":
        """Find the place of what was drawn."""
        boxes, outer = [], []
        for artist in artists:
            drawn = artist.get_bbox_patch() if isinstance(artist, Text) else artist
            assert drawn is not None
            boxes.append(drawn.get_window_extent())
            outer.append((artist.get_tightbbox() if isinstance(artist, Axes) else None) or boxes[-1])
        inches = artists[0].get_figure(root=True).dpi_scale_trans.inverted()  # type: ignore[union-attr]
        return cls(node, row, tuple(box.transformed(inches) for box in boxes), Bbox.union(outer).transformed(inches))

    @property
    def box(self) -> Bbox:
        """The panel, or the middle one of three."""
        return self.boxes[len(self.boxes) // 2]

    @property
    def end(self) -> _Point:
        """Where an arrow leaves it."""
        return self.box.x1, _middle(self.box)


def draw_lines(
    page: Figure, plan: PathPlan, placed: Sequence[Placed], strips: Sequence[Bbox], look: Look, letters: _Point
) -> None:
    """Draw all arrows, the residual stream, and the names of the bands.

    Args:
        page: the figure, in its final layout.
        plan: of it.
        placed: every node, in the order of computing.
        strips: above each row, free for lines.
        look: theme.
        letters: points of titles and of other words.
    """
    muted, colour = look.greys.quiet, _RESIDUAL[look.theme]
    style: dict[str, Any] = {"transform": page.dpi_scale_trans, "parse_math": False}
    for one, other in pairwise(placed):
        paths = _turned(one, other, strips[other.row]) if one.row < other.row else _straight(one, other)
        for path in paths:
            _arrow(page, path, muted, 0.9)
    _arrow(page, _values(placed, strips), muted, 0.9)
    for name, band in plan.bands:
        nodes, placed = placed[: len(band)], placed[len(band) :]
        path = _residual(nodes, strips, page.get_figwidth() - 0.7 * MARGIN)
        _arrow(page, path, colour, 1.4)
        page.add_artist(Line2D(*np.transpose(path[:1]), marker="o", ms=4, color=colour, transform=page.dpi_scale_trans))
        (left, level), (right, _) = path[1:3]
        page.text(nodes[0].box.x0, level + 0.03, name, size=0.92 * letters[0], weight="bold", color=muted, **style)
        page.text((left + right) / 2, level + 0.035, "residual", size=letters[1], color=colour, ha="center", **style)


def _arrow(page: Figure, points: Sequence[_Point], colour: str, width: float) -> None:
    arrow = FancyArrowPatch(path=Path(points), arrowstyle="-|>,head_width=1.8,head_length=3.4", mutation_scale=1,
                            joinstyle="miter", color=colour, lw=width, transform=page.dpi_scale_trans)  # fmt: skip
    page.add_artist(arrow)


def _middle(box: Bbox) -> float:
    return float(box.y0 + box.y1) / 2


def _straight(one: Placed, other: Placed) -> Iterator[list[_Point]]:
    """From a node to its right neighbour; queries and keys to the scores each on its way."""
    turn = _gap(one, other, 0.6)
    shares = (0.8, 0.5) if len(one.boxes) > 1 else (0.5,)
    starts = one.boxes[:2] if len(one.boxes) > 1 else one.boxes
    for start, share in zip(starts, shares, strict=True):
        for box in other.boxes:
            entry, level = box.y0 + share * box.height, _middle(start)
            yield [(start.x1, level), (turn, level), (turn, entry), (box.x0, entry)]


def _values(placed: Sequence[Placed], strips: Sequence[Bbox]) -> list[_Point]:
    """From the values below everything to where they are weighted."""
    split = next(index for index, each in enumerate(placed) if len(each.boxes) > 1)
    after = next(i for i, each in enumerate(placed) if each.node.panels and each.node.panels[0].name == "weighted")
    three, weighted, strip = placed[split], placed[after], strips[placed[split].row + 1]
    down, rise = _gap(three, placed[split + 1], 0.6), _gap(placed[after - 1], weighted, 0.5)
    level, floor = _middle(three.boxes[2]), strip.y0 + _FLOOR * strip.height
    entry = weighted.box.y0 + 0.2 * weighted.box.height
    return [
        (three.boxes[2].x1, level),
        (down, level),
        (down, floor),
        (rise, floor),
        (rise, entry),
        (weighted.box.x0, entry),
    ]


def _turned(one: Placed, other: Placed, strip: Bbox) -> Iterator[list[_Point]]:
    """From the end of a row to the beginning of the next one."""
    out, back, level = one.outer.x1 + 0.06, 0.6 * MARGIN, strip.y0 + _TURN * strip.height
    for box in other.boxes:
        yield [one.end, (out, one.end[1]), (out, level), (back, level), (back, _middle(box)), (box.x0, _middle(box))]


def _residual(band: Sequence[Placed], strips: Sequence[Bbox], edge: float) -> list[_Point]:
    """From the first panel of a band above everything to its sum."""
    start, total = band[0], next(each for each in band if each.node.operation == "+")
    left = _gap(start, band[1], 0.25) if band[1].row == start.row else start.outer.x1 + 0.04
    up, down = (strips[each.row].y0 + _STREAM * strips[each.row].height for each in (start, total))
    centre = (total.box.x0 + total.box.x1) / 2
    across = [(centre, up)] if start.row == total.row else [(edge, up), (edge, down), (centre, down)]
    return [(left, start.end[1]), (left, up), *across, (centre, total.box.y1)]


def _gap(one: Placed, other: Placed, share: float) -> float:
    """A place between neighbours and their words."""
    return float(one.outer.x1 + share * (other.outer.x0 - one.outer.x1))
