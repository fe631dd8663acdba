"""The page around a figure of a profile: title and notes above, what it rests on below; placed in pixels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnviz.commands.profile.figures import Caption
from attnviz.figures.colours import INK, QUIET
from attnviz.figures.fonts import fitted, font_families, text_width, wrapped
from attnviz.figures.heatmaps import DPI

__all__ = ["MARGIN", "Page", "new_page"]

MARGIN = 20
"""Pixels between the edge of a page and its texts."""

_LEAST_WIDTH = 840


@dataclass(frozen=True)
class Page:
    """A figure with its caption; what is drawn stands below ``top``, in pixels."""

    figure: Figure
    width: float
    height: float
    top: float

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """New axes, placed in pixels from the left and from below the caption."""
        bottom = self.height - self.top - top - height
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))


def new_page(caption: Caption, body_width: float, body: float, handles: Sequence[Any] = ()) -> Page:
    """A page as wide as the body or the least width, with title and notes above and the source below."""
    width = max(body_width, _LEAST_WIDTH)
    room = width - 2 * MARGIN
    title = fitted(caption.title, 11, DPI, room, "bold")
    notes = [line for note in caption.notes for line in wrapped(note, 7.5, DPI, room)]
    source = wrapped(caption.source, 6.5, DPI, room)
    rows = _legend_rows([handle.get_label() for handle in handles], room)
    legend = 24 * rows + 2
    top = 52 + 20 * len(notes) + legend + 14
    height = top + body + 18 * len(source) + 20
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
    write: Callable[..., Any] = figure.text
    style: dict[str, Any] = {"va": "top", "parse_math": False, "family": font_families([title, *notes, *source])}
    write(MARGIN / width, 1 - 14 / height, title, size=11, weight="bold", color=INK, **style)
    for line, note in enumerate(notes):
        write(MARGIN / width, 1 - (44 + 20 * line) / height, note, size=7.5, color=INK, **style)
    for line, text in enumerate(reversed(source), start=1):
        write(MARGIN / width, (18 * line + 10) / height, text, size=6.5, color=QUIET, **style)
    if handles:
        place = (MARGIN / width, 1 - (44 + 20 * len(notes)) / height)
        columns = -(-len(handles) // rows)
        figure.legend(handles=handles, loc="upper left", bbox_to_anchor=place, ncols=columns, frameon=False,
                      fontsize=7.5, labelcolor=INK, borderpad=0.3, borderaxespad=0, handletextpad=0.4,
                      columnspacing=1.4)  # fmt: skip
    return Page(figure, width, height, top)


def _legend_rows(labels: Sequence[str], room: float) -> int:
    """How many rows a legend needs that is filled column by column and must not be wider than the room."""
    widths = [text_width(label, 7.5, DPI) + 62 for label in labels]
    for rows in range(1, len(widths)):
        if sum(max(widths[first : first + rows]) for first in range(0, len(widths), rows)) <= room:
            return rows
    return len(widths)
