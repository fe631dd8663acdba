"""The command ``attnviz profile``: roles of all heads, measured on corpora."""

from attnviz.present.report import View, page_view

VIEWS = (
    View("roles", "the clearest role of every head"),
    View("relations", "the best head of each relation beside its largest baseline"),
    page_view("roles and relations as tables that sort, heads as a scatter, in one HTML file"),
)
