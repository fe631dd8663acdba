"""Tables: rows with typed columns, each stated once, of which JSON, CSV, frame(), terminal and LaTeX are made."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attnviz.models.head_ids import HeadId, LayerId
from attnviz.present.documents import Entry, csv_text
from attnviz.wording import counted, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text

Row = TypeVar("Row")
Keys = Sequence[str | int | Callable[[Any], object]]  # keys, or functions, one after the other


@dataclass(frozen=True)
class Field(Generic[Row]):
    """A fact of a row."""

    title: str = ""  # of its column in a table; default the name in words
    # from a row to its value, or the value's path by attributes or keys (``repair.share``), None where a part of that
    # is None or no key; default the name
    value: Callable[[Row], object] | str = ""
    unit: str = ""  # of the values, below the title in brackets
    name: str = ""  # its key in the entry of a row in JSON; '' for what tables alone have
    # CSV column → path into the JSON value; default the value itself, by ``name``
    csv: Mapping[str, Keys] | None = None
    of_stacks: bool = False  # whether it is of encoder-decoders alone; such columns stand last in the CSV file
    if_known: bool = False  # whether it is left out where its value is None
    # how a table writes the value; default :func:`attnviz.present.tables.cell`.
    write: Callable[[Any], object] = lambda value: value
    detail: bool = False  # whether a table that is too wide leaves it out before others
    meaning: str = ""  # what it is, for the caption of a table of a paper

    @property
    def heading(self) -> str:
        words = self.name.replace("_", " ")
        return self.title or words[:1].upper() + words[1:]

    @property
    def header(self) -> str:
        return f"{self.heading}\n({self.unit})" if self.unit else self.heading

    def value_for(self, row: Row) -> Any:
        """The value of a row."""
        if callable(self.value):
            return self.value(row)
        found: Any = row
        for key in self.value.split(".") if self.value else [self.name]:
            if found is not None:
                found = found.get(key) if isinstance(found, dict) else getattr(found, key)
        return found

    def shown_for(self, row: Row) -> object:
        """The value of a row as tables write it."""
        return self.write(self.value_for(row))


def plain(*names: str) -> tuple[Field[Any], ...]:
    """Fields of these names, with nothing else to say of them."""
    return tuple(Field(name=name) for name in names)


def interval_field(
    name: str = "interval", value: str = "", *, write: Callable[[Any], object], over: str = "", detail: bool = False
) -> Field[Any]:
    """An interval, whose ends are the columns ``low`` and ``high``, of ``a_interval`` ``a_low`` and ``a_high``.

    ``value``: its path, as of a :class:`Field`; ``over``: of what it holds together.
    """
    from attnviz.measures.intervals import ERROR_RATE

    before = name.removesuffix("interval")
    csv = {f"{before}low": (0,), f"{before}high": (1,)}
    meaning = f"its interval at {ERROR_RATE:g}, {over}" if over else ""
    return Field("Interval", value, name=name, csv=csv, write=write, detail=detail, meaning=meaning)


ID = "layer and head, counted from 0"
# which head a row is of; within an encoder-decoder its layer is counted within the kind of attention
HEAD: tuple[Field[Any], ...] = (
    Field("Head", name="id", meaning=ID),
    Field(value=lambda row: getattr(row.id.layer, "number", row.id.layer), name="layer"),
    Field(value="id.layer.stack.name", name="stack", of_stacks=True),
    Field(value="id.head", name="head"),
)


def entry(fields: Iterable[Field[Any]], row: Any) -> Entry:
    """The row as an entry of the document."""
    values = {}
    for field in fields:
        if field.name and (not field.of_stacks or isinstance(row.id.layer, LayerId)):
            value = field.value_for(row)
            if value is not None or not field.if_known:
                values[field.name] = plain_value(value)
    return values


def values_of(record: Any, *names: str) -> Entry:
    """Some attributes of a record as JSON has them."""
    return entry(plain(*names), record)


def plain_value(value: Any) -> Any:
    """A value as JSON has it, and so all in it.

    A head is its name, as a file; what has an ``entry`` is that; other records are dictionaries, tuples are lists.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, HeadId | Path):
        return str(value)
    if isinstance(value, dict):
        return {key: plain_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if hasattr(value, "_asdict"):
            return plain_value(value._asdict())
        return list(map(plain_value, value))
    if hasattr(value, "entry"):
        return plain_value(value.entry)
    if is_dataclass(value):
        return {each.name: plain_value(getattr(value, each.name)) for each in fields(value)}
    return value


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

    def pick(self, *names: str) -> "Table[Row]":
        """The table with these columns, by name."""
        return replace(self, columns=pick(self.columns, *names))

    def first(self, top: int | None, file: str, noun: str = "head", order: str = "") -> "Table[Row]":
        """The ``top`` first rows, 0 or None for all; the title says how many, the caption which ``file`` has all."""
        listed, total = self.rows[: top or None], len(self.rows)
        counts = ", ".join(filter(None, [listed_of(len(listed), total), order]))
        return replace(
            self, title=f"{self.title} ({counts})", rows=listed, caption=left_out(len(listed), total, noun, file)
        )

    def cells(self) -> "list[list[Text]]":
        """The cells of every column as the terminal shows them, below them those of :attr:`last`."""
        from attnviz.present.tables import cell

        values = [[field.shown_for(row) for row in self.rows] for field in self.columns]
        return [[*map(cell, column), *map(cell, self.last[at : at + 1])] for at, column in enumerate(values)]

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from attnviz.present.tables import TableColumn, fitted_table

        columns = [
            TableColumn(field.header, field.detail, cells)
            for field, cells in zip(self.columns, self.cells(), strict=True)
        ]
        yield from fitted_table(self.title, columns, len(self.rows), self.caption, options.max_width)

    def for_page(self, note: str, head: int) -> dict[str, Any]:
        """``Table`` of the page, with the cells of the terminal, numbers as numbers; ``head``: the column of heads."""

        def page_cell(value: object) -> object:
            if value is None or isinstance(value, int):
                return value
            return round(value, 5) if isinstance(value, float) else visible(str(value))

        columns = [field.heading.lower() for field in self.columns]
        cells = [[page_cell(field.shown_for(row)) for field in self.columns] for row in self.rows]
        return {"title": self.title, "note": note, "columns": columns, "rows": cells, "head": head}

    def entries(self) -> list[Entry]:
        """The rows as entries of the document."""
        return [entry(self.columns, row) for row in self.rows]

    def csv_rows(self) -> tuple[list[str], list[Entry]]:
        """Columns and rows of the CSV file, with the values of the entries; columns that no entry has are left out."""
        entries = self.entries()
        known = {name for row_entry in entries for name in row_entry}
        known |= {field.name for field in self.columns if field.name and not (entries or field.of_stacks)}
        columns = {
            column: (field.name, keys)
            for field in sorted(self.columns, key=lambda field: field.of_stacks)
            if field.name in known
            for column, keys in ({field.name: ()} if field.csv is None else field.csv).items()
        }
        rows = []
        for row_entry in entries:
            row = dict.fromkeys(columns)
            for column, (name, keys) in columns.items():
                value: Any = row_entry.get(name)
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
