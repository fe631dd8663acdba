"""What a head does: the picture of its card, one claim on it, and sentences with its hits and misses."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from attnviz.figures.fonts import drawable, fitted, fitted_token, put_text, text_width, wrapped
from attnviz.figures.heatmap import HeatmapPlan
from attnviz.figures.matrix import label_pixels, label_size
from attnviz.figures.page import (
    MARGIN,
    PIXEL,
    PagePlan,
    add_legend,
    dress_chart,
    freeze_layout,
    legend_height,
    page_width,
)
from attnviz.figures.style import DPI, Style
from attnviz.measures.estimates import Interval
from attnviz.profiles.examples import Example, Part, parts_of_text
from attnviz.wording import right_to_left, rounded, visible

_STACKED_BELOW = 5.0  # width of a page in inches below which there is one column

_TITLE, _WORD, _SMALL = 7.5, 7.0, 6.0  # font sizes in points of headings, of words, and of the line above them

# Inches: height of a sentence with its arc, of a heading, gap between columns, arc height.
_STRIP, _HEADING, _GAP, _ARC = 0.58, 0.24, 0.2, 0.23

_COLOURS = {"light": {"hit": "#0072B2", "miss": "#C44E00"}, "dark": {"hit": "#56B4E9", "miss": "#FF9E4A"}}

_FREE: dict[str, Any] = {"clip_on": False, "in_layout": False}  # placed in inches, whatever the layout
_ON_PAGE: dict[str, Any] = {"va": "baseline", **_FREE}

NamedText = tuple[str, Example]  # an example with its name, '' for none


def draw_sentences(ax: Axes, heading: str, strips: Sequence[NamedText], width: float, style: Style) -> None:
    """Draw a heading and sentences on Axes as wide as the page, in inches, in one column or two."""
    ax.set(xlim=(0, width - MARGIN), ylim=(_sentences_height(strips, width), 0), facecolor=style.paper)
    ax.axis("off")
    columns = _columns(width)
    room = (width - MARGIN * 1.5 - _GAP * (columns - 1)) / columns
    shown = fitted(heading, _TITLE, (width - 2 * MARGIN) * DPI, "bold")
    put_text(ax, MARGIN / 2, _HEADING * 0.7, shown, size=_TITLE, color=style.ink, weight="bold", **_ON_PAGE)
    for number, strip in enumerate(strips):
        row, column = divmod(number, columns)
        _draw_strip(ax, strip, (MARGIN / 2 + column * (room + _GAP), _HEADING + row * _STRIP), room, style)


def _sentences_height(strips: Sequence[NamedText], width: float) -> float:
    """Inches that :func:`draw_sentences` takes."""
    return _HEADING + _STRIP * -(-len(strips) // _columns(width))


def _columns(width: float) -> int:
    return 1 if width < _STACKED_BELOW else 2


def _draw_strip(ax: Axes, strip: NamedText, corner: tuple[float, float], room: float, style: Style) -> None:
    """Draw one sentence below its arc, in inches from the top left of the Axes."""
    (left, top), (name, example) = corner, strip
    kind = "hit" if example.hit else "miss"
    colour = _COLOURS[style.theme][kind]
    above = f"{name}: {example_words(example)}" if name else example_words(example)
    put_text(ax, left, top + 0.09, above, size=_SMALL, color=style.muted, **_ON_PAGE)
    baseline, x = top + _STRIP - 0.1, left
    centres: dict[str, float] = {}
    for part, shown, width in _fitting(example, room):
        if not (part.joined or x == left):
            x += text_width(" ", _WORD) / DPI
        ink = colour if "key" in part.ends else style.ink
        put_text(ax, x, baseline, shown, size=_WORD, color=ink, weight="bold" if part.ends else "normal", **_ON_PAGE)
        centres |= dict.fromkeys(part.ends, x + width / 2)
        x += width
    foot = baseline - 0.11
    if "gold" in centres:
        start, end = centres["query"], centres["gold"]
        if example.gold is not None and example.gold[0] != example.query:  # the right name attends
            start, end = centres["gold"], centres["key"]
        _arc(ax, start, end, foot, ec=style.muted, lw=1, ls=":")
        ax.plot(end, foot, "o", mfc=style.paper, mec=style.muted, ms=3, mew=0.8, **_FREE)
    start, end = centres["query"], centres["key"]
    thickness, alpha = 0.7 + 2.6 * example.weight, 0.4 + 0.6 * example.weight
    _arc(ax, start, end, foot, ec=colour, lw=thickness, alpha=alpha, ls="-" if example.hit else (0, (4, 1)))
    ax.plot(end, foot, "o" if example.hit else "X", color=colour, ms=4, mew=PIXEL, **_FREE)


def example_words(example: Example) -> str:
    """``miss, weight 0.52, right one 0.16``."""
    right = "" if example.hit or example.gold_weight is None else f", right one {rounded(example.gold_weight)}"
    return f"{'hit' if example.hit else 'miss'}, weight {rounded(example.weight)}{right}"


def _fitting(example: Example, room: float) -> list[tuple[Part, str, float]]:
    """Words around the pair that fit a width in inches, each as drawn and with its own width."""

    def laid(part: Part, room: float) -> tuple[Part, str, float]:
        weight = "bold" if part.ends else "normal"
        text = part.text if part.text.isprintable() and part.text.strip() else visible(part.text)
        shown = fitted_token(text, _WORD, room * DPI, weight)
        return part, shown, text_width(shown, _WORD, weight) / DPI

    words: list[tuple[Part, str, float]] = []
    for most in range(len(parts_of_text(example)), 0, -1):
        words = [laid(part, room / 2) for part in parts_of_text(example, most)]
        if sum(width for _, _, width in words) + text_width(" ", _WORD) / DPI * len(words) <= room:
            break
    else:
        words = [laid(part, room / (len(words) + 1)) for part, *_ in words]
    return words[::-1] if right_to_left(example.text) else words


def _arc(ax: Axes, start: float, end: float, foot: float, **properties: Any) -> None:
    if abs(end - start) < 0.02:
        start -= 0.09
    height = min(_ARC, 0.1 + 0.09 * abs(end - start)) * 4 / 3
    curve = [(start, foot), (start, foot - height), (end, foot - height), (end, foot)]
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    ax.add_patch(PathPatch(Path(curve, codes), fc="none", **_FREE, **properties))


_WIDTH, _LARGEST_SIDE = 7.0, 4.6  # inches: natural width of the page, largest side of the pattern

_SHARE = 0.46  # of the width, what the pattern has where tables stand beside it

_ROW, _COLUMN_GAP, _TABLE_GAP = 0.155, 0.09, 0.12  # inches: height of a row, gap between columns, gap below a table

_NARROWEST = 0.8  # inches to which each text of a table may be cut, before its last columns are left out


class PictureTable(NamedTuple):
    """A table as texts, the least important column last."""

    title: str
    columns: list[list[str]]  # the first cell is the header
    is_text: list[bool]  # whether a column stands on the left and may be cut

    @property
    def n_rows(self) -> int:
        return len(self.columns[0]) - 1


@dataclass(frozen=True)
class CardPlan(PagePlan):
    """The parts of a card."""

    feet: tuple[str, ...]  # below the picture
    pattern: HeatmapPlan
    tables: tuple[PictureTable, ...]
    sentences: tuple[NamedText, ...]  # hits, then failures
    heading: str  # of the sentences

    def page(self, style: Style) -> Figure:
        """A new figure of the card."""
        style, width = style.for_file("png"), page_width(style, _WIDTH)  # of cells in pixels, even in vector files
        sentences = list(self.sentences)
        if width >= _STACKED_BELOW:  # side by side in two columns
            hits, failures = ([strip for strip in sentences if strip[1].hit is hit] for hit in (True, False))
            sentences = [strip for pair in zip_longest(hits, failures) for strip in pair if strip is not None]
        side_by_side = width >= _STACKED_BELOW and bool(self.tables)
        pattern_width = width * _SHARE if side_by_side else width
        tables_width = width - pattern_width if side_by_side else width
        rows, columns = self.pattern.values.shape
        labels = label_pixels(self.pattern.labels.texts, label_size(100)) / DPI + 0.5
        side = min(_LARGEST_SIDE, pattern_width - labels - 2 * MARGIN)
        pattern = max(0.8, min(1.6, rows / columns) * side) + labels
        tables = sum(map(_table_height, self.tables))
        heights = [max(pattern, tables)] if side_by_side else [pattern, *([tables] if self.tables else [])]
        colours = _COLOURS[style.theme]
        line: dict[str, Any] = {"lw": 1.6, "ms": 4.5}
        ink = {"light": "black", "dark": "white"}[style.theme]
        gold: dict[str, Any] = {"color": style.muted, "ls": ":", "mfc": "none", "ms": 4.5}
        legend: list[Artist] = [
            Line2D([], [], lw=1, marker="o", label="the right word", **gold),
            Line2D([], [], **line, color=colours["hit"], marker="o", label=f"hit: from {ink} to the dot"),
            Line2D([], [], **line, color=colours["miss"], marker="X", ls=(0, (2, 1)), label="miss: to another word"),
        ]
        if sentences:
            heights.append(_sentences_height(sentences, width) + legend_height(legend, width) + MARGIN)
        page, strips = self.parts(style, heights, width=width, feet=self.feet)
        if side_by_side:
            strips[:1] = strips[0].subfigures(1, 2, width_ratios=(_SHARE, 1 - _SHARE))
        if self.tables:
            ax = strips[1].subplots()
            top = 0.0
            ylim = (heights[0] if side_by_side else tables, 0)
            ax.set(xlim=(0, tables_width - MARGIN), ylim=ylim, facecolor=style.paper)
            ax.axis("off")
            for table in self.tables:
                _draw_table(ax, table, top, tables_width - 2 * MARGIN, style)
                top += _table_height(table)
        if sentences:
            draw_sentences(strips[-1].subplots(), self.heading, sentences, width, style)
            add_legend(strips[-1], legend, style)
        ax = strips[0].add_subplot()
        self.pattern.draw(ax, style)
        ax.clear()  # its labels are chosen for the size that the Axes have, which is known only now
        self.pattern.draw(ax, style)
        freeze_layout(page)
        return page


def _table_height(table: PictureTable) -> float:
    return (table.n_rows + 2) * _ROW + _TABLE_GAP


def _draw_table(ax: Axes, table: PictureTable, top: float, room: float, style: Style) -> None:
    """Draw a table within ``room`` inches, without the last columns that do not fit."""
    left = MARGIN / 2
    title = fitted(table.title, _TITLE, room * DPI, "bold")
    put_text(ax, left, top + _ROW * 0.75, title, size=_TITLE, weight="bold", color=style.ink, **_ON_PAGE)
    columns, is_text = table.columns, table.is_text
    widths = [max(text_width(text, _WORD) for text in map(drawable, column)) / DPI for column in columns]
    least = [min(width, _NARROWEST) if texts else width for width, texts in zip(widths, is_text, strict=True)]
    room += _COLUMN_GAP
    while len(least) > 2 and sum(least) + _COLUMN_GAP * len(least) > room:
        least.pop()
    widths = widths[: len(least)]
    for widest in sorted((at for at in range(len(widths)) if is_text[at]), key=lambda at: -widths[at]):
        excess = sum(widths) + _COLUMN_GAP * len(widths) - room
        widths[widest] = max(least[widest], widths[widest] - max(0.0, excess))
    x = left
    for number, inches in enumerate(widths):
        place, side = (x, "left") if is_text[number] else (x + inches, "right")
        for row, text in enumerate(columns[number]):
            shown = fitted(drawable(text), _WORD, inches * DPI + 1)
            ink = style.ink if row else style.muted
            put_text(ax, place, top + (row + 1.8) * _ROW, shown, size=_WORD, color=ink, ha=side, **_ON_PAGE)
        x += inches + _COLUMN_GAP
    for lines in (1, 2, table.n_rows + 2):
        y = top + lines * _ROW
        ax.plot([left, x - _COLUMN_GAP], [y, y], color=style.muted, lw=PIXEL, **_FREE)


# Inches: natural width, width below which panels stand one below the other, a bar with its name, heading and axis.
_CLAIM_WIDTH, _CLAIM_NARROW, _BAR_ROW, _AROUND = 3.3, 2.8, 0.28, 0.55
_BARS = 3  # of bars beside the map
_BAR_TEXT = 6.5  # font size in points
_LARGEST, _RING = 8.0, 10.0  # points across: of the largest dot, less for many heads, and of the ring around one


class Bar(NamedTuple):
    """A number with its name."""

    name: str
    value: float
    written: str  # the value as the caption writes it, with the interval
    interval: Interval | None = None


@dataclass(frozen=True)
class ClaimPlan(PagePlan):
    """The parts of a claim."""

    dots: tuple[tuple[int, int, float], ...]  # head, layer and score of all heads, that of the claim last
    bars: tuple[Bar, ...]  # the score, and what it is held against, from 0 to 1
    end: str  # how 1 is written
    strips: tuple[NamedText, ...]
    removed: tuple[Bar, ...] = ()  # effects of removing the head
    effect: str = ""  # their name and unit

    def page(self, style: Style) -> Figure:
        """A new figure with the parts that the plan has."""
        width = style.room or _CLAIM_WIDTH
        beside = width >= _CLAIM_NARROW
        of_scores = _AROUND + _BAR_ROW * _BARS
        heights = [of_scores if beside else 2 * of_scores]
        if self.strips:
            heights.append(_sentences_height(self.strips, width))
        if self.removed:
            heights.append(_AROUND + _BAR_ROW * max(len(self.removed), _BARS))
        page, parts = self.parts(style, heights, width=width)
        of_map, scores = parts[0].subplots(*((1, 2) if beside else (2, 1)))
        _draw_map(of_map, self, style)
        _draw_bars(scores, "Score", self.bars, width / 2 if beside else width, style)
        scores.set(xlim=(0, 1))
        for end, side in zip(scores.set_xticks([0, 1], ["0", self.end]), ("left", "right"), strict=True):
            end.label1.set_ha(side)
        if self.strips:
            draw_sentences(parts[1].subplots(), "Examples (dotted: right word)", self.strips, width, style)
        if self.removed:
            effects = parts[-1].subplots()
            _draw_bars(effects, f"Without it: {self.effect}", self.removed, width, style)
            effects.xaxis.set_major_locator(MaxNLocator(3))
        freeze_layout(page)
        return page


def _draw_map(ax: Axes, plan: ClaimPlan, style: Style) -> None:
    """Draw a dot a head, its area by the score; where that is not known, or 0, a point."""
    heads, layers, scores = map(np.array, zip(*plan.dots, strict=True))
    largest = min(_LARGEST, 80 / len({*heads}), 50 / len({*layers}))
    areas = largest**2 * scores.clip(0) / (scores.max() or 1.0)
    own = _COLOURS[style.theme]["hit"]
    colours = [style.muted] * (len(heads) - 1) + [own]
    ax.scatter(heads, layers, s=areas.clip(0.5), c=colours, lw=0, clip_on=False)
    ax.plot(heads[-1], layers[-1], "o", ms=_RING, mfc="none", mec=own, mew=0.8, clip_on=False)
    for axis, numbers in ((ax.xaxis, heads), (ax.yaxis, layers)):
        axis.set_ticks(range(0, numbers.max() + 1, 1 + numbers.max() // 5))
    ax.set(xlim=(-0.5, heads.max() + 0.5), ylim=(layers.max() + 0.5, -0.5))
    look: dict[str, Any] = {"fontsize": _BAR_TEXT, "color": style.ink, "labelpad": 1}
    ax.set_xlabel("head", **look)
    ax.set_ylabel("layer", **look)
    _dress(ax, "All heads by score", "both", ("left", "bottom"), style)


def _draw_bars(ax: Axes, heading: str, bars: Sequence[Bar], inches: float, style: Style) -> None:
    """Draw bars below their names, those of the head in colour, with a dot at the value and a line for the interval."""
    room = (inches - 0.35) * DPI
    y = 0.0  # in rows with one line of text
    for bar in bars:
        colour = _COLOURS[style.theme]["hit"] if y == 0 or bar.interval else style.muted
        look: dict[str, Any] = {"size": _BAR_TEXT, "color": style.ink, "transform": ax.get_yaxis_transform()}
        written = bar.written
        if text_width(f"{bar.name}  {written}", _BAR_TEXT) > room:  # the caption has the interval, too
            written = written.partition(" (")[0]
        put_text(ax, 1, y + 0.35, written, ha="right", **look)
        for line in wrapped(bar.name, _BAR_TEXT, room - text_width(written, _BAR_TEXT) - 8):
            y += 0.35
            put_text(ax, 0, y, line, **look)
        y += 0.37
        ax.hlines(y, 0, bar.value, colors=colour, lw=2.5, alpha=0.5)
        if bar.interval is not None:
            ax.hlines(y, *bar.interval, colors=style.ink, lw=0.8)
        ax.plot(bar.value, y, "o", ms=4, mew=0, color=colour, clip_on=False)
        y += 0.28
    ax.set(ylim=(max(y, _BARS), 0), yticks=[])
    _dress(ax, heading, "y", ("bottom",), style)


def _dress(ax: Axes, heading: str, grid: Literal["both", "y"], sides: Sequence[str], style: Style) -> None:
    dress_chart(ax, style, grid, sides)
    ax.set_facecolor(style.paper)
    ax.set_title(heading, loc="left", parse_math=False, fontsize=_TITLE, weight="bold", color=style.ink, pad=3)
