"""From corpora to the texts that are measured: numbered, limited, with words and relations of a tree or a parser."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from attnviz.corpora.reading import Corpus, Span, Text, read_texts
from attnviz.patterns.syntax import LEFT_OUT, Arc, load_parser

__all__ = ["LONGEST", "SHORTEST", "Parser", "find_parser", "numbered_texts", "ready"]

SHORTEST, LONGEST = 3, 60
"""Words of the sentences of a treebank that count (contract)."""


class Parser:
    """A spaCy pipeline, with its ``name`` and version."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.name = "{lang}_{name} {version}".format(**pipeline.meta)

    def __call__(self, text: str) -> tuple[tuple[Span, ...], tuple[Arc, ...]]:
        """Spans of the words of one text, and its relations without those of punctuation and the root."""
        document = self._pipeline(text)
        spans = tuple((word.idx, word.idx + len(word.text)) for word in document)
        arcs = tuple(
            Arc(word.i, word.head.i, word.dep_)
            for word in document
            if word.dep_.lower() not in LEFT_OUT and not word.is_space
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
        name: a spaCy pipeline; default an installed English one.

    Raises:
        ParserError: the pipeline that was named cannot be used.
    """
    kinds = {corpus.kind for corpus in corpora}
    if "txt" not in kinds or "conllu" in kinds:
        return None
    pipeline = load_parser(name)
    return None if pipeline is None else Parser(pipeline)
