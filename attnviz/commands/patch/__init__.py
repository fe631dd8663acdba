"""The command ``attnviz patch``: what each head carries from one prompt into another."""

from attnviz.present.report import View

VIEWS = (View("patch", "the effect of every head, layers × heads"),)
