"""From corpora to the texts that are measured: numbered, limited, with words and relations of a tree or a parser."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from attnviz.corpora.reading import Corpus, Span, Text, read_texts
from attnviz.patterns.parsers import Vocabulary, load_parser, parsed_words
from attnviz.patterns.syntax import Arc, is_scored

__all__ = ["LONGEST", "SHORTEST", "Parser", "find_parser", "numbered_texts", "ready"]

SHORTEST, LONGEST = 3, 60
"""Words of the sentences of a treebank that count (contract)."""


class Parser:
    """A spaCy pipeline, with its ``name`` and version, and the ``vocabulary`` of its relations."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.name = "{lang}_{name} {version}".format(**pipeline.meta)
        self.vocabulary = Vocabulary.of(pipeline)

    def __call__(self, text: str) -> tuple[tuple[Span, ...], tuple[Arc, ...]]:
        """Spans of the words of one text, and its relations without those of punctuation and the root."""
        words = parsed_words(self._pipeline, text)
        spans = tuple((word.start, word.end) for word in words)
        arcs = tuple(
            Arc(place, word.head, word.relation)
            for place, word in enumerate(words)
            if is_scored(word.relation) and not word.is_space
        )
        return spans, arcs


def numbered_texts(corpus: Corpus, limit: int | None) -> Iterator[Text]:
    """The first texts of a corpus, one in memory at a time.

    Args:
        corpus: to be read.
        limit: sentences, or rows of GAP's table, that are read; None for all.

    Raises:
        CorpusError: where it is malformed, when the reading comes to it.
    """
    for text in read_texts(corpus):
        if limit is not None and text.number >= limit:
            return
        yield text


def ready(text: Text, parse: Parser | None) -> Text | None:
    """A sentence as it is measured, parsed if it has no tree and there is a parser; None for a tree of another size."""
    if text.spans:
        return text if SHORTEST <= len(text.spans) <= LONGEST else None
    if parse is None:
        return text
    spans, arcs = parse(text.text)
    return replace(text, spans=spans, arcs=arcs)


def find_parser(corpora: Sequence[Corpus], name: str | None) -> Parser | None:
    """A parser for sentences without trees; not beside gold trees, with which its own are not to be mixed.

    Args:
        corpora: all that are measured.
        name: a spaCy pipeline; default an installed English one. Sentences are not looked at: a corpus has one
            language, which the caller knows.

    Raises:
        ParserError: the pipeline that was named cannot be used.
    """
    kinds = {corpus.kind for corpus in corpora}
    if "txt" not in kinds or "conllu" in kinds:
        return None
    pipeline = load_parser(name)
    return None if pipeline is None else Parser(pipeline)
