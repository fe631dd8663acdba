"""Clark et al. 2019: the surface patterns of their sections 3.1 to 3.3; their relations are claims on heads."""

from typing import Any

import torch
from torch import Tensor

from attnviz.commands.check.papers.table import PaperRun, PaperTable, Rows, over_texts_evidence, too_few
from attnviz.inputs.batches import Batch
from attnviz.judge.rules import BROAD_SHARE, MAJORITY, SINK_SHARE
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.patterns import allowed_units
from attnviz.measures.tallies import TextTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.reference.attention import uniform_pattern, weighted_logs

DEPTHS = 5 / 12, 10 / 12  # where the paper's layers 6 to 10 of 12 begin and end, as shares of the depth

FROM_SEP, ENTROPY = "[SEP] from [SEP]", "entropy by that of uniform attention"
_OFFSETS = {"previous token": -1, "next token": 1, "token itself": 0}
_MARKS = ("[CLS]", "[SEP]", "period or comma")
_PUBLISHED = {"previous token": "4 of 144", "next token": "5 of 144"}


class SurfaceTally(TextTally):
    """Mean attention of all queries to neighbours and marked tokens, and entropy, of each head by bootstrap sample."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        tokenizer: Any = checkpoint.tokenizer
        marks = [ids for ids in tokenizer([".", ","], add_special_tokens=False)["input_ids"] if len(ids) == 1]
        self._marked = [[tokenizer.cls_token_id], [tokenizer.sep_token_id], [id for ids in marks for id in ids]]
        super().__init__(checkpoint)
        self._masks = torch.empty(0)

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
        masks = [pairs & (distances == offset) for offset in _OFFSETS.values()]
        masks += [pairs & keys[:, None] for keys in marked]
        masks.append(masks[-2] & marked[1][:, :, None])
        self._masks = torch.stack(masks, -1).flatten(1, 2)
        uniform = uniform_pattern(valid[:, None] & allowed_units(ids.shape[1], self._causal).to(ids.device))
        entropy = -(weighted_logs(uniform).sum(-1) * valid).sum(1)
        self._keep("seen", torch.stack([*(keys.sum(1).double() for keys in marked), entropy.double()], 1))

    def add(self, layer: int, pattern: Tensor) -> None:  # noqa: ARG002 - as other tallies
        """Count one layer's patterns, [batch, n_heads, n, n]."""
        entropy = -(weighted_logs(pattern).sum(-1) * self._batch.valid[:, None]).sum(-1)
        self._keep("sums", torch.cat([pattern.flatten(2) @ self._masks.to(pattern), entropy[..., None]], -1))

    def means(self) -> dict[str, Tensor]:
        """Mean attention by what it goes to, [1 + replicates, n_layers, n_heads]; without tokens that no text has."""
        sums, seen = self._counts["sums"], self._counts["seen"][:, 0]
        n = self._positions[:, 0, None, None]
        means = {name: sums[..., number] / n for number, name in enumerate((*_OFFSETS, *_MARKS))}
        means[FROM_SEP] = sums[..., -2] / seen[:, 1, None, None]
        means[ENTROPY] = sums[..., -1] / seen[:, -1, None, None]
        there = dict(zip(_MARKS, (seen[0, :-1] > 0).tolist(), strict=True)) | {"next token": not self._causal}
        there[FROM_SEP] = there["[SEP]"]
        return {name: mean for name, mean in means.items() if there.get(name, True)}


def _measure(run: PaperRun) -> Rows:
    tallies = [SurfaceTally(checkpoint) for checkpoint in run.models]
    n_texts = run.over_texts(run.checkpoint, tallies[0])
    run.over_texts(run.untrained, tallies[1])
    trained, untrained = (tally.means() for tally in tallies)
    n_layers = run.checkpoint.n_layers
    thresholds = {**dict.fromkeys(_OFFSETS, MAJORITY), ENTROPY: BROAD_SHARE, **dict.fromkeys(_MARKS, SINK_SHARE)}
    for name, threshold in thresholds.items():
        if not (name in trained and name in untrained):
            continue
        n_above, control = (int((means[name][0] > threshold).sum()) for means in (trained, untrained))
        row = f"heads over {threshold:.2g}: {name}", n_above, n_layers * run.checkpoint.n_heads
        if name in _PUBLISHED:
            yield run.claimed(*row, untrained=control, published=_PUBLISHED[name], few=too_few(n_texts))
        else:
            yield run.reported(*row, untrained=control)
    first, last = (round(depth * n_layers) for depth in DEPTHS)
    layers = f"layers {first} to {last - 1}" if last - first > 1 else f"layer {first}"
    for name, least, published in (("[SEP]", 0.5, "over half"), (FROM_SEP, 0.9, "over 0.9")):
        if name in trained:
            samples, of_untrained = (means[name][:, first:last].mean((1, 2)) for means in (trained, untrained))
            what = f"mean attention to {name}, {layers}"
            evidence = over_texts_evidence(samples, n_texts) | {"untrained": of_untrained[0]}
            yield run.claimed(what, samples[0], n_texts, at_least=least, published=published, **evidence)


TABLE = PaperTable(
    "clark-2019",
    {"MAJORITY": MAJORITY, "BROAD_SHARE": BROAD_SHARE, "SINK_SHARE": SINK_SHARE},
    least=ENOUGH_TEXTS,
    measure=_measure,
)
