"""The command ``attnviz rollout``: attention rollout through all layers."""

from attnviz.present.report import View

VIEWS = (View("rollout", "the last matrix by each method"),)  # its figures, in the order of the documentation
