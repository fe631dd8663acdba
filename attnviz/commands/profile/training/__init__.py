"""The form ``attnviz profile --revisions``: induction heads over the training of a model (Olsson et al. 2022)."""

from attnviz.present.report import View

VIEWS = (View("steps", "prefix matching, copying and in-context learning over the steps of training"),)
"""Its figures, in the order of the documentation."""
