"""The command ``attnviz card``: one head on one page, everything that was measured of it."""

from attnviz.present.report import View, page_view

VIEWS = (
    View("card", "the head: what it does in words, its pattern, roles, place among the others, hits and failures"),
    page_view("the card as a page, beside all heads on the text"),
)
"""Its figures, in the order of the documentation."""
