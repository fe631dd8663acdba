"""Planned heatmaps drawn on matplotlib Axes, the caller's own or new ones.

No pyplot, so that neither the caller's figures nor the backend are touched.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnviz.figures.bars import LEAST_BAR, bar_labels, below_bar, colour_bar, image_scale
from attnviz.figures.colours import colour_map, colour_table, ink_on, outer_ink
from attnviz.figures.fonts import (
    DEFAULT_FAMILY,
    drawable,
    fitted,
    fitted_quote,
    font_families,
    outer_size,
    text_width,
    wrapped,
)
from attnviz.figures.heatmaps import HeatmapPlan, margins, number_size
from attnviz.model.wording import ordinal, right_to_left

__all__ = [
    "VECTOR_CELLS",
    "HeatmapFigure",
    "Slot",
    "draw_heatmap",
    "figure_style",
    "heatmap_figure",
    "heatmap_layout",
    "number_place",
    "number_text",
]

VECTOR_CELLS = 64
"""Up to this many rows a vector picture has one rectangle a cell; above, an image."""

_NUDGE = 0.003
"""Pixels to the right and down: numbers are never placed where rounding could go either way."""

_NARROW = 4.0
"""Inches; narrower figures have two lines for the evidence."""


def draw_heatmap(ax: Axes, plan: HeatmapPlan, *, vector: bool = False) -> AxesImage | QuadMesh:
    """Draw a planned heatmap on the caller's Axes, which keep their size: cells, numbers, labels, title.

    Numbers are written where the cells of these Axes are few and large enough for them.

    Args:
        ax: any matplotlib Axes; only these are changed.
        plan: from :func:`attnviz.figures.heatmaps.plan_heatmap`.
        vector: draw one rectangle a cell (while there are few enough), for SVG and PDF.

    Returns:
        the image or mesh that carries the cells.
    """
    cells = _draw_cells(ax, plan, vector)
    _dress(ax, plan)
    box = ax.get_window_extent()
    cell = min(box.width, box.height) / len(plan.values)
    figure = ax.get_figure(root=True)
    assert figure is not None
    _write_numbers(ax, plan, cell, figure.dpi)
    dropped = [plan.dropped] if plan.dropped else []
    title = "\n".join(drawable(line) for line in (plan.title, *dropped, plan.evidence, *plan.notes))
    style: dict[str, Any] = {"color": outer_ink(plan.look), "family": font_families([title]), "parse_math": False}
    ax.set_title(title, loc="left", fontsize=outer_size("axes.titlesize", 9), **style)
    return cells


@dataclass(frozen=True)
class Slot:
    """Where a text goes that changes from head to head: one line, its baseline starting at this pixel."""

    x: int
    y: int
    size: float
    weight: str = "normal"

    def pieces(self, words: str, dpi: float) -> list[tuple[str, int]]:
        """The words in pieces that many heads share, and the pixel at which each begins."""
        x, pieces = self.x, []
        for piece in [words] if right_to_left(words) else re.findall(r"[\d.]+|[^\d.]+", words):
            pieces.append((piece, x))
            x += math.ceil(text_width(piece + "|", self.size, dpi, self.weight) - _bar_width(self, dpi))
        return pieces


@dataclass
class HeatmapFigure:
    """A figure laid out for one plan; other plans of the same labels can be drawn in its place.

    Attributes:
        figure: with its axes, labels and colour bar.
        axes: where the cells go.
        slots: of the texts that change from head to head: the title, the lines of evidence, and where each head
            has its own scale, the numbers beside the colour bar.
        left, top: pixel at which the cells begin.
        room: pixels from the left to the right of the title.
    """

    figure: Figure
    axes: Axes
    slots: tuple[Slot, ...]
    left: int
    top: int
    room: int

    def words(self, plan: HeatmapPlan) -> tuple[str, ...]:
        """What belongs into each slot for this plan: title and evidence, cut to the room, and its own scale."""
        numbers = bar_labels(plan.look, plan.vmax) if plan.look.scale == "per-head" else ()
        title, evidence = self.slots[:2]
        lines = plan.evidence_lines(evidence.size, self.room, len(self.slots) - 1 - len(numbers))
        return (fitted(plan.title, title.size, plan.dpi, self.room, "bold"), *lines, *numbers)

    def write(self, words: Sequence[str], *, whole: bool) -> None:
        """Write the words into the slots, each in one piece or, as files of many pictures do, in several."""
        width, height = self.figure.get_size_inches() * self.figure.dpi
        colour = self.axes.xaxis.label.get_color()
        style: dict[str, Any] = {"va": "baseline", "parse_math": False, "color": colour}
        for slot, text in zip(self.slots, words, strict=True):
            for piece, x in [(text, slot.x)] if whole else slot.pieces(text, self.figure.dpi):
                place = (x / width, 1 - slot.y / height)
                families = font_families([piece])
                self.figure.text(*place, piece, size=slot.size, weight=slot.weight, family=families, **style)


def heatmap_layout(plan: HeatmapPlan) -> HeatmapFigure:
    """A figure with everything but the cells and the texts that change; every cell is a whole number of pixels."""
    px, wide = plan.pixels, plan.look.width is None
    longest = _longest_label(plan)
    beside, right = (px(margin) for margin in margins(plan.look))
    left = longest + beside
    below = (round(longest * 0.75) + px(12) if _slanted(plan) else longest) + beside
    if plan.look.width is None:
        width = max(left + plan.size + right, 600)
    else:
        width = round(plan.look.width * plan.dpi)
        left = max(left, (width - plan.size - right + left) // 2)
    bar_height = max(min(plan.size, px(420)), px(LEAST_BAR))
    below = max(below, bar_height + below_bar(plan.look, bar_height, plan.dpi) - plan.size)
    slots, lines, above = _header(plan, width)
    height = above + plan.size + below
    size = (width / plan.dpi, height / plan.dpi)
    figure = Figure(figsize=size, dpi=plan.dpi, facecolor=plan.look.greys.paper)
    # One pixel more on every side, so that the frame never covers a cell.
    box = (left - 1, below - 1, plan.size + 2, plan.size + 2)
    axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
    _dress(axes, plan)
    for slot, words, colour in lines:
        style: dict[str, Any] = {"size": slot.size, "weight": slot.weight, "family": font_families([words])}
        place = (slot.x / width, 1 - slot.y / height)
        figure.text(*place, words, color=colour, va="baseline", parse_math=False, **style)
    bar_left = left + plan.size + px(22 if wide else 12)
    bar = figure.add_axes(
        (bar_left / width, (below + plan.size - bar_height) / height, px(14) / width, bar_height / height)
    )
    own = plan.look.scale == "per-head"
    size_of_numbers = colour_bar(bar, plan.look, numbers=not own)
    if own:
        lift = round(0.365 * size_of_numbers * plan.dpi / 72)
        places = (above + round(bar_height * (4 - step) / 4) + lift for step in range(5))
        slots += [Slot(bar_left + px(14) + px(8), y, size_of_numbers) for y in places]
    return HeatmapFigure(figure, axes, tuple(slots), left, above, width - px(24))


def heatmap_figure(plan: HeatmapPlan, *, vector: bool = False, pieced: bool = False) -> Figure:
    """A new figure with one heatmap, colour bar and title.

    Args:
        plan: from :func:`attnviz.figures.heatmaps.plan_heatmap`.
        vector: as for :func:`draw_heatmap`.
        pieced: write title and evidence in the pieces that PNG files are put together from, each on a whole pixel.
    """
    with figure_style():
        layout = heatmap_layout(plan)
        layout.write(layout.words(plan), whole=not pieced)
        _draw_cells(layout.axes, plan, vector)
        if plan.number_size is not None:
            _write_numbers(layout.axes, plan, plan.cell, plan.dpi)
        return layout.figure


def number_place(cell: float, size: float, dpi: float) -> tuple[float, float]:
    """Where the baseline of a number is centred, in pixels from the left and from the top of its cell."""
    return cell / 2 + _NUDGE, cell / 2 + 0.365 * size * dpi / 72 + _NUDGE


@contextmanager
def figure_style() -> Iterator[None]:
    """The defaults of matplotlib plus what makes files reproducible, whatever the user's own settings are.

    SVG and PDF keep their text as text; ids in SVG come from a fixed salt.
    """
    now = matplotlib.rcParams
    changed = {key: value for key, value in _style_settings().items() if dict.__getitem__(now, key) != value}
    with matplotlib.rc_context(changed):
        yield


@cache
def _style_settings() -> dict[Any, Any]:
    keep = ("backend", "interactive", "toolbar", "timezone")
    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith(keep)}
    files = {"svg.hashsalt": "attnviz", "svg.fonttype": "none", "pdf.fonttype": 42}
    return {**defaults, **files}


def _header(plan: HeatmapPlan, width: int) -> tuple[list[Slot], list[tuple[Slot, str, str]], int]:
    """What stands above the cells: where texts go that change, those that do not and their colours, and the height."""
    px, greys, wide = plan.pixels, plan.look.greys, plan.look.width is None
    left, room = px(12), width - px(24)
    slots = [Slot(left, px(28), 10 if wide else 8, "bold")]
    lines, y = [], 48  # of the next baseline, in pixels at DPI
    bold, small, smallest = (8.5, 7.5, 6.5) if wide else (7, 6.5, 6)
    for words in wrapped(plan.dropped, bold, plan.dpi, room, "bold") if plan.dropped else ():
        lines.append((Slot(left, px(y), bold, "bold"), words, greys.ink))
        y += 18
    if plan.subject:
        lines.append((Slot(left, px(y), small), fitted_quote(plan.subject, small, plan.dpi, room), greys.ink))
        y += 18
    evidence = 2 if plan.look.width is not None and plan.look.width < _NARROW else 1
    notes = [line for note in plan.notes for line in wrapped(note, smallest, plan.dpi, room)]
    first, below = (y, y + 18) if evidence == 1 else (y + 18 * len(notes), y)  # an empty second line is last
    slots += [Slot(left, px(first + 18 * line), small) for line in range(evidence)]
    lines += [(Slot(left, px(below + 18 * at), smallest), note, greys.quiet) for at, note in enumerate(notes)]
    return slots, lines, px(y + 18) + px(18) * (evidence - 1 + len(notes))


def _draw_cells(ax: Axes, plan: HeatmapPlan, vector: bool) -> AxesImage | QuadMesh:
    m = len(plan.values)
    if vector and m <= VECTOR_CELLS:
        edges = np.arange(m + 1) - 0.5
        norm, colours = plan.look.norm(plan.vmax), colour_map(plan.look.theme)
        return ax.pcolormesh(edges, edges, plan.values, cmap=colours, norm=norm, edgecolors="face", linewidth=0.2)
    picture = colour_table(plan.look.theme)[plan.levels]
    kind = "none" if vector else "nearest"
    return ax.imshow(picture, interpolation=kind, aspect="auto", **image_scale(plan.look, plan.vmax))


def _write_numbers(ax: Axes, plan: HeatmapPlan, cell: float, dpi: float) -> None:
    """Each weight of at least 0.005 in its cell, in cells of so many pixels, if that can be read."""
    size = number_size(len(plan.values), cell * 72 / dpi)
    if size is None:
        return
    x, y = (place / cell - 0.5 for place in number_place(cell, size, dpi))
    style: dict[str, Any] = {"fontsize": size, "ha": "center", "va": "baseline", "family": [DEFAULT_FAMILY]}
    for (row, column), hundredths in np.ndenumerate(plan.hundredths):
        if hundredths:
            colour = ink_on(int(plan.levels[row, column]), plan.look.theme)
            ax.text(column + x, row + y, number_text(int(hundredths)), color=colour, **style)


def number_text(hundredths: int) -> str:
    """A weight as it is written into a cell: ``.93``, or ``1``."""
    return "1" if hundredths >= 100 else f".{hundredths:02d}"


def _dress(ax: Axes, plan: HeatmapPlan) -> None:
    """Limits, frame, axis labels and token labels of a heatmap."""
    m, margin, greys = len(plan.values), 1 / plan.cell, plan.look.greys
    ax.set_facecolor(greys.paper)
    ax.grid(visible=False)  # a style of the caller's may have one
    ax.set_xlim(-0.5 - margin, m - 0.5 + margin)
    ax.set_ylim(m - 0.5 + margin, -0.5 - margin)
    for spine in ax.spines.values():
        spine.set(linewidth=72 / plan.dpi, edgecolor=greys.frame)
    labels = [_tick_label(plan, tick) for tick in plan.ticks]
    families = font_families(labels)
    style: dict[str, Any] = {"fontsize": plan.font_size, "family": families, "parse_math": False}
    slant: dict[str, Any] = (
        {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if _slanted(plan) else {"rotation": 90}
    )
    ax.set_xticks(list(plan.ticks), labels, **style, **slant)
    ax.set_yticks(list(plan.ticks), labels, **style)
    ax.tick_params(length=2, width=72 / plan.dpi, color=greys.frame, pad=2)
    inks = [outer_ink(plan.look, f"{side}tick.color") for side in "xy"]
    for tick, *named in zip(plan.ticks, ax.get_xticklabels(), ax.get_yticklabels(), strict=True):
        for label, ink in zip(named, inks, strict=True):
            label.set_color(greys.quiet if plan.quiet[tick] else ink)
    size = 8 if plan.look.width is None else 7
    every = "" if plan.ticks.step == 1 else f", every {ordinal(plan.ticks.step * plan.pooled)} {plan.unit} named"
    named_at, colour = outer_size("axes.labelsize", size), outer_ink(plan.look, "axes.labelcolor")
    for name, set_label in (("key (attended to)", ax.set_xlabel), ("query (attends from)", ax.set_ylabel)):
        long = name + every if name.startswith("key") else name
        set_label(_axis_name(ax, plan, long, named_at), fontsize=named_at, color=colour)


def _axis_name(ax: Axes, plan: HeatmapPlan, name: str, size: float | str) -> str:
    """The name of an axis, as fully as there is room."""
    kind = name.partition(" ")[0]
    if plan.size < plan.pixels(200) and plan.look.width is None:
        return kind
    rest = name.partition(")")[2]
    room = plan.size + plan.pixels(60)
    if plan.look.width is not None and kind == "key":
        box, width = ax.get_window_extent(), ax.figure.bbox.width
        room = round(min(box.x0 + box.x1, 2 * width - box.x0 - box.x1)) - plan.pixels(12)
    elif plan.look.width is not None:
        room = plan.size + plan.pixels(24)  # the evidence stands close above
    fits = (words for words in (name, kind + rest, kind) if text_width(words, size, plan.dpi) <= room)
    return next(fits, kind)


def _tick_label(plan: HeatmapPlan, tick: int) -> str:
    if plan.look.width is None:
        return drawable(plan.labels[tick])
    return fitted(plan.labels[tick], plan.font_size, plan.dpi, plan.look.width * plan.dpi / 4)


@cache
def _bar_width(slot: Slot, dpi: float) -> float:
    return text_width("|", slot.size, dpi, slot.weight)


def _slanted(plan: HeatmapPlan) -> bool:
    return plan.cell >= plan.pixels(30)


def _longest_label(plan: HeatmapPlan) -> int:
    """Pixels that the widest label takes, measured as matplotlib will draw it."""
    labels = {_tick_label(plan, tick) for tick in plan.ticks}
    return math.ceil(max(text_width(label, plan.font_size, plan.dpi) for label in labels))
