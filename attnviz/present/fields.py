"""Fields: the facts of a row, each stated once. Tables, JSON and CSV are renderings of the same list of fields."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from attnviz.models.head_ids import LayerId

Row = TypeVar("Row")


def _unchanged(value: object) -> object:
    """The value itself."""
    return value


@dataclass(frozen=True)
class Field(Generic[Row]):
    """A fact of a row.

    Attributes:
        title: of its column in a table.
        value: from a row to the plain value that JSON has. Defaults to ``row.<name>``.
        unit: of the values, below the title in brackets.
        name: its key in the entry of a row in JSON; '' for what tables alone have.
        csv: CSV column → path into the JSON value; default the value itself, by ``name``.
        of_stacks: whether it is of encoder-decoders alone; such columns stand last in the CSV file.
        if_known: whether it is left out where its value is None.
        write: how a table writes the value; default :func:`attnviz.present.tables.cell`.
        detail: whether a table that is too wide leaves it out before others.
    """

    title: str = ""
    value: Callable[[Row], object] | None = None
    unit: str = ""
    name: str = ""
    csv: Mapping[str, Sequence[str | int]] | None = None
    of_stacks: bool = False
    if_known: bool = False
    write: Callable[[Any], object] = _unchanged
    detail: bool = False

    @property
    def header(self) -> str:
        """Title and unit, a line each."""
        return f"{self.title}\n({self.unit})" if self.unit else self.title

    def value_for(self, row: Row) -> Any:
        """The value of a row."""
        return getattr(row, self.name) if self.value is None else self.value(row)


def plain(*names: str) -> tuple[Field[Any], ...]:
    """Fields without a title, which no table lists by itself."""
    return tuple(Field(name=name) for name in names)


HEAD: tuple[Field[Any], ...] = (
    Field("Head", lambda row: str(row.id), name="id"),
    Field(value=lambda row: getattr(row.id.layer, "number", row.id.layer), name="layer"),
    Field(value=lambda row: row.id.layer.stack.name, name="stack", of_stacks=True),
    Field(value=lambda row: row.id.head, name="head"),
)
"""Which head a row is of; within an encoder-decoder its layer is counted within the kind of attention."""


def entry(fields: Iterable[Field[Any]], row: Any, **given: Any) -> dict[str, Any]:
    """The row as an entry of the document; ``given`` are values by name that the row does not know."""
    known = [field for field in fields if field.name and (not field.of_stacks or isinstance(row.id.layer, LayerId))]
    values = {field.name: given[field.name] if field.name in given else field.value_for(row) for field in known}
    return {field.name: values[field.name] for field in known if not (field.if_known and values[field.name] is None)}


def pick(fields: Iterable[Field[Row]], *names: str) -> list[Field[Row]]:
    """The fields of these names, in this order."""
    of_name = {field.name: field for field in fields}
    return [of_name[name] for name in names]


def csv_rows(
    fields: Sequence[Field[Any]], entries: Iterable[dict[str, Any]], stacks: bool
) -> tuple[list[str], list[dict[str, Any]]]:
    """Columns and rows of the CSV file of entries of a document; ``stacks``: whether it is of an encoder-decoder."""
    entries = list(entries)
    lacking = {field.name for field in fields if field.if_known and entries and field.name not in entries[0]}
    named = [field for field in fields if field.name and field.name not in lacking]
    shown = [field for field in named if stacks or not field.of_stacks]
    ordered = sorted(shown, key=lambda field: field.of_stacks)
    columns = {
        column: (field.name, *keys)
        for field in ordered
        for column, keys in ({field.name: ()} if field.csv is None else field.csv).items()
    }
    return list(columns), [{name: _at(each, keys) for name, keys in columns.items()} for each in entries]


def _at(value: Any, keys: Sequence[str | int]) -> Any:
    """What lies at these keys; None where one of the values on the way is None."""
    for key in keys:
        value = None if value is None else value[key]
    return value
