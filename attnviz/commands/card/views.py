"""The figure of a card: the head's pattern beside three tables, then hits and failures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnviz.commands.card.measure import Card, Cards
from attnviz.commands.card.page_view import of_pattern, page_data
from attnviz.commands.card.sentences_drawing import (
    STACKED_BELOW,
    Sentences,
    draw_sentences,
    sentence_handles,
    sentences_height,
)
from attnviz.commands.card.tables import CardTable, notes_of, tables_of, title_of
from attnviz.commands.heads.views import HEADS
from attnviz.commands.profile.show import NamedExample, named_examples
from attnviz.figures.fonts import drawable, fitted, put_text, text_width
from attnviz.figures.heatmap import HeatmapPlan, draw_heatmap
from attnviz.figures.matrix import label_pixels, label_size
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, add_legend, frozen, legend_height, new_page, page_width
from attnviz.figures.style import DPI, Style, figure_style
from attnviz.present.figure_context import sentence
from attnviz.present.published import role_name
from attnviz.present.view import Drawing, ViewOptions, page_drawing

_ROWS = 6
"""Rows of a table that are drawn."""

_WIDTH, _LARGEST_SIDE = 7.0, 4.6
"""Inches: natural width of the page, largest side of the pattern."""

_SHARE = 0.46
"""Of the width, what the pattern has where tables stand beside it."""

_TITLE, _TEXT = 7.5, 7.0
"""Font sizes in points."""

_ROW, _COLUMN_GAP, _TABLE_GAP = 0.155, 0.09, 0.12
"""Inches: height of a row, gap between columns, gap below a table."""

_NARROWEST = 0.8
"""Inches to which each text of a table may be cut, before its last columns are left out."""


@dataclass(frozen=True)
class CardPlan(PagePlan):
    """The parts of a card."""

    feet: tuple[str, ...]  # below the picture
    pattern: HeatmapPlan
    tables: tuple[CardTable, ...]
    sentences: tuple[NamedExample, ...]  # hits, then failures
    heading: str  # of the sentences


def _plans(result: Card | Cards, choices: ViewOptions) -> Iterator[CardPlan]:
    for card in result.cards:
        yield _plan(card, choices, "card" if isinstance(result, Card) else f"cards/{card.head.file_stem}")


def _plan(card: Card, choices: ViewOptions, stem: str) -> CardPlan:
    pattern: HeatmapPlan = next(iter(HEADS.plans(card.analysis, of_pattern(card, choices))))
    shown = card.shown_examples
    tables = [
        table
        if len(table.rows) <= _ROWS
        else replace(table, title=f"{table.title} ({_ROWS} of {len(table.rows)})", rows=table.rows[:_ROWS])
        for table in tables_of(card)
    ]
    feet = [f"Pattern: {card.part.figure_context.text_line}. Colours: {pattern.bar}.{_outlined(pattern)}"]
    feet += notes_of(card)
    title = title_of(card)
    return CardPlan(
        stem=stem,
        caption=sentence(title, *feet),
        title=title,
        notes=(),
        feet=tuple(feet),
        pattern=replace(pattern, title="", evidence=""),
        tables=tuple(tables),
        sentences=() if shown is None else tuple(named_examples(shown)),
        heading="" if shown is None else f"{role_name(shown.role, shown.direction)}: clearest hits and failures",
    )


def _outlined(pattern: HeatmapPlan) -> str:
    if not pattern.outlines:
        return ""
    dashed = "" if all(outline.found for outline in pattern.outlines) else ", dashed where it misses them"
    return f" Outlined: pairs of its first role{dashed}."


def _card_figure(plan: CardPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """A new figure: the pattern, beside it or below it the tables; then hits and failures."""
    width = page_width(style, _WIDTH)
    side_by_side = width >= STACKED_BELOW and bool(plan.tables)
    pattern_width = width * _SHARE if side_by_side else width
    tables_width = width - pattern_width if side_by_side else width
    rows, columns = plan.pattern.values.shape
    labels = label_pixels(plan.pattern.labels.texts, label_size(100)) / DPI + 0.5
    side = min(_LARGEST_SIDE, pattern_width - labels - 2 * MARGIN)
    pattern = max(0.8, min(1.6, rows / columns) * side) + labels
    tables = sum(map(_table_height, plan.tables))
    legend, sentences = sentence_handles(style), _sentences(plan, width)
    heights = [max(pattern, tables)] if side_by_side else [pattern, *([tables] if plan.tables else [])]
    if sentences:
        heights.append(sentences_height(sentences, width) + legend_height(legend, width) + MARGIN)
    with figure_style():
        page = new_page(plan.title, plan.notes, style, width=width, body=sum(heights), feet=plan.feet)
        strips: list[Any] = list(page.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
        if side_by_side:
            strips[:1] = strips[0].subfigures(1, 2, width_ratios=(_SHARE, 1 - _SHARE))
        if plan.tables:
            height = heights[0] if side_by_side else tables
            _draw_tables(strips[1].subplots(), plan.tables, tables_width, height, style)
        if sentences:
            draw_sentences(strips[-1].subplots(), sentences, width, style)
            add_legend(strips[-1], legend, style)
        ax = strips[0].add_subplot()
        draw_heatmap(ax, plan.pattern, style)
        ax.clear()  # its labels are chosen for the size that the Axes have, which is known only now
        draw_heatmap(ax, plan.pattern, style)
        frozen(page)
        return page


def _sentences(plan: CardPlan, width: float) -> list[Sentences]:
    """Hits and failures: in two columns side by side, else one below the other."""
    shown = list(plan.sentences)
    if width >= STACKED_BELOW:
        hits, failures = ([each for each in shown if each.example.hit is hit] for hit in (True, False))
        shown = [each for pair in zip_longest(hits, failures) for each in pair if each is not None]
    return [(plan.heading, shown)] if shown else []


def _table_height(table: CardTable) -> float:
    """Inches of a table with its title and header."""
    return (len(table.rows) + 2) * _ROW + _TABLE_GAP


def _draw_tables(ax: Axes, tables: Sequence[CardTable], width: float, height: float, style: Style) -> None:
    """Draw tables below one another, on Axes of a width and height in inches."""
    ax.set(xlim=(0, width - MARGIN), ylim=(height, 0), facecolor=style.greys.paper)
    ax.axis("off")
    room, top = width - 2 * MARGIN, 0.0
    for table in tables:
        _draw_table(ax, table, top, room, style)
        top += _table_height(table)


def _draw_table(ax: Axes, table: CardTable, top: float, room: float, style: Style) -> None:
    """Draw a table within ``room`` inches, without the last columns that do not fit."""
    left, greys = MARGIN / 2, style.greys
    on_page: dict[str, Any] = {"va": "baseline", "clip_on": False, "in_layout": False}
    title = fitted(table.title, _TITLE, DPI, room * DPI, "bold")
    put_text(ax, left, top + _ROW * 0.75, title, size=_TITLE, weight="bold", color=greys.ink, **on_page)
    columns = [list(map(drawable, column)) for column in zip(table.columns, *table.texts, strict=True)]
    widths = [max(text_width(text, _TEXT, DPI) for text in column) / DPI for column in columns]
    least = [min(width, _NARROWEST) if table.is_text(number) else width for number, width in enumerate(widths)]
    while len(least) > 2 and sum(least) + _COLUMN_GAP * (len(least) - 1) > room:
        least.pop()
    widths = widths[: len(least)]
    texts = [number for number in range(len(widths)) if table.is_text(number)]
    while sum(widths) + _COLUMN_GAP * (len(widths) - 1) > room and max(widths[at] for at in texts) > 0.1:
        widest = max(texts, key=lambda at: widths[at])
        widths[widest] -= 0.02
    x = left
    for number, inches in enumerate(widths):
        is_text = table.is_text(number)
        for row, text in enumerate(columns[number]):
            put_text(
                ax, x if is_text else x + inches, top + (row + 1.8) * _ROW, fitted(text, _TEXT, DPI, inches * DPI + 1),
                size=_TEXT, color=greys.ink if row else greys.muted, ha="left" if is_text else "right", **on_page,
            )  # fmt: skip
        x += inches + _COLUMN_GAP
    for lines in (1, 2, len(table.rows) + 2):
        y = top + lines * _ROW
        ax.plot([left, x - _COLUMN_GAP], [y, y], color=greys.muted, lw=PIXEL, clip_on=False, in_layout=False)


CARD = Drawing(_plans, _card_figure)
PAGE = page_drawing("card", page_data)
