"""Dependency parses, their words mapped to the tokens of a model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz.language.parsers import UNIVERSAL, Vocabulary, parsed_words

if TYPE_CHECKING:
    from attnviz.inputs.prompt import Prompt

# Who attends to whom: the dependent to its head, or the head to its dependent.
DIRECTIONS = ("dependent_to_head", "head_to_dependent")

LEFT_OUT = {"punct", "root", ""}  # relations that are not scored: punctuation and the root (Clark et al. 2019).


@dataclass(frozen=True)
class Word:
    """A word of the parser."""

    text: str
    positions: tuple[int, ...]  # of the tokens that overlap it


@dataclass(frozen=True)
class Arc:
    """One relation between two words, by their indices in the parse."""

    dependent: int
    head: int
    relation: str


@dataclass(frozen=True)
class Parse:
    """The words and arcs of a text, or of both segments of a pair one after the other."""

    words: tuple[Word, ...]
    arcs: tuple[Arc, ...]  # without those of punctuation and the root
    parser: str  # the pipeline's name
    vocabulary: Vocabulary = UNIVERSAL
    own_arcs: tuple[Arc, ...] = ()  # before the parser's labels were mapped; else empty


def parse_texts(parser: Any, texts: Sequence[str], tokens: "Prompt") -> Parse:
    """Parse a text, perhaps with its pair, and map the words to the tokens of the model by character overlap.

    A token that overlaps two words of the parser (a spaCy pipeline), such as "cannot", belongs to both. Words without
    a token (white space, or truncated) are left out, with their relations.
    """
    words, arcs, own_arcs = list[Word](), list[Arc](), list[Arc]()
    vocabulary = Vocabulary.of(parser)
    for segment, text in enumerate(texts):
        index = dict[int, int]()
        parsed = parsed_words(parser, text)
        positions = tokens.overlapping([(word.start, word.end) for word in parsed], segment)
        for i, word in enumerate(parsed):
            if positions[i] and not word.is_space:
                index[i] = len(words)
                words.append(Word(word.text, positions[i]))
        arcs += _arcs(((word.head, word.relation) for word in parsed), index)
        if vocabulary.mapped_from is not None:
            own_arcs += _arcs(((word.own_head, word.own_relation) for word in parsed), index)
    name = f"{parser.meta['lang']}_{parser.meta['name']}"
    return Parse(tuple(words), tuple(arcs), name, vocabulary, tuple(own_arcs))


def is_scored(relation: str) -> bool:
    """Whether a relation is scored: all but punctuation and root."""
    return relation.lower() not in LEFT_OUT


def _arcs(words: Iterable[tuple[int, str]], index: dict[int, int]) -> Iterator[Arc]:
    """The scored arcs between words with tokens, from (head, relation) of each word; ``index`` renumbers words."""
    for i, (head, relation) in enumerate(words):
        if i in index and head in index and is_scored(relation):
            yield Arc(index[i], index[head], relation)


def overlapping(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """For each span of characters, the tokens whose offsets overlap it; (0, 0) overlaps none."""
    first, last = np.array(offsets).reshape(-1, 2).T
    return tuple(tuple(np.flatnonzero((first < end) & (last > start)).tolist()) for start, end in spans)
