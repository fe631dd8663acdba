"""Reads corpora as streams: sentences one a line, tables, treebanks (CoNLL-U), GAP's pronouns, and texts in memory.

A malformed line is an error that names file and line, raised when it is read. Texts without a tree get one of a spaCy
pipeline.
"""

import hashlib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from attnviz.arguments import as_found, as_list, is_there, is_whole, values_of
from attnviz.errors import CorpusError, TextError, UsageError
from attnviz.inputs.chats import Chat, Message, checked_messages
from attnviz.inputs.lines import Place, broken, cannot_read, filled_lines, lines
from attnviz.inputs.prompt import Prompt, Text
from attnviz.inputs.refusals import NOT_PARSED, refuse
from attnviz.inputs.tables import (
    IN_MEMORY,
    TABLES,
    Columns,
    Rows,
    Table,
    chat_rows,
    columns_of,
    has_chats,
    is_chat,
    is_table_folder,
    open_table,
)
from attnviz.language.parsers import Vocabulary, load_parser, parsed_words
from attnviz.language.syntax import Arc, Parse, Word, is_scored, scored_arcs
from attnviz.wording import visible

SHORTEST, LONGEST = 3, 60  # fewest and most words of a treebank's sentence that is measured (contract)
SUFFIXES = (".txt", ".conllu", *TABLES)  # of files that hold texts

_EXPECTED = (
    "a file that ends in .txt (a text a line), .csv, .tsv, .jsonl, .json, .parquet (tables) or .conllu (a treebank), "
    "or a folder that datasets saved"
)
_REFUSED = {"gap": "a GAP table", "chats": "chats"}
_GAP_COLUMNS = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL".split()
_SENTENCE_ID = re.compile(r"#\s*sent_id\s*=\s*(\S.*?)\s*")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Corpus:
    """A file or folder to read, or texts in memory."""

    rows: Rows
    kind: str  # conllu, txt, gap, chats, table; or ids, texts (already read) in memory
    sha256: str
    table: Table | None = None
    labels: tuple[str | None, ...] = ()  # of the texts, where they were given beside them

    @property
    def path(self) -> Path:
        return self.rows.path

    @property
    def has_words_marked(self) -> bool:
        return self.kind in ("conllu", "gap")

    @property
    def identity(self) -> str:
        """Path, hash and columns, for the file of an unfinished run."""
        columns = f" {self.table.columns}" if self.table is not None else ""
        return f"{self.path} ({self.sha256[:12]}){columns}"

    @property
    def entry(self) -> dict[str, Any]:
        """How documents name it."""
        columns = {"columns": self.table.columns} if self.table is not None else {}
        return {"path": str(self.path), "sha256": self.sha256, **columns}


def open_corpus(
    given: Path | Rows,
    columns: Columns = Columns(),  # noqa: B008 - frozen
    refused: Sequence[str] = (),
) -> Corpus:
    """A corpus of the kinds of :data:`SUFFIXES`, a folder that datasets has saved, one with parquet files, or rows.

    ``columns`` are those to read of a table; ``refused`` kinds (``gap``, ``chats``) are a CorpusError, as is a file
    that cannot be read, another folder or suffix, or a column that is not there. UsageError for no rows in memory,
    TextError for those of several kinds.
    """
    rows = given if isinstance(given, Rows) else Rows(given)
    path = rows.path
    try:
        kind = _kind_of_file(path) if rows.content is None else _kind_in_memory(rows.content)
        if kind == "table" and has_chats(rows, columns):
            kind = "chats"
        if kind in refused:
            raise CorpusError(f"expected sentences in {path}, found {_REFUSED[kind]}; give {_EXPECTED}.")
        table = open_table(rows, columns) if kind == "table" else None
        return Corpus(rows, kind, rows.sha256, table)
    except OSError as error:
        raise cannot_read(path, error) from error


def _kind_of_file(path: Path) -> str:
    suffix, is_table = path.suffix.lower(), is_table_folder(path)
    if not path.is_file() and not is_table:
        found = "a folder" if path.is_dir() else "something else" if path.exists() else "nothing"
        raise CorpusError(f"expected a corpus at {path}, found {found}; give {_EXPECTED}.")
    if suffix not in SUFFIXES and not is_table:
        raise CorpusError(f"expected {_EXPECTED}, found {path}; give, save or rename such a file.")
    if suffix == ".tsv" and next((line.split("\t") for _, line in filled_lines(path)), []) == _GAP_COLUMNS:
        return "gap"
    return suffix[1:] if suffix in (".conllu", ".txt") and not is_table else "table"


def _kind_in_memory(content: Sequence[Any]) -> str:
    kinds = set[str]()
    for number, item in enumerate(content, start=1):
        if isinstance(item, list | tuple) and not item:
            raise TextError(f"text {number}: expected a text, or its token ids, found an empty list.")
        is_ids = isinstance(item, list | tuple) and item and all(map(is_whole, item))
        kinds.add("texts" if isinstance(item, Text) else "ids" if is_ids else "table")
    if not kinds:
        raise UsageError("expected texts in memory, found a table without rows.")
    if len(kinds) > 1:
        raise TextError(f"expected a list of one kind, found {' and '.join(sorted(kinds))}; give them apart.")
    return kinds.pop()


def open_corpora(
    given: Any,
    columns: Columns = Columns(),  # noqa: B008 - frozen
    refused: Sequence[str] = (),
    labels: Any = None,
) -> tuple[Corpus, ...]:
    """Files as of :func:`open_corpus`, and what is in memory; texts in memory that stand together are one corpus.

    ``given`` is a text, a file, or a list of them; in memory a column of texts, a table with named columns (pandas,
    datasets, polars, a dict of lists), rows of such a table, chats, or token ids. A ``str`` is a file if there is one
    of this name, or if it is a word that ends like one. ``labels`` are the classes of the texts in memory, one each.

    UsageError for two corpora of one content, whose texts would count twice, for other than a label a text, or for
    columns where nothing is a table.
    """
    corpora = [open_corpus(rows, columns, refused) for rows in sources_of(given)]
    if columns != Columns() and not any(corpus.table for corpus in corpora):
        raise UsageError(
            "--text-column, --pair-column and --label-column (text_column=... and so on) are of a table (.csv, .tsv, "
            ".jsonl, .json), found none; leave them out."
        )
    for one, other in combinations(corpora, 2):
        if one.sha256 == other.sha256:
            raise UsageError(f"expected different corpora, found the same content twice: {one.path}, {other.path}.")
    if labels is not None:
        corpora = [_labelled(corpora, as_list(labels, "labels as a list, one for each text"))]
    return tuple(corpora)


def open_one(given: Any, columns: Columns, refused: Sequence[str] = (), labels: Any = None) -> Corpus:
    """The only corpus of :func:`open_corpora`; UsageError for none or several."""
    corpora = open_corpora(given, columns, refused, labels)
    if len(corpora) != 1:
        raise UsageError(f"expected a list of texts, or the path of one file of texts, found {as_found(given)}.")
    return corpora[0]


def sources_of(given: Any) -> Iterator[Rows]:
    """What :func:`open_corpora` opens: the files, and between them what is in memory."""
    columns = columns_of(given)
    if columns is not None:
        yield columns
        return
    if isinstance(given, str | Path):
        given = [given]
    elif isinstance(given, list | tuple) and not given:
        return
    items = [values_of(item) for item in as_list(given)]
    if is_chat(items) or all(map(is_whole, items)):  # a single one
        items = [items]
    of_column = values_of(given) is not given  # whose texts are no names of files
    for is_file, group in groupby(items, key=lambda item: not of_column and _is_file(item)):
        some = tuple(group)
        yield from map(Rows, map(Path, some)) if is_file else [Rows(IN_MEMORY, some)]


def _is_file(item: object) -> bool:
    """Whether a list's item is a corpus, also a missing file or one of a wrong suffix; CorpusError for a folder."""
    if not isinstance(item, str | Path):
        return False
    kind = source_kind(item)
    if kind == "folder":
        raise CorpusError(f"{item} is a folder; expected a corpus in it (.txt, .csv, .conllu), or a text.")
    return kind == "corpus"


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


def in_memory(given: Any) -> Corpus:
    """The corpus of a list of texts, chats or token ids, none of which is the name of a file."""
    return open_corpus(Rows(IN_MEMORY, tuple(values_of(item) for item in as_list(given))))


def _labelled(corpora: Sequence[Corpus], labels: Sequence[Any]) -> Corpus:
    """The only corpus, of texts in memory, with a label each."""
    files = [str(corpus.path) for corpus in corpora if corpus.rows.content is None]
    if files or len(corpora) != 1:
        found = files[0] if files else "none"
        raise UsageError(f"labels=[...] are of texts in memory, found {found}; of a file name the label_column.")
    [corpus] = corpora
    if corpus.table is not None and "label" in corpus.table.columns:
        raise UsageError(
            f"expected labels=[...] or a column of them, found both (column {corpus.table.columns['label']!r})."
        )
    n = len(corpus.rows.content or ())
    if len(labels) != n:
        raise UsageError(f"expected as many labels as texts, found {len(labels)} for {n}; give one for each, in order.")
    names = tuple(None if label is None else str(label) for label in labels)
    both = hashlib.sha256(f"{corpus.sha256} {names}".encode()).hexdigest()  # other labels are another corpus
    return replace(corpus, sha256=both, labels=names)


def unread_columns(tables: Iterable[Table | None]) -> list[str]:
    """A sentence for each table with columns that are not read."""
    return [
        f"{visible(table.rows.path.name)}: columns not read: {shorten(visible(', '.join(table.unread)), 200)}."
        for table in tables
        if table and table.unread
    ]


def read_texts(corpus: Corpus, limit: int | None = None) -> Iterator[Text]:
    """The texts of a corpus in order, of GAP those with exactly one right name, as a stream.

    ``limit`` is how many texts or rows are read; all are checked. CorpusError for a malformed line, no text at all, or
    a package that is not installed.
    """
    read, expected = _READERS[corpus.kind]
    text = None
    for text in read(corpus):
        if limit is not None and text.number >= limit:
            return
        yield replace(text, label=corpus.labels[text.number]) if corpus.labels else text
    if text is None:
        raise CorpusError(f"{corpus.path} is empty: expected at least {expected}, found none; give another file.")


def _sentences(corpus: Corpus) -> Iterator[Text]:
    for number, (place, line) in enumerate(filled_lines(corpus.path)):
        yield Text(line.strip(), place=place, number=number)


def _rows(corpus: Corpus) -> Iterator[Text]:
    assert corpus.table is not None
    return corpus.table.texts()


def _chats(corpus: Corpus) -> Iterator[Text]:
    for number, (place, row, id) in enumerate(chat_rows(corpus.rows)):
        try:
            yield Text("", place=place, number=number, id=id, chat=Chat(checked_messages(row, str(place))))
        except TextError as error:
            raise CorpusError(str(error)) from error


def _ids(corpus: Corpus) -> Iterator[Text]:
    for number, ids in enumerate(corpus.rows.content or ()):
        yield Text("", ids=tuple(ids), ids_given=True, place=Place(None, number + 1), number=number)


def _texts(corpus: Corpus) -> Iterator[Text]:
    return (replace(text, number=number) for number, text in enumerate(corpus.rows.content or ()))


class _TreeWord(NamedTuple):
    form: str
    head: str  # as written: checked when the whole sentence is read
    relation: str
    place: Place


_AS_WRITTEN = dict.fromkeys(("xpos", "feats", "head", "deps", "misc"), lambda columns, i: columns[i])


def _trees(corpus: Corpus) -> Iterator[Text]:
    if importlib.util.find_spec("conllu") is None:
        raise CorpusError(
            f"{corpus.path} needs the package conllu, which is not installed; type: pip install 'attnviz[profile]'"
        )
    number = 0
    words = list[_TreeWord]()
    id: str | None = None
    for place, line in lines(corpus.path):
        if named := _SENTENCE_ID.fullmatch(line):
            id = named[1]
        elif line.strip() and not line.startswith("#"):
            words += _words_of(line, place, len(words) + 1)
        elif words and not line.strip():
            yield _sentence(words, number, id)
            words, number, id = [], number + 1, None
    if words:
        yield _sentence(words, number, id)


def _words_of(line: str, place: Place, number: int) -> list[_TreeWord]:
    """The word of a line, which must have this number; none of a multiword token or an empty node."""
    import conllu

    columns = line.split("\t")
    if len(columns) != 10:
        raise broken(place, "10 columns with tabs between (CoNLL-U)", f"{len(columns)} in {as_found(line)}")
    # conllu would strip the line, and split it at two spaces too
    plain = "\t".join(" ".join(column.split()) or "_" for column in columns)
    try:
        token: Any = conllu.parse_token_and_metadata(plain, field_parsers=_AS_WRITTEN)[0]
    except (conllu.exceptions.ParseException, ValueError, IndexError):  # 5,000 digits; # after a space
        token = {"id": None}
    if isinstance(token["id"], tuple):
        return []
    form = columns[1].strip()
    if token["id"] != number:
        raise broken(place, f"the id {number}, and a blank line after each sentence", as_found(columns[0]))
    if not form:
        raise broken(place, "a word form in column 2", "none")
    if token["deprel"] == "_":
        raise broken(place, "a relation such as nsubj in column 8", as_found(columns[7]))
    return [_TreeWord(form, columns[6], token["deprel"], place)]


def _sentence(words: Sequence[_TreeWord], number: int, id: str | None) -> Text:
    spans, arcs, start = [], [], 0
    for dependent, word in enumerate(words):
        spans.append((start, start + len(word.form)))
        start += len(word.form) + 1
        if not _WHOLE_NUMBER.fullmatch(word.head) or int(word.head) > len(words):
            raise broken(word.place, f"a head from 0 (root) to {len(words)} (words) in column 7", as_found(word.head))
        head = int(word.head) - 1
        if head == dependent:
            raise broken(word.place, "another word as the head in column 7, or 0 for the root", "the word itself")
        if head >= 0 and is_scored(word.relation.split(":")[0]):
            arcs.append(Arc(dependent, head, word.relation))
    text = " ".join(word.form for word in words)
    return Text(text=text, spans=tuple(spans), arcs=tuple(arcs), place=words[0].place, number=number, id=id)


def _gap_examples(corpus: Corpus) -> Iterator[Text]:
    for place, cells in corpus.rows.read():
        spans = []
        for column in ("Pronoun", "A", "B"):  # where the pronoun or name of a column stands in the text
            mention, offset = cells[column], cells[f"{column}-offset"]
            if not _WHOLE_NUMBER.fullmatch(offset):
                raise broken(place, f"a whole number in {column}-offset", as_found(offset))
            start, end = int(offset), int(offset) + len(mention)
            if not mention:
                raise broken(place, f"a word in column {column}", "none")
            if cells["Text"][start:end] != mention:
                found = as_found(cells["Text"][start:end])
                raise broken(place, f"{column} {as_found(mention)} at character {start}", found)
            spans.append((start, end))
        right = [cells[column].upper() for column in ("A-coref", "B-coref")]
        for column, value in zip(("A-coref", "B-coref"), right, strict=True):
            if value not in {"TRUE", "FALSE"}:
                raise broken(place, f"TRUE or FALSE in {column}", as_found(cells[column]))
        if right.count("TRUE") == 1:
            yield Text(
                text=cells["Text"],
                spans=tuple(spans),
                place=place,
                number=place.line - 2,
                id=cells["ID"],
                answer=right.index("TRUE"),
            )


# By kind of corpus, its reader, and what it must contain.
_READERS = {
    "conllu": (_trees, "a sentence in CoNLL-U"),
    "txt": (_sentences, "a sentence"),
    "gap": (_gap_examples, "a row of GAP with exactly one right name"),
    "table": (_rows, "a row with a text"),
    "chats": (_chats, "a chat"),
    "ids": (_ids, "a text"),
    "texts": (_texts, "a text"),
}


class Parser:
    """A spaCy pipeline, with its ``name`` and version, and the ``vocabulary`` of its relations."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.name = "{lang}_{name} {version}".format(**pipeline.meta)
        self.vocabulary = Vocabulary.of(pipeline)

    def __call__(self, text: Text) -> Text:
        """The text with the spans of its words, and its relations without those of punctuation and the root."""
        words = parsed_words(self._pipeline, text.text)
        index = {i: i for i, word in enumerate(words) if not word.is_space}
        arcs = scored_arcs(((word.head, word.relation) for word in words), index)
        return replace(text, spans=tuple((word.start, word.end) for word in words), arcs=tuple(arcs))

    def with_subjects(self, text: Text) -> Text:
        """An example of GAP with whether each of its names is the subject of a clause."""
        parsed = self(replace(text, spans=()))

        def subject(name: tuple[int, int]) -> bool:
            inside = {i for i, (start, end) in enumerate(parsed.spans) if start < name[1] and end > name[0]}
            return any(
                arc.relation.partition(":")[0] == "nsubj" and arc.dependent in inside and arc.head not in inside
                for arc in parsed.arcs
            )

        return replace(text, subjects=(subject(text.spans[1]), subject(text.spans[2])))


def parse_texts(pipeline: Any, prompt: Prompt) -> Parse:
    """Parse a text, perhaps with its pair, and map the words to the tokens of the model by character overlap.

    A token that overlaps two words of the parser (a spaCy pipeline), such as "cannot", belongs to both. Words without
    a token (white space, or truncated) are left out, with their relations.
    """
    words, arcs, own_arcs = list[Word](), list[Arc](), list[Arc]()
    vocabulary = Vocabulary.of(pipeline)
    for segment, text in enumerate(prompt.texts):
        index = dict[int, int]()
        parsed = parsed_words(pipeline, text)
        positions = prompt.overlapping([(word.start, word.end) for word in parsed], segment)
        for i, word in enumerate(parsed):
            if positions[i] and not word.is_space:
                index[i] = len(words)
                words.append(Word(word.text, positions[i]))
        arcs += scored_arcs(((word.head, word.relation) for word in parsed), index)
        if vocabulary.mapped_from is not None:
            own_arcs += scored_arcs(((word.own_head, word.own_relation) for word in parsed), index)
    name = "{lang}_{name}".format(**pipeline.meta)
    return Parse(tuple(words), tuple(arcs), name, vocabulary, tuple(own_arcs))


def find_parser(corpora: Sequence[Corpus], name: str | None, syntax: bool = True) -> Parser | None:
    """The parser for plain sentences and GAP, by default an installed English pipeline; None if not needed.

    ParserError where the named pipeline cannot be used, UsageError where it is not needed.
    """
    no_sentences = all(corpus.kind in ("conllu", "chats") for corpus in corpora)
    refuse({"parser": name, "no_syntax": not syntax}, None, NOT_PARSED if no_sentences else "")
    if no_sentences or not syntax:
        return None
    pipeline = load_parser(name)
    return None if pipeline is None else Parser(pipeline)


def chat_of(given: Sequence[Message] | str | Path) -> Chat:
    """A chat from its messages, or from a file with one chat; TextError for anything else."""
    if not isinstance(given, str | Path):
        return Chat(checked_messages(given))
    path = Path(given).expanduser()
    chats = [checked_messages(row, str(place)) for place, row, _ in chat_rows(Rows(path))]
    if len(chats) != 1:
        raise TextError(f"{path} holds {len(chats)} chats; expected one; attnviz profile FILE measures all.")
    return Chat(chats[0], path)


def ready(text: Text, parse: Parser | None) -> Text | None:
    """The sentence, parsed if it has no tree; None for a tree with too few or too many words."""
    if text.spans:
        return text if SHORTEST <= len(text.spans) <= LONGEST else None
    return text if parse is None else parse(text)
