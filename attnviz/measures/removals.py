"""Effects of removing heads, one at a time and in sets, and their importance by gradients (Michel et al. 2019).

Each batch has an unchanged pass, and one resumed at a layer for each set of heads. A sample of the batches is compared
with the reference attention, and with the model's own final states.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.errors import VerificationError
from attnviz.measures.bootstrap import named_generator
from attnviz.measures.decisions import Decision, decisions
from attnviz.measures.intervals import Estimate, TextSamples
from attnviz.measures.predictions import DIFFERENCE, MARGIN, OF_FUNCTION, BatchMetrics, Metric
from attnviz.measures.role_tokens import RoleTokens
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.run import edit
from attnviz.run.finite import refuse_not_finite
from attnviz.run.passes import HeadSet, ModelInput, Pass, Passes, Tell
from attnviz.wording import amount

SATURATED = 0.05  # A loss of a class, in nats, below which it hardly tells heads apart: its margin does
PROJECTIONS = 4  # random projections of final states, where there is no loss

MORE, LESS, SAME = "more", "less", "no difference shown"  # verdicts on the tokens of a role; see RoleEffect


@dataclass(frozen=True)
class RoleEffect:
    """Effect of removing one head on the tokens of a role's queries, beside matched ones."""

    role: str
    direction: str | None
    n: int  # tokens of the queries, and as many matches
    texts: int  # that have some
    queries: dict[str, Estimate]  # mean damage by metric
    others: dict[str, Estimate]  # of the matches
    difference: dict[str, Estimate]  # queries less others
    verdict: str | None  # by the metric that heads are ordered by: MORE, LESS or SAME; None without intervals


@dataclass(frozen=True)
class HeadEffect:
    """Effect of removing one head."""

    id: HeadId
    rank: int  # from 1 for the largest effect by the metric that heads are ordered by; of logit differences by size
    damage: dict[str, Estimate]  # by metric, per token: positive where the metric gets worse without the head
    gradient: float | None = None  # importance by Michel et al. 2019; None if not measured
    roles: tuple[RoleEffect, ...] = ()  # on the tokens of the roles that were asked for, and have some

    def __repr__(self) -> str:
        damage = ", ".join(f"{metric} {amount(estimate.value)}" for metric, estimate in self.damage.items())
        return f"<HeadEffect of {self.id}: {damage}, rank {self.rank}>"


@dataclass(frozen=True)
class SetEffect:
    """Effect of removing several heads at once, beside their effects one at a time."""

    heads: tuple[HeadId, ...]
    damage: dict[str, Estimate]  # of the set, by metric, per token; positive as for a head
    singles: dict[str, Estimate]  # sum of what its heads do one at a time
    excess: dict[str, Estimate]  # effect of the set minus that sum

    @property
    def layer(self) -> int | None:
        """The layer of all its heads; None for a set over layers."""
        layers = {head.layer for head in self.heads}
        return layers.pop() if len(layers) == 1 else None


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


def is_sure(clean: Mapping[str, float]) -> bool:
    """Whether losses of a classifier are near 0 on most texts, so that they hardly tell heads apart."""
    return clean.get("share_saturated", 0.0) > 0.5


@dataclass(kw_only=True)
class Removals:
    """Removes sets of heads on the inputs of texts, batch by batch, and measures what that changes."""

    checkpoint: Checkpoint
    inputs: Sequence[ModelInput]
    metrics: Sequence[Metric]
    # by text, how often each token counts in each sum, [n_tokens, n_sums]: the first is of all positions, then come
    # those of the queries and of the matches of each role
    weights: Sequence[Tensor]
    removal: edit.Removal
    samples: TextSamples
    batch_size: int
    seed: int  # of random directions and orders
    gradient: bool  # whether importance by gradients is measured

    def __post_init__(self) -> None:
        self.passes = Passes(self.checkpoint, has_logits=self.metrics[0].of_predictions)
        self.counts = torch.stack([of_text.sum(0) for of_text in self.weights])  # [n_texts, n_sums]
        self.sums: dict[HeadSet, Tensor] = {}  # the metrics without each set, [n_texts, n_sums, n_metrics] float64
        # of the unchanged model, means over positions: loss or scores; of a classifier also accuracy, where it has
        # labels, and share_saturated, of texts whose loss is below SATURATED
        self.clean: dict[str, float] = {}
        self.decisions: dict[int, Decision] = {}  # of a classifier, by text; empty where there are no classes
        self.tally = GradientTally(self.checkpoint, self.metrics[0].of_predictions, self.counts[:, 0], self.seed)

    def run(self, sets: Sequence[HeadSet], tell: Tell) -> None:
        """Remove each set of heads. All share the unchanged passes.

        The first run verifies a sample of the batches, and measures gradients.
        """
        is_first = not self.sums
        sums = torch.zeros(len(sets), *self.counts.shape, len(self.metrics), dtype=torch.float64)
        clean = dict.fromkeys([metric.name for metric in self.metrics if metric.score], 0.0)
        with edit.running(self.checkpoint):
            for unchanged in self.passes.each(self.inputs, self.batch_size, tell, verify=is_first):
                inputs, final = unchanged.inputs, unchanged.kept.final
                texts = torch.tensor(inputs.texts)
                metrics = BatchMetrics(self.checkpoint, inputs, final, self.weights, self.metrics)
                variants = [self.removal.edits(heads, inputs.batch.inputs) for heads in sets]
                for numbers, without in edit.edited_passes(unchanged.kept, variants):
                    sums[numbers] = sums[numbers].index_add(1, texts, metrics.changes(without))
                if is_first and self.gradient:
                    self.tally.add(unchanged, metrics)
                for name, scores in metrics.clean.items():
                    clean[name] += float(scores.sum())
                if self.checkpoint.classifier is not None and self.metrics[0].of_predictions:
                    read = [text.positions[0] for text in inputs.inputs]
                    right = [None if text.item.source.label is None else text.labels[0] for text in inputs.inputs]
                    of_batch = decisions(self.checkpoint.classifier, final[range(len(read)), read], right)
                    self.decisions |= dict(zip(inputs.texts, of_batch, strict=True))
        self.clean = {name: score / float(self.counts[:, 0].sum()) for name, score in clean.items()}
        if "loss" in self.clean:
            self.clean["loss"] *= -1
        decided = self.decisions.values()
        judged = [each.right for each in decided if each.right is not None]
        if judged:
            self.clean["accuracy"] = sum(judged) / len(judged)
        if MARGIN in self.clean:
            sure = [each for each in decided if each.right is not False and each.probability > math.exp(-SATURATED)]
            self.clean["share_saturated"] = len(sure) / len(decided)
        self.sums |= dict(zip(sets, sums, strict=True))

    def ranked_heads(self, order_by: str, roles: Sequence[RoleTokens]) -> tuple[HeadEffect, ...]:
        """Heads by their rank by a metric, that which matters most first."""
        heads = [head for of_set in self.sums if len(of_set) == 1 for head in of_set]
        estimates = self._estimates([self._alone(head)[:, 0] for head in heads], self.counts[:, :1])
        damage = dict(zip(heads, estimates, strict=True))
        size = abs if order_by in (DIFFERENCE, OF_FUNCTION.name) else float
        ranked = sorted(heads, key=lambda head: (-size(damage[head][order_by].value), head))
        of_roles, importance = self._of_roles(heads, roles, order_by), self.tally.importance
        return tuple(
            HeadEffect(
                id=head,
                rank=rank,
                damage=damage[head],
                gradient=float(importance[head]) if self.gradient else None,
                roles=tuple(of_roles[head]),
            )
            for rank, head in enumerate(ranked, start=1)
        )

    def of_sets(self, sets: Sequence[HeadSet]) -> list[SetEffect]:
        """Effects of sets beside their heads one at a time; intervals hold together for all sets."""
        together = [self.sums[heads][:, 0] for heads in sets]
        singles = [torch.stack([self._alone(head)[:, 0] for head in heads]).sum(0) for heads in sets]
        effects = self._compared(together, singles, self.counts[:, :1])
        return [SetEffect(tuple(sorted(heads)), *of_set) for heads, of_set in zip(sets, effects, strict=True)]

    def curve(self, order: Sequence[HeadId], tell: Tell) -> Curve:
        """Remove a few heads, then eighths of all, in this order and in random order."""
        shuffled = sorted(order)
        n = len(order)
        random.Random(self.seed).shuffle(shuffled)  # noqa: S311 - an order, not a secret
        few = {2**power for power in range(n.bit_length()) if 2**power <= n / 12}
        counts = sorted({1, *few, *(-(-n * eighth // 8) for eighth in range(1, 9))})
        least, drawn = ([frozenset(heads[:count]) for count in counts] for heads in (order, shuffled))
        new = [heads for heads in dict.fromkeys([*least, *drawn]) if heads not in self.sums]
        if new:
            self.run(new, tell)
        points = map(CurvePoint, counts, self.of_sets(least), self.of_sets(drawn))
        return Curve(order=tuple(order), random_order=tuple(shuffled), points=tuple(points))

    def _alone(self, head: HeadId) -> Tensor:
        """Without one head, [n_texts, n_sums, n_metrics]."""
        return self.sums[frozenset([head])]

    def _estimates(self, sums: Sequence[Tensor], counts: Tensor) -> list[dict[str, Estimate]]:
        """Estimates by metric of the rows of a table, whose intervals hold together.

        ``sums``: of each row, [n_texts, n_metrics]; ``counts``: of positions, [n_texts, n_rows], or [n_texts, 1].
        """
        rows = [dict[str, Estimate]() for _ in sums]
        for at, metric in enumerate(self.metrics if sums else ()):
            ratios = self.samples.ratios(torch.stack([of_row[:, at] for of_row in sums], 1), counts)
            for row, estimate in zip(rows, ratios, strict=True):
                row[metric.name] = estimate
        return rows

    def _compared(
        self, sums: Sequence[Tensor], others: Sequence[Tensor], counts: Tensor
    ) -> Iterator[tuple[dict[str, Estimate], ...]]:
        """For each row the estimates of its sums, of the other ones, and of their difference."""
        differences = [of_row - other for of_row, other in zip(sums, others, strict=True)]
        return zip(*(self._estimates(each, counts) for each in (sums, others, differences)), strict=True)

    def _of_roles(
        self, heads: Sequence[HeadId], roles: Sequence[RoleTokens], order_by: str
    ) -> dict[HeadId, list[RoleEffect]]:
        """Of each head its effects on the tokens of roles; intervals hold together for all heads and roles."""
        effects: dict[HeadId, list[RoleEffect]] = {head: [] for head in heads}
        rows = [
            (head, role, column)
            for head in heads
            for column, role in zip(range(1, self.counts.shape[1], 2), roles, strict=True)
            if self.counts[:, column].any()
        ]
        queries, others = ([self._alone(head)[:, at + side] for head, _, at in rows] for side in (0, 1))
        counts = self.counts[:, [column for _, _, column in rows]]  # as many matches, whose sums come next
        estimated = self._compared(queries, others, counts)
        for (head, role, column), (on_queries, on_others, difference) in zip(rows, estimated, strict=True):
            effects[head].append(
                RoleEffect(
                    role=role.role,
                    direction=role.direction,
                    n=int(self.counts[:, column].sum()),
                    texts=int((self.counts[:, column] > 0).sum()),
                    queries=on_queries,
                    others=on_others,
                    difference=difference,
                    verdict={1: MORE, -1: LESS, 0: SAME, None: None}[difference[order_by].side],
                )
            )
        return effects


class GradientTally:
    """Sums the sensitivity of a model to each head over texts (Michel et al. 2019, section 4.1).

    Each head is multiplied by a gate, 1 in the model as it is. The derivative of a text's loss by the gate is
    Att_h(x)^T dL/dAtt_h(x): to first order, how much the loss falls when the head gives zeros. Its importance is the
    mean absolute value over texts.

    Where nothing is predicted, the loss is a random projection v·s / sqrt(n) of the n final states s, several times:
    the root mean square of its derivatives is, to first order, how far the states move without the head.
    """

    def __init__(self, checkpoint: Checkpoint, predicts: bool, counts: Tensor, seed: int) -> None:
        """``counts``: measured positions, [n_texts] float64; ``seed``: of the random directions."""
        self._checkpoint, self._predicts, self._counts, self._seed = checkpoint, predicts, counts, seed
        self._n_heads = [checkpoint.n_heads_of(layer) for layer in range(checkpoint.n_layers)]
        self._sums = torch.zeros(len(counts), checkpoint.n_layers, max(self._n_heads), dtype=torch.float64)

    def add(self, unchanged: Pass, metrics: BatchMetrics) -> None:
        """Measure a batch."""
        inputs, kept, _ = unchanged
        texts = torch.tensor(inputs.texts)
        if self._predicts:
            gradient = metrics.loss_gradient(kept.final, 1 / self._counts[texts])
            self._sums.index_add_(0, texts, self._gate_gradients(kept, gradient))
            return
        for number in range(PROJECTIONS):
            direction = torch.zeros_like(kept.final)  # at every token; it depends on the text but not on its batch
            for row, text in enumerate(inputs.inputs):
                n = len(text.positions)
                generator = named_generator(f"{self._seed}:{number}:{text.item.ids}")
                direction[row, :n] = (torch.randn(n, direction.shape[-1], generator=generator) / n**0.5).to(direction)
            self._sums.index_add_(0, texts, self._gate_gradients(kept, direction).square() / PROJECTIONS)

    @property
    def importance(self) -> Tensor:
        """Importance of every head, mean over texts, [n_layers, n_heads]."""
        return (self._sums.abs() if self._predicts else self._sums.sqrt()).mean(0)

    def _gate_gradients(self, kept: edit.KeptPass, gradient: Tensor) -> Tensor:
        """Derivatives by the gates, [rows, n_layers, n_heads], 0 where a layer has fewer heads.

        Where a pass can be resumed, layers are run again one by one from the last; else all are one graph.
        """
        model = self._checkpoint
        of_gates: Sequence[Tensor]
        if model.architecture.resumable and not model.other_layers:
            of_gates = self._by_layer(kept, gradient)
        else:
            gates = [gradient.new_ones(len(gradient), n, requires_grad=True) for n in self._n_heads]
            with torch.enable_grad(), edit.edited(model, [[edit.gated(*gate) for gate in enumerate(gates)]]):
                of_gates = torch.autograd.grad(edit.run_model(model, kept.inputs), gates, gradient)
        widest = max(self._n_heads)
        stacked = torch.stack([pad(of_gate.double().cpu(), (0, widest - of_gate.shape[1])) for of_gate in of_gates], 1)
        refuse_not_finite(stacked, "gradient by its heads")
        return stacked

    def _by_layer(self, kept: edit.KeptPass, gradient: Tensor) -> list[Tensor]:
        model = self._checkpoint
        of_gates = list[Tensor]()
        for layer in reversed(range(model.n_layers)):
            with torch.enable_grad():
                hidden = kept.stream(layer).detach().requires_grad_()
                gate = gradient.new_ones(len(gradient), self._n_heads[layer], requires_grad=True)
                with edit.edited(model, [[edit.gated(layer, gate)]]):
                    after = kept.run_block(layer, hidden)
                if layer == model.n_layers - 1:
                    after = model.architecture.final_states(model.model, after)
            try:
                gradient, of_gate = torch.autograd.grad(after, (hidden, gate), gradient)
            except RuntimeError as error:  # torch's own, where one of them is not in the graph
                raise VerificationError(
                    f"the output of layer {layer} does not depend on its input and its heads, so that there is no "
                    "gradient; expected a layer that passes on what its heads add."
                ) from error
            of_gates.insert(0, of_gate)
        return of_gates
