"""Which texts an English pipeline parses: plain English, and in doubt nothing else."""

import importlib.resources
import runpy

import pytest

from attnviz.inputs.reading import open_corpus, read_texts
from attnviz.language import parsers
from attnviz.language.parsers import parser_for, unlike
from tests.conftest import SHARED, needs_parser
from tests.support.languages import ENGLISH, OTHER

pytestmark = needs_parser

REFUSED = {
    "He said: Honi soit qui mal y pense, and then he left us for good.",
    "My iPhone and MacBook run JavaScript and TypeScript on GitHub.",
}
"""English of which the pipeline does not know a third: words of another language, names."""

PARSED = {"select name from users where age > 30 order by name", "sudo apt-get install python3-pip"}
"""Code that reads like English."""


@pytest.fixture(scope="module")
def english() -> str:
    """The installed pipeline."""
    return str(parsers._installed()[0])


@pytest.mark.parametrize("kind", ENGLISH)
def test_plain_english_is_parsed(kind: str, english: str):
    assert [text for text in ENGLISH[kind] if unlike(text, english) and text not in REFUSED] == []


@pytest.mark.parametrize("kind", OTHER)
def test_nothing_else_is_parsed(kind: str, english: str):
    assert [text for text in OTHER[kind] if not unlike(text, english) and text not in PARSED] == []


def test_of_the_example_sentences_of_all_languages_of_spacy_three_are_parsed(english: str):
    from spacy import lang

    sentences = [
        sentence
        for language in importlib.resources.files(lang).iterdir()
        if language.name not in ("en", "xx") and (examples := language / "examples.py").is_file()
        for sentence in runpy.run_path(str(examples))["sentences"]
    ]
    assert len(sentences) > 400
    assert sum(not unlike(sentence, english) for sentence in sentences) <= 3


TREEBANK = SHARED / "ud" / "en_ewt-ud-dev.conllu"


@pytest.mark.thorough
@pytest.mark.skipif(not TREEBANK.is_file(), reason="needs the treebank in ../shared/data/ud")
def test_of_a_treebank_with_its_signatures_and_file_names_two_sentences_in_a_hundred_are_refused(english: str):
    texts = [text.text for text in read_texts(open_corpus(TREEBANK))]
    refused = [text for text in texts if unlike(text, english)]
    assert len(refused) <= 180 < len(texts)  # most of one word or two: addresses, names, smileys
    assert sum(len(text.split()) >= 5 for text in refused) <= 40
    assert min(len(parsers._common_words(language)) for language in parsers._LANGUAGES) > 300


def test_a_pipeline_is_not_loaded_for_a_text_that_it_does_not_parse(monkeypatch: pytest.MonkeyPatch, english: str):
    monkeypatch.setattr(parsers, "_load_pipeline", lambda name: pytest.fail(f"{name} was loaded"))
    pipeline, note = parser_for(["猫"])
    assert pipeline is None
    assert english in note
