"""Scores on random tokens, repeated: induction, duplicate-token, previous-token and retrieval heads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.commands.profile.retrieval import Needles
from attnviz.commands.profile.tallies import SumTally, ordinary_ids
from attnviz.corpora.batches import Item, SampledAttention, collate
from attnviz.corpora.reading import Text
from attnviz.errors import CheckpointError
from attnviz.model.checkpoint import Checkpoint
from attnviz.patterns.registry import RETRIEVAL, allowed_units

SEQUENCES, LENGTH = 32, 50
"""Random sequences, and their tokens before they are repeated: 25 in Olsson et al. 2022, 100 in Wang et al. 2022."""


@dataclass(frozen=True)
class RepeatScores:
    """Scores on random tokens repeated once.

    Attributes:
        scores: by ``previous``, ``duplicate``, ``induction``, means on a diagonal, [n_sequences, n_layers, n_heads]; of
            the last two over the second half, whose tokens have a copy before them. Of causal models also
            ``retrieval``, a share of tokens (:mod:`attnviz.commands.profile.retrieval`).
        length: tokens before they are repeated.
        baselines: the scores of uniform attention in each layer, [n_layers, 1].
        needle: tokens of a sequence with a needle, and of the needle; None without ``retrieval``.
    """

    scores: dict[str, Tensor]
    length: int
    baselines: dict[str, Tensor]
    needle: tuple[int, int] | None = None

    def sequences(self, role: str = "") -> dict[str, int]:
        """What was measured on, in words, each with its number of sequences: for one role, or for all."""
        found = {f"{self.length} random tokens, repeated": len(self.scores["previous"])} if role != RETRIEVAL else {}
        if self.needle is not None and role in ("", RETRIEVAL):
            context, needle = self.needle
            found[f"{context} random tokens, {needle} of them copied"] = len(self.scores[RETRIEVAL])
        return found


class RepeatTally(SumTally):
    """The scores of each random sequence (Wang et al. 2022, Olsson et al. 2022), no special tokens around it."""

    def __init__(self, checkpoint: Checkpoint, seed: int) -> None:
        self._checkpoint, self._seed = checkpoint, seed
        self._length = min(LENGTH, checkpoint.positions // 2)
        self._offsets = {"previous": -1, "duplicate": -self._length, "induction": 1 - self._length}
        self._needles = Needles(checkpoint, seed, SEQUENCES)
        names = [*self._offsets, *[RETRIEVAL] * self._needles.measurable]
        super().__init__(**dict.fromkeys(names, (SEQUENCES, checkpoint.n_layers, checkpoint.n_heads)))

    def measure(
        self, attention: SampledAttention, numbers: list[int], batch_size: int, tell: Callable[[int], None]
    ) -> None:
        """Measure the sequences with these numbers; ``tell`` hears how many are done."""
        if self._length < 1:
            raise CheckpointError(
                "the model has a single position; --repeats needs two at least, for a token and its copy"
            )
        sequences, needles = self._drawn(), self._needles.drawn() if self._needles.measurable else None
        for first in range(0, len(numbers), batch_size):
            chosen = numbers[first : first + batch_size]
            drawn = sequences[chosen].tolist()
            items = [_item((*once, *once)) for once in drawn]

            def visit(layer: int, pattern: Tensor, chosen: list[int] = chosen) -> None:
                for name, offset in self._offsets.items():
                    queries = pattern[..., self._first_query(name) :, :]
                    means = torch.diagonal(queries, self._first_query(name) + offset, -2, -1).double().mean(-1)
                    self._counts[name][chosen, layer] = means.cpu()

            def visit_needle(layer: int, pattern: Tensor, chosen: list[int] = chosen) -> None:
                self._counts[RETRIEVAL][chosen, layer] = self._needles.retrieved(pattern, chosen)

            attention.run(collate(self._checkpoint, items), visit)
            if needles is not None:
                attention.run(collate(self._checkpoint, [_item(row) for row in needles[chosen].tolist()]), visit_needle)
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
        windows = self._checkpoint.windows
        layers = [self._uniform(window) for window in windows]
        baselines = {name: torch.tensor([of_layer[name] for of_layer in layers])[:, None] for name in self._offsets}
        if not self._needles.measurable:
            return RepeatScores(self._counts, self._length, baselines)
        baselines[RETRIEVAL] = torch.tensor([self._needles.uniform(window) for window in windows])[:, None]
        return RepeatScores(self._counts, self._length, baselines, (self._needles.context, self._needles.needle))

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


def _item(ids: Sequence[int]) -> Item:
    return Item(tuple(ids), (False,) * len(ids), (), Text(""))
