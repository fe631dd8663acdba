"""What each head writes into the residual stream, and how much of it: its output, norms and shares.

For one layer with pattern A, the head's values v = x W_V + b_V and its slice of W_O (Elhage et al. 2021)::

    o_h = (A v) W_O                                              [n, d_model]: what head h adds
    o   = sum over h of o_h, + b_O                               [n, d_model]: the attention's output
    f(x_k) = v_k W_O,  ||A[q, k] f(x_k)|| = A[q, k] ||f(x_k)||   norm-weighted attention (Kobayashi et al. 2020)

C are the content positions (no special token, in GPT-2 not the first), S the others; means and sums over queries
are over C. That the o_h and b_O sum to the model's own attention output is checked in every layer, or nothing is
given.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.attention import reference as attention
from attnviz.attention.reference import HeadParameters
from attnviz.attention.verify import VerifiedAttention
from attnviz.errors import VerificationError
from attnviz.model.head_ids import HeadId

__all__ = ["HeadContribution", "LayerContributions", "OutputShares", "error_of_sum", "layer_contributions",
           "measure_contributions", "without_gradients"]  # fmt: skip


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


@dataclass(frozen=True)
class LayerContributions:
    """One layer's verified heads, ready to say what each writes; numbers in float32 at least.

    Attributes:
        pattern: [n_heads, n, n], axes query then key.
        value: x W_V + b_V, [n_heads, n, d_head].
        parameters: of the layer; W_O, [n_heads, d_head, d_model], and b_O, [d_model], are used.
    """

    layer: int
    pattern: Tensor
    value: Tensor
    parameters: HeadParameters

    def output(self, head: int) -> Tensor:
        """What the head adds to the residual stream, [n, d_model]."""
        here = slice(head, head + 1)
        with without_gradients(self.pattern.device):
            return attention.head_outputs(self.pattern[here], self.value[here], self._of(head))[0]

    def outputs_at(self, position: int) -> Tensor:
        """What every head adds at one position, [n_heads, d_model]."""
        query = slice(position, position + 1)
        with without_gradients(self.pattern.device):
            return attention.head_outputs(self.pattern[:, query], self.value, self.parameters)[:, 0]

    def value_norms(self, head: int) -> Tensor:
        """||f(x_k)|| of every key, [n]."""
        with without_gradients(self.pattern.device):
            values = attention.transformed_values(self.value[head : head + 1], self._of(head))[0]
            norms: Tensor = torch.linalg.vector_norm(values, dim=-1)
            return norms

    def norms(self, head: int) -> Tensor:
        """Norm-weighted attention ||A[q, k] f(x_k)||, [n, n]; A is never negative, so it is A[q, k] ||f(x_k)||."""
        with without_gradients(self.pattern.device):
            return self.pattern[head] * self.value_norms(head)

    def _of(self, head: int) -> HeadParameters:
        return replace(self.parameters, output_weight=self.parameters.output_weight[head : head + 1])


@contextmanager
def without_gradients(device: torch.device) -> Iterator[None]:
    """Neither gradients nor autocast, as where the heads were verified."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def layer_contributions(verified: VerifiedAttention, layer: int) -> LayerContributions:
    """Recompute what one layer's heads write from: values in the model's number format, the rest in float32 at least.

    Raises:
        VerificationError: the model's weights are no longer those that were verified.
    """
    checkpoint = verified.checkpoint
    with without_gradients(checkpoint.device):
        pattern = verified.layer(layer).wide[0]
        parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
        value = attention.project(verified.attention_input(layer), parameters.value)[0].to(pattern.dtype)
        weight, bias = (
            given.detach().to(pattern.dtype) for given in (parameters.output_weight, parameters.output_bias)
        )
        return LayerContributions(layer, pattern, value, replace(parameters, output_weight=weight, output_bias=bias))


def measure_contributions(verified: VerifiedAttention, layer: int) -> tuple[OutputShares, list[HeadContribution]]:
    """Norms and shares of every head of a layer, once the heads and the bias are found to sum to the model's output.

    One head's [n, d_model] is in memory at a time.

    Raises:
        VerificationError: the heads and the bias do not sum to the model's own attention output, within the tolerance
            for outputs of the number format (:data:`attnviz.attention.tolerances.TOLERANCES`).
    """
    writing = layer_contributions(verified, layer)
    content = ~torch.tensor(verified.tokens.sink, dtype=torch.bool, device=writing.pattern.device)
    with without_gradients(verified.checkpoint.device):
        own = verified.model_output(layer)[0].to(writing.pattern.dtype)
        direction = own / torch.linalg.vector_norm(own, dim=-1, keepdim=True).clamp_min(torch.finfo(own.dtype).tiny)
        total = writing.parameters.output_bias.expand_as(own).clone()
        norms, along = [], []
        for head in range(verified.checkpoint.n_heads):
            output = writing.output(head)
            total += output
            norms.append(torch.linalg.vector_norm(output, dim=-1))
            along.append((output * direction).sum(-1))
        error, scale = _compare(verified, layer, total, own)
        lengths, bias = torch.linalg.vector_norm(own, dim=-1)[content], writing.parameters.output_bias
        bias_share = _ratio((direction @ bias)[content], lengths)
        shares = OutputShares(
            layer,
            _mean(lengths),
            float(torch.linalg.vector_norm(bias)),
            bias_share,
            sum_error=error,
            output_scale=scale,
        )
        heads = list(_heads(writing, torch.stack(norms)[:, content], torch.stack(along)[:, content], lengths, content))
    return shares, heads


def _heads(
    writing: LayerContributions, norms: Tensor, along: Tensor, lengths: Tensor, content: Tensor
) -> Iterator[HeadContribution]:
    """Args: norms of o_h and their lengths along o, both [n_heads, n of C]; norms of o, [n of C]; C, boolean [n]."""
    for head, (norm, length) in enumerate(zip(norms, along, strict=True)):
        of_values = writing.value_norms(head)
        weighted = writing.pattern[head] * of_values
        yield HeadContribution(
            id=HeadId(writing.layer, head),
            norm=_mean(norm),
            norm_share=_ratio(norm, norms),
            projection_share=_ratio(length, lengths),
            sink=_on_sinks(writing.pattern[head], content),
            sink_by_norm=_on_sinks(weighted, content),
            value_norm=_mean(of_values[content]),
            value_norm_of_sinks=_mean(of_values[~content]),
            largest=float(weighted.max()),
        )


def _compare(verified: VerifiedAttention, layer: int, total: Tensor, own: Tensor) -> tuple[float, float]:
    """The largest difference of the sum from the model's output, over the largest output, and that output."""
    error, scale, place = error_of_sum(total, own)
    tolerance = verified.verification.tolerance.output
    if not error <= tolerance:  # a NaN is a failure, too
        query, dimension = divmod(place, own.shape[-1])
        raise VerificationError(
            f"the outputs of the {verified.checkpoint.n_heads} heads of layer {layer} and the bias b_O do not sum to "
            f"the model's own attention output: they differ most at query {query} "
            f"({verified.tokens.labels[query]!r}), dimension {dimension}: the model gives "
            f"{float(own[query, dimension]):.6g}, the sum {float(total[query, dimension]):.6g} (tolerance "
            f"{tolerance:g} of the layer's largest output, {scale:.6g}). Nothing was drawn."
        )
    return error, scale


def error_of_sum(total: Tensor, own: Tensor) -> tuple[float, float, int]:
    """The largest difference over the largest of the model's own numbers, this number, and where they differ most."""
    scale = float(own.abs().max())
    difference = (total - own).abs()
    return float(difference.max()) / (scale or 1.0), scale, int(difference.nan_to_num(nan=torch.inf).argmax())


def _on_sinks(weights: Tensor, content: Tensor) -> float | None:
    """Mean over q in C of the share of its weights that is on S; None without either, or without weights."""
    if not content.any() or content.all():
        return None
    rows = weights[content]
    return _number((rows[:, ~content].sum(-1) / rows.sum(-1)).mean())


def _mean(values: Tensor) -> float | None:
    return _number(values.mean())


def _ratio(values: Tensor, of: Tensor) -> float | None:
    return _number(values.sum() / of.sum())


def _number(value: Tensor) -> float | None:
    """None where the text has nothing to measure it on: a mean of nothing, or a share of nothing, is NaN."""
    number = float(value)
    return number if math.isfinite(number) else None
