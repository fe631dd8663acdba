"""Planned lines drawn on matplotlib Axes, the caller's own or new ones. No pyplot."""

from collections.abc import Iterator, Sequence
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
from matplotlib.transforms import ScaledTranslation

from attnviz.colours import Array
from attnviz.drawing import figure_style
from attnviz.figures import DPI
from attnviz.findings import Findings, HeadFindings
from attnviz.fonts import drawable, fitted, font_families, text_width, wrapped
from attnviz.line_views import lines_plans
from attnviz.lines import LinesPlan, Positions
from attnviz.look import Look

__all__ = ["HEAD_COLOURS", "draw_lines", "lines_figure", "lines_figures"]

HEAD_COLOURS = {
    "light": ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222", "#999933"),
    "dark": ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#ececec", "#0072b2"),
}
"""By theme, in order: those of Okabe and Ito (2008), told apart with any colour vision; on light paper the
olive of Tol (2021) in place of their yellow, which would not show, and the theme's ink for black."""

_MARGIN = 14
_PAD = 8
_LINE = 18
_SAMPLE = 34
_NATURAL_LINES = 420
_NATURAL_WIDTH = 760
_LABEL_SHARE = 0.33
_TITLE_SIZE, _NOTE_SIZE = 10.0, 7.0
_SPREAD = 0.6
_BEND = 0.5
_COLUMNS = ("attends from", "attended to")


def draw_lines(ax: Axes, plan: LinesPlan, look: Look) -> PathCollection:
    """Draw planned lines on the caller's Axes, which keep their size: lines, labels, title and a legend below.

    Args:
        ax: any matplotlib Axes; only these are changed. Labels stand left and right of them.
        plan: from :func:`attnviz.lines.plan_lines`.
        look: its theme gives the colours.

    Returns:
        the lines, from weak to strong.
    """
    drawn = _draw_body(ax, plan, look, None)
    words = [drawable(plan.title), *map(drawable, plan.reading)]
    style: dict[str, Any] = {"family": font_families(words), "parse_math": False, "color": look.greys.ink}
    ax.set_title(f"{words[0]}\n" + "\n".join(words[1:]), loc="left", fontsize=_NOTE_SIZE, pad=18, **style)
    entries = _entries(plan, look)
    several = len(plan.heads) if len(plan.heads) > 1 else 0
    _add_legend(ax, entries[several:], look, "right" if several else "left")
    if several:
        _add_legend(ax, entries[:several], look, "left")
    return drawn


def lines_figure(plan: LinesPlan, look: Look) -> Figure:
    """A new figure with lines, title, notes, legend of the heads and key of the weights; as wide as the look says."""
    with figure_style():
        longest = _longest_text(plan)
        natural = max(_NATURAL_WIDTH, round(_NATURAL_LINES + 2 * (longest + _PAD + _MARGIN)))
        width = natural if look.width is None else round(look.width * DPI)
        room = round(min(longest, _LABEL_SHARE * (width - 2 * _MARGIN)))
        beside = room + _PAD + _MARGIN
        header = _Header(width - 2 * _MARGIN, plan, look)
        above, below = header.height + 2 * _LINE + _MARGIN, _MARGIN
        height = above + plan.height + below
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=look.greys.paper)
        axes = figure.add_axes(
            (beside / width, below / height, (width - 2 * beside) / width, plan.height / height), facecolor="none"
        )
        header.write(figure)
        _draw_body(axes, plan, look, room + 2)
        return figure


def lines_figures(
    findings: Findings,
    heads: Sequence[HeadFindings],
    look: Look,
    from_token: str | None = None,
    drop_special: bool = False,
    threshold: float | None = None,
) -> Iterator[tuple[str, Figure, str]]:
    """Every picture of lines as file stem, new figure and caption; see :func:`attnviz.line_views.lines_plans`.

    Raises:
        UsageError: no such token, no tokens left, no heads, or a threshold that is none.
    """
    for stem, plan, caption in lines_plans(findings, heads, look, from_token, drop_special, threshold):
        yield stem, lines_figure(plan, look), caption


def _draw_body(ax: Axes, plan: LinesPlan, look: Look, room: int | None) -> PathCollection:
    """Lines, labels (cut to the room in pixels), names of the columns and rules between segments."""
    rows = plan.rows
    ax.set(xlim=(0, 1), ylim=(float(rows[-1]) + 0.5, -0.5))
    ax.set_axis_off()
    drawn = PathCollection(
        _paths(plan, rows),
        facecolors="none",
        edgecolors=_colours(plan, look),
        linewidths=_widths(plan, plan.strengths),
        capstyle="butt",
        clip_on=False,
    )
    ax.add_collection(drawn, autolim=False)
    _label_columns(ax, plan, look, room)
    for row in plan.breaks:
        y = float(rows[row]) - 0.5 - (float(rows[row] - rows[row - 1]) - 1) / 2
        ax.axhline(y, color=look.greys.frame, linewidth=0.5, linestyle=(0, (1, 2)), zorder=0.5)
    return drawn


def _add_legend(ax: Axes, entries: Sequence["_Entry"], look: Look, side: Literal["left", "right"]) -> None:
    """A legend below the caller's Axes, beside those already there."""
    handles = [Line2D([], [], label=entry.text, **(entry.style or {"linestyle": "none"})) for entry in entries]
    corner: Literal["upper left", "upper right"] = "upper left" if side == "left" else "upper right"
    legend = Legend(ax, handles, [entry.text for entry in entries], loc=corner, frameon=False, borderaxespad=0,
                    bbox_to_anchor=(float(side == "right"), -0.02), fontsize=_NOTE_SIZE)  # fmt: skip
    for text in legend.get_texts():
        text.set(color=look.greys.ink, family=font_families([text.get_text()]), parse_math=False)
    ax.add_artist(legend)


def _paths(plan: LinesPlan, rows: Array) -> list[Path]:
    """One curve a line, level at both ends; heads start and end side by side, so that none covers another."""
    places = (np.arange(len(plan.heads)) - (len(plan.heads) - 1) / 2) * _SPREAD / len(plan.heads)
    starts, ends = rows[plan.query] + places[plan.head], rows[plan.key] + places[plan.head]
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    return [
        Path(np.array([(0, start), (_BEND, start), (1 - _BEND, end), (1, end)]), codes)
        for start, end in zip(starts, ends, strict=True)
    ]


def _colours(plan: LinesPlan, look: Look) -> Array:
    """[m, 4]: the colour of the head, the opacity of the weight, in steps of a hundredth for small files."""
    table = np.array([to_rgb(colour) for colour in HEAD_COLOURS[look.theme]])
    opacities = np.array([_opacity(float(strength)) for strength in plan.strengths])
    return np.column_stack([table[plan.head], opacities]).astype(np.float64)


def _opacity(strength: float) -> float:
    return round(0.1 + 0.9 * strength, 2)


def _widths(plan: LinesPlan, strengths: Array) -> list[float]:
    """Points, in steps of a twentieth for small files."""
    return [round(20 * (0.3 + (plan.widest - 0.3) * float(strength))) / 20 for strength in strengths]


def _label_columns(ax: Axes, plan: LinesPlan, look: Look, room: int | None) -> None:
    """The tokens on both sides, and above them which side is which."""
    figure = ax.get_figure()
    assert figure is not None
    rows, greys = plan.rows, look.greys
    for x, align, pad, touched, name in zip(
        (0, 1), ("right", "left"), (-_PAD / 2, _PAD / 2), (plan.query, plan.key), _column_names(room), strict=True
    ):
        texts = _column(plan, x == 1)
        shown = {row: _cut(text, plan.font_size, room) for row, text in texts.items()}
        style: dict[str, Any] = {"family": font_families(shown.values()), "parse_math": False, "ha": align}
        place = ax.transData + ScaledTranslation(pad / DPI, 0, figure.dpi_scale_trans)
        bright = _bright_rows(plan, touched)
        for row, text in shown.items():
            colour = greys.ink if row in bright else greys.quiet
            ax.text(
                x, rows[row], text, va="center_baseline", color=colour, size=plan.font_size, transform=place, **style
            )
        heading = ax.transAxes + ScaledTranslation(pad / DPI, 6 / DPI, figure.dpi_scale_trans)
        ax.text(x, 1, name, ha=align, va="bottom", color=greys.quiet, size=_NOTE_SIZE, transform=heading)


def _column(plan: LinesPlan, attended: bool) -> dict[int, str]:
    """By row, the labels of one side; where weights are to be written, they stand before the labels attended to."""
    weights = plan.written if attended else {}
    return {row: f"{weights[row]} {plan.labels[row]}" if row in weights else plan.labels[row] for row in plan.named}


def _column_names(room: int | None) -> tuple[str, str]:
    fits = room is None or all(text_width(name, _NOTE_SIZE, DPI) <= room for name in _COLUMNS)
    return _COLUMNS if fits else ("from", "to")


def _cut(text: str, size: float, room: int | None) -> str:
    return drawable(text) if room is None else fitted(text, size, DPI, room)


def _longest_text(plan: LinesPlan) -> float:
    """Pixels that the widest text of both columns takes."""
    labels = {*_column(plan, False).values(), *_column(plan, True).values()}
    widths = [text_width(drawable(label), plan.font_size, DPI) for label in labels]
    return max(*widths, *(text_width(name, _NOTE_SIZE, DPI) for name in _COLUMNS))


def _bright_rows(plan: LinesPlan, touched: Positions) -> frozenset[int]:
    """Rows whose labels do not stand back: content, or, where one token's attention is shown, what its lines touch."""
    if plan.from_positions is None:
        return frozenset(row for row, quiet in enumerate(plan.quiet) if not quiet)
    return frozenset(touched.tolist())


@dataclass(frozen=True)
class _Entry:
    """One entry of the legend: a text, after a line drawn in a style, or on its own."""

    text: str
    style: dict[str, Any]

    @property
    def width(self) -> float:
        return text_width(self.text, _NOTE_SIZE, DPI) + (_SAMPLE if self.style else 0) + 16


def _entries(plan: LinesPlan, look: Look) -> list[_Entry]:
    """The heads by colour, where there are several, then examples of weights."""
    colours = HEAD_COLOURS[look.theme]
    several = len(plan.heads) > 1
    heads = [
        _Entry(drawable(name), {"color": colour, "linewidth": 2.5})
        for name, colour in zip(plan.legend, colours, strict=False)
    ]
    colour = look.greys.ink if several else colours[0]
    named = look.describe() if not several else look.describe().replace("this head", "each head")
    weights = [
        _Entry(text, {"color": colour, "alpha": _opacity(strength), "linewidth": width})
        for (strength, text), width in zip(
            plan.scale_key, _widths(plan, np.array([strength for strength, _ in plan.scale_key])), strict=True
        )
    ]
    return [*(heads if several else []), _Entry(f"{named}:", {}), *weights]


class _Header:
    """What stands above the lines: title, notes and legend, broken into lines that fit."""

    def __init__(self, room: int, plan: LinesPlan, look: Look) -> None:
        self.look = look
        self.title = wrapped(plan.title, _TITLE_SIZE, DPI, room, "bold")
        self.notes = [line for note in plan.reading for line in wrapped(note, _NOTE_SIZE, DPI, room)]
        self.legend = _legend_rows(_entries(plan, look), room)

    @property
    def height(self) -> int:
        """Pixels from the top of the figure."""
        return _MARGIN + 26 * len(self.title) + _LINE * len(self.notes) + 20 * len(self.legend) + 6

    def write(self, figure: Figure) -> None:
        width, height = (float(side) * DPI for side in figure.get_size_inches())
        top, ink = float(_MARGIN), self.look.greys.ink
        style: dict[str, Any] = {"va": "top", "parse_math": False, "color": ink}
        for line in self.title:
            families = font_families([line])
            figure.text(
                _MARGIN / width, 1 - top / height, line, size=_TITLE_SIZE, weight="bold", family=families, **style
            )
            top += 26
        for line in self.notes:
            figure.text(_MARGIN / width, 1 - top / height, line, size=_NOTE_SIZE, family=font_families([line]), **style)
            top += _LINE
        for row in self.legend:
            left, middle = float(_MARGIN), 1 - (top + 14) / height
            for entry in row:
                start = left
                if entry.style:
                    ends = [left / width, (left + _SAMPLE - 8) / width]
                    figure.add_artist(Line2D(ends, [middle, middle], solid_capstyle="butt", **entry.style))
                    start += _SAMPLE
                families = font_families([entry.text])
                figure.text(start / width, middle, entry.text, va="center_baseline", size=_NOTE_SIZE, color=ink,
                            family=families, parse_math=False)  # fmt: skip
                left += entry.width
            top += 20


def _legend_rows(entries: list[_Entry], room: float) -> list[list[_Entry]]:
    """Entries from left to right, a new row where one does not fit or where the weights begin."""
    rows: list[list[_Entry]] = [[]]
    for entry in entries:
        cut = _Entry(fitted(entry.text, _NOTE_SIZE, DPI, room - _SAMPLE), entry.style)
        if rows[-1] and (not entry.style or sum(other.width for other in rows[-1]) + cut.width - 16 > room):
            rows.append([])
        rows[-1].append(cut)
    return rows
