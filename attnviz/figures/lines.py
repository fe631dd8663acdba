"""Lines from the tokens that attend, on the left, to those attended to, on the right, after bertviz (Vig 2019)."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.path import Path
from numpy.typing import NDArray

from attnviz.figures.colours import outer_ink
from attnviz.figures.files import DPI, figure_style
from attnviz.figures.fonts import drawable, fitted, font_families, text_width, wrapped
from attnviz.figures.look import Look
from attnviz.figures.matrix import Array, cell_points
from attnviz.figures.page import MARGIN, PIXEL, new_page, page_width, settled

__all__ = ["HEAD_COLOURS", "LinesPlan", "draw_lines", "lines_figure"]

HEAD_COLOURS = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222", "#999933"),
    "dark": ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#ececec", "#0072b2"),
}
"""By theme, in order: those of Okabe and Ito (2008), told apart with any colour vision; on light paper the
olive of Tol (2021) in place of their yellow, which would not show, and the theme's ink for black."""

_HIGHEST, _NARROWEST, _LINES_WIDTH = 9.0, 5.0, 2.8
_COMFORTABLE, _LARGEST_PITCH, _LEAST_PITCH = 576, 11.5, 5.8
"""Points: of all rows together, and from one label to the next."""
_LETTERS, _HANDLE, _ENTRY = 7.0, 24.0, 11.0
_PAD, _HEADING, _LABEL_SHARE = 4.0, 14.0, 0.33
_SPREAD, _BEND, _GAP, _FAINTEST = 0.6, 0.5, 0.9, 0.25
_COLUMNS = ("attends from", "attended to")


@dataclass(frozen=True)
class LinesPlan:
    """Lines to draw.

    Attributes:
        stem, caption: of the file.
        title, notes: above the lines.
        labels: [n_rows], of each row its token, the same on both sides, or how many tokens share it.
        bright: the rows whose labels do not stand back, left and right.
        breaks: rows before which a new text begins.
        heads: [n_heads], what each colour stands for.
        head, query, key: [n_lines], of each line its place in ``heads``, its row left and its row right.
        weights: [n_lines], the attention weights, from weak to strong: the order of drawing.
        strengths: [n_lines], 0-1, the weights under the scale of the look.
        scale: what width and opacity are.
        samples: examples for reading the lines: strength and the weight that it stands for.
        written: by row, a weight to write before the label attended to.
        unit: ``token`` or ``word``.
    """

    stem: str
    caption: str
    title: str
    notes: tuple[str, ...]
    labels: tuple[str, ...]
    bright: tuple[frozenset[int], frozenset[int]]
    breaks: tuple[int, ...]
    heads: tuple[str, ...]
    head: NDArray[np.intp]
    query: NDArray[np.intp]
    key: NDArray[np.intp]
    weights: Array
    strengths: Array
    scale: str
    samples: tuple[tuple[float, str], ...]
    written: dict[int, str]
    unit: str

    @property
    def rows(self) -> Array:
        """[n_rows], how far below the first each row stands, in rows; a new text begins after a gap."""
        gaps = np.zeros(len(self.labels))
        gaps[list(self.breaks)] = _GAP
        rows: Array = np.arange(len(self.labels)) + gaps.cumsum()
        return rows

    @property
    def extent(self) -> float:
        """Height of all rows, in rows, with the gaps between texts."""
        return float(self.rows[-1]) + 1


def lines_figure(plan: LinesPlan, look: Look, vector: bool = False) -> Figure:
    """A new figure of lines, at most nine inches high: where there are many rows, only some are named."""
    del vector  # lines are drawn alike for every format
    pitch = max(_LEAST_PITCH, min(_LARGEST_PITCH, _COMFORTABLE / len(plan.labels)))
    natural = _LINES_WIDTH + 2 * (_column_points(plan, pitch) + _PAD) / 72 + 2 * MARGIN
    width = page_width(look, max(_NARROWEST, natural))
    legends = sum(_ENTRY * rows + 4 for rows in _legend_rows(plan, (width - 2 * MARGIN) * 72)) / 72 + 0.1
    first = "those that give (left) or get (right) more attention come first"
    with figure_style():
        for notes in (plan.notes, (*plan.notes, f"Not every {plan.unit} is named; {first}.")):
            head = new_page(plan.title, notes, look, width=width, body=1).get_figheight() - 1
            room = (_HIGHEST - head - legends) * 72 - _HEADING
            if plan.extent * _LEAST_PITCH <= room:
                break
        body = legends + (min(plan.extent * pitch, room) + _HEADING) / 72
        page = new_page(plan.title, notes, look, width=width, body=body)
        draw_lines(page.add_subplot(), plan, look)
        return page


def draw_lines(ax: Axes, plan: LinesPlan, look: Look) -> PathCollection:
    """Draw lines on the caller's Axes, between columns of labels, with legends of the heads and of the weights.

    Args:
        ax: any Axes; only these are changed. The legends stand above and below.
        plan: of the lines.
        look: its theme gives the colours.

    Returns:
        the lines, from weak to strong.
    """
    ax.set(facecolor="none")
    ax.set_axis_off()
    settled(ax.figure)
    _add_legends(ax, plan, look)
    settled(ax.figure)
    width, height = cell_points(ax, 1, 1)
    pitch = _pitch(height, plan)
    room = min(_column_points(plan, pitch), _LABEL_SHARE * width)
    ax.set(xlim=(0, width), ylim=(plan.extent - 0.5, -0.5 - _HEADING / pitch))
    left, right = room + _PAD, width - room - _PAD
    rows, n_heads = plan.rows, len(plan.heads)
    shifts = (plan.head - (n_heads - 1) / 2) * _SPREAD / n_heads  # heads side by side, so that none covers another
    starts, ends = (rows[side] + shifts for side in (plan.query, plan.key))
    lines = PathCollection(
        _curves(starts, ends, left, right),
        facecolors="none",
        edgecolors=_line_colours(plan, look),
        linewidths=_line_widths(plan, pitch, plan.strengths),
        capstyle="butt",
    )
    ax.add_collection(lines, autolim=False)
    for row in plan.breaks:
        middle = (rows[row] + rows[row - 1]) / 2
        ax.axhline(middle, color=look.greys.frame, linewidth=PIXEL, linestyle=(0, (1, 2)), zorder=0.5)
    _write_column(ax, plan, look, 0, left - _PAD, pitch)
    _write_column(ax, plan, look, 1, right + _PAD, pitch)
    return lines


def _pitch(height: float, plan: LinesPlan) -> float:
    """Points from row to row on Axes of so many points."""
    return max(height - _HEADING, 1.0) / plan.extent


def _letters(pitch: float) -> float:
    """Points of the letters of labels."""
    return max(5.5, min(9.0, 0.8 * pitch))


def _points(text: str, size: float) -> float:
    return text_width(drawable(text), size, DPI) * PIXEL


def _column_points(plan: LinesPlan, pitch: float) -> float:
    """Points that the longest label takes, or the name of its column."""
    labels = {*_column(plan, 0), *_column(plan, 1)}
    return max(*(_points(label, _letters(pitch)) for label in labels), *(_points(name, _LETTERS) for name in _COLUMNS))


def _column(plan: LinesPlan, side: int) -> list[str]:
    """The labels of one side, weights before those attended to where they are to be written."""
    written = plan.written if side else {}
    return [f"{written[row]} {label}" if row in written else label for row, label in enumerate(plan.labels)]


def _curves(starts: Array, ends: Array, left: float, right: float) -> list[Path]:
    """One curve a line, level at both ends."""
    codes, bend = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4], _BEND * (right - left)
    return [
        Path(np.array([(left, start), (left + bend, start), (right - bend, end), (right, end)]), codes)
        for start, end in zip(starts, ends, strict=True)
    ]


def _line_colours(plan: LinesPlan, look: Look) -> Array:
    """[n_lines, 4]: the colour of the head, the opacity of the weight."""
    table = np.array([to_rgb(colour) for colour in HEAD_COLOURS[look.theme]])
    colours: Array = np.column_stack([table[plan.head], [_opacity(strength) for strength in plan.strengths]])
    return colours


def _opacity(strength: float) -> float:
    """Of a line, in steps of a hundredth for small files; the faintest still shows on light and on dark paper."""
    return round(float(_FAINTEST + (1 - _FAINTEST) * strength), 2)


def _line_widths(plan: LinesPlan, pitch: float, strengths: Iterable[float]) -> list[float]:
    """Points, in steps of a twentieth for small files: narrow where rows stand close, so that paper shows between."""
    widest = min(3.0, max(0.6, 0.3 * pitch * (1.0 if len(plan.heads) == 1 else 0.7)))
    thinnest = min(0.5, 0.4 * widest)
    return [round(20 * (thinnest + (widest - thinnest) * float(strength))) / 20 for strength in strengths]


def _write_column(ax: Axes, plan: LinesPlan, look: Look, side: int, x: float, pitch: float) -> None:
    """The labels of one side, as many as have room, and above them what the column is."""
    labels, rows, size = _column(plan, side), plan.rows, _letters(pitch)
    width = x if side == 0 else ax.get_xlim()[1] - x
    name = _COLUMNS[side] if _points(_COLUMNS[side], _LETTERS) <= width + _PAD else ("from", "to")[side]
    style: dict[str, Any] = {"ha": ("right", "left")[side], "va": "center_baseline", "parse_math": False}
    ax.text(x, -0.5 - 0.6 * _HEADING / pitch, name, size=_LETTERS, color=look.greys.quiet, **style)
    for row in _named(plan, plan.key if side else plan.query, pitch):
        text, ink = fitted(labels[row], size, DPI, width / PIXEL), outer_ink(look)
        colour = ink if row in plan.bright[side] else look.greys.quiet
        ax.text(x, rows[row], text, size=size, color=colour, family=font_families([text]), **style)


def _named(plan: LinesPlan, touched: NDArray[np.intp], pitch: float) -> list[int]:
    """As many rows as can be named, those with more of the drawn attention first, near equals from the top."""
    sums = np.bincount(touched, plan.weights, len(plan.labels))
    ranks, places = np.round(np.log2(np.maximum(sums, 1e-9))), plan.rows * pitch
    chosen: list[int] = []
    for row in sorted(range(len(ranks)), key=lambda row: (-ranks[row], row)):
        if all(abs(places[row] - places[other]) >= _LEAST_PITCH for other in chosen):
            chosen.append(row)
    return sorted(chosen)


def _columns_of(texts: Sequence[str], room: float) -> int:
    """Columns of a legend on so many points."""
    widest = max(_points(text, _LETTERS) for text in texts) + _HANDLE
    return max(1, min(len(texts), int(room // (widest + 8))))


def _legend_rows(plan: LinesPlan, room: float) -> list[int]:
    """Rows of the legend of the heads and of that of the weights, its title included, on so many points."""
    legends = [plan.heads] * (len(plan.heads) > 1) + [tuple(text for _, text in plan.samples)]
    rows = [math.ceil(len(texts) / _columns_of(texts, room)) for texts in legends]
    return [*rows[:-1], rows[-1] + 1]


def _add_legends(ax: Axes, plan: LinesPlan, look: Look) -> None:
    """The heads by colour above the Axes, where there are several; examples of weights below."""
    colours, several = HEAD_COLOURS[look.theme], len(plan.heads) > 1
    room, height = cell_points(ax, 1, 1)
    strengths, weights = zip(*plan.samples, strict=True)
    widths = _line_widths(plan, _pitch(height, plan), strengths)
    key = look.greys.ink if several else colours[0]
    of_weights = [
        {"color": key, "alpha": _opacity(strength), "linewidth": width}
        for strength, width in zip(strengths, widths, strict=True)
    ]
    if several:
        of_heads = [{"color": colour, "linewidth": 2.5} for colour in colours[: len(plan.heads)]]
        _add_legend(ax, plan.heads, of_heads, "", "lower left", (0.0, 1.0), room, look)
    _add_legend(ax, weights, of_weights, plan.scale, "upper left", (0.0, 0.0), room, look)


def _add_legend(
    ax: Axes,
    texts: Sequence[str],
    styles: Sequence[dict[str, Any]],
    title: str,
    corner: Literal["lower left", "upper left"],
    place: tuple[float, float],
    room: float,
    look: Look,
) -> None:
    handles = [Line2D([], [], **style) for style in styles]
    names = ["\n".join(wrapped(text, _LETTERS, DPI, (room - _HANDLE) / PIXEL)) for text in texts]
    legend = Legend(
        ax, handles, names, loc=corner, bbox_to_anchor=place, ncols=_columns_of(texts, room), frameon=False,
        title=title, fontsize=_LETTERS, title_fontsize=_LETTERS, alignment="left", borderaxespad=0, borderpad=0.3,
        handlelength=2.2, columnspacing=1.0, labelspacing=0.3,
    )  # fmt: skip
    for text in (*legend.get_texts(), legend.get_title()):
        text.set(color=outer_ink(look), family=font_families([text.get_text()]), parse_math=False)
    ax.add_artist(legend)
    legend.set_clip_on(False)  # else the layout leaves no room for it
