"""A text in lines: its tokens shaded by value, or arcs between its words.

An arc goes from dependent to head, solid where a head finds it, dashed with a cross where not; or it is a step of a
path.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, groupby
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection, PathCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.path import Path

from attnviz.figures.fonts import drawable, fitted, fitted_token, put_text, text_width
from attnviz.figures.matrix import Array, cell_points, contrasting_ink
from attnviz.figures.page import MARGIN, PIXEL, ChartPlan, ColourScale, run_layout
from attnviz.figures.style import MISSED_DASHES, Style, text_colour
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


# font sizes of words and of relations in points; white space as a multiple of the former
_ARC_LETTERS, _NAME, _ARC_SPACE = 8.0, 6.0, 0.9
_STEP, _FIRST, _LEAST, _LINE, _AFTER, _GAP = 8.0, 9.0, 2.0, 12.0, 6.0, 9.0  # points
_BESIDE, _TIP, _BEND = 3.5, 2.4, 8.0  # points: between arcs at a word, half of an arrow's width, of a corner
MOST_INCHES = 6.7  # of all sentences: with title, notes and legend a figure is at most 9 high
_BOLD = 1.3
_CROSS: dict[str, Any] = {"marker": "x", "markersize": 4, "markeredgewidth": _BOLD}


class Arc(NamedTuple):
    """An arc between two words: found or missed by a head, or None for context."""

    dependent: int
    head: int
    name: str
    found: bool | None = None
    step: bool = False  # of a path, which is neither found nor missed: no legend

    @property
    def is_context(self) -> bool:
        return self.found is None and not self.step

    def ink(self, style: Style) -> str:
        """The colour of its line."""
        if self.step:
            return text_colour(style)
        return style.frame if self.found is None else style.verdict(self.found)


class Sentence(NamedTuple):
    """The text with the arcs of one head."""

    name: str  # above it
    beside: str  # second part of the heading
    arcs: tuple[Arc, ...]


@dataclass(frozen=True, kw_only=True)
class ArcsPlan(ChartPlan):
    """Copies of one text, each with its arcs."""

    exact = True

    words: tuple[Piece, ...]
    blocks: tuple[Sentence, ...]
    folded: bool = False  # whether an ellipsis replaces runs of lines without an arc

    def _height(self, room: float) -> float:  # of all sentences on lines of a width, both in points
        lines = text_lines(self.words, _ARC_LETTERS, room, _ARC_SPACE)
        rows = [sum(map(_row_height, _kept(self.folded, lines, block, room))) for block in self.blocks]
        return sum(_HEADING + _AFTER + height for height in rows)

    def body(self, style: Style) -> tuple[float, float]:
        """Width of the page, and height of all sentences with their arcs, in inches."""
        return prose_width(self.words, style, _ARC_SPACE), self._height(_room(self.words, style)) / 72

    def handles(self, style: Style) -> list[Line2D]:
        """The kinds of arcs that there are."""
        kinds = {arc.found for block in self.blocks for arc in block.arcs if not arc.step}
        looks: dict[bool | None, dict[str, Any]] = {
            True: {"label": "found", "color": style.verdict(True), "linewidth": _BOLD},
            False: {"label": "missed", "color": style.verdict(False), "linewidth": _BOLD, "linestyle": MISSED_DASHES},
            None: {"label": "other relations", "color": style.frame, "linewidth": PIXEL},
        }
        looks[False] |= _CROSS
        return [Line2D([], [], **look) for kind, look in looks.items() if kind in kinds]

    def draw(self, ax: Axes, style: Style) -> PathCollection:
        """Draw sentences with arcs on the caller's Axes; returns the arcs of the last sentence."""
        room, height = in_points(ax)
        ax.set(xlim=(0, room), ylim=(max(height, self._height(room)), 0))
        top = 0.0
        arcs = PathCollection([])
        lines = text_lines(self.words, _ARC_LETTERS, room, _ARC_SPACE)
        for block in self.blocks:
            write_heading(ax, block.name, block.beside, top, room, style)
            top += _HEADING
            for row in _kept(self.folded, lines, block, room):
                if row is None:
                    put_text(ax, lines[0][0].x, top + _GAP / 2, "…", size=_ARC_LETTERS, color=style.muted)
                    top += _GAP
                else:
                    arcs, top = _draw_line(ax, *row, top, room, style)
            top += _AFTER
        return arcs


@dataclass
class _Span:
    """An arc's extent in one line: between two words, or to the edge if the other is in another line."""

    arc: Arc
    ends: list[float]  # where it begins and where it ends
    here: list[bool]  # whether each end is at a word of this line, not its edge
    reach: int  # from word to word; of two arcs, the one that spans the other has the larger
    level: int = 0

    @property
    def low(self) -> float:
        return min(self.ends)

    @property
    def high(self) -> float:
        return max(self.ends)

    @property
    def name(self) -> str:  # name of its relation; a missed arc has a cross instead
        return "" if self.arc.found is False else drawable(self.arc.name)

    @property
    def lacking(self) -> float:  # points by which the arc is too short for its name; 0 without a name
        return points_of(self.name, _NAME) + 6 - (self.high - self.low) if self.name else 0.0

    @property
    def is_short(self) -> bool:  # whether the name stands above the arc; never for one that continues in another line
        return self.lacking > 0 and all(self.here)

    @property
    def sides(self) -> tuple[float, float]:  # left and right end, with its name
        more = max(0.0, self.lacking - 4) / 2 if self.is_short else 0.0
        return self.low - more, self.high + more


_Row = tuple[Sequence[Placed], list[_Span]]


def in_several_lines(words: Sequence[Piece], style: Style) -> bool:
    """Whether a text takes several lines, so that arcs may go on from one to the next."""
    return len(text_lines(words, _ARC_LETTERS, _room(words, style), _ARC_SPACE)) > 1


def leaves_out_lines(folded: bool, words: Sequence[Piece], blocks: Sequence[Sentence], style: Style) -> bool:
    """Whether a folded picture leaves out lines, which have no arc or do not fit."""
    room = _room(words, style)
    lines = text_lines(words, _ARC_LETTERS, room, _ARC_SPACE)
    return any(row is None for block in blocks for row in _kept(folded, lines, block, room))


def _room(words: Sequence[Piece], style: Style) -> float:  # width of a line in points
    return (prose_width(words, style, _ARC_SPACE) - 2 * MARGIN) * 72


def _row_height(row: _Row | None) -> float:
    return _GAP if row is None else _above(row[1]) + _LINE


def _kept(folded: bool, lines: Sequence[Sequence[Placed]], block: Sentence, room: float) -> Iterator[_Row | None]:
    """Lines of a sentence with the arcs above; None for a run of lines left out, and for those that do not fit."""
    rows = ((line, _stacked(line, block.arcs, room)) for line in lines)
    left = MOST_INCHES * 72 - _HEADING - _AFTER - _GAP
    for empty, run in groupby(rows, lambda row: folded and not row[1]):
        some = list(run)
        for row in [None] if empty and len(some) > 1 else some:
            left -= _row_height(row)
            if left < 0:
                yield None
                return
            yield row


def _above(spans: Sequence[_Span]) -> float:  # height in points of the arcs above a line
    return _FIRST + _STEP * max(span.level for span in spans) if spans else _LEAST


def _stacked(line: Sequence[Placed], arcs: Iterable[Arc], room: float) -> list[_Span]:
    """Arcs that begin or end in a line, muted ones first, each high enough to clear those, and names, below it."""
    middles = {placed.number: placed.x + placed.width / 2 for placed in line}
    leftwards = line[0].x > line[-1].x or (len(line) == 1 and line[0].x > room / 2)
    spans: list[_Span] = []
    sides: dict[tuple[int, bool], list[tuple[int, _Span]]] = {}
    for arc in sorted(arcs, key=lambda arc: not arc.is_context):
        words = arc.dependent, arc.head
        xs = [middles.get(word, room if (word > max(middles)) != leftwards else 0.0) for word in words]
        span = _Span(arc, xs, [word in middles for word in words], abs(words[0] - words[1]))
        if any(span.here):
            spans.append(span)
        for end, word in enumerate(words):
            if span.here[end]:
                sides.setdefault((word, xs[end] < sum(xs) / 2), []).append((end, span))
    widths = {placed.number: placed.width for placed in line}
    for (word, rightwards), several in sides.items():  # at one word, the longest innermost, so that none cross
        step = min(_BESIDE, widths[word] / 2 / (len(several) + 0.5))
        for rank, (end, span) in enumerate(sorted(several, key=lambda one: -one[1].reach)):
            span.ends[end] += step * (rank + 0.6) * (1 if rightwards else -1)
    ranked = sorted(spans, key=lambda span: (span.reach, span.low))
    for rank, span in enumerate(ranked):
        low, high = span.sides
        others = ((other.level, *other.sides) for other in ranked[:rank])
        below = (level for level, left, right in others if left < high and low < right)
        span.level = 1 + span.is_short + max(below, default=0)
    return spans


def _draw_line(
    ax: Axes, line: Sequence[Placed], above: Sequence[_Span], top: float, room: float, style: Style
) -> tuple[PathCollection, float]:
    base = top + _above(above)
    foot = base + _LINE
    for placed in line:
        middle = placed.x + placed.width / 2
        put_text(ax, middle, (base + foot) / 2, placed.text, size=_ARC_LETTERS, ha="center", color=text_colour(style))
    heights = [base - _FIRST - _STEP * (span.level - span.is_short - 0.6) for span in above]
    bows = [_bow(span, base, height) for span, height in zip(above, heights, strict=True)]
    inks = [span.arc.ink(style) for span in above]
    arcs = PathCollection(
        bows,
        facecolors="none",
        edgecolors=inks,
        zorder=1.5,
        linewidths=[PIXEL if span.arc.is_context else _BOLD for span in above],
        linestyles=[MISSED_DASHES if span.arc.found is False else "-" for span in above],
    )
    ax.add_collection(arcs, autolim=False)
    for span, ink in zip(above, inks, strict=True):
        if span.here[1]:
            ax.plot(span.ends[1], base - _TIP, "v", color=ink, markersize=2 * _TIP, markeredgewidth=0)
    for span, height in zip(above, heights, strict=True):
        legs = [x for other in above if other.level > span.level for x in compress(other.ends, other.here)]
        _mark(ax, span, height, [0.0, *legs, room], style)
    return arcs, foot


def _bow(span: _Span, base: float, height: float) -> Path:
    """Path of an arc from one word over to the other; if that is in another line, past the edge, which clips it."""
    (low, at_low), (high, at_high) = sorted(zip(span.ends, span.here, strict=True))
    low, high = low - (0 if at_low else 2 * _BEND), high + (0 if at_high else 2 * _BEND)
    bend = min(_BEND, (high - low) / 2)
    corners = [
        (low, height),
        (low, height),
        (low + bend, height),
        (high - bend, height),
        (high, height),
        (high, height),
    ]
    curve = [Path.CURVE4] * 3
    return Path([(low, base), *corners, (high, base)], [Path.MOVETO, *curve, Path.LINETO, *curve])


def _mark(ax: Axes, span: _Span, height: float, legs: Sequence[float], style: Style) -> None:
    """Write the relation's name on its arc, or above a short one; a cross on a missed one."""
    middle = (span.low + span.high) / 2
    name = span.name
    if span.is_short:
        half = points_of(name, _NAME) / 2 + 0.6 + _BOLD / 2
        left, right = max(x for x in legs if x <= middle) + half, min(x for x in legs if x >= middle) - half
        height = height - 0.6 * _STEP
        if left <= right:
            middle = min(max(middle, left), right)
        elif not span.arc.step:  # whose name lies on the legs that it has no room between
            name = ""
    if span.arc.found is False:
        ax.plot([middle], [height], color=style.verdict(False), zorder=3, **_CROSS)
    elif name and (span.is_short or span.lacking <= 0):
        ink = style.muted if span.arc.is_context else span.arc.ink(style)
        box = {"facecolor": style.paper, "edgecolor": "none", "pad": 0.6}
        put_text(ax, middle, height, name, size=_NAME, ha="center", color=ink, zorder=3, bbox=box)
