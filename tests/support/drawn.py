"""What tests of figures share: pixels, texts, settings that must not matter, labels that must not break anything."""

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from attnviz.present.report import views_of


def drawing_of(command: str, view: str) -> Any:
    """How a view of a command is drawn."""
    return next(each.drawing for each in views_of(command) if each.name == view)


# Settings of a user that change neither our figures nor are changed by them.
ODD_SETTINGS = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "black"),
    **dict.fromkeys(("text.color", "xtick.color", "ytick.color", "axes.labelcolor"), "white"),
    **dict.fromkeys(("text.usetex", "axes.grid", "ytick.labelright", "xtick.top"), True),
    **{"font.family": "DejaVu Serif", "font.size": 30, "axes.linewidth": 9, "lines.antialiased": False},
    **{"image.origin": "lower", "image.interpolation": "bilinear"},
    **{"figure.dpi": 37, "savefig.dpi": 41, "savefig.bbox": "tight"},
}
HOSTILE = [*"$\\frac$ [/b] $ a_{b}^c 🦄 猫 مرحبا \x1b[31m \x00 &<>\"' %s{}".split(" "), "\n", "\t", "", " "]


def pixels_of(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def numbers_of(plan: Any) -> list[Any]:
    """The numbers that a picture shows."""
    found: list[Any] = [cell.values for cell in getattr(plan, "cells", ())]
    found += [tile.values for tile in getattr(plan, "tiles", ())]
    found += [block.values for block in getattr(plan, "blocks", ())]
    found += [each.values for each in getattr(plan, "maps", ())]
    return found + [getattr(plan, name) for name in ("values", "query", "key", "weights") if hasattr(plan, name)]


def nothing_over_the_edge(figure: Figure) -> bool:
    """Whether the outermost pixels are all paper: nothing is clipped."""
    pixels = pixels_of(figure)
    paper = (np.array(figure.get_facecolor()[:3]) * 255).round().astype(int)
    return all((edge == paper).all() for edge in (pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:]))


def _outside(figure: Figure) -> set[Text]:
    """Labels of ticks that the limits of their axis leave out: matplotlib keeps them, and draws them not."""
    left_out: set[Text] = set()
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                    left_out |= {tick.label1, tick.label2}
    return left_out


def _boxes(texts: Iterable[Text], height: float) -> list[tuple[str, Bbox]]:
    """Texts that stand upright or lie flat, each with the box of its letters; lines left empty above are none."""
    found = []
    for text in texts:
        content = text.get_text()
        if text.get_visible() and content.strip() and text.get_rotation() % 90 == 0:
            box = text.get_window_extent()
            lines, empty = content.split("\n"), len(content) - len(content.lstrip(" \n"))
            box.y1 -= box.height * content[:empty].count("\n") / len(lines)
            found.append((content, box.shrunk(0.98, height)))
    return found


def _dots(ax: Axes) -> Any:
    """[dots, 2]: where the middles of dots and markers are, in pixels."""
    found = [dots.get_offset_transform().transform(dots.get_offsets()) for dots in ax.collections]
    marked = [line for line in ax.lines if line.get_marker() not in ("", " ", "None", None)]
    found += [line.get_transform().transform(np.asarray(line.get_xydata())) for line in marked]
    return np.concatenate([np.zeros((0, 2)), *found])


def _drawn_paths(ax: Axes) -> list[Path]:
    """Lines and bands, in pixels."""
    bands = [(path, band) for band in ax.collections if isinstance(band, PolyCollection) for path in band.get_paths()]
    lines = [(line.get_path(), line) for line in ax.lines]
    return [path.transformed(artist.get_transform()) for path, artist in [*lines, *bands]]


def overlapping(figure: Figure, height: float = 0.8) -> list[tuple[str, str]]:
    """Pairs of texts that stand upright or lie flat and write over each other; slanted ones are left out.

    Of the height of a text's box so much, ``height``, is of its letters.
    """
    if figure.stale:
        figure.draw_without_rendering()
    shown = _boxes(set(figure.findobj(Text)) - _outside(figure), height)
    lows = np.array([box.min for _, box in shown]).reshape(-1, 2)
    highs = np.array([box.max for _, box in shown]).reshape(-1, 2)
    overlap = ((lows[:, None] <= highs) & (lows <= highs[:, None])).all(-1)  # as Bbox.overlaps, of all pairs at once
    return [(shown[one][0], shown[other][0]) for one, other in np.argwhere(np.triu(overlap, 1))]


def text_share(figure: Figure) -> float:
    """The share of the height that title and notes take."""
    return sum(box.height for _, box in _boxes(figure.texts, 1.0)) / figure.bbox.height


def least_contrast(figure: Figure) -> float:
    """Of the texts that stand on a colour, the least contrast with it (WCAG 2.1); infinite where none does."""
    texts = [text for text in set(figure.findobj(Text)) - _outside(figure) if text.get_visible() and text.get_text()]
    opacities = [text.get_alpha() for text in texts]
    for text in texts:
        text.set_alpha(0)
    pixels = pixels_of(figure) / 255
    for text, alpha in zip(texts, opacities, strict=True):
        text.set_alpha(alpha)
    boxes = [text.get_window_extent() for text in texts]
    middles = [((box.x0 + box.x1) / 2, len(pixels) - (box.y0 + box.y1) / 2) for box in boxes]
    below = np.array([pixels[int(y), int(x)] for x, y in middles]).reshape(-1, 3)
    coloured = below.max(-1) - below.min(-1) > 0.02
    inks = np.array([to_rgb(text.get_color()) for text in texts]).reshape(-1, 3)
    return float(contrasts(below[coloured], inks[coloured]).min(initial=np.inf))


def contrasts(some: Any, others: Any) -> Any:
    """By WCAG 2.1, of colours with others; 1 for the same."""
    linear = np.where((both := np.stack([some, others])) <= 0.04045, both / 12.92, ((both + 0.055) / 1.055) ** 2.4)
    luminance = linear @ (0.2126, 0.7152, 0.0722)
    return (luminance.max(0) + 0.05) / (luminance.min(0) + 0.05)


def legible(figure: Figure) -> bool:
    """Nothing is cut by the edge, and nothing stands on something else."""
    return nothing_over_the_edge(figure) and not covered(figure)


def covered(figure: Figure, height: float = 0.8) -> list[tuple[str, str]]:
    """What stands on something else: texts and panels on each other, a name on a dot, a legend on a line."""
    found = overlapping(figure, height)
    framed = [ax for ax in figure.axes if ax.axison or ax.images]  # prose needs its letters alone
    panels = [(ax.get_title("left") or "panel", ax.get_window_extent().padded(-2)) for ax in framed]
    for (one, box), (other, beside) in [*product(_boxes(figure.texts, height), panels), *combinations(panels, 2)]:
        if box.overlaps(beside):
            found.append((one, other))
    for ax in framed:
        dots, legend = _dots(ax), ax.get_legend()
        found += [(name, "dot") for name, box in _boxes(ax.texts, height) if box.count_contains(dots)]
        if legend and any(path.intersects_bbox(legend.get_window_extent()) for path in _drawn_paths(ax)):
            found.append(("legend", "line"))
    return found
