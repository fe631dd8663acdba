"""How much worse a model gets: what it predicts, or where its final states go, held against the model as it is."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, nll_loss, normalize

from attnviz.commands.ablate.inputs import STATES, RowBatch
from attnviz.model.checkpoint import Checkpoint

__all__ = ["MEASURES", "Measure", "Reading", "measures_of"]

_CHUNK = 2**24
"""Logits that are computed at a time: 64 MiB in float32."""


@dataclass(frozen=True)
class Measure:
    """One number that says how much removing heads changes.

    Attributes:
        name: in documents.
        title: in words.
        unit: of the number.
        signed: whether it can be negative: removing a head may also help.
    """

    name: str
    title: str
    unit: str
    signed: bool


MEASURES = {
    "loss": Measure("loss", "loss increase", "nats/token", signed=True),
    "kl": Measure("kl", "KL divergence", "nats/token", signed=False),
    "cosine": Measure("cosine", "cosine distance", "1 − cos", signed=False),
    "l2": Measure("l2", "L2 distance", "length", signed=False),
}
"""By name. ``loss``: of the model without the heads, less that of the model as it is. ``kl``: KL(model as it is ||
model without the heads). ``cosine``: one minus the cosine of the final states. ``l2``: length of their difference."""


def measures_of(kind: str) -> tuple[Measure, Measure]:
    """What is measured; by the first one heads are ranked."""
    names = ("cosine", "l2") if kind == STATES else ("loss", "kl")
    return MEASURES[names[0]], MEASURES[names[1]]


class Reading:
    """The final states of a batch where they are looked at, and what the model as it is makes of them.

    Attributes:
        baseline: for each row the loss of the model as it is, summed over its places, [rows], float64; None where
            nothing is predicted.
    """

    def __init__(self, checkpoint: Checkpoint, rows: RowBatch, final: Tensor) -> None:
        """Look at the last hidden states of the model as it is, [rows, n, d_model]."""
        device = final.device
        self._checkpoint, self._n_rows = checkpoint, len(rows.rows)
        places = [(number, place) for number, row in enumerate(rows.rows) for place in row.places]
        self._row, self._place = torch.tensor(places, device=device).T
        labels = [label for row in rows.rows for label in row.labels]
        self._labels = torch.tensor(labels, device=device) if labels else None
        self._states = final[self._row, self._place]  # [places, d_model]
        self.baseline: Tensor | None = None
        if self._labels is not None:
            self._predicted = torch.cat([self._predict(self._states[part]) for part in self._parts()])
            self.baseline = self._by_row(nll_loss(self._predicted, self._labels, reduction="none"))

    def damage(self, final: Tensor) -> Tensor:
        """The two measures of :func:`measures_of`, summed over the places of each row.

        Args:
            final: last hidden states of copies of the batch, [copies * rows, n, d_model].

        Returns:
            [copies, rows, 2], float64, on the CPU.
        """
        copies = final.reshape(-1, self._n_rows, *final.shape[1:])
        return torch.stack([self._damage(copy[self._row, self._place]) for copy in copies])

    def _damage(self, states: Tensor) -> Tensor:
        if self._labels is None:
            before, after = _wide(self._states), _wide(states)
            towards = normalize(after, dim=-1) - normalize(before, dim=-1)
            cosine = towards.square().sum(-1) / 2  # 1 - cos, without its rounding
            return torch.stack([self._by_row(cosine), self._by_row((after - before).norm(dim=-1))], dim=-1)
        losses, divergences = [], []
        for part in self._parts():
            predicted, before = self._predict(states[part]), self._predicted[part]
            losses.append(nll_loss(predicted, self._labels[part], reduction="none"))
            losses[-1] -= nll_loss(before, self._labels[part], reduction="none")
            divergence = (before.exp() * (before - predicted)).sum(-1)
            divergences.append(divergence.clamp_min(0))  # below it is only by rounding
        return torch.stack([self._by_row(torch.cat(losses)), self._by_row(torch.cat(divergences))], dim=-1)

    def loss_gradient(self, weights: Tensor) -> Tensor:
        """How the loss of each row, summed over its places and weighted, changes with the final states.

        Args:
            weights: [rows].

        Returns:
            [places, d_model]; see :meth:`placed`.
        """
        assert self._labels is not None
        gradients: list[Tensor] = []
        for part in self._parts():
            with torch.enable_grad():
                states = self._states[part].detach().requires_grad_()
                losses = nll_loss(self._predict(states), self._labels[part], reduction="none")
                total = (losses * weights.to(losses)[self._row[part]]).sum()
            gradients += torch.autograd.grad(total, states)
        return torch.cat(gradients)

    def placed(self, values: Tensor, shape: torch.Size) -> Tensor:
        """Values at the places, [places, d_model], as [rows, n, d_model] with zeros elsewhere."""
        found = torch.zeros(shape, dtype=values.dtype, device=values.device)
        found[self._row, self._place] = values
        return found

    def _predict(self, states: Tensor) -> Tensor:
        """Log-probabilities, [.., vocabulary], in float32 at least."""
        head = self._checkpoint.language_head
        assert head is not None
        return log_softmax(_wide(head(states)), dim=-1)

    def _parts(self) -> Iterator[slice]:
        step = max(1, _CHUNK // int(self._checkpoint.config.vocab_size))
        for first in range(0, len(self._row), step):
            yield slice(first, first + step)

    def _by_row(self, values: Tensor) -> Tensor:
        """Sums over the places of each row, [rows], float64 on the CPU."""
        sums = torch.zeros(self._n_rows, dtype=torch.float64)
        return sums.index_add_(0, self._row.cpu(), values.detach().double().cpu())


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
