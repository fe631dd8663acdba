"""What a comparison role by role prints and writes."""

from attnviz.commands.compare.corpus.report import ROLES_SPEC as SPEC  # noqa: F401 - found by its name
