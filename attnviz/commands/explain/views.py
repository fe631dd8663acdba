"""The figures of ``attnviz explain``: the layer from input to output, and content and position in its scores."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnviz.commands.explain.measure import Explanation
from attnviz.commands.explain.path import plan_path
from attnviz.commands.explain.path_drawing import path_figure
from attnviz.commands.explain.position_share import GROUPS, ScoreShares
from attnviz.commands.explain.steps import signed
from attnviz.errors import UsageError
from attnviz.figures.files import figure_style
from attnviz.figures.look import Look
from attnviz.figures.matrix import Array, cell_points, contrasting_ink, draw_matrix
from attnviz.figures.page import MARGIN, ColourScale, colour_bar, frozen, new_page, page_width
from attnviz.results.facts import sentence
from attnviz.results.view import Choices, View

__all__ = ["VIEWS", "PositionsPlan"]

_ROW, _COLUMN, _NARROWEST, _SIDE, _AXES, _BAR = 0.2, 0.57, 0.39, 0.6, 0.3, 0.55
_NORM = Normalize(-1, 1, clip=True)
_READING = (
    "Share of the variance of the scores over the keys of each query; a row sums to 1. Both: a word with a place, or a "
    "place with a word; common: what all tokens share, of which the layer norm leaves some more than others. Spread: "
    "root mean square difference of scores from their query's mean."
)


@dataclass(frozen=True)
class PositionsPlan:
    """Content and position in the scores of the first layer."""

    stem: str
    caption: str
    title: str
    notes: tuple[str, ...]
    rows: tuple[str, ...]  # names of the heads, last all of them together
    columns: tuple[str, ...]  # names of the parts
    shares: Array  # [rows, columns]; NaN where nothing differs
    spreads: tuple[float, ...]  # [rows]


def _plan_positions(result: Explanation, _: Choices) -> Iterator[PositionsPlan]:
    shares, facts = result.positions, result.facts
    assert shares is not None
    groups = [name for name in GROUPS if name != "segment" or shares.segments]
    every: tuple[ScoreShares, ...] = (*shares.heads, shares.layer)
    yield PositionsPlan(
        stem="positions",
        caption=sentence(f"Where the scores of layer 0 of {facts.subject} come from, a row a head", _READING),
        title=f"{facts.model}: content and position in layer 0",
        notes=facts.notes(_READING),
        rows=(*(f"L0H{head}" for head in range(len(shares.heads))), "all heads"),
        columns=tuple("common" if group == "constant" else group for group in groups),
        shares=np.array([[share.groups[group] for group in groups] for share in every], dtype=float),
        spreads=tuple(share.spread for share in every),
    )


def _positions_figure(plan: PositionsPlan, look: Look, vector: bool = False) -> Figure:
    rows, columns = plan.shares.shape
    width = page_width(look, _SIDE + _COLUMN * (columns + 1) + 2 * MARGIN)
    least = _SIDE + _NARROWEST * (columns + 1) + 2 * MARGIN
    if width < least:
        raise UsageError(
            f"the figure of content and position does not fit in {width:g} inches; expected a --width of at least "
            f"{math.ceil(10 * least) / 10:g}in."
        )
    with figure_style():
        page = new_page(plan.title, plan.notes, look, width=width, body=rows * _ROW + _AXES + _BAR)
        ax = page.add_subplot()
        _draw_positions(ax, plan, look, vector)
        bar, colours = "share of the variance of scores", look.diverging_map()
        colour_bar(page, ax, ColourScale(norm=_NORM, bar=bar, colours=colours, signed=True), look)
        frozen(page)
        return page


def _draw_positions(ax: Axes, plan: PositionsPlan, look: Look, vector: bool = False) -> AxesImage | QuadMesh:
    """A row a head, a column a part, and a column for the spread; the last row, of all heads, in bold."""
    rows, columns = plan.shares.shape
    values, ink = np.pad(plan.shares, ((0, 0), (0, 1)), constant_values=np.nan), look.greys.ink
    colours = look.diverging_map()
    cells = draw_matrix(ax, values, _NORM, look, colours=colours, vector=vector)
    size = 7 if cell_points(ax, columns + 2, 1)[0] >= 28 else 6
    style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "parse_math": False, "fontsize": size}
    for (row, column), value in np.ndenumerate(plan.shares):
        known = bool(np.isfinite(value))
        ax.text(column, row, signed(value) if known else "–", weight="bold" if row == rows - 1 else "normal",
                color=contrasting_ink(colours(_NORM(value))) if known else look.greys.quiet, **style)  # fmt: skip
    for row, spread in enumerate(plan.spreads):
        ax.text(columns, row, f"{spread:.2f}", weight="bold" if row == rows - 1 else "normal", color=ink, **style)
    ax.axhline(rows - 1.5, color=ink, lw=0.8)
    ax.axvline(columns - 0.5, color=look.greys.frame, lw=0.8)
    ax.set_yticks(range(rows), plan.rows, fontsize=size, color=ink)
    ax.set_xticks(range(columns + 1), [*plan.columns, "spread"], fontsize=size, color=ink)
    ax.tick_params(length=0, pad=3, labeltop=True, labelbottom=False)
    return cells


def _no_positions(result: Explanation) -> str:
    why = f"content and position are told apart in layer 0 only, not in layer {result.layer}"
    return why if result.positions is None else ""


_PATH = "the whole path of the layer: a panel of actual numbers a step, the residual path around its halves"
_POSITIONS = "layer 0 only: what the scores of every head owe to content and to position"
VIEWS: tuple[View[Any, Any], ...] = (
    View("path", _PATH, plan_path, path_figure, stems="explain"),
    View("positions", _POSITIONS, _plan_positions, _positions_figure, _draw_positions, missing=_no_positions),
)
