"""Texts given one by one, and corpora, as one list of texts."""

from dataclasses import dataclass, replace
from typing import Any

from attnviz.errors import UsageError
from attnviz.inputs.prompt import Text
from attnviz.inputs.reading import Corpus, open_corpora, read_texts
from attnviz.inputs.refusals import refuse
from attnviz.inputs.tables import Columns


@dataclass(frozen=True)
class TextSources:
    """Texts and corpora, and all texts to measure on, in order."""

    texts: tuple[Text, ...]
    given: tuple[str, ...]  # texts that are not of a corpus
    corpora: tuple[tuple[Corpus, int], ...]  # with the number of sentences read


Contrast = tuple[str | int, str | int]  # an answer and a foil


def contrast_named(answer: str | int | None, foil: str | int | None, label: str | None) -> Contrast | None:
    """An answer, or a label in its place, and a foil; None without either. UsageError for one alone, or for three."""
    refuse({"answer": answer, "label": label})
    answer = label if answer is None and foil is not None else answer
    refuse({"answer": answer, "foil": foil})
    return None if answer is None or foil is None else (answer, foil)


def read_sources(
    given: Any,
    limit: int | None,
    label: str | None = None,
    contrast: Contrast | None = None,
    columns: Columns = Columns(),  # noqa: B008 - it is frozen
    labels: Any = None,
) -> TextSources:
    """Read what :func:`attnviz.inputs.reading.open_corpora` takes, up to ``limit`` texts of each corpus.

    ``label`` is the class of all texts, ``labels`` those of texts in memory, one each; a table may bring the class of
    each, in one of its ``columns``. Likewise ``contrast``, answer and foil.

    UsageError where nothing is given, or one corpus twice, or a text would have two labels or answers; TextError for a
    blank text; CorpusError for a corpus that cannot be read.
    """
    texts, plain, corpora = list[Text](), list[str](), list[tuple[Corpus, int]]()
    given_of_all: dict[str, Any] = {"label": label, "contrast": contrast}
    of_all = {name: value for name, value in given_of_all.items() if value is not None}
    for opened in open_corpora(given, columns, ("gap", "chats"), labels):
        corpus = opened
        has = set() if corpus.table is None else {"label", "answer"}.intersection(corpus.table.columns)
        if label is not None and (has or corpus.labels):
            raise UsageError(f"{corpus.path} has labels or answers of its own; --label (label=) is for texts without.")
        if contrast is not None and "answer" in has:
            raise UsageError(f"{corpus.path} has answers of its own; --answer and --foil are for texts without.")
        if corpus.table and (contrast is not None or "answer" in has):
            if columns.label is not None:
                raise UsageError(
                    f"{corpus.path}: --label-column (label_column=...) names the class of each text, but answers and "
                    "foils are measured; leave it out, or the answers."
                )
            corpus = replace(corpus, table=corpus.table.without_labels)
        read = [replace(text, number=len(texts) + text.number, **of_all) for text in read_texts(corpus, limit)]
        texts += read
        if corpus.rows.content is None:
            corpora.append((corpus, len(read)))
        else:
            plain += [text.text or str(list(text.ids)) for text in read]
    if not texts:
        raise UsageError("nothing to measure on: expected a text or a corpus (.txt, .csv, .conllu or another).")
    return TextSources(texts=tuple(texts), given=tuple(plain), corpora=tuple(corpora))
