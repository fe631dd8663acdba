"""Tables and notes as the terminal shows them, and how a table fits its width, with rich."""

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from attnviz.arguments import as_found, is_whole
from attnviz.errors import UsageError
from attnviz.printable import printable
from attnviz.wording import rounded

_NUMBER = re.compile(r"(?:[\d\s.,:+−–±~*/()\[\]%?-]|to|no|e[+-]|[kMBT]\b)*")  # what is aligned right, and never broken
GLUE = "\ue000"  # printed as a space at which no line is broken; of no use in Unicode

# columns of the terminal that a text and a title keep, and of the longest word that stays whole
_LEAST_TEXT, _LEAST_TITLE, _LONGEST_WORD = 14, 8, 20
_NARROWEST = 20  # columns of a terminal


def fitted_table(
    title: str, columns: "Sequence[TableColumn]", n_rows: int, caption: str, room: int
) -> Iterator[RenderableType]:
    """Yield a table, which is as wide as the terminal at most, below its title and above its caption.

    Cells beyond ``n_rows`` stand below a rule.

    If it is too wide, in this order: columns stand closer, texts are broken, those marked ``detail`` and then the last
    are left out, and a line below names them. Numbers are never broken.
    """
    shown = list(columns)
    while sum(column.least + 1 for column in shown) - 1 > room and len(shown) > 1:
        details = [column for column in shown if column.detail]
        shown.remove((details or shown)[-1])
    widths = [column.most for column in shown]
    is_wide = sum(widths) + 2 * (len(shown) - 1) <= room
    while sum(widths) > max(room - len(shown) + 1, sum(column.least for column in shown)):
        texts = [at for at, column in enumerate(shown) if widths[at] > column.least]
        widths[max(texts, key=widths.__getitem__)] -= 1
    printed = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, int(is_wide), 0, 0))
    for column, width in zip(shown, widths, strict=True):
        if column.is_number:
            printed.add_column(column.header, justify="right", no_wrap=True, width=width)
        else:
            printed.add_column(column.header, overflow="fold", width=width)
    for row, cells in enumerate(zip(*(column.cells for column in shown), strict=True), start=1):
        printed.add_row(*cells, style="dim" if row > n_rows else None, end_section=row == n_rows)
    if title:
        yield Text(title, "bold")
    yield printed
    narrow = [column.name for column in columns if column not in shown]
    below = [caption, f"Too narrow here for: {'; '.join(narrow)}." if narrow else ""]
    yield from (Text(line, "dim italic") for line in below if line)


class TableColumn:
    """A column with its widths; ``header``: title and, on a second line, unit; ``detail``: left out before others."""

    def __init__(self, header: str, detail: bool, cells: Sequence[Text]) -> None:
        self.name, self.detail, self.cells = header.replace("\n", " "), detail, cells
        self.is_number = all(_NUMBER.fullmatch(text.plain) for text in cells)
        widest = max((cell_len(line) for text in cells for line in text.plain.split("\n")), default=0)
        title, _, unit = header.partition("\n")
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
    return Text("  ".join(group.replace(" ", GLUE) for group in groups))


def cell(value: object) -> Text:
    """A value in a table: fractions with two decimals, a dash for None; in a string rich would read markup."""
    if isinstance(value, Text):
        return value
    return Text(printable(rounded(value) if value is None or isinstance(value, float) else str(value)))


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
