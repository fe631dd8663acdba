"""Text to tokens: ids, labels to show, special and sink positions, words.

The one place that knows how tokenizers mark pieces of words (``##`` in WordPiece, ``Ġ`` in byte-level BPE, ``▁`` in
SentencePiece). Labels are alike whatever the tokenizer: the piece as the model sees it, without its leading space, and
``##`` before a piece that continues a word; characters that cannot be seen are written as escapes.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from attnviz.errors import TextError
from attnviz.model.encoding import Pieces, encodings, lost_segments, pieces_of, rough_cut
from attnviz.model.wording import visible
from attnviz.model.words import word_spans

__all__ = [
    "Tokens",
    "Units",
    "merge_pattern",
    "merge_units",
    "shifted_right",
    "tokenize",
    "tokens_of_ids",
    "visible",
    "vocabulary_labels",
]

_CONTINUES = "##"
_SPACE = "▁"
"""SentencePiece's stand-in for a space, at the beginning of words."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""SentencePiece's name of a byte, where the vocabulary lacks a character."""


@dataclass(frozen=True)
class Tokens:
    """One text, or a pair of texts, as the model reads it; every tuple has one entry a token.

    Attributes:
        ids: vocabulary entries.
        labels: the tokens as figures and tables show them.
        special: added by the tokenizer itself ([CLS], [SEP]), not part of the text.
        sink: positions that attention rests on when it has nowhere to go: the special ones and, in
            GPT-2, position 0 (Xiao et al. 2023).
        words: which word of the input (:func:`attnviz.model.words.word_spans`) a token belongs to, counted from 0
            over both segments; None for special tokens.
        segments: 0 or 1, the text or its pair; None for special tokens.
        offsets: first and past-the-last character in its segment's text.
        type_ids: BERT's token types; None where the model has none.
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
        segments: whether the model takes token types.
        sink_first: whether position 0 is a sink without being special.
        truncate: cut to ``max_positions`` instead of raising.
        token_types: rows of the model's table of token types; None where they need no check.
        target: the text is for the decoder of an encoder-decoder.

    Raises:
        TextError: no text, blank, not valid Unicode, no tokens left, or longer than the model.
        CheckpointError: the tokenizer is not a fast one, or does not belong to the model.
    """
    _check_text(text, "target" if target else "text")
    if pair is not None:
        _check_text(pair, "pair")
        if not segments:
            raise TextError(
                "a pair was given, but this architecture has no sentence segments; expected one text: "
                "join the two yourself, or choose a BERT checkpoint."
            )
    types = token_types if segments else None

    def encoded(max_length: int | None = None) -> Any:
        return encodings(
            tokenizer, [text], pair, vocabulary_size=vocabulary_size, token_types=types, max_length=max_length,
            target=target,
        )[0]  # fmt: skip

    encoding = encoded()
    found = len(encoding.ids)
    if found > max_positions:
        if not truncate:
            raise TextError(
                f"the text has {found} tokens, but the model has {max_positions} positions; "
                "shorten the text, or pass --truncate (truncate=True) to cut it there."
            )
        rough = 2 * max_positions + 100
        text, pair = rough_cut(text, encoding, 0, rough), pair and rough_cut(pair, encoding, 1, rough)
        encoding = encoded(max_positions)
        if len(encoding.ids) > max_positions:
            raise TextError(f"the model's {max_positions} positions do not even hold the tokenizer's special tokens.")
    if lost_segments(encoding, 1 if pair is None else 2):
        which = "the text" if pair is None else "the text or of its pair"
        raise TextError(
            f"no tokens are left of {which} after tokenization; expected at least one visible character, and a "
            "tokenizer whose post-processor keeps the text."
        )
    texts = (text,) if pair is None else (text, pair)
    texts = (encoding.text,) if isinstance(encoding, Pieces) else texts
    return _tokens(tokenizer, encoding, texts, segments, sink_first, found - len(encoding.ids))


def tokens_of_ids(tokenizer: Any, ids: Sequence[int]) -> tuple[str, Tokens]:
    """A text that a model generated, by its ids; and its tokens."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    encoding = pieces_of(ids, tokenizer.convert_ids_to_tokens(list(ids)), special, _decoder(tokenizer))
    return encoding.text, _tokens(tokenizer, encoding, (encoding.text,), False, False, 0)


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
    return replace(tokens, **{name: (value, *getattr(tokens, name)[:-1]) for name, value in first.items()})


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


def vocabulary_labels(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Entries of the vocabulary, out of any text, as figures and tables show tokens.

    Whether an entry continues a word cannot be seen from a text here: where the tokenizer marks the beginning of
    words, one without that mark that begins with a letter or digit does. Rows of the embedding matrix that the
    tokenizer does not name are shown as ``id 50300``.
    """
    decode = _decoder(tokenizer)
    added = set(tokenizer.get_added_vocab())
    marked = "".join(decode(["a", "Ġa"])) == "a a" or _SPACE in repr(tokenizer.backend_tokenizer.decoder)

    def label(token: int, piece: str | None) -> str:
        if piece is None:
            return f"id {token}"
        if piece in added or not marked:
            return visible(piece)
        continues = not piece.startswith(("Ġ", _SPACE)) and decode([piece])[:1].isalnum()
        return f"{_CONTINUES * continues}{visible(decode([piece]))}"

    return [label(token, tokenizer.convert_ids_to_tokens(token)) for token in ids]


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


def _tokens(
    tokenizer: Any, encoding: Any, texts: Sequence[str], segments: bool, sink_first: bool, truncated: int
) -> Tokens:
    special = tuple(segment is None for segment in encoding.sequence_ids)
    words = _words(encoding, texts)
    word_pieces: dict[int, list[str]] = {}
    for piece, word in zip(encoding.tokens, words, strict=True):
        if word is not None:
            word_pieces.setdefault(word, []).append(piece)
    decode = _decoder(tokenizer)
    spaces_marked = _SPACE in repr(tokenizer.backend_tokenizer.decoder)
    pretokens = list(zip(encoding.sequence_ids, encoding.word_ids, strict=True))
    labels = []
    for position, piece in enumerate(encoding.tokens):
        continues = position > 0 and words[position] is not None and pretokens[position] == pretokens[position - 1]
        if continues and spaces_marked:  # the whole text may be one pretoken
            continues = not piece.startswith(_SPACE) and words[position] == words[position - 1]
        shown = visible(decode([piece]))
        labels.append(_CONTINUES + shown if continues else shown)
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


def _words(encoding: Any, texts: Sequence[str]) -> list[int | None]:
    """For each token the number of its word, over all segments.

    White space belongs to the word that it leads to, where the tokenizer keeps them together, or else to none of them:
    it is a word of its own.
    """
    spans = [word_spans(text) for text in texts]
    numbers: dict[tuple[int, int], int] = {}
    words: list[int | None] = []
    columns = [*zip(encoding.sequence_ids, encoding.word_ids, encoding.offsets, strict=True), (None, None, (0, 0))]
    for (segment, pretoken, (first, last)), (*following, (start, _)) in pairwise(columns):
        if segment is None or pretoken is None:
            words.append(None)
            continue
        place = bisect_right(spans[segment], first, key=itemgetter(1))  # the first word that ends after it
        leads = following == [segment, pretoken] and start >= last
        inside = place < len(spans[segment]) and spans[segment][place][0] < last + leads
        words.append(numbers.setdefault((segment, place if inside else -1 - first), len(numbers)))
    return words


def _decoder(tokenizer: Any) -> Any:
    """A function from the pieces of one token or word to the text that they stand for."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    kind = "Metaspace" if backend is None else f"{backend.decoder!r} {backend.pre_tokenizer!r}"
    added = set(tokenizer.get_added_vocab())  # written as they are, whatever the alphabet of the rest

    def wordpiece(pieces: Sequence[str]) -> str:
        return "".join(piece.removeprefix(_CONTINUES) if len(piece) > 2 else piece for piece in pieces)

    def byte_level(pieces: Sequence[str]) -> str:
        data = b"".join(_bytes_of(piece, piece in added) for piece in pieces)
        return _without_leading_space(data.decode("utf-8", "backslashreplace"))

    def metaspace(pieces: Sequence[str]) -> str:
        data = b"".join(
            bytes.fromhex(byte[1]) if (byte := _BYTE.fullmatch(piece)) else piece.encode() for piece in pieces
        )
        return _without_leading_space(data.decode("utf-8", "backslashreplace").replace(_SPACE, " "))

    if "ByteLevel" in kind:
        return byte_level
    return metaspace if _SPACE in kind else wordpiece


def _bytes_of(piece: str, added: bool) -> bytes:
    return piece.encode() if added else b"".join(_BYTES.get(character, character.encode()) for character in piece)


def _without_leading_space(text: str) -> str:
    return text[1:] if len(text) > 1 and text[0] == " " and text.strip() else text


def _byte_level_alphabet() -> dict[str, bytes]:
    """The printable stand-in of every byte in byte-level BPE (Radford et al. 2019), inverted."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): bytes([byte]) for byte in plain}
    return alphabet | {chr(256 + i): bytes([byte]) for i, byte in enumerate(others)}


_BYTES = _byte_level_alphabet()
