"""What tests of figures share: pixels, texts, settings that must not matter, labels that must not break anything."""

from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

ODD_SETTINGS = {
    "text.usetex": True,
    "font.family": "DejaVu Serif",
    "font.size": 30,
    "figure.facecolor": "black",
    "axes.facecolor": "black",
    "savefig.facecolor": "black",
    "axes.grid": True,
    "text.color": "white",
    "xtick.color": "white",
    "ytick.color": "white",
    "axes.labelcolor": "white",
    "image.origin": "lower",
    "image.interpolation": "bilinear",
    "figure.dpi": 37,
    "savefig.dpi": 41,
    "savefig.bbox": "tight",
    "ytick.labelright": True,
    "xtick.top": True,
    "axes.linewidth": 9,
    "lines.antialiased": False,
}
"""Settings of a user that change neither our figures nor are changed by them."""

HOSTILE = [
    "$\\frac$",
    "[/b]",
    "$",
    "a_{b}^c",
    "🦄",
    "猫",
    "مرحبا",
    "\x1b[31m",
    "\n",
    "\x00",
    "\t",
    "",
    " ",
    "&<>\"'",
    "%s{}",
]


def pixels_of(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def nothing_over_the_edge(figure: Figure) -> bool:
    """Whether the outermost pixels are all paper: nothing is clipped."""
    pixels = pixels_of(figure)
    paper = (np.array(figure.get_facecolor()[:3]) * 255).round().astype(int)
    return all((edge == paper).all() for edge in (pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]))


def overlapping(figure: Figure, height: float = 0.8) -> list[tuple[str, str]]:
    """Pairs of texts that stand upright or lie flat and write over each other; slanted ones are left out.

    Of the height of a text's box so much, ``height``, is of its letters.
    """
    figure.draw_without_rendering()
    shown = [
        (text.get_text(), text.get_window_extent().shrunk(0.98, height))
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text.get_rotation() % 90 == 0
    ]
    return [
        (one, other)
        for place, (one, box) in enumerate(shown)
        for other, beside in shown[place + 1 :]
        if box.overlaps(beside)
    ]
