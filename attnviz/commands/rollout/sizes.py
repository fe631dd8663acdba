"""How large the tiles of an attention rollout are drawn, and how many stand in a row."""

import math
from collections.abc import Sequence

from attnviz.figures.fonts import text_width
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look
from attnviz.figures.view_drawing import MARGIN, PIXEL, label_size, page_width

__all__ = ["GROUP_GAP", "HEADING", "NAME", "TILE_GAP", "body_height", "label_room", "tile_grid"]

TILE_GAP = 18
"""Pixels between two tiles."""

NAME, HEADING, GROUP_GAP = 24, 28, 18
"""Pixels of the name above a tile, of the heading above a group, and between two groups."""

_HIGHEST = 1380
"""Pixels: of a figure of a chosen width, a little more than nine inches."""

_LEAST_TILE = 36
_FILLED, _MORE_POOLED = 0.75, 4


def tile_grid(
    labels: Sequence[str], counts: Sequence[int], columns: int, target: int, look: Look, above: int
) -> tuple[int, float, int]:
    """Tiles in a row, pixels a cell, and positions pooled into one cell.

    Args:
        labels: of the positions.
        counts: tiles of each group.
        columns: tiles in a row unless a width was chosen, which decides itself.
        target: pixels of a tile, where the page holds tiles that large.
        look: its width.
        above: pixels that title, notes and colour bar take.
    """
    n = len(labels)
    if look.width is None:
        pooled = math.ceil(n / (1.4 * target))
        return columns, max(1, min(44, round(target / math.ceil(n / pooled)))), pooled
    columns, cell, pooled = 1, 1.0, 1
    for _ in range(2):  # the cells decide how large the labels are, and these how much room is left
        beside = label_room(labels, label_size(cell * PIXEL))
        room = page_width(look, 0) - 2 * MARGIN - 8 - beside
        columns, tile = _columns(counts, room, target, _HIGHEST - above, beside)
        cell, pooled = _filling(n, tile)
    return columns, cell, pooled


def body_height(counts: Sequence[int], columns: int, tile: int, beside: int, name: int = NAME) -> list[int]:
    """Pixels of each group of tiles, with its heading where there are several, and the labels below."""
    heading = HEADING * (len(counts) > 1)
    pitch = tile + 2 + TILE_GAP + name
    return [heading + math.ceil(count / columns) * pitch - TILE_GAP + beside + 8 for count in counts]


def label_room(labels: Sequence[str], size: float) -> int:
    """Pixels that the longest label takes in letters of so many points."""
    return math.ceil(max(text_width(label, size, DPI) for label in labels))


def _columns(counts: Sequence[int], room: int, target: int, highest: int, beside: int) -> tuple[int, int]:
    """Tiles in a row and pixels of one: about as large as the target, or smaller where a page would not hold them."""
    columns = max(1, min(max(counts), round(room / (target + TILE_GAP))))
    while True:
        tile = _tile(room, columns)
        height = sum(body_height(counts, columns, tile, beside)) + GROUP_GAP * (len(counts) - 1)
        if columns == max(counts) or height <= highest or _tile(room, columns + 1) < _LEAST_TILE:
            return columns, tile
        columns += 1


def _tile(room: int, columns: int) -> int:
    return max(1, (room - TILE_GAP * (columns - 1)) // columns - 2)


def _filling(n: int, room: int) -> tuple[float, int]:
    """Half pixels a cell, and positions pooled, so that whole cells fill most of a tile's room."""
    found = []
    for pooled in range(1, math.ceil(n / room) + _MORE_POOLED):
        m = math.ceil(n / pooled)
        cell = min(44.0, 2 * room // m / 2)
        found.append((cell * m / room, -pooled, cell))
        if cell * m >= _FILLED * room or cell == 44:
            break
    _, pooled, cell = max(found)
    return max(0.5, cell), -pooled
