"""A matrix of positions: cells, numbers, labels, outlines; fitted to the size of the Axes."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, Normalize
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.transforms import ScaledTranslation, Transform
from numpy.typing import NDArray

from attnviz.figures.fonts import fitted_token, font_families, put_text, text_width
from attnviz.figures.page import PIXEL, ColourScale
from attnviz.figures.style import DPI, MISSED_DASHES, Style, text_colour
from attnviz.wording import signed

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]
_COVERED = 0.995  # share of the cells that the linear scale of means covers
Cells = AxesImage | QuadMesh  # the artist of a matrix's cells, for colour bars
MESH_CELLS = 4096  # most cells that a vector file draws as rectangles
MOST_NUMBERED = 24  # rows or columns of the largest matrix with numbers in its cells
_SMALLEST, _LARGEST = 5.5, 8.0
_SLANTED = 14.4
_AIR = 5  # pixels of a cell's width that stay free beside its number
_LEAST_OUTLINE = 4  # least side of an outline in points; around smaller cells it keeps a distance
_FIRST_LANE = 3.0  # points between cells and brackets
_EQUAL = 0.179  # luminance of the colour with which black and white contrast alike: (L + 0.05)² = 0.05 × 1.05
_LEAST_NAME = 24  # pixels of the shortest bracket whose name is cut
LONGEST = 140  # largest width of a label in pixels; longer ones are cut


class Labels(NamedTuple):
    """Names of positions beside a matrix."""

    texts: tuple[str, ...]  # of every position, before pooling
    muted: tuple[bool, ...] = ()  # grey: special tokens and other sinks; none of them where it is empty
    bold: tuple[bool, ...] = ()


class Outline(NamedTuple):
    """A frame around cells: solid if ``found``, dashed if missed, plain ink if None."""

    rows: tuple[int, int]  # the first and the last
    columns: tuple[int, int]
    found: bool | None = None


class Bracket(NamedTuple):
    """A named set of positions at the axes: a bracket over each run, its first and last position."""

    name: str
    runs: tuple[tuple[int, int], ...]

    @property
    def positions(self) -> set[int]:
        return {at for first, last in self.runs for at in range(first, last + 1)}


def bracket_lanes(brackets: Iterable[Bracket]) -> list[list[Bracket]]:
    """The brackets by lane, that next to the cells first: those that overlap lie in different ones."""
    lanes = list[list[Bracket]]()
    for bracket in brackets:
        for lane in lanes:
            if all(bracket.positions.isdisjoint(other.positions) for other in lane):
                lane.append(bracket)
                break
        else:
            lanes.append([bracket])
    return lanes


LANE = 10.0  # points that a lane of brackets takes


def draw_brackets(axis: XAxis | YAxis, brackets: Iterable[Bracket], cell: float, pooled: int, style: Style) -> None:
    """Draw brackets above the columns or right of the rows, outside the cells, which are of a size in points."""
    ax = axis.axes
    across = axis.axis_name == "x"
    ink = text_colour(style)
    beside = ax.get_xaxis_transform() if across else ax.get_yaxis_transform()
    turned: dict[str, Any] = {"ha": "left", "rotation": 270}
    if across:
        turned = {"ha": "center", "va": "bottom"}

    def outwards(points: float) -> Transform:  # positions along the axis, so far from the cells
        x, y = (0.0, points / 72) if across else (points / 72, 0.0)
        return beside + ScaledTranslation(x, y, ax.figure.dpi_scale_trans)

    def place(along: float) -> tuple[float, float]:
        return (along, 1.0) if across else (1.0, along)

    for at, bracket in ((at, bracket) for at, lane in enumerate(bracket_lanes(brackets)) for bracket in lane):
        away = _FIRST_LANE + LANE * at
        longest = max(bracket.runs, key=lambda run: run[1] - run[0])
        for run in bracket.runs:
            first, last = (position // pooled for position in run)
            ends = zip(place(first - 0.4), place(last + 0.4), strict=True)
            ax.add_artist(Line2D(*ends, color=ink, linewidth=1.0, clip_on=False, transform=outwards(away)))
            room = (last - first + 1) * cell * DPI / 72
            name = fitted_token(bracket.name, _SMALLEST, room)
            if run == longest and (name == bracket.name or room >= _LEAST_NAME):
                middle = place((first + last) / 2)
                put_text(ax, *middle, name, size=_SMALLEST, color=ink, transform=outwards(away + 1), **turned)


def draw_matrix(ax: Axes, values: Array, scale: ColourScale, style: Style) -> Cells:
    """Draw the cells of a matrix, row 0 at the top: rows are queries, columns keys; returns them.

    ``values`` are [rows, columns], NaN hatched (:func:`hatch`). Numbers are written by :func:`write_numbers`, once
    the Axes have their size. In a vector file a few cells are drawn as rectangles, sharp at any size.
    """
    rows, columns = values.shape
    look: dict[str, Any] = {"cmap": scale.colour_map(style), "norm": scale.norm}
    cells: Cells
    if style.vector and values.size <= MESH_CELLS:
        edges = [np.arange(n + 1) - 0.5 for n in (columns, rows)]
        cells = ax.pcolormesh(*edges, values, edgecolors="face", linewidth=0.1, **look)
    else:
        cells = ax.imshow(values, interpolation="none" if style.vector else "auto", aspect="auto", **look)
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), xticks=[], yticks=[], facecolor=style.paper)
    if np.isnan(values).any():
        hatch(ax.patch, style)
    ax.grid(visible=False)
    ax.spines[:].set(linewidth=PIXEL, edgecolor=style.frame)
    return cells


def draw_outline(ax: Axes, outline: Outline, cell: tuple[float, float], style: Style) -> None:
    """Draw a frame around cells, which are of a width and height in points."""
    (left, right), (top, bottom) = outline.columns, outline.rows
    sides = ((right - left, cell[0]), (bottom - top, cell[1]))
    across, down = (max(n + 1, _LEAST_OUTLINE / points) for n, points in sides)
    corner = ((left + right - across) / 2, (top + bottom - down) / 2)
    stroke: dict[str, Any] = {"edgecolor": style.ink, "linewidth": 1.2}
    if outline.found is not None:
        halo = withStroke(linewidth=2.6, foreground=style.paper)  # so that it contrasts with any cell
        stroke = {"edgecolor": style.verdict(outline.found), "linewidth": 1.4, "path_effects": [halo]}
        stroke["linestyle"] = "-" if outline.found else MISSED_DASHES
    ax.add_patch(Rectangle(corner, across, down, fill=False, zorder=3, clip_on=False, **stroke))


def hatch(patch: Patch, style: Style) -> None:
    """Hatch what lies behind cells, and shows where there are none: no value, such as where a mask forbids one."""
    patch.set(facecolor=style.paper, hatch="////", hatchcolor=style.frame, hatch_linewidth=0.5)


def write_numbers(ax: Axes, values: Array, cells: Cells, write: Callable[[float], str]) -> bool:
    """Write values (``write``: '' for none) into the cells if all are readable, on Axes of final size; say whether."""
    texts, size = numbers(values, write, *cell_points(ax, values.shape))
    write_texts(ax, values, cells, texts, size=size)
    return bool(texts)


def numbers(
    values: Array, write: Callable[[float], str], width: float, height: float
) -> tuple[dict[tuple[int, ...], str], float]:
    """Values as texts by cell, and the font size with which all fit cells of a size in points; none if one does not."""
    if max(values.shape) > MOST_NUMBERED:
        return {}, 0.0
    texts = {cell: text for cell, value in np.ndenumerate(values) if (text := write(float(value)))}
    size = value_size(texts.values(), width, height) if texts else None
    return ({}, 0.0) if size is None else (texts, size)


def write_texts(ax: Axes, values: Array, cells: Cells, texts: dict[tuple[int, ...], str], **properties: Any) -> None:
    """Write texts into cells of a matrix, by row and column, in ink that contrasts with their colours."""
    colours = painted(values, cells.cmap, cells.norm)
    colours[np.isnan(values)] = ax.get_facecolor()
    for (row, column), text in texts.items():
        ink = contrasting_ink(colours[row, column])
        put_text(ax, column, row, text, color=ink, ha="center", **properties)


def painted(values: Array, colours: Colormap, norm: Any) -> Array:
    """The colours of values, [rows, columns, 4]."""
    return np.array(colours(np.asarray(norm(np.nan_to_num(values)))))


def hundredths(value: float) -> str:
    """A value for a cell: ``.93``, ``1``, ``1.85``; '' below 0.005, and for NaN."""
    shown = 0 if math.isnan(value) else round(100 * value)
    if not shown:
        return ""
    return "1" if shown == 100 else f"{shown / 100:.2f}".removeprefix("0")


def signed_hundredths(value: float) -> str:
    """A difference for a cell: ``+0.31``; '' below 0.005."""
    return signed(value) if abs(value) >= 0.005 else ""


def cell_points(ax: Axes, shape: tuple[int, ...], known: float | None = None) -> tuple[float, float]:
    """Width and height in points of a cell of [rows, columns] on the Axes as they are now, unless both are known."""
    if known is not None:
        return known, known
    rows, columns = shape
    box = ax.get_window_extent()
    points = 72 / ax.figure.dpi
    return box.width * points / columns, box.height * points / rows


def value_size(texts: Iterable[str], width: float, height: float) -> float | None:
    """Largest font size in points with which all texts fit cells of a size in points; None if none does."""
    distinct = set(texts)
    for size in (7.0, 6.5, 6.0, 5.5):
        widest = max(text_width(text, size) for text in distinct) * PIXEL
        if height >= 1.3 * size and widest <= width - _AIR * PIXEL:
            return size
    return None


def contrasting_ink(colour: Sequence[float] | Array) -> str:
    """Black or white, whichever contrasts more with a colour (red, green, blue; 0-1): at least 4.5 to 1 (WCAG 2.1)."""
    linear = [((c + 0.055) / 1.055) ** 2.4 if c > 0.04045 else c / 12.92 for c in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > _EQUAL else "#ffffff"


def scale_end(value: float) -> float:
    """Round a share up to the end of a colour scale."""
    return next((top for top in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if top >= value), max(1.0, value))


def scale_of_means(values: Sequence[Array], style: Style, n: int) -> tuple[Normalize, bool]:
    """The norm of means of weights between n positions, and whether values lie above its end.

    Logarithmic where that of one head's weights is (:meth:`attnviz.figures.style.Style.scaled_for`); else from 0 to a
    round end that covers nearly all of them.
    """
    scaled = style.scaled_for(n)
    if scaled.scale == "log":
        return scaled.norm(), False
    every = np.nan_to_num(np.concatenate([matrix.ravel() for matrix in values]))
    top = scale_end(float(np.quantile(every, _COVERED)))
    return Normalize(0, top, clip=True), float(every.max()) > 1.001 * top


def max_pool(values: Array, factor: int) -> Array:
    """Pool every square of ``factor`` rows and columns to the value furthest from 0.

    [rows, columns] becomes [ceil(rows / factor), ceil(columns / factor)].
    """
    if factor == 1:
        return values
    beyond = [(0, -size % factor) for size in values.shape]
    padded = np.pad(values, beyond, mode="edge") if any(after for _, after in beyond) else values
    largest = _of_squares(np.maximum, padded, factor)
    if not (values < 0).any():
        return largest
    smallest = _of_squares(np.minimum, padded, factor)
    return np.where(-smallest > largest, smallest, largest)


class PooledPattern:
    """:func:`max_pool` of a pattern whose rows come in chunks."""

    def __init__(self, n_queries: int, n_keys: int, factor: int, dtype: type = np.float32) -> None:
        self._factor = factor
        # the value furthest from 0 so far
        self.cells: Array = np.zeros((math.ceil(n_queries / factor), math.ceil(n_keys / factor)), dtype)

    def add(self, first: int, rows: "Tensor") -> None:
        """The next rows, [rows, n_keys], from query ``first`` on; hidden keys at the end may lack."""
        weights = rows.numpy().astype(self.cells.dtype, copy=False)
        if before := first % self._factor:  # rows of the first cells that were in the last chunk
            weights = np.pad(weights, [(before, 0), (0, 0)])
        pooled = max_pool(weights, self._factor)
        cells = self.cells[first // self._factor :][: len(pooled), : pooled.shape[1]]
        smallest, largest = np.minimum(cells, pooled), np.maximum(cells, pooled)
        cells[:] = np.where(-smallest > largest, smallest, largest)


def _of_squares(choose: Callable[[Array, Array], Array], values: Array, factor: int) -> Array:
    """Largest or smallest of every square; rows first, many times faster than over two axes or reduceat."""
    rows = reduce(choose, [values[offset::factor] for offset in range(factor)])
    return reduce(choose, [rows[:, offset::factor] for offset in range(factor)])


def named_every(cell: float, pooled: int = 1) -> int:
    """Label interval, in positions, beside cells of a size in points."""
    return math.ceil(13 * PIXEL / cell) * pooled


def label_size(cell: float) -> float:
    """Font size of labels beside cells, both in points."""
    return max(_SMALLEST, min(_LARGEST, 0.8 * cell))


def label_pixels(labels: Iterable[str], size: float) -> float:
    """Width in pixels of the longest label at a font size in points."""
    return max(text_width(fitted_token(label, size, LONGEST), size) for label in set(labels))


def name_axis(
    axis: XAxis | YAxis, labels: Labels, n: int, cell: float, pooled: int, style: Style, every: int = 1
) -> None:
    """Set ticks and labels of one side, as many as fit beside n cells of a size in points, of ``every`` cells one."""
    size = label_size(cell)
    ink = text_colour(style, f"{axis.axis_name}tick.color")
    ticks = range(0, n, max(every, named_every(cell)))
    texts = [fitted_token(labels.texts[tick * pooled], size, LONGEST) for tick in ticks]
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    turned = {} if axis.axis_name == "y" else slanted if cell >= _SLANTED else {"rotation": 90}
    axis.set_ticks(list(ticks), texts, fontsize=size, family=font_families(texts), parse_math=False, **turned)
    axis.set_tick_params(length=2, width=PIXEL, color=style.frame, pad=2)
    for tick, label in zip(ticks, axis.get_ticklabels(), strict=False):
        label.set_color(style.muted if labels.muted and labels.muted[tick * pooled] else ink)
        if labels.bold and labels.bold[tick * pooled]:
            label.set_fontweight("bold")
