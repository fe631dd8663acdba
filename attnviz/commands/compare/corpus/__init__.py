"""The form ``attnviz compare --corpus``: differences of all heads of two models over many texts."""

from attnviz.present.report import View

VIEWS = (
    View("distances", "all heads by rank with intervals, beside the largest possible distance"),
    View("roles", "for every role the best head of each model, with intervals and guesses", default=False),
)
