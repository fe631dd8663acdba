"""Drawing of a layer: its steps in rows that are read like text, and the residual stream around its halves.

Positions are in inches from the lower left of the page, and follow from the widths of words.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import Bbox

from attnviz.errors import UsageError
from attnviz.figures.fonts import text_width
from attnviz.figures.matrix import Array, Labels, draw_matrix, label_pixels, label_size, named_every
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, new_page
from attnviz.figures.style import DPI, Style, figure_style
from attnviz.reference.attention import BY_POSITION
from attnviz.wording import ordinal

SQUARE = (*BY_POSITION, "scores", "capped", "mask", "pattern")
"""Steps whose columns are tokens, too."""

_GAP, _STRIP, _BETWEEN, _FOOT = 0.22, 0.32, 0.08, 0.5
"""Inches: between neighbours in a row, free above a row, between panels of one step, and of the colour bars."""
_OPERATION = 0.17
_RESIDUAL = {"light": "#b35806", "dark": "#f1a340"}
_LEAST_ROW = 3
"""Least height of a row's outline in points."""
_Point = tuple[float, float]


@dataclass(frozen=True)
class Block:
    """A step as one panel or several, one below the other; or an operation, which has none."""

    name: str
    label: str = ""  # above the panels
    brief: str = ""  # the formula below the label
    words: tuple[str, ...] = ()  # below the panels: shape of the whole tensor, and what the colours range over
    panels: tuple[Array, ...] = ()  # [rows, columns] as drawn; rows are tokens
    limit: float = 1.0  # the value of the strongest colour
    width: float = 0.0  # of a panel, as a multiple of the side of the pattern's, as is the height
    height: float = 0.0
    marked: tuple[float, float] | None = None  # first and past-the-last column of the head that is followed
    pooling: tuple[int, int] = (1, 1)  # tokens in one row, and dimensions (or keys) of which one column is drawn


@dataclass(frozen=True)
class PathPlan(PagePlan):
    """Plan of the figure of a layer."""

    halves: dict[str, list[Block]]  # by name; each begins with the residual stream
    labels: Labels  # of the tokens, beside the input
    followed: int  # the token whose row is outlined

    @property
    def steps(self) -> dict[str, Block]:
        """The steps by name."""
        return {block.name: block for half in self.halves.values() for block in half if block.panels}

    @property
    def pooled(self) -> int:
        """Tokens per row."""
        return self.steps["input"].pooling[0]


class _Sizes(NamedTuple):
    """Font sizes of titles and other words in points, and side of the pattern's panel in inches."""

    title: float
    text: float
    side: float


class _Extent(NamedTuple):
    """Inches that a block takes: its width, what stands left of its panels, and above and below its middle."""

    width: float
    left: float
    above: float
    below: float


class _Placed(NamedTuple):
    """A block on the page: the box of its panels, its right end with its words, and where its row begins."""

    block: Block
    box: Bbox
    right: float
    top: float


def path_figure(plan: PathPlan, style: Style, vector: bool = False) -> Figure:
    """A new figure of a layer with title, notes and colour bars; UsageError if the width is too small."""
    sizes, halves = _rows(plan, style)
    rows = [row for half in halves for row in half]
    extents = [[_extent(block, plan, sizes) for block in row] for row in rows]
    body = sum(_height(row) for row in extents) + _FOOT
    every, _ = _names(plan, sizes)
    named = f"Every {ordinal(every)} token is named." if every > 1 else ""
    with figure_style():
        page = new_page(
            plan.title, [*plan.notes, named], style, width=style.room or max(map(_width, extents)), body=body
        )
        page.set_layout_engine("none")
        top, placed = MARGIN / 3 + body, list[list[_Placed]]()
        for row, sized in zip(rows, extents, strict=True):
            placed.append(list(_placed(row, sized, top, sizes)))
            top -= _height(sized)
        for each in (each for row in placed for each in row):
            _draw_block(page, each, plan, style, sizes, vector)
        _colour_bars(page, style, sizes)
        for name, half in zip(plan.halves, halves, strict=True):
            _draw_lines(page, name, placed[: len(half)], style, sizes)
            placed = placed[len(half) :]
        return page


def _rows(plan: PathPlan, style: Style) -> tuple[_Sizes, list[list[list[Block]]]]:
    """Sizes, and rows of blocks in each half: the fewest rows that fit the width."""
    room, tried = style.room or math.inf, [_Sizes(8.5, 7.5, 0.88)]
    if style.room is not None:
        tried = [_Sizes(6.0, 5.5, side) for side in (0.88, 0.64, 0.4)]
    filled = [(sizes, [_filled(half, plan, sizes, room) for half in plan.halves.values()]) for sizes in tried]
    sizes, halves = min(filled, key=lambda each: sum(map(len, each[1])))
    extents = [_extent(block, plan, sizes) for half in plan.halves.values() for block in half]
    least = _width(sorted(extents)[-2:])  # fewer than two in a row would be no path
    if least > room:
        raise UsageError(
            f"the figure of a layer does not fit in {room:g} inches with the names of these tokens; "
            f"expected a --width of at least {math.ceil(10 * least) / 10:g}in, or --figures none."
        )
    return sizes, halves


def _filled(half: Sequence[Block], plan: PathPlan, sizes: _Sizes, room: float) -> list[list[Block]]:
    rows: list[list[Block]] = [[]]
    for block in half:
        if rows[-1] and _width([_extent(each, plan, sizes) for each in (*rows[-1], block)]) > room:
            rows.append([])
        rows[-1].append(block)
    return rows


def _width(row: Sequence[_Extent]) -> float:
    """Width in inches of a page with this row."""
    return sum(extent.width + _GAP for extent in row) + _GAP + MARGIN


def _height(row: Sequence[_Extent]) -> float:
    return _STRIP + max(extent.above for extent in row) + max(extent.below for extent in row)


def _names(plan: PathPlan, sizes: _Sizes) -> tuple[int, float]:
    """Label interval beside the input in tokens, and width of the longest label in inches."""
    cell = 72 * sizes.side / len(plan.steps["input"].panels[0])
    every, size = named_every(cell, plan.pooled), label_size(cell)
    return every, label_pixels(plan.labels.texts[::every], size) / DPI + 0.06


def _extent(block: Block, plan: PathPlan, sizes: _Sizes) -> _Extent:
    if not block.panels:
        length = _OPERATION if block.name == "+" else text_width(block.name, sizes.text) / DPI + 0.12
        return _Extent(_OPERATION, 0.0, length / 2, length / 2)
    width, count = sizes.side * block.width, len(block.panels)
    widths = [text_width(line, sizes.text) / DPI for line in (block.brief, *block.words)]
    room = max(width, text_width(block.label, sizes.title, "bold") / DPI, *widths)
    left = (room - width) / 2 + (_names(plan, sizes)[1] if block.name == "input" else 0.0)
    half = (count * sizes.side * block.height + (count - 1) * _BETWEEN) / 2
    above = 1.35 * (sizes.title + (sizes.text if block.brief else 0.0)) + 4
    below = 1.25 * sizes.text * len(block.words) + 4
    return _Extent(left + (room + width) / 2, left, half + above / 72, half + below / 72)


def _placed(row: Sequence[Block], extents: Sequence[_Extent], top: float, sizes: _Sizes) -> Iterator[_Placed]:
    """The blocks of a row, from left to right, with their middles on one line."""
    left, middle = MARGIN / 2 + _GAP, top - _STRIP - max(extent.above for extent in extents)
    for block, extent in zip(row, extents, strict=True):
        width, half = sizes.side * block.width, extent.above
        if block.panels:
            count = len(block.panels)
            half = (count * sizes.side * block.height + (count - 1) * _BETWEEN) / 2
        box = Bbox.from_bounds(left + extent.left, middle - half, width or _OPERATION, 2 * half)
        yield _Placed(block, box, left + extent.width, top)
        left += extent.width + _GAP


def _axes(page: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    across, down = page.get_size_inches()
    return page.add_axes((left / across, bottom / down, width / across, height / down))


def _draw_block(page: Figure, placed: _Placed, plan: PathPlan, style: Style, sizes: _Sizes, vector: bool) -> None:
    """Draw the panels of a step with label and formula above, shape and colours below; or an operation."""
    block, box, ink = placed.block, placed.box, style.greys.ink
    if not block.panels:
        is_sum, on_page = block.name == "+", page.dpi_scale_trans
        frame = "circle,pad=0" if is_sum else "round,pad=0,rounding_size=0.04"
        page.add_artist(
            FancyBboxPatch(
                box.p0, box.width, box.height, frame, transform=on_page, lw=0.9, fc=style.greys.paper, ec=ink
            )
        )
        turned: dict[str, Any] = {"rotation": 0 if is_sum else 90, "size": sizes.title + 2 if is_sum else sizes.text}
        page.text(*_middle(box), block.name, transform=on_page, ha="center", va="center", color=ink, **turned)
        return
    height = sizes.side * block.height
    axes = [
        _axes(page, box.x0, box.y1 - height - number * (height + _BETWEEN), box.width, height)
        for number in range(len(block.panels))
    ]
    for ax, values in zip(axes, block.panels, strict=True):
        _draw_panel(ax, values, block, plan, style, sizes, vector)
    properties: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "color": ink}
    properties |= {"ha": "center", "parse_math": False}
    axes[-1].set_xlabel("\n".join(block.words), fontsize=sizes.text, color=ink, labelpad=2, parse_math=False)
    axes[0].annotate(block.brief, (0.5, 1), xytext=(0, 3), size=sizes.text, **properties)
    raised = 3 + (1.3 * sizes.text if block.brief else 0.0)
    axes[0].annotate(block.label, (0.5, 1), xytext=(0, raised), size=sizes.title, weight="bold", **properties)


def _draw_panel(
    ax: Axes, values: Array, block: Block, plan: PathPlan, style: Style, sizes: _Sizes, vector: bool
) -> None:
    mask = ListedColormap([style.greys.paper, to_hex(style.colour_map()(0.25))])
    colours: dict[str, Colormap] = {"mask": mask, "pattern": style.colour_map()}
    norm = Normalize(0.0 if block.name in colours else -block.limit, block.limit, clip=True)
    cells = draw_matrix(
        ax, values, norm, style, colours=colours.get(block.name, style.diverging_map()),
        labels=plan.labels if block.name == "input" else None, sides="l", pooled=plan.pooled,
        vector=vector and block.name in SQUARE, cell=sizes.side * 72 / len(values),
    )  # fmt: skip
    if isinstance(cells, AxesImage):
        cells.set_interpolation("nearest")  # narrow columns would be mixed
    n_rows, columns = values.shape
    tall = max(1.0, _LEAST_ROW * n_rows / (72 * sizes.side * block.height))
    outlined = [(-0.5, plan.followed // block.pooling[0] - tall / 2, columns, tall, 0.7)]
    if block.marked is not None:
        first, last = block.marked
        outlined.append((first - 0.5, -0.5, last - first, n_rows, 1.0))
    for x, y, width, height, line in outlined:
        ax.add_patch(Rectangle((x, y), width, height, fill=False, lw=line, ec=style.greys.ink, clip_on=False, zorder=4))


def _colour_bars(page: Figure, style: Style, sizes: _Sizes) -> None:
    """Draw the two colour bars; their numbers stand below each panel."""
    scales: tuple[tuple[Colormap, dict[float, str], str], ...] = (
        (style.diverging_map(), {0: "−", 0.5: "0", 1: "+"}, "ends: below each panel"),
        (style.colour_map(), {0: "0", 1: "largest"}, "attention weight"),
    )
    across = min(1.45, page.get_figwidth() / 2 - 0.4)
    for number, (colours, ticks, name) in enumerate(scales):
        ax = _axes(page, MARGIN + number * (across + 0.3), MARGIN / 3 + 0.28, across, 0.08)
        bar = page.colorbar(ScalarMappable(Normalize(0, 1), colours), cax=ax, orientation="horizontal")
        bar.outline.set(linewidth=PIXEL, edgecolor=style.greys.frame)
        ax.set_xticks([*ticks], [*ticks.values()], fontsize=sizes.text, color=style.greys.ink)
        ax.tick_params(length=2, width=PIXEL, color=style.greys.frame, pad=2)
        ax.set_xlabel(name, fontsize=sizes.text, color=style.greys.ink, labelpad=1)


def _draw_lines(page: Figure, name: str, rows: Sequence[Sequence[_Placed]], style: Style, sizes: _Sizes) -> None:
    """Draw the arrows of a half from step to step, its residual stream, and its name."""
    muted, start = style.greys.muted, rows[0][0]
    for number, row in enumerate(rows):
        height = _middle(row[0].box)[1]
        arrows = [(float(one.box.x1), float(other.box.x0)) for one, other in pairwise(row)]
        if number:
            arrows.append((MARGIN / 2, float(row[0].box.x0)))
        if number + 1 < len(rows):
            arrows.append((float(row[-1].box.x1), row[-1].right + _GAP))
        for left, right in arrows:
            _draw_line(page, [(left, height), (right, height)], muted, 0.9)
    heading: dict[str, Any] = {"size": 0.92 * sizes.title, "weight": "bold", "transform": page.dpi_scale_trans}
    page.text(start.box.x0, _level(rows[0]) + 0.03, name, color=muted, **heading)
    for last, row in enumerate(rows):
        for each in row:
            if each.block.name == "+":
                _draw_residual(page, start, each, rows[: last + 1], _RESIDUAL[style.theme], sizes.text)


def _draw_residual(
    page: Figure, start: _Placed, total: _Placed, rows: Sequence[Sequence[_Placed]], colour: str, size: float
) -> None:
    """Draw the residual stream in the strips above these rows, from the first step of a half to its sum."""
    left, right = start.right + 0.25 * _GAP, page.get_figwidth() - MARGIN / 2
    points = [(left, _middle(start.box)[1])]
    for row in rows[:-1]:
        _draw_line(page, [*points, (left, _level(row)), (right, _level(row))], colour, 1.4, "-")
        points, left = [], MARGIN / 2
    end = _middle(total.box)[0]
    _draw_line(page, [*points, (left, _level(rows[-1])), (end, _level(rows[-1])), (end, total.box.y1)], colour, 1.4)
    first = start.right, right if len(rows) > 1 else end
    said: dict[str, Any] = {"size": size, "color": colour, "ha": "center", "transform": page.dpi_scale_trans}
    page.text(sum(first) / 2, _level(rows[0]) + 0.035, "residual", **said)


def _level(row: Sequence[_Placed]) -> float:
    """Height of the line in the strip above a row."""
    return row[0].top - 0.85 * _STRIP


def _draw_line(page: Figure, points: Sequence[_Point], colour: str, width: float, arrow: str = "-|>") -> None:
    style = f"{arrow},head_width=1.8,head_length=3.4" if arrow == "-|>" else arrow
    page.add_artist(
        FancyArrowPatch(path=Path(points), arrowstyle=style, mutation_scale=1, joinstyle="miter", color=colour,
                        lw=width, fill=arrow == "-|>", transform=page.dpi_scale_trans)
    )  # fmt: skip


def _middle(box: Bbox) -> _Point:
    return float(box.x0 + box.x1) / 2, float(box.y0 + box.y1) / 2
