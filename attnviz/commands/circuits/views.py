"""The figures of circuits: a matrix of heads for each kind of composition."""

from collections.abc import Iterator

import numpy as np
from matplotlib.colors import Normalize

from attnviz.commands.circuits.measure import Circuits
from attnviz.commands.circuits.report import left_out
from attnviz.figures.matrix import Labels, max_pool
from attnviz.figures.tiles import Tile, TilesPlan, draw_last_tile, tile_pooling, tiles_figure
from attnviz.measures.composition import COMPOSITION_INPUTS
from attnviz.present.figure_context import capital, caption_of
from attnviz.present.view import Drawing, ViewOptions

_INCHES = 4.5
_MOST_RULES = 12


def _plan_composition(result: Circuits, choices: ViewOptions) -> Iterator[TilesPlan]:
    model, names = result.checkpoint.short_name, [str(head.id) for head in result.heads]
    top = max(float(scores.nan_to_num().max()) for scores in result.scores.values())
    pooled, _ = tile_pooling(names, 1, _INCHES, choices.style)
    layers = [head.id.layer for head in result.heads]
    rules = [number for number in range(1, len(layers)) if layers[number] != layers[number - 1]]
    for kind in COMPOSITION_INPUTS:
        values = max_pool(result.scores[kind].nan_to_num().numpy().astype(np.float32), pooled)
        shown = f"cells: the largest of {pooled} × {pooled}" if pooled > 1 else ""
        yield TilesPlan(
            stem=f"composition-{kind}",
            caption=caption_of(
                f"{capital(kind)} composition of every head (row) with every earlier head (column) of {model}: "
                "‖A B‖ / (‖A‖ ‖B‖) in Frobenius norms (Elhage et al. 2021)",
                f"colours from {result.baseline:.3f}, what random rotations of the same singular values score",
                shown,
                left_out(result),
            ),
            title=f"{model}: {kind} composition",
            notes=(
                "Rows: the later head, which reads. Columns: the earlier head, which writes.",
                f"{capital(shown)}." if shown else "",
            ),
            tiles=(Tile("", values),),
            labels=Labels(tuple(names)),
            norm=Normalize(result.baseline, max(top, 1.01 * result.baseline), clip=True),
            bar="composition, 0–1; paper: no more than random rotations",
            pooled=pooled,
            rules=tuple(map(float, rules)) if len(rules) < _MOST_RULES else (),
            target=_INCHES,
        )


COMPOSITION = Drawing(
    _plan_composition,
    tiles_figure,
    draw_last_tile,
    missing=lambda result: "" if result.checkpoint.n_layers > 1 else "composition takes two layers",
)
