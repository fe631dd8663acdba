"""The figures of a rollout: the matrices of the layer shown, those of every layer, and the inputs of one token."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.colors import Normalize
from torch import Tensor

from attnviz.commands.rollout.measure import Rollout
from attnviz.commands.rollout.report import (
    flow_sentence,
    how,
    last_layer,
    sink_sentence,
    spread_sentence,
)
from attnviz.figures.matrix import Labels, max_pool
from attnviz.figures.style import Style
from attnviz.figures.tiles import Tile, TilesPlan, tile_pooling, tiles_figure
from attnviz.models.wording import counted
from attnviz.present.view import Drawing, ViewOptions

_TOPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_COVERED = 0.99


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


ROLLOUT = Drawing(_plan_last, tiles_figure)
LAYERS = Drawing(_plan_layers, tiles_figure)
