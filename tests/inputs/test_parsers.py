"""Which spaCy pipeline is taken, for which texts, and what its relations are called."""

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnviz.errors import ParserError
from attnviz.inputs.reading import parse_texts
from attnviz.language import parsers
from attnviz.language.parsers import Vocabulary, load_parser, parser_for
from attnviz.language.syntax import Arc
from tests.conftest import needs_parser
from tests.support.parsed import read

needs_spacy = pytest.mark.skipif(importlib.util.find_spec("spacy") is None, reason="needs the extra syntax")

# What the pipelines of these tests read in training, by language.
READ = {
    "en": "the cat that i saw in garden ran away from dog tom was berlin man",
    "de": "die der katze ich gestern gesehen habe ist weggelaufen weil hund bellte sah lief weg man in berlin tom was",
    "ru": "кошка убежала",
    "zh": "猫 在 沙 发 上",
}
ENGLISH = "The cat that I saw in the garden ran away from the dog."
GERMAN = "Die Katze, die ich gestern gesehen habe, ist weggelaufen, weil der Hund bellte."
RUSSIAN = "Кошка убежала."


@pytest.fixture(autouse=True)
def _loaded_anew() -> Iterator[None]:
    """Other tests load a pipeline once."""
    parsers._loaded.cache_clear()
    yield
    parsers._loaded.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A function that says which pipelines are there and which of them cannot be loaded; gives those that are tried."""
    import spacy

    def are(*names: str, broken: tuple[str, ...] = ()) -> list[str]:
        tried = []

        def load(name: str, **_: Any) -> Any:
            tried.append(name)
            if name in broken:
                raise OSError(f"{name} is broken")
            return SimpleNamespace(pipe_names=["parser"], name=name)

        for name in names:
            if words := READ.get(name.partition("_")[0]):
                vocabulary = tmp_path / name / f"{name}-3.8.0" / "vocab"
                vocabulary.mkdir(parents=True, exist_ok=True)
                (vocabulary / "strings.json").write_text(json.dumps(words.casefold().split()))
        parsers._vocabulary.cache_clear()
        monkeypatch.setattr(spacy.util, "get_installed_models", lambda: list(names))
        monkeypatch.setattr(spacy.util, "get_package_path", lambda name: tmp_path / name)
        monkeypatch.setattr(spacy, "load", load)
        return tried

    yield are
    parsers._vocabulary.cache_clear()


def test_without_spacy_there_is_no_parser_and_asking_for_one_is_an_error(monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "spacy" else find(name, *rest))
    assert load_parser() is None
    with pytest.raises(ParserError, match=r"attnviz\[syntax\]"):
        load_parser("en_core_web_sm")


@needs_spacy
@pytest.mark.parametrize("config", [None, "", "not a config", '[nlp]\nlang = "en"\npipeline = ["p"]\n'])
def test_a_named_parser_that_is_missing_broken_or_no_parser_is_an_error(config: str | None, tmp_path: Path):
    import spacy

    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    pipeline.to_disk(tmp_path)
    if config is not None:
        (tmp_path / "config.cfg").write_text(config)
    for name in (str(tmp_path), "en_core_web_gigantic"):
        with pytest.raises(ParserError):
            load_parser(name)


@needs_spacy
def test_an_english_pipeline_is_preferred_and_a_broken_one_is_skipped(installed: Any):
    tried = installed("de_small", "en_other", "en_core_web_sm", broken=("en_core_web_sm", "en_other"))
    with pytest.warns(UserWarning, match="is broken"):
        assert load_parser().name == "de_small"
    assert tried == ["en_core_web_sm", "en_other", "de_small"]


@pytest.mark.draws
@needs_parser
def test_the_installed_english_pipeline_is_found_and_read_from_a_folder_and_follows_a_sentence(tmp_path: Path):
    text = "The cat saw the dog."
    own = load_parser()
    assert Vocabulary.of(own) == Vocabulary("Universal Dependencies", "ClearNLP")
    parse = parse_texts(own, read(text))
    assert [word.text for word in parse.words] == ["The", "cat", "saw", "the", "dog", "."]
    assert parse.arcs == (Arc(0, 1, "det"), Arc(1, 2, "nsubj"), Arc(3, 4, "det"), Arc(4, 2, "obj"))
    assert parse.own_arcs == (*parse.arcs[:3], Arc(4, 2, "dobj"))
    assert parse.parser.startswith("en_")
    own.meta["name"] = "my_own"
    own.to_disk(tmp_path / "pipeline")
    again = parse_texts(load_parser(str(tmp_path / "pipeline")), read(text))
    assert (again.parser, again.arcs) == ("en_my_own", parse.arcs)


def test_a_pipeline_is_loaded_once_a_process_and_one_in_a_folder_again_when_it_was_written_again(installed, tmp_path):
    tried = installed("en_core_web_sm")
    assert parser_for([ENGLISH]) == parser_for([ENGLISH]) == (load_parser("en_core_web_sm"), "")
    assert tried == ["en_core_web_sm"]
    for time in (1, 1, 2):
        (tmp_path / "meta.json").write_text("{}")
        os.utime(tmp_path / "meta.json", (time, time))
        load_parser(str(tmp_path))
    assert tried[1:] == [str(tmp_path)] * 2


@needs_spacy
def test_of_several_pipelines_that_of_the_texts_language_is_taken(installed: Any):
    installed("de_core_news_sm", "en_core_web_sm", "ru_core_news_sm", "zh_core_web_sm")
    expected = {ENGLISH: "en_core_web_sm", GERMAN: "de_core_news_sm", RUSSIAN: "ru_core_news_sm"}
    expected |= {"Tom was in Berlin": "en_core_web_sm", "猫在沙发上": "zh_core_web_sm"}
    for text, name in expected.items():
        found, note = parser_for([text])
        assert (found.name, note) == (name, "")
    installed("xx_sent_ud_sm")  # without a vocabulary, it parses anything
    assert parser_for([RUSSIAN])[0].name == "xx_sent_ud_sm"
    installed()
    assert load_parser() is None
    found, note = parser_for([ENGLISH])
    assert (found, "attnviz[syntax]" in note) == (None, True)


@needs_spacy
@pytest.mark.parametrize(
    ("texts", "reason"),
    [([GERMAN], "0 of 13"), ([RUSSIAN], "0 of 2"), ([ENGLISH, "for (cat in the_garden) { ran(); }"], "code"),
     (["1 2 3"], "no words")],
)  # fmt: skip
def test_a_text_of_another_language_has_no_parser_and_one_line_that_says_why(installed, texts, reason):
    installed("en_core_web_sm")
    found, note = parser_for(texts)
    assert (found, "\n" in note) == (None, False)
    assert all(said in note for said in (reason, "en_core_web_sm", "--parser"))
    found, note = parser_for(texts, "en_core_web_sm")  # which is used for any text where it is named
    assert (found.name, note) == ("en_core_web_sm", "")


@needs_spacy
@pytest.mark.parametrize(("other", "taken"), [(["en_other"], "en_other"), ([], None)])
def test_a_broken_pipeline_of_the_language_is_skipped_for_the_next_that_fits(installed: Any, other, taken):
    installed("de_core_news_sm", "en_core_web_sm", *other, broken=("en_core_web_sm",))
    with pytest.warns(UserWarning, match="is broken"):
        found, _ = parser_for([ENGLISH])
    assert (found and found.name) == taken
