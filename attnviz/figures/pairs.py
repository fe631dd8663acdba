"""The view ``pair``: for every head, how much attention stays in a text, crosses over, or goes to special tokens.

The shares and their baselines are defined in :mod:`attnviz.figures.pair_heatmaps`, where single heads are drawn too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from attnviz.commands.heads.findings import Findings, HeadFindings
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.look import Look
from attnviz.figures.pair_heatmaps import (
    PairSegments,
    both_texts,
    pair_heatmap_figure,
    pair_segments,
    percent,
    plan_pair_heatmap,
)
from attnviz.figures.view_bars import bar_place, draw_colour_bar
from attnviz.figures.view_drawing import (
    MARGIN,
    PIXEL,
    Numbers,
    cell_points,
    contrasting_ink,
    dress_grid,
    page_width,
    text_line,
    value_size,
    view_page,
)
from attnviz.model.tokens import visible

__all__ = ["PairPlan", "draw_pair", "pair_figure", "pair_figures", "pair_norm", "plan_pair"]

_COLUMNS = ((-0.45, -0.16), (-0.16, 0.13), (0.17, 0.46))
_ROWS = ((-0.42, 0.0), (0.0, 0.42))
_LEFT, _AXIS, _KEY_LEFT, _KEY_WIDTH, _KEY_HEIGHT = 56, 50, 76, 150, 60
_SIDE_BY_SIDE = 560
_FAINTEST_SHARE = 0.01


@dataclass(frozen=True)
class PairPlan:
    """The shares of every head over a sentence pair, ready to draw.

    Attributes:
        shares: [n_layers, n_heads, 2, 3]: from A and from B; to A, to B and to the special tokens.
        uniform: [3], the same under uniform attention.
        model: short name, safe to show.
        text: both texts, quoted, with the number of tokens or words.
        texts: the same as part of a sentence.
        unit: ``token`` or ``word``.
    """

    shares: Numbers
    uniform: Numbers
    model: str
    text: str
    texts: str
    unit: str

    @property
    def title(self) -> str:
        """Model, and what is shown."""
        return f"{self.model}: attention within and between two texts, by head"

    def notes(self, look: Look) -> tuple[str, ...]:
        """Both texts, and what the numbers are."""
        bold = " Bold: more than uniform attention gives." if _number_size(*_pitches(self, look)) else ""
        return (
            f"A / B: {self.text}",
            f"How the {self.unit}s of A and of B share their attention out between A, B and the special tokens, "
            f"in percent; rows sum to 100, but for rounding.{bold}",
        )

    def caption(self, look: Look) -> str:
        """One sentence: model, texts, what is shown, baseline, scale."""
        n_layers, n_heads = self.shares.shape[:2]
        a, b, special = (percent(share) for share in self.uniform)
        scale = {
            "shared": "colours from 0 to 100 %",
            "per-head": f"colours from 0 to the largest share, {percent(self.shares.max())} %",
            "log": f"logarithmic colours from {percent(_FAINTEST_SHARE)} to 100 %",
        }[look.scale]
        return (
            f"{self.model} on {self.texts}: share of the attention of A (upper row of each tile) and of B (lower "
            f"row) that lands on A, on B and on the special tokens, mean over the {self.unit}s of the attending text, "
            f"in percent, for each of the {n_layers} × {n_heads} heads (uniform attention: {a} % on A, {b} % on B, "
            f"{special} % on special tokens); {scale}."
        )


def plan_pair(findings: Findings, segments: PairSegments | None = None) -> PairPlan:
    """Plan one picture of all heads over a sentence pair.

    Args:
        findings: of the pair.
        segments: from :func:`attnviz.figures.pair_heatmaps.pair_segments`, where already known.

    Raises:
        UsageError: there was no pair, or nothing is left of one of the texts.
    """
    segments = segments or pair_segments(findings)
    layers = range(findings.checkpoint.n_layers)
    return PairPlan(
        shares=np.stack([segments.shares(findings.layer_patterns(layer).float().numpy()) for layer in layers]),
        uniform=segments.uniform,
        model=visible(findings.checkpoint.short_name),
        text=text_line(findings),
        texts=both_texts(findings),
        unit=findings.units.name,
    )


def pair_norm(plan: PairPlan, look: Look) -> Normalize:
    """From shares in percent to colours.

    ``shared``: 0 to 100. ``per-head`` stands for the scale of this picture, 0 to its largest share, so that tiles
    stay comparable. ``log``: 1 to 100.
    """
    if look.scale == "log":
        return LogNorm(100 * _FAINTEST_SHARE, 100, clip=True)
    return Normalize(0, 100 * float(plan.shares.max()) if look.scale == "per-head" else 100, clip=True)


def draw_pair(ax: Axes, plan: PairPlan, look: Look) -> PolyCollection:
    """Draw a tile a head on the caller's Axes: from A above from B, to A, to B and, set apart, to special tokens.

    Args:
        ax: any matplotlib Axes; only these are changed.
        plan: from :func:`plan_pair`.
        look: theme and scale.

    Returns:
        the blocks, six a tile, in the order of ``plan.shares``.
    """
    n_layers, n_heads = plan.shares.shape[:2]
    dress_grid(ax, n_layers, n_heads, look)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return _draw_tiles(ax, plan.shares, plan, look)


def pair_figure(plan: PairPlan, look: Look) -> Figure:
    """A new figure with a tile a head, a key with what uniform attention gives, and a colour bar."""
    n_layers, n_heads = plan.shares.shape[:2]
    pitch, row = _pitches(plan, look)
    body, rows = n_heads * pitch, n_layers * row
    width = page_width(look, _LEFT + body + MARGIN)
    narrow = width < _SIDE_BY_SIDE
    key_top, key_width = rows + _AXIS + 30, min(_KEY_WIDTH, width - _KEY_LEFT - MARGIN)
    bar_left = _LEFT if narrow else _KEY_LEFT + key_width + 60
    bar_top = key_top + _KEY_HEIGHT + 56 if narrow else key_top + 22
    scale = {"shared": "shared scale", "per-head": "scale of this picture", "log": "log scale"}[look.scale]
    name = f"share (percent; {scale})"
    bar_left, length, height = bar_place(name, width, bar_left)
    with figure_style():
        page = view_page(plan.title, plan.notes(look), width, bar_top + height - 22, look)
        draw_pair(page.axes(_LEFT, 0, body, rows), plan, look)
        _draw_key(page.axes(_KEY_LEFT, key_top, key_width, _KEY_HEIGHT), plan, look)
        draw_colour_bar(page.axes(bar_left, bar_top, length, 12), pair_norm(plan, look), name, look)
        return page.figure


def pair_figures(findings: Findings, heads: Sequence[HeadFindings], look: Look) -> Iterator[tuple[str, Figure, str]]:
    """File stem, figure and caption: ``pair`` with all heads; a selection also gets ``pair/L02H08``, one a head.

    Args:
        findings: of a sentence pair.
        heads: those asked for; where they are all that the model has, no single heads are drawn.
        look: theme, scale and width.

    Raises:
        UsageError: there was no pair, or nothing is left of one of the texts.
    """
    segments = pair_segments(findings)
    plan = plan_pair(findings, segments)
    yield "pair", pair_figure(plan, look), plan.caption(look)
    if len(heads) == len(findings.heads):
        return
    layer, patterns = -1, np.empty(0, np.float32)
    for head in heads:
        if head.id.layer != layer:
            layer, patterns = head.id.layer, findings.layer_patterns(head.id.layer).float().numpy()
        single = plan_pair_heatmap(findings, head, patterns[head.id.head], segments, look)
        yield f"pair/{head.id.file_stem}", pair_heatmap_figure(single, look), single.caption(look)


def _draw_tiles(ax: Axes, shares: Numbers, plan: PairPlan, look: Look) -> PolyCollection:
    """Blocks and, where they fit, numbers, [rows, columns, 2, 3] shares."""
    norm, colours = pair_norm(plan, look), look.colour_map()
    blocks = PolyCollection(
        [_corners(*place) for place in np.ndindex(shares.shape)], array=100 * shares.ravel(), cmap=colours, norm=norm,
        edgecolors=look.greys.frame, linewidths=PIXEL,
    )  # fmt: skip
    ax.add_collection(blocks, autolim=False)
    width, height = cell_points(ax, shares.shape[1], shares.shape[0])
    size = _number_size(width / PIXEL, height / PIXEL)
    if size is None:
        return blocks
    for (layer, head, source, target), share in np.ndenumerate(shares):
        x, y = head + sum(_COLUMNS[target]) / 2, layer + sum(_ROWS[source]) / 2
        weight = "bold" if share > plan.uniform[target] + 1e-6 else "normal"
        ink = contrasting_ink(colours(norm(100 * share)))
        ax.text(x, y, percent(share), size=size, weight=weight, color=ink, ha="center", va="center_baseline")
    return blocks


def _pitches(plan: PairPlan, look: Look) -> tuple[int, int]:
    """Pixels from tile to tile, to the right and downwards."""
    n_heads = plan.shares.shape[1]
    pitch = 84 if n_heads <= 16 else 36
    if look.width is not None:
        pitch = max(4, min(100, (page_width(look, 0) - _LEFT - MARGIN) // n_heads))
    return pitch, max(16, min(52, round(0.62 * pitch)))


def _number_size(pitch: float, row: float) -> float | None:
    """Points of the numbers in tiles of so many pixels; None where there is no room for them."""
    return value_size(("100",), 0.29 * pitch * PIXEL, 0.42 * row * PIXEL, air=2)


def _corners(layer: int, head: int, source: int, target: int) -> list[tuple[float, float]]:
    (left, right), (top, bottom) = _COLUMNS[target], _ROWS[source]
    box = ((left, top), (right, top), (right, bottom), (left, bottom))
    return [(head + x, layer + y) for x, y in box]


def _draw_key(ax: Axes, plan: PairPlan, look: Look) -> None:
    """One tile with its rows and columns named, holding what uniform attention gives."""
    ax.set(xlim=(-0.5, 0.5), ylim=(0.5, -0.5), facecolor=look.greys.paper)
    _draw_tiles(ax, np.broadcast_to(plan.uniform, (1, 1, 2, 3)), plan, look)
    names: dict[str, Any] = {
        "fontsize": 7 if cell_points(ax, 1, 1)[0] >= _KEY_WIDTH * PIXEL - 1 else 5.5,
        "color": look.greys.ink,
    }
    ax.set_xticks([sum(column) / 2 for column in _COLUMNS], ["to A", "to B", "special"], **names)
    ax.set_yticks([sum(row) / 2 for row in _ROWS], ["from A", "from B"], **names)
    ax.tick_params(length=0, pad=2, bottom=False, labelbottom=False, top=False, labeltop=True)
    ax.set_xlabel("uniform attention", fontsize=7.5, color=look.greys.ink)
    for spine in ax.spines.values():
        spine.set_visible(False)
