"""Drawing of sentences, with arcs from query to key."""

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from attnviz.commands.profile.show import NamedExample
from attnviz.figures.fonts import fitted_token, put_text, text_width, wrapped
from attnviz.figures.page import MARGIN, PIXEL
from attnviz.figures.style import DPI, Style
from attnviz.models.wording import right_to_left, rounded, visible
from attnviz.profiles.examples import Example, Part, parts_of_text

STACKED_BELOW = 5.0
"""Width of a page in inches below which there is one column."""

_TITLE, _WORD, _SMALL = 7.5, 7.0, 6.0
"""Font sizes in points of headings, of words, and of the line above them."""

_STRIP, _HEADING, _LINE, _GAP, _ARC = 0.58, 0.24, 0.14, 0.2, 0.23
"""Inches: height of a sentence with its arc, of a heading, of its further lines, gap between columns, arc height."""

_COLOURS = {"light": {"hit": "#0072B2", "miss": "#C44E00"}, "dark": {"hit": "#56B4E9", "miss": "#FF9E4A"}}


Sentences = tuple[str, list[NamedExample]]
"""A heading, and the sentences below it."""


def sentences_height(roles: Sequence[Sentences], width: float) -> float:
    """Inches that sentences of roles take on a page of this width, without legend."""
    return sum(height for _, height in _laid_out(roles, width))


def draw_sentences(ax: Axes, roles: Sequence[Sentences], width: float, style: Style) -> None:
    """Draw headings and sentences on Axes as wide as the page, in inches, in one column or two."""
    ax.set(xlim=(0, width - MARGIN), ylim=(sentences_height(roles, width), 0), facecolor=style.greys.paper)
    ax.axis("off")
    columns = _columns(width)
    room = (width - MARGIN * 1.5 - _GAP * (columns - 1)) / columns
    top = 0.0
    for (lines, height), (_, strips) in zip(_laid_out(roles, width), roles, strict=True):
        for number, line in enumerate(lines):
            at = top + _HEADING * 0.7 + number * _LINE
            _write(ax, MARGIN / 2, at, line, style.greys.ink, _TITLE, weight="bold")
        for number, strip in enumerate(strips):
            row, column = divmod(number, columns)
            corner = MARGIN / 2 + column * (room + _GAP), at + _HEADING * 0.3 + row * _STRIP
            _draw_strip(ax, strip, corner, room, style)
        top += height


def _laid_out(roles: Sequence[Sentences], width: float) -> Iterator[tuple[list[str], float]]:
    """The lines of each heading, and the height of it and its sentences in inches."""
    for heading, strips in roles:
        lines = wrapped(heading, _TITLE, DPI, (width - 2 * MARGIN) * DPI, "bold")
        yield lines, _HEADING + _LINE * (len(lines) - 1) + _STRIP * -(-len(strips) // _columns(width))


def _columns(width: float) -> int:
    return 1 if width < STACKED_BELOW else 2


def sentence_handles(style: Style) -> list[Artist]:
    """Entries of the legend of sentences."""
    colours = _COLOURS[style.theme]
    line: dict[str, Any] = {"lw": 1.6, "ms": 4.5}
    ink = {"light": "black", "dark": "white"}[style.theme]
    return [
        Line2D([], [], color=style.greys.muted, lw=1, ls=":", marker="o", mfc="none", ms=4.5, label="the right word"),
        Line2D([], [], **line, color=colours["hit"], marker="o", label=f"hit: from {ink} to the dot"),
        Line2D([], [], **line, color=colours["miss"], marker="X", ls=(0, (2, 1)), label="miss: to another word"),
    ]


def _draw_strip(ax: Axes, strip: NamedExample, corner: tuple[float, float], room: float, style: Style) -> None:
    """Draw one sentence below its arc, in inches from the top left of the Axes."""
    (left, top), example, greys = corner, strip.example, style.greys
    kind = "hit" if example.hit else "miss"
    colour = _COLOURS[style.theme][kind]
    weight = rounded(example.weight)
    right = "" if example.hit or example.gold_weight is None else f", right one {rounded(example.gold_weight)}"
    _write(ax, left, top + 0.09, f"{strip.name}: {kind}, weight {weight}{right}", greys.muted, _SMALL)
    baseline, x = top + _STRIP - 0.1, left
    centres: dict[str, float] = {}
    for part, shown, wide in _fitting(example, room):
        x += 0 if part.joined or x == left else text_width(" ", _WORD, DPI) / DPI
        ink = colour if "key" in part.ends else greys.ink
        _write(ax, x, baseline, shown, ink, _WORD, weight="bold" if part.ends else "normal")
        centres |= dict.fromkeys(part.ends, x + wide / 2)
        x += wide
    foot = baseline - 0.11
    apart: dict[str, Any] = {"clip_on": False, "in_layout": False}
    if "gold" in centres:
        start, end = centres["query"], centres["gold"]
        if example.gold is not None and example.gold[0] != example.query:  # the right name attends
            start, end = centres["gold"], centres["key"]
        _arc(ax, start, end, foot, ec=greys.muted, lw=1, ls=":")
        ax.plot(end, foot, "o", mfc=greys.paper, mec=greys.muted, ms=3, mew=0.8, **apart)
    start, end = centres["query"], centres["key"]
    width, alpha = 0.7 + 2.6 * example.weight, 0.4 + 0.6 * example.weight
    _arc(ax, start, end, foot, ec=colour, lw=width, alpha=alpha, ls="-" if example.hit else (0, (4, 1)))
    ax.plot(end, foot, "o" if example.hit else "X", color=colour, ms=4, mew=PIXEL, **apart)


def _fitting(example: Example, room: float) -> list[tuple[Part, str, float]]:
    """Words around the pair that fit a width in inches, each as drawn and with its own width."""
    whole = len(parts_of_text(example))
    laid: list[tuple[Part, str, float]] = []
    for most in range(whole, 0, -1):
        parts = parts_of_text(example, most)
        laid = [_laid(part, room / 2) for part in parts]
        if sum(wide for _, _, wide in laid) + text_width(" ", _WORD, DPI) / DPI * len(laid) <= room:
            break
    else:
        laid = [_laid(part, room / (len(laid) + 1)) for part, *_ in laid]
    return laid[::-1] if right_to_left(example.text) else laid


def _laid(part: Part, room: float) -> tuple[Part, str, float]:
    weight = "bold" if part.ends else "normal"
    text = part.text if part.text.isprintable() and part.text.strip() else visible(part.text)
    shown = fitted_token(text, _WORD, DPI, room * DPI, weight)
    return part, shown, text_width(shown, _WORD, DPI, weight) / DPI


def _arc(ax: Axes, start: float, end: float, foot: float, **properties: Any) -> None:
    """Draw an arc above the words, a loop for a word that attends to itself."""
    if abs(end - start) < 0.02:
        start -= 0.09
    height = min(_ARC, 0.1 + 0.09 * abs(end - start)) * 4 / 3
    curve = [(start, foot), (start, foot - height), (end, foot - height), (end, foot)]
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    ax.add_patch(PathPatch(Path(curve, codes), fc="none", clip_on=False, in_layout=False, **properties))


def _write(ax: Axes, x: float, y: float, text: str, ink: str, size: float, weight: str = "normal") -> None:
    put_text(ax, x, y, text, size=size, color=ink, weight=weight, va="baseline", clip_on=False, in_layout=False)
