"""Words of a text, independent of the tokenizer, and labels of a tokenizer's pieces.

The only file that knows their marks: ``##`` in WordPiece, ``Ġ`` in byte-level BPE, ``▁`` in SentencePiece.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, count, groupby, pairwise
from operator import itemgetter
from typing import Any

import regex

from attnviz.wording import visible

# Before a piece that continues a word: WordPiece's own mark, and one for tokenizers that mark beginnings of words.
WORDPIECE, OTHERS = "##", "~"

SPACE = "▁"  # SentencePiece's stand-in for a space, at the beginning of words

_BYTE = re.compile("<0x([0-9A-F]{2})>")  # SentencePiece's name of a byte, where the vocabulary lacks a character

_BEGINS = (SPACE, "Ġ")  # marks of pieces that begin a word

# Between two letters or digits these are part of a word: don't, well-known, 3.14, e.g, and/or.
_JOINERS = re.compile(r"['’‘ʼ._,:/@&+·־\u2010\u2011-]")

# Soft hyphen, zero-width joiner and non-joiner: part of words. Other format characters stand apart.
_INVISIBLE = "\u00ad\u200c\u200d"

# Prefixes of the Unicode names of characters that are words of their own (Unicode Annex 29).
_NO_SPACES = ("CJK ", "HIRAGANA", "IDEOGRAPHIC ITERATION")


def word_spans(text: str) -> list[tuple[int, int]]:
    """First and past-the-last character of every word of a text, which never divides a letter from its marks.

    Punctuation and symbols stand apart, equal ones together (``...``). In scripts without spaces between words,
    Chinese and Japanese, every ideograph and Hiragana is a word, as Unicode's word boundaries have it; Thai, Lao, Khmer
    and Burmese, whose words only a dictionary tells, are divided at spaces alone.
    """
    clusters = regex.findall(r"\X", text)
    kinds = [_kind(cluster) for cluster in clusters]
    for i, cluster in enumerate(clusters[1:-1], start=1):
        if _JOINERS.fullmatch(cluster) and kinds[i - 1] == kinds[i + 1] == "word":
            kinds[i] = "word"
    starts = [0, *accumulate(map(len, clusters))]
    spans: list[tuple[int, int]] = []
    for kind, group in groupby(range(len(clusters)), key=kinds.__getitem__):
        numbers = list(group)
        if kind == "one by one":
            spans += [(starts[i], starts[i + 1]) for i in numbers]
        elif kind:
            spans.append((starts[numbers[0]], starts[numbers[-1] + 1]))
    return spans


def word_numbers(encoding: Any, texts: Sequence[str], has_words: bool = True) -> list[int | None]:
    """The number of each token's word in an encoding of texts, counted over all segments; None in no word.

    White space belongs to the next word if the tokenizer keeps them together; otherwise it is a word of its own. In
    texts without words each token is one.
    """
    if not has_words:
        tokens = count()
        return [None if segment is None else next(tokens) for segment in encoding.sequence_ids]
    spans = [word_spans(text) for text in texts]
    numbers: dict[tuple[int, int], int] = {}
    words: list[int | None] = []
    columns = [*zip(encoding.sequence_ids, encoding.word_ids, encoding.offsets, strict=True), (None, None, (0, 0))]
    for (segment, pretoken, (first, last)), (*following, (start, _)) in pairwise(columns):
        if segment is None or pretoken is None:
            words.append(None)
            continue
        word = bisect_right(spans[segment], first, key=itemgetter(1))  # the first that ends after it
        leads = following == [segment, pretoken] and start >= last
        inside = word < len(spans[segment]) and spans[segment][word][0] < last + leads
        words.append(numbers.setdefault((segment, word if inside else -1 - first), len(numbers)))
    return words


@lru_cache(4096)
def _kind(cluster: str) -> str:
    """The kind of a grapheme cluster; neighbours of one kind are one word. Empty for spaces and controls."""
    character = next((each for each in cluster if each.isalnum()), cluster[0])
    category = unicodedata.category(character)
    if character.isspace() or category in {"Cc", "Cn", "Cs"}:
        return ""
    if category[0] == "L" and unicodedata.name(character, "").startswith(_NO_SPACES):
        return "one by one"
    if category[0] in "LNM" or category == "Co" or character in _INVISIBLE:
        return "word"
    return character if category[0] == "P" else "symbol"


@dataclass(frozen=True)
class Encoding:
    """A text, or a pair, as a tokenizer divides it; every list has one entry a token."""

    ids: list[int]
    tokens: list[str]  # their pieces
    sequence_ids: list[int | None]  # the segment; None for special tokens
    word_ids: list[int | None]  # the pretoken; likewise
    offsets: list[tuple[int, int]]  # first and past-the-last character in the segment
    type_ids: list[int]
    text: str | None = None  # what the pieces make up, where the tokenizer gives no offsets
    truncated: int = 0  # how many tokens were cut off

    def with_special(self, special: Sequence[bool]) -> "Encoding":
        """With these tokens special."""
        entries = zip(special, self.sequence_ids, self.word_ids, self.offsets, strict=True)
        changed = [(None, None, (0, 0)) if is_special else tuple(entry) for is_special, *entry in entries]
        segments, words, offsets = (list(column) for column in zip(*changed, strict=True))
        return replace(self, sequence_ids=segments, word_ids=words, offsets=offsets)


def encoding_of_pieces(
    ids: Sequence[int], pieces: Sequence[str], special: Sequence[bool], offsets: Sequence[tuple[int, int]], text: str
) -> Encoding:
    """The encoding of one text made from pieces; words begin at those with a leading space, and after special ones."""
    words = list[int | None]()
    word = -1
    for i, (piece, is_special) in enumerate(zip(pieces, special, strict=True)):
        word += not is_special and (word < 0 or piece.startswith(_BEGINS) or special[i - 1])
        words.append(None if is_special else word)
    return Encoding(
        ids=list(ids),
        tokens=list(pieces),
        sequence_ids=[None if is_special else 0 for is_special in special],
        word_ids=words,
        offsets=list(offsets),
        type_ids=[0] * len(ids),
        text=text,
    )


def decoded_pieces(ids: Sequence[int], pieces: Sequence[str], special_ids: Collection[int], decode: Any) -> Encoding:
    """The encoding of a text from its ids, special ones included, and their pieces.

    ``decode`` turns pieces into text; offsets are those in the decoded text.
    """
    special = [token in special_ids for token in ids]
    content: list[str] = []
    ends = [0]
    for piece, is_special in zip(pieces, special, strict=True):
        if not is_special:
            content.append(piece)
        ends.append(ends[-1] if is_special else len(decode(content)))
    return encoding_of_pieces(ids, pieces, special, list(pairwise(ends)), decode(content))


def vocabulary_labels(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Labels of vocabulary entries outside of any text, as in figures and tables.

    Where the tokenizer marks beginnings of words, an entry without the mark that begins with a letter, digit or
    combining mark is taken to continue one. Rows of the embedding matrix without a token are ``id 50300``.
    """
    decode = decoder(tokenizer)
    added = set(tokenizer.get_added_vocab())
    marked = _alphabet(tokenizer) in _BEGINS

    labels = []
    for token in ids:
        piece = tokenizer.convert_ids_to_tokens(token)
        if piece is None:
            labels.append(f"id {token}")
        elif piece in added or not marked:
            labels.append(visible(piece))
        else:
            text = decode([piece])
            continues = not piece.startswith(_BEGINS) and _kind(text[:1] or SPACE) == "word"
            labels.append(f"{OTHERS if continues else ''}{visible(text)}")
    return labels


def continues_mark(tokenizer: Any) -> str:
    """The mark before the label of a piece that continues a word."""
    return WORDPIECE if _alphabet(tokenizer) == WORDPIECE else OTHERS


def _alphabet(tokenizer: Any) -> str:
    """How a tokenizer writes pieces: ``Ġ`` (byte-level BPE), ``▁`` (SentencePiece), else ``##``."""
    backend = getattr(tokenizer, "backend_tokenizer", None)  # Marian's has none, but two SentencePiece models
    if backend is None:  # ESM's has pieces as they are
        return SPACE if hasattr(tokenizer, "spm_target") else WORDPIECE
    kind = f"{backend.decoder!r} {backend.pre_tokenizer!r}"
    return "Ġ" if "ByteLevel" in kind else SPACE if SPACE in kind else WORDPIECE


def decoder(tokenizer: Any) -> Any:
    """A function that decodes the pieces of one token or word to text."""
    added = set(tokenizer.get_added_vocab())  # written as they are, whatever the alphabet of the rest

    def wordpiece(pieces: Sequence[str]) -> str:
        return "".join(piece.removeprefix(WORDPIECE) if len(piece) > 2 else piece for piece in pieces)

    def byte_level(pieces: Sequence[str]) -> str:
        data = b"".join(
            piece.encode() if piece in added else b"".join(_BYTES.get(letter, letter.encode()) for letter in piece)
            for piece in pieces
        )
        return _without_leading_space(data.decode("utf-8", "backslashreplace"))

    def metaspace(pieces: Sequence[str]) -> str:
        data = b"".join(
            bytes.fromhex(byte[1]) if (byte := _BYTE.fullmatch(piece)) else piece.encode() for piece in pieces
        )
        return _without_leading_space(data.decode("utf-8", "backslashreplace").replace(SPACE, " "))

    return {"Ġ": byte_level, SPACE: metaspace, WORDPIECE: wordpiece}[_alphabet(tokenizer)]


def _without_leading_space(text: str) -> str:
    return text[1:] if len(text) > 1 and text[0] == " " and text.strip() else text


_PLAIN = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHER_BYTES = [byte for byte in range(256) if byte not in _PLAIN]
_BYTES = {chr(byte): bytes([byte]) for byte in _PLAIN}
_BYTES |= {chr(256 + i): bytes([byte]) for i, byte in enumerate(_OTHER_BYTES)}
"""Every byte by its printable stand-in in byte-level BPE (Radford et al. 2019)."""
