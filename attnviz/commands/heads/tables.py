"""Earlier names, until the last command has left them."""

from rich.text import Text

from attnviz.commands.heads.measure import Analysis
from attnviz.results import tables
from attnviz.results.published import published_table

__all__ = ["published_table", "verification_line"]


def verification_line(analysis: Analysis) -> Text:
    """How many heads were compared with the model, and how closely they agree."""
    return tables.verification_line(analysis.verification, analysis.checkpoint)
