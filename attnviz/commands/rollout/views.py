"""The figure of a rollout: the matrices of the layer shown."""

from collections.abc import Iterator

import numpy as np
from matplotlib.colors import Normalize

from attnviz.commands.rollout.measure import Rollout
from attnviz.commands.rollout.report import last_layer, method_text, spread_sentence
from attnviz.figures.matrix import Labels, max_pool, scale_end
from attnviz.figures.tiles import Tile, TilesPlan, tile_pooling, tiles_figure
from attnviz.models.wording import counted
from attnviz.present.view import Drawing, ViewOptions

_COVERED = 0.99
_TARGET = 2.0


def _plan(result: Rollout, choices: ViewOptions) -> Iterator[TilesPlan]:
    """Plan the mean attention of the layer shown and the rollouts up to it, on one scale for nearly all shares."""
    of, units, attention = result.figure_context, result.units, f"attention of layer {result.layer}"
    matrices = [
        (f"{attention} (mean of {counted(result.checkpoint.n_heads, 'head')})", (attention,), result.means[-1]),
        ("rollout", (), result.weights[-1]),
        ("norm rollout", ("by norms",), result.norms[-1]),
    ]
    pooled, _ = tile_pooling(units.labels, len(matrices), _TARGET, choices.style)
    tiles = tuple(Tile(name, max_pool(matrix.float().numpy(), pooled), shorter) for name, shorter, matrix in matrices)
    every = np.concatenate([tile.values.ravel() for tile in tiles])
    top, largest = scale_end(np.quantile(every, _COVERED)), float(every.max())
    cut = f" (larger ones, up to {largest:.2g}, look the same)" if largest > 1.001 * top else ""
    yield TilesPlan(
        stem="rollout",
        **of.caption_and_notes(
            f"What comes to each position at the output of {last_layer(result)}: the mean attention of that layer "
            f"alone, its rollout, and its rollout by norms, of {of.model} on {of.text_line}",
            "rows: positions at the layer's output; columns: input",
            spread_sentence(result),
            f"cells: the largest of {pooled} × {pooled}" if pooled > 1 else "",
            alone=(
                method_text(result),
                f"colours from 0 to {top:g}{cut}",
            ),
        ),
        title=f"{of.model}: rollout to layer {result.layer}",
        tiles=tiles,
        labels=Labels(units.labels, units.sink),
        norm=Normalize(0, top, clip=True),
        bar=f"share{cut}",
        pooled=pooled,
        cut=bool(cut),
        target=_TARGET,
    )


ROLLOUT = Drawing(_plan, tiles_figure)
