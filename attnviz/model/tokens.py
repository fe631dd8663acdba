"""Text to tokens: ids, labels to show, special and sink positions, words.

Labels are alike whatever the tokenizer: the piece as the model sees it, without its leading space, and
``##`` before a piece that continues a word; characters that cannot be seen are written as escapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor

from attnviz.errors import TextError
from attnviz.model.encoding import encodings, lost_segments, rough_cut
from attnviz.model.wording import visible
from attnviz.model.words import CONTINUES, SPACE, Pieces, decoder, pieces_of, word_numbers


@dataclass(frozen=True)
class Tokens:
    """One text, or a pair of texts, as the model reads it; every tuple has one entry a token.

    Attributes:
        ids: vocabulary entries.
        labels: the tokens as figures and tables show them.
        special: added by the tokenizer itself ([CLS], [SEP]), not part of the text.
        sink: positions that attention rests on when it has nowhere to go: the special ones and, in GPT-2, position 0
            (Xiao et al. 2023).
        words: which word of the input (:func:`attnviz.model.words.word_spans`) a token belongs to, counted from 0
            over both segments; None for special tokens.
        segments: 0 or 1, the text or its pair; None for special tokens.
        offsets: first and past-the-last character in its segment's text.
        type_ids: BERT's token types; None where the model is given none.
        word_labels: one entry a word: its pieces joined.
        truncated: how many tokens were cut off to fit the model.
    """

    ids: tuple[int, ...]
    labels: tuple[str, ...]
    special: tuple[bool, ...]
    sink: tuple[bool, ...]
    words: tuple[int | None, ...]
    segments: tuple[int | None, ...]
    offsets: tuple[tuple[int, int], ...]
    type_ids: tuple[int, ...] | None
    word_labels: tuple[str, ...]
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sinks(self) -> frozenset[int]:
        """The positions of the sinks."""
        return frozenset(position for position, is_sink in enumerate(self.sink) if is_sink)

    @property
    def pair_note(self) -> str:
        """How a pair reaches a model that is given no token types, in one sentence; empty for any other."""
        if self.type_ids is not None or 1 not in self.segments:
            return ""
        runs = groupby(range(len(self)), key=self.segments.__getitem__)
        joined = "".join(
            "".join(self.labels[i] for i in run) if segment is None else (" TEXT ", " PAIR ")[segment]
            for segment, run in runs
        )
        return f"This model has no token types: the pair is joined as its tokenizer does, {joined.strip()}."

    def texts_read(self, *texts: str | None) -> list[str]:
        """The text, or both of a pair, up to the last character that the model reads; whole where nothing was cut."""
        given = [text for text in texts if text is not None]
        if not self.truncated:
            return given
        ends = [0] * len(given)
        for segment, (_, end) in zip(self.segments, self.offsets, strict=True):
            if segment is not None:
                ends[segment] = max(ends[segment], end)
        return [text[:end] for text, end in zip(given, ends, strict=True)]

    def model_inputs(self, device: torch.device) -> dict[str, Tensor]:
        """What the model's forward takes: a batch of this one text, [1, n] each."""
        inputs = {
            "input_ids": torch.tensor([self.ids], device=device),
            "attention_mask": torch.ones(1, len(self), dtype=torch.long, device=device),
        }
        if self.type_ids is not None:
            inputs["token_type_ids"] = torch.tensor([self.type_ids], device=device)
        return inputs


@dataclass(frozen=True)
class Units:
    """What attention is measured between: tokens, or words merged from their pieces.

    Attributes:
        name: ``token`` or ``word``.
        labels: [n] texts to show.
        special: [n], added by the tokenizer.
        sink: [n], special or (GPT-2) the first position.
        members: [n], the token positions that each unit is made of; a token may be in no unit.
        wholes: words of several units, with their positions among these.
    """

    name: str
    labels: tuple[str, ...]
    special: tuple[bool, ...]
    sink: tuple[bool, ...]
    members: tuple[tuple[int, ...], ...]
    wholes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def __len__(self) -> int:
        return len(self.labels)


def tokenize(
    tokenizer: Any,
    text: str,
    pair: str | None = None,
    *,
    max_positions: int,
    vocabulary_size: int,
    segments: bool,
    sink_first: bool,
    truncate: bool = False,
    token_types: int | None = None,
    target: bool = False,
) -> Tokens:
    """Tokenize a text, or a pair, with the checkpoint's own fast tokenizer.

    Args:
        tokenizer: a transformers tokenizer backed by the ``tokenizers`` library.
        text: the text; it must be non-blank and valid Unicode.
        pair: a second segment.
        max_positions: the model's limit, in tokens, special tokens included.
        vocabulary_size: rows of the model's embedding matrix.
        segments: whether the model takes token types; without them a pair needs a tokenizer that parts it itself.
        sink_first: whether position 0 is a sink without being special.
        truncate: cut to ``max_positions`` instead of raising.
        token_types: rows of the model's table of token types; None where they need no check.
        target: the text is for the decoder of an encoder-decoder.

    Raises:
        TextError: no text, blank, not valid Unicode, no tokens left, longer than the model, or a pair that nothing
            would keep apart.
        CheckpointError: the tokenizer is not a fast one, or does not belong to the model.
    """
    kind = "target" if target else "text"
    _check_text(text, kind)
    if pair is not None:
        _check_text(pair, "pair")
    types = token_types if segments else None

    def encoded(max_length: int | None = None) -> Any:
        return encodings(
            tokenizer, [text], pair, vocabulary_size=vocabulary_size, token_types=types, max_length=max_length,
            target=target,
        )[0]  # fmt: skip

    encoding = encoded()
    if pair is not None and not segments and not _separated(encoding):
        raise TextError(
            "a pair was given, but this architecture has no sentence segments, and its tokenizer puts nothing between "
            "two texts; expected one text: join the two yourself, or choose a BERT checkpoint."
        )
    found = len(encoding.ids)
    if found > max_positions:
        if not truncate:
            raise TextError(
                f"the {kind} has {found} tokens, but the model has {max_positions} positions; "
                "shorten the text, or pass --truncate (truncate=True) to cut it there."
            )
        rough = 2 * max_positions + 100
        text, pair = rough_cut(text, encoding, 0, rough), pair and rough_cut(pair, encoding, 1, rough)
        encoding = encoded(max_positions)
        if len(encoding.ids) > max_positions:
            raise TextError(f"the model's {max_positions} positions do not even hold the tokenizer's special tokens.")
    if lost_segments(encoding, 1 if pair is None else 2):
        which = f"the {kind}" if pair is None else "the text or of its pair"
        raise TextError(
            f"no tokens are left of {which} after tokenization; expected at least one visible character, and a "
            "tokenizer whose post-processor keeps the text."
        )
    texts = (text,) if pair is None else (text, pair)
    texts = (encoding.text,) if isinstance(encoding, Pieces) else texts
    return _tokens(tokenizer, encoding, texts, segments, sink_first, found - len(encoding.ids))


def tokens_of_ids(tokenizer: Any, ids: Sequence[int], sink_first: bool = False) -> tuple[str, Tokens]:
    """A text that a model generated, by its ids; and its tokens."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    named = zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True)  # a model may have rows beyond these
    pieces = [f"<id {token}>" if piece is None else piece for token, piece in named]
    encoding = pieces_of(ids, pieces, special, decoder(tokenizer))
    return encoding.text, _tokens(tokenizer, encoding, (encoding.text,), False, sink_first, 0)


def shifted_right(tokens: Tokens, start: int, label: str) -> Tokens:
    """What a decoder reads to predict a target: a start token, then all of the target but its last token.

    So the token at each position is the one before that which is predicted there.

    Args:
        tokens: the target.
        start: id of the start token.
        label: its text.
    """
    first: dict[str, Any] = {
        "ids": start, "labels": label, "special": True, "sink": True, "words": None, "segments": None, "offsets": (0, 0)
    }  # fmt: skip
    later: dict[str, Any] = {name: (value, *getattr(tokens, name)[:-1]) for name, value in first.items()}
    return replace(tokens, **later)


def merge_units(tokens: Tokens, words: bool) -> Units:
    """The tokens themselves, or their words; special tokens always stay on their own."""
    if not words:
        members = tuple((position,) for position in range(len(tokens)))
        merged = merge_units(tokens, words=True)
        pairs = zip(merged.labels, merged.members, strict=True)
        wholes = tuple((label, positions) for label, positions in pairs if len(positions) > 1)
        return Units("token", tokens.labels, tokens.special, tokens.sink, members, wholes)
    keys = [(word if word is not None else -1 - position) for position, word in enumerate(tokens.words)]
    grouped = [tuple(group) for _, group in groupby(range(len(tokens)), key=keys.__getitem__)]

    def label(first: int) -> str:
        word = tokens.words[first]
        return tokens.labels[first] if word is None else tokens.word_labels[word]

    return Units(
        "word",
        tuple(label(group[0]) for group in grouped),
        tuple(tokens.special[group[0]] for group in grouped),
        tuple(tokens.sink[group[0]] for group in grouped),
        tuple(grouped),
    )


def merge_pattern(
    pattern: Tensor, members: Sequence[Sequence[int]], keys: Sequence[Sequence[int]] | None = None
) -> Tensor:
    """Merge a token pattern into units: sums over the pieces attended to, means over those attending.

    Rows still sum to 1 where every token is in exactly one unit (Clark et al. 2019, section 4.1).

    Args:
        pattern: [.., n_queries, n_keys], in tokens.
        members: [n_units], the token positions of each.
        keys: the same of what is attended to, where that is another text.

    Returns:
        [.., n_units, n_units]; the very same tensor where every unit is one token, in order.
    """
    keys = members if keys is None else keys
    if _one_token_each(members, pattern.shape[-2]) and _one_token_each(keys, pattern.shape[-1]):
        return pattern
    queries, onto = (
        _belongs(groups, n, pattern) for groups, n in zip((members, keys), pattern.shape[-2:], strict=True)
    )
    return queries / queries.sum(1, keepdim=True) @ pattern @ onto.T


def _one_token_each(members: Sequence[Sequence[int]], n_tokens: int) -> bool:
    return [tuple(group) for group in members] == [(position,) for position in range(n_tokens)]


def _belongs(members: Sequence[Sequence[int]], n_tokens: int, like: Tensor) -> Tensor:
    """[n_units, n_tokens], 1 where a token is part of a unit."""
    belongs = like.new_zeros(len(members), n_tokens)
    for unit, group in enumerate(members):
        belongs[unit, list(group)] = 1.0
    return belongs


def _check_text(text: object, name: str) -> None:
    if not isinstance(text, str):
        raise TextError(f"expected the {name} as a string, found {type(text).__name__}.")
    if not text.strip():
        raise TextError(f"the {name} is {'blank' if text else 'empty'}; expected at least one word.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = text[error.start]
        byte = found.encode("utf-8", "surrogateescape" if "\udc80" <= found <= "\udcff" else "surrogatepass")[0]
        raise TextError(
            f"the {name} is not valid UTF-8: found byte 0x{byte:02x} at character {error.start}; "
            "expected text encoded as UTF-8."
        ) from error


def _separated(encoding: Any) -> bool:
    """Whether a special token stands between the two segments."""
    order = [segment for segment, _ in groupby(encoding.sequence_ids)]
    return (0, 1) not in pairwise(order)


def _tokens(
    tokenizer: Any, encoding: Any, texts: Sequence[str], segments: bool, sink_first: bool, truncated: int
) -> Tokens:
    special = tuple(segment is None for segment in encoding.sequence_ids)
    words = word_numbers(encoding, texts)
    word_pieces: dict[int, list[str]] = {}
    for piece, word in zip(encoding.tokens, words, strict=True):
        if word is not None:
            word_pieces.setdefault(word, []).append(piece)
    decode = decoder(tokenizer)
    pretokens = list(zip(encoding.sequence_ids, encoding.word_ids, strict=True))
    labels = []
    named = encoding.tokens if isinstance(encoding, Pieces) else tokenizer.convert_ids_to_tokens(encoding.ids)
    for position, piece in enumerate(named):  # <unk> as such
        text = decode([piece])
        continues = position > 0 and words[position] is not None and pretokens[position] == pretokens[position - 1]
        # to SentencePiece a whole text may be one pretoken; a full stop in it continues no word
        continues = continues and not piece.startswith(SPACE)
        continues = continues and (words[position] == words[position - 1] or not text.strip())
        labels.append(CONTINUES + visible(text) if continues else visible(text))
    return Tokens(
        ids=tuple(encoding.ids),
        labels=tuple(labels),
        special=special,
        sink=tuple(is_special or (sink_first and i == 0) for i, is_special in enumerate(special)),
        words=tuple(words),
        segments=tuple(encoding.sequence_ids),
        offsets=tuple(encoding.offsets),
        type_ids=tuple(encoding.type_ids) if segments else None,
        word_labels=tuple(visible(decode(pieces)) for pieces in word_pieces.values()),
        truncated=truncated,
    )
