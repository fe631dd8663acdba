"""Many small matrices on one page, a row a layer and a column a head, or packed, as one image in one Axes.

Lengths are pixels at :data:`attnviz.figures.look.DPI`, and so are the data coordinates of the Axes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from attnviz.figures.families import FAMILIES, NO_ROLE, Family
from attnviz.figures.fonts import drawable, fitted, font_families, text_width
from attnviz.figures.head_grid_layout import LAYER_NAMES, GridLayout, fitting_grid, planned_grid
from attnviz.figures.look import DPI, Look, figure_style, file_dpi, outer_ink
from attnviz.figures.matrix import Array, Labels, name_axis
from attnviz.figures.page import (
    MARGIN,
    ColourScale,
    PagePlan,
    colour_bar,
    legend_columns,
    new_page,
    page_width,
    settled,
)
from attnviz.model.head_ids import HeadId

_BAR, _LEGEND_ROW = 0.68, 0.15
_EVEN = 0.85


@dataclass(frozen=True)
class HeadCell:
    """The small matrix of one head."""

    id: HeadId  # of the head
    # [rows, columns], pooled by grid_pooling and stretched to a square; NaN where there is nothing; on each head's own
    # scale the share of its largest
    values: Array
    beside: str = ""  # a short text: a distance, a share, a label
    family: Family | None = None  # whose mark stands before that text, which then stands on a line of its own
    shorter: tuple[str, ...] = ()  # shorter texts, the fullest first, for where there is no room
    muted: bool = False  # whether that text is grey
    # of another kind, right of the id: the family of its mark, texts beside it, whether the mark is filled
    right: tuple[Family, tuple[str, ...], bool] | None = None
    sinks: frozenset[int] | None = None  # as those of the plan, where this head's own are others


@dataclass(frozen=True, kw_only=True)
class HeadGridPlan(ColourScale, PagePlan):
    """Matrices of many heads to draw."""

    cells: tuple[HeadCell, ...]  # at least one
    beside: str = ""  # what the texts beside the ids are: a further note, where there is room for these texts
    roles: str = ""  # what the marks and texts right of the ids are, likewise
    sinks: frozenset[int] = frozenset()  # cells of a row that stand for sinks, which get a tick below their column
    labels: Labels | None = None  # of the positions, of few heads; they are named where there is room
    pooled: int = 1  # positions in one cell

    @property
    def named(self) -> tuple[str, ...]:
        """Names of tokens to find room for."""
        return () if self.labels is None else self.labels.texts


def head_grid_figure(plan: HeadGridPlan, look: Look, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """A new figure with the grid, its colour bar, title and notes; the same for raster and vector files.

    Raises:
        UsageError: the width is too small for so many heads.
    """
    grid = planned_grid((cell.id for cell in plan.cells), _most_cells(plan), look, _marked(plan), plan.named)
    across, down = grid.extent
    width = page_width(look, (across + LAYER_NAMES) / DPI + 2 * MARGIN)
    room = max(across, (width - 2 * MARGIN) * DPI - LAYER_NAMES)
    names = _families(plan.cells, grid).values()
    legend = math.ceil(len(names) / legend_columns(names, room)) * _LEGEND_ROW + 0.06 if names else 0
    notes = (*plan.notes, plan.beside) if plan.beside and _room_beside(plan.cells, grid) else plan.notes
    notes = (*notes, plan.roles) if plan.roles and _room_right(plan.cells, grid) else notes
    with figure_style():
        body = down / DPI + legend + _BAR
        page = new_page(plan.title, notes, look, width=width, body=body)
        ax = page.add_subplot()
        _lay_out(ax, plan, grid, look, room)
        colour_bar(page, ax, plan, look)
        settled(page)
        page.set_layout_engine("none")
        box, (width, height) = ax.get_window_extent(), page.bbox.size
        place = round(box.x0) / width, (round(box.y1) - box.height) / height
        ax.set_box_aspect(None)
        ax.set_position((*place, box.width / width, box.height / height))
        _fill(ax, plan, grid, look)
        return page


def draw_head_grid(ax: Axes, plan: HeadGridPlan, look: Look) -> AxesImage:
    """Draw the grid on the caller's Axes, as large as it fits; the image carries the scale for ``figure.colorbar``."""
    settled(ax.figure)
    box, pixel = ax.get_window_extent(), ax.figure.dpi / DPI
    room = box.width / pixel
    for _ in range(4):
        grid = fitting_grid([cell.id for cell in plan.cells], room, _marked(plan), plan.named)
        if grid.extent[1] <= box.height / pixel:
            break
        room *= box.height / pixel / grid.extent[1]
    _lay_out(ax, plan, grid, look, grid.extent[0])
    settled(ax.figure)
    return _fill(ax, plan, grid, look)


def _most_cells(plan: HeadGridPlan) -> int:
    """Rows or columns of the largest matrix."""
    return max(int(n) for cell in plan.cells for n in cell.values.shape)


def _marked(plan: HeadGridPlan) -> bool:
    return any(cell.family is not None for cell in plan.cells)


def _lay_out(ax: Axes, plan: HeadGridPlan, grid: GridLayout, look: Look, width: float) -> None:
    """Limits, names of layers, marks and their legend: all that the layout must know of; so many pixels wide."""
    height = grid.extent[1]
    ax.set(xlim=(0, width), ylim=(height, 0), xticks=[], facecolor=look.greys.paper)
    ax.set_box_aspect(height / width)
    ax.set_anchor("NW")
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    block, layers = grid.rows * grid.row, () if grid.packed else grid.layers  # of packed heads ids name the layers
    middles = [grid.first + at * block + (block + grid.above - 6) / 2 for at in range(len(layers))]
    full = text_width(f"layer {grid.layers[-1]}", 7, DPI) <= block - grid.above
    names = [f"layer {layer}" if full else HeadId(layer, 0).layer_name for layer in layers]
    turned: dict[str, Any] = {"rotation": 90, "va": "center"} if full else {}
    ax.set_yticks(middles, names, fontsize=7 if full else 6, color=outer_ink(look, "ytick.color"), **turned)
    ax.tick_params(length=0, pad=2)
    families, right = _families(plan.cells, grid), _room_right(plan.cells, grid)
    places: dict[tuple[Family, bool], list[tuple[float, float]]] = {(family, True): [] for family in families}
    for cell in plan.cells:
        left, top = grid.corner(cell.id)
        if cell.family is not None:
            places[cell.family, True].append((left + 5, top - 9))
        if right and cell.right is not None:
            places.setdefault((cell.right[0], cell.right[2]), []).append((left + grid.square - 5, top - 23))
    size: float = min(4.6, 0.5 * grid.pitch * 72 / DPI)
    marks: dict[str, Any] = {"linestyle": "none", "markersize": size, "scalex": False, "scaley": False, "zorder": 3}
    marks |= {"markeredgecolor": look.greys.quiet, "markeredgewidth": 0.5}
    for (family, filled), some in places.items():
        face = family.colour if filled and family is not NO_ROLE else look.greys.paper
        name = families[family] if filled else ""
        ax.plot(*np.reshape(some, (-1, 2)).T, marker=family.marker, markerfacecolor=face, label=name, **marks)
    if families:
        ax.legend(
            loc="upper left", bbox_to_anchor=(0, 0), borderaxespad=0.2, borderpad=0, frameon=False, fontsize=7,
            labelcolor=look.greys.ink, ncols=legend_columns(families.values(), width), handletextpad=0.1,
            columnspacing=1.0,
        )  # fmt: skip


def _fill(ax: Axes, plan: HeadGridPlan, grid: GridLayout, look: Look) -> AxesImage:
    """The image, a pixel a pixel of the file, and what stands above the squares, as fully as there is room."""
    shown = ax.get_window_extent().width / ax.get_xlim()[1]  # pixels of the figure, for one of the grid
    pixels = shown * file_dpi(look) / DPI  # of the image
    image, side = _image(plan, grid, look, pixels)
    extent = (0, image.shape[1] / pixels, image.shape[0] / pixels, 0)
    scale: dict[str, Any] = {"cmap": plan.colours or look.colour_map(), "norm": plan.norm}
    drawn = _ExactImage(ax, interpolation="nearest", origin="upper", extent=extent, **scale)
    drawn.set_data(image)
    ax.add_image(drawn)
    pitch, small = grid.pitch * shown * DPI / ax.figure.dpi, min(6.0, grid.size)
    style: dict[str, Any] = {"color": look.greys.ink, "va": "baseline", "parse_math": False}
    full = max(text_width(str(cell.id), grid.size, DPI, "bold") for cell in plan.cells) + 3 <= pitch
    beside, right = _room_beside(plan.cells, grid), _room_right(plan.cells, grid)
    for cell in plan.cells:
        left, top = grid.corner(cell.id)
        name = str(cell.id) if full else f"H{cell.id.head}"  # the layer stands beside the row
        if grid.named:
            ax.text(left, top - (19 if grid.marked else 5), name, fontsize=grid.size, weight="bold", **style)
        if right and cell.right is not None:
            room = pitch - grid.pitch + grid.square - 21 - text_width(name, grid.size, DPI, "bold")
            role, paler = _fullest(cell.right[1], small, room), style | {"color": look.greys.quiet}
            ax.text(left + grid.square - 15, top - 19, role, fontsize=small, ha="right", **paler)
        text, x, aligned = cell.beside if beside else "", left + side / pixels, "right"
        if cell.family is not None:
            text, x, aligned = _fullest((cell.beside, *cell.shorter), small, pitch - 18), left + 14, "left"
        if text:
            inked = style | {"color": look.greys.quiet if cell.muted else look.greys.ink}
            ax.text(x, top - 5, text, fontsize=small, ha=aligned, family=font_families([text]), **inked)
    if grid.tokens:
        _name_tokens(ax, plan, grid, look, side / pixels, shown)
    if not grid.named:
        every = math.ceil((text_width(f"H{grid.columns[-1]}", 5.5, DPI, "bold") + 3) / pitch)
        for at in range(0, len(grid.columns), every):
            x = at * grid.pitch + 1 + grid.square / 2
            ax.text(x, 1, f"H{grid.columns[at]}", fontsize=5.5, weight="bold", ha="center", **(style | {"va": "top"}))
    return drawn


class _ExactImage(AxesImage):
    """An image that is copied, not resampled, where its pixels are those of the file: a quarter less memory."""

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

    def autoscale_None(self) -> None:  # noqa: N802 - as matplotlib
        """Nothing to do for a colour bar: the scale has its ends, and the pixels are colours."""


def _name_tokens(ax: Axes, plan: HeadGridPlan, grid: GridLayout, look: Look, side: float, shown: float) -> None:
    """The names of tokens left of a row's first square and below a column's last, as beside any matrix.

    A square is ``side`` wide, in pixels of the grid, of which each takes ``shown`` of the figure.
    """
    for cell in plan.cells:
        n, (left, top) = len(cell.values), grid.corner(cell.id)
        across, down = ax.get_xlim()[1], ax.get_ylim()[0]
        beside = ax.inset_axes(
            (left / across, 1 - (top + side) / down, side / across, side / down), facecolor="none", zorder=2
        )
        beside.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), in_layout=False)
        beside.spines[:].set_visible(False)
        points = side * shown * 72 / ax.figure.dpi / n
        for axis, letter in ((beside.yaxis, "l"), (beside.xaxis, "b")):
            name_axis(axis, plan.labels if letter in grid.sides(cell.id) else None, n, points, plan.pooled, look)
        beside.tick_params(length=0, pad=4)


def _image(plan: HeadGridPlan, grid: GridLayout, look: Look, pixels: float) -> tuple[NDArray[np.uint8], int]:
    """All squares with their frames, so many pixels for one of the grid, and pixels of a square.

    Cells are equal squares wherever that does not waste room; otherwise they differ by one pixel.
    """
    m, colours = _most_cells(plan), plan.colours or look.colour_map()
    room = grid.square * pixels
    side = max(1, int(room / m + 0.1)) * m
    if (look.width is not None and side < _EVEN * room) or side > 1.1 * room:
        side = int(room)
    greys = (look.greys.paper, look.greys.frame, look.greys.quiet)
    paper, frame, sink = (np.round(np.array(to_rgb(grey)) * 255) for grey in greys)
    width, height = (round(length * pixels) for length in grid.extent)
    image = np.full((height, width, 4), [*paper, 255], dtype=np.uint8)
    for cell in plan.cells:
        left, top = (round(place * pixels) for place in grid.corner(cell.id))
        image[top - 1 : top + side + 1, left - 1 : left + side + 1, :3] = frame
        painted = colours(plan.norm(np.ma.masked_invalid(cell.values)), bytes=True)
        opaque = np.where(painted[..., 3:] > 0, painted[..., :3], paper).astype(np.uint8)
        rows, columns = (np.arange(side) * n // side for n in cell.values.shape)
        image[top : top + side, left : left + side, :3] = opaque[rows][:, columns]
        below = image[top + side + 2 : top + side + 2 + max(1, round(2 * pixels)), left : left + side, :3]
        below[:, np.isin(columns, list(plan.sinks if cell.sinks is None else cell.sinks))] = sink
    return image, side


def _room_beside(cells: Sequence[HeadCell], grid: GridLayout) -> bool:
    """Whether every text stands beside its id, with some room between."""
    ids = (text_width(str(cell.id), grid.size, DPI, "bold") for cell in cells)
    texts = (text_width(cell.beside, min(6.0, grid.size), DPI) for cell in cells)
    return grid.named and not grid.marked and max(map(sum, zip(ids, texts, strict=True))) + 8 <= grid.square


def _room_right(cells: Sequence[HeadCell], grid: GridLayout) -> bool:
    """Whether a mark stands right of every id, with some room between."""
    widest = max(text_width(str(cell.id), grid.size, DPI, "bold") for cell in cells)
    return grid.named and grid.marked and any(cell.right for cell in cells) and widest + 16 <= grid.square


def _fullest(texts: Sequence[str], size: float, room: float) -> str:
    """The text as fully as there is room; nothing where not even a few letters would fit."""
    forms = [drawable(text) for text in texts]
    cut = fitted(forms[-1], size, DPI, max(room, 1))
    return next((form for form in forms if text_width(form, size, DPI) <= room), cut if len(cut) > 4 else "")


def _families(cells: Sequence[HeadCell], grid: GridLayout) -> dict[Family, str]:
    """The families that are drawn and their names, in the order of legends; heads without a role by their texts."""
    right = _room_right(cells, grid)
    present = {cell.family for cell in cells} | {cell.right[0] for cell in cells if right and cell.right is not None}
    without = " or ".join(sorted({cell.beside.rstrip("?") for cell in cells if cell.family is NO_ROLE}))
    return {family: without if family is NO_ROLE else family.name for family in FAMILIES if family in present}
