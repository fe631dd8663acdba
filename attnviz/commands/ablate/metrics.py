"""How much worse a model gets without heads, and, by gradients alone, how sensitive it is to each of them."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, nll_loss, normalize

from attnviz.commands.ablate.hooks import KeptPass, gated_heads, run_block
from attnviz.commands.ablate.inputs import STATES, InputBatch
from attnviz.model.checkpoint import Checkpoint

__all__ = [
    "METRICS", "PROJECTIONS", "BatchMetrics", "GradientTally", "Metric", "layer_normalised", "metrics_of", "spearman",
]  # fmt: skip

PROJECTIONS = 4
"""Random directions in which the final states of a text are followed, where there is no loss."""

_CHUNK = 2**24
"""Logits that are computed at a time: 64 MiB in float32."""


@dataclass(frozen=True)
class Metric:
    """A number that says how much removing heads changes."""

    name: str  # in documents
    title: str
    unit: str
    signed: bool = False  # whether it can be negative: removing a head may also help


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
        """The two metrics of :func:`metrics_of`, summed over the positions of each row, [copies, rows, 2], float64.

        ``final``: last hidden states of copies of the batch, [copies * rows, n, d_model].
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
        """The derivative by the final states, [rows, n, d_model], of each row's summed loss times its weight [rows]."""
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


class GradientTally:
    """Adds up how sensitive a model is to each head, text by text (Michel et al. 2019, section 4.1).

    Each head is multiplied by a gate, 1 in the model as it is. The derivative of a text's loss by the gate is
    Att_h(x)^T dL/dAtt_h(x): to first order, how much the loss falls when the head is removed. Its importance is the
    mean absolute value over texts.

    Where nothing is predicted there is no loss. Then the loss is a random projection v·s / sqrt(n) of the n final
    states s, several times: over random v the mean square of its gradient is the mean square length of ds/dgate over
    the tokens, so that its root is, to first order, how far the states move without the head.
    """

    def __init__(self, checkpoint: Checkpoint, kind: str, counts: Sequence[int], seed: int) -> None:
        """Start at zero; ``counts``: the measured positions of each text, ``seed``: of the random directions."""
        self._checkpoint, self._kind, self._seed = checkpoint, kind, seed
        self._counts = torch.tensor(counts, dtype=torch.float64)
        self._sums = torch.zeros(len(counts), checkpoint.n_layers, checkpoint.n_heads, dtype=torch.float64)

    def add(self, inputs: InputBatch, kept: KeptPass, metrics: BatchMetrics) -> None:
        """Measure a batch, going back layer by layer: memory is that of one layer."""
        texts = torch.tensor([each.text for each in inputs.inputs])
        if self._kind == STATES:
            for number in range(PROJECTIONS):
                towards = self._projection(inputs, kept.final, number)
                self._sums.index_add_(0, texts, self._back(kept, towards).square() / PROJECTIONS)
            return
        self._sums.index_add_(0, texts, self._back(kept, metrics.loss_gradient(1 / self._counts[texts])))

    def by_text(self) -> Tensor:
        """The importance of every head for each text, [n_texts, n_layers, n_heads]."""
        return self._sums.sqrt() if self._kind == STATES else self._sums.abs()

    def _projection(self, inputs: InputBatch, final: Tensor, number: int) -> Tensor:
        """A random direction at every token, which depends on the text and not on its batch."""
        towards = torch.zeros_like(final)
        for row, each in enumerate(inputs.inputs):
            n = len(each.item)
            digest = hashlib.sha256(f"{self._seed}:{number}:{each.item.ids}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            drawn = torch.randn(n, final.shape[-1], generator=generator) / math.sqrt(n)
            towards[row, :n] = drawn.to(final)
        return towards

    def _back(self, kept: KeptPass, gradient: Tensor) -> Tensor:
        """Gate gradients of every row, [rows, n_layers, n_heads], from the gradient by the final states."""
        model, architecture = self._checkpoint, self._checkpoint.architecture
        blocks = [modules.block for modules in architecture.modules(model.model)]
        norm = architecture.final_norm(model.model)
        gates = torch.ones(len(gradient), model.n_heads, dtype=gradient.dtype, device=gradient.device)
        of_gates: list[Tensor] = []
        for layer in reversed(range(model.n_layers)):
            with torch.enable_grad():
                hidden = kept.calls[layer][0][0].detach().requires_grad_()
                gate = gates.clone().requires_grad_()
                with gated_heads(model, layer, gate):
                    after = run_block(blocks[layer], kept, layer, hidden, 1, {})
                if norm is not None and layer == model.n_layers - 1:
                    after = norm(after)
            gradient, of_gate = torch.autograd.grad(after, (hidden, gate), gradient)
            of_gates.insert(0, of_gate.detach().double().cpu())
        return torch.stack(of_gates, dim=1)


def layer_normalised(importance: Tensor) -> Tensor:
    """Importance [n_layers, n_heads] over its l2 norm in each layer, as in the paper; 0 where all of a layer are 0."""
    return normalize(importance, dim=-1, eps=torch.finfo(importance.dtype).tiny)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank; None for fewer than three, or all alike."""
    if len(first) < 3:
        return None
    given = torch.tensor([first, second], dtype=torch.float64)
    below, alike = ((compare(given[:, None], given[:, :, None])).sum(2) for compare in (torch.lt, torch.eq))
    ranks = below + (alike + 1) / 2
    centred = ranks - ranks.mean(1, keepdim=True)
    lengths = centred.norm(dim=1)
    if not bool((lengths > 0).all()):
        return None
    return max(-1.0, min(1.0, float(centred[0] @ centred[1] / lengths.prod())))
