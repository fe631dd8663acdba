"""The figure of a layer drawn: panels in rows, arrows between them, the residual stream around them.

Constrained layout places the panels, so that no word overprints another; arrows are drawn between what it placed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure, SubFigure
from matplotlib.gridspec import SubplotSpec
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from attnviz.commands.explain.path import Node, Panel, PathPlan
from attnviz.errors import UsageError
from attnviz.figures.files import DPI, figure_style
from attnviz.figures.fonts import fitted, text_width, wrapped
from attnviz.figures.look import Look
from attnviz.figures.matrix import LONGEST, draw_matrix, label_size
from attnviz.figures.page import MARGIN, PIXEL, new_page, settled

__all__ = ["path_figure"]

_LARGEST, _LEAST = 0.84, 0.4
_OPERATION, _LETTER, _TRAIL, _FOOT = 0.17, 0.1, 0.16, 0.5
_RESIDUAL = {"light": "#b35806", "dark": "#f1a340"}


@dataclass(frozen=True)
class Sizes:
    """Sizes on a page: letters in points, the rest in inches.

    Attributes:
        title, text: letters of titles and of all other words.
        gap: between neighbours in a row.
        lead: before the first of a row, for the arrow that comes from the row above.
        strip: between rows, for lines.
    """

    title: float = 7.5
    text: float = 6.5
    gap: float = 0.17
    lead: float = 0.16
    strip: float = 0.36


@dataclass(frozen=True)
class Placed:
    """A node where the layout placed it, in inches from the lower left: its panels, and with its words."""

    node: Node
    row: int
    boxes: tuple[Bbox, ...]
    outer: Bbox

    @property
    def box(self) -> Bbox:
        """The panel, or the middle one of three."""
        return self.boxes[len(self.boxes) // 2]


def path_figure(plan: PathPlan, look: Look, vector: bool = False) -> Figure:
    """A new figure of a layer with title, notes and colour bars.

    Raises:
        UsageError: the width has no room for it.
    """
    sizes = Sizes() if look.width is None else Sizes(6.0, 5.5, 0.13, 0.1, 0.34)
    side, rows = _rows(plan, look, sizes)
    width = look.width or _row_width(rows, plan, side, sizes)
    heights = [_height(row, side, sizes) for row in rows]
    ratios = [*chain.from_iterable((sizes.strip, height) for height in heights), _FOOT]
    ratios[0] *= 0.6  # only the residual stream runs there
    with figure_style():
        page = new_page(plan.title, plan.notes, look, width=width, body=sum(ratios))
        engine: Any = page.get_layout_engine()
        page.set_layout_engine("constrained", rect=engine.get()["rect"], w_pad=sizes.gap / 2, h_pad=0.01)
        parts: Any = page.subfigures(len(ratios), 1, height_ratios=ratios)
        for part in parts:
            part.set_facecolor("none")
        drawn = [
            _draw_row(parts[2 * number + 1], row, plan, look, side, sizes, number == 0, vector)
            for number, row in enumerate(rows)
        ]
        _colour_bars(parts[-1], look, sizes)
        settled(page)
        page.set_layout_engine("none")  # as it stands; arrows would not follow
        placed = [
            _placed(page, node, number, artists)
            for number, (row, row_artists) in enumerate(zip(rows, drawn, strict=True))
            for node, artists in zip(row, row_artists, strict=True)
        ]
        strips = [part.bbox.transformed(page.dpi_scale_trans.inverted()) for part in parts[:-1:2]]
        _draw_lines(page, plan, placed, strips, look, sizes)
        return page


def _rows(plan: PathPlan, look: Look, sizes: Sizes) -> tuple[float, list[list[Node]]]:
    """Inches of the pattern's panel, and the nodes row by row: a row a band, or as few as fit, then as large as fit."""
    if look.width is None:
        return _LARGEST, [list(band) for _, band in plan.bands]
    fitting = []
    for side in np.arange(_LARGEST, _LEAST - 0.01, -0.04):
        rows: list[list[Node]] = []
        for _, band in plan.bands:
            first = len(rows)
            for group in _groups(band):
                if (
                    len(rows) > first
                    and _row_width([[*rows[-1], *group]], plan, side, sizes, len(rows) == 1) <= look.width
                ):
                    rows[-1].extend(group)
                else:
                    rows.append(list(group))
        if _row_width(rows, plan, side, sizes) <= look.width:
            fitting.append((len(rows), -side, rows))
    if not fitting:
        groups = [group for _, band in plan.bands for group in _groups(band)]
        least = math.ceil(10 * _row_width(groups, plan, _LEAST, sizes)) / 10
        raise UsageError(
            f"the figure of a layer does not fit in {look.width:g} inches with the names of these tokens; "
            f"expected a --width of at least {least:g}in, or --no-figures."
        )
    _, side, rows = min(fitting, key=lambda each: each[:2])
    return -side, rows


def _groups(band: Sequence[Node]) -> list[list[Node]]:
    """Nodes that must stand in one row."""
    groups: list[list[Node]] = []
    for node in band:
        if node.joined:
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _row_width(rows: Sequence[Sequence[Node]], plan: PathPlan, side: float, sizes: Sizes, named: bool = True) -> float:
    """Inches of a page with these rows; of the first with the names of tokens."""
    return max(
        sum(_slot(node, side, sizes) for node in row) + (_names(plan) if named and number == 0 else sizes.lead)
        for number, row in enumerate(rows)
    ) + _TRAIL + 2 * MARGIN  # fmt: skip


def _names(plan: PathPlan) -> float:
    """Inches of the names of tokens."""
    return max(text_width(fitted(text, 8, DPI, LONGEST), 8, DPI) for text in plan.labels.texts) / DPI + 0.06


def _slot(node: Node, side: float, sizes: Sizes) -> float:
    """Inches that a node takes with its words and the gap beside it."""
    if node.operation:
        return _OPERATION + sizes.gap
    panel = node.panels[-1]
    above = (
        0.0 if len(node.panels) > 1 else text_width(panel.label, sizes.title, DPI, "bold"),
        text_width(panel.brief, sizes.text, DPI),
    )
    below = (text_width(line, sizes.text, DPI) for line in _below(panel, side, sizes))
    return max(panel.width * side + _LETTER * (len(node.panels) - 1) / 2, max(*above, *below) / DPI) + sizes.gap


def _below(panel: Panel, side: float, sizes: Sizes) -> list[str]:
    """The words below a panel, in lines about as wide as the panel; a line breaks at spaces alone."""
    texts = [text.replace(", ", ",") if sizes.gap < 0.15 and text.startswith("[") else text for text in panel.words]
    longest = max((text_width(word, sizes.text, DPI) for text in texts for word in text.split(" ")), default=0)
    room = max(panel.width * side * DPI + 6, longest)
    return [line for text in texts for line in ([text] if "[" in text else wrapped(text, sizes.text, DPI, room + 1))]


def _height(row: Sequence[Node], side: float, sizes: Sizes) -> float:
    """Inches of a row with the words above and below."""
    lines = max(
        (len(_below(node.panels[-1], side, sizes)) for node in row if node.panels and len(node.panels) == 1), default=0
    )
    one = side + (2.9 * sizes.title + 1.4 * lines * sizes.text) / 72
    three = 3 * 0.42 * side + (1.5 * sizes.text + 1.4 * 3 * sizes.text) / 72 + 0.18
    return max(one, three * any(len(node.panels) == 3 for node in row))


def _draw_row(
    part: SubFigure,
    row: Sequence[Node],
    plan: PathPlan,
    look: Look,
    side: float,
    sizes: Sizes,
    first: bool,
    vector: bool,
) -> list[list[Axes | Text]]:
    """The artists of every node."""
    widths = [
        node.panels[0].width * side + _LETTER * (len(node.panels) - 1) / 2 if node.panels else _OPERATION
        for node in row
    ]
    page = part.get_figure(root=True).get_figwidth()
    used = sum(_slot(node, side, sizes) for node in row) + 2 * MARGIN + (_names(plan) if first else sizes.lead)
    ratios = [0.01 if first else sizes.lead, *widths, max(page - used, _TRAIL)]
    grid = part.add_gridspec(1, len(ratios), width_ratios=ratios)
    drawn: list[list[Axes | Text]] = []
    for column, node in enumerate(row, start=1):
        if node.operation:
            drawn.append([_draw_operation(part, grid[column], node, look, sizes)])
            continue
        three = len(node.panels) == 3
        specs = grid[column].subgridspec(3, 1) if three else [grid[column]]
        axes = [part.add_subplot(spec) for spec in specs]
        for ax, panel in zip(axes, node.panels, strict=True):
            named = first and column == 1
            _draw_panel(ax, panel, plan, look, side, sizes, named, vector)
            if len(axes) > 1:
                ax.annotate(panel.label, (1, 0.5), xycoords="axes fraction", xytext=(2, 2), textcoords="offset points",
                            size=sizes.title, weight="bold", color=look.greys.ink)  # fmt: skip
        if len(axes) > 1:
            axes[0].set_title(plan.head, size=sizes.text, color=look.greys.ink, pad=2)
        drawn.append([*axes])
    return drawn


def _draw_operation(part: SubFigure, spec: SubplotSpec, node: Node, look: Look, sizes: Sizes) -> Text:
    ax = part.add_subplot(spec)
    ax.set_axis_off()
    plus = node.operation == "+"
    box = {
        "boxstyle": "circle,pad=0.15" if plus else "round,pad=0.5",
        "fc": look.greys.paper,
        "ec": look.greys.ink,
        "lw": 0.9,
    }
    return ax.text(0.5, 0.5, node.operation, size=sizes.title + 2 if plus else sizes.text, rotation=0 if plus else 90,
                   ha="center", va="center", color=look.greys.ink, bbox=box)  # fmt: skip


def _draw_panel(
    ax: Axes, panel: Panel, plan: PathPlan, look: Look, side: float, sizes: Sizes, named: bool, vector: bool
) -> None:
    mask = ListedColormap([look.greys.paper, to_hex(look.colour_map()(0.25))])
    colours: dict[str, Colormap] = {"signed": look.diverging_map(), "weights": look.colour_map(), "mask": mask}
    norm = Normalize(-panel.limit if panel.kind == "signed" else 0.0, panel.limit, clip=True)
    few = panel.name in ("scores", "mask", "pattern")
    cells = draw_matrix(ax, panel.values, norm, look, colours=colours[panel.kind], vector=vector and few,
                labels=plan.labels if named else None, sides="l", pooled=plan.pooled,
                cell=side * 72 / len(panel.values))  # fmt: skip
    if isinstance(cells, AxesImage):
        cells.set_interpolation("nearest")  # narrow columns would be mixed
    ax.set_box_aspect(panel.height / panel.width)
    if panel.marked is not None:
        first, last = panel.marked
        ax.add_patch(
            Rectangle(
                (first - 0.5, -0.5),
                last - first,
                len(panel.values),
                fill=False,
                lw=1.0,
                ec=look.greys.ink,
                clip_on=False,
                zorder=4,
            )
        )
    ax.set_xlabel("\n".join(_below(panel, side, sizes)), fontsize=sizes.text, color=look.greys.quiet, labelpad=2)
    if panel.height == 0.42:
        return
    above = 1.3 * sizes.text if panel.brief else 0
    ax.set_title(panel.label, size=sizes.title, weight="bold", color=look.greys.ink, pad=3 + above, parse_math=False)
    ax.annotate(panel.brief, (0.5, 1), xycoords="axes fraction", xytext=(0, 3), textcoords="offset points", ha="center",
                size=sizes.text, color=look.greys.ink, parse_math=False)  # fmt: skip


def _colour_bars(part: SubFigure, look: Look, sizes: Sizes) -> None:
    """The two scales; their numbers stand below each panel."""
    scales: tuple[tuple[Colormap, dict[float, str], str], ...] = (
        (look.diverging_map(), {0: "−", 0.5: "0", 1: "+"}, "up to ± below each panel"),
        (look.colour_map(), {0: "0", 1: "largest"}, "attention weight"),
    )
    grid = part.add_gridspec(
        3, 3, width_ratios=[1, 1, max(part.bbox.width / part.dpi - 3.6, 0.01)], height_ratios=[0.08, 0.08, 0.1]
    )
    for column, (colours, ticks, name) in enumerate(scales):
        ax = part.add_subplot(grid[1, column])
        bar = part.colorbar(ScalarMappable(Normalize(0, 1), colours), cax=ax, orientation="horizontal")
        bar.outline.set(linewidth=PIXEL, edgecolor=look.greys.frame)
        ax.set_xticks([*ticks], [*ticks.values()], fontsize=sizes.text, color=look.greys.ink)
        ax.tick_params(length=2, width=PIXEL, color=look.greys.frame, pad=2)
        ax.set_xlabel(name, fontsize=sizes.text, color=look.greys.ink, labelpad=1)


def _placed(page: Figure, node: Node, row: int, artists: Sequence[Axes | Text]) -> Placed:
    inches = page.dpi_scale_trans.inverted()
    boxes, outer = [], []
    for artist in artists:
        if isinstance(artist, Text):
            patch = artist.get_bbox_patch()
            assert patch is not None
            boxes.append(patch.get_window_extent())
            outer.append(boxes[-1])
        else:
            boxes.append(artist.get_window_extent())
            outer.append(artist.get_tightbbox() or boxes[-1])
    return Placed(node, row, tuple(box.transformed(inches) for box in boxes), Bbox.union(outer).transformed(inches))


Point = tuple[float, float]


def _draw_lines(
    page: Figure, plan: PathPlan, placed: Sequence[Placed], strips: Sequence[Bbox], look: Look, sizes: Sizes
) -> None:
    quiet, residual = look.greys.quiet, _RESIDUAL[look.theme]
    for one, other in pairwise(placed):
        paths = _turn(one, other, strips) if one.row < other.row else _between(one, other, placed, strips)
        for path in paths:
            _arrow(page, path, quiet, 0.9)
    start = 0
    for name, band in plan.bands:
        nodes = placed[start : start + len(band)]
        start += len(band)
        path = _residual(nodes, strips, page.get_figwidth() - 0.7 * MARGIN)
        _arrow(page, path, residual, 1.4, dot=True)
        strip = strips[nodes[0].row]
        style: dict[str, Any] = {"transform": page.dpi_scale_trans, "parse_math": False}
        page.text(
            nodes[0].box.x0,
            strip.y0 + 0.3 * strip.height,
            name,
            size=sizes.title,
            weight="bold",
            color=quiet,
            va="center",
            **style,
        )
        (left, level), (right, _) = path[1:3]
        page.text((left + right) / 2, level + 0.035, "residual", size=sizes.text, color=residual, ha="center", **style)


def _arrow(page: Figure, points: Sequence[Point], colour: str, width: float, *, dot: bool = False) -> None:
    """A line with a head where it ends, and on request a dot where it begins."""
    head = "-|>,head_width=1.8,head_length=3.4"
    style: dict[str, Any] = {"color": colour, "lw": width, "transform": page.dpi_scale_trans, "capstyle": "butt"}
    page.add_artist(FancyArrowPatch(path=Path(points), arrowstyle=head, mutation_scale=1, joinstyle="miter", **style))
    if dot:
        page.add_artist(
            Line2D(*np.transpose(points[:1]), marker="o", ms=4, color=colour, transform=page.dpi_scale_trans)
        )


def _level(box: Bbox) -> float:
    return float(box.y0 + box.y1) / 2


def _between(one: Placed, other: Placed, placed: Sequence[Placed], strips: Sequence[Bbox]) -> Iterator[list[Point]]:
    """From a node to its right neighbour; of three panels each on its way."""
    turn = one.outer.x1 + 0.6 * (other.outer.x0 - one.outer.x1)
    if len(one.boxes) == len(other.boxes) == 1:
        level = _level(one.box)
        yield [(one.box.x1, level), (other.box.x0, level)]
    elif len(other.boxes) == 3:
        for box in other.boxes:
            yield [(one.box.x1, _level(one.box)), (turn, _level(one.box)), (turn, _level(box)), (box.x0, _level(box))]
    else:
        query, key, value = one.boxes
        for box, share in ((query, 0.8), (key, 0.5)):
            entry = other.box.y0 + share * other.box.height
            yield [(box.x1, _level(box)), (turn, _level(box)), (turn, entry), (other.box.x0, entry)]
        after = next(
            index for index, each in enumerate(placed) if each.node.panels and each.node.panels[0].name == "weighted"
        )
        before, weighted = placed[after - 1 : after + 1]
        rise = (before.outer.x1 + weighted.outer.x0) / 2
        floor = strips[one.row + 1].y1 - 0.15 * strips[one.row + 1].height
        entry = weighted.box.y0 + 0.2 * weighted.box.height
        yield [
            (value.x1, _level(value)),
            (turn, _level(value)),
            (turn, floor),
            (rise, floor),
            (rise, entry),
            (weighted.box.x0, entry),
        ]


def _turn(one: Placed, other: Placed, strips: Sequence[Bbox]) -> Iterator[list[Point]]:
    """From the end of a row to the beginning of the next one."""
    out, back, strip = one.outer.x1 + 0.06, 0.6 * MARGIN, strips[other.row]
    level = strip.y0 + 0.65 * strip.height
    for box in other.boxes:
        yield [(one.box.x1, _level(one.box)), (out, _level(one.box)), (out, level), (back, level), (back, _level(box)),
               (box.x0, _level(box))]  # fmt: skip


def _residual(band: Sequence[Placed], strips: Sequence[Bbox], edge: float) -> list[Point]:
    """From the first panel of a band above everything to the sum."""
    start, total = band[0], next(each for each in band if each.node.operation == "+")
    left = (
        start.outer.x1 + 0.25 * (band[1].outer.x0 - start.outer.x1)
        if band[1].row == start.row
        else start.outer.x1 + 0.04
    )
    up, down = (strips[each.row].y0 + 0.15 * strips[each.row].height for each in (start, total))
    centre = (total.box.x0 + total.box.x1) / 2
    across = [(centre, up)] if start.row == total.row else [(edge, up), (edge, down), (centre, down)]
    return [(left, _level(start.box)), (left, up), *across, (centre, total.box.y1)]
