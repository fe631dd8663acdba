"""Figures to the bytes of PNG, SVG and PDF files: without dates, so that equal figures are equal files."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from attnviz.figures.look import PLAIN, Look

__all__ = ["DPI", "FORMATS", "figure_bytes", "figure_style"]

FORMATS = ("png", "svg", "pdf")
"""File formats of figures."""

DPI = 150
"""Pixels an inch of a PNG, unless the user chose a width on the page."""

_PRINTED = 300
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "attnviz"},
    "pdf": {"CreationDate": None, "Creator": "attnviz"},
}


def figure_bytes(figure: Figure, file_format: str, look: Look = PLAIN) -> bytes:
    """One figure as a file.

    Args:
        figure: to draw.
        file_format: one of :data:`FORMATS`.
        look: a picture of a chosen width has 300 pixels an inch, any other :data:`DPI`.
    """
    buffer = io.BytesIO()
    canvas = FigureCanvasAgg(figure)
    with figure_style():
        if file_format == "png":
            figure.set_dpi(DPI if look.width is None else _PRINTED)
            canvas.draw()
            software = PngInfo()
            software.add_text("Software", "attnviz")
            picture = Image.fromarray(
                np.asarray(canvas.buffer_rgba())[..., :3]
            )  # opaque: an alpha channel says nothing
            picture.save(buffer, "png", dpi=(figure.dpi, figure.dpi), pnginfo=software)
        else:
            metadata = _METADATA[file_format]
            figure.savefig(buffer, format=file_format, metadata=metadata, facecolor=figure.get_facecolor())
    return buffer.getvalue()


@contextmanager
def figure_style() -> Iterator[None]:
    """The defaults of matplotlib plus what makes files reproducible, whatever the user's own settings are.

    SVG and PDF keep their text as text; ids in SVG come from a fixed salt.
    """
    now = matplotlib.rcParams
    changed = {key: value for key, value in _style_settings().items() if dict.__getitem__(now, key) != value}
    with matplotlib.rc_context(changed):
        yield


@cache
def _style_settings() -> dict[Any, Any]:
    keep = ("backend", "interactive", "toolbar", "timezone")
    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith(keep)}
    files = {"svg.hashsalt": "attnviz", "svg.fonttype": "none", "pdf.fonttype": 42}
    return {**defaults, **files}
