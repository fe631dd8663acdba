"""How large the parts of a comparison's figures are, in pixels, so that they fit the width asked for."""

import math
from collections.abc import Sequence

from attnviz.errors import UsageError
from attnviz.figures.fonts import fitted, text_width
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look

__all__ = [
    "ABOVE_PATTERN",
    "BELOW_PATTERN",
    "BESIDE_CELLS",
    "FULL_PITCH",
    "LEFT_OF_GRID",
    "MEAN_COLUMN",
    "RIGHT_OF_GRID",
    "cell_numbers",
    "every_which",
    "fitting_pitch",
    "grid_layout",
    "label_size",
    "number_form",
    "room_for_cells",
]

LEFT_OF_GRID, RIGHT_OF_GRID = 60, 24
"""Beside a grid of heads: layers on the left, a margin on the right."""

BESIDE_CELLS = 44 + 24
"""Beside a heatmap and its labels: axis label on the left, a margin on the right."""

FULL_PITCH = 104
"""A column of a grid that has room for id and distance above each pattern."""

ABOVE_PATTERN, BELOW_PATTERN = 24, 10
"""Pixels of a grid above each row of patterns, for ids or numbers of columns, and below it."""

MEAN_COLUMN = 1.4
"""Width of a map's column of means and the gap before it, in cells."""

_LARGEST, _LARGEST_IN_GRID = 1024, 120
_LEAST_PITCH, _COMFORTABLE = 14, 60
_MOST_HEIGHT = 1000
"""Of a grid whose layers go on in further rows: with what stands around it, no more than a page."""

_FULL_NUMBER, _SHORT_NUMBER, _MOST_NUMBERED = 40, 31, 24
_AIR = 6
"""Pixels of a cell's width, or between two names, that stay free."""


def room_for_cells(labels: Sequence[str], look: Look) -> tuple[list[str], int, int]:
    """Labels that leave room for cells, pixels for the square of these, and how many tokens one must stand for.

    In a figure of a chosen width labels get a quarter of it at most, and are cut with an ellipsis.
    """
    if look.width is None:
        return list(labels), _LARGEST, math.ceil(len(labels) / _LARGEST)
    whole = round(look.width * DPI)
    size = label_size(max(1, whole // len(labels)))
    shown = [fitted(label, size, DPI, whole / 4, "bold") for label in labels]
    beside = BESIDE_CELLS + math.ceil(max(text_width(label, size, DPI, "bold") for label in shown))
    room = min(_LARGEST, whole - beside)
    return shown, room, math.ceil(len(labels) / room)


def grid_layout(columns: int, layers: int, look: Look) -> tuple[int, int, int]:
    """Patterns side by side in a grid, pixels from one to the next, and of a pattern at most.

    Where all heads of a layer side by side would be small, they go on in further rows, if these fit on a page.

    Raises:
        UsageError: the width has no room for so many columns.
    """
    if look.width is None:
        return columns, _LARGEST_IN_GRID + 14, _LARGEST_IN_GRID
    room = look.width * DPI - LEFT_OF_GRID - RIGHT_OF_GRID
    for most in range(max(1, int(room // FULL_PITCH)), columns):
        beside = math.ceil(columns / math.ceil(columns / most))
        size = _size_in_grid(int(room / beside))
        if room / columns >= _COMFORTABLE or room / beside < _COMFORTABLE:
            break
        if layers * math.ceil(columns / beside) * (size + ABOVE_PATTERN + BELOW_PATTERN) <= _MOST_HEIGHT:
            return beside, int(room / beside), size
    pitch = fitting_pitch(columns, look.width, _LEAST_PITCH)
    return columns, pitch, _size_in_grid(pitch)


def _size_in_grid(pitch: int) -> int:
    return min(4 * _LARGEST_IN_GRID, pitch - (14 if pitch >= _COMFORTABLE else 4))


def fitting_pitch(columns: float, width: float, least: int) -> int:
    """Pixels a column between what stands left and right of a grid.

    Args:
        columns: how many; the column of means counts as :data:`MEAN_COLUMN`.
        width: of the figure, in inches.
        least: pixels that a column needs.

    Raises:
        UsageError: there are fewer.
    """
    pixels = int((width * DPI - LEFT_OF_GRID - RIGHT_OF_GRID) / columns)
    if pixels < least:
        needed = math.ceil((columns * least + LEFT_OF_GRID + RIGHT_OF_GRID) / DPI * 10) / 10
        raise UsageError(
            f"a width of {width:g} inches has no room for {int(columns)} heads side by side; expected at least "
            f"{needed:g}in."
        )
    return pixels


def label_size(cell: int) -> float:
    """Of the labels of tokens, in points, by the pixels of a cell."""
    return max(5.5, min(9.0, 0.8 * cell * 72 / DPI))


def every_which(names: Sequence[str], size: float, pitch: float) -> int:
    """How many columns of so many pixels one name takes, so that names side by side do not touch."""
    return math.ceil((max(text_width(name, size, DPI) for name in names) + _AIR) / pitch)


def cell_numbers(values: Sequence[float], vmax: float, width: int) -> tuple[list[str], float] | None:
    """Numbers from 0 on as they are written into cells, and the size of the letters in points; None without room.

    Two decimals, or three where the scale ends below 0.1; ``.07`` for ``0.07`` where cells are narrow.

    Args:
        values: below 1.
        vmax: where the scale ends.
        width: of a cell, in pixels.
    """
    for digits in (2,) if vmax >= 0.1 else (3, 2):
        full = [f"{value:.{digits}f}" for value in values]
        for texts in (full, [text.removeprefix("0") for text in full]):
            for size in (7.0, 6.5, 6.0, 5.5):
                if max(text_width(text, size, DPI) for text in texts) + _AIR <= width:
                    return texts, size
    return None


def number_form(cell: int, cells: int) -> str:
    """How differences are written into so many square cells a row: ``full`` (+0.31), ``short`` (+.31), or not at all.

    Args:
        cell: pixels of a cell's side.
        cells: in a row.
    """
    if cell >= _FULL_NUMBER:
        return "full"
    return "short" if cell >= _SHORT_NUMBER and cells <= _MOST_NUMBERED else ""
