"""Pictures in 256 colours: the scale of the weights, greys, and the colours of the marks; and their PNG files."""

import struct
import zlib
from functools import cache

import numpy as np
from matplotlib.colors import to_rgb

from attnviz.figures.colours import LEVELS, Pixels, colour_table
from attnviz.figures.families import FAMILIES
from attnviz.figures.look import THEMES

__all__ = ["blended", "indexed", "palette", "png"]

_SOFTWARE = b"Software\0attnviz"
_TINTS = (1.0, 2 / 3, 1 / 3)
_AT_ONCE = 8192


@cache
def palette(theme: str = "light", *, marks: bool = False) -> Pixels:
    """The colours of a PNG, [256, 3]: the scale of the weights, greys from black to white, and with ``marks`` those
    of the families of roles, in three strengths.
    """  # noqa: D205
    paper = np.array(to_rgb(THEMES[theme].paper))
    families = np.array([to_rgb(family.colour) for family in FAMILIES[:-2]])
    tints = np.concatenate([paper + tint * (families - paper) for tint in _TINTS]) if marks else np.empty((0, 3))
    greys = np.linspace(0, 255, 256 - LEVELS - len(tints)).round().astype(np.uint8)
    coloured = (tints * 255).round().astype(np.uint8)
    return np.concatenate([colour_table(theme), greys[:, None].repeat(3, axis=1), coloured])


def indexed(pixels: Pixels, theme: str = "light", *, marks: bool = False) -> Pixels:
    """Places in the palette, [height, width], of a picture [height, width, 3].

    Greys take the nearest grey, colours of the scale their step, which the sum of red, green and blue finds; what
    is neither (the edges of letters on coloured cells, marks) takes the nearest colour of all.
    """
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    total = red.astype(np.uint16) + green + blue
    step = _scale_places(theme)[total]
    grey = (red == green) & (green == blue)
    found = np.where(grey, _grey_places(theme, marks)[red], step)
    coloured = np.nonzero(~grey)
    shown = pixels[coloured]
    other = (colour_table(theme)[step[coloured]] != shown).any(axis=-1)
    if other.any():
        places = tuple(axis[other] for axis in coloured)
        found[places] = _nearest(shown[other], palette(theme, marks=marks))
    return found


def blended(below: Pixels, text: Pixels, coverage: Pixels) -> Pixels:
    """What Agg makes of a text over opaque colours, exactly.

    Args:
        below: [..., 3], colours underneath.
        text: [..., 3], colours of the text.
        coverage: [...], of each pixel by the text, 0-255.
    """
    alpha = coverage.astype(np.int64)[..., None]
    over, under = text.astype(np.int64), below.astype(np.int64) * 255
    result: Pixels = ((((over << 8) - under) * alpha + (under << 8)) // (65280 + alpha)).astype(np.uint8)
    return result


def png(picture: Pixels, dpi: float, theme: str = "light", *, marks: bool = False) -> bytes:
    """The PNG file of places in the palette; zlib works outside Python's lock, so that threads help."""
    height, width = picture.shape
    rows = np.zeros((height, width + 1), dtype=np.uint8)  # every row begins with its filter, 0 for none
    rows[:, 1:] = picture
    metre = round(dpi / 0.0254)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", palette(theme, marks=marks).tobytes()),
            _chunk(b"pHYs", struct.pack(">IIB", metre, metre, 1)),
            _chunk(b"tEXt", _SOFTWARE),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 2)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(content, zlib.crc32(kind)))


@cache
def _grey_places(theme: str, marks: bool) -> Pixels:
    count = 256 - LEVELS - (len(_TINTS) * (len(FAMILIES) - 2) if marks else 0)
    places: Pixels = (LEVELS + np.round(np.arange(256) / 255 * (count - 1))).astype(np.uint8)
    places[colour_table(theme)[0, 0]] = 0  # the paper, exactly
    return places


@cache
def _scale_places(theme: str) -> Pixels:
    totals = colour_table(theme).astype(np.int64).sum(axis=1)
    nearest: Pixels = np.abs(np.arange(766)[:, None] - totals[None, :]).argmin(axis=1).astype(np.uint8)
    return nearest


def _nearest(colours: Pixels, table: Pixels) -> Pixels:
    """The place of the nearest colour in a table, for colours [k, 3]; the first of equals."""
    packed = (colours.astype(np.uint32) << np.array([16, 8, 0], dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    distinct, back = np.unique(packed, return_inverse=True)
    those = np.stack([distinct >> 16, distinct >> 8 & 255, distinct & 255], axis=1).astype(np.float32)
    known = table.astype(np.float32)
    places = np.empty(len(those), dtype=np.uint8)
    for start in range(0, len(those), _AT_ONCE):
        part = those[start : start + _AT_ONCE]
        places[start : start + _AT_ONCE] = ((known**2).sum(axis=1) - 2 * part @ known.T).argmin(axis=1)
    found: Pixels = places[back]
    return found
