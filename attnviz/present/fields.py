"""Fields: the facts of a row, each stated once. Tables, JSON and CSV are renderings of the same list of fields."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

from attnviz.models.head_ids import LayerId
from attnviz.present.documents import Entry, csv_text

Row = TypeVar("Row")
Path = Sequence[str | int | Callable[[Any], object]]  # keys, or functions, one after the other

ENDS: Mapping[str, Path] = {"low": (0,), "high": (1,)}  # columns of the ends of an interval


@dataclass(frozen=True)
class Field(Generic[Row]):
    """A fact of a row."""

    title: str = ""  # of its column in a table
    # from a row to the plain value that JSON has. Defaults to ``row.<name>``.
    value: Callable[[Row], object] | None = None
    unit: str = ""  # of the values, below the title in brackets
    name: str = ""  # its key in the entry of a row in JSON; '' for what tables alone have
    # CSV column → path into the JSON value; default the value itself, by ``name``
    csv: Mapping[str, Path] | None = None
    of_stacks: bool = False  # whether it is of encoder-decoders alone; such columns stand last in the CSV file
    if_known: bool = False  # whether it is left out where its value is None
    # how a table writes the value; default :func:`attnviz.present.tables.cell`.
    write: Callable[[Any], object] = lambda value: value
    detail: bool = False  # whether a table that is too wide leaves it out before others
    meaning: str = ""  # what it is, for the caption of a table of a paper

    @property
    def header(self) -> str:
        return f"{self.title}\n({self.unit})" if self.unit else self.title

    def value_for(self, row: Row) -> Any:
        """The value of a row."""
        return getattr(row, self.name) if self.value is None else self.value(row)


def plain(*names: str) -> tuple[Field[Any], ...]:
    """Fields without a title, which no table lists by itself."""
    return tuple(Field(name=name) for name in names)


def by_name(*names: str) -> tuple[Field[Any], ...]:
    """Fields of rows that are dictionaries."""
    return tuple(Field(value=itemgetter(name), name=name) for name in names)


ID = "layer and head, counted from 0"
# which head a row is of; within an encoder-decoder its layer is counted within the kind of attention
HEAD: tuple[Field[Any], ...] = (
    Field("Head", lambda row: str(row.id), name="id", meaning=ID),
    Field(value=lambda row: getattr(row.id.layer, "number", row.id.layer), name="layer"),
    Field(value=lambda row: row.id.layer.stack.name, name="stack", of_stacks=True),
    Field(value=lambda row: row.id.head, name="head"),
)


def entry(fields: Iterable[Field[Any]], row: Any) -> Entry:
    """The row as an entry of the document."""
    values = {}
    for field in fields:
        if field.name and (not field.of_stacks or isinstance(row.id.layer, LayerId)):
            value = field.value_for(row)
            if value is not None or not field.if_known:
                values[field.name] = list(value) if isinstance(value, tuple) else value
    return values


def values_of(record: Any, *names: str) -> Entry:
    """Some attributes of a record as JSON has them."""
    return {name: plain_value(getattr(record, name)) for name in names}


def plain_value(value: Any) -> Any:
    """A record as a dictionary, a tuple as a list, and so what is in them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain_value(each) for name, each in asdict(value).items()}
    return list(map(plain_value, value)) if isinstance(value, tuple) else value


def pick(fields: Iterable[Field[Row]], *names: str) -> list[Field[Row]]:
    """The fields of these names, in this order."""
    of_name = {field.name: field for field in fields}
    return [of_name[name] for name in names]


@dataclass(frozen=True)
class NamedTable(Generic[Row]):
    """The rows of a result, of which JSON entries, CSV file, frame(), table of a paper and terminal are made."""

    name: str  # key of the document with an entry a row; '' where the document has these rows in another shape
    fields: Sequence[Field[Row]]  # of the rows, in the order of the CSV file
    rows: Sequence[Row]  # those of the selected heads

    def entries(self) -> list[Entry]:
        """The rows as entries of the document."""
        return [entry(self.fields, row) for row in self.rows]

    def csv_rows(self) -> tuple[list[str], list[Entry]]:
        """Columns and rows of the CSV file, with the values of the entries; columns that no entry has are left out."""
        entries = self.entries()
        known = {name for row_entry in entries for name in row_entry}
        known |= {field.name for field in self.fields if field.name and not (entries or field.of_stacks)}
        columns = {
            column: (field.name, *keys)
            for field in sorted(self.fields, key=lambda field: field.of_stacks)
            if field.name in known
            for column, keys in ({field.name: ()} if field.csv is None else field.csv).items()
        }
        rows = []
        for row_entry in entries:
            row = dict.fromkeys(columns)
            for column, keys in columns.items():
                value: Any = row_entry
                for key in keys:
                    if value is not None:
                        value = key(value) if callable(key) else value[key]
                row[column] = value
            rows.append(row)
        return list(columns), rows

    def meanings(self) -> dict[str, str]:
        """What the columns of the CSV file are; of several from one field the first has the field's meaning."""
        return {next(iter(field.csv or [field.name])): field.meaning for field in self.fields if field.csv != {}}

    def csv(self) -> str:
        """The CSV file."""
        return csv_text(*self.csv_rows())
