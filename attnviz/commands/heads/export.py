"""Earlier names, until the last command has left them."""

from collections.abc import Sequence
from typing import Any

from attnviz.commands.heads.measure import Analysis, HeadFindings
from attnviz.results.documents import model_entry

__all__ = ["document", "model_entry"]


def document(analysis: Analysis, heads: Sequence[HeadFindings], figures: Sequence[str], version: str) -> dict[str, Any]:
    """The document of an analysis."""
    return {**analysis.document(figures, select=[str(head.id) for head in heads]), "attnviz": version}
