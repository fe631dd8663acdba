"""The figures of a comparison role by role."""

from attnviz.commands.compare.corpus.views import ROLES  # noqa: F401 - found by its name
