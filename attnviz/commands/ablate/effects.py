"""What removing heads does: metrics of a batch, summed over texts, then estimates of heads and sets with intervals."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, nll_loss, normalize

from attnviz.commands.ablate.inputs import InputBatch, metrics_of
from attnviz.corpora.batches import Text
from attnviz.corpora.bootstrap import ENOUGH_TEXTS, text_weights
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId

__all__ = [
    "LESS", "MORE", "BatchMetrics", "Bootstrap", "Curve", "CurvePoint", "Estimate", "HeadEffect", "HeadSet",
    "SetEffect", "layer_normalised", "spearman",
]  # fmt: skip

REPLICATES, _TAIL = 1000, 0.025
"""Bootstrap samples of the texts, enough for the ends of a 95 % interval."""

MORE, LESS = 1.25, 0.8
"""A set that does so many times what its heads do one at a time does more, or less, than their sum; attnviz's own
choice. The interval of the difference has to lie on that side of zero too."""

_CHUNK = 2**24
"""Logits that are computed at a time: 64 MiB in float32."""

HeadSet = frozenset[HeadId]


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
            self._losses = nll_loss(self._predicted, self._labels, reduction="none")
            self.baseline = self._by_row(self._losses)

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
            return self._by_row(torch.stack([cosine, (after - before).norm(dim=-1)], dim=-1))
        changes = []
        for part in self._parts():
            predicted, before = self._predict(states[part]), self._predicted[part]
            loss = nll_loss(predicted, self._labels[part], reduction="none") - self._losses[part]
            divergence = (before.exp() * (before - predicted)).sum(-1).clamp_min(0)  # negative only by rounding
            changes.append(torch.stack([loss, divergence], dim=-1))
        return self._by_row(torch.cat(changes))

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
        """Sums over the positions of each row, from [positions, ...] to [rows, ...], float64 on the CPU."""
        sums = torch.zeros(self._n_rows, *values.shape[1:], dtype=torch.float64)
        return sums.index_add_(0, self._row.cpu(), values.detach().double().cpu())


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval by a bootstrap over texts; no interval where these are too few."""

    value: float
    low: float | None
    high: float | None

    @property
    def side(self) -> int | None:
        """1 or -1 where all of the interval is above or below zero, 0 where zero is in it; None without one."""
        return None if self.low is None or self.high is None else (self.low > 0) - (self.high < 0)


@dataclass(frozen=True)
class HeadEffect:
    """What removing one head alone does."""

    id: HeadId
    rank: int  # from 1 for the head whose removal does the most, by the first metric
    damage: dict[str, Estimate]  # by metric, per token: positive where the metric gets worse without the head
    gradient: float | None  # its importance by Michel et al. 2019; None where it was not measured
    gradient_normalised: float | None  # divided by the l2 norm over the heads of its layer


@dataclass(frozen=True)
class SetEffect:
    """What removing several heads at once does, beside what they do one at a time."""

    heads: tuple[HeadId, ...]
    layer: int | None  # None for a set over layers
    damage: dict[str, Estimate]  # of the set, by metric, per token; positive as for a head
    singles: dict[str, Estimate]  # sum of what its heads do one at a time
    excess: dict[str, Estimate]  # how much more the set does than that sum

    def ratio(self, metric: str) -> float | None:
        """How many times the sum of its heads one at a time it does; None unless both are positive."""
        together, singles = self.damage[metric].value, self.singles[metric].value
        return together / singles if together > 0 and singles > 0 else None

    def verdict(self, metric: str) -> str | None:
        """Whether it does more than its heads one at a time; None where there are no intervals.

        ``compensated``: at least :data:`MORE` times the sum, and the interval of the difference is above zero: while
        one head was missing, the others made up for some of it. ``overlapping``: at most :data:`LESS` times, and below
        zero: heads cost the same thing, which can be lost only once. ``additive``: neither, though the difference is
        clear. ``undecided``: the interval of the difference has zero in it. ``no cost``: what the set costs is not
        clearly above zero, so that there is nothing to make up for, whatever single heads do.
        """
        side, ratio = self.excess[metric].side, self.ratio(metric)
        if side is None or self.damage[metric].side != 1:
            return None if side is None else "no cost"
        if side > 0:
            return "compensated" if ratio is None or ratio >= MORE else "additive"
        if side < 0:
            return "overlapping" if ratio is None or ratio <= LESS else "additive"
        return "undecided"


@dataclass(frozen=True)
class CurvePoint:
    """A number of heads removed: the least important ones, and as many in a random order."""

    removed: int
    least: SetEffect
    random: SetEffect


@dataclass(frozen=True)
class Curve:
    """Ever more heads removed: the least important first, and in a random order."""

    order: tuple[HeadId, ...]
    random_order: tuple[HeadId, ...]
    points: tuple[CurvePoint, ...]


class Bootstrap:
    """From sums over each text to means per token, with intervals."""

    def __init__(
        self, seed: int, texts: Sequence[Text], counts: Tensor, kind: str, of_heads: dict[HeadId, Tensor]
    ) -> None:
        """``counts``: measured positions, [n_texts]; ``of_heads``: sums over texts without each head, [n_texts, 2]."""
        replicates = REPLICATES if len(texts) >= ENOUGH_TEXTS else 0
        self._weights = text_weights(seed, [text.number for text in texts], replicates)
        self._names, self._tokens = [metric.name for metric in metrics_of(kind)], self._weights @ counts
        self.of_heads = of_heads

    def estimates(self, sums: Tensor) -> dict[str, Estimate]:
        """Of sums [n_texts, 2], by the name of the metric."""
        means = (self._weights @ sums) / self._tokens[:, None]  # [1 + replicates, 2]
        low = high = [None] * len(self._names)
        if len(means) > 1:
            ends = torch.tensor([_TAIL, 1 - _TAIL], dtype=torch.float64)
            low, high = means[1:].quantile(ends, dim=0).tolist()
        return {name: Estimate(*of) for name, *of in zip(self._names, means[0].tolist(), low, high, strict=True)}

    def ranked_heads(self, importance: Tensor | None) -> tuple[HeadEffect, ...]:
        """The heads by the first metric, the most important first; ``importance`` by gradients: [n_layers, n_heads]."""
        damage = {head: self.estimates(sums) for head, sums in self.of_heads.items()}
        ranked = sorted(damage, key=lambda head: (-damage[head][self._names[0]].value, head))
        normalised = None if importance is None else layer_normalised(importance)
        return tuple(
            HeadEffect(
                id=head,
                rank=rank,
                damage=damage[head],
                gradient=None if importance is None else float(importance[head]),
                gradient_normalised=None if normalised is None else float(normalised[head]),
            )
            for rank, head in enumerate(ranked, start=1)
        )

    def of_set(self, heads: HeadSet, sums: Tensor) -> SetEffect:
        """A set beside its heads one at a time."""
        members = sorted(heads)
        singles = torch.stack([self.of_heads[head] for head in members]).sum(0)
        return SetEffect(
            heads=tuple(members),
            layer=members[0].layer if len({head.layer for head in members}) == 1 else None,
            damage=self.estimates(sums),
            singles=self.estimates(singles),
            excess=self.estimates(sums - singles),
        )


def layer_normalised(importance: Tensor) -> Tensor:
    """Importance [n_layers, n_heads] over its l2 norm in each layer, as in the paper; 0 where all of a layer are 0."""
    return normalize(importance, dim=-1, eps=torch.finfo(importance.dtype).tiny)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation, equal values sharing their mean rank; None for fewer than three, or all alike."""
    if len(first) < 3:
        return None
    given = torch.tensor([first, second], dtype=torch.float64)
    below, alike = (compare(given[:, None], given[:, :, None]).sum(2) for compare in (torch.lt, torch.eq))
    correlation = float(torch.corrcoef(below + (alike + 1) / 2)[0, 1])
    return None if math.isnan(correlation) else correlation
