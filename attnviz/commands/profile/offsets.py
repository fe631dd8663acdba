"""Attention at one fixed distance: the share of each offset in a head's attention on content."""

import torch
from torch import Tensor

from attnviz.commands.profile.tallies import SumTally
from attnviz.corpora.batches import Batch
from attnviz.corpora.bootstrap import REPLICATES, standard_error

__all__ = ["OFFSETS", "OffsetTally"]

OFFSETS = tuple(range(-8, 9))
"""Key position minus query position, in tokens: -1 is the previous token. How far they go is attnviz's own choice."""


class OffsetTally(SumTally):
    """Over a corpus, the share of every offset in each head's attention on content, beside uniform attention.

    Share and baseline are those of the mask k = q + offset (see :mod:`attnviz.patterns.statistics`). Sums after the
    first are those of bootstrap replicates.
    """

    def __init__(self, n_layers: int, n_heads: int, causal: bool, replicates: int = REPLICATES) -> None:
        self._causal = causal
        shape = replicates + 1, n_layers, n_heads, len(OFFSETS) + 1
        self._sums = torch.zeros(shape, dtype=torch.float64)  # of attention at each offset, and of all on content
        self._uniform = torch.zeros(len(OFFSETS), dtype=torch.float64)
        self._counts = torch.zeros(2, dtype=torch.float64)  # texts, content queries
        self._sums_by_name = {"sums": self._sums, "uniform": self._uniform, "counts": self._counts}
        self._weights = torch.empty(0)

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Count the content of a batch; arguments as for :class:`attnviz.commands.profile.tallies.Tally`."""
        content = batch.content.double().cpu()
        keys = content.cumsum(1) if self._causal else content.sum(1, keepdim=True).expand_as(content)
        share = content / keys.clamp(min=1)  # of one key, where it is content and may be attended to
        for place, offset in self._measured(content.shape[1]):
            behind, ahead = max(0, -offset), max(0, offset)
            n = content.shape[1] - behind - ahead
            self._uniform[place] += (share[:, behind : behind + n] * content[:, ahead : ahead + n]).sum()
        self._counts += torch.tensor([len(batch.items), content.sum()], dtype=torch.float64)
        self._weights = weights

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:
        """Count one layer's patterns, [batch, n_heads, n, n]."""
        content = batch.content.to(pattern)[:, None]
        sums = pattern.new_zeros(*pattern.shape[:2], len(OFFSETS) + 1)
        on_content = (pattern @ content[..., None])[..., 0]
        sums[..., -1] = (on_content * content).sum(-1)
        for place, offset in self._measured(pattern.shape[-1]):
            behind, ahead = max(0, -offset), max(0, offset)
            n = pattern.shape[-1] - behind - ahead
            both = content[..., behind : behind + n] * content[..., ahead : ahead + n]
            sums[..., place] = (torch.diagonal(pattern, offset, -2, -1) * both).sum(-1)
        self._sums[:, layer] += torch.einsum("rb,bhk->rhk", self._weights, sums.double().cpu())

    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        """Share of each of :data:`OFFSETS`, its standard error over texts, and its share under uniform attention.

        Shapes: [n_layers, n_heads, n_offsets] twice, and [n_offsets]. NaN for what lies ahead of a causal
        model's query, and for a head that leaves no attention on content.
        """
        shares = self._sums[..., :-1] / self._sums[..., -1:]
        baselines = self._uniform / self._counts[1]
        if self._causal:
            ahead = torch.tensor(OFFSETS) > 0
            shares[..., ahead], baselines[ahead] = torch.nan, torch.nan
        return shares[0], standard_error(shares[1:]), baselines

    def on_content(self) -> Tensor:
        """Share of the attention of content queries that lands on content, [n_layers, n_heads]."""
        return self._sums[0, ..., -1] / self._counts[1]

    @property
    def n_texts(self) -> int:
        """Texts counted."""
        return int(self._counts[0])

    @property
    def n_content(self) -> int:
        """Content queries counted."""
        return int(self._counts[1])

    def _measured(self, n: int) -> list[tuple[int, int]]:
        """Place and value of the offsets that a text of n tokens has."""
        furthest = 0 if self._causal else n - 1
        return [(place, offset) for place, offset in enumerate(OFFSETS) if -n < offset <= furthest]
