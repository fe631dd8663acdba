"""The figure of a rollout: the matrices of the layer shown."""

from collections.abc import Iterator

import numpy as np

from attnviz.commands.rollout.measure import Rollout
from attnviz.commands.rollout.report import last_layer, method_text, spread_sentence
from attnviz.figures.matrix import Labels, max_pool, scale_of_means
from attnviz.figures.tiles import Tile, TilesPlan, tile_pooling, tiles_figure
from attnviz.present.figure_context import hatched_in_words, norm_in_words
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import counted

_TARGET = 2.0


def _plan(result: Rollout, choices: ViewOptions) -> Iterator[TilesPlan]:
    about, units, attention = result.figure_context, result.units, f"attention of layer {result.layer}"
    mean = f"{attention} (mean of {counted(result.checkpoint.n_heads, 'head')})"
    reached = result.uniform if result.residual == 1 else result.uniform_rollout  # 1: nothing is passed on
    matrices = [  # the last is uniform attention, which is 0 where the masks forbid any
        (mean, (attention,), result.means[-1], result.uniform),
        ("rollout", (), result.weights[-1], reached),
        ("norm rollout", ("by norms",), result.norms[-1], reached),
    ]
    pooled, _ = tile_pooling(units.labels, len(matrices), _TARGET, choices.style)
    tiles = list[Tile]()
    for name, shorter, *of_tile in matrices:
        values, uniform = (max_pool(matrix.numpy(), pooled) for matrix in of_tile)
        tiles.append(Tile(name, np.where(uniform > 0, values, np.nan), shorter))
    norm, cut = scale_of_means([tile.values for tile in tiles], choices.style, len(units))
    largest = max(float(np.nanmax(tile.values)) for tile in tiles)
    larger = f" (larger ones, up to {largest:.2g}, look the same)" if cut else ""
    yield TilesPlan(
        stem="rollout",
        **about.caption_and_notes(
            f"What comes to each position at the output of {last_layer(result)}: the mean attention of that layer "
            f"alone, its rollout, and its rollout by norms, of {about.model} on {about.text_line}",
            "rows: positions at the layer's output; columns: input",
            spread_sentence(result),
            f"cells: the largest of {pooled} × {pooled}" if pooled > 1 else "",
            choices.style.why_log(len(units)),
            caption_only=(
                method_text(result),
                f"{norm_in_words(norm)}{larger}",
                hatched_in_words(*(tile.values for tile in tiles)),
            ),
        ),
        title=f"{about.model}: rollout to layer {result.layer}",
        tiles=tuple(tiles),
        labels=Labels(units.labels, units.sink),
        norm=norm,
        bar=f"share{larger}" if norm.vmin == 0 else "share (log scale)",
        pooled=pooled,
        cut=cut,
        target=_TARGET,
    )


ROLLOUT = Drawing(_plan, tiles_figure)
