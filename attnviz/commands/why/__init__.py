"""The command ``attnviz why``: one attention score as a sum over what queries and keys are made of."""

from attnviz.present.report import View

# Its figures, in the order of the documentation.
VIEWS = (View("sources", "the strongest key's score: sources of the query × sources of the key"),)
