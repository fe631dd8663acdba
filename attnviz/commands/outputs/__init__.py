"""The command ``attnviz outputs``: head outputs in the residual stream."""

from attnviz.present.report import View

# Its figures, in the order of the documentation.
VIEWS = (
    View("overview", "norm-weighted attention of all heads"),
    View("effects", "what each head adds to the logit of an answer, a token or a class, minus that of a foil"),
    View("heads", "one head by weight and by norm"),
)
