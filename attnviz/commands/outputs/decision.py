"""A classifier's decision as a sum: each head's part of the difference of two classes' logits.

The final state x at the token that the classifier reads is a sum of what the embeddings, every head, every b_O, every
feed-forward network and the biases of norms put there, once each norm on the way is held at the scale that it has in
the model (in BERT and its relatives all later ones, in GPT-2 and Llama the final one)::

    x = sum of parts c,     f(x) = logit of one class - logit of the other

Where the classifier is one linear map (GPT-2, Llama), c adds g·c with g = df/dx, exactly. BERT's pooler (tanh) and its
like are not linear: there g is the gradient at this x, a linearisation (exact for a ReLU), and what it leaves out
stands beside the parts as a part of its own. It is the direct effect alone: what later layers make of a head's output
is in their parts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from attnviz.commands.outputs.residual_stream import ResidualStream, check_parts, parts_at
from attnviz.errors import UsageError, VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.classifier import Classifier
from attnviz.models.head_ids import HeadId
from attnviz.reference.attention import Norm, upcast
from attnviz.trace.contributions import without_gradients
from attnviz.trace.recorder import refuse_not_finite
from attnviz.trace.verify import VerifiedAttention

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
        where = f"final state at position {position} ({verified.tokens.labels[position]!r})"
        check_parts(vectors.sum(0), final, tolerance, where, lambda dimension: f"in dimension {dimension}")
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
    layers = architecture.modules(checkpoint.model)
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
