"""The command ``attnviz card``: one head on one page, everything that was measured of it."""

from attnviz.present.report import View

VIEWS = (View("card", "the head: what it does in words, its roles, its pattern, and where it stands among the others"),)
"""Its figure."""
