"""Tables for the terminal, made of fields."""

import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from attnviz.arguments import as_found, is_whole
from attnviz.errors import UsageError
from attnviz.present.fields import Field, Row
from attnviz.printable import printable
from attnviz.wording import counted, error, quoted, rounded, visible

if TYPE_CHECKING:
    from attnviz.inputs.prompt import Prompt
    from attnviz.models.checkpoint import Checkpoint
    from attnviz.run.checks import Verification
    from attnviz.run.passes import SampleVerification


_NUMBER = re.compile(r"(?:[\d\s.,:+−–±~*/()\[\]%?-]|to|no|e[+-]|[kMBT]\b)*")  # what is aligned right, and never broken
_NARROWEST = 20  # columns of a terminal
_GLUE = "\ue000"  # printed as a space at which no line is broken; of no use in Unicode

# columns of the terminal that a text and a title keep, and of the longest word that stays whole
_LEAST_TEXT, _LEAST_TITLE, _LONGEST_WORD = 14, 8, 20


@dataclass(frozen=True)
class RowTable(Generic[Row]):
    """A table of rows, which is as wide as the terminal at most.

    If it is too wide, in this order: columns stand closer, texts are broken, those marked ``detail`` and then the last
    are left out, and a line below names them. Numbers are never broken.
    """

    title: str  # what the rows are and how they are ordered
    columns: Sequence[Field[Row]]
    rows: Sequence[Row]
    last: Sequence[object] = ()  # cells of a line below a rule, such as baselines
    caption: str = ""  # a line below the table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [_Column(field, self.cells(field, at)) for at, field in enumerate(self.columns)]
        shown = list(columns)
        while sum(column.least + 1 for column in shown) - 1 > options.max_width and len(shown) > 1:
            details = [column for column in shown if column.field.detail]
            shown.remove((details or shown)[-1])
        widths = [column.most for column in shown]
        is_wide = sum(widths) + 2 * (len(shown) - 1) <= options.max_width
        while sum(widths) > max(options.max_width - len(shown) + 1, sum(column.least for column in shown)):
            texts = [at for at, column in enumerate(shown) if widths[at] > column.least]
            widths[max(texts, key=widths.__getitem__)] -= 1
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, int(is_wide), 0, 0))
        for column, width in zip(shown, widths, strict=True):
            if column.is_number:
                table.add_column(column.header, justify="right", no_wrap=True, width=width)
            else:
                table.add_column(column.header, overflow="fold", width=width)
        for row, cells in enumerate(zip(*(column.cells for column in shown), strict=True), start=1):
            ends = row == len(self.rows) and bool(self.last)
            table.add_row(*cells, style="dim" if row > len(self.rows) else None, end_section=ends)
        if self.title:
            yield Text(self.title, "bold")
        yield table
        narrow = [column.field.header.replace("\n", " ") for column in columns if column not in shown]
        below = [self.caption, f"Too narrow here for: {'; '.join(narrow)}." if narrow else ""]
        yield from (Text(line, "dim italic") for line in below if line)

    def cells(self, field: Field[Row], at: int) -> list[Text]:
        """The cells of a column, which is the ``at``-th; the last is that of :attr:`last`."""
        return [*(cell(field.write(field.value_for(row))) for row in self.rows), *map(cell, self.last[at : at + 1])]


class _Column:
    def __init__(self, field: Field[Any], cells: list[Text]) -> None:
        self.field = field
        self.cells = cells
        self.is_number = all(_NUMBER.fullmatch(text.plain) for text in cells)
        widest = max((cell_len(line) for text in cells for line in text.plain.split("\n")), default=0)
        title, _, unit = field.header.partition("\n")
        lines = [title] if title else []
        if self.is_number:  # in lines no wider than the numbers, or than the longest word
            lines = textwrap.wrap(title, max(widest, cell_len(unit), *map(cell_len, title.split()), _LEAST_TITLE))
        lines += [unit] if unit else []
        self.header = Text("\n".join(lines))
        self.most = max([widest, *map(cell_len, lines)])  # columns of the terminal if nothing is broken
        self.least = self.most  # and if its texts are, but no word of usual length
        if not self.is_number:
            words = [cell_len(word) for text in cells for word in text.plain.split()]
            self.least = min(self.most, max(_LEAST_TEXT, min(max(words, default=0), _LONGEST_WORD)))


def glued(groups: Iterable[str]) -> Text:
    """Groups of words, which a table does not break."""
    return Text("  ".join(group.replace(" ", _GLUE) for group in groups))


def first_rows(
    title: str,
    columns: Sequence[Field[Row]],
    rows: Sequence[Row],
    top: int | None,
    file: str,
    noun: str = "head",
    order: str = "",
    last: Sequence[object] = (),
) -> RowTable[Row]:
    """The table of the ``top`` first rows, 0 or None for all; ``file`` is the one that has all of them."""
    listed = rows[: top or None]
    counts = ", ".join(filter(None, [listed_of(len(listed), len(rows)), order]))
    return RowTable(f"{title} ({counts})", columns, listed, last, left_out(len(listed), len(rows), noun, file))


def cell(value: object) -> Text:
    """A value in a table: fractions with two decimals, a dash for None; in a string rich would read markup."""
    if isinstance(value, Text):
        return value
    return Text(printable(rounded(value) if value is None or isinstance(value, float) else str(value)))


def page_table(title: str, note: str, fields: Sequence[Field[Row]], rows: Sequence[Row], head: int) -> dict[str, Any]:
    """``Table`` of the page, with the cells of the terminal, numbers as numbers; ``head``: the column of heads."""

    def page_cell(value: object) -> object:
        if value is None or isinstance(value, int):
            return value
        return round(value, 5) if isinstance(value, float) else visible(str(value))

    columns = [(field.title or field.name.replace("_", " ")).lower() for field in fields]
    cells = [[page_cell(field.write(field.value_for(row))) for field in fields] for row in rows]
    return {"title": title, "note": note, "columns": columns, "rows": cells, "head": head}


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
    """How many heads were verified, and the largest differences from the model; of outputs as shares of the largest.

    ``more``: what else was compared, beginning with a comma; ``sample``: on which texts, beginning with a space.
    """
    if not verification.level:
        return checked_line(verification, model)
    how = "" if verification.attention == "eager" else ", seen on random values"
    errors = (
        f"weights within {error(verification.pattern_error)} ({verification.attention}{how}), outputs within "
        f"{error(verification.output_error)}"
    )
    if not verification.pattern_error and not verification.output_error:
        errors = f"weights and outputs bit for bit ({verification.attention})"
    return Text.assemble(
        ("Verified", "bold green"),
        f" {counted(verification.heads_compared, 'head')} of {visible(model.name)} ({model.runs_as}){sample}, level "
        f"{verification.level} of 4: {errors}{more}.{_how_checked(verification, model)}",
    )


def first_lines(source: str, what: str, sample: "SampleVerification", model: "Checkpoint", noun: str | None) -> Text:
    """What was measured on which ``source``, and how closely the heads reproduce the model; a ``noun`` asks for all."""
    more = ""
    if noun:
        more = (
            f", replaced values by at most {error(sample.values_error)}, final states of resumed passes by at most "
            f"{error(sample.resumed_error)}, on {counted(sample.n_inputs, noun)}"
        )
    return Text.assemble((source, "bold"), f"\n{what}\n", verification_line(sample.attention, model, more))


def checked_line(verification: "Verification", model: "Checkpoint") -> Text:
    """:func:`verification_line` in short: the larger of both differences."""
    if not verification.level:
        return Text.assemble(("Not verified", "bold yellow"), ": these weights were given; nothing was recomputed.")
    worst = max(verification.pattern_error, verification.output_error)
    how = f"to {worst:.0e}" if worst else "bit for bit"
    return Text.assemble(
        ("Checked", "bold green"),
        f": all {verification.heads_compared} heads equal the model's own ({how}).{_how_checked(verification, model)}",
    )


def _how_checked(verification: "Verification", model: "Checkpoint") -> str:
    compiled = " The model is compiled; its uncompiled modules were verified." if model.compiled else ""
    seen, tolerance = verification.scale_seen, verification.tolerance
    if seen is None or tolerance.row is None:
        return compiled
    scale = f"a wrong scale of all scores of a layer from {100 * seen:.1f} % on" if seen < 1 else "no wrong scale"
    weight = f"a wrong single weight from {tolerance.row:.0%} of the largest in its row"
    if verification.attention != "eager":
        weight = f"a single weight that is wrong from {tolerance.probe:g}"
    which, finer = f"In {str(model.dtype).removeprefix('torch.')}", "--dtype float32"
    if model.quantised:
        which, finer = "With these weights", "a dequantised checkpoint"
    return (
        f" {which} the comparison is coarse. It finds {scale}, and {weight} on; {finer} finds smaller errors, and a "
        f"scale that is wrong in one head only.{compiled}"
    )


def notes(*lines: str) -> Text:
    """Notes below tables; empty ones are left out."""
    return Text("\n".join(line for line in lines if line), style="dim")


def cut_note(tokens: "Prompt", name: str = "text") -> str:
    """Note on what was cut from a text, or ''."""
    cut = tokens.truncated
    return f"The {name} was cut: without its last {counted(cut, 'token')} (--truncate)." if cut else ""


def target_note(text: str, generated: bool) -> str:
    """Note on the target of an encoder-decoder."""
    whose = "generated by the model, greedily" if generated else "given"
    return (
        f"Target ({whose}): {quoted(text)}. D and X attend from what the decoder reads, a start token and the target "
        "without its last token: the row of each token predicts the next one."
    )


def spaced(parts: Iterable[RenderableType]) -> Group:
    """Tables and texts, separated by empty lines."""
    filled = [part for part in parts if part or not isinstance(part, Text)]
    return Group(*[line for part in filled for line in (Text(), part)][1:])


@dataclass(frozen=True)
class Printable:
    """Tables and texts whose characters a terminal may get."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            text = printable(segment.text.replace(_GLUE, " "))
            yield segment if segment.control else segment._replace(text=text)


def plain_text(tables: RenderableType, width: int) -> str:
    """Tables for a width, in columns, as text without colours; UsageError for a width that is too small."""
    if not is_whole(width) or width < _NARROWEST:
        raise UsageError(f"expected a width of {_NARROWEST} columns or more, found {as_found(width)}.")
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, highlight=False, force_jupyter=False).print(Printable(tables))
    return text.getvalue()
