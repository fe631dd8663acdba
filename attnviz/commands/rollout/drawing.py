"""Planned figures of an attention rollout drawn on matplotlib Axes, the caller's own or new ones. No pyplot."""

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnviz.commands.rollout.figures import BarsPlan, Panel, Tile, TilesPlan
from attnviz.commands.rollout.sizes import GROUP_GAP, HEADING, NAME, TILE_GAP, body_height, label_room
from attnviz.figures.fonts import fitted, font_families, text_width
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look
from attnviz.figures.view_bars import BAR_HEIGHT, draw_colour_bar
from attnviz.figures.view_drawing import (
    MARGIN,
    PIXEL,
    draw_cells,
    few_enough,
    label_size,
    name_positions,
    page_width,
    view_page,
)

__all__ = ["bars_figure", "draw_bars", "draw_tile", "tiles_figure"]

_SECOND_LINE = 14
_ROW, _PANEL, _PANEL_GAP, _HEAD = 19, 190, 14, 26
_LABELS, _NUMBERS, _LEAST_PANEL = 7.0, 6.5, 64
_NAMES = (7.5, 6.5, 6.0, 5.5)
_BAR = {"light": "#4292c6", "dark": "#4f9bd1"}
_UNIFORM = "#d95f02"


def draw_tile(
    ax: Axes, plan: TilesPlan, tile: Tile, look: Look, *, sides: str = "lb", vector: bool = True
) -> AxesImage | QuadMesh:
    """Draw one matrix on the caller's Axes, named above.

    Args:
        ax: any matplotlib Axes; only these are changed.
        plan: from :func:`attnviz.commands.rollout.figures.plan_rollout` or ``plan_layers``.
        tile: of the plan.
        look: theme.
        sides: where positions are named: left (``l``), bottom (``b``).
        vector: one rectangle a cell, sharp at any size in SVG and PDF, while they are few.

    Returns:
        the image or mesh that carries the cells.
    """
    mesh = vector and few_enough(plan.n_tiles * tile.values.size)
    cells = draw_cells(ax, tile.values, Normalize(0, plan.top, clip=True), look, mesh=mesh)
    name_positions(ax, plan.labels, plan.quiet, look, pooled=plan.pooled, sides=sides)
    room = ax.get_window_extent().width * DPI / ax.figure.dpi
    name, size = _tile_name(tile, room)
    ax.set_title(name, loc="left", fontsize=size, pad=3, color=look.greys.ink)
    return cells


def tiles_figure(plan: TilesPlan, look: Look, *, vector: bool = True) -> Figure:
    """A new figure with every tile of the plan, group by group, one colour bar, title and notes."""
    room = label_room(plan.labels, label_size(plan.cell * PIXEL))
    pitch, left = plan.size + 2 + TILE_GAP, MARGIN + room + 8
    width = page_width(look, left + plan.columns * pitch - TILE_GAP + MARGIN)
    heading = HEADING if plan.groups[0].heading else 0
    names = [_tile_name(tile, plan.size + 2)[0] for group in plan.groups for tile in group.tiles]
    above = NAME + _SECOND_LINE * any("\n" in name for name in names)
    heights = body_height([len(group.tiles) for group in plan.groups], plan.columns, plan.size, room, above)
    between = GROUP_GAP * (len(heights) - 1)
    with figure_style():
        page = view_page(plan.title, plan.notes, width, sum(heights) + between + BAR_HEIGHT, look)
        down = 0
        for group, height in zip(plan.groups, heights, strict=True):
            if heading:
                place = MARGIN / width, 1 - (page.top + down + 2) / page.height
                page.figure.text(
                    *place, group.heading, size=8, weight="bold", va="top", color=look.greys.ink, parse_math=False
                )
            for number, tile in enumerate(group.tiles):
                row, column = divmod(number, plan.columns)
                below = number + plan.columns >= len(group.tiles)
                top = down + heading + row * (pitch + above) + above
                ax = page.axes(left + column * pitch, top, plan.size + 2, plan.size + 2)
                draw_tile(ax, plan, tile, look, sides="l" * (not column) + "b" * below, vector=vector)
            down += height + GROUP_GAP
        bar = page.axes(left, down - GROUP_GAP + 24, min(420, width - left - MARGIN - 12), 12)
        draw_colour_bar(bar, Normalize(0, plan.top, clip=True), f"share{plan.cut}", look)
        return page.figure


def draw_bars(ax: Axes, plan: BarsPlan, panel: Panel, look: Look, *, labelled: bool = True) -> BarContainer:
    """Draw the bars of one method on the caller's Axes, the first input token at the top.

    Args:
        ax: any matplotlib Axes; only these are changed.
        plan: from :func:`attnviz.commands.rollout.figures.plan_bars`.
        panel: of the plan.
        look: theme.
        labelled: name the input tokens at the left.

    Returns:
        the bars.
    """
    places = np.arange(len(panel.values))
    bars = ax.barh(places, panel.values, height=0.72, color=_BAR[look.theme], linewidth=0)
    wide = ax.get_window_extent().width * DPI / ax.figure.dpi
    numbers = text_width(".000", _NUMBERS, DPI) + 8  # a column of its own at the right
    largest = max(float(row.max()) for row in (panel.values, panel.uniform) if row is not None) or 1.0
    ax.set(xlim=(0, largest * wide / max(wide - numbers, wide / 4)), ylim=(len(places) - 0.5, -0.5), facecolor="none")
    style: dict[str, Any] = {"ha": "right", "va": "center_baseline", "size": _NUMBERS, "color": look.greys.ink}
    for place, value in enumerate(panel.values):
        ax.text(1, place, _thousandths(float(value)), transform=ax.get_yaxis_transform(), **style)
    if panel.uniform is not None:
        ax.vlines(panel.uniform, places - 0.42, places + 0.42, color=_UNIFORM, linewidth=1.4)
    shown: dict[str, Any] = {"fontsize": _LABELS, "family": font_families(plan.labels), "parse_math": False}
    ax.set_yticks(places if labelled else [], plan.labels if labelled else [], **shown)
    for label, quiet in zip(ax.get_yticklabels(), plan.quiet, strict=False):
        label.set_color(look.greys.quiet if quiet else look.greys.ink)
    ax.set_xticks([])
    ax.tick_params(length=0, pad=4)
    for side, spine in ax.spines.items():
        spine.set(linewidth=PIXEL, edgecolor=look.greys.frame, visible=side == "left")
    names, size = _panel_names(plan, wide)
    ax.set_title(names[panel.name], loc="left", fontsize=size, pad=4, color=look.greys.ink)
    return bars


def bars_figure(plan: BarsPlan, look: Look) -> Figure:
    """A new figure with a panel a method, title and notes; panels stand in rows where the width is small."""
    left = MARGIN + label_room(plan.labels, _LABELS) + 8
    count = len(plan.panels)
    width = page_width(look, left + count * (_PANEL + _PANEL_GAP) - _PANEL_GAP + MARGIN)
    room = width - left - MARGIN + _PANEL_GAP
    rows = math.ceil(count / max(1, room // (_LEAST_PANEL + _PANEL_GAP)))
    columns = math.ceil(count / rows)
    panel = max(_LEAST_PANEL, room // columns - _PANEL_GAP)
    height = _ROW * len(plan.labels)
    with figure_style():
        head = _HEAD + _SECOND_LINE * any("\n" in name for name in _panel_names(plan, panel)[0].values())
        page = view_page(plan.title, plan.notes, width, rows * (head + height) + (rows - 1) * _PANEL_GAP + MARGIN, look)
        for number, of_method in enumerate(plan.panels):
            row, column = divmod(number, columns)
            below = row * (head + height + _PANEL_GAP) + head
            ax = page.axes(left + column * (panel + _PANEL_GAP), below, panel, height)
            draw_bars(ax, plan, of_method, look, labelled=column == 0)
        return page.figure


def _tile_name(tile: Tile, room: float) -> tuple[str, float]:
    """The longest of the tile's names that fits above it in full, and its letters; two lines may stand over a gap."""
    tries = [(name, size) for name in (tile.name, *tile.shorter) for size in (7.0, 6.5, 6.0, 5.5)]
    over = TILE_GAP - 6
    for name, size in tries:
        longest = max(text_width(line, size, DPI) for line in name.split("\n"))
        if longest <= room + over * ("\n" in name):
            return name, size
    return fitted(tries[-1][0].replace("\n", " "), 5.5, DPI, room), 5.5


def _panel_names(plan: BarsPlan, wide: float) -> tuple[dict[str, str], float]:
    """Of each panel its name as it is shown, in two lines where it has to be, and letters in which all fit."""
    names = [panel.name for panel in plan.panels]
    room = wide + _PANEL_GAP - 4
    for size in _NAMES:
        shown = {name: name if text_width(name, size, DPI) <= room else name.replace(" ", "\n") for name in names}
        if all(text_width(line, size, DPI) <= room for name in shown.values() for line in name.split("\n")):
            return shown, size
    return {name: fitted(name, _NAMES[-1], DPI, room) for name in names}, _NAMES[-1]


def _thousandths(value: float) -> str:
    """``.118``, as weights are written into cells."""
    return f"{value:.3f}".removeprefix("0")
