"""Charts of estimates: rows of dots, lines with bands, heads by rank, two models side by side; and a table."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from attnviz.errors import UsageError
from attnviz.figures.fonts import font_families, text_width
from attnviz.figures.lines import HEAD_COLOURS
from attnviz.figures.matrix import Array
from attnviz.figures.page import (
    MARGIN,
    PIXEL,
    ChartPlan,
    PagePlan,
    dress_chart,
    dress_scores,
    page_width,
    power_of_ten,
)
from attnviz.figures.style import DPI, Style, text_colour
from attnviz.measures.estimates import Interval

_BLUE = {"light": "#2171b5", "dark": "#6baed6"}
_ORANGE = {"light": "#b35806", "dark": "#f1a340"}
_TOO_SMALL = 0.001  # the numbers of an axis whose largest is smaller have a power of ten in their unit
_LEGEND_ROOM = 0.25  # room for the legend above curves, as a share of their height
_NAME_ROOM = 1.3  # height of the Axes as a multiple of the largest number, so that names have room above it
_ID_INCHES, _RANK_INCHES = 0.11, 0.2  # least distances of ids and of ranks
_AXES_SHARE = 0.85  # rough share of the Axes in the figure's width
_ROW = 0.3  # height in inches
_APART = 0.16  # half the distance of A and B, in rows


class Estimates(NamedTuple):
    """Numbers with both ends of their intervals, [n] each; an end that is not known is the number itself."""

    values: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, estimates: Iterable[tuple[float, Interval | None]]) -> "Estimates":
        """Of numbers and their intervals."""
        return cls(*np.array([(value, *(interval or (value, value))) for value, interval in estimates]).T)


class Column(NamedTuple):
    """One panel of a :class:`RowsPlan`."""

    title: str
    unit: str
    estimates: Estimates  # of each row
    median: float  # of all that there are, drawn or not


@dataclass(frozen=True)
class RowsPlan(PagePlan):
    """Named rows of dots with intervals."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]

    def page(self, style: Style) -> Figure:
        """Draw the columns side by side."""
        rows = range(len(self.names))
        width = page_width(style, 4.8)
        page = self.new_page(style, width=width, body=0.6 + 0.15 * max(2, len(rows)))
        for ax, column in zip(page.subplots(1, 2, sharey=True), self.columns, strict=True):
            largest = max(float(np.abs(ends).max()) for ends in column.estimates)
            exponent = 0
            unit = column.unit
            if 0 < largest < _TOO_SMALL:  # take the largest to at least 1: 10⁻³ nats/token
                exponent = 3 * math.floor(math.log10(largest) / 3)
                unit = f"{power_of_ten(exponent)} {f'({unit})' if ' ' in unit else unit}"
            factor = 10.0**-exponent
            values, low, high = (factor * ends for ends in column.estimates)
            for row in rows[::2]:
                ax.axhspan(row - 0.5, row + 0.5, color=style.ink, alpha=0.05, linewidth=0)
            ax.axvline(factor * column.median, color=style.frame, lw=0.9, ls=":")
            ax.axvline(0, color=style.frame, lw=PIXEL)
            ends = (values - low, high - values)
            ax.errorbar(values, rows, xerr=ends, fmt="o", ms=3.5, lw=1.2, color=_BLUE[style.theme])
            ax.margins(x=0.08)
            ax.set(ylim=(len(rows) - 0.5, -0.5), yticks=rows, yticklabels=self.names)
            ax.set_xlabel(f"{column.title}\n({unit})", loc="center" if width > 4 else "right")
            _dress(ax, style)
            ax.tick_params(axis="y", length=0)
            ax.locator_params(axis="x", nbins=5 if width > 4 else 2)
        return page


@dataclass(frozen=True)
class CurvesPlan(ChartPlan):
    """Effects of removing ever more of something, by how many."""

    size = (4.8, 2.9)

    removed: tuple[int, ...]
    least: Estimates  # the least important first
    singles: Estimates  # the sum of what these do one at a time
    random: Estimates
    label: str  # of the vertical axis

    def draw(self, ax: Axes, style: Style) -> Line2D:
        """Draw the three lines, intervals as bands; returns the line of the least important first."""
        lines: list[Line2D] = []
        for name, (values, low, high), colours, properties, marker in (
            ("least important first", self.least, _BLUE, "-", "o"),
            ("sum, one at a time", self.singles, _BLUE, "--", ""),
            ("random order", self.random, _ORANGE, ":", "s"),
        ):
            colour = colours[style.theme]
            if properties != "--" and (low < high).any():
                ax.fill_between(self.removed, low, high, color=colour, alpha=0.18, linewidth=0)
            lines += ax.plot(self.removed, values, properties, color=colour, marker=marker, lw=1.4, ms=3, label=name)
        ax.axhline(0, color=style.frame, lw=PIXEL)
        ax.set(xlim=(0, None), xlabel="heads removed", ylabel=self.label)
        ax.locator_params(axis="x", integer=True)
        bottom, top = ax.get_ylim()
        ax.set_ylim(bottom, top + _LEGEND_ROOM * (top - bottom))
        room = {"fontsize": 6.5, "handlelength": 1.6, "borderaxespad": 0.2}
        ax.legend(loc="upper left", labelcolor=text_colour(style), frameon=False, **room)
        _dress(ax, style)
        return lines[0]


def _dress(ax: Axes, style: Style) -> None:
    ax.set_facecolor("none")
    ax.spines[:].set(linewidth=PIXEL, edgecolor=style.frame)
    ax.tick_params(labelsize=7, length=2, pad=2, width=PIXEL, color=style.frame)
    ax.tick_params(which="minor", length=0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_tick_params(labelcolor=text_colour(style, "xtick.color"))
        axis.label.set(size=7.5, color=text_colour(style, "axes.labelcolor"))


@dataclass(frozen=True)
class RankedPlan(ChartPlan):
    """Distances of heads, the largest first."""

    size = (5.6, 2.7)

    names: tuple[str, ...]
    ranks: tuple[int, ...]
    distances: Estimates
    largest: float  # possible distance

    def draw(self, ax: Axes, style: Style) -> PathCollection:
        """Draw a dot and an interval a head, beside the largest possible distance."""
        y, low, high = self.distances
        x = np.arange(1, len(y) + 1)
        ax.vlines(x, low, high, colors=style.muted, lw=0.8, zorder=2)
        page = ax.get_figure(root=True)
        assert page is not None
        apart = float(_AXES_SHARE * page.get_figwidth() / (len(y) + 1))  # inches of two heads side by side, roughly
        size = float(np.clip(0.85 * apart * 72, 1.5, 5.1)) ** 2  # so that dots of neighbours do not overlap
        colour = to_hex(style.colour_map()(0.75))
        dots = ax.scatter(x, y, s=size, color=colour, edgecolors=style.paper, lw=0.3, zorder=4)
        top = _NAME_ROOM * float(high.max()) or self.largest
        ax.set(xlim=(1 - max(1, _ID_INCHES / apart * 0.75), len(x) + 1), ylim=(0, top), facecolor=style.paper)
        note: dict[str, Any] = {"textcoords": "offset points", "color": style.ink}
        where = "↑"
        if self.largest <= top:
            ax.axhline(self.largest, color=style.ink, lw=0.8, ls=(0, (4, 3)), zorder=1)
            where = "(dashed)"
        largest = f"largest possible {self.largest:.2f} {where}"
        ax.annotate(largest, (1, 1), xytext=(0, 3), xycoords="axes fraction", ha="right", fontsize=7, **note)
        place: dict[str, Any] = {"xytext": (0, 4), "rotation": 90, "ha": "center", "va": "bottom", "zorder": 5}
        halo = withStroke(linewidth=2, foreground=style.paper)  # where the line of the largest possible crosses
        last = -math.inf
        room = _ID_INCHES / apart
        for at, name in enumerate(self.names):  # of heads that moved and fit side by side, above their marks
            if y[at] and at - last >= room:
                last = at
                neighbours = math.ceil(room / 2)
                highest = float(high[max(0, at - neighbours) : at + 1 + neighbours].max())
                ax.annotate(name, (at + 1, highest), fontsize=6, path_effects=[halo], **place, **note)
        least = _RANK_INCHES / apart
        every = next((step for step in (1, 5, 10) if step >= least), 10 * math.ceil(least / 10))
        ticks = [1, *range(max(every, 2), len(x) + 1, every)]
        ax.set_xticks(ticks, [str(self.ranks[tick - 1]) for tick in ticks])
        ink = text_colour(style, "axes.labelcolor")
        ax.set_xlabel("heads by rank", fontsize=8, color=ink)
        ax.set_ylabel("mean distance (root nats)", fontsize=8, color=ink)
        ax.grid(visible=False, axis="x")
        dress_chart(ax, style, "y", ("left", "bottom"))
        return dots


@dataclass(frozen=True)
class PairsPlan(ChartPlan):
    """Named rows of two scores, of model A and of model B, with their guesses."""

    names: tuple[str, ...]
    scores: tuple[Estimates, Estimates]
    guesses: tuple[Sequence[float], Sequence[float]]
    models: tuple[str, str]

    def body(self, _: Style) -> tuple[float, float]:
        """Width and height in inches."""
        return 5.6, _ROW * len(self.names) + 0.6

    def handles(self, style: Style) -> list[Artist]:
        """The models, and the rule of a guess."""
        look: dict[str, Any] = {"marker": "o", "ms": 4.5, "lw": 1.2}
        models = zip("AB", self.models, HEAD_COLOURS[style.theme], strict=False)
        return [
            *(Line2D([], [], color=colour, label=f"{side}: {model}", **look) for side, model, colour in models),
            Line2D([], [], color=style.ink, marker="|", ls="", label="its guess"),
        ]

    def draw(self, ax: Axes, style: Style) -> PathCollection:
        """Draw dots with intervals, and guesses as rules; returns the dots of B."""
        y = np.arange(len(self.names))
        sides = zip(self.scores, self.guesses, HEAD_COLOURS[style.theme], (-_APART, _APART), strict=False)
        for (scores, low, high), guesses, colour, shift in sides:
            ax.hlines(y + shift, low, high, colors=colour, lw=1.2)
            ax.vlines(guesses, y + shift - _APART, y + shift + _APART, colors=style.ink, lw=0.8)
            dots = ax.scatter(scores, y + shift, s=20, color=colour, clip_on=False, zorder=5)
        dress_scores(ax, style, self.names, "score")
        return dots


ROW_SIZE, _SMALL = 7.5, 6.0  # points of the text, and in a column of a paper


@dataclass(frozen=True)
class RowPlan(PagePlan):
    """The table as texts."""

    columns: tuple[tuple[str, ...], ...]  # the first cell is the header, the last below a rule
    needed: int  # columns without which the softmax cannot be redone

    def page(self, style: Style) -> Figure:
        """A new figure of the table, with as many products of values as fit; UsageError if the width is too small."""
        size = ROW_SIZE if style.room is None else _SMALL
        widths = [max(text_width(cell, size, "bold") for cell in cells) / DPI + size / 75 for cells in self.columns]
        while style.room is not None and len(widths) > self.needed and sum(widths) + 2 * MARGIN > style.room:
            widths.pop()
        natural, n_lines = sum(widths) + 2 * MARGIN, len(self.columns[0])
        width = page_width(style, natural)
        if natural > width:
            raise UsageError(
                f"the row of a head does not fit in {width:g} inches; expected a --width of at least "
                f"{natural + 0.05:.1f}in, or --figures none."
            )
        page = self.new_page(style, width=width, body=size / 44 * n_lines + MARGIN)
        ax = page.add_subplot(xlim=(0, width - MARGIN), ylim=(n_lines, 0))
        ax.axis("off")
        for right, cells in zip(np.cumsum(widths), self.columns, strict=False):
            for line, cell in enumerate(cells):
                text = ax.text(right, line + 0.5, cell, ha="right", va="center", size=size, parse_math=False)
                text.set(color=style.ink, weight="normal" if line else "bold", family=font_families([cell]))
        ax.hlines([1, n_lines - 1], 0, sum(widths), color=style.frame, linewidth=PIXEL)
        return page
