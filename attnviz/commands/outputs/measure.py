"""Measure the output of every head in the residual stream on one text.

For o_h, o, b_O and f see :mod:`attnviz.trace.contributions`. C are the content positions, S the sinks (special
tokens, in GPT-2 the first and those of :mod:`attnviz.trace.sinks`); means and sums over queries are over C.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnviz.commands.outputs.direct_effects import (
    Attribution,
    Decision,
    HeadPromotion,
    attribute_logits,
    check_classes,
    take_apart,
)
from attnviz.commands.outputs.residual_stream import (
    HeadContribution,
    OutputShares,
    ResidualStream,
    measure_contributions,
    recording_stream,
    why_no_attribution,
)
from attnviz.errors import UsageError
from attnviz.models.estimate import TextRun
from attnviz.models.head_ids import HeadId, Stack
from attnviz.models.offloading import DeviceMap
from attnviz.models.opening import Model, open_checkpoint, refuse_target
from attnviz.models.tokens import Tokens, find_positions, merge_subwords
from attnviz.models.wording import quoted, rounded
from attnviz.options import checked
from attnviz.present.figure_context import FigureContext
from attnviz.present.result import OfHeads, TextResult
from attnviz.progress import Progress, tell
from attnviz.trace.contributions import LayerContributions, layer_contributions
from attnviz.trace.generation import TargetTokens, target_tokens
from attnviz.trace.recorder import block_memory
from attnviz.trace.sinks import with_found_sinks
from attnviz.trace.verify import VerifiedAttention, verify_attention

Numbers = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class HeadOutputs(TextResult, OfHeads[HeadContribution]):
    """Result of :func:`head_outputs`; nothing in it comes from an unverified head.

    On the scale ``auto`` a head's colours end at its own largest norm; from 41 tokens on all are logarithmic. Views:
    ``overview``, ``shares``, ``effects`` (GPT-2), ``heads``.

    Attributes:
        attention: the verified heads, from which tensors are recomputed on demand.
        layers: first layer first.
        heads: by share of the output's norm, the largest first.
        stream: the other modules' outputs in the same forward pass, for promoted tokens.
        attribution: the logits at one position, decomposed; None if ``no_attribution`` gives a reason.
        target: of an encoder-decoder, what its decoder reads.
        stack: of a part of one (:attr:`parts`), which kind of attention that is.
        decision: of a model with a head for sequence classification, the difference of two classes' logits,
            decomposed; else None.
    """

    command: ClassVar[str] = "outputs"
    offered: ClassVar[tuple[str, ...]] = (
        "attribution", "by_layer", "decision", "norms", "output", "pattern", "promoted", "target",
    )  # fmt: skip

    attention: VerifiedAttention
    layers: tuple[OutputShares, ...]
    heads: tuple[HeadContribution, ...]
    stream: ResidualStream
    attribution: Attribution | None
    no_attribution: str
    decision: Decision | None = None
    target: TargetTokens | None = None
    stack: Stack | None = None

    @property
    def parts(self) -> "tuple[HeadOutputs, ...]":
        """Of an encoder-decoder one for each kind of attention, with its layers and heads; else the whole."""
        if self.stack is not None or not self.checkpoint.stacks:
            return (self,)
        return tuple(
            replace(
                self,
                stack=stack,
                layers=tuple(layer for layer in self.layers if layer.layer in stack.layers),
                heads=tuple(head for head in self.heads if head.id.layer in stack.layers),
            )
            for stack in self.checkpoint.stacks
        )

    def part_of(self, head: HeadContribution) -> "HeadOutputs":
        """The part (:attr:`parts`) of a head."""
        layer = self.own(head).id.layer
        return next(part for part in self.parts if part.stack is None or layer in part.stack.layers)

    @property
    def queries(self) -> Tokens:
        """Tokens of the queries."""
        return self.attention.tokens_of(self.layers[0].layer)[0]

    @property
    def keys(self) -> Tokens:
        """Tokens of the keys."""
        return self.attention.tokens_of(self.layers[0].layer)[1]

    @property
    def read(self) -> Tokens:
        """The text whose next tokens are predicted: the target, or in models of one kind the text."""
        return self.tokens if self.target is None else self.target.tokens

    @property
    def figure_context(self) -> FigureContext:
        """Text, model and unit, for figures, captions and tables; of a part, its own texts."""
        about, letter = super().figure_context, "X" if self.stack is None else self.stack.letter
        if self.target is None or letter == "E":
            return about
        if letter == "D":
            return replace(about, texts=(self.target.text,), n=len(self.read))
        return replace(about, texts=(*about.texts, self.target.text), sizes=(len(self.tokens), len(self.read)))

    def output(self, head: str | HeadId) -> Tensor:
        """Output of a head in the residual stream, (A V) W_O, [n, d_model], on the CPU.

        Raises:
            UsageError: the model has no such head.
            VerificationError: the model was changed since.
        """
        id = self.head(head).id
        return layer_contributions(self.attention, id.layer).outputs([id.head])[0].cpu()

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
        return layer_contributions(self.attention, id.layer).pattern(id.head).cpu()

    def by_layer(
        self, heads: Sequence[HeadContribution]
    ) -> Iterator[tuple[LayerContributions, list[HeadContribution]]]:
        """Group heads by layer, in the model's order."""
        for number, of_layer in groupby(sorted(heads, key=lambda head: head.id), lambda head: head.id.layer):
            yield layer_contributions(self.attention, number), list(of_layer)

    def attribute(self, token: str | int | None = None) -> Attribution:
        """Decompose the logits at another position.

        Args:
            token: a token or word of the text, ``cat#2``, ``#3`` or a position counted from 0; None for the last.

        Raises:
            UsageError: there is no such position, or this model's logits are no sum over heads.
            VerificationError: the parts do not sum to the model's logits.
        """
        if self.no_attribution:
            raise UsageError(self.no_attribution)
        return attribute_logits(self.attention, self.stream, _position(self.read, token))

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

    @checked
    def table(self, number: str) -> Numbers:
        """A field of :class:`HeadContribution` of every head, [n_layers, n_heads]; NaN for None."""
        names = [each.name for each in fields(HeadContribution) if each.name != "id"]
        if number not in names:
            raise UsageError(f"expected one of {', '.join(names)}, found {number!r}.")
        numbers = np.array([getattr(head, number) for head in sorted(self.heads, key=lambda head: head.id)], np.float64)
        return numbers.reshape(len(self.layers), -1)

    @cached_property
    def largest(self) -> float:
        """The largest ||A[q, k] f(x_k)|| of any head."""
        return max(head.largest for head in self.heads)

    def __repr__(self) -> str:
        id, value = self.heads[0].id, self.heads[0].projection_share
        share = "no share" if value is None else f"{rounded(value)} of its layer's output"
        counts = f"{len(self.heads)} heads verified, {id} first ({share})"
        return f"<HeadOutputs of {quoted(self.text)} with {self.figure_context.model}: {counts}>"


@checked
def head_outputs(
    text: str,
    model: Model | None = None,
    *,
    tokenizer: Any = None,
    pair: str | None = None,
    revision: str | None = None,
    adapter: str | Path | None = None,
    device: str | None = None,
    device_map: DeviceMap | Path | None = None,
    dtype: str | None = None,
    truncate: bool = False,
    token: str | int | None = None,
    label: str | int | None = None,
    against: str | int | None = None,
    target: str | None = None,
    max_new_tokens: int | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> HeadOutputs:
    """Measure what every head of a model adds to the residual stream on a text.

    >>> result = attnviz.head_outputs("The cat that I saw ran away")  # doctest: +SKIP
    >>> result.heads[0].id, result.heads[0].projection_share  # doctest: +SKIP
    >>> result.output("L2H8").shape, result.norms("L2H8").shape  # doctest: +SKIP

    Args:
        text: one text.
        model: see :data:`attnviz.models.opening.Model`.
        tokenizer: of a model in memory; a fast one.
        pair: a second segment (BERT).
        revision: branch, tag or commit of a hub id.
        adapter: as for :func:`attnviz.analyze`.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        device_map: instead of a device, as for :func:`attnviz.analyze`.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``, or ``auto``, the checkpoint's own.
        truncate: cut a text that is longer than the model instead of raising.
        token: where the tokens that heads promote are read (GPT-2): a token or word of the text, ``cat#2``, ``#3`` or a
            position counted from 0; default the last. Of an encoder-decoder (T5) one of the decoder's.
        label: of a classifier, the class whose logit is taken apart, by name or number; default the most probable.
        against: the class that it is held against; default the most probable other one.
        target: of an encoder-decoder, the text that its decoder reads; default one that it generates, greedily.
        max_new_tokens: of that text, at most; default 40.
        memory: that a block of query rows may take, in bytes, or as ``"64M"``; default 48 MiB.
        progress: callback for every layer verified and measured.

    Raises:
        AttnvizError: see :mod:`attnviz.errors` for the kinds; VerificationError where the heads do not reproduce the
            model, do not sum to its attention outputs, or the parts of its logits do not sum to these; UsageError for
            a class that the model lacks.
    """
    of_block = block_memory(memory)
    checkpoint, _ = open_checkpoint(
        model, tokenizer, revision, device, dtype, language_head=True, device_map=device_map, adapter=adapter,
        run=TextRun(text, pair, truncate, of_block),
    )  # fmt: skip
    refuse_target(checkpoint, target, max_new_tokens)
    n_layers, why_not = checkpoint.n_layers, why_no_attribution(checkpoint)
    if token is not None and why_not:
        raise UsageError(f"leave out --token (token=...), the position of promoted tokens. {why_not}")
    check_classes(checkpoint, label, against)
    tokens = with_found_sinks(checkpoint, checkpoint.tokenize(text, pair, truncate))
    read = target_tokens(checkpoint, tokens, target, truncate, max_new_tokens) if checkpoint.stacks else None
    position = _position(tokens if read is None else read.tokens, token)
    with recording_stream(checkpoint) as stream:
        verified = verify_attention(checkpoint, tokens, progress=progress, target=read and read.tokens, memory=of_block)
    layers, heads = [], []
    for layer in checkpoint.layers:
        shares, of_heads = measure_contributions(verified, layer)
        layers.append(shares)
        heads += of_heads
        tell(progress, "measuring", layer + 1, n_layers)
    ranked = tuple(sorted(heads, key=lambda head: (-(head.projection_share or 0.0), head.id)))
    attribution = None if why_not else attribute_logits(verified, stream, position)
    decision = take_apart(verified, stream, label, against)
    return HeadOutputs(
        text, pair, checkpoint, tokens, verified, tuple(layers), ranked, stream, attribution, why_not, decision, read
    )


def _position(tokens: Tokens, token: str | int | None) -> int:
    """A token, of a word of several pieces the last; by default the last of all."""
    return len(tokens) - 1 if token is None else find_positions(merge_subwords(tokens, words=False), token)[-1]
