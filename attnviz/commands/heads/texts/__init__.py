"""The form ``attnviz heads --each-line``: several texts in one run, and the spread between them."""

from attnviz.present.report import View

VIEWS = (View("texts", "up to 6 heads on the first 6 texts, a text a row"),)
"""Its figures."""
