"""What removing heads does: estimates with intervals, of single heads, of sets, and of ever more heads."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.commands.ablate.metrics import GradientTally, Metric, layer_normalised
from attnviz.commands.ablate.passes import HeadSet, Passes
from attnviz.corpora.bootstrap import ENOUGH_TEXTS, text_weights
from attnviz.model.head_ids import HeadId
from attnviz.progress import Progress

__all__ = [
    "LESS", "MORE", "Bootstrap", "Curve", "CurvePoint", "Estimate", "HeadEffect", "SetEffect", "rank_heads",
    "removal_curve",
]  # fmt: skip

REPLICATES, _TAIL = 1000, 0.025
"""Bootstrap samples of the texts, enough for the ends of a 95 % interval."""

MORE, LESS = 1.25, 0.8
"""A set that does so many times what its heads do one at a time does more, or less, than their sum; attnviz's own
choice. The interval of the difference has to lie on that side of zero too."""


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
    damage: dict[str, Estimate]  # by the name of the metric, per token
    gradient: float | None  # its importance by Michel et al. 2019; None where it was not measured
    gradient_normalised: float | None  # divided by the l2 norm over the heads of its layer


@dataclass(frozen=True)
class SetEffect:
    """What removing several heads at once does, beside what they do one at a time."""

    heads: tuple[HeadId, ...]
    layer: int | None  # None for a set over layers
    damage: dict[str, Estimate]  # of the set, by the name of the metric, per token
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

    def __init__(self, seed: int, numbers: Sequence[int], counts: Tensor, metrics: Iterable[Metric]) -> None:
        """Draw weights of these texts of the corpora; ``counts``: the measured positions of each, [n_texts]."""
        self._weights = text_weights(seed, numbers, REPLICATES if len(numbers) >= ENOUGH_TEXTS else 0)
        self._names, self._tokens = [metric.name for metric in metrics], self._weights @ counts

    def estimates(self, sums: Tensor) -> dict[str, Estimate]:
        """Of sums [n_texts, 2], by the name of the metric."""
        means = (self._weights @ sums) / self._tokens[:, None]  # [1 + replicates, 2]
        by_name = {}
        for name, (value, *replicates) in zip(self._names, means.T, strict=True):
            ends = [float(torch.stack(replicates).quantile(share)) for share in (_TAIL, 1 - _TAIL) if replicates]
            by_name[name] = Estimate(float(value), *(ends or (None, None)))
        return by_name

    def of_set(self, heads: HeadSet, sums: Tensor, of_heads: dict[HeadId, Tensor]) -> SetEffect:
        """A set beside its heads one at a time."""
        members = tuple(sorted(heads))
        singles = torch.stack([of_heads[head] for head in members]).sum(0)
        return SetEffect(
            heads=members,
            layer=members[0].layer if len({head.layer for head in members}) == 1 else None,
            damage=self.estimates(sums),
            singles=self.estimates(singles),
            excess=self.estimates(sums - singles),
        )


def rank_heads(
    of_heads: dict[HeadId, Tensor], bootstrap: Bootstrap, tally: GradientTally | None
) -> tuple[HeadEffect, ...]:
    """The heads by the first metric, the most important first."""
    gradient = None if tally is None else tally.by_text().mean(0)
    normalised = None if gradient is None else layer_normalised(gradient)
    damage = {head: bootstrap.estimates(sums) for head, sums in of_heads.items()}
    order = sorted(damage, key=lambda head: (-next(iter(damage[head].values())).value, head))
    importance = {
        head: [None if each is None else float(each[head]) for each in (gradient, normalised)] for head in order
    }
    return tuple(HeadEffect(head, rank, damage[head], *importance[head]) for rank, head in enumerate(order, start=1))


def removal_curve(
    passes: Passes,
    ranked: Sequence[HeadId],
    of_heads: dict[HeadId, Tensor],
    bootstrap: Bootstrap,
    seed: int,
    progress: Progress,
) -> Curve:
    """Remove a few heads, then eighths of them all: the least important first, and in a random order."""
    order = list(reversed(ranked))
    shuffled = sorted(order)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - an order, not a secret
    n = len(order)
    few = {2**power for power in range(n.bit_length()) if 2**power <= n / 12}
    counts = sorted({1, *few, *(-(-n * eighth // 8) for eighth in range(1, 9))})
    sets: list[HeadSet] = [frozenset(each[:count]) for each in (order, shuffled) for count in counts]
    new = list(dict.fromkeys(heads for heads in sets if len(heads) > 1))  # one head alone is measured already
    sums = passes.run(new, lambda done, total: progress("curve", done, total), verify=False)
    known = {frozenset([head]): each for head, each in of_heads.items()} | dict(zip(new, sums, strict=True))
    effects = [bootstrap.of_set(heads, known[heads], of_heads) for heads in sets]
    points = zip(counts, effects[: len(counts)], effects[len(counts) :], strict=True)
    return Curve(tuple(order), tuple(shuffled), tuple(CurvePoint(*point) for point in points))
