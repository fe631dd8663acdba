"""Norms and shares of what every head of a layer adds to the residual stream.

For o_h, o, b_O and f see :mod:`attnviz.run.contributions`. C are the content positions, S the sinks (special
tokens, in GPT-2 the first and those of :mod:`attnviz.measures.sinks`); means and sums over queries are over C.
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
        heads = range(len(writing.value))
        values = torch.stack(list(map(writing.value_norms, heads)))
        total, largest = bias.expand_as(model_output).clone(), bias.new_zeros(len(heads))
        measured = bias.new_empty(4, len(heads), len(model_output))
        for first, patterns in writing.rows():
            rows, on_sinks = slice(first, first + patterns.shape[1]), ~keys[: patterns.shape[2]]
            for head, pattern in enumerate(patterns):
                output = writing.outputs(head, pattern, first)
                weighted = writing.norms(head, pattern, first, values[head])
                total[rows] += output
                along = (output * direction[rows]).sum(-1)
                by_norm = weighted[:, on_sinks].sum(-1) / weighted.sum(-1)
                measured[:, head, rows] = torch.stack(
                    [output.norm(dim=-1), along, pattern[:, on_sinks].sum(-1), by_norm]
                )
                largest[head] = largest[head].maximum(weighted.max())
        parts = f"the outputs of the {len(heads)} heads of layer {layer} and the bias b_O do not sum"
        error, scale = check_sum(verified, layer, total, parts)
        length, of_bias = lengths[content].sum(), (direction @ bias)[content].sum()
        if keys.all():  # no sinks
            measured[2:] = torch.nan
        norms, along, by_weight, by_norm = measured[..., content]
        columns = {
            "norm": norms.mean(1),
            "norm_share": norms.sum(1) / norms.sum(),
            "projection_share": along.sum(1) / length,
            "sink": by_weight.mean(1),
            "sink_by_norm": by_norm.mean(1),
            "value_norm": values[:, keys].mean(1),
            "value_norm_of_sinks": values[:, ~keys].mean(1),
        }
    mean, of_bias = _number(lengths[content].mean()), _number(of_bias / length)
    shares = OutputShares(layer, mean, float(bias.norm()), of_bias, sum_error=error, output_scale=scale)
    return shares, [
        HeadContribution(
            id=HeadId(layer, head),
            **{name: _number(column[head]) for name, column in columns.items()},
            largest=float(largest[head]),
        )
        for head in heads
    ]


def _number(value: Tensor) -> float | None:
    """The number, or None for NaN: a mean or a share of nothing."""
    number = float(value)
    return number if math.isfinite(number) else None
