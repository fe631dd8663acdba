"""The figures of a rollout: the matrices of the layer shown, those of every layer, and the inputs of one token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from attnviz.commands.rollout.measure import METHODS, Rollout
from attnviz.commands.rollout.report import (
    METHOD_NAMES,
    chosen,
    flow_sentence,
    how,
    last_layer,
    sink_sentence,
    spread_sentence,
)
from attnviz.figures.fonts import fitted_token, font_families
from attnviz.figures.matrix import LONGEST, Array, Labels, max_pool
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, new_page, page_width
from attnviz.figures.style import DPI, Style, figure_style
from attnviz.figures.tiles import Tile, TilesPlan, tile_pooling, tiles_figure
from attnviz.models.wording import counted
from attnviz.present.view import Drawing, ViewOptions

MOST_BARS = 40
"""Most input tokens in a picture of bars."""

_TOPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_COVERED = 0.99
_BAR = {"light": "#4292c6", "dark": "#4f9bd1"}
_UNIFORM = "#d95f02"
_ROW, _PANEL, _ABOVE, _HIGHEST = 0.13, 1.5, 0.45, 6.5


def _plan_last(result: Rollout, choices: ViewOptions) -> Iterator[TilesPlan]:
    """Plan the mean attention of the layer shown, the rollouts up to it, and the flows if all were found."""
    attention = f"attention of layer {result.layer}"
    tiles = [
        _tile(f"{attention} (mean of {counted(result.checkpoint.n_heads, 'head')})", result.means[-1], attention),
        _tile("rollout", result.weights[-1]),
        _tile("norm rollout", result.norms[-1], "by norms"),
        *([] if result.flows is None else [_tile("flow", result.flows)]),
    ]
    flow = "" if result.flows is None else ", and the maximum flow, rows divided by their sum"
    yield _tiles(
        result, choices.style, "rollout", [("", tiles)], 2.0,
        title=f"rollout to layer {result.layer}",
        said=flow_sentence(result.flows, "over all rows"),
        subject=f"What comes to each position at the output of {last_layer(result)}: the mean attention of that layer "
        f"alone, its rollout, and its rollout by norms{flow}",
    )  # fmt: skip


def _plan_layers(result: Rollout, choices: ViewOptions) -> Iterator[TilesPlan]:
    """Plan the rollouts up to each layer, from weights and from norms."""
    groups = [
        (heading, [_tile(f"layer {layer}", matrix, f"L{layer}") for layer, matrix in enumerate(matrices)])
        for heading, matrices in (("Rollout up to each layer", result.weights), ("Norm rollout", result.norms))
    ]
    yield _tiles(
        result, choices.style, "rollout-layers", groups, 1.0,
        title="rollout, layer by layer",
        said=sink_sentence(result),
        subject="Attention rollout up to each layer, from mean attention weights and from norms",
    )  # fmt: skip


def _tile(name: str, matrix: Tensor, *shorter: str) -> Tile:
    return Tile(name, matrix.float().numpy(), shorter)


def _tiles(
    result: Rollout, style: Style, stem: str, groups: Sequence[tuple[str, Sequence[Tile]]], target: float, *,
    title: str, said: str, subject: str,
) -> TilesPlan:  # fmt: skip
    """Plan tiles on one scale that covers nearly all shares."""
    of, units = result.figure_context, result.units
    pooled, _ = tile_pooling(units.labels, [len(group) for _, group in groups], target, style)
    tiles = tuple(
        (heading, tuple(replace(tile, values=max_pool(tile.values, pooled)) for tile in group))
        for heading, group in groups
    )
    every = np.concatenate([tile.values.ravel() for _, group in tiles for tile in group])
    top, largest = next((top for top in _TOPS if top >= np.quantile(every, _COVERED)), 1.0), float(every.max())
    cut = f" (larger ones, up to {largest:.2g}, look the same)" if largest > 1.001 * top else ""
    return TilesPlan(
        stem=stem,
        **of.caption_and_notes(
            f"{subject}, of {of.model} on {of.text_line}",
            "rows: positions at the layer's output; columns: input",
            spread_sentence(result, brief=True),
            f"cells: the largest of {pooled} × {pooled}" if pooled > 1 else "",
            alone=(how(result), f"colours from 0 to {top:g}{cut}", said),
        ),
        title=f"{of.model}: {title}",
        groups=tiles,
        labels=Labels(units.labels, units.sink),
        norm=Normalize(0, top, clip=True),
        bar=f"share{cut}",
        pooled=pooled,
        cut=bool(cut),
        target=target,
    )  # fmt: skip


@dataclass(frozen=True)
class BarsPlan(PagePlan):
    """Shares of one token's attention among the m input tokens shown, in the order of the text."""

    labels: tuple[str, ...]  # with positions
    muted: tuple[bool, ...]  # grey labels: special tokens and other sinks
    # by method: name, shares [m], and those of uniform attention (None: unknown)
    panels: tuple[tuple[str, Array, Array | None], ...]


def _plan_bars(result: Rollout, choices: ViewOptions) -> Iterator[BarsPlan]:
    """Plan the shares of the input tokens in the chosen output token, a panel per method."""
    inputs, units, of = result.inputs, result.units, result.figure_context
    measured = {name: row for name in METHODS if (row := getattr(inputs, name)) is not None}
    most = min(MOST_BARS, round(_HIGHEST / _ROW / _panel_rows(len(measured), choices.style)[0]))
    rows = _most_telling([row for name, row in measured.items() if name != "flow"], most)
    baselines = {"attention": inputs.uniform, "rollout": inputs.uniform_rollout, "norm_rollout": inputs.uniform_rollout}
    values, uniform = (
        {name: row[rows].float().numpy() for name, row in kind.items()} for kind in (measured, baselines)
    )
    left_out = f"{len(rows)} of {counted(len(units), units.name)}, those ranked highest" * (len(rows) < len(units))
    without = " (not known for the flow)" if inputs.flow is not None else ""
    names = [METHOD_NAMES[name] for name in measured]
    yield BarsPlan(
        stem="rollout-from",
        **of.caption_and_notes(
            f"Shares of the input tokens in {chosen(result)} at the output of {last_layer(result)} of {of.model} on "
            f"{of.text_line}, by {', '.join(names[:-1])} and {names[-1]}",
            f"each column on its own scale; rust: uniform attention{without}",
            left_out,
            spread_sentence(result, brief=True),
            alone=(
                f"attention is the mean pattern of that layer's heads alone, rollout goes {how(result)}",
                flow_sentence(inputs.flow),
            ),
        ),
        title=f"{of.model}: what comes to {chosen(result)} up to layer {result.layer}",
        labels=tuple(f"{fitted_token(units.labels[row], 7, DPI, LONGEST)}  #{row}" for row in rows),
        muted=tuple(units.sink[row] for row in rows),
        panels=tuple((METHOD_NAMES[name], row, uniform.get(name)) for name, row in values.items()),
    )


def _most_telling(rows: Sequence[Tensor], most: int) -> list[int]:
    """Top-ranked inputs of all methods, rank by rank until there are enough; in the order of the text."""
    orders = [row.argsort(descending=True, stable=True).tolist() for row in rows]
    ranked = dict.fromkeys(position for same_rank in zip(*orders, strict=True) for position in same_rank)
    return sorted(list(ranked)[:most])


def _panel_rows(panels: int, style: Style) -> tuple[int, int]:
    """Number of rows of panels, and of panels in a row."""
    columns = panels if style.width is None else max(1, min(panels, int((style.width - 0.7) / 1.05)))
    return -(-panels // columns), columns


def _bars_figure(plan: BarsPlan, style: Style, _: bool = False) -> Figure:
    """A new figure with the panels of the plan, in several rows on a narrow page."""
    width = page_width(style, (len(plan.panels) + 0.5) * _PANEL + 2 * MARGIN)
    rows, columns = _panel_rows(len(plan.panels), style)
    with figure_style():
        body = rows * (len(plan.labels) * _ROW + _ABOVE)
        page = new_page(plan.title, plan.notes, style, width=width, body=body)
        axes = page.subplots(rows, columns, squeeze=False, sharey=False)
        for number, ax in enumerate(axes.flat):
            if number < len(plan.panels):
                _draw_bars(ax, plan, number, style, labelled=number % columns == 0)
            else:
                ax.set_axis_off()
        return page


def _draw_bars(ax: Axes, plan: BarsPlan, number: int, style: Style, *, labelled: bool) -> None:
    """Draw the bars of one method, the first input token at the top."""
    name, values, uniform = plan.panels[number]
    rows = np.arange(len(values))
    ax.barh(rows, values, height=0.72, color=_BAR[style.theme], linewidth=0)
    properties: dict[str, Any] = {"ha": "right", "va": "center_baseline", "size": 6.5, "color": style.greys.ink}
    for row, value in enumerate(values):
        ax.text(1, row, f"{value:.3f}".removeprefix("0"), transform=ax.get_yaxis_transform(), **properties)
    largest = max(float(row.max()) for row in (values, uniform) if row is not None) or 1.0
    ax.set(xlim=(0, 1.38 * largest), ylim=(len(rows) - 0.5, -0.5), facecolor="none")
    if uniform is not None:
        ax.vlines(uniform, rows - 0.42, rows + 0.42, color=_UNIFORM, linewidth=1.4)
    named: dict[str, Any] = {"fontsize": 7, "family": font_families(plan.labels), "parse_math": False}
    ax.set_yticks(rows if labelled else [], plan.labels if labelled else [], **named)
    for label, muted in zip(ax.get_yticklabels(), plan.muted, strict=False):
        label.set_color(style.greys.muted if muted else style.greys.ink)
    ax.set_xticks([])
    ax.tick_params(length=0, pad=4)
    for side, spine in ax.spines.items():
        spine.set(linewidth=PIXEL, edgecolor=style.greys.frame, visible=side == "left")
    ax.set_title(name, loc="left", fontsize=7.5, pad=4, color=style.greys.ink)


ROLLOUT = Drawing(_plan_last, tiles_figure)
LAYERS = Drawing(_plan_layers, tiles_figure)
FROM = Drawing(_plan_bars, _bars_figure)
