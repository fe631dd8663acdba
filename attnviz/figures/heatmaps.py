"""Earlier names, until the last command has left them."""

from attnviz.commands.heads.measure import Analysis
from attnviz.figures.files import DPI
from attnviz.figures.matrix import max_pool, named_every
from attnviz.model.wording import ordinal, quoted

__all__ = ["DPI", "max_pool", "named_every", "names_note", "quotes"]


def quotes(analysis: Analysis) -> str:
    """The text, or both texts of a pair."""
    return " / ".join(quoted(text) for text in (analysis.text, analysis.pair) if text is not None)


def names_note(every: int, unit: str) -> str:
    """That labels were left out; empty where none was."""
    return "" if every == 1 else f"Every {ordinal(every)} {unit} is named."
