"""How two streams of patterns differ, head by head: a text is a batch of one, without bootstrap samples.

For one query let p and q be its rows of attention on A and on B, and m = (p + q) / 2. Their Jensen-Shannon divergence
is H(m) - (H(p) + H(q)) / 2 in nats, H being the entropy: 0 where they are equal, ln 2 where they have no key in
common (Lin 1991; Clark et al. 2019 compare heads by it). Its square root is a metric (Endres & Schindelin 2003).
Total variation is half of the sum over keys of the absolute differences.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnviz.judge.roles import ERROR_RATE
from attnviz.measures.bootstrap import ENOUGH_TEXTS, REPLICATES, standard_error
from attnviz.measures.estimates import Interval, cosine_evidence, false_discovery
from attnviz.measures.sums import SumTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.reference.attention import entropy, nowhere

LARGEST_DISTANCE = math.sqrt(math.log(2))
"""The Jensen-Shannon distance of two patterns that share no key, in the square root of nats."""

STATISTICS = "divergence", "distance", "total_variation"

_Blocks = Iterable[tuple[int, Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How one head differs between A and B: means over texts, of a single one its own numbers, without evidence.

    Attributes:
        rank: 1 for the head that differs most.
        divergence: of a text the mean over its queries of the Jensen-Shannon divergence, nats, 0 to ln 2 = 0.693.
        distance: of a text the square root of that, 0 to 0.833: the root mean square of the queries' own distances.
        total_variation: of a text the mean over its queries of the total variation distance, 0-1.
        noise: the distance between two passes of A with dropout; None where not measured, or without dropout in A.
        interval: of the distance, at 0.05 over all heads together (Bonferroni); None where there are too few texts.
        above_noise: interval of distance minus noise, paired by text; without noise that of the distance.
        p: one-sided, of no more distance than noise; None with too few texts.
        q: its false discovery rate over all heads (Benjamini-Yekutieli 2001).
        changed: whether the head differs by more than noise: both intervals above it, and q at most 0.05.
    """

    id: HeadId
    rank: int
    divergence: float
    distance: float
    total_variation: float
    noise: float | None = None
    interval: Interval | None = None
    above_noise: Interval | None = None
    p: float | None = None
    q: float | None = None
    changed: bool = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.id}: distance {self.distance:.3f}, rank {self.rank}>"


class DifferenceTally(SumTally):
    """Sums over texts of every head's differences, and of dropout noise on the same texts, with bootstrap samples."""

    def __init__(self, checkpoint: Checkpoint, replicates: int = REPLICATES) -> None:
        self._heads = [
            HeadId(layer, head) for layer in checkpoint.layers for head in range(checkpoint.n_heads_of(layer))
        ]
        shape = 1 + replicates, checkpoint.n_layers, 1 + max(id.head for id in self._heads)
        super().__init__(
            texts=(1 + replicates,), largest=(), dropout=(), **dict.fromkeys((*STATISTICS, "noise"), shape)
        )
        self._causal, self._learned = checkpoint.architecture.causal, checkpoint.architecture.learned_sinks
        self._weights = torch.empty(0)

    def begin(self, weights: Tensor, lengths: Iterable[int]) -> None:
        """Begin texts of these lengths; ``weights`` as for :func:`attnviz.measures.bootstrap.text_weights`."""
        self._weights = weights
        self._counts["texts"] += weights.sum(1)
        for n in lengths:  # a query that sees one key alone attends to it in any model
            self._counts["largest"] += LARGEST_DISTANCE * math.sqrt((n - (self._causal or n == 1)) / n)

    def add(self, layer: int, blocks: _Blocks, queries: Tensor, *, noise: bool = False) -> None:
        """Compare one layer's patterns, or those of two passes with dropout; see :func:`mean_differences`."""
        divergence, variation = mean_differences(blocks, queries, self._learned)
        named = {"divergence": divergence, "distance": divergence.sqrt(), "total_variation": variation}
        for name, values in ({"noise": named["distance"]} if noise else named).items():
            self._counts[name][:, layer, : values.shape[1]] += self._weights @ values

    def add_dropout(self, probability: float) -> None:
        """Note the probability at which values were dropped on the current texts, the largest of any module."""
        self._counts["dropout"] += probability * self._weights.shape[1]

    @property
    def largest(self) -> float:
        """Mean over texts of the largest possible distance."""
        return float(self._counts["largest"] / self._counts["texts"][0])

    @property
    def dropout(self) -> float:
        """Mean over texts of the probability of dropout; 0 where no noise was measured."""
        return round(float(self._counts["dropout"] / self._counts["texts"][0]), 9)

    def _means(self, name: str) -> Tensor:
        """Means over texts as measured and in every bootstrap sample, [1 + replicates, n_layers, n_heads]."""
        return self._counts[name] / self._counts["texts"][:, None, None]

    def ranked(self) -> list[Difference]:
        """Every head, the most different first; with evidence if there are enough texts."""
        means: dict[str, Any] = {name: self._means(name)[0] for name in (*STATISTICS, *["noise"] * bool(self.dropout))}
        ids = sorted(self._heads, key=lambda id: (-float(means["distance"][id]), id))
        evidence = self._evidence(ids) if self._counts["texts"][0] >= ENOUGH_TEXTS else [{} for _ in ids]
        return [
            Difference(id=id, rank=rank, **{name: each[id].item() for name, each in means.items()}, **more)
            for rank, (id, more) in enumerate(zip(ids, evidence, strict=True), start=1)
        ]

    def _evidence(self, ids: Sequence[HeadId]) -> Iterator[dict[str, Any]]:
        """Intervals, p, q and verdict of each head, over all of them together."""
        distance, noise = self._means("distance"), self._means("noise")
        errors = standard_error(distance[1:]), standard_error((distance - noise)[1:])
        n_texts, tests = int(self._counts["texts"][0]), []
        numbers = torch.stack([distance[0], noise[0], *errors], -1)
        for score, baseline, own, above in (numbers[id].tolist() for id in ids):
            tests.append((baseline, cosine_evidence(score, baseline, (own, above), n_texts, ERROR_RATE / len(ids))))
        rates = false_discovery([test.p for _, test in tests])
        for (baseline, ((low, high), above_noise, p)), q in zip(tests, rates, strict=True):
            changed = q <= ERROR_RATE and low > baseline and above_noise[0] > 0
            yield {"interval": (max(0.0, low), high), "above_noise": above_noise, "p": p, "q": q, "changed": changed}


def mean_differences(blocks: _Blocks, queries: Tensor, learned_sinks: bool = False) -> tuple[Tensor, Tensor]:
    """Mean Jensen-Shannon divergence (nats) and total variation over the queries of each text.

    Args:
        blocks: the first query, and its and the next rows on both sides, [n_texts, n_heads, n_rows, n_keys] each,
            which sum to 1.
        queries: boolean [n_texts, n], False for padding.
        learned_sinks: whether they sum to less: what goes nowhere is then one outcome more.

    Returns:
        [n_texts, n_heads] each, float64, on the CPU.
    """
    sums = torch.zeros(())
    for first, one, other in blocks:
        device = "cpu" if one.device.type == "mps" else one.device  # which has no float64
        heads = []
        for rows in zip(one.unbind(1), other.unbind(1), strict=True):  # in float64 one at a time, to save memory
            p, q = (each.to(device, torch.float64) for each in rows)
            if learned_sinks:
                p, q = (torch.cat([each, nowhere(each)[..., None]], -1) for each in (p, q))
            of_mean, of_p, of_q = (entropy(each) for each in ((p + q) / 2, p, q))
            divergence = (of_mean - (of_p + of_q) / 2).clamp(0, math.log(2))
            heads.append(torch.stack([divergence, (q - p).abs().sum(-1) / 2]))
        counted = queries[:, None, first : first + one.shape[2]].to(heads[0])
        sums = sums + (torch.stack(heads, 2) * counted).sum(-1).cpu()
    divergence, variation = sums / queries.sum(1, keepdim=True).cpu()
    return divergence, variation
