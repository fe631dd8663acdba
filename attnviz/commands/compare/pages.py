"""The page around a figure of a comparison: title and notes above, colour bar below; placed in pixels."""

import math
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from attnviz.commands.compare.words import Worded
from attnviz.figures.fonts import font_families, wrapped
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look

__all__ = ["Sheet", "draw_colour_bar", "new_sheet"]

_POINT = 72 / DPI
_LEAST_WIDTH = 640
_LEFT, _BAR, _WIDEST_BAR = 14, 14, 560
_ENDS, _NUMBERS = 18, 26
"""Pixels above a bar for what its ends mean, and below it for its numbers."""

_WORDS, _LINE = 7.0, 19


@dataclass(frozen=True)
class Sheet:
    """A figure with its words; what is drawn stands below ``top``, the colour bar below that. All in pixels.

    Attributes:
        figure: new, of no backend.
        width, height: of the figure.
        top: where the notes end.
        bar_left, bar_top: where the colour bar begins, from the left and from ``top``.
        bar_words: which scale the bar shows, in lines that fit.
    """

    figure: Figure
    width: int
    height: int
    top: int
    bar_left: int
    bar_top: int
    bar_words: tuple[str, ...]

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """New axes, placed in pixels from the left and from below the words."""
        bottom = self.height - self.top - top - height
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))


def new_sheet(plan: Worded, content: tuple[int, float, float], look: Look) -> Sheet:
    """A page with title and notes above what is drawn, wrapped, and room for its colour bar below.

    Args:
        plan: whose words these are.
        content: pixels left of the cells, width with these, height.
        look: theme, and how wide the page is; by default as wide as the content.
    """
    left, content_width, body = content
    width = max(math.ceil(content_width), _LEAST_WIDTH) if look.width is None else round(look.width * DPI)
    room = width - 2 * _LEFT
    narrow = look.width is not None and width < _LEAST_WIDTH
    sizes = (8.0, 6.0) if narrow else (10.0, 7.5)
    title = wrapped(plan.title, sizes[0], DPI, room, "bold")
    notes = [line for note in plan.notes for line in wrapped(note, sizes[1], DPI, room)]
    line_heights = [round(size * DPI / 72 * 1.3) for size in sizes]
    top = 12 + line_heights[0] * len(title) + 4 + line_heights[1] * len(notes) + 16
    bar_left = 2 * _LEFT if narrow else left  # half of the number at its end stands out
    words = tuple(wrapped(plan.scale, _WORDS, DPI, width - bar_left - _LEFT))
    bar_top = math.ceil(body) + _ENDS * bool(plan.ends)
    height = top + bar_top + _BAR + _NUMBERS + _LINE * len(words) + 12
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=look.greys.paper)
    style: dict[str, Any] = {"va": "top", "parse_math": False, "color": look.greys.ink}
    down = 12
    for lines, size, step, weight in (
        (title, sizes[0], line_heights[0], "bold"),
        (notes, sizes[1], line_heights[1], "normal"),
    ):
        for line in lines:
            figure.text(
                _LEFT / width, 1 - down / height, line, size=size, weight=weight, family=font_families([line]), **style
            )
            down += step
        down += 4
    return Sheet(figure, width, height, top, bar_left, bar_top, words)


def draw_colour_bar(sheet: Sheet, mappable: ScalarMappable, ends: tuple[str, ...], look: Look) -> None:
    """A colour bar below what is drawn, its numbers and words below it, what its ends mean above them.

    Args:
        sheet: with room for the bar.
        mappable: colours and scale; numbers are signed where it diverges.
        ends: what the weak and the strong end mean; empty where the numbers say it.
        look: theme.
    """
    width = min(_WIDEST_BAR, sheet.width - sheet.bar_left - 2 * _LEFT)
    bar = sheet.axes(sheet.bar_left, sheet.bar_top, width, _BAR)
    low, high = mappable.get_clim()
    ticks = [low, low / 4, 0, high / 4, high] if low < 0 else [0, high / 2, high]
    colour_bar = sheet.figure.colorbar(mappable, cax=bar, ticks=ticks, orientation="horizontal")
    colour_bar.outline.set(linewidth=_POINT, edgecolor=look.greys.frame)
    bar.minorticks_off()
    form = "+.3g" if low < 0 else ".2g"  # a quarter of one digit has up to three, a half two
    bar.set_xticks(ticks, [f"{tick:{form}}".replace("-", "−") if tick else "0" for tick in ticks])
    bar.tick_params(labelsize=6.5, length=2, width=_POINT, pad=2, color=look.greys.frame, labelcolor=look.greys.ink)
    for end, place, side in zip(ends, (0, 1), ("left", "right"), strict=False):
        above: dict[str, Any] = {"xytext": (0, 2), "textcoords": "offset points", "annotation_clip": False}
        bar.annotate(end, (place, 1), xycoords="axes fraction", size=6.5, ha=side, color=look.greys.ink, **above)
    words = "\n".join(sheet.bar_words)
    bar.set_xlabel(words, loc="left", fontsize=_WORDS, labelpad=3, color=look.greys.ink, parse_math=False)
