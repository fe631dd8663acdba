"""What every figure of the command says of the text and the model."""

from attnviz.commands.heads.measure import Analysis
from attnviz.model.tokens import visible
from attnviz.results.facts import Facts

__all__ = ["facts_of"]


def facts_of(analysis: Analysis) -> Facts:
    """Model, texts and positions of an analysis, and what is left out where sinks are."""
    texts = tuple(text for text in (analysis.text, analysis.pair) if text is not None)
    units = analysis.units
    return Facts(visible(analysis.checkpoint.short_name), texts, len(units), units.name, analysis.dropped)
