"""What every head of a model writes on one text: found, verified and measured; the data of ``attnviz outputs``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnviz.arguments import check_texts
from attnviz.attention.verify import VerifiedAttention, verify_attention
from attnviz.commands.outputs.contributions import (
    HeadContribution,
    LayerContributions,
    OutputShares,
    layer_contributions,
    measure_contributions,
)
from attnviz.commands.outputs.promoted_tokens import Attribution, attribute_logits
from attnviz.commands.outputs.residual_stream import ResidualStream, recording_stream, why_no_attribution
from attnviz.errors import UsageError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId, head_named, select_heads
from attnviz.model.opening import Model, open_checkpoint
from attnviz.model.tokens import Tokens, find_positions, visible
from attnviz.model.wording import quoted
from attnviz.progress import Progress, tell

__all__ = ["Numbers", "WrittenOutputs", "find_outputs", "ranked"]

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class WrittenOutputs:
    """What the heads of one text write; nothing in it comes from an unverified head.

    Attributes:
        text, pair: as given.
        checkpoint: the model.
        tokens: the text as the model read it.
        attention: the verified heads; what is large is recomputed from it on demand.
        layers: first layer first.
        heads: by share of the output's norm, the largest first.
        stream: what the rest of the model gave in the same forward pass, for promoted tokens.
        attribution: the logits at one position, taken apart; None where ``no_attribution`` says why.
        no_attribution: one sentence, or empty.
    """

    text: str
    pair: str | None
    checkpoint: Checkpoint
    tokens: Tokens
    attention: VerifiedAttention
    layers: tuple[OutputShares, ...]
    heads: tuple[HeadContribution, ...]
    stream: ResidualStream
    attribution: Attribution | None
    no_attribution: str

    def select(self, selections: Sequence[str] = ()) -> list[HeadContribution]:
        """The heads that the selections name (``L2H8``, ``L2``, ``L*H8``, …), by share; all without one.

        Raises:
            UsageError: a selection cannot be read or names what the model lacks.
        """
        chosen = set(select_heads(selections, self.checkpoint.n_layers, self.checkpoint.n_heads))
        return [head for head in self.heads if head.id in chosen]

    def head(self, head: str | HeadId) -> HeadContribution:
        """The numbers of one head, by ``"L2H8"``, ``"2.8"`` or ``HeadId(2, 8)``.

        Raises:
            UsageError: the model has no such head.
        """
        wanted = head_named(head, self.checkpoint.n_layers, self.checkpoint.n_heads)
        return next(found for found in self.heads if found.id == wanted)

    def output(self, head: str | HeadId) -> Tensor:
        """What a head adds to the residual stream, (A V) W_O, [n, d_model], on the CPU.

        Raises:
            UsageError: the model has no such head.
            VerificationError: the model was changed since.
        """
        found = self.head(head).id
        return self._writing(found.layer).output(found.head).cpu()

    def norms(self, head: str | HeadId) -> Tensor:
        """Norm-weighted attention ||A[q, k] f(x_k)||, [n, n], row = query, on the CPU; raises as :meth:`output`."""
        found = self.head(head).id
        return self._writing(found.layer).norms(found.head).cpu()

    def value_norms(self, head: str | HeadId) -> Tensor:
        """||f(x_k)|| of every key, [n], on the CPU; raises as :meth:`output`."""
        found = self.head(head).id
        return self._writing(found.layer).value_norms(found.head).cpu()

    def pattern(self, head: str | HeadId) -> Tensor:
        """The raw pattern A, [n, n], row = query, on the CPU; raises as :meth:`output`."""
        found = self.head(head).id
        return self._writing(found.layer).pattern[found.head].cpu()

    def each_layer(self, layers: Sequence[int]) -> Iterator[LayerContributions]:
        """What some layers write, one at a time."""
        for layer in layers:
            yield self._writing(layer)

    def attribute(self, at: str | int | None = None) -> Attribution:
        """The logits at another position, taken apart.

        Args:
            at: a token of the text that stands there once, ``#3`` or a position counted from 0; None for the last.

        Raises:
            UsageError: there is no such position, or this model's logits are no sum over heads.
            VerificationError: the parts do not sum to the model's logits.
        """
        if self.no_attribution:
            raise UsageError(self.no_attribution)
        return attribute_logits(self.attention, self.stream, _position(self.tokens, at))

    @cached_property
    def largest(self) -> float:
        """The largest ||A[q, k] f(x_k)|| of any head."""
        return max(head.largest for head in self.heads)

    @property
    def title(self) -> str:
        """The model, safe to show."""
        return visible(self.checkpoint.short_name)

    @property
    def text_line(self) -> str:
        """The text, or both of a pair, in quotation marks, and how many tokens there are."""
        quotes = " / ".join(quoted(text) for text in (self.text, self.pair) if text is not None)
        n = len(self.tokens)
        return f"{quotes} ({n} token{'' if n == 1 else 's'})"

    @property
    def sinks(self) -> str:
        """The sink positions of this text, in words; empty where it has none."""
        tokens = self.tokens
        kinds = ["special tokens"] * any(tokens.special)
        if any(sink and not special for sink, special in zip(tokens.sink, tokens.special, strict=True)):
            kinds.append("the first token")
        return " and ".join(kinds)

    def table(self, number: str) -> Numbers:
        """One of the numbers of :class:`HeadContribution` of every head, [n_layers, n_heads]; NaN for None."""
        values = np.full((self.checkpoint.n_layers, self.checkpoint.n_heads), np.nan)
        for head in self.heads:
            value = getattr(head, number)
            values[head.id] = np.nan if value is None else value
        return values

    def _writing(self, layer: int) -> LayerContributions:
        return layer_contributions(self.attention, layer)


def find_outputs(
    text: str,
    model: Model = "minilm",
    *,
    tokenizer: Any = None,
    pair: str | None = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    truncate: bool = False,
    at: str | int | None = None,
    progress: Progress | None = None,
) -> WrittenOutputs:
    """Recompute what every head of a model writes on a text, verify it and measure it.

    Args:
        text: one text.
        model: see :data:`attnviz.model.opening.Model`.
        tokenizer: of a model in memory; a fast one.
        pair: a second segment (BERT).
        revision: branch, tag or commit of a hub id.
        device: ``auto`` (default), ``cpu``, ``cuda``, ``cuda:N``, ``mps``.
        dtype: ``float32`` (default), ``float64``, ``bfloat16``, ``float16``.
        truncate: cut a text that is longer than the model instead of raising.
        at: where the tokens that heads promote are read (GPT-2): as for :meth:`WrittenOutputs.attribute`.
        progress: told of every layer verified and measured.

    Raises:
        AttnvizError: see :mod:`attnviz.errors` for the kinds; VerificationError where the heads do not reproduce the
            model, do not sum to its attention outputs, or the parts of its logits do not sum to these.
    """
    check_texts(text, pair, "give one text at a time")
    checkpoint, _ = open_checkpoint(model, tokenizer, revision, device, dtype, language_head=True)
    n_layers, why_not = checkpoint.n_layers, why_no_attribution(checkpoint)
    if at is not None and why_not:
        raise UsageError(f"a position (--at, at=...) is for promoted tokens. {why_not}")
    tokens = checkpoint.tokenize(text, pair, truncate)
    position = _position(tokens, at)
    tell(progress, "verifying", 0, n_layers)
    with recording_stream(checkpoint) as stream:
        verified = verify_attention(
            checkpoint, tokens, lambda layer: tell(progress, "verifying", layer.check.layer + 1, n_layers)
        )
    layers, heads = [], []
    for layer in range(n_layers):
        shares, of_heads = measure_contributions(verified, layer)
        layers.append(shares)
        heads += of_heads
        tell(progress, "measuring", layer + 1, n_layers)
    attribution = None if why_not else attribute_logits(verified, stream, position)
    return WrittenOutputs(
        text, pair, checkpoint, tokens, verified, tuple(layers), tuple(ranked(heads)), stream, attribution, why_not
    )


def ranked(heads: Sequence[HeadContribution]) -> list[HeadContribution]:
    """The heads by share of the output's norm (``projection_share``), the largest first."""
    return sorted(heads, key=lambda head: (-(head.projection_share or 0.0), head.id))


def _position(tokens: Tokens, at: str | int | None) -> int:
    """The one position that was meant.

    Raises:
        UsageError: there is none, or several, or it is neither token nor position.
    """
    if at is None:
        return len(tokens) - 1
    if isinstance(at, bool) or not isinstance(at, str | Integral):
        raise UsageError(
            "expected a position (at) as a token of the text, '#' and its position such as '#3', or a whole number, "
            f"found {at!r}."
        )
    if not isinstance(at, str):
        if not 0 <= at < len(tokens):
            raise UsageError(f"the text has positions 0 to {len(tokens) - 1}, found {at}.")
        return int(at)
    places = find_positions(tokens.labels, at)
    if len(places) > 1:
        shown = ", ".join(f"#{place}" for place in places[:6]) + (", …" if len(places) > 6 else "")
        raise UsageError(
            f"the token “{visible(at)}” stands in the text {len(places)} times, at {shown}; name one of these."
        )
    return places[0]
