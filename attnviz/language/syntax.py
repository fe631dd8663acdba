"""Dependency parses, whose words are tied to the tokens of a model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attnviz.language.parsers import UNIVERSAL, Vocabulary, parsed_words
from attnviz.models.tokens import Tokens, overlapping

DIRECTIONS = ("dependent_to_head", "head_to_dependent")
"""Who attends: the dependent to its head, or the head to its dependent."""

LEFT_OUT = {"punct", "root", ""}
"""Relations that are not scored: punctuation and the root (Clark et al. 2019)."""


@dataclass(frozen=True)
class Word:
    """A word of the parser: its text, and the token positions whose characters overlap its own."""

    text: str
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Arc:
    """One relation between two words, by their place in the parse."""

    dependent: int
    head: int
    relation: str


@dataclass(frozen=True)
class Parse:
    """The words and arcs of a text, or of both segments of a pair one after the other.

    Attributes:
        words: with the tokens that they are made of.
        arcs: relations between them, without those of punctuation and the root.
        parser: the pipeline's name.
        vocabulary: what the relations are called, and the parser's own labels were.
        own_arcs: the arcs as the parser gave them, where its labels were mapped; else empty.
    """

    words: tuple[Word, ...]
    arcs: tuple[Arc, ...]
    parser: str
    vocabulary: Vocabulary = UNIVERSAL
    own_arcs: tuple[Arc, ...] = ()


def parse_texts(parser: Any, texts: Sequence[str], tokens: Tokens) -> Parse:
    """Parse each segment and tie the parser's words to the model's tokens by character overlap.

    A token that overlaps two words of the parser ("cannot") belongs to both. Words without a token
    (white space, or cut off by truncation) are left out, and so are relations with one of them.

    Args:
        parser: a spaCy pipeline.
        texts: the text, and the pair where there is one.
        tokens: the same text or pair as the model reads it.
    """
    words: list[Word] = []
    arcs: list[Arc] = []
    own_arcs: list[Arc] = []
    vocabulary = Vocabulary.of(parser)
    for segment, text in enumerate(texts):
        place: dict[int, int] = {}
        parsed = parsed_words(parser, text)
        own = [pair if of == segment else (0, 0) for pair, of in zip(tokens.offsets, tokens.segments, strict=True)]
        positions = overlapping(own, [(word.start, word.end) for word in parsed])
        for i, word in enumerate(parsed):
            if positions[i] and not word.is_space:
                place[i] = len(words)
                words.append(Word(word.text, positions[i]))
        arcs += _arcs(((word.head, word.relation) for word in parsed), place)
        if vocabulary.mapped_from is not None:
            own_arcs += _arcs(((word.own_head, word.own_relation) for word in parsed), place)
    name = f"{parser.meta['lang']}_{parser.meta['name']}"
    return Parse(tuple(words), tuple(arcs), name, vocabulary, tuple(own_arcs))


def is_scored(relation: str) -> bool:
    """Whether a relation counts; that of punctuation or the root does not."""
    return relation.lower() not in LEFT_OUT


def _arcs(words: Iterable[tuple[int, str]], place: dict[int, int]) -> Iterator[Arc]:
    """Of words with the place of their head and their relation to it, those that are scored and have tokens."""
    for i, (head, relation) in enumerate(words):
        if i in place and head in place and is_scored(relation):
            yield Arc(place[i], place[head], relation)
