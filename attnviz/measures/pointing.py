"""Where the largest attention points: to the rarest token of a text, and to the neighbours (Voita et al. 2019)."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from attnviz.measures.bootstrap import REPLICATES
from attnviz.measures.estimates import HeadScores, estimated
from attnviz.measures.patterns import allowed_units, distances
from attnviz.measures.tallies import TextTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.texts.batches import Batch

COMMON = 500
"""Of a text whose rarest token is among so many most frequent ones nothing is counted (paper: Voita et al. 2019)."""

_OFFSETS = [offset for offset in range(-8, 9) if offset]
_TARGETS = ("rarest", "one of the two rarest", "previous", "next")
_NEIGHBOURS = slice(_OFFSETS.index(-1), _OFFSETS.index(1) + 1)


class PointingTally(TextTally):
    """How often each head's largest attention, of that on content, is on a certain token, by bootstrap sample.

    The rarest tokens of a text are its content tokens of the smallest count. Counted are the queries that see one, of
    texts that count; for the neighbours all content tokens are.

    Args:
        checkpoint: the model.
        counts: gives the count of every vocabulary entry, [vocabulary], infinite of those that are never rare; called
            once, if there is a text.
        common: see :data:`COMMON`.
    """

    def __init__(
        self, checkpoint: Checkpoint, counts: Callable[[], Tensor], common: int = COMMON, replicates: int = REPLICATES
    ) -> None:
        self._causal, self._count_tokens, self._common = checkpoint.architecture.causal, counts, common
        super().__init__(
            replicates,
            sums=(replicates + 1, checkpoint.n_layers, checkpoint.n_heads, len(_TARGETS)),
            # texts that count, queries that count, uniform attention, then offsets
            guesses=(replicates + 1, 1, 3 + len(_OFFSETS)),
        )
        self._targets = self._keys = torch.empty(0)

    @cached_property
    def _token_counts(self) -> Tensor:
        return self._count_tokens()

    @cached_property
    def _rare_count(self) -> float:
        """The largest count of a token that is not among the most frequent ones; 0 where these are all."""
        counts = self._token_counts
        ranked = counts[counts.isfinite()].sort(descending=True).values
        return float(ranked[self._common]) if self._common < len(ranked) else 0

    def rare_keys(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The rarest tokens of each text, and those of the two smallest counts, boolean [batch, n].

        None in a text whose rarest token is a frequent one.
        """
        device = batch.valid.device
        counts = self._token_counts.to(device)[batch.inputs["input_ids"]].double()
        counts = counts.masked_fill(~batch.non_sink, torch.inf)
        least = counts.amin(1, keepdim=True)
        second = counts.masked_fill(counts == least, torch.inf).amin(1, keepdim=True)
        rare = (least <= self._rare_count) & batch.non_sink
        return rare & (counts == least), rare & (counts <= second)

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Find the rarest tokens of a batch, and count guesses of them."""
        super().begin(batch, weights)
        rarest, two = self.rare_keys(batch)
        n, content = batch.valid.shape[1], batch.non_sink
        seen = (allowed_units(n, self._causal).to(content.device) & content[:, None]) * content[:, :, None]
        right = seen & rarest[:, None]
        queries = right.any(-1)
        at = (distances(n) == torch.tensor(_OFFSETS)[:, None, None]).to(content.device)  # [n_offsets, n, n]
        of_neighbours = seen[:, None] & at[_NEIGHBOURS]
        self._targets = torch.cat(
            [torch.stack([right, seen & two[:, None] & queries[..., None]], 1), of_neighbours], 1
        )[:, :, None]  # [batch, n_targets, 1, n, n]
        self._keys = content[:, None, None]
        chance = right.sum(-1) / seen.sum(-1).clamp(min=1)
        guesses = torch.stack([queries.any(1), queries.sum(1), chance.sum(1)], 1)
        of_offsets = right.flatten(1).float() @ at.flatten(1).float().mT
        self._keep("guesses", torch.cat([guesses.double(), of_offsets.double()], 1))

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:  # noqa: ARG002 - as other tallies
        """Count one layer's patterns, [batch, n_heads, n, n]."""
        weights, largest = (pattern * self._keys.to(pattern.device)).max(-1, keepdim=True)  # the first of equal ones
        targets = self._targets.to(pattern.device).expand(-1, -1, pattern.shape[1], -1, -1)
        on_target = targets.gather(-1, largest[:, None].expand(-1, len(_TARGETS), -1, -1, -1))
        self._keep("sums", (on_target & (weights > 0)[:, None]).sum((-2, -1)).mT)

    def rare(self, target: int = 0) -> HeadScores:
        """Share of the queries that point to the rarest token; of target 1 to one of the two rarest.

        Baselines are a random content token that the query sees, and the best fixed offset.
        """
        guesses = self._counts["guesses"][:, 0]
        queries = guesses[:, 1]
        at = guesses[:, 3:]
        best = int(at[0].argmax())
        baselines = {"uniform attention": guesses[:, 2] / queries, "fixed offset": at[:, best] / queries}
        shaped = {name: each[:, None, None, None] for name, each in baselines.items()}
        scores = self._counts["sums"][..., target] / queries[:, None, None]
        return estimated(scores[:, None], shaped, int(queries[0]), int(guesses[0, 0]))

    def at_neighbours(self) -> Tensor:
        """Share of content tokens that point to the previous token, and to the next, [2, n_layers, n_heads]."""
        return (self._counts["sums"][0, ..., 2:] / max(1, self.n_non_sink)).permute(2, 0, 1)
