"""How large the parts of a comparison's figures are, in pixels, so that they fit the width asked for."""

import math
from collections.abc import Sequence

from attnviz.errors import UsageError
from attnviz.figures import DPI
from attnviz.fonts import drawable, text_width
from attnviz.look import Look

__all__ = [
    "BESIDE_CELLS",
    "FULL_PITCH",
    "LEFT_OF_GRID",
    "MEAN_COLUMN",
    "RIGHT_OF_GRID",
    "fitting_pitch",
    "label_size",
    "pitch_and_size",
    "room_for_cells",
]

LEFT_OF_GRID, RIGHT_OF_GRID = 60, 120
"""Beside a grid of heads: layers on the left, colour bar on the right."""

BESIDE_CELLS = 44 + 126
"""Beside a heatmap and its labels: axis label on the left, colour bar on the right."""

FULL_PITCH = 104
"""A column of a grid that has room for id and distance above each pattern."""

MEAN_COLUMN = 1.4
"""Width of a map's column of means and the gap before it, in cells."""

_LARGEST, _LARGEST_IN_GRID = 1024, 120
_LEAST_CELLS, _LEAST_PITCH = 120, 14


def room_for_cells(labels: Sequence[str], look: Look) -> tuple[int, int]:
    """Pixels for the square of cells beside its labels, and how many tokens one cell must stand for.

    Raises:
        UsageError: the width leaves no room.
    """
    room = _LARGEST
    if look.width is not None:
        whole = round(look.width * DPI)
        size = label_size(max(1, whole // len(labels)))
        beside = BESIDE_CELLS + math.ceil(max(text_width(drawable(label), size, DPI) for label in labels))
        room = min(_LARGEST, whole - beside)
        if room < _LEAST_CELLS:
            least = math.ceil((beside + _LEAST_CELLS) / DPI * 10) / 10
            raise UsageError(
                f"a width of {look.width:g} inches leaves no room for a head's cells beside its token labels; "
                f"expected at least {least:g}in."
            )
    return room, math.ceil(len(labels) / room)


def pitch_and_size(columns: int, look: Look) -> tuple[int, int]:
    """Pixels from one column of a grid to the next, and of a pattern at most.

    Raises:
        UsageError: the width has no room for so many columns.
    """
    if look.width is None:
        return _LARGEST_IN_GRID + 14, _LARGEST_IN_GRID
    pitch = fitting_pitch(columns, look.width, _LEAST_PITCH)
    return pitch, min(4 * _LARGEST_IN_GRID, pitch - (14 if pitch >= 60 else 4))


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
