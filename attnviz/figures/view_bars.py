"""The colour bar of a view: it lies below, says what is shown and on which scale, and numbers both its ends."""

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnviz.figures.fonts import fitted, text_width, wrapped
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look
from attnviz.figures.view_drawing import MARGIN, PIXEL, written

__all__ = ["BAR_HEIGHT", "Mark", "bar_place", "draw_colour_bar"]

BAR_HEIGHT = 92
"""Pixels that a colour bar takes with its mark above, its numbers and its name below."""

_BAR_NAME, _SHORT_BAR = 7.5, 300
_MARK = "#d95f02"


@dataclass(frozen=True)
class Mark:
    """A value to point out on a colour bar, such as what uniform attention would give, and what it is."""

    value: float
    name: str


def bar_place(name: str, page: int, left: int) -> tuple[int, int, int]:
    """Where a colour bar goes on a page: its left, its length, and the height that it takes with all that it says.

    Args:
        name: of the bar; it says which scale it is, and goes on in further lines where it must.
        page: width of the page.
        left: where the bar begins if there is room enough.
    """
    if page - left - MARGIN < _SHORT_BAR:
        left = MARGIN + 12
    length = min(420, page - left - MARGIN - 12)  # half of the last number stands beyond the end
    return left, length, BAR_HEIGHT + 17 * (len(wrapped(name, _BAR_NAME, DPI, length)) - 1)


def draw_colour_bar(
    ax: Axes,
    norm: Normalize,
    name: str,
    look: Look,
    mark: Mark | None = None,
    *,
    colours: Colormap | None = None,
    cut: bool = False,
) -> None:
    """A horizontal colour bar on the Axes, named below; a mark above, with an arrow where it lies outside.

    Args:
        ax: of the bar, in a figure.
        norm: from values to colours; both its ends are written below the bar.
        name: what is shown, and on which scale.
        look: theme.
        mark: a value to point out.
        colours: others than those of the look.
        cut: there are values above the scale, which look like its end.
    """
    figure = ax.figure
    assert isinstance(figure, Figure)
    room = ax.get_window_extent().width * DPI / figure.dpi
    low, high = float(norm.vmin or 0.0), float(norm.vmax or 1.0)
    bar = figure.colorbar(ScalarMappable(norm, colours or look.colour_map()), cax=ax, orientation="horizontal")
    bar.outline.set(linewidth=PIXEL, edgecolor=look.greys.frame)
    bar.minorticks_off()
    places, numbers = _numbered(norm, room, "≥ " if cut else "")
    ax.set_xticks(places, [number.replace("-", "−") for number in numbers])
    ax.tick_params(labelsize=7, length=2, width=PIXEL, color=look.greys.frame, labelcolor=look.greys.ink)
    words = "\n".join(wrapped(name, _BAR_NAME, DPI, room))
    ax.set_xlabel(words, fontsize=_BAR_NAME, color=look.greys.ink, labelpad=2, parse_math=False)
    if mark is None:
        return
    text, place = f"{mark.name} {written(mark.value)}", float(np.clip(norm(np.clip(mark.value, low, high)), 0, 1))
    if low <= mark.value <= high:
        ax.plot([mark.value] * 2, [0, 1], transform=ax.get_xaxis_transform(), color=_MARK, lw=1.6, clip_on=False)
    else:
        text = f"{text} →" if mark.value > high else f"← {text}"
    text = fitted(text, 7, DPI, room + MARGIN)
    wide = text_width(text, 7, DPI)
    left = max(0.0, min(place * room - wide / 2, room - wide)) / room
    ax.annotate(text, (left, 1), xycoords="axes fraction", xytext=(0, 3), textcoords="offset points",
                fontsize=7, color=look.greys.ink, annotation_clip=False)  # fmt: skip


def _numbered(norm: Normalize, room: float, above: str) -> tuple[list[float], list[str]]:
    """The values that are written below a bar of so many pixels, both ends among them, none too near to another."""
    low, high = float(norm.vmin or 0.0), float(norm.vmax or 1.0)
    if isinstance(norm, LogNorm):
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        subs = (1, 2, 5) if high / low <= 100.5 else (1,)
        between = [float(f"{sub}e{decade}") for decade in decades for sub in subs]
    else:
        between = list(MaxNLocator(int(np.clip(room // 55, 1, 5)), steps=[1, 2, 5, 10]).tick_values(low, high))
    below = "≤ " if isinstance(norm, LogNorm) else ""  # what is smaller looks the same
    powers = bool(below) and high / low > 100.5
    shown = [(low, below + _number(low, ".3g", powers)), (high, above + _number(high, ".3g", powers))]
    for value in between:
        text = _number(value, "g", powers)
        if low < value < high and all(
            abs(norm(value) - norm(other)) * room > (text_width(text, 7, DPI) + text_width(words, 7, DPI)) / 2 + 8
            for other, words in shown
        ):
            shown.append((value, text))
    places, numbers = zip(*sorted(shown), strict=True)
    return list(places), list(numbers)


def _number(value: float, digits: str, powers: bool) -> str:
    """A number in so many digits; a power of ten below 1, where asked for, as such: ``10⁻⁴``."""
    exponent = math.log10(value) if powers and value > 0 else 0.0
    if exponent < -0.5 and abs(exponent - round(exponent)) < 1e-9:
        return "10⁻" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(-round(exponent)))
    return format(value, digits)
