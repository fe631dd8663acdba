"""Running text: words in lines, and tokens shaded by value."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.patches import Rectangle

from attnviz.figures.fonts import drawable, fitted, fitted_token, put_text, text_width
from attnviz.figures.matrix import Array, cell_points, contrasting_ink
from attnviz.figures.page import MARGIN, PIXEL, ChartPlan, ColourScale, run_layout
from attnviz.figures.style import Style, text_colour
from attnviz.wording import right_to_left

# font sizes in points: the largest with which all blocks fit their page, or else the last
LETTERS = (9.0, 8.0, 7.0, 6.0, 5.5)
HIGHEST = 9.0  # height of a page in inches; only a text too long for the smallest font size exceeds it
_WIDEST, _NARROWEST = 7.0, 3.3
_SPACE, _LEADING, _BOX = 0.32, 1.5, 1.3  # as multiples of the font size: white space, line pitch, height of a shade
_AIR, _HEADING, _BETWEEN = 0.3, 13.0, 7.0  # points: padding of a piece, of a block's name, after a block


class Piece(NamedTuple):
    """A token or word of a running text."""

    text: str
    space: bool = True  # white space before it
    breaks: bool = False  # a line may end before it, without white space
    begins: bool = False  # a line ends before it


class Placed(NamedTuple):
    """A piece in its line: index, text cut to fit, left end and width in points."""

    number: int
    text: str
    x: float
    width: float


class ShadedText(NamedTuple):
    """The text with a value for each piece."""

    name: str  # above it
    beside: str  # second part of the heading
    values: Array  # [n_pieces]


@dataclass(frozen=True, kw_only=True)
class TextPlan(ColourScale, ChartPlan):
    """Blocks of the same text."""

    exact = True

    pieces: tuple[Piece, ...]
    blocks: tuple[ShadedText, ...]
    framed: frozenset[int] = frozenset()  # pieces that attend

    def _height(self, size: float, room: float) -> float:  # of all blocks in points
        lines = len(text_lines(self.pieces, size, room))
        return len(self.blocks) * (_HEADING + lines * _LEADING * size + _BETWEEN)

    def body(self, style: Style) -> tuple[float, float]:
        """Width of the page, and height of all blocks, in inches."""
        width = prose_width(self.pieces, style)
        heights = [self._height(size, (width - 2 * MARGIN) * 72) / 72 for size in LETTERS]
        return width, next((height for height in heights if height <= HIGHEST - 1.5), heights[-1])

    def draw(self, ax: Axes, style: Style) -> PatchCollection:
        """Draw a shaded text on the caller's Axes, in the largest font size that fits; returns the shades."""
        room, height = in_points(ax)
        size = next((size for size in LETTERS if self._height(size, room) <= height + 1), LETTERS[-1])
        ax.set(xlim=(0, room), ylim=(max(height, self._height(size, room)), 0))
        lines = text_lines(self.pieces, size, room)
        top = 0.0
        high = _BOX * size
        pieces: list[tuple[Placed, Rectangle]] = []
        shades: list[float] = []
        for block in self.blocks:
            write_heading(ax, block.name, block.beside, top, room, style)
            for row, line in enumerate(lines):
                middle = top + _HEADING + (row + 0.5) * _LEADING * size
                pieces += [(placed, Rectangle((placed.x, middle - high / 2), placed.width, high)) for placed in line]
                shades += [block.values[placed.number] for placed in line]
            top += _HEADING + len(lines) * _LEADING * size + _BETWEEN
        colours = self.colour_map(style)
        # a hairline of paper tells the pieces of a word apart
        boxes = [box for _, box in pieces]
        shaded = PatchCollection(boxes, cmap=colours, norm=self.norm, edgecolors=style.paper, linewidths=PIXEL)
        shaded.set(array=shades, zorder=0.5)
        framed = [box for placed, box in pieces if placed.number in self.framed]
        frames = PatchCollection(framed, facecolors="none", edgecolors=style.ink, linewidths=1.1, zorder=2)
        for collection in (shaded, frames):
            ax.add_collection(collection, autolim=False)
        for (placed, box), colour in zip(pieces, colours(self.norm(shades)), strict=True):
            x, y = placed.x + placed.width / 2, box.get_y() + high / 2
            put_text(ax, x, y, placed.text, size=size, ha="center", color=contrasting_ink(colour))
        return shaded


def points_of(text: str, size: float) -> float:
    """Width of a text in points."""
    return text_width(drawable(text), size) * PIXEL


def in_points(ax: Axes) -> tuple[float, float]:
    """Set up Axes for drawing in points, settled and without frame; returns width and height."""
    ax.set(facecolor="none")
    ax.set_axis_off()
    run_layout(ax.figure)
    return cell_points(ax, (1, 1))


def _width(text: str, size: float) -> float:
    """Width of a piece with padding in points, scaled from the largest font size, since measuring is slow."""
    return points_of(text, LETTERS[0]) * size / LETTERS[0] + 2 * _AIR


def text_lines(pieces: Sequence[Piece], size: float, room: float, space: float = _SPACE) -> list[list[Placed]]:
    """Break pieces into lines of a width in points; words stay whole if they fit, scripts keep their direction.

    ``space``: width of white space as a multiple of the font size.
    """
    widths = [min(_width(piece.text, size), room) for piece in pieces]
    words: list[list[int]] = []  # runs of pieces between which no line should end
    for number, piece in enumerate(pieces):
        if not words or piece.space or piece.breaks or piece.begins:
            words.append([])
        words[-1].append(number)
    lines: list[list[int]] = []
    used = 0.0
    for word in words:
        wide = sum(widths[number] for number in word)
        for part in [word] if wide <= room else [[number] for number in word]:
            first = pieces[part[0]]
            gap = space * size * first.space
            wide = sum(widths[number] for number in part)
            if not lines or first.begins or used + gap + wide > room:
                lines.append([])
                used = gap = 0.0
            lines[-1] += part
            used += gap + wide
    leftwards = right_to_left(" ".join(piece.text for piece in pieces))

    def placed(line: Sequence[int]) -> Iterator[Placed]:
        """One line from its margin; runs of the other direction are reversed."""
        cells = [(number, space * size * (pieces[number].space and index > 0)) for index, number in enumerate(line)]
        x = 0.0
        for turned, run in groupby(cells, lambda cell: right_to_left(pieces[cell[0]].text) != leftwards):
            numbers, gaps = map(list, zip(*run, strict=True))
            if turned:  # words and the gaps before them; the first gap stays first
                numbers, gaps = numbers[::-1], [gaps[0], *gaps[:0:-1]]
            for number, gap in zip(numbers, gaps, strict=True):
                x += gap
                text, wide = pieces[number].text, widths[number]
                text = drawable(text) if wide < room else fitted_token(text, size, (wide - 2 * _AIR) / PIXEL)
                yield Placed(number, text, room - x - wide if leftwards else x, wide)
                x += wide

    return [list(placed(line)) for line in lines]


def prose_width(pieces: Sequence[Piece], style: Style, space: float = _SPACE) -> float:
    """Width of a page in inches: that of the text on one line, at most that of a journal's page."""
    if style.room is not None:
        return style.room
    whole = sum(_width(piece.text, LETTERS[0]) + space * LETTERS[0] * piece.space for piece in pieces)
    return min(_WIDEST, max(_NARROWEST + 1, whole / 72 + 2 * MARGIN + 0.05))


def write_heading(ax: Axes, name: str, beside: str, top: float, room: float, style: Style) -> None:
    """Write the heading of a block: its name, and the rest as far as it fits."""
    name = fitted(name, 8, room / PIXEL, "bold")
    wide = text_width(name, 8, "bold") * PIXEL + 6
    after = fitted(beside, 7, max(room - wide, 0) / PIXEL)
    middle = top + _HEADING / 2
    if name.strip("…"):
        put_text(ax, 0, middle, name, size=8, weight="bold", color=text_colour(style))
    if after.strip("…"):
        put_text(ax, wide, middle, after, size=7, color=style.muted)
