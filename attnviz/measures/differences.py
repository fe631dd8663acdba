"""How two streams of patterns differ, head by head: a text is a batch of one, without bootstrap samples.

For one query let p and q be its rows of attention on A and on B, and m = (p + q) / 2. Their Jensen-Shannon divergence
is H(m) - (H(p) + H(q)) / 2 in nats, H being the entropy: 0 where they are equal, ln 2 where they have no key in
common (Lin 1991; Clark et al. 2019 compare heads by it). Its square root is a metric (Endres & Schindelin 2003).
Total variation is half of the sum over keys of the absolute differences.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.measures.bootstrap import text_weights
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import SAMPLES, simultaneous
from attnviz.measures.measure import Measure
from attnviz.models.head_ids import HeadId, Stack, select_heads
from attnviz.reference.attention import entropy, nowhere

# The Jensen-Shannon distance of two patterns that share no key, in the square root of nats.
LARGEST_DISTANCE = math.sqrt(math.log(2))

Weight = tuple[float, int, int]  # one that differs: B - A, -1 to 1, query and key, counted from 0

STATISTICS = "divergence", "distance", "total_variation"

_SAME = 1e-4 * LARGEST_DISTANCE  # distances on one text that are smaller are rounding


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How one head differs between A and B: means over texts, of a single one its own numbers, without an interval."""

    id: HeadId
    rank: int  # 1 for the head that differs most
    divergence: float  # of a text the mean over its queries of the Jensen-Shannon divergence, nats, 0 to ln 2 = 0.693
    distance: float  # of a text the square root of that, 0 to 0.833: the root mean square of its queries' own distances
    total_variation: float  # of a text the mean over its queries of the total variation distance, 0-1
    # of the distance, at 0.05 over all heads; None where there are too few texts, or too few on which it differs
    interval: Interval | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.id}: distance {self.distance:.3f}, rank {self.rank}>"


class DifferenceTally(Measure):
    """Sums over texts of every head's differences, with bootstrap samples."""

    def __init__(
        self, kinds: Sequence[Stack], causal: bool, learned_sinks: bool, seed: int = 0, samples: int = SAMPLES
    ) -> None:
        self._heads = select_heads((), kinds)
        shape = 1 + samples, sum(kind.n_layers for kind in kinds), 1 + max(id.head for id in self._heads)
        super().__init__()
        shapes = {"texts": (1 + samples,), "largest": (), "different": shape[1:]} | dict.fromkeys(STATISTICS, shape)
        self._counts = {name: torch.zeros(size).double() for name, size in shapes.items()}
        self._causal, self._learned = causal, learned_sinks
        self._seed, self._samples = seed, samples

    def count_texts(self, numbers: Sequence[int], lengths: Sequence[int]) -> None:
        """Count texts of the corpus with these numbers and lengths."""
        self._weights = text_weights(self._seed, numbers, self._samples)
        self._counts["texts"] += self._weights.sum(1)
        for n in lengths:  # a query that sees one key alone attends to it in any model
            self._counts["largest"] += LARGEST_DISTANCE * math.sqrt((n - (self._causal or n == 1)) / n)

    def compare(self, layer: int, chunks: Iterable[tuple[int, Tensor, Tensor]], queries: Tensor) -> None:
        """Compare one layer's patterns; see :func:`mean_differences`."""
        divergence, variation = mean_differences(chunks, queries, self._learned)
        statistics = {"divergence": divergence, "distance": divergence.sqrt(), "total_variation": variation}
        for name, values in statistics.items():
            self._counts[name][:, layer, : values.shape[1]] += self._weights @ values
        self._counts["different"][layer, : values.shape[1]] += (statistics["distance"] > _SAME).sum(0)

    @property
    def largest(self) -> float:
        """Mean over texts of the largest possible distance."""
        return float(self._counts["largest"] / self._counts["texts"][0])

    def ranked(self) -> list[Difference]:
        """Every head, the most different first; with intervals if there are enough texts."""
        n_texts = self._counts["texts"]
        means = {name: self._counts[name] / n_texts[:, None, None] for name in STATISTICS}  # [1 + samples, layer, head]
        distances, squares = (means[name].flatten(1) for name in ("distance", "divergence"))
        errors = ((squares - distances**2).clamp_min(0) / (n_texts - 1)[:, None]).sqrt()
        every = torch.full_like(distances[0], float(n_texts[0]))
        measured = distances[0]
        intervals = simultaneous(
            measured, distances[1:] - measured, errors, every, self._counts["different"].flatten(), scale=measured
        )
        ranked = sorted(self._heads, key=lambda id: (-float(means["distance"][0][id]), id))
        return [
            Difference(
                id=id,
                rank=rank,
                interval=intervals.interval(id.layer * means["distance"].shape[2] + id.head),
                **{name: float(mean[0][id]) for name, mean in means.items()},
            )
            for rank, id in enumerate(ranked, start=1)
        ]


def mean_differences(
    chunks: Iterable[tuple[int, Tensor, Tensor]], queries: Tensor, learned_sinks: bool = False
) -> tuple[Tensor, Tensor]:
    """Mean Jensen-Shannon divergence (nats) and total variation over the queries of each text.

    Args:
        chunks: the first query, and its and the next rows on both sides, [n_texts, n_heads, n_rows, n_keys] each,
            which sum to 1.
        queries: boolean [n_texts, n], False for padding.
        learned_sinks: whether they sum to less: what goes nowhere is then one outcome more.

    Returns:
        [n_texts, n_heads] each, float64, on the CPU.
    """
    sums = torch.zeros(())
    for first, one, other in chunks:
        device = "cpu" if one.device.type == "mps" else one.device  # which has no float64
        heads = []
        for rows in zip(one.unbind(1), other.unbind(1), strict=True):  # in float64 one at a time, to save memory
            p, q = (pattern.to(device, torch.float64) for pattern in rows)
            if learned_sinks:
                p, q = (torch.cat([pattern, nowhere(pattern)[..., None]], -1) for pattern in (p, q))
            of_mean, of_p, of_q = (entropy(pattern) for pattern in ((p + q) / 2, p, q))
            divergence = (of_mean - (of_p + of_q) / 2).clamp(0, math.log(2))
            heads.append(torch.stack([divergence, (q - p).abs().sum(-1) / 2]))
        counted = queries[:, None, first : first + one.shape[2]].to(heads[0])
        sums = sums + (torch.stack(heads, 2) * counted).sum(-1).cpu()
    divergence, variation = sums / queries.sum(1, keepdim=True).cpu()
    return divergence, variation


def noting_largest(
    layer: int,
    chunks: Iterable[tuple[int, Tensor, Tensor]],
    largest: dict[HeadId, Weight],
    of_content: dict[HeadId, Weight],
    queries: Tensor,
    keys: Tensor,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The chunks of :func:`side_by_side` as a batch of one text, each head's largest differences noted on the way.

    ``largest`` is of all weights, ``of_content`` of the ``queries`` and ``keys`` that are True. Of several equally
    large ones it is the first in reading order.
    """
    for first, p, q in chunks:
        content = queries[first : first + p.shape[1], None] & keys[: p.shape[2]]
        for head, (of_a, of_b) in enumerate(zip(p, q, strict=True)):
            difference = of_b.double() - of_a.double()
            for noted, rows in ((largest, difference), (of_content, difference * content)):
                query, key = divmod(int(rows.abs().argmax()), rows.shape[1])
                here = float(rows[query, key]), first + query, key
                before = noted.get(HeadId(layer, head), here)
                noted[HeadId(layer, head)] = max(before, here, key=lambda weight: abs(weight[0]))
        yield first, p[None], q[None]


def side_by_side(
    one: Iterator[tuple[int, Tensor]], other: Iterator[tuple[int, Tensor]]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Align the chunks of two sides, which may differ in size, to the same rows and keys.

    From the first query of a chunk and its rows to the first query and the rows of both, [n_heads, rows, n_keys] each.
    """
    first, waiting = 0, [torch.empty(0, 0, 0), torch.empty(0, 0, 0)]
    while True:
        for number, side in enumerate((one, other)):
            while not waiting[number].shape[1]:
                chunk = next(side, None)
                if chunk is None:
                    return
                waiting[number] = chunk[1]
        n, n_keys = (min(rows.shape[1] for rows in waiting), max(rows.shape[2] for rows in waiting))
        a, b = (pad(rows[:, :n], (0, n_keys - rows.shape[2])) for rows in waiting)
        yield first, a, b
        first, waiting = first + n, [rows[:, n:] for rows in waiting]
