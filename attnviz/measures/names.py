"""Accuracy of heads at finding which of two names a pronoun means (GAP), beside simple guesses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.inputs.batches import Batch
from attnviz.measures.bootstrap import REPLICATES
from attnviz.measures.estimates import HeadScores, estimated
from attnviz.measures.relations import SpansOfTexts
from attnviz.measures.sums import SumTally
from attnviz.models.checkpoint import Checkpoint

NAME_DIRECTIONS = ("pronoun_to_name", "name_to_pronoun")  # who attends to whom

_GUESSES = ("nearer name", "longer name", "subject, else nearer name")


@dataclass(frozen=True)
class NameCount:
    """Pronouns with two names each, of which one is right.

    Baselines of accuracy: the nearer name; the longer one (in pieces); with a parser the subject of a clause, else the
    nearer; and the same head's guesses from the other tokens of the text.
    """

    accuracy: HeadScores  # by direction, attention to a name summed over its pieces
    by_mean: Tensor  # accuracy with the mean over a name's pieces, [n_directions, n_layers, n_heads]

    @property
    def n(self) -> int:
        """Pronouns."""
        return int(self.accuracy.n.max())


class NameTally(SumTally):
    """Counts how often every head finds which of two names a pronoun means (GAP, Webster et al. 2018).

    The spans of a text are the pronoun and the two names. A head's guess is the name with more attention from the
    pronoun, or to it; equal attention counts one half. A causal model, which must be given both names before the
    pronoun, has the first direction only.
    """

    def __init__(self, checkpoint: Checkpoint, replicates: int = REPLICATES) -> None:
        self._causal = checkpoint.architecture.causal
        self._directions = NAME_DIRECTIONS[: 1 if self._causal else 2]
        shape = checkpoint.n_layers, checkpoint.n_heads
        super().__init__(
            examples=(1 + replicates,),
            parsed=(),
            guesses=(1 + replicates, len(_GUESSES)),
            heads=(1 + replicates, len(self._directions), 3, *shape),  # by sum, by mean, from other tokens
        )
        self._weights = self._second = self._pieces = torch.empty(0)
        self._spans: SpansOfTexts

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Count examples, and how often each guess is right."""
        self._weights, self._kept = weights, {}
        spans, preferred = [], []  # of guesses above 0 for the first name, below 0 for the second, 0 for neither
        for item in batch.items:
            pronoun, *names = item.members
            # the other tokens that are not sinks; in a causal model only those that see both names
            first = max(positions[-1] for positions in names) if self._causal else -1
            named = {position for positions in item.members for position in positions}
            others = [i for i, sink in enumerate(item.sink) if i > first and not sink and i not in named]
            spans.append([*item.members, others])
            nearer = abs(names[1][0] - pronoun[0]) - abs(names[0][0] - pronoun[0])
            subjects = item.source.subjects or (False, False)
            subject = int(subjects[0]) - int(subjects[1])
            preferred.append([nearer, len(names[0]) - len(names[1]), subject or nearer])
        self._spans = SpansOfTexts(spans, batch.valid.shape[1], batch.valid.device)
        self._pieces = torch.tensor([[len(positions) for positions in item.members[1:]] for item in batch.items])
        self._second = torch.tensor([bool(item.source.answer) for item in batch.items])
        self._counts["examples"] += weights.sum(1)
        self._counts["parsed"] += sum(item.source.subjects is not None for item in batch.items)
        self._counts["guesses"] += weights @ self._right(torch.tensor(preferred).T).T

    def add(self, layer: int, pattern: Tensor) -> None:  # noqa: ARG002 - as other tallies
        """Count one layer's patterns, [batch, n_heads, n, n]."""
        self._keep("heads", self._spans.between(pattern))

    def _count(self, name: str, values: Tensor) -> None:
        """Count attention between the spans, [n_layers, batch, n_heads, n_spans, n_spans]."""
        merged = values.double()
        seen, seeing = merged[..., 1:3], merged.mT[..., 1:3]  # from each span to the names, to each span from them
        sums, means = seen[..., 0, :], seen[..., 0, :] / self._pieces[:, None]
        read = [(sums, means, seen[..., 3, :]), (seeing[..., 0, :], seeing[..., 0, :], seeing[..., 3, :])]
        for direction, _ in enumerate(self._directions):
            names = torch.stack(read[direction])  # [readings, n_layers, batch, n_heads, names]
            right = self._right((names[..., 0] - names[..., 1]).transpose(2, 3))
            self._counts[name][:, direction] += torch.einsum("rb,klhb->rklh", self._weights, right)

    def _right(self, preferred: Tensor) -> Tensor:
        """Whether a preference, above 0 for the first name, is right: 0, ½ or 1; the last axis is examples."""
        return (1 + preferred.sign() * torch.where(self._second, -1, 1)).double() / 2

    def results(self) -> NameCount | None:
        """The accuracy of every head; None without examples."""
        n = self._counts["examples"]
        if not n[0]:
            return None
        parsed = int(self._counts["parsed"]) == int(n[0])
        by_sum, by_mean, elsewhere = (self._counts["heads"] / n[:, None, None, None, None]).unbind(2)
        guesses = (self._counts["guesses"] / n[:, None])[:, : len(_GUESSES) if parsed else -1, None, None, None]
        baselines = dict(zip(_GUESSES, guesses.unbind(1), strict=False)) | {"other words": elsewhere}
        return NameCount(estimated(by_sum, baselines, int(n[0]), int(n[0]), self._directions), by_mean[0])
