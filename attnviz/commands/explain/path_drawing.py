"""The figure of a layer drawn: panels in rows, arrows between them, and the residual stream around its halves.

Constrained layout places the panels, so that no word overprints another; arrows are drawn between what it placed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from attnviz.commands.explain.path import THIRD, Node, Panel, PathPlan
from attnviz.errors import UsageError
from attnviz.figures.files import DPI, figure_style
from attnviz.figures.fonts import fitted, text_width, wrapped
from attnviz.figures.look import Look
from attnviz.figures.matrix import LONGEST, draw_matrix, named_every
from attnviz.figures.page import MARGIN, PIXEL, frozen, new_page
from attnviz.model.wording import ordinal

__all__ = ["path_figure"]

_LARGEST, _LEAST, _STEP = 0.88, 0.4, 0.04
_OPERATION, _LETTER, _TRAIL, _FOOT, _BARS = 0.17, 0.1, 0.12, 0.5, 3.6
_RESIDUAL = {"light": "#b35806", "dark": "#f1a340"}
_STREAM, _TURN, _FLOOR = 0.15, 0.65, 0.85
"""Heights of the residual stream, of turns to the next row and of the values, as shares of the strip between rows."""

_Point = tuple[float, float]


@dataclass(frozen=True)
class _Sizes:
    """Sizes on a page: letters in points, the rest in inches."""

    title: float = 7.5
    text: float = 6.5  # letters of all words but titles
    gap: float = 0.15  # between neighbours in a row
    lead: float = 0.16  # before the first of a row, for the arrow that comes from the row above
    strip: float = 0.36  # between rows, for lines
    names: float = 0.0  # of the tokens, before the first row
    side: float = _LARGEST  # of the pattern's panel


_NARROW = _Sizes(6.0, 5.5, 0.1, 0.1, 0.34)


@dataclass(frozen=True)
class _Placed:
    """A node where the layout placed it, in inches from the lower left: its panels, and all with its words."""

    node: Node
    row: int
    boxes: tuple[Bbox, ...]
    outer: Bbox

    @classmethod
    def of(cls, node: Node, row: int, artists: Sequence[Axes | Text]) -> "_Placed":
        boxes, outer = [], []
        for artist in artists:
            drawn = artist.get_bbox_patch() if isinstance(artist, Text) else artist
            assert drawn is not None
            boxes.append(drawn.get_window_extent())
            outer.append((artist.get_tightbbox() if isinstance(artist, Axes) else None) or boxes[-1])
        inches = artists[0].get_figure(root=True).dpi_scale_trans.inverted()  # type: ignore[union-attr]
        return cls(node, row, tuple(box.transformed(inches) for box in boxes), Bbox.union(outer).transformed(inches))

    @property
    def box(self) -> Bbox:
        return self.boxes[len(self.boxes) // 2]

    @property
    def end(self) -> _Point:
        return self.box.x1, _middle(self.box)


def path_figure(plan: PathPlan, look: Look, vector: bool = False) -> Figure:
    """A new figure of a layer with title, notes and colour bars; UsageError where the width has no room for it."""
    sizes, rows = _rows(plan, look)
    width = look.width or max(_row_width(row, number, sizes) for number, row in enumerate(rows))
    ratios = [*chain.from_iterable((sizes.strip, _height(row, sizes)) for row in rows), _FOOT]
    ratios[0] *= 0.6  # only the residual stream runs there
    every = named_every(sizes.side * 72 / math.ceil(len(plan.labels.texts) / plan.pooled), plan.pooled)
    named = f"Every {ordinal(every)} token is named." if every > 1 else ""
    with figure_style():
        page = new_page(plan.title, [*plan.notes, named], look, width=width, body=sum(ratios))
        engine: Any = page.get_layout_engine()
        page.set_layout_engine("constrained", rect=engine.get()["rect"], w_pad=sizes.gap / 2, h_pad=0.01)
        parts: Any = page.subfigures(len(ratios), 1, height_ratios=ratios)
        for part in parts:
            part.set_facecolor("none")
        drawn = [
            (node, row, artists)
            for row, nodes in enumerate(rows)
            for node, artists in _draw_row(parts[2 * row + 1], nodes, row, plan, look, sizes, vector)
        ]
        _colour_bars(parts[-1], look, sizes)
        frozen(page)
        placed = [_Placed.of(*each) for each in drawn]
        strips = [part.bbox.transformed(page.dpi_scale_trans.inverted()) for part in parts[:-1:2]]
        _draw_lines(page, plan, placed, strips, look, (sizes.title, sizes.text))
        return page


def _rows(plan: PathPlan, look: Look) -> tuple[_Sizes, list[list[Node]]]:
    """The nodes row by row: a row a band, or in as few rows as fit, and then as large as fit."""
    names = max(text_width(fitted(text, 8, DPI, LONGEST), 8, DPI) for text in plan.labels.texts) / DPI + 0.06
    sizes, room = replace(_Sizes() if look.width is None else _NARROW, names=names), look.width or math.inf
    best: tuple[_Sizes, list[list[Node]]] | None = None
    for steps in range(1 if look.width is None else round((_LARGEST - _LEAST) / _STEP) + 1):
        smaller, rows = replace(sizes, side=_LARGEST - steps * _STEP), list[list[Node]]()
        for _, band in plan.bands:
            first = len(rows)
            for group in _groups(band):
                if len(rows) > first and _row_width([*rows[-1], *group], len(rows) - 1, smaller) <= room:
                    rows[-1].extend(group)
                else:
                    rows.append(group)
        fits = all(_row_width(row, number, smaller) <= room for number, row in enumerate(rows))
        if fits and (best is None or len(rows) < len(best[1])):
            best = smaller, rows
    if best is None:
        groups, smallest = (group for _, band in plan.bands for group in _groups(band)), replace(sizes, side=_LEAST)
        least = max(_row_width(group, number, smallest) for number, group in enumerate(groups))
        raise UsageError(
            f"the figure of a layer does not fit in {look.width:g} inches with the names of these tokens; "
            f"expected a --width of at least {math.ceil(10 * least) / 10:g}in, or --no-figures."
        )
    return best


def _groups(band: Sequence[Node]) -> list[list[Node]]:
    """Nodes that must stand in one row."""
    starts = [index for index, node in enumerate(band) if not node.joined]
    return [list(band[start:end]) for start, end in zip(starts, [*starts[1:], len(band)], strict=True)]


def _row_width(row: Sequence[Node], number: int, sizes: _Sizes) -> float:
    """Inches of a page with this row; the first one has the names of tokens."""
    return sum(_slot(node, sizes) for node in row) + (sizes.lead if number else sizes.names) + _TRAIL + 2 * MARGIN


def _inside(node: Node, sizes: _Sizes) -> float:
    """Inches of a node without the words above and below."""
    return node.panels[0].width * sizes.side + _LETTER * (len(node.panels) > 1) if node.panels else _OPERATION


def _slot(node: Node, sizes: _Sizes) -> float:
    """Inches that a node takes with its words and the gap beside it."""
    words = [0.0]
    for panel in node.panels[-1:]:
        words += [text_width(line, sizes.text, DPI) for line in (panel.brief, *_below(panel, sizes))]
        words += [text_width(panel.label, sizes.title, DPI, "bold")]
    return max(_inside(node, sizes), max(words) / DPI) + sizes.gap


def _below(panel: Panel, sizes: _Sizes) -> list[str]:
    """The words below a panel, in lines about as wide as the panel."""
    narrow, size = sizes.text < _Sizes.text, sizes.text
    texts = [text.replace(", ", ",") if narrow and text.startswith("[") else text for text in panel.words]
    longest = max((text_width(word, size, DPI) for text in texts for word in text.split(" ")), default=0)
    room = max(panel.width * sizes.side * DPI + 6, longest + 1)
    return [line for text in texts for line in ([text] if text.startswith("[") else wrapped(text, size, DPI, room))]


def _height(row: Sequence[Node], sizes: _Sizes) -> float:
    """Inches of a row with the words above and below."""
    lines = max((len(_below(node.panels[-1], sizes)) for node in row if len(node.panels) == 1), default=0)
    three = (3 * THIRD * sizes.side + 5.7 * sizes.text / 72 + 0.18) * any(len(node.panels) > 1 for node in row)
    return max(sizes.side + (2.9 * sizes.title + 1.4 * lines * sizes.text) / 72, three)


def _draw_row(
    part: SubFigure, nodes: Sequence[Node], row: int, plan: PathPlan, look: Look, sizes: _Sizes, vector: bool
) -> Iterator[tuple[Node, list[Axes | Text]]]:
    """Every node with its artists."""
    left_over = max(part.bbox.width / part.dpi - _row_width(nodes, row, sizes), 0)
    ratios = [sizes.lead if row else 0.01, *(_inside(node, sizes) for node in nodes), left_over + _TRAIL]
    grid = part.add_gridspec(1, len(ratios), width_ratios=ratios)
    for column, node in enumerate(nodes, start=1):
        if node.operation:
            yield node, [_draw_operation(part.add_subplot(grid[column]), node, look, sizes)]
            continue
        specs: Any = grid[column].subgridspec(3, 1) if len(node.panels) > 1 else [grid[column]]
        axes = [part.add_subplot(spec) for spec in specs]
        for ax, panel in zip(axes, node.panels, strict=True):
            _draw_panel(ax, panel, plan, look, sizes, row == 0 and column == 1, vector)
            _write_words(ax, panel, len(axes) > 1, look, sizes)
        if len(axes) > 1:
            axes[0].set_title(plan.head, size=sizes.text, color=look.greys.ink, pad=2)
        yield node, [*axes]


def _draw_operation(ax: Axes, node: Node, look: Look, sizes: _Sizes) -> Text:
    plus, greys = node.operation == "+", look.greys
    shape, size, turn = ("circle,pad=0.15", sizes.title + 2, 0) if plus else ("round,pad=0.5", sizes.text, 90)
    ax.set_axis_off()
    return ax.text(0.5, 0.5, node.operation, size=size, rotation=turn, ha="center", va="center", color=greys.ink,
                   bbox={"boxstyle": shape, "fc": greys.paper, "ec": greys.ink, "lw": 0.9})  # fmt: skip


def _draw_panel(
    ax: Axes, panel: Panel, plan: PathPlan, look: Look, sizes: _Sizes, named: bool, vector: bool
) -> None:  # fmt: skip
    mask = ListedColormap([look.greys.paper, to_hex(look.colour_map()(0.25))])
    colours: dict[str, Colormap] = {"signed": look.diverging_map(), "weights": look.colour_map(), "mask": mask}
    norm = Normalize(-panel.limit if panel.kind == "signed" else 0.0, panel.limit, clip=True)
    cells = draw_matrix(
        ax, panel.values, norm, look, colours=colours[panel.kind], labels=plan.labels if named else None, sides="l",
        pooled=plan.pooled, vector=vector and panel.square, cell=sizes.side * 72 / len(panel.values),
    )  # fmt: skip
    if isinstance(cells, AxesImage):
        cells.set_interpolation("nearest")  # narrow columns would be mixed
    ax.set_box_aspect(panel.height / panel.width)
    if panel.marked is not None:
        first, last = panel.marked
        style: dict[str, Any] = {"fill": False, "lw": 1.0, "ec": look.greys.ink, "clip_on": False, "zorder": 4}
        ax.add_patch(Rectangle((first - 0.5, -0.5), last - first, len(panel.values), **style))


def _write_words(ax: Axes, panel: Panel, three: bool, look: Look, sizes: _Sizes) -> None:
    """Title and formula above, shape and scale below; of three panels, their letters beside them."""
    ink = look.greys.ink
    style: dict[str, Any] = {"textcoords": "offset points", "parse_math": False, "color": ink}
    ax.set_xlabel("\n".join(_below(panel, sizes)), fontsize=sizes.text, color=look.greys.quiet, labelpad=2)
    if three:
        ax.annotate(panel.label, (1, 0.5), xycoords="axes fraction", xytext=(2, 2), size=sizes.title, weight="bold",
                    **style)  # fmt: skip
        return
    pad = 3 + (1.3 * sizes.text if panel.brief else 0)
    ax.set_title(panel.label, size=sizes.title, weight="bold", color=ink, pad=pad, parse_math=False)
    ax.annotate(panel.brief, (0.5, 1), xycoords="axes fraction", xytext=(0, 3), ha="center", size=sizes.text, **style)


def _colour_bars(part: SubFigure, look: Look, sizes: _Sizes) -> None:
    """The two scales; their numbers stand below each panel."""
    scales: tuple[tuple[Colormap, dict[float, str], str], ...] = (
        (look.diverging_map(), {0: "−", 0.5: "0", 1: "+"}, "up to ± below each panel"),
        (look.colour_map(), {0: "0", 1: "largest"}, "attention weight"),
    )
    left_over = max(part.bbox.width / part.dpi - _BARS, 0.01)
    grid = part.add_gridspec(3, 3, width_ratios=[1, 1, left_over], height_ratios=[0.08, 0.08, 0.1])
    for column, (colours, ticks, name) in enumerate(scales):
        ax = part.add_subplot(grid[1, column])
        bar = part.colorbar(ScalarMappable(Normalize(0, 1), colours), cax=ax, orientation="horizontal")
        bar.outline.set(linewidth=PIXEL, edgecolor=look.greys.frame)
        ax.set_xticks([*ticks], [*ticks.values()], fontsize=sizes.text, color=look.greys.ink)
        ax.tick_params(length=2, width=PIXEL, color=look.greys.frame, pad=2)
        ax.set_xlabel(name, fontsize=sizes.text, color=look.greys.ink, labelpad=1)


def _draw_lines(
    page: Figure, plan: PathPlan, placed: Sequence[_Placed], strips: Sequence[Bbox], look: Look, letters: _Point
) -> None:
    """Draw all arrows, the residual stream and the names of the bands; ``strips`` above each row are free for them."""
    muted, colour = look.greys.quiet, _RESIDUAL[look.theme]
    style: dict[str, Any] = {"transform": page.dpi_scale_trans, "parse_math": False}
    for one, other in pairwise(placed):
        paths = _turned(one, other, strips[other.row]) if one.row < other.row else _straight(one, other)
        for path in paths:
            _arrow(page, path, muted, 0.9)
    _arrow(page, _values(placed, strips), muted, 0.9)
    for name, band in plan.bands:
        nodes, placed = placed[: len(band)], placed[len(band) :]
        path = _residual(nodes, strips, page.get_figwidth() - 0.7 * MARGIN)
        _arrow(page, path, colour, 1.4)
        page.add_artist(Line2D(*np.transpose(path[:1]), marker="o", ms=4, color=colour, transform=page.dpi_scale_trans))
        (left, level), (right, _) = path[1:3]
        page.text(nodes[0].box.x0, level + 0.03, name, size=0.92 * letters[0], weight="bold", color=muted, **style)
        page.text((left + right) / 2, level + 0.035, "residual", size=letters[1], color=colour, ha="center", **style)


def _arrow(page: Figure, points: Sequence[_Point], colour: str, width: float) -> None:
    arrow = FancyArrowPatch(path=Path(points), arrowstyle="-|>,head_width=1.8,head_length=3.4", mutation_scale=1,
                            joinstyle="miter", color=colour, lw=width, transform=page.dpi_scale_trans)  # fmt: skip
    page.add_artist(arrow)


def _middle(box: Bbox) -> float:
    return float(box.y0 + box.y1) / 2


def _straight(one: _Placed, other: _Placed) -> Iterator[list[_Point]]:
    """From a node to its right neighbour; queries and keys to the scores each on its way."""
    turn = _gap(one, other, 0.6)
    shares = (0.8, 0.5) if len(one.boxes) > 1 else (0.5,)
    for start, share in zip(one.boxes, shares, strict=False):  # values go elsewhere
        for box in other.boxes:
            entry, level = box.y0 + share * box.height, _middle(start)
            yield [(start.x1, level), (turn, level), (turn, entry), (box.x0, entry)]


def _values(placed: Sequence[_Placed], strips: Sequence[Bbox]) -> list[_Point]:
    """From the values below everything to where they are weighted."""
    split = next(index for index, each in enumerate(placed) if len(each.boxes) > 1)
    after = next(i for i, each in enumerate(placed) if each.node.panels and each.node.panels[0].name == "weighted")
    three, weighted, strip = placed[split], placed[after], strips[placed[split].row + 1]
    down, rise = _gap(three, placed[split + 1], 0.6), _gap(placed[after - 1], weighted, 0.5)
    level, floor = _middle(three.boxes[2]), strip.y0 + _FLOOR * strip.height
    entry = weighted.box.y0 + 0.2 * weighted.box.height
    between = [(down, level), (down, floor), (rise, floor), (rise, entry)]
    return [(three.boxes[2].x1, level), *between, (weighted.box.x0, entry)]


def _turned(one: _Placed, other: _Placed, strip: Bbox) -> Iterator[list[_Point]]:
    """From the end of a row to the beginning of the next one."""
    out, back, level = one.outer.x1 + 0.06, 0.6 * MARGIN, strip.y0 + _TURN * strip.height
    for box in other.boxes:
        yield [one.end, (out, one.end[1]), (out, level), (back, level), (back, _middle(box)), (box.x0, _middle(box))]


def _residual(band: Sequence[_Placed], strips: Sequence[Bbox], edge: float) -> list[_Point]:
    """From the first panel of a band above everything to its sum."""
    start, total = band[0], next(each for each in band if each.node.operation == "+")
    left = _gap(start, band[1], 0.25) if band[1].row == start.row else start.outer.x1 + 0.04
    up, down = (strips[each.row].y0 + _STREAM * strips[each.row].height for each in (start, total))
    centre = (total.box.x0 + total.box.x1) / 2
    across = [(centre, up)] if start.row == total.row else [(edge, up), (edge, down), (centre, down)]
    return [(left, start.end[1]), (left, up), *across, (centre, total.box.y1)]


def _gap(one: _Placed, other: _Placed, share: float) -> float:
    """A place between neighbours and their words."""
    return float(one.outer.x1 + share * (other.outer.x0 - one.outer.x1))
