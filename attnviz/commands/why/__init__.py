"""The command ``attnviz why``: one attention score as a sum over what queries and keys are made of."""

from attnviz.present.report import View

# Its figures, in the order of the documentation.
VIEWS = (View("path", "the path over the text, from head to head to the strongest key's score"),)
