"""The command ``attnviz rollout``: attention rollout and flow through all layers."""

from attnviz.present.report import View

VIEWS = (
    View("rollout", "the last matrix by each method"),
    View("layers", "the rollouts up to every layer", "rollout-layers"),
    View("from", "the inputs of one token, as bars", "rollout-from"),
)
"""Its figures, in the order of the documentation."""
