"""The words of a text, whatever the tokenizer: what stands between spaces, punctuation apart."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

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
