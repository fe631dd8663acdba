"""Surface patterns: mean attention of all tokens to neighbours and marked tokens, and entropy (Clark et al. 2019)."""

from typing import Any

import torch
from torch import Tensor

from attnviz.inputs.batches import Batch
from attnviz.measures.measure import PatternRows
from attnviz.measures.tallies import TextTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.reference.attention import uniform_pattern, weighted_logs

FROM_SEP, ENTROPY = "[SEP] from [SEP]", "entropy by that of uniform attention"
OFFSETS = {"previous token": -1, "next token": 1, "token itself": 0}
MARKS = ("[CLS]", "[SEP]", "period or comma")


class SurfaceTally(TextTally):
    """Mean attention of all queries to neighbours and marked tokens, and entropy, of each head by bootstrap sample."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        tokenizer: Any = checkpoint.tokenizer
        marks = [ids for ids in tokenizer([".", ","], add_special_tokens=False)["input_ids"] if len(ids) == 1]
        self._marked = [[tokenizer.cls_token_id], [tokenizer.sep_token_id], [id for ids in marks for id in ids]]
        super().__init__(checkpoint)
        self._masks: Tensor

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Find the marked tokens of a batch."""
        super().begin(batch, weights)
        ids, valid = batch.inputs["input_ids"], batch.valid
        pairs = valid[:, :, None] & valid[:, None]
        positions = torch.arange(ids.shape[1], device=ids.device)
        distances = positions - positions[:, None]
        marked = [
            valid & torch.isin(ids, torch.tensor([id for id in mark if id is not None], device=ids.device).long())
            for mark in self._marked
        ]
        masks = [pairs & (distances == offset) for offset in OFFSETS.values()]
        masks += [pairs & keys[:, None] for keys in marked]
        masks.append(masks[-2] & marked[1][:, :, None])
        self._masks = torch.stack(masks, -1).flatten(1, 2)
        uniform = uniform_pattern(self._visible(None))
        entropy = -(weighted_logs(uniform).sum(-1) * valid).sum(1)
        self._keep("seen", torch.stack([*(keys.sum(1).double() for keys in marked), entropy.double()], 1))

    def update(self, rows: PatternRows) -> None:
        """Count one layer's patterns."""
        pattern = rows.in_float32
        entropy = -(weighted_logs(pattern).sum(-1) * self._batch.valid[:, None]).sum(-1)
        self._keep("sums", torch.cat([pattern.flatten(2) @ self._masks.to(pattern), entropy[..., None]], -1))

    def means(self) -> dict[str, Tensor]:
        """Mean attention by what it goes to, [1 + replicates, n_layers, n_heads]; without tokens that no text has."""
        sums, seen = self._counts["sums"], self._counts["seen"][:, 0]
        n = self._positions[:, 0, None, None]
        means = {name: sums[..., number] / n for number, name in enumerate((*OFFSETS, *MARKS))}
        means[FROM_SEP] = sums[..., -2] / seen[:, 1, None, None]
        means[ENTROPY] = sums[..., -1] / seen[:, -1, None, None]
        there = dict(zip(MARKS, (seen[0, :-1] > 0).tolist(), strict=True)) | {"next token": not self._causal}
        there[FROM_SEP] = there["[SEP]"]
        return {name: mean for name, mean in means.items() if there.get(name, True)}
