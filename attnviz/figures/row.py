"""A table of numbers as a picture, for a slide."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from attnviz.errors import UsageError
from attnviz.figures.fonts import font_families, text_width
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, page_width
from attnviz.figures.style import DPI, Style

SIZE, _SMALL = 7.5, 6.0  # points of the text, and in a column of a paper


@dataclass(frozen=True)
class RowPlan(PagePlan):
    """The table as texts."""

    columns: tuple[tuple[str, ...], ...]  # the first cell is the header, the last below a rule
    needed: int  # columns without which the softmax cannot be redone

    def page(self, style: Style) -> Figure:
        """A new figure of the table, with as many products of values as fit; UsageError if the width is too small."""
        size = SIZE if style.room is None else _SMALL
        widths = [max(text_width(cell, size, "bold") for cell in cells) / DPI + size / 75 for cells in self.columns]
        while style.room is not None and len(widths) > self.needed and sum(widths) + 2 * MARGIN > style.room:
            widths.pop()
        natural, n_lines = sum(widths) + 2 * MARGIN, len(self.columns[0])
        width = page_width(style, natural)
        if natural > width:
            raise UsageError(
                f"the row of a head does not fit in {width:g} inches; expected a --width of at least "
                f"{natural + 0.05:.1f}in, or --figures none."
            )
        page = self.new_page(style, width=width, body=size / 44 * n_lines + MARGIN)
        ax = page.add_subplot(xlim=(0, width - MARGIN), ylim=(n_lines, 0))
        ax.axis("off")
        for right, cells in zip(np.cumsum(widths), self.columns, strict=False):
            for line, cell in enumerate(cells):
                text = ax.text(right, line + 0.5, cell, ha="right", va="center", size=size, parse_math=False)
                text.set(color=style.ink, weight="normal" if line else "bold", family=font_families([cell]))
        ax.hlines([1, n_lines - 1], 0, sum(widths), color=style.frame, linewidth=PIXEL)
        return page
