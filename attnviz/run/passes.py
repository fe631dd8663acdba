"""Unchanged passes over batches of inputs, kept to be resumed; a sample of them is compared with the reference.

An input is a text; or, where a masked token is to be predicted, a copy of the text with one token masked, so that a
text gives as many inputs as it has tokens to mask. Of a text that is classified, one token is read.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnviz.inputs.batches import Batch, collate
from attnviz.inputs.prompt import Prompt
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.run import edit
from attnviz.run.checks import Verification
from attnviz.run.contributions import check_total
from attnviz.run.corpus import EVERY, SampledAttention
from attnviz.run.sites import Site, SiteKey, recording
from attnviz.run.stream import check_logits

_TOKENS = 4096  # most tokens of a batch, padding included

# Inputs of a batch are within 3 % or one token of the longest. Padding would cost more than large batches gain: a small
# batch is filled up with copies that lack other heads.
_FULL, _SLACK = 0.97, 1

_LOGITS = 2**26  # predictions times vocabulary of a batch: 256 MiB of probabilities in float32
_VERIFIED = 8  # least number of verified inputs; after these one batch in EVERY is verified
_LOGITS_COMPARED = 8  # positions of the first input of a verified batch whose logits are the whole model's

Tell = Callable[[int, int], None]  # progress callback: texts or inputs done, and their total
HeadSet = frozenset[HeadId]


class ModelInput(NamedTuple):
    """One input of the model; the final states at some positions are compared."""

    item: Prompt
    text: int  # index of the measured text
    positions: tuple[int, ...]
    labels: tuple[int, ...] = ()  # targets at these positions; empty without a prediction
    foils: tuple[int, ...] = ()  # what their logits are compared with; empty for the loss
    row: Mapping[str, Any] | None = None  # what a metric of the user's own is told of the text


class InputBatch(NamedTuple):
    """Inputs of about one length, padded on the right."""

    inputs: Sequence[ModelInput]
    batch: Batch

    @property
    def texts(self) -> list[int]:
        """Of each input the index of its text."""
        return [model_input.text for model_input in self.inputs]


class Pass(NamedTuple):
    """An unchanged pass over a batch."""

    inputs: InputBatch
    kept: edit.KeptPass
    sampled: bool  # whether it was verified


@dataclass(frozen=True)
class SampleVerification:
    """Errors of the verified sample, which passed: largest differences, as a share of the largest value compared."""

    attention: Verification  # patterns and attention outputs, by the reference attention
    n_inputs: int  # on which all of this was compared
    values_error: float  # of each head's weighted values from the reference's
    # of final states resumed at any layer by the model's own blocks, nothing removed, from those of a whole pass: that
    # resuming changes nothing
    resumed_error: float
    tolerance: float  # of both errors


class Passes:
    """Runs unchanged passes, and compares a sample with the reference, and with passes resumed at every layer.

    All is called inside :func:`attnviz.run.edit.running`.
    """

    def __init__(self, checkpoint: Checkpoint, has_logits: bool = True, sites: Collection[SiteKey] = ()) -> None:
        """``has_logits``: whether positions of inputs predict tokens or classes; those of the sample are compared.

        ``sites`` are kept, and passes are resumed so that they can be edited.
        """
        self._checkpoint, self._has_logits, self._sites = checkpoint, has_logits, sites
        self._attention = SampledAttention(checkpoint)
        self._tolerance = checkpoint.tolerance.output
        self._errors = {"values_error": 0.0, "resumed_error": 0.0}

    @property
    def verified(self) -> SampleVerification:
        attention = self._attention
        return SampleVerification(
            attention.verification, attention.texts_verified, **self._errors, tolerance=self._tolerance
        )

    def each(
        self, inputs: Sequence[ModelInput], batch_size: int, tell: Tell = lambda *_: None, verify: bool = True
    ) -> Iterator[Pass]:
        """One pass after the other over all inputs, in batches; ``verify`` a sample of them."""
        done = 0
        tell(done, len(inputs))
        for number, batch in enumerate(input_batches(self._checkpoint, inputs, batch_size)):
            sampled = verify and (self._attention.texts_verified < _VERIFIED or number % EVERY == 0)
            yield self._run(batch, sampled)
            done += len(batch.inputs)
            tell(done, len(inputs))

    def beside(self, other: Pass, inputs: Sequence[ModelInput], verify: bool = True) -> Pass:
        """The pass over other texts of a batch, verified where that one is, but not resumed."""
        batch = InputBatch(inputs, collate(self._checkpoint, [model_input.item for model_input in inputs]))
        return self._run(batch, verify and other.sampled, resumed=False)

    def _run(self, inputs: InputBatch, sampled: bool, resumed: bool = True) -> Pass:
        kept = edit.run_and_keep(self._checkpoint, inputs.batch.inputs, self._sites)
        if sampled:
            self.verify(inputs, kept, resumed)
        return Pass(inputs, kept, sampled)

    def verify(self, inputs: InputBatch, kept: edit.KeptPass, resumed: bool) -> None:
        """Compare an unchanged pass with the reference, its logits with the model's, and passes ``resumed`` from it."""
        checkpoint, batch = self._checkpoint, inputs.batch

        def compare(layer: int, weighted: Tensor) -> None:
            valid = batch.queries(layer)
            _, n_heads, d_head = weighted[valid].shape

            def where(worst: int) -> str:
                return f"in {HeadId(layer, worst // d_head % n_heads)}"

            what = f"what is to be replaced in layer {layer} is not what the reference gives for it"
            self._check("values_error", weighted[valid], kept.values[layer, "z"][valid], what, where)

        self._attention.verify(batch, lambda _: None, on_weighted_values=compare)
        final = kept.final[batch.predicting]
        if self._has_logits:
            at = list(inputs.inputs[0].positions[-_LOGITS_COMPARED:])
            first = {name: tensor[:1] for name, tensor in batch.inputs.items()}
            check_logits(checkpoint, first, kept.final[0, at], at)
        attending = any(name in edit.BEFORE_Z for _, name in self._sites)
        layers = dict.fromkeys([*checkpoint.layers, *(layer for layer, _ in self._sites)])
        for layer in layers if resumed else ():
            again = kept.resume(layer, attending=attending)[batch.predicting]
            what = f"a pass resumed at layer {layer}, with nothing removed, does not reproduce the model's final states"
            self._check("resumed_error", again, final, what, "at number {}".format)

    def _check(self, name: str, total: Tensor, values: Tensor, what: str, where: Callable[[int], str]) -> None:
        error, _ = check_total(self._checkpoint, total, values, what, where)
        self._errors[name] = max(self._errors[name], error)


def input_batches(checkpoint: Checkpoint, inputs: Sequence[ModelInput], batch_size: int) -> Iterator[InputBatch]:
    """Batch inputs of similar length, fewer of long ones, in a random order: any sample has inputs of all lengths."""
    groups: list[list[ModelInput]] = []
    room = tokens = logits = 0
    for model_input in sorted(inputs, key=lambda model_input: -len(model_input.item)):
        predicted = len(model_input.labels) * int(checkpoint.config.vocab_size)
        logits, tokens = logits + predicted, tokens + room
        short = len(model_input.item) + _SLACK < _FULL * room
        if not groups or short or len(groups[-1]) == batch_size or tokens > _TOKENS or logits > _LOGITS:
            groups.append([])
            room = tokens = len(model_input.item)
            logits = predicted
        groups[-1].append(model_input)
    random.Random(len(groups)).shuffle(groups)  # noqa: S311 - an order, not a secret
    for group in groups:
        yield InputBatch(group, collate(checkpoint, [model_input.item for model_input in group]))


def recorded_passes(
    checkpoint: Checkpoint,
    inputs: Sequence[ModelInput],
    batch_size: int,
    sites: Mapping[SiteKey, Site],
    on_pattern: Callable[[InputBatch, int, Tensor], None],
) -> Iterator[tuple[InputBatch, dict[SiteKey, Any]]]:
    """Each batch of inputs, with the tensors of its sites; a sample is verified.

    ``on_pattern`` gets the batch with each layer's patterns, [batch, n_heads, n, n].
    """
    attention = SampledAttention(checkpoint)
    for batch in input_batches(checkpoint, inputs, batch_size):
        with recording(sites) as seen:
            attention.run(batch.batch, partial(on_pattern, batch))
        yield batch, seen


def mean_values(checkpoint: Checkpoint, inputs: Sequence[ModelInput], batch_size: int, tell: Tell) -> list[Tensor]:
    """Mean weighted values of all heads over all tokens, special ones too, a layer each [n_heads, d_head], float64."""
    sums: list[Tensor | float] = [0.0] * checkpoint.n_layers
    tokens = torch.zeros(checkpoint.n_layers, dtype=torch.float64)
    with edit.running(checkpoint):
        for inputs_of_batch, kept, _ in Passes(checkpoint).each(inputs, batch_size, tell, verify=False):
            for layer in checkpoint.layers:
                valid = inputs_of_batch.batch.queries(layer)
                sums[layer] = sums[layer] + kept.values[layer, "z"][valid].double().sum(0).cpu()
                tokens[layer] += int(valid.sum())
    return [torch.as_tensor(of_layer) / n for of_layer, n in zip(sums, tokens, strict=True)]
