"""Earlier names, until the last command has left them."""

from attnviz.figures.files import figure_style

__all__ = ["figure_style"]
