"""The command ``attnviz circuits``: what heads read of what earlier heads write, and what they copy; weights alone."""

from attnviz.present.report import View

# Its figures, in the order of the documentation.
VIEWS = (View("composition", "every pair of heads, a picture for queries, keys and values"),)
