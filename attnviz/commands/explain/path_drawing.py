"""Drawing of a layer: panels in rows, arrows between them, and the residual stream around its halves.

Positions are in inches from the lower left of the page, and follow from the widths of words.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path
from matplotlib.transforms import Bbox

from attnviz.errors import UsageError
from attnviz.figures.fonts import text_width, wrapped
from attnviz.figures.matrix import Array, Labels, draw_matrix, label_pixels, label_size, named_every
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, new_page
from attnviz.figures.style import DPI, Style, figure_style
from attnviz.models.wording import ordinal

SQUARE = ("scores", "capped", "mask", "pattern")  # panels whose columns are tokens, too
OPERATIONS = ("+", "layer norm", "RMS norm")
STACKS = {
    "split": (("query", "key", "value"), 3),
    "normed heads": (("normed query", "normed key"), 3),
    "turned heads": (("turned query", "turned key"), 3),
    "gates": (("gate", "expanded"), 2),
    "activated gate": (("activated",), 2),
}
"""Panels stacked from the top, and the number with room."""

_GAP, _STRIP = 0.13, 0.35
"""Inches: gap between neighbours in a row, and free strip above a row."""
_STREAM, _TURN, _FLOOR = 0.15, 0.65, 0.85
"""Heights of lines in the strip between rows, as shares of it: residual stream, turns to the next row, values."""
_LARGEST, _LEAST, _STEP = 0.88, 0.4, 0.04
_OPERATION, _LETTER, _BETWEEN, _LEAD, _TOP, _FOOT = 0.17, 0.1, 0.11, 0.12, 0.12, 0.5
_RESIDUAL = {"light": "#b35806", "dark": "#f1a340"}
_LEAST_ROW = 3
"""Least height of a row's outline in points."""
_Point = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """One step as a picture."""

    name: str  # of the step; query, key and value are those of the head
    label: str  # above the panel
    brief: str  # the formula below the label; may be empty
    words: tuple[str, ...]  # below the panel: shape of the whole tensor, and value of the strongest colour
    values: Array  # [rows, columns] as drawn; rows are tokens
    limit: float  # the value of the strongest colour
    width: float  # as a multiple of the side of the pattern's panel, as is the height
    height: float = 1.0
    marked: tuple[float, float] | None = None  # first and past-the-last column of the head that is followed
    pooling: tuple[int, int] = (1, 1)  # tokens in one row, and dimensions (or keys) of which one column is drawn
    beside: bool = False  # whether the label, a letter, stands beside the panel


@dataclass(frozen=True)
class PathPlan(PagePlan):
    """Plan of the figure of a layer."""

    panels: dict[str, Panel]  # by the name of the step
    bands: dict[str, list[list[str]]]
    """The layer's halves by name; each begins with the residual stream and has one sum, or writes into that of the
    second half, which then begins with the input, too. What must stand in one row is a list: names of panels or of
    :data:`STACKS`, and :data:`OPERATIONS`."""
    labels: Labels  # of the tokens, beside the first panel
    followed: int  # the token whose row is outlined

    @property
    def pooled(self) -> int:
        """Tokens per row."""
        return self.panels["input"].pooling[0]


class _Block(NamedTuple):
    """Panels or an operation with their words; positions relative to its left end and the row's middle until placed."""

    name: str
    boxes: list[Bbox]  # of the panels, from the top, or of the operation
    right: float
    above: float
    below: float
    panels: list[Panel]  # none of an operation
    strip: float = 0.0  # lower end of the free strip above its row

    @property
    def box(self) -> Bbox:
        """The middle one."""
        return self.boxes[len(self.boxes) // 2]


class _Sizes(NamedTuple):
    """Font sizes of titles and other words in points, and side of the pattern's panel in inches."""

    title: float
    text: float
    side: float


def path_figure(plan: PathPlan, style: Style, vector: bool = False) -> Figure:
    """A new figure of a layer with title, notes and colour bars; UsageError if the width is too small."""
    sizes, rows = _rows(plan, style)
    reach = [(max(block.above for block in row), max(block.below for block in row)) for row in rows]
    body = sum(_STRIP + above + below for above, below in reach) + _FOOT - _TOP
    every, _ = _names(plan, sizes)
    named = f"Every {ordinal(every)} token is named." if every > 1 else ""
    with figure_style():
        page = new_page(plan.title, [*plan.notes, named], style, width=style.room or max(map(_width, rows)), body=body)
        page.set_layout_engine("none")
        blocks, strip = list[_Block](), MARGIN / 3 + body + _TOP - _STRIP
        for row, (above, below) in zip(rows, reach, strict=True):
            left = MARGIN + _LEAD
            for block in row:
                boxes = [box.translated(left, strip - above) for box in block.boxes]
                blocks.append(block._replace(boxes=boxes, right=left + block.right, strip=strip))
                left += block.right + _GAP
            strip -= above + below + _STRIP
        for block in blocks:
            for panel, box in zip(block.panels, block.boxes, strict=False):
                _draw_panel(_axes(page, *box.bounds), panel, plan, style, sizes, vector)
            if not block.panels:
                _draw_operation(page, block, style, sizes)
        _colour_bars(page, style, sizes)
        _draw_lines(page, plan, blocks, style, sizes)
        return page


def _rows(plan: PathPlan, style: Style) -> tuple[_Sizes, list[list[_Block]]]:
    """Sizes and rows of blocks: the fewest rows that fit the width, then the largest panels."""
    sizes = [_Sizes(8.5, 7.5, _LARGEST)]
    if style.room is not None:
        sizes = [_Sizes(6.0, 5.5, side) for side in np.arange(_LARGEST, _LEAST - _STEP / 2, -_STEP)]
    room = style.room or math.inf
    tried = [(each, [row for band in plan.bands.values() for row in _filled(band, plan, each, room)]) for each in sizes]
    fitting = [(each, rows) for each, rows in tried if max(map(_width, rows)) <= room]
    if not fitting:
        least = max(map(_width, tried[-1][1]))
        raise UsageError(
            f"the figure of a layer does not fit in {room:g} inches with the names of these tokens; "
            f"expected a --width of at least {math.ceil(10 * least) / 10:g}in, or --figures none."
        )
    return min(fitting, key=lambda each: len(each[1]))


def _filled(band: list[list[str]], plan: PathPlan, sizes: _Sizes, room: float) -> list[list[_Block]]:
    rows: list[list[_Block]] = []
    for group in band:
        blocks = [_block(name, plan, sizes) for name in group]
        if rows and _width([*rows[-1], *blocks]) <= room:
            rows[-1] += blocks
        else:
            rows.append(blocks)
    return rows


def _width(row: Sequence[_Block]) -> float:
    """Width in inches of a page with this row."""
    return sum(block.right + _GAP for block in row) + _LEAD + 2 * MARGIN


def _names(plan: PathPlan, sizes: _Sizes) -> tuple[int, float]:
    """Label interval beside the first panel in tokens, and width of the longest label in inches."""
    cell = 72 * sizes.side / len(plan.panels["input"].values)
    every, size = named_every(cell, plan.pooled), label_size(cell)
    return every, label_pixels(plan.labels.texts[::every], size) / DPI + 0.06


def _block(name: str, plan: PathPlan, sizes: _Sizes) -> _Block:
    if name in OPERATIONS:
        half = (_OPERATION if name == "+" else text_width(name, sizes.text, DPI) / DPI + 0.12) / 2
        return _Block(name, [Bbox.from_bounds(0, -half, _OPERATION, 2 * half)], _OPERATION, half, half, [])
    parts, count = STACKS.get(name, ((name,), 1))
    panels = [plan.panels[part] for part in parts]
    first, lines = panels[0], _below(panels[-1], sizes)
    width, height = sizes.side * first.width, sizes.side * first.height
    title = text_width(first.label, sizes.title, DPI, "bold") / DPI if count == 1 else width + 2 * _LETTER
    room = max(width, title, *(text_width(line, sizes.text, DPI) / DPI for line in [first.brief, *lines]))
    left = (room - width) / 2 + (_names(plan, sizes)[1] - _LEAD if name == "input" else 0.0)
    levels = [((count - 1) / 2 - number) * (height + _BETWEEN) - height / 2 for number in range(len(panels))]
    boxes = [Bbox.from_bounds(left, level, width, height) for level in levels]
    above = 1.35 * (sizes.text * bool(first.brief) + sizes.title * (count == 1)) + 4
    below = 1.25 * sizes.text * len(lines) + 4
    return _Block(name, boxes, left + (room + width) / 2, boxes[0].y1 + above / 72, below / 72 - boxes[-1].y0, panels)


def _below(panel: Panel, sizes: _Sizes) -> list[str]:
    """Text below a panel, wrapped to about its width."""
    size = sizes.text
    texts = [text.replace(", ", ",") if size < 6 and text[0] == "[" else text for text in panel.words]
    longest = max((text_width(word, size, DPI) for text in texts for word in text.split(" ")), default=0)
    room = max(panel.width * sizes.side * DPI + 6, longest + 1)
    return [line for text in texts for line in ([text] if text[0] == "[" else wrapped(text, size, DPI, room))]


def _axes(page: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    across, down = page.get_size_inches()
    return page.add_axes((left / across, bottom / down, width / across, height / down))


def _draw_operation(page: Figure, block: _Block, style: Style, sizes: _Sizes) -> None:
    box, on_page = block.box, page.dpi_scale_trans
    frame, size, turn = "round,pad=0,rounding_size=0.04", sizes.text, 90
    if block.name == "+":
        frame, size, turn = "circle,pad=0", sizes.title + 2, 0
    page.add_artist(FancyBboxPatch(box.p0, box.width, box.height, frame, transform=on_page, lw=0.9,
                                   fc=style.greys.paper, ec=style.greys.ink))  # fmt: skip
    page.text((box.x0 + box.x1) / 2, _middle(box), block.name, transform=on_page, size=size, rotation=turn, ha="center",
              va="center", color=style.greys.ink)  # fmt: skip


def _draw_panel(ax: Axes, panel: Panel, plan: PathPlan, style: Style, sizes: _Sizes, vector: bool) -> None:
    """Draw the numbers; title and formula above, shape and scale below; the letters of Q, K and V beside them."""
    mask = ListedColormap([style.greys.paper, to_hex(style.colour_map()(0.25))])
    colours: dict[str, Colormap] = {"mask": mask, "pattern": style.colour_map()}
    norm = Normalize(0.0 if panel.name in colours else -panel.limit, panel.limit, clip=True)
    cells = draw_matrix(
        ax, panel.values, norm, style, colours=colours.get(panel.name, style.diverging_map()),
        labels=plan.labels if panel.name == "input" else None, sides="l", pooled=plan.pooled,
        vector=vector and panel.name in SQUARE, cell=sizes.side * 72 / len(panel.values),
    )  # fmt: skip
    if isinstance(cells, AxesImage):
        cells.set_interpolation("nearest")  # narrow columns would be mixed
    ink, (n_rows, columns) = style.greys.ink, panel.values.shape
    tall = max(1.0, _LEAST_ROW * n_rows / (72 * sizes.side * panel.height))
    outlined = [(-0.5, plan.followed // panel.pooling[0] - tall / 2, columns, tall, 0.7)]
    if panel.marked is not None:
        first, last = panel.marked
        outlined.append((first - 0.5, -0.5, last - first, n_rows, 1.0))
    for x, y, width, height, line in outlined:
        ax.add_patch(Rectangle((x, y), width, height, fill=False, lw=line, ec=ink, clip_on=False, zorder=4))
    properties: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "color": ink}
    ax.set_xlabel("\n".join(_below(panel, sizes)), fontsize=sizes.text, color=ink, labelpad=2)
    ax.annotate(panel.brief, (0.5, 1), xytext=(0, 3), ha="center", size=sizes.text, parse_math=False, **properties)
    place: Any = {"xy": (0.5, 1), "xytext": (0, 3 + 1.3 * sizes.text * bool(panel.brief)), "ha": "center"}
    if panel.beside:
        place = {"xy": (1, 0.5), "xytext": (2, 4 if panel.label.islower() else 2), "ha": "left"}
    ax.annotate(panel.label, size=sizes.title, weight="bold", parse_math=False, **place, **properties)


def _colour_bars(page: Figure, style: Style, sizes: _Sizes) -> None:
    """Draw the two colour bars; their numbers stand below each panel."""
    scales: tuple[tuple[Colormap, dict[float, str], str], ...] = (
        (style.diverging_map(), {0: "−", 0.5: "0", 1: "+"}, "up to ± below each panel"),
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


def _draw_lines(page: Figure, plan: PathPlan, blocks: Sequence[_Block], style: Style, sizes: _Sizes) -> None:
    """Draw arrows, the residual stream and the names of the halves, in the strips above the rows."""
    muted, colour = style.greys.muted, _RESIDUAL[style.theme]
    properties: dict[str, Any] = {"transform": page.dpi_scale_trans, "parse_math": False}
    for path in _arrows(blocks):
        _draw_arrow(page, path, muted, 0.9)
    for name, band in plan.bands.items():
        count, edge = sum(map(len, band)), page.get_figwidth() - 0.7 * MARGIN
        half, blocks = blocks[:count], blocks[count:]
        heading = half[0].box.x0, half[0].strip + _STREAM * _STRIP + 0.03
        page.text(*heading, name, size=0.92 * sizes.title, weight="bold", color=muted, **properties)
        if not any(block.name == "+" for block in half):
            _draw_arrow(page, _to_later_sum(half[-1], blocks, edge - 0.5 * MARGIN), muted, 0.9)
            continue
        path = _residual(half, edge)
        (left, middle), (_, level), (right, _) = path[:3]
        _draw_arrow(page, path, colour, 1.4)
        page.add_artist(Line2D([left], [middle], marker="o", ms=4, color=colour, transform=page.dpi_scale_trans))
        page.text(
            (left + right) / 2, level + 0.035, "residual", size=sizes.text, color=colour, ha="center", **properties
        )


def _draw_arrow(page: Figure, points: Sequence[_Point], colour: str, width: float) -> None:
    arrow = FancyArrowPatch(path=Path(points), arrowstyle="-|>,head_width=1.8,head_length=3.4", mutation_scale=1,
                            joinstyle="miter", color=colour, lw=width, transform=page.dpi_scale_trans)  # fmt: skip
    page.add_artist(arrow)


def _arrows(blocks: Sequence[_Block]) -> Iterator[list[_Point]]:
    """Arrows from every node to the next; from a head's values and a gate to their products below the nodes between."""
    for one, other in pairwise(blocks):
        if other.name == "input":  # of the second of two halves in parallel
            continue
        around = () if one.strip == other.strip else (other.strip + _TURN * _STRIP, 0.6 * MARGIN)  # to the next row
        if one.name in STACKS and other.name in STACKS and not around:
            for start, box in zip(one.boxes, other.boxes, strict=False):
                yield [(start.x1, _middle(start)), (box.x0, _middle(box))]
            continue
        # the panels that it leaves from, and at which share of the next panel's height it arrives
        starts = [(one.boxes[0], 0.8), (one.boxes[1], 0.5)] if len(one.boxes) > 1 else [(one.box, 0.5)]
        if one.name == "activated gate":
            starts = [(one.box, 0.8)]
        turns = (one.right + 0.6 * _GAP, *around)
        for (start, share), box in product(starts, other.boxes):
            yield _bent(start.x1, _middle(start), *turns, box.y0 + share * box.height, box.x0)
    named = {block.name: block for block in blocks}
    yield _values(named)
    if "gates" in named:  # below the activated gate, to where it multiplies
        start = named["gates"].boxes[1]
        yield _bent(start.x1, _middle(start), named["gated"].box.x0)


def _values(named: dict[str, _Block]) -> list[_Point]:
    """Arrow from the values to the weighted values: below the row, or above it if they are in the row before."""
    split, pattern, weighted = (named[name] for name in ("split", "pattern", "weighted"))
    below = split.strip == weighted.strip
    entry = weighted.box.y0 + (0.2 if below else 0.8) * weighted.box.height
    floor = max(block.strip for block in named.values() if block.strip < split.strip) + _FLOOR * _STRIP
    start, turns = split.boxes[2], (split.right + 0.6 * _GAP, floor, pattern.right + 0.5 * _GAP, entry)
    return _bent(start.x1, _middle(start), *turns, weighted.box.x0)


def _residual(half: Sequence[_Block], edge: float) -> list[_Point]:
    """Line of the residual stream, from the first panel of a half, above everything, to its sum."""
    start, total = half[0], next(block for block in half if block.name == "+")
    left, centre = start.right + 0.25 * _GAP, (total.box.x0 + total.box.x1) / 2
    up, down = (block.strip + _STREAM * _STRIP for block in (start, total))
    turns = (up, centre) if up == down else (up, edge, down, centre)
    return _bent(left, _middle(start.box), left, *turns, total.box.y1)[1:]


def _to_later_sum(start: _Block, later: Sequence[_Block], edge: float) -> list[_Point]:
    """Arrow from what a half writes, along the right edge, to the sum of the next half."""
    total = next(block for block in later if block.name == "+")
    down, x = total.strip + _TURN * _STRIP, (total.box.x0 + total.box.x1) / 2 + 0.4 * _OPERATION
    return _bent(start.box.x1, _middle(start.box), edge, down, x, _middle(total.box) + 0.3 * _OPERATION)


def _bent(x: float, y: float, *turns: float) -> list[_Point]:
    """A line from (x, y), by turns horizontal and vertical, through these coordinates."""
    points = [(x, y)]
    for number, turn in enumerate(turns):
        x, y = (x, turn) if number % 2 else (turn, y)
        points.append((x, y))
    return points


def _middle(box: Bbox) -> float:
    """Height of a box's middle."""
    return float(box.y0 + box.y1) / 2
