"""Earlier names, until the last command has left them."""

from attnviz.commands.heads.measure import Analysis, analyze

__all__ = ["Analysis", "analyze"]
