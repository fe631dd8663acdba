"""Tables as they are printed, by the titles of their columns."""

from collections.abc import Iterable, Iterator
from typing import Any

from attnviz.present.tables import RowTable


def tables_in(printed: Any) -> Iterator[RowTable[Any]]:
    """Those of a group of whatever can be printed."""
    if isinstance(printed, RowTable):
        yield printed
    for part in printed if isinstance(printed, Iterable) else getattr(printed, "renderables", ()):
        yield from tables_in(part)


def rows_in(printed: Any, title: str) -> list[dict[str, str]]:
    """The cells of the one table whose title begins so, row by row, by the titles of their columns."""
    (table,) = [table for table in tables_in(printed) if table.title.startswith(title)]
    columns = {}
    for place, field in enumerate(table.columns):
        columns[field.title] = [text.plain.replace("\ue000", " ") for text in table.cells(field, place)]
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
