"""What the views of a whole model share: a page placed in pixels, cells with labels, and a colour bar below.

Everything adapts to the Axes that it is drawn on: letters and the distance between labels follow from the
size of a cell on the page, so that the same functions serve a column, a page and the caller's own Axes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from attnviz.commands.heads.findings import Findings
from attnviz.figures.colours import Array, outer_ink
from attnviz.figures.fonts import font_families, text_width, wrapped
from attnviz.figures.heatmaps import DPI, named_every, quotes
from attnviz.figures.look import Look
from attnviz.model.wording import counted

__all__ = [
    "MARGIN",
    "PIXEL",
    "Numbers",
    "ViewPage",
    "cell_points",
    "contrasting_ink",
    "draw_cells",
    "dress_grid",
    "few_enough",
    "label_size",
    "name_positions",
    "page_width",
    "text_line",
    "value_size",
    "view_page",
    "written",
]

PIXEL = 72 / DPI
"""One pixel, in points."""

MARGIN = 20
"""Pixels between the edge of a page and what stands on it."""

Numbers = NDArray[np.float64]

_LEAST_WIDTH = 640
_TITLE, _NOTE = 10.0, 7.0
_SMALLEST, _LARGEST = 5.5, 8.0
_SLANTED = 14.4
_MESH_CELLS = 4096
_MOST_WRITTEN = 24


@dataclass(frozen=True)
class ViewPage:
    """A figure with title and notes; what is drawn stands below ``top``. All in pixels, all whole.

    Attributes:
        figure: new, of no backend.
        width, height: of the figure.
        top: where the notes end.
    """

    figure: Figure
    width: int
    height: int
    top: int

    def axes(self, left: int, top: int, width: int, height: int) -> Axes:
        """New axes, placed in pixels from the left and from below the notes."""
        bottom = self.height - self.top - top - height
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))


def text_line(findings: Findings) -> str:
    """The text, or both texts of a pair, in quotation marks, and how many tokens or words are drawn."""
    return f"{quotes(findings)} ({counted(len(findings.units), findings.units.name)})"


def page_width(look: Look, natural: int) -> int:
    """Pixels: the width that was asked for, or what the content takes, but enough for a title."""
    return max(natural, _LEAST_WIDTH) if look.width is None else round(look.width * DPI)


def view_page(title: str, notes: Sequence[str], width: int, body: int, look: Look) -> ViewPage:
    """A page with wrapped title and notes above a body of so many pixels in height."""
    room = width - 2 * MARGIN
    heading = wrapped(title, _TITLE, DPI, room, "bold")
    lines = [line for note in notes for line in wrapped(note, _NOTE, DPI, room)]
    top = 14 + 26 * len(heading) + 6 + 19 * len(lines) + 12
    height = top + body
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor=look.greys.paper)
    style: dict[str, Any] = {"va": "top", "parse_math": False, "color": look.greys.ink}
    for number, line in enumerate(heading):
        place = (MARGIN / width, 1 - (14 + 26 * number) / height)
        figure.text(*place, line, size=_TITLE, weight="bold", family=font_families([line]), **style)
    for number, line in enumerate(lines):
        place = (MARGIN / width, 1 - (20 + 26 * len(heading) + 19 * number) / height)
        figure.text(*place, line, size=_NOTE, family=font_families([line]), **style)
    return ViewPage(figure, width, height, top)


def cell_points(ax: Axes, columns: int, rows: int) -> tuple[float, float]:
    """Width and height of a cell where so many share the Axes as they are now, in points."""
    box = ax.get_window_extent()
    points = 72 / ax.figure.dpi
    return box.width * points / columns, box.height * points / rows


def draw_cells(
    ax: Axes, values: Array, norm: Normalize, look: Look, *, mesh: bool, weights: bool = True
) -> AxesImage | QuadMesh:
    """Draw a square pattern, row 0 at the top, inside a frame of one pixel that covers no cell.

    Args:
        ax: one pixel larger on every side than the cells.
        values: [m, m].
        norm: from values to colours.
        look: theme and scale.
        mesh: one rectangle a cell, sharp at any size in SVG and PDF; otherwise an image.
        weights: the values are weights, 0-1, and are written into the cells where there is room.
    """
    m = len(values)
    colours: dict[str, Any] = {"cmap": look.colour_map(), "norm": norm}
    cells: AxesImage | QuadMesh
    if mesh:
        edges = np.arange(m + 1) - 0.5
        cells = ax.pcolormesh(edges, edges, values, edgecolors="face", linewidth=0.1, **colours)
    else:
        cells = ax.imshow(values, interpolation="none", aspect="auto", **colours)
    margin = m / max(ax.get_window_extent().width - 2, m)
    ax.set(xlim=(-0.5 - margin, m - 0.5 + margin), ylim=(m - 0.5 + margin, -0.5 - margin), fc=look.greys.paper)
    _frame(ax, look)
    if weights:
        _write_weights(ax, values, norm, look)
    return cells


def _write_weights(ax: Axes, values: Array, norm: Normalize, look: Look) -> None:
    """Weights from 0.01 on into the cells (``.93``), where there is room for them."""
    size = value_size((".00",), *cell_points(ax, len(values), len(values)), air=5)
    if size is None or len(values) > _MOST_WRITTEN:
        return
    painted = np.asarray(look.colour_map()(np.asarray(norm(values))))
    for (row, column), value in np.ndenumerate(values):
        hundredths = round(100 * float(value))
        if hundredths:
            text = "1" if hundredths == 100 else f".{hundredths:02d}"
            ink = contrasting_ink(painted[row, column])
            ax.text(column, row, text, size=size, color=ink, ha="center", va="center", parse_math=False)


def few_enough(cells: int) -> bool:
    """Whether so many cells of one figure can be rectangles without a large file."""
    return cells <= _MESH_CELLS


def name_positions(
    ax: Axes, labels: Sequence[str], quiet: Sequence[bool], look: Look, *, pooled: int = 1, sides: str = "lb"
) -> int:
    """Write the labels of a square pattern at its left (``l``) and bottom (``b``), as many as fit.

    Args:
        ax: with the cells already drawn.
        labels: [n], texts of the positions; drawable and short.
        quiet: [n], which labels stand back.
        look: theme.
        pooled: positions in one cell.
        sides: of ``l`` and ``b``.

    Returns:
        every which position is named.
    """
    m = math.ceil(len(labels) / pooled)
    width, height = cell_points(ax, m, m)
    every = named_every(min(width, height), pooled)
    step = every // pooled
    size = label_size(min(width, height))
    ticks = range(0, m, step)
    shown = [labels[tick * pooled] for tick in ticks]
    style: dict[str, Any] = {"fontsize": size, "family": font_families(shown), "parse_math": False}
    slant: dict[str, Any] = {"rotation": 90}
    if width >= _SLANTED:
        slant = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(list(ticks) if "b" in sides else [], shown if "b" in sides else [], **style, **slant)
    ax.set_yticks(list(ticks) if "l" in sides else [], shown if "l" in sides else [], **style)
    ax.tick_params(length=2, width=PIXEL, color=look.greys.frame, pad=2)
    for side, named in (("x", ax.get_xticklabels()), ("y", ax.get_yticklabels())):
        ink = outer_ink(look, f"{side}tick.color")
        for tick, label in zip(ticks, named, strict=False):
            label.set_color(look.greys.quiet if quiet[tick * pooled] else ink)
    return every


def label_size(cell: float) -> float:
    """Points of the letters beside cells of so many points."""
    return max(_SMALLEST, min(_LARGEST, 0.8 * cell))


def dress_grid(ax: Axes, n_layers: int, n_heads: int, look: Look) -> None:
    """Limits, frame, and the numbers of layers and heads, of Axes with a row a layer and a column a head."""
    width, height = cell_points(ax, n_heads, n_layers)
    ax.set(xlim=(-0.5, n_heads - 0.5), ylim=(n_layers - 0.5, -0.5), facecolor=look.greys.paper)
    widest = text_width(str(n_heads - 1), 7, DPI) + 5
    heads = range(0, n_heads, math.ceil(max(14, widest) * PIXEL / width))
    layers = range(0, n_layers, math.ceil(13 * PIXEL / height))
    ax.set_xticks(heads, [str(head) for head in heads], fontsize=7, color=outer_ink(look, "xtick.color"))
    ax.set_yticks(layers, [str(layer) for layer in layers], fontsize=7, color=outer_ink(look, "ytick.color"))
    ax.tick_params(length=0, pad=3)
    ink = outer_ink(look, "axes.labelcolor")
    ax.set_xlabel("head", fontsize=8, color=ink, labelpad=2)
    ax.set_ylabel("layer", fontsize=8, color=ink, labelpad=2)
    _frame(ax, look)


def contrasting_ink(colour: Sequence[float] | Numbers) -> str:
    """Dark or light letters, whichever can be read on a colour (red, green, blue; 0-1)."""
    linear = [((c + 0.055) / 1.055) ** 2.4 if c > 0.04045 else c / 12.92 for c in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#222222" if luminance > 0.25 else "#ffffff"


def value_size(texts: Sequence[str], width: float, height: float, air: float = 6) -> float | None:
    """The largest letters, in points, with which all texts fit in cells of so many points; None where none do.

    Args:
        texts: to write into the cells.
        width: of a cell, in points.
        height: of a cell, in points.
        air: pixels of the width that stay free.
    """
    for size in (7.0, 6.5, 6.0, 5.5):
        if height >= 1.3 * size and max(text_width(text, size, DPI) for text in texts) * PIXEL <= width - air * PIXEL:
            return size
    return None


def written(value: float) -> str:
    """A number in three digits or so: ``0.07``, ``12.3``, ``128``; a dash where there is none."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def _frame(ax: Axes, look: Look) -> None:
    for spine in ax.spines.values():
        spine.set(linewidth=PIXEL, edgecolor=look.greys.frame)
