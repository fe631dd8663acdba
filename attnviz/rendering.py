"""Planned figures to files' bytes: PNG, SVG and PDF, the same bytes on every run.

Drawing 144 figures one after another with matplotlib takes 60 ms each, nearly all of it for parts
that never change: ticks, token labels, colour bar. Here those are drawn once, and each head's cells
and title are written into a copy of the picture. PNGs are indexed (the colour scale and greys are
all there is in them), which makes them small, and compressed in threads meanwhile.
"""

import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from attnviz.colours import LEVELS, Pixels, colour_levels, colour_table, magnified
from attnviz.drawing import HeatmapFigure, figure_style, heatmap_figure, heatmap_layout, overview_figure
from attnviz.figures import DPI, HeatmapPlan, OverviewPlan

__all__ = ["FORMATS", "figure_bytes", "heatmap_files", "heatmap_pixels", "overview_file", "palette"]

FORMATS = ("png", "svg", "pdf")
"""File formats of figures."""

_SOFTWARE = "attnviz"
_THREADS = 2


def overview_file(plan: OverviewPlan, file_format: str) -> bytes:
    """The file of an overview; for PNG the image is put in as it is, past matplotlib's resampling."""
    if file_format != "png":
        return figure_bytes(overview_figure(plan), file_format)
    pixels = _drawn(overview_figure(plan, image=False))
    left, top = plan.origin
    height, width, _ = plan.image.shape
    place = pixels[top : top + height, left : left + width]
    np.minimum(place, plan.image, out=place)  # the names stand where the image is white
    return _png(_indexed(pixels))


def figure_bytes(figure: Figure, file_format: str, *, indexed: bool = True) -> bytes:
    """One figure as a file; without dates, so that equal figures are equal files.

    Args:
        figure: to draw.
        file_format: one of :data:`FORMATS`.
        indexed: the figure holds only greys and colours of the scale, so that its PNG can have a palette.
    """
    if file_format == "png":
        pixels = _drawn(figure)
        return _png(_indexed(pixels)) if indexed else _full_colour_png(pixels)
    metadata = {"svg": {"Date": None, "Creator": _SOFTWARE}, "pdf": {"CreationDate": None, "Creator": _SOFTWARE}}
    buffer = io.BytesIO()
    with figure_style():
        figure.savefig(buffer, format=file_format, metadata=metadata[file_format])
    return buffer.getvalue()


def heatmap_files(plans: Iterable[HeatmapPlan], file_format: str) -> Iterator[bytes]:
    """The files of many heatmaps of the same text, in order.

    Args:
        plans: all with the same labels; only cells, title and evidence may differ.
        file_format: one of :data:`FORMATS`.
    """
    if file_format != "png":
        for plan in plans:
            yield figure_bytes(heatmap_figure(plan, vector=True), file_format)
        return
    yield from _in_threads(_png, heatmap_pixels(plans))


def heatmap_pixels(plans: Iterable[HeatmapPlan]) -> Iterator[Pixels]:
    """The pictures of many heatmaps of the same text, [height, width] places in :func:`palette`.

    The first plan's figure is drawn once without cells and title; every plan then adds its own. The
    pixels are those of drawing each figure anew.
    """
    layout: HeatmapFigure | None = None
    for plan in plans:
        if layout is None:
            with figure_style():
                layout = heatmap_layout(plan)
                background = _drawn(layout.figure)
            indexed = _indexed(background)
        with figure_style():
            strip = _title_strip(layout, background, plan)
        picture = indexed.copy()
        picture[: len(strip)] = _indexed(strip)
        cells = magnified(colour_levels(plan.values, plan.vmax), plan.cell)
        picture[layout.top : layout.top + plan.size, layout.left : layout.left + plan.size] = cells
        yield picture


@cache
def palette() -> Pixels:
    """The colours of every PNG, [256, 3]: the scale of the weights, then greys from black to white."""
    greys = np.linspace(0, 255, 256 - LEVELS).round().astype(np.uint8)
    return np.concatenate([colour_table(), greys[:, None].repeat(3, axis=1)])


def _title_strip(layout: HeatmapFigure, background: Pixels, plan: HeatmapPlan) -> Pixels:
    """The rows above the cells with this plan's title, [rows, width, 3]."""
    canvas = layout.figure.canvas
    assert isinstance(canvas, FigureCanvasAgg)
    strip = np.asarray(canvas.buffer_rgba())[: layout.top - 1, :, :3]
    strip[:] = background[: layout.top - 1]
    layout.name(plan)
    for text in (layout.title, layout.evidence):
        text.draw(canvas.get_renderer())
    return strip


def _drawn(figure: Figure) -> Pixels:
    canvas = FigureCanvasAgg(figure)
    with figure_style():
        canvas.draw()
    pixels: Pixels = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    return pixels


def _indexed(pixels: Pixels) -> Pixels:
    """Places in the palette of a picture that holds only greys and colours of the scale.

    The sum of red, green and blue falls strictly along the scale, so it alone finds the step.
    """
    red, green, blue = pixels[..., 0], pixels[..., 1], pixels[..., 2]
    total = red.astype(np.uint16) + green + blue
    return np.where((red == green) & (green == blue), _grey_places()[red], _scale_places()[total])


@cache
def _grey_places() -> Pixels:
    steps = 255 - LEVELS
    places: Pixels = (LEVELS + np.round(np.arange(256) / 255 * steps)).astype(np.uint8)
    return places


@cache
def _scale_places() -> Pixels:
    totals = colour_table().astype(np.int64).sum(axis=1)
    nearest: Pixels = np.abs(np.arange(766)[:, None] - totals[None, :]).argmin(axis=1).astype(np.uint8)
    return nearest


def _png(picture: Pixels) -> bytes:
    image = Image.fromarray(picture).convert("L")
    image.putpalette(palette().tobytes())
    return _saved(image, 3)


def _full_colour_png(pixels: Pixels) -> bytes:
    return _saved(Image.fromarray(pixels), 6)


def _saved(image: Image.Image, compress_level: int) -> bytes:
    information = PngInfo()
    information.add_text("Software", _SOFTWARE)
    buffer = io.BytesIO()
    image.save(buffer, format="png", dpi=(DPI, DPI), pnginfo=information, compress_level=compress_level)
    return buffer.getvalue()


def _in_threads(encode: Callable[[Pixels], bytes], pictures: Iterable[Pixels]) -> Iterator[bytes]:
    """Encode in order, a few pictures ahead of the reader."""
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: list[Future[bytes]] = []
        try:
            for picture in pictures:
                waiting.append(pool.submit(encode, picture))
                if len(waiting) > 2 * _THREADS:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()
