"""Where everything stands in the figure of a layer: panels in rows, arrows between them, the residual around them.

All lengths are pixels, from the top left. A layer is two bands, attention and feed-forward network; each begins with
a panel of the residual stream, from which a line leads around the band to the sum at its end. Where a band is wider
than the page, it goes on in another row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from attnviz.commands.explain.path_panels import Panel

__all__ = ["TURN_OUT", "Layout", "Line", "Node", "Placed", "Sizes", "arrange", "row_width", "rows_of"]


@dataclass(frozen=True)
class Sizes:
    """Pixels between things, for a page of some width.

    Attributes:
        gap: between neighbours in a row.
        operation: width of a sum or a norm.
        above: of title and formula.
        below: of shape and scale.
        channel: above the titles, for the residual line.
        corridor: below the shapes, for the third line under three panels and the line of the values.
        turn: between rows, for the arrow from one to the next.
    """

    gap: float = 34
    operation: float = 24
    above: float = 36
    below: float = 36
    channel: float = 22
    corridor: float = 30
    turn: float = 18


@dataclass(frozen=True)
class Node:
    """One thing in a row: a panel, three panels one above the other, a sum (``+``) or a norm (``norm``).

    Attributes:
        panels: none for an operation.
        operation: ``+``, ``norm`` or empty.
        joined: whether it must stand in the same row as the node before.
    """

    panels: tuple[Panel, ...] = ()
    operation: str = ""
    joined: bool = False

    def width(self, sizes: Sizes) -> float:
        """Pixels."""
        return max((panel.width for panel in self.panels), default=sizes.operation)

    @property
    def height(self) -> float:
        """Pixels of the panels, with air between three."""
        return sum(panel.height for panel in self.panels) + _AIR * max(len(self.panels) - 1, 0)


@dataclass(frozen=True)
class Placed:
    """A node in its place: its left edge, and the middle of its row."""

    node: Node
    left: float
    middle: float
    width: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.left + self.width

    def panels(self) -> Iterator[tuple[Panel, float, float]]:
        """Each panel with its left and top."""
        top = self.middle - self.node.height / 2
        for panel in self.node.panels:
            yield panel, self.left, top
            top += panel.height + _AIR


@dataclass(frozen=True)
class Line:
    """A line through points; an arrow where it ends in one, with a dot where it starts with one."""

    points: tuple[tuple[float, float], ...]
    arrow: bool = True
    residual: bool = False


@dataclass
class Layout:
    """Everything in its place.

    Attributes:
        placed: nodes.
        lines: between them.
        height: of it all.
        names: of the bands, with left and baseline.
    """

    placed: list[Placed] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    height: float = 0.0
    names: list[tuple[str, float, float]] = field(default_factory=list)


TURN_OUT = 8.0
"""Pixels from the end of a row to the line that goes down to the next one."""

_AIR = 9.0
_DOT = 0.3
_BUS = 0.62


def row_width(row: Sequence[Node], sizes: Sizes) -> float:
    """Pixels that a row takes."""
    return sum(node.width(sizes) for node in row) + sizes.gap * (len(row) - 1)


def rows_of(band: Sequence[Node], room: float, sizes: Sizes) -> list[list[Node]]:
    """As many nodes in each row as fit, those that belong together in one."""
    groups: list[list[Node]] = []
    for node in band:
        if node.joined and groups:
            groups[-1].append(node)
        else:
            groups.append([node])
    rows: list[list[Node]] = []
    for group in groups:
        if rows and row_width([*rows[-1], *group], sizes) <= room:
            rows[-1].extend(group)
        else:
            rows.append(list(group))
    return rows


def arrange(bands: Sequence[tuple[str, Sequence[Node]]], left: float, room: float, sizes: Sizes) -> Layout:
    """Place the bands below each other.

    Args:
        bands: name and nodes of each.
        left: where rows begin.
        room: what a row may take; the residual line of a longer band runs right of it.
        sizes: pixels between things.
    """
    found, top = Layout(), 0.0
    before: Placed | None = None
    for name, band in bands:
        rows, first = rows_of(band, room, sizes), len(found.placed)
        found.names.append((name, left - 9, top + sizes.channel * 0.4))
        for row in rows:
            tallest = max(node.height for node in row)
            corridor = sizes.corridor if any(len(node.panels) == 3 for node in row) else 0
            middle = top + sizes.channel + sizes.above + tallest / 2
            placed = _placed_row(row, left, middle, sizes)
            if before is not None:
                _turn(found, before, placed[0], top - sizes.turn / 2, left)
            _row_lines(found, placed, sizes)
            found.placed += placed
            before = placed[-1]
            top = middle + tallest / 2 + sizes.below + corridor + sizes.turn
        _residual(found, found.placed[first:], left + room, sizes)
    found.height = top - sizes.turn
    return found


def _placed_row(row: Sequence[Node], left: float, middle: float, sizes: Sizes) -> list[Placed]:
    placed: list[Placed] = []
    for node in row:
        width = node.width(sizes)
        placed.append(Placed(node, left, middle, width))
        left += width + sizes.gap
    return placed


def _row_lines(found: Layout, placed: Sequence[Placed], sizes: Sizes) -> None:
    for one, other in pairwise(placed):
        if len(other.node.panels) == 3:
            found.lines += _to_three(one, other, sizes)
        elif len(one.node.panels) == 3:
            found.lines += _from_three(one, other, placed, sizes)
        else:
            found.lines.append(Line(((one.right, one.middle), (other.left, one.middle))))


def _heights(three: Placed) -> list[float]:
    return [top + panel.height / 2 for panel, _, top in three.panels()]


def _to_three(one: Placed, three: Placed, sizes: Sizes) -> list[Line]:
    bus = one.right + _BUS * sizes.gap
    ends = _heights(three)
    lines = [Line(((one.right, one.middle), (bus, one.middle)), arrow=False)]
    lines.append(Line(((bus, ends[0]), (bus, ends[-1])), arrow=False))
    return [*lines, *(Line(((bus, end), (three.left, end))) for end in ends)]


def _from_three(three: Placed, scores: Placed, row: Sequence[Placed], sizes: Sizes) -> list[Line]:
    """Queries and keys to the scores, the values below them to where they are weighted."""
    query, key, value = _heights(three)
    middle = three.right + sizes.gap / 2
    entry = scores.middle - scores.node.height * 0.3
    weighted = next(node for node in row if node.node.panels and node.node.panels[0].name == "weighted")
    floor = three.middle + three.node.height / 2 + sizes.below + sizes.corridor * 0.7
    rise = weighted.left - sizes.gap * 0.5
    enters = weighted.middle + weighted.node.height * 0.3
    return [
        Line(((three.right, query), (middle, query), (middle, entry), (scores.left, entry))),
        Line(((three.right, key), (scores.left, key))),
        Line(((three.right, value), (middle, value), (middle, floor), (rise, floor), (rise, enters),
              (weighted.left, enters))),
    ]  # fmt: skip


def _turn(found: Layout, before: Placed, after: Placed, level: float, left: float) -> None:
    """From the end of a row to the beginning of the next one."""
    out, back = before.right + TURN_OUT, left - 14
    ends = _heights(after) if after.node.panels else [after.middle]
    path = ((before.right, before.middle), (out, before.middle), (out, level), (back, level), (back, ends[-1]))
    found.lines.append(Line((*path, (after.left, ends[-1]))))
    found.lines += [Line(((back, end), (after.left, end))) for end in ends[:-1]]


def _residual(found: Layout, band: Sequence[Placed], edge: float, sizes: Sizes) -> None:
    """From the first panel of a band around everything to the sum at its end."""
    start, total = band[0], next(node for node in band if node.node.operation == "+")
    from_x, to_x = start.right + _DOT * sizes.gap, total.left + total.width / 2
    head = total.middle - sizes.operation / 2
    up = _ceiling(band, start, sizes)
    points = [(from_x, start.middle), (from_x, up)]
    if total.middle != start.middle:
        down = _ceiling(band, total, sizes)
        points += [(edge + 12, up), (edge + 12, down), (to_x, down)]
    else:
        points += [(to_x, up)]
    found.lines.append(Line((*points, (to_x, head)), residual=True))


def _ceiling(band: Sequence[Placed], of: Placed, sizes: Sizes) -> float:
    """The height of the residual line above a row."""
    tallest = max(node.node.height for node in band if node.middle == of.middle)
    return of.middle - tallest / 2 - sizes.above - sizes.channel * 0.3
