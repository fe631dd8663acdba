"""The form ``attnviz card --all``: a card of every head with a role, and an index of them."""

from attnviz.present.report import View, page_view

VIEWS = (
    View("card", "one card for each head"),
    page_view("all cards, to choose from"),
)
"""Its figures, in the order of the documentation."""
