"""Texts across the whole distribution of what heads attend to, not the clearest ones: a random sample, by deciles."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnviz.commands.profile.corpus_run import CorpusRun
from attnviz.models.head_ids import HeadId
from attnviz.run.corpus import SampledAttention
from attnviz.texts.batches import Batch, EncodedText

DECILES = 10
_TEXTS, _TOKENS = 100, 4_000  # most texts of each corpus; and about how many tokens of all of them, which bounds memory
_KEYS = 8  # weights of a query that are kept


@dataclass(frozen=True, eq=False)
class TextWeights:
    """The largest weights of every query in one text of n tokens."""

    corpus: str  # the file's name
    item: EncodedText
    weights: Tensor  # [n_layers, n_heads, n, keys], the largest first
    keys: Tensor  # their positions

    def strongest(self, id: HeadId, left_out: Tensor) -> tuple[float, int, int]:
        """The largest weight beyond the diagonal and the positions that are left out, its query and its key."""
        keys = self.keys[id]
        hidden = left_out[keys] | left_out[:, None] | (keys == torch.arange(len(keys))[:, None])
        weights = self.weights[id].masked_fill(hidden, 0)
        at = int(weights.argmax())
        return float(weights.flatten()[at]), at // keys.shape[1], int(keys.flatten()[at])


def sampled_weights(run: CorpusRun) -> list[TextWeights]:
    """Read a random sample of the texts once more, and keep the largest weights of all heads."""
    loop, texts = run.loop, list[TextWeights]()
    attention = SampledAttention(loop.checkpoint, loop.seed)

    def keep(corpus: str, batch: Batch) -> None:
        if sum(len(text.item) for text in texts) > _TOKENS:
            return
        largest = list[tuple[Tensor, Tensor]]()
        attention.run(batch, lambda _, pattern: largest.append(pattern.topk(min(_KEYS, pattern.shape[-1]))))
        weights, keys = (torch.stack(parts, 1).cpu() for parts in zip(*largest, strict=True))
        for at, item in enumerate(batch.items):
            own = at, slice(None), slice(None), slice(len(item))
            own_keys = keys[own].clamp(max=len(item) - 1)  # a short text has fewer: others have no weight
            texts.append(TextWeights(corpus, item, weights[own].clone(), own_keys))

    for number, corpus in enumerate(loop.corpora):
        sample = loop.sample(number, _TEXTS)
        name = corpus.path.name
        loop.over(filter(None, map(run.prepared, sample)), partial(keep, name), f"{name}, deciles", len(sample))
    return texts
