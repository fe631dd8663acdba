"""Planned figures drawn on matplotlib Axes, the caller's own or new ones.

No pyplot, so that neither the caller's figures nor the backend are touched.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text

from attnviz.colours import FRAME, INK, QUIET, colour_levels, colour_map, colour_table
from attnviz.figures import DPI, HeatmapPlan, OverviewPlan
from attnviz.fonts import drawable, fitted, font_families, text_width

__all__ = [
    "HeatmapFigure",
    "draw_heatmap",
    "draw_overview",
    "figure_style",
    "heatmap_figure",
    "heatmap_layout",
    "overview_figure",
]

_VECTOR_CELLS = 64
"""Up to this many rows a vector picture has one rectangle a cell; above, an image."""


def draw_heatmap(ax: Axes, plan: HeatmapPlan, *, vector: bool = False) -> AxesImage | QuadMesh:
    """Draw a planned heatmap on the caller's Axes, which keep their size: cells, labels, title.

    Args:
        ax: any matplotlib Axes; only these are changed.
        plan: from :func:`plan_heatmap`.
        vector: draw one rectangle a cell (while there are few enough), for SVG and PDF.

    Returns:
        the image or mesh that carries the cells.
    """
    cells = _draw_cells(ax, plan, vector)
    _dress(ax, plan)
    title = f"{drawable(plan.title)}\n{drawable(plan.evidence)}"
    ax.set_title(title, loc="left", fontsize=9, color=INK, family=font_families([title]), parse_math=False)
    return cells


def draw_overview(ax: Axes, plan: OverviewPlan) -> AxesImage:
    """Draw a planned overview on the caller's Axes: patterns, ids, labels and layers."""
    height, width, _ = plan.image.shape
    drawn = ax.imshow(plan.image, interpolation="none", aspect="auto", extent=(0, width, height, 0))
    _name_heads(ax, plan)
    return drawn


def _name_heads(ax: Axes, plan: OverviewPlan) -> None:
    height, width, _ = plan.image.shape
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    for head, label, left, top in plan.cells:
        ax.text(left, top - 20, str(head), fontsize=7, weight="bold", color=INK, va="bottom")
        named = fitted(label, 6, DPI, plan.pitch - 4)
        ax.text(left, top - 5, named, fontsize=6, color=INK, va="bottom", parse_math=False)
    for layer, top in plan.layers:
        middle = top + plan.size / 2
        ax.text(-12, middle, f"layer {layer}", fontsize=8, color=INK, rotation=90, ha="right", va="center")


@dataclass
class HeatmapFigure:
    """A figure laid out for one plan; other plans of the same labels can be drawn in its place.

    Attributes:
        figure: with its axes, labels and colour bar.
        axes: where the cells go.
        title, evidence: the texts that change from head to head.
        left, top: pixel at which the cells begin.
        room: pixels from the left to the right of the title.
    """

    figure: Figure
    axes: Axes
    title: Text
    evidence: Text
    left: int
    top: int
    room: int

    def name(self, plan: HeatmapPlan) -> None:
        """Write the plan's title and evidence, cut to the room there is."""
        self.title.set_text(fitted(plan.title, 10, DPI, self.room, "bold"))
        self.evidence.set_text(fitted(plan.evidence, 7.5, DPI, self.room))


def heatmap_layout(plan: HeatmapPlan) -> HeatmapFigure:
    """A figure with everything but the cells and the title, sized so that every cell is a whole number of pixels."""
    slanted = _slanted(plan)
    longest = _longest_label(plan)
    left = longest + 44
    below = (round(longest * 0.75) + 12 if slanted else longest) + 44
    above = 66 if plan.pooled == 1 else 84
    width = max(left + plan.size + 110, 600)
    height = above + plan.size + below
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
    # One pixel more on every side, so that the frame never covers a cell.
    box = (left - 1, below - 1, plan.size + 2, plan.size + 2)
    axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
    _dress(axes, plan)
    style: dict[str, Any] = {"family": font_families(()), "va": "top", "parse_math": False}
    title = figure.text(12 / width, 1 - 12 / height, "", size=10, weight="bold", color=INK, **style)
    evidence = figure.text(12 / width, 1 - 36 / height, "", size=7.5, color=INK, **style)
    if plan.pooled > 1:
        note = f"each cell is the largest of {plan.pooled} × {plan.pooled} weights (pooled for drawing only)"
        figure.text(12 / width, 1 - 54 / height, note, size=6.5, color=QUIET, **style)
    bar_height = min(plan.size, 420)
    bar = figure.add_axes(
        ((left + plan.size + 22) / width, (below + plan.size - bar_height) / height, 14 / width, bar_height / height)
    )
    _colour_bar(figure, bar, plan.vmax, bar_height)
    return HeatmapFigure(figure, axes, title, evidence, left, above, width - 24)


def heatmap_figure(plan: HeatmapPlan, *, vector: bool = False) -> Figure:
    """A new figure with one heatmap, colour bar and title; see :func:`draw_heatmap` for ``vector``."""
    with figure_style():
        layout = heatmap_layout(plan)
        layout.name(plan)
        _draw_cells(layout.axes, plan, vector)
        return layout.figure


def overview_figure(plan: OverviewPlan, *, image: bool = True) -> Figure:
    """A new figure with an overview, colour bar and title; without the image where that is added later."""
    with figure_style():
        image_height, image_width, _ = plan.image.shape
        left, above = plan.origin
        right, below = 116, 24
        room = max(left + image_width + right, 1020) - left - 16
        title = fitted(plan.title, 11, DPI, room, "bold")
        notes = [fitted(note, 7.5, DPI, room) for note in plan.notes]
        widest = max(text_width(title, 11, DPI, "bold"), *(text_width(note, 7.5, DPI) for note in notes))
        width = max(left + image_width + right, left + math.ceil(widest) + 16)
        height = above + image_height + below
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")
        axes = figure.add_axes((left / width, below / height, image_width / width, image_height / height))
        (draw_overview if image else _name_heads)(axes, plan)
        families = font_families((title, *notes))
        style: dict[str, Any] = {"family": families, "va": "top", "parse_math": False, "color": INK}
        figure.text(left / width, 1 - 14 / height, title, size=11, weight="bold", **style)
        for line, note in enumerate(notes):
            figure.text(left / width, 1 - (42 + 20 * line) / height, note, size=7.5, **style)
        bar_height = min(image_height - 38, 420)
        bar = figure.add_axes(
            (
                (left + image_width + 16) / width,
                (below + image_height - 38 - bar_height) / height,
                14 / width,
                bar_height / height,
            )
        )
        _colour_bar(figure, bar, 1.0, bar_height)
        return figure


@contextmanager
def figure_style() -> Iterator[None]:
    """The defaults of matplotlib plus what makes files reproducible, whatever the user's own settings are.

    SVG and PDF keep their text as text; ids in SVG come from a fixed salt.
    """
    with matplotlib.rc_context(_style_settings()):
        yield


@cache
def _style_settings() -> dict[Any, Any]:
    keep = ("backend", "interactive", "toolbar", "timezone")
    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith(keep)}
    files = {"svg.hashsalt": "attnviz", "svg.fonttype": "none", "pdf.fonttype": 42}
    return {**defaults, **files}


def _draw_cells(ax: Axes, plan: HeatmapPlan, vector: bool) -> AxesImage | QuadMesh:
    m = len(plan.values)
    if vector and m <= _VECTOR_CELLS:
        edges = np.arange(m + 1) - 0.5
        return ax.pcolormesh(
            edges, edges, plan.values, cmap=colour_map(), vmin=0, vmax=plan.vmax, edgecolors="face", linewidth=0.2
        )
    picture = colour_table()[colour_levels(plan.values, plan.vmax)]
    return ax.imshow(picture, interpolation="none" if vector else "nearest", aspect="auto")


def _dress(ax: Axes, plan: HeatmapPlan) -> None:
    """Limits, frame, axis labels and token labels of a heatmap."""
    m, margin = len(plan.values), 1 / plan.cell
    ax.set_xlim(-0.5 - margin, m - 0.5 + margin)
    ax.set_ylim(m - 0.5 + margin, -0.5 - margin)
    for spine in ax.spines.values():
        spine.set(linewidth=72 / DPI, edgecolor=FRAME)
    labels = [drawable(plan.labels[tick]) for tick in plan.ticks]
    families = font_families(labels)
    style: dict[str, Any] = {"fontsize": plan.font_size, "family": families, "parse_math": False}
    slant: dict[str, Any] = (
        {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if _slanted(plan) else {"rotation": 90}
    )
    ax.set_xticks(list(plan.ticks), labels, **style, **slant)
    ax.set_yticks(list(plan.ticks), labels, **style)
    ax.tick_params(length=2, width=72 / DPI, color=FRAME, pad=2)
    for tick, label_x, label_y in zip(plan.ticks, ax.get_xticklabels(), ax.get_yticklabels(), strict=True):
        colour = QUIET if plan.quiet[tick] else INK
        label_x.set_color(colour)
        label_y.set_color(colour)
    every = "" if plan.ticks.step == 1 else f", every {_ordinal(plan.ticks.step * plan.pooled)} {plan.unit} named"
    small = plan.size < 200
    ax.set_xlabel("key" if small else f"key (attended to){every}", fontsize=8, color=INK)
    ax.set_ylabel("query" if small else "query (attends from)", fontsize=8, color=INK)


def _colour_bar(figure: Figure, bar: Axes, vmax: float, height: int) -> None:
    mappable = ScalarMappable(Normalize(0, vmax), colour_map())
    colour_bar = figure.colorbar(mappable, cax=bar, ticks=np.linspace(0, vmax, 5))
    colour_bar.outline.set(linewidth=72 / DPI, edgecolor=FRAME)
    bar.tick_params(labelsize=7, length=2, width=72 / DPI, color=FRAME, labelcolor=INK)
    bar.set_ylabel("attention weight" if height >= 150 else "weight", fontsize=7.5, color=INK)


def _slanted(plan: HeatmapPlan) -> bool:
    return plan.cell >= 30


def _longest_label(plan: HeatmapPlan) -> int:
    """Pixels that the widest label takes, measured as matplotlib will draw it."""
    labels = {drawable(plan.labels[tick]) for tick in plan.ticks}
    return math.ceil(max(text_width(label, plan.font_size, DPI) for label in labels))


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
