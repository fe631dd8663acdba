"""Planned figures to files' bytes: PNG, SVG and PDF, the same bytes on every run.

Drawing 144 figures one after another with matplotlib takes 60 ms each, nearly all of it for parts
that never change: ticks, token labels, colour bar. Here those are drawn once, and each head's cells,
their numbers and its title are written into a copy of the picture. PNGs are indexed (the colour scale
and greys are all there is in them), which makes them small, and compressed in threads meanwhile.
SVGs are written from one that was drawn once (:mod:`attnviz.figures.vectors`).
"""

import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from attnviz.figures.colours import Pixels, magnified
from attnviz.figures.heatmap_drawing import HeatmapFigure, figure_style, heatmap_figure, heatmap_layout
from attnviz.figures.heatmaps import HeatmapPlan
from attnviz.figures.look import PLAIN, Look
from attnviz.figures.overview_drawing import overview_figure
from attnviz.figures.overviews import OverviewPlan
from attnviz.figures.palettes import indexed as indexed_pixels
from attnviz.figures.palettes import palette, png
from attnviz.figures.stamps import NumberTiles, TextStrips
from attnviz.figures.vectors import svg_files

__all__ = ["FORMATS", "figure_bytes", "heatmap_files", "heatmap_pixels", "overview_file", "palette"]

FORMATS = ("png", "svg", "pdf")
"""File formats of figures."""

_SOFTWARE = "attnviz"
_PRINTED = 300
_THREADS = 2


def overview_file(plan: OverviewPlan, file_format: str) -> bytes:
    """The file of an overview; for PNG the patterns are put in as they are, past matplotlib's resampling."""
    if file_format != "png":
        return figure_bytes(overview_figure(plan), file_format)
    pixels = _drawn(overview_figure(plan, image=False))
    left, top = plan.origin
    size = plan.size + 2
    for _, _, x, y in plan.cells:
        pixels[top + y - 1 :, left + x - 1 :][:size, :size] = plan.image[y - 1 :, x - 1 :][:size, :size]
    theme = plan.look.theme
    return png(indexed_pixels(pixels, theme, marks=True), plan.dpi, theme, marks=True)


def figure_bytes(figure: Figure, file_format: str, *, indexed: bool = True, look: Look = PLAIN) -> bytes:
    """One figure as a file; without dates, so that equal figures are equal files.

    Args:
        figure: to draw.
        file_format: one of :data:`FORMATS`.
        indexed: the figure holds only greys and colours of the scale, so that its PNG can have a palette.
        look: whose theme the palette is of; a picture of a chosen width has 300 pixels an inch.
    """
    if file_format == "png":
        if look.width is not None and not indexed:
            figure.set_dpi(max(_PRINTED, figure.dpi))
        pixels = _drawn(figure)
        if indexed:
            return png(indexed_pixels(pixels, look.theme), figure.dpi, look.theme)
        return _full_colour_png(pixels, figure.dpi)
    metadata = {"svg": {"Date": None, "Creator": _SOFTWARE}, "pdf": {"CreationDate": None, "Creator": _SOFTWARE}}
    buffer = io.BytesIO()
    with figure_style():
        figure.savefig(buffer, format=file_format, metadata=metadata[file_format], facecolor=figure.get_facecolor())
    return buffer.getvalue()


def heatmap_files(plans: Iterable[HeatmapPlan], file_format: str) -> Iterator[bytes]:
    """The files of many heatmaps of the same text, in order.

    Args:
        plans: all with the same labels and look; only cells, scale of the head, title and evidence may differ.
        file_format: one of :data:`FORMATS`.
    """
    if file_format == "svg":
        yield from svg_files(plans, lambda figure: figure_bytes(figure, "svg"))
    elif file_format == "pdf":
        for plan in plans:
            yield figure_bytes(heatmap_figure(plan, vector=True), file_format)
    else:
        yield from _in_threads(lambda plan, picture: png(picture, plan.dpi, plan.look.theme), _pictures(plans))


def heatmap_pixels(plans: Iterable[HeatmapPlan]) -> Iterator[Pixels]:
    """The pictures of many heatmaps of the same text, [height, width] places in :func:`palette`.

    The first plan's figure is drawn once without cells and title; every plan then adds its own. The
    pixels are those of drawing each figure anew, ``heatmap_figure(plan, pieced=True)``.
    """
    for _, picture in _pictures(plans):
        yield picture


def _pictures(plans: Iterable[HeatmapPlan]) -> Iterator[tuple[HeatmapPlan, Pixels]]:
    layout: HeatmapFigure | None = None
    for plan in plans:
        if layout is None:
            with figure_style():
                layout = heatmap_layout(plan)
                empty = indexed_pixels(_drawn(layout.figure), plan.look.theme)
            texts = TextStrips(plan.dpi, plan.look.theme)
            tiles = None if plan.number_size is None else NumberTiles(plan)
        picture = empty.copy()
        for slot, words in zip(layout.slots, layout.words(plan), strict=True):
            texts.write(picture, slot, words)
        cells = magnified(plan.levels, plan.cell) if tiles is None else tiles.cells(plan)
        picture[layout.top : layout.top + plan.size, layout.left : layout.left + plan.size] = cells
        yield plan, picture


def _drawn(figure: Figure) -> Pixels:
    canvas = FigureCanvasAgg(figure)
    with figure_style():
        canvas.draw()
    pixels: Pixels = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    return pixels


def _full_colour_png(pixels: Pixels, dpi: float) -> bytes:
    information = PngInfo()
    information.add_text("Software", _SOFTWARE)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png", dpi=(dpi, dpi), pnginfo=information, compress_level=6)
    return buffer.getvalue()


def _in_threads(
    encode: Callable[[HeatmapPlan, Pixels], bytes], pictures: Iterable[tuple[HeatmapPlan, Pixels]]
) -> Iterator[bytes]:
    """Encode in order, a few pictures ahead of the reader."""
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: list[Future[bytes]] = []
        try:
            for plan, picture in pictures:
                waiting.append(pool.submit(encode, plan, picture))
                if len(waiting) > 2 * _THREADS:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()
