"""The figures of head outputs: all heads by norm, maps, and one head by weight and by norm."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.colors import Normalize

from attnviz.commands.outputs.measure import HeadOutputs
from attnviz.commands.outputs.report import chosen, how_it_is_read, versus
from attnviz.commands.outputs.shares import HeadContribution
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, draw_head_grid, grid_pooling, head_grid_figure
from attnviz.figures.head_map import HeadMap, HeadMapPlan, draw_head_map, head_map_figure
from attnviz.figures.matrix import Array, Labels, PooledPattern
from attnviz.figures.style import Style
from attnviz.figures.tiles import Tile, TilesPlan, draw_last_tile, tile_pooling, tiles_figure
from attnviz.present.figure_context import STACK_LEGEND
from attnviz.present.view import Drawing, ViewOptions
from attnviz.trace.direct_effects import DirectEffects
from attnviz.wording import percent, quoted, signed

_TARGET = 2.6
_NAMES = ("weight A[q, k]", "× ‖f(x)‖ of each key", "= norm ‖A[q, k] f(x)‖")
_SHORT_NAMES = ("A", "× ‖f(x)‖", "= ‖A f(x)‖")
_TILES = len(_NAMES)

_BESIDE = {"attention bias": "b_O", "feed-forward": "FFN", "norm bias": "LN"}


def _overview(result: HeadOutputs, choices: ViewOptions) -> Iterator[HeadGridPlan]:
    heads, n = result.select(choices.select), _longest(result)
    style, why_log = choices.style.scaled_for(n, "per-head"), choices.style.why_log(n)
    of_all = None if style.scale == "per-head" else result.largest
    pooled = grid_pooling(n, [head.id for head in heads], style)
    cells = [
        HeadCell(head.id, norms / (of_all or head.largest or 1.0), percent(head.projection_share))
        for head, _, (_, norms) in _pooled(result, heads, lambda _: pooled)
    ]
    about = result.figure_context
    count = f"{'all' if len(heads) == len(result.heads) else f'{len(heads)} of'} {len(result.heads)} heads"
    scale = f"share of the largest ‖A f(x)‖ {'of all heads' if of_all else 'of each head'}"
    shares = "each head’s share of the norm of its layer’s attention output"
    shown = "‖A[q, k] f(x_k)‖ (Kobayashi et al. 2020)"
    yield HeadGridPlan(
        stem="outputs",
        **about.caption_and_notes(
            f"{about.subject}, norm-weighted attention of {count}, one row per layer, one column per head",
            f"{shown}: rows attend to columns",
            why_log,
            STACK_LEGEND if result.target else "",
            about.pooled(pooled),
            caption_only=(f"colours: {scale}", f"beside the names {shares}, where there is room"),
        ),
        title=f"{about.model}: norm-weighted attention of {count}",
        cells=tuple(cells),
        norm=style.norm(1.0),
        bar=scale,
        beside=f"In %: {shares}.",
    )


def _longest(result: HeadOutputs) -> int:
    """Tokens of the text, or of the longest of the texts that an encoder-decoder reads."""
    return max(len(tokens) for part in result.parts for tokens in (part.queries, part.keys))


def _heads(result: HeadOutputs, choices: ViewOptions) -> Iterator[TilesPlan]:
    def pooling(head: HeadContribution) -> int:
        part = result.part_of(head)
        return tile_pooling(part.queries.labels, _TILES, _TARGET, choices.style, part.keys.labels)[0]

    for head, norms, panels in _pooled(result, chosen(result, choices), pooling):
        yield _head(result, head, pooling(head), norms, panels, choices.style)


def _pooled(
    result: HeadOutputs, heads: Sequence[HeadContribution], factor: Callable[[HeadContribution], int]
) -> Iterator[tuple[HeadContribution, Array, tuple[Array, Array]]]:
    """Yield heads in order with ||f(x)|| of their keys, and pooled pattern and norm-weighted attention."""
    for layer, of_layer in result.by_layer(heads):
        norms = [layer.value_norms(head.id.head) for head in of_layer]
        shape = len(result.attention.tokens_of(layer.layer)[0]), layer.value.shape[1]
        pooled = [[PooledPattern(*shape, factor(head)) for _ in range(2)] for head in of_layer]
        for first, block in layer.rows([head.id.head for head in of_layer]):
            for (raw, weighted), of_keys, rows in zip(pooled, norms, block, strict=True):
                raw.add(first, rows.cpu())
                weighted.add(first, (rows * of_keys[: rows.shape[1]]).cpu())
        for head, of_keys, (raw, weighted) in zip(of_layer, norms, pooled, strict=True):
            yield head, of_keys.float().cpu().numpy(), (raw.cells, weighted.cells)


def _head(
    result: HeadOutputs,
    head: HeadContribution,
    pooled: int,
    norms: Array,
    panels: tuple[Array, Array],
    style: Style,
) -> TilesPlan:
    """Plan weights, and ‖f(x)‖ and their product as shares of their largest."""
    part, why_log = result.part_of(head), style.why_log(_longest(result))
    style = style.scaled_for(_longest(result), "per-head")
    about, (pattern, weighted) = part.figure_context, panels
    labels, keys = (Labels(tokens.labels, tokens.sink) for tokens in (part.queries, part.keys))
    value_norms = np.maximum.reduceat(norms, np.arange(0, len(norms), pooled))
    ends = [1.0, float(value_norms.max()), result.largest if style.scale == "shared" else head.largest]
    matrices = pattern, np.broadcast_to(value_norms, pattern.shape), weighted
    tiles = [
        Tile(name, values / (end or 1.0), (shorter,))
        for name, shorter, values, end in zip(_NAMES, _SHORT_NAMES, matrices, ends, strict=True)
    ]
    largest = f"1 is a weight of 1, ‖f(x)‖ of {ends[1]:.2g} and ‖A f(x)‖ of {ends[2]:.2g}"
    return TilesPlan(
        stem=f"outputs/{head.id.file_stem}",
        **about.caption_and_notes(
            f"{about.subject}, head {head.id}: attention weights A[q, k], times ‖f(x_k)‖ of every key, are "
            "norm-weighted attention ‖A[q, k] f(x_k)‖",
            _amounts(result, head),
            "rows attend to columns. f(x) = (x W_V + b_V) W_O is what the head writes for a token (Kobayashi et al. "
            f"2020){f'; grey: {result.sinks}' if result.sinks else ''}",
            largest if style.scale != "shared" else f"{largest}, which is the largest of all heads",
            why_log,
            about.pooled(pooled),
        ),
        title=f"{about.model} {head.id}: attention by weight and by norm",
        tiles=tuple(tiles),
        labels=labels,
        keys=keys if part.queries is not part.keys else None,
        pooled=pooled,
        target=_TARGET,
        norm=style.norm(1.0),
        bar=f"weight, or share of the largest norm{' (log scale)' if style.scale == 'log' else ''}",
    )


def _amounts(result: HeadOutputs, head: HeadContribution) -> str:
    """Sentence on the head's share of the output, and the share of sinks by weight and by norm."""
    if head.projection_share is None:
        return "No share of the output is given: the text has no content tokens."
    sinks = f"{percent(head.sink)} by weight, {percent(head.sink_by_norm)} by norm"
    return (
        f"{percent(head.projection_share)} of the attention output’s norm in layer {head.id.layer!s} "
        f"({percent(head.norm_share)} of its heads’ norms){f'; on {result.sinks}: {sinks}' if result.sinks else ''}."
    )


def _letter(part: HeadOutputs) -> str:
    """Kind of attention of a map, of an encoder-decoder."""
    return "" if part.stack is None else f"{part.stack.letter} ({part.stack.name})"


def _plan_effects(result: HeadOutputs, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    """Plan the map of each head's direct effect on the answer minus the foil."""
    about, split = result.figure_context, result.effects
    assert split is not None
    splits = [split] if result.end_effects is None else [split, result.end_effects]
    of_what = " and ".join(map(versus, splits))
    others = [[(part.name, part.layer, part.direct_effect) for part in each.parts] for each in splits]
    biases = "b_O" if result.checkpoint.architecture.pre_norm else "b_O; LN: those of norms"
    rests = [", ".join(f"{name} {signed(value)}" for name, layer, value in of if layer is None) for of in others]
    where = " and ".join(f"#{each.position} (“{result.read.labels[each.position]}”)" for each in splits)
    yield HeadMapPlan(
        stem="outputs-effects",
        **about.caption_and_notes(
            f"{about.subject}: what every head adds directly to the logit of {of_what}, and what biases "
            f"({biases}) and feed-forward networks (FFN) of each layer add",
            f"at position {where}. {how_it_is_read(result, split)}",
            *(
                f"all parts sum to {f'the {each.boundary}' if each.boundary else 'the difference of the logits'}, "
                f"{signed(each.difference)}; the rest: {rest}"
                for each, rest in zip(splits, rests, strict=True)
            ),
        ),
        title=f"{about.model}: direct effect of each head on {of_what}",
        maps=tuple(
            _effects(part, each, of, choices.style)
            for each, of in zip(splits, others, strict=True)
            for part in result.parts
            if part.stack is None or part.stack.letter != "E"
        ),
    )


def _effects(
    part: HeadOutputs, split: DirectEffects, others: list[tuple[str, int | None, float]], style: Style
) -> HeadMap:
    """Map of effects of one kind of attention or of all, beside those of its layers' other parts."""
    layers, bar = [layer.layer for layer in part.layers], f"logits for {quoted(split.answer.text)}"
    values = np.array([split.heads[head] for head in sorted(split.heads) if head.layer in layers])
    of_layers = [other for other in others if other[1] in layers]
    columns = ((short, [value for name, _, value in of_layers if name == kind]) for kind, short in _BESIDE.items())
    beside = tuple((short, np.array(column)) for short, column in columns if column)
    values = values.reshape(len(layers), -1)
    top = max(float(np.nan_to_num(np.abs(each)).max()) for each in (values, *(column for _, column in beside))) or 1.0
    norm, colours = Normalize(-top, top, clip=True), style.diverging_map()
    name = split.boundary or _letter(part)
    return HeadMap(values, layers, norm=norm, bar=bar, colours=colours, name=name, beside=beside)


OVERVIEW = Drawing(_overview, head_grid_figure, draw_head_grid)
EFFECTS = Drawing(
    _plan_effects,
    head_map_figure,
    draw_head_map,
    missing=lambda result: str(result.no_effects).removesuffix("."),
)
HEADS = Drawing(_heads, tiles_figure, draw_last_tile)
