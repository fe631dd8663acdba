"""Direct effects of heads on an answer minus a foil: two tokens of the vocabulary, or two classes.

Direct effects alone: what later layers make of a head's output is in their parts (Elhage et al. 2021; answer minus foil
as in Wang et al. 2022, "Interpretability in the Wild"). The final state x is a sum of parts c
(:mod:`attnviz.run.stream`); with f(x) = logit of the answer - logit of the foil, c adds g·c, g = df/dx.

Where the unembedding or the classifier is one linear map (GPT-2, Llama) that is exact. BERT's masked-language head, its
pooler (tanh) and logits that are bounded (Gemma 2) are not linear: there g is the gradient at this x, what it leaves
out is a part of its own, and a finite difference checks that the head moves along the parts as they say. That parts sum
to the model's own x and f(x), and that its head gives the logits that the whole model returns, is checked, too.

Promoted tokens: those whose logits a head raises most (nostalgebraist 2020), where logits are linear in x. From its
part of the logits the mean over the vocabulary is removed, since a number added to all changes no probability.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attnviz.errors import UsageError, VerificationError
from attnviz.inputs.encoding import token_id
from attnviz.inputs.words import vocabulary_labels
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.offloading import parameter_of
from attnviz.reference.attention import upcast
from attnviz.run.contributions import check_total, without_gradients
from attnviz.run.finite import refuse_not_finite
from attnviz.run.sites import what_to_try
from attnviz.run.stream import Source, WrittenParts, check_logits, parts_at, why_no_effects
from attnviz.run.verify import VerifiedAttention

MOST_TOKENS = 10  # tokens listed of those that a head promotes, or suppresses, most
NOT_LINEAR = " (not linear)"  # ends the name of the part that a linearisation leaves out

_ROUNDINGS = (
    4  # of all parts: how far the sum of direct effects may be off; below 2.1 for correct sums in half precision
)

# Of the finite difference: the step along the parts as a share of the final state's length, and the largest error as a
# share of what all parts add, absolute. What bends in such a step is of third order, below 1e-3 of it.
_STEP, _CURVED = 1e-2, 2e-2

_AT_ONCE = 32  # heads whose logits are computed at a time
_IN_LAYER = ("attention bias", "mixer", "norm bias", "feed-forward", "experts", "words by layer")  # in a table


@dataclass(frozen=True)
class TokenLogit:
    """A token of the vocabulary, as figures show it, and logits: log-odds (nats) against the tokens' geometric mean."""

    id: int
    text: str
    logit: float


@dataclass(frozen=True)
class Promotion:
    """Tokens whose logit a head's output raises, or lowers, most, the most first; may be empty."""

    promoted: tuple[TokenLogit, ...]
    suppressed: tuple[TokenLogit, ...]


@dataclass(frozen=True)
class Answer:
    """A token, as figures show it, a class, or a token of the text where an answer starts or ends."""

    id: int  # of the token, number of the class, or position in the text
    text: str
    logit: float
    probability: float


@dataclass(frozen=True)
class PartEffect:
    """Direct effect of a part that is no head."""

    name: str  # embeddings, attention bias, feed-forward, biases of norms and head, or ends in NOT_LINEAR
    layer: int | None  # counted from 0; None for what belongs to no layer
    direct_effect: float  # in logits; positive if it favours the answer


@dataclass(frozen=True)
class DirectEffects:
    """The logit of an answer minus that of a foil, at one position, as a sum over heads and other parts."""

    position: int  # of the token whose final state is read, counted from 0
    answer: Answer
    foil: Answer | None  # None in question answering: the logit is divided alone
    boundary: str  # in question answering ``start`` or ``end``; else empty
    predicted: Answer  # the model's first choice
    actual: Answer | None  # the token that follows in the text; None at its end, and where none is predicted
    classes: tuple[Answer, ...]  # all of them, in the model's order; empty where the answer is a token
    # Logit of the answer minus that of the foil, by the head on the model's final state, in float32 at least; the
    # logits themselves are the model's, and rounded as these are.
    difference: float
    heads: dict[HeadId, float]  # direct effects; none of an encoder's heads where a decoder gives the logits
    keys: tuple[float, ...]  # of one head, if asked for, the same by key, [n_keys], which sum to its direct effect
    parts: tuple[PartEffect, ...]  # all that is no head
    promotions: dict[HeadId, Promotion]  # empty for classes, for a head by key, and where logits are not linear
    linear: bool  # whether the parts are exact; else a linearisation along the gradient
    deviation: float | None  # what the final norm divides by, held fixed; None of a model without
    error: float  # the difference of the sum of heads and parts from ``difference``, as a share of ``scale``
    scale: float  # the largest of heads and ``difference``, absolute; a larger part that is no head would hide them
    # Applied to ``error``: of the dtype, or what its rounding of the final state makes of the logits, if that is more.
    tolerance: float


def answer_ids(
    checkpoint: Checkpoint, answer: str | int | None, foil: str | int | None
) -> tuple[int | None, int | None]:
    """Ids of the tokens, or numbers of the classes, that an answer and a foil name; None where none is given.

    UsageError: no such token or class, both the same, or a model without logits.
    """
    why = why_no_effects(checkpoint)
    if why and (answer, foil) != (None, None):
        raise UsageError(f"leave out --answer and --foil (answer=..., foil=...). {why}")
    return named_ids(checkpoint, answer, foil)


def named_ids(
    checkpoint: Checkpoint, answer: str | int | None, foil: str | int | None
) -> tuple[int | None, int | None]:
    """The same of any model with a head, also of one whose head cannot be divided among parts."""
    classifier = checkpoint.class_head

    def number(name: str, value: str | int | None) -> int | None:
        if value is None:
            return None
        if classifier is not None:
            return classifier.number(value)
        return token_id(checkpoint.tokenizer, name, value, int(checkpoint.config.vocab_size), bool(checkpoint.stacks))

    one, other = number("answer", answer), number("foil", foil)
    if one is not None and one == other:
        kind = "tokens" if classifier is None else "classes"
        raise UsageError(f"expected two {kind}, found {answer!r} for both --answer and --foil.")
    return one, other


def direct_effects(
    verified: VerifiedAttention,
    written: WrittenParts,
    position: int,
    answer: int | None = None,
    foil: int | None = None,
    by_key: HeadId | None = None,
) -> DirectEffects:
    """Decompose an answer minus a foil; ``written`` was recorded while the heads were verified.

    ``answer``, ``foil``: by :func:`answer_ids`; None for the model's first choice, and for the first of the others. In
    question answering ``answer`` is 0 for the start of the answer and 1 for its end, and there is no foil. ``by_key``:
    a head whose effect is divided among the keys that it attends to, too.

    VerificationError: the parts do not sum to the model's own final state or logits; they are not how its head moves;
    the whole model returns other logits; or the model was changed.
    """
    checkpoint = verified.checkpoint
    tokens, _ = verified.tokens_of(next(layer for layer in written.layers if checkpoint.modules[layer].attends))
    head, classifier = checkpoint.prediction_head, checkpoint.class_head
    assert head is not None
    states = written.sites[None, "final"]
    final, at = upcast(states[position]), f"at position {position} ({tokens.labels[position]!r})"
    of_span, linear = checkpoint.answers_questions, _linear_map(head) is not None
    with without_gradients(checkpoint.device):
        model_logits = upcast(head(states)[:, answer] if of_span else head(states[[position]])[0])
        refuse_not_finite(model_logits, f"logits at position {position}")
        check_logits(checkpoint, verified.inputs, states[[position]], [position])
        best = model_logits.sort(descending=True, stable=True).indices[:3].tolist()
        probabilities = model_logits.softmax(-1)
        ranked = (number for number in best if number not in (answer, foil))  # the defaults
        one = next(ranked) if answer is None else answer
        other = next(ranked) if foil is None and not of_span else foil
        difference, gradient, of_biases = _linearised(head, final, one, other)
        bent, slope = difference - float(gradient @ final) - of_biases, _in_float64(gradient)
        terms = written.final_terms()
        names, of_position = parts_at(terms, torch.tensor([position]))
        parts = of_position[:, 0]
        no_sum = f"embeddings, heads, biases and feed-forward networks do not sum to the model's own final state {at}"
        check_total(checkpoint, parts.sum(0), _in_float64(final), no_sum, "in dimension {}".format)
        values = parts @ slope
        if not linear:
            _check_slope(head, final, (one, other), parts.to(final), values, of_biases, at)
        promotions = {} if classifier or by_key or not linear else dict(_promotions(checkpoint, names, parts))
        effects = dict(zip(names, values.tolist(), strict=True))
        keys: tuple[float, ...] = ()
        if by_key is not None:
            (term,) = [term for term in terms if by_key in term.sources]
            of_keys = (term.by_key(verified, by_key, position) @ slope).tolist()
            effects[by_key] = sum(of_keys)
            keys = (*of_keys, *[0.0] * (len(verified.tokens_of(by_key.layer)[1]) - len(of_keys)))
    heads = {head: effects[head] for head in sorted(name for name in names if isinstance(name, HeadId))}

    def place(part: PartEffect) -> tuple[int, int]:  # in a table: embeddings, layers in running order, the final norm
        if part.layer is None:
            return (len(written.layers) if part.name == "final norm bias" else -1), 0
        return written.layers.index(part.layer), _IN_LAYER.index(part.name)

    others = [PartEffect(*name, value) for name, value in effects.items() if not isinstance(name, HeadId)]
    others.sort(key=place)
    what = "unembedding" if classifier is None else "classifier"
    if any(name.endswith("bias") for name, _ in head.named_parameters()):
        others.append(PartEffect(f"{what} bias", None, of_biases))
    if not linear:
        others.append(PartEffect(f"{what}{NOT_LINEAR}", None, bent))
    total = sum([*heads.values(), *(part.direct_effect for part in others)])
    scale = max(map(abs, [*heads.values(), difference])) or 1.0
    error = abs(total - difference) / scale
    spread = float((slope.square() * parts.square().sum(0)).sum().sqrt())
    rounding = _ROUNDINGS * torch.finfo(checkpoint.dtype).eps * spread / scale
    tolerance = max(verified.verification.tolerance.output, rounding)
    if not error <= tolerance:  # a NaN is a failure, too
        raise VerificationError(
            f"the direct effects {at} sum to {total:.6g}, but the model's logits differ by {difference:.6g} (tolerance "
            f"{tolerance:.2g} of the larger of this and the largest head, {scale:.6g}). Nothing was written. "
            f"{what_to_try(checkpoint)}"
        )

    def choice(number: int) -> Answer:
        if of_span:
            label = tokens.labels[number]
        elif classifier is not None:
            label = classifier.labels[number]
        else:
            (label,) = vocabulary_labels(checkpoint.tokenizer, [number])
        return Answer(number, label, float(model_logits[number]), float(probabilities[number]))

    last = checkpoint.final_norm
    follows = not classifier and (checkpoint.architecture.causal or checkpoint.stacks) and position + 1 < len(tokens)
    return DirectEffects(
        position=position,
        answer=choice(position if of_span else one),
        foil=None if other is None else choice(other),
        boundary=classifier.labels[one] if classifier and of_span else "",
        predicted=choice(best[0]),
        actual=choice(tokens.ids[position + 1]) if follows else None,
        classes=tuple(map(choice, range(len(model_logits)))) if classifier and not of_span else (),
        difference=difference,
        heads=heads,
        keys=keys,
        parts=tuple(others),
        promotions=promotions,
        linear=linear,
        deviation=None if last is None else float(written.final_scale(checkpoint.norm(last))[position]),
        error=error,
        scale=scale,
        tolerance=tolerance,
    )


def _less(numbers: Tensor, one: int, other: int | None) -> Tensor:
    """What belongs to one choice less what belongs to the other, if there is one, in float32 at least."""
    return upcast(numbers[one]) if other is None else upcast(numbers[one]) - upcast(numbers[other])


def _linear_map(head: Any) -> Any:
    """The one linear map that a head is; None for others."""
    if isinstance(head, nn.Sequential):
        return head[0] if len(head) == 1 else None
    return head if hasattr(head, "weight") else None


def _logits(head: Any, final: Tensor, biases: Tensor | float = 1.0) -> Tensor:
    """Logits of a final state [d_model], in float32 at least; ``biases``: a factor of all biases of the head."""
    linear = _linear_map(head)
    if linear is not None:
        bias, logits = parameter_of(linear, "bias"), upcast(parameter_of(linear, "weight").detach()) @ final
        return logits if bias is None else logits + biases * upcast(bias.detach())
    named = {name: upcast(value.detach()) for name, value in (*head.named_parameters(), *head.named_buffers())}
    wide = {name: biases * value if name.endswith("bias") else value for name, value in named.items()}
    return functional_call(head, wide, (final,))  # type: ignore[no-any-return]


def _linearised(head: Any, final: Tensor, one: int, other: int | None) -> tuple[float, Tensor, float]:
    """The difference of two logits, its gradient by the final state, [d_model], and what the head's biases add."""
    state, biases = final.detach().clone().requires_grad_(), final.new_ones((), requires_grad=True)
    with torch.enable_grad():
        difference = _less(_logits(head, state, biases), one, other)
        gradient, of_biases = torch.autograd.grad(difference, (state, biases), materialize_grads=True)
    return float(difference), gradient, float(of_biases)


def _check_slope(
    head: Any,
    final: Tensor,
    two: tuple[int, int | None],
    parts: Tensor,
    values: Tensor,
    of_biases: float,
    at: str,
) -> None:
    """Raise unless logits move along all parts, each in its direction, as the parts and biases say."""
    eps, tiny = torch.finfo(final.dtype).eps, torch.finfo(final.dtype).tiny
    direction = values.sign().to(parts) @ parts
    step = _STEP * float(final.norm() / direction.norm().clamp_min(tiny))
    ahead, behind = (float(_less(_logits(head, final + by * direction, 1 + by), *two)) for by in (step, -step))
    size, change = float(values.abs().sum()), ahead - behind
    chosen = [number for number in two if number is not None]
    rounding = 64 * eps * float(_logits(head, final)[chosen].abs().max())
    if not abs(change - 2 * step * (size + of_biases)) <= 2 * step * _CURVED * size + rounding:
        raise VerificationError(
            f"the direct effects {at} are not how the logits move: along all parts they change by "
            f"{change / (2 * step):.6g}, but the direct effects sum to {size + of_biases:.6g}. Nothing was written."
        )


def _in_float64(tensor: Tensor) -> Tensor:
    """In float64 on the CPU, as the parts are."""
    return tensor.detach().cpu().double()


def _promotions(checkpoint: Checkpoint, names: Sequence[Source], parts: Tensor) -> Iterator[tuple[HeadId, Promotion]]:
    """What heads promote by their parts of the final state, of which logits are a linear map."""
    heads = [(row, name) for row, name in enumerate(names) if isinstance(name, HeadId)]
    weight = upcast(parameter_of(_linear_map(checkpoint.prediction_head), "weight")).T
    for first in range(0, len(heads), _AT_ONCE):
        some = heads[first : first + _AT_ONCE]
        logits = parts[[row for row, _ in some]].to(weight) @ weight
        for (_, head), of_head in zip(some, logits - logits.mean(-1, keepdim=True), strict=True):
            moved = []
            for sign in (1, -1):  # raised, then lowered
                values, ids = (top.tolist() for top in of_head.topk(min(MOST_TOKENS, len(of_head)), largest=sign > 0))
                tokens = map(TokenLogit, ids, vocabulary_labels(checkpoint.tokenizer, ids), values)
                moved.append(tuple(token for token in tokens if sign * token.logit > 0))
            yield head, Promotion(*moved)
