"""Figures to the bytes of PNG, SVG and PDF files: without dates, so that equal figures are equal files."""

import io
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from attnviz.figures.look import PLAIN, Look

FORMATS = ("png", "svg", "pdf")
"""File formats of figures."""

DPI = 150
"""Pixels an inch of figures, which their layout is measured in."""

_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "attnviz"},
    "pdf": {"CreationDate": None, "Creator": "attnviz"},
}


def file_dpi(look: Look) -> int:
    """Pixels an inch of a PNG: :data:`DPI`, or twice as many where the user chose a width on the page."""
    return DPI if look.width is None else 2 * DPI


def figure_bytes(figure: Figure, file_format: str, look: Look = PLAIN) -> bytes:
    """One figure as a file of one of :data:`FORMATS`; PNGs have the resolution that the look asks for."""
    buffer = io.BytesIO()
    canvas = FigureCanvasAgg(figure)
    with figure_style():
        if file_format == "png":
            figure.set_dpi(file_dpi(look))
            canvas.draw()
            picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])  # an alpha channel says nothing
            return png_bytes(picture, figure.dpi)
        metadata = _METADATA[file_format]
        figure.savefig(buffer, format=file_format, metadata=metadata, facecolor=figure.get_facecolor())
    return buffer.getvalue()


def png_bytes(picture: Image.Image, dpi: float, **options: Any) -> bytes:
    """A picture as a PNG that names its resolution and its maker; ``options`` are Pillow's."""
    buffer, maker = io.BytesIO(), PngInfo()
    maker.add_text("Software", "attnviz")
    picture.save(buffer, "png", dpi=(dpi, dpi), pnginfo=maker, **options)
    return buffer.getvalue()


def figure_style() -> AbstractContextManager[None]:
    """The defaults of matplotlib plus what makes files reproducible, whatever the user's own settings are.

    SVG and PDF keep their text as text; ids in SVG come from a fixed salt.
    """
    ours: dict[str, Any] = {"svg.hashsalt": "attnviz", "svg.fonttype": "none", "pdf.fonttype": 42}
    return style.context(["default", ours])
