"""The colour scale of attention weights: one hue of growing darkness, the same for every head.

It reads the same with any colour vision and in print. With a few greys for the text it fits the
palette of an indexed PNG.
"""

from functools import cache

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from numpy.typing import NDArray

__all__ = [
    "FRAME",
    "INK",
    "LEVELS",
    "QUIET",
    "Array",
    "Pixels",
    "colour_levels",
    "colour_map",
    "colour_table",
    "magnified",
]

LEVELS = 176
"""Steps of the colour scale; 80 greys make it up to the 256 colours of a palette."""

INK, QUIET, FRAME = "#222222", "#8a8a8a", "#9a9a9a"
"""Text, text that stands back, and frames: all greys, as :mod:`attnviz.rendering` relies on."""

Array = NDArray[np.float32]
Pixels = NDArray[np.uint8]

_COLOUR_MAP = "Blues"


def colour_levels(values: Array, vmax: float = 1.0) -> Pixels:
    """The step of the colour scale, 0 to :data:`LEVELS` - 1, of weights between 0 and ``vmax``."""
    levels: Pixels = (np.clip(values / vmax, 0.0, 1.0) * (LEVELS - 1)).round().astype(np.uint8)
    return levels


@cache
def colour_table() -> Pixels:
    """The colours of the scale, [LEVELS, 3] as bytes; the first is white."""
    table: Pixels = (colormaps[_COLOUR_MAP](np.linspace(0, 1, LEVELS))[:, :3] * 255).round().astype(np.uint8)
    table[0] = 255
    return table


def magnified(levels: Pixels, factor: int) -> Pixels:
    """Every cell as a square of ``factor`` pixels."""
    return levels.repeat(factor, axis=0).repeat(factor, axis=1)


def colour_map() -> ListedColormap:
    """The scale as a matplotlib colour map."""
    return ListedColormap(colour_table() / 255.0, name="attnviz")
