"""The words of a text, whatever the tokenizer, and the pieces of words that tokenizers make, as figures show them.

The one place that knows their marks: ``##`` in WordPiece, ``Ġ`` in byte-level BPE, ``▁`` in SentencePiece.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from attnviz.models.wording import visible

CONTINUES = "##"
"""Before a piece that continues a word, whatever the tokenizer."""

SPACE = "▁"
"""SentencePiece's stand-in for a space, at the beginning of words."""

_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""SentencePiece's name of a byte, where the vocabulary lacks a character."""

_BEGINS = (SPACE, "Ġ")
"""What a piece begins with that begins a word."""

_JOINERS = re.compile(r"['’‘ʼ._,:/@&+·־\u2010\u2011-]")
"""Between two letters or digits these are part of a word: don't, well-known, 3.14, e.g, and/or."""

_INVISIBLE = "\u00ad\u200c\u200d"
"""Soft hyphen, and what joins or parts letters: inside of words. Other format characters stand apart."""

_NO_SPACES = ("CJK ", "HIRAGANA", "IDEOGRAPHIC ITERATION")
"""Beginnings of the names of characters that are words of their own (Unicode Annex 29)."""


def word_spans(text: str) -> list[tuple[int, int]]:
    """First and past-the-last character of every word of a text.

    Punctuation and symbols stand apart, equal ones together (``...``). In scripts without spaces between words,
    Chinese and Japanese, every ideograph and Hiragana is a word, as Unicode's word boundaries have it; Thai, Lao, Khmer
    and Burmese, whose words only a dictionary tells, are divided at spaces alone.
    """
    kinds = [_kind(character) for character in text]
    for place, character in enumerate(text[1:-1], start=1):
        if _JOINERS.fullmatch(character) and kinds[place - 1] == kinds[place + 1] == "word":
            kinds[place] = "word"
    spans: list[tuple[int, int]] = []
    for kind, group in groupby(range(len(text)), key=kinds.__getitem__):
        places = list(group)
        if kind == "one by one":
            spans += [(place, place + 1) for place in places]
        elif kind:
            spans.append((places[0], places[-1] + 1))
    return _with_marks(text, spans)


def word_numbers(encoding: Any, texts: Sequence[str]) -> list[int | None]:
    """For each token of a tokenizer's encoding of texts the number of its word, over all segments; None in no word.

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


def _kind(character: str) -> str:
    """Characters of one kind, side by side, are one word; empty for spaces and controls."""
    category = unicodedata.category(character)
    if character.isspace() or category in {"Cc", "Cn", "Cs"}:
        return ""
    if category[0] == "L" and unicodedata.name(character, "").startswith(_NO_SPACES):
        return "one by one"
    if category[0] in "LNM" or category == "Co" or character in _INVISIBLE:
        return "word"
    return character if category[0] == "P" else "symbol"


def _with_marks(text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Marks and joiners that begin a span (of an emoji, say) belong to the word before it, where that ends there."""
    whole: list[tuple[int, int]] = []
    for start, end in spans:
        marks = unicodedata.category(text[start])[0] == "M" or text[start] == "\u200d"
        if marks and whole and whole[-1][1] == start:
            whole[-1] = whole[-1][0], end
        else:
            whole.append((start, end))
    return whole


@dataclass(frozen=True)
class Pieces:
    """A text by the pieces of a vocabulary alone, with what a fast tokenizer's encoding tells of one text."""

    ids: list[int]
    tokens: list[str]
    special_tokens_mask: list[int]
    offsets: list[tuple[int, int]]  # in :attr:`text`
    text: str  # that the pieces make up

    @property
    def sequence_ids(self) -> list[int | None]:
        """All of one text."""
        return [None if special else 0 for special in self.special_tokens_mask]

    @property
    def word_ids(self) -> list[int | None]:
        """A piece that begins with a space begins a word; special tokens are in none."""
        words, word = [], -1
        for place, (piece, special) in enumerate(zip(self.tokens, self.special_tokens_mask, strict=True)):
            word += not special and (word < 0 or piece.startswith(_BEGINS) or self.special_tokens_mask[place - 1] == 1)
            words.append(None if special else word)
        return words

    @property
    def type_ids(self) -> list[int]:
        """One type."""
        return [0] * len(self.ids)


def pieces_of(ids: Sequence[int], pieces: Sequence[str], special_ids: Collection[int], decode: Any) -> Pieces:
    """What a text is made of, from its ids, special ones included, and their pieces alone.

    ``decode`` makes of pieces the text that they stand for; offsets are those in the text that all of them make up.
    """
    special = [int(token in special_ids) for token in ids]
    content: list[str] = []
    ends = [0]
    for piece, is_special in zip(pieces, special, strict=True):
        content += [] if is_special else [piece]
        ends.append(ends[-1] if is_special else len(decode(content)))
    return Pieces(list(ids), list(pieces), special, list(pairwise(ends)), decode(content))


def vocabulary_labels(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Entries of the vocabulary, out of any text, as figures and tables show tokens.

    Whether an entry continues a word cannot be seen from a text here: where the tokenizer marks the beginning of
    words, one without that mark that begins with a letter or digit does. Rows of the embedding matrix that the
    tokenizer does not name are shown as ``id 50300``.
    """
    decode = decoder(tokenizer)
    added = set(tokenizer.get_added_vocab())
    marked = "".join(decode(["a", "Ġa"])) == "a a" or SPACE in repr(tokenizer.backend_tokenizer.decoder)

    def label(token: int, piece: str | None) -> str:
        if piece is None:
            return f"id {token}"
        if piece in added or not marked:
            return visible(piece)
        continues = not piece.startswith(_BEGINS) and decode([piece])[:1].isalnum()
        return f"{CONTINUES * continues}{visible(decode([piece]))}"

    return [label(token, tokenizer.convert_ids_to_tokens(token)) for token in ids]


def decoder(tokenizer: Any) -> Any:
    """A function from the pieces of one token or word to the text that they stand for."""
    backend = getattr(tokenizer, "backend_tokenizer", None)  # Marian's has none, but two SentencePiece models
    kind = SPACE if backend is None else f"{backend.decoder!r} {backend.pre_tokenizer!r}"
    added = set(tokenizer.get_added_vocab())  # written as they are, whatever the alphabet of the rest

    def wordpiece(pieces: Sequence[str]) -> str:
        return "".join(piece.removeprefix(CONTINUES) if len(piece) > 2 else piece for piece in pieces)

    def byte_level(pieces: Sequence[str]) -> str:
        data = b"".join(
            piece.encode() if piece in added else b"".join(_BYTES.get(each, each.encode()) for each in piece)
            for piece in pieces
        )
        return _without_leading_space(data.decode("utf-8", "backslashreplace"))

    def metaspace(pieces: Sequence[str]) -> str:
        data = b"".join(
            bytes.fromhex(byte[1]) if (byte := _BYTE.fullmatch(piece)) else piece.encode() for piece in pieces
        )
        return _without_leading_space(data.decode("utf-8", "backslashreplace").replace(SPACE, " "))

    if "ByteLevel" in kind:
        return byte_level
    return metaspace if SPACE in kind else wordpiece


def _without_leading_space(text: str) -> str:
    return text[1:] if len(text) > 1 and text[0] == " " and text.strip() else text


def _byte_level_alphabet() -> dict[str, bytes]:
    """The printable stand-in of every byte in byte-level BPE (Radford et al. 2019), inverted."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): bytes([byte]) for byte in plain}
    return alphabet | {chr(256 + i): bytes([byte]) for i, byte in enumerate(others)}


_BYTES = _byte_level_alphabet()
