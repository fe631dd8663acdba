"""The picture of a card: a head's pattern beside tables, then hits and failures."""

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attnviz.figures.fonts import drawable, fitted, put_text, text_width
from attnviz.figures.heatmap import HeatmapPlan
from attnviz.figures.matrix import label_pixels, label_size
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, add_legend, freeze_layout, legend_height, page_width
from attnviz.figures.sentences import (
    COLOURS,
    FREE,
    STACKED_BELOW,
    TEXT,
    TITLE,
    WORD,
    NamedText,
    draw_sentences,
    sentences_height,
)
from attnviz.figures.style import DPI, Style

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
        if width >= STACKED_BELOW:  # side by side in two columns
            hits, failures = ([strip for strip in sentences if strip[1].hit is hit] for hit in (True, False))
            sentences = [strip for pair in zip_longest(hits, failures) for strip in pair if strip is not None]
        side_by_side = width >= STACKED_BELOW and bool(self.tables)
        pattern_width = width * _SHARE if side_by_side else width
        tables_width = width - pattern_width if side_by_side else width
        rows, columns = self.pattern.values.shape
        labels = label_pixels(self.pattern.labels.texts, label_size(100)) / DPI + 0.5
        side = min(_LARGEST_SIDE, pattern_width - labels - 2 * MARGIN)
        pattern = max(0.8, min(1.6, rows / columns) * side) + labels
        tables = sum(map(_table_height, self.tables))
        heights = [max(pattern, tables)] if side_by_side else [pattern, *([tables] if self.tables else [])]
        colours = COLOURS[style.theme]
        line: dict[str, Any] = {"lw": 1.6, "ms": 4.5}
        ink = {"light": "black", "dark": "white"}[style.theme]
        gold: dict[str, Any] = {"color": style.muted, "ls": ":", "mfc": "none", "ms": 4.5}
        legend: list[Artist] = [
            Line2D([], [], lw=1, marker="o", label="the right word", **gold),
            Line2D([], [], **line, color=colours["hit"], marker="o", label=f"hit: from {ink} to the dot"),
            Line2D([], [], **line, color=colours["miss"], marker="X", ls=(0, (2, 1)), label="miss: to another word"),
        ]
        if sentences:
            heights.append(sentences_height(sentences, width) + legend_height(legend, width) + MARGIN)
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
    title = fitted(table.title, TITLE, room * DPI, "bold")
    put_text(ax, left, top + _ROW * 0.75, title, size=TITLE, weight="bold", color=style.ink, **TEXT)
    columns, is_text = table.columns, table.is_text
    widths = [max(text_width(text, WORD) for text in map(drawable, column)) / DPI for column in columns]
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
            shown = fitted(drawable(text), WORD, inches * DPI + 1)
            ink = style.ink if row else style.muted
            put_text(ax, place, top + (row + 1.8) * _ROW, shown, size=WORD, color=ink, ha=side, **TEXT)
        x += inches + _COLUMN_GAP
    for lines in (1, 2, table.n_rows + 2):
        y = top + lines * _ROW
        ax.plot([left, x - _COLUMN_GAP], [y, y], color=style.muted, lw=PIXEL, **FREE)
