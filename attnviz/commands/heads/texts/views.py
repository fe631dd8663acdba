"""The figure of several texts: chosen heads side by side, a row per text."""

from collections.abc import Iterator, Sequence

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.pooling import pooled_patterns
from attnviz.commands.heads.texts.measure import HeadSpread, TextsAnalysis
from attnviz.figures.matrix import Labels
from attnviz.figures.tiles import Tile, TilesPlan, tile_pooling, tiles_figure
from attnviz.models.wording import counted, quoted, visible
from attnviz.present.view import Drawing, ViewOptions

_MOST_HEADS = 6
"""Heads in a row; of more the first are drawn."""

_TILE, _LEAST_TILE = 1.6, 0.5


def _plan(result: TextsAnalysis, choices: ViewOptions) -> Iterator[TilesPlan]:
    heads, shown = _chosen(result, choices), [analysis.drawn(choices.drop_special) for analysis in result.first]
    n_units = max(analysis.longest for analysis in shown)
    style, why_log = choices.style.scaled_for(n_units), choices.style.why_log(n_units)
    weight, own = f"attention weight ({style.scale_of('each head on each text')})", style.scale == "per-head"
    longest = max((analysis.units.labels for analysis in shown), key=len)
    target = _TILE if style.width is None else max(_LEAST_TILE, style.width / len(heads) - 0.3)
    counts = [len(heads)] * len(shown)
    groups, pooled = [], 1
    for analysis in shown:
        labels = Labels(analysis.units.labels, analysis.units.sink)
        factor, _ = tile_pooling(longest, counts, target, style, n=len(labels.texts))
        pooled = max(pooled, factor)
        groups.append((quoted(analysis.text), tuple(_tiles(analysis, heads, labels, factor, own))))
    n = len(result.texts)
    of = f"the first {len(shown)} of {counted(n, 'text')}" if len(shown) < n else counted(n, "text")
    about = shown[0].figure_context
    names = ", ".join(f"{head.id} ({visible(head.label)} in {head.labels[head.label]})" for head in heads)
    yield TilesPlan(
        stem="texts",
        **about.caption_and_notes(
            f"Attention of heads {names} of {result.checkpoint.short_name}, column by column, on {of}, row by "
            "row; in brackets the label that most texts give the head",
            "rows attend to columns; above each square the label of the head on this text",
            why_log,
            about.pooled(pooled),
            first=result.source,
            alone=(f"colour = {weight}",),
        ),
        title=f"{result.checkpoint.short_name}: {counted(len(heads), 'head')} on {of}",
        groups=tuple(groups),
        labels=Labels(longest, (False,) * len(longest)),
        norm=style.norm(),
        bar="share of each head’s largest weight" if own else weight,
        target=target,
    )


def _chosen(result: TextsAnalysis, choices: ViewOptions) -> list[HeadSpread]:
    """Selected heads, or the clearest of each label, then the clearest of all."""
    heads = result.select(choices.select)
    if choices.select:
        return heads[:_MOST_HEADS]
    ranked = sorted(heads, key=lambda head: head.rank_key, reverse=True)
    best = {head.label: head for head in reversed(ranked) if head.rank_key[0]}
    of_each = sorted(best.values(), key=lambda head: head.rank_key, reverse=True)
    chosen = [*of_each, *(head for head in ranked if head not in of_each)][:_MOST_HEADS]
    return sorted(chosen, key=lambda head: head.id)


def _tiles(analysis: Analysis, heads: Sequence[HeadSpread], labels: Labels, pooled: int, own: bool) -> Iterator[Tile]:
    """The heads on one text, each with its label there."""
    patterns = pooled_patterns(analysis, analysis.select([head.id for head in heads]), pooled, own)
    by_id = {head.id: (head, values) for head, values in patterns}
    for wanted in heads:
        head, values = by_id[wanted.id]
        yield Tile(head.title, values, head.briefer_titles, labels=labels, pooled=pooled)


def _missing(result: TextsAnalysis | Analysis) -> str:
    return "it is drawn for models of one kind of attention only" if result.checkpoint.stacks else ""


TEXTS = Drawing(_plan, tiles_figure, missing=_missing)
