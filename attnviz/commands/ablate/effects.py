"""Effects of removing heads, from an unchanged pass per batch, and one resumed at a layer for each set of heads.

A sample of the batches is compared with the reference attention, and with the model's own final states.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.commands.ablate.inputs import RoleTokens
from attnviz.measures.decisions import Decision, decisions
from attnviz.measures.intervals import Estimate, TextSamples
from attnviz.measures.predictions import DIFFERENCE, OF_FUNCTION, BatchMetrics, Metric
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.run import edit
from attnviz.run.passes import HeadSet, ModelInput, Pass, Passes, Tell
from attnviz.wording import amount

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


class Removals:
    """Removes sets of heads on the inputs of texts, batch by batch, and measures what that changes."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        inputs: Sequence[ModelInput],
        metrics: Sequence[Metric],
        weights: Sequence[Tensor],
        removal: edit.Removal,
        samples: TextSamples,
        batch_size: int,
    ) -> None:
        """``weights``: by text, how often each token counts in each sum, [n_tokens, n_sums].

        The first sum is of all positions, then come those of the queries and of the matches of each role.
        """
        self._checkpoint, self._inputs, self._metrics, self._weights = checkpoint, inputs, metrics, weights
        self._removal, self._samples, self._batch_size = removal, samples, batch_size
        self.passes = Passes(checkpoint, has_logits=metrics[0].of_predictions)
        self.counts = torch.stack([of_text.sum(0) for of_text in weights])  # [n_texts, n_sums]
        self.sums: dict[HeadSet, Tensor] = {}  # the metrics without each set, [n_texts, n_sums, n_metrics] float64
        self.clean: dict[str, float] = {}  # loss or scores of the unchanged model, means over positions
        self.decisions: dict[int, Decision] = {}  # of a classifier, by text; empty where there are no classes

    def run(self, sets: Sequence[HeadSet], tell: Tell, *on_batch: Callable[[Pass, BatchMetrics], None]) -> None:
        """Remove each set of heads. All share the unchanged passes, which ``on_batch`` gets.

        The first run verifies a sample of the batches.
        """
        sums = torch.zeros(len(sets), *self.counts.shape, len(self._metrics), dtype=torch.float64)
        clean = dict.fromkeys([metric.name for metric in self._metrics if metric.score], 0.0)
        with edit.running(self._checkpoint):
            for unchanged in self.passes.each(self._inputs, self._batch_size, tell, verify=not self.sums):
                inputs, final = unchanged.inputs, unchanged.kept.final
                texts = torch.tensor(inputs.texts)
                metrics = BatchMetrics(self._checkpoint, inputs, final, self._weights, self._metrics)
                variants = [self._removal.edits(heads, inputs.batch.inputs) for heads in sets]
                for numbers, without in edit.edited_passes(self._checkpoint, unchanged.kept, variants):
                    sums[numbers] = sums[numbers].index_add(1, texts, metrics.changes(without))
                for call in on_batch:
                    call(unchanged, metrics)
                for name, scores in metrics.clean.items():
                    clean[name] += float(scores.sum())
                if self._checkpoint.classifier is not None and self._metrics[0].of_predictions:
                    read = [model_input.positions[0] for model_input in inputs.inputs]
                    labels = [label for model_input in inputs.inputs for label in model_input.labels]
                    right = labels if self._metrics[0].name == "loss" else ()  # else they are answers
                    decided = decisions(self._checkpoint.classifier, final[range(len(read)), read], right)
                    self.decisions |= dict(zip(inputs.texts, decided, strict=True))
        self.clean = {name: score / float(self.counts[:, 0].sum()) for name, score in clean.items()}
        if "loss" in self.clean:
            self.clean["loss"] *= -1
        self.sums |= dict(zip(sets, sums, strict=True))

    def ranked_heads(
        self, order_by: str, roles: Sequence[RoleTokens], importance: Tensor | None
    ) -> tuple[HeadEffect, ...]:
        """Heads by their rank by a metric, that which matters most first; ``importance`` by gradients."""
        heads = [head for of_set in self.sums if len(of_set) == 1 for head in of_set]
        damage = dict(zip(heads, self._of_all([self._alone(head) for head in heads]), strict=True))
        size = abs if order_by in (DIFFERENCE, OF_FUNCTION.name) else float
        ranked = sorted(heads, key=lambda head: (-size(damage[head][order_by].value), head))
        of_roles = self._of_roles(heads, roles, order_by)
        return tuple(
            HeadEffect(
                id=head,
                rank=rank,
                damage=damage[head],
                gradient=None if importance is None else float(importance[head]),
                roles=tuple(of_roles[head]),
            )
            for rank, head in enumerate(ranked, start=1)
        )

    def of_sets(self, sets: Sequence[HeadSet]) -> list[SetEffect]:
        """Effects of sets beside their heads one at a time; intervals hold together for all sets."""
        together = [self.sums[heads] for heads in sets]
        singles = [torch.stack([self._alone(head) for head in heads]).sum(0) for heads in sets]
        excess = [both - alone for both, alone in zip(together, singles, strict=True)]
        effects = zip(*map(self._of_all, (together, singles, excess)), strict=True)
        return [SetEffect(tuple(sorted(heads)), *of_set) for heads, of_set in zip(sets, effects, strict=True)]

    def curve(self, order: Sequence[HeadId], seed: int, tell: Tell) -> Curve:
        """Remove a few heads, then eighths of all, in this order and in random order."""
        shuffled = sorted(order)
        n = len(order)
        random.Random(seed).shuffle(shuffled)  # noqa: S311 - an order, not a secret
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

    def _of_all(self, sums: Sequence[Tensor]) -> list[dict[str, Estimate]]:
        """Estimates by metric of all positions, from sums [n_texts, n_sums, n_metrics] of each row."""
        return self._estimates([of_row[:, 0] for of_row in sums], self.counts[:, :1])

    def _estimates(self, sums: Sequence[Tensor], counts: Tensor) -> list[dict[str, Estimate]]:
        """Estimates by metric of the rows of a table, whose intervals hold together.

        ``sums``: of each row, [n_texts, n_metrics]; ``counts``: of positions, [n_texts, n_rows], or [n_texts, 1].
        """
        rows = [dict[str, Estimate]() for _ in sums]
        for at, metric in enumerate(self._metrics if sums else ()):
            ratios = self._samples.ratios(torch.stack([of_row[:, at] for of_row in sums], 1), counts)
            for row, estimate in zip(rows, ratios, strict=True):
                row[metric.name] = estimate
        return rows

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
        columns = [column for _, _, column in rows]
        counts = self.counts[:, columns]  # as many matches, whose sums come next
        queries, others = ([self._alone(head)[:, at + side] for head, _, at in rows] for side in (0, 1))
        differences = [query - other for query, other in zip(queries, others, strict=True)]
        estimated = (self._estimates(sums, counts) for sums in (queries, others, differences))
        for (head, role, column), on_queries, on_others, difference in zip(rows, *estimated, strict=True):
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
