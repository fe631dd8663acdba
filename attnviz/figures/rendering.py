"""Earlier names, until the last command has left them."""

from matplotlib.figure import Figure

from attnviz.figures import files
from attnviz.figures.files import FORMATS
from attnviz.figures.look import PLAIN, Look

__all__ = ["FORMATS", "figure_bytes"]


def figure_bytes(figure: Figure, file_format: str, *, indexed: bool = True, look: Look = PLAIN) -> bytes:
    """One figure as a file."""
    del indexed
    return files.figure_bytes(figure, file_format, look)
