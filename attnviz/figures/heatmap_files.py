"""Files of many heatmaps of one text, byte-identical on every run: a page is laid out once, and filled head by head.

A new matplotlib figure takes about a quarter of a second, nearly all of it for layout, labels, ticks and colour bar,
which are the same for every head. What differs, cells, numbers, title and evidence, goes into a copy of a PNG's pixels,
with a palette, compressed in threads; into an SVG as elements; and into the page of a PDF, which matplotlib draws.
"""

import math
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from itertools import islice
from xml.sax.saxutils import escape

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.font_manager import FontProperties
from numpy.typing import NDArray
from PIL import Image

from attnviz.figures.fonts import font_families, text_width
from attnviz.figures.heatmap import HeatmapPage, HeatmapPlan, heatmap_figure
from attnviz.figures.matrix import MESH_CELLS, Array, contrasting_ink, hatch, hundredths, numbers, painted
from attnviz.figures.style import DPI, Style, figure_bytes, figure_style, file_dpi, png_bytes

# steps of the colour scale, and from paper to ink; with black and white they fill a palette of 256
LEVELS, _GREYS = 176, 78
_THREADS, _AHEAD = 2, 16
_DIGITS = 0.73  # height of a digit, as a multiple of the size of the letters
_EDGE = 4
# Unicode ranges of scripts whose letters depend on their neighbours: Hebrew, Arabic, Hindi
_JOINED = range(0x590, 0x2000)
_FILLED = re.compile(r'(<g id="(?:cells|number|line)-.*?</g>)', re.DOTALL)  # elements of an SVG that differ
_PACK = np.array([1 << 16, 1 << 8, 1])  # from red, green and blue to one number
_Pixels = NDArray[np.uint8]


def heatmap_files(plans: Iterable[HeatmapPlan], style: Style, file_format: str) -> Iterator[tuple[str, bytes, str]]:
    """Name, content and caption of each file, in order; PNGs are drawn a few pictures ahead of the reader.

    All plans have the same labels, notes and size; only values, title and evidence may differ. Those with outlined
    cells are figures of their own.
    """
    vector, in_pixels = file_format != "png", file_format == "png" and style.is_plain
    pages: dict[tuple[object, ...], _Page] = {}  # by what changes the layout

    def picture(plan: HeatmapPlan) -> bytes | _Pixels:
        if plan.outlines:
            return figure_bytes(heatmap_figure(plan, style, vector), file_format, style)
        kind: type[_Page] = _PixelPage if in_pixels else _Page
        if file_format == "svg" and plan.values.size <= MESH_CELLS:
            kind = _ElementPage
        page = next(iter(pages.values()), None) or kind(plan, style, vector)
        lines = ((size, *font_families([line])) for line, size, _ in page.lines(plan))
        layout = bool(np.isnan(plan.values).any()), *lines
        if layout not in pages:
            pages[layout] = kind(plan, style, vector) if pages else page
        return pages[layout].picture(plan, file_format)

    def encoded(content: bytes | _Pixels) -> bytes:  # compression releases the GIL
        if isinstance(content, bytes):
            return content
        image = Image.fromarray(content)
        image.putpalette(palette(style.theme).tobytes())
        return png_bytes(image, file_dpi(style), compress_level=2)

    left = iter(plans)
    with ThreadPoolExecutor(_THREADS) as pool:
        while some := list(islice(left, _AHEAD if in_pixels else 1)):  # filled here while others are encoded
            for plan, content in zip(some, pool.map(encoded, map(picture, some)), strict=True):
                yield f"{plan.stem}.{file_format}", content, plan.caption


class _Page(HeatmapPage):
    def picture(self, plan: HeatmapPlan, file_format: str) -> bytes | _Pixels:
        """One head's picture."""
        return figure_bytes(self.filled(plan), file_format, self.style)


class _ElementPage(_Page):
    """The page as an SVG, without what differs between heads."""

    @figure_style()
    def __init__(self, plan: HeatmapPlan, style: Style, vector: bool) -> None:
        super().__init__(plan, style, vector)
        self.cells.set_gid("cells-")
        for at, text in enumerate(self.texts):
            text.set_gid(f"line-{at}")
        self.ax.text(0, 0, "0", size=10, ha="center", va="center_baseline", color="black", gid="number-")
        self.parts = _FILLED.split(figure_bytes(self.figure, "svg", style).decode())
        self.places = {part.split('"', 2)[1]: at for at, part in enumerate(self.parts) if at % 2}
        rows, columns = plan.values.shape
        (left, bottom), (right, top) = self.ax.get_position().get_points() * self.figure.get_size_inches() * 72
        self.size = (right - left) / columns, (top - bottom) / rows
        self.lefts = left + self.size[0] * np.arange(columns)
        self.tops = 72 * self.figure.get_figheight() - top + self.size[1] * np.arange(rows)

    def picture(self, plan: HeatmapPlan, file_format: str) -> bytes:  # noqa: ARG002 - as all pages
        """One head's SVG."""
        parts, (width, height) = list(self.parts), self.size
        for at, (line, *_) in enumerate(self.lines(plan)):
            begin, _, _ = parts[self.places[f"line-{at}"]].partition("</text>")
            parts[self.places[f"line-{at}"]] = f"{begin[: begin.rindex('>')]}>{escape(line)}</text></g>"
        colours = painted(plan.values, self.cells.cmap, plan.norm)
        packed = np.rint(colours[..., :3] * 255).astype(int) @ _PACK
        shapes: dict[str, str] = {}  # by colour
        for row, column in np.argwhere(~np.isnan(plan.values)):
            shape = f"M{self.lefts[column]:.6g} {self.tops[row]:.6g}h{width:.6g}v{height:.6g}h-{width:.6g}z"
            colour = f"#{packed[row, column]:06x}"
            shapes[colour] = shapes.get(colour, "") + shape
        paths = (f'<path d="{shape}" fill="{colour}" stroke="{colour}"/>\n' for colour, shape in shapes.items())
        parts[self.places["cells-"]] = f'<g stroke-width="0.1">\n{"".join(paths)}</g>'
        texts, size = numbers(plan.values, hundredths, width, height)
        _, look, _, y = re.findall('"([^"]*)"', parts[self.places["number-"]])[:4]  # of the sample, of 10 points
        down = height / 2 + (float(y) - self.tops[0] - height / 2) * size / 10
        written = ""
        for (row, column), text in texts.items():
            x, y, ink = self.lefts[column] + width / 2, self.tops[row] + down, contrasting_ink(colours[row, column])
            written += f'<text x="{x:.6g}" y="{y:.6g}" fill="{ink}">{text}</text>\n'
        parts[self.places["number-"]] = f'<g style="{look.replace("10px", f"{size:g}px")}">\n{written}</g>'
        return "".join(parts).encode()


class _PixelPage(_Page):
    """The page as palette indices, without what differs between heads: cells, title and evidence."""

    @figure_style()
    def __init__(self, plan: HeatmapPlan, style: Style, vector: bool) -> None:
        super().__init__(plan, style, vector)
        self.dpi = file_dpi(style)
        hatch(self.ax.patch, style)
        box = self.ax.get_window_extent()
        pixel = self.dpi / DPI
        self.left, self.top = round(box.x0 * pixel), round((self.figure.bbox.height - box.y1) * pixel)
        self.cell = round(box.width * pixel / plan.values.shape[1])
        for artist in (*self.texts, self.cells):
            artist.set_visible(False)
        self.figure.set_dpi(self.dpi)
        canvas = FigureCanvasAgg(self.figure)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3].copy()
        line = round(pixel)
        down, across = (self.cell * n for n in plan.values.shape)
        around = pixels[self.top - line :, self.left - line :][: down + 2 * line, : across + 2 * line]
        hatched = around[line:-line, line:-line].copy()
        around[:] = np.round(np.array(to_rgb(style.frame)) * 255)  # the frame is around the cells, not on them
        around[line:-line, line:-line] = hatched
        packed: NDArray[np.int64] = pixels @ _PACK
        distinct, back = np.unique(packed, return_inverse=True)
        colours = distinct[:, None] >> np.array([16, 8, 0]) & 255
        self.paper: _Pixels = _nearest(colours, style.theme)[back].reshape(pixels.shape[:2])

    def picture(self, plan: HeatmapPlan, file_format: str) -> _Pixels:  # noqa: ARG002 - as all pages
        """The palette indices of one head's picture."""
        picture, theme = self.paper.copy(), self.style.theme
        height, width = picture.shape
        for place, (line, size, weight) in zip(self.texts, self.lines(plan), strict=True):
            left, up = place.get_position()
            x, tall = left * width, math.ceil(1.2 * size * self.dpi / 72)
            strip = picture[round((1 - up) * height) - tall :][: 2 * tall]
            joined = any(ord(letter) in _JOINED for letter in line)
            for piece in [line] if joined else re.findall(r"[\d.]+|[^\d.]+", line):  # what other lines repeat
                box = math.ceil(text_width(piece, size, weight, self.dpi)) + 2 * _EDGE, len(strip)
                area = strip[:, round(x) - _EDGE :][:, : box[0]]
                coverage = _coverage(piece, size, weight, self.dpi, box, (_EDGE, tall))[:, : area.shape[1]]
                np.copyto(area, blended(0, self.style.ink, theme)[coverage], where=coverage > 0)
                x += text_width(f"{piece}|", size, weight, self.dpi) - text_width("|", size, weight, self.dpi)
        cell, points = self.cell, self.cell * 72 / self.dpi
        shares = np.clip(np.ma.filled(plan.norm(np.nan_to_num(plan.values)), 0.0), 0, 1)
        levels = (shares * (LEVELS - 1)).round().astype(np.uint8)
        cells = levels.repeat(cell, axis=0).repeat(cell, axis=1)
        texts, size = numbers(plan.values, hundredths, points, points)
        for (row, column), text in texts.items():
            level = int(levels[row, column])
            inks = blended(level, contrasting_ink(palette(theme)[level] / 255), theme)
            # in the middle of the cell
            start = (cell - text_width(text, size, dpi=self.dpi)) / 2, (cell + _DIGITS * size * self.dpi / 72) / 2
            coverage = _coverage(text, size, "normal", self.dpi, (cell, cell), start)
            cells[row * cell :, column * cell :][:cell, :cell] = inks[coverage]
        shown = ~np.isnan(plan.values).repeat(cell, axis=0).repeat(cell, axis=1)
        np.copyto(picture[self.top :, self.left :][: len(cells), : cells.shape[1]], cells, where=shown)
        return picture


@lru_cache(4096)
def _coverage(
    text: str, size: float, weight: str, dpi: float, box: tuple[int, int], start: tuple[float, float]
) -> _Pixels:
    """Coverage of each pixel of a box (width and height) by a text that starts at x and baseline, 0-255."""
    renderer = RendererAgg(*box, dpi)
    font = FontProperties(family=font_families([text]), size=size, weight=weight)
    renderer.draw_text(renderer.new_gc(), *start, text, font, 0)
    coverage: _Pixels = np.asarray(renderer.buffer_rgba())[..., 3].copy()
    return coverage


@cache
def palette(theme: str) -> _Pixels:
    """Palette of a PNG, [256, 3]: the colour scale from paper on, greys from paper to ink, black, white."""
    style = Style(theme)
    paper, ink = np.array(to_rgb(style.paper)), np.array(to_rgb(style.ink))
    scale = style.colour_map()(np.linspace(0, 1, LEVELS))[:, :3]
    ramp = np.linspace(paper, ink, _GREYS)
    colours: _Pixels = (np.concatenate([scale, ramp, np.zeros((1, 3)), np.ones((1, 3))]) * 255).round().astype(np.uint8)
    return colours


def _nearest(colours: Array, theme: str) -> _Pixels:
    """Index of the nearest colour in the palette, for colours [k, 3] of 0-255."""
    known = palette(theme).astype(np.float32)
    nearest: _Pixels = ((known**2).sum(axis=1) - 2 * colours @ known.T).argmin(axis=1).astype(np.uint8)
    return nearest


@cache
def blended(level: int, ink: str, theme: str) -> _Pixels:
    """Palette indices from a colour of the palette to ink, by coverage, [256]."""
    inks = np.linspace(palette(theme)[level], np.array(to_rgb(ink)) * 255, 256)
    indices = _nearest(inks, theme)
    indices[0] = level  # also where another step has the same colour
    return indices
