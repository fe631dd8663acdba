"""The figures of a comparison drawn: each plan on the caller's Axes, or in a new figure with title and colour bar.

No pyplot, so that neither the caller's figures nor the backend are touched.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, FuncNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Polygon, Rectangle

from attnviz.commands.compare.figures import (
    DifferenceGridPlan,
    DifferenceMapPlan,
    DifferencePlan,
)
from attnviz.commands.compare.pages import draw_colour_bar, new_sheet
from attnviz.commands.compare.sizes import (
    ABOVE_PATTERN,
    BELOW_PATTERN,
    BESIDE_CELLS,
    LEFT_OF_GRID,
    MEAN_COLUMN,
    RIGHT_OF_GRID,
    cell_numbers,
    every_which,
)
from attnviz.commands.compare.words import signed
from attnviz.figures.colours import Pixels, outer_ink
from attnviz.figures.fonts import DEFAULT_FAMILY, drawable, font_families, text_width
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look
from attnviz.model.head_ids import HeadId

__all__ = [
    "difference_colours",
    "difference_figure",
    "difference_grid_figure",
    "difference_map_figure",
    "draw_difference",
    "draw_difference_grid",
    "draw_difference_map",
    "root_norm",
]

_POINT = 72 / DPI
_VECTOR_CELLS = 32
_GAP, _LEAST_OUTLINE, _AIR = 18, 10, 6
_QUIETEST = 0.005
"""Smaller differences would be written as zero; nothing is written instead."""


def root_norm(vmax: float) -> FuncNorm:
    """From differences, -vmax to vmax, to places on the colour map: by the square root of their size.

    A few weights change a lot and most a little; on a linear scale long texts would look blank.
    """
    return FuncNorm((_signed_root, _signed_square), -vmax, vmax, clip=True)


def difference_colours(plan: DifferencePlan | DifferenceGridPlan, look: Look) -> ScalarMappable:
    """Colours and scale of differences, for ``figure.colorbar``."""
    return ScalarMappable(root_norm(plan.vmax), look.diverging_map())


def draw_difference(ax: Axes, plan: DifferencePlan, look: Look, *, vector: bool = False) -> AxesImage | QuadMesh:
    """Draw one head's difference on the caller's Axes, which keep their size: cells, numbers, labels.

    Args:
        ax: any matplotlib Axes; only these are changed.
        plan: from :func:`attnviz.commands.compare.figures.plan_difference`.
        look: the theme.
        vector: draw one rectangle a cell (while there are few enough), for SVG and PDF.

    Returns:
        the image or mesh that carries the cells.
    """
    m, margin = len(plan.values), 1 / plan.cell
    style: dict[str, Any] = {"cmap": look.diverging_map(), "norm": root_norm(plan.vmax)}
    cells: AxesImage | QuadMesh
    if vector and m <= _VECTOR_CELLS:
        edges = np.arange(m + 1) - 0.5
        cells = ax.pcolormesh(edges, edges, plan.values, edgecolors="face", linewidth=0.2, **style)
    else:
        cells = ax.imshow(plan.values, interpolation="none" if vector else "nearest", aspect="auto", **style)
    ax.set(xlim=(-0.5 - margin, m - 0.5 + margin), ylim=(m - 0.5 + margin, -0.5 - margin), facecolor=look.greys.paper)
    if plan.numbers:
        _write_numbers(ax, plan, look)
    if plan.largest is not None:
        row, column = plan.largest
        side = max(1.0, _LEAST_OUTLINE / plan.cell)
        corner = (column - side / 2, row - side / 2)
        ax.add_patch(Rectangle(corner, side, side, fill=False, ec=look.greys.ink, lw=1.0, zorder=3))
    _frame(ax, look)
    _name_tokens(ax, plan, look)
    return cells


def _write_numbers(ax: Axes, plan: DifferencePlan, look: Look) -> None:
    colours, norm = look.diverging_map(), root_norm(plan.vmax)
    for (row, column), value in np.ndenumerate(plan.values.astype(float)):
        if abs(value) >= _QUIETEST:
            ink = _readable(colours, float(norm(value)))
            text = signed(value) if plan.numbers == "full" else signed(value).replace("0.", ".")
            ax.text(column, row, text, size=5.5, color=ink, ha="center", va="center", family=[DEFAULT_FAMILY])


def _name_tokens(ax: Axes, plan: DifferencePlan, look: Look) -> None:
    labels = [drawable(plan.labels[tick]) for tick in plan.ticks]
    style: dict[str, Any] = {"fontsize": plan.font_size, "family": font_families(labels), "parse_math": False}
    slant: dict[str, Any] = (
        {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if _slanted(plan) else {"rotation": 90}
    )
    ax.set_xticks(list(plan.ticks), labels, **style, **slant)
    ax.set_yticks(list(plan.ticks), labels, **style)
    ax.tick_params(length=2, width=_POINT, color=look.greys.frame, pad=2)
    for tick, label_x, label_y in zip(plan.ticks, ax.get_xticklabels(), ax.get_yticklabels(), strict=True):
        for label in (label_x, label_y):
            label.set_color(look.greys.quiet if plan.quiet[tick] else outer_ink(look, "xtick.color"))
            label.set_fontweight("bold" if plan.differing[tick] else "normal")
    step = plan.ticks.step * plan.pooled
    every = "" if step == 1 else f", 1 {plan.unit} in {step} named"
    small = plan.size < 200
    ax.set_xlabel(
        f"{'key' if small else 'key (attended to)'}{every}",
        fontsize=7 if small else 8,
        color=outer_ink(look, "axes.labelcolor"),
    )
    ax.set_ylabel("query" if small else "query (attends from)", fontsize=8, color=outer_ink(look, "axes.labelcolor"))


def difference_figure(plan: DifferencePlan, look: Look, *, vector: bool = False) -> Figure:
    """A new figure with one head's difference, title, notes and colour bar; see :func:`draw_difference`."""
    with figure_style():
        longest = _longest_label(plan)
        below = (round(longest * 0.75) + 12 if _slanted(plan) else longest) + 38
        left = longest + 44
        sheet = new_sheet(plan, (left, longest + BESIDE_CELLS + plan.size, plan.size + below + _GAP), look)
        # One pixel more on every side, so that the frame never covers a cell.
        ax = sheet.axes(left - 1, -1, plan.size + 2, plan.size + 2)
        draw_difference(ax, plan, look, vector=vector)
        draw_colour_bar(sheet, difference_colours(plan, look), plan.ends, look)
        return sheet.figure


def draw_difference_grid(ax: Axes, plan: DifferenceGridPlan, look: Look) -> AxesImage:
    """Draw the differences of many heads on the caller's Axes: patterns, ids, distances, layers.

    Returns:
        the image that carries all patterns, a pixel a pixel; its colour bar is one of :func:`difference_colours`.
    """
    image = _grid_image(plan, look)
    height, width, _ = image.shape
    drawn = ax.imshow(image, interpolation="none", aspect="auto", extent=(0, width, height, 0))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    ink, beside = outer_ink(look), _distances_in_words(plan)
    for head, _, _ in plan.heads:
        left, top = _place(plan, head.layer, head.head)
        if plan.named:
            ax.text(left, top - 5, str(head), fontsize=7, weight="bold", color=ink, va="bottom")
        if plan.full:
            ax.text(left + plan.size, top - 5, beside[head], fontsize=6, color=ink, va="bottom", ha="right")
    names = {column: f"H{column}" if plan.pitch >= 40 else str(column) for column in plan.columns}
    step = every_which(tuple(names.values()), 6, plan.pitch)
    for column, text in () if plan.named else list(names.items())[::step]:
        left, top = _place(plan, plan.layers[0], column)
        ax.text(left + plan.size / 2, top - 4, text, fontsize=6, color=ink, va="bottom", ha="center")
    for layer in plan.layers:
        middle = sum(_place(plan, layer, plan.columns[end])[1] for end in (0, -1)) / 2 + plan.size / 2
        if plan.full:
            ax.text(-12, middle, f"layer {layer}", fontsize=8, color=ink, rotation=90, ha="right", va="center")
        else:
            ax.text(-8, middle, f"L{layer}", fontsize=7, color=ink, ha="right", va="center")
    return drawn


def _distances_in_words(plan: DifferenceGridPlan) -> dict[HeadId, str]:
    """By head its distance as it stands beside the id: ``0.039``, or ``.039`` where the two would touch."""
    full = {head: f"{distance:.3f}" for head, distance, _ in plan.heads}
    widths = (text_width(str(head), 7, DPI, "bold") + text_width(text, 6, DPI) for head, text in full.items())
    if max(widths) + _AIR <= plan.size:
        return full
    return {head: text.removeprefix("0") for head, text in full.items()}


def difference_grid_figure(plan: DifferenceGridPlan, look: Look) -> Figure:
    """A new figure with the differences of many heads, title, notes and colour bar."""
    with figure_style():
        width, height = _grid_size(plan)
        sheet = new_sheet(plan, (LEFT_OF_GRID, LEFT_OF_GRID + width + RIGHT_OF_GRID, height + 24), look)
        draw_difference_grid(sheet.axes(LEFT_OF_GRID, 0, width, height), plan, look)
        draw_colour_bar(sheet, difference_colours(plan, look), plan.ends, look)
        return sheet.figure


def draw_difference_map(ax: Axes, plan: DifferenceMapPlan, look: Look) -> QuadMesh:
    """Draw the distances of all heads on the caller's Axes, the means of the layers in a column on the right.

    Returns:
        the mesh that carries the distances of the heads.
    """
    n_layers, n_heads = plan.distances.shape
    colours, greys = look.colour_map(), look.greys
    style: dict[str, Any] = {"cmap": colours, "norm": Normalize(0, plan.vmax), "ec": greys.frame, "lw": _POINT}
    rows = np.arange(n_layers + 1) - 0.5
    mean = n_heads - 0.5 + MEAN_COLUMN - 0.5
    # Outer borders lie half outside the axes.
    cells = ax.pcolormesh(np.arange(n_heads + 1) - 0.5, rows, plan.distances, clip_on=False, **style)
    ax.pcolormesh(np.array([mean - 0.5, mean + 0.5]), rows, plan.means[:, None], clip_on=False, **style)
    _write_distances(ax, plan, mean, look)
    for layer, head in zip(*np.nonzero(plan.changed), strict=True):
        corner = ((head + 0.47, layer - 0.47), (head + 0.2, layer - 0.47), (head + 0.47, layer - 0.17))
        ax.add_patch(Polygon(corner, closed=True, fc=look.diverging_map()(1.0), ec=greys.paper, lw=_POINT, zorder=3))
    ax.set(xlim=(-0.5, n_heads - 0.5 + MEAN_COLUMN), ylim=(n_layers - 0.5, -0.5), facecolor=greys.paper)
    names = [str(head) for head in range(n_heads)]
    size = 7 if plan.cell[0] >= 30 else 6
    step = every_which(names, size, plan.cell[0])
    ax.set_xticks(
        [*range(0, n_heads, step), mean], [*names[::step], "mean"], fontsize=size, color=outer_ink(look, "xtick.color")
    )
    ax.set_yticks(
        range(n_layers), [str(layer) for layer in range(n_layers)], fontsize=size, color=outer_ink(look, "ytick.color")
    )
    ax.tick_params(length=0, pad=4)
    ax.set_xlabel("head", fontsize=8, color=outer_ink(look, "axes.labelcolor"))
    ax.set_ylabel("layer", fontsize=8, color=outer_ink(look, "axes.labelcolor"))
    for spine in ax.spines.values():
        spine.set_visible(False)
    return cells


def _write_distances(ax: Axes, plan: DifferenceMapPlan, mean: float, look: Look) -> None:
    """Distances of the heads, and means at their column, where cells have room for them."""
    places = [(float(head), layer) for layer, head in np.ndindex(plan.distances.shape)]
    places += [(mean, layer) for layer in range(len(plan.means))]
    values = [float(value) for value in (*plan.distances.ravel(), *plan.means)]
    numbers = cell_numbers(values, plan.vmax, plan.cell[0])
    if numbers is None:
        return
    texts, size = numbers
    colours = look.colour_map()
    for place, value, text in zip(places, values, texts, strict=True):
        ink = _readable(colours, value / plan.vmax)
        ax.text(*place, text, size=size, color=ink, family=[DEFAULT_FAMILY], ha="center", va="center")


def difference_map_figure(plan: DifferenceMapPlan, look: Look) -> Figure:
    """A new figure with the map of distances, title, notes and colour bar."""
    n_layers, n_heads = plan.distances.shape
    width, height = round((n_heads + MEAN_COLUMN) * plan.cell[0]), n_layers * plan.cell[1]
    with figure_style():
        sheet = new_sheet(plan, (LEFT_OF_GRID, LEFT_OF_GRID + width + RIGHT_OF_GRID, height + 70), look)
        draw_difference_map(sheet.axes(LEFT_OF_GRID, 0, width, height), plan, look)
        draw_colour_bar(sheet, ScalarMappable(Normalize(0, plan.vmax), look.colour_map()), plan.ends, look)
        return sheet.figure


def _grid_image(plan: DifferenceGridPlan, look: Look) -> Pixels:
    """The grid of patterns with their frames, [height, width, 3]."""
    width, height = _grid_size(plan)
    image = np.empty((height, width, 3), np.uint8)
    image[:] = _rgb(look.greys.paper)
    norm = root_norm(plan.vmax)
    table = (look.diverging_map()(np.linspace(0, 1, 255))[:, :3] * 255).round().astype(np.uint8)
    for head, _, values in plan.heads:
        left, top = _place(plan, head.layer, head.head)
        image[top - 1 : top + plan.size + 1, left - 1 : left + plan.size + 1] = _rgb(look.greys.frame)
        steps = (np.asarray(norm(values)) * 254).round().astype(np.uint8)
        cells = np.arange(plan.size) * len(steps) // plan.size
        image[top : top + plan.size, left : left + plan.size] = table[steps[np.ix_(cells, cells)]]
    return image


def _rgb(colour: str) -> Sequence[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _grid_size(plan: DifferenceGridPlan) -> tuple[int, int]:
    """Width and height of the image."""
    above = 0 if plan.named else ABOVE_PATTERN
    return plan.beside * plan.pitch, len(plan.layers) * plan.rows * _row_height(plan) + above


def _row_height(plan: DifferenceGridPlan) -> int:
    return plan.size + (ABOVE_PATTERN + BELOW_PATTERN if plan.named else 4)


def _place(plan: DifferenceGridPlan, layer: int, head: int) -> tuple[int, int]:
    """Left and top of a head's pattern in the image."""
    row, column = divmod(plan.columns.index(head), plan.beside)
    row += plan.layers.index(layer) * plan.rows
    return column * plan.pitch + 1, row * _row_height(plan) + ABOVE_PATTERN


def _frame(ax: Axes, look: Look) -> None:
    for spine in ax.spines.values():
        spine.set(linewidth=_POINT, edgecolor=look.greys.frame)


def _readable(colours: Colormap, place: float) -> str:
    """Dark text on a bright cell, bright text on a dark one."""
    red, green, blue, _ = colours(min(max(place, 0.0), 1.0))
    return "#1a1a1a" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5 else "#f7f7f7"


def _slanted(plan: DifferencePlan) -> bool:
    return plan.cell >= 30


def _longest_label(plan: DifferencePlan) -> int:
    """Pixels that the widest label takes, measured as matplotlib will draw it."""
    labels = [(drawable(plan.labels[tick]), "bold" if plan.differing[tick] else "normal") for tick in plan.ticks]
    return math.ceil(max(text_width(label, plan.font_size, DPI, weight) for label, weight in labels))


def _signed_root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _signed_square(values: Any) -> Any:
    return np.sign(values) * np.square(values)
