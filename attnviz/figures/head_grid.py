"""Many small matrices on one page, a row a layer and a column a head, as one image in one Axes.

Lengths are pixels at :data:`attnviz.figures.files.DPI`, and so are the data coordinates of the Axes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.colors import Colormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from attnviz.errors import UsageError
from attnviz.figures.colours import outer_ink
from attnviz.figures.families import FAMILIES, NO_ROLE, Family
from attnviz.figures.files import DPI, figure_style
from attnviz.figures.fonts import fitted, font_families, text_width
from attnviz.figures.look import Look
from attnviz.figures.matrix import Array
from attnviz.figures.page import MARGIN, Mark, colour_bar, new_page, page_width, settled
from attnviz.model.head_ids import HeadId

__all__ = ["HeadCell", "HeadGridPlan", "draw_head_grid", "grid_pooling", "head_grid_figure"]

_LARGEST, _LARGEST_CHOSEN = 120, 240
"""Side of a square, in a figure as wide as its content, and of a width that the user chose."""

_ROOMY, _COMFORTABLE, _LEAST = 104, 60, 10
"""From one square to the next: with a name and a text above; with a name; of the narrowest grid."""

_LAYERS = 34
"""For the names of layers."""

_HIGHEST = 1000
"""Of a grid whose layers go on in further rows."""

_BAR, _LEGEND_ROW = 0.68, 0.15
_EVEN = 0.85


@dataclass(frozen=True)
class HeadCell:
    """The small matrix of one head.

    Attributes:
        id: of the head.
        values: [m, m], pooled by :func:`grid_pooling`; NaN where there is nothing. For each head's own scale, the
            share of its largest value.
        beside: a short text: a distance, a share, a label.
        family: whose mark stands before that text, which then stands on a line of its own.
        shorter: shorter texts, the fullest first, for where there is no room.
    """

    id: HeadId
    values: Array
    beside: str = ""
    family: Family | None = None
    shorter: tuple[str, ...] = ()


@dataclass(frozen=True)
class HeadGridPlan:
    """Matrices of many heads to draw.

    Attributes:
        stem, caption: of the file.
        title, notes: above the grid.
        cells: at least one; all matrices have the same size.
        norm: from values to colours.
        bar: what the colours are, and on which scale.
        colours: others than those of the look.
        signed: numbers of the colour bar above 0 have a plus.
        cut: there are values above the scale.
        mark: a value to point out on the colour bar.
        beside: what the texts beside the ids are: a further note, where there is room for these texts.
    """

    stem: str
    caption: str
    title: str
    notes: tuple[str, ...]
    cells: tuple[HeadCell, ...]
    norm: Normalize
    bar: str
    colours: Colormap | None = None
    signed: bool = False
    cut: bool = False
    mark: Mark | None = None
    beside: str = ""


@dataclass(frozen=True)
class _Grid:
    """Where everything goes.

    Attributes:
        layers, columns: the numbers of layers from top to bottom and of heads from left to right.
        across: squares side by side; where there are more columns, a layer goes on in further rows.
        pitch: from one square to the next.
        square: side of a square.
        marked: whether a mark, and a text, stand on a line of their own above each square.
    """

    layers: tuple[int, ...]
    columns: tuple[int, ...]
    across: int
    pitch: float
    square: float
    marked: bool

    @property
    def rows(self) -> int:
        """Rows of a layer."""
        return math.ceil(len(self.columns) / self.across)

    @property
    def size(self) -> float:
        """Of the letters of ids, in points."""
        return 7.0 if self.pitch >= _COMFORTABLE else 5.5

    @property
    def named(self) -> bool:
        """Whether an id stands above each square, and not only the number above each column."""
        return self.rows > 1 or text_width(f"H{self.columns[-1]}", self.size, DPI, "bold") + 3 <= self.pitch

    @property
    def above(self) -> float:
        """Room above each square for its texts."""
        return 4 + 15 * self.named + 14 * self.marked

    @property
    def row(self) -> float:
        """From one row to the next."""
        return self.square + self.above + 6

    @property
    def first(self) -> float:
        """Room above the first row for the numbers of columns."""
        return 0 if self.named else 15

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height."""
        return self.across * self.pitch, self.first + len(self.layers) * self.rows * self.row

    def corner(self, head: HeadId) -> tuple[float, float]:
        """Left and top of a head's square."""
        further, column = divmod(self.columns.index(head.head), self.across)
        row = self.layers.index(head.layer) * self.rows + further
        return column * self.pitch + 1, self.first + row * self.row + self.above


def grid_pooling(n_positions: int, heads: Iterable[HeadId], look: Look, *, marked: bool = False) -> int:
    """How many positions a row of a small matrix stands for, so that every cell has a pixel.

    Args:
        n_positions: of the patterns.
        heads: that the grid will show.
        look: its width on the page.
        marked: whether the heads will have marks of families.

    Raises:
        UsageError: the width is too small for so many heads.
    """
    grid = _planned(heads, 1, look, marked)
    return math.ceil(n_positions / int(grid.square * _fine(look)))


def head_grid_figure(plan: HeadGridPlan, look: Look, vector: bool = False) -> Figure:
    """A new figure with the grid, its colour bar, title and notes; the same for raster and vector files.

    Raises:
        UsageError: the width is too small for so many heads.
    """
    del vector  # the grid is an image in either
    cells = plan.cells
    marked = any(cell.family is not None for cell in cells)
    grid = _planned((cell.id for cell in cells), len(cells[0].values), look, marked)
    across, down = grid.extent
    width = page_width(look, (across + _LAYERS) / DPI + 2 * MARGIN)
    legend = math.ceil(len(_families(cells)) / _legend_columns(cells, across)) * _LEGEND_ROW + 0.06 if marked else 0
    notes = (*plan.notes, plan.beside) if plan.beside and _room_beside(cells, grid) else plan.notes
    with figure_style():
        body = down / DPI + legend + _BAR + 0.15 * bool(plan.mark)
        page = new_page(plan.title, notes, look, width=width, body=body)
        ax = page.add_subplot()
        _lay_out(ax, plan, grid, look, (width - 2 * MARGIN) * DPI - _LAYERS)
        colour_bar(
            page, ax, plan.norm, plan.bar, look, colours=plan.colours, mark=plan.mark, cut=plan.cut, signed=plan.signed
        )
        settled(page)
        page.set_layout_engine("none")
        box, (width, height) = ax.get_window_extent(), page.bbox.size
        place = round(box.x0) / width, (round(box.y1) - box.height) / height
        ax.set_box_aspect(None)
        ax.set_position((*place, box.width / width, box.height / height))
        _fill(ax, plan, grid, look)
        return page


def draw_head_grid(ax: Axes, plan: HeadGridPlan, look: Look) -> AxesImage:
    """Draw the grid on the caller's Axes, as large as it fits.

    Returns:
        the image, which carries the scale for ``figure.colorbar``.
    """
    marked = any(cell.family is not None for cell in plan.cells)
    ids = [cell.id for cell in plan.cells]
    settled(ax.figure)
    box, pixel = ax.get_window_extent(), ax.figure.dpi / DPI
    room = box.width / pixel
    for _ in range(4):
        grid = _fitting(ids, room, marked)
        if grid.extent[1] <= box.height / pixel:
            break
        room *= box.height / pixel / grid.extent[1]
    _lay_out(ax, plan, grid, look, 0)
    settled(ax.figure)
    return _fill(ax, plan, grid, look)


def _planned(heads: Iterable[HeadId], m: int, look: Look, marked: bool) -> _Grid:
    """The grid on a new page, of matrices [m, m]."""
    ids = list(heads)
    if look.width is not None:
        room = (look.width - 2 * MARGIN) * DPI - _LAYERS
        columns = len({head.head for head in ids})
        if room / columns < _LEAST:
            least = math.ceil((columns * _LEAST + _LAYERS + 2 * MARGIN * DPI) / DPI * 10) / 10
            raise UsageError(
                f"expected a width of at least {least:g} inches for a figure with {columns} heads in a row, found "
                f"{look.width:g}: choose a larger --width (width=...), fewer heads (--select), or other figures."
            )
        return _fitting(ids, room, marked)
    square = _LARGEST // m * m
    return replace(_one_row(ids, marked), pitch=max(square, _ROOMY) + 14, square=square)


def _fitting(ids: Sequence[HeadId], room: float, marked: bool) -> _Grid:
    """The grid in so many pixels; where heads would be small, layers go on in further rows if these fit on a page."""
    one = _one_row(ids, marked)
    n = len(one.columns)
    for most in range(max(1, int(room // _ROOMY)), n):
        across = math.ceil(n / math.ceil(n / most))
        if room / n >= _COMFORTABLE or room / across < _COMFORTABLE:
            break
        grid = replace(one, across=across, pitch=room / across, square=_side(room / across))
        if grid.extent[1] <= _HIGHEST:
            return grid
    pitch = min(room / n, _LARGEST_CHOSEN + 14)
    return replace(one, pitch=pitch, square=_side(pitch))


def _one_row(ids: Sequence[HeadId], marked: bool) -> _Grid:
    layers, columns = (tuple(sorted({head[axis] for head in ids})) for axis in (0, 1))
    return _Grid(layers, columns, len(columns), _LARGEST + 14, _LARGEST, marked)


def _side(pitch: float) -> float:
    return min(_LARGEST_CHOSEN, max(4.0, pitch - (14 if pitch >= _COMFORTABLE else 4)))


def _fine(look: Look) -> int:
    """Pixels of the image for one at DPI: a picture of a chosen width has 300 an inch."""
    return 1 if look.width is None else 2


def _lay_out(ax: Axes, plan: HeadGridPlan, grid: _Grid, look: Look, room: float) -> None:
    """Limits, names of layers, marks and their legend: all that the layout must know of; as wide as the room."""
    width, height = max(grid.extent[0], room), grid.extent[1]
    ax.set(xlim=(0, width), ylim=(height, 0), xticks=[], facecolor=look.greys.paper)
    ax.set_box_aspect(height / width)
    ax.set_anchor("NW")
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    block = grid.rows * grid.row
    middles = [grid.first + at * block + (block + grid.above - 6) / 2 for at in range(len(grid.layers))]
    full = text_width(f"layer {grid.layers[-1]}", 7, DPI) <= block - grid.above
    names = [f"layer {layer}" if full else f"L{layer}" for layer in grid.layers]
    turned: dict[str, Any] = {"rotation": 90, "va": "center"} if full else {}
    ax.set_yticks(middles, names, fontsize=7 if full else 6, color=outer_ink(look, "ytick.color"), **turned)
    ax.tick_params(length=0, pad=2)
    families = _families(plan.cells)
    for family, name in families.items():
        corners = [grid.corner(cell.id) for cell in plan.cells if cell.family == family]
        xs, ys = zip(*((left + 5, top - 9) for left, top in corners), strict=True)
        colour = look.greys.paper if family is NO_ROLE else family.colour
        ax.plot(
            xs, ys, linestyle="none", marker=family.marker, markersize=min(4.6, 0.5 * grid.pitch * 72 / DPI),
            markerfacecolor=colour, markeredgecolor=look.greys.quiet, markeredgewidth=0.5, scalex=False, scaley=False,
            label=name, zorder=3,
        )  # fmt: skip
    if families:
        ax.legend(
            loc="upper left", bbox_to_anchor=(0, 0), borderaxespad=0.2, borderpad=0, frameon=False, fontsize=7,
            labelcolor=look.greys.ink, ncols=_legend_columns(plan.cells, width), handletextpad=0.1, columnspacing=1.0,
        )  # fmt: skip


def _fill(ax: Axes, plan: HeadGridPlan, grid: _Grid, look: Look) -> AxesImage:
    """The image, a pixel a pixel, and what stands above the squares, as fully as there is room."""
    box, dpi = ax.get_window_extent(), ax.figure.dpi
    limits = ax.get_xlim(), ax.get_ylim()
    pixels = box.width / limits[0][1] * _fine(look)  # of the image, for one of the grid
    image, side = _image(plan, grid, look, pixels)
    extent = (0, image.shape[1] / pixels, image.shape[0] / pixels, 0)
    style: dict[str, Any] = {"cmap": plan.colours or look.colour_map(), "norm": plan.norm}
    drawn = _ExactImage(ax, interpolation="auto", origin="upper", extent=extent, **style)
    drawn.set_data(image)
    ax.add_image(drawn)
    ax.set(xlim=limits[0], ylim=limits[1])
    pitch, beside = grid.pitch * pixels / _fine(look) * DPI / dpi, _room_beside(plan.cells, grid)
    ink, small = look.greys.ink, min(6.0, grid.size)
    full = max(text_width(str(cell.id), grid.size, DPI, "bold") for cell in plan.cells) + 3 <= pitch
    for cell in plan.cells:
        left, top = grid.corner(cell.id)
        if grid.named:
            name = str(cell.id) if full else f"H{cell.id.head}"  # the layer stands beside the row
            up = 19 if grid.marked else 5
            ax.text(left, top - up, name, fontsize=grid.size, weight="bold", color=ink, va="baseline")
        text, x, side_of = cell.beside, left + side / pixels, "right"
        if cell.family is not None:
            text, x, side_of = _fullest(cell, small, pitch - 17), left + 13, "left"
        if text and (beside or cell.family is not None):
            families = font_families([text])
            ax.text(x, top - 5, text, fontsize=small, color=ink, ha=side_of, va="baseline", parse_math=False,
                    family=families)  # fmt: skip
    if not grid.named:
        every = math.ceil((text_width(f"H{grid.columns[-1]}", 5.5, DPI, "bold") + 3) / pitch)
        for at in range(0, len(grid.columns), every):
            x = at * grid.pitch + 1 + grid.square / 2
            ax.text(x, 1, f"H{grid.columns[at]}", fontsize=5.5, weight="bold", color=ink, ha="center", va="top")
    return drawn


class _ExactImage(AxesImage):
    """An image that is copied, not resampled, where its pixels are those of the file."""

    def make_image(
        self, renderer: RendererBase, magnification: float = 1.0, unsampled: bool = False
    ) -> tuple[Any, float, float, Any]:
        """The pixels from the lowest row on, and where they begin."""
        array, (left, right, bottom, top) = np.asarray(self.get_array()), self.get_extent()
        (x0, y0), (x1, y1) = self.get_transform().transform([(left, bottom), (right, top)])
        if unsampled or abs(x1 - x0 - array.shape[1]) > 0.01 or abs(y1 - y0 - array.shape[0]) > 0.01:
            made: tuple[Any, float, float, Any] = super().make_image(renderer, magnification, unsampled)
            return made
        return array[::-1], round(x0), round(y0), None


def _image(plan: HeadGridPlan, grid: _Grid, look: Look, pixels: float) -> tuple[NDArray[np.uint8], int]:
    """All squares with their frames, so many pixels for one of the grid, and pixels of a square.

    Cells are equal squares wherever that does not waste room; otherwise they differ by one pixel.
    """
    m, colours = len(plan.cells[0].values), plan.colours or look.colour_map()
    room = grid.square * pixels
    side = max(1, int(room / m + 0.1)) * m
    if (look.width is not None and side < _EVEN * room) or side > 1.1 * room:
        side = int(room)
    nearest = np.arange(side) * m // side
    paper, frame = (np.round(np.array(to_rgb(grey)) * 255) for grey in (look.greys.paper, look.greys.frame))
    width, height = (round(length * pixels) for length in grid.extent)
    image = np.full((height, width, 4), 255, dtype=np.uint8)
    image[..., :3] = paper
    for cell in plan.cells:
        left, top = (round(place * pixels) for place in grid.corner(cell.id))
        image[top - 1 : top + side + 1, left - 1 : left + side + 1, :3] = frame
        painted = colours(plan.norm(np.ma.masked_invalid(cell.values)), bytes=True)
        opaque = np.where(painted[..., 3:] > 0, painted[..., :3], paper).astype(np.uint8)
        image[top : top + side, left : left + side, :3] = opaque[nearest][:, nearest]
    return image, side


def _room_beside(cells: Sequence[HeadCell], grid: _Grid) -> bool:
    """Whether every text stands beside its id, with some room between."""
    widths = (
        text_width(str(cell.id), grid.size, DPI, "bold") + text_width(cell.beside, min(6.0, grid.size), DPI)
        for cell in cells
    )
    return grid.named and (grid.marked or max(widths) + 8 <= grid.square)


def _fullest(cell: HeadCell, size: float, room: float) -> str:
    """The text as fully as there is room; nothing where not even a few letters would fit."""
    for words in (cell.beside, *cell.shorter):
        if text_width(fitted(words, size, DPI, 10 * room), size, DPI) <= room:
            return fitted(words, size, DPI, room)
    cut = fitted((cell.beside, *cell.shorter)[-1], size, DPI, max(room, 1))
    return cut if len(cut) > 4 else ""


def _families(cells: Sequence[HeadCell]) -> dict[Family, str]:
    """The families that occur and their names, in the order of legends; heads without a role by their texts."""
    present = {cell.family for cell in cells}
    without = " or ".join(sorted({cell.beside for cell in cells if cell.family is NO_ROLE}))
    return {family: without if family is NO_ROLE else family.name for family in FAMILIES if family in present}


def _legend_columns(cells: Sequence[HeadCell], room: float) -> int:
    names = _families(cells).values()
    widest = max((text_width(name, 7, DPI) for name in names), default=0) + 46
    return max(1, min(len(names), int(room / widest)))
