"""Colour bars that say which scale they show."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm

from attnviz.figures.colours import colour_map, outer_ink
from attnviz.figures.fonts import text_width
from attnviz.figures.look import FAINTEST, Look

__all__ = ["LEAST_BAR", "bar_labels", "below_bar", "colour_bar", "image_scale"]

LEAST_BAR = 84
"""Pixels, 150 to the inch, of the shortest bar: as many as its five numbers take."""

_ABOVE, _BEYOND = 10, 40
"""Pixels, 150 to the inch: how far the name of a bar may stand out above it, and by how much it may be longer."""


def colour_bar(bar: Axes, look: Look, *, numbers: bool = True, words: Sequence[str] = ()) -> float:
    """Draw the scale, as long as its Axes, and say in words which it is.

    Args:
        bar: Axes of the bar, in a figure.
        look: theme and scale.
        numbers: write the weights beside it; otherwise there is room for them.
        words: what it is, the fullest first; by default the scale's name.

    Returns:
        the font size of the numbers, in points.
    """
    figure, greys, ink = bar.get_figure(root=True), look.greys, outer_ink(look)
    assert figure is not None
    at = np.geomspace(FAINTEST, 1, 5) if look.scale == "log" else np.linspace(0, 1, 5)
    drawn = figure.colorbar(ScalarMappable(look.norm(), colour_map(look.theme)), cax=bar, ticks=at)
    drawn.ax.minorticks_off()
    drawn.outline.set(linewidth=72 / 150, edgecolor=greys.frame)
    size = 7 if look.width is None else 6
    bar.set_yticks(at, bar_labels(look) if numbers else [""] * 5)
    bar.tick_params(labelsize=size, length=2, width=72 / 150, color=greys.frame, labelcolor=ink)
    pixel, height = figure.dpi / 150, bar.get_window_extent().height
    name, long = _name(look, height, figure.dpi, words)
    lower = max(0.0, (long - height) / 2 - _ABOVE * pixel) / height  # what stands above must not be written over
    room = 3.5 if numbers else 3.5 + (text_width("0.00", size, figure.dpi) + 4 * pixel) * 72 / figure.dpi
    bar.set_ylabel(name, fontsize=size + 0.5, color=ink, labelpad=room, y=0.5 - lower)
    return size


def below_bar(look: Look, height: float, dpi: float, *, words: Sequence[str] = ()) -> int:
    """Pixels that a page needs below a bar of so many, for its last number and for what of its name is longer.

    Args:
        look: theme and scale.
        height: of the bar, in pixels.
        dpi: pixels to the inch.
        words: as for :func:`colour_bar`.
    """
    pixel = dpi / 150
    beyond = _name(look, height, dpi, words)[1] - height
    return math.ceil(max(14 * pixel, beyond / 2 + 6 * pixel, beyond + (6 - _ABOVE) * pixel))


def bar_labels(look: Look, vmax: float = 1.0) -> tuple[str, ...]:
    """The weights at the quarters of a colour bar, from its weak end."""
    if look.scale == "log":
        return ("≤ 10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "1")
    digits = 2 if vmax >= 0.1 else 4
    return tuple(f"{vmax * step / 4:.{digits}f}" for step in range(5))


class _GivenLogNorm(LogNorm):
    """Logarithmic between limits that are given: it never asks data for them, which may be colours."""

    def autoscale_None(self, A: Any) -> None:  # noqa: N802, N803
        """Nothing is missing."""


def image_scale(look: Look, vmax: float = 1.0) -> dict[str, Any]:
    """Colour map and norm of an image whose data are colours already, for a colour bar that the caller draws for it."""
    norm = look.norm(vmax)
    if isinstance(norm, LogNorm):
        norm = _GivenLogNorm(norm.vmin, norm.vmax, clip=True)
    return {"cmap": colour_map(look.theme), "norm": norm}


def _name(look: Look, height: float, dpi: float, words: Sequence[str]) -> tuple[str, float]:
    """The fullest words that a bar of so many pixels has room for, and the pixels that they take."""
    room = height + (_BEYOND * dpi / 150 if look.scale != "shared" else 0)
    words = words or _bar_words(look)
    named = [(text, text_width(text, (7 if look.width is None else 6) + 0.5, dpi)) for text in words]
    return next(((text, long) for text, long in named if long <= room), named[-1])


def _bar_words(look: Look) -> tuple[str, ...]:
    """What the bar is, the fullest words first."""
    return {
        "shared": (
            "attention weight (same scale for every head)",
            "attention weight (shared scale)",
            "weight (shared scale)",
            "shared scale",
            "shared",
        ),
        "per-head": (look.describe(), "weight (scale of this head)", "own scale"),
        "log": (look.describe(), "weight (log scale)", "log scale"),
    }[look.scale]
