"""Rows as a table of a paper: in LaTeX, with booktabs alone, as wide as a column or a page; or in Markdown."""

import math
import string
from collections.abc import Sequence
from functools import cache
from textwrap import wrap
from typing import Any, NamedTuple

from attnviz.judge.verdicts import ENOUGH, NO_LABEL
from attnviz.present.documents import joined
from attnviz.present.fields import NamedTable
from attnviz.present.latex import latex
from attnviz.present.published import ARROWS, shown_baseline
from attnviz.profiles.parts import SYNTACTIC
from attnviz.wording import rounded

# Points that a table may take: a column of ACL's style has 219, a page of article with letters of 11 points 360.
ROOMS = {"table": 216.0, "table*": 360.0}
POINTS = 9.0  # of the letters: \footnotesize of a paper in 11 points, as ACL's is; in one of 10 points they are smaller
_BETWEEN = 6.0  # points between columns
_LINES = 28  # of a table, which fit a page below its caption
_FLOATS = 20  # tables that LaTeX can keep back
_LONGEST = (999, 18, 12, 1)  # characters of a line of a text, the first with which all columns have room
# of characters, in sizes of the letters; of others 0.8, and 5 of those that pdfLaTeX prints as [U+732B]
_WIDTHS = dict.fromkeys(string.ascii_lowercase + string.digits, 0.54) | dict.fromkeys("mwMW%→←…−@", 1.0)
_WIDTHS |= dict.fromkeys(".,:;!|'‘’[]()- fijlrt", 0.4)

_TABLE = r"""\begin{%(environment)s}
\centering
%(title)s
\footnotesize
\setlength{\tabcolsep}{3pt}
\begin{tabular}{@{}%(sides)s@{}}
\toprule
%(head)s
\midrule
%(rows)s
\bottomrule
\end{tabular}
\end{%(environment)s}
"""


class _Column(NamedTuple):
    head: str
    cells: list[str]
    is_number: bool  # on the right, and never broken
    meaning: str

    def lines(self, longest: int) -> list[list[str]]:
        """The lines of its head, which is not wider than its cells, and of each cell."""
        longest = max(map(len, self.cells), default=1) if self.is_number else longest
        cells = [wrap(cell, longest, break_long_words=False) or [""] for cell in self.cells]
        widest = max((len(line) for lines in cells for line in lines), default=0)
        return [wrap(self.head, max(widest, 1), break_long_words=False), *cells]


def paper_table(kind: str, table: NamedTable[Any], names: Sequence[str], caption: str, label: str) -> str:
    """The table in LaTeX (``tex``) or Markdown; its caption says what the columns are.

    ``names`` are columns of the CSV file, by default all but layer, head and rank beside an id; those without a value
    are left out. Where ``NAME_certain`` is False, the value of NAME gets a question mark. ``label`` is for references
    in LaTeX.
    """
    every, rows = table.csv_rows()
    beside_id = ("layer", "head", "rank") if "id" in every else ()
    names = [name for name in names or every if name in every and name not in beside_id]
    columns = _columns(names, rows, table.meanings())
    if any(_is_unsure(name, row) for name in names for row in rows):
        caption += f" A question mark: an indication only, n below {ENOUGH}."
    if kind == "md":
        rule = ["---:" if column.is_number else "---" for column in columns]
        lines = zip(*([column.head, *column.cells] for column in columns), strict=True)
        header, *below = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        marked = [f"| {' | '.join(line)} |" for line in (header, rule, *below)]
        return "\n".join([f"Table: {caption}{columns_in_words(columns)}", "", *marked]) + "\n"
    environment, broken = _fitted(columns)
    shown, others = columns[: len(broken)], columns[len(broken) :]
    caption += columns_in_words(shown)
    if others:
        caption += f" Too wide for a page: {', '.join(column.head for column in others)}."
    first, *body = zip(*broken, strict=True)
    sides = "".join("r" if column.is_number else "l" for column in shown)
    parts = {"environment": environment, "sides": sides, "head": _row(first, sides, "b")}
    parts["title"] = f"\\caption{{{latex(caption)}}}\n\\label{{{label}}}"
    text = "% \\usepackage{booktabs}\n"
    n_lines, pages = 0, [list[str]()]
    for row in body:
        n_lines += max(map(len, row))
        if n_lines > _LINES * len(pages):
            pages.append([])
        pages[-1].append(_row(row, sides, "t"))
    for number, page in enumerate(pages, start=1):
        parts["rows"] = "\n".join(page)
        text += _TABLE % parts + ("\\clearpage\n" if number % _FLOATS == 0 else "")
        parts["title"] = rf"Table~\ref{{{label}}}, continued.\par\smallskip"
    return text


def columns_in_words(columns: Sequence[_Column]) -> str:
    """What the columns of a table are, as the end of its caption."""
    known = [f"{column.head}: {column.meaning}" for column in columns if column.meaning]
    return f" Columns: {'; '.join(known)}." if known else ""


@cache
def text_width(text: str) -> float:
    """Points that a line takes at most in Computer Modern or Times, in letters of :data:`POINTS`."""
    return POINTS * sum(_WIDTHS.get(letter) or (5.0 if "[U+" in latex(letter) else 0.8) for letter in text)


def _fitted(columns: Sequence[_Column]) -> tuple[str, list[list[list[str]]]]:
    """The environment that is wide enough, and lines of the columns, of the first ones where a page is too narrow."""
    for n in range(len(columns), 0, -1):
        for environment, room in ROOMS.items():
            for longest in _LONGEST:
                broken = [column.lines(longest) for column in columns[:n]]
                widths = [max(text_width(line) for lines in column for line in lines) for column in broken]
                if sum(widths) + _BETWEEN * (n - 1) <= room:
                    return environment, broken
    return environment, broken  # a single word is wider than a page


def _columns(names: Sequence[str], rows: Sequence[dict[str, Any]], meanings: dict[str, str]) -> list[_Column]:
    """The columns with a value; the ends of an interval stand behind its number, a name behind what it names."""
    found: dict[str, _Column] = {}
    for name in names:
        stem, _, end = name.rpartition("_")
        cells, meaning = _cells(name, rows), meanings.get(name, "")
        if end == "high" or (rows and not any(cells)):
            continue
        is_number = {type(row[name]) for row in rows} <= {int, float, type(None)}
        key, head = name, "head" if name == "id" else name.replace("_", " ")
        if end == "low":
            highs = _cells(name.removesuffix("low") + "high", rows)
            cells = [low and f"[{low}, {high}]" for low, high in zip(cells, highs, strict=True)]
        if end in ("low", "name"):
            key = stem or next(reversed(found), name)
            head = key.replace("_", " ")
        if key in found:
            before = found[key]
            cells = [" ".join(filter(None, both)) for both in zip(before.cells, cells, strict=True)]
            meaning = f"{before.meaning}, {meaning or 'its interval'}"
            head += " [low, high]" if end == "low" else ""
        if name == "role" and all(str(row[name]).startswith(SYNTACTIC) for row in rows):
            head, meaning = "relation", "of Universal Dependencies, which the head finds"
        found[key] = _Column(head, cells, is_number, meaning)
    return list(found.values())


def _cells(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """The cells of a column; fractions have two decimals, or as many as show two digits of the largest."""
    values = [row[name] for row in rows]
    if name.endswith("baseline"):
        values = [shown_baseline(value) for value in values]
    largest = max((abs(value) for value in values if isinstance(value, float)), default=0.0)
    digits = max(2, 1 - math.floor(math.log10(largest))) if largest else 2
    cells = []
    for value, row in zip(values, rows, strict=True):
        if value is None:
            cells.append("")
        elif isinstance(value, float):
            cells.append(rounded(value, digits))
        else:
            text = str(joined(value)).removeprefix(SYNTACTIC)
            cells.append(f"{ARROWS.get(text, text)}{'?' if _is_unsure(name, row) else ''}")
    return cells


def _is_unsure(name: str, row: dict[str, Any]) -> bool:
    return row.get(f"{name}_certain") is False and row[name] not in NO_LABEL


def _row(cells: Sequence[list[str]], sides: str, place: str) -> str:
    """A row in LaTeX; a cell of several lines has its first on the line of the others, or for ``b`` its last."""
    written = []
    for side, lines in zip(sides, cells, strict=True):
        texts = [latex(line or "–").replace("–", "--") for line in lines]
        # behind the end of a line a bracket or a star would be read as its argument
        texts = [f"{{{text}}}" if text.startswith(("[", "*")) else text for text in texts]
        if len(texts) > 1:
            lower = r" \\ ".join(texts)
            texts = [rf"\begin{{tabular}}[{place}]{{@{{}}{side}@{{}}}}{lower}\end{{tabular}}"]
        written += texts
    return rf"{' & '.join(written)} \\"
