"""From corpora to the texts that are measured: numbered, limited, with words and relations of a tree or a parser."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from attnviz.corpora.batches import Span, Text
from attnviz.corpora.reading import Corpus, read_examples, read_sentences
from attnviz.patterns.syntax import LEFT_OUT, Arc, load_parser

__all__ = ["LONGEST", "SHORTEST", "Parser", "find_parser", "numbered_texts", "ready"]

SHORTEST, LONGEST = 3, 60
"""Words of the sentences of a treebank that count (contract)."""


class Parser:
    """From a text to a spaCy pipeline's words, first and past-the-last character, and its relations.

    Attributes:
        name: of the pipeline, with its version.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.name = "{lang}_{name} {version}".format(**pipeline.meta)

    def __call__(self, text: str) -> tuple[tuple[Span, ...], tuple[Arc, ...]]:
        """Words and relations of one text; those of punctuation and the root are left out."""
        document = self._pipeline(text)
        spans = tuple((word.idx, word.idx + len(word.text)) for word in document)
        arcs = tuple(
            Arc(word.i, word.head.i, word.dep_)
            for word in document
            if word.dep_.lower() not in LEFT_OUT and not word.is_space
        )
        return spans, arcs


def numbered_texts(corpus: Corpus, limit: int | None) -> Iterator[Text]:
    """Sentences, or GAP's examples with their three spans, one in memory at a time.

    Args:
        corpus: to be read.
        limit: sentences, or rows of GAP's table, that are read; None for all.

    Raises:
        CorpusError: where it is malformed, when the reading comes to it.
    """
    if corpus.kind == "gap":
        for example in read_examples(corpus):
            number = example.place.line - 2  # rows after the header
            if limit is not None and number >= limit:
                return
            spans = example.pronoun, *example.names
            yield Text(example.text, spans, (), example.place, number, example.right)
        return
    for number, sentence in enumerate(read_sentences(corpus)):
        if number == limit:
            return
        yield Text(sentence.text, sentence.spans or (), sentence.arcs or (), sentence.place, number)


def ready(text: Text, parse: Parser | None) -> Text | None:
    """A sentence as it is measured; None leaves it out.

    Trees have to be of the right size; other sentences are parsed where there is a parser.
    """
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
