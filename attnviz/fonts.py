"""Which fonts draw which characters, and a visible stand-in for what no installed font has."""

from collections.abc import Iterable
from functools import cache

from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.ft2font import FT2Font

__all__ = ["DEFAULT_FAMILY", "drawable", "fitted", "font_families", "text_width", "wrapped"]

DEFAULT_FAMILY = "DejaVu Sans"
"""Comes with matplotlib, so figures look the same on every machine."""

_NOT_FOR_TEXT = ("Last Resort", "Color", "Emoji One", "Bitmap")


def font_families(texts: Iterable[str]) -> list[str]:
    """Font families that together hold the texts' characters, the default first.

    Only characters that the default lacks (CJK, Devanagari, …) cause other installed fonts to be
    opened; what no font has is left to :func:`drawable`.
    """
    missing = {character for text in texts for character in text} - _characters(_default_path())
    found = {family for character in missing if (family := _family_with(character)) is not None}
    return [DEFAULT_FAMILY, *sorted(found)]


def drawable(text: str) -> str:
    """The text with ``U+732B`` in place of each character that no installed font can draw."""
    have = _characters(_default_path())
    return "".join(
        character if character in have or _family_with(character) is not None else f"U+{ord(character):04X}"
        for character in text
    )


@cache
def text_width(text: str, size: float, dpi: float, weight: str = "normal") -> float:
    """Pixels that a text takes, measured as matplotlib will draw it."""
    properties = FontProperties(family=font_families([text]), size=size, weight=weight)
    width: float = RendererAgg(1, 1, dpi).get_text_width_height_descent(text, properties, False)[0]
    return width


def fitted(text: str, size: float, dpi: float, pixels: float, weight: str = "normal") -> str:
    """The text as it can be drawn, cut with an ellipsis where it is wider than so many pixels."""
    shown = drawable(text)
    if len(shown) * size * dpi / 72 <= pixels or text_width(shown, size, dpi, weight) <= pixels:
        return shown
    low, high = 0, len(shown)  # the first ``low`` characters fit, the first ``high`` do not
    while high - low > 1:
        middle = (low + high) // 2
        fits = text_width(shown[:middle] + "…", size, dpi, weight) <= pixels
        low, high = (middle, high) if fits else (low, middle)
    return shown[:low] + "…"


def wrapped(text: str, size: float, dpi: float, pixels: float, weight: str = "normal") -> list[str]:
    """Lines of whole words that fit into so many pixels; a word that does not is cut with an ellipsis."""
    lines: list[str] = []
    for word in drawable(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, dpi, weight) <= pixels:
            lines[-1] = longer
        else:
            lines.append(fitted(word, size, dpi, pixels, weight))
    return lines


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
