"""Tables: rows with typed columns, each stated once, of which JSON, CSV, frame(), terminal and LaTeX are made."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attnviz.models.head_ids import LayerId
from attnviz.present.documents import Entry, csv_text
from attnviz.wording import counted

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

Row = TypeVar("Row")
Path = Sequence[str | int | Callable[[Any], object]]  # keys, or functions, one after the other

ENDS: Mapping[str, Path] = {"low": (0,), "high": (1,)}  # columns of the ends of an interval


@dataclass(frozen=True)
class Field(Generic[Row]):
    """A fact of a row."""

    title: str = ""  # of its column in a table
    # from a row to the plain value that JSON has; default ``row.<name>``, of a dictionary ``row[name]``
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
        if self.value is not None:
            return self.value(row)
        return row[self.name] if isinstance(row, dict) else getattr(row, self.name)


def plain(*names: str) -> tuple[Field[Any], ...]:
    """Fields without a title, which no table lists by itself."""
    return tuple(Field(name=name) for name in names)


by_name = plain  # its name for rows that are dictionaries, in commands that are still several files

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
class Table(Generic[Row]):
    """The rows of a result, of which JSON entries, CSV file, frame(), table of a paper and terminal are made."""

    title: str  # what the rows are and how they are ordered, on the terminal
    columns: Sequence[Field[Row]]  # in the order of the CSV file
    rows: Sequence[Row]  # those of the selected heads
    last: Sequence[object] = ()  # cells of a line below a rule, such as baselines
    caption: str = ""  # a line below the table
    name: str = ""  # key of the document with an entry a row; '' where the document has these rows in another shape

    def first(self, top: int | None, file: str, noun: str = "head", order: str = "") -> "Table[Row]":
        """The ``top`` first rows, 0 or None for all; the title says how many, the caption which ``file`` has all."""
        listed, total = self.rows[: top or None], len(self.rows)
        counts = ", ".join(filter(None, [listed_of(len(listed), total), order]))
        return replace(
            self, title=f"{self.title} ({counts})", rows=listed, caption=left_out(len(listed), total, noun, file)
        )

    def cells(self) -> "list[list[Text]]":
        """The cells of every column as the terminal shows them, below them those of :attr:`last`."""
        from attnviz.present.table_layout import cell

        values = [[field.write(field.value_for(row)) for row in self.rows] for field in self.columns]
        return [[*map(cell, column), *map(cell, self.last[at : at + 1])] for at, column in enumerate(values)]

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from attnviz.present.table_layout import TableColumn, fitted_table

        columns = [
            TableColumn(field.header, field.detail, cells)
            for field, cells in zip(self.columns, self.cells(), strict=True)
        ]
        yield from fitted_table(self.title, columns, len(self.rows), self.caption, options.max_width)

    def entries(self) -> list[Entry]:
        """The rows as entries of the document."""
        return [entry(self.columns, row) for row in self.rows]

    def csv_rows(self) -> tuple[list[str], list[Entry]]:
        """Columns and rows of the CSV file, with the values of the entries; columns that no entry has are left out."""
        entries = self.entries()
        known = {name for row_entry in entries for name in row_entry}
        known |= {field.name for field in self.columns if field.name and not (entries or field.of_stacks)}
        columns = {
            column: (field.name, *keys)
            for field in sorted(self.columns, key=lambda field: field.of_stacks)
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
        return {next(iter(field.csv or [field.name])): field.meaning for field in self.columns if field.csv != {}}

    def csv(self) -> str:
        """The CSV file."""
        return csv_text(*self.csv_rows())


def listed_of(listed: int, total: int) -> str:
    """How many rows a table lists, for its title: ``12 of 72``, or all ``72``."""
    return str(total) if listed == total else f"{listed} of {total}"


def left_out(shown: int, total: int, noun: str, file: str) -> str:
    """The caption of a table that is cut short, or ''."""
    if shown >= total:
        return ""
    more = counted(total - shown, f"more {noun}")
    return f"{more} left out: --top 0 lists all; {file} has them."


class NamedTable(Table[Row]):
    """A table without a title, in commands that are still several files."""

    def __init__(self, name: str, fields: Sequence[Field[Row]], rows: Sequence[Row]) -> None:
        super().__init__("", fields, rows, name=name)

    @property
    def fields(self) -> Sequence[Field[Row]]:
        return self.columns
