"""The mean pattern over the heads of each layer, and over all heads; always named as a mean.

A mean hides what its heads do: twelve heads that each look elsewhere have the mean of one that looks
everywhere. So every picture says that no head need look like it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnviz.commands.heads.findings import Findings, without_sinks
from attnviz.figures.colours import Array, outer_ink
from attnviz.figures.fonts import fitted, text_width
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI, max_pool, named_every, names_note
from attnviz.figures.look import FAINTEST, Look
from attnviz.figures.view_bars import bar_place, draw_colour_bar
from attnviz.figures.view_drawing import (
    MARGIN,
    PIXEL,
    draw_cells,
    few_enough,
    label_size,
    name_positions,
    page_width,
    text_line,
    view_page,
)
from attnviz.model.tokens import visible

__all__ = [
    "MeanTile",
    "Means",
    "MeansPlan",
    "draw_mean",
    "mean_figures",
    "means_figure",
    "plan_means",
]

Means = list[tuple[str, Array]]

_GAP, _NAME = 18, 24
_TILE, _MOST_COLUMNS, _ALONE = 220, 4, 960
_LONGEST = 110
_LEAST_TILE = 36
_TOPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_COVERED = 0.995
_HIGHEST, _ABOVE_BELOW = 1350, 330
"""Pixels: of a figure of a chosen width, nine inches; and of its title, notes, labels and colour bar."""


@dataclass(frozen=True)
class MeanTile:
    """One mean pattern.

    Attributes:
        name: ``layer 3``, or what else was averaged.
        n_heads: how many patterns it is the mean of.
        values: [m, m], rows attend to columns; pooled where n was too large to draw.
        largest: weight of the mean, 0-1.
    """

    name: str
    n_heads: int
    values: Array
    largest: float


@dataclass(frozen=True)
class MeansPlan:
    """Mean patterns side by side, ready to draw.

    Attributes:
        tiles: one a layer, then the mean of all heads; or that one alone.
        labels: [n], drawable texts of the positions.
        quiet: [n], labels to draw in grey (special tokens and other sinks).
        unit: ``token`` or ``word``.
        dropped: what was left out, and that rows were renormalised; empty where nothing was.
        model: short name, safe to show.
        text: quoted, with its number of tokens or words.
        top: the dark end of the scale that all pictures of means share; larger weights look the same.
        columns: tiles in a row.
        cell: pixels a cell.
        pooled: how many rows and columns one cell stands for.
    """

    tiles: tuple[MeanTile, ...]
    labels: tuple[str, ...]
    quiet: tuple[bool, ...]
    unit: str
    dropped: str
    model: str
    text: str
    top: float
    columns: int
    cell: int
    pooled: int

    @property
    def size(self) -> int:
        """Pixels of the square of cells of one tile."""
        return self.cell * len(self.tiles[0].values)

    @property
    def title(self) -> str:
        """Model, and that it is a mean."""
        last = self.tiles[-1]
        shown = f"mean of {'' if last.n_heads == 1 else 'all '}{_heads(last.n_heads)}"
        if len(self.tiles) > 1:
            shown = f"mean pattern of each layer’s {_heads(self.tiles[0].n_heads)}"
        return f"{self.model}: {shown}{f' ({self.dropped})' if self.dropped else ''}"

    @property
    def cut(self) -> bool:
        """Whether there are weights above the dark end of the shared scale."""
        return any(tile.largest > self.top for tile in self.tiles)

    def notes(self, look: Look) -> tuple[str, ...]:
        """The text, what a mean is worth, and how to read it."""
        reading = ["A mean: no head need look like it. Rows attend to columns."]
        if self.dropped:
            reading.append("Rows renormalised to sum to 1 in every head, before the mean.")
        if self.pooled > 1:
            reading.append(f"Each cell is the largest of {self.pooled} × {self.pooled} weights (for drawing only).")
        if look.scale == "per-head" and len(self.tiles) > 1:
            reading.append("Each picture has its own scale, from 0 to the weight beside its name.")
        every = names_note(named_every((self.size + 2) * PIXEL / len(self.tiles[0].values), self.pooled), self.unit)
        if every:
            reading.append(every)
        if look.scale == "shared" and self.cut:
            reading.append(f"Weights above {self.top:g} look the same.")
        return (self.text, " ".join(reading))

    def caption(self, look: Look) -> str:
        """One sentence: model, text, which means, scale, and pooling if any."""
        first, last = self.tiles[0], self.tiles[-1]
        shown = f"mean attention pattern of {'' if last.n_heads == 1 else 'all '}{_heads(last.n_heads)}"
        if len(self.tiles) > 1:
            shown = f"mean attention pattern of the {_heads(first.n_heads)} of each layer, and of all layers"
        scale = {
            "shared": f"colours from 0 to {self.top:g}{' (larger weights look the same)' if self.cut else ''}",
            "per-head": f"colours from 0 to the largest weight{'' if len(self.tiles) == 1 else ' of each picture'}",
            "log": f"logarithmic colours from {FAINTEST:g} to 1",
        }[look.scale]
        dropped = f"{self.dropped} in every head before the mean; " if self.dropped else ""
        pooled = f"; each cell is the largest of {self.pooled} × {self.pooled} weights" if self.pooled > 1 else ""
        return f"{self.model} on {self.text}: {shown} (a mean: no head need look like it); {dropped}{scale}{pooled}."


def plan_means(findings: Findings, look: Look, *, drop_special: bool = False, overall: bool = False) -> MeansPlan:
    """Plan the mean pattern over the heads of each layer and over all heads.

    The mean is taken over the verified patterns, element by element; with ``drop_special`` over the patterns without
    sinks, as they are drawn head by head, see :func:`attnviz.commands.heads.findings.without_sinks`.

    Args:
        findings: of one text.
        look: its width decides how many tiles stand in a row, and whether cells are pooled.
        drop_special: leave out the special tokens, and in GPT-2 the first token.
        overall: plan only the mean over all heads, large.

    Raises:
        UsageError: nothing is left of the text without its sinks.
    """
    shown = without_sinks(findings) if drop_special else findings
    return _plan(findings, shown, _mean_patterns(shown), look, overall)


def draw_mean(ax: Axes, plan: MeansPlan, tile: MeanTile, look: Look, *, sides: str = "lb") -> AxesImage | QuadMesh:
    """Draw one mean pattern on the caller's Axes, named above as a mean.

    Args:
        ax: any matplotlib Axes; only these are changed.
        plan: from :func:`plan_means`.
        tile: of the plan.
        look: theme and scale.
        sides: where positions are named: left (``l``), bottom (``b``).

    Returns:
        the image or mesh that carries the cells.
    """
    mesh = few_enough(len(plan.tiles) * tile.values.size)
    cells = draw_cells(ax, tile.values, _norm(plan, tile, look), look, mesh=mesh)
    name_positions(ax, plan.labels, plan.quiet, look, pooled=plan.pooled, sides=sides)
    own = f" · 0–{tile.largest:.2f}" if look.scale == "per-head" else ""
    room = ax.get_window_extent().width * DPI / ax.figure.dpi
    full, short = f"{tile.name}: mean of {_heads(tile.n_heads)}{own}", f"{tile.name}{own}"
    least = f"{tile.name.replace('layer ', 'L').removesuffix(' layers')}{own}"
    tries = ((full, 7.0), (short, 7.0), (short, 6.0), (short, 5.5), (least, 5.5))
    fits = ((text, size) for text, size in tries if text_width(text, size, DPI) <= room)
    name, size = next(fits, (least.replace(" · 0", "·0").replace("0.", "."), 5.5))
    ax.set_title(name, loc="left", fontsize=size, pad=3, color=outer_ink(look))
    return cells


def means_figure(plan: MeansPlan, look: Look) -> Figure:
    """A new figure with every tile of the plan, one colour bar, title and notes."""
    room = _label_room(plan.labels, plan.cell)
    pitch, left = plan.size + 2 + _GAP, MARGIN + room + 8
    rows = math.ceil(len(plan.tiles) / plan.columns)
    width = page_width(look, left + plan.columns * pitch - _GAP + MARGIN)
    body = rows * (pitch + _NAME) - _GAP + room + 8
    norm, name = _bar(plan, look)
    bar_left, length, height = bar_place(name, width, left)
    with figure_style():
        page = view_page(plan.title, plan.notes(look), width, body + height, look)
        for number, tile in enumerate(plan.tiles):
            row, column = divmod(number, plan.columns)
            below = number + plan.columns >= len(plan.tiles)
            place = (left + column * pitch, row * (pitch + _NAME) + _NAME, plan.size + 2, plan.size + 2)
            draw_mean(page.axes(*place), plan, tile, look, sides="l" * (not column) + "b" * below)
        bar = page.axes(bar_left, body + 24, length, 12)
        draw_colour_bar(bar, norm, name, look, cut=look.scale == "shared" and plan.cut)
        return page.figure


def mean_figures(findings: Findings, look: Look, drop_special: bool = False) -> Iterator[tuple[str, Figure, str]]:
    """Two pictures, each as file stem, figure and caption: ``mean``, every layer and all; ``mean-all``, all, large.

    Raises:
        UsageError: nothing is left of the text without its sinks.
    """
    shown = without_sinks(findings) if drop_special else findings
    means = _mean_patterns(shown)
    for stem, overall in (("mean", False), ("mean-all", True)):
        plan = _plan(findings, shown, means, look, overall)
        yield stem, means_figure(plan, look), plan.caption(look)


def _mean_patterns(findings: Findings) -> Means:
    """Name and mean pattern of every layer, then of all heads; a layer's patterns are dropped once averaged."""
    layers = range(findings.checkpoint.n_layers)
    means = [findings.layer_patterns(layer).double().mean(0).numpy() for layer in layers]
    named = [(f"layer {layer}", mean) for layer, mean in zip(layers, means, strict=True)]
    return [(name, mean.astype(np.float32)) for name, mean in [*named, ("all layers", np.mean(means, axis=0))]]


def _plan(findings: Findings, shown: Findings, means: Means, look: Look, overall: bool) -> MeansPlan:
    units, n_heads = shown.units, findings.checkpoint.n_heads
    labels = tuple(fitted(label, label_size(0), DPI, _LONGEST) for label in units.labels)
    chosen = means[-1:] if overall else means
    columns, cell, pooled = _grid(labels, len(chosen), look)
    averaged = {name: n_heads for name, _ in means} | {means[-1][0]: n_heads * (len(means) - 1)}
    tiles = tuple(MeanTile(name, averaged[name], max_pool(mean, pooled), float(mean.max())) for name, mean in chosen)
    _, _, together = _grid(labels, len(means), look)  # one scale for the picture of all means and that of the last
    drawn = np.concatenate([max_pool(mean, together).ravel() for _, mean in means])
    top = next((top for top in _TOPS if top >= np.quantile(drawn, _COVERED)), 1.0)
    model, text = visible(findings.checkpoint.short_name), text_line(shown)
    return MeansPlan(tiles, labels, units.sink, units.name, shown.dropped, model, text, top, columns, cell, pooled)


def _grid(labels: Sequence[str], n_tiles: int, look: Look) -> tuple[int, int, int]:
    """Tiles in a row, pixels a cell, and positions pooled into one cell."""
    n = len(labels)
    target = _ALONE if n_tiles == 1 else _TILE
    if look.width is None:
        pooled = math.ceil(n / (1.4 * target))
        return min(n_tiles, _MOST_COLUMNS), _whole(target / math.ceil(n / pooled)), pooled
    cell = columns = pooled = 1
    for _ in range(2):  # the cells decide how large the labels are, and these how much room is left
        room = page_width(look, 0) - 2 * MARGIN - 8 - _label_room(labels, cell)
        columns, tile = _tiles(n_tiles, room, target)
        pooled = math.ceil(n / tile)
        cell = max(1, min(44, tile // math.ceil(n / pooled)))
    return columns, cell, pooled


def _tiles(n_tiles: int, room: int, target: int) -> tuple[int, int]:
    """Tiles in a row and pixels of one: about as large as the target, or smaller where a page would not hold them."""
    columns = max(1, min(n_tiles, math.ceil(room / (target + _GAP))))
    while True:
        tile = max(1, (room - _GAP * (columns - 1)) // columns - 2)
        height = math.ceil(n_tiles / columns) * (tile + 2 + _GAP + _NAME)
        smaller = (room - _GAP * columns) // (columns + 1) - 2
        if n_tiles == 1 or height <= _HIGHEST - _ABOVE_BELOW or smaller < _LEAST_TILE:
            return columns, tile
        columns += 1


def _whole(cell: float) -> int:
    return max(1, min(44, round(cell)))


def _label_room(labels: Sequence[str], cell: int) -> int:
    """Pixels that the longest label takes beside cells of so many."""
    return math.ceil(max(text_width(label, label_size(cell * PIXEL), DPI) for label in labels))


def _norm(plan: MeansPlan, tile: MeanTile, look: Look) -> Normalize:
    return Normalize(0, plan.top, clip=True) if look.scale == "shared" else look.norm(tile.largest)


def _heads(n_heads: int) -> str:
    return f"{n_heads} head{'' if n_heads == 1 else 's'}"


def _bar(plan: MeansPlan, look: Look) -> tuple[Normalize, str]:
    """What the colour bar shows, and its name."""
    if look.scale == "per-head" and len(plan.tiles) > 1:
        return Normalize(0, 1), "share of each picture’s largest weight (own scales)"
    scale = {"shared": "shared scale", "per-head": "scale of this picture", "log": "log scale"}[look.scale]
    return _norm(plan, plan.tiles[-1], look), f"mean attention weight ({scale})"
