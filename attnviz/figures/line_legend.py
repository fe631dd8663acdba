"""The legend of a picture of lines: the colours of the heads and examples of weights, in columns that fit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from attnviz.figures.colours import outer_ink
from attnviz.figures.fonts import drawable, font_families, text_width, wrapped
from attnviz.figures.heatmaps import DPI
from attnviz.figures.line_layout import LinesLayout
from attnviz.figures.look import Look

__all__ = [
    "HEAD_COLOURS",
    "LETTERS",
    "LegendEntry",
    "LegendRow",
    "add_legends",
    "legend_rows",
    "line_widths",
    "opacity",
    "write_legend",
]

HEAD_COLOURS = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222", "#999933"),
    "dark": ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#ececec", "#0072b2"),
}
"""By theme, in order: those of Okabe and Ito (2008), told apart with any colour vision; on light paper the
olive of Tol (2021) in place of their yellow, which would not show, and the theme's ink for black."""

LETTERS = 7.0
"""Size of the legend's texts, in points."""

_FAINTEST = 0.25
_SAMPLE = 34
_BETWEEN = 16
_LINE, _ROW = 18, 20
_ROW_POINTS, _HANDLE_POINTS = 12.0, 26.0


@dataclass(frozen=True)
class LegendEntry:
    """A text, after a line drawn in a style, or on its own."""

    text: str
    style: dict[str, Any]

    @property
    def indent(self) -> int:
        """Pixels that the line takes."""
        return _SAMPLE if self.style else 0

    @property
    def width(self) -> float:
        """Pixels of line and text."""
        return self.indent + text_width(self.text, LETTERS, DPI)


@dataclass(frozen=True)
class LegendRow:
    """Entries side by side: for each its left edge in pixels, its style, and its text in lines that fit."""

    cells: tuple[tuple[float, LegendEntry, tuple[str, ...]], ...]

    @property
    def height(self) -> int:
        """Pixels down to the next row."""
        return _ROW + _LINE * (max(len(lines) for _, _, lines in self.cells) - 1)


def legend_rows(layout: LinesLayout, look: Look, room: float) -> list[LegendRow]:
    """The heads by colour, where there are several, then examples of weights, all within so many pixels."""
    heads, name, weights = _entries(layout, look)
    along = [name, *weights]
    if sum(entry.width for entry in along) + _BETWEEN * len(weights) <= room:
        return [*_in_columns(heads, room), *_in_columns(along, room)]
    return [*_in_columns(heads, room), *_in_columns([name], room), *_in_columns(weights, room)]


def write_legend(figure: Figure, rows: Sequence[LegendRow], left: float, top: float, ink: str) -> None:
    """Write rows of a legend onto a figure, from so many pixels on from its left and top edges."""
    width, height = (float(side) * DPI for side in figure.get_size_inches())
    for row in rows:
        middle = top + 14
        for start, entry, lines in row.cells:
            x, y = (left + start) / width, 1 - middle / height
            if entry.style:
                end = x + (_SAMPLE - 8) / width
                figure.add_artist(Line2D([x, end], [y, y], solid_capstyle="butt", **entry.style))
            for number, line in enumerate(lines):
                figure.text(x + entry.indent / width, y - _LINE * number / height, line, va="center_baseline",
                            size=LETTERS, color=ink, family=font_families([line]), parse_math=False)  # fmt: skip
        top += row.height


def add_legends(ax: Axes, layout: LinesLayout, look: Look) -> None:
    """Legends below the caller's Axes: the heads, where there are several, and beside or below them the weights."""
    figure = ax.get_figure()
    assert figure is not None
    heads, name, weights = _entries(layout, look)
    key = [name, *weights]
    if not heads:
        _add_legend(ax, key, look, "left", 0)
        return
    points = ax.get_window_extent().width * 72 / figure.dpi
    beside = sum(_points(entries) for entries in (heads, key)) <= points
    _add_legend(ax, key, look, "right" if beside else "left", 0 if beside else _ROW_POINTS * len(heads))
    _add_legend(ax, heads, look, "left", 0)


def opacity(strength: float) -> float:
    """Of a line, in steps of a hundredth for small files; the faintest still shows on light and on dark paper."""
    return round(_FAINTEST + (1 - _FAINTEST) * strength, 2)


def line_widths(layout: LinesLayout, strengths: Sequence[float]) -> list[float]:
    """Points, in steps of a twentieth for small files."""
    least, most = layout.thinnest, layout.widest
    return [round(20 * (least + (most - least) * float(strength))) / 20 for strength in strengths]


def _entries(layout: LinesLayout, look: Look) -> tuple[list[LegendEntry], LegendEntry, list[LegendEntry]]:
    """The heads by colour, where there are several; the name of the scale; and examples of weights."""
    plan, colours = layout.plan, HEAD_COLOURS[look.theme]
    several = len(plan.heads) > 1
    heads = [
        LegendEntry(drawable(name), {"color": colour, "linewidth": 2.5})
        for name, colour in zip(plan.legend, colours, strict=False)
    ]
    colour = look.greys.ink if several else colours[0]
    named = look.describe().replace("this head", "each head") if several else look.describe()
    widths = line_widths(layout, [strength for strength, _ in plan.scale_key])
    weights = [
        LegendEntry(text, {"color": colour, "alpha": opacity(strength), "linewidth": width})
        for (strength, text), width in zip(plan.scale_key, widths, strict=True)
    ]
    return heads if several else [], LegendEntry(f"{named}:", {}), weights


def _in_columns(entries: Sequence[LegendEntry], room: float) -> list[LegendRow]:
    """Entries in aligned columns, in as few rows as fit; in a single column texts are broken where need be."""
    for rows in range(1, len(entries)):
        widths = _column_widths(entries, math.ceil(len(entries) / rows))
        if sum(widths) + _BETWEEN * (len(widths) - 1) <= room:
            break
    else:
        widths = [room]
    lefts = np.concatenate([[0.0], np.cumsum(np.array(widths) + _BETWEEN)]).tolist()
    return [
        LegendRow(
            tuple(
                (left, entry, tuple(wrapped(entry.text, LETTERS, DPI, room - left - entry.indent)))
                for left, entry in zip(lefts, entries[first : first + len(widths)], strict=False)
            )
        )
        for first in range(0, len(entries), len(widths))
    ]


def _column_widths(entries: Sequence[LegendEntry], columns: int) -> list[float]:
    return [max(entry.width for entry in entries[column::columns]) for column in range(columns)]


def _points(entries: Sequence[LegendEntry]) -> float:
    """Points that a legend of these is wide, with a little air."""
    return _HANDLE_POINTS + max(text_width(entry.text, LETTERS, DPI) for entry in entries) * 72 / DPI


def _add_legend(
    ax: Axes, entries: Sequence[LegendEntry], look: Look, side: Literal["left", "right"], below: float
) -> None:
    """One legend, so many points below where legends begin."""
    figure = ax.get_figure()
    assert figure is not None
    handles = [Line2D([], [], label=entry.text, **(entry.style or {"linestyle": "none"})) for entry in entries]
    corner: Literal["upper left", "upper right"] = "upper left" if side == "left" else "upper right"
    place = ax.transAxes + ScaledTranslation(0, -below / 72, figure.dpi_scale_trans)
    legend = Legend(ax, handles, [entry.text for entry in entries], loc=corner, frameon=False, borderaxespad=0,
                    bbox_to_anchor=(float(side == "right"), -0.02), bbox_transform=place, fontsize=LETTERS)  # fmt: skip
    for text in legend.get_texts():
        text.set(color=outer_ink(look), family=font_families([text.get_text()]), parse_math=False)
    ax.add_artist(legend)
