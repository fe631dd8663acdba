"""How much every head of a layer writes, and from where: norms and shares of what it adds.

Symbols as in :mod:`attnviz.commands.outputs.measure`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.attention.contributions import LayerContributions, check_sum, layer_contributions, without_gradients
from attnviz.attention.verify import VerifiedAttention
from attnviz.model.head_ids import HeadId


@dataclass(frozen=True)
class HeadContribution:
    """How much one head writes, and from where; None where the text has no content positions.

    Attributes:
        norm: mean over q in C of ||o_h(q)||, in the units of the residual stream.
        norm_share: sum over q in C of ||o_h(q)||, over the same sum of all heads of the layer; 0-1, sums to 1.
        projection_share: sum over q in C of the length of o_h(q) along o(q), over that of ||o(q)||; with the share of
            b_O it sums to 1 over the layer; negative where the head works against the others.
        sink: mean over q in C of sum over k in S of A[q, k], 0-1, as in ``heads.json``; None without sinks.
        sink_by_norm: the same of A[q, k] ||f(x_k)||, each query's divided by their sum over all k.
        value_norm: mean over k in C of ||f(x_k)||.
        value_norm_of_sinks: mean over k in S of ||f(x_k)||; None without sinks.
        largest: the largest ||A[q, k] f(x_k)|| over all q and k.
    """

    id: HeadId
    norm: float | None
    norm_share: float | None
    projection_share: float | None
    sink: float | None
    sink_by_norm: float | None
    value_norm: float | None
    value_norm_of_sinks: float | None
    largest: float


@dataclass(frozen=True)
class OutputShares:
    """What the heads of one layer and the bias make up together.

    Attributes:
        norm: mean over q in C of ||o(q)||, the model's own attention output; None without content positions.
        bias_norm: ||b_O||, which no head writes.
        bias_projection_share: as that of a head.
        sum_error: largest absolute difference of the sum of all o_h and b_O from the model's own output, divided by
            ``output_scale``.
        output_scale: the layer's largest absolute output in the model.
    """

    layer: int
    norm: float | None
    bias_norm: float
    bias_projection_share: float | None
    sum_error: float
    output_scale: float


def measure_contributions(verified: VerifiedAttention, layer: int) -> tuple[OutputShares, list[HeadContribution]]:
    """Norms and shares of every head of a layer, once the heads and the bias are found to sum to the model's output.

    One head's [n, d_model] is in memory at a time.

    Raises:
        VerificationError: the heads and the bias do not sum to the model's own attention output.
    """
    writing = layer_contributions(verified, layer)
    with without_gradients(verified.checkpoint.device):
        own = verified.model_output(layer)[0].to(writing.pattern.dtype)
        lengths, bias = own.norm(dim=-1), writing.output_bias
        direction = own / lengths[:, None].clamp_min(torch.finfo(own.dtype).tiny)
        total, norms, along = bias.expand_as(own).clone(), [], []
        for head in range(len(writing.pattern)):
            output = writing.output(head)
            total += output
            norms.append(output.norm(dim=-1))
            along.append((output * direction).sum(-1))
        parts = f"the outputs of the {len(norms)} heads of layer {layer} and the bias b_O do not sum"
        error, scale = check_sum(verified, layer, total, parts)
        content, of_keys = (
            ~torch.tensor(tokens.sink, dtype=torch.bool, device=own.device) for tokens in verified.tokens_of(layer)
        )
        lengths, of_bias = lengths[content], (direction @ bias)[content]
        bias_share = _number(of_bias.sum() / lengths.sum())
        shares = OutputShares(layer, _number(lengths.mean()), float(bias.norm()), bias_share, error, scale)
        heads = list(
            _heads(writing, torch.stack(norms)[:, content], torch.stack(along)[:, content], lengths, content, of_keys)
        )
    return shares, heads


def _heads(
    writing: LayerContributions, norms: Tensor, along: Tensor, lengths: Tensor, content: Tensor, keys: Tensor
) -> Iterator[HeadContribution]:
    """Args: norms of o_h and their lengths along o, both [n_heads, n of C]; norms of o, [n of C]; C, boolean [n].

    ``keys``: C among the keys, which are of another text in cross-attention.
    """
    for head, pattern in enumerate(writing.pattern):
        values = writing.value_norms(head)
        weighted = pattern * values
        yield HeadContribution(
            id=HeadId(writing.layer, head),
            norm=_number(norms[head].mean()),
            norm_share=_number(norms[head].sum() / norms.sum()),
            projection_share=_number(along[head].sum() / lengths.sum()),
            sink=_on_sinks(pattern, content, keys),
            sink_by_norm=_on_sinks(weighted, content, keys),
            value_norm=_number(values[keys].mean()),
            value_norm_of_sinks=_number(values[~keys].mean()),
            largest=float(weighted.max()),
        )


def _on_sinks(weights: Tensor, content: Tensor, keys: Tensor) -> float | None:
    """Mean over q in C of the share of its weights that is on S; None without either, or without weights."""
    rows = weights[content]
    return None if keys.all() else _number((rows[:, ~keys].sum(-1) / rows.sum(-1)).mean())


def _number(value: Tensor) -> float | None:
    """None where the text has nothing to measure it on: a mean of nothing, or a share of nothing, is NaN."""
    number = float(value)
    return number if math.isfinite(number) else None
