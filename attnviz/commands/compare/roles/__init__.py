"""The form ``attnviz compare --corpus`` for models of different shapes: the best head of each for every role."""

from attnviz.present.report import View

VIEWS = (View("roles", "for every role the best head of each model, with intervals and guesses"),)
