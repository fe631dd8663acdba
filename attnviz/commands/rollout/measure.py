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
from typing import ClassVar, NamedTuple, Unpack

import torch
from torch import Tensor

from attnviz.errors import ArchitectureError
from attnviz.inputs.prompt import Positions, find_positions, merge_pattern, merge_subwords
from attnviz.inputs.refusals import refuse
from attnviz.inputs.text import tokenize
from attnviz.measures.patterns import allowed_units
from attnviz.measures.sinks import with_found_sinks
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked
from attnviz.present.figure_context import FigureContext
from attnviz.present.result import TextResult
from attnviz.progress import Progress, tell
from attnviz.reference.attention import transformed_values, uniform_pattern
from attnviz.run.contributions import check_sum, layer_contributions, without_gradients
from attnviz.run.record import block_memory
from attnviz.run.verify import VerifiedAttention, verify_attention
from attnviz.wording import counted

METHODS = ("attention", "rollout", "norm_rollout")  # of sharing a token's attention; the first fields of InputShares

_AT_ONCE = 1 << 23  # numbers in the vectors of one chunk of queries: 32 MiB in float32


class InputShares(NamedTuple):
    """Shares of the input tokens in one output token, [n] by method."""

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
    uniform: Tensor  # [n, n], uniform attention in the layer shown
    uniform_rollout: Tensor  # [n, n], the rollout of uniform attention up to the layer shown
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
    def inputs(self) -> InputShares:
        """Shares of the input tokens in the chosen token; of several positions the mean."""
        rows = list(self.positions)
        matrices = (self.means[-1], self.weights[-1], self.norms[-1], self.uniform, self.uniform_rollout)
        return InputShares(*(matrix[rows].mean(0) for matrix in matrices))

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
    opened, _ = open_checkpoint(model, **opening)
    checkpoint = opened.encoder
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

    def rolled(patterns: Iterable[Tensor], learned_sinks: bool = False) -> Iterator[Tensor]:
        return (merge_pattern(matrix, units.members) for matrix in rolled_out(patterns, residual, learned_sinks))

    weights, norms = (
        torch.stack([matrix.to(means) for matrix in rolled(patterns, family.learned_sinks)])
        for patterns in (means, norm_means)
    )
    means, norm_means = (merge_pattern(patterns, units.members) for patterns in (means, norm_means))
    uniform_of = cache(lambda window: uniform_pattern(allowed_units(len(tokens), family.causal, window)))
    uniforms = list(map(uniform_of, checkpoint.windows[:n_layers]))
    uniform = (merge_pattern(pattern, units.members) for pattern in uniforms)
    layers, sink = [], torch.tensor(units.sink)
    by_layer = enumerate(zip(means, weights, norms, uniform, rolled(uniforms), strict=True))
    for number, matrices in by_layer:
        named = InputShares(*matrices)._asdict()
        on_sinks = {
            name: None if sink.all() else float(rows[~sink][:, sink].double().sum(1).mean())
            for name, rows in named.items()
        }
        apart = {name: rows_apart(rows) for name, rows in named.items()}
        layers.append(LayerShares(number, on_sinks, apart, errors[number]))
    return Rollout(
        text=text,
        pair=pair,
        checkpoint=checkpoint,
        tokens=tokens,
        units=units,
        attention=attention,
        residual=residual,
        means=means,
        norm_means=norm_means,
        weights=weights,
        norms=norms,
        uniform=named["uniform"],
        uniform_rollout=named["uniform_rollout"],
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
            error, _ = check_sum(attention, layer, total + writing.output_bias, parts)
        norms[layer] = norm_patterns(norms[layer])
        errors.append(error)
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
