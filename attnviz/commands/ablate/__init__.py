"""The command ``attnviz ablate``: effects of removing heads."""

from attnviz.present.report import View

VIEWS = (
    View("heads", "the most important heads, with intervals", "ablate-heads"),
    View("curve", "ever more heads removed", "ablate-curve"),
)
"""Its figures, in the order of the documentation."""
