"""The residual stream of one text: contributions of heads, and recorded outputs of other modules.

Symbols as in :mod:`attnviz.commands.outputs.measure`.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, LayerId
from attnviz.models.wording import percent
from attnviz.reference.attention import upcast
from attnviz.trace.contributions import check_sum, layer_contributions, why_no_direct_effects, without_gradients
from attnviz.trace.recorder import at_site, own_run
from attnviz.trace.verify import VerifiedAttention


@dataclass(frozen=True)
class HeadContribution:
    """Norms and shares of one head's output; None without content positions.

    Attributes:
        norm: mean over q in C of ||o_h(q)||, in the units of the residual stream.
        norm_share: sum over q in C of ||o_h(q)||, over the same sum of all heads of the layer; 0-1, sums to 1.
        projection_share: sum over q in C of the length of o_h(q) along o(q), over that of ||o(q)||; with the share of
            b_O it sums to 1 over the layer; negative if the head opposes the others.
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

    One head's output of a block of rows is in memory at a time.

    Raises:
        VerificationError: the heads and the bias do not sum to the model's own attention output.
    """
    writing = layer_contributions(verified, layer)
    with without_gradients(verified.checkpoint.device):
        own = verified.model_output(layer)[0].to(writing.value.dtype)
        lengths, bias = own.norm(dim=-1), writing.output_bias
        direction = own / lengths[:, None].clamp_min(torch.finfo(own.dtype).tiny)
        content, keys = (
            ~torch.tensor(tokens.sink, dtype=torch.bool, device=own.device) for tokens in verified.tokens_of(layer)
        )
        values = torch.stack(list(map(writing.value_norms, range(writing.n_heads))))
        total, largest = bias.expand_as(own).clone(), own.new_zeros(writing.n_heads)
        norms, along, by_weight, by_norm = own.new_empty(4, writing.n_heads, len(own))
        for first, block in writing.rows():
            rows, on_sinks = slice(first, first + block.shape[1]), ~keys[: block.shape[2]]
            for head, pattern in enumerate(block):
                output, weighted = writing.added(head, pattern), pattern * values[head, : block.shape[2]]
                total[rows] += output
                norms[head, rows] = output.norm(dim=-1)
                along[head, rows] = (output * direction[rows]).sum(-1)
                by_weight[head, rows], by_norm[head, rows] = (
                    weights[:, on_sinks].sum(-1) / weights.sum(-1) for weights in (pattern, weighted)
                )
                largest[head] = largest[head].maximum(weighted.max())
        parts = f"the outputs of the {writing.n_heads} heads of layer {layer} and the bias b_O do not sum"
        error, scale = check_sum(verified, layer, total, parts)
        lengths, of_bias = lengths[content], (direction @ bias)[content]
        norms, along, by_weight, by_norm = (each[:, content] for each in (norms, along, by_weight, by_norm))
        bias_share = _number(of_bias.sum() / lengths.sum())
        shares = OutputShares(layer, _number(lengths.mean()), float(bias.norm()), bias_share, error, scale)
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


@dataclass
class ResidualStream:
    """Outputs of the model's own modules in one forward pass on one text, [n, d_model] each."""

    first: Tensor | None = None  # input of the first layer
    feed_forward: list[Tensor] = field(default_factory=list)  # output of each layer's feed-forward network
    last: Tensor | None = None  # the residual stream after the last layer, before its last norm
    normed: Tensor | None = None  # the final state: the same after the final norm, or that of the last layer


def why_no_attribution(checkpoint: Checkpoint) -> str:
    """Sentence on why the logits of this model are no sum over heads, or ''."""
    why = why_no_direct_effects(checkpoint)
    return why and f"Promoted tokens are not given: {why}."


@contextmanager
def recording_stream(checkpoint: Checkpoint) -> Iterator[ResidualStream]:
    """Record feed-forward networks and the last norm in the last forward pass inside, for logit attribution."""
    stream = ResidualStream()
    if why_no_attribution(checkpoint) and checkpoint.classifier is None:
        yield stream
        return
    layers = [checkpoint.modules[layer] for layer in last_stream(checkpoint)]
    norm: Any = checkpoint.architecture.final_norm(checkpoint.model) or layers[-1].feed_forward_norm

    # cross-attention has the feed-forward network of its block
    added = list(dict.fromkeys(layer.feed_forward_output_norm or layer.network_output for layer in layers))

    def before_layers(residual: Tensor) -> None:
        stream.first, stream.feed_forward = residual[0], []

    def after_network(output: Tensor) -> None:
        stream.feed_forward.append(output.flatten(0, -2))

    with ExitStack() as stack:
        stack.enter_context(at_site(layers[0].block, "input", own_run(stack, layers[0])(before_layers)))
        for module in added:
            stack.enter_context(at_site(module, "output", after_network))
        stack.enter_context(at_site(norm, "input", lambda residual: setattr(stream, "last", residual[0])))
        final = checkpoint.architecture.output_map(checkpoint.model) or norm
        stack.enter_context(at_site(final, "output", lambda normed: setattr(stream, "normed", normed[0])))
        yield stream


def last_stream(checkpoint: Checkpoint) -> list[int]:
    """Layers that write into the residual stream of the logits, all but an encoder's, in running order."""
    layers = [layer for layer in checkpoint.layers if not isinstance(layer, LayerId) or layer.stack.letter != "E"]
    return sorted(layers, key=lambda layer: layer.number if isinstance(layer, LayerId) else layer)


def parts_at(verified: VerifiedAttention, stream: ResidualStream, position: int) -> Iterator[tuple[str, int, Tensor]]:
    """Yield what layers add to the residual stream of the logits at one position, in the model's order.

    A norm between W_O and the residual (Gemma) has the scale that it has in the model.

    Yields:
        name, layer and vectors: ``heads``, [n_heads, d_model]; ``attention bias`` if there is one, [d_model];
        ``feed-forward``, [d_model], with the first layer of its block.
    """
    checkpoint, layers = verified.checkpoint, last_stream(verified.checkpoint)
    architecture, model = checkpoint.architecture, checkpoint.model
    factor = architecture.residual_multiplier(checkpoint.config)
    of_block = len(layers) // len(stream.feed_forward)  # attention layers: with cross-attention two
    for count, layer in enumerate(layers, start=1):
        writing, norm = layer_contributions(verified, layer), architecture.modules(model)[layer].attention_output_norm
        heads, bias = writing.outputs_at(position), writing.output_bias
        if norm is not None:
            output_norm = checkpoint.norm(norm)
            scale = output_norm.scale(verified.model_output(layer)[0, position])
            heads, bias = (output_norm.linear_part(part, scale) for part in (heads, bias))
        yield "heads", layer, heads * factor
        if architecture.parameters(model, layer).output_bias is not None:
            yield "attention bias", layer, bias * factor
        if count % of_block == 0:
            feed_forward = stream.feed_forward[count // of_block - 1][position]
            yield "feed-forward", layers[count - of_block], upcast(feed_forward) * factor
