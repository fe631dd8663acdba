"""The files of many heatmaps of one text: PNG, SVG and PDF, the same bytes on every run.

A new matplotlib figure a head takes a tenth of a second, nearly all of it for parts that never change: labels, ticks,
colour bar. Here a page is drawn once, and each head's cells, numbers, title and evidence are put into a copy of it:
pixels into PNGs, elements into SVGs. PNGs have a palette, which makes them small, and are compressed in threads
meanwhile.
"""

import base64
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.font_manager import FontProperties
from numpy.typing import NDArray

from attnviz.figures.files import DPI, figure_bytes, figure_style
from attnviz.figures.fonts import DEFAULT_FAMILY, advance, font_families, pieces, text_width
from attnviz.figures.heatmap import AIR, HeatmapPage, HeatmapPlan, heatmap_page
from attnviz.figures.indexed import LEVELS, Pixels, indexed, ink_ramp, inked, palette, png
from attnviz.figures.look import Look
from attnviz.figures.matrix import contrasting_ink, hundredths, value_size, write_numbers
from attnviz.figures.page import heading

__all__ = ["heatmap_files"]

_THREADS = 2
_SVG_RECTANGLES = 64
_NUMBERED = 24
_MARK, _CELLS = "attnviz-text-{}-", "attnviz-cells"
_EDGE = 4
_DIGITS = 0.73
"""Height of a digit, as a multiple of the size of the letters."""


def heatmap_files(plans: Iterable[HeatmapPlan], look: Look, file_format: str) -> Iterator[tuple[str, bytes, str]]:
    """Name, content and caption of each file, in order.

    Args:
        plans: all with the same labels, notes and size; only values, title and evidence may differ.
        look: theme, scale and width.
        file_format: one of :data:`attnviz.figures.files.FORMATS`.
    """
    make = {"png": _png_files, "svg": _svg_files, "pdf": _pdf_files}[file_format]
    waiting: list[HeatmapPlan] = []

    def noted() -> Iterator[HeatmapPlan]:
        for plan in plans:
            waiting.append(plan)
            yield plan

    for content in make(noted(), look):
        plan = waiting.pop(0)
        yield f"{plan.stem}.{file_format}", content, plan.caption


class _Page:
    """A page drawn once; its first texts, title and evidence, change from head to head."""

    def __init__(self, plan: HeatmapPlan, look: Look, vector: bool) -> None:
        with figure_style():
            self.page: HeatmapPage = heatmap_page(plan, look, vector)
        self.texts = self.page.figure.texts[: len(_lines(plan, self.page))]
        self.theme = look.theme

    def number_size(self, plan: HeatmapPlan) -> float | None:
        """Points of the numbers in the cells; None where they cannot be read."""
        if len(plan.values) > _NUMBERED:
            return None
        points = self.page.cell * 72 / self.page.dpi
        texts = [text for value in np.unique(_in_hundredths(plan)) if (text := hundredths(value / 100))]
        return value_size(texts, points, points, AIR) if texts else None


def _lines(plan: HeatmapPlan, page: HeatmapPage) -> list[tuple[str, float, str]]:
    return heading(plan.title, (plan.evidence,), page.figure.get_figwidth())


def _pages(plans: Iterable[HeatmapPlan], make: Callable[[HeatmapPlan], _Page]) -> Iterator[tuple[HeatmapPlan, Any]]:
    """Each plan with a page that has as many lines for title and evidence as it needs, in the same fonts."""
    pages: dict[tuple[object, ...], _Page] = {}
    any_page: _Page | None = None
    for plan in plans:
        any_page = any_page or make(plan)
        lines = _lines(plan, any_page.page)
        key = tuple((size, *font_families([line])) for line, size, _ in lines)
        if key not in pages:
            pages[key] = any_page if not pages else make(plan)
        yield plan, pages[key]


def _png_files(plans: Iterable[HeatmapPlan], look: Look) -> Iterator[bytes]:
    """Encode in order, a few pictures ahead of the reader."""
    pages = _pages(plans, lambda plan: _Raster(plan, look))
    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: list[Future[bytes]] = []
        try:
            for plan, page in pages:
                waiting.append(pool.submit(png, page.filled(plan), page.page.dpi, look.theme))
                if len(waiting) > 2 * _THREADS:
                    yield waiting.pop(0).result()
            while waiting:
                yield waiting.pop(0).result()
        finally:
            for future in waiting:
                future.cancel()


class _Raster(_Page):
    """A page as places in the palette, without what changes from head to head."""

    def __init__(self, plan: HeatmapPlan, look: Look) -> None:
        super().__init__(plan, look, False)
        for artist in (*self.texts, self.page.cells):
            artist.set_visible(False)
        figure = self.page.figure
        figure.set_dpi(self.page.dpi)
        canvas = FigureCanvasAgg(figure)
        with figure_style():
            canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3].copy()
        line, side = round(self.page.dpi / DPI), self.page.cell * len(plan.values)
        box = pixels[self.page.top - line :, self.page.left - line :][: side + 2 * line, : side + 2 * line]
        box[:] = np.round(np.array(to_rgb(look.greys.frame)) * 255)  # the frame is around the cells, not on them
        self._paper = indexed(pixels, look.theme)
        self._tiles: dict[tuple[int, float | None], Pixels] = {}

    def filled(self, plan: HeatmapPlan) -> Pixels:
        """The picture of one head."""
        picture = self._paper.copy()
        height, width = picture.shape
        for text, (line, size, weight) in zip(self.texts, _lines(plan, self.page), strict=True):
            x, y = text.get_position()[0] * width, (1 - text.get_position()[1]) * height
            for piece in pieces(line):
                ink, baseline = _letters(piece, size, weight, self.page.dpi)
                left, top = round(x) - _EDGE, round(y) - baseline
                place = picture[top : top + len(ink), left : left + ink.shape[1]]
                ink = ink[:, : place.shape[1]]
                np.copyto(place, ink_ramp()[ink], where=ink > 0)
                x += advance(piece, size, self.page.dpi, weight)
        cells = self._cells(plan)
        picture[self.page.top :, self.page.left :][: len(cells), : len(cells)] = cells
        return picture

    def _cells(self, plan: HeatmapPlan) -> Pixels:
        """The cells with their numbers; there are few different ones, each of which is made once."""
        cell, m, size = self.page.cell, len(plan.values), self.number_size(plan)
        if size is None:
            return _levels(plan).astype(np.uint8).repeat(cell, axis=0).repeat(cell, axis=1)
        kinds, places = np.unique(_levels(plan) * 101 + _in_hundredths(plan), return_inverse=True)
        tiles = np.stack([self._tile(int(kind), size) for kind in kinds])[places.reshape(m, m)]
        square: Pixels = tiles.transpose(0, 2, 1, 3).reshape(m * cell, m * cell)
        return square

    def _tile(self, kind: int, size: float) -> Pixels:
        if (kind, size) not in self._tiles:
            level, number = divmod(kind, 101)
            cell, text = self.page.cell, hundredths(number / 100)
            tile = np.full((cell, cell), level, dtype=np.uint8)
            if text:
                ink, baseline = _letters(text, size, "normal", self.page.dpi)
                left = round((cell - text_width(text, size, self.page.dpi)) / 2) - _EDGE
                top = round((cell + _DIGITS * size * self.page.dpi / 72) / 2) - baseline
                rows, columns = (slice(max(0, -begin), cell - begin) for begin in (top, left))
                ink = ink[rows, columns]
                place = tile[max(top, 0) :, max(left, 0) :][: len(ink), : ink.shape[1]]
                place[:] = inked(self.theme)[level][ink]
            self._tiles[kind, size] = tile
        return self._tiles[kind, size]


@lru_cache(4096)
def _letters(text: str, size: float, weight: str, dpi: float) -> tuple[Pixels, int]:
    """How far each pixel of a text is covered, 0-255, with some room at the left, and the row of its baseline."""
    width = math.ceil(text_width(text, size, dpi, weight)) + 2 * _EDGE
    above, below = (math.ceil(size * dpi / 72 * part) + _EDGE for part in (1.1, 0.5))
    renderer = RendererAgg(width, above + below, dpi)
    font = FontProperties(family=font_families([text]), size=size, weight=weight)
    renderer.draw_text(renderer.new_gc(), _EDGE, above, text, font, 0)
    coverage: Pixels = np.asarray(renderer.buffer_rgba())[..., 3]
    return coverage, above


def _levels(plan: HeatmapPlan) -> NDArray[np.int64]:
    """[m, m], each weight's step of the colour scale."""
    shares = np.ma.filled(plan.norm(plan.values), 0.0)
    levels: NDArray[np.int64] = (np.clip(shares, 0, 1) * (LEVELS - 1)).round().astype(np.int64)
    return levels


def _in_hundredths(plan: HeatmapPlan) -> NDArray[np.int64]:
    """[m, m], the weights as they are written."""
    written: NDArray[np.int64] = np.rint(np.clip(plan.values, 0, 1) * 100).astype(np.int64)
    return written


def _svg_files(plans: Iterable[HeatmapPlan], look: Look) -> Iterator[bytes]:
    for plan, page in _pages(plans, lambda plan: _Svg(plan, look)):
        yield page.filled(plan)


class _Svg(_Page):
    """An SVG with marks where the texts of a head belong, parted where its cells do."""

    def __init__(self, plan: HeatmapPlan, look: Look) -> None:
        super().__init__(plan, look, True)
        self.page.axes.patch.set_gid(_CELLS)
        self.page.cells.remove()
        for number, text in enumerate(self.texts):
            text.set_text(_MARK.format(number))
        content = figure_bytes(self.page.figure, "svg", look).decode()
        begin, patch, after = content.partition(f'<g id="{_CELLS}">')
        inside, end, self._after = after.partition("</g>")
        self._before = begin + patch + inside + end + "\n"

    def filled(self, plan: HeatmapPlan) -> bytes:
        """The file of one head."""
        after = self._after
        for number, (line, _, _) in enumerate(_lines(plan, self.page)):
            after = after.replace(_MARK.format(number), escape(line))
        return (self._before + "".join(self._cells(plan)) + after).encode()

    def _cells(self, plan: HeatmapPlan) -> Iterator[str]:
        """Cells of one colour are one path; in large matrices all cells are an image, a pixel each."""
        page, m, levels = self.page, len(plan.values), _levels(plan)
        unit = 72 / page.dpi
        left, top, cell = page.left * unit, page.top * unit, page.cell * unit
        if m > _SVG_RECTANGLES:
            data = base64.b64encode(png(levels.astype(np.uint8), DPI, self.theme)).decode("ascii")
            yield (
                f'<image x="{left:.6g}" y="{top:.6g}" width="{m * cell:.6g}" height="{m * cell:.6g}" '
                'preserveAspectRatio="none" style="image-rendering:crisp-edges;image-rendering:pixelated" '
                f'xlink:href="data:image/png;base64,{data}"/>\n'
            )
            return
        xs, ys = ([f"{begin + place * cell:.6g}" for place in range(m)] for begin in (left, top))
        for level in np.unique(levels[levels > 0]):
            colour = to_hex(palette(self.theme)[level] / 255)
            path = "".join(
                f"M{xs[x]} {ys[y]}h{cell:.6g}v{cell:.6g}h-{cell:.6g}z" for y, x in np.argwhere(levels == level)
            )
            yield f'<path d="{path}" fill="{colour}" stroke="{colour}" stroke-width="0.2"/>\n'
        yield from self._numbers(plan, levels, (left, top, cell))

    def _numbers(
        self, plan: HeatmapPlan, levels: NDArray[np.int64], places: tuple[float, float, float]
    ) -> Iterator[str]:
        size, numbers, (left, top, cell) = self.number_size(plan), _in_hundredths(plan), places
        if size is None:
            return
        style = f"font: {size:g}px '{DEFAULT_FAMILY}'; text-anchor: middle"
        inks = np.array([contrasting_ink(colour / 255) for colour in palette(self.theme)[:LEVELS]])[levels]
        for ink in np.unique(inks[numbers > 0]):
            yield f'<g style="{style}" fill="{ink}">\n'
            for row, column in np.argwhere((numbers > 0) & (inks == ink)):
                x, y = left + (column + 0.5) * cell, top + (row + 0.5) * cell + _DIGITS / 2 * size
                yield f'<text x="{x:.5g}" y="{y:.5g}">{hundredths(numbers[row, column] / 100)}</text>\n'
            yield "</g>\n"


def _pdf_files(plans: Iterable[HeatmapPlan], look: Look) -> Iterator[bytes]:
    """One figure, whose texts, cells and numbers are exchanged."""
    for plan, page in _pages(plans, lambda plan: _Page(plan, look, True)):
        ax, cells = page.page.axes, page.page.cells
        for text, (line, _, _) in zip(page.texts, _lines(plan, page.page), strict=True):
            text.set_text(line)
        cells.set_array(plan.values)
        cells.set_norm(plan.norm)
        for number in list(ax.texts):
            number.remove()
        with figure_style():
            write_numbers(ax, plan.values, cells, hundredths, air=AIR)
        yield figure_bytes(page.page.figure, "pdf", look)
