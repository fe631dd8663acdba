"""Colour bars that say which scale they show."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable

from attnviz.colours import colour_map, outer_ink
from attnviz.fonts import text_width
from attnviz.look import FAINTEST, Look

__all__ = ["bar_labels", "colour_bar"]


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
    pixel = figure.dpi / 150
    height = bar.get_window_extent().height + (40 * pixel if look.scale != "shared" else 0)
    words = words or _bar_words(look)
    fits = (text for text in words if text_width(text, size + 0.5, figure.dpi) <= height)
    room = 3.5 if numbers else 3.5 + (text_width("0.00", size, figure.dpi) + 4 * pixel) * 72 / figure.dpi
    bar.set_ylabel(next(fits, words[-1]), fontsize=size + 0.5, color=ink, labelpad=room)
    return size


def bar_labels(look: Look, vmax: float = 1.0) -> tuple[str, ...]:
    """The weights at the quarters of a colour bar, from its weak end."""
    if look.scale == "log":
        return ("≤ 10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "1")
    digits = 2 if vmax >= 0.1 else 4
    return tuple(f"{vmax * step / 4:.{digits}f}" for step in range(5))


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
