"""The command ``attnviz heads``."""

from attnviz.present.report import View, page_view

# Its figures, in the order of the documentation.
VIEWS = (
    View("overview", "every head of every layer in one picture"),
    View("heads", "one heatmap per head: row = query (attends from), column = key (attended to)"),
    View(
        "lines",
        "one line per weight, from the token that attends to the token attended to",
        default=False,
        module="token_views",
    ),
    View("map", "layers × heads, coloured by a statistic", default=False),
    View("claim", "one head and what it does over a corpus, one column wide", default=False, module="claim_view"),
    View("mean", "mean pattern of each layer's heads and of all", default=False),
    View(
        "relations",
        "the parse as arcs over the text, with what each head finds of its relation",
        default=False,
        module="relations_view",
    ),
    View(
        "text",
        "the text as prose, shaded by the attention that each token receives",
        default=False,
        module="token_views",
    ),
    page_view("every head to hover over, click and compare, in one HTML file", default=True),
)
