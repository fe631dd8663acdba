"""Tables as they are printed, by the titles of their columns."""

from collections.abc import Iterable, Iterator
from typing import Any

from attnviz.present.fields import Table


def tables_in(printed: Any) -> Iterator[Table[Any]]:
    """Those of a group of whatever can be printed."""
    if isinstance(printed, Table):
        yield printed
    for part in printed if isinstance(printed, Iterable) else getattr(printed, "renderables", ()):
        yield from tables_in(part)


def rows_in(printed: Any, title: str) -> list[dict[str, str]]:
    """The cells of the one table whose title begins so, row by row, by the titles of their columns."""
    (table,) = [table for table in tables_in(printed) if table.title.startswith(title)]
    columns = {
        field.heading: [text.plain.replace("\ue000", " ") for text in cells]
        for field, cells in zip(table.columns, table.cells(), strict=True)
    }
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
