"""Attention drawn to words alike in meaning: the cosine of input embeddings, weighted by attention."""

import torch
from torch import Tensor

from attnviz.commands.profile.tallies import SumTally
from attnviz.corpora.batches import Batch
from attnviz.corpora.bootstrap import REPLICATES, standard_error
from attnviz.model.checkpoint import Checkpoint
from attnviz.patterns.masks import allowed_units

__all__ = ["MeaningTally", "mean_embedding"]


def mean_embedding(checkpoint: Checkpoint) -> Tensor:
    """Mean input embedding of the ordinary vocabulary, [d_model].

    Embeddings share a large common direction that makes all words look alike; without their mean, cosines tell words
    apart (Mu & Viswanath 2018). Special tokens, and rows that the tokenizer never gives, are left out of the mean.
    """
    weight = _embeddings(checkpoint)
    special = set(checkpoint.tokenizer.all_special_ids)
    ordinary = [i for i in range(min(len(weight), len(checkpoint.tokenizer))) if i not in special]
    return weight[ordinary].double().mean(0)


class MeaningTally(SumTally):
    """Over a corpus, the mean cosine of the words that a head's attention joins, beside uniform attention.

    Counted are pairs of a content query and a content key that it may attend to. Left out are a position and itself,
    and two positions with the same vocabulary entry: their cosine is 1 by definition, so every duplicate-token head
    would pass for a semantic one. A pair's cosine is that of the input embeddings (BERT's word embeddings, GPT-2's
    wte; no positions) less :func:`mean_embedding`. Sums after the first are those of bootstrap replicates.
    """

    def __init__(self, checkpoint: Checkpoint, replicates: int = REPLICATES) -> None:
        self._embeddings, self._mean = _embeddings(checkpoint), mean_embedding(checkpoint)
        self._causal = checkpoint.architecture.causal
        shape = replicates + 1, checkpoint.n_layers, checkpoint.n_heads, 2
        self._sums = torch.zeros(shape, dtype=torch.float64)  # of attention times cosine, and of attention
        self._uniform = torch.zeros(replicates + 1, 2, dtype=torch.float64)  # of mean cosines, and queries
        self._texts = torch.zeros(1, dtype=torch.float64)
        self._sums_by_name = {"sums": self._sums, "uniform": self._uniform, "texts": self._texts}
        self._weights, self._masks = torch.empty(0), torch.empty(0)

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Take the cosines of a batch; arguments as for :class:`attnviz.commands.profile.tallies.Tally`."""
        cosines, pairs = self._cosines(batch.inputs["input_ids"]), self._pairs(batch)
        keys = pairs.sum(-1)
        means = (cosines * pairs).sum(-1) / keys.clamp(min=1)
        self._uniform += weights @ torch.stack([means.sum(1), (keys > 0).sum(1)], 1).double().cpu()
        self._texts += len(batch.items)
        self._weights = weights
        self._masks = torch.stack([cosines * pairs, pairs.to(cosines)], -1).flatten(1, 2)

    def add(self, layer: int, pattern: Tensor, batch: Batch) -> None:  # noqa: ARG002 - as other tallies
        """Count one layer's patterns, [batch, n_heads, n, n], of the batch begun last."""
        sums = pattern.flatten(2) @ self._masks.to(pattern)
        self._sums[:, layer] += torch.einsum("rb,bhk->rhk", self._weights, sums.double().cpu())

    def results(self) -> tuple[Tensor, Tensor, float]:
        """Score, standard error over texts, and what uniform attention would score; all are cosines.

        The score is sum A cos / sum A over the pairs, [n_layers, n_heads]; NaN for a head that leaves none of its
        attention there. The baseline is the mean over queries with a pair of the mean cosine of their pairs; NaN
        where there are none. The error is that of the score above the baseline, since both depend on the texts.
        """
        scores = self._sums[..., 0] / self._sums[..., 1]
        baselines = self._uniform[:, 0] / self._uniform[:, 1]
        errors = standard_error((scores - baselines[:, None, None])[1:])
        return scores[0], errors, float(baselines[0])

    def on_pairs(self) -> Tensor:
        """Share of the attention of those queries that lands on such pairs, [n_layers, n_heads]."""
        return self._sums[0, ..., 1] / self._uniform[0, 1]

    @property
    def n_queries(self) -> int:
        """Content queries with at least one pair."""
        return int(self._uniform[0, 1])

    @property
    def n_texts(self) -> int:
        """Texts counted."""
        return int(self._texts)

    def _cosines(self, ids: Tensor) -> Tensor:
        """Cosines of centred embeddings, [batch, n, n] float32; 0 for an embedding that is the mean itself."""
        vectors = (self._embeddings[ids].double() - self._mean).float()
        vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return vectors @ vectors.transpose(-1, -2)

    def _pairs(self, batch: Batch) -> Tensor:
        """Pairs that count, boolean [batch, n, n]."""
        ids, content = batch.inputs["input_ids"], batch.content
        allowed = allowed_units(ids.shape[1], self._causal).to(ids.device)
        return content[:, :, None] & content[:, None, :] & allowed & (ids[:, :, None] != ids[:, None, :])


def _embeddings(checkpoint: Checkpoint) -> Tensor:
    """The input embeddings, [n_entries, d_model]."""
    weight = checkpoint.model.get_input_embeddings().weight.detach()  # type: ignore[operator]
    assert isinstance(weight, Tensor)
    return weight
