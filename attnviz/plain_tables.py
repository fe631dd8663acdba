"""The look that all tables of the terminal share."""

from rich import box
from rich.table import Table
from rich.text import Text

__all__ = ["add_row", "plain_table"]


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
