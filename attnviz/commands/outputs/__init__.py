"""The command ``attnviz outputs``: head outputs in the residual stream."""

from attnviz.present.report import View

VIEWS = (
    View("overview", "norm-weighted attention of all heads", "outputs"),
    View(
        "effects", "what each head adds to the logit of an answer, a token or a class, minus that of a foil",
        "outputs-effects",
    ),
    View("heads", "one head by weight and by norm", r"outputs/[LEDX]\d+H\d+"),
)  # fmt: skip
"""Its figures, in the order of the documentation."""
