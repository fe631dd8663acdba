"""Small matrices of many heads on one page, by layer and head or packed, as one image in one Axes.

Heads are packed, one after the other, where a grid of layers and heads would be mostly empty.
Lengths are pixels at :data:`attnviz.figures.style.DPI`, and so are the data coordinates of the Axes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from attnviz.figures.fonts import drawable, fitted, put_text, text_width
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
    LEGEND,
    MARGIN,
    PIXEL,
    ColourScale,
    PanelPlan,
    fix_axes,
    freeze_layout,
    legend_columns,
    page_width,
    run_layout,
)
from attnviz.figures.style import DPI, Style, file_dpi, text_colour
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
class HeadGridPlan(ColourScale, PanelPlan):
    """Matrices of many heads to draw."""

    cells: tuple[HeadCell, ...]  # at least one
    beside: str = ""  # note on the texts beside the ids, if they fit
    roles: str = ""  # note on marks and texts on the right, likewise
    labels: Labels | None = None  # of positions, for a few heads; drawn if they fit
    keys: Labels | None = None  # of the columns, if other positions than the rows
    pooled: int = 1  # positions in one cell
    every: int = 1  # of so many positions one is named, at least

    @property
    def most_cells(self) -> int:  # in a row or column
        return max(int(n) for cell in self.cells for n in cell.values.shape)

    @cached_property
    def _grid(self) -> "_Grid":
        marked = any(cell.family is not None for cell in self.cells)
        labels = [labels.texts for labels in (self.labels, self.keys) if labels is not None]
        return _Grid([cell.id for cell in self.cells], marked, labels)

    def page(self, style: Style) -> Figure:
        """A new figure with the grid and its colour bar; UsageError if it is too narrow for so many heads."""
        grid = self._grid.planned(self.most_cells, style)
        across, down = grid.extent
        width = page_width(style, (across + _LAYER_NAMES) / DPI + 2 * MARGIN)
        room = max(across, (width - 2 * MARGIN) * DPI - _LAYER_NAMES)
        names = self._names(grid)
        families = self._families(names).values()
        legend = 0.0
        if families:
            legend = math.ceil(len(families) / legend_columns(families, room, _ENTRY)) * _LEGEND_ROW + 0.06
        more = [self.beside] * names.beside + [self.roles] * names.right
        data = down / DPI + legend
        page = self.new_page(style, width=width, body=data + _BAR, notes=[*self.notes, *more], data=data)
        ax = page.add_subplot()
        self._lay_out(ax, grid, style, room)
        self.colour_bar([ax], style)
        freeze_layout(page)
        ax.apply_aspect()  # of the rounded position
        box = ax.get_window_extent()
        fix_axes(page, ax, box.width, box.height)
        self._fill(ax, grid, style)
        return page

    def draw(self, ax: Axes, style: Style) -> AxesImage:
        """Draw the grid on the caller's Axes, as large as it fits; returns the image, for ``figure.colorbar``."""
        run_layout(ax.figure)
        box = ax.get_window_extent()
        pixel = ax.figure.dpi / DPI
        room = box.width / pixel
        for _ in range(4):
            grid = self._grid.fitting(room)
            if grid.extent[1] <= box.height / pixel:
                break
            room *= box.height / pixel / grid.extent[1]
        self._lay_out(ax, grid, style, grid.extent[0])
        run_layout(ax.figure)
        return self._fill(ax, grid, style)

    def _lay_out(self, ax: Axes, grid: "_Grid", style: Style, width: float) -> None:
        """Set up Axes of a width in pixels with all that takes room beside the squares, and with marks of families."""
        height = grid.extent[1]
        ax.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[], facecolor=style.paper)
        ax.set_box_aspect(height / width)
        ax.set_anchor("NW")
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        high = grid.of_layer * grid.row
        full = text_width(f"layer {max(grid.layers, default=0)}", 7) <= high - grid.above
        turned: dict[str, Any] = {"rotation": 90, "va": "center", "size": 7} if full else {"size": 6}
        for at, layer in enumerate(grid.layers):
            block, row = divmod(at, grid.layers_of_block)
            name = f"layer {layer}" if full else HeadId(layer, 0).layer_name
            middle = grid.first + row * high + (high + grid.above - 6) / 2
            ink = text_colour(style, "ytick.color")
            put_text(ax, block * grid.block - 4, middle, name, ha="right", color=ink, **turned)
        names = self._names(grid)
        families = self._families(names)
        marks: dict[tuple[Family, bool | None], list[tuple[float, float]]] = {(family, True): [] for family in families}
        for cell in self.cells:
            left, top = grid.corner(cell.id)
            if cell.family is not None:
                marks[cell.family, True].append((left + 5, top - 9))
            if names.right and cell.right is not None:
                level = top - (9 if names.low else 23)
                marks.setdefault((cell.right[0], cell.right[2]), []).append((left + grid.square - 5, level))
        for (family, filled), places in marks.items():
            ax.plot(
                *np.reshape(places, (-1, 2)).T,
                label=families[family] if filled else "",
                linestyle="none",
                marker=family.marker,
                markersize=min(4.6, 0.5 * grid.pitch * PIXEL),
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
            columns = legend_columns(families.values(), width, _ENTRY)
            look: dict[str, Any] = LEGEND | {"borderaxespad": 0.2, "borderpad": 0, "handletextpad": 0.1}
            look |= {"columnspacing": 1.0, "handlelength": 1.2, "labelcolor": style.ink}
            ax.legend(loc="upper left", bbox_to_anchor=(0, 0), ncols=columns, **look)

    def _fill(self, ax: Axes, grid: "_Grid", style: Style) -> AxesImage:
        """Draw the squares and their texts on Axes of final size."""
        shown = ax.get_window_extent().width / ax.get_xlim()[1]  # pixels of the figure, for one of the grid
        pixels = shown * file_dpi(style) / DPI  # of the image
        image, side = self._image(grid, style, pixels)
        height, width = (length / pixels for length in image.shape[:2])
        colours = self.colour_map(style)
        extent = (0, width, height, 0)
        drawn = AxesImage(ax, cmap=colours, norm=self.norm, interpolation="nearest", origin="upper", extent=extent)
        drawn.set_data(image)
        ax.add_image(drawn)
        if any(np.isnan(cell.values).any() for cell in self.cells):
            hatch(ax.add_patch(Rectangle((0, 0), width, height, linewidth=0, zorder=-1)), style)
        pitch = grid.pitch * shown * DPI / ax.figure.dpi
        small = min(6.0, grid.size)
        ids: dict[str, Any] = {"size": grid.size, "weight": "bold", "va": "baseline", "color": style.ink}
        texts: dict[str, Any] = {"size": small, "va": "baseline"}
        names = self._names(grid)
        for cell in self.cells:
            left, top = grid.corner(cell.id)
            name = str(cell.id) if names.full else f"H{cell.id.head}"  # the layer stands beside the row
            if grid.named:
                put_text(ax, left, top - (19 if grid.marked else 5), name, **ids)
            if names.right and not names.low and cell.right is not None:
                room = pitch - grid.pitch + grid.square - 21 - text_width(name, grid.size, "bold")
                role = _fullest(cell.right[1], small, room)
                put_text(ax, left + grid.square - 15, top - 19, role, ha="right", color=style.muted, **texts)
            ink = style.muted if cell.muted else style.ink
            if cell.family is not None and not names.low:
                beside = _fullest((cell.beside, *cell.shorter), small, pitch - 18)
                put_text(ax, left + 14, top - 5, beside, color=ink, **texts)
            elif names.beside:
                put_text(ax, left + side / pixels, top - 5, cell.beside, ha="right", color=ink, **texts)
        if grid.tokens:
            self._name_tokens(ax, grid, style, side / pixels, drawn)
        if not grid.named:
            every = math.ceil((text_width(f"H{grid.columns[-1]}", 5.5, "bold") + 3) / pitch)
            for block in range(grid.blocks):
                for at in range(0, len(grid.columns), every):
                    x = block * grid.block + at * grid.pitch + 1 + grid.square / 2
                    put_text(ax, x, 1, f"H{grid.columns[at]}", **(ids | {"ha": "center", "va": "top"}))
        return drawn

    def _name_tokens(self, ax: Axes, grid: "_Grid", style: Style, side: float, drawn: AxesImage) -> None:
        """Name tokens beside a row's first square and a column's last; ``side``: its width in pixels of the grid."""
        across, down = ax.get_xlim()[1], ax.get_ylim()[0]
        points = side * ax.get_window_extent().width / across * 72 / ax.figure.dpi
        shown = {hundredths(float(value)) for cell in self.cells for value in cell.values.flat} - {""}
        m = self.most_cells
        numbered = m <= MOST_NUMBERED and bool(shown) and value_size(shown, points / m, points / m)
        for cell in self.cells:
            (rows, columns), (left, top), (row, column) = cell.values.shape, grid.corner(cell.id), grid.places[cell.id]
            labels = self.labels if column == 0 else None
            keys = None if (row + 1, column) in grid.places.values() else self.keys or self.labels
            bounds = (left / across, 1 - (top + side) / down, side / across, side / down)
            beside = ax.inset_axes(bounds, facecolor="none", zorder=2)
            beside.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), xticks=[], yticks=[], in_layout=False)
            beside.spines[:].set_visible(False)
            for axis, named, n in ((beside.yaxis, labels, rows), (beside.xaxis, keys, columns)):
                if named is not None:
                    name_axis(axis, named, n, points / n, self.pooled, style, self.every // self.pooled)
            beside.tick_params(length=0, pad=4)
            if numbered:
                write_numbers(beside, cell.values, drawn, hundredths)

    def _image(self, grid: "_Grid", style: Style, pixels: float) -> tuple[NDArray[np.uint8], int]:
        """All squares with their frames, [height, width, 4], ``pixels`` for one of the grid, and a square's side."""
        colours = self.colour_map(style)
        side = _side(grid.square * pixels, self.most_cells)
        greys = (style.paper, style.frame, style.muted)
        paper, frame, sink = (np.round(np.array(to_rgb(grey)) * 255) for grey in greys)
        width, height = (round(length * pixels) for length in grid.extent)
        image = np.full((height, width, 4), [*paper, 255], dtype=np.uint8)
        for cell in self.cells:
            left, top = (round(length * pixels) for length in grid.corner(cell.id))
            image[top - 1 : top + side + 1, left - 1 : left + side + 1, :3] = frame
            painted = colours(self.norm(np.ma.masked_invalid(cell.values)), bytes=True)  # NaN is transparent
            rows, columns = (np.arange(side) * n // side for n in cell.values.shape)
            image[top : top + side, left : left + side] = painted[rows][:, columns]
            below = image[top + side + 2 : top + side + 2 + max(1, round(2 * pixels)), left : left + side, :3]
            below[:, np.isin(columns, list(cell.sinks))] = sink
        return image, side

    def _names(self, grid: "_Grid") -> "_Names":
        """Texts and marks if there is room beside full ids, or else beside those without layers; marks, else, below."""
        wide, narrow = (
            [text_width(name, grid.size, "bold") for name in names]
            for names in ([str(cell.id) for cell in self.cells], [f"H{cell.id.head}" for cell in self.cells])
        )
        texts = [text_width(cell.beside, min(6.0, grid.size)) for cell in self.cells]
        marks = grid.marked and any(cell.right for cell in self.cells)
        beside = not grid.marked and any(cell.beside for cell in self.cells)
        for full, ids in ((True, wide), (False, narrow))[: 1 + bool(grid.layers)]:
            if grid.named and marks and max(ids) + _MARK <= grid.square:
                return _Names(full, right=True)
            if grid.named and beside and max(map(sum, zip(ids, texts, strict=True))) + 8 <= grid.square:
                return _Names(full, beside=True)
        low = marks and grid.square >= 2 * _MARK - 2
        return _Names(max(wide) + 3 <= grid.pitch, right=low, low=low)

    def _families(self, names: "_Names") -> dict[Family, str]:
        """The families that occur, in the order of legends, with what the legend calls them."""
        present = {cell.family for cell in self.cells}
        if names.right:
            present |= {cell.right[0] for cell in self.cells if cell.right is not None}
        without = " or ".join(sorted({cell.beside.rstrip("?") for cell in self.cells if cell.family is UNNAMED}))
        return {family: without if family is UNNAMED else family.name for family in FAMILIES if family in present}


@dataclass(frozen=True)
class _Grid:
    """Where the squares of heads stand."""

    ids: Sequence[HeadId]
    marked: bool  # whether a mark, and a text, stand on a line of their own above each square
    labels: Names  # of tokens, for a few heads, which are packed
    packed: bool = False
    across: int = 1  # squares side by side, in a block
    pitch: float = 0  # from one square to the next
    square: float = 0  # side of a square
    blocks: int = 1  # side by side, of as many layers each but for the last
    tokens: float = 0  # room for token labels left of each row and below each column

    @cached_property
    def columns(self) -> list[int]:  # the numbers of heads, from left to right
        return sorted({head.head for head in self.ids})

    @cached_property
    def layers(self) -> list[Any]:  # from top to bottom; none where heads are packed
        return [] if self.packed else sorted({head.layer for head in self.ids})

    @property
    def is_sparse(self) -> bool:  # whether at least half of a grid of layers and columns would be empty
        return 2 * len(self.ids) <= len({head.layer for head in self.ids}) * len(self.columns)

    @property
    def of_layer(self) -> int:  # rows of a layer
        return math.ceil(len(self.ids if self.packed else self.columns) / self.across)

    @property
    def layers_of_block(self) -> int:
        return math.ceil(max(1, len(self.layers)) / self.blocks)

    @cached_property
    def places(self) -> dict[HeadId, tuple[int, int]]:
        """Row and column of each square, before rows are split into blocks."""
        places: Iterable[int] = range(len(self.ids))
        if not self.packed:
            a_layer = self.of_layer * self.across
            places = [self.layers.index(head.layer) * a_layer + self.columns.index(head.head) for head in self.ids]
        return {head: divmod(place, self.across) for head, place in zip(self.ids, places, strict=True)}

    @property
    def size(self) -> float:  # font size of ids in points
        return 7.0 if self.pitch >= _COMFORTABLE else 5.5

    @cached_property
    def named(self) -> bool:  # whether an id stands above each square, and not only the number above each column
        widest = text_width(f"H{self.columns[-1]}", self.size, "bold")
        return self.packed or self.of_layer > 1 or widest + 3 <= self.pitch

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
        height = self.first + self.layers_of_block * self.of_layer * self.row
        return width + self.tokens, height + self.tokens

    def corner(self, head: HeadId) -> tuple[float, float]:
        """Left and top of a head's square."""
        row, column = self.places[head]
        block, row = divmod(row, self.layers_of_block * self.of_layer)
        left = block * self.block + self.tokens + column * self.pitch
        return left + 1, self.first + row * self.row + self.above

    def with_rows(self, across: int, pitch: float, packed: bool) -> "_Grid":
        """Squares side by side, with a gap."""
        square = max(4.0, pitch - (14 if pitch >= _COMFORTABLE else 4))
        return replace(self, packed=packed, across=across, pitch=pitch, square=min(_LARGEST_CHOSEN, square))

    def planned(self, m: int, style: Style) -> "_Grid":
        """The grid in a figure of its own, of squares of m cells a side."""
        packed = bool(self.labels) or self.is_sparse
        n, columns = len(self.ids), len(self.columns)
        if style.room is None:
            across = min(n, max(_PACKED, math.ceil(math.sqrt(2 * n)))) if packed else columns
            square = _side(_LARGEST_CHOSEN, m) if self.labels or across <= 2 else _LARGEST // m * m
            grid = self.with_rows(across, max(square, _ROOMY) + 14, packed)
            if grid.layers and grid.extent[1] > _PAGE_HEIGHT:  # in blocks that bring it nearest to the shape of a page
                split = [replace(grid, blocks=blocks) for blocks in range(1, len(grid.layers) + 1)]
                grid = min(split, key=lambda grid: abs(math.log(grid.extent[1] / grid.extent[0] / _PAGE_SHAPE)))
            return replace(grid, square=square, tokens=self._token_names(square))
        room = (style.room - 2 * MARGIN) * DPI - _LAYER_NAMES
        if room / columns < _LEAST and not (packed and self._wrapped(room, packed)):
            least = math.ceil((columns * _LEAST + _LAYER_NAMES + 2 * MARGIN * DPI) / DPI * 10) / 10
            raise UsageError(
                f"expected a width of at least {least:g} inches for a figure with {columns} heads in a row, found "
                f"{style.room:.3g}: choose a larger --width (width=...), fewer heads (--select), or other figures."
            )
        return self.fitting(room)

    def fitting(self, room: float) -> "_Grid":
        """Lay out the grid in a width in pixels; a few heads are packed if they fit a page, with their tokens named."""
        tokens = 0.0
        grid = self._wrapped(room, packed=True, least=_ROOMY) if self.labels else None
        for _ in range(3):  # which tokens are named, and how large, depends on the squares
            if grid:
                tokens = max(tokens, self._token_names(grid.square))
                grid = self._wrapped(room - tokens, packed=True, least=_ROOMY)
        if grid and grid.pitch >= _ROOMY:
            return replace(grid, tokens=tokens)
        grid = (self.is_sparse and self._wrapped(room, packed=True)) or self._wrapped(room, packed=False)
        n = len(self.columns)
        return grid or self.with_rows(n, min(room / n, _LARGEST_CHOSEN + 14), packed=False)

    def _wrapped(self, room: float, packed: bool, least: float = _COMFORTABLE) -> "_Grid | None":
        """Lay out squares large enough for names, in rows unless ``least`` suffices; None if that fits no page."""
        n = len(self.ids if packed else self.columns)
        fewest = n if room / n >= least else max(1, int(room // _ROOMY))
        for most in range(fewest, n + 1):
            across = math.ceil(n / math.ceil(n / most))
            if room / across < _COMFORTABLE:
                return None
            grid = self.with_rows(across, min(room / across, _LARGEST_CHOSEN + 14), packed)
            if across == n or grid.extent[1] <= _HIGHEST:
                return grid
        return None

    def _token_names(self, square: float) -> float:  # pixels of token labels beside and below a square
        widths = [0.0]
        for texts in self.labels:
            cell = square / len(texts) * PIXEL
            widths.append(label_pixels(texts[:: named_every(cell)], label_size(cell)) + 16)
        return max(widths)


class _Names(NamedTuple):
    full: bool  # whether ids have their layers, which also stand beside the rows
    beside: bool = False  # whether every text stands beside its id
    right: bool = False  # whether a mark stands right of every id, or below that
    low: bool = False  # whether it stands below, in place of the text there


def grid_pooling(
    n_positions: int, heads: Iterable[HeadId], style: Style, *, marked: bool = False, labels: Names = ()
) -> tuple[int, int]:
    """Positions per cell of a small matrix, so that every cell has a pixel, and the interval of labels, in positions.

    ``marked``: whether heads get marks of families; ``labels``: of tokens, for a few heads, which are packed.
    UsageError: the page is too narrow.
    """
    pixels, grid = file_dpi(style) / DPI, _Grid(list(heads), marked, labels)
    pooled = math.ceil(n_positions / int(grid.planned(1, style).square * pixels))
    m = math.ceil(n_positions / pooled)
    side = _side(grid.planned(m, style).square * pixels, m)
    return pooled, named_every(side / m / pixels * PIXEL, pooled)


def _side(room: float, m: int) -> int:
    """Pixels of a square of m cells a side: a multiple of m, unless that leaves too much of the room."""
    side = max(1, int(room / m + 0.1)) * m
    return side if _EVEN * room <= side <= 1.1 * room else int(room)


def _fullest(texts: Sequence[str], size: float, room: float) -> str:
    """The first text that fits; else the last one cut, or '' if fewer than five characters would remain."""
    forms = [drawable(text) for text in texts]
    cut = fitted(forms[-1], size, max(room, 1))
    return next((form for form in forms if text_width(form, size) <= room), cut if len(cut) > 4 else "")
