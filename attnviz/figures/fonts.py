"""Font fallback, code points for characters without a font, and measuring, cutting and wrapping of texts."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.ft2font import FT2Font

from attnviz.figures.style import DPI, base_families
from attnviz.printable import ISOLATES
from attnviz.wording import isolated, right_to_left, shortened, shortened_token

# spaces at which no line ends: those of ``n = 12``, ``3 of 7``, ``0.74 of 0.35``, ``10 %``, ``4 × 4``
_TIED = re.compile(r" (?== )|(?<= =) |(?<=\d) (?=of \d|%|× \d)|(?<=\d of) (?=\d)|(?<=\d ×) (?=\d)")
_NO_BREAK = "\u00a0"
_END = "\u2069"
_NOT_FOR_TEXT = ("Last Resort", "Emoji One", "Bitmap", "STIX", "cm")


def font_families(texts: Iterable[str]) -> list[str]:
    """Font families that together hold the texts' characters, the default first; others are opened only if needed."""
    missing = {character for text in texts for character in text} - _characters_of(tuple(base_families()))
    fallbacks = {family for character in missing if (family := _family_with(character)) is not None}
    return [*base_families(), *sorted(fallbacks)]


@cache
def _characters_of(families: tuple[str, ...]) -> frozenset[str]:
    paths = (str(fontManager.findfont(FontProperties(family=family))) for family in families)
    return ISOLATES.union(*map(_characters, paths))


_missing: set[str] = set()
_MOST_NAMED = 3


def fonts_to_install() -> str:
    """Hint which fonts to install for characters drawn as code points since the last call, or ''."""
    lacking = sorted(character for character in _missing if unicodedata.name(character, ""))
    _missing.clear()
    if not lacking:
        return ""
    names = ", ".join(unicodedata.name(character) for character in lacking[:_MOST_NAMED])
    more = ", …" if len(lacking) > _MOST_NAMED else ""
    return (
        f"no installed font has {names}{more}: figures show such characters by number (U+…). Install one: apt install "
        "fonts-noto-core fonts-noto-cjk fonts-symbola (Debian, Ubuntu), or the Noto fonts (macOS, Windows)."
    )


def without_script(text: str) -> str:
    """Hint that no installed font has most of a text's characters, or ''."""
    lacking = _lacking(text)
    characters = [character for character in text if unicodedata.category(character)[0] in "LMN"]
    drawn = [character for character in characters if character not in lacking]
    if 2 * len(drawn) >= len(characters):
        return ""
    _missing.update(lacking)
    first = next(character for character in characters if character in lacking)
    name = unicodedata.name(first, f"U+{ord(first):04X}")
    return f"no installed font has the text's characters, such as {name}; the Noto fonts have most"


def _lacking(text: str) -> set[str]:
    have = _characters_of(tuple(base_families()))
    return {character for character in text if character not in have and _family_with(character) is None}


def drawable(text: str) -> str:
    """The text with ``U+732B`` in place of each character that no installed font can draw.

    A text that begins from right to left is isolated: otherwise matplotlib sets all of its line from right to left in
    PNG and PDF, and the reader of an SVG from left to right.
    """
    lacking = _lacking(text)
    _missing.update(lacking)
    shown = "".join(f"U+{ord(character):04X}" if character in lacking else character for character in text)
    return isolated(shown) if right_to_left(shown) else shown


def put_text(ax: Axes, x: float, y: float, text: str, **style: Any) -> None:
    """Draw a text without mathematics, in fonts that have its characters, centred vertically unless ``va`` is given."""
    ax.text(x, y, text, parse_math=False, **({"va": "center_baseline", "family": font_families([text])} | style))


def text_width(text: str, size: float | str, weight: str = "normal", dpi: float = DPI) -> float:
    """Width of a text in pixels, as matplotlib draws it."""
    return _text_width(text, size, weight, dpi, base_families()[0])


@cache
def _text_width(text: str, size: float | str, weight: str, dpi: float, _: str) -> float:
    properties = FontProperties(family=font_families([text]), size=size, weight=weight)
    width: float = RendererAgg(1, 1, dpi).get_text_width_height_descent(text, properties, False)[0]
    return width


def fitted(
    text: str, size: float, pixels: float, weight: str = "normal", shorten: Callable[[str, int], str] = shortened
) -> str:
    """The drawable text, cut by ``shorten`` to a width in pixels, by default with an ellipsis at the end."""
    return _balanced([_cut(drawable(text), size, pixels, weight, shorten)])[0]


fitted_token = partial(fitted, shorten=shortened_token)  # cut in the middle: tokens often begin alike


def _cut(shown: str, size: float, pixels: float, weight: str, shorten: Callable[[str, int], str] = shortened) -> str:
    if _fits(shown, size, pixels, weight):
        return shown
    lengths = range(1, len(shown))
    fitting = bisect_right(lengths, pixels, key=lambda longest: text_width(shorten(shown, longest), size, weight))
    return shorten(shown, fitting) if fitting else "…"


def _fits(shown: str, size: float, pixels: float, weight: str) -> bool:
    """Whether a text fits; measured only if it may be too wide."""
    return len(shown) * size * DPI / 72 <= pixels or text_width(shown, size, weight) <= pixels


def wrapped(text: str, size: float, pixels: float, weight: str = "normal") -> list[str]:
    """Wrap into lines of whole words, to a width in pixels; ``n = 12`` is one word; one that is too wide is cut."""
    shown = drawable(text)
    if _fits(shown, size, pixels, weight):
        return _balanced([shown])
    lines: list[str] = []
    for word in _TIED.sub(_NO_BREAK, shown).split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, weight) <= pixels:
            lines[-1] = longer
        else:
            lines.append(_cut(word, size, pixels, weight))
    return _balanced([line.replace(_NO_BREAK, " ") for line in lines])


def _balanced(lines: Sequence[str]) -> list[str]:
    """Close bidirectional isolates at line ends and reopen them in the next line."""
    balanced, still = [], ""
    for line in lines:
        begun, still = still + line, ""
        for character in begun:
            if character in ISOLATES:
                still = still[:-1] if character == _END else still + character
        balanced.append(begun + _END * len(still))
    return balanced


@cache
def _characters(path: str) -> frozenset[str]:
    return frozenset(chr(code) for code in FT2Font(path).get_charmap())


@cache
def _family_with(character: str) -> str | None:
    """An installed scalable font that has the character."""
    return next((family for path, family in _fallback_fonts() if character in _characters(path)), None)


@cache
def _fallback_fonts() -> list[tuple[str, str]]:
    """Path and family of every regular face that holds letters: no fonts for mathematics, no bitmaps, no emoji."""
    faces = {
        (entry.fname, entry.name)
        for entry in fontManager.ttflist
        if entry.style == "normal" and entry.weight in (400, "normal", "regular")
        if not entry.name.startswith(_NOT_FOR_TEXT) and "Color" not in entry.name
    }
    fonts = []
    for path, family in sorted(faces):
        with suppress(RuntimeError, OSError):  # a font file that FreeType cannot open
            if FT2Font(path).scalable:
                fonts.append((path, family))
    return fonts
