"""Accuracy of heads at finding which of two names a pronoun means (GAP), beside simple guesses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.inputs.batches import Batch
from attnviz.measures.estimates import HeadScores, estimated
from attnviz.measures.measure import Measure, PatternRows
from attnviz.measures.relations import SpansOfTexts
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


class NameTally(Measure):
    """Counts how often every head finds which of two names a pronoun means (GAP, Webster et al. 2018).

    The spans of a text are the pronoun and the two names. A head's guess is the name with more attention from the
    pronoun, or to it; equal attention counts one half. A causal model, which must be given both names before the
    pronoun, has the first direction only.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self._causal = checkpoint.architecture.causal
        self._directions = NAME_DIRECTIONS[: 1 if self._causal else 2]
        self._second = self._pieces = torch.empty(0)
        self._spans: SpansOfTexts

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Count examples, those that are parsed, and how often each guess is right."""
        super().begin(batch, weights)
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
        device = batch.valid.device
        self._spans = SpansOfTexts(spans, batch.valid.shape[1], device)
        pieces = [[len(positions) for positions in item.members[1:]] for item in batch.items]
        self._pieces = torch.tensor(pieces, device=device)[:, None]
        self._second = torch.tensor([bool(item.source.answer) for item in batch.items], device=device)
        self._keep("examples", torch.tensor([[1, item.source.subjects is not None] for item in batch.items]))
        self._keep("guesses", self._right(torch.tensor(preferred, device=device)))

    def update(self, rows: PatternRows) -> None:
        """Count which names one layer's patterns prefer: by sum, by mean, from other tokens."""
        merged = self._spans.between(rows.in_float32)
        pieces = self._pieces.to(merged.device)
        to_names, from_names = merged[..., 1:3], merged.mT[..., 1:3]  # from each span, and to it
        read = [
            (to_names[..., 0, :], to_names[..., 0, :] / pieces, to_names[..., 3, :]),
            (from_names[..., 0, :], from_names[..., 0, :], from_names[..., 3, :]),
        ]
        names = torch.stack([torch.stack(ways, 2) for ways in read[: len(self._directions)]], 2)
        self._keep("heads", self._right(names[..., 0] - names[..., 1]))  # [batch, n_heads, n_directions, 3]

    def _right(self, preferred: Tensor) -> Tensor:
        """Whether a preference, above 0 for the first name, is right: 0, ½ or 1; the first axis is examples."""
        sign = torch.where(self._second, -1, 1).to(preferred.device).view(-1, *[1] * (preferred.ndim - 1))
        return (1 + preferred.sign() * sign) / 2

    def results(self) -> NameCount | None:
        """The accuracy of every head; None without examples."""
        if not self._counts:
            return None
        n, parsed = self._counts["examples"][:, 0].T
        heads = (self._counts["heads"] / n[:, None, None, None, None]).movedim(3, 1)
        by_sum, by_mean, elsewhere = heads.unbind(-1)
        count = int(n[0])
        of_guesses = (self._counts["guesses"][:, 0] / n[:, None])[..., None, None, None].unbind(1)
        names = _GUESSES if int(parsed[0]) == count else _GUESSES[:-1]
        baselines = dict(zip(names, of_guesses, strict=False)) | {"other words": elsewhere}
        return NameCount(estimated(by_sum, baselines, count, count, self._directions), by_mean[0])
