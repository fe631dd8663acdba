"""Reads tables: .csv, .tsv, .jsonl, .json, .parquet, and folders of the library datasets, row by row.

Which columns have the texts, their pairs, labels and ids is found by their names, or given.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.arguments import as_found, did_you_mean, is_whole
from attnviz.errors import CorpusError
from attnviz.models.libraries import first_line
from attnviz.options import CorpusOptions
from attnviz.texts.lines import Place, broken, cannot_read, filled_lines, lines

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
"""Suffixes of tables; a folder of the library datasets has none."""

_TEXT, _LABEL, _ID = ("text", "sentence", "prompt"), ("label",), ("id", "idx", "guid")
_CONTRAST = _ANSWER, _FOIL = "answer", "foil"
_MESSAGES = "messages"
"""Names of columns that are found without an option, in lower case."""

_SAMPLED = 20  # rows in which a column of words is looked for

_MOST_LISTED = 10  # columns that a message names

_FORMAT = "expected a table of texts"

_Row = tuple[Place, Mapping[str, Any]]


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read, as given; None for those that are found by themselves."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None

    @classmethod
    def taken(cls, options: CorpusOptions, label: str | None = None) -> tuple["Columns", Any]:
        """The columns that these options name, and the others, which say how a model is opened."""
        opening: dict[str, Any] = {**options}
        return cls(opening.pop("text_column", None), opening.pop("pair_column", None), label), opening


class Cells(NamedTuple):
    """What is read of a row; None for what the table has no column for, and for an empty label or id."""

    place: Place
    text: str
    pair: str | None
    label: str | None
    id: str | None
    contrast: tuple[str | int, str | int] | None


@dataclass(frozen=True)
class Table:
    """A table, and the names of the columns that are read.

    Attributes:
        path: the file or folder.
        text, pair, label, id: names of columns; None without one.
        answer, foil: likewise, both or none.
        header: whether the first line of a ``.tsv`` has the names.
        needs_label: whether a row without a label is an error, as where the column was asked for.
        unread: the names of all other columns.
    """

    path: Path
    text: str
    pair: str | None
    label: str | None
    id: str | None
    answer: str | None
    foil: str | None
    header: bool
    needs_label: bool
    unread: tuple[str, ...] = ()

    @property
    def without_labels(self) -> "Table":
        """The same table, whose labels are not read."""
        if self.label is None:
            return self
        return replace(self, label=None, needs_label=False, unread=(*self.unread, self.label))

    @property
    def columns(self) -> dict[str, str]:
        """The names of the columns by what they hold."""
        names = {name: getattr(self, name) for name in ("text", "pair", "label", "id", *_CONTRAST)}
        return {name: column for name, column in names.items() if column is not None}

    def cells(self) -> Iterator[Cells]:
        """What is read of every row.

        Raises:
            CorpusError: a row that cannot be read, or that has no text, pair or wanted label; it names the column.
        """
        for place, row in _rows(self.path, self.header, tuple(self.columns.values())):
            pair = None if self.pair is None else _text_in(place, row, self.pair)
            label = _word_in(place, row, self.label)
            if label is None and self.needs_label:
                raise broken(place, f"a label in column {self.label!r}", "none")
            text, id = _text_in(place, row, self.text), _word_in(place, row, self.id)
            answer, foil = _token_in(place, row, self.answer), _token_in(place, row, self.foil)
            contrast = None if answer is None or foil is None else (answer, foil)
            yield Cells(place, text, pair, label, id, contrast)


def n_rows(path: Path) -> int:
    """How many rows a table has, without columns."""
    return sum(1 for _ in _rows(path))


def has_chats(path: Path, wanted: Columns) -> bool:
    """Whether the rows are chats, by the first; not where a column of texts is named."""
    if wanted.text is not None or path.suffix.lower() in (".csv", ".tsv"):  # which hold text alone
        return False
    first: Mapping[str, Any] = next((row for _, row in _rows(path)), {})
    return isinstance(first.get(_MESSAGES), list)


def chat_rows(path: Path) -> Iterator[tuple[Place, Mapping[str, Any], str | None]]:
    """Rows that should have messages, each with its place, and its id if it has one."""
    for place, row in _rows(path):
        yield place, row, _word_in(place, row, _known(list(row), _ID))


class PromptPair(NamedTuple):
    """Two prompts, and what may follow both: tokens, or classes where ``labelled``; ``place`` is its row in a table."""

    clean: str
    corrupt: str
    answer: str | int | None = None
    foil: str | int | None = None
    labelled: bool = False
    place: Place | None = None


@dataclass(frozen=True)
class PairTable:
    """A table of prompts in pairs, and the names of its columns; ``unread`` are all others."""

    path: Path
    clean: str
    corrupt: str
    answer: str | None
    foil: str | None
    label: str | None
    unread: tuple[str, ...]

    def pairs(self) -> Iterator[PromptPair]:
        """The pair of every row; CorpusError for a row without one of its cells names the column."""
        read = (self.clean, self.corrupt, self.answer, self.foil, self.label)
        for place, row in _rows(self.path, only=[column for column in read if column is not None]):
            followed = _token_in(place, row, self.answer) if self.label is None else _word_in(place, row, self.label)
            against = _token_in(place, row, self.foil)
            for column, cell in ((self.answer or self.label, followed), (self.foil, against)):
                if column is not None and cell is None:
                    raise broken(place, f"one in column {column!r}", "none")
            prompts = _text_in(place, row, self.clean), _text_in(place, row, self.corrupt)
            yield PromptPair(*prompts, followed, against, self.label is not None, place)


def open_pairs(path: Path) -> PairTable:
    """A table with the columns ``clean`` and ``corrupt``, and perhaps ``answer`` or ``label``, and ``foil``.

    Raises:
        CorpusError: it is empty, or has no such columns, or both an answer and a label.
    """
    names = _columns(path)
    if not names:
        raise CorpusError(f"{path} is empty: expected a pair of prompts, found no row; give another file.")
    clean, corrupt, answer, foil, label = (_known(names, [name]) for name in ("clean", "corrupt", *_CONTRAST, *_LABEL))
    if clean is None or corrupt is None:
        raise broken(path, "the columns clean and corrupt (and answer and foil, or label)", _listed(names))
    if answer is not None and label is not None:
        raise broken(path, "an answer or a label of each pair", f"the columns {answer!r} and {label!r}; leave out one")
    read = (clean, corrupt, answer, foil, label)
    return PairTable(path, *read, unread=tuple(name for name in names if name not in read))


def _text_in(place: Place, row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        found = "none" if value is None or isinstance(value, str) else as_found(value)
        raise broken(place, f"a text in column {column!r}", found)
    return _whole(place, column, value)


def _word_in(place: Place, row: Mapping[str, Any], column: str | None) -> str | None:
    """A label or an id; None for an empty one."""
    value = None if column is None else row.get(column)
    if column is None or value is None or value != value:  # noqa: PLR0124 - not a number: a missing one, in pandas
        return None
    if isinstance(value, list | dict):
        raise broken(place, f"a name or a number in column {column!r}", as_found(value))
    if isinstance(value, float) and value.is_integer():  # as pandas has whole numbers where one is missing
        value = int(value)
    return _whole(place, column, str(value).strip()) or None


def _token_in(place: Place, row: Mapping[str, Any], column: str | None) -> str | int | None:
    """An answer or foil, which may begin with a space, or be a whole number; None for an empty one."""
    value = None if column is None else row.get(column)
    if column is None or value is None or is_whole(value):
        return value
    if not isinstance(value, str):
        raise broken(place, f"a text or a whole number in column {column!r}", as_found(value))
    return _whole(place, column, value) or None


def _whole(place: Place, column: str, text: str) -> str:
    """The text; CorpusError for half of a character, which JSON can write."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise broken(place, f"Unicode in column {column!r}", f"half a character, {text[error.start]!r}") from error
    return text


def open_table(path: Path, wanted: Columns) -> Table:
    """A table, with its columns found.

    Raises:
        CorpusError: it cannot be read, is empty, or has no such column.
    """
    header = path.suffix.lower() != ".tsv" or _has_header(path, wanted)
    names = _columns(path, header)
    if not names:
        raise CorpusError(f"{path} is empty: {_FORMAT}, found no row; give another file.")
    text = _named(path, names, "text", wanted.text) or _known(names, _TEXT)
    if text is None:
        sample = [row for _, row in islice(_rows(path, header), _SAMPLED)]
        text = _column_of_words(path, names, sample, {wanted.pair, wanted.label})
    pair = _named(path, names, "pair", wanted.pair)
    label = _named(path, names, "label", wanted.label) or _known(names, _LABEL)
    named = [("text", text), ("pair", wanted.pair), ("label", wanted.label)]
    for (one, column), (other, same) in combinations(named, 2):
        if column is not None and column == same:
            raise CorpusError(
                f"{path}: expected a column for each {one} and another for each {other}, found {column!r} as both; "
                f"name them with --{one}-column ({one}_column=...) and --{other}-column."
            )
    answer, foil = _known(names, [_ANSWER]), _known(names, [_FOIL])
    if answer is None or foil is None:
        answer = foil = None
    needs_label = wanted.label is not None or not header
    table = Table(path, text, pair, label, _known(names, _ID), answer, foil, header, needs_label)
    return replace(table, unread=tuple(name for name in names if name not in table.columns.values()))


def _columns(path: Path, header: bool = True) -> list[str]:
    """Names of the columns; in JSON those of any row."""
    most = None if path.suffix.lower() in (".json", ".jsonl") else 1
    rows = islice(_rows(path, header), most)
    return list(dict.fromkeys(name for _, row in rows for name in row))


def _named(path: Path, names: Sequence[str], what: str, wanted: str | None) -> str | None:
    if wanted is not None and wanted not in names:
        near = did_you_mean(wanted, names)
        expected = f"a column {wanted!r} (--{what}-column, {what}_column=...)"
        raise CorpusError(f"{path}: expected {expected}, found {_listed(names)}.{near}")
    return wanted


def _known(names: Sequence[str], known: Sequence[str]) -> str | None:
    of_name = {name.lower(): name for name in reversed(names)}
    return next((of_name[name] for name in known if name in of_name), None)


def _column_of_words(
    path: Path, names: Sequence[str], sample: Sequence[Mapping[str, Any]], taken: set[str | None]
) -> str:
    """The only column with a value of several words."""
    found = [name for name in names if name not in taken and any(_has_words(row.get(name)) for row in sample)]
    if len(found) != 1 or _has_words(found[0]):  # a name of several words may be a text
        expected = f"a column {', '.join(_TEXT[:-1])} or {_TEXT[-1]}, or one of words alone, or {_MESSAGES} of chats"
        raise CorpusError(
            f"{path}: expected {expected}, found {_listed(names)}; name it with --text-column (text_column=...)."
        )
    return found[0]


def _has_words(value: object) -> bool:
    return isinstance(value, str) and sum(any(map(str.isalpha, word)) for word in value.split()) > 1


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"the columns {', '.join(map(as_found, names[:_MOST_LISTED]))}{more}" if names else "no column"


def _rows(path: Path, header: bool = True, only: Sequence[str] = ()) -> Iterator[_Row]:
    """Rows by the names of their columns; ``only`` are those that are needed."""
    suffix = path.suffix.lower()
    if path.is_dir() or suffix == ".parquet":
        yield from _stored_rows(path, only)
    elif suffix == ".jsonl":
        for place, line in filled_lines(path):
            yield place, _object(place, _parsed(place, line), only)
    elif suffix == ".json":
        for number, item in enumerate(_list_of(path), 1):
            place = Place(path, number, is_row=True)
            yield place, _object(place, item, only)
    else:
        yield from _delimited_rows(path, header)


def _delimited_rows(path: Path, header: bool) -> Iterator[_Row]:
    names = list[str]() if header else ["text", "label"]
    for place, cells in _cells_of_tsv(path) if path.suffix.lower() == ".tsv" else _cells_of_csv(path):
        if not names:
            names = [cell.strip() for cell in cells]
            _check_names(place, names)
        elif len(cells) != len(names):
            between = "tabs between" if path.suffix.lower() == ".tsv" else "commas between"
            raise broken(place, f"{len(names)} columns with {between}", str(len(cells)))
        else:
            yield place, dict(zip(names, cells, strict=True))


def _cells_of_tsv(path: Path) -> Iterator[tuple[Place, list[str]]]:
    """Cells of each line; quotes are plain characters."""
    return ((place, line.split("\t")) for place, line in filled_lines(path))


def _has_header(path: Path, wanted: Columns) -> bool:
    """Whether the first line of a .tsv has names: any that is known, or other than two cells."""
    first = next((cells for _, cells in _cells_of_tsv(path)), [])
    known = any(cell.strip().lower() in (*_TEXT, *_LABEL, *_ID, *_CONTRAST) for cell in first)
    return known or len(first) != 2 or wanted != Columns()


def _cells_of_csv(path: Path) -> Iterator[tuple[Place, list[str]]]:
    """Cells of each row, which stands at its first line; the separator is that of the first line."""
    first = next((line for _, line in filled_lines(path)), "")
    reader = csv.reader((f"{line}\n" for _, line in lines(path)), strict=True, delimiter=max(",;\t", key=first.count))
    while True:
        place = Place(path, reader.line_num + 1)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if "field limit" in str(error):
                most = f"cells of at most {csv.field_size_limit():,} characters in a table of this kind"
                raise broken(place, most, "a longer one; give such texts as .jsonl") from error
            raise broken(place, "a row of CSV, a text with commas or quotes in quotes", str(error)) from error
        if cells is None:
            return
        if any(map(str.strip, cells)):
            yield place, cells


def _parsed(place: Place, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=partial(_columns_of, place))
    except json.JSONDecodeError as error:
        at = place if error.lineno == 1 else place._replace(line=place.line + error.lineno - 1)
        raise broken(at, "JSON", f"{error.msg.lower()} at character {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise broken(place, "JSON", str(error)) from error


def _columns_of(place: Place, cells: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, whose names differ."""
    _check_names(place, [name for name, _ in cells])
    return dict(cells)


def _check_names(place: Place | Path, names: Sequence[str]) -> None:
    """Raise CorpusError for columns of one name, of which only one would be read."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise broken(place, "columns with different names", f"{as_found(twice[0])} more than once")


def _list_of(path: Path) -> list[Any]:
    """The rows of a JSON file: a list, or the only list of an object."""
    content = _parsed(Place(path, 1), "\n".join(line for _, line in lines(path)))
    inside = [value for value in content.values() if isinstance(value, list)] if isinstance(content, dict) else []
    if _is_chat(content):
        return [content]
    rows = inside[0] if len(inside) == 1 else content
    if not isinstance(rows, list):
        raise broken(path, "a list of texts or of objects", as_found(content))
    return rows


def _is_chat(content: object) -> bool:
    """Whether it is one chat: messages, or an object that has them."""
    messages = content.get(_MESSAGES) if isinstance(content, dict) else content
    first = messages[0] if isinstance(messages, list) and messages else None
    return isinstance(first, dict) and "role" in first and "content" in first


def _object(place: Place, item: object, only: Sequence[str]) -> Mapping[str, Any]:
    row = {"text": item} if isinstance(item, str) else item
    if _is_chat(item) and not isinstance(item, dict):
        row = {_MESSAGES: item}
    if not isinstance(row, dict):
        raise broken(place, "an object with columns, a text, or the messages of a chat", as_found(item))
    for column in only:
        if column not in row:
            raise broken(place, f"a column {column!r}, which other rows have", "none")
    return row


def is_table_folder(path: Path) -> bool:
    """Whether it is a folder that the library datasets has saved, or with parquet files."""
    saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
    return path.is_dir() and (saved or any(path.glob("*.parquet")))


def table_files(path: Path) -> list[Path]:
    """The files of a table: itself, or the data files of a folder.

    Raises:
        CorpusError: a folder of several splits, or without data.
    """
    if not path.is_dir():
        return [path]
    splits = sorted(each.parent.name for each in path.glob("*/state.json"))
    if (path / "dataset_dict.json").is_file() and splits:
        named = " or ".join(str(path / split) for split in splits)
        raise CorpusError(f"{path} has {len(splits)} splits: expected one of them, give {named}.")
    found = sorted(path.glob("*.parquet"))
    state = path / "state.json"
    if state.is_file():
        named_files = _parsed(Place(state, 1), "\n".join(line for _, line in lines(state))).get("_data_files", [])
        found = [path / Path(str(each["filename"])).name for each in named_files]
    if not found or not all(each.is_file() for each in found):
        raise CorpusError(f"{_FORMAT} in the folder {path}, found none of its data; save it again (save_to_disk).")
    return found


def _stored_rows(path: Path, only: Sequence[str]) -> Iterator[_Row]:
    number = 0
    for file in table_files(path):
        for batch in _batches(file, only):
            try:
                rows = batch.to_pylist()
            except (ValueError, OverflowError) as error:  # bytes that are not UTF-8, or a date that Python has not
                last = number + batch.num_rows
                raise broken(file, f"values that Python can read in rows {number + 1} to {last}", str(error)) from error
            for row in rows:
                number += 1
                yield Place(path, number, is_row=True), row


def _batches(file: Path, only: Sequence[str]) -> Iterator[Any]:
    """Record batches of an Arrow stream or a parquet file."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise CorpusError(
            f"{file} needs the package pyarrow, which is not installed; type: pip install 'attnviz[datasets]'"
        ) from error
    try:
        if file.suffix.lower() == ".parquet":
            with parquet.ParquetFile(file) as table:
                _check_names(file, table.schema_arrow.names)
                yield from table.iter_batches(columns=list(only) or None)
            return
        with pyarrow.memory_map(str(file)) as source, pyarrow.ipc.open_stream(source) as stream:
            _check_names(file, stream.schema.names)
            for batch in stream:
                yield batch.select(only) if only else batch
    except pyarrow.ArrowException as error:
        raise broken(file, "Arrow or parquet data", first_line(error)) from error
    except OSError as error:
        if error.errno is None:  # of pyarrow itself
            raise broken(file, "Arrow or parquet data", f"what is damaged: {first_line(error)}") from error
        raise cannot_read(file, error) from error
