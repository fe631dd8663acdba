"""Many texts through the model: the patterns of every layer, a sample of the batches verified in full."""

import random
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from attnviz.attention.capture import LayerRecord, capture_layers
from attnviz.attention.tolerances import TOLERANCES
from attnviz.attention.verify import LayerCheck, Verification, verify_record, worse_of
from attnviz.corpora.batches import Batch
from attnviz.model.checkpoint import Checkpoint

__all__ = ["EVERY", "SampledAttention"]

EVERY = 20
"""Batches of which one is verified; of the first so many, the very first."""


class SampledAttention:
    """Runs batches through a model and hands over the patterns of each layer.

    Verifying costs about as much as the forward pass itself, so over a corpus a sample is verified: the first batch,
    and one of every twenty after it, which the seed decides. In a verified batch every head of every text is recomputed
    and compared, and the patterns are the reference's; in the others they are the model's.
    """

    def __init__(self, checkpoint: Checkpoint, seed: int = 0) -> None:
        self._checkpoint = checkpoint
        self._random = random.Random(seed)  # noqa: S311 - a sample, not a secret
        self._batches = self._chosen = 0
        self._drawn_at = -1
        self._checks: list[LayerCheck | None] = [None] * checkpoint.n_layers
        self.texts_verified = 0

    @property
    def next_is_verified(self) -> bool:
        """Whether the next batch belongs to the sample."""
        if self._batches % EVERY == 0 and self._drawn_at != self._batches:
            self._chosen = 0 if self._batches == 0 else self._random.randrange(EVERY)
            self._drawn_at = self._batches
        return self._batches % EVERY == self._chosen

    def run(self, batch: Batch, visit: Callable[[int, Tensor], None]) -> None:
        """Run the model once on a batch.

        Args:
            batch: texts of the corpus.
            visit: called with each layer and its patterns, [batch, n_heads, n, n], first layer first.

        Raises:
            VerificationError: a head of a verified batch does not reproduce the model.
        """
        verifying = self.next_is_verified
        self._batches += 1

        def labels(text: int) -> list[str]:
            ids = batch.inputs["input_ids"][text].tolist()
            return list(self._checkpoint.tokenizer.convert_ids_to_tokens(ids))

        def hand_over(record: LayerRecord) -> None:
            if not verifying:
                visit(record.layer, record.pattern)
                return
            verified = verify_record(self._checkpoint, record, batch.inputs["attention_mask"], labels)
            self._checks[record.layer] = worse_of(self._checks[record.layer], verified.check)
            visit(record.layer, verified.pattern)

        capture_layers(self._checkpoint, batch.inputs, hand_over)
        self.texts_verified += len(batch.items) if verifying else 0

    @property
    def verification(self) -> Verification:
        """The largest differences found in each layer."""
        checks = tuple(check for check in self._checks if check is not None)
        return Verification(TOLERANCES[self._checkpoint.dtype], checks)

    def state(self) -> dict[str, Any]:
        """What was verified so far."""
        checks = [None if check is None else asdict(check) for check in self._checks]
        return {"texts_verified": self.texts_verified, "checks": checks}

    def absorb(self, state: Mapping[str, Any]) -> None:
        """Add what another process, or an earlier run, has verified."""
        self.texts_verified += state["texts_verified"]
        for layer, check in enumerate(state["checks"]):
            if check is not None:
                self._checks[layer] = worse_of(self._checks[layer], LayerCheck(**check))
