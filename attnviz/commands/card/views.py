"""The figure of a card: the head's pattern beside three tables, then hits and failures."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attnviz.commands.card.measure import Card, Cards
from attnviz.commands.card.report import (
    Cell,
    Row,
    ablation_table,
    cell_text,
    notes_of,
    sentence_of,
    tables_of,
    title_of,
)
from attnviz.commands.heads.claim_view import claim_plan, no_claim
from attnviz.commands.heads.page_view import page_data as page_of_heads
from attnviz.commands.heads.relations import OWN, without_relations
from attnviz.commands.heads.views import HEADS
from attnviz.commands.profile.show import NamedExample, licence_lines, named_examples
from attnviz.commands.profile.views import sentences_entry
from attnviz.errors import UsageError
from attnviz.figures.claim import Bar, ClaimPlan, claim_figure
from attnviz.figures.fonts import drawable, fitted, put_text, text_width
from attnviz.figures.heatmap import HeatmapPlan, draw_heatmap
from attnviz.figures.matrix import label_pixels, label_size
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, add_legend, freeze_layout, legend_height, new_page, page_width
from attnviz.figures.sentences import COLOURS, FREE, STACKED_BELOW, TEXT, TITLE, WORD, draw_sentences, sentences_height
from attnviz.figures.style import DPI, Style, figure_style
from attnviz.options import typed
from attnviz.page.page import ERROR, short_float
from attnviz.present.figure_context import caption_of, hatched_in_words
from attnviz.present.published import role_name
from attnviz.present.tables import RowTable
from attnviz.present.view import Drawing, ViewOptions, page_drawing

_ROWS = 6  # rows of a table that are drawn

_WIDTH, _LARGEST_SIDE = 7.0, 4.6  # inches: natural width of the page, largest side of the pattern

_SHARE = 0.46  # of the width, what the pattern has where tables stand beside it

_ROW, _COLUMN_GAP, _TABLE_GAP = 0.155, 0.09, 0.12  # inches: height of a row, gap between columns, gap below a table

_NARROWEST = 0.8  # inches to which each text of a table may be cut, before its last columns are left out


@dataclass(frozen=True)
class CardPlan(PagePlan):
    """The parts of a card."""

    feet: tuple[str, ...]  # below the picture
    pattern: HeatmapPlan
    tables: tuple[RowTable[Row], ...]
    sentences: tuple[NamedExample, ...]  # hits, then failures
    heading: str  # of the sentences


def _plans(result: Card | Cards, choices: ViewOptions) -> Iterator[CardPlan]:
    for card in result.cards:
        pattern: HeatmapPlan = next(iter(HEADS.plans(card.analysis, of_pattern(card, choices))))
        outlined = ""
        if pattern.outlines:
            dashed = "" if all(outline.found for outline in pattern.outlines) else ", dashed where it misses them"
            outlined = f" Outlined: pairs of its first role{dashed}."
        tables = []
        for table in tables_of(card):
            n = len(table.rows)
            title = table.title if n <= _ROWS else f"{table.title} ({_ROWS} of {n})"
            tables.append(replace(table, title=title, rows=table.rows[:_ROWS]))
        feet = [f"Pattern: {card.part.figure_context.drawn_line}. Colours: {pattern.bar}.{outlined}", *notes_of(card)]
        hatched = hatched_in_words(pattern.values)
        title, details, shown = title_of(card), sentence_of(card), card.shown_examples
        yield CardPlan(
            stem="card" if isinstance(result, Card) else f"cards/{card.head.file_stem}",
            caption=caption_of(title, details, *feet, hatched),
            title=title,
            notes=(details,) if details else (),
            feet=tuple(feet),
            pattern=replace(pattern, title="", evidence=""),
            tables=tuple(tables),
            sentences=() if shown is None else tuple(named_examples(shown)),
            heading="" if shown is None else f"{role_name(shown.role, shown.direction)}: clearest hits and failures",
        )


def _card_figure(plan: CardPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    width = page_width(style, _WIDTH)
    sentences = list(plan.sentences)
    if width >= STACKED_BELOW:  # side by side in two columns
        hits, failures = ([strip for strip in sentences if strip.example.hit is hit] for hit in (True, False))
        sentences = [strip for pair in zip_longest(hits, failures) for strip in pair if strip is not None]
    side_by_side = width >= STACKED_BELOW and bool(plan.tables)
    pattern_width = width * _SHARE if side_by_side else width
    tables_width = width - pattern_width if side_by_side else width
    rows, columns = plan.pattern.values.shape
    labels = label_pixels(plan.pattern.labels.texts, label_size(100)) / DPI + 0.5
    side = min(_LARGEST_SIDE, pattern_width - labels - 2 * MARGIN)
    pattern = max(0.8, min(1.6, rows / columns) * side) + labels
    tables = sum(map(_table_height, plan.tables))
    heights = [max(pattern, tables)] if side_by_side else [pattern, *([tables] if plan.tables else [])]
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
    with figure_style():
        page = new_page(plan.title, plan.notes, style, width=width, body=sum(heights), feet=plan.feet)
        strips: list[Any] = list(page.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
        if side_by_side:
            strips[:1] = strips[0].subfigures(1, 2, width_ratios=(_SHARE, 1 - _SHARE))
        if plan.tables:
            ax = strips[1].subplots()
            top = 0.0
            ylim = (heights[0] if side_by_side else tables, 0)
            ax.set(xlim=(0, tables_width - MARGIN), ylim=ylim, facecolor=style.paper)
            ax.axis("off")
            for table in plan.tables:
                _draw_table(ax, table, top, tables_width - 2 * MARGIN, style)
                top += _table_height(table)
        if sentences:
            draw_sentences(strips[-1].subplots(), plan.heading, sentences, width, style)
            add_legend(strips[-1], legend, style)
        ax = strips[0].add_subplot()
        draw_heatmap(ax, plan.pattern, style)
        ax.clear()  # its labels are chosen for the size that the Axes have, which is known only now
        draw_heatmap(ax, plan.pattern, style)
        freeze_layout(page)
        return page


def _table_height(table: RowTable[Row]) -> float:
    return (len(table.rows) + 2) * _ROW + _TABLE_GAP


def _draw_table(ax: Axes, table: RowTable[Row], top: float, room: float, style: Style) -> None:
    """Draw a table within ``room`` inches, without the last columns that do not fit."""
    left = MARGIN / 2
    title = fitted(table.title, TITLE, room * DPI, "bold")
    put_text(ax, left, top + _ROW * 0.75, title, size=TITLE, weight="bold", color=style.ink, **TEXT)
    columns = [
        [field.title.lower(), *(drawable(text.plain) for text in table.cells(field, at))]
        for at, field in enumerate(table.columns)
    ]
    is_text = [all(isinstance(row[at], str | None) for row in table.rows) for at in range(len(columns))]
    widths = [max(text_width(text, WORD) for text in column) / DPI for column in columns]
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
            shown = fitted(text, WORD, inches * DPI + 1)
            ink = style.ink if row else style.muted
            put_text(ax, place, top + (row + 1.8) * _ROW, shown, size=WORD, color=ink, ha=side, **TEXT)
        x += inches + _COLUMN_GAP
    for lines in (1, 2, len(table.rows) + 2):
        y = top + lines * _ROW
        ax.plot([left, x - _COLUMN_GAP], [y, y], color=style.muted, lw=PIXEL, **FREE)


def _claims(result: Card | Cards, _: ViewOptions) -> Iterator[ClaimPlan]:
    for card in result.cards:
        if not card.roles:
            raise UsageError(f"{no_claim(card.profile, card.checkpoint, [card.head])}.")
        assert card.profile is not None
        stem = "claim" if isinstance(result, Card) else f"claims/{card.head.file_stem}"
        without = ablation_table(card)
        bars = [
            Bar(str(on), float(effect), f"{cell_text(effect)} ({cell_text(interval)})", interval)
            for on, effect, interval, _ in without.rows
            if isinstance(effect, float) and isinstance(interval, tuple)
        ]
        effect = without.title.partition(": ")[2]
        yield claim_plan(card.profile, card.checkpoint, card.roles[0], stem, effect, bars)


def of_pattern(card: Card, choices: ViewOptions) -> ViewOptions:
    """Choices for the pattern of a card: pairs of its first role are outlined if that is a relation of the text."""
    outlined = bool(card.roles) and card.roles[0].relation is not None and not without_relations(card.part)
    return replace(choices, select=(str(card.head),), relation=OWN if outlined else None)


def page_data(card: Card, choices: ViewOptions) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``: the page of ``heads`` on the text, with this card."""
    data = page_of_heads(card.analysis, of_pattern(card, choices))
    (of_head,) = [head for head in data["heads"] if head["id"] == str(card.head)]
    of_head["words"] = [["Card", title_of(card)], *(["Note", note] for note in notes_of(card))]
    title = f"{card.head} of {data['title']}"
    by_name = {role.role: role for role in card.roles}
    licences = [] if card.profile is None else licence_lines(card.profile, card.examples)

    def page_cell(value: Cell) -> object:  # numbers as numbers, so that the page sorts them
        if isinstance(value, float):
            return short_float(value)
        return value if isinstance(value, int) else cell_text(value)

    return data | {
        "command": "card",
        "title": title,
        "sentences": [title],
        "look": None,
        "caption": caption_of(f"Interactive page of {title}; opens from disk, without network"),
        "command_line": {
            "program": ["card"],
            "texts": [str(card.corpus or card.text)],
            "options": [*data["command_line"]["options"], *typed(card.options)],
        },
        "tables": [
            {
                "title": table.title,
                "note": "",
                "columns": ["head", *(field.title.lower() for field in table.columns)],
                "rows": [[str(card.head), *map(page_cell, row)] for row in table.rows],
                "head": 0,
            }
            for table in tables_of(card)
        ],
        "examples": [sentences_entry(examples, by_name.get(examples.role)) for examples in card.examples],
        "notes": [
            "Labels are of this text alone; ? marks an indication only.",
            f"Weights on the page are within {ERROR} of the recomputed ones.",
            *licences,
        ],
    }


CARD = Drawing(_plans, _card_figure)
CLAIM = Drawing(_claims, claim_figure)
PAGE = page_drawing(
    "card", page_data, lambda result: "" if isinstance(result, Card) else "a page is of one head; name it"
)
