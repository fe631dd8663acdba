"""Small matrices of many heads on one page, by layer and head or packed, as one image in one Axes.

Heads are packed, one after the other, where a grid of layers and heads would be mostly empty.
Lengths are pixels at :data:`attnviz.figures.style.DPI`, and so are the data coordinates of the Axes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from attnviz.errors import UsageError
from attnviz.figures.families import FAMILIES, UNNAMED, Family
from attnviz.figures.fonts import drawable, fitted, font_families, text_width
from attnviz.figures.matrix import (
    MOST_NUMBERED,
    Array,
    Labels,
    hatch,
    hundredths,
    label_pixels,
    label_size,
    name_axis,
    named_every,
    value_size,
    write_numbers,
)
from attnviz.figures.page import (
    MARGIN,
    ColourScale,
    PagePlan,
    colour_bar,
    legend_columns,
    new_page,
    page_width,
    run_layout,
)
from attnviz.figures.style import DPI, Style, figure_style, file_dpi, text_colour
from attnviz.models.head_ids import HeadId

# side of a square, in a figure as wide as its content, and of a width that the user chose
_LARGEST, _LARGEST_CHOSEN = 120, 240
# from one square to the next: with a name and a text above; with a name; of the narrowest grid
_ROOMY, _COMFORTABLE, _LEAST = 104, 60, 10
_MARK = 12  # room of a mark beside an id
_LAYER_NAMES = 34  # margin beside the grid
_NUMBERS = 15  # above it, for numbers of columns
_PAGE_HEIGHT, _PAGE_SHAPE = 2000, 1.2  # of a grid that is not split, and height by width of one that is
_PACKED = 4  # least heads side by side when packed
_HIGHEST = 1000  # of a grid whose layers wrap
_BAR, _LEGEND_ROW, _ENTRY = 0.58, 0.15, 36  # inches; pixels of a mark with its gaps
_EVEN = 0.85
Names = Sequence[Sequence[str]]  # names of tokens: of rows, and of columns if others; none if they are not drawn


@dataclass(frozen=True)
class HeadCell:
    """One head's small matrix."""

    id: HeadId
    # [rows, columns], pooled by grid_pooling and stretched to a square, NaN, which is hatched, for no value; on each
    # head's own scale the share of its largest
    values: Array
    beside: str = ""  # a short text: a distance, a share, a label
    family: Family | None = None  # mark before that text, which then has a line of its own
    shorter: tuple[str, ...] = ()  # shorter texts, the fullest first
    muted: bool = False  # whether that text is grey
    # of another kind, on the right: the family of its mark, texts beside it, whether the mark is filled, None for half
    right: tuple[Family, tuple[str, ...], bool | None] | None = None
    sinks: frozenset[int] = frozenset()  # columns that stand for sinks, which get a tick below


@dataclass(frozen=True, kw_only=True)
class HeadGridPlan(ColourScale, PagePlan):
    """Matrices of many heads to draw."""

    cells: tuple[HeadCell, ...]  # at least one
    beside: str = ""  # note on the texts beside the ids, if they fit
    roles: str = ""  # note on marks and texts on the right, likewise
    labels: Labels | None = None  # of positions, for a few heads; drawn if they fit
    keys: Labels | None = None  # of the columns, if other positions than the rows
    pooled: int = 1  # positions in one cell
    every: int = 1  # of so many positions one is named, at least


@dataclass(frozen=True)
class _Shown:
    """What the layout of a grid depends on."""

    ids: Sequence[HeadId]
    marked: bool  # whether heads have marks of families
    labels: Names  # of tokens, for a few heads, which are packed

    @property
    def columns(self) -> list[int]:
        return sorted({head.head for head in self.ids})

    @property
    def is_sparse(self) -> bool:  # whether at least half of a grid of layers and columns would be empty
        return 2 * len(self.ids) <= len({head.layer for head in self.ids}) * len(self.columns)


@dataclass(frozen=True)
class _Layout:
    cells: dict[HeadId, tuple[int, int]]  # row and column of each square
    rows: int  # of a block
    across: int  # squares side by side, in a block
    layers: Sequence[int]  # from top to bottom, of as many rows each; none where heads are packed
    columns: Sequence[int]  # the numbers of heads, from left to right
    pitch: float  # from one square to the next
    size: float  # font size of ids in points
    square: float  # side of a square
    marked: bool  # whether a mark, and a text, stand on a line of their own above each square
    named: bool  # whether an id stands above each square, and not only the number above each column
    blocks: int = 1  # side by side, of as many layers each but for the last
    tokens: float = 0  # room for token labels left of each row and below each column

    @property
    def above(self) -> float:  # room above each square for its texts
        return 4 + 15 * self.named + 14 * self.marked

    @property
    def row(self) -> float:  # from one row to the next
        return self.square + self.above + 6

    @property
    def first(self) -> float:  # where the first row begins
        return 0 if self.named else _NUMBERS

    @property
    def block(self) -> float:  # from one block to the next
        return self.across * self.pitch + _LAYER_NAMES

    @property
    def extent(self) -> tuple[float, float]:
        width = (self.blocks - 1) * self.block + self.across * self.pitch
        return width + self.tokens, self.first + self.rows * self.row + self.tokens

    def corner(self, head: HeadId) -> tuple[float, float]:
        """Left and top of a head's square."""
        row, column = self.cells[head]
        block, row = divmod(row, self.rows)
        left = block * self.block + self.tokens + column * self.pitch
        return left + 1, self.first + row * self.row + self.above


def head_grid_figure(plan: HeadGridPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """A new figure with the grid, its colour bar, title and notes; UsageError if it is too narrow for so many heads."""
    grid = _planned(_shown(plan), _most_cells(plan), style)
    across, down = grid.extent
    width = page_width(style, (across + _LAYER_NAMES) / DPI + 2 * MARGIN)
    room = max(across, (width - 2 * MARGIN) * DPI - _LAYER_NAMES)
    families = _families(plan.cells, grid).values()
    legend = math.ceil(len(families) / legend_columns(families, room, _ENTRY)) * _LEGEND_ROW + 0.06 if families else 0
    names = _names(plan.cells, grid)
    notes = (*plan.notes, plan.beside) if plan.beside and names.beside else plan.notes
    notes = (*notes, plan.roles) if plan.roles and names.right else notes
    with figure_style():
        data = down / DPI + legend
        page = new_page(plan.title, notes, style, width=width, body=data + _BAR, data=data)
        ax = page.add_subplot()
        _lay_out(ax, plan, grid, style, room)
        colour_bar(page, ax, plan, style)
        run_layout(page)
        page.set_layout_engine("none")
        box = ax.get_window_extent()
        width, height = page.bbox.size
        corner = round(box.x0) / width, (round(box.y1) - box.height) / height
        ax.set_box_aspect(None)
        ax.set_position((*corner, box.width / width, box.height / height))
        _fill(ax, plan, grid, style)
        return page


def draw_head_grid(ax: Axes, plan: HeadGridPlan, style: Style) -> AxesImage:
    """Draw the grid on the caller's Axes, as large as it fits; returns the image, for ``figure.colorbar``."""
    run_layout(ax.figure)
    box = ax.get_window_extent()
    pixel = ax.figure.dpi / DPI
    room = box.width / pixel
    for _ in range(4):
        grid = _fitting(_shown(plan), room)
        if grid.extent[1] <= box.height / pixel:
            break
        room *= box.height / pixel / grid.extent[1]
    _lay_out(ax, plan, grid, style, grid.extent[0])
    run_layout(ax.figure)
    return _fill(ax, plan, grid, style)


def _most_cells(plan: HeadGridPlan) -> int:
    return max(int(n) for cell in plan.cells for n in cell.values.shape)


def _shown(plan: HeadGridPlan) -> _Shown:
    marked = any(cell.family is not None for cell in plan.cells)
    labels = [labels.texts for labels in (plan.labels, plan.keys) if labels is not None]
    return _Shown([cell.id for cell in plan.cells], marked, labels)


def _lay_out(ax: Axes, plan: HeadGridPlan, grid: _Layout, style: Style, width: float) -> None:
    height = grid.extent[1]
    ax.set(xlim=(0, width), ylim=(height, 0), xticks=[], facecolor=style.paper)
    ax.set_box_aspect(height / width)
    ax.set_anchor("NW")
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    of_block = math.ceil(len(grid.layers) / grid.blocks)
    high = grid.rows * grid.row / max(1, of_block)
    middles = [grid.first + at % of_block * high + (high + grid.above - 6) / 2 for at in range(len(grid.layers))]
    full = text_width(f"layer {max(grid.layers, default=0)}", 7) <= high - grid.above
    names = [f"layer {layer}" if full else HeadId(layer, 0).layer_name for layer in grid.layers]
    angle, aligned, size = (90, "center", 7) if full else (0, "center_baseline", 6)
    look: dict[str, Any] = {"rotation": angle, "va": aligned, "size": size, "color": text_colour(style, "ytick.color")}
    ax.set_yticks(middles[:of_block], names[:of_block], **look)
    for at in range(of_block, len(grid.layers)):
        ax.text(at // of_block * grid.block - 4, middles[at], names[at], ha="right", **look)
    ax.tick_params(length=0, pad=2)
    families = _families(plan.cells, grid)
    above = _names(plan.cells, grid)
    markers: dict[tuple[Family, bool | None], list[tuple[float, float]]] = {(family, True): [] for family in families}
    for cell in plan.cells:
        left, top = grid.corner(cell.id)
        if cell.family is not None:
            markers[cell.family, True].append((left + 5, top - 9))
        if above.right and cell.right is not None:
            level = top - (9 if above.low else 23)
            markers.setdefault((cell.right[0], cell.right[2]), []).append((left + grid.square - 5, level))
    for (family, filled), positions in markers.items():
        ax.plot(
            *np.reshape(positions, (-1, 2)).T,
            label=families[family] if filled else "",
            linestyle="none",
            marker=family.marker,
            markersize=min(4.6, 0.5 * grid.pitch * 72 / DPI),
            fillstyle="left" if filled is None else "full",
            markerfacecolor=style.paper if filled is False or family is UNNAMED else family.colour,
            markerfacecoloralt=style.paper,
            markeredgecolor=style.muted,
            markeredgewidth=0.5,
            scalex=False,
            scaley=False,
            zorder=3,
        )
    if families:
        ax.legend(
            loc="upper left",
            bbox_to_anchor=(0, 0),
            ncols=legend_columns(families.values(), width, _ENTRY),
            frameon=False,
            fontsize=7,
            labelcolor=style.ink,
            borderaxespad=0.2,
            borderpad=0,
            handletextpad=0.1,
            columnspacing=1.0,
            handlelength=1.2,
        )


def _fill(ax: Axes, plan: HeadGridPlan, grid: _Layout, style: Style) -> AxesImage:
    shown = ax.get_window_extent().width / ax.get_xlim()[1]  # pixels of the figure, for one of the grid
    pixels = shown * file_dpi(style) / DPI  # of the image
    image, side = _image(plan, grid, style, pixels)
    extent = (0, image.shape[1] / pixels, image.shape[0] / pixels, 0)
    colours = plan.colours or style.colour_map()
    drawn = AxesImage(ax, cmap=colours, norm=plan.norm, interpolation="nearest", origin="upper", extent=extent)
    drawn.set_data(image)
    ax.add_image(drawn)
    if any(np.isnan(cell.values).any() for cell in plan.cells):
        hatch(ax.add_patch(Rectangle((0, 0), extent[1], extent[2], linewidth=0, zorder=-1)), style)
    pitch = grid.pitch * shown * DPI / ax.figure.dpi
    small = min(6.0, grid.size)
    properties: dict[str, Any] = {"color": style.ink, "va": "baseline", "parse_math": False}
    full, beside, right, low = _names(plan.cells, grid)
    for cell in plan.cells:
        left, top = grid.corner(cell.id)
        name = str(cell.id) if full else f"H{cell.id.head}"  # the layer stands beside the row
        if grid.named:
            ax.text(left, top - (19 if grid.marked else 5), name, fontsize=grid.size, weight="bold", **properties)
        if right and not low and cell.right is not None:
            room = pitch - grid.pitch + grid.square - 21 - text_width(name, grid.size, "bold")
            role = _fullest(cell.right[1], small, room)
            paler = properties | {"color": style.muted}
            ax.text(left + grid.square - 15, top - 19, role, fontsize=small, ha="right", **paler)
        text, x, aligned = cell.beside if beside else "", left + side / pixels, "right"
        if cell.family is not None and not low:
            text, x, aligned = _fullest((cell.beside, *cell.shorter), small, pitch - 18), left + 14, "left"
        if text:
            inked = properties | {"color": style.muted if cell.muted else style.ink}
            ax.text(x, top - 5, text, fontsize=small, ha=aligned, family=font_families([text]), **inked)
    if grid.tokens:
        _name_tokens(ax, plan, grid, style, side / pixels, drawn)
    if not grid.named:
        every = math.ceil((text_width(f"H{grid.columns[-1]}", 5.5, "bold") + 3) / pitch)
        above = properties | {"fontsize": 5.5, "weight": "bold", "ha": "center", "va": "top"}
        for block in range(grid.blocks):
            for at in range(0, len(grid.columns), every):
                x = block * grid.block + at * grid.pitch + 1 + grid.square / 2
                ax.text(x, grid.first - _NUMBERS + 1, f"H{grid.columns[at]}", **above)
    return drawn


def _name_tokens(ax: Axes, plan: HeadGridPlan, grid: _Layout, style: Style, side: float, drawn: AxesImage) -> None:
    """Name tokens beside a row's first square and a column's last; ``side``: its width in pixels of the grid."""
    points = side * ax.get_window_extent().width / ax.get_xlim()[1] * 72 / ax.figure.dpi
    squares: list[Axes] = []
    for cell in plan.cells:
        (rows, columns), (left, top), (row, column) = cell.values.shape, grid.corner(cell.id), grid.cells[cell.id]
        labels = plan.labels if column == 0 else None
        keys = None if (row + 1, column) in grid.cells.values() else plan.keys or plan.labels
        across, down = ax.get_xlim()[1], ax.get_ylim()[0]
        beside = ax.inset_axes(
            (left / across, 1 - (top + side) / down, side / across, side / down), facecolor="none", zorder=2
        )
        beside.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), in_layout=False)
        beside.spines[:].set_visible(False)
        for axis, named, n in ((beside.yaxis, labels, rows), (beside.xaxis, keys, columns)):
            name_axis(axis, named, n, points / n, plan.pooled, style, plan.every // plan.pooled)
        beside.tick_params(length=0, pad=4)
        squares.append(beside)
    texts = {hundredths(float(value)) for cell in plan.cells for value in cell.values.flat} - {""}
    m = _most_cells(plan)
    if m <= MOST_NUMBERED and texts and value_size(texts, points / m, points / m):
        for beside, cell in zip(squares, plan.cells, strict=True):
            write_numbers(beside, cell.values, drawn, hundredths)


def _image(plan: HeadGridPlan, grid: _Layout, style: Style, pixels: float) -> tuple[NDArray[np.uint8], int]:
    m = _most_cells(plan)
    colours = plan.colours or style.colour_map()
    side = _side(grid.square * pixels, m)
    greys = (style.paper, style.frame, style.muted)
    paper, frame, sink = (np.round(np.array(to_rgb(grey)) * 255) for grey in greys)
    width, height = (round(length * pixels) for length in grid.extent)
    image = np.full((height, width, 4), [*paper, 255], dtype=np.uint8)
    for cell in plan.cells:
        left, top = (round(length * pixels) for length in grid.corner(cell.id))
        image[top - 1 : top + side + 1, left - 1 : left + side + 1, :3] = frame
        painted = colours(plan.norm(np.ma.masked_invalid(cell.values)), bytes=True)  # NaN is transparent
        rows, columns = (np.arange(side) * n // side for n in cell.values.shape)
        image[top : top + side, left : left + side] = painted[rows][:, columns]
        below = image[top + side + 2 : top + side + 2 + max(1, round(2 * pixels)), left : left + side, :3]
        below[:, np.isin(columns, list(cell.sinks))] = sink
    return image, side


def _side(room: float, m: int) -> int:
    """Pixels of a square of m cells a side: a multiple of m, unless that leaves too much of the room."""
    side = max(1, int(room / m + 0.1)) * m
    return side if _EVEN * room <= side <= 1.1 * room else int(room)


class _Names(NamedTuple):
    full: bool  # whether ids have their layers, which also stand beside the rows
    beside: bool  # whether every text stands beside its id
    right: bool  # whether a mark stands right of every id, or below that
    low: bool = False  # whether it stands below, in place of the text there


def _names(cells: Sequence[HeadCell], grid: _Layout) -> _Names:
    """Texts and marks if there is room beside full ids, or else beside those without layers; marks, else, below."""
    wide, narrow = (
        [text_width(name, grid.size, "bold") for name in names]
        for names in ([str(cell.id) for cell in cells], [f"H{cell.id.head}" for cell in cells])
    )
    texts = [text_width(cell.beside, min(6.0, grid.size)) for cell in cells]
    marks = any(cell.right for cell in cells)
    beside = any(cell.beside for cell in cells)
    for full, ids in ((True, wide), (False, narrow))[: 1 + bool(grid.layers)]:
        if grid.named and grid.marked and marks and max(ids) + _MARK <= grid.square:
            return _Names(full, beside=False, right=True)
        if grid.named and not grid.marked and beside and max(map(sum, zip(ids, texts, strict=True))) + 8 <= grid.square:
            return _Names(full, beside=True, right=False)
    low = grid.marked and marks and grid.square >= 2 * _MARK - 2
    return _Names(max(wide) + 3 <= grid.pitch, beside=False, right=low, low=low)


def _fullest(texts: Sequence[str], size: float, room: float) -> str:
    """The first text that fits; else the last one cut, or '' if fewer than five characters would remain."""
    forms = [drawable(text) for text in texts]
    cut = fitted(forms[-1], size, max(room, 1))
    return next((form for form in forms if text_width(form, size) <= room), cut if len(cut) > 4 else "")


def _families(cells: Sequence[HeadCell], grid: _Layout) -> dict[Family, str]:
    right = _names(cells, grid).right
    present = {cell.family for cell in cells} | {cell.right[0] for cell in cells if right and cell.right is not None}
    without = " or ".join(sorted({cell.beside.rstrip("?") for cell in cells if cell.family is UNNAMED}))
    return {family: without if family is UNNAMED else family.name for family in FAMILIES if family in present}


def grid_pooling(
    n_positions: int, heads: Iterable[HeadId], style: Style, *, marked: bool = False, labels: Names = ()
) -> tuple[int, int]:
    """Positions per cell of a small matrix, so that every cell has a pixel, and the interval of labels, in positions.

    ``marked``: whether heads get marks of families; ``labels``: of tokens, for a few heads, which are packed.
    UsageError: the page is too narrow.
    """
    pixels, shown = file_dpi(style) / DPI, _Shown(list(heads), marked, labels)
    pooled = math.ceil(n_positions / int(_planned(shown, 1, style).square * pixels))
    m = math.ceil(n_positions / pooled)
    side = _side(_planned(shown, m, style).square * pixels, m)
    return pooled, named_every(side / m / pixels * 72 / DPI, pooled)


def _planned(shown: _Shown, m: int, style: Style) -> _Layout:
    packed = bool(shown.labels) or shown.is_sparse
    columns = len(shown.columns)
    if style.room is None:
        n = len(shown.ids)
        across = min(n, max(_PACKED, math.ceil(math.sqrt(2 * n)))) if packed else columns
        square = _side(_LARGEST_CHOSEN, m) if shown.labels or across <= 2 else _LARGEST // m * m
        grid = _layout(shown, across, max(square, _ROOMY) + 14, packed)
        n = len(grid.layers)
        if n and grid.extent[1] > _PAGE_HEIGHT:  # in as many blocks as bring it nearest to the shape of a page
            split = [replace(grid, rows=math.ceil(n / k) * grid.rows // n, blocks=k) for k in range(1, n + 1)]
            grid = min(split, key=lambda grid: abs(math.log(grid.extent[1] / grid.extent[0] / _PAGE_SHAPE)))
        return replace(grid, square=square, tokens=_token_names(shown.labels, square))
    room = (style.room - 2 * MARGIN) * DPI - _LAYER_NAMES
    if room / columns < _LEAST and not (packed and _wrapped(shown, room, packed)):
        least = math.ceil((columns * _LEAST + _LAYER_NAMES + 2 * MARGIN * DPI) / DPI * 10) / 10
        raise UsageError(
            f"expected a width of at least {least:g} inches for a figure with {columns} heads in a row, found "
            f"{style.room:.3g}: choose a larger --width (width=...), fewer heads (--select), or other figures."
        )
    return _fitting(shown, room)


def _fitting(shown: _Shown, room: float) -> _Layout:
    """Lay out the grid in a width in pixels; a few heads are packed if they fit a page, with their tokens named."""
    tokens = 0.0
    grid = _wrapped(shown, room, packed=True, least=_ROOMY) if shown.labels else None
    for _ in range(3):  # which tokens are named, and how large, depends on the squares
        if grid:
            tokens = max(tokens, _token_names(shown.labels, grid.square))
            grid = _wrapped(shown, room - tokens, packed=True, least=_ROOMY)
    if grid and grid.pitch >= _ROOMY:
        return replace(grid, tokens=tokens)
    grid = (shown.is_sparse and _wrapped(shown, room, packed=True)) or _wrapped(shown, room, packed=False)
    n = len(shown.columns)
    return grid or _layout(shown, n, min(room / n, _LARGEST_CHOSEN + 14), packed=False)


def _token_names(labels: Names, square: float) -> float:  # pixels of token labels beside and below a square
    cells = [square / len(texts) * 72 / DPI for texts in labels]
    sizes = (
        label_pixels(texts[:: named_every(cell)], label_size(cell)) + 16
        for texts, cell in zip(labels, cells, strict=True)
    )
    return max(sizes, default=0)


def _wrapped(shown: _Shown, room: float, packed: bool, least: float = _COMFORTABLE) -> _Layout | None:
    """Lay out squares large enough for names, in rows unless ``least`` suffices; None if that fits no page."""
    n = len(shown.ids if packed else shown.columns)
    fewest = n if room / n >= least else max(1, int(room // _ROOMY))
    for most in range(fewest, n + 1):
        across = math.ceil(n / math.ceil(n / most))
        if room / across < _COMFORTABLE:
            return None
        grid = _layout(shown, across, min(room / across, _LARGEST_CHOSEN + 14), packed)
        if across == n or grid.extent[1] <= _HIGHEST:
            return grid
    return None


def _layout(shown: _Shown, across: int, pitch: float, packed: bool) -> _Layout:
    ids, columns = shown.ids, shown.columns
    layers = [] if packed else sorted({head.layer for head in ids})
    of_layer = math.ceil(len(ids if packed else columns) / across)  # rows
    places: Iterable[int] = range(len(ids))
    if not packed:
        places = [layers.index(head.layer) * of_layer * across + columns.index(head.head) for head in ids]
    cells = {head: divmod(place, across) for head, place in zip(ids, places, strict=True)}
    size = 7.0 if pitch >= _COMFORTABLE else 5.5
    named = packed or of_layer > 1 or text_width(f"H{columns[-1]}", size, "bold") + 3 <= pitch
    square = min(_LARGEST_CHOSEN, max(4.0, pitch - (14 if pitch >= _COMFORTABLE else 4)))
    return _Layout(
        cells=cells,
        rows=of_layer * max(1, len(layers)),
        across=across,
        layers=layers,
        columns=columns,
        pitch=pitch,
        size=size,
        square=square,
        marked=shown.marked,
        named=named,
    )
