"""The form ``attnviz heads --each-line``: several texts in one run, and the spread between them."""

from attnviz.present.report import View

VIEWS = (
    View(
        "page",
        "all texts: heads by their statistics, tables that sort, in one HTML file",
        suffix="html",
        module="page_view",
    ),
)
"""Its figures, in the order of the documentation."""
