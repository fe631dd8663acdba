"""Which fonts draw which characters, and a visible stand-in for what no installed font has."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from matplotlib import rcParams, rcParamsDefault
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.ft2font import FT2Font

from attnviz.model.wording import isolated, right_to_left

__all__ = [
    "DEFAULT_FAMILY",
    "advance",
    "drawable",
    "fitted",
    "fitted_quote",
    "font_families",
    "outer_size",
    "pieces",
    "text_width",
    "wrapped",
]

DEFAULT_FAMILY = "DejaVu Sans"
"""Comes with matplotlib, so figures look the same on every machine."""

_END = "\u2069"
_ISOLATES = frozenset("\u2066\u2067\u2068\u2069")
_SETTINGS: tuple[Any, Any] = (rcParams, rcParamsDefault)
_JOINED = range(0x590, 0x2000)
"""Where Unicode has the scripts whose letters take other forms or places beside one another: Hebrew, Arabic, Hindi."""

_NOT_FOR_TEXT = ("Last Resort", "Color", "Emoji One", "Bitmap")


def font_families(texts: Iterable[str]) -> list[str]:
    """Font families that together hold the texts' characters, the default first.

    Only characters that the default lacks (CJK, Devanagari, …) cause other installed fonts to be
    opened; what no font has is left to :func:`drawable`.
    """
    missing = {character for text in texts for character in text} - _characters(_default_path()) - _ISOLATES
    found = {family for character in missing if (family := _family_with(character)) is not None}
    return [DEFAULT_FAMILY, *sorted(found)]


def drawable(text: str) -> str:
    """The text with ``U+732B`` in place of each character that no installed font can draw.

    A text that begins from right to left is isolated: otherwise matplotlib sets all of its line from right to left in
    PNG and PDF, and the reader of an SVG from left to right.
    """
    have = _characters(_default_path()) | _ISOLATES
    shown = "".join(
        character if character in have or _family_with(character) is not None else f"U+{ord(character):04X}"
        for character in text
    )
    return isolated(shown) if right_to_left(shown) else shown


@cache
def text_width(text: str, size: float | str, dpi: float, weight: str = "normal") -> float:
    """Pixels that a text takes, measured as matplotlib will draw it."""
    properties = FontProperties(family=font_families([text]), size=size, weight=weight)
    width: float = RendererAgg(1, 1, dpi).get_text_width_height_descent(text, properties, False)[0]
    return width


def pieces(line: str) -> list[str]:
    """A line in parts that recur in others: numbers, and what stands between them; one part where its letters join."""
    return re.findall(r"[\d.]+|[^\d.]+", line) if not any(ord(letter) in _JOINED for letter in line) else [line]


def advance(piece: str, size: float, dpi: float, weight: str = "normal") -> float:
    """Pixels from where a piece of a line begins to where the next one does."""
    return text_width(f"{piece}|", size, dpi, weight) - text_width("|", size, dpi, weight)


def fitted(text: str, size: float, dpi: float, pixels: float, weight: str = "normal") -> str:
    """The text as it can be drawn, cut with an ellipsis where it is wider than so many pixels."""
    return _balanced([_cut(drawable(text), size, dpi, pixels, weight)])[0]


def _cut(shown: str, size: float, dpi: float, pixels: float, weight: str) -> str:
    if len(shown) * size * dpi / 72 <= pixels or text_width(shown, size, dpi, weight) <= pixels:
        return shown
    low, high = 0, len(shown)  # the first ``low`` characters fit, the first ``high`` do not
    while high - low > 1:
        middle = (low + high) // 2
        fits = text_width(shown[:middle] + "…", size, dpi, weight) <= pixels
        low, high = (middle, high) if fits else (low, middle)
    return shown[:low] + "…"


def _cut_word(word: str, size: float, dpi: float, pixels: float, weight: str) -> str:
    shown = _cut(word, size, dpi, pixels, weight)
    if "”" in shown or "”" not in word:
        return shown
    room = pixels - text_width("”", size, dpi, weight)
    return _cut(word, size, dpi, room, weight) + "”"


def fitted_quote(text: str, size: float, dpi: float, pixels: float) -> str:
    """A line that ends with a quoted text, fitted; where that is cut, its quotation marks still come in pairs."""
    shown = fitted(text, size, dpi, pixels)
    if shown.count("“") > shown.count("”"):
        shown = fitted(text.removesuffix("”"), size, dpi, pixels - text_width("”", size, dpi))
        shown += "”" if shown.count("“") > shown.count("”") else ""
    return shown


def outer_size(setting: str, ours: float) -> float | str:
    """The size of a title, or of the name of an axis, on Axes that may be the caller's.

    Args:
        setting: of matplotlib, for such a text; it counts where the caller changed it, or the size of all fonts.
        ours: where nothing was changed.
    """
    theirs, default = ((known[setting], known["font.size"]) for known in _SETTINGS)
    size: float | str = theirs[0]
    return ours if theirs == default else size


def wrapped(text: str, size: float, dpi: float, pixels: float, weight: str = "normal") -> list[str]:
    """Lines of whole words that fit into so many pixels.

    A word that does not is cut with an ellipsis; where it was a quotation, the quotation mark still closes it.
    """
    lines: list[str] = []
    shown = drawable(text)
    if sum(advance(piece, size, dpi, weight) for piece in pieces(shown)) <= pixels:
        return _balanced([shown])
    for word in shown.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, dpi, weight) <= pixels:
            lines[-1] = longer
        else:
            lines.append(_cut_word(word, size, dpi, pixels, weight))
    return _balanced(lines)


def _balanced(lines: Sequence[str]) -> list[str]:
    """Lines of one text; what is isolated where one ends is closed there and goes on in the next."""
    balanced, still = [], ""
    for line in lines:
        begun = still + line
        still = ""
        for character in begun if not begun.isascii() else "":
            if character in _ISOLATES:
                still = still[:-1] if character == _END else still + character
        balanced.append(begun + _END * len(still))
    return balanced


@cache
def _default_path() -> str:
    return str(fontManager.findfont(FontProperties(family=DEFAULT_FAMILY)))


@cache
def _characters(path: str) -> frozenset[str]:
    return frozenset(chr(code) for code in FT2Font(path).get_charmap())


@cache
def _family_with(character: str) -> str | None:
    """An installed scalable font that has the character; regular faces before bold and italic."""
    for path, family in _fallback_fonts():
        if character in _characters(path):
            return family
    return None


@cache
def _fallback_fonts() -> tuple[tuple[str, str], ...]:
    faces = [
        (entry.fname, entry.name)
        for entry in fontManager.ttflist
        if entry.style == "normal"
        and entry.weight in (400, "normal", "regular")
        and not entry.name.startswith(_NOT_FOR_TEXT)
    ]
    return tuple((path, family) for path, family in sorted(set(faces)) if _is_usable(path, family))


def _is_usable(path: str, family: str) -> bool:
    if family.startswith(("STIX", "cm")) or "Color" in family:  # mathematics fonts, and bitmap emoji
        return False
    try:
        return bool(FT2Font(path).scalable)
    except (RuntimeError, OSError):  # a font file that FreeType cannot open
        return False
