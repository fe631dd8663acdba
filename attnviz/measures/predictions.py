"""What a model predicts of texts, and metrics of how much worse it gets when something in it is changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

from attnviz.arguments import as_found
from attnviz.errors import CorpusError, TextError, UsageError
from attnviz.inputs.encoding import mask_token
from attnviz.inputs.lines import naming_row
from attnviz.inputs.prompt import Prompt, Text
from attnviz.inputs.text import encode
from attnviz.measures.decisions import class_number
from attnviz.measures.direct_effects import named_ids
from attnviz.memory import is_out_of_memory
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.libraries import first_line
from attnviz.reference.attention import upcast
from attnviz.run.finite import refuse_not_finite
from attnviz.run.passes import InputBatch, ModelInput

NEXT, MASKED, STATES = "next-token", "masked-token", "states"
CLASSES = LABELLED, CLASS = "labelled-class", "class"
# Kinds of measurement: how well the next token is predicted, or a masked one, or how far the final states move; of a
# classifier how well the labelled class is predicted, or how far the probabilities of its classes move; at one
# position of each text how far the logit of an answer is above that of a foil, or what a function gives of the logits.
ANSWER, FUNCTION = "answer", "function"
AT_ONE_PLACE = (*CLASSES, ANSWER, FUNCTION)  # kinds that are measured once a text

_CHUNK = 2**24  # logits that are computed at a time: 64 MiB in float32

# A function of logits [batch, n_vocab], or of classes, of variants of the model at one position of a text, and of what
# is known of the text by name (text, pair, id, label, answer, foil): a number for each variant, [batch], higher where
# the prediction is better.
Scoring = Callable[[Tensor, Mapping[str, Any]], Tensor]


def _all_have(what: str, values: Sequence[object], texts: Sequence[Text]) -> bool:
    """Whether every text has one; CorpusError where some alone have."""
    bare = [text for text, value in zip(texts, values, strict=True) if value is None]
    if 0 < len(bare) < len(texts):
        where = bare[0].place or repr(bare[0].text[:60])
        raise CorpusError(f"{where}: expected {what}, as other texts have, found none; give it one, or leave it out.")
    return len(bare) < len(texts)


def prediction_kind(
    checkpoint: Checkpoint, texts: Sequence[Text] = (), wanted: bool = False, function: Scoring | None = None
) -> str:
    """Kind of measurement: predictions, if the model has a head for classes or tokens, else final states.

    UsageError where labels are ``wanted`` of a model without classes, and for answers, or a ``function`` of logits, of
    a model that predicts none; CorpusError where some texts alone have a label, or an answer.
    """
    if function is not None or _all_have("an answer", [text.contrast for text in texts], texts):
        if checkpoint.stacks or prediction_kind(checkpoint) == STATES:
            what = "an answer and a foil are" if function is None else "a metric of your own (metric=...) is"
            model = "an encoder-decoder" if checkpoint.stacks else "a model without logits"
            raise UsageError(
                f"{what} for a decoder, a BERT with its masked-LM head, or a classifier, found {model}; leave it out."
            )
        return ANSWER if function is None else FUNCTION
    why = checkpoint.why_no_classes
    if not why:
        return LABELLED if _all_have("a label", [text.label for text in texts], texts) else CLASS
    if wanted:
        raise UsageError(f"labels are for a checkpoint with a head for sequence classification; {why}.")
    if checkpoint.language_head is not None and (checkpoint.architecture.causal or checkpoint.stacks):
        return NEXT
    return STATES if checkpoint.language_head is None or checkpoint.tokenizer.mask_token_id is None else MASKED


def model_inputs(
    checkpoint: Checkpoint, texts: Sequence[Text], kind: str, truncate: bool, warn: Callable[[str], None]
) -> tuple[list[ModelInput], list[Text]]:
    """Model inputs of texts, and the texts that give any; ``warn`` tells those left out, TextError a given one."""

    def leave_out(text: Text, why: str) -> None:
        if text.given_alone:
            raise TextError(f"cannot measure on {text.text[:60]!r}: {why}.")
        warn(f"{text.place}: left out: {why}.")

    inputs, kept = list[ModelInput](), list[Text]()
    for item in encode(checkpoint, texts, leave_out, truncate):
        of_text = inputs_of(checkpoint, item, kind, len(kept))
        inputs += of_text
        if of_text:
            kept.append(item.source)
        elif kind == NEXT:
            leave_out(item.source, "it has a single token, so there is no next one to predict")
        else:
            leave_out(item.source, "it has no token to mask")
    if not kept:
        raise TextError(
            "no text is left to measure on: all are too short or empty for this model, or too long (--truncate, "
            "truncate=True, cuts them)."
        )
    return inputs, kept


def inputs_of(checkpoint: Checkpoint, item: Prompt, kind: str, text: int) -> list[ModelInput]:
    """The inputs that one text gives for a kind of measurement; ``text`` is its index."""
    target, source = item.source.target, item.source
    if target is not None:
        item = replace(item, truncated=item.truncated + target.tokens.truncated)
        return [ModelInput(item, text, tuple(range(len(target.tokens))), target.predicted if kind == NEXT else ())]
    if kind == STATES:
        return [ModelInput(item, text, tuple(range(len(item))))]
    if kind in AT_ONE_PLACE:
        answer, foil = source.contrast or (None, None)
        ids: tuple[int | None, int | None] = None, None
        row = {name: getattr(source, name) for name in ("text", "pair", "id", "label")}
        if checkpoint.classifier is not None and source.label is not None:
            ids = class_number(checkpoint.classifier, source), None
        with naming_row(source.place):
            if kind == ANSWER:
                ids = named_ids(checkpoint, answer, foil)
            return [input_of_answer(checkpoint, item, text, ids, row | {"answer": answer, "foil": foil})]
    if kind == NEXT:
        return [ModelInput(item, text, tuple(range(len(item) - 1)), item.ids[1:])] if len(item) > 1 else []
    mask = mask_token(checkpoint.tokenizer, int(checkpoint.config.vocab_size))
    assert mask is not None  # else the final states are what is measured
    return [
        ModelInput(replace(item, ids=(*item.ids[:at], mask, *item.ids[at + 1 :])), text, (at,), (token,))
        for at, (token, sink) in enumerate(zip(item.ids, item.sink, strict=True))
        if not sink and token != mask  # nobody knows what stood under a mask of the text
    ]


def input_of_answer(
    checkpoint: Checkpoint, item: Prompt, text: int, ids: tuple[int | None, int | None], row: Mapping[str, Any]
) -> ModelInput:
    """The input of a text at one token of which an answer is predicted, perhaps compared with a foil."""
    labels, foils = (() if id is None else (id,) for id in ids)
    return ModelInput(item, text, (answer_position(checkpoint, item),), labels, foils, row)


def answer_position(checkpoint: Checkpoint, item: Prompt) -> int:
    """Where the answer is predicted: at the last token, or the mask; of a classifier where it reads."""
    if checkpoint.classifier is not None:
        return checkpoint.classifier.position(item.ids)
    if checkpoint.architecture.causal:
        return len(item) - 1
    mask = mask_token(checkpoint.tokenizer, int(checkpoint.config.vocab_size))
    if item.ids.count(mask) != 1:
        token = checkpoint.tokenizer.mask_token
        raise TextError(
            f"expected {token} once in {item.source.text[:60]!r}, where the answer is predicted, found it "
            f"{item.ids.count(mask)} times."
        )
    return item.ids.index(mask)


@dataclass(frozen=True)
class Prediction:
    """What is predicted at some positions, by the unchanged model or by changed ones."""

    states: Tensor  # the last hidden states, [.., positions, d_model]
    head: nn.Module | None  # makes logits of them; None for a model that predicts nothing
    labels: Tensor  # what is right, or what the unchanged model decides for, [positions]
    foils: Tensor  # what that is compared with, [positions]; empty without
    rows: Sequence[Mapping[str, Any]] = ()  # what a function is told of the text, by position

    @property
    def logits(self) -> Tensor:
        """Logits, [.., positions, vocabulary] or of classes, in float32 at least."""
        assert self.head is not None
        logits = upcast(self.head(self.states))
        refuse_not_finite(logits, "prediction of tokens or classes")
        return logits

    @cached_property
    def log_probabilities(self) -> Tensor:
        return log_softmax(self.logits, dim=-1)

    def fit(self) -> Tensor:
        """Log-probability of the labels, [.., positions]: the loss with the other sign."""
        return _at(self.log_probabilities, self.labels)

    def difference(self) -> Tensor:
        """Logit of the labels less that of the foils."""
        return self.fit() - _at(self.log_probabilities, self.foils)

    def margin(self) -> Tensor:
        """Logit of the labels less the largest other one."""
        fit = self.fit()
        labels = self.labels.expand(fit.shape)[..., None]
        return fit - self.log_probabilities.scatter(-1, labels, -torch.inf).amax(-1)


def _at(values: Tensor, labels: Tensor) -> Tensor:
    """The value of each label, [.., positions], of [.., positions, vocabulary]."""
    return values.gather(-1, labels.expand(values.shape[:-1])[..., None])[..., 0]


def _divergence(before: Prediction, after: Prediction) -> Tensor:
    """KL(before || after) in nats."""
    wanted, found = before.log_probabilities, after.log_probabilities
    return (wanted.exp() * (wanted - found)).sum(-1).clamp_min(0)  # negative only by rounding


def _cosine_distance(before: Prediction, after: Prediction) -> Tensor:
    towards = normalize(upcast(after.states), dim=-1) - normalize(upcast(before.states), dim=-1)
    return towards.square().sum(-1) / 2  # 1 - cos, without its rounding


def _distance(before: Prediction, after: Prediction) -> Tensor:
    moved: Tensor = (upcast(after.states) - upcast(before.states)).norm(dim=-1)
    return moved


def _decided_otherwise(before: Prediction, after: Prediction) -> Tensor:
    """1 where the most probable class is another one."""
    return after.log_probabilities.argmax(-1) != before.labels


@dataclass(frozen=True)
class Metric:
    """A measure of how much worse a model is when something in it is changed; 0 for no change.

    Either how far a score falls, which is better where it is higher, or how far predictions or states move.
    """

    name: str  # in documents
    title: str
    unit: str
    score: Callable[[Prediction], Tensor] | None = None
    distance: Callable[[Prediction, Prediction], Tensor] | None = None

    @property
    def of_predictions(self) -> bool:
        """Whether it is of what is predicted, not of the final states."""
        return self.name not in OF_STATES

    def damage(self, before: Prediction, after: Prediction) -> Tensor:
        """At each position, [.., positions]."""
        if self.score is not None:
            return self.score(before) - self.score(after)
        assert self.distance is not None
        return self.distance(before, after)


MARGIN, DIFFERENCE = "margin", "logit_difference"  # names of metrics

METRICS = {
    metric.name: metric
    for metric in (
        Metric("loss", "loss increase", "nats/token", score=Prediction.fit),
        Metric("kl", "KL divergence", "nats/token", distance=_divergence),
        Metric("cosine", "cosine distance", "1 − cos", distance=_cosine_distance),  # of the final states
        Metric("l2", "L2 distance", "length", distance=_distance),  # of the final states
        Metric("changed", "other decision", "share of texts", distance=_decided_otherwise),
        Metric(DIFFERENCE, "logit difference lost", "logits", score=Prediction.difference),
        # unlike a probability it does not saturate
        Metric(MARGIN, "margin lost", "logits", score=Prediction.margin),
    )
}
OF_STATES = "cosine", "l2"  # metrics
OF_FUNCTION = Metric("metric", "metric lost", "")


def metric_of(function: Scoring) -> Metric:
    """The metric that a function of the user's own gives; it is called with the logits of one text at a time.

    Its score raises UsageError where the function raises, or does not give one finite number for each row of logits.
    """
    name = str(getattr(function, "__name__", type(function).__name__))

    def of_text(logits: Tensor, row: Mapping[str, Any]) -> Tensor:
        try:
            scores = function(logits, row)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise UsageError(f"the metric {name} raised {type(error).__name__}: {first_line(error)}") from error
        expected = f"expected of the metric {name} a tensor [{len(logits)}], a number for each row of logits"
        if not isinstance(scores, Tensor):
            raise UsageError(f"{expected}, found {as_found(scores)}.")
        if scores.shape != logits.shape[:1]:
            raise UsageError(f"{expected}, found one of the shape {list(scores.shape)}.")
        if scores.is_complex() or scores.is_meta:
            found = "complex ones" if scores.is_complex() else "one on the device meta, without values"
            raise UsageError(f"{expected}, found {found}.")
        if not scores.isfinite().all():
            raise UsageError(f"{expected}, found {scores.tolist()} for the text {as_found(row.get('text'))}.")
        return scores if scores.is_floating_point() else scores.to(logits.dtype)

    def score(predicted: Prediction) -> Tensor:
        logits = predicted.logits
        variants = logits.reshape(-1, *logits.shape[-2:]).unbind(1)
        scores = [of_text(of_position, row) for of_position, row in zip(variants, predicted.rows, strict=True)]
        return torch.stack(scores, -1).reshape(logits.shape[:-1])

    return replace(OF_FUNCTION, unit=name, score=score)


def metrics_of(kind: str, function: Scoring | None = None) -> tuple[Metric, ...]:
    """The metrics: two, of classes three."""
    if function is not None:
        return metric_of(function), replace(METRICS["kl"], unit="nats/text")
    names = {
        STATES: OF_STATES,
        CLASS: ("kl", "changed", MARGIN),
        LABELLED: ("loss", "kl", MARGIN),
        ANSWER: (DIFFERENCE, "kl"),
    }.get(kind, ("loss", "kl"))
    unit = "nats/text" if kind in AT_ONE_PLACE else "nats/token"
    return tuple(replace(METRICS[name], unit=METRICS[name].unit.replace("nats/token", unit)) for name in names)


class BatchMetrics:
    """Metrics of a batch, relative to the unchanged model.

    ``clean`` is what it scores, by metric that has a score: sums over each row, [rows] float64.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        inputs: InputBatch,
        final: Tensor,
        weights: Sequence[Tensor],
        metrics: Sequence[Metric],
    ) -> None:
        """Predict from the last hidden states of the unchanged model, [rows, n, d_model].

        ``weights``: by text, how often each token counts in each sum, [n_tokens, n_sums]; the first sum is of all.
        """
        self._metrics, self._n_rows, self._device = metrics, len(inputs.inputs), final.device
        self._row = self._column([row for row, text in enumerate(inputs.inputs) for _ in text.positions])
        self._position = self._positions(inputs)
        self._counts = torch.cat([weights[text.text][list(text.positions)] for text in inputs.inputs])  # [.., n_sums]
        labels = self._column([label for text in inputs.inputs for label in text.labels])
        foils = self._column([foil for text in inputs.inputs for foil in text.foils])
        rows = [text.row for text in inputs.inputs if text.row is not None]
        head = checkpoint.prediction_head if metrics[0].of_predictions else None
        self._at_once = max(1, _CHUNK // int(checkpoint.config.vocab_size))  # positions
        self._parts: list[tuple[slice, Prediction]] = []  # positions, and what the unchanged model predicts there
        for first in range(0, len(self._row), self._at_once):
            part = slice(first, first + self._at_once)
            states = final[self._row[part], self._position[part]]
            predicted = Prediction(states, head, labels[part], foils[part], rows[part])
            if head is not None and not len(labels):
                predicted = replace(predicted, labels=predicted.log_probabilities.argmax(-1))
            self._parts.append((part, predicted))
        self.clean: dict[str, Tensor] = {}
        for metric in metrics:
            if metric.score is not None:
                scores = torch.cat([metric.score(predicted) for _, predicted in self._parts])
                self.clean[metric.name] = self._by_row(scores[None, :, None])[0, :, 0, 0]

    def changes(self, final: Tensor, inputs: InputBatch | None = None) -> Tensor:
        """The metrics summed over each row, [copies, rows, n_sums, n_metrics], float64.

        ``final``: last hidden states of copies of the batch, [copies * rows, n, d_model]; or of ``inputs``, other texts
        with as many positions to predict at.
        """
        sums = []
        copies = final.reshape(-1, self._n_rows, *final.shape[1:])
        position = self._position if inputs is None else self._positions(inputs)
        step = max(1, self._at_once // len(self._row))
        for first in range(0, len(copies), step):
            states = copies[first : first + step, self._row, position]
            changes = torch.cat([self._changes(before, states[:, part]) for part, before in self._parts], dim=1)
            refuse_not_finite(changes, "change without some of its heads")
            sums.append(self._by_row(changes))
        return torch.cat(sums)

    def loss_gradient(self, final: Tensor, weights: Tensor) -> Tensor:
        """Gradient by the unchanged model's final states, of the sum of each row's losses times its weight, [rows].

        The loss is how low the first metric's score is, if it has one, else that of what the model decides for.
        """
        score = self._metrics[0].score or METRICS["loss"].score
        assert score is not None
        gradient = torch.zeros_like(final)
        for part, predicted in self._parts:
            with torch.enable_grad():
                states = predicted.states.detach().requires_grad_()
                scores = score(replace(predicted, states=states))
                if not scores.requires_grad:
                    name = self._metrics[0].unit
                    raise UsageError(f"the metric {name} has no gradient: expected --no-gradient (gradient=False).")
                total = -(scores * weights.to(scores)[self._row[part]]).sum()
            (gradient[self._row[part], self._position[part]],) = torch.autograd.grad(total, states)
        return gradient

    def _changes(self, before: Prediction, states: Tensor) -> Tensor:
        """The metrics of each position, [copies, positions, n_metrics]."""
        after = replace(before, states=states)
        return torch.stack([metric.damage(before, after).double() for metric in self._metrics], dim=-1)

    def _positions(self, inputs: InputBatch) -> Tensor:
        return self._column([position for text in inputs.inputs for position in text.positions])

    def _column(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)

    def _by_row(self, values: Tensor) -> Tensor:
        """Sums over each row, [copies, rows, n_sums, n_metrics], of [copies, positions, n_metrics]."""
        counted = self._counts[..., None] * values.detach().double().cpu()[:, :, None]
        sums = torch.zeros(len(values), self._n_rows, *counted.shape[2:], dtype=torch.float64)
        return sums.index_add_(1, self._row.cpu(), counted)
