"""The colour scale of attention weights: one hue of growing strength, from the paper's colour on.

It reads the same with any colour vision and in print. With a few greys for the text it fits the
palette of an indexed PNG.
"""

import math
from functools import cache
from typing import Any

import numpy as np
from matplotlib import colormaps, rcParams, rcParamsDefault
from matplotlib.colors import ListedColormap
from numpy.typing import NDArray

from attnviz.figures.look import FAINTEST, Look

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
    "ink_on",
    "magnified",
    "outer_ink",
]

LEVELS = 176
"""Steps of the colour scale; 80 greys make it up to the 256 colours of a palette."""

INK, QUIET, FRAME = "#222222", "#8a8a8a", "#9a9a9a"
"""Text, text that stands back, and frames on light paper: all greys, so that palettes hold them."""

Array = NDArray[np.float32]
Pixels = NDArray[np.uint8]

_COLOUR_MAP = "Blues"
_SETTINGS: tuple[Any, Any] = (rcParams, rcParamsDefault)


def colour_levels(values: Array, vmax: float = 1.0, scale: str = "shared") -> Pixels:
    """The step of the colour scale, 0 to :data:`LEVELS` - 1, of weights.

    Args:
        values: weights, any shape.
        vmax: the weight at the strong end, where the scale is not logarithmic.
        scale: one of :data:`attnviz.figures.look.SCALES`.
    """
    shown = values / vmax if scale != "log" else 1 - np.log10(np.maximum(values, FAINTEST)) / math.log10(FAINTEST)
    levels: Pixels = (np.clip(shown, 0.0, 1.0) * (LEVELS - 1)).round().astype(np.uint8)
    return levels


@cache
def colour_table(theme: str = "light") -> Pixels:
    """The colours of the scale, [LEVELS, 3] as bytes; the first is that of the paper."""
    scale = colormaps[_COLOUR_MAP] if theme == "light" else Look(theme).colour_map()
    table: Pixels = (scale(np.linspace(0, 1, LEVELS))[:, :3] * 255).round().astype(np.uint8)
    if theme == "light":
        table[0] = 255
    return table


def magnified(levels: Pixels, factor: int) -> Pixels:
    """Every cell as a square of ``factor`` pixels."""
    return levels.repeat(factor, axis=0).repeat(factor, axis=1)


def colour_map(theme: str = "light") -> ListedColormap:
    """The scale as a matplotlib colour map."""
    return ListedColormap(colour_table(theme) / 255.0, name="attnviz")


@cache
def ink_on(level: int, theme: str = "light") -> str:
    """The grey of a text that stands on a step of the scale: near black or white, whichever contrasts more."""
    red, green, blue = (channel / 255 for channel in colour_table(theme)[level])
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return INK if luminance > 0.25 else "#ffffff"


def outer_ink(look: Look, setting: str = "text.color") -> str:
    """The colour of a text that stands beside the cells, on a page that may be the caller's.

    The light theme is also what nobody asked for, so there the caller's own settings count, such as those of
    ``dark_background``; where these are matplotlib's own, and in the dark theme, it is the ink of the theme.

    Args:
        look: theme.
        setting: of matplotlib, for such a text.
    """
    theirs, default = (known[setting] for known in _SETTINGS)
    if look.theme != "light" or theirs == default or theirs in ("auto", "inherit"):
        return look.greys.ink
    return str(theirs)
