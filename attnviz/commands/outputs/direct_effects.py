"""Direct effects of heads: tokens that their outputs promote, and their parts of a classifier's decision.

Direct effects alone: what later layers make of a head's output is in their parts.

Promoted tokens: those that a head's output promotes through the final norm and unembedding.
In a pre-norm model (GPT-2, Llama) the last residual stream x at a position is a sum: word and position embeddings,
every head's output, every b_O, every feed-forward network. The final layer norm with the standard deviation s that x
has in the model held fixed, and the unembedding W_U after it, are linear, so that the logits are the sum of what each
part c contributes (nostalgebraist 2020; Elhage et al. 2021)::

    logits(c) = ((c - mean of c) / s * gamma) W_U,     s = sqrt(variance of x + epsilon)

and beta W_U, which no part writes. A root-mean-square norm (Llama) subtracts no mean and has no beta; its s is the
root of the mean of x² + epsilon. Where a norm stands behind W_O (Gemma), its scale is held fixed, too. Every
contribution has its mean over the vocabulary removed, since a number added to all logits changes no probability. That
all parts sum to the model's own logits is checked at the position, or nothing is given.

A classifier's decision as a sum: each head's part of the difference of two classes' logits.
The final state x at the token that the classifier reads is a sum of what the embeddings, every head, every b_O, every
feed-forward network and the biases of norms put there, once each norm on the way is held at the scale that it has in
the model (in BERT and its relatives all later ones, in GPT-2 and Llama the final one)::

    x = sum of parts c,     f(x) = logit of one class - logit of the other

Where the classifier is one linear map (GPT-2, Llama), c adds g·c with g = df/dx, exactly. BERT's pooler (tanh) and its
like are not linear: there g is the gradient at this x, a linearisation (exact for a ReLU), and what it leaves out
stands beside the parts as a part of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from attnviz.commands.outputs.residual_stream import ResidualStream, last_stream, parts_at
from attnviz.errors import UsageError, VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.classifier import Classifier
from attnviz.models.families.base import position_rows
from attnviz.models.head_ids import HeadId
from attnviz.models.offloading import parameter_of
from attnviz.models.words import vocabulary_labels
from attnviz.reference.attention import Norm, upcast
from attnviz.trace.contributions import check_total, without_gradients
from attnviz.trace.recorder import refuse_not_finite
from attnviz.trace.verify import VerifiedAttention

_NO_SUM = "embeddings, heads, biases and feed-forward networks do not sum to the model's own"

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

        for name, vector in _embeddings(checkpoint, tokens.ids, position):
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

    error, scale = check_total(
        total, own, tolerance, f"{_NO_SUM} logits at position {position} ({tokens.labels[position]!r})",
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


def _embeddings(checkpoint: Checkpoint, ids: Sequence[int], position: int) -> Iterator[tuple[str, Tensor]]:
    """The parts of the first layer's input at a position; one, if their sum is normed."""
    tables = checkpoint.architecture.embeddings(checkpoint.model)
    of_text = torch.tensor(ids)
    words, positions = tables.of_words(of_text)[position], None
    if tables.positions is not None:
        rows = position_rows(checkpoint.architecture, checkpoint.config, of_text)
        positions = tables.positions[int(rows[position])]
    if tables.norm is not None and positions is not None:
        yield "embeddings", checkpoint.norm(tables.norm)(words + positions)
        return
    yield "word embedding", words
    if positions is not None:
        yield "position embedding", positions


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(-1, keepdim=True)


NOT_LINEAR = "classifier (not linear)"
"""The part that a linearisation leaves out."""


@dataclass(frozen=True)
class ClassLogit:
    """A class with the model's logit and probability."""

    number: int
    name: str
    logit: float
    probability: float


@dataclass(frozen=True)
class DecisionPart:
    """Part of the difference of the logits that is no head's."""

    name: str  # embeddings, attention bias, feed-forward, norm bias, classifier bias, or NOT_LINEAR
    layer: int | None  # counted from 0; None for what belongs to no layer
    value: float  # in logits; positive if it favours the class


@dataclass(frozen=True)
class Decision:
    """The difference of two logits as a sum over heads and other parts.

    Attributes:
        position: of the token that the classifier reads, counted from 0.
        classes: all of them, in the model's order.
        label, against: the explained class, and the one it is compared with.
        difference: logit of ``label`` less that of ``against``.
        heads: in the model's order.
        parts: all that is no head.
        linear: whether the parts are exact; else a linearisation along the gradient of the classifier.
        error: the difference of the sum of heads and parts from ``difference``, as a share of ``scale``.
        scale: the largest of heads, parts and ``difference``, absolute.
        tolerance: that applied to ``error``, and to the sum of all parts of the final state.
    """

    position: int
    classes: tuple[ClassLogit, ...]
    label: ClassLogit
    against: ClassLogit
    difference: float
    heads: dict[HeadId, float]
    parts: tuple[DecisionPart, ...]
    linear: bool
    error: float
    scale: float
    tolerance: float

    @property
    def predicted(self) -> ClassLogit:
        """The most probable class."""
        return max(self.classes, key=lambda each: each.logit)


def check_classes(checkpoint: Checkpoint, *labels: str | int | None) -> None:
    """Raise UsageError for classes that the model lacks; the message lists its classes."""
    named = [label for label in labels if label is not None]
    classifier, why = checkpoint.classifier, checkpoint.why_no_classes
    if named and why:
        raise UsageError(f"--label and --against are for a checkpoint with a head for sequence classification; {why}.")
    numbers = [classifier.number(label) for label in named if classifier]
    if len(numbers) == 2 and numbers[0] == numbers[1]:
        raise UsageError(f"expected two classes, found {named[0]!r} for both --label and --against.")


def take_apart(
    verified: VerifiedAttention, stream: ResidualStream, label: str | int | None, against: str | int | None
) -> Decision | None:
    """Decompose the decision; ``stream`` was recorded while the heads were verified. None for a model without classes.

    Without a label the most probable class is explained, compared with the most probable other one.

    Raises:
        UsageError: the model lacks such a class.
        VerificationError: the parts do not sum to the final state, or to the difference of the logits.
    """
    classifier = verified.checkpoint.classifier
    if classifier is None or verified.checkpoint.why_no_classes:
        return None
    assert stream.normed is not None
    position, tolerance = classifier.position(verified.tokens.ids), verified.verification.tolerance.output
    with without_gradients(verified.checkpoint.device):
        own = upcast(classifier.head(stream.normed[position][None])[0])
        refuse_not_finite(own, "logits of classes")
        columns = range(len(own)), classifier.labels, own.tolist(), own.softmax(-1).tolist()
        classes = tuple(map(ClassLogit, *columns))
        chosen, other = _two(classifier, classes, label, against)
        names, vectors = _final_state(verified, stream, position)
        final = upcast(stream.normed[position])
        what = f"{_NO_SUM} final state at position {position} ({verified.tokens.labels[position]!r})"
        check_total(vectors.sum(0), final, tolerance, what, lambda dimension: f"in dimension {dimension}")
        gradient, rest = _linearised(classifier, final, chosen.number, other.number)
        values = (vectors @ gradient).tolist()
    difference = float(own[chosen.number] - own[other.number])
    named = list(zip(names, values, strict=True))
    heads = {name: value for name, value in named if isinstance(name, HeadId)}
    parts = [DecisionPart(*name, value) for name, value in named if not isinstance(name, HeadId)] + rest
    every = [*heads.values(), *(part.value for part in parts)]
    scale = max(map(abs, [*every, difference])) or 1.0
    error = abs(sum(every) - difference) / scale
    if not error <= tolerance:  # a NaN is a failure, too
        raise VerificationError(
            f"the parts of the decision sum to {sum(every):.6g}, but the model's logits differ by {difference:.6g} "
            f"(tolerance {tolerance:g} of the largest part, {scale:.6g}). Nothing was written. Try --dtype float64: it "
            "makes rounding smaller, but not an error."
        )
    return Decision(
        position, classes, chosen, other, difference, heads, tuple(parts), classifier.linear, error, scale, tolerance
    )


def _two(
    classifier: Classifier, classes: tuple[ClassLogit, ...], label: str | int | None, against: str | int | None
) -> tuple[ClassLogit, ClassLogit]:
    """The two classes, by default the most probable ones."""
    fixed = {classifier.number(each) for each in (label, against) if each is not None}
    ranked = iter(sorted((each for each in classes if each.number not in fixed), key=lambda each: -each.logit))
    chosen = next(ranked) if label is None else classes[classifier.number(label)]
    return chosen, next(ranked) if against is None else classes[classifier.number(against)]


def _linearised(classifier: Classifier, final: Tensor, one: int, other: int) -> tuple[Tensor, list[DecisionPart]]:
    """Gradient of the difference by the final state, [d_model], and the classifier's own parts."""
    wide = {name: upcast(each.detach()).clone() for name, each in classifier.head.named_parameters()}
    inputs = [final.detach().clone(), *(each for name, each in wide.items() if name.endswith("bias"))]
    with torch.enable_grad():
        for each in inputs:
            each.requires_grad_()
        logits: Tensor = functional_call(classifier.head, wide, (inputs[0],))
        difference = logits[one] - logits[other]
        gradients = torch.autograd.grad(difference, inputs)
    linear, *biases = (float((gradient * value).sum()) for gradient, value in zip(gradients, inputs, strict=True))
    parts = [DecisionPart("classifier bias", None, sum(biases))] if biases else []
    if not classifier.linear:
        parts.append(DecisionPart(NOT_LINEAR, None, float(difference) - linear - sum(biases)))
    return gradients[0], parts


_Name = HeadId | tuple[str, int | None]


def _final_state(verified: VerifiedAttention, stream: ResidualStream, position: int) -> tuple[list[_Name], Tensor]:
    """Parts that sum to the final state at a position, [n_parts, d_model], and their names."""
    checkpoint, architecture = verified.checkpoint, verified.checkpoint.architecture
    assert stream.first is not None
    state = _State(upcast(stream.first[position]))
    layers: Any = architecture.modules(checkpoint.model)
    for name, layer, vectors in parts_at(verified, stream, position):
        normed = name == "feed-forward" and not architecture.pre_norm
        if normed:
            state.normalise(checkpoint.norm(layers[layer].attention_norm), layer)
        if name == "heads":
            state.add(vectors, *(HeadId(layer, head) for head in range(len(vectors))))
        else:
            state.add(vectors[None], (name, layer))
        if normed:
            state.normalise(checkpoint.norm(layers[layer].feed_forward_norm), layer)
    if (last := architecture.final_norm(checkpoint.model)) is not None:
        state.normalise(checkpoint.norm(last), None)
    if (mapped := architecture.output_map(checkpoint.model)) is not None:
        state.parts = state.parts @ upcast(parameter_of(mapped, "weight")).T
    return state.names, state.parts


class _State:
    """The residual stream at one position as parts that sum to it, [n_parts, d_model]."""

    def __init__(self, embeddings: Tensor) -> None:
        self.names: list[_Name] = [("embeddings", None)]
        self.parts = embeddings[None]

    def add(self, vectors: Tensor, *names: _Name) -> None:
        self.parts = torch.cat([self.parts, vectors.to(self.parts)])
        self.names += names

    def normalise(self, norm: Norm, layer: int | None) -> None:
        """Apply a norm to every part at the scale of their sum; the biases of a layer's norms are one part."""
        self.parts = norm.linear_part(self.parts, norm.scale(self.parts.sum(0))).to(self.parts)
        if norm.bias is None:
            return
        name = ("norm bias", layer)
        if name in self.names:
            self.parts[self.names.index(name)] += norm.bias
        else:
            self.add(norm.bias.detach()[None], name)
