"""Effects of removing heads: metrics of a batch, and estimates of heads and sets with intervals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, nll_loss, normalize

from attnviz.commands.ablate.inputs import STATES, InputBatch, kind_of, metrics_of
from attnviz.commands.ablate.matched import RoleTokens
from attnviz.measures.bootstrap import ENOUGH_TEXTS, text_weights
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.wording import amount
from attnviz.reference.attention import upcast
from attnviz.texts.reading import Text
from attnviz.trace.recorder import refuse_not_finite

REPLICATES, _TAIL = 1000, 0.025
"""Bootstrap samples of the texts, enough for the ends of a 95 % interval."""

MORE, LESS, SAME = "more", "less", "no difference shown"
"""Verdicts on the tokens of a role; see :class:`RoleEffect`."""

_CHUNK = 2**24
"""Logits that are computed at a time: 64 MiB in float32."""

HeadSet = frozenset[HeadId]


class BatchMetrics:
    """Metrics of a batch, relative to the final states and predictions of the unchanged model."""

    def __init__(self, checkpoint: Checkpoint, inputs: InputBatch, final: Tensor, weights: Sequence[Tensor]) -> None:
        """Predict from the last hidden states of the unchanged model, [rows, n, d_model].

        ``weights``: by text, how often each token counts in each sum, [n_tokens, n_sums]; the first sum is of all.
        """
        device = final.device
        self._checkpoint, self._n_rows, self._shape = checkpoint, len(inputs.inputs), final.shape
        measured = [(row, position) for row, each in enumerate(inputs.inputs) for position in each.positions]
        self._row, self._position = torch.tensor(measured, device=device).T
        counts = [weights[each.text][list(each.positions)] for each in inputs.inputs]
        self._counts = torch.cat(counts)  # [positions, n_sums]
        labels = [label for each in inputs.inputs for label in each.labels]
        self._labels, self._labelled = torch.tensor(labels, device=device) if labels else None, bool(labels)
        self._states = final[self._row, self._position]  # [positions, d_model]
        # sums of the unchanged model's loss and of its right predictions, [2, rows]; None without targets
        self.clean: Tensor | None = None
        if not labels and kind_of(checkpoint) == STATES:
            return
        self._predicted = torch.cat([self._predict(self._states[part]) for part in self._parts()])
        decided = self._predicted.argmax(-1)
        if self._labels is None:  # the loss of the class that the unchanged model decides for stands in for the loss
            self._labels = decided
        self._losses = nll_loss(self._predicted, self._labels, reduction="none")
        if labels:
            own = torch.stack([self._losses, (decided == self._labels).to(self._losses)], -1)
            self.clean = self._by_row(own)[:, 0].T

    def changes(self, final: Tensor) -> Tensor:
        """The metrics of :func:`metrics_of`, summed over each row, [copies, rows, n_sums, n_metrics], float64.

        ``final``: last hidden states of copies of the batch, [copies * rows, n, d_model].
        """
        copies = final.reshape(-1, self._n_rows, *final.shape[1:])
        sums = []
        for copy in copies:
            changes = self._changes(copy[self._row, self._position])
            refuse_not_finite(changes, "change without some of its heads")
            sums.append(self._by_row(changes))
        return torch.stack(sums)

    def _changes(self, states: Tensor) -> Tensor:
        """The metrics at every position, [positions, n_metrics]."""
        if self._labels is None:
            before, after = upcast(self._states), upcast(states)
            towards = normalize(after, dim=-1) - normalize(before, dim=-1)
            cosine = towards.square().sum(-1) / 2  # 1 - cos, without its rounding
            return torch.stack([cosine, (after - before).norm(dim=-1)], dim=-1)
        changes = []
        for part in self._parts():
            predicted, before = self._predict(states[part]), self._predicted[part]
            divergence = (before.exp() * (before - predicted)).sum(-1).clamp_min(0)  # negative only by rounding
            labels = self._labels[part]
            if self._labelled:
                each = [nll_loss(predicted, labels, reduction="none") - self._losses[part], divergence]
            else:
                each = [divergence, (predicted.argmax(-1) != labels).to(divergence)]
            if self._checkpoint.classifier is not None:
                each.append(_margin(before, labels) - _margin(predicted, labels))
            changes.append(torch.stack(each, dim=-1))
        return torch.cat(changes)

    def loss_gradient(self, weights: Tensor) -> Tensor:
        """Gradient by the final states, [rows, n, d_model], of each row's summed loss times its weight [rows]."""
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
        """Log-probabilities, [.., vocabulary] or of classes, in float32 at least."""
        head = self._checkpoint.prediction_head
        assert head is not None
        predicted = log_softmax(upcast(head(states)), dim=-1)
        refuse_not_finite(predicted, f"prediction of {'tokens' if self._checkpoint.classifier is None else 'classes'}")
        return predicted

    def _parts(self) -> Iterator[slice]:
        step = max(1, _CHUNK // int(self._checkpoint.config.vocab_size))
        for first in range(0, len(self._row), step):
            yield slice(first, first + step)

    def _by_row(self, values: Tensor) -> Tensor:
        """Sums over each row, from [positions, n] to [rows, n_sums, n], float64 on the CPU."""
        sums = torch.zeros(self._n_rows, self._counts.shape[1], values.shape[1], dtype=torch.float64)
        counted = self._counts[..., None] * values.detach().double().cpu()[:, None]
        return sums.index_add_(0, self._row.cpu(), counted)


def _margin(predicted: Tensor, labels: Tensor) -> Tensor:
    """Of log-probabilities [n, n_classes], that of each label [n] less the largest other one: the same of logits."""
    others = predicted.scatter(-1, labels[:, None], -torch.inf)
    return predicted.gather(-1, labels[:, None])[:, 0] - others.amax(-1)


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval by a bootstrap over texts; None with too few texts."""

    value: float
    low: float | None
    high: float | None

    @property
    def side(self) -> int | None:
        """Sign of the interval: 1 above zero, -1 below, 0 if it includes zero; None without an interval."""
        return None if self.low is None or self.high is None else (self.low > 0) - (self.high < 0)


@dataclass(frozen=True)
class RoleEffect:
    """Effect of removing one head on the tokens of a role's queries, beside matched ones.

    Attributes:
        role, direction: see :class:`attnviz.commands.ablate.matched.RoleTokens`.
        n, texts: tokens of the queries, and as many matches; texts that have some.
        queries, others: mean damage of each, by metric.
        difference: queries less others.
        verdict: by the first metric: :data:`MORE`, ``less``, ``no difference shown``; None without intervals.
    """

    role: str
    direction: str | None
    n: int
    texts: int
    queries: dict[str, Estimate]
    others: dict[str, Estimate]
    difference: dict[str, Estimate]
    verdict: str | None


@dataclass(frozen=True)
class HeadEffect:
    """Effect of removing one head."""

    id: HeadId
    rank: int  # from 1 for the largest effect by the first metric
    damage: dict[str, Estimate]  # by metric, per token: positive where the metric gets worse without the head
    gradient: float | None  # importance by Michel et al. 2019; None if not measured
    roles: tuple[RoleEffect, ...] = ()  # on the tokens of the roles that were asked for, and have some

    def __repr__(self) -> str:
        damage = ", ".join(f"{metric} {amount(each.value)}" for metric, each in self.damage.items())
        return f"<HeadEffect of {self.id}: {damage}, rank {self.rank}>"


@dataclass(frozen=True)
class SetEffect:
    """Effect of removing several heads at once, beside their effects one at a time."""

    heads: tuple[HeadId, ...]
    layer: int | None  # None for a set over layers
    damage: dict[str, Estimate]  # of the set, by metric, per token; positive as for a head
    singles: dict[str, Estimate]  # sum of what its heads do one at a time
    excess: dict[str, Estimate]  # effect of the set minus that sum


@dataclass(frozen=True)
class CurvePoint:
    """Effect of removing a number of heads: the least important ones, and as many at random."""

    removed: int
    least: SetEffect
    random: SetEffect


@dataclass(frozen=True)
class Curve:
    """Effects of removing more and more heads: the least important first, and in random order."""

    order: tuple[HeadId, ...]
    random_order: tuple[HeadId, ...]
    points: tuple[CurvePoint, ...]


class Bootstrap:
    """Bootstrap over texts: from sums per text to means per token with intervals."""

    def __init__(
        self,
        seed: int,
        texts: Sequence[Text],
        counts: Tensor,
        kind: str,
        sums: Mapping[HeadSet, Tensor],
        roles: Sequence[RoleTokens] = (),
    ) -> None:
        """Weights of the texts.

        ``counts``: measured positions, [n_texts, n_sums], of all and then of the queries and matches of each role;
        ``sums``: of heads and sets, [n_texts, n_sums, n_metrics] each.
        """
        replicates = REPLICATES if len(texts) >= ENOUGH_TEXTS else 0
        self._weights = text_weights(seed, [text.number for text in texts], replicates)
        self._names, self._counts, self._roles = [metric.name for metric in metrics_of(kind)], counts, roles
        self.sums = dict(sums)

    def estimates(self, sums: Tensor) -> dict[str, Estimate]:
        """Estimates by metric of all positions, from sums [n_texts, n_sums, n_metrics]."""
        return self._estimates(self._means(sums, 0), len(sums))

    def _means(self, sums: Tensor, at: int) -> Tensor:
        """Means over the positions of one sum as measured, then in each replicate, [1 + replicates, n_metrics]."""
        return (self._weights @ sums[:, at]) / (self._weights @ self._counts[:, at])[:, None]

    def _estimates(self, means: Tensor, texts: int) -> dict[str, Estimate]:
        """Estimates by metric, with intervals from enough texts."""
        low = high = [None] * len(self._names)
        if texts >= ENOUGH_TEXTS:
            ends = torch.tensor([_TAIL, 1 - _TAIL], dtype=torch.float64)
            low, high = means[1:].quantile(ends, dim=0).tolist()
        return {name: Estimate(*of) for name, *of in zip(self._names, means[0].tolist(), low, high, strict=True)}

    def _of_roles(self, sums: Tensor) -> Iterator[RoleEffect]:
        """Effects on the tokens of each role that has any."""
        for number, role in enumerate(self._roles):
            counts = self._counts[:, 1 + 2 * number]
            if n := int(counts.sum()):
                texts = int((counts > 0).sum())
                queries, others = (self._means(sums, 1 + 2 * number + side) for side in (0, 1))
                here, elsewhere = (self._estimates(means, texts) for means in (queries, others))
                difference = self._estimates(queries - others, texts)
                verdict = {1: MORE, -1: LESS, 0: SAME, None: None}[difference[self._names[0]].side]
                yield RoleEffect(*role, n, texts, here, elsewhere, difference, verdict)

    def ranked_heads(self, importance: Tensor | None) -> tuple[HeadEffect, ...]:
        """Heads by the first metric, the most important first; ``importance`` by gradients: [n_layers, n_heads]."""
        damage = {
            head: self.estimates(total) for heads, total in self.sums.items() if len(heads) == 1 for head in heads
        }
        ranked = sorted(damage, key=lambda head: (-damage[head][self._names[0]].value, head))
        return tuple(
            HeadEffect(
                id=head,
                rank=rank,
                damage=damage[head],
                gradient=None if importance is None else float(importance[head]),
                roles=tuple(self._of_roles(self.sums[frozenset([head])])),
            )
            for rank, head in enumerate(ranked, start=1)
        )

    def of_set(self, heads: HeadSet) -> SetEffect:
        """Effect of a set beside its heads one at a time."""
        members = sorted(heads)
        singles = torch.stack([self.sums[frozenset([head])] for head in members]).sum(0)
        return SetEffect(
            heads=tuple(members),
            layer=members[0].layer if len({head.layer for head in members}) == 1 else None,
            damage=self.estimates(self.sums[heads]),
            singles=self.estimates(singles),
            excess=self.estimates(self.sums[heads] - singles),
        )
