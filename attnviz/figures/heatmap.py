"""Heatmap of one head, whose cells are whole pixels, and files of many, byte-identical on every run.

A page is laid out once, and filled head by head. A new matplotlib figure takes about a quarter of a second, nearly all
of it for layout, labels, ticks and colour bar, which are the same for every head. What differs, cells, numbers, title
and evidence, goes into a copy of a PNG's pixels, with a palette, compressed in threads; into an SVG as elements; and
into the page of a PDF, which matplotlib draws.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from numpy.typing import NDArray
from PIL import Image

from attnviz.figures.fonts import drawable, font_families, text_width
from attnviz.figures.matrix import (
    LANE,
    MESH_CELLS,
    Array,
    Bracket,
    Cells,
    Labels,
    Outline,
    bracket_lanes,
    cell_points,
    contrasting_ink,
    draw_brackets,
    draw_matrix,
    draw_outline,
    hatch,
    hundredths,
    label_pixels,
    label_size,
    name_axis,
    named_every,
    numbers,
    painted,
    write_numbers,
)
from attnviz.figures.page import (
    MARGIN,
    PIXEL,
    ColourScale,
    PanelPlan,
    fix_axes,
    freeze_layout,
    heading,
    page_width,
    run_layout,
)
from attnviz.figures.style import DPI, Style, figure_bytes, figure_style, file_dpi, png_bytes, text_colour

# pixels at DPI: of the largest and of the usual side of a heatmap, and of the largest cell
_MOST_CELLS, _SIDE, _LARGEST_CELL = 1024, 960, 44
_TICK, _AXIS_NAME, _BAR, _SLACK = 10, 24, 0.55, 0.08
_AXIS_TEXT = 7.5  # font size in points
OF_TWO_TEXTS = ("target (attends from)", "source (attended to)")  # names of rows and columns of cross-attention
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


@dataclass(frozen=True, kw_only=True)
class HeatmapPlan(ColourScale, PanelPlan):
    """One head's pattern, ready to draw."""

    evidence: str  # score of the label with its baseline, between title and notes
    values: Array  # [rows, columns], rows attend to columns; pooled by heatmap_pooling
    labels: Labels  # of the positions, before pooling
    bar_norm: Normalize  # the scale of the colour bar, the same for every head
    pooled: int = 1  # positions in one cell
    outlines: tuple[Outline, ...] = ()  # frames around cells
    forms: tuple[Callable[[float], str], ...] = (hundredths,)  # a value as text in its cell, the fullest form first
    keys: Labels | None = None  # of the columns, if other positions than the rows
    row_brackets: tuple[Bracket, ...] = ()  # of named stretches of the rows, before pooling
    column_brackets: tuple[Bracket, ...] = ()
    axes: tuple[str, str] = ("query (attends from)", "key (attended to)")  # names of rows and columns

    def page(self, style: Style) -> Figure:
        """A new figure with the heatmap, weights in the cells if they fit, and its colour bar."""
        return HeatmapPage(self, style).filled(self)

    def draw(self, ax: Axes, style: Style) -> Cells:
        """Draw cells, weights, labels and title on the caller's Axes, which keep their size; returns the cells."""
        cells = self.draw_cells(ax, style)
        title = "\n".join(drawable(line) for line in (self.title, self.evidence) if line and not style.bare)
        pad = 6 + LANE * len(bracket_lanes(self.column_brackets))
        family = font_families([title])
        ax.set_title(title, loc="left", fontsize=9, pad=pad, color=text_colour(style), family=family, parse_math=False)
        run_layout(ax.figure)
        any(write_numbers(ax, self.values, cells, form) for form in self.forms)
        return cells

    def draw_cells(self, ax: Axes, style: Style, points: float | None = None) -> Cells:
        """Draw all but title and numbers; ``points``: the size of a cell, if it is known before the layout."""
        cells = draw_matrix(ax, self.values, self, style)
        width, height = cell_points(ax, self.values.shape, points)
        for outline in self.outlines:
            draw_outline(ax, outline, (width, height), style)
        look: dict[str, Any] = {"fontsize": _AXIS_TEXT, "color": text_colour(style, "axes.labelcolor")}
        for axis, name, labels, brackets, n, cell in zip(
            (ax.yaxis, ax.xaxis),
            self.axes,
            (self.labels, self.keys or self.labels),
            (self.row_brackets, self.column_brackets),
            self.values.shape,
            (height, width),
            strict=True,
        ):
            name_axis(axis, labels, n, cell, self.pooled, style)
            draw_brackets(axis, brackets, cell, self.pooled, style)
            fits = text_width(name, _AXIS_TEXT) <= n * cell / PIXEL + 20
            axis.set_label_text(name if fits else name.partition(" ")[0], **look)
            axis.labelpad = 2
        return cells


def heatmap_pooling(labels: Sequence[str], style: Style, n_keys: int = 0) -> tuple[int, int]:
    """Positions per cell, so that every cell has a pixel, and the interval of labels, in positions.

    ``labels`` are those of the rows; ``n_keys``: columns, if another number.
    """
    n = max(len(labels), n_keys)
    most = _MOST_CELLS if style.room is None else min(_MOST_CELLS, _room(labels, style))
    pooled = math.ceil(n / most)
    return pooled, named_every(_cell(labels, math.ceil(n / pooled), style) * 72 / file_dpi(style), pooled)


def has_numbers(values: Array, labels: Sequence[str], style: Style) -> bool:
    """Whether a heatmap of these weights, in hundredths, has numbers in its cells; ``labels`` are those of the rows."""
    points = _cell(labels, max(values.shape), style) * 72 / file_dpi(style)
    return bool(numbers(values, hundredths, points, points)[0])


class HeatmapPage:
    """A page with its layout, in which cells are whole pixels; it is filled with one head after the other.

    Of the heads title, evidence and values differ; lines of title and evidence are as many and in the same fonts.
    """

    def __init__(self, plan: HeatmapPlan, style: Style) -> None:
        self.style = style
        texts = plan.labels.texts
        dpi = file_dpi(style)
        rows, columns = plan.values.shape
        cell = _cell(texts, max(rows, columns), style)
        points = cell * 72 / dpi
        size = label_size(points)
        beside, below = (
            (label_pixels(labels.texts, size) + _TICK) / DPI for labels in (plan.labels, plan.keys or plan.labels)
        )
        right, above = (
            len(bracket_lanes(brackets)) * LANE / 72 for brackets in (plan.row_brackets, plan.column_brackets)
        )
        width = page_width(style, cell * columns / dpi + beside + right + 2 * MARGIN + _AXIS_NAME / DPI + _SLACK)
        across = min(cell * columns / dpi, width - beside - right - 2 * MARGIN)
        body = cell * rows / dpi + below + above + _AXIS_NAME / DPI + max(_BAR, plan.bar_inches(across)) + _SLACK
        figure = plan.new_page(style, width=width, body=body, notes=(plan.evidence, *plan.notes))
        ax = figure.add_subplot()
        self.figure, self.ax = figure, ax
        self.cells = plan.draw_cells(ax, style, points)
        self.texts, self.names = figure.texts[: len(self.lines(plan))], len(ax.texts)
        replace(plan, norm=plan.bar_norm).colour_bar([ax], style, across)
        freeze_layout(figure)
        box = ax.get_window_extent()
        pixel = DPI / dpi
        cell = max(1, min(cell, int(min(box.width / columns, box.height / rows) / pixel)))
        fix_axes(figure, ax, cell * columns * pixel, cell * rows * pixel)

    def lines(self, plan: HeatmapPlan) -> list[tuple[str, float, str]]:
        """The lines of title and evidence, with size and weight."""
        return heading(plan.title, (plan.evidence,), self.style, self.figure.get_figwidth())

    def filled(self, plan: HeatmapPlan) -> Figure:
        """The page with a head's title, evidence and cells, and with its weights in the cells if they fit."""
        for text, (line, *_) in zip(self.texts, self.lines(plan), strict=True):
            text.set_text(line)
        self.cells.set_norm(plan.norm)
        self.cells.set_array(plan.values)
        for number in self.ax.texts[self.names :]:
            number.remove()
        any(write_numbers(self.ax, plan.values, self.cells, form) for form in plan.forms)  # as fully as all of them fit
        return self.figure

    def picture(self, plan: HeatmapPlan) -> bytes | _Pixels:
        """One head's picture."""
        return figure_bytes(self.filled(plan), self.style.file_format, self.style)


def _cell(labels: Sequence[str], m: int, style: Style) -> int:  # pixels of a cell in the file, with m cells a row
    if style.room is None:
        return max(1, min(_LARGEST_CELL, round(_SIDE / m)))
    return max(1, min(2 * _LARGEST_CELL, _room(labels, style) // m))


def _room(labels: Sequence[str], style: Style) -> int:  # pixels for the cells in a file of a chosen width
    assert style.room is not None
    beside = label_pixels(labels, label_size(100)) + _TICK + _AXIS_NAME + 2 * MARGIN * DPI
    return round((style.room * DPI - beside) * file_dpi(style) / DPI)


def heatmap_files(plans: Iterable[HeatmapPlan], style: Style, file_format: str) -> Iterator[tuple[str, bytes, str]]:
    """Name, content and caption of each file, in order; PNGs are drawn a few pictures ahead of the reader.

    All plans have the same labels, notes and size; only values, title and evidence may differ. Those with outlined
    cells are figures of their own.
    """
    style = style.for_file(file_format)
    in_pixels = style.is_plain and not style.vector
    pages: dict[tuple[object, ...], HeatmapPage] = {}  # by what changes the layout

    @figure_style()
    def picture(plan: HeatmapPlan) -> bytes | _Pixels:
        if plan.outlines:
            return figure_bytes(plan.page(style), file_format, style)
        kind: type[HeatmapPage] = _PixelPage if in_pixels else HeatmapPage
        if file_format == "svg" and plan.values.size <= MESH_CELLS:
            kind = _ElementPage
        page = next(iter(pages.values()), None) or kind(plan, style)
        lines = ((size, *font_families([line])) for line, size, _ in page.lines(plan))
        layout = bool(np.isnan(plan.values).any()), *lines
        if layout not in pages:
            pages[layout] = kind(plan, style) if pages else page
        return pages[layout].picture(plan)

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


class _ElementPage(HeatmapPage):
    """The page as an SVG, without what differs between heads."""

    def __init__(self, plan: HeatmapPlan, style: Style) -> None:
        super().__init__(plan, style)
        self.cells.set_gid("cells-")
        for at, text in enumerate(self.texts):
            text.set_gid(f"line-{at}")
        self.ax.text(0, 0, "0", size=10, ha="center", va="center_baseline", color="black", gid="number-")
        self.parts = _FILLED.split(figure_bytes(self.figure, "svg", style).decode())
        self.places = {part.split('"', 2)[1]: at for at, part in enumerate(self.parts) if at % 2}
        rows, columns = plan.values.shape
        box, points = self.ax.get_window_extent(), 72 / self.figure.dpi  # the edges of the cells in points:
        self.lefts = points * np.linspace(box.x0, box.x1, columns + 1)
        self.tops = points * (self.figure.bbox.height - np.linspace(box.y1, box.y0, rows + 1))

    def picture(self, plan: HeatmapPlan) -> bytes:
        """One head's SVG."""
        parts, width, height = list(self.parts), self.lefts[1] - self.lefts[0], self.tops[1] - self.tops[0]
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


class _PixelPage(HeatmapPage):
    """The page as palette indices, without what differs between heads: cells, title and evidence."""

    def __init__(self, plan: HeatmapPlan, style: Style) -> None:
        super().__init__(plan, style)
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

    def picture(self, plan: HeatmapPlan) -> _Pixels:
        """The palette indices of one head's picture."""
        picture, theme = self.paper.copy(), self.style.theme
        inks = blended(0, theme, self.style.ink)
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
                np.copyto(area, inks[coverage], where=coverage > 0)
                x += text_width(f"{piece}|", size, weight, self.dpi) - text_width("|", size, weight, self.dpi)
        cell, points = self.cell, self.cell * 72 / self.dpi
        shares = np.clip(np.ma.filled(plan.norm(np.nan_to_num(plan.values)), 0.0), 0, 1)
        levels = (shares * (LEVELS - 1)).round().astype(np.uint8)
        cells = levels.repeat(cell, axis=0).repeat(cell, axis=1)
        texts, size = numbers(plan.values, hundredths, points, points)
        for (row, column), text in texts.items():
            inks = blended(int(levels[row, column]), theme)
            cells[row * cell :, column * cell :][:cell, :cell] = inks[_centred(text, size, cell, self.dpi)]
        shown = ~np.isnan(plan.values).repeat(cell, axis=0).repeat(cell, axis=1)
        np.copyto(picture[self.top :, self.left :][: len(cells), : cells.shape[1]], cells, where=shown)
        return picture


@lru_cache(4096)
def _coverage(text: str, size: float, weight: str, dpi: float, box: tuple[int, int], start: tuple[int, int]) -> _Pixels:
    """Coverage of each pixel of a box (width and height) by a text that starts at x and baseline, 0-255."""
    renderer = RendererAgg(*box, dpi)
    font = FontProperties(family=font_families([text]), size=size, weight=weight)
    renderer.draw_text(renderer.new_gc(), *start, text, font, 0)
    coverage: _Pixels = np.asarray(renderer.buffer_rgba())[..., 3] // 16 * 17  # in few steps, for small files
    return coverage


@cache
def _centred(text: str, size: float, cell: int, dpi: float) -> _Pixels:
    """Coverage of each pixel of a cell by a number in its middle, [cell, cell]."""
    left, baseline = (cell - text_width(text, size, dpi=dpi)) / 2, (cell + _DIGITS * size * dpi / 72) / 2
    return _coverage(text, size, "normal", dpi, (cell, cell), (round(left), round(baseline)))


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
def blended(level: int, theme: str, ink: str | None = None) -> _Pixels:
    """Palette indices from a colour of the palette to ink, default what contrasts with it, by coverage, [256]."""
    colour = palette(theme)[level]
    end = np.array(to_rgb(ink or contrasting_ink(colour / 255))) * 255
    indices = _nearest(np.linspace(colour, end, 256), theme)
    indices[0] = level  # also where another step has the same colour
    return indices
