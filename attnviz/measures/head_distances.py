"""Distances between the patterns of all pairs of heads, over a corpus."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.inputs.batches import Batch
from attnviz.measures.measure import Measure, PatternRows
from attnviz.models.checkpoint import Checkpoint
from attnviz.reference.attention import entropy, nowhere

SMOOTHING = 0.001  # weight of uniform attention mixed into every pattern (Clark et al. 2019, their code).

# Most queries of a batch that are compared; attnviz's own choice, so that 144 heads take a second or two.
MOST_QUERIES = 512

_TOGETHER = 32  # queries compared at once on a processor, to stay in its cache
_ON_GPU = 2**28  # bytes of the rows that are compared at once on a GPU, so that it has enough to do


class HeadDistanceTally(Measure):
    """The mean Jensen-Shannon divergence between the patterns of any two heads of a model.

    For two heads and one query let p and q be their attention over the n tokens of the query's text, smoothed to 0.999
    p + 0.001 / n. The divergence is H((p + q) / 2) - (H(p) + H(q)) / 2 in nats, H being the entropy: 0 where the heads
    attend alike, close to ln 2 where they attend to different tokens. It is averaged over ``n_queries``; Clark et al.
    2019 (section 6) sum it. Special tokens count as queries, as there, padding does not. Of a batch at most
    :data:`MOST_QUERIES` queries are compared, evenly spread. With learned sinks nowhere is one outcome more.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.n_layers, self._learned = checkpoint.n_layers, checkpoint.architecture.learned_sinks
        n_all_heads = self.n_layers * checkpoint.n_heads
        super().__init__()
        self._counts = {"sums": torch.zeros(n_all_heads, n_all_heads).double(), "queries": torch.zeros(())}
        self._rows: list[Tensor] = []
        self._text = self._query = self._valid = torch.empty(0, dtype=torch.long)

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Choose the queries of a batch; drop rows of an unfinished one."""
        super().begin(batch, weights)
        queries = batch.valid.nonzero()
        count = min(len(queries), MOST_QUERIES)
        chosen = torch.arange(count, device=queries.device) * len(queries) // max(count, 1)
        self._text, self._query = queries[chosen].T
        self._valid = batch.valid[self._text]
        self._rows = []

    def update(self, rows: PatternRows) -> None:
        """Add one layer's patterns; after the last each pair of heads is compared once.

        ValueError for layers out of order.
        """
        if rows.layer != len(self._rows):
            raise ValueError(f"expected layer {len(self._rows)}, as layers come in order, found layer {rows.layer}.")
        pattern = rows.in_float32
        valid = self._valid.to(pattern)
        uniform = valid / valid.sum(-1, keepdim=True)
        chosen = pattern[self._text, :, self._query] * valid[:, None]
        if self._learned:
            chosen, uniform = torch.cat([chosen, nowhere(chosen)[..., None]], -1), pad(uniform, (0, 1))
        self._rows.append((1 - SMOOTHING) * chosen + SMOOTHING * uniform[:, None])
        if len(self._rows) < self.n_layers:
            return
        chosen = torch.cat(self._rows, dim=1)  # [n_queries, n_all_heads, n]
        self._rows = []
        together = max(_TOGETHER, _ON_GPU // chosen[:1].nbytes) if chosen.is_cuda else _TOGETHER
        for first in range(0, len(chosen), together):
            heads = chosen[first : first + together].transpose(0, 1).contiguous()
            entropies = entropy(heads)
            sums = heads.new_zeros(len(heads), len(heads))
            for head in range(len(heads) - 1):
                mixed = entropy((heads[head + 1 :] + heads[head]) / 2)
                sums[head, head + 1 :] = (mixed - (entropies[head + 1 :] + entropies[head]) / 2).clamp(min=0).sum(1)
            self._keep("sums", sums)
        self._counts["queries"] += len(chosen)

    def _count(self, name: str, values: Tensor) -> None:
        """Add the divergences of a batch, [n_chunks, n_all_heads, n_all_heads], each pair of heads once."""
        upper = values.double().sum(0)
        self._counts[name] += upper + upper.T

    @property
    def n_queries(self) -> int:
        return int(self._counts["queries"])

    def results(self) -> Tensor:
        """The mean divergence of any two heads, 0 to ln 2, [n_all_heads, n_all_heads]; NaN if nothing was compared."""
        return self._counts["sums"] / self._counts["queries"]
