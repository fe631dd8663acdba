"""Attention rollout: the share of each input token at each position, through all layers.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3. Of layer l let A be the mean pattern of
the heads, rows = queries. What a position passes on is part attention, part its own vector (the residual)::

    Â_l = (1 - r) A_l + r I        r = 0.5 in the paper
    R_0 = Â_0        R_l = Â_l R_{l-1}        [n, n], row: position at the layer's output, column: input token

Rows sum to 1, and where attention is causal, so is the rollout. In a norm rollout the norm of what attention adds from
key k to query q, ``||sum_h A_h[q, k] f_h(x_k)||`` (Kobayashi et al. 2020: a large weight on a short vector moves
little), takes the place of the weight.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from attnviz.errors import ArchitectureError
from attnviz.inputs.prompt import Positions, find_positions, merge_pattern, merge_subwords, text_at
from attnviz.inputs.refusals import refuse
from attnviz.inputs.text import tokenize
from attnviz.measures.patterns import allowed_units
from attnviz.measures.sinks import with_found_sinks
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked
from attnviz.present.documents import Entry, text_entry, verification_entry
from attnviz.present.fields import Field, Table, plain, values_of
from attnviz.present.figure_context import FigureContext, hatched_in_words, norm_in_words
from attnviz.present.report import CommandSpec
from attnviz.present.result import TextResult
from attnviz.present.view import Drawing, ViewOptions
from attnviz.progress import Progress, tell
from attnviz.reference.attention import transformed_values, uniform_pattern
from attnviz.run.contributions import check_sum, layer_contributions, without_gradients
from attnviz.run.record import block_memory
from attnviz.run.verify import VerifiedAttention, verify_attention
from attnviz.wording import counted, error, shortened_token

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnviz.figures.maps import TilesPlan

METHODS = ("attention", "rollout", "norm_rollout")  # of sharing a token's attention; the first fields of Shares

_AT_ONCE = 1 << 23  # numbers in the vectors of one chunk of queries: 32 MiB in float32
_ALIKE, _APART = 0.1, 0.5  # distances between rows
_TILE = 2.0  # inches


class Shares(NamedTuple):
    """By method: matrices, [n, n], or the shares of the input tokens in one output token, [n]."""

    attention: Tensor  # the mean pattern of the heads of the layer shown
    rollout: Tensor  # of mean patterns
    norm_rollout: Tensor  # of norms
    uniform: Tensor  # as attention, were it the same for all keys that a query may see
    uniform_rollout: Tensor  # the rollout of that


@dataclass(frozen=True)
class LayerShares:
    """Summary of the rollout up to one layer, by method and for uniform attention."""

    layer: int
    sink: dict[str, float | None]  # mean share of sinks over content positions, 0-1; None without content
    rows_apart: dict[str, float | None]  # mean total variation distance of two rows, 0-1; None for a single row
    parts_error: float  # of the summed weighted values, as a share of the layer's largest attention output


@dataclass(frozen=True, repr=False, eq=False)
class Rollout(TextResult):
    """What :func:`rollout` measured; nothing in it comes from an unverified head.

    Matrices are [n, n] over :attr:`units`: row = position at a layer's output, column = input token; rows sum to 1.
    """

    command: ClassVar[str] = "rollout"

    units: Positions  # tokens, or words
    attention: VerifiedAttention  # the verified heads
    residual: float  # share of the identity in every layer, 0-1
    means: Tensor  # [n_layers, n, n], the mean pattern of the heads of each layer
    norm_means: Tensor  # [n_layers, n, n], norms of weighted values, rows divided by their sum
    weights: Tensor  # [n_layers, n, n], rollout up to each layer from the mean patterns
    norms: Tensor  # [n_layers, n, n], the same from the norms
    last: Shares  # the matrices of the layer shown
    layers: tuple[LayerShares, ...]  # one entry per layer, like all of the above up to the chosen one
    positions: tuple[int, ...]  # of the output token whose inputs are ranked; several where it occurs more than once

    @property
    def figure_context(self) -> FigureContext:
        return replace(super().figure_context, n=len(self.units), unit=self.units.name)

    @property
    def layer(self) -> int:
        """Last layer of the rollout, counted from 0."""
        return len(self.layers) - 1

    @cached_property
    def inputs(self) -> Shares:
        """Shares of the input tokens in the chosen token; of several positions the mean."""
        return Shares(*(matrix[list(self.positions)].mean(0) for matrix in self.last))

    @property
    def in_words(self) -> str:
        size = counted(len(self.units), self.units.name)
        return f"of {self.checkpoint.short_name} through {counted(len(self.layers), 'layer')}, {size}"


@checked
def rollout(
    text: str,
    model: Model | None = None,
    *,
    pair: str | None = None,
    words: bool = False,
    layer: int | None = None,
    residual: float = 0.5,
    token: str | int | None = None,
    truncate: bool = False,
    memory: int | str | None = None,
    progress: Progress | None = None,
    **opening: Unpack[ModelOptions],
) -> Rollout:
    """Compute attention rollout: the share of each input token at each position, through all layers.

    Of an encoder-decoder the encoder alone is rolled out.

    >>> attnviz.rollout("The cat ran away", "minilm").weights[-1][0]  # of [CLS], over the inputs  # doctest: +SKIP

    ``words``: merge word pieces, in what was rolled out over tokens: sum over inputs, mean over outputs. ``layer``: up
    to which to roll out, counted from 0; default the last. ``residual``: share of the identity in every layer, 0-1.
    ``token``: whose inputs to rank: a token, ``#3`` or 3; default the first ([CLS]), in a causal model the last. The
    other arguments are as of :func:`attnviz.head_outputs`.

    Raises:
        AttnvizError: VerificationError where the heads, or what they add from each token, do not reproduce the model.
    """
    of_chunk = block_memory(memory)
    checkpoint = open_checkpoint(model, **opening)[0].encoder
    refuse({"words": words}, checkpoint)
    family = checkpoint.architecture
    if checkpoint.other_layers or family.gated or not family.stream_alone:
        what = f"not all layers of {family.name!r} mix by it what they read"
        if family.gated:
            what = f"heads of {family.name!r} have gates"
        raise ArchitectureError(f"rollout follows attention, but {what}; attnviz ablate measures its heads.")
    n_layers = checkpoint.n_layers if layer is None else checkpoint.layer_of(layer) + 1
    tokens = with_found_sinks(checkpoint, tokenize(checkpoint, text, pair, truncate))
    units = merge_subwords(tokens, words)
    default = (len(units) - 1,) if family.causal else (0,)  # in a causal model the last position sees all
    positions = default if token is None else find_positions(units, token)
    attention = verify_attention(checkpoint, tokens, progress=progress, memory=of_chunk)
    means, norm_means, errors = _patterns(attention, n_layers, progress)
    uniform_of = cache(lambda window: uniform_pattern(allowed_units(len(tokens), family.causal, window)))
    uniform = list(map(uniform_of, checkpoint.windows[:n_layers]))

    def merged(matrices: Iterable[Tensor]) -> Iterator[Tensor]:
        return (merge_pattern(matrix, units.members) for matrix in matrices)

    def rolled(patterns: Tensor, learned_sinks: bool = False) -> Tensor:
        return torch.stack([matrix.to(means) for matrix in merged(rolled_out(patterns, residual, learned_sinks))])

    weights, norms = rolled(means, family.learned_sinks), rolled(norm_means)
    means, norm_means = (merge_pattern(patterns, units.members) for patterns in (means, norm_means))
    sink, layers = torch.tensor(units.sink), list[LayerShares]()
    by_layer = zip(means, weights, norms, merged(uniform), merged(rolled_out(uniform, residual)), strict=True)
    for number, matrices in enumerate(by_layer):
        last = Shares(*matrices)
        on_sinks, apart = {}, {}
        for name, rows in last._asdict().items():
            on_sinks[name] = None if sink.all() else float(rows[~sink][:, sink].double().sum(1).mean())
            apart[name] = rows_apart(rows)
        layers.append(LayerShares(number, on_sinks, apart, errors[number]))
    return Rollout(
        checkpoint=checkpoint,
        tokens=tokens,
        units=units,
        attention=attention,
        residual=residual,
        means=means,
        norm_means=norm_means,
        weights=weights,
        norms=norms,
        last=last,
        layers=tuple(layers),
        positions=positions,
    )


def _patterns(
    attention: VerifiedAttention, n_layers: int, progress: Progress | None
) -> tuple[Tensor, Tensor, list[float]]:
    """Mean patterns and norms as patterns, [n_layers, n, n] each, and the errors of the summed parts."""
    n, errors = len(attention.tokens), list[float]()
    dtype = torch.promote_types(attention.checkpoint.dtype, torch.float32)
    means, norms = torch.zeros(2, n_layers, n, n, dtype=dtype)
    for layer in range(n_layers):
        writing = layer_contributions(attention, layer)
        with without_gradients(writing.value.device):
            vectors = transformed_values(writing.value, writing.output_weight)
            total = vectors.new_zeros(n, vectors.shape[-1])
            for first, pattern in writing.rows():
                rows, n_keys = slice(first, first + pattern.shape[1]), pattern.shape[2]
                means[layer, rows, :n_keys] = pattern.mean(0).cpu()
                added, total[rows] = summed_norms(pattern, vectors[:, :n_keys])
                norms[layer, rows, :n_keys] = added.cpu()
            parts = f"what attention adds from each token in layer {layer} does not sum"
            errors.append(check_sum(attention, layer, total + writing.output_bias, parts)[0])
        norms[layer] = norm_patterns(norms[layer])
        tell(progress, "rolling out", layer + 1, n_layers)
    return means, norms, errors


def rolled_out(patterns: Iterable[Tensor], residual: float = 0.5, learned_sinks: bool = False) -> Iterator[Tensor]:
    """Yield the rollout up to each layer, [n, n] in float64, from the pattern of each, first layer first.

    ``residual`` is the share of the identity, 0-1. Rows of the patterns sum to 1 up to rounding, which is divided out;
    with ``learned_sinks`` both sum to less: what goes nowhere carries nothing.
    """

    def mixed(pattern: Tensor) -> Tensor:
        shares = pattern.double()
        if not learned_sinks:
            shares = shares / shares.sum(-1, keepdim=True)
        return (1 - residual) * shares + residual * torch.eye(len(shares)).to(shares)

    return accumulate(map(mixed, patterns), lambda rolled, layer: layer @ rolled)


def summed_norms(pattern: Tensor, transformed: Tensor, at_once: int = _AT_ONCE) -> tuple[Tensor, Tensor]:
    """Norms of weighted values, heads summed, [rows, n], query by key; and the output without b_O, [rows, d_model].

    ``pattern``: rows of it, [n_heads, rows, n]; ``transformed``: f_h(x_k), [n_heads, n, d_model]. A chunk of queries
    has ``at_once`` numbers in memory, which does not grow with n².
    """
    n, d_model = transformed.shape[1:]
    n_queries = pattern.shape[1]
    weights, vectors = pattern.permute(2, 1, 0), transformed.transpose(0, 1)  # [key, query, head], [key, head, d_model]
    norms, totals = pattern.new_empty(n_queries, n), pattern.new_empty(n_queries, d_model)
    chunk = max(1, at_once // (n * d_model))
    for first in range(0, n_queries, chunk):
        queries = slice(first, first + chunk)
        added = torch.bmm(weights[:, queries], vectors)  # [key, query, d_model]
        norms[queries] = added.norm(dim=-1).T
        totals[queries] = added.sum(0)
    return norms, totals


def norm_patterns(norms: Tensor) -> Tensor:
    """Norms of weighted values, [n, n], query by key, as a pattern: rows sum to 1, of zeros they are the identity's."""
    totals = norms.sum(-1, keepdim=True)
    identity = torch.eye(len(norms)).to(norms)
    return torch.where(totals > 0, norms / totals.clamp_min(torch.finfo(norms.dtype).tiny), identity)


def rows_apart(matrix: Tensor) -> float | None:
    """Mean total variation distance over all pairs of rows, which sum to 1; 0-1, None for a single row.

    0 where all rows are alike, 1 where no two have a column in common. The sum over pairs is taken column by column
    over sorted values, so that it takes no [n, n, n].
    """
    n = len(matrix)
    if n < 2:
        return None
    ordered = matrix.double().sort(dim=0).values
    ranks = torch.arange(n, dtype=torch.float64, device=matrix.device)[:, None]
    over_pairs = ((2 * ranks - (n - 1)) * ordered).sum()  # of |a - b|, over all pairs and columns
    return max(0.0, float(over_pairs) / (n * (n - 1)))


# --- tables


def _content(result: Rollout, _: ViewOptions) -> Entry:
    units, positions = result.units, result.positions
    words = units.labels if units.name == "word" else None
    errors = {layer.layer: layer.parts_error for layer in result.layers}
    verification = result.attention.verification
    return {
        **text_entry(result, {"words": words is not None, **values_of(result, "layer", "residual"), "from": positions}),
        "words": words,
        "verification": verification_entry(verification, lambda check: {"parts_error": errors.get(check.layer)}),
        "from": {"text": units.labels[positions[0]], "positions": positions},
        "layers": [values_of(layer, "layer", "sink", "rows_apart") for layer in result.layers],
    }


def _inputs(result: Rollout, _: ViewOptions) -> Table[Entry]:
    """A row an input token."""
    units = result.units
    columns = {"position": range(len(units)), "text": units.labels, "special": units.special, "sink": units.sink}
    columns |= {name: row.tolist() for name, row in result.inputs._asdict().items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return Table("", plain(*columns), rows, name="inputs")


def _tables(result: Rollout, choices: ViewOptions) -> "Iterator[RenderableType]":
    from attnviz.present.sentences import verification_line
    from attnviz.present.tables import glued

    worst = max(layer.parts_error for layer in result.layers)
    parts = f", the sum of what attention adds from each token by at most {error(worst)}" if choices.verbose else ""
    yield verification_line(result.attention.verification, result.checkpoint, parts)
    units, positions, inputs = result.units, result.positions, _inputs(result, choices)

    def ranked(method: str) -> Field[int]:
        order = sorted(inputs.rows, key=lambda row: -row[method])

        def at_rank(rank: int) -> object:
            row = order[rank]
            return glued([f"{row[method]:.3f} #{row['position']} {shortened_token(row['text'], 24)}"])

        return Field(method.replace("_", " ").capitalize(), at_rank)

    numbers = ", ".join(f"#{position}" for position in positions[:4]) + (", …" if len(positions) > 4 else "")
    mean = f", mean of {len(positions)}" if len(positions) > 1 else ""
    title = f"Inputs of “{text_at(units, positions)}” ({numbers}{mean}) at the output of {_layer_shown(result)}"
    columns = [Field[int]("Rank", lambda rank: rank + 1), *map(ranked, METHODS)]
    yield Table(title, columns, range(len(units))).first(choices.rows(9), "rollout.csv", units.name, "ranked")
    if choices.verbose:
        short = {"attention": "attention", "rollout": "rollout", "norm_rollout": "norms", "uniform_rollout": "uniform"}
        of_layers: list[Field[LayerShares]] = [
            Field("Layer", name="layer"),
            *(Field(f"Sinks: {name}", f"sink.{method}") for method, name in short.items()),
            *(Field(f"Rows: {name}", f"rows_apart.{method}") for method, name in [*short.items()][1:]),
        ]
        yield Table("Layers (on sinks, and mean distance between two rows; 0–1)", of_layers, result.layers)


# --- sentences


def _layer_shown(result: Rollout) -> str:
    """The layer up to which attention was rolled out: ``layer 5, the last``."""
    return f"layer {result.layer}{', the last' if result.layer == result.checkpoint.n_layers - 1 else ''}"


def _method(result: Rollout) -> str:
    """Which layers are multiplied, and the share of the residual."""
    share = result.residual
    layers, everywhere = (f"layers 0 to {result.layer}", " in every layer") if result.layer else ("layer 0", "")
    return f"through {layers}, {1 - share:g} attention + {share:g} identity{everywhere}"


def _spread(result: Rollout) -> str:
    """Whether rows of the rollout still differ after the last layer; '' for a single row."""
    apart = result.layers[-1].rows_apart
    known = [apart[name] or 0.0 for name in METHODS[1:] if apart[name] is not None]
    if not known:
        return ""
    verdict = "rows have much in common"
    if max(known) >= _APART:
        verdict = "rows still differ"
    elif max(known) < _ALIKE:
        verdict = f"rows are nearly alike: the rollout says little about one {result.units.name} in particular"
    return f"After layer {result.layer} {verdict} (distance {known[0]:.2f})."


def _notes(result: Rollout, choices: ViewOptions) -> Iterator[str]:
    if choices.verbose:
        yield (
            f"Rollout (Abnar & Zuidema 2020): the mean pattern of the heads, {_method(result)}"
            f"{', layers multiplied' if result.layer else ''}; norm rollout: the norm of what attention adds "
            "(Kobayashi et al. 2020) in place of the weight; uniform: of uniform attention. Feed-forward networks and "
            "layer norms are left out."
        )
        yield f"Sinks: {result.sinks}." if result.sinks else ""
    yield _spread(result)


SPEC = CommandSpec[Rollout](content=_content, table=_inputs, tables=_tables, notes=_notes)


# --- picture


def _plan(result: Rollout, choices: ViewOptions) -> "Iterator[TilesPlan]":
    """The matrices of the layer shown."""
    from attnviz.figures.maps import Tile, TilesPlan, tile_pooling
    from attnviz.figures.matrix import Labels, max_pool, scale_of_means

    about, units, last = result.figure_context, result.units, result.last
    attention = f"attention of layer {result.layer}"
    mean = f"{attention} (mean of {counted(result.checkpoint.n_heads, 'head')})"
    reached = last.uniform if result.residual == 1 else last.uniform_rollout  # 1: nothing is passed on
    matrices = [  # the last is uniform attention, which is 0 where the masks forbid any
        (mean, (attention,), last.attention, last.uniform),
        ("rollout", (), last.rollout, reached),
        ("norm rollout", ("by norms",), last.norm_rollout, reached),
    ]
    pooled, _ = tile_pooling(units.labels, len(matrices), _TILE, choices.style)
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
            f"What comes to each position at the output of {_layer_shown(result)}: the mean attention of that layer "
            f"alone, its rollout, and its rollout by norms, of {about.model} on {about.text_line}",
            "rows: positions at the layer's output; columns: input",
            _spread(result),
            f"cells: the largest of {pooled} × {pooled}" if pooled > 1 else "",
            choices.style.why_log(len(units)),
            caption_only=(
                _method(result),
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
        target=_TILE,
    )


ROLLOUT = Drawing(_plan)
