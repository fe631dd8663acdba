"""Effects of removing heads, from an unchanged pass per batch, and one resumed at a layer for each set of heads.

A sample of the batches is compared with the reference attention, and with the model's own final states.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.commands.ablate.inputs import RoleTokens
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.decisions import Decision, decisions
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import SAMPLES, of_ratios
from attnviz.measures.predictions import DIFFERENCE, LABELLED, STATES, BatchMetrics, metrics_of
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.run import edit
from attnviz.run.passes import HeadSet, ModelInput, Pass, Passes, SampleVerification, Tell
from attnviz.texts.reading import Text
from attnviz.wording import amount

MORE, LESS, SAME = "more", "less", "no difference shown"  # verdicts on the tokens of a role; see RoleEffect


@dataclass(frozen=True)
class Estimate:
    """A number and its interval, at 0.05 over all rows of its table; None with too few texts that have an effect."""

    value: float
    low: float | None
    high: float | None

    def __float__(self) -> float:
        return self.value

    @property
    def interval(self) -> Interval | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def side(self) -> int | None:
        """Sign of the interval: 1 above zero, -1 below, 0 if it includes zero; None without an interval."""
        return None if self.interval is None else (self.interval[0] > 0) - (self.interval[1] < 0)


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
        order_by: str,
        sums: Mapping[HeadSet, Tensor],
        roles: Sequence[RoleTokens],
    ) -> None:
        """``sums`` of heads and sets, [n_texts, n_sums, n_metrics], over measured positions, [n_texts, n_sums].

        The first sum is of all positions, then come those of the queries and of the matches of each role.
        ``order_by``: the name of the metric that ranks heads.
        """
        self._weights = text_weights(seed, [text.number for text in texts], SAMPLES)
        self._metrics, self._order_by, self._counts, self._roles = metrics_of(kind), order_by, counts, roles
        self.sums = dict(sums)

    def _estimates(self, sums: Sequence[Tensor], counts: Tensor) -> list[dict[str, Estimate]]:
        """Estimates by metric of the rows of a table, whose intervals hold together.

        ``sums``: of each row, [n_texts, n_metrics]; ``counts``: of positions, [n_texts, n_rows], or [n_texts, 1].
        """
        rows = [dict[str, Estimate]() for _ in sums]
        for at, metric in enumerate(self._metrics):
            ratios = of_ratios(torch.stack([of_row[:, at] for of_row in sums], 1), counts, self._weights)
            for number, row in enumerate(rows):
                ends = ratios.interval(number) or (None, None)
                row[metric.name] = Estimate(float(ratios.estimates[number]), *ends)
        return rows

    def _of_all(self, sums: Sequence[Tensor]) -> list[dict[str, Estimate]]:
        """Estimates by metric of all positions, from sums [n_texts, n_sums, n_metrics] of each row."""
        return self._estimates([of_row[:, 0] for of_row in sums], self._counts[:, :1])

    def _of_roles(self, heads: Sequence[HeadId]) -> dict[HeadId, list[RoleEffect]]:
        """Of each head its effects on the tokens of roles; intervals hold together for all heads and roles."""
        effects: dict[HeadId, list[RoleEffect]] = {head: [] for head in heads}
        measured = [number for number in range(len(self._roles)) if self._counts[:, 1 + 2 * number].any()]
        if not measured:
            return effects
        rows = [(head, number) for head in heads for number in measured]
        of_queries = [1 + 2 * number for _, number in rows]  # as many matches, whose sums come next
        queries = [self.sums[frozenset([head])][:, at] for (head, _), at in zip(rows, of_queries, strict=True)]
        others = [self.sums[frozenset([head])][:, at + 1] for (head, _), at in zip(rows, of_queries, strict=True)]
        differences = [query - other for query, other in zip(queries, others, strict=True)]
        counts = self._counts[:, of_queries]
        estimates = (self._estimates(sums, counts) for sums in (queries, others, differences))
        for at, (head, number), *estimated in zip(of_queries, rows, *estimates, strict=True):
            on_queries, on_others, difference = estimated
            effects[head].append(
                RoleEffect(
                    role=self._roles[number].role,
                    direction=self._roles[number].direction,
                    n=int(self._counts[:, at].sum()),
                    texts=int((self._counts[:, at] > 0).sum()),
                    queries=on_queries,
                    others=on_others,
                    difference=difference,
                    verdict={1: MORE, -1: LESS, 0: SAME, None: None}[difference[self._order_by].side],
                )
            )
        return effects

    def ranked_heads(self, importance: Tensor | None) -> tuple[HeadEffect, ...]:
        """Heads by their rank, the most important first; ``importance`` by gradients, [n_layers, n_heads]."""
        heads = [head for of_set in self.sums if len(of_set) == 1 for head in of_set]
        damage = dict(zip(heads, self._of_all([self.sums[frozenset([head])] for head in heads]), strict=True))
        of_roles = self._of_roles(heads)
        size = abs if self._order_by == DIFFERENCE else float
        ranked = sorted(heads, key=lambda head: (-size(damage[head][self._order_by].value), head))
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
        if not sets:
            return []
        together = [self.sums[heads] for heads in sets]
        singles = [torch.stack([self.sums[frozenset([head])] for head in heads]).sum(0) for heads in sets]
        excess = [both - alone for both, alone in zip(together, singles, strict=True)]
        return [
            SetEffect(
                heads=tuple(sorted(heads)),
                layer=min(heads).layer if len({head.layer for head in heads}) == 1 else None,
                damage=of_set,
                singles=one_at_a_time,
                excess=difference,
            )
            for heads, of_set, one_at_a_time, difference in zip(
                sets, *map(self._of_all, (together, singles, excess)), strict=True
            )
        ]


class Ablations:
    """Measures sets of heads on the inputs of texts, batch by batch."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        inputs: Sequence[ModelInput],
        batch_size: int,
        weights: Sequence[Tensor],
        kind: str,
    ) -> None:
        self._checkpoint, self._inputs, self._batch_size, self._weights = checkpoint, inputs, batch_size, weights
        self._metrics = metrics_of(kind)
        self._classifier, self._labelled = None if kind == STATES else checkpoint.classifier, kind == LABELLED
        self._passes = Passes(checkpoint, has_logits=kind != STATES)
        self.counts = torch.stack([of_text.sum(0) for of_text in weights])  # [n_texts, n_sums], the first sum of all
        self.clean: dict[str, Tensor] = {}  # scores of the unchanged model by metric, sums over each text, [n_texts]
        self.decisions: dict[int, Decision] = {}  # of a classifier, by text; empty where there are no classes

    @property
    def verified(self) -> SampleVerification:
        return self._passes.verified

    def run(
        self,
        removal: edit.Removal,
        wanted: Sequence[HeadSet],
        tell: Tell,
        on_batch: Callable[[Pass, BatchMetrics], None] = lambda *_: None,
    ) -> dict[HeadSet, Tensor]:
        """The metrics without each set of heads, in sums: [n_texts, n_sums, n_metrics], float64.

        All share the unchanged passes, which ``on_batch`` gets. The first run verifies a sample of the batches.
        """
        sums = torch.zeros(len(wanted), *self.counts.shape, len(self._metrics), dtype=torch.float64)
        first_run = not self._passes.verified.n_inputs
        with edit.running(self._checkpoint):
            for unchanged in self._passes.each(self._inputs, self._batch_size, tell, verify=first_run):
                inputs = unchanged.inputs
                texts = torch.tensor(inputs.texts)
                metrics = BatchMetrics(self._checkpoint, inputs, unchanged.kept.final, self._weights, self._metrics)
                variants = [removal.edits(heads, inputs.batch.inputs) for heads in wanted]
                for numbers, final in edit.edited_passes(self._checkpoint, unchanged.kept, variants):
                    sums[numbers] = sums[numbers].index_add(1, texts, metrics.changes(final))
                on_batch(unchanged, metrics)
                if first_run and self._classifier is not None:
                    read = [model_input.positions[0] for model_input in inputs.inputs]
                    labels = [model_input.labels[0] for model_input in inputs.inputs] if self._labelled else []
                    decided = decisions(self._classifier, unchanged.kept.final[range(len(read)), read], labels)
                    self.decisions |= dict(zip(inputs.texts, decided, strict=True))
                if first_run:
                    for name, scores in metrics.clean.items():
                        of_texts = self.clean.setdefault(name, torch.zeros(len(self.counts), dtype=torch.float64))
                        of_texts.index_add_(0, texts, scores)
        return dict(zip(wanted, sums, strict=True))
