"""The form ``attnviz compare --corpus``: differences of all heads of two models over many texts."""

from attnviz.present.report import View

VIEWS = (View("distances", "all heads by rank with intervals, beside dropout and the largest possible distance"),)
"""Its figures, in the order of the documentation."""
