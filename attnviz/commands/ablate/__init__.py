"""The command ``attnviz ablate``: effects of removing heads."""

from attnviz.present.report import View

VIEWS = (View("heads", "the most important heads, with intervals"), View("curve", "ever more heads removed"))
