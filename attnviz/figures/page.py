"""Page layout: title and notes at the top, panels by constrained layout, colour bars at the bottom."""

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, FuncNorm, LogNorm, Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import Bbox

from attnviz.figures.fonts import fitted, fitted_token, font_families, text_width, wrapped
from attnviz.figures.style import DPI, Style, figure_style, text_colour
from attnviz.wording import rounded

MARGIN = 0.12  # margin of a page in inches
PIXEL = 72 / DPI  # width of the thinnest lines, in points
_LEAST_WIDTH = 4.3
_LEAST_DATA = 0.7  # share of the height of a figure of a chosen width
_TITLE, _NOTE = 10.0, 7.0
_LINE, _ASCENT = 1.35, 0.93  # line height and ascent, as multiples of the font size
_GAP = 2.5  # between notes that do not share lines, as the size of an empty line
_BAR, _BAR_TEXT, _BAR_WIDTH = 0.08, 7.0, 2.8
_MARK = "#d95f02"
_HANDLE = 50
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": _NOTE}  # of every legend
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class ColourScale:
    """A norm from values to colours, and its colour bar."""

    norm: Normalize  # from values to 0-1
    bar: str  # what is shown, and on which scale
    colours: Colormap | None = None  # default those of the style
    # a value and its name, such as that of uniform attention: marked above the bar, with an arrow if it lies outside
    reference: tuple[float, str] | None = None
    cut: bool = False  # whether values above the scale are clipped
    signed: bool = False  # whether positive numbers have a plus

    def colour_map(self, style: Style) -> Colormap:
        """The colours, in a style."""
        return self.colours or style.colour_map()

    def colour_bar(self, axes: Sequence[Axes], style: Style, across: float | None = None) -> None:
        """Add a horizontal colour bar below these Axes, which take ``across`` inches; default the width of the page."""
        figure = axes[0].figure
        width = across or figure.get_figure(root=True).get_figwidth()
        share, free = min(1.0, _BAR_WIDTH / width), 0.86 if across is None else 1.0
        room = share * width * free * DPI
        shown = ScalarMappable(self.norm, self.colour_map(style))
        bar = figure.colorbar(
            shown, ax=axes, location="bottom", shrink=share, aspect=share * width * free / _BAR, anchor=(0, 1), pad=0.03
        )
        bar.outline.set(linewidth=PIXEL, edgecolor=style.frame)
        bar.minorticks_off()
        bar.ax.set_xticks(*self._numbered(room))
        if isinstance(self.norm, FuncNorm):  # equal steps, ever closer away from 0
            bar.ax.xaxis.set_minor_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
        look: dict[str, Any] = {"labelsize": _BAR_TEXT, "labelcolor": style.ink}
        bar.ax.tick_params(which="both", length=2, width=PIXEL, color=style.frame, **look)
        words = "\n".join(wrapped(self.bar, _BAR_TEXT, max(room, 250 if across is None else 140)))
        bar.ax.set_xlabel(words, fontsize=_BAR_TEXT, color=style.ink, labelpad=2, parse_math=False, loc="left")
        if self.reference is not None:
            value, name = self.reference
            low, high = self._ends
            text = f"{name} {format_number(value)}"
            if low <= value <= high:
                bar.ax.axvline(value, color=_MARK, lw=1.6, clip_on=False)
            else:
                text = f"{text} →" if value > high else f"← {text}"
            position = float(np.clip(self.norm(np.clip(value, low, high)), 0, 1))
            bar.ax.annotate(
                fitted(text, _BAR_TEXT, room + 20),
                (position, 1),
                xycoords="axes fraction",
                xytext=(0, 3),
                textcoords="offset points",
                ha="left" if position < 0.3 else "right" if position > 0.7 else "center",
                fontsize=_BAR_TEXT,
                color=style.ink,
                annotation_clip=False,
            )

    def bar_inches(self, across: float) -> float:
        """Height of :meth:`colour_bar` below Axes of a width in inches, with its numbers and its name."""
        return 0.33 + 0.13 * len(wrapped(self.bar, _BAR_TEXT, max(min(across, _BAR_WIDTH) * DPI, 140)))

    @property
    def _ends(self) -> tuple[float, float]:
        return float(self.norm.vmin or 0.0), float(self.norm.vmax or 1.0)

    def _numbered(self, room: float) -> tuple[list[float], list[str]]:
        """Ticks of a bar of a width in pixels, and their numbers: both ends, and round values that have room."""
        norm, (low, high) = self.norm, self._ends
        logarithmic = isinstance(norm, LogNorm)
        if logarithmic:
            between: Iterable[float] = LogLocator(numticks=99).tick_values(low, high)
        elif isinstance(norm, FuncNorm):
            sizes = np.outer(10.0 ** (math.floor(math.log10(high)) - np.arange(3)), (5, 2, 1)).ravel()
            between = np.concatenate([[0.0], sizes, -sizes])
        else:
            between = MaxNLocator(int(np.clip(room // 55, 1, 5)), steps=[1, 2, 5, 10]).tick_values(low, high)

        def number(value: float) -> str:
            if logarithmic and value < 1:
                return power_of_ten(round(math.log10(value)))
            return ("+" if self.signed and value > 0 else "") + format(value + 0.0, ".3g").replace("-", "−")

        # what is beyond an end looks the same
        shown = {low: ("≤ " if logarithmic else "") + number(low), high: ("≥ " if self.cut else "") + number(high)}
        for value in between:
            half = text_width(number(value), 7) / 2 + 8
            apart = (
                abs(norm(value) - norm(other)) * room > half + text_width(words, 7) / 2
                for other, words in shown.items()
            )
            if low < value < high and all(apart):
                shown[value] = number(value)
        return list(shown), list(shown.values())


class ShownFigure(Figure):
    """A figure that shows itself as the last line of a notebook's cell, without pyplot."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        with figure_style():
            self.savefig(content, format="png", facecolor=self.get_facecolor())
        return content.getvalue()


@dataclass(frozen=True)
class PagePlan(ABC):
    """A picture, ready to draw: what is shown, below its title and notes."""

    stem: str  # of the file, without suffix, relative to the folder: ``map-entropy``, ``heads/L02H08``
    caption: str  # one sentence on model, text and what is shown; on a second line the details
    title: str  # above the picture, as are the notes
    notes: tuple[str, ...]

    def figure(self, style: Style) -> Figure:
        """A new figure; UsageError if the width is too small."""
        with figure_style():
            return self.page(style)

    @abstractmethod
    def page(self, style: Style) -> Figure:
        """:meth:`figure`, with matplotlib's settings as figures have them."""

    def new_page(
        self,
        style: Style,
        *,
        width: float,
        body: float,
        notes: Sequence[str] | None = None,
        feet: Sequence[str] | None = None,
        data: float | None = None,
    ) -> Figure:
        """A new figure with wrapped title and notes; panels are added below them.

        ``width`` is that of the figure, from :func:`page_width`, ``body`` the height of what stands below the notes,
        with labels and colour bars, both in inches. ``feet`` are notes below it; with them none shares a line with
        another. In a chosen width ``data``, inches of the body (default all), take at least 70 % of the height: notes
        that leave them less stand in the caption alone, the last ones first, but never the first, which ``data`` may
        cut to a line. Constrained layout makes panels as large as they fit into it.
        """
        below = heading("", feet or (), style, width, False)
        foot = sum(size * _LINE for _, size, _ in below) / 72 + MARGIN * bool(below)
        notes = self.notes if notes is None else notes
        fewer = [notes[:n] for n in range(len(notes), 0, -1)] or [notes]
        if data is not None:
            fewer += [[fitted_token(note, _NOTE, (width - 2 * MARGIN) * DPI)] for note in notes[:1]]
        for some in fewer:
            lines = heading(self.title, some, style, width, feet is None)
            head = sum(size * _LINE for _, size, _ in lines) / 72 + MARGIN * (1 + bool(lines))
            if style.inches is None or (data or body) >= _LEAST_DATA * (head + body + foot + MARGIN / 3):
                break
        # whole pixels, so that images can keep theirs; a colour bar's name may hang a pixel out of its part of the page
        height = math.ceil((head + body + foot + MARGIN / 3) * DPI) / DPI
        rect = (0, (foot + MARGIN / 3) / height, 1, body / height)
        layout = ConstrainedLayoutEngine(rect=rect, w_pad=MARGIN / 2, h_pad=MARGIN / 3, compress=True)
        figure = ShownFigure(figsize=(width, height), dpi=DPI, facecolor=style.paper, layout=layout)
        for texts, top in ((lines, MARGIN), (below, height - foot)):
            down = top
            for line, size, weight in texts:
                if line:
                    figure.text(
                        MARGIN / width,
                        1 - (down + _ASCENT * size / 72) / height,
                        line,
                        va="baseline",
                        color=style.ink,
                        parse_math=False,
                        size=size,
                        weight=weight,
                        family=font_families([line]),
                    )
                down += size * _LINE / 72
        return figure

    def parts(self, style: Style, heights: Sequence[float], **page: Any) -> tuple[Figure, list[Any]]:
        """A new page, and its parts of these heights in inches, one below the other."""
        figure = self.new_page(style, body=sum(heights), **page)
        return figure, list(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])


class PanelPlan(PagePlan):
    """A picture of one panel, which can be drawn on a caller's Axes too."""

    @abstractmethod
    def draw(self, ax: Axes, style: Style) -> Artist:
        """Draw on Axes, which keep their size; returns the artist for a colour bar."""


class ChartPlan(PanelPlan):
    """A picture of one panel, above its colour bar, if it has a scale, and a legend."""

    exact: ClassVar[bool] = False  # whether the panel is as high as its body, and within the margins
    size: ClassVar[tuple[float, float]]  # width and height of the panel in inches, if they are always the same

    def body(self, style: Style) -> tuple[float, float]:  # noqa: ARG002 - that of a text depends on it
        """Width and height of the panel in inches."""
        return self.size

    def handles(self, style: Style) -> Sequence[Artist]:  # noqa: ARG002 - most have none
        """Those of the legend."""
        return ()

    def page(self, style: Style) -> Figure:
        """A new figure."""
        natural, body = self.body(style)
        width, handles = page_width(style, natural), self.handles(style)
        below = legend_height(handles, width)
        if isinstance(self, ColourScale):
            below = self.bar_inches(width - 2 * MARGIN) + 0.05
        elif self.exact:
            below += 0.1
        page = self.new_page(style, width=width, body=body + below)
        ax = page.add_subplot()
        if isinstance(self, ColourScale):
            self.colour_bar([ax], style)
        add_legend(page, handles, style)
        if self.exact:
            ax.set_axis_off()
            freeze_layout(page)
            fix_axes(page, ax, (width - 2 * MARGIN) * DPI, body * DPI, MARGIN * DPI)
        self.draw(ax, style)
        return page


def page_width(style: Style, natural: float) -> float:
    """Inches: the user's width, or that of the content, but enough for a title."""
    return max(natural, 0 if style.bare else _LEAST_WIDTH) if style.room is None else style.room


def heading(
    title: str, notes: Sequence[str], style: Style, width: float, run_on: bool = True
) -> list[tuple[str, float, str]]:
    """Lines of title and notes within a width in inches: text, size in points, weight; empty ones are left out."""
    room = (width - 2 * MARGIN) * DPI
    if style.bare:
        return []
    joined: list[str] = []
    for note in filter(None, notes):  # sentences too long for a line share lines with neighbours if that saves some
        if run_on and joined and joined[-1].endswith(".") and note.endswith("."):
            one = f"{joined[-1]} {note}"
            apart = sum(len(wrapped(text, _NOTE, room)) for text in (joined[-1], note))
            if len(wrapped(one, _NOTE, room)) < apart > 2:
                joined[-1] = one
                continue
        joined.append(note)
    lines: list[tuple[str, float, str]] = []
    for text, size, weight in [(title, _TITLE, "bold"), *((note, _NOTE, "normal") for note in joined)]:
        if text:
            if lines and not run_on:
                lines.append(("", _GAP, "normal"))
            lines += [(line, size, weight) for line in wrapped(text, size, room, weight)]
    return lines


def run_layout(figure: Figure | SubFigure | None) -> None:
    """Run the layout, so that the sizes of Axes are final; also on a caller's figure."""
    if figure is None:
        return
    page = figure.get_figure(root=True)
    page.draw_without_rendering()
    for bar in page.axes:
        name = bar.xaxis.label
        over = name.get_window_extent().x1 - page.bbox.x1 + MARGIN * page.dpi
        if bar.get_label() == "<colorbar>" and over > 0:  # a name longer than its bar, at the right edge
            name.set_x(name.get_position()[0] - over / bar.bbox.width)


def freeze_layout(figure: Figure) -> None:
    """Run the layout once and fix all positions, rounded.

    The solver's last digits differ from run to run, and with them the ids in an SVG.
    """
    run_layout(figure)
    figure.set_layout_engine("none")
    parts = list(figure.subfigs)
    for part in parts:
        parts += part.subfigs  # of which some have parts themselves
        part.bbox_relative.set(Bbox(np.round(part.bbox_relative.get_points(), 6)))
    for ax in figure.axes:
        ax.set_position(np.round(ax.get_position(original=True).bounds, 6))


def fix_axes(figure: Figure, ax: Axes, width: float, height: float, left: float | None = None) -> None:
    """Set the size of Axes in pixels, from their upper left corner on, which becomes a whole pixel; or from ``left``.

    Constrained layout keeps a share of the room free. Colour bars and legends begin where the Axes do.
    """
    across, down = figure.bbox.size
    box = ax.get_window_extent()
    left = (round(box.x0) if left is None else left) / across
    ax.set_box_aspect(None)
    ax.set_position((left, (round(box.y1) - height) / down, width / across, height / down))
    for bar in figure.axes:
        if bar is not ax:
            place = bar.get_position(original=True)
            bar.set_position((left, place.y0, min(place.width, width / across), place.height))
    for legend in figure.legends:
        legend.set_bbox_to_anchor((left / 2, 0, 1, 1), transform=figure.transFigure)


def dress_chart(ax: Axes, style: Style, grid: Literal["both", "y"], sides: Sequence[str]) -> None:
    """Style the Axes of a chart: faint guides, small numbers, frames on these sides only."""
    ax.set_axisbelow(True)
    ax.grid(axis=grid, color=style.frame, alpha=0.3, lw=PIXEL)
    ax.tick_params(length=0, labelsize=7, labelcolor=text_colour(style, "xtick.color"))
    for side, spine in ax.spines.items():
        spine.set(visible=side in sides, linewidth=PIXEL, edgecolor=style.frame)


def dress_scores(ax: Axes, style: Style, names: Sequence[str], label: str) -> None:
    """Style the Axes of scores from 0 to 1, in a named row each."""
    ax.set(xlim=(0, 1), ylim=(len(names) - 0.4, -0.6), facecolor=style.paper)
    ax.set_xlabel(label, fontsize=8, color=text_colour(style, "axes.labelcolor"))
    ax.set_yticks(range(len(names)), names, family=font_families(names), parse_math=False)
    dress_chart(ax, style, "both", ("bottom",))


def add_legend(figure: Figure | SubFigure, handles: Sequence[Artist], style: Style) -> None:
    """Add matplotlib's legend at the bottom, if it has handles, in as many columns as fit into the page."""
    if not handles:
        return
    figure.legend(
        handles=list(handles),
        loc="outside lower left",
        ncols=_columns(handles, figure.get_figure(root=True).get_figwidth()),
        labelcolor=style.ink,
        borderpad=0.2,
        handletextpad=0.5,
        columnspacing=1.2,
        **LEGEND,
    )


def legend_height(handles: Sequence[Artist], width: float) -> float:
    """Inches that :func:`add_legend` takes on a page of this width; none without handles."""
    return 0.05 + 0.15 * math.ceil(len(handles) / _columns(handles, width)) if handles else 0.0


def _columns(handles: Sequence[Artist], width: float) -> int:
    return legend_columns([str(handle.get_label()) for handle in handles], (width - 2 * MARGIN) * DPI)


def legend_columns(names: Iterable[str], room: float, beside: float = _HANDLE) -> int:
    """Columns of a legend that fit into a width in pixels; ``beside``: those of a handle with its gaps."""
    widths = [text_width(name, _NOTE) + beside for name in names]
    for columns in range(len(widths), 1, -1):
        if sum(column.max() for column in np.array_split(widths, columns)) <= room:
            return columns
    return 1


def format_number(value: float) -> str:
    """A number in about three digits: ``0.07``, ``12.3``, ``128``; a dash for NaN."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return rounded(value, digits)


def power_of_ten(exponent: int) -> str:
    """``10⁻⁴``."""
    return f"10{str(exponent).translate(_RAISED)}"
