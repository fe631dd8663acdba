"""Tables for the terminal: columns as data, one look, and tables as plain text."""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.arguments import is_whole
from attnviz.errors import UsageError
from attnviz.model.wording import counted, visible

if TYPE_CHECKING:
    from attnviz.attention.verify import Verification
    from attnviz.model.checkpoint import Checkpoint

__all__ = [
    "Column",
    "add_row",
    "cell",
    "column_table",
    "error",
    "left_out",
    "notes",
    "number",
    "plain_table",
    "plain_text",
    "spaced",
    "titled",
    "verification_line",
]

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table, as data.

    Attributes:
        title: what it holds.
        value: from a row: a text, or a number or None, which :func:`cell` writes.
        unit: of the values, below the title in brackets.
        left: whether it is set to the left, as texts are.
    """

    title: str
    value: Callable[[Row], object]
    unit: str = ""
    left: bool = False


def column_table(
    title: str,
    columns: Sequence[Column[Row]],
    rows: Iterable[Row],
    *,
    last: Sequence[object] = (),
    caption: str = "",
    wide: bool = True,
) -> Table:
    """A table of these columns.

    Args:
        title: above it, with what the rows are and how they are ordered.
        columns: from left to right; a table grows or shrinks by its list of columns.
        rows: a line each.
        last: cells of a line below a rule, such as baselines; none for no such line.
        caption: below it.
        wide: whether there is room for space between columns.
    """
    table = plain_table(title, wide)
    for column in columns:
        name = f"{column.title}\n({column.unit})" if column.unit else column.title
        table.add_column(name, justify="left" if column.left else "right", no_wrap=True)
    for row in rows:
        add_row(table, [cell(column.value(row)) for column in columns])
    if last:
        table.add_section()
        add_row(table, [cell(value) for value in last], style="dim")
    table.caption = caption or None
    return table


def cell(value: object) -> str:
    """A value as it stands in a table: fractions with two decimals, a dash for what cannot be measured."""
    return number(value) if value is None or isinstance(value, float) else str(value)


def left_out(shown: int, total: int, noun: str, file: str) -> str:
    """The caption of a table that does not list everything; empty where it does."""
    if shown >= total:
        return ""
    more = counted(total - shown, f"more {noun}")
    return f"{more} left out: --top 0 lists all; {file} has them."


def verification_line(verification: "Verification", model: "Checkpoint", more: str = "", sample: str = "") -> Text:
    """How many heads were compared with the model, and how closely they agree.

    Args:
        verification: of all layers.
        model: that was compared with.
        more: what else was compared, before the last tolerance; begins with a comma.
        sample: of which texts, where not of all; begins with a space.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    compared = f"{counted(verification.heads_compared, 'head')} in {counted(model.n_layers, 'layer')}"
    tolerance = verification.tolerance
    return Text.assemble(
        ("Verified", "bold green"),
        f" {compared} of {visible(model.name)} ({dtype}, "
        f"{model.device}){sample}: weights within {error(verification.pattern_error)} of the model's own (tolerance "
        f"{tolerance.pattern:.0e}), outputs within {error(verification.output_error)} of the largest{more} (tolerance "
        f"{tolerance.output:.0e}).{_coarsely(verification, dtype)}",
    )


def _coarsely(verification: "Verification", dtype: str) -> str:
    """In half precision, what the comparison could see and what not."""
    seen, row = verification.scale_seen, verification.tolerance.row
    if seen is None or row is None:
        return ""
    scale = (
        f"an error of a layer's scale shows from {100 * seen:.1f} % on"
        if seen < 1
        else "no error of a layer's scale shows, since its weights are too even or too few"
    )
    return (
        f" Compared coarsely: in {dtype} {scale}, one of a single weight from {row:.0%} of its row's largest on; "
        "smaller ones, or a scale wrong in one head alone, do not; --dtype float32 shows them."
    )


def notes(*lines: str) -> Text:
    """The small print below tables; empty lines are left out."""
    return Text("\n".join(line for line in lines if line), style="dim")


def titled(title: str, table: RenderableType) -> Group:
    """A table below a title that may be wider than it is."""
    return Group(Text(title, style="bold"), table)


def spaced(parts: Iterable[RenderableType]) -> Group:
    """Tables and texts with an empty line between each two."""
    spread = [part for each in parts for part in (Text(), each)]
    return Group(*spread[1:])


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
    """Cells as they are, but for what would steer a terminal: labels may hold brackets, which rich reads as markup."""
    table.add_row(*(Text(cell if cell.isprintable() else visible(cell)) for cell in cells), style=style)


def plain_text(tables: Callable[[int], RenderableType], width: int) -> str:
    """Tables made for a width, as text without colours.

    Args:
        tables: makes them.
        width: columns, 20 at least.

    Raises:
        UsageError: the width is no whole number, or too small.
    """
    if not is_whole(width) or width < _NARROWEST:
        raise UsageError(f"expected a width of {_NARROWEST} columns or more, found {width!r}.")
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False).print(tables(width))
    return text.getvalue()


def error(value: float) -> str:
    """A rounding error, two digits."""
    return f"{value:.1e}" if value else "0 (bit for bit)"


def number(value: float | None) -> str:
    """Two decimals, with no minus before a zero; a dash for what cannot be measured."""
    return "–" if value is None else f"{round(value, 2) + 0.0:.2f}"
