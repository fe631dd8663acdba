"""The command ``attnviz explain``: one layer, step by step, every step held against the running model."""

from attnviz.present.report import View

VIEWS = (
    View(
        "path", "the whole path of the layer: one panel of actual numbers per step, the residual path around its "
        "halves", "explain",
    ),
    View(
        "positions", "layer 0 of models with position embeddings: how much of each head's scores comes from content "
        "and from position",
    ),
)  # fmt: skip
"""Its figures, in the order of the documentation."""
