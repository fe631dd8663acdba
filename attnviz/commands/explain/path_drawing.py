"""The planned figure of a layer drawn: on the caller's Axes, or in a new figure with title, notes and colour bars.

No pyplot, so that neither the caller's figures nor the backend are touched.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from attnviz.commands.explain.path import PathPlan
from attnviz.commands.explain.path_layout import TURN_OUT, Line, Placed
from attnviz.commands.explain.path_panels import Panel
from attnviz.figures.fonts import fitted, font_families, text_width
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look
from attnviz.figures.view_drawing import MARGIN, view_page

__all__ = ["draw_path", "path_figure"]

_POINT = 72 / DPI
_ABOVE_ARROWS = 6
"""Pixels from a line to the foot of a letter on it: half the head of an arrow, and air."""

_FOOT = 66
_BAR = 10
_NORM = "layer norm"
_RESIDUAL = {"light": "#b35806", "dark": "#f1a340"}


def draw_path(ax: Axes, plan: PathPlan) -> list[AxesImage]:
    """Draw a layer on the caller's Axes, in pixels of the plan: ``plan.page`` wide, ``plan.layout.height`` high.

    Args:
        ax: any matplotlib Axes; only these are changed.
        plan: from :func:`attnviz.commands.explain.path.plan_path`.

    Returns:
        the image of every panel, in the order of computing.
    """
    ink, quiet = plan.look.greys.ink, plan.look.greys.quiet
    ax.set(xlim=(0, plan.page), ylim=(plan.layout.height, 0))
    ax.set_axis_off()
    for line in plan.layout.lines:
        _draw_line(ax, line, plan)
    images = []
    for placed in plan.layout.placed:
        if placed.node.operation:
            _draw_operation(ax, placed, plan)
        for panel, left, top in placed.panels():
            images.append(_draw_panel(ax, panel, left, top, plan.look))
        _write_words(ax, placed, plan)
    for band, left, top in plan.layout.names:
        ax.text(left, top, band, size=plan.fonts[0], color=quiet, weight="bold", va="center", parse_math=False)
    first = plan.layout.placed[0]
    ((panel, left, top),) = first.panels()
    for name in plan.names:
        ax.text(left - 5, top + name.place * panel.height, name.text, size=plan.fonts[2], color=ink, ha="right",
                va="center", parse_math=False, family=font_families([name.text]))  # fmt: skip
    return images


def path_figure(plan: PathPlan) -> Figure:
    """A new figure of a layer with title, notes and colour bars; see :func:`draw_path`."""
    with figure_style():
        body = round(plan.layout.height) + _FOOT
        page = view_page(plan.title, plan.notes, plan.page, body, plan.look)
        draw_path(page.axes(0, 0, plan.page, round(plan.layout.height)), plan)
        half = (plan.page - 2 * MARGIN - 30) // 2
        wide, down = min(half, 260), round(plan.layout.height) + 14
        for left, colours, ticks, name in (
            (MARGIN, plan.look.diverging_map(), ((0.0, "−"), (0.5, "0"), (1.0, "+")), "up to ± below each panel"),
            (MARGIN + wide + 30, plan.look.colour_map(), ((0.0, "0"), (1.0, "largest")), "attention weight"),
        ):
            _colour_bar(page.axes(left, down, wide, _BAR), colours, ticks, name, plan)
        return page.figure


def _colour_bar(ax: Axes, colours: Colormap, ticks: tuple[tuple[float, str], ...], name: str, plan: PathPlan) -> None:
    figure, greys = ax.get_figure(root=True), plan.look.greys
    assert figure is not None
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), colours), cax=ax, orientation="horizontal")
    bar.outline.set(linewidth=_POINT, edgecolor=greys.frame)
    ax.set_xticks([place for place, _ in ticks], [text for _, text in ticks], fontsize=plan.fonts[1], color=greys.ink)
    for label, (place, _) in zip(ax.get_xticklabels(), ticks, strict=True):
        label.set(ha={0.0: "left", 1.0: "right"}.get(place, "center"))
    ax.tick_params(length=2, width=_POINT, color=greys.frame, pad=2)
    ax.minorticks_off()
    ax.set_xlabel(name, fontsize=plan.fonts[1], color=greys.ink, labelpad=1)


def _draw_panel(ax: Axes, panel: Panel, left: float, top: float, look: Look) -> AxesImage:
    colours: Colormap = {"signed": look.diverging_map, "weights": look.colour_map}.get(
        panel.kind, lambda: _mask(look)
    )()
    norm = Normalize(-panel.limit if panel.kind == "signed" else 0.0, panel.limit, clip=True)
    rows, columns = panel.values.shape
    tall, wide = round(panel.height / panel.cell) // rows, round(panel.width / panel.cell) // columns
    # an image of as many pixels as are drawn stays sharp in every viewer of vector files
    fine = np.kron(panel.values, np.ones((max(tall, 1), max(wide, 1)), dtype=np.float32))
    right, bottom = left + panel.width, top + panel.height
    image = ax.imshow(fine, cmap=colours, norm=norm, extent=(left, right, bottom, top), aspect="auto",
                      interpolation="nearest", zorder=2)  # fmt: skip
    edge: dict[str, Any] = {"fill": False, "lw": _POINT, "zorder": 3}
    ax.add_patch(Rectangle((left, top), panel.width, panel.height, ec=look.greys.frame, **edge))
    if panel.marked is not None:
        first, last = (left + share * panel.width for share in panel.marked)
        ax.add_patch(Rectangle((first, top), last - first, panel.height, **{**edge, "ec": look.greys.ink, "lw": 1.0}))
    return image


def _mask(look: Look) -> ListedColormap:
    """Hidden keys as the paper, allowed ones in a light tone of the scale."""
    return ListedColormap([look.greys.paper, to_hex(look.colour_map()(0.25))])


def _write_words(ax: Axes, placed: Placed, plan: PathPlan) -> None:
    """Title and formula above a panel, shape and scale below; of three, their letters beside them."""
    panels = list(placed.panels())
    if not panels:
        return
    greys, sizes = plan.look.greys, plan.fonts
    centre, room = placed.left + placed.width / 2, placed.width + plan.sizes.gap * 0.9
    style: dict[str, Any] = {"ha": "center", "parse_math": False, "zorder": 4}
    line = plan.sizes.above / 2 - 2
    (first, _, top), (last, _, low) = panels[0], panels[-1]
    bottom = low + last.height
    if len(panels) > 1:
        for panel, left, above in panels:
            letter = {**style, "ha": "left", "va": "baseline"}
            place = (left + panel.width + 3, above + panel.height / 2 - _ABOVE_ARROWS)
            ax.text(*place, panel.title, size=sizes[0], weight="bold", color=greys.ink, **letter)
        above_words = [(plan.head, sizes[1], "normal", greys.ink)]
    else:
        above_words = [(first.title, sizes[0], "bold", greys.ink), (first.formula, sizes[1], "normal", greys.ink)]
    written = [word for word in above_words if word[0]]
    for number, (text, size, weight, colour) in enumerate(reversed(written)):
        shown = fitted(text, size, DPI, room, weight)
        ax.text(centre, top - 4 - number * line, shown, size=size, weight=weight, color=colour, va="bottom", **style)
    below = [
        part for text in dict.fromkeys((first.shape, first.scale, last.scale)) for part in _between(text, placed, plan)
    ]
    behind = {"fc": greys.paper, "ec": "none", "pad": 0.3}
    for number, text in enumerate(below):
        ax.text(centre, bottom + 4 + number * line, text, size=sizes[1], color=greys.quiet, va="top", bbox=behind,
                **style)  # fmt: skip


def _between(text: str, placed: Placed, plan: PathPlan) -> list[str]:
    """The words below a panel so narrow that no line beside it strikes them through: if need be in two lines."""
    beside = plan.sizes.gap * 0.9 if plan.look.width is None else 2 * TURN_OUT - 4  # where rows break, lines turn
    room = placed.width + beside
    if text_width(text, plan.fonts[1], DPI) <= room:
        return [text]
    limit, bracket, largest = text.partition(" (")
    return [limit, f"({largest}"] if bracket else [text.replace(", ", ",")]


def _draw_operation(ax: Axes, placed: Placed, plan: PathPlan) -> None:
    greys, middle = plan.look.greys, placed.middle
    centre = placed.left + placed.width / 2
    style: dict[str, Any] = {"fc": greys.paper, "ec": greys.ink, "lw": 1.0, "zorder": 3}
    text: dict[str, Any] = {"ha": "center", "va": "center", "color": greys.ink, "zorder": 4, "parse_math": False}
    if placed.node.operation == "+":
        ax.add_patch(Circle((centre, middle), placed.width / 2, **style))
        arm = placed.width * 0.25
        for across, along in (((-arm, arm), (0, 0)), ((0, 0), (-arm, arm))):
            points = ([centre + step for step in across], [middle + step for step in along])
            ax.plot(*points, color=greys.ink, lw=1.0, zorder=4, solid_capstyle="butt")
        return
    tall = text_width(_NORM, plan.fonts[1], DPI) + 14
    box = FancyBboxPatch((placed.left, middle - tall / 2), placed.width, tall, boxstyle="round,pad=0,rounding_size=4",
                         mutation_aspect=1, **style)  # fmt: skip
    ax.add_patch(box)
    ax.text(centre, middle, _NORM, size=plan.fonts[1], rotation=90, **text)


def _draw_line(ax: Axes, line: Line, plan: PathPlan) -> None:
    colour = _RESIDUAL[plan.look.theme] if line.residual else plan.look.greys.quiet
    width = 1.4 if line.residual else 0.9
    points = line.points[:-1] if line.arrow else line.points
    if len(points) > 1:
        ax.plot([x for x, _ in points], [y for _, y in points], color=colour, lw=width, zorder=1,
                solid_capstyle="butt", solid_joinstyle="round")  # fmt: skip
    if line.arrow:
        arrow = FancyArrowPatch(line.points[-2], line.points[-1], arrowstyle="-|>,head_width=2,head_length=3.6",
                                mutation_scale=1, shrinkA=0, shrinkB=0, color=colour, lw=width, zorder=1.5)  # fmt: skip
        ax.add_patch(arrow)
    if line.residual:
        ax.add_patch(Circle(line.points[0], 2.6, fc=colour, ec="none", zorder=2))
        (left, level), (right, _) = line.points[1], line.points[2]
        ax.text((left + right) / 2, level - 2, "residual", size=plan.fonts[1], color=colour, ha="center", va="bottom",
                parse_math=False)  # fmt: skip
