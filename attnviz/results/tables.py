"""The look that all tables of the terminal share, and tables as plain text."""

import io
from collections.abc import Callable

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.errors import UsageError

__all__ = ["add_row", "error", "number", "plain_table", "plain_text"]

_NARROWEST = 20


def plain_table(title: str, wide: bool = True) -> Table:
    """A table without a frame; narrow ones have less space between columns."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0) if wide else 0,
    )


def add_row(table: Table, cells: list[str], style: str | None = None) -> None:
    """Cells as they are: a string would be read as rich's markup, and labels may hold brackets."""
    table.add_row(*(Text(cell) for cell in cells), style=style)


def plain_text(tables: Callable[[int], RenderableType], width: int) -> str:
    """Tables made for a width, as text without colours.

    Args:
        tables: makes them.
        width: columns, 20 at least.

    Raises:
        UsageError: the width is no whole number, or too small.
    """
    if isinstance(width, bool) or not isinstance(width, int) or width < _NARROWEST:
        raise UsageError(f"expected a width of {_NARROWEST} columns or more, found {width!r}.")
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False).print(tables(width))
    return text.getvalue()


def error(value: float) -> str:
    """A rounding error, two digits."""
    return f"{value:.1e}" if value else "0 (bit for bit)"


def number(value: float | None) -> str:
    """Two decimals; a dash for what cannot be measured."""
    return "–" if value is None else f"{value:.2f}"
