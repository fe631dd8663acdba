"""Random tokens, repeated once: previous-token, duplicate-token and induction scores of every head.

The measure of Wang et al. 2022 and Olsson et al. 2022: the mean of a diagonal of the pattern, without special tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.commands.profile.tallies import SumTally
from attnviz.corpora.batches import Item, Text, collate
from attnviz.corpora.sampling import SampledAttention
from attnviz.model.checkpoint import Checkpoint

__all__ = ["SEQUENCES", "RepeatScores", "RepeatTally"]

SEQUENCES, LENGTH = 32, 50
"""Random sequences, and their tokens before they are repeated: 25 in Olsson et al. 2022, 100 in Wang et al. 2022."""


@dataclass(frozen=True)
class RepeatScores:
    """Scores on random tokens repeated once.

    Attributes:
        scores: by ``previous``, ``duplicate``, ``induction``, means on a diagonal, [n_sequences, n_layers, n_heads].
        length: tokens before they are repeated.
        baselines: the same under uniform attention.
    """

    scores: dict[str, Tensor]
    length: int
    baselines: dict[str, float]


class RepeatTally(SumTally):
    """The scores of each random sequence."""

    def __init__(self, checkpoint: Checkpoint, seed: int) -> None:
        self._checkpoint = checkpoint
        self._length = min(LENGTH, int(checkpoint.config.max_position_embeddings) // 2)
        self._offsets = {"previous": -1, "duplicate": -self._length, "induction": 1 - self._length}
        shape = SEQUENCES, checkpoint.n_layers, checkpoint.n_heads
        self._sums_by_name = {name: torch.zeros(shape, dtype=torch.float64) for name in self._offsets}
        special = set(checkpoint.tokenizer.all_special_ids)
        ordinary = torch.tensor([i for i in range(int(checkpoint.config.vocab_size)) if i not in special])
        generator = torch.Generator().manual_seed(seed)
        self._drawn = ordinary[torch.randint(len(ordinary), (SEQUENCES, self._length), generator=generator)]

    def measure(
        self, attention: SampledAttention, numbers: list[int], batch_size: int, tell: Callable[[int], None]
    ) -> None:
        """Measure the sequences with these numbers; ``tell`` hears how many are done."""
        for first in range(0, len(numbers), batch_size):
            chosen = numbers[first : first + batch_size]
            items = [
                Item((*once, *once), (False,) * (2 * self._length), (), Text(""))
                for once in self._drawn[chosen].tolist()
            ]

            def visit(layer: int, pattern: Tensor, chosen: list[int] = chosen) -> None:
                for name, offset in self._offsets.items():
                    means = torch.diagonal(pattern, offset, -2, -1).double().mean(-1)
                    self._sums_by_name[name][chosen, layer] = means.cpu()

            attention.run(collate(self._checkpoint, items), visit)
            tell(first + len(chosen))

    def results(self) -> RepeatScores:
        """The scores, beside those of uniform attention."""
        n = 2 * self._length
        seen = torch.arange(1, n + 1) if self._checkpoint.architecture.causal else torch.full((n,), n)
        baselines = {name: float((1 / seen[-offset:]).mean()) for name, offset in self._offsets.items()}
        return RepeatScores(self._sums_by_name, self._length, baselines)
