"""How much worse a model gets: what it predicts, or where its final states go, against the unchanged model."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, nll_loss, normalize

from attnviz.commands.ablate.inputs import STATES, InputBatch
from attnviz.model.checkpoint import Checkpoint

__all__ = ["METRICS", "BatchMetrics", "Metric", "metrics_of"]

_CHUNK = 2**24
"""Logits that are computed at a time: 64 MiB in float32."""


@dataclass(frozen=True)
class Metric:
    """A number that says how much removing heads changes: its name in documents, title, unit.

    ``signed`` ones can be negative: removing a head may also help.
    """

    name: str
    title: str
    unit: str
    signed: bool = False


METRICS = {
    "loss": Metric("loss", "loss increase", "nats/token", signed=True),
    "kl": Metric("kl", "KL divergence", "nats/token"),
    "cosine": Metric("cosine", "cosine distance", "1 − cos"),
    "l2": Metric("l2", "L2 distance", "length"),
}
"""``loss``: of the model without the heads, less that of the unchanged model. ``kl``: KL(unchanged model || model
without the heads). ``cosine``: one minus the cosine of the final states. ``l2``: length of their difference."""


def metrics_of(kind: str) -> tuple[Metric, Metric]:
    """The two metrics; heads are ranked by the first."""
    first, second = ("cosine", "l2") if kind == STATES else ("loss", "kl")
    return METRICS[first], METRICS[second]


class BatchMetrics:
    """The metrics of a batch, against the final states of the unchanged model and what it predicts from them.

    Attributes:
        baseline: loss of the unchanged model, summed over the positions of each row, [rows], float64; None where
            nothing is predicted.
    """

    def __init__(self, checkpoint: Checkpoint, inputs: InputBatch, final: Tensor) -> None:
        """Predict from the last hidden states of the unchanged model, [rows, n, d_model]."""
        device = final.device
        self._checkpoint, self._n_rows, self._shape = checkpoint, len(inputs.inputs), final.shape
        measured = [(row, position) for row, each in enumerate(inputs.inputs) for position in each.positions]
        self._row, self._position = torch.tensor(measured, device=device).T
        labels = [label for each in inputs.inputs for label in each.labels]
        self._labels = torch.tensor(labels, device=device) if labels else None
        self._states = final[self._row, self._position]  # [positions, d_model]
        self.baseline: Tensor | None = None
        if self._labels is not None:
            self._predicted = torch.cat([self._predict(self._states[part]) for part in self._parts()])
            self.baseline = self._by_row(nll_loss(self._predicted, self._labels, reduction="none"))

    def changes(self, final: Tensor) -> Tensor:
        """The two metrics of :func:`metrics_of`, summed over the positions of each row.

        Args:
            final: last hidden states of copies of the batch, [copies * rows, n, d_model].

        Returns:
            [copies, rows, 2], float64, on the CPU.
        """
        copies = final.reshape(-1, self._n_rows, *final.shape[1:])
        return torch.stack([self._changes(copy[self._row, self._position]) for copy in copies])

    def _changes(self, states: Tensor) -> Tensor:
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
            divergences.append(divergence.clamp_min(0))  # negative only by rounding
        return torch.stack([self._by_row(torch.cat(losses)), self._by_row(torch.cat(divergences))], dim=-1)

    def loss_gradient(self, weights: Tensor) -> Tensor:
        """The derivative of each row's loss, summed over its positions, times its weight [rows], by the final states.

        Returns:
            [rows, n, d_model], zero where nothing is measured.
        """
        assert self._labels is not None
        gradient = torch.zeros(self._shape, dtype=self._states.dtype, device=self._states.device)
        for part in self._parts():
            with torch.enable_grad():
                states = self._states[part].detach().requires_grad_()
                losses = nll_loss(self._predict(states), self._labels[part], reduction="none")
                total = (losses * weights.to(losses)[self._row[part]]).sum()
            (gradient[self._row[part], self._position[part]],) = torch.autograd.grad(total, states)
        return gradient

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
        """Sums over the positions of each row, [rows], float64 on the CPU."""
        sums = torch.zeros(self._n_rows, dtype=torch.float64)
        return sums.index_add_(0, self._row.cpu(), values.detach().double().cpu())


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
