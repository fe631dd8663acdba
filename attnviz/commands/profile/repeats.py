"""Scores on random tokens, repeated: induction, duplicate-token and previous-token heads."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.commands.profile.tallies import SumTally, ordinary_ids
from attnviz.corpora.batches import Item, SampledAttention, Text, collate
from attnviz.errors import CheckpointError
from attnviz.model.checkpoint import Checkpoint
from attnviz.patterns.registry import allowed_units

__all__ = ["SEQUENCES", "RepeatScores", "RepeatTally"]

SEQUENCES, LENGTH = 32, 50
"""Random sequences, and their tokens before they are repeated: 25 in Olsson et al. 2022, 100 in Wang et al. 2022."""


@dataclass(frozen=True)
class RepeatScores:
    """Scores on random tokens repeated once.

    Attributes:
        scores: by ``previous``, ``duplicate``, ``induction``, means on a diagonal, [n_sequences, n_layers, n_heads]; of
            the last two over the second half, whose tokens have a copy before them.
        length: tokens before they are repeated.
        baselines: the scores of uniform attention in each layer, [n_layers, 1].
    """

    scores: dict[str, Tensor]
    length: int
    baselines: dict[str, Tensor]


class RepeatTally(SumTally):
    """The scores of each random sequence (Wang et al. 2022, Olsson et al. 2022), no special tokens around it."""

    def __init__(self, checkpoint: Checkpoint, seed: int) -> None:
        self._checkpoint, self._seed = checkpoint, seed
        self._length = min(LENGTH, checkpoint.positions // 2)
        self._offsets = {"previous": -1, "duplicate": -self._length, "induction": 1 - self._length}
        super().__init__(**dict.fromkeys(self._offsets, (SEQUENCES, checkpoint.n_layers, checkpoint.n_heads)))

    def measure(
        self, attention: SampledAttention, numbers: list[int], batch_size: int, tell: Callable[[int], None]
    ) -> None:
        """Measure the sequences with these numbers; ``tell`` hears how many are done."""
        if self._length < 1:
            raise CheckpointError(
                "the model has a single position; --repeats needs two at least, for a token and its copy"
            )
        sequences = self._drawn()
        for first in range(0, len(numbers), batch_size):
            chosen = numbers[first : first + batch_size]
            drawn = sequences[chosen].tolist()
            items = [Item((*once, *once), (False,) * (2 * self._length), (), Text("")) for once in drawn]

            def visit(layer: int, pattern: Tensor, chosen: list[int] = chosen) -> None:
                for name, offset in self._offsets.items():
                    queries = pattern[..., self._first_query(name) :, :]
                    means = torch.diagonal(queries, self._first_query(name) + offset, -2, -1).double().mean(-1)
                    self._counts[name][chosen, layer] = means.cpu()

            attention.run(collate(self._checkpoint, items), visit)
            tell(first + len(chosen))

    def _drawn(self) -> Tensor:
        """Tokens of all sequences before they are repeated, [n_sequences, length]; the same in every process."""
        if not (ordinary := ordinary_ids(self._checkpoint)):
            raise CheckpointError(
                "the model's tokenizer has special tokens only; --repeats draws from the others: leave it out, or "
                "take a model with its whole tokenizer."
            )
        generator = torch.Generator().manual_seed(self._seed)
        return torch.tensor(ordinary)[torch.randint(len(ordinary), (SEQUENCES, self._length), generator=generator)]

    def results(self) -> RepeatScores:
        """The scores, beside those of uniform attention."""
        layers = [self._uniform(window) for window in self._checkpoint.windows]
        baselines = {name: torch.tensor([of_layer[name] for of_layer in layers])[:, None] for name in self._offsets}
        return RepeatScores(self._counts, self._length, baselines)

    def _uniform(self, window: int | None) -> dict[str, float]:
        """The scores of attention that is uniform over the keys that a query may see."""
        allowed = allowed_units(2 * self._length, self._checkpoint.architecture.causal, window)
        pattern = allowed / allowed.sum(-1, keepdim=True)
        return {
            name: float(torch.diagonal(pattern[first:], first + offset, -2, -1).mean())
            for name, offset in self._offsets.items()
            for first in [self._first_query(name)]
        }

    def _first_query(self, name: str) -> int:
        """The first position with a token before it, or with a copy of its own before it."""
        return 1 if name == "previous" else self._length
