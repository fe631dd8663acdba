"""Adds the words and relations of a spaCy pipeline to texts without a tree."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnviz.language.parsers import Vocabulary, load_parser, parsed_words
from attnviz.language.syntax import Arc, is_scored
from attnviz.texts.reading import LONGEST, SHORTEST, Corpus, Span, Text


class Parser:
    """A spaCy pipeline, with its ``name`` and version, and the ``vocabulary`` of its relations."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.name = "{lang}_{name} {version}".format(**pipeline.meta)
        self.vocabulary = Vocabulary.of(pipeline)

    def __call__(self, text: Text) -> Text:
        """The text with the spans of its words, and its relations without those of punctuation and the root."""
        words = parsed_words(self._pipeline, text.text)
        arcs = (
            Arc(i, word.head, word.relation)
            for i, word in enumerate(words)
            if is_scored(word.relation) and not word.is_space
        )
        return replace(text, spans=tuple((word.start, word.end) for word in words), arcs=tuple(arcs))

    def with_subjects(self, text: Text) -> Text:
        """An example of GAP with whether each of its names is the subject of a clause."""
        parsed = self(replace(text, spans=()))

        def subject(name: Span) -> bool:
            inside = {i for i, (start, end) in enumerate(parsed.spans) if start < name[1] and end > name[0]}
            return any(
                arc.relation.partition(":")[0] == "nsubj" and arc.dependent in inside and arc.head not in inside
                for arc in parsed.arcs
            )

        return replace(text, subjects=(subject(text.spans[1]), subject(text.spans[2])))


def find_parser(corpora: Sequence[Corpus], name: str | None) -> Parser | None:
    """The parser for plain sentences and GAP, by default an installed English pipeline; None if not needed.

    Raises:
        ParserError: the named pipeline cannot be used.
    """
    if not {"txt", "gap"} & {corpus.kind for corpus in corpora}:
        return None
    pipeline = load_parser(name)
    return None if pipeline is None else Parser(pipeline)


def ready(text: Text, parse: Parser | None) -> Text | None:
    """The sentence, parsed if it has no tree; None for a tree with too few or too many words."""
    if text.spans:
        return text if SHORTEST <= len(text.spans) <= LONGEST else None
    return text if parse is None else parse(text)
