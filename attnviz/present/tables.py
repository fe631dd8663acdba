"""Tables for the terminal, made of fields."""

import io
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from attnviz.arguments import as_found, is_whole
from attnviz.errors import UsageError
from attnviz.models.wording import counted, error, quoted, rounded, visible
from attnviz.present.fields import Field, Row
from attnviz.printable import printable

if TYPE_CHECKING:
    from attnviz.models.checkpoint import Checkpoint
    from attnviz.models.tokens import Tokens
    from attnviz.trace.checks import Verification


@dataclass(frozen=True)
class _Laid(Generic[Row]):
    """A column with its cells, and whether its title wraps."""

    column: Field[Row]
    cells: list[Text]
    wrapped: bool = False

    @property
    def title(self) -> int:
        """Columns of the terminal that the title takes, or the longest of its words."""
        return max(map(cell_len, re.split(r"\s+|(?<=\w-)", self.column.header) if self.wrapped else self.lines(999)))

    @property
    def widest(self) -> int:
        """Columns of the terminal that the widest cell takes, or the title."""
        return max([self.title, *map(_width, self.cells)])

    @property
    def least(self) -> int:
        """Least columns of the terminal."""
        least = self.column.least
        return self.widest if least is None else min(self.widest, max(least, self.title))

    def lines(self, room: int) -> list[str]:
        """The title's lines within a number of columns of the terminal."""
        return [part for line in self.column.header.split("\n") for part in textwrap.wrap(line, room) or [""]]

    def shown(self, rows: Sequence[Row], room: int) -> list[Text]:
        """The cells within a number of columns of the terminal; that of the last line is not cut."""
        shown = [_cut(self.column, row, text, room) for row, text in zip(rows, self.cells, strict=False)]
        return [*shown, *self.cells[len(rows) :]]


def column_table(
    title: str,
    columns: Sequence[Field[Row]],
    rows: Iterable[Row],
    *,
    width: int,
    last: Sequence[object] = (),
    caption: str = "",
    sections: Callable[[Row], object] | None = None,
) -> Table:
    """Make a table for a width in columns of the terminal.

    If it is too wide, in this order: less space between columns, titles wrap, texts are cut (the longest first),
    optional columns are left out. Numbers are never cut.

    The title says what the rows are and how they are ordered. ``last`` are the cells of a line below a rule, such as
    baselines; where ``sections`` of a row changes, an empty line stands between two rows.
    """
    listed = list(rows)
    laid = [_Laid(column, [cell(column.write(column.of(row))) for row in listed]) for column in columns]
    if last:
        laid = [replace(each, cells=[*each.cells, cell(value)]) for each, value in zip(laid, last, strict=True)]
    laid, widths, wide = _fitted(laid, width)
    table = plain_table(title, wide)
    for each, room in zip(laid, widths, strict=True):
        justify: Literal["left", "right"] = "left" if each.column.left else "right"
        fold, header = each.column.fold, Text("\n".join(each.lines(room)))
        table.add_column(
            header, justify=justify, no_wrap=not fold, overflow="fold" if fold else "ellipsis", max_width=room
        )
    cells = [each.shown(listed, room) for each, room in zip(laid, widths, strict=True)]
    for at, texts in enumerate(zip(*cells, strict=True)):
        ends = sections is not None and at + 1 < len(listed) and sections(listed[at]) != sections(listed[at + 1])
        ends = ends or (bool(last) and at + 1 == len(listed))
        table.add_row(*texts, style="dim" if at == len(listed) else None, end_section=ends)
    table.caption = Text(caption) if caption else None
    return table


def first_rows(
    title: str, columns: Sequence[Field[Row]], rows: Sequence[Row], top: int | None, file: str, *, width: int,
    noun: str = "head", order: str = "", last: Sequence[object] = (),
) -> Table:  # fmt: skip
    """The table of the ``top`` first rows, 0 or None for all; its title says how many these are, and their ``order``.

    ``file`` is the one that has all of them.
    """
    listed = rows[: top or None]
    caption = left_out(len(listed), len(rows), noun, file)
    counts = ", ".join(filter(None, [listed_of(len(listed), len(rows)), order]))
    title = f"{title} ({counts})" if title else ""
    return column_table(title, columns, listed, width=width, last=last, caption=caption)


def _fitted(laid: list[_Laid[Row]], width: int) -> tuple[list[_Laid[Row]], list[int], bool]:
    """The columns that fit, their widths, and whether there is space between them."""

    def room(wide: bool) -> int:
        return width - (1 + wide) * (len(laid) - 1)

    for wide, wrapped in ((True, False), (False, False), (True, True), (False, True)):
        tried = [replace(each, wrapped=wrapped) for each in laid]
        if sum(each.widest for each in tried) <= room(wide):
            return tried, [each.widest for each in tried], wide
    laid = [replace(each, wrapped=True) for each in laid]
    goes = max((each.column.optional or 0 for each in laid), default=0)
    if goes and sum(each.least for each in laid) > room(False):
        return _fitted([each for each in laid if each.column.optional != goes], width)
    widths = [each.widest for each in laid]
    while sum(widths) > room(False):
        slack = [have - each.least for have, each in zip(widths, laid, strict=True)]
        if not any(slack):
            break
        widths[max(range(len(laid)), key=lambda at: (slack[at] > 0, widths[at]))] -= 1
    return laid, widths, sum(widths) <= room(True)


def _width(text: Text) -> int:
    """Columns of the terminal that the widest line of a cell takes."""
    return max(map(cell_len, text.plain.split("\n")))


def _cut(column: Field[Row], row: Row, text: Text, room: int) -> Text:
    """A cell within a number of columns of the terminal."""
    if _width(text) <= room or column.fold:
        return text
    lines = (text if column.fit is None else cell(column.fit(row, room))).split("\n")
    for line in lines:
        line.truncate(room, overflow="ellipsis")
    return Text("\n").join(lines)


def first_that_fits(forms: Sequence[str], room: int) -> str:
    """The first form of a cell whose lines all fit into a number of columns of the terminal, else the last."""
    return next((form for form in forms if _width(Text(form)) <= room), forms[-1])


def cell(value: object) -> Text:
    """Write a value into a table: fractions with two decimals, a dash for None.

    The result is a Text, since rich would read brackets in a string as markup.
    """
    if isinstance(value, Text):
        return value
    text = rounded(value) if value is None or isinstance(value, float) else str(value)
    return Text(printable(text))


def listed_of(listed: int, total: int) -> str:
    """How many rows a table lists, for its title: ``12 of 72``, or all ``72``."""
    return str(total) if listed == total else f"{listed} of {total}"


def left_out(shown: int, total: int, noun: str, file: str) -> str:
    """The caption of a table that is cut short, or ''."""
    if shown >= total:
        return ""
    more = counted(total - shown, f"more {noun}")
    return f"{more} left out: --top 0 lists all; {file} has them."


def verification_line(verification: "Verification", model: "Checkpoint", more: str = "", sample: str = "") -> Text:
    """Sentence on how many heads were verified, and the largest differences from the model's own numbers.

    Those of outputs are shares of the largest output. ``more``: what else was compared, beginning with a comma;
    ``sample``: on which texts, if not all, beginning with a space.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    if not verification.level:
        return Text.assemble(("Not verified", "bold yellow"), ": these weights were given; nothing was recomputed.")
    errors = f"weights within {error(verification.pattern_error)}, outputs within {error(verification.output_error)}"
    if not verification.pattern_error and not verification.output_error:
        errors = "weights and outputs bit for bit"
    return Text.assemble(
        ("Verified", "bold green"),
        f" {counted(verification.heads_compared, 'head')} of {visible(model.name)} ({model.runs_as}){sample}, level "
        f"{verification.level} of 4: {errors}{more}.{_coarsely(verification, dtype)}",
    )


def _coarsely(verification: "Verification", dtype: str) -> str:
    """Sentence on the errors that half precision hides, or ''."""
    seen, row = verification.scale_seen, verification.tolerance.row
    if seen is None or row is None:
        return ""
    scale = (
        f"a wrong scale of all scores of a layer from {100 * seen:.1f} % on"
        if seen < 1
        else "no wrong scale of scores, because the weights are too even or too few"
    )
    return (
        f" In {dtype} the comparison is coarse. It finds {scale}, and a wrong single weight from {row:.0%} of the "
        "largest in its row on. It does not find smaller errors, or a scale that is wrong in one head only; --dtype "
        "float32 finds them."
    )


def notes(*lines: str) -> Text:
    """Notes below tables; empty ones are left out."""
    return Text("\n".join(line for line in lines if line), style="dim")


def cut_note(tokens: "Tokens | None", name: str = "text") -> str:
    """Note on what was cut from a text, or ''."""
    cut = 0 if tokens is None else tokens.truncated
    were = "was" if cut == 1 else "were"
    return f"The {name} was cut: its last {counted(cut, 'token')} {were} left out (--truncate)." if cut else ""


def target_note(text: str, generated: bool) -> str:
    """Note on the target of an encoder-decoder."""
    whose = "generated by the model, greedily" if generated else "given"
    return (
        f"Target ({whose}): {quoted(text)}. D and X attend from what the decoder reads, a start token and the target "
        "without its last token: the row of each token predicts the next one."
    )


def titled(title: str, table: RenderableType) -> Group:
    """A table below a title that may be wider."""
    return Group(Text(title, style="bold"), table)


def spaced(parts: Iterable[RenderableType]) -> Group:
    """Tables and texts, separated by empty lines."""
    spread = [part for each in parts for part in (Text(), each)]
    return Group(*spread[1:])


_NARROWEST = 20


def plain_table(title: str, wide: bool = True) -> Table:
    """A table without a frame; narrow ones have less space between columns."""
    return Table(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0) if wide else 0,
    )


@dataclass(frozen=True)
class Printable:
    """Tables and texts whose characters a terminal may get."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render them as they are, and then no character that cannot be seen."""
        for segment in console.render(self.content, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def plain_text(tables: Callable[[int], RenderableType], width: int) -> str:
    """Tables made for a width, in columns, as text without colours.

    Raises:
        UsageError: the width is no whole number, or too small.
    """
    if not is_whole(width) or width < _NARROWEST:
        raise UsageError(f"expected a width of {_NARROWEST} columns or more, found {as_found(width)}.")
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False, force_jupyter=False).print(
        Printable(tables(width))
    )
    return text.getvalue()
