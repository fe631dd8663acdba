"""Where the largest attention points: to the rarest token of a text, and to the neighbours (Voita et al. 2019)."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.inputs.batches import Batch
from attnviz.measures.estimates import HeadScores, estimated
from attnviz.measures.measure import Measure, PatternRows
from attnviz.models.checkpoint import Checkpoint

# Of a text whose rarest token is among so many most frequent ones nothing is counted (paper: Voita et al. 2019).
COMMON = 500

_OFFSETS = [offset for offset in range(-8, 9) if offset]
_NEIGHBOURS = slice(_OFFSETS.index(-1), _OFFSETS.index(1) + 1)
_Array = NDArray[Any]


class PointingTally(Measure):
    """How often each head's largest attention, of that on content, is on a certain token, by bootstrap sample.

    The rarest tokens of a text are its content tokens of the smallest count. Counted are the queries that see one, of
    texts that count (:data:`COMMON`); for the neighbours all content tokens are. ``counts`` gives the count of every
    vocabulary entry, [vocabulary], infinite of those that are never rare, when there is a text. The device says where
    queries point; the rest is counted on the host.
    """

    def __init__(self, checkpoint: Checkpoint, counts: Callable[[], Tensor], common: int = COMMON) -> None:
        super().__init__()
        self._causal, self._common, self._count_tokens = checkpoint.architecture.causal, common, counts

    @cached_property
    def _token_counts(self) -> _Array:
        return np.asarray(self._count_tokens().double())

    @cached_property
    def _rare_count(self) -> float:
        """The largest count of a token that is not among the most frequent ones; 0 where these are all."""
        ranked = -np.sort(-self._token_counts[np.isfinite(self._token_counts)])
        return float(ranked[self._common]) if self._common < len(ranked) else 0

    def rare_keys(self, ids: _Array, content: _Array) -> tuple[_Array, _Array]:
        """The rarest tokens of each text, and those of the two smallest counts, boolean [batch, n], as is ``content``.

        None in a text whose rarest token is a frequent one.
        """
        counts = np.where(content, self._token_counts[ids], np.inf)
        least = counts.min(1, keepdims=True)
        second = np.where(counts == least, np.inf, counts).min(1, keepdims=True)
        rare = (least <= self._rare_count) & content
        return rare & (counts == least), rare & (counts <= second)

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Keep the ids and the content tokens of a batch."""
        super().begin(batch, weights)
        self._keep("ids", batch.inputs["input_ids"])
        self._keep("content", batch.non_sink)

    def update(self, rows: PatternRows) -> None:
        """Find where each query of one layer's patterns points."""
        pattern = rows.in_float32
        content = self._batch.non_sink[:, None, None].to(pattern.device)
        weights, keys = (pattern * content).max(-1)  # the first of equal ones
        self._keep("keys", keys)
        self._keep("weights", weights)

    def take(self, copies: Iterator[Tensor]) -> None:
        """Count a batch on the host."""
        kept, self._kept = self._kept, {}
        arrays = {name: np.asarray(torch.stack([next(copies) for _ in of_layers])) for name, of_layers in kept.items()}
        targets, guesses = self._targets(arrays["ids"][0], arrays["content"][0])
        weights = np.asarray(self._weights)
        self._sum("guesses", torch.from_numpy(weights @ guesses))
        keys = arrays["keys"][:, :, None, ..., None]  # [n_layers, batch, 1, n_heads, n, 1]
        on_target = np.take_along_axis(targets[None, :, :, None], keys, -1)[..., 0]
        points = (arrays["weights"] > 0)[:, :, None]
        sums = (on_target & points).sum(-1).swapaxes(-1, -2).astype(float)  # [n_layers, batch, n_heads, n_targets]
        self._sum("sums", torch.from_numpy(np.tensordot(weights, sums, axes=(1, 1))))

    def _targets(self, ids: _Array, content: _Array) -> tuple[_Array, _Array]:
        """Each target of each query, boolean [batch, n_targets, n, n], and what guesses score, [batch, n_guesses]."""
        rarest, two = self.rare_keys(ids, content)
        places = np.arange(ids.shape[1])
        distances = places - places[:, None]  # of a key from a query
        seen = content[:, None] & content[:, :, None]
        if self._causal:
            seen &= distances <= 0
        right: _Array = np.asarray(seen & rarest[:, None])
        queries: _Array = np.any(right, axis=-1)
        at_offsets = distances == np.array(_OFFSETS)[:, None, None]  # [n_offsets, n, n]
        of_rarest = np.stack([right, seen & two[:, None] & queries[..., None]], 1)
        chance = right.sum(-1) / seen.sum(-1).clip(1)
        # texts that count, queries that count, uniform attention, content tokens, then offsets
        counted = np.stack([queries.any(1), queries.sum(1), chance.sum(1), content.sum(1)], 1)
        of_offsets = right.reshape(len(ids), -1).astype(float) @ at_offsets.reshape(len(_OFFSETS), -1).T
        targets = np.concatenate([of_rarest, seen[:, None] & at_offsets[_NEIGHBOURS]], 1)
        return targets, np.concatenate([counted, of_offsets], 1)

    @property
    def rare_offset(self) -> int:
        """The fixed offset that finds the rarest token most often."""
        return _OFFSETS[int(self._counts["guesses"][0, 4:].argmax())]

    def rare(self, target: int = 0) -> HeadScores:
        """Share of the queries that point to the rarest token; of target 1 to one of the two rarest.

        Baselines are a random content token that the query sees, and the best fixed offset.
        """
        guesses = self._counts["guesses"]
        queries, offsets = guesses[:, 1], guesses[:, 4:]
        best = offsets[:, _OFFSETS.index(self.rare_offset)]
        baselines = {"uniform attention": guesses[:, 2] / queries, "fixed offset": best / queries}
        shaped = {name: baseline[:, None, None, None] for name, baseline in baselines.items()}
        scores = self._counts["sums"][..., target] / queries[:, None, None]
        return estimated(scores[:, None], shaped, int(queries[0]), int(guesses[0, 0]))

    def at_neighbours(self) -> Tensor:
        """Share of content tokens that point to the previous token, and to the next, [2, n_layers, n_heads]."""
        return (self._counts["sums"][0, ..., 2:] / self._counts["guesses"][0, 3].clamp(min=1)).permute(2, 0, 1)
