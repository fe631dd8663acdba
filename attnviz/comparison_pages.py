"""The page around a figure of a comparison: title and notes above, colour bar beside; placed in pixels."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnviz.comparison_words import Worded
from attnviz.figures import DPI
from attnviz.fonts import font_families, wrapped
from attnviz.look import Look

__all__ = ["Sheet", "draw_colour_bar", "new_sheet"]

_POINT = 72 / DPI
_LEAST_WIDTH = 640
_LEFT, _BAR = 14, 14


@dataclass(frozen=True)
class Sheet:
    """A figure with its words; what is drawn stands below ``top``, in pixels."""

    figure: Figure
    width: int
    height: int
    top: int

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """New axes, placed in pixels from the left and from below the words."""
        bottom = self.height - self.top - top - height
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))


def new_sheet(plan: Worded, content_width: float, body: float, look: Look) -> Sheet:
    """As wide as the look says, or as the content; title and notes above, wrapped."""
    width = max(math.ceil(content_width), _LEAST_WIDTH) if look.width is None else round(look.width * DPI)
    room = width - 2 * _LEFT
    narrow = look.width is not None and width < _LEAST_WIDTH
    sizes = (8.0, 6.0) if narrow else (10.0, 7.5)
    title = wrapped(plan.title, sizes[0], DPI, room, "bold")
    notes = [line for note in plan.notes for line in wrapped(note, sizes[1], DPI, room)]
    line_heights = [round(size * DPI / 72 * 1.3) for size in sizes]
    top = 12 + line_heights[0] * len(title) + 4 + line_heights[1] * len(notes) + 16
    height = top + math.ceil(body)
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
    return Sheet(figure, width, height, top)


def draw_colour_bar(
    sheet: Sheet, place: tuple[float, float, float], mappable: ScalarMappable, label: str, look: Look
) -> None:
    """A colour bar on the sheet: at (left, top, height) in pixels, its numbers signed where the scale diverges."""
    left, top, height = place
    bar = sheet.axes(left, top, _BAR, height)
    low, high = mappable.get_clim()
    steps = np.asarray(MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high))
    ticks = steps[steps <= high] if low == 0 else high * np.array([-1, -1 / 4, 0, 1 / 4, 1])
    colour_bar = sheet.figure.colorbar(mappable, cax=bar, ticks=ticks)
    colour_bar.outline.set(linewidth=_POINT, edgecolor=look.greys.frame)
    names = [f"{tick:{'+' if low < 0 and tick else ''}.2g}".replace("-", "−") for tick in ticks]
    bar.set_yticklabels(names)
    bar.tick_params(labelsize=7, length=2, width=_POINT, color=look.greys.frame, labelcolor=look.greys.ink)
    bar.set_ylabel(label, fontsize=7.5, color=look.greys.ink)
