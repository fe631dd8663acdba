"""The command ``attnviz compare``: differences of all heads between two models or two texts."""

from attnviz.present.report import View, page_view

VIEWS = (
    View("overview", "the differences of all heads"),
    View("differences", "the differences of one head, for those that differ most"),
    page_view("every head on A, on B, and their difference, in one HTML file"),
)
