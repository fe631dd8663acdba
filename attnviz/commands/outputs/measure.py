"""Measure the output of every head in the residual stream on one text.

For o_h, o, b_O and f see :mod:`attnviz.run.contributions`. C are the content positions, S the sinks (special
tokens, in GPT-2 the first and those of :mod:`attnviz.measures.sinks`); means and sums over queries are over C.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from attnviz.errors import UsageError
from attnviz.inputs.prompt import Prompt, TargetTokens, find_positions, merge_subwords, position_of
from attnviz.inputs.refusals import refuse
from attnviz.inputs.spans import named_span
from attnviz.inputs.text import tokenize
from attnviz.locks import alone
from attnviz.measures.direct_effects import DirectEffects, Promotion, answer_ids, direct_effects
from attnviz.measures.sinks import with_found_sinks
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.classifier import SPAN
from attnviz.models.head_ids import HeadId
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked
from attnviz.present.figure_context import FigureContext
from attnviz.present.result import OfHeads, TextResult
from attnviz.progress import Progress, tell
from attnviz.reference.attention import upcast
from attnviz.run.contributions import LayerContributions, check_sum, layer_contributions, without_gradients
from attnviz.run.generate import target_tokens
from attnviz.run.record import block_memory
from attnviz.run.stream import WrittenParts, recording_parts, why_no_effects
from attnviz.run.verify import VerifiedAttention, verify_attention
from attnviz.wording import counted, percent, quoted, rounded

_SPANS = "The head for question answering gives start and end of an answer: --answer-span (answer_span=...) names one."

NO_PROMOTIONS = (
    "Promoted tokens are not given: they need logits of tokens that are linear in the final state. Those of a "
    "masked-language head, and those that are bounded (final_logit_softcapping), are not."
)


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


@dataclass(frozen=True, repr=False, eq=False)
class HeadOutputs(TextResult, OfHeads[HeadContribution]):
    """Result of :func:`head_outputs`; nothing in it comes from an unverified head."""

    command: ClassVar[str] = "outputs"
    noun: ClassVar[str] = "Outputs"

    attention: VerifiedAttention  # the verified heads, from which tensors are recomputed on demand
    layers: tuple[OutputShares, ...]  # first layer first
    heads: tuple[HeadContribution, ...]  # by share of the output's norm, the largest first
    written: WrittenParts | None  # the residual stream in parts, for direct effects; None where there are none
    effects: DirectEffects | None  # of heads on an answer minus a foil: two tokens, or classes of the text or a token
    no_effects: str  # why there are none, or ''
    target: TargetTokens | None = None  # of an encoder-decoder, what its decoder reads
    end_effects: DirectEffects | None = None  # on the end of an answer in question answering; ``effects``: its start

    @property
    def read(self) -> Prompt:
        """The text whose next tokens are predicted: the target, or in models of one kind the text."""
        return self.tokens if self.target is None else self.target.tokens

    @property
    def figure_context(self) -> FigureContext:
        about = super().figure_context
        if self.target is None:
            return about
        sizes = counted(len(self.tokens), "token"), counted(len(self.read), "token")
        return replace(about, texts=(*about.texts, self.target.text), sizes=sizes)

    def output(self, head: str | HeadId) -> Tensor:
        """Output of a head in the residual stream, (A V) W_O, [n, d_model], on the CPU.

        Raises UsageError where there is no such head, VerificationError where the model was changed since.
        """
        layer, number = self._written_by(head)
        return torch.cat([layer.outputs(number, rows[0], first).cpu() for first, rows in layer.rows([number])])

    def norms(self, head: str | HeadId) -> Tensor:
        """Norm-weighted attention ||A[q, k] f(x_k)||, [n, n], row = query, on the CPU; raises as :meth:`output`."""
        layer, number = self._written_by(head)
        return layer.norms(number, layer.pattern(number)).cpu()

    def value_norms(self, head: str | HeadId) -> Tensor:
        """||f(x_k)|| of every key, [n], on the CPU; raises as :meth:`output`."""
        layer, number = self._written_by(head)
        return layer.value_norms(number).cpu()

    def pattern(self, head: str | HeadId) -> Tensor:
        """The raw pattern A, [n, n], row = query, on the CPU; raises as :meth:`output`."""
        layer, number = self._written_by(head)
        return layer.pattern(number).cpu()

    def _written_by(self, head: str | HeadId) -> tuple[LayerContributions, int]:
        id = self.head(head).id
        return layer_contributions(self.attention, id.layer), id.head

    @alone
    def effects_at(
        self, token: str | int | None = None, answer: str | int | None = None, foil: str | int | None = None
    ) -> DirectEffects:
        """Direct effects at another position, or on another answer minus a foil; arguments as of :func:`head_outputs`.

        Raises UsageError where there is no such position, token or class, or the model gives no logits.
        """
        if self.written is None:
            raise UsageError(self.no_effects)
        if self.end_effects is not None:
            raise UsageError(f"effects_at is not for question answering. {_SPANS}")
        position = _position(self.checkpoint, self.read, token)
        return direct_effects(self.attention, self.written, position, *answer_ids(self.checkpoint, answer, foil))

    def promoted(self, head: str | HeadId, token: str | int | None = None) -> Promotion:
        """The tokens that a head's output promotes and suppresses, by default at the position of :attr:`effects`.

        Raises UsageError for no such head or position, or a model or a head of which no logits are a linear map.
        """
        id = self.head(head).id
        effects = self.effects if token is None and self.effects is not None else self.effects_at(token)
        if not effects.promotions:
            raise UsageError(NO_PROMOTIONS)
        if id not in effects.promotions:
            raise UsageError(
                f"{id} writes into the encoder's residual stream, of which no logits are made; expected a head of "
                "the decoder or of cross-attention."
            )
        return effects.promotions[id]

    @cached_property
    def largest(self) -> float:
        return max(head.largest for head in self.heads)

    @property
    def in_words(self) -> str:
        id, value = self.heads[0].id, self.heads[0].projection_share
        share = "no share" if value is None else f"{rounded(value)} of its layer's output"
        counts = f"{len(self.heads)} heads verified, {id} first ({share})"
        return f"of {quoted(self.text)} with {self.figure_context.model}: {counts}"


@checked
def head_outputs(
    text: str,
    model: Model | None = None,
    *,
    pair: str | None = None,
    truncate: bool = False,
    token: str | int | None = None,
    answer: str | int | None = None,
    foil: str | int | None = None,
    answer_span: str | None = None,
    target: str | None = None,
    max_new_tokens: int | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
    **opening: Unpack[ModelOptions],
) -> HeadOutputs:
    """Measure what every head of a model adds to the residual stream on a text.

    >>> result = attnviz.head_outputs("The cat that I saw ran away")  # doctest: +SKIP
    >>> result.heads[0].id, result.heads[0].projection_share  # doctest: +SKIP
    >>> result.output("L2H8").shape, result.norms("L2H8").shape  # doctest: +SKIP

    Args:
        text: one text.
        model: see :data:`attnviz.models.opening.Model`.
        pair: a second segment (BERT).
        truncate: cut a text that is longer than the model instead of raising.
        token: where direct effects and promoted tokens are read: a token or word of the text, ``cat#2``, ``#3`` or a
            position counted from 0; default the last, and of a masked-language model its mask, else the last but
            special tokens. Of an encoder-decoder (T5) one of the decoder's. A classifier reads its own; in token
            classification a word's first piece is read.
        answer: whose logit is divided into direct effects: a token, as text or as its id in the vocabulary, or a class,
            by name or number; default the model's first choice.
        foil: whose logit is subtracted from the answer's; default the first of the model's other choices.
        answer_span: in question answering, the stretch of the context whose start and end logits are divided: its
            text, ``text#2`` or ``#10-#12``; default the model's own answer. The text is the question, ``pair`` the
            context.
        target: of an encoder-decoder, the text that its decoder reads; default one that it generates, greedily.
        max_new_tokens: of that text, at most; default 40.
        memory: that a chunk of query rows may take, in bytes, or as ``"64M"``; default 48 MiB, on a GPU 1 GiB or a
            quarter of what is free.
        progress: callback for every layer verified and measured.
        opening: see :class:`attnviz.options.ModelOptions`.

    Raises:
        AttnvizError: VerificationError where the heads do not reproduce the model, do not sum to its attention outputs,
            or the parts of its logits do not sum to these; UsageError for what the model or text lacks.
    """
    of_chunk = block_memory(memory)
    checkpoint, _ = open_checkpoint(model, **opening)
    refuse({"target": target, "max_new_tokens": max_new_tokens}, checkpoint)
    why_not = why_no_effects(checkpoint)
    if token is not None and (why_not or checkpoint.classifier):
        why = why_not or "A classifier reads the final state of one token, the first or the last."
        raise UsageError(f"leave out --token (token=...), where direct effects are read. {why}")
    of_span = checkpoint.class_head is not None and checkpoint.class_head.task == SPAN
    if of_span and (token, answer, foil) != (None, None, None):
        raise UsageError(f"leave out --token, --answer and --foil (token=..., answer=..., foil=...). {_SPANS}")
    if answer_span is not None and not of_span:
        raise UsageError(
            "--answer-span (answer_span=...) is for a checkpoint with a head for question answering; the head of this "
            f"one: {checkpoint.head_in_words}."
        )
    ids = answer_ids(checkpoint, answer, foil)
    tokens = with_found_sinks(checkpoint, tokenize(checkpoint, text, pair, truncate))
    decoded = target_tokens(checkpoint, tokens, target, truncate, max_new_tokens) if checkpoint.stacks else None
    read = tokens if decoded is None else decoded.tokens
    position = _position(checkpoint, read, token)
    ends: tuple[int, int] | None = None
    if answer_span is not None:
        context = _context(tokens)
        span = named_span("", answer_span, tokens, merge_subwords(tokens, words=False)).tokens
        ends = span[0], span[-1]
        if not {*span} <= {*context}:
            raise UsageError(
                f"--answer-span (answer_span=...) is {answer_span!r}: expected positions of the context, "
                f"#{context[0]} to #{context[-1]}."
            )
    with recording_parts(checkpoint, read) if not why_not else nullcontext() as written:
        verified = verify_attention(
            checkpoint, tokens, progress=progress, target=decoded and decoded.tokens, memory=of_chunk
        )
    layers, heads = [], []
    for layer in checkpoint.layers:
        shares, of_layer = measure_contributions(verified, layer)
        layers.append(shares)
        heads += of_layer
        tell(progress, "measuring", layer + 1, checkpoint.n_layers)
    effects, end = None, None
    if written is not None and of_span:
        first, last = ends or _best_answer(checkpoint, written, tokens)
        effects, end = direct_effects(verified, written, first, 0), direct_effects(verified, written, last, 1)
    elif written is not None:
        effects = direct_effects(verified, written, position, *ids)
    return HeadOutputs(
        text=text,
        pair=pair,
        checkpoint=checkpoint,
        tokens=tokens,
        attention=verified,
        layers=tuple(layers),
        heads=tuple(sorted(heads, key=lambda head: (-(head.projection_share or 0.0), head.id))),
        written=written,
        effects=effects,
        no_effects=why_not,
        target=decoded,
        end_effects=end,
    )


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


def _context(tokens: Prompt) -> list[int]:
    """Positions of the text in which an answer is looked for: of a pair the second."""
    context = int(1 in tokens.segments)
    placed = enumerate(zip(tokens.segments, tokens.special, strict=True))
    return [position for position, (segment, special) in placed if segment == context and not special]


def _best_answer(checkpoint: Checkpoint, written: WrittenParts, tokens: Prompt) -> tuple[int, int]:
    """First and last token of the stretch of the context with the largest sum of both logits."""
    head = checkpoint.prediction_head
    assert head is not None
    with without_gradients(checkpoint.device):
        start, end = upcast(head(written.sites[None, "final"])).unbind(-1)
        outside = torch.ones(len(tokens), dtype=torch.bool, device=start.device)
        outside[_context(tokens)] = False
        start, before = start.masked_fill(outside, -torch.inf).cummax(0)
        last = int((start + end.masked_fill(outside, -torch.inf)).argmax())
    return int(before[last]), last


def _position(checkpoint: Checkpoint, tokens: Prompt, token: str | int | None) -> int:
    """A token, of a word of several pieces the last, or the first that gets a class; default: the predicting one."""
    of_tokens = checkpoint.class_head is not None and checkpoint.classifier is None
    if token is not None:
        return find_positions(merge_subwords(tokens, words=False), token)[0 if of_tokens else -1]
    if checkpoint.classifier is not None:
        return checkpoint.classifier.position(tokens.ids)
    if checkpoint.stacks or (checkpoint.architecture.causal and not of_tokens):
        return len(tokens) - 1
    masked = [position for position, id in enumerate(tokens.ids) if id == checkpoint.tokenizer.mask_token_id]
    return masked[0] if masked else position_of(tokens)
