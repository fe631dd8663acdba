"""Direct logit attribution: tokens that a head's output promotes through the final norm and unembedding.

In a pre-norm model (GPT-2, Llama) the last residual stream x at a position is a sum: word and position embeddings,
every head's output, every b_O, every feed-forward network. The final layer norm with the standard deviation s that x
has in the model held fixed, and the unembedding W_U after it, are linear, so that the logits are the sum of what each
part c contributes (nostalgebraist 2020; Elhage et al. 2021)::

    logits(c) = ((c - mean of c) / s * gamma) W_U,     s = sqrt(variance of x + epsilon)

and beta W_U, which no part writes. A root-mean-square norm (Llama) subtracts no mean and has no beta; its s is the
root of the mean of x² + epsilon. Where a norm stands behind W_O (Gemma), its scale is held fixed, too. Every
contribution has its mean over the vocabulary removed, since a number added to all logits changes no probability. That
all parts sum to the model's own logits is checked at the position, or nothing is given. It is the direct effect alone:
what later layers make of a head's output is in their parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.outputs.residual_stream import ResidualStream, check_parts, last_stream, parts_at
from attnviz.errors import UsageError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.offloading import parameter_of
from attnviz.models.words import vocabulary_labels
from attnviz.reference.attention import upcast
from attnviz.trace.contributions import without_gradients
from attnviz.trace.recorder import refuse_not_finite
from attnviz.trace.verify import VerifiedAttention

MOST_TOKENS = 10
"""Tokens listed of those that a head promotes, or suppresses, most."""


@dataclass(frozen=True)
class TokenLogit:
    """A token of the vocabulary, as figures show it, and logits: log-odds (nats) against the tokens' geometric mean."""

    id: int
    text: str
    logit: float


@dataclass(frozen=True)
class ModelLogit(TokenLogit):
    """A token with the model's own logit: ``logit``, which parts sum to, and the mean that was removed from it."""

    model_logit: float  # as the model gives it
    mean_logit: float  # the mean of the model's logits over the vocabulary; with logit it sums to model_logit


@dataclass(frozen=True)
class HeadPromotion:
    """Direct effect of one head's output on the logits.

    Attributes:
        promoted, suppressed: tokens whose logit it raises, or lowers, most, the most first; may be empty.
        predicted: effect on the logit of the predicted token.
        actual: effect on the logit of the next token of the text; None at its end.
    """

    id: HeadId
    promoted: tuple[TokenLogit, ...]
    suppressed: tuple[TokenLogit, ...]
    predicted: float
    actual: float | None


@dataclass(frozen=True)
class PartEffect:
    """Effect of a part other than a head on the logits of the predicted and the actual next token."""

    name: str  # word or position embedding, attention bias, feed-forward, final norm bias, unembedding bias
    layer: int | None  # counted from 0; None for what belongs to no layer
    predicted: float  # as of a HeadPromotion, as is actual
    actual: float | None


@dataclass(frozen=True)
class Attribution:
    """The logits at one position as a sum over heads and other parts.

    Attributes:
        position: of the query, counted from 0.
        predicted: the token with the highest logit; like all logits here with the mean over the vocabulary removed,
            and beside that the model's own.
        actual: the token that follows in the text; None at its end.
        heads: in the model's order.
        parts: all parts that are no head.
        deviation: s, what the final norm divides the last residual stream by, held fixed.
        error: largest absolute difference of the sum of all parts from the model's own logits, mean over the
            vocabulary removed from both, divided by ``scale``.
        scale: the largest absolute of these logits.
        tolerance: that applied to ``error``.
    """

    position: int
    predicted: ModelLogit
    actual: ModelLogit | None
    heads: tuple[HeadPromotion, ...]
    parts: tuple[PartEffect, ...]
    deviation: float
    error: float
    scale: float
    tolerance: float

    def of(self, head: HeadId) -> HeadPromotion:
        """The entry of a head.

        Raises:
            UsageError: it is of an encoder, from whose residual stream no logits are made.
        """
        if (found := self.find(head)) is None:
            raise UsageError(
                f"{head} writes into the encoder's residual stream, of which no logits are made; expected a head of "
                "the decoder or of cross-attention."
            )
        return found

    def find(self, head: HeadId) -> HeadPromotion | None:
        """The entry of a head; None for an encoder's."""
        return next((promotion for promotion in self.heads if promotion.id == head), None)


def attribute_logits(verified: VerifiedAttention, stream: ResidualStream, position: int) -> Attribution:
    """Decompose the logits at one position; ``stream`` was recorded while the heads were verified.

    Raises:
        VerificationError: the parts do not sum to the model's own logits, within the tolerance for outputs of the
            number format (:data:`attnviz.reference.tolerances.TOLERANCES`), or the model was changed since.
    """
    checkpoint = verified.checkpoint
    tokens, _ = verified.tokens_of(last_stream(checkpoint)[0])
    heads: list[HeadPromotion] = []
    parts: list[PartEffect] = []
    assert stream.last is not None
    assert stream.normed is not None
    with without_gradients(checkpoint.device):
        unembedding = _Unembedding(checkpoint, stream.last[position])
        own_logits = unembedding.logits(stream.normed[position])
        own, mean = _centred(own_logits), float(own_logits.mean())
        predicted, actual = int(own.argmax()), tokens.ids[position + 1] if position + 1 < len(tokens) else None
        total = torch.zeros_like(own)

        def effects(logits: Tensor) -> tuple[float, float | None]:
            return float(logits[predicted]), None if actual is None else float(logits[actual])

        def add(name: str, layer: int | None, logits: Tensor) -> None:
            total.add_(logits)
            parts.append(PartEffect(name, layer, *effects(logits)))

        for name, vector in _embeddings(checkpoint, tokens.ids[position], position):
            add(name, None, unembedding(vector))
        for name, layer, vectors in parts_at(verified, stream, position):
            added = unembedding(vectors)
            if name != "heads":
                add(name, layer, added)
                continue
            total += added.sum(0)
            for head, logits in enumerate(added):
                promoted, suppressed = (_most_moved(logits, checkpoint.tokenizer, raised) for raised in (True, False))
                heads.append(HeadPromotion(HeadId(layer, head), promoted, suppressed, *effects(logits)))
        for name, logits in unembedding.constants():
            add(name, None, logits)
    refuse_not_finite(own_logits, f"logits at position {position}")
    tolerance = verified.verification.tolerance.output

    def label(token: int) -> str:
        return vocabulary_labels(checkpoint.tokenizer, [token])[0]

    def named(token: int, text: str) -> ModelLogit:
        return ModelLogit(token, text, float(own[token]), float(own_logits[token]), mean)

    error, scale = check_parts(
        total, own, tolerance, f"logits at position {position} ({tokens.labels[position]!r})",
        lambda token: f"for the token {label(token)!r}", "mean over the vocabulary removed; ",
    )  # fmt: skip
    return Attribution(
        position,
        predicted=named(predicted, label(predicted)),
        actual=None if actual is None else named(actual, tokens.labels[position + 1]),
        heads=tuple(sorted(heads, key=lambda head: head.id)),
        parts=tuple(parts), deviation=unembedding.deviation, error=error, scale=scale, tolerance=tolerance,
    )  # fmt: skip


def _most_moved(logits: Tensor, tokenizer: Any, raised: bool) -> tuple[TokenLogit, ...]:
    """Tokens whose logit is raised, or lowered, most by one head's effect, [vocabulary]."""
    values, ids = (top.tolist() for top in logits.topk(min(MOST_TOKENS, len(logits)), largest=raised))
    tokens = map(TokenLogit, ids, vocabulary_labels(tokenizer, ids), values)
    return tuple(token for token in tokens if (token.logit > 0 if raised else token.logit < 0))


class _Unembedding:
    """Map from a part of the last residual stream to its part of the logits, in float32 at least."""

    def __init__(self, checkpoint: Checkpoint, last: Tensor) -> None:
        """Fix the final norm's scale at that of the last residual stream, [d_model]."""
        norm: Any = checkpoint.architecture.final_norm(checkpoint.model)
        head: Any = checkpoint.language_head
        self._head, self._norm = head, checkpoint.norm(norm)
        self._weight, self._bias = upcast(parameter_of(head, "weight")), parameter_of(head, "bias")
        self.deviation = float(self._norm.scale(last))

    def logits(self, normed: Tensor) -> Tensor:
        """The model's own logits, by its unembedding, of its normed residual stream at the position, [vocabulary]."""
        return upcast(self._head(normed[None])[0])

    def __call__(self, part: Tensor) -> Tensor:
        """Map [.., d_model] to [.., vocabulary]."""
        return _centred(self._norm.linear_part(part, self.deviation) @ self._weight.T)

    def constants(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the constant parts of the logits by name, [vocabulary] each."""
        if self._norm.bias is not None:
            yield "final norm bias", _centred(upcast(self._norm.bias) @ self._weight.T)
        if self._bias is not None:
            yield "unembedding bias", _centred(upcast(self._bias))


def _embeddings(checkpoint: Checkpoint, token: int, position: int) -> Iterator[tuple[str, Tensor]]:
    tables = checkpoint.architecture.embeddings(checkpoint.model)
    yield "word embedding", tables.words[token] * tables.scale
    if tables.positions is not None:
        yield "position embedding", tables.positions[position]


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(-1, keepdim=True)
