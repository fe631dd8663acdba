"""Content and position in the scores of the first layer, planned and drawn: a row a head, a column a part.

No pyplot, so that neither the caller's figures nor the backend are touched.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attnviz.commands.explain.measure import Explained
from attnviz.commands.explain.position_share import GROUPS, ScoreShares
from attnviz.errors import UsageError
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look
from attnviz.figures.view_drawing import PIXEL, Numbers, contrasting_ink, page_width, view_page
from attnviz.model.tokens import visible
from attnviz.model.wording import counted, quoted

__all__ = ["PositionsPlan", "draw_positions", "plan_positions", "positions_figure"]

_LEFT, _RIGHT, _ABOVE, _FOOT, _BAR = 90, 84, 34, 82, 10
_ROW, _COLUMN, _NARROWEST = 30, 86, 46
_TITLES = {
    "content": "content",
    "position": "position",
    "both": "both",
    "segment": "segment",
    "constant": "common",
}


@dataclass(frozen=True)
class PositionsPlan:
    """The figure of content and position.

    Attributes:
        title: model and what is shown.
        notes: text, how to read it.
        caption: all of this in one sentence.
        rows: names of the heads, last all of them together.
        columns: names of the parts.
        shares: [rows, columns]; NaN where nothing differs.
        spreads: [rows], as written.
        column: pixels of a column.
        page: width of the page, in pixels.
        look: theme and width.
    """

    title: str
    notes: tuple[str, ...]
    caption: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    shares: Numbers
    spreads: tuple[str, ...]
    column: int
    page: int
    look: Look


def plan_positions(explained: Explained, look: Look) -> PositionsPlan:
    """Plan the figure of content and position.

    Raises:
        UsageError: it is not the first layer that is explained, or the width has no room.
    """
    found = explained.positions
    if found is None:
        raise UsageError(f"content and position are told apart in layer 0 only, not in layer {explained.layer}.")
    groups = [name for name in GROUPS if name != "segment" or found.segments]
    page = page_width(look, _LEFT + _RIGHT + _COLUMN * len(groups))
    column = min(_COLUMN, (page - _LEFT - _RIGHT) // len(groups))
    if column < _NARROWEST:
        raise UsageError(
            f"the figure of content and position does not fit in {look.width:g} inches; expected a --width of at least "
            f"{math.ceil((_LEFT + _RIGHT + _NARROWEST * len(groups)) / DPI * 10) / 10:g}in."
        )
    every = (*found.heads, found.layer)
    texts = " / ".join(quoted(text) for text in (explained.text, explained.pair) if text is not None)
    reading = (
        "Share of the variance of the scores over the keys of each query; a row sums to 1. Both: a word with a place, "
        "or a place with a word; common: what all tokens share, of which the layer norm leaves some more than others. "
        "Spread: root mean square difference of scores from their query's mean."
    )
    name = visible(explained.checkpoint.short_name)
    return PositionsPlan(
        title=f"{name}: content and position in layer 0",
        notes=(f"{texts} ({counted(len(explained.tokens), 'token')})", reading),
        caption=f"Where the scores of layer 0 of {name} come from, on {texts}, a row a head: {reading}",
        rows=(*(f"L0H{head}" for head in range(len(found.heads))), "all heads"),
        columns=tuple(_TITLES[group] for group in groups),
        shares=np.array([_row(share, groups) for share in every]),
        spreads=tuple(f"{share.spread:.2f}" for share in every),
        column=column,
        page=page,
        look=look,
    )


def _row(share: ScoreShares, groups: list[str]) -> list[float]:
    values = [share.groups[group] for group in groups]
    return [float("nan") if value is None else value for value in values]


def draw_positions(ax: Axes, plan: PositionsPlan) -> QuadMesh:
    """Draw the shares on the caller's Axes: cells with their numbers, and the spread of each head beside them.

    Returns:
        the mesh that carries the shares.
    """
    rows, columns = plan.shares.shape
    greys, colours, norm = plan.look.greys, plan.look.diverging_map(), Normalize(-1, 1, clip=True)
    edges = np.array([*range(rows - 1), rows - 1, rows - 0.7, rows + 0.3])[: rows + 2]
    values = np.insert(plan.shares, rows - 1, np.nan, axis=0)
    mesh = ax.pcolormesh(np.arange(columns + 1), edges, values, cmap=colours, norm=norm, ec=greys.paper, lw=0.8)
    middles = [*(row + 0.5 for row in range(rows - 1)), rows - 0.2]
    style: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False, "fontsize": 7}
    for row, middle in enumerate(middles):
        weight = "bold" if row == rows - 1 else "normal"
        for column, value in enumerate(plan.shares[row]):
            known = bool(np.isfinite(value))
            ink = contrasting_ink(colours(norm(value))) if known else greys.quiet
            text = f"{round(float(value), 2) + 0.0:.2f}".replace("-", "−") if known else "–"
            ax.text(column + 0.5, middle, text, color=ink, weight=weight, **style)
        ax.text(columns + 0.5, middle, plan.spreads[row], color=greys.ink, weight=weight, **style)
    ax.set(xlim=(0, columns + 1), ylim=(rows + 0.3, 0), facecolor=greys.paper)
    ax.set_yticks(middles, plan.rows, fontsize=7, color=greys.ink)
    ax.set_xticks([column + 0.5 for column in range(columns + 1)], [*plan.columns, "spread"], fontsize=7)
    ax.tick_params(length=0, pad=4, labeltop=True, labelbottom=False, labelcolor=greys.ink)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return mesh


def positions_figure(plan: PositionsPlan) -> Figure:
    """A new figure of content and position with title, notes and colour bar; see :func:`draw_positions`."""
    rows, columns = plan.shares.shape
    height = round((rows + 0.3) * _ROW)
    with figure_style():
        page = view_page(plan.title, plan.notes, plan.page, _ABOVE + height + _FOOT, plan.look)
        draw_positions(page.axes(_LEFT, _ABOVE, plan.column * (columns + 1), height), plan)
        bar = page.axes(_LEFT, _ABOVE + height + 14, min(plan.column * columns, 320), _BAR)
        mappable = ScalarMappable(Normalize(-1, 1), plan.look.diverging_map())
        colour_bar = page.figure.colorbar(mappable, cax=bar, orientation="horizontal", ticks=[-1, 0, 1])
        colour_bar.outline.set(linewidth=PIXEL, edgecolor=plan.look.greys.frame)
        bar.set_xticks([-1, 0, 1], ["−1", "0", "1"], fontsize=7, color=plan.look.greys.ink)
        bar.tick_params(length=2, width=PIXEL, color=plan.look.greys.frame)
        bar.minorticks_off()
        bar.set_xlabel("share of the variance of scores", fontsize=7.5, color=plan.look.greys.ink, labelpad=2)
        return page.figure
