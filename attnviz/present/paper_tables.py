"""Rows as a table of a paper: in LaTeX, with booktabs alone, as wide as a column or a page; or in Markdown."""

import math
import re
import string
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from attnviz.judge.verdicts import ENOUGH, NO_LABEL
from attnviz.measures.patterns import describes
from attnviz.present.documents import Entry, joined
from attnviz.present.fields import Table
from attnviz.present.latex import latex
from attnviz.present.published import ARROWS, DESCRIBING, shown_baseline
from attnviz.profiles.parts import SYNTACTIC
from attnviz.wording import rounded

# Points that a table may take: a column of ACL's style has 219, a page of article with letters of 11 points 360.
ROOMS = {"table": 216.0, "table*": 360.0}
POINTS = 9.0  # of the letters: \footnotesize of a paper in 11 points, as ACL's is; in one of 10 points they are smaller
_BETWEEN = 6.0  # points between columns
_LINES = 28  # of a table, which fit a page below its caption
_FLOATS = 20  # tables that LaTeX can keep back
_LONGEST = (math.inf, 80.0, 55.0, 0.0)  # points of a line of a text, the first with which all columns have room
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

    def points(self, longest: float) -> float:
        """Points that it takes where texts longer than this are broken between words; its head always may be."""
        words = " ".join([self.head, *self.cells]).split()
        whole = max(map(text_width, self.cells), default=0.0)
        return max(whole if self.is_number else min(whole, longest), *map(text_width, words))


def paper_table(kind: str, table: Table[Any], names: Sequence[str], caption: str, label: str) -> str:
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
    if any(describes(str(row.get(name))) for name in names for row in rows):
        caption += f" {DESCRIBING}"
    if kind == "md":
        rule = ["---:" if column.is_number else "---" for column in columns]
        lines = zip(*([column.head, *column.cells] for column in columns), strict=True)
        header, *below = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        marked = [f"| {' | '.join(line)} |" for line in (header, rule, *below)]
        return "\n".join([f"Table: {caption}{columns_in_words(columns)}", "", *marked]) + "\n"
    environment, widths = _fitted(columns)
    shown, others = columns[: len(widths)], [column.head for column in columns[len(widths) :]]
    caption += columns_in_words(shown) + (f" Too wide for a page: {', '.join(others)}." if others else "")
    sides = "".join("r" if column.is_number else "l" for column in shown)
    parts = {"environment": environment, "sides": sides}
    parts["head"] = _row([column.head for column in shown], widths, sides, "b")
    parts["title"] = f"\\caption{{{latex(caption)}}}\n\\label{{{label}}}"
    text = "% \\usepackage{booktabs}\n"
    n_lines, pages = 0, [list[str]()]
    for cells in zip(*(column.cells for column in shown), strict=True):
        n_lines += 1 + max(int(text_width(cell) / width) for cell, width in zip(cells, widths, strict=True))
        if n_lines > _LINES * len(pages):
            pages.append([])
        pages[-1].append(_row(cells, widths, sides, "t"))
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


def _fitted(columns: Sequence[_Column]) -> tuple[str, list[float]]:
    """The environment that is wide enough, and the columns' points, of the first ones where a page is too narrow."""
    for n in range(len(columns), 0, -1):
        for environment, room in ROOMS.items():
            for longest in _LONGEST:
                widths = [column.points(longest) for column in columns[:n]]
                if sum(widths) + _BETWEEN * (n - 1) <= room:
                    return environment, widths
    return environment, widths  # a single word is wider than a page


def _columns(names: Sequence[str], rows: Sequence[Entry], meanings: dict[str, str]) -> list[_Column]:
    """The columns with a value; the ends of an interval stand behind its number, a name behind what it names."""
    found: dict[str, _Column] = {}
    for name in names:
        stem, _, end = name.rpartition("_")
        cells, meaning = _cells(name, rows), meanings.get(name, "")
        if end == "high" or (rows and not any(cells)):
            continue
        key, head = name, "head" if name == "id" else name.replace("_", " ")
        if end == "low":
            highs = _cells(name.removesuffix("low") + "high", rows)
            cells = [low and f"[{low}, {high}]" for low, high in zip(cells, highs, strict=True)]
        if end in ("low", "name"):
            key = stem or next(reversed(found), name)
            head = key.replace("_", " ")
        if key in found:
            before = found[key]
            cells = [f"{first} {second}".strip() for first, second in zip(before.cells, cells, strict=True)]
            meaning = ", ".join(filter(None, (before.meaning, meaning or "its interval")))
            head += " [low, high]" if end == "low" else ""
        if name == "role" and all(str(row[name]).startswith(SYNTACTIC) for row in rows):
            head, meaning = "relation", "of Universal Dependencies, which the head finds"
        is_number = {type(row[name]) for row in rows} <= {int, float, type(None)}
        found[key] = _Column(head, cells, is_number, meaning)
    return list(found.values())


def _cells(name: str, rows: Sequence[Entry]) -> list[str]:
    """The cells of a column; fractions have two decimals, or as many as show two digits of the largest.

    What a score is held against has as many as the score.
    """
    values = [row[name] for row in rows]
    score = re.sub("(baseline|untrained)$", "score", name)
    scored = [value for row in rows for value in (row[name], row.get(score)) if isinstance(value, float)]
    if name.endswith("baseline"):
        values = [shown_baseline(value) for value in values]
    largest = max(map(abs, scored), default=0.0)
    digits = max(2, 1 - math.floor(math.log10(largest))) if largest else 2
    cells = []
    for value, row in zip(values, rows, strict=True):
        text = rounded(value, digits) if isinstance(value, float) else str(joined(value)).removeprefix(SYNTACTIC)
        text = f"{value:,}" if type(value) is int else text
        mark = "?" if _is_unsure(name, row) else ""
        cells.append("" if value is None else f"{ARROWS.get(text, text)}{mark}")
    return cells


def _is_unsure(name: str, row: Entry) -> bool:
    return row.get(f"{name}_certain") is False and row[name] not in NO_LABEL


def _row(cells: Sequence[str], widths: Sequence[float], sides: str, place: str) -> str:
    """A row in LaTeX; of cells too long for a line the first stands on that of the others, or for ``b`` the last."""
    written = []
    for cell, width, side in zip(cells, widths, sides, strict=True):
        text = latex(cell or "–").replace("–", "--")
        if text_width(cell) > width:
            ragged = "right" if side == "l" else "left"
            text = rf"\parbox[{place}]{{{width:.0f}pt}}{{\ragged{ragged}\strut {text}\strut}}"
        elif text.startswith(("[", "*")):  # behind the end of a line it would be read as an argument
            text = f"{{{text}}}"
        written.append(text)
    return rf"{' & '.join(written)} \\"
