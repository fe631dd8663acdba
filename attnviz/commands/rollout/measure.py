"""Measure attention rollout on one text, from verified layers."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Unpack

import torch
from torch import Tensor

from attnviz.commands.rollout.matrices import mixed_with_identity, norm_patterns, rolled_out, rows_apart, summed_norms
from attnviz.errors import ArchitectureError, UsageError
from attnviz.measures.patterns import allowed_units
from attnviz.measures.sinks import with_found_sinks
from attnviz.models.opening import Model, open_checkpoint, refuse_words
from attnviz.models.tokens import Positions, find_positions, merge_pattern, merge_subwords
from attnviz.options import ModelOptions, checked
from attnviz.present.figure_context import FigureContext
from attnviz.present.result import TextResult
from attnviz.progress import Progress, tell
from attnviz.reference.attention import transformed_values, uniform_pattern
from attnviz.run.contributions import check_sum, layer_contributions, without_gradients
from attnviz.run.record import block_memory
from attnviz.run.verify import VerifiedAttention, verify_attention
from attnviz.wording import counted

# The ways to share an output token's attention among the input tokens; each is a field of InputShares.
METHODS = ("attention", "rollout", "norm_rollout")


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
    refuse_words(checkpoint, words=words)
    family = checkpoint.architecture
    if checkpoint.other_layers or family.gated or not family.stream_alone:
        what = f"not all layers of {family.name!r} mix by it what they read"
        if family.gated:
            what = f"heads of {family.name!r} have gates"
        raise ArchitectureError(f"rollout follows attention, but {what}; attnviz ablate measures its heads.")
    if layer is not None and not 0 <= layer < checkpoint.n_layers:
        raise UsageError(f"the model has no layer {layer}: expected 0 to {checkpoint.n_layers - 1}.")
    n_layers = checkpoint.n_layers if layer is None else layer + 1
    tokens = with_found_sinks(checkpoint, checkpoint.tokenize(text, pair, truncate))
    units, causal = merge_subwords(tokens, words), checkpoint.architecture.causal
    default = (len(units) - 1,) if causal else (0,)  # in a causal model the last position sees all
    positions = default if token is None else find_positions(units, token)
    attention = verify_attention(checkpoint, tokens, progress=progress, memory=of_chunk)
    means, norm_means, errors = _patterns(attention, n_layers, progress)
    weights = _rolled_out(means, units, residual, checkpoint.architecture.learned_sinks)
    norms = _rolled_out(norm_means, units, residual, checkpoint.architecture.learned_sinks)
    means = merge_pattern(means, units.members)
    norm_means = merge_pattern(norm_means, units.members)
    windows = checkpoint.windows[:n_layers]
    uniform_by_window = {window: uniform_pattern(allowed_units(len(tokens), causal, window)) for window in set(windows)}
    layers, sink = [], torch.tensor(units.sink)
    rolled_uniform = rolled_out(mixed_with_identity(uniform_by_window[window], residual) for window in windows)
    for number, (window, matrix, error) in enumerate(zip(windows, rolled_uniform, errors, strict=True)):
        uniform = merge_pattern(uniform_by_window[window], units.members)
        uniform_rollout = merge_pattern(matrix, units.members)
        matrices = {
            "attention": means[number],
            "rollout": weights[number],
            "norm_rollout": norms[number],
            "uniform": uniform,
            "uniform_rollout": uniform_rollout,
        }
        on_sinks = {
            name: None if sink.all() else float(rows[~sink][:, sink].double().sum(1).mean())
            for name, rows in matrices.items()
        }
        apart = {name: rows_apart(rows) for name, rows in matrices.items()}
        layers.append(LayerShares(number, on_sinks, apart, error))
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
        uniform=uniform,
        uniform_rollout=uniform_rollout,
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


def _rolled_out(patterns: Tensor, units: Positions, residual: float, learned_sinks: bool) -> Tensor:
    """Roll out over tokens, then merge into units, in the patterns' dtype."""
    mixed = (mixed_with_identity(pattern.double(), residual, learned_sinks) for pattern in patterns)
    rolled = patterns.new_empty(len(patterns), len(units), len(units))
    for layer, matrix in enumerate(rolled_out(mixed)):
        rolled[layer] = merge_pattern(matrix, units.members)
    return rolled
