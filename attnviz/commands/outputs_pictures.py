"""The pictures of head outputs: all heads by norm, direct effects, and one head by weight and by norm."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
from matplotlib.colors import Normalize

from attnviz.commands.outputs import HeadOutputs
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, grid_pooling
from attnviz.figures.maps import HeadMap, HeadMapPlan, Tile, TilesPlan, tile_pooling
from attnviz.figures.matrix import Array, Labels, PooledPattern, max_pool
from attnviz.figures.style import Style
from attnviz.inputs.prompt import Prompt
from attnviz.measures.direct_effects import DirectEffects
from attnviz.measures.output_shares import HeadContribution
from attnviz.measures.patterns import allowed_units
from attnviz.models.head_ids import Stack
from attnviz.present.direct_effects import linear_path, versus
from attnviz.present.figure_context import STACK_LEGEND, FigureContext, hatched_in_words
from attnviz.present.view import Drawing, ViewOptions
from attnviz.run.contributions import layer_contributions
from attnviz.wording import percent, quoted, signed

_TILE = 2.6  # inches
# what the tiles are called, also where there is little room
_NAMES = (("weight A[q, k]", "A"), ("× ‖f(x)‖ of each key", "× ‖f(x)‖"), ("= norm ‖A[q, k] f(x)‖", "= ‖A f(x)‖"))

_BESIDE = {"attention bias": "b_O", "feed-forward": "FFN", "norm bias": "LN"}


def _overview(result: HeadOutputs, choices: ViewOptions) -> Iterator[HeadGridPlan]:
    """All heads by norm."""
    heads, n = result.select(choices.select), max(len(result.tokens), len(result.read))
    style, why_log = choices.style.scaled_for(n, "per-head"), choices.style.why_log(n)
    of_all = None if style.scale == "per-head" else result.largest
    pooled, _ = grid_pooling(n, [head.id for head in heads], style)
    cells = [
        HeadCell(head.id, norms / (of_all or head.largest or 1.0), percent(head.projection_share))
        for head, _, (_, norms) in _pooled(result, heads, lambda _: pooled)
    ]
    about = result.figure_context
    count = f"{'all' if len(heads) == len(result.heads) else f'{len(heads)} of'} {len(result.heads)} heads"
    scale = f"share of the largest ‖A f(x)‖ {'of all heads' if of_all else 'of each head'}"
    shares = "each head’s share of the norm of its layer’s attention output"
    yield HeadGridPlan(
        stem="outputs",
        **about.caption_and_notes(
            f"{about.subject}, norm-weighted attention of {count}, one row per layer, one column per head",
            "‖A[q, k] f(x_k)‖ (Kobayashi et al. 2020): rows attend to columns",
            why_log,
            STACK_LEGEND if result.target else "",
            about.pooled(pooled),
            caption_only=(
                f"colours: {scale}",
                hatched_in_words(*(cell.values for cell in cells)),
                f"beside the names {shares}, where there is room",
            ),
        ),
        title=f"{about.model}: norm-weighted attention of {count}",
        cells=tuple(cells),
        norm=style.norm(1.0),
        bar=scale,
        beside=f"In %: {shares}.",
    )


def _pooled(
    result: HeadOutputs, heads: Sequence[HeadContribution], factor: Callable[[int], int]
) -> Iterator[tuple[HeadContribution, Array, tuple[Array, Array]]]:
    """Yield heads by layer with ||f(x)|| of their keys, and pooled pattern and norm-weighted attention."""
    for layer, some in groupby(sorted(heads, key=lambda head: head.id), lambda head: head.id.layer):
        of_layer, writing = list(some), layer_contributions(result.attention, layer)
        numbers = [head.id.head for head in of_layer]
        norms = [writing.value_norms(number) for number in numbers]
        queries, keys = result.attention.tokens_of(layer)
        pooled = [[PooledPattern(len(queries), len(keys), factor(layer)) for _ in range(2)] for _ in numbers]
        for first, patterns in writing.rows(numbers):
            for number, (raw, weighted), of_keys, rows in zip(numbers, pooled, norms, patterns, strict=True):
                raw.add(first, rows.cpu())
                weighted.add(first, writing.norms(number, rows, first, of_keys).cpu())
        hidden: Array = np.array(False)
        if queries is keys:
            mask = result.checkpoint.parameters(layer)
            hidden = max_pool(allowed_units(len(queries), mask.causal, mask.window).numpy(), factor(layer)) == 0
        for head, of_keys, both in zip(of_layer, norms, pooled, strict=True):
            a, a_f = (np.where(hidden, np.nan, pattern.cells) for pattern in both)
            yield head, of_keys.float().cpu().numpy(), (a, a_f)


def _head_context(result: HeadOutputs, queries: Prompt, keys: Prompt) -> FigureContext:
    """What the figure of one head says it read: of an encoder-decoder source, target, or both."""
    about = result.figure_context
    if result.target is None or queries is not keys:
        return about
    if keys is result.tokens:
        return replace(about, texts=about.texts[:-1], sizes=())
    return replace(about, texts=about.texts[-1:], sizes=(), n=len(result.read))


def _heads(result: HeadOutputs, choices: ViewOptions) -> Iterator[TilesPlan]:
    """Plan weights, and ‖f(x)‖ and their product as shares of their largest, of one head after the other."""

    def pooling(layer: int) -> int:
        queries, keys = result.attention.tokens_of(layer)
        return tile_pooling(queries.labels, len(_NAMES), _TILE, choices.style, keys.labels)[0]

    n, gated = max(len(result.tokens), len(result.read)), result.checkpoint.architecture.gated
    style, why_log = choices.style.scaled_for(n, "per-head"), choices.style.why_log(n)
    heads = result.select(choices.select)[: choices.top or None]
    for head, norms, (pattern, weighted) in _pooled(result, heads, pooling):
        queries, keys = result.attention.tokens_of(head.id.layer)
        about, pooled = _head_context(result, queries, keys), pooling(head.id.layer)
        value_norms = np.maximum.reduceat(norms, np.arange(0, len(norms), pooled))
        ends = [1.0, float(value_norms.max()), result.largest if style.scale == "shared" else head.largest]
        matrices = pattern, np.broadcast_to(value_norms, pattern.shape), weighted
        before = "", "", "× gate " if gated else ""
        amounts = "No share of the output is given: the text has no content tokens."
        if head.projection_share is not None:
            sinks = f"{percent(head.sink)} by weight, {percent(head.sink_by_norm)} by norm"
            amounts = (
                f"{percent(head.projection_share)} of the attention output’s norm in layer {head.id.layer!s} "
                f"({percent(head.norm_share)} of its heads’ norms)"
                f"{f'; on {result.sinks}: {sinks}' if result.sinks else ''}."
            )
        largest = f"1 is a weight of 1, ‖f(x)‖ of {ends[1]:.2g} and ‖A f(x)‖ of {ends[2]:.2g}"
        yield TilesPlan(
            stem=f"outputs/{head.id.file_stem}",
            **about.caption_and_notes(
                f"{about.subject}, head {head.id}: attention weights A[q, k], times ‖f(x_k)‖ of every key"
                f"{' and the gate of the query' if gated else ''}, are norm-weighted attention ‖A[q, k] f(x_k)‖",
                amounts,
                "rows attend to columns. f(x) = (x W_V + b_V) W_O is what the head writes for a token (Kobayashi et "
                f"al. 2020){f'; grey: {result.sinks}' if result.sinks else ''}",
                f"{largest}, which is the largest of all heads" if style.scale == "shared" else largest,
                why_log,
                about.pooled(pooled),
                caption_only=(hatched_in_words(pattern),),
            ),
            title=f"{about.model} {head.id}: attention by weight and by norm",
            tiles=tuple(
                Tile(f"{gate}{name}", values / (end or 1.0), (f"{gate}{shorter}",))
                for gate, (name, shorter), values, end in zip(before, _NAMES, matrices, ends, strict=True)
            ),
            labels=Labels(queries.labels, queries.sink),
            keys=Labels(keys.labels, keys.sink) if queries is not keys else None,
            pooled=pooled,
            target=_TILE,
            norm=style.norm(1.0),
            bar=f"weight, or share of the largest norm{' (log scale)' if style.scale == 'log' else ''}",
        )


def _effects(result: HeadOutputs, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    """What each head adds to the logit of an answer, a token or a class, minus that of a foil."""
    about, splits = result.figure_context, [each for each in (result.effects, result.end_effects) if each is not None]
    of_what = " and ".join(map(versus, splits))
    biases = "b_O" if result.checkpoint.architecture.pre_norm else "b_O; LN: those of norms"
    where = " and ".join(f"#{split.position} (“{result.read.labels[split.position]}”)" for split in splits)
    sums = []
    for split in splits:
        whole = f"the {split.boundary}" if split.boundary else "the difference of the logits"
        rest = ", ".join(f"{part.name} {signed(part.direct_effect)}" for part in split.parts if part.layer is None)
        sums.append(f"all parts sum to {whole}, {signed(split.difference)}; the rest: {rest}")
    stacks = [stack for stack in result.checkpoint.kinds if stack.letter != "E"]  # whose stream logits are made of
    yield HeadMapPlan(
        stem="outputs-effects",
        **about.caption_and_notes(
            f"{about.subject}: what every head adds directly to the logit of {of_what}, and what biases "
            f"({biases}) and feed-forward networks (FFN) of each layer add",
            f"at position {where}. {linear_path(result.checkpoint, splits[0])}",
            *sums,
        ),
        title=f"{about.model}: direct effect of each head on {of_what}",
        maps=tuple(_effects_map(split, stack, choices.style) for split in splits for stack in stacks),
    )


def _effects_map(split: DirectEffects, stack: Stack, style: Style) -> HeadMap:
    layers = list(stack.layers)
    values = np.array([value for head, value in split.heads.items() if head.layer in layers]).reshape(len(layers), -1)
    beside = []
    for kind, short in _BESIDE.items():
        column = [other.direct_effect for other in split.parts if other.name == kind and other.layer in layers]
        if column:
            beside.append((short, np.array(column)))
    top = max(float(np.nan_to_num(np.abs(array)).max()) for array in (values, *(column for _, column in beside))) or 1.0
    return HeadMap(
        values,
        layers,
        norm=Normalize(-top, top, clip=True),
        bar=f"logits for {quoted(split.answer.text)}",
        colours=style.diverging_map(),
        name=split.boundary or (f"{stack.letter} ({stack.name})" if stack.name else ""),
        beside=tuple(beside),
    )


OVERVIEW = Drawing(_overview)
EFFECTS = Drawing(_effects, missing=lambda result: str(result.no_effects).removesuffix("."))
HEADS = Drawing(_heads)
