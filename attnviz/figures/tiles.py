"""A figure of several matrices over the same positions, side by side and in groups, on one scale."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnviz.figures.files import DPI, figure_style
from attnviz.figures.fonts import fitted, text_width
from attnviz.figures.look import Look
from attnviz.figures.matrix import LONGEST, Array, Labels, draw_matrix, hundredths, label_size, write_numbers
from attnviz.figures.page import MARGIN, Mark, colour_bar, new_page, page_width, settled

__all__ = ["Tile", "TilesPlan", "draw_tile", "tile_inches", "tiles_figure"]

_NAME, _GAP, _HEADING, _BAR = 0.2, 0.13, 0.22, 0.55
_PAGE, _LEAST_TILE, _SHRUNK = 7.0, 0.28, 0.75
_LARGEST_CELL = 0.3
_HIGHEST = 6.5
_NAME_SIZES = (8.0, 7.5, 7.0, 6.5, 6.0, 5.5)


@dataclass(frozen=True)
class Tile:
    """One matrix of a figure.

    Attributes:
        name: above it.
        values: [rows, columns].
        shorter: shorter names, the fullest first, for where there is no room.
        norm: where it is another than that of the other tiles.
    """

    name: str
    values: Array
    shorter: tuple[str, ...] = ()
    norm: Normalize | None = None


@dataclass(frozen=True)
class TilesPlan:
    """Matrices to draw.

    Attributes:
        stem, caption: of the file.
        title, notes: above the matrices.
        groups: a heading (empty where there is one group) and tiles, which stand in rows.
        labels: of the positions.
        norm: of all.
        bar: what the colours are, and on which scale.
        pooled: positions in one cell.
        colours: others than those of the look.
        mark: a value to point out on the colour bar.
        cut: there are values above the scale.
        rules: as for :func:`attnviz.figures.matrix.draw_matrix`.
        write: a value as text in its cell.
        target: inches of a tile, where there is room.
    """

    stem: str
    caption: str
    title: str
    notes: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Tile, ...]], ...]
    labels: Labels
    norm: Normalize
    bar: str
    pooled: int = 1
    colours: Colormap | None = None
    mark: Mark | None = None
    cut: bool = False
    rules: tuple[float, ...] = ()
    write: Callable[[float], str] = field(default=hundredths)
    target: float = 1.6


def tiles_figure(plan: TilesPlan, look: Look, vector: bool = False) -> Figure:
    """A new figure with every tile of the plan, group by group, one colour bar, title and notes."""
    counts = [len(tiles) for _, tiles in plan.groups]
    columns, tile, side = tile_inches(plan.labels.texts, counts, plan.target, look)
    width = page_width(look, side + columns * (tile + _GAP) + 2 * MARGIN)
    rows = [math.ceil(count / columns) for count in counts]
    with figure_style():
        page = new_page(plan.title, plan.notes, look, width=width, body=_body(plan, rows, tile, side))
        grid = page.add_gridspec(sum(rows), columns)
        drawn: list[tuple[Axes, Tile, AxesImage | QuadMesh]] = []
        for (heading, tiles), first in zip(plan.groups, [sum(rows[:group]) for group in range(len(rows))], strict=True):
            for place, each in enumerate(tiles):
                row, column = divmod(place, columns)
                ax = page.add_subplot(grid[first + row, column])
                sides = "l" * (column == 0) + "b" * (place + columns >= len(tiles))
                cells = draw_tile(ax, plan, each, look, sides=sides, vector=vector, inches=tile)
                if heading and place == 0:
                    ax.set_title(f"{heading}\n{ax.get_title('left')}", loc="left", fontsize=_NAME_SIZES[0], pad=3)
                drawn.append((ax, each, cells))
        axes = [ax for ax, *_ in drawn]
        colour_bar(
            page, axes, plan.norm, plan.bar, look, colours=plan.colours, mark=plan.mark, cut=plan.cut,
            across=columns * (tile + _GAP),
        )  # fmt: skip
        settled(page)
        for ax, each, cells in drawn:
            write_numbers(ax, each.values, cells, plan.write)
        return page


def draw_tile(
    ax: Axes,
    plan: TilesPlan,
    tile: Tile,
    look: Look,
    *,
    sides: str = "lb",
    vector: bool = False,
    inches: float | None = None,
) -> AxesImage | QuadMesh:
    """Draw one matrix on the caller's Axes, named above.

    Args:
        ax: any Axes; only these are changed.
        plan: that the tile is of.
        tile: to draw.
        look: theme.
        sides: where positions are named: left (``l``), bottom (``b``).
        vector: for a vector file.
        inches: side of the tile, where the Axes do not have their final size yet.
    """
    cell = None if inches is None else inches * 72 / max(tile.values.shape)
    cells = draw_matrix(
        ax, tile.values, tile.norm or plan.norm, look, labels=plan.labels, sides=sides, pooled=plan.pooled,
        colours=plan.colours, vector=vector, rules=plan.rules, cell=cell,
    )  # fmt: skip
    ax.set_box_aspect(tile.values.shape[0] / tile.values.shape[1])
    room = ax.get_window_extent().width * DPI / ax.figure.dpi if inches is None else inches * DPI
    fitting = [
        (name, size)
        for name in (tile.name, *tile.shorter)
        for size in _NAME_SIZES
        if text_width(name, size, DPI) <= room
    ]
    name, size = fitting[0] if fitting else (fitted((tile.name, *tile.shorter)[-1], 5.5, DPI, room), 5.5)
    ax.set_title(name, loc="left", fontsize=size, pad=3, color=look.greys.ink, parse_math=False)
    return cells


def tile_inches(labels: Sequence[str], counts: Sequence[int], target: float, look: Look) -> tuple[int, float, float]:
    """Tiles in a row, inches of a tile, and inches that the labels take beside it.

    Args:
        labels: of the positions.
        counts: tiles of each group.
        target: inches of a tile, where there is room.
        look: its width on the page.
    """
    n, most = len(labels), max(counts)
    wanted = min(target, n * _LARGEST_CELL)
    side = _label_inches(labels, wanted / n)
    room = (look.width or _PAGE) - side - 2 * MARGIN
    columns = most
    if most * (_SHRUNK * wanted + _GAP) > room:
        columns = max(1, math.floor((room + _GAP) / (wanted + _GAP)))
        columns = math.ceil(most / math.ceil(most / columns))  # rows of like length
    largest = wanted if look.width is None else n * _LARGEST_CELL
    tile = min(room / columns - _GAP, largest)
    while columns < most and sum(math.ceil(count / columns) for count in counts) * (tile + _NAME + _GAP) > _HIGHEST:
        columns += 1
        tile = max(_LEAST_TILE, min(room / columns - _GAP, largest))
    return columns, tile, side


def _label_inches(labels: Sequence[str], cell: float) -> float:
    size = label_size(cell * 72)
    return max(text_width(fitted(label, size, DPI, LONGEST), size, DPI) for label in labels) / DPI + 0.06


def _body(plan: TilesPlan, rows: Sequence[int], tile: float, side: float) -> float:
    """Inches of all groups, each with its labels below, and of the colour bar."""
    headings = _HEADING * sum(bool(heading) for heading, _ in plan.groups)
    below = len(rows) * 0.8 * side
    return headings + below + sum(rows) * (tile + _NAME + _GAP) + _BAR + 0.15 * bool(plan.mark)
