"""All the passes of an ablation: of each batch one as it is, and one from a layer's input on for each set of heads.

A sample of the batches is compared with the reference attention, and with the model's own final states.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.attention import reference as attention
from attnviz.attention.tolerances import TOLERANCES
from attnviz.attention.verify import Verification
from attnviz.commands.ablate.gradient_importance import GradientTally
from attnviz.commands.ablate.hooks import Replacement, removed_heads
from attnviz.commands.ablate.inputs import Row, RowBatch, row_batches
from attnviz.commands.ablate.metrics import Reading
from attnviz.commands.ablate.resumed_forward import KeptPass, resume, run_and_keep, running
from attnviz.corpora.sampling import EVERY, SampledAttention
from attnviz.errors import VerificationError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId

__all__ = ["Checked", "HeadSet", "Passes", "mean_values"]

_VERIFIED = 8
"""Rows that are verified at least, where there are as many; after that one batch in so many."""

_AT_ONCE = 2048
"""Tokens that a resumed pass has at least, with as many copies of a small batch as that takes."""

HeadSet = frozenset[HeadId]


@dataclass(frozen=True)
class Checked:
    """What was compared with the model, and how closely it agrees; it exists only where all of it passed.

    Attributes:
        heads: patterns and attention outputs, by the reference attention.
        rows: inputs of the model on which all of this was compared.
        values_error: largest difference between what is replaced of a head, its weighted values, and the reference's,
            divided by the layer's largest.
        resumed_error: largest difference between the final states of passes resumed at any layer, nothing removed, and
            the model's own, divided by the largest.
        tolerance: of the last two.
    """

    heads: Verification
    rows: int
    values_error: float
    resumed_error: float
    tolerance: float


class Passes:
    """Measures sets of heads on rows of texts, batch by batch.

    Attributes:
        counts: for each text, at how many places it is looked at, [n_texts], float64.
        baseline: for each text the loss of the model as it is, summed over its places, [n_texts], float64; None where
            nothing is predicted, or nothing has run.
    """

    def __init__(self, checkpoint: Checkpoint, rows: Sequence[Row], replacement: Replacement, batch_size: int) -> None:
        """Nothing runs yet."""
        self._checkpoint, self._rows, self._replacement = checkpoint, rows, replacement
        self._batch_size = batch_size
        self._n_texts = 1 + max(row.text for row in rows)
        self.counts = torch.zeros(self._n_texts, dtype=torch.float64)
        for row in rows:
            self.counts[row.text] += len(row.places)
        self.baseline: Tensor | None = None
        self._attention = SampledAttention(checkpoint)
        self._values_error = self._resumed_error = 0.0

    @property
    def checked(self) -> Checked:
        """What was compared so far."""
        tolerance = TOLERANCES[self._checkpoint.dtype].output
        found = self._attention
        return Checked(found.verification, found.texts_verified, self._values_error, self._resumed_error, tolerance)

    def run(
        self,
        sets: Sequence[HeadSet],
        tell: Callable[[int, int], None],
        *,
        gradients: GradientTally | None = None,
        verify: bool = True,
    ) -> Tensor:
        """Remove each set of heads, and measure.

        Args:
            sets: any number of sets of heads.
            tell: told how many rows are done, of how many.
            gradients: to be filled on the way.
            verify: compare a sample of the batches with the reference; without it what an earlier run has shown holds.

        Returns:
            the two measures of :func:`attnviz.commands.ablate.metrics.measures_of`, summed over the places of each text,
            [n_sets, n_texts, 2], float64.

        Raises:
            VerificationError: the heads, or resumed passes, do not reproduce the model.
        """
        sums = torch.zeros(len(sets), self._n_texts, 2, dtype=torch.float64)
        baseline = torch.zeros(self._n_texts, dtype=torch.float64)
        done, total = 0, len(self._rows)
        tell(done, total)
        with running(self._checkpoint):
            for number, rows in enumerate(row_batches(self._checkpoint, self._rows, self._batch_size)):
                texts = torch.tensor([row.text for row in rows.rows])
                few = self._attention.texts_verified < _VERIFIED
                kept = self._kept(rows, verify and (few or number % EVERY == 0))  # in a drawn order: a sample
                reading = Reading(self._checkpoint, rows, kept.final)
                for removed, damage in self._damages(sets, rows, kept, reading):
                    sums[removed] = sums[removed].index_add(1, texts, damage)
                if gradients is not None:
                    gradients.add(rows, kept, reading)
                if reading.baseline is not None:
                    self.baseline = baseline.index_add_(0, texts, reading.baseline)
                done += len(rows.rows)
                tell(done, total)
        return sums

    def _damages(
        self, sets: Sequence[HeadSet], rows: RowBatch, kept: KeptPass, reading: Reading
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Numbers of sets and what removing them does to each row; sets that start at one layer share passes."""
        by_layer: dict[int, list[int]] = {}
        for number, heads in enumerate(sets):
            if heads:
                by_layer.setdefault(min(head.layer for head in heads), []).append(number)
        mask = rows.batch.inputs["attention_mask"]
        copies = max(1, _AT_ONCE // mask.numel())
        for layer, numbers in by_layer.items():
            for first in range(0, len(numbers), copies):
                some = numbers[first : first + copies]
                with removed_heads(self._checkpoint, [sets[number] for number in some], self._replacement, mask):
                    final = resume(self._checkpoint, kept, layer, len(some))
                yield some, reading.damage(final)

    def _kept(self, rows: RowBatch, verifying: bool) -> KeptPass:
        """The pass of the model as it is, if asked for compared with the reference and with resumed passes."""
        kept = run_and_keep(self._checkpoint, rows.batch.inputs, inside=verifying)
        if verifying:
            one = SampledAttention(self._checkpoint)  # its first batch is always verified
            one.run(rows.batch, lambda layer, pattern: self._compare_values(rows, kept, layer, pattern))
            self._attention.absorb(one.state())
            self._compare_resumed(rows, kept)
        return kept

    def _compare_values(self, rows: RowBatch, kept: KeptPass, layer: int, pattern: Tensor) -> None:
        model = self._checkpoint
        value = attention.project(kept.attention_inputs[layer], model.architecture.parameters(model.model, layer).value)
        expected = torch.matmul(pattern, value).transpose(1, 2)[rows.batch.valid]  # [tokens, n_heads, d_head]
        found = kept.concatenated[layer][rows.batch.valid].reshape(-1, model.n_heads, model.d_head)
        difference = (found - expected).abs().amax((0, 2))
        error = _relative(difference, found)
        self._values_error = max(self._values_error, error)
        if not error <= self.checked.tolerance:
            head = HeadId(layer, int(difference.nan_to_num(nan=torch.inf).argmax()))
            raise VerificationError(
                f"what would be removed of {head} is not what the reference gives for it: they differ by {error:.1e} "
                f"of the layer's largest weighted value (tolerance {self.checked.tolerance:g}). Nothing was written."
            )

    def _compare_resumed(self, rows: RowBatch, kept: KeptPass) -> None:
        own = kept.final[rows.batch.valid]
        for layer in range(self._checkpoint.n_layers):
            again = resume(self._checkpoint, kept, layer)[rows.batch.valid]
            error = _relative((again - own).abs(), own)
            self._resumed_error = max(self._resumed_error, error)
            if not error <= self.checked.tolerance:
                raise VerificationError(
                    f"a pass resumed at layer {layer}, with nothing removed, does not reproduce the model's final "
                    f"states: they differ by {error:.1e} of the largest (tolerance {self.checked.tolerance:g}). "
                    "Nothing was written."
                )


def mean_values(
    checkpoint: Checkpoint, rows: Sequence[Row], batch_size: int, tell: Callable[[int, int], None]
) -> Tensor:
    """The mean weighted value of every head over all tokens, special ones too, [n_layers, n_heads, d_head], float64.

    Args:
        checkpoint: the model.
        rows: the texts, as they are.
        batch_size: texts that the model reads at once.
        tell: told how many rows are done, of how many.
    """
    sums = torch.zeros(checkpoint.n_layers, checkpoint.n_heads * checkpoint.d_head, dtype=torch.float64)
    tokens = done = 0
    with running(checkpoint):
        for batch in row_batches(checkpoint, rows, batch_size):
            kept = run_and_keep(checkpoint, batch.batch.inputs, inside=True)
            for layer, values in enumerate(kept.concatenated):
                sums[layer] += values[batch.batch.valid].double().sum(0).cpu()
            tokens += batch.batch.n_tokens
            done += len(batch.rows)
            tell(done, len(rows))
    return sums.reshape(checkpoint.n_layers, checkpoint.n_heads, checkpoint.d_head) / tokens


def _relative(difference: Tensor, values: Tensor) -> float:
    """The largest difference as a share of the largest value; NaN stays NaN, and is within no tolerance."""
    scale = float(values.abs().max())
    largest = float(difference.max())
    return largest / scale if scale > 0 else largest
