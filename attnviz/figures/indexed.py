"""Pictures in 256 colours: the scale of the weights, a ramp from paper to ink, and their PNG files."""

import struct
import zlib
from functools import cache

import numpy as np
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from attnviz.figures.look import Look
from attnviz.figures.matrix import Array, contrasting_ink

__all__ = ["LEVELS", "Pixels", "indexed", "ink_ramp", "inked", "palette", "png"]

LEVELS = 176
"""Steps of the colour scale; 80 steps from paper to ink make it up to the 256 colours of a palette."""

Pixels = NDArray[np.uint8]

_COVERAGES = 16


@cache
def palette(theme: str) -> Pixels:
    """The colours of a PNG, [256, 3]: the scale of the weights from the paper on, then from paper to ink."""
    greys = Look(theme).greys
    paper, ink = np.array(to_rgb(greys.paper)), np.array(to_rgb(greys.ink))
    scale = Look(theme).colour_map()(np.linspace(0, 1, LEVELS))[:, :3]
    ramp = paper + np.linspace(0, 1, 256 - LEVELS)[:, None] * (ink - paper)
    colours: Pixels = (np.concatenate([scale, ramp]) * 255).round().astype(np.uint8)
    return colours


def indexed(pixels: Pixels, theme: str) -> Pixels:
    """A picture [height, width, 3] as places in the palette, each that of the nearest colour."""
    packed = (pixels.astype(np.uint32) << np.array([16, 8, 0], dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)
    distinct, back = np.unique(packed, return_inverse=True)
    colours = np.stack([distinct >> 16, distinct >> 8 & 255, distinct & 255], axis=1)
    return _nearest(colours.astype(np.float32), theme)[back].reshape(packed.shape)


@cache
def ink_ramp() -> Pixels:
    """The place in the palette of paper that is covered by ink so far, [256] for 0-255."""
    places: Pixels = (LEVELS + np.arange(256) * (255 - LEVELS) / 255).round().astype(np.uint8)
    places[0] = 0
    return places


@cache
def inked(theme: str) -> Pixels:
    """The place in the palette of a step of the scale that a number covers so far, [LEVELS, 256]."""
    table = palette(theme)[:LEVELS].astype(np.float32)
    inks = np.array([to_rgb(contrasting_ink(colour / 255)) for colour in table], dtype=np.float32) * 255
    covered = np.linspace(0, 1, _COVERAGES, dtype=np.float32)[:, None]
    blended = table[:, None] + covered * (inks - table)[:, None]  # [LEVELS, 16, 3]
    places = _nearest(blended.reshape(-1, 3), theme).reshape(LEVELS, _COVERAGES)
    places[:, 0] = np.arange(LEVELS)
    return places[:, np.arange(256) * _COVERAGES // 256]


def png(picture: Pixels, dpi: float, theme: str) -> bytes:
    """The PNG file of places in the palette; zlib works outside Python's lock, so that threads help."""
    height, width = picture.shape
    rows = np.zeros((height, width + 1), dtype=np.uint8)  # every row begins with its filter, 0 for none
    rows[:, 1:] = picture
    metre = round(dpi / 0.0254)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", palette(theme).tobytes()),
            _chunk(b"pHYs", struct.pack(">IIB", metre, metre, 1)),
            _chunk(b"tEXt", b"Software\0attnviz"),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 2)),
            _chunk(b"IEND", b""),
        ]
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(content, zlib.crc32(kind)))


def _nearest(colours: Array, theme: str) -> Pixels:
    """The place of the nearest colour of the palette, for colours [k, 3] of 0-255."""
    known = palette(theme).astype(np.float32)
    places = np.empty(len(colours), dtype=np.uint8)
    for start in range(0, len(colours), 8192):
        part = colours[start : start + 8192]
        places[start : start + 8192] = ((known**2).sum(axis=1) - 2 * part @ known.T).argmin(axis=1)
    return places
