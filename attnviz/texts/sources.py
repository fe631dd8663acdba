"""Texts given one by one, and corpora, as one list of texts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnviz.arguments import is_there
from attnviz.errors import CorpusError, TextError, UsageError
from attnviz.texts.reading import SUFFIXES, Corpus, Text, check_columns, open_corpus, read_texts
from attnviz.texts.tables import Columns, is_table_folder


@dataclass(frozen=True)
class TextSources:
    """Texts and corpora, and all texts to measure on, in order."""

    texts: tuple[Text, ...]
    given: tuple[str, ...]  # texts that are not of a corpus
    corpora: tuple[tuple[Corpus, int], ...]  # with the number of sentences read


Contrast = tuple[str | int, str | int]  # an answer and a foil


def contrast_named(answer: str | int | None, foil: str | int | None, label: str | None) -> Contrast | None:
    """An answer, or a label in its place, and a foil; None without either. UsageError for one alone, or for three."""
    if answer is None and foil is None:
        return None
    if answer is not None and label is not None:
        raise UsageError("--answer and --label (answer=..., label=...) were given; expected one of them beside --foil.")
    answer = label if answer is None else answer
    if answer is None or foil is None:
        found = "--foil (foil=...)" if answer is None else "--answer (answer=...)"
        raise UsageError(f"expected an answer and a foil, --answer and --foil, found {found} alone.")
    return answer, foil


def read_sources(
    items: Sequence[str | Path],
    limit: int | None,
    label: str | None = None,
    contrast: Contrast | None = None,
    columns: Columns = Columns(),  # noqa: B008 - it is frozen
) -> TextSources:
    """Read texts and, up to ``limit`` sentences of each, corpora: existing files, and words that end as such.

    ``label`` is the class of all texts; a table may bring the class of each, in one of its ``columns``. Likewise
    ``contrast``, answer and foil.

    UsageError where nothing is given, or one corpus twice, or a text would have two labels or answers; TextError for a
    blank text; CorpusError for a corpus that cannot be read.
    """
    if not items:
        raise UsageError("nothing to measure on: expected a text or a corpus (.txt, .csv, .conllu or another).")
    texts, plain, corpora = list[Text](), list[str](), list[tuple[Corpus, int]]()
    for item in items:
        kind = source_kind(item)
        if kind == "folder":
            raise CorpusError(f"{item} is a folder; expected a corpus in it (.txt, .csv, .conllu), or a text.")
        if kind == "text":
            if not str(item).strip():
                raise TextError("a text is empty or blank; expected a sentence, or a corpus (.txt, .csv, .conllu).")
            plain.append(str(item))
            texts.append(Text(str(item), number=len(texts)))
            continue
        corpus = open_corpus(Path(item), columns, refused=("gap", "chats"))
        if any(other.sha256 == corpus.sha256 for other, _ in corpora):
            raise UsageError(f"expected different corpora, found {corpus.path} with the same content as another one.")
        has = set() if corpus.table is None else {"label", "answer"}.intersection(corpus.table.columns)
        if label is not None and has:
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
        before = len(texts)
        texts += [replace(text, number=before + text.number) for text in read_texts(corpus, limit)]
        corpora.append((corpus, len(texts) - before))
    check_columns([corpus for corpus, _ in corpora], columns)
    if label is not None:
        texts = [replace(text, label=label) for text in texts]
    if contrast is not None:
        texts = [replace(text, contrast=contrast) for text in texts]
    return TextSources(texts=tuple(texts), given=tuple(plain), corpora=tuple(corpora))


def source_kind(item: str | Path) -> str:
    """Classify an argument: ``folder``, ``corpus`` (also a missing file, or a wrong suffix), or ``text``."""
    name = str(item)
    is_path = isinstance(item, Path)
    one_word = not any(map(str.isspace, name))
    if is_there(name, is_table_folder):
        return "corpus"
    if is_there(name, Path.is_dir) and (is_path or name in {".", ".."} or ("/" in name and one_word)):
        return "folder"
    is_file = is_there(name, Path.is_file)
    return "corpus" if is_path or is_file or (one_word and name.lower().endswith(SUFFIXES)) else "text"
