"""Texts as padded batches of what a model reads."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnviz.inputs.prompt import Prompt, Text, drawn_ids
from attnviz.inputs.reading import Corpus, read_texts
from attnviz.inputs.text import encode
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import is_of_source, letter_of

# Attention weights of one layer of a batch: 64 MiB in float32, of which tallies make a few copies.
MOST_WEIGHTS = 1 << 24

_WINDOW = 32  # batches whose texts are read and sorted by length together; bounds memory


@dataclass(frozen=True)
class Batch:
    """Texts of about one length, padded on the right; masks are [batch, n]."""

    items: tuple[Prompt, ...]
    inputs: dict[str, Tensor]  # what the model's forward takes, [batch, n] each
    valid: Tensor  # True for tokens
    non_sink: Tensor  # True for tokens that are no sinks
    of_target: Tensor | None = None  # as ``valid``, of what a decoder reads

    @property
    def predicting(self) -> Tensor:
        """As ``valid``, for the final states: of the text, or of what the decoder reads."""
        return self.valid if self.of_target is None else self.of_target

    def queries(self, layer: int) -> Tensor:
        """As ``valid``, for a layer's queries: of the target in decoder and cross-attention."""
        return self.valid if is_of_source(layer) else self.predicting

    def keys(self, layer: int) -> Tensor:
        """As ``valid``, for a layer's keys: of the target in the decoder alone."""
        return self.predicting if letter_of(layer) == "D" else self.valid

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.items))


def batches(
    checkpoint: Checkpoint, texts: Iterable[Text], batch_size: int, skipped: Callable[[Text, str], None] | None = None
) -> Iterator[Batch]:
    """Batches of texts of about one length; each text is in exactly one, read as it is needed.

    The batches of a stretch come in random order, not the shortest first, so that a sample of them has texts of all
    lengths. The last one of a stretch may be smaller, and those of long texts are. ``skipped`` as for :func:`encode`.
    """
    texts = iter(texts)
    while stretch := list(islice(texts, batch_size * _WINDOW)):
        items = []
        for item in encode(checkpoint, stretch, skipped):
            if not all(item.sink):
                items.append(item)
            elif skipped is not None:
                skipped(item.source, "its only token is a sink")
        items.sort(key=len)
        order = list(range(0, len(items), batch_size))
        random.Random(len(stretch)).shuffle(order)  # noqa: S311 - an order, not a secret
        for first in order:
            yield from split_batch(checkpoint, collate(checkpoint, items[first : first + batch_size]))


def split_batch(checkpoint: Checkpoint, batch: Batch, most_weights: int = MOST_WEIGHTS) -> Iterator[Batch]:
    """The batch in parts of which a layer has no more weights than that, but for a single text."""
    size = max(1, most_weights // (checkpoint.n_heads * batch.valid.shape[1] ** 2))
    if size >= len(batch.items):
        yield batch
        return
    for first in range(0, len(batch.items), size):
        yield collate(checkpoint, batch.items[first : first + size])


def collate(checkpoint: Checkpoint, items: Sequence[Prompt]) -> Batch:
    """Pad items to one length, on the device of the model."""
    pad = checkpoint.tokenizer.pad_token_id or 0  # masked, so any token will do
    pad = pad if pad < int(checkpoint.config.vocab_size) else 0

    def padded(rows: Iterable[Sequence[int]], value: int) -> Tensor:
        tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
        return pad_sequence(tensors, batch_first=True, padding_value=value).to(checkpoint.device)

    mask = padded(((1,) * len(item) for item in items), 0)
    non_sink = padded((item.sink for item in items), 1) == 0
    inputs = {"input_ids": padded((item.ids for item in items), pad), "attention_mask": mask}
    if checkpoint.architecture.segments:
        inputs["token_type_ids"] = padded((item.type_ids or (0,) * len(item) for item in items), 0)
    of_target = None
    targets = [item.source.target.tokens.ids for item in items if item.source.target is not None]
    if targets:
        inputs["decoder_input_ids"] = padded(targets, checkpoint.config.pad_token_id or 0)
        inputs["decoder_attention_mask"] = padded(((1,) * len(target) for target in targets), 0)
        of_target = inputs["decoder_attention_mask"].bool()
    return Batch(tuple(items), inputs, mask.bool(), non_sink, of_target)


def batch_of_ids(checkpoint: Checkpoint, rows: Iterable[Sequence[int]]) -> Batch:
    """Rows of vocabulary entries as they stand, without special tokens of their own."""
    return collate(checkpoint, list(map(drawn_ids, rows)))


def running_tokens(checkpoint: Checkpoint, corpora: Iterable[Corpus], limit: int | None = None) -> Iterator[int]:
    """The tokens of all texts of corpora, one text a line, without special tokens."""
    for corpus in corpora:
        for text in read_texts(corpus, limit):
            yield from checkpoint.tokenizer(f"{text.text}\n", add_special_tokens=False, verbose=False)["input_ids"]
