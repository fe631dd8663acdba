"""Accuracy by relation, worked by hand; parses tied to tokens; which parser is taken."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnviz.errors import ParserError
from attnviz.model.tokens import Tokens, tokenize
from attnviz.patterns.syntax import Arc, Parse, RelationAccuracy, Word, load_parser, parse_texts, relation_accuracy
from tests.conftest import needs_parser
from tests.models import bert_tokenizer, gpt2_tokenizer
from tests.verified import verified

needs_spacy = pytest.mark.skipif(importlib.util.find_spec("spacy") is None, reason="needs the extra syntax")


def read(text: str, pair: str | None = None, max_positions: int = 40, gpt2: bool = False) -> Tokens:
    tokenizer = gpt2_tokenizer() if gpt2 else bert_tokenizer()
    return tokenize(
        tokenizer, text, pair, max_positions=max_positions, vocabulary_size=len(tokenizer), segments=not gpt2,
        sink_first=gpt2, truncate=True,
    )  # fmt: skip


def parse_of(n_words: int, arcs: list[tuple[int, int, str]], positions: list[tuple[int, ...]] | None = None) -> Parse:
    """A parse whose words stand at positions 1, 2, … (after [CLS]) unless told otherwise."""
    places = positions or [(i + 1,) for i in range(n_words)]
    return Parse(
        tuple(Word(f"w{i}", place) for i, place in enumerate(places)), tuple(Arc(*arc) for arc in arcs), "test"
    )


def attending(targets: list[int], n: int | None = None, others: float = 0.0) -> list[list[float]]:
    """A pattern in which query q puts what is left by ``others`` (spread evenly) on targets[q]."""
    n = n or len(targets)
    rows = torch.full((len(targets), n), others / n)
    rows[range(len(targets)), targets] += 1 - others
    return rows.tolist()


def accuracies(patterns: Any, parse: Parse) -> dict[str, RelationAccuracy]:
    return {found.relation: found for found in relation_accuracy(verified(patterns), parse)}


def both_ways(found: RelationAccuracy, head: int = 0) -> tuple[float, float]:
    """From the dependent to its head, and from the head to its dependent."""
    return found.accuracy["dependent_to_head"][head], found.accuracy["head_to_dependent"][head]


# --- worked by hand -----------------------------------------------------------------------------

# [CLS] the cat saw the dog [SEP]: det(cat, the), nsubj(saw, cat), det(dog, the), dobj(saw, dog)
SENTENCE = parse_of(5, [(0, 1, "det"), (1, 2, "nsubj"), (3, 4, "det"), (4, 2, "dobj")])


def test_both_directions_by_hand():
    # the -> cat right, cat -> the, saw -> cat, the -> cat wrong (4 is dog at position 5), dog -> saw right
    found = accuracies([attending([0, 2, 1, 2, 2, 3, 0], others=0.1)], SENTENCE)
    assert [(name, relation.n) for name, relation in found.items()] == [("det", 2), ("nsubj", 1), ("dobj", 1)]
    assert [both_ways(relation) for relation in found.values()] == [(0.5, 0.5), (0.0, 1.0), (1.0, 0.0)]


def test_every_head_has_its_own_accuracy():
    right, wrong = attending([0, 2, 0, 0, 5, 0, 0]), attending([0, 3, 0, 0, 1, 0, 0])
    found = accuracies([wrong, right, wrong], SENTENCE)
    assert found["det"].accuracy["dependent_to_head"] == [0.0, 1.0, 0.0]


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


def test_a_word_itself_and_special_tokens_are_no_guess():
    # word 0 attends most to [CLS], then to itself, and least of these to word 1
    pattern = torch.full((4, 4), 0.25)
    pattern[1] = torch.tensor([0.6, 0.25, 0.1, 0.05])
    found = accuracies(pattern, parse_of(3, [(0, 1, "x")], [(1,), (2,), (3,)]))["x"]
    assert found.accuracy["dependent_to_head"] == [1.0]


def test_a_causal_head_with_nothing_before_the_word_scores_nothing():
    """The first word sees no other word; word 1 finds it."""
    pattern = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])
    found = accuracies(pattern, parse_of(3, [(0, 1, "x"), (2, 1, "y")], [(0,), (1,), (2,)]))
    assert (both_ways(found["x"]), both_ways(found["y"])) == ((0.0, 1.0), (1.0, 0.0))


def test_a_head_that_attends_to_special_tokens_alone_finds_nothing():
    """Otherwise the first word would be the guess of every query, and right wherever it is the head."""
    found = accuracies([attending([0, 0, 0, 0])], parse_of(3, [(1, 0, "x"), (2, 0, "x"), (0, 1, "y")]))
    assert (both_ways(found["x"]), both_ways(found["y"])) == ((0.0, 0.0), (0.0, 0.0))


def test_pieces_are_summed_as_keys_and_averaged_as_queries():
    """Word 0 is one token, word 1 two, word 2 one; no single piece of word 1 wins, their sum does."""
    pattern = torch.tensor([[0.0, 0.3, 0.3, 0.4], [0.1, 0.0, 0.0, 0.9], [0.9, 0.0, 0.0, 0.1], [0.9, 0.05, 0.05, 0]])
    parse = parse_of(3, [(0, 1, "sum"), (1, 2, "mean"), (1, 0, "tie")], [(0,), (1, 2), (3,)])
    assert accuracies(pattern, parse)["sum"].accuracy["dependent_to_head"] == [1.0]
    pattern[2] = torch.tensor([0.8, 0.0, 0.0, 0.2])  # means: 0.45 to word 0, 0.55 to word 2
    found = accuracies(pattern, parse)
    assert found["mean"].accuracy["dependent_to_head"] == [1.0]
    assert found["tie"].accuracy["dependent_to_head"] == [0.0]


def test_a_parse_without_relations_has_no_accuracies():
    assert relation_accuracy(verified(torch.eye(3)), parse_of(1, [])) == []


def test_layers_of_low_precision_are_read():
    pattern = verified([attending([0, 2, 1, 2, 2, 3, 0], others=0.1)], torch.bfloat16)
    assert [found.n for found in relation_accuracy(pattern, SENTENCE)] == [2, 1, 1]


# --- words and tokens ---------------------------------------------------------------------------


class FakeParser:
    """Words with offsets, heads and relations as written: ``{text: [(word, head, relation), …]}``."""

    meta = {"lang": "xx", "name": "fake"}  # noqa: RUF012

    def __init__(self, sentences: dict[str, list[tuple[str, int, str]]]) -> None:
        self.sentences = sentences

    def __call__(self, text: str) -> list[SimpleNamespace]:
        words, start = [], 0
        for i, (word, _, relation) in enumerate(self.sentences[text]):
            start = text.index(word, start)
            words.append(SimpleNamespace(text=word, idx=start, i=i, dep_=relation, is_space=word.isspace()))
            start += len(word)
        for word, (_, head, _) in zip(words, self.sentences[text], strict=True):
            word.head = words[head]
        return words


Tags = list[tuple[str, int, str]]
CAT_RAN: Tags = [("the", 1, "det"), ("cat", 2, "nsubj"), ("ran", 2, "ROOT")]


@pytest.mark.parametrize(
    ("text", "tags", "words"),
    [
        ("the unable cat", [("the", 2, "x"), ("unable", 2, "x"), ("cat", 2, "ROOT")], [(1,), (2, 3), (4,)]),
        # a token that overlaps two words ("theca" is one [UNK]) belongs to both
        ("theca saw", [("the", 1, "x"), ("ca", 2, "y"), ("saw", 2, "ROOT")], [(1,), (1,), (2,)]),
        # a word of several words of the tokenizer has all of them
        ("cat-dog ran", [("cat-dog", 1, "nsubj"), ("ran", 1, "ROOT")], [(1, 2, 3), (4,)]),
    ],
)
def test_tokens_belong_to_the_words_whose_characters_they_overlap(text: str, tags: Tags, words: list[tuple[int, ...]]):
    parse = parse_texts(FakeParser({text: tags}), [text], read(text))
    assert parse.words == tuple(Word(word, positions) for (word, _, _), positions in zip(tags, words, strict=True))
    assert parse.arcs == tuple(Arc(i, head, kind) for i, (_, head, kind) in enumerate(tags) if kind != "ROOT")
    assert parse.parser == "xx_fake"


def test_leading_spaces_of_byte_level_tokens_do_not_tie_them_to_the_word_before():
    parse = parse_texts(FakeParser({"the cat ran": CAT_RAN}), ["the cat ran"], read("the cat ran", gpt2=True))
    assert parse.words == (Word("the", (0,)), Word("cat", (1,)), Word("ran", (2,)))


@pytest.mark.parametrize(
    ("text", "tags", "options", "words", "arcs"),
    [
        # white space is no word even where the model has a token for it
        (
            "cat\n\nran",
            [("cat", 2, "nsubj"), ("\n\n", 0, "dep"), ("ran", 2, "ROOT")],
            {"gpt2": True},
            ["cat", "ran"],
            (Arc(0, 1, "nsubj"),),
        ),
        # what was cut off
        (
            "the cat saw the dog",
            [("the", 1, "det"), ("cat", 2, "nsubj"), ("saw", 2, "ROOT"), ("the", 4, "det"), ("dog", 2, "dobj")],
            {"max_positions": 6},
            ["the", "cat", "saw", "the"],
            (Arc(0, 1, "det"), Arc(1, 2, "nsubj")),
        ),
        # what the tokenizer drops
        (
            "the \u200b cat ran",
            [("the", 2, "det"), ("\u200b", 2, "dep"), ("cat", 3, "nsubj"), ("ran", 3, "ROOT")],
            {},
            ["the", "cat", "ran"],
            (Arc(0, 1, "det"), Arc(1, 2, "nsubj")),
        ),
    ],
)
def test_words_without_tokens_and_their_relations_are_left_out(
    text: str, tags: Tags, options: dict[str, Any], words: list[str], arcs: tuple[Arc, ...]
):
    parse = parse_texts(FakeParser({text: tags}), [text], read(text, **options))
    assert [word.text for word in parse.words] == words
    assert parse.arcs == arcs


def test_the_words_of_a_pair_stand_one_segment_after_the_other():
    pair = [("a", 1, "det"), ("dog", 2, "nsubj"), ("saw", 2, "ROOT"), ("it", 2, "dobj")]
    parser = FakeParser({"the cat ran": CAT_RAN, "a dog saw it": pair})
    parse = parse_texts(parser, ["the cat ran", "a dog saw it"], read("the cat ran", "a dog saw it"))
    assert [word.positions for word in parse.words] == [(1,), (2,), (3,), (5,), (6,), (7,), (8,)]
    assert parse.arcs == (Arc(0, 1, "det"), Arc(1, 2, "nsubj"), Arc(3, 4, "det"), Arc(4, 5, "nsubj"), Arc(6, 5, "dobj"))


@pytest.mark.parametrize("relation", ["punct", "root", "ROOT", "PUNCT", ""])
def test_punctuation_and_the_root_are_not_scored(relation: str):
    text = "the cat"
    parser = FakeParser({text: [("the", 1, relation), ("cat", 1, "ROOT")]})
    parse = parse_texts(parser, [text], read(text))
    assert parse.arcs == ()
    assert len(parse.words) == 2


# --- which parser -------------------------------------------------------------------------------


@pytest.fixture
def without_spacy(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "spacy" else find(name, *rest))


def test_without_spacy_there_is_no_parser(without_spacy: None):
    assert load_parser() is None


def test_a_parser_asked_for_without_spacy_is_an_error_that_says_what_to_type(without_spacy: None):
    with pytest.raises(ParserError, match=r"'en_core_web_sm' was asked for.*pip install 'attnviz\[syntax\]'"):
        load_parser("en_core_web_sm")


@needs_spacy
def test_a_named_parser_that_is_missing_is_an_error():
    with pytest.raises(ParserError, match="cannot load the pipeline 'en_core_web_gigantic'"):
        load_parser("en_core_web_gigantic")


@needs_spacy
@pytest.mark.parametrize(("pipes", "found"), [(["sentencizer"], "sentencizer"), ([], "nothing")])
def test_a_pipeline_without_a_parser_is_an_error_that_names_what_it_has(tmp_path: Path, pipes: list[str], found: str):
    import spacy

    pipeline = spacy.blank("en")
    for pipe in pipes:
        pipeline.add_pipe(pipe)
    pipeline.to_disk(tmp_path / "blank")
    with pytest.raises(ParserError, match=f"has no dependency parser; it has: {found}"):
        load_parser(str(tmp_path / "blank"))


@needs_spacy
@pytest.mark.parametrize("content", ["", "not a config", '[nlp]\nlang = "en"\npipeline = ["parser"]\n'])
def test_a_folder_that_is_no_pipeline_is_an_error(tmp_path: Path, content: str):
    (tmp_path / "config.cfg").write_text(content)
    (tmp_path / "meta.json").write_text('{"lang": "en", "name": "broken", "version": "0"}')
    with pytest.raises(ParserError, match="cannot load the pipeline"):
        load_parser(str(tmp_path))


@needs_spacy
def test_no_pipeline_installed_is_no_parser(monkeypatch: pytest.MonkeyPatch):
    import spacy

    monkeypatch.setattr(spacy.util, "get_installed_models", list)
    assert load_parser() is None


@needs_spacy
def test_an_english_pipeline_is_preferred_and_a_broken_one_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import spacy

    tried = []

    def load(name: str, **_: Any) -> Any:
        tried.append(name)
        if name != "de_small":
            raise OSError(f"{name} is broken")
        return SimpleNamespace(pipe_names=["parser"])

    monkeypatch.setattr(spacy.util, "get_installed_models", lambda: ["de_small", "en_other", "en_core_web_sm"])
    monkeypatch.setattr(spacy, "load", load)
    with pytest.warns(UserWarning, match="skipped a parser: .*en_.* is broken"):
        assert load_parser().pipe_names == ["parser"]
    assert tried == ["en_core_web_sm", "en_other", "de_small"]


@needs_parser
def test_the_installed_english_pipeline_is_found_and_follows_a_sentence():
    text = "The cat saw the dog."
    parse = parse_texts(load_parser(), [text], read(text))
    assert [word.text for word in parse.words] == ["The", "cat", "saw", "the", "dog", "."]
    assert parse.arcs == (Arc(0, 1, "det"), Arc(1, 2, "nsubj"), Arc(3, 4, "det"), Arc(4, 2, "dobj"))
    assert parse.parser.startswith("en_")


@needs_parser
def test_the_users_own_pipeline_is_read_from_a_folder(tmp_path: Path):
    own = load_parser()
    own.meta["name"] = "my_own"
    own.to_disk(tmp_path / "pipeline")
    text = "The cat saw the dog"
    parse = parse_texts(load_parser(str(tmp_path / "pipeline")), [text], read(text))
    assert parse.parser == "en_my_own"
    assert parse.arcs[:2] == (Arc(0, 1, "det"), Arc(1, 2, "nsubj"))
