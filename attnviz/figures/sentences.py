"""Sentences with their hits and misses: an arc from the word that attends to the word that it attends to most."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from attnviz.figures.fonts import fitted, fitted_token, put_text, text_width
from attnviz.figures.page import MARGIN, PIXEL
from attnviz.figures.style import DPI, Style
from attnviz.profiles.examples import Example, Part, parts_of_text
from attnviz.wording import right_to_left, rounded, visible

STACKED_BELOW = 5.0  # width of a page in inches below which there is one column

TITLE, WORD, _SMALL = 7.5, 7.0, 6.0  # font sizes in points of headings, of words, and of the line above them

# Inches: height of a sentence with its arc, of a heading, gap between columns, arc height.
_STRIP, _HEADING, _GAP, _ARC = 0.58, 0.24, 0.2, 0.23

COLOURS = {"light": {"hit": "#0072B2", "miss": "#C44E00"}, "dark": {"hit": "#56B4E9", "miss": "#FF9E4A"}}

FREE: dict[str, Any] = {"clip_on": False, "in_layout": False}  # placed in inches, whatever the layout
TEXT: dict[str, Any] = {"va": "baseline", **FREE}

NamedText = tuple[str, Example]  # an example with its name, '' for none


def draw_sentences(ax: Axes, heading: str, strips: Sequence[NamedText], width: float, style: Style) -> None:
    """Draw a heading and sentences on Axes as wide as the page, in inches, in one column or two."""
    ax.set(xlim=(0, width - MARGIN), ylim=(sentences_height(strips, width), 0), facecolor=style.paper)
    ax.axis("off")
    columns = _columns(width)
    room = (width - MARGIN * 1.5 - _GAP * (columns - 1)) / columns
    shown = fitted(heading, TITLE, (width - 2 * MARGIN) * DPI, "bold")
    put_text(ax, MARGIN / 2, _HEADING * 0.7, shown, size=TITLE, color=style.ink, weight="bold", **TEXT)
    for number, strip in enumerate(strips):
        row, column = divmod(number, columns)
        _draw_strip(ax, strip, (MARGIN / 2 + column * (room + _GAP), _HEADING + row * _STRIP), room, style)


def sentences_height(strips: Sequence[NamedText], width: float) -> float:
    """Inches that :func:`draw_sentences` takes."""
    return _HEADING + _STRIP * -(-len(strips) // _columns(width))


def _columns(width: float) -> int:
    return 1 if width < STACKED_BELOW else 2


def _draw_strip(ax: Axes, strip: NamedText, corner: tuple[float, float], room: float, style: Style) -> None:
    """Draw one sentence below its arc, in inches from the top left of the Axes."""
    (left, top), (name, example) = corner, strip
    kind = "hit" if example.hit else "miss"
    colour = COLOURS[style.theme][kind]
    above = f"{name}: {example_words(example)}" if name else example_words(example)
    put_text(ax, left, top + 0.09, above, size=_SMALL, color=style.muted, **TEXT)
    baseline, x = top + _STRIP - 0.1, left
    centres: dict[str, float] = {}
    for part, shown, width in _fitting(example, room):
        if not (part.joined or x == left):
            x += text_width(" ", WORD) / DPI
        ink = colour if "key" in part.ends else style.ink
        put_text(ax, x, baseline, shown, size=WORD, color=ink, weight="bold" if part.ends else "normal", **TEXT)
        centres |= dict.fromkeys(part.ends, x + width / 2)
        x += width
    foot = baseline - 0.11
    if "gold" in centres:
        start, end = centres["query"], centres["gold"]
        if example.gold is not None and example.gold[0] != example.query:  # the right name attends
            start, end = centres["gold"], centres["key"]
        _arc(ax, start, end, foot, ec=style.muted, lw=1, ls=":")
        ax.plot(end, foot, "o", mfc=style.paper, mec=style.muted, ms=3, mew=0.8, **FREE)
    start, end = centres["query"], centres["key"]
    thickness, alpha = 0.7 + 2.6 * example.weight, 0.4 + 0.6 * example.weight
    _arc(ax, start, end, foot, ec=colour, lw=thickness, alpha=alpha, ls="-" if example.hit else (0, (4, 1)))
    ax.plot(end, foot, "o" if example.hit else "X", color=colour, ms=4, mew=PIXEL, **FREE)


def example_words(example: Example) -> str:
    """``miss, weight 0.52, right one 0.16``."""
    right = "" if example.hit or example.gold_weight is None else f", right one {rounded(example.gold_weight)}"
    return f"{'hit' if example.hit else 'miss'}, weight {rounded(example.weight)}{right}"


def _fitting(example: Example, room: float) -> list[tuple[Part, str, float]]:
    """Words around the pair that fit a width in inches, each as drawn and with its own width."""

    def laid(part: Part, room: float) -> tuple[Part, str, float]:
        weight = "bold" if part.ends else "normal"
        text = part.text if part.text.isprintable() and part.text.strip() else visible(part.text)
        shown = fitted_token(text, WORD, room * DPI, weight)
        return part, shown, text_width(shown, WORD, weight) / DPI

    words: list[tuple[Part, str, float]] = []
    for most in range(len(parts_of_text(example)), 0, -1):
        words = [laid(part, room / 2) for part in parts_of_text(example, most)]
        if sum(width for _, _, width in words) + text_width(" ", WORD) / DPI * len(words) <= room:
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
    ax.add_patch(PathPatch(Path(curve, codes), fc="none", **FREE, **properties))
