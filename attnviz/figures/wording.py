"""Texts, counts and places in words, as all figures, tables and captions have them."""

from attnviz.figures.fonts import isolated
from attnviz.model.tokens import visible

__all__ = ["counted", "ordinal", "quoted"]

_LONGEST_QUOTE = 90


def quoted(text: str) -> str:
    """The text in quotation marks, cut where it is long, with nothing invisible in it but what keeps its order."""
    shown = visible(text)
    return f"“{isolated(shown if len(shown) <= _LONGEST_QUOTE else shown[: _LONGEST_QUOTE - 1] + '…')}”"


def counted(n: int, unit: str) -> str:
    """So many: ``1 token``, ``9 tokens``."""
    return f"{n} {unit}{'' if n == 1 else 's'}"


def ordinal(number: int) -> str:
    """``1st``, ``2nd``, ``11th``, …"""  # noqa: D415
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
