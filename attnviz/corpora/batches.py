"""Sentences of a corpus as padded batches for the model, with what each token belongs to."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from attnviz.corpora.reading import Span, Text
from attnviz.errors import CheckpointError, TextError
from attnviz.model.checkpoint import Checkpoint

__all__ = ["Batch", "Item", "Text", "batches", "collate", "encode"]

_WINDOW = 32
"""Batches that are sorted by length together, so that memory does not grow with the corpus."""


@dataclass(frozen=True)
class Item:
    """One text as the model reads it.

    Attributes:
        ids: [n], vocabulary entries.
        sink: [n], special tokens and, in GPT-2, position 0.
        members: for each span of the text, the positions of the tokens that overlap it.
        source: the text.
        pieces: [n], the characters of the text that each token stands for; empty ones for special tokens.
    """

    ids: tuple[int, ...]
    sink: tuple[bool, ...]
    members: tuple[tuple[int, ...], ...]
    source: Text
    pieces: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Batch:
    """Texts of about one length, padded on the right.

    Attributes:
        items: the texts.
        inputs: what the model's forward takes, [batch, n] each.
        valid: boolean [batch, n], True where there is a token and no padding.
        content: boolean [batch, n], True where there is a token that is no sink.
    """

    items: tuple[Item, ...]
    inputs: dict[str, Tensor]
    valid: Tensor
    content: Tensor

    @property
    def n_tokens(self) -> int:
        """Tokens without padding."""
        return sum(map(len, self.items))


def encode(
    checkpoint: Checkpoint, texts: Sequence[Text], skipped: Callable[[Text, str], None] | None = None
) -> list[Item]:
    """Tokenize texts and tie their spans to tokens by character overlap.

    Args:
        checkpoint: the model; its tokenizer adds the special tokens.
        texts: any number of them.
        skipped: told of each text that is left out and why: it is longer than the model, or no tokens
            are left of it. Without it such a text is an error.

    Raises:
        TextError: such a text, where nobody is to be told.
        CheckpointError: the tokenizer does not belong to the model.
    """
    if not texts:
        return []
    limit, vocabulary = int(checkpoint.config.max_position_embeddings), int(checkpoint.config.vocab_size)
    encodings: Sequence[Any] = checkpoint.tokenizer([text.text for text in texts], verbose=False).encodings
    items = []
    for text, encoding in zip(texts, encodings, strict=True):
        special = [segment is None for segment in encoding.sequence_ids]
        offsets = [None if no else pair for no, pair in zip(special, encoding.offsets, strict=True)]
        members = _members(offsets, text.spans)
        why = ""
        if len(encoding.ids) > limit:
            why = f"it has {len(encoding.ids)} tokens, but the model has {limit} positions"
        elif all(special):
            why = "no tokens are left of it"
        elif text.answer is not None and not all(members):
            why = "the model has no token for its pronoun or one of its names"
        elif max(encoding.ids) >= vocabulary:
            raise CheckpointError(
                f"the tokenizer gives token id {max(encoding.ids)}, but the model's vocabulary ends at "
                f"{vocabulary - 1}: this tokenizer does not belong to this model."
            )
        if why and skipped is None:
            raise TextError(f"{text.place or 'a text'}: {why}.")
        if why and skipped is not None:
            skipped(text, why)
            continue
        special[0] = special[0] or checkpoint.architecture.sink_first
        pieces = tuple("" if pair is None else text.text[slice(*pair)] for pair in offsets)
        items.append(Item(tuple(encoding.ids), tuple(special), members, text, pieces))
    return items


def batches(
    checkpoint: Checkpoint,
    texts: Iterable[Text],
    batch_size: int,
    skipped: Callable[[Text, str], None] | None = None,
) -> Iterator[Batch]:
    """Batches of texts of about one length; each text is in exactly one.

    The batches of a stretch come in random order, not the shortest first, so that a sample of them has texts of all
    lengths.

    Args:
        checkpoint: the model.
        texts: read as they are needed, some thousand at a time at most.
        batch_size: texts in a batch; the last one of a stretch may be smaller.
        skipped: as for :func:`encode`.
    """
    texts = iter(texts)
    while stretch := list(islice(texts, batch_size * _WINDOW)):
        items = sorted(encode(checkpoint, stretch, skipped), key=len)
        order = list(range(0, len(items), batch_size))
        random.Random(len(stretch)).shuffle(order)  # noqa: S311 - an order, not a secret
        for first in order:
            yield collate(checkpoint, items[first : first + batch_size])


def collate(checkpoint: Checkpoint, items: Sequence[Item]) -> Batch:
    """Pad items to one length, on the device of the model."""
    n, device = max(map(len, items)), checkpoint.device
    pad = checkpoint.tokenizer.pad_token_id or 0  # masked, so any token will do
    ids = torch.tensor([[*item.ids, *[pad] * (n - len(item))] for item in items], device=device)
    valid = torch.tensor([[True] * len(item) + [False] * (n - len(item)) for item in items], device=device)
    sink = torch.tensor([[*item.sink, *[True] * (n - len(item))] for item in items], device=device)
    inputs = {"input_ids": ids, "attention_mask": valid.long()}
    if checkpoint.architecture.segments:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    return Batch(tuple(items), inputs, valid, ~sink)


def _members(offsets: Sequence[Span | None], spans: Sequence[Span]) -> tuple[tuple[int, ...], ...]:
    """For each span the tokens that share a character with it, in one sweep, since both come in order."""
    ordered = sorted(range(len(spans)), key=lambda i: spans[i])
    members: list[list[int]] = [[] for _ in spans]
    first = 0
    for position, pair in enumerate(offsets):
        if pair is None:
            continue
        start, end = pair
        while first < len(ordered) and spans[ordered[first]][1] <= start:
            first += 1
        for span in ordered[first:]:
            if spans[span][0] >= end:
                break
            if spans[span][1] > start:
                members[span].append(position)
    return tuple(map(tuple, members))
