"""Reads tables: .csv, .tsv, .jsonl, .json, .parquet, folders of the library datasets, and in memory, row by row.

Which columns have the texts, their pairs, labels and ids is found by their names, or given.
"""

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.arguments import as_found, did_you_mean, is_whole, values_of
from attnviz.errors import CorpusError, UsageError
from attnviz.inputs.lines import Place, broken, cannot_read, filled_lines, lines
from attnviz.inputs.prompt import Text
from attnviz.models.libraries import first_line
from attnviz.options import CorpusOptions

# Suffixes of tables; a folder of the library datasets has none.
TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")

# names of columns that are found without an option, in lower case
_TEXT, _LABEL, _ID = ("text", "sentence", "prompt"), ("label",), ("id", "idx", "guid")
_CONTRAST = ("answer", "foil")
_MESSAGES = "messages"
_SAMPLED = 20  # rows in which a column of words is looked for
_MOST_LISTED = 10  # columns that a message names
_FORMAT = "expected a table of texts or of pairs"
IN_MEMORY = Path("texts in memory")  # in place of a path
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


@dataclass(frozen=True)
class Rows:
    """The rows of a file, a folder, or in memory."""

    path: Path
    content: tuple[Any, ...] | None = None  # in memory: texts, objects with columns, or chats, as .json has them
    header: bool = True  # whether the first line of a .tsv has the names

    def read(self, only: Sequence[str] = ()) -> Iterator[_Row]:
        """Rows by the names of their columns; ``only`` are those that are needed."""
        path, suffix = self.path, self.path.suffix.lower()
        if self.content is not None:
            items = enumerate(self.content, 1)
            yield from _objects(((Place(None, number, isinstance(item, dict)), item) for number, item in items), only)
        elif path.is_dir() or suffix == ".parquet":
            yield from _stored_rows(path, only)
        elif suffix in (".json", ".jsonl"):
            yield from _objects(_json_items(path), only)
        else:
            yield from self._cells(suffix == ".tsv")

    def _cells(self, is_tsv: bool) -> Iterator[_Row]:
        names = list[str]() if self.header else ["text", "label"]
        for place, cells in _cells_of_tsv(self.path) if is_tsv else _cells_of_csv(self.path):
            if not names:
                names = [cell.strip() for cell in cells]
                _check_names(place, names)
            elif len(cells) != len(names):
                between = "tabs between" if is_tsv else "commas between"
                raise broken(place, f"{len(names)} columns with {between}", str(len(cells)))
            else:
                yield place, dict(zip(names, cells, strict=True))

    @property
    def sha256(self) -> str:
        if self.content is not None:
            return hashlib.sha256(json.dumps(self.content, default=str).encode()).hexdigest()
        digest = hashlib.sha256()
        for path in table_files(self.path):
            with path.open("rb") as file:
                for part in iter(partial(file.read, 1 << 20), b""):
                    digest.update(part)
        return digest.hexdigest()

    def columns(self) -> list[str]:
        """The names of the columns of the first row, of objects those of all rows; CorpusError where there is none."""
        all_rows = self.content is not None or self.path.suffix.lower() in (".json", ".jsonl")
        rows = islice(self.read(), None if all_rows else 1)
        names = list(dict.fromkeys(name for _, row in rows for name in row))
        if not names:
            raise CorpusError(f"{self.path} is empty: {_FORMAT}, found no row; give another file.")
        return names


def columns_of(given: Any) -> Rows | None:
    """The rows of a table in memory: of pandas, polars, pyarrow or datasets, or lists by the names of their columns.

    None for anything else. UsageError for columns of unequal length.
    """
    names = given if isinstance(given, Mapping) else getattr(given, "column_names", getattr(given, "columns", None))
    if names is None or len(names) == 0:
        return None
    if "input_ids" in names:
        raise UsageError("expected texts, found what a tokenizer returned; give its input_ids, lists without padding.")
    for name in names:
        if isinstance(given[name], str):
            raise UsageError(f"expected the column {str(name)!r} as a list of texts, found {as_found(given[name])}.")
    columns = {str(name): list(values_of(given[name])) for name in names}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} in {name!r}" for name, length in lengths.items())
        raise UsageError(f"expected columns of one length, found {found}; give as many of each.")
    return Rows(IN_MEMORY, tuple(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)))


@dataclass(frozen=True)
class Table:
    """A table of texts, or of pairs of prompts, and which of its columns are read."""

    rows: Rows
    columns: dict[str, str]  # names by what they hold: text, pair, label, id, answer, foil; or clean and corrupt, too
    unread: tuple[str, ...]  # all other columns
    needs_label: bool = False  # whether a row without a label is an error, as where the column was asked for

    @property
    def without_labels(self) -> "Table":
        if "label" not in self.columns:
            return self
        columns = {name: column for name, column in self.columns.items() if name != "label"}
        return replace(self, columns=columns, unread=(*self.unread, self.columns["label"]), needs_label=False)

    def texts(self) -> Iterator[Text]:
        """The text of every row; CorpusError for one without a text, pair or wanted label names the column."""
        column = self.columns.get
        for number, (place, row) in enumerate(self.rows.read(tuple(self.columns.values()))):
            label = _word_in(place, row, column("label"))
            if label is None and self.needs_label:
                raise broken(place, f"a label in column {column('label')!r}", "none")
            answer, foil = (_token_in(place, row, column(name)) for name in _CONTRAST)
            yield Text(
                _text_in(place, row, self.columns["text"]),
                place=place,
                number=number,
                pair=_text_in(place, row, self.columns["pair"]) if "pair" in self.columns else None,
                id=_word_in(place, row, column("id")),
                label=label,
                contrast=None if answer is None or foil is None else (answer, foil),
            )

    def pairs(self) -> Iterator["PromptPair"]:
        """The pair of prompts of every row; CorpusError for one without a cell names the column."""
        column, labelled = self.columns.get, "label" in self.columns
        for place, row in self.rows.read(tuple(self.columns.values())):
            answer = _word_in(place, row, column("label")) if labelled else _token_in(place, row, column("answer"))
            foil = _token_in(place, row, column("foil"))
            for name, cell in ((column("answer") or column("label"), answer), (column("foil"), foil)):
                if name is not None and cell is None:
                    raise broken(place, f"one in column {name!r}", "none")
            clean, corrupt = (_text_in(place, row, self.columns[name]) for name in ("clean", "corrupt"))
            yield PromptPair(clean=clean, corrupt=corrupt, answer=answer, foil=foil, labelled=labelled, place=place)


def has_chats(rows: Rows, wanted: Columns) -> bool:
    """Whether the first row is a chat; not where a column of texts is named."""
    if wanted.text is not None or rows.path.suffix.lower() in (".csv", ".tsv"):  # which hold text alone
        return False
    first: Mapping[str, Any] = next((row for _, row in rows.read()), {})
    return isinstance(first.get(_MESSAGES), list)


def chat_rows(rows: Rows) -> Iterator[tuple[Place, Mapping[str, Any], str | None]]:
    """Rows that should have messages, each with its place, and its id if it has one."""
    for place, row in rows.read():
        yield place, row, _word_in(place, row, _known(list(row), _ID))


class PromptPair(NamedTuple):
    """Two prompts, and what may follow both: tokens, or classes where ``labelled``; ``place`` is its row in a table."""

    clean: str
    corrupt: str
    answer: str | int | None = None
    foil: str | int | None = None
    labelled: bool = False
    place: Place | None = None


def open_pairs(rows: Rows) -> Table:
    """A table with the columns ``clean`` and ``corrupt``, and perhaps ``answer`` or ``label``, and ``foil``.

    CorpusError where it is empty, or has no such columns, or both an answer and a label.
    """
    names, path = rows.columns(), rows.path
    columns = {name: _known(names, [name]) for name in ("clean", "corrupt", *_CONTRAST, *_LABEL)}
    if columns["clean"] is None or columns["corrupt"] is None:
        raise broken(path, "the columns clean and corrupt (and answer and foil, or label)", _listed(names))
    answer, label = columns["answer"], columns["label"]
    if answer is not None and label is not None:
        raise broken(path, "an answer or a label of each pair", f"the columns {answer!r} and {label!r}; leave out one")
    return _table(rows, names, columns)


def _table(rows: Rows, names: Sequence[str], columns: Mapping[str, str | None], needs_label: bool = False) -> Table:
    read = {name: column for name, column in columns.items() if column is not None}
    return Table(rows, read, tuple(name for name in names if name not in read.values()), needs_label)


def _text_in(place: Place, row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        found = "none" if value is None else "an empty or blank one" if isinstance(value, str) else as_found(value)
        of_list = place.path is None and not place.is_row
        raise broken(place, "a text" if of_list else f"a text in column {column!r}", found)
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


def open_table(rows: Rows, wanted: Columns) -> Table:
    """A table, with its columns found; CorpusError where it cannot be read, is empty, or has no such column."""
    path = rows.path
    if path.suffix.lower() == ".tsv" and wanted == Columns():  # a first line of other than two cells has names
        first = next((cells for _, cells in _cells_of_tsv(path)), [])
        known = {*_TEXT, *_LABEL, *_ID, *_CONTRAST}
        rows = replace(rows, header=len(first) != 2 or any(cell.strip().lower() in known for cell in first))
    names = rows.columns()
    text = _named(path, names, "text", wanted.text) or _known(names, _TEXT)
    if text is None:  # the only column with a value of several words
        sample = [row for _, row in islice(rows.read(), _SAMPLED)]
        others = [name for name in names if name not in (wanted.pair, wanted.label)]
        of_words = [name for name in others if any(_has_words(row.get(name)) for row in sample)]
        if len(of_words) != 1 or _has_words(of_words[0]):  # a name of several words may be a text
            raise CorpusError(
                f"{path}: expected a column {', '.join(_TEXT[:-1])} or {_TEXT[-1]}, or one of words alone, or "
                f"{_MESSAGES} of chats, found {_listed(names)}; name it with --text-column (text_column=...)."
            )
        text = of_words[0]
    pair = _named(path, names, "pair", wanted.pair)
    label = _named(path, names, "label", wanted.label) or _known(names, _LABEL)
    for (one, column), (other, same) in combinations((("text", text), ("pair", pair), ("label", wanted.label)), 2):
        if column is not None and column == same:
            raise CorpusError(
                f"{path}: expected a column for each {one} and another for each {other}, found {column!r} as both; "
                f"name them with --{one}-column ({one}_column=...) and --{other}-column."
            )
    columns = {"text": text, "pair": pair, "label": label, "id": _known(names, _ID)}
    contrast = {name: _known(names, [name]) for name in _CONTRAST}
    if None not in contrast.values():
        columns |= contrast
    return _table(rows, names, columns, needs_label=wanted.label is not None or not rows.header)


def _named(path: Path, names: Sequence[str], what: str, wanted: str | None) -> str | None:
    if wanted is not None and wanted not in names:
        near = did_you_mean(wanted, names)
        expected = f"a column {wanted!r} (--{what}-column, {what}_column=...)"
        raise CorpusError(f"{path}: expected {expected}, found {_listed(names)}.{near}")
    return wanted


def _known(names: Sequence[str], known: Sequence[str]) -> str | None:
    of_name = {name.lower(): name for name in reversed(names)}
    return next((of_name[name] for name in known if name in of_name), None)


def _has_words(value: object) -> bool:
    return isinstance(value, str) and sum(any(map(str.isalpha, word)) for word in value.split()) > 1


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"the columns {', '.join(map(as_found, names[:_MOST_LISTED]))}{more}" if names else "no column"


def _cells_of_tsv(path: Path) -> Iterator[tuple[Place, list[str]]]:
    """Cells of each line; quotes are plain characters."""
    return ((place, line.split("\t")) for place, line in filled_lines(path))


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
    def columns(cells: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        _check_names(place, [name for name, _ in cells])
        return dict(cells)

    try:
        return json.loads(text, object_pairs_hook=columns)
    except json.JSONDecodeError as error:
        at = place if error.lineno == 1 else place._replace(line=place.line + error.lineno - 1)
        raise broken(at, "JSON", f"{error.msg.lower()} at character {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise broken(place, "JSON", str(error)) from error


def _parsed_file(path: Path) -> Any:
    return _parsed(Place(path, 1), "\n".join(line for _, line in lines(path)))


def _check_names(place: Place | Path, names: Sequence[str]) -> None:
    """Raise CorpusError for columns of one name, of which only one would be read."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise broken(place, "columns with different names", f"{as_found(twice[0])} more than once")


def _json_items(path: Path) -> Iterator[tuple[Place, Any]]:
    """The entries of a JSON file, which is a list or an object with one list, or of JSON lines."""
    if path.suffix.lower() == ".jsonl":
        yield from ((place, _parsed(place, line)) for place, line in filled_lines(path))
        return
    content = _parsed_file(path)
    lists = [value for value in content.values() if isinstance(value, list)] if isinstance(content, dict) else []
    rows = [content] if is_chat(content) else lists[0] if len(lists) == 1 else content
    if not isinstance(rows, list):
        raise broken(path, "a list of texts or of objects", as_found(content))
    yield from ((Place(path, number, is_row=True), item) for number, item in enumerate(rows, 1))


def _objects(items: Iterable[tuple[Place, Any]], only: Sequence[str]) -> Iterator[_Row]:
    """Objects, texts or chats as rows."""
    for place, item in items:
        row = {"text": item} if isinstance(item, str) else item
        if isinstance(item, list) and is_chat(item):
            row = {_MESSAGES: item}
        if not isinstance(row, dict):
            raise broken(place, "an object with columns, a text, or the messages of a chat", as_found(item))
        for column in only:
            if column not in row:
                raise broken(place, f"a column {column!r}, which other rows have", "none")
        yield place, row


def is_chat(content: object) -> bool:
    """Whether it is one chat: messages, or an object that has them."""
    messages = content.get(_MESSAGES) if isinstance(content, dict) else content
    first = messages[0] if isinstance(messages, list) and messages else None
    return isinstance(first, dict) and "role" in first and "content" in first


def is_table_folder(path: Path) -> bool:
    """Whether it is a folder that the library datasets has saved, or with parquet files."""
    saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
    return path.is_dir() and (saved or any(path.glob("*.parquet")))


def table_files(path: Path) -> list[Path]:
    """The files of a table: itself, or the data files of a folder; CorpusError for one of several splits, or none."""
    if not path.is_dir():
        return [path]
    splits = sorted(state.parent.name for state in path.glob("*/state.json"))
    if (path / "dataset_dict.json").is_file() and splits:
        named = " or ".join(str(path / split) for split in splits)
        raise CorpusError(f"{path} has {len(splits)} splits: expected one of them, give {named}.")
    files = sorted(path.glob("*.parquet"))
    state = path / "state.json"
    if state.is_file():
        entries = _parsed_file(state).get("_data_files", [])
        files = [path / Path(str(entry["filename"])).name for entry in entries]
    if not files or not all(file.is_file() for file in files):
        raise CorpusError(f"{_FORMAT} in the folder {path}, found none of its data; save it again (save_to_disk).")
    return files


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
