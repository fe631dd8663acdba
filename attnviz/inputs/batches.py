"""Texts as padded batches of what a model reads."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnviz.errors import TextError
from attnviz.inputs.encoding import documents, encodings, lost_segments
from attnviz.inputs.lines import naming_row
from attnviz.inputs.reading import Corpus, Span, Text, read_texts
from attnviz.inputs.words import Encoding
from attnviz.language.syntax import overlapping
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import LayerId
from attnviz.models.tokenizers import unknown_id

# Attention weights of one layer of a batch: 64 MiB in float32, of which tallies make a few copies.
MOST_WEIGHTS = 1 << 24

_WINDOW = 32  # batches whose texts are read and sorted by length together; bounds memory


@dataclass(frozen=True)
class EncodedText:
    """One text of n tokens as the model reads it."""

    ids: tuple[int, ...]
    sink: tuple[bool, ...]  # special tokens and, in GPT-2, position 0
    members: tuple[tuple[int, ...], ...]  # for each span of the text, the positions of the tokens that overlap it
    source: Text
    pieces: tuple[str, ...] = ()  # the characters of each token; empty for special ones
    type_ids: tuple[int, ...] | None = None  # None for zeros, or where the model has none
    offsets: tuple[Span, ...] = ()  # where the pieces stand in the text; (0, 0) for special ones, and of the pair
    target: tuple[int, ...] = ()  # of an encoder-decoder, what its decoder reads, vocabulary entries
    cut: bool = False  # whether the text is longer than the model, and its end was left out
    unknown_id: int | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_unknown(self) -> int:
        return self.ids.count(self.unknown_id)


@dataclass(frozen=True)
class Batch:
    """Texts of about one length, padded on the right; masks are [batch, n]."""

    items: tuple[EncodedText, ...]
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
        return self.valid if _letter(layer) == "E" else self.predicting

    def keys(self, layer: int) -> Tensor:
        """As ``valid``, for a layer's keys: of the target in the decoder alone."""
        return self.predicting if _letter(layer) == "D" else self.valid

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.items))


def encode(
    checkpoint: Checkpoint,
    texts: Sequence[Text],
    skipped: Callable[[Text, str], None] | None = None,
    truncate: bool = False,
    offer: str = "",
) -> list[EncodedText]:
    """Tokenize texts, with special tokens, and map their spans to tokens by character overlap.

    ``skipped`` is called with each text that is left out, too long for the model or without tokens, and the reason;
    without it that is a TextError. ``truncate`` cuts texts that are too long; of those of no file the reason ends with
    ``offer``, what can be done about them.
    """
    drawn = [text for text in texts if text.ids and not text.ids_given]
    items = [EncodedText(text.ids, (False,) * len(text.ids), (), text) for text in drawn]
    limit = checkpoint.positions
    unknown = unknown_id(checkpoint.tokenizer)
    for text, whole in _encoded(checkpoint, [text for text in texts if not text.ids or text.ids_given]):
        cut = truncate and len(whole.ids) > limit and not text.ids
        pairs = None if text.pair is None else [text.pair]
        encoding = encodings(checkpoint, [text.text], pairs, True, text.chat is not None)[0] if cut else whole
        segments = encoding.sequence_ids
        special = [segment is None for segment in segments]
        offsets = [span if segment == 0 else (0, 0) for segment, span in zip(segments, encoding.offsets, strict=True)]
        members = overlapping(offsets, text.spans)
        why = ""
        if len(encoding.ids) > limit:
            why = f"it has {len(encoding.ids)} tokens, but the model has {limit} positions{checkpoint.limit}"
            if offer and text.given_alone:
                why += f"; {offer}"
        elif lost_segments(encoding, 1 if text.pair is None else 2):
            why = "no tokens are left of it" if text.pair is None else "no tokens are left of it or of its pair"
        elif text.answer is not None and not all(members):
            why = "the model has no token for its pronoun or one of its names"
        if why:
            if skipped is None:
                raise TextError(f"{text.place or 'a text'}: {why}.")
            skipped(text, why)
            continue
        special[0] = special[0] or checkpoint.architecture.causal
        read = {0: text.text, 1: text.pair or "", None: ""}
        placed = zip(segments, encoding.offsets, strict=True)
        items.append(
            EncodedText(
                ids=tuple(encoding.ids),
                sink=tuple(special),
                members=members,
                source=text,
                pieces=tuple(read[segment][start:end] for segment, (start, end) in placed),
                type_ids=tuple(encoding.type_ids) if checkpoint.architecture.segments else None,
                offsets=tuple(offsets),
                cut=cut,
                unknown_id=unknown,
            )
        )
    return items


def _encoded(checkpoint: Checkpoint, texts: Sequence[Text]) -> Iterator[tuple[Text, Any]]:
    """Each text with its encoding; ids come first, chats after texts, and those with a pair last."""
    for text in texts:
        if text.ids:
            yield _spelled(checkpoint, text)
    texts = [text for text in texts if not text.ids]
    chats = [text for text in texts if text.chat is not None]
    paired = [text for text in texts if text.pair is not None]
    alone = [text for text in texts if text.chat is None and text.pair is None]
    for group in filter(None, (alone, chats, paired)):
        pairs = [str(text.pair) for text in group] if group is paired else None
        of_group = encodings(checkpoint, [text.text for text in group], pairs, rendered=group is chats)
        yield from zip(group, of_group, strict=True)


def _spelled(checkpoint: Checkpoint, text: Text) -> tuple[Text, Encoding]:
    """A text of given ids with what these spell, and its encoding; UsageError for ids that the model has not."""
    if len(text.ids) > checkpoint.positions:
        return text, Encoding(list(text.ids), [], [], [], [], [])
    with naming_row(text.place):
        [(words, pair, tokens)] = documents(checkpoint, {"input_ids": text.ids})
    encoding = Encoding(
        ids=list(tokens.ids),
        tokens=list(tokens.labels),
        sequence_ids=list(tokens.segments),
        word_ids=list(tokens.words),
        offsets=list(tokens.offsets),
        type_ids=list(tokens.type_ids or (0,) * len(tokens)),
    )
    return replace(text, text=words, pair=pair), encoding


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


def collate(checkpoint: Checkpoint, items: Sequence[EncodedText]) -> Batch:
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
    if any(item.target for item in items):
        targets = [item.target for item in items]
        inputs["decoder_input_ids"] = padded(targets, checkpoint.config.pad_token_id or 0)
        inputs["decoder_attention_mask"] = padded(((1,) * len(target) for target in targets), 0)
        of_target = inputs["decoder_attention_mask"].bool()
    return Batch(tuple(items), inputs, mask.bool(), non_sink, of_target)


def batch_of_ids(checkpoint: Checkpoint, rows: Iterable[Sequence[int]]) -> Batch:
    """Rows of vocabulary entries as they stand, without special tokens of their own."""
    return collate(checkpoint, encode(checkpoint, [Text("", ids=tuple(row)) for row in rows]))


def running_tokens(checkpoint: Checkpoint, corpora: Iterable[Corpus], limit: int | None = None) -> Iterator[int]:
    """The tokens of all texts of corpora, one text a line, without special tokens."""
    for corpus in corpora:
        for text in read_texts(corpus, limit):
            yield from checkpoint.tokenizer(f"{text.text}\n", add_special_tokens=False, verbose=False)["input_ids"]


def _letter(layer: int) -> str:
    return layer.stack.letter if isinstance(layer, LayerId) else "E"
