"""All passes of an ablation: of each batch an unchanged one, and one resumed at a layer for each set of heads.

A sample of the batches is compared with the reference attention, and with the model's own final states.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.attention import reference as attention
from attnviz.attention.tolerances import TOLERANCES
from attnviz.attention.verify import Verification
from attnviz.commands.ablate.hooks import KeptPass, Replacement, removed_heads, resume, run_and_keep, running
from attnviz.commands.ablate.inputs import InputBatch, ModelInput, input_batches
from attnviz.commands.ablate.metrics import BatchMetrics, GradientTally
from attnviz.corpora.batches import EVERY, SampledAttention
from attnviz.errors import VerificationError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId

__all__ = ["HeadSet", "Passes", "SampleVerification", "mean_values"]

_VERIFIED = 8
"""Inputs that are verified at least, where there are as many; after that one batch in so many."""

_AT_ONCE = 2048
"""Tokens that a resumed pass has at least: a small batch is copied that often."""

HeadSet = frozenset[HeadId]


@dataclass(frozen=True)
class SampleVerification:
    """What was compared with the model, and how closely it agrees; it exists only where all of it passed."""

    heads: Verification  # patterns and attention outputs, by the reference attention
    n_inputs: int  # on which all of this was compared
    values_error: float
    """Largest difference between a head's weighted values and the reference's, as a share of the layer's largest."""
    resumed_error: float
    """The same of final states of passes resumed at any layer, nothing removed, and the model's own."""
    tolerance: float  # of both


class Passes:
    """Measures sets of heads on the inputs of texts, batch by batch.

    Attributes:
        counts: measured positions of each text, [n_texts], float64.
        baseline: loss of the unchanged model, summed over the positions of each text, [n_texts], float64; None where
            nothing is predicted, or nothing has run.
    """

    def __init__(
        self, checkpoint: Checkpoint, inputs: Sequence[ModelInput], replacement: Replacement, batch_size: int
    ) -> None:
        self._checkpoint, self._inputs, self._replacement = checkpoint, inputs, replacement
        self._batch_size = batch_size
        self.counts = torch.zeros(1 + max(each.text for each in inputs), dtype=torch.float64)
        for each in inputs:
            self.counts[each.text] += len(each.positions)
        self.baseline: Tensor | None = None
        self._attention = SampledAttention(checkpoint)
        self._values_error = self._resumed_error = 0.0

    @property
    def verified(self) -> SampleVerification:
        """What was compared so far."""
        heads, n_inputs = self._attention.verification, self._attention.texts_verified
        tolerance = TOLERANCES[self._checkpoint.dtype].output
        return SampleVerification(heads, n_inputs, self._values_error, self._resumed_error, tolerance)

    def run(
        self,
        sets: Sequence[HeadSet],
        tell: Callable[[int, int], None],
        gradients: GradientTally | None = None,
        verify: bool = True,
    ) -> Tensor:
        """Remove each set of heads, and measure.

        Args:
            sets: any number of sets of heads.
            tell: told how many inputs are done, of how many.
            gradients: to be filled on the way.
            verify: compare a sample of the batches with the reference; once is enough for the same inputs.

        Returns:
            the two metrics, summed over the positions of each text, [n_sets, n_texts, 2], float64.

        Raises:
            VerificationError: the heads, or resumed passes, do not reproduce the model.
        """
        sums = torch.zeros(len(sets), len(self.counts), 2, dtype=torch.float64)
        baseline = torch.zeros_like(self.counts)
        tell(done := 0, len(self._inputs))
        with running(self._checkpoint):
            for number, inputs in enumerate(input_batches(self._checkpoint, self._inputs, self._batch_size)):
                texts = torch.tensor([each.text for each in inputs.inputs])
                few = self._attention.texts_verified < _VERIFIED
                kept = self._kept(inputs, verify and (few or number % EVERY == 0))  # in a drawn order: a sample
                metrics = BatchMetrics(self._checkpoint, inputs, kept.final)
                for removed, changes in self._changes(sets, inputs, kept, metrics):
                    sums[removed] = sums[removed].index_add(1, texts, changes)
                if gradients is not None:
                    gradients.add(inputs, kept, metrics)
                if metrics.baseline is not None:
                    self.baseline = baseline.index_add_(0, texts, metrics.baseline)
                tell(done := done + len(inputs.inputs), len(self._inputs))
        return sums

    def _changes(
        self, sets: Sequence[HeadSet], inputs: InputBatch, kept: KeptPass, metrics: BatchMetrics
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Indices of sets and what removing them changes in each row; sets of the same first layer share passes."""
        by_layer: dict[int, list[int]] = {}
        for number, heads in enumerate(sets):
            by_layer.setdefault(min(heads).layer, []).append(number)
        mask = inputs.batch.inputs["attention_mask"]
        copies = max(1, _AT_ONCE // mask.numel())
        for layer, numbers in by_layer.items():
            for first in range(0, len(numbers), copies):
                some = numbers[first : first + copies]
                with removed_heads(self._checkpoint, [sets[number] for number in some], self._replacement, mask):
                    final = resume(self._checkpoint, kept, layer, len(some))
                yield some, metrics.changes(final)

    def _kept(self, inputs: InputBatch, verifying: bool) -> KeptPass:
        """The unchanged pass, on request compared with the reference and with resumed passes."""
        kept = run_and_keep(self._checkpoint, inputs.batch.inputs, inside=verifying)
        if verifying:
            one = SampledAttention(self._checkpoint)  # its first batch is always verified
            one.run(inputs.batch, lambda layer, pattern: self._compare_values(inputs, kept, layer, pattern))
            self._attention.absorb(one.state())
            self._compare_resumed(inputs, kept)
        return kept

    def _compare_values(self, inputs: InputBatch, kept: KeptPass, layer: int, pattern: Tensor) -> None:
        model = self._checkpoint
        value = attention.project(kept.attention_inputs[layer], model.architecture.parameters(model.model, layer).value)
        expected = torch.matmul(pattern, value).transpose(1, 2)[inputs.batch.valid]  # [tokens, n_heads, d_head]
        replaced = kept.concatenated[layer][inputs.batch.valid].reshape(-1, model.n_heads, model.d_head)
        difference = (replaced - expected).abs().amax((0, 2))
        error, tolerance = _relative(difference, replaced), self.verified.tolerance
        self._values_error = max(self._values_error, error)
        if not error <= tolerance:
            head = HeadId(layer, int(difference.nan_to_num(nan=torch.inf).argmax()))
            raise VerificationError(
                f"what would be removed of {head} is not what the reference gives for it: they differ by {error:.1e} "
                f"of the layer's largest weighted value (tolerance {tolerance:g}). Nothing was written."
            )

    def _compare_resumed(self, inputs: InputBatch, kept: KeptPass) -> None:
        own, tolerance = kept.final[inputs.batch.valid], self.verified.tolerance
        for layer in range(self._checkpoint.n_layers):
            again = resume(self._checkpoint, kept, layer)[inputs.batch.valid]
            error = _relative((again - own).abs(), own)
            self._resumed_error = max(self._resumed_error, error)
            if not error <= tolerance:
                raise VerificationError(
                    f"a pass resumed at layer {layer}, with nothing removed, does not reproduce the model's final "
                    f"states: they differ by {error:.1e} of the largest (tolerance {tolerance:g}). Nothing was written."
                )


def mean_values(
    checkpoint: Checkpoint, inputs: Sequence[ModelInput], batch_size: int, tell: Callable[[int, int], None]
) -> Tensor:
    """The mean weighted value of every head over all tokens, special ones too, [n_layers, n_heads, d_head], float64."""
    sums = torch.zeros(checkpoint.n_layers, checkpoint.n_heads * checkpoint.d_head, dtype=torch.float64)
    tokens = done = 0
    with running(checkpoint):
        for each in input_batches(checkpoint, inputs, batch_size):
            kept = run_and_keep(checkpoint, each.batch.inputs)
            for layer, values in enumerate(kept.concatenated):
                sums[layer] += values[each.batch.valid].double().sum(0).cpu()
            tokens += each.batch.n_tokens
            done += len(each.inputs)
            tell(done, len(inputs))
    return sums.reshape(checkpoint.n_layers, checkpoint.n_heads, checkpoint.d_head) / tokens


def _relative(difference: Tensor, values: Tensor) -> float:
    """The largest difference as a share of the largest value; NaN stays NaN, and is within no tolerance."""
    scale, largest = float(values.abs().max()), float(difference.max())
    return largest / scale if scale > 0 else largest
