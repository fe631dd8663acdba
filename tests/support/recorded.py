"""A pass of a model as tests look at it: whole patterns of the model's own, blocks of a chosen size, batches."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.models.checkpoint import Checkpoint
from attnviz.run.checks import Verification
from attnviz.run.record import AttentionCall, LayerRecord, Observer, Rows, record_attention
from attnviz.run.verify import VerifiedAttention, VerifiedRows, Verifier


@dataclass
class RecordedLayer:
    """What the model handed to one layer's attention, the blocks of its own patterns, and what stood around it."""

    call: AttentionCall
    own: list[Tensor] = field(default_factory=list)
    record: LayerRecord = field(init=False)

    @property
    def layer(self) -> int:
        return self.call.layer

    @property
    def pattern(self) -> Tensor:
        """The model's own, [batch, n_heads, n_queries, n_keys]."""
        n_keys = self.call.key.shape[-2]
        return torch.cat([pad(rows, (0, n_keys - rows.shape[-1])) for rows in self.own], 2)

    def largest_score(self, scale: float) -> float:
        """No score is larger, since none is larger than the product of the lengths of its query and key."""
        query, key = (each.float().norm(dim=-1).max() for each in (self.call.query, self.call.key))
        return float(query * key * scale)


@dataclass
class Keeping(Observer):
    """An observer that keeps all that it is told."""

    layers: list[RecordedLayer] = field(default_factory=list)

    def begin(self, call: AttentionCall) -> None:
        self.layers.append(RecordedLayer(call))

    def rows(self, layer: int, rows: Rows) -> None:
        assert (layer, rows.first) == (self.layers[-1].layer, sum(rows.shape[2] for rows in self.layers[-1].own))
        assert rows.weights is not None  # which eager attention gives
        self.layers[-1].own.append(rows.weights)

    def end(self, record: LayerRecord) -> None:
        assert record.layer == self.layers[-1].layer
        self.layers[-1].record = record


@contextmanager
def running_eager(model: Any) -> Iterator[None]:
    """A model set to eager attention, whatever it was loaded with, inside the block."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    yield
    model.set_attn_implementation(before)


def recorded(checkpoint: Checkpoint, inputs: dict[str, Tensor], memory: float = torch.inf) -> list[RecordedLayer]:
    """The layers of one pass with eager attention, in the order in which they ran."""
    keeping = Keeping()
    with running_eager(checkpoint.model):
        record_attention(checkpoint, inputs, keeping, memory)
    return keeping.layers


def own_patterns(checkpoint: Checkpoint, inputs: dict[str, Tensor]) -> dict[int, Tensor]:
    """By layer, the model's own patterns [batch, n_heads, n, n]."""
    return {layer.layer: layer.pattern for layer in recorded(checkpoint, inputs)}


def verified_batch(
    checkpoint: Checkpoint,
    inputs: dict[str, Tensor],
    visit: Callable[[VerifiedRows], None] = lambda _: None,
    mask: Tensor | None = None,
    memory: float = torch.inf,
) -> Verification:
    """Several texts verified together, where ``mask`` says which keys are tokens; default what the model is told."""
    mask = inputs["attention_mask"] if mask is None else mask
    verifier = Verifier(checkpoint, inputs, visit, lambda _: mask, keep=False)
    verifier.run(memory)
    return verifier.verification()


def whole_pattern(attention: VerifiedAttention, layer: int) -> Tensor:
    """The pattern of a layer recomputed at once, whatever the blocks are, [1, n_heads, n_queries, n_keys]."""
    heads = attention.recomputed(layer)
    with torch.inference_mode(), torch.autocast(heads.query.device.type, enabled=False):
        return heads.rows(0, heads.query.shape[-2])


def whole(blocks: Sequence[VerifiedRows]) -> Tensor:
    """The pattern of a layer from its blocks, [batch, n_heads, n_queries, n_keys]."""
    n_keys = blocks[0].n_keys
    assert [block.first for block in blocks] == [
        sum(b.pattern.shape[2] for b in blocks[:i]) for i in range(len(blocks))
    ]
    assert [block.last for block in blocks] == [False] * (len(blocks) - 1) + [True]
    return torch.cat([pad(block.pattern, (0, n_keys - block.pattern.shape[-1])) for block in blocks], 2)


def batch(vocabulary: int, lengths: tuple[int, ...]) -> dict[str, Tensor]:
    """Random tokens, padded on the right to the longest."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    ids = torch.randint(5, vocabulary, mask.shape, generator=generator)
    return {"input_ids": ids * mask, "attention_mask": mask}
