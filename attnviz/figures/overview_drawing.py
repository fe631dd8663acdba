"""A planned overview drawn on matplotlib Axes, the caller's own or new ones. No pyplot."""

import math
from collections.abc import Iterator
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnviz.figures.bars import LEAST_BAR, below_bar, colour_bar, image_scale
from attnviz.figures.colours import outer_ink
from attnviz.figures.families import NO_ROLE, Family
from attnviz.figures.fonts import fitted, font_families, text_width
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.overviews import OverviewPlan

__all__ = ["draw_overview", "overview_figure"]

_SHORTER = {
    "previous-token": "previous", "current-token": "current", "next-token": "next", "duplicate-token": "duplicate",
    "heterogeneous": "heterog.", "not measurable": "n. m.",
}  # fmt: skip


_OF_LARGEST = (
    "share of a head's largest weight (each head's own scale)",
    "share of largest weight (own scales)",
    "share (own scales)",
    "own scales",
)


def draw_overview(ax: Axes, plan: OverviewPlan) -> AxesImage:
    """Draw a planned overview on the caller's Axes: patterns, ids, labels, marks of families, layers and legend.

    The image that is returned carries the scale as well, so that a colour bar can be drawn for it. Where each head has
    its own, that is the share of its largest weight.
    """
    height, width, _ = plan.image.shape
    drawn = ax.imshow(
        plan.image, interpolation="none", aspect="auto", extent=(0, width, height, 0), **image_scale(plan.look)
    )
    _name_heads(ax, plan)
    return drawn


def overview_figure(plan: OverviewPlan, *, image: bool = True) -> Figure:
    """A new figure with an overview, colour bar and title; without the image where that is added later."""
    with figure_style():
        px, wide, greys = plan.pixels, plan.look.width is None, plan.look.greys
        image_height, image_width, _ = plan.image.shape
        left, above = plan.origin
        sizes = (11, 7.5, 20) if wide else (8.5, 6.5, 17)
        width = _width(plan, sizes)
        first, last = plan.layers[0][1], plan.layers[-1][1] + plan.size
        scale = _OF_LARGEST if plan.look.scale == "per-head" else ()
        bar_height = max(min(last - first, px(420)), px(LEAST_BAR))
        bar_left, bar_end = left + image_width + (16 if wide else px(8)), above + first + bar_height
        height = max(above + image_height + px(8), bar_end + below_bar(plan.look, bar_height, plan.dpi, words=scale))
        size = (width / plan.dpi, height / plan.dpi)
        figure = Figure(figsize=size, dpi=plan.dpi, facecolor=greys.paper)
        bottom = 1 - (above + image_height) / height
        axes = figure.add_axes((left / width, bottom, image_width / width, image_height / height))
        axes.set_facecolor(greys.paper)
        (draw_overview if image else _name_heads)(axes, plan)
        families = font_families((plan.title, *plan.notes))
        style: dict[str, Any] = {"family": families, "va": "top", "parse_math": False, "color": greys.ink}
        pitch = 28 if wide else 21
        for line, words in enumerate(plan.heading):
            figure.text(left / width, 1 - px(14 + pitch * line) / height, words, size=sizes[0], weight="bold", **style)
        below = (42 if wide else 34) + pitch * (len(plan.heading) - 1)
        for line, note in enumerate(plan.notes):
            y = 1 - px(below + sizes[2] * line) / height
            figure.text(left / width, y, note, size=sizes[1], **style)
        bar = figure.add_axes((bar_left / width, 1 - bar_end / height, px(14) / width, bar_height / height))
        colour_bar(bar, plan.look, words=scale)
        return figure


def _width(plan: OverviewPlan, sizes: tuple[float, float, float]) -> int:
    """The figure's width: what was asked for, or what grid and texts take."""
    if plan.look.width is not None:
        return round(plan.look.width * plan.dpi)
    left, _ = plan.origin
    titles = [text_width(line, sizes[0], plan.dpi, "bold") for line in plan.heading]
    widest = max(*titles, *(text_width(note, sizes[1], plan.dpi) for note in plan.notes))
    legend = max(entry.left + text_width(entry.name, 7, plan.dpi) + 40 for entry in plan.legend)
    beside = 116 if plan.look.scale != "log" else 130
    width: int = max(plan.image.shape[1] + left + beside, left + math.ceil(max(widest, legend)) + 16)
    return width


def _name_heads(ax: Axes, plan: OverviewPlan) -> None:
    """Ids, marks and labels above the patterns, layers beside them, and the legend below."""
    height, width, _ = plan.image.shape
    px, wide, greys = plan.pixels, plan.look.width is None, plan.look.greys
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    marks = dict(_marked(plan))
    sizes = (7, 6) if wide else (5.5, 5.5)
    for head, label, left, top in plan.cells:
        up = px(20) if wide else px(16)
        fits = text_width(str(head), sizes[0], plan.dpi, "bold") < plan.pitch
        name = str(head) if fits else f"H{head.head}"  # the layer stands beside the row
        if not plan.columns:
            ax.text(left, top - up, name, fontsize=sizes[0], weight="bold", color=greys.ink, va="bottom")
        shift = px(14) if wide else px(11)
        named = _label(label, sizes[1], plan, plan.pitch - shift - px(3))
        if named:
            y = top - px(5) if wide else top - px(3)
            ax.text(left + shift, y, named, fontsize=sizes[1], color=greys.ink, va="bottom", parse_math=False)
    for number, column in plan.columns:
        ax.text(column, 0, f"H{number}", fontsize=sizes[0], weight="bold", color=greys.ink, ha="center", va="top")
    for family, places in marks.items():
        _draw_marks(ax, family, places, plan)
    for layer, top in plan.layers:
        middle = top + plan.size / 2
        name = f"layer {layer}" if text_width(f"layer {layer}", 8, plan.dpi) < plan.size + px(30) else f"L{layer}"
        size = 8 if wide else 6.5
        ax.text(-px(12), middle, name, fontsize=size, color=outer_ink(plan.look), rotation=90, ha="right", va="center")
    for entry in plan.legend:
        size, x = (7, entry.left + px(12)) if wide else (6, entry.left + px(12))
        ax.text(x, entry.middle, entry.name, fontsize=size, color=greys.ink, va="center")


def _label(label: str, size: float, plan: OverviewPlan, room: float) -> str:
    """The label as fully as there is room; nothing where not even a few letters would fit."""
    full = label.replace("syntactic:", "syn: ")
    for words in (full, _SHORTER.get(label, full), label.removeprefix("syntactic:")):
        if text_width(fitted(words, size, plan.dpi, 10 * room), size, plan.dpi) <= room:
            return fitted(words, size, plan.dpi, room)
    shown = fitted(label.removeprefix("syntactic:"), size, plan.dpi, room)
    return shown if len(shown) > 4 else ""


def _marked(plan: OverviewPlan) -> Iterator[tuple[Family, list[tuple[float, float]]]]:
    """Each family with the places of its marks, in the legend as well."""
    px, wide = plan.pixels, plan.look.width is None
    families = plan.families
    for entry in plan.legend:
        places: list[tuple[float, float]] = [(entry.left, entry.middle)]
        for head, _, left, top in plan.cells:
            if families[head] == entry.family:
                places.append((left + px(5), top - (px(12) if wide else px(9))))
        yield entry.family, places


def _draw_marks(ax: Axes, family: Family, places: list[tuple[float, float]], plan: OverviewPlan) -> None:
    xs, ys = zip(*places, strict=True)
    greys = plan.look.greys
    colour = greys.paper if family is NO_ROLE else family.colour
    mark = 4.6 if plan.look.width is None else min(3.6, 0.6 * plan.pitch * 72 / plan.dpi)
    ax.plot(xs, ys, linestyle="none", marker=family.marker, markersize=mark, markerfacecolor=colour,
            markeredgecolor=greys.quiet, markeredgewidth=0.5, scalex=False, scaley=False, clip_on=False)  # fmt: skip
