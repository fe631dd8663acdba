"""Norms and shares of what heads add to the residual stream of one text.

Symbols as in :mod:`attnviz.commands.outputs.measure`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.models.head_ids import HeadId
from attnviz.run.contributions import check_sum, layer_contributions, without_gradients
from attnviz.run.verify import VerifiedAttention
from attnviz.wording import percent


@dataclass(frozen=True)
class HeadContribution:
    """Norms and shares of one head's output; None without content positions.

    ``projection_share``: sum over q in C of the length of o_h(q) along o(q), over that of ||o(q)||; with the share of
    b_O it sums to 1 over the layer; negative if the head opposes the others.
    """

    id: HeadId
    norm: float | None  # mean over q in C of ||o_h(q)||, in the units of the residual stream
    norm_share: float | None  # sum over q in C of ||o_h(q)||, over that of all heads of the layer; 0-1, sums to 1
    projection_share: float | None
    sink: float | None  # mean over q in C of sum over k in S of A[q, k], 0-1, as in heads.json; None without sinks
    sink_by_norm: float | None  # the same of A[q, k] ||f(x_k)||, each query's divided by their sum over all k
    value_norm: float | None  # mean over k in C of ||f(x_k)||
    value_norm_of_sinks: float | None  # mean over k in S of ||f(x_k)||; None without sinks
    largest: float  # ||A[q, k] f(x_k)|| over all q and k

    def __repr__(self) -> str:
        return f"<HeadContribution of {self.id}: {percent(self.norm_share)} of its layer's output>"


@dataclass(frozen=True)
class OutputShares:
    """Norms and shares of one layer's attention output and bias."""

    layer: int
    norm: float | None  # mean over q in C of ||o(q)||, the model's own attention output; None without content positions
    bias_norm: float  # ||b_O||, which no head writes
    bias_projection_share: float | None  # as that of a head
    sum_error: float  # largest absolute difference of the sum of all o_h and b_O from the model's, over output_scale
    output_scale: float  # the layer's largest absolute output in the model


def measure_contributions(verified: VerifiedAttention, layer: int) -> tuple[OutputShares, list[HeadContribution]]:
    """Measure norms and shares of every head of a layer, and verify that heads and bias sum to the model's output.

    One head's output of a chunk of rows is in memory at a time.

    Raises:
        VerificationError: the heads and the bias do not sum to the model's own attention output.
    """
    writing = layer_contributions(verified, layer)
    with without_gradients(verified.checkpoint.device):
        model_output = verified.model_output(layer)[0].to(writing.value.dtype)
        lengths, bias = model_output.norm(dim=-1), writing.output_bias
        direction = model_output / lengths[:, None].clamp_min(torch.finfo(model_output.dtype).tiny)
        content, keys = (
            ~torch.tensor(tokens.sink, dtype=torch.bool, device=bias.device) for tokens in verified.tokens_of(layer)
        )
        values = torch.stack(list(map(writing.value_norms, range(writing.n_heads))))
        total, largest = bias.expand_as(model_output).clone(), bias.new_zeros(writing.n_heads)
        norms, along, by_weight, by_norm = bias.new_empty(4, writing.n_heads, len(model_output))
        for first, patterns in writing.rows():
            n_keys = patterns.shape[2]
            rows, on_sinks = slice(first, first + patterns.shape[1]), ~keys[:n_keys]
            for head, pattern in enumerate(patterns):
                output = writing.added(head, pattern, first)
                weighted = writing.weighted_norms(head, pattern, first, values[head])
                total[rows] += output
                norms[head, rows] = output.norm(dim=-1)
                along[head, rows] = (output * direction[rows]).sum(-1)
                by_weight[head, rows] = pattern[:, on_sinks].sum(-1)
                by_norm[head, rows] = weighted[:, on_sinks].sum(-1) / weighted.sum(-1)
                largest[head] = largest[head].maximum(weighted.max())
        parts = f"the outputs of the {writing.n_heads} heads of layer {layer} and the bias b_O do not sum"
        error, scale = check_sum(verified, layer, total, parts)
        lengths, of_bias = lengths[content], (direction @ bias)[content]
        norms, along, by_weight, by_norm = (of_rows[:, content] for of_rows in (norms, along, by_weight, by_norm))
        shares = OutputShares(
            layer=layer,
            norm=_number(lengths.mean()),
            bias_norm=float(bias.norm()),
            bias_projection_share=_number(of_bias.sum() / lengths.sum()),
            sum_error=error,
            output_scale=scale,
        )
        heads = [
            HeadContribution(
                id=HeadId(layer, head),
                norm=_number(norms[head].mean()),
                norm_share=_number(norms[head].sum() / norms.sum()),
                projection_share=_number(along[head].sum() / lengths.sum()),
                sink=None if keys.all() else _number(by_weight[head].mean()),
                sink_by_norm=None if keys.all() else _number(by_norm[head].mean()),
                value_norm=_number(values[head, keys].mean()),
                value_norm_of_sinks=_number(values[head, ~keys].mean()),
                largest=float(largest[head]),
            )
            for head in range(writing.n_heads)
        ]
    return shares, heads


def _number(value: Tensor) -> float | None:
    """The number, or None for NaN: a mean or a share of nothing."""
    number = float(value)
    return number if math.isfinite(number) else None
