"""Lines from queries (left) to keys (right), after bertviz (Vig 2019)."""

import math
from dataclasses import dataclass, replace
from typing import Any

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
from attnviz.figures.page import LEGEND, MARGIN, PIXEL, PagePlan, chart_page, legend_columns, new_page, page_width
from attnviz.figures.running_text import in_points, points_of
from attnviz.figures.style import Style, figure_style, text_colour

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
_COLUMNS = ("attends from", "attended to")


@dataclass(frozen=True)
class LinesPlan(PagePlan):
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

    @property
    def sides(self) -> tuple[Array, Array]:
        """Offsets of the rows left and right from the first, in rows; a new text begins after a gap.

        Of two texts the shorter is spread over the height of the longer.
        """
        if self.keys is None:
            gaps = np.zeros(len(self.labels))
            gaps[list(self.breaks)] = _GAP
            rows = np.arange(len(self.labels)) + gaps.cumsum()
            return rows, rows
        last = max(len(self.labels), len(self.keys)) - 1
        return np.linspace(0, last, len(self.labels)), np.linspace(0, last, len(self.keys))

    @property
    def extent(self) -> float:  # height of all rows, in rows, with the gaps between texts
        return max(float(rows[-1]) for rows in self.sides) + 1


def lines_figure(plan: LinesPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """A new figure of lines, at most nine inches high; of many rows only some are named."""
    pitch = max(_LEAST_PITCH, min(_LARGEST_PITCH, _COMFORTABLE / max(len(plan.labels), len(plan.keys or ()))))
    natural = _LINES_WIDTH + 2 * (_column_points(plan, pitch) + _PAD) / 72 + 2 * MARGIN
    width = page_width(style, max(_NARROWEST, natural))
    room = (width - 2 * MARGIN) * 72
    rows = ((math.ceil(len(names) / columns) + bool(title)) for names, title, columns in _legends(plan, room))
    legends = sum(_ENTRY * n + 4 for n in rows) / 72 + 0.1
    first = "those that give (left) or get (right) more attention come first"
    with figure_style():
        for notes in (plan.notes, (*plan.notes, f"Not every {plan.unit} is named; {first}.")):
            head = new_page(plan.title, notes, style, width=width, body=_HIGHEST).get_figheight() - _HIGHEST
            room = (_HIGHEST - head - legends) * 72 - _HEADING
            if plan.extent * _LEAST_PITCH <= room:
                break
    body = legends + (min(plan.extent * pitch, room) + _HEADING) / 72
    return chart_page(replace(plan, notes=notes), style, draw_lines, width=width, body=body)


def draw_lines(ax: Axes, plan: LinesPlan, style: Style) -> PathCollection:
    """Draw lines between labels on the caller's Axes, with legends above and below; returns the lines."""
    _add_legends(ax, plan, style, *in_points(ax))
    width, height = in_points(ax)
    pitch = max(height - _HEADING, 1.0) / plan.extent  # points from row to row
    room = min(_column_points(plan, pitch), _LABEL_SHARE * width)
    ax.set(xlim=(0, width), ylim=(plan.extent - 0.5, -0.5 - _HEADING / pitch))
    left, right = room + _PAD, width - room - _PAD
    rows, key_rows = plan.sides
    n_heads = len(plan.heads)
    shifts = (plan.head - (n_heads - 1) / 2) * _SPREAD / n_heads  # heads side by side, so that none covers another
    starts, ends = rows[plan.query] + shifts, key_rows[plan.key] + shifts
    opacities, widths = _strokes(plan, pitch, plan.weights)
    colours = np.array([to_rgb(colour) for colour in HEAD_COLOURS[style.theme]])[plan.head]
    bend = _BEND * (right - left)
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    curves = [  # level at both ends
        Path(np.array([(left, start), (left + bend, start), (right - bend, end), (right, end)]), codes)
        for start, end in zip(starts, ends, strict=True)
    ]
    inks = np.column_stack([colours, opacities])
    lines = PathCollection(curves, facecolors="none", edgecolors=inks, linewidths=widths, capstyle="butt")
    ax.add_collection(lines, autolim=False)
    for row in plan.breaks:
        middle = (rows[row] + rows[row - 1]) / 2
        ax.axhline(middle, color=style.frame, linewidth=PIXEL, linestyle=(0, (1, 2)), zorder=0.5)
    _write_column(ax, plan, style, 0, left - _PAD, pitch)
    _write_column(ax, plan, style, 1, right + _PAD, pitch)
    return lines


def _letters(pitch: float) -> float:  # font size of labels in points
    return max(5.5, min(9.0, 0.8 * pitch))


def _column_points(plan: LinesPlan, pitch: float) -> float:
    """Width in points of the longest label, or of the column's name."""
    labels = {*_column(plan, 0), *_column(plan, 1)}
    names = (_headings(plan, side)[0] for side in (0, 1))
    return max(*(points_of(label, _letters(pitch)) for label in labels), *(points_of(name, _LETTERS) for name in names))


def _column(plan: LinesPlan, side: int) -> list[str]:
    """The labels of one side, with the weights to be written before the keys."""
    written, labels = (plan.written, plan.keys or plan.labels) if side else ({}, plan.labels)
    return [f"{written[row]} {label}" if row in written else label for row, label in enumerate(labels)]


def _headings(plan: LinesPlan, side: int) -> tuple[str, str]:  # heading of a side, long and short
    of = "" if plan.keys is None or plan.one_text else (" (target)", " (source)")[side]
    return f"{_COLUMNS[side]}{of}", ("from", "to")[side]


def _strokes(plan: LinesPlan, pitch: float, weights: Array) -> tuple[Array, Array]:
    """Opacities, and widths in points, of lines by weight, in steps that keep files small."""
    widest = min(3.0, max(0.6, 0.3 * pitch * (1.0 if len(plan.heads) == 1 else 0.7)))
    strong = np.sqrt(np.clip(weights.astype(float), 0, 1))  # so that 0.02 and 0.1 differ
    widths = np.maximum(_THINNEST, np.round(20 * widest * strong) / 20)
    return np.round(_FAINTEST + (1 - _FAINTEST) * strong, 2), widths


def _write_column(ax: Axes, plan: LinesPlan, style: Style, side: int, x: float, pitch: float) -> None:
    labels = plan.keys if side and plan.keys else plan.labels
    rows = plan.sides[side]
    size = _letters(pitch)
    width = x if side == 0 else ax.get_xlim()[1] - x
    name, short = _headings(plan, side)
    name = name if points_of(name, _LETTERS) <= width + _PAD else short
    aligned = ("right", "left")[side]
    put_text(ax, x, -0.5 - 0.6 * _HEADING / pitch, name, size=_LETTERS, color=style.muted, ha=aligned)
    sums = np.bincount(plan.key if side else plan.query, plan.weights, len(rows))
    ranks = np.round(np.log2(np.maximum(sums, 1e-9)))
    heights = rows * pitch
    named: list[int] = []  # those that fit, those with more of the drawn attention first, near equals from the top
    for row in sorted(range(len(ranks)), key=lambda row: (-ranks[row], row)):
        if all(abs(heights[row] - heights[other]) >= _LEAST_PITCH for other in named):
            named.append(row)
    for row in sorted(named):
        # the weight stays whole: only the token is cut
        weight = f"{plan.written[row]} " if side and row in plan.written else ""
        room = width - (points_of(f"{weight}…", size) - points_of("…", size))
        text = weight + fitted_token(labels[row], size, room / PIXEL)
        ink = text_colour(style)
        colour = ink if row in plan.bright[side] else style.muted
        put_text(ax, x, rows[row], text, size=size, color=colour, ha=aligned)


def _legends(plan: LinesPlan, room: float) -> list[tuple[tuple[str, ...], str, int]]:
    legends = [(tuple(f"{weight:.3g}" for weight in plan.samples), "attention weight")]
    if len(plan.heads) > 1:
        legends.insert(0, (plan.heads, ""))
    pixels, handle = room / PIXEL, (_HANDLE + 8) / PIXEL
    return [(names, title, legend_columns(map(drawable, names), pixels, handle)) for names, title in legends]


def _add_legends(ax: Axes, plan: LinesPlan, style: Style, room: float, height: float) -> None:
    pitch = max(height - _HEADING, 1.0) / plan.extent
    colours = HEAD_COLOURS[style.theme]
    several = len(plan.heads) > 1
    strokes = _strokes(plan, pitch, np.array(plan.samples))
    key = style.ink if several else colours[0]
    lines = [[Line2D([], [], color=key, alpha=alpha, linewidth=width) for alpha, width in zip(*strokes, strict=True)]]
    if several:
        lines.insert(0, [Line2D([], [], color=colour, linewidth=2.5) for colour in colours[: len(plan.heads)]])
    look: dict[str, Any] = LEGEND | {"borderaxespad": 0, "borderpad": 0.3, "columnspacing": 1.0, "labelspacing": 0.3}
    look |= {"title_fontsize": _LETTERS, "handlelength": 2.2, "alignment": "left"}
    for handles, (names, title, columns) in zip(lines, _legends(plan, room), strict=True):
        shown = ["\n".join(wrapped(name, _LETTERS, (room - _HANDLE) / PIXEL)) for name in names]
        above = handles is not lines[-1]
        look |= {"loc": "lower left" if above else "upper left", "bbox_to_anchor": (0, above)}
        legend = Legend(ax, handles, shown, title=title, ncols=columns, **look)
        for text in (*legend.get_texts(), legend.get_title()):
            text.set(color=text_colour(style), family=font_families([text.get_text()]), parse_math=False)
        ax.add_artist(legend)
        legend.set_clip_on(False)  # else the layout leaves no room for it
