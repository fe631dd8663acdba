"""Tables and notes as the terminal and the page show them."""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from attnviz.arguments import as_found, is_whole
from attnviz.errors import UsageError
from attnviz.present.fields import Row, Table
from attnviz.present.table_layout import GLUE
from attnviz.printable import printable
from attnviz.wording import visible

_NARROWEST = 20  # columns of a terminal


def page_table(table: Table[Row], note: str, head: int) -> dict[str, Any]:
    """``Table`` of the page, with the cells of the terminal, numbers as numbers; ``head``: the column of heads."""

    def page_cell(value: object) -> object:
        if value is None or isinstance(value, int):
            return value
        return round(value, 5) if isinstance(value, float) else visible(str(value))

    columns = [field.heading.lower() for field in table.columns]
    cells = [[page_cell(field.shown_for(row)) for field in table.columns] for row in table.rows]
    return {"title": table.title, "note": note, "columns": columns, "rows": cells, "head": head}


def notes(*lines: str) -> Text:
    """Notes below tables; empty ones are left out."""
    return Text("\n".join(line for line in lines if line), style="dim")


def spaced(parts: Iterable[RenderableType]) -> Group:
    """Tables and texts, separated by empty lines; in a string rich would read markup."""
    texts = [Text(part) if isinstance(part, str) else part for part in parts]
    filled = [part for part in texts if part or not isinstance(part, Text)]
    return Group(*[line for part in filled for line in (Text(), part)][1:])


@dataclass(frozen=True)
class Printable:
    """Tables and texts whose characters a terminal may get."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            text = printable(segment.text.replace(GLUE, " "))
            yield segment if segment.control else segment._replace(text=text)


def plain_text(tables: RenderableType, width: int) -> str:
    """Tables for a width, in columns, as text without colours; UsageError for a width that is too small."""
    if not is_whole(width) or width < _NARROWEST:
        raise UsageError(f"expected a width of {_NARROWEST} columns or more, found {as_found(width)}.")
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False, force_jupyter=False).print(Printable(tables))
    return text.getvalue()
