"""The command ``attnviz explain``: one layer, step by step, every step held against the running model."""

from attnviz.present.report import View, page_view

# Its figures, in the order of the documentation.
VIEWS = (
    View("row", "the table of the followed row, to redo its softmax by hand; for a slide"),
    page_view("the steps as panels; a click on a token or a head changes the numbers", default=True),
)
