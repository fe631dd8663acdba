"""Texts and numbers of many pictures: what can recur is drawn once by matplotlib, and then copied.

Matplotlib takes a millisecond for every ten numbers and as much for a line of text. Nine tokens have 81 cells, 144
heads 11,664; but a cell is decided by its colour and its number, of which there are a few hundred, and titles and
evidence are made of the same few words. The pixels are those that matplotlib draws.
"""

import math
from functools import cache
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from attnviz.figures.colours import LEVELS, Pixels, colour_table, ink_on
from attnviz.figures.fonts import DEFAULT_FAMILY, font_families, text_width
from attnviz.figures.heatmap_drawing import Slot, figure_style, number_place, number_text
from attnviz.figures.heatmaps import HeatmapPlan
from attnviz.figures.look import THEMES, Theme
from attnviz.figures.palettes import blended, indexed

__all__ = ["NumberTiles", "TextStrips"]

_NUMBERS = 101
_AIR = 4


class TextStrips:
    """Lines of text on paper, as places in the palette, put together from pieces that were drawn before."""

    def __init__(self, dpi: float, theme: str) -> None:
        """Texts for pictures of one resolution and theme."""
        self._dpi = dpi
        self._pieces: dict[tuple[str, float, str], tuple[Pixels, int]] = {}
        self._greys = THEMES[theme]
        self._lines: dict[tuple[float, str], _Line] = {}
        self._paper, self._ink = (round(to_rgb(grey)[0] * 255) for grey in (THEMES[theme].paper, THEMES[theme].ink))
        greys = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, axis=2)
        self._place: Pixels = indexed(greys, theme)[0]

    def write(self, picture: Pixels, slot: Slot, words: str) -> None:
        """Write the words into a picture, where it shows nothing but paper."""
        strip: Pixels | None = None
        top = 0
        for piece, x in slot.pieces(words, self._dpi):
            drawn, baseline = self._drawn(piece, slot)
            if strip is None:
                top = slot.y - baseline
                strip = np.full((len(drawn), picture.shape[1]), self._paper, dtype=np.uint8)
            place = strip[:, x - _AIR : x - _AIR + drawn.shape[1]]
            self._add(place, drawn[:, : place.shape[1]])
        if strip is not None:
            strip = strip[max(-top, 0) :]
            below = picture[max(top, 0) :][: len(strip)]
            strip = strip[: len(below)]
            np.copyto(below, self._place[strip], where=strip != self._paper)

    def _add(self, place: Pixels, drawn: Pixels) -> None:
        """Put one piece beside those that are there; where letters touch, over them."""
        touching = (drawn != self._paper) & (place != self._paper)
        if touching.any():
            coverage = (self._paper - drawn[touching].astype(np.float64)) * 255 / (self._paper - self._ink)
            ink = np.array([self._ink], dtype=np.uint8)
            drawn = drawn.copy()
            drawn[touching] = blended(place[touching][:, None], ink, coverage.round().astype(np.uint8))[:, 0]
        np.copyto(place, drawn, where=drawn != self._paper)

    def _drawn(self, piece: str, slot: Slot) -> tuple[Pixels, int]:
        """The piece as greys on paper, with some air around, and the row of the baseline."""
        key = (piece, slot.size, slot.weight)
        if key not in self._pieces:
            width = math.ceil(text_width(piece, slot.size, self._dpi, slot.weight)) + 4 * _AIR
            line = self._lines.get(key[1:])
            if line is None or line.width < width:
                line = self._lines[key[1:]] = _Line(slot, self._dpi, max(width, 1000), self._greys)
            self._pieces[key] = line.drawn(piece)[:, :width], line.above
        return self._pieces[key]


class _Line:
    """Where one line of text after another is drawn."""

    def __init__(self, slot: Slot, dpi: float, width: int, greys: Theme) -> None:
        self.width, self._paper = width, round(to_rgb(greys.paper)[0] * 255)
        self.above, below = (round(slot.size * dpi / 72 * em) + _AIR for em in (1.2, 0.6))
        height = self.above + below
        with figure_style():
            figure = Figure((width / dpi, height / dpi), dpi=dpi)
            style: dict[str, Any] = {"size": slot.size, "weight": slot.weight, "va": "baseline", "parse_math": False}
            self._text = figure.text(_AIR / width, below / height, "", color=greys.ink, **style)
            self._canvas = FigureCanvasAgg(figure)

    def drawn(self, piece: str) -> Pixels:
        """The piece as greys on paper."""
        renderer = self._canvas.get_renderer()
        pixels = np.asarray(renderer.buffer_rgba())
        pixels[:] = [self._paper, self._paper, self._paper, 255]
        self._text.set_text(piece)
        self._text.set_fontfamily(font_families([piece]))
        with figure_style():
            self._text.draw(renderer)
        greys: Pixels = pixels[..., 0].copy()
        return greys


class NumberTiles:
    """The cells of heatmaps of one size and look, as places in the palette; each is made when it first occurs."""

    def __init__(self, plan: HeatmapPlan) -> None:
        """Tiles for this plan and all that are laid out like it; it has numbers in its cells."""
        self._cell, self._theme = plan.cell, plan.look.theme
        self._tile = np.full(LEVELS * _NUMBERS, -1, dtype=np.int32)
        self._tiles = np.empty((0, plan.cell, plan.cell), dtype=np.uint8)
        self._masks: dict[int, Pixels] = {0: np.zeros((plan.cell, plan.cell), dtype=np.uint8)}
        assert plan.number_size is not None
        x, y = (place / plan.cell for place in number_place(plan.cell, plan.number_size, plan.dpi))
        with figure_style():
            figure = Figure((plan.cell / plan.dpi, plan.cell / plan.dpi), dpi=plan.dpi)
            style: dict[str, Any] = {"ha": "center", "va": "baseline", "family": [DEFAULT_FAMILY]}
            self._text = figure.text(x, 1 - y, "", size=plan.number_size, **style)
            self._canvas = FigureCanvasAgg(figure)

    def cells(self, plan: HeatmapPlan) -> Pixels:
        """The square of cells with their numbers, [size, size] places in the palette."""
        m, cell = len(plan.values), self._cell
        wanted = plan.levels.astype(np.int32) * _NUMBERS + plan.hundredths
        missing = np.unique(wanted[self._tile[wanted] < 0])
        if len(missing):
            self._tile[missing] = np.arange(len(missing)) + len(self._tiles)
            self._tiles = np.concatenate([self._tiles, self._new(missing)])
        tiles = self._tiles[self._tile[wanted]]  # [m, m, cell, cell]
        square: Pixels = tiles.transpose(0, 2, 1, 3).reshape(m * cell, m * cell)
        return square

    def _new(self, wanted: NDArray[np.int32]) -> Pixels:
        levels, numbers = np.divmod(wanted, _NUMBERS)
        unknown = [int(number) for number in np.unique(numbers) if int(number) not in self._masks]
        if unknown:
            with figure_style():
                self._masks |= {number: self._mask(number) for number in unknown}
        masks = np.stack([self._masks[int(number)] for number in numbers])
        tiles: Pixels = _inked(self._theme)[levels[:, None, None], masks]
        return tiles

    def _mask(self, hundredths: int) -> Pixels:
        """How far each pixel of a cell is covered by a number, 0-255, [cell, cell]."""
        renderer = self._canvas.get_renderer()
        renderer.clear()
        self._text.set_text(number_text(hundredths))
        self._text.draw(renderer)
        mask: Pixels = np.asarray(renderer.buffer_rgba())[..., 3].copy()
        return mask


@cache
def _inked(theme: str) -> Pixels:
    """[LEVELS, 256], the place in the palette of a cell's colour under so much of a number's ink."""
    inks = np.array([to_rgb(ink_on(level, theme)) for level in range(LEVELS)])
    text, below = (inks * 255).round().astype(np.uint8)[:, None], colour_table(theme)[:, None]
    return indexed(blended(below, text, np.arange(256, dtype=np.uint8)[None]), theme)
