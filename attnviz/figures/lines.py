"""Lines from queries (left) to keys (right), after bertviz (Vig 2019)."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.path import Path
from numpy.typing import NDArray

from attnviz.figures.fonts import drawable, fitted_token, font_families, put_text, wrapped
from attnviz.figures.matrix import Array
from attnviz.figures.page import LEGEND, MARGIN, PIXEL, PanelPlan, legend_columns, page_width
from attnviz.figures.style import Style, text_colour
from attnviz.figures.text import in_points, points_of

# by theme, in order: those of Okabe and Ito (2008), told apart with any colour vision; on light paper the olive of
# Tol (2021) in place of their yellow, which would not show, and the theme's ink for black
HEAD_COLOURS = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222", "#999933"),
    "dark": ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#ececec", "#0072b2"),
}

_HIGHEST, _NARROWEST, _LINES_WIDTH = 9.0, 5.0, 2.8
# points: of all rows together, and from one label to the next
_COMFORTABLE, _LARGEST_PITCH, _LEAST_PITCH = 576, 11.5, 5.8
_LETTERS, _HANDLE, _ENTRY = 7.0, 24.0, 11.0
_PAD, _HEADING, _LABEL_SHARE = 4.0, 14.0, 0.33
_SPREAD, _BEND, _GAP, _FAINTEST, _THINNEST = 0.6, 0.5, 0.9, 0.3, 0.3


@dataclass(frozen=True)
class LinesPlan(PanelPlan):
    """Lines to draw."""

    labels: tuple[str, ...]  # [n_rows], the row's token, the same on both sides, or how many tokens share it
    bright: tuple[frozenset[int], frozenset[int]]  # rows with unmuted labels, left and right
    breaks: tuple[int, ...]  # rows before which a new text begins
    heads: tuple[str, ...]  # [n_heads], what each colour stands for
    # [n_lines], index into heads, row left, row right
    head: NDArray[np.intp]
    query: NDArray[np.intp]
    key: NDArray[np.intp]
    weights: Array  # [n_lines], the attention weights, from weak to strong: the order of drawing
    samples: tuple[float, ...]  # weights that the legend shows
    written: dict[int, str]  # by row, a weight to write before the key's label
    unit: str  # token or word
    keys: tuple[str, ...] | None = None  # labels of the right side if others; it has no breaks then
    one_text: bool = False  # whether they are of the same text

    @cached_property
    def sides(self) -> "tuple[_Side, _Side]":
        """What stands left and right; a new text begins after a gap.

        Of two texts the shorter is spread over the height of the longer.
        """
        keys, of, (left, right) = self.keys or self.labels, ("", ""), self.bright
        if self.keys is None:
            gaps = np.zeros(len(keys))
            gaps[list(self.breaks)] = _GAP
            from_rows = to_rows = np.arange(len(keys)) + gaps.cumsum()
        else:
            last = max(len(self.labels), len(keys)) - 1
            from_rows, to_rows = (np.linspace(0, last, len(labels)) for labels in (self.labels, keys))
            of = of if self.one_text else (" (target)", " (source)")
        return (
            _Side(f"attends from{of[0]}", "from", self.labels, from_rows, self.query, left, {}),
            _Side(f"attended to{of[1]}", "to", keys, to_rows, self.key, right, self.written),
        )

    @property
    def extent(self) -> float:  # height of all rows, in rows, with the gaps between texts
        return max(float(side.rows[-1]) for side in self.sides) + 1

    def page(self, style: Style) -> Figure:
        """A new figure of lines, at most nine inches high; of many rows only some are named."""
        pitch = max(_LEAST_PITCH, min(_LARGEST_PITCH, _COMFORTABLE / max(len(side.labels) for side in self.sides)))
        natural = _LINES_WIDTH + 2 * (self._label_points(pitch) + _PAD) / 72 + 2 * MARGIN
        width = page_width(style, max(_NARROWEST, natural))
        room = (width - 2 * MARGIN) * 72
        rows = ((math.ceil(len(names) / columns) + bool(title)) for names, title, columns in self._legends(room))
        legends = sum(_ENTRY * n + 4 for n in rows) / 72 + 0.1
        first = "those that give (left) or get (right) more attention come first"
        for notes in (self.notes, (*self.notes, f"Not every {self.unit} is named; {first}.")):
            head = self.new_page(style, width=width, body=_HIGHEST, notes=notes).get_figheight() - _HIGHEST
            room = (_HIGHEST - head - legends) * 72 - _HEADING
            if self.extent * _LEAST_PITCH <= room:
                break
        body = legends + (min(self.extent * pitch, room) + _HEADING) / 72
        page = self.new_page(style, width=width, body=body, notes=notes)
        self.draw(page.add_subplot(), style)
        return page

    def draw(self, ax: Axes, style: Style) -> PathCollection:
        """Draw lines between labels on the caller's Axes, with legends above and below; returns the lines."""
        self._add_legends(ax, style, *in_points(ax))
        width, height = in_points(ax)
        pitch = max(height - _HEADING, 1.0) / self.extent  # points from row to row
        room = min(self._label_points(pitch), _LABEL_SHARE * width)
        ax.set(xlim=(0, width), ylim=(self.extent - 0.5, -0.5 - _HEADING / pitch))
        left, right = room + _PAD, width - room - _PAD
        from_side, to_side = self.sides
        rows = from_side.rows
        n_heads = len(self.heads)
        shifts = (self.head - (n_heads - 1) / 2) * _SPREAD / n_heads  # heads side by side, so that none covers another
        starts, ends = (side.rows[side.ends] + shifts for side in self.sides)
        opacities, widths = self._strokes(pitch, self.weights)
        colours = np.array([to_rgb(colour) for colour in HEAD_COLOURS[style.theme]])[self.head]
        bend = _BEND * (right - left)
        codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
        curves = [  # level at both ends
            Path(np.array([(left, start), (left + bend, start), (right - bend, end), (right, end)]), codes)
            for start, end in zip(starts, ends, strict=True)
        ]
        inks = np.column_stack([colours, opacities])
        lines = PathCollection(curves, facecolors="none", edgecolors=inks, linewidths=widths, capstyle="butt")
        ax.add_collection(lines, autolim=False)
        for row in self.breaks:
            middle = (rows[row] + rows[row - 1]) / 2
            ax.axhline(middle, color=style.frame, linewidth=PIXEL, linestyle=(0, (1, 2)), zorder=0.5)
        _write_side(ax, from_side, self.weights, style, "right", left - _PAD, pitch)
        _write_side(ax, to_side, self.weights, style, "left", right + _PAD, pitch)
        return lines

    def _label_points(self, pitch: float) -> float:
        """Width in points of the longest label, or of the name of its side."""
        labels = {side.weight(row) + label for side in self.sides for row, label in enumerate(side.labels)}
        of_labels = (points_of(label, _letters(pitch)) for label in labels)
        return max(*of_labels, *(points_of(side.name, _LETTERS) for side in self.sides))

    def _strokes(self, pitch: float, weights: Array) -> tuple[Array, Array]:
        """Opacities, and widths in points, of lines by weight, in steps that keep files small."""
        widest = min(3.0, max(0.6, 0.3 * pitch * (1.0 if len(self.heads) == 1 else 0.7)))
        strong = np.sqrt(np.clip(weights.astype(float), 0, 1))  # so that 0.02 and 0.1 differ
        widths = np.maximum(_THINNEST, np.round(20 * widest * strong) / 20)
        return np.round(_FAINTEST + (1 - _FAINTEST) * strong, 2), widths

    def _legends(self, room: float) -> list[tuple[tuple[str, ...], str, int]]:
        legends = [(tuple(f"{weight:.3g}" for weight in self.samples), "attention weight")]
        if len(self.heads) > 1:
            legends.insert(0, (self.heads, ""))
        pixels, handle = room / PIXEL, (_HANDLE + 8) / PIXEL
        return [(names, title, legend_columns(map(drawable, names), pixels, handle)) for names, title in legends]

    def _add_legends(self, ax: Axes, style: Style, room: float, height: float) -> None:
        pitch = max(height - _HEADING, 1.0) / self.extent
        colours = HEAD_COLOURS[style.theme]
        several = len(self.heads) > 1
        strokes = self._strokes(pitch, np.array(self.samples))
        key = style.ink if several else colours[0]
        lines = [
            [Line2D([], [], color=key, alpha=alpha, linewidth=width) for alpha, width in zip(*strokes, strict=True)]
        ]
        if several:
            lines.insert(0, [Line2D([], [], color=colour, linewidth=2.5) for colour in colours[: len(self.heads)]])
        look: dict[str, Any] = LEGEND | {
            "borderaxespad": 0,
            "borderpad": 0.3,
            "columnspacing": 1.0,
            "labelspacing": 0.3,
        }
        look |= {"title_fontsize": _LETTERS, "handlelength": 2.2, "alignment": "left"}
        for handles, (names, title, columns) in zip(lines, self._legends(room), strict=True):
            shown = ["\n".join(wrapped(name, _LETTERS, (room - _HANDLE) / PIXEL)) for name in names]
            above = handles is not lines[-1]
            look |= {"loc": "lower left" if above else "upper left", "bbox_to_anchor": (0, above)}
            legend = Legend(ax, handles, shown, title=title, ncols=columns, **look)
            for text in (*legend.get_texts(), legend.get_title()):
                text.set(color=text_colour(style), family=font_families([text.get_text()]), parse_math=False)
            ax.add_artist(legend)
            legend.set_clip_on(False)  # else the layout leaves no room for it


class _Side(NamedTuple):
    """What stands on one side of the lines."""

    name: str
    short: str  # name where there is no room
    labels: tuple[str, ...]
    rows: Array  # offsets of the labels from the first, in rows
    ends: NDArray[np.intp]  # the row of each line's end
    bright: frozenset[int]
    written: dict[int, str]

    def weight(self, row: int) -> str:
        """The weight before a label."""
        return f"{self.written[row]} " if row in self.written else ""


def _letters(pitch: float) -> float:  # font size of labels in points
    return max(5.5, min(9.0, 0.8 * pitch))


def _write_side(ax: Axes, side: _Side, weights: Array, style: Style, aligned: str, x: float, pitch: float) -> None:
    size = _letters(pitch)
    width = x if aligned == "right" else ax.get_xlim()[1] - x
    name = side.name if points_of(side.name, _LETTERS) <= width + _PAD else side.short
    put_text(ax, x, -0.5 - 0.6 * _HEADING / pitch, name, size=_LETTERS, color=style.muted, ha=aligned)
    sums = np.bincount(side.ends, weights, len(side.rows))
    ranks = np.round(np.log2(np.maximum(sums, 1e-9)))
    heights = side.rows * pitch
    named: list[int] = []  # those that fit, those with more of the drawn attention first, near equals from the top
    for row in sorted(range(len(ranks)), key=lambda row: (-ranks[row], row)):
        if all(abs(heights[row] - heights[other]) >= _LEAST_PITCH for other in named):
            named.append(row)
    for row in sorted(named):
        weight = side.weight(row)  # which stays whole: only the token is cut
        room = width - (points_of(f"{weight}…", size) - points_of("…", size))
        text = weight + fitted_token(side.labels[row], size, room / PIXEL)
        colour = text_colour(style) if row in side.bright else style.muted
        put_text(ax, x, side.rows[row], text, size=size, color=colour, ha=aligned)
