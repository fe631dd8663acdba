"""Dependency parses, and how well attention follows them, beside guesses that track no relation.

The measure of Clark et al. 2019, section 4.2: between words, a head's guess is the other word that a
word attends to most; its accuracy on a relation stands beside that of always guessing the word at
one fixed offset, and of the other guesses of :mod:`attnviz.patterns.guesses`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnviz.attention.verify import VerifiedRows
from attnviz.model.tokens import Tokens, UnitRows
from attnviz.patterns.guesses import GUESSES, WordGuesses, votes_elsewhere
from attnviz.patterns.parsers import UNIVERSAL, Vocabulary, parsed_words

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


@dataclass(frozen=True)
class RelationAccuracy:
    """How often each head of a layer finds the other end of a relation, and what a head has to beat.

    Attributes:
        relation: its name; a subtype (``nsubj:pass``) counts for its base relation, too.
        n: instances in the text.
        offset: the best fixed guess: +1 means that the head is the word after the dependent.
        accuracy: by direction, one number a head, 0-1.
        baselines: by direction and by name of :data:`attnviz.patterns.guesses.BASELINES`, how often that guess is
            right, 0-1; of ``other words`` one number a head.
        on_sinks: by direction, of every head whether these words attend more to sinks than to the other end, in the
            mean; empty where the text has no sinks.
    """

    relation: str
    n: int
    offset: int
    accuracy: dict[str, list[float]]
    baselines: dict[str, dict[str, float | list[float]]]
    on_sinks: dict[str, list[bool]] = field(default_factory=dict)

    def baselines_of(self, direction: str, head: int) -> dict[str, float]:
        """What one head has to beat, by name."""
        named = self.baselines[direction].items()
        return {name: value[head] if isinstance(value, list) else value for name, value in named}

    @property
    def offset_accuracy(self) -> float:
        """How often the best fixed offset is right."""
        return self.baselines_of(DIRECTIONS[0], 0)["fixed offset"]


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
        for i, word in enumerate(parsed):
            positions = _overlapping(tokens, segment, word.start, word.end)
            if positions and not word.is_space:
                place[i] = len(words)
                words.append(Word(word.text, positions))
        arcs += _arcs(((word.head, word.relation) for word in parsed), place)
        if vocabulary.mapped_from is not None:
            own_arcs += _arcs(((word.own_head, word.own_relation) for word in parsed), place)
    name = f"{parser.meta['lang']}_{parser.meta['name']}"
    return Parse(tuple(words), tuple(arcs), name, vocabulary, tuple(own_arcs))


def is_scored(relation: str) -> bool:
    """Whether a relation counts; that of punctuation or the root does not."""
    return relation.lower() not in LEFT_OUT


def relation_accuracy(
    rows: Iterable[VerifiedRows], parse: Parse, sinks: Collection[int], causal: bool
) -> list[RelationAccuracy]:
    """Accuracy of every head of a layer, from all blocks of its rows; see :class:`HeadRelations`."""
    relations = None
    for block in rows:
        relations = relations or HeadRelations(parse, sinks, causal, block)
        relations.update(block)
    return [] if relations is None else relations.result()


class HeadRelations:
    """How well every head of a layer finds the other end of each relation of a parse, over blocks of query rows.

    Sinks are no words: a word is made of its other tokens, and one that has none is nobody's guess and in no relation.
    Patterns of tokens are merged to the parser's words here: sums over the pieces attended to and means over those
    attending.

    Args:
        parse: words and arcs of the same text.
        sinks: positions that attention rests on; of the parser's words only GPT-2's first has one.
        causal: whether a word sees only those before it.
        rows: the first block of the layer.
    """

    def __init__(self, parse: Parse, sinks: Collection[int], causal: bool, rows: VerifiedRows) -> None:
        members = pieces_of_words(parse, sinks)
        self._instances = instances_of(parse, list(members))
        self._pieces, self._causal, self._sinks = list(members.values()), causal, bool(sinks)
        keys = [*self._pieces, tuple(sorted(sinks))]
        self._merge = UnitRows(self._pieces, keys, rows.n_queries, rows.n_keys)
        n_heads, n = rows.pattern.shape[1], len(self._pieces)
        self._guesses = torch.full((n_heads, n), -1)
        self._resting = torch.zeros(n_heads, n, dtype=rows.wide.dtype)
        ends = [pair for pairs in self._instances.values() for pair in pairs]
        self._ends = torch.tensor(ends, dtype=torch.long).reshape(-1, 2)
        self._onto = torch.zeros(2, n_heads, len(ends), dtype=rows.wide.dtype)

    def update(self, rows: VerifiedRows) -> None:
        """Add the next block of rows."""
        if not self._instances:
            return
        first, merged = self._merge.add(rows.first, rows.wide[0])
        merged = merged.cpu()
        last = first + merged.shape[1]
        pattern = merged[..., :-1]
        self._guesses[:, first:last] = most_attended_other(pattern, first)
        self._resting[:, first:last] = merged[..., -1]
        for weights, (query, target) in zip(self._onto, (self._ends.T, self._ends.flip(1).T), strict=True):
            here = (query >= first) & (query < last)
            weights[:, here] = pattern[:, query[here] - first, target[here]]

    def result(self) -> list[RelationAccuracy]:
        """Every relation of the parse, the most frequent first."""
        if not self._instances:
            return []
        words = WordGuesses.of(torch.tensor([[len(member) for member in self._pieces]]), self._causal)
        results, begin = [], 0
        for name, pairs in self._instances.items():
            ends, of = torch.tensor(pairs), slice(begin, begin + len(pairs))
            on_sinks = self._on_sinks(ends, of) if self._sinks else {}
            results.append(replace(_accuracy(name, ends, self._guesses, words), on_sinks=on_sinks))
            begin += len(pairs)
        return sorted(results, key=lambda result: -result.n)

    def _on_sinks(self, pairs: Tensor, of: slice) -> dict[str, list[bool]]:
        """By direction, of every head whether the words of a relation attend more to sinks than to its other end."""
        return {
            direction: (self._resting[:, query].mean(1) > onto[:, of].mean(1)).tolist()
            for (direction, query, _), onto in zip(_directed(pairs), self._onto, strict=True)
        }


def pieces_of_words(parse: Parse, sinks: Collection[int]) -> dict[int, tuple[int, ...]]:
    """The words of a parse that are no sinks, by their place in it, with the tokens that they are made of."""
    members = (tuple(place for place in word.positions if place not in sinks) for word in parse.words)
    return {place: member for place, member in enumerate(members) if member}


def instances_of(parse: Parse, words: Sequence[int]) -> dict[str, list[tuple[int, int]]]:
    """By relation, the dependent and the head of every arc between some words of a parse, by their place among these.

    An arc of a subtype (``nsubj:pass``) is one of its base relation, too.
    """
    place, instances = {word: number for number, word in enumerate(words)}, dict[str, list[tuple[int, int]]]()
    for arc in parse.arcs:
        if arc.dependent in place and arc.head in place:
            for name in dict.fromkeys((arc.relation.partition(":")[0], arc.relation)):
                instances.setdefault(name, []).append((place[arc.dependent], place[arc.head]))
    return instances


def _directed(pairs: Tensor) -> list[tuple[str, Tensor, Tensor]]:
    """Of pairs of a dependent and a head, [n_instances, 2]: each direction, who attends, and to whom."""
    dependents, heads = pairs.T
    return [(DIRECTIONS[0], dependents, heads), (DIRECTIONS[1], heads, dependents)]


def _accuracy(relation: str, pairs: Tensor, guesses: Tensor, words: WordGuesses) -> RelationAccuracy:
    """Of one relation with pairs of a dependent and a head, [n_instances, 2]; guesses of heads are [n_heads, n]."""
    offset, hits = best_offset(Counter((pairs[:, 1] - pairs[:, 0]).tolist()))
    accuracy: dict[str, list[float]] = {}
    baselines: dict[str, dict[str, float | list[float]]] = {}
    text = torch.zeros(len(pairs), dtype=torch.long)
    for direction, query, target in _directed(pairs):
        accuracy[direction] = (guesses[:, query] == target).double().mean(1).tolist()
        chance = words.chance[text, query] * words.visible[text, query, target]
        baselines[direction] = {
            "fixed offset": hits / len(pairs),
            "chance": float(chance.mean()),
            **{name: float((words.words[name][text, query] == target).double().mean()) for name in GUESSES},
            "other words": votes_elsewhere(guesses[None], words.visible, text, query, target).mean(0).tolist(),
        }
    return RelationAccuracy(relation, len(pairs), offset, accuracy, baselines)


def _arcs(words: Iterable[tuple[int, str]], place: dict[int, int]) -> Iterator[Arc]:
    """Of words with the place of their head and their relation to it, those that are scored and have tokens."""
    for i, (head, relation) in enumerate(words):
        if i in place and head in place and is_scored(relation):
            yield Arc(place[i], place[head], relation)


def most_attended_other(pattern: Tensor, first: int = 0) -> Tensor:
    """The other word that each word attends to most, [..., rows] of patterns [..., rows, n]; -1 where to none.

    The first row is that of the word ``first``.
    """
    others = pattern.clone()
    others.diagonal(first, dim1=-2, dim2=-1).fill_(-1.0)
    weight, guess = others.max(-1)
    return guess.masked_fill(weight <= 0, -1)


def best_offset(counts: Counter[int]) -> tuple[int, int]:
    """The most frequent offset, the nearest one of several, and how often it occurs."""
    offset = min(counts, key=lambda offset: (-counts[offset], abs(offset), -offset))
    return offset, counts[offset]


def _overlapping(tokens: Tokens, segment: int, start: int, end: int) -> tuple[int, ...]:
    places = enumerate(zip(tokens.offsets, tokens.segments, strict=True))
    return tuple(i for i, ((first, last), place) in places if place == segment and first < end and last > start)
