"""Numbers of every head as maps, a row a layer, a column a head: shares of the output, effects on a token's logit."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure

from attnviz.commands.outputs.figures import signed
from attnviz.commands.outputs.measure import Numbers, WrittenOutputs
from attnviz.commands.outputs.promoted_tokens import Attribution
from attnviz.figures.fonts import text_width, wrapped
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look
from attnviz.figures.view_bars import Mark, bar_place, draw_colour_bar
from attnviz.figures.view_drawing import (
    MARGIN,
    PIXEL,
    cell_points,
    contrasting_ink,
    dress_grid,
    page_width,
    value_size,
    view_page,
)

__all__ = ["HeadMap", "MapsPlan", "draw_head_map", "maps_figure", "plan_effects", "plan_shares"]

_LEFT, _AXIS, _NAME, _SECOND_LINE, _GAP = 56, 50, 24, 16, 0.4
_MOST_COLUMNS = 18


@dataclass(frozen=True)
class HeadMap:
    """One number of every head, and of what is no head beside it.

    Attributes:
        name: what the number is.
        values: [n_layers, n_heads]; NaN where there is none.
        beside: by name, the same number of other parts of every layer, [n_layers].
        signed: whether the colours tell more from less than nothing.
        percent: whether the values are written in percent.
        bar: the name of the colour bar.
        mark: a value to point out on the colour bar.
    """

    name: str
    values: Numbers
    beside: tuple[tuple[str, Numbers], ...]
    signed: bool
    percent: bool
    bar: str
    mark: Mark | None = None

    @property
    def columns(self) -> float:
        """Width in cells."""
        return int(self.values.shape[1]) + (1 + _GAP) * len(self.beside)

    @property
    def norm(self) -> Normalize:
        """From values to colours: to the largest, both ways where it has signs."""
        every = np.concatenate([self.values.ravel(), *(values for _, values in self.beside)])
        top = float(np.abs(every[np.isfinite(every)]).max(initial=0.0)) or 1.0
        return Normalize(-top if self.signed else 0.0, top, clip=True)

    def colours(self, look: Look) -> Colormap:
        """Diverging or of one hue."""
        return look.diverging_map() if self.signed else look.colour_map()

    def written(self, value: float) -> str:
        """As it stands in a cell; a dash where there is none."""
        if not math.isfinite(value):
            return "–"
        text = f"{100 * value:.0f}" if self.percent else f"{value:.2f}"
        return text.removeprefix("-") if not float(text) else text.replace("-", "−")


@dataclass(frozen=True)
class MapsPlan:
    """Maps under each other, with their words."""

    maps: tuple[HeadMap, ...]
    title: str
    notes: tuple[str, ...]
    caption: str


def plan_shares(found: WrittenOutputs) -> MapsPlan:
    """Plan the shares of the attention output: along the output with that of b_O, and of the heads' norms."""
    biases = _numbers(layer.bias_projection_share for layer in found.layers)
    n_heads = found.checkpoint.n_heads
    along = HeadMap(
        name="share of the output’s norm (%), with b_O: the length of a head’s output along the sum of all",
        values=found.table("projection_share"),
        beside=(("b_O", biases),),
        signed=True,
        percent=True,
        bar="share of ‖o‖; below 0: against the others",
    )
    norms = HeadMap(
        name="share of the norms of a layer’s heads (%): the length of a head’s output, whatever its direction",
        values=found.table("norm_share"),
        beside=(),
        signed=False,
        percent=True,
        bar="share of the sum of ‖o_h‖",
        mark=Mark(1 / n_heads, "equal shares"),
    )
    over = f"Over all queries{f' but {found.sinks}' if found.sinks else ''}"
    return MapsPlan(
        maps=(along, norms),
        title=f"{found.title}: what each head makes up of its layer’s attention output",
        notes=(found.text_line, f"{over}. Every row sums to 100\N{NO-BREAK SPACE}% in either map."),
        caption=f"{found.title} on {found.text_line}: shares of every head of its layer’s attention output, a row a "
        "layer, a column a head, in percent. Above, the length of the head’s output along the sum o of all heads and "
        "b_O, over ‖o‖ (negative where it works against the others); below, ‖o_h‖ over the sum of these of the layer’s "
        f"heads. {over}; every row sums to 100 %.",
    )


def plan_effects(found: WrittenOutputs, attribution: Attribution) -> MapsPlan:
    """Plan the direct effects on the logit of the predicted token: of heads, biases and feed-forward."""
    n_layers, n_heads = found.checkpoint.n_layers, found.checkpoint.n_heads
    values = np.array([head.predicted for head in attribution.heads]).reshape(n_layers, n_heads)
    beside = tuple(
        (short, np.array([part.predicted for part in attribution.parts if part.name == name]))
        for name, short in (("attention bias", "b_O"), ("feed-forward", "FFN"))
    )
    target = f"“{attribution.predicted.text}”"
    rest = ", ".join(f"{part.name} {signed(part.predicted)}" for part in attribution.parts if part.layer is None)
    at = f"position #{attribution.position} (“{found.tokens.labels[attribution.position]}”)"
    reading = "final layer norm with its scale held fixed, mean over the vocabulary removed"
    return MapsPlan(
        maps=(HeadMap("logits added", values, beside, True, False, f"logits added to {target}"),),
        title=f"{found.title}: direct effect of each head on the predicted token {target}",
        notes=(
            found.text_line,
            f"At {at}; {reading}. All parts sum to its logit, {attribution.predicted.logit:.2f}; the rest: {rest}.",
        ),
        caption=f"{found.title} on {found.text_line}, at {at}: what every head adds directly to the logit of the "
        f"predicted token {target}, and what biases (b_O) and feed-forward networks (FFN) of each layer add "
        f"({reading}); with {rest} they sum to the logit, {attribution.predicted.logit:.2f}.",
    )


def draw_head_map(ax: Axes, plan: HeadMap, look: Look) -> QuadMesh:
    """Draw one map on the caller's Axes: cells, values where there is room, layers and heads.

    Returns:
        the mesh that carries the cells of the heads.
    """
    n_layers, n_heads = plan.values.shape
    dress_grid(ax, n_layers, n_heads, look)
    ax.set_xlim(-0.5, plan.columns - 0.5)
    rows = np.arange(n_layers + 1) - 0.5
    places = [n_heads + _GAP + (1 + _GAP) * number for number in range(len(plan.beside))]
    blocks = [(np.arange(n_heads + 1) - 0.5, plan.values)]
    blocks += [
        (np.array([place - 0.5, place + 0.5]), values[:, None])
        for place, (_, values) in zip(places, plan.beside, strict=True)
    ]
    colours, norm = plan.colours(look), plan.norm
    meshes = [
        ax.pcolormesh(
            edges,
            rows,
            np.ma.masked_invalid(values),
            cmap=colours,
            norm=norm,
            ec=look.greys.frame,
            lw=PIXEL,
            clip_on=False,
        )
        for edges, values in blocks
    ]
    texts = [
        (edges[column] + 0.5, layer, value)
        for edges, values in blocks
        for (layer, column), value in np.ndenumerate(values)
    ]
    size = value_size(
        tuple({plan.written(value) for _, _, value in texts}), *cell_points(ax, round(plan.columns), n_layers)
    )
    if size is not None and plan.columns <= _MOST_COLUMNS:
        for x, y, value in texts:
            ink = contrasting_ink(colours(norm(value))) if math.isfinite(value) else look.greys.quiet
            ax.text(float(x), y, plan.written(value), size=size, color=ink, ha="center", va="center", parse_math=False)
    ticks = [(tick, label.get_text()) for tick, label in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True)]
    ticks += [(place, name) for place, (name, _) in zip(places, plan.beside, strict=True)]
    ax.set_xticks(*zip(*ticks, strict=True), fontsize=7, color=look.greys.ink)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return meshes[0]


def maps_figure(plan: MapsPlan, look: Look) -> Figure:
    """A new figure with every map of the plan and its colour bar, under each other."""
    n_layers, n_heads = plan.maps[0].values.shape
    widest = max(of.columns for of in plan.maps)
    natural = 58 if n_heads <= 12 else 48 if n_heads <= 16 else 30
    width = page_width(look, _LEFT + round(widest * natural) + MARGIN)
    cell = natural if look.width is None else max(1.0, min(90.0, (width - _LEFT - MARGIN) / widest))
    row = max(14, min(40, round(0.75 * cell)))
    bars = [bar_place(of.bar, width, _LEFT) for of in plan.maps]
    names = [_name(of.name, width - _LEFT - MARGIN) for of in plan.maps]
    above = [_NAME + _SECOND_LINE * (len(lines) - 1) for lines in names]
    heights = [name + n_layers * row + _AXIS + height for name, (_, _, height) in zip(above, bars, strict=True)]
    with figure_style():
        page = view_page(plan.title, plan.notes, width, sum(heights), look)
        for number, (of, (left, long, _)) in enumerate(zip(plan.maps, bars, strict=True)):
            top = sum(heights[:number]) + above[number]
            ax = page.axes(_LEFT, top, round(of.columns * cell), n_layers * row)
            draw_head_map(ax, of, look)
            if len(plan.maps) > 1:
                style: dict[str, Any] = {"fontsize": 7.5, "color": look.greys.ink, "parse_math": False}
                ax.set_title("\n".join(names[number]), loc="left", pad=4, **style)
            bar = page.axes(left, top + n_layers * row + _AXIS + 24, long, 12)
            draw_colour_bar(bar, of.norm, of.bar, look, of.mark, colours=of.colours(look))
        return page.figure


def _name(name: str, room: int) -> list[str]:
    """The name in full where there is room, else up to its first mark, in lines that fit."""
    short = name if text_width(name, 7.5, DPI) <= room else re.split("[:,]", name, maxsplit=1)[0]
    return wrapped(short, 7.5, DPI, room)


def _numbers(values: Iterable[float | None]) -> Numbers:
    return np.array([np.nan if value is None else value for value in values])
