"""Dependency parses, their words mapped to the tokens of a model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from attnviz.language.parsers import UNIVERSAL, Vocabulary

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


def is_scored(relation: str) -> bool:
    """Whether a relation is scored: all but punctuation and root."""
    return relation.lower() not in LEFT_OUT


def scored_arcs(words: Iterable[tuple[int, str]], index: dict[int, int]) -> Iterator[Arc]:
    """The scored arcs between words with tokens, from (head, relation) of each word; ``index`` renumbers words."""
    for i, (head, relation) in enumerate(words):
        if i in index and head in index and is_scored(relation):
            yield Arc(index[i], index[head], relation)


def overlapping(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """For each span of characters, the tokens whose offsets overlap it; (0, 0) overlaps none."""
    first, last = np.array(offsets).reshape(-1, 2).T
    return tuple(tuple(np.flatnonzero((first < end) & (last > start)).tolist()) for start, end in spans)
