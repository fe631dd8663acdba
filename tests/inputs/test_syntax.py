"""Accuracy by relation and what it has to beat, worked by hand; parses tied to tokens."""

from typing import Any

import pytest
import torch

from attnviz.inputs.reading import parse_texts
from attnviz.language.syntax import DIRECTIONS, Arc, Parse, Word
from attnviz.measures.guesses import GUESSES
from attnviz.measures.relations import RelationCount
from attnviz.models.head_ids import HeadId
from tests.support.parsed import FakeParser, read
from tests.support.verified import counted_relations, verified


def parse_of(n_words: int, arcs: list[tuple[int, int, str]], positions: list[tuple[int, ...]] | None = None) -> Parse:
    """A parse whose words stand at positions 1, 2, … (after [CLS]) unless told otherwise."""
    places = positions or [(i + 1,) for i in range(n_words)]
    words = tuple(Word(f"w{i}", place) for i, place in enumerate(places))
    return Parse(words, tuple(Arc(*arc) for arc in arcs), "test")


def attending(targets: list[int], n: int | None = None, others: float = 0.0) -> list[list[float]]:
    """A pattern in which query q puts what is left by ``others`` (spread evenly) on targets[q]."""
    n = n or len(targets)
    rows = torch.full((len(targets), n), others / n)
    rows[range(len(targets)), targets] += 1 - others
    return rows.tolist()


def accuracies(patterns: Any, parse: Parse, sinks: Any = (), causal: bool = False) -> dict[str, RelationCount]:
    return {found.relation: found for found in counted_relations(verified(patterns), parse, sinks, causal)}


def to_heads(found: RelationCount) -> list[float]:
    """The accuracy of every head from the dependent to its head."""
    return found.accuracy.scores[0, 0].tolist()


def baselines_of(found: RelationCount) -> list[dict[str, float]]:
    """What the first head has to beat, in both directions."""
    return [found.accuracy.at(direction, HeadId(0, 0))[2] for direction in (0, 1)]


# [CLS] the cat saw the dog [SEP]: det(cat, the), nsubj(saw, cat), det(dog, the), dobj(saw, dog)
SENTENCE = parse_of(5, [(0, 1, "det"), (1, 2, "nsubj"), (3, 4, "det"), (4, 2, "dobj")])


def test_words_that_attend_more_to_sinks_than_to_the_other_end_are_noticed():
    """Head 0 gives the other end 0.4 and [CLS] 0.6, head 1 the other way round."""
    parse = parse_of(2, [(0, 1, "det")])
    heads = [[[1.0, 0.0, 0.0], [rest, 0.0, 1 - rest], [rest, 1 - rest, 0.0]] for rest in (0.6, 0.4)]
    assert accuracies(heads, parse, sinks=(0,))["det"].on_sinks.tolist() == [[[True, False]]] * 2
    assert accuracies(heads, parse)["det"].on_sinks is None


def test_the_best_offset_is_the_most_frequent_one_from_the_dependent_to_the_head():
    found = accuracies(torch.eye(7), SENTENCE)
    assert (found["det"].offset, found["det"].offset_accuracy) == (1, 1.0)
    assert (found["dobj"].offset, found["dobj"].offset_accuracy) == (-2, 1.0)
    several = accuracies(torch.eye(8), parse_of(6, [(0, 2, "x"), (1, 3, "x"), (4, 3, "x"), (5, 0, "x")]))["x"]
    assert (several.n, several.offset, several.offset_accuracy) == (4, 2, 0.5)


@pytest.mark.parametrize(
    ("arcs", "offset"),
    [([(0, 3, "x"), (2, 3, "x")], 1), ([(3, 0, "x"), (3, 2, "x")], -1), ([(0, 1, "x"), (3, 2, "x")], 1)],
)
def test_of_tied_offsets_the_nearest_is_taken_then_the_one_ahead(arcs: list[tuple[int, int, str]], offset: int):
    for order in (arcs, arcs[::-1]):
        found = accuracies(torch.eye(6), parse_of(4, order))["x"]
        assert (found.offset, found.offset_accuracy) == (offset, 0.5)


def test_a_head_that_attends_to_special_tokens_alone_finds_nothing():
    """Otherwise the first word would be the guess of every query, and right wherever it is the head."""
    found = accuracies([attending([0, 0, 0, 0])], parse_of(3, [(1, 0, "x"), (2, 0, "x"), (0, 1, "y")]))
    assert not any(relation.accuracy.scores.any() for relation in found.values())


# five words of 1, 3, 1, 1 and 2 pieces
UNEVEN = parse_of(5, [(0, 1, "det"), (2, 1, "x"), (4, 0, "x"), (3, 4, "x")], [(1,), (2, 3, 4), (5,), (6,), (7, 8)])


def test_the_baselines_of_a_relation_by_hand():
    found = accuracies(torch.full((10, 10), 0.1), UNEVEN)
    assert found.keys() == {"x", "det"}
    assert found["x"].accuracy.directions == DIRECTIONS
    assert (found["x"].accuracy.n, found["x"].accuracy.texts) == (3, 1)  # instances, and sentences that have any
    forward, backward = baselines_of(found["x"])
    assert tuple(forward) == tuple(backward) == ("fixed offset", "chance", *GUESSES, "other words")
    assert forward["fixed offset"] == backward["fixed offset"] == pytest.approx(1 / 3)  # -1, -4 and +1 once each
    assert forward["chance"] == backward["chance"] == pytest.approx(1 / 4)
    # word 4's head is the first word; word 3's the last; word 2's head, word 1, the longest
    assert [forward[name] for name in ("first word", "last word", "longest word")] == pytest.approx([1 / 3] * 3)
    # seen from heads: word 1 looks for 2, word 0 for 4 (its last word), word 4 for 3 (its last other word)
    assert [backward[name] for name in ("first word", "last word", "longest word")] == pytest.approx([0, 2 / 3, 0])
    # a uniform head guesses word 1, which has most pieces, from everywhere, and from there word 4
    assert to_heads(found["x"]) == pytest.approx([1 / 3])
    assert forward["other words"] == pytest.approx(1 / 3 * (3 / 3) + 1 / 3 * (1 / 3))  # word 1 by all, word 4 by word 1


def test_a_word_that_begins_with_a_sink_is_made_of_its_other_pieces():
    parse = parse_of(3, [(1, 0, "x"), (2, 1, "x")], [(0, 1), (2,), (3,)])
    pattern = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.9, 0.1, 0, 0], [0.8, 0.05, 0.15, 0]])
    assert to_heads(accuracies(pattern, parse, (0,), causal=True)["x"]) == [1.0]


def tags_of(written: str) -> list[tuple[str, int, str]]:
    """``word/head/relation``, the head by its place."""
    parts = [part.split("/") for part in written.split(" ")]
    return [(word, int(head), relation) for word, head, relation in parts]


def parsed(text: str, written: str, labels: tuple[str, ...] = ("det",), **options: Any) -> Parse:
    prompt = read(text, **options)
    return parse_texts(FakeParser({prompt.texts[0]: tags_of(written)}, labels), prompt)


CAT_RAN = "the/1/det cat/2/nsubj ran/2/ROOT"


@pytest.mark.parametrize(
    ("text", "written", "positions", "gpt2"),
    [
        ("the unable cat", "the/2/x unable/2/x cat/2/ROOT", [(1,), (2, 3), (4,)], False),
        # a token that overlaps two words ("theca" is one [UNK]) belongs to both
        ("theca saw", "the/1/x ca/2/y saw/2/ROOT", [(1,), (1,), (2,)], False),
        # a word of several words of the tokenizer has all of them
        ("cat-dog ran", "cat-dog/1/nsubj ran/1/ROOT", [(1, 2, 3), (4,)], False),
        # the space before a byte-level token is no part of the word before
        ("the cat ran", CAT_RAN, [(0,), (1,), (2,)], True),
    ],
)
def test_tokens_belong_to_the_words_whose_characters_they_overlap(text, written, positions, gpt2):
    parse, tags = parsed(text, written, gpt2=gpt2), tags_of(written)
    assert parse.words == tuple(Word(word, of) for (word, _, _), of in zip(tags, positions, strict=True))
    assert parse.arcs == tuple(Arc(i, head, kind) for i, (_, head, kind) in enumerate(tags) if kind != "ROOT")
    assert parse.parser == "xx_fake"


@pytest.mark.parametrize(
    ("text", "written", "options", "words", "arcs"),
    [
        # white space is no word even where the model has a token for it
        ("cat\n\nran", "cat/2/nsubj \n\n/0/dep ran/2/ROOT", {"gpt2": True}, "cat ran", (Arc(0, 1, "nsubj"),)),
        # what was cut off is not parsed
        ("the cat saw the dog", "the/1/det cat/2/nsubj saw/2/ROOT the/2/dep", {"max_positions": 6},
         "the cat saw the", (Arc(0, 1, "det"), Arc(1, 2, "nsubj"), Arc(3, 2, "dep"))),
        # what the tokenizer drops
        ("the \u200b cat ran", "the/2/det \u200b/2/dep cat/3/nsubj ran/3/ROOT", {},
         "the cat ran", (Arc(0, 1, "det"), Arc(1, 2, "nsubj"))),
    ],
)  # fmt: skip
def test_words_without_tokens_and_their_relations_are_left_out(text, written, options, words, arcs):
    parse = parsed(text, written, **options)
    assert [word.text for word in parse.words] == words.split()
    assert parse.arcs == arcs


def test_the_words_of_a_pair_stand_one_segment_after_the_other():
    texts = {"the cat ran": CAT_RAN, "a dog saw it": "a/1/det dog/2/nsubj saw/2/ROOT it/2/dobj"}
    parser = FakeParser({text: tags_of(written) for text, written in texts.items()})
    parse = parse_texts(parser, read(*texts))
    assert [word.positions for word in parse.words] == [(1,), (2,), (3,), (5,), (6,), (7,), (8,)]
    assert parse.arcs == (Arc(0, 1, "det"), Arc(1, 2, "nsubj"), Arc(3, 4, "det"), Arc(4, 5, "nsubj"), Arc(6, 5, "dobj"))


def test_punctuation_and_the_root_are_not_scored():
    for relation in ("punct", "root", "ROOT", "PUNCT", ""):
        parse = parsed("the cat", f"the/1/{relation} cat/1/ROOT")
        assert (parse.arcs, len(parse.words)) == ((), 2)


def test_a_clearnlp_tree_is_mapped_before_words_are_left_out():
    """The preposition is cut off, and its object still hangs on the verb."""
    labels = ("det", "dobj", "nsubj", "pobj", "prep")
    parse = parsed("the \u200b cat ran", "the/3/dobj \u200b/3/prep cat/1/pobj ran/3/ROOT", labels)
    assert [word.text for word in parse.words] == ["the", "cat", "ran"]
    assert parse.arcs == (Arc(0, 2, "obj"), Arc(1, 2, "obl"))
    assert parse.own_arcs == (Arc(0, 2, "dobj"),)
    assert (parse.vocabulary.name, parse.vocabulary.mapped_from) == ("Universal Dependencies", "ClearNLP")


@pytest.mark.parametrize(
    ("labels", "name"),
    [(("nsubj", "obl:agent", "ROOT", "dep", ""), "Universal Dependencies"), (("sb", "oa"), "the parser's own")],
)
def test_other_labels_are_left_as_they_are(labels: tuple[str, ...], name: str):
    parse = parsed("the cat ran", "the/1/prep cat/2/pobj ran/2/ROOT", labels)
    assert parse.arcs == (Arc(0, 1, "prep"), Arc(1, 2, "pobj"))
    assert parse.own_arcs == ()
    assert (parse.vocabulary.name, parse.vocabulary.mapped_from) == (name, None)
