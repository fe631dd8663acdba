"""Planned lines drawn on matplotlib Axes, the caller's own or new ones. No pyplot."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.transforms import ScaledTranslation

from attnviz.commands.heads.findings import Findings, HeadFindings
from attnviz.figures.colours import Array, outer_ink
from attnviz.figures.fonts import drawable, fitted, font_families, text_width, wrapped
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI
from attnviz.figures.line_layout import LEAST_DISTANCE, LinesLayout, laid_out
from attnviz.figures.line_legend import (
    HEAD_COLOURS,
    LETTERS,
    add_legends,
    legend_rows,
    line_widths,
    opacity,
    write_legend,
)
from attnviz.figures.line_views import lines_plans
from attnviz.figures.lines import LinesPlan
from attnviz.figures.look import Look

__all__ = ["MOST_HEIGHT", "draw_lines", "lines_figure", "lines_figures"]

MOST_HEIGHT = 1350
"""Pixels at :data:`attnviz.figures.heatmaps.DPI`: nine inches, so that a picture and its caption fit on a page."""

_MARGIN = 14
_PAD = 8
_LINE = 18
_AROUND = 2 * _LINE + 2 * _MARGIN
_NATURAL_LINES = 420
_NATURAL_WIDTH = 760
_LABEL_SHARE = 0.33
_TITLE_SIZE, _NOTE_SIZE = 10.0, LETTERS
_SPREAD = 0.6
_BEND = 0.5
_COLUMNS = ("attends from", "attended to")


def draw_lines(ax: Axes, plan: LinesPlan, look: Look) -> PathCollection:
    """Draw planned lines on the caller's Axes, which keep their size: lines, labels, title and a legend below.

    Args:
        ax: any matplotlib Axes; only these are changed. Labels stand left and right of them.
        plan: from :func:`attnviz.figures.lines.plan_lines`.
        look: its theme gives the colours.

    Returns:
        the lines, from weak to strong.
    """
    layout = LinesLayout(plan, ax.get_window_extent().height * DPI / ax.figure.dpi / plan.extent)
    drawn = _draw_body(ax, layout, look, None)
    room = ax.get_window_extent().width * DPI / ax.figure.dpi
    words = [line for text in (plan.title, *layout.reading) for line in wrapped(text, _NOTE_SIZE, DPI, room)]
    style: dict[str, Any] = {"family": font_families(words), "parse_math": False, "color": outer_ink(look)}
    ax.set_title("\n".join(words), loc="left", fontsize=_NOTE_SIZE, pad=18, **style)
    add_legends(ax, layout, look)
    return drawn


def lines_figure(plan: LinesPlan, look: Look) -> Figure:
    """A new figure with lines, title, notes, legend of the heads and key of the weights.

    As wide as the look says, and no higher than a page: where there are many rows, they stand close and only
    some are named.
    """
    with figure_style():
        longest = _longest_text(laid_out(plan, MOST_HEIGHT))
        natural = max(_NATURAL_WIDTH, round(_NATURAL_LINES + 2 * (longest + _PAD + _MARGIN)))
        width = natural if look.width is None else round(look.width * DPI)
        room = round(min(longest, _LABEL_SHARE * (width - 2 * _MARGIN)))
        beside = room + _PAD + _MARGIN
        layout, header = _page(plan, look, width - 2 * _MARGIN)
        body = math.ceil(layout.height - 0.01)  # which rounding may put above a whole number
        height = header.height + _AROUND + body
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=look.greys.paper)
        axes = figure.add_axes(
            (beside / width, _MARGIN / height, (width - 2 * beside) / width, body / height), facecolor="none"
        )
        header.write(figure)
        _draw_body(axes, layout, look, room + 2)
        return figure


def _page(plan: LinesPlan, look: Look, room: int) -> tuple[LinesLayout, "_Header"]:
    """Rows and header that together fit on a page: a note that names are thinned makes the header higher."""
    layout = laid_out(plan, MOST_HEIGHT)
    for _ in range(2):
        layout = laid_out(plan, MOST_HEIGHT - _AROUND - _Header(room, layout, look).height)
    return layout, _Header(room, layout, look)


def lines_figures(
    findings: Findings,
    heads: Sequence[HeadFindings],
    look: Look,
    from_token: str | None = None,
    drop_special: bool = False,
    threshold: float | None = None,
) -> Iterator[tuple[str, Figure, str]]:
    """Every picture of lines as file stem, new figure and caption; see :func:`attnviz.figures.line_views.lines_plans`.

    Raises:
        UsageError: no such token, no tokens left, no heads, or a threshold that is none.
    """
    for stem, plan, caption in lines_plans(findings, heads, look, from_token, drop_special, threshold):
        yield stem, lines_figure(plan, look), caption


def _draw_body(ax: Axes, layout: LinesLayout, look: Look, room: int | None) -> PathCollection:
    """Lines, labels (cut to the room in pixels), names of the columns and rules between segments."""
    plan = layout.plan
    rows = plan.rows
    ax.set(xlim=(0, 1), ylim=(float(rows[-1]) + 0.5, -0.5))
    ax.set_axis_off()
    drawn = PathCollection(
        _paths(plan, rows),
        facecolors="none",
        edgecolors=_colours(plan, look),
        linewidths=line_widths(layout, plan.strengths.tolist()),
        capstyle="butt",
        clip_on=False,
    )
    ax.add_collection(drawn, autolim=False)
    _label_columns(ax, layout, look, room)
    for row in plan.breaks:
        y = float(rows[row]) - 0.5 - (float(rows[row] - rows[row - 1]) - 1) / 2
        ax.axhline(y, color=look.greys.frame, linewidth=0.5, linestyle=(0, (1, 2)), zorder=0.5)
    return drawn


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
    opacities = np.array([opacity(float(strength)) for strength in plan.strengths])
    return np.column_stack([table[plan.head], opacities]).astype(np.float64)


def _label_columns(ax: Axes, layout: LinesLayout, look: Look, room: int | None) -> None:
    """The tokens on both sides, and above them which side is which."""
    figure = ax.get_figure()
    assert figure is not None
    plan = layout.plan
    rows, greys = plan.rows, look.greys
    for x, align, pad, touched, name in zip(
        (0, 1),
        ("right", "left"),
        (-_PAD / 2, _PAD / 2),
        (plan.from_positions or (), plan.key.tolist()),
        _column_names(room),
        strict=True,
    ):
        texts = _column(layout, x == 1)
        shown = {row: _cut(text, plan.counts[row], layout.font_size, room) for row, text in texts.items()}
        style: dict[str, Any] = {"family": font_families(shown.values()), "parse_math": False, "ha": align}
        place = ax.transData + ScaledTranslation(pad / DPI, 0, figure.dpi_scale_trans)
        bright = _bright_rows(plan, touched)
        for row, text in shown.items():
            colour = outer_ink(look) if row in bright else greys.quiet
            ax.text(
                x, rows[row], text, va="center_baseline", color=colour, size=layout.font_size, transform=place, **style
            )
        heading = ax.transAxes + ScaledTranslation(pad / DPI, 6 / DPI, figure.dpi_scale_trans)
        ax.text(x, 1, name, ha=align, va="bottom", color=greys.quiet, size=_NOTE_SIZE, transform=heading)


def _column(layout: LinesLayout, attended: bool) -> dict[int, str]:
    """By row, the labels of one side; where weights are to be written, they stand before the labels attended to."""
    labels, weights = layout.plan.labels, layout.plan.written if attended else {}
    return {row: f"{weights[row]} {labels[row]}" if row in weights else labels[row] for row in layout.named[attended]}


def _column_names(room: int | None) -> tuple[str, str]:
    fits = room is None or all(text_width(name, _NOTE_SIZE, DPI) <= room for name in _COLUMNS)
    return _COLUMNS if fits else ("from", "to")


def _cut(text: str, count: int, size: float, room: int | None) -> str:
    """The name of a row that stands for so many tokens, as it fits; of several the number matters most."""
    if room is None or text_width(drawable(text), size, DPI) <= room:
        return drawable(text)
    return fitted(text if count == 1 else f"… {count}", size, DPI, room)


def _longest_text(layout: LinesLayout) -> float:
    """Pixels that the widest text of both columns takes, whichever rows are named."""
    whole = LinesLayout(layout.plan, LEAST_DISTANCE)
    labels = {*_column(whole, False).values(), *_column(whole, True).values()}
    widths = [text_width(drawable(label), layout.font_size, DPI) for label in labels]
    return max(*widths, *(text_width(name, _NOTE_SIZE, DPI) for name in _COLUMNS))


def _bright_rows(plan: LinesPlan, touched: Iterable[int]) -> frozenset[int]:
    """Rows whose labels do not stand back: content, or, of one token's attention, it and what its lines reach."""
    if plan.from_positions is None:
        return frozenset(row for row, quiet in enumerate(plan.quiet) if not quiet)
    return frozenset(touched)


class _Header:
    """What stands above the lines: title, notes and legend, broken into lines that fit."""

    def __init__(self, room: int, layout: LinesLayout, look: Look) -> None:
        self.ink = outer_ink(look)
        self.title = wrapped(layout.plan.title, _TITLE_SIZE, DPI, room, "bold")
        self.notes = [line for note in layout.reading for line in wrapped(note, _NOTE_SIZE, DPI, room)]
        self.legend = legend_rows(layout, look, room)

    @property
    def height(self) -> int:
        """Pixels from the top of the figure."""
        legend = sum(row.height for row in self.legend)
        return _MARGIN + 26 * len(self.title) + _LINE * len(self.notes) + legend + 6

    def write(self, figure: Figure) -> None:
        width, height = (float(side) * DPI for side in figure.get_size_inches())
        top = float(_MARGIN)
        style: dict[str, Any] = {"va": "top", "parse_math": False, "color": self.ink}
        for line in self.title:
            families = font_families([line])
            figure.text(
                _MARGIN / width, 1 - top / height, line, size=_TITLE_SIZE, weight="bold", family=families, **style
            )
            top += 26
        for line in self.notes:
            figure.text(_MARGIN / width, 1 - top / height, line, size=_NOTE_SIZE, family=font_families([line]), **style)
            top += _LINE
        write_legend(figure, self.legend, _MARGIN, top, self.ink)
