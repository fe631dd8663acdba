"""The figure of a card: the head's pattern beside three tables, then hits and failures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from attnviz.commands.card.measure import Card, Cards
from attnviz.commands.card.page_view import of_pattern, page_data
from attnviz.commands.card.tables import CardTable, details_of, notes_of, tables_of, title_of
from attnviz.commands.heads.views import HEADS
from attnviz.commands.profile.show import NamedExample, named_examples
from attnviz.figures.fonts import drawable, fitted, fitted_token, put_text, text_width
from attnviz.figures.heatmap import HeatmapPlan, draw_heatmap
from attnviz.figures.matrix import label_pixels, label_size
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, add_legend, freeze_layout, legend_height, new_page, page_width
from attnviz.figures.resolution import DPI
from attnviz.figures.style import Style, figure_style
from attnviz.present.figure_context import caption_of, hatched_in_words
from attnviz.present.published import role_name
from attnviz.present.view import Drawing, ViewOptions, page_drawing
from attnviz.profiles.examples import Example, Part, parts_of_text
from attnviz.wording import right_to_left, rounded, visible

STACKED_BELOW = 5.0  # width of a page in inches below which there is one column

_TITLE, _WORD, _SMALL = 7.5, 7.0, 6.0  # font sizes in points of headings, of words, and of the line above them

# Inches: height of a sentence with its arc, of a heading, gap between columns, arc height.
_STRIP, _HEADING, _GAP, _ARC = 0.58, 0.24, 0.2, 0.23

_COLOURS = {"light": {"hit": "#0072B2", "miss": "#C44E00"}, "dark": {"hit": "#56B4E9", "miss": "#FF9E4A"}}

_FREE: dict[str, Any] = {"clip_on": False, "in_layout": False}  # placed in inches, whatever the layout
_TEXT: dict[str, Any] = {"va": "baseline", **_FREE}


def draw_sentences(ax: Axes, heading: str, strips: Sequence[NamedExample], width: float, style: Style) -> None:
    """Draw a heading and sentences on Axes as wide as the page, in inches, in one column or two."""
    ax.set(xlim=(0, width - MARGIN), ylim=(_sentences_height(strips, width), 0), facecolor=style.greys.paper)
    ax.axis("off")
    columns = _columns(width)
    room = (width - MARGIN * 1.5 - _GAP * (columns - 1)) / columns
    shown = fitted(heading, _TITLE, (width - 2 * MARGIN) * DPI, "bold")
    put_text(ax, MARGIN / 2, _HEADING * 0.7, shown, size=_TITLE, color=style.greys.ink, weight="bold", **_TEXT)
    for number, strip in enumerate(strips):
        row, column = divmod(number, columns)
        _draw_strip(ax, strip, (MARGIN / 2 + column * (room + _GAP), _HEADING + row * _STRIP), room, style)


def _sentences_height(strips: Sequence[NamedExample], width: float) -> float:
    return _HEADING + _STRIP * -(-len(strips) // _columns(width))


def _columns(width: float) -> int:
    return 1 if width < STACKED_BELOW else 2


def _draw_strip(ax: Axes, strip: NamedExample, corner: tuple[float, float], room: float, style: Style) -> None:
    """Draw one sentence below its arc, in inches from the top left of the Axes."""
    (left, top), example, greys = corner, strip.example, style.greys
    kind = "hit" if example.hit else "miss"
    colour = _COLOURS[style.theme][kind]
    right = "" if example.hit or example.gold_weight is None else f", right one {rounded(example.gold_weight)}"
    above = f"{strip.name}: {kind}, weight {rounded(example.weight)}{right}"
    put_text(ax, left, top + 0.09, above, size=_SMALL, color=greys.muted, **_TEXT)
    baseline, x = top + _STRIP - 0.1, left
    centres: dict[str, float] = {}
    for part, shown, width in _fitting(example, room):
        if not (part.joined or x == left):
            x += text_width(" ", _WORD) / DPI
        ink = colour if "key" in part.ends else greys.ink
        put_text(ax, x, baseline, shown, size=_WORD, color=ink, weight="bold" if part.ends else "normal", **_TEXT)
        centres |= dict.fromkeys(part.ends, x + width / 2)
        x += width
    foot = baseline - 0.11
    if "gold" in centres:
        start, end = centres["query"], centres["gold"]
        if example.gold is not None and example.gold[0] != example.query:  # the right name attends
            start, end = centres["gold"], centres["key"]
        _arc(ax, start, end, foot, ec=greys.muted, lw=1, ls=":")
        ax.plot(end, foot, "o", mfc=greys.paper, mec=greys.muted, ms=3, mew=0.8, **_FREE)
    start, end = centres["query"], centres["key"]
    thickness, alpha = 0.7 + 2.6 * example.weight, 0.4 + 0.6 * example.weight
    _arc(ax, start, end, foot, ec=colour, lw=thickness, alpha=alpha, ls="-" if example.hit else (0, (4, 1)))
    ax.plot(end, foot, "o" if example.hit else "X", color=colour, ms=4, mew=PIXEL, **_FREE)


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
    tables: tuple[CardTable, ...]
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
        title, details, shown = title_of(card), details_of(card), card.shown_examples
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
    colours = _COLOURS[style.theme]
    line: dict[str, Any] = {"lw": 1.6, "ms": 4.5}
    ink = {"light": "black", "dark": "white"}[style.theme]
    gold: dict[str, Any] = {"color": style.greys.muted, "ls": ":", "mfc": "none", "ms": 4.5}
    legend: list[Artist] = [
        Line2D([], [], lw=1, marker="o", label="the right word", **gold),
        Line2D([], [], **line, color=colours["hit"], marker="o", label=f"hit: from {ink} to the dot"),
        Line2D([], [], **line, color=colours["miss"], marker="X", ls=(0, (2, 1)), label="miss: to another word"),
    ]
    if sentences:
        heights.append(_sentences_height(sentences, width) + legend_height(legend, width) + MARGIN)
    with figure_style():
        page = new_page(plan.title, plan.notes, style, width=width, body=sum(heights), feet=plan.feet)
        strips: list[Any] = list(page.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])
        if side_by_side:
            strips[:1] = strips[0].subfigures(1, 2, width_ratios=(_SHARE, 1 - _SHARE))
        if plan.tables:
            ax = strips[1].subplots()
            top = 0.0
            ylim = (heights[0] if side_by_side else tables, 0)
            ax.set(xlim=(0, tables_width - MARGIN), ylim=ylim, facecolor=style.greys.paper)
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


def _table_height(table: CardTable) -> float:
    return (len(table.rows) + 2) * _ROW + _TABLE_GAP


def _draw_table(ax: Axes, table: CardTable, top: float, room: float, style: Style) -> None:
    """Draw a table within ``room`` inches, without the last columns that do not fit."""
    left, greys = MARGIN / 2, style.greys
    title = fitted(table.title, _TITLE, room * DPI, "bold")
    put_text(ax, left, top + _ROW * 0.75, title, size=_TITLE, weight="bold", color=greys.ink, **_TEXT)
    columns = [list(map(drawable, column)) for column in zip(table.columns, *table.texts, strict=True)]
    widths = [max(text_width(text, _WORD) for text in column) / DPI for column in columns]
    least = [min(width, _NARROWEST) if table.is_text(number) else width for number, width in enumerate(widths)]
    while len(least) > 2 and sum(least) + _COLUMN_GAP * (len(least) - 1) > room:
        least.pop()
    widths = widths[: len(least)]
    texts = [number for number in range(len(widths)) if table.is_text(number)]
    while sum(widths) + _COLUMN_GAP * (len(widths) - 1) > room and max(widths[number] for number in texts) > 0.1:
        widths[max(texts, key=widths.__getitem__)] -= 0.02
    x = left
    for number, inches in enumerate(widths):
        place, side = (x, "left") if table.is_text(number) else (x + inches, "right")
        for row, text in enumerate(columns[number]):
            shown = fitted(text, _WORD, inches * DPI + 1)
            ink = greys.ink if row else greys.muted
            put_text(ax, place, top + (row + 1.8) * _ROW, shown, size=_WORD, color=ink, ha=side, **_TEXT)
        x += inches + _COLUMN_GAP
    for lines in (1, 2, len(table.rows) + 2):
        y = top + lines * _ROW
        ax.plot([left, x - _COLUMN_GAP], [y, y], color=greys.muted, lw=PIXEL, **_FREE)


CARD = Drawing(_plans, _card_figure)
PAGE = page_drawing(
    "card", page_data, lambda result: "" if isinstance(result, Card) else "a page is of one head; name it"
)
