"""Reads corpora as streams: treebanks (CoNLL-U), sentences one a line, and GAP's ambiguous pronouns.

A malformed line is an error that names file and line, raised when it is read. Texts without a tree get one of a spaCy
pipeline.
"""

import codecs
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.errors import CorpusError, TextError
from attnviz.language.parsers import Vocabulary, load_parser, parsed_words
from attnviz.language.syntax import LEFT_OUT, Arc, is_scored
from attnviz.models.chats import Message, RenderedChat, messages_of, rendered_chat

SHORTEST, LONGEST = 3, 60
"""Fewest and most words of a treebank's sentence that is measured (contract)."""

_KINDS = {"conllu": ".conllu (a treebank)", "txt": ".txt (one sentence a line)"}
_KINDS |= {"gap": ".tsv (GAP, or texts with labels)", "chats": ".jsonl (a chat a line)"}
"""By kind of corpus, the suffix of its files and what they hold."""

OF_TEXTS = ("conllu", "txt", "gap")
"""The kinds of corpora that hold texts; ``chats`` have to be rendered first."""

_GAP_COLUMNS = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL".split()
_TEXT_COLUMNS, _LABEL_COLUMN = ("text", "sentence"), "label"
_CONTRAST_COLUMNS = ("answer", "foil")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")
_SHOWN_CHARACTERS = 60

Span = tuple[int, int]
"""First and past-the-last character."""


class Place(NamedTuple):
    """A line of a file, counted from 1, for messages; prints as ``path:line``."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


class DecoderTarget(NamedTuple):
    """What the decoder of an encoder-decoder predicts: a text, its vocabulary entries, and whether its end was cut."""

    text: str
    ids: tuple[int, ...]
    cut: bool


@dataclass(frozen=True)
class Text:
    """A text of a corpus, with the spans that attention is measured between.

    Attributes:
        text: what the model reads: a line, a passage, or a treebank's word forms with single spaces between.
        spans: of the syntactic words of a tree, or of GAP's pronoun and its names A and B.
        arcs: dependency relations between the spans, without punctuation and root.
        place, number: its line, in a treebank that of its first word, and its index in the corpus.
        answer, subjects: in GAP, which name the pronoun means, and whether each is a subject; None without a parser.
        label: of a labelled text, its class: a name or a number.
        contrast: an answer and a foil, tokens or classes, whose logits are compared.
        target: for an encoder-decoder, what its decoder predicts.
        ids: of random tokens, which have no text.
        messages: of a chat, which has no text before it is rendered.
        chat: the rendered chat, of which ``text`` is the text.
    """

    text: str
    spans: tuple[Span, ...] = ()
    arcs: tuple[Arc, ...] = ()
    place: Place | None = None
    number: int = 0
    answer: int | None = None
    subjects: tuple[bool, bool] | None = None
    label: str | None = None
    contrast: tuple[str | int, str | int] | None = None
    target: DecoderTarget | None = None
    ids: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()
    chat: RenderedChat | None = None


@dataclass(frozen=True)
class Corpus:
    """A file to read, with its hexadecimal ``sha256``; ``size`` is its approximate number of texts, for progress.

    ``kind`` is ``conllu``, ``txt``, ``gap`` or ``chats``; ``labelled`` by :func:`as_labelled`.
    """

    path: Path
    kind: str
    sha256: str
    size: int


class _Word(NamedTuple):
    """A syntactic word; its head is the column's text, checked when the whole sentence is read."""

    form: str
    head: str
    relation: str
    place: Place


def open_corpus(path: Path, kinds: Sequence[str] = OF_TEXTS) -> Corpus:
    """A corpus from its file: its kind by the suffix, one of ``kinds``, its hash and size.

    Raises:
        CorpusError: no such file, a folder, another suffix, or a file that cannot be read.
    """
    *others, last = (_KINDS[kind] for kind in kinds)
    suffixes = f"{', '.join(others)} or {last}" if others else last
    try:
        if not path.is_file():
            found = "a folder" if path.is_dir() else "something else" if path.exists() else "nothing"
            raise CorpusError(f"expected a corpus at {path}, found {found}; give a file that ends in {suffixes}.")
        kind = next((kind for kind in kinds if _KINDS[kind].startswith(f"{path.suffix.lower()} ")), "")
        if not kind:
            raise CorpusError(f"expected a file that ends in {suffixes}, found {path}; give, or rename, such a file.")
        digest, size = hashlib.sha256(), 0
        ends = (b"\n\n", b"\n\r\n") if kind == "conllu" else (b"\n",)
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += sum(block.count(end) for end in ends)
        return Corpus(path, kind, digest.hexdigest(), max(1, size - (kind == "gap")))
    except OSError as error:
        raise _cannot_read(path, error) from error


def as_labelled(corpus: Corpus) -> Corpus:
    """A ``.tsv`` as texts with labels, or with an answer and a foil each, unless it begins with GAP's header.

    A header names the columns ``text`` (or ``sentence``) and ``label``, in any order, beside others. Without the word
    ``label`` in the first line there is no header, and the two columns are text and label.
    """
    first = next((line for _, line in _filled_lines(corpus)), "")
    if set(_CONTRAST_COLUMNS) <= {name.strip().lower() for name in first.split("\t")}:
        return replace(corpus, kind="contrasted")
    return corpus if first.split("\t") == _GAP_COLUMNS else replace(corpus, kind="labelled")


def read_texts(corpus: Corpus, limit: int | None = None) -> Iterator[Text]:
    """The sentences of a treebank or text file, or GAP's rows with exactly one right name, in order, as a stream.

    Rows of GAP that are left out are checked, too. Quotes are plain characters. ``limit`` is the number of sentences or
    rows that are read; None for all.

    Raises:
        CorpusError: a malformed line, no text at all, or a treebank without the package conllu.
    """
    read, expected = _READERS[corpus.kind]
    text = None
    for text in read(corpus):
        if limit is not None and text.number >= limit:
            return
        yield text
    if text is None:
        raise CorpusError(f"{corpus.path} is empty: expected at least {expected}, found none; give another file.")


def _sentences(corpus: Corpus) -> Iterator[Text]:
    for number, (place, line) in enumerate(_filled_lines(corpus)):
        yield Text(line.strip(), place=place, number=number)


def _chats(corpus: Corpus) -> Iterator[Text]:
    for number, (place, line) in enumerate(_filled_lines(corpus)):
        try:
            yield Text("", place=place, number=number, messages=messages_of(str(place), line))
        except TextError as error:
            raise CorpusError(str(error)) from error


def _trees(corpus: Corpus) -> Iterator[Text]:
    read, number, words = _conllu_reader(corpus), 0, list[_Word]()
    for place, line in _lines(corpus):
        if line.strip() and not line.startswith("#"):
            word = _word(line, place, len(words) + 1, read)
            words += [word] if word else []
        elif words and not line.strip():
            yield _sentence(words, number)
            words, number = [], number + 1
    if words:
        yield _sentence(words, number)


def _conllu_reader(corpus: Corpus) -> Callable[[str], Any]:
    """A function from a line to its columns by name, all text but the id (None where there is none)."""
    try:
        import conllu
    except ImportError as error:
        raise CorpusError(
            f"{corpus.path} needs the package conllu, which is not installed; type: pip install 'attnviz[profile]'"
        ) from error
    parsers = dict.fromkeys(("xpos", "feats", "head", "deps", "misc"), lambda columns, i: columns[i])

    def read(line: str) -> Any:
        try:
            return conllu.parse_token_and_metadata(line, field_parsers=parsers)[0]
        except (conllu.exceptions.ParseException, ValueError, IndexError):  # 5,000 digits; # after a space
            return {"id": None}

    return read


def _word(line: str, place: Place, number: int, read: Callable[[str], Any]) -> _Word | None:
    """The word of a line, which must have this number; None for a multiword token or an empty node."""
    columns = line.split("\t")
    if len(columns) != 10:
        raise _broken(place, "10 columns with tabs between (CoNLL-U)", f"{len(columns)} in {_shown(line)}")
    # conllu would strip the line, and split it at two spaces too
    token = read("\t".join(" ".join(column.split()) or "_" for column in columns))
    if isinstance(token["id"], tuple):
        return None
    form = columns[1].strip()
    if token["id"] != number:
        raise _broken(place, f"the id {number}, and a blank line after each sentence", _shown(columns[0]))
    if not form:
        raise _broken(place, "a word form in column 2", "none")
    if token["deprel"] == "_":
        raise _broken(place, "a relation such as nsubj in column 8", _shown(columns[7]))
    return _Word(form, columns[6], token["deprel"], place)


def _sentence(words: Sequence[_Word], number: int) -> Text:
    spans, arcs, start = [], [], 0
    for dependent, word in enumerate(words):
        spans.append((start, start + len(word.form)))
        start += len(word.form) + 1
        if not _WHOLE_NUMBER.fullmatch(word.head) or int(word.head) > len(words):
            raise _broken(word.place, f"a head from 0 (root) to {len(words)} (words) in column 7", _shown(word.head))
        head = int(word.head) - 1
        if head == dependent:
            raise _broken(word.place, "another word as the head in column 7, or 0 for the root", "the word itself")
        if head >= 0 and word.relation.split(":")[0].lower() not in LEFT_OUT:
            arcs.append(Arc(dependent, head, word.relation))
    return Text(" ".join(word.form for word in words), tuple(spans), tuple(arcs), words[0].place, number)


def _contrasted(corpus: Corpus) -> Iterator[Text]:
    """Texts with an answer and a foil each, which may begin with a space."""
    lines = _filled_lines(corpus)
    names = [name.strip().lower() for name in next(lines)[1].split("\t")]
    text = next((names.index(name) for name in _TEXT_COLUMNS if name in names), None)
    for number, (place, line) in enumerate(lines):
        row = line.split("\t")
        if text is None or len(row) != len(names):
            raise _broken(place, f"the columns text, answer and foil with tabs between ({len(names)})", str(len(row)))
        answer, foil = (row[names.index(name)] for name in _CONTRAST_COLUMNS)
        if not row[text].strip() or not answer or not foil:
            raise _broken(place, "a text, an answer and a foil", _shown(line))
        yield Text(row[text].strip(), place=place, number=number, contrast=(answer, foil))


def _labelled(corpus: Corpus) -> Iterator[Text]:
    number, width, text, label = -1, 0, 0, 0
    for place, line in _filled_lines(corpus):
        row = [cell.strip() for cell in line.split("\t")]
        if not width:
            width, text, label = _label_columns(place, row)
            number -= row[label].lower() == _LABEL_COLUMN
        if (number := number + 1) < 0:  # the header
            continue
        if len(row) != width:
            raise _broken(place, f"{width} columns with tabs between", str(len(row)))
        if not row[text] or not row[label]:
            raise _broken(place, "a text and its label", _shown("\t".join(row)))
        yield Text(row[text], place=place, number=number, label=row[label])


def _label_columns(place: Place, first: Sequence[str]) -> tuple[int, int, int]:
    """The number of columns, and which have text and label, by the first line."""
    names = [cell.lower() for cell in first]
    texts = [names.index(name) for name in _TEXT_COLUMNS if name in names]
    if (_LABEL_COLUMN in names) != bool(texts) or (not texts and len(first) != 2):
        expected = "a header with the columns text and label, or two columns (text, label) without a header"
        raise _broken(place, expected, _shown("\t".join(first)))
    return (len(first), texts[0], names.index(_LABEL_COLUMN)) if texts else (2, 0, 1)


def _rows(corpus: Corpus) -> Iterator[Text]:
    for i, (place, line) in enumerate(_filled_lines(corpus)):
        row = line.split("\t")
        if i > 0 and (example := _example(row, place)):
            yield example
        elif i == 0 and row != _GAP_COLUMNS:
            expected = f"GAP's header {' '.join(_GAP_COLUMNS)} with tabs between"
            raise _broken(place, expected, _shown(" ".join(row)))


def _example(row: Sequence[str], place: Place) -> Text | None:
    """The example of a row; None where none or both of the names are right."""
    if len(row) != len(_GAP_COLUMNS):
        raise _broken(place, f"{len(_GAP_COLUMNS)} columns with tabs between", str(len(row)))
    fields = dict(zip(_GAP_COLUMNS, row, strict=True))
    spans = tuple(_mention(fields, column, place) for column in ("Pronoun", "A", "B"))
    a, b = (_truth(fields, column, place) for column in ("A-coref", "B-coref"))
    return Text(fields["Text"], spans, (), place, place.line - 2, int(b)) if a != b else None


def _mention(fields: dict[str, str], column: str, place: Place) -> Span:
    """Where the pronoun or name of a column stands in the text."""
    mention, offset, text = fields[column], fields[f"{column}-offset"], fields["Text"]
    if not _WHOLE_NUMBER.fullmatch(offset):
        raise _broken(place, f"a whole number in {column}-offset", _shown(offset))
    start, end = int(offset), int(offset) + len(mention)
    if not mention:
        raise _broken(place, f"a word in column {column}", "none")
    if text[start:end] != mention:
        raise _broken(place, f"{column} {_shown(mention)} at character {start}", _shown(text[start:end]))
    return start, end


def _truth(fields: dict[str, str], column: str, place: Place) -> bool:
    value = fields[column].upper()
    if value not in {"TRUE", "FALSE"}:
        raise _broken(place, f"TRUE or FALSE in {column}", _shown(fields[column]))
    return value == "TRUE"


def _lines(corpus: Corpus) -> Iterator[tuple[Place, str]]:
    """Every line with its place, without its line end and a byte order mark."""
    try:
        with corpus.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                place = Place(corpus.path, number)
                data = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                yield place, _decoded(data, place).removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise _cannot_read(corpus.path, error) from error


def _filled_lines(corpus: Corpus) -> Iterator[tuple[Place, str]]:
    return ((place, line) for place, line in _lines(corpus) if line.strip())


def _decoded(data: bytes, place: Place) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        character = len(data[: error.start].decode("utf-8")) + 1
        found = f"byte 0x{data[error.start]:02x} as character {character} of the line"
        raise _broken(place, "text encoded as UTF-8", found) from error


def _broken(place: Place, expected: str, found: str) -> CorpusError:
    return CorpusError(f"{place}: expected {expected}, found {found}.")


def _cannot_read(path: Path, error: OSError) -> CorpusError:
    found = error.strerror or type(error).__name__
    return CorpusError(f"expected a file that can be read at {path}, found: {found}; check its name and permissions.")


def _shown(text: str) -> str:
    """The text in quotation marks, on one line, shortened."""
    return repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}…"


_READERS = {
    "conllu": (_trees, "a sentence in CoNLL-U"),
    "txt": (_sentences, "a sentence"),
    "gap": (_rows, "a row of GAP with exactly one right name"),
    "chats": (_chats, "a chat"),
    "labelled": (_labelled, "a text with its label"),
    "contrasted": (_contrasted, "a text with its answer and foil"),
}
"""By kind of corpus, its reader, and what it must contain."""


class Parser:
    """A spaCy pipeline, with its ``name`` and version, and the ``vocabulary`` of its relations."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.name = "{lang}_{name} {version}".format(**pipeline.meta)
        self.vocabulary = Vocabulary.of(pipeline)

    def __call__(self, text: Text) -> Text:
        """The text with the spans of its words, and its relations without those of punctuation and the root."""
        words = parsed_words(self._pipeline, text.text)
        scored = ((i, word) for i, word in enumerate(words) if is_scored(word.relation) and not word.is_space)
        arcs = tuple(Arc(i, word.head, word.relation) for i, word in scored)
        return replace(text, spans=tuple((word.start, word.end) for word in words), arcs=arcs)

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


def rendered(text: Text, tokenizer: Any) -> Text:
    """A chat with the text that the tokenizer's template makes of its messages; CorpusError where it refuses them."""
    try:
        chat = rendered_chat(tokenizer, text.messages)
    except TextError as error:
        raise CorpusError(f"{text.place}: {error}") from error
    return replace(text, text=chat.text, chat=chat)


def ready(text: Text, parse: Parser | None) -> Text | None:
    """The sentence, parsed if it has no tree; None for a tree with too few or too many words."""
    if text.spans:
        return text if SHORTEST <= len(text.spans) <= LONGEST else None
    return text if parse is None else parse(text)
