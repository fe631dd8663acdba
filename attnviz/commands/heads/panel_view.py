"""The view ``panel``: a few chosen heads side by side, tokens named, in one figure for a paper."""

from collections.abc import Iterator

from attnviz.commands.heads.analysis import Analysis, clearest_first
from attnviz.commands.heads.drawn import drawn, labels_of, parts_drawn, stem_of
from attnviz.figures.matrix import max_pool
from attnviz.figures.tiles import Tile, TilesPlan, draw_last_tile, tile_pooling, tiles_figure
from attnviz.model.wording import counted, visible
from attnviz.results.facts import sentence
from attnviz.results.view import Choices, View

MOST_HEADS = 12
"""Heads in one figure; of more, those furthest above their baselines."""

_TILE, _LEAST_TILE, _ACROSS = 2.2, 1.2, 4


def _plans(analysis: Analysis, choices: Choices) -> Iterator[TilesPlan]:
    """One figure; of an encoder-decoder one for each kind of attention."""
    return (_plan(part, choices) for part in parts_drawn(analysis, choices))


def _plan(analysis: Analysis, choices: Choices) -> TilesPlan:
    shown, look, asked = drawn(analysis, choices), choices.look, analysis.select(choices.select)
    clearest = clearest_first(asked)[:MOST_HEADS]
    heads = [head for head in asked if head in clearest]
    target = _TILE if look.width is None else max(_LEAST_TILE, look.width / min(len(heads), _ACROSS) - 0.3)
    facts, (labels, keys) = shown.facts, labels_of(shown)
    pooled, every = tile_pooling(labels.texts, [len(heads)], target, look, keys.texts if keys else ())
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
    of_target, of_source = (" (target)", " (source)") if keys else ("", "")
    named = ", ".join(f"{head.id} ({visible(head.labelled.shown)})" for head in heads)
    return TilesPlan(
        stem=stem_of(analysis, "panel"),
        caption=sentence(
            f"Attention of {facts.subject}, heads {named}: rows{of_target} attend to columns{of_source}",
            f"colour = attention weight ({look.scale_of('each head')})",
            facts.dropped,
            facts.pooled(pooled),
        ),
        title=f"{facts.model}: {count}",
        notes=facts.notes(
            f"Rows{of_target} attend to columns{of_source}.", f"{facts.named(every)} {facts.pooled(pooled)}".strip()
        ),
        groups=(("", tuple(tiles)),),
        labels=labels,
        keys=keys,
        norm=look.norm(),
        bar="share of each head’s largest weight" if own else f"attention weight ({look.scale_of('each head')})",
        pooled=pooled,
        target=target,
    )


PANEL = View("panel", "up to 12 chosen heads side by side, tokens named", _plans, tiles_figure, draw_last_tile,
             stems="panel(-[a-z-]+)?", default=False)  # fmt: skip
