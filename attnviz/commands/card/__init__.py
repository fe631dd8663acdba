"""The command ``attnviz card``: one head on one page, everything that was measured of it."""

from attnviz.present.report import View, page_view

VIEWS = (
    View("card", "what the head does, its pattern, three tables, hits and failures; with --all one for each head"),
    View("claim", "one statement on the head, one column wide, for a paper", default=False),
    page_view("the card as a page, beside all heads on the text; with --all every card"),
)
