"""The view ``panel``: a few chosen heads side by side, tokens named, in one figure for a paper."""

from collections.abc import Iterator

from attnviz.commands.heads.drawn import drawn, of_one_kind
from attnviz.commands.heads.lines_view import clearest_first
from attnviz.commands.heads.measure import Analysis
from attnviz.figures.matrix import Labels, max_pool
from attnviz.figures.tiles import Tile, TilesPlan, draw_last_tile, tile_pooling, tiles_figure
from attnviz.model.tokens import visible
from attnviz.model.wording import counted
from attnviz.results.facts import sentence
from attnviz.results.view import Choices, View

__all__ = ["MOST_HEADS", "PANEL"]

MOST_HEADS = 12
"""Heads in one figure; of more, those furthest above their baselines."""

_TILE, _LEAST_TILE, _ACROSS = 2.2, 1.2, 4


def _plan(analysis: Analysis, choices: Choices) -> Iterator[TilesPlan]:
    shown, look, asked = drawn(analysis, choices), choices.look, analysis.select(choices.select)
    clearest = clearest_first(asked)[:MOST_HEADS]
    heads = [head for head in asked if head in clearest]
    target = _TILE if look.width is None else max(_LEAST_TILE, look.width / min(len(heads), _ACROSS) - 0.3)
    facts, (pooled, every) = shown.facts, tile_pooling(shown.units.labels, [len(heads)], target, look)
    patterns = [(head, max_pool(pattern.float().numpy(), pooled)) for head, pattern in shown.patterns(heads)]
    own = look.scale == "per-head"
    tiles = []
    for head, values in patterns:
        largest = float(values.max()) or 1.0
        label = visible(head.labelled.shown)
        short = (str(head.id),)
        tiles.append(Tile(f"{head.id}  {label}", values / (largest if own else 1), short))
    count = (
        counted(len(heads), "head") if len(heads) == len(asked) else f"{len(heads)} of {len(asked)} heads, the clearest"
    )
    named = ", ".join(f"{head.id} ({visible(head.labelled.shown)})" for head in heads)
    yield TilesPlan(
        stem="panel",
        caption=sentence(
            f"Attention of {facts.subject}, heads {named}: rows attend to columns",
            f"colour = attention weight ({look.scale_of('each head')})",
            facts.dropped,
            facts.pooled(pooled),
        ),
        title=f"{facts.model}: {count}",
        notes=facts.notes("Rows attend to columns.", f"{facts.named(every)} {facts.pooled(pooled)}".strip()),
        groups=(("", tuple(tiles)),),
        labels=Labels(shown.units.labels, shown.units.sink),
        norm=look.norm(),
        bar="share of each head’s largest weight" if own else f"attention weight ({look.scale_of('each head')})",
        pooled=pooled,
        target=target,
    )


PANEL = View("panel", "up to 12 chosen heads side by side, tokens named", _plan, tiles_figure, draw_last_tile,
             default=False, missing=of_one_kind)  # fmt: skip
"""Chosen heads in one figure."""
