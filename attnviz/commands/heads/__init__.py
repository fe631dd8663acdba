"""The command ``attnviz heads``."""

from attnviz.present.report import View, page_view

_HEAD = r"[LEDX]\d+H\d+"  # the name of a head's file

VIEWS = (
    View("overview", "every head of every layer in one picture"),
    View("heads", "one heatmap per head: row = query (attends from), column = key (attended to)", f"heads/{_HEAD}"),
    View(
        "lines", "one line per weight, from the token that attends to the token attended to",
        rf"lines/{_HEAD}|lines(-[a-z-]+)?", default=False, module="lines_view",
    ),
    View("map", "layers × heads, coloured by a statistic", "map-[a-z-]+", default=False, module="map_view"),
    View("mean", "mean pattern of each layer's heads and of all", "mean(-[a-z-]+)?", default=False),
    View(
        "relations", "the parse as arcs over the text, with what each head finds of its relation",
        f"relations/{_HEAD}|relations", default=False, module="relations_view",
    ),
    View(
        "text", "the text as prose, shaded by the attention that each token receives",
        rf"text/{_HEAD}|text(-[a-z-]+)?", default=False, module="text_view",
    ),
    page_view("heads", "every head to hover over, click and compare, in one HTML file"),
)  # fmt: skip
"""Its figures, in the order of the documentation."""
