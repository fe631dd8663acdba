"""What every head of a model adds to the residual stream on one text: verified, measured and ranked.

For o_h, o, b_O and f see :mod:`attnviz.attention.contributions`. C are the content positions (no special token, in
GPT-2 not the first), S the others; means and sums over queries are over C.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.arguments import check_texts, checked
from attnviz.attention.contributions import LayerContributions, check_sum, layer_contributions, without_gradients
from attnviz.attention.verify import VerifiedAttention, verify_attention
from attnviz.commands.outputs.decision import Decision, check_classes, take_apart
from attnviz.commands.outputs.promoted_tokens import (
    Attribution,
    HeadPromotion,
    ResidualStream,
    attribute_logits,
    recording_stream,
    why_no_attribution,
)
from attnviz.errors import UsageError
from attnviz.model.head_ids import HeadId
from attnviz.model.opening import Model, open_checkpoint
from attnviz.model.positions import only_position
from attnviz.model.tokens import Tokens, merge_units
from attnviz.model.wording import quoted, rounded
from attnviz.progress import Progress, tell
from attnviz.results.text_result import OfHeads, TextResult

__all__ = ["HeadContribution", "HeadOutputs", "Numbers", "OutputShares", "head_outputs", "measure_contributions"]

Numbers = NDArray[np.float64]


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


@dataclass(frozen=True, repr=False)
class HeadOutputs(TextResult, OfHeads[HeadContribution]):
    """What the heads add to the residual stream on one text; nothing in it comes from an unverified head.

    Where no look is given, every head's colours end at its own largest norm (``Look(scale="per-head")``). Views:
    ``overview``, ``shares``, ``effects`` (GPT-2), ``heads``.

    Attributes:
        attention: the verified heads, from which what is large is recomputed on demand.
        layers: first layer first.
        heads: by share of the output's norm, the largest first.
        stream: what the rest of the model gave in the same forward pass, for promoted tokens.
        attribution: the logits at one position, taken apart; None where the sentence ``no_attribution`` says why.
        decision: of a model with a head for sequence classification, the difference of two classes' logits, taken
            apart; else None.
    """

    command: ClassVar[str] = "outputs"

    attention: VerifiedAttention
    layers: tuple[OutputShares, ...]
    heads: tuple[HeadContribution, ...]
    stream: ResidualStream
    attribution: Attribution | None
    no_attribution: str
    decision: Decision | None = None

    def output(self, head: str | HeadId) -> Tensor:
        """What a head adds to the residual stream, (A V) W_O, [n, d_model], on the CPU.

        Raises:
            UsageError: the model has no such head.
            VerificationError: the model was changed since.
        """
        id = self.head(head).id
        return layer_contributions(self.attention, id.layer).output(id.head).cpu()

    def norms(self, head: str | HeadId) -> Tensor:
        """Norm-weighted attention ||A[q, k] f(x_k)||, [n, n], row = query, on the CPU; raises as :meth:`output`."""
        id = self.head(head).id
        return layer_contributions(self.attention, id.layer).norms(id.head).cpu()

    def value_norms(self, head: str | HeadId) -> Tensor:
        """||f(x_k)|| of every key, [n], on the CPU; raises as :meth:`output`."""
        id = self.head(head).id
        return layer_contributions(self.attention, id.layer).value_norms(id.head).cpu()

    def pattern(self, head: str | HeadId) -> Tensor:
        """The raw pattern A, [n, n], row = query, on the CPU; raises as :meth:`output`."""
        id = self.head(head).id
        return layer_contributions(self.attention, id.layer).pattern[id.head].cpu()

    def by_layer(self, heads: Sequence[HeadContribution]) -> Iterator[tuple[HeadContribution, LayerContributions]]:
        """Heads in the model's order, each with its layer; a layer is recomputed once, and dropped before the next."""
        layer: LayerContributions | None = None
        for head in sorted(heads, key=lambda head: head.id):
            if layer is None or layer.layer != head.id.layer:
                layer = layer_contributions(self.attention, head.id.layer)
            yield head, layer

    def attribute(self, token: str | int | None = None) -> Attribution:
        """The logits at another position, taken apart.

        Args:
            token: a token or word of the text, ``cat#2``, ``#3`` or a position counted from 0; None for the last.

        Raises:
            UsageError: there is no such position, or this model's logits are no sum over heads.
            VerificationError: the parts do not sum to the model's logits.
        """
        if self.no_attribution:
            raise UsageError(self.no_attribution)
        return attribute_logits(self.attention, self.stream, _position(self.tokens, token))

    def promoted(self, head: str | HeadId, token: str | int | None = None) -> HeadPromotion:
        """The tokens that a head's output promotes and suppresses (GPT-2).

        Args:
            head: by ``"L2H8"``, ``"2.8"`` or ``HeadId(2, 8)``.
            token: another position than that of :attr:`attribution`, as for :meth:`attribute`.

        Raises:
            UsageError: no such head or position, or the model's logits are no sum over heads.
        """
        id, here = self.head(head).id, self.attribution if token is None else None
        return (here or self.attribute(token)).of(id)

    def table(self, number: str) -> Numbers:
        """One of the numbers of :class:`HeadContribution` of every head, [n_layers, n_heads]; NaN for None."""
        numbers = np.array([getattr(head, number) for head in sorted(self.heads, key=lambda head: head.id)], np.float64)
        return numbers.reshape(self.checkpoint.n_layers, self.checkpoint.n_heads)

    @cached_property
    def largest(self) -> float:
        """The largest ||A[q, k] f(x_k)|| of any head."""
        return max(head.largest for head in self.heads)

    def __repr__(self) -> str:
        """One line: what was read, and which head makes up most."""
        id, value = self.heads[0].id, self.heads[0].projection_share
        share = "no share" if value is None else f"{rounded(value)} of its layer's output"
        counts = f"{len(self.heads)} heads verified, {id} first ({share})"
        return f"<HeadOutputs of {quoted(self.text)} with {self.facts.model}: {counts}>"


@checked
def head_outputs(
    text: str,
    model: Model = "minilm",
    *,
    tokenizer: Any = None,
    pair: str | None = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    truncate: bool = False,
    token: str | int | None = None,
    label: str | int | None = None,
    against: str | int | None = None,
    progress: Progress | None = None,
) -> HeadOutputs:
    """What every head of a model adds to the residual stream on a text, verified and measured.

    >>> result = attnviz.head_outputs("The cat that I saw ran away")  # doctest: +SKIP
    >>> result.heads[0].id, result.heads[0].projection_share  # doctest: +SKIP
    >>> result.output("L2H8").shape, result.norms("L2H8").shape  # doctest: +SKIP

    Args:
        text: one text.
        model: see :data:`attnviz.model.opening.Model`.
        tokenizer: of a model in memory; a fast one.
        pair: a second segment (BERT).
        revision: branch, tag or commit of a hub id.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``.
        truncate: cut a text that is longer than the model instead of raising.
        token: where the tokens that heads promote are read (GPT-2): a token or word of the text, ``cat#2``, ``#3`` or a
            position counted from 0; default the last.
        label: of a classifier, the class whose logit is taken apart, by name or number; default the most probable.
        against: the class that it is held against; default the most probable other one.
        progress: told of every layer verified and measured.

    Raises:
        AttnvizError: see :mod:`attnviz.errors` for the kinds; VerificationError where the heads do not reproduce the
            model, do not sum to its attention outputs, or the parts of its logits do not sum to these; UsageError for
            a class that the model lacks.
    """
    check_texts(text, pair, "give one text at a time")
    checkpoint, _ = open_checkpoint(
        model, tokenizer, revision, device, dtype, language_head=True, encoder_decoders=False
    )
    n_layers, why_not = checkpoint.n_layers, why_no_attribution(checkpoint)
    if token is not None and why_not:
        raise UsageError(f"a position (--token, token=...) is for promoted tokens. {why_not}")
    check_classes(checkpoint, label, against)
    tokens = checkpoint.tokenize(text, pair, truncate)
    position = _position(tokens, token)
    with recording_stream(checkpoint) as stream:
        verified = verify_attention(checkpoint, tokens, progress=progress)
    layers, heads = [], []
    for layer in range(n_layers):
        shares, of_heads = measure_contributions(verified, layer)
        layers.append(shares)
        heads += of_heads
        tell(progress, "measuring", layer + 1, n_layers)
    heads.sort(key=lambda head: (-(head.projection_share or 0.0), head.id))
    attribution = None if why_not else attribute_logits(verified, stream, position)
    decision = take_apart(verified, stream, label, against)
    return HeadOutputs(
        text, pair, checkpoint, tokens, verified, tuple(layers), tuple(heads), stream, attribution, why_not, decision
    )


def _position(tokens: Tokens, token: str | int | None) -> int:
    return len(tokens) - 1 if token is None else only_position(merge_units(tokens, words=False), token)


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
        for head in range(verified.checkpoint.n_heads):
            output = writing.output(head)
            total += output
            norms.append(output.norm(dim=-1))
            along.append((output * direction).sum(-1))
        parts = f"the outputs of the {len(norms)} heads of layer {layer} and the bias b_O do not sum"
        error, scale = check_sum(verified, layer, total, parts)
        content = ~torch.tensor(verified.tokens.sink, dtype=torch.bool, device=own.device)
        lengths, of_bias = lengths[content], (direction @ bias)[content]
        bias_share = _number(of_bias.sum() / lengths.sum())
        shares = OutputShares(layer, _number(lengths.mean()), float(bias.norm()), bias_share, error, scale)
        heads = list(_heads(writing, torch.stack(norms)[:, content], torch.stack(along)[:, content], lengths, content))
    return shares, heads


def _heads(
    writing: LayerContributions, norms: Tensor, along: Tensor, lengths: Tensor, content: Tensor
) -> Iterator[HeadContribution]:
    """Args: norms of o_h and their lengths along o, both [n_heads, n of C]; norms of o, [n of C]; C, boolean [n]."""
    for head, pattern in enumerate(writing.pattern):
        values = writing.value_norms(head)
        weighted = pattern * values
        yield HeadContribution(
            id=HeadId(writing.layer, head),
            norm=_number(norms[head].mean()),
            norm_share=_number(norms[head].sum() / norms.sum()),
            projection_share=_number(along[head].sum() / lengths.sum()),
            sink=_on_sinks(pattern, content),
            sink_by_norm=_on_sinks(weighted, content),
            value_norm=_number(values[content].mean()),
            value_norm_of_sinks=_number(values[~content].mean()),
            largest=float(weighted.max()),
        )


def _on_sinks(weights: Tensor, content: Tensor) -> float | None:
    """Mean over q in C of the share of its weights that is on S; None without either, or without weights."""
    rows = weights[content]
    return None if content.all() else _number((rows[:, ~content].sum(-1) / rows.sum(-1)).mean())


def _number(value: Tensor) -> float | None:
    """None where the text has nothing to measure it on: a mean of nothing, or a share of nothing, is NaN."""
    number = float(value)
    return number if math.isfinite(number) else None
