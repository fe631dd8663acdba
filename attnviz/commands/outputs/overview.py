"""All heads of a model in one picture, by norm-weighted attention: planned, then drawn."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnviz.commands.outputs.contributions import HeadContribution
from attnviz.commands.outputs.figures import check_scale, percent
from attnviz.commands.outputs.measure import WrittenOutputs
from attnviz.errors import UsageError
from attnviz.figures.colours import Array, Pixels
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.heatmaps import DPI, max_pool
from attnviz.figures.look import Look
from attnviz.figures.view_bars import bar_place, draw_colour_bar
from attnviz.figures.view_drawing import MARGIN, page_width, view_page
from attnviz.model.head_ids import HeadId

__all__ = ["NormGridPlan", "draw_norm_grid", "norm_grid_figure", "plan_norm_grid"]

_LEAST_TURNED = 26
_SQUARE, _LEFT, _ABOVE, _BELOW, _APART = 120, 56, 24, 10, 14
_LEAST_PITCH, _WITH_SHARE, _WITH_NAME = 14, 74, 40
_NORM = "‖A[q, k] f(x_k)‖ (Kobayashi et al. 2020)"
_SHARE = "share of the norm of its layer’s attention output"


@dataclass(frozen=True)
class NormGridPlan:
    """Norm-weighted attention of many heads, a row a layer and a column a head.

    Attributes:
        heads: of each head its id, its share of its layer's output in words, and its norms [m, m], where 1 is the
            dark end of the scale.
        layers, columns: those that occur, from top to bottom and from left to right.
        size: pixels of one pattern.
        pitch: pixels from one column to the next.
        fine: pixels of the image in one pixel of the page, each way.
        pooled: how many rows and columns one cell of a pattern stands for.
        top: the norm at the dark end; None where each head has its own.
        model, text, count: what is shown, in words.
    """

    heads: tuple[tuple[HeadId, str, Array], ...]
    layers: tuple[int, ...]
    columns: tuple[int, ...]
    size: int
    pitch: int
    fine: int
    pooled: int
    top: float | None
    model: str
    text: str
    count: str

    @property
    def title(self) -> str:
        """Model and what is shown."""
        return f"{self.model}: norm-weighted attention of {self.count}"

    @property
    def notes(self) -> tuple[str, ...]:
        """The text, and how to read the picture."""
        above = f" Above: each head’s {_SHARE}." if self.with_shares else ""
        reading = f"{_NORM}: rows attend to columns; colours from {self._scale}.{above}"
        blocks = f"Each cell is {self._blocks}." if self.pooled > 1 else ""
        return (self.text, reading, *([blocks] if blocks else []))

    @property
    def caption(self) -> str:
        """One sentence: model, text, what is shown, scale, pooling if any."""
        above = f"; above each head its {_SHARE}" if self.with_shares else ""
        blocks = f"; each cell is {self._blocks}" if self.pooled > 1 else ""
        return (
            f"{self.model} on {self.text}, norm-weighted attention {_NORM} of {self.count}: a row a layer, a column a "
            f"head, rows attend to columns; colours from {self._scale}{above}{blocks}."
        )

    @property
    def _scale(self) -> str:
        return "0 to the largest of each head" if self.top is None else f"0 to {self.top:.2g}, the same for every head"

    @property
    def _blocks(self) -> str:
        return f"the largest of {self.pooled} × {self.pooled} (pooled for drawing only)"

    @property
    def extent(self) -> tuple[int, int]:
        """Width and height of the grid in pixels."""
        return len(self.columns) * self.pitch, len(self.layers) * self.row + (0 if self.named else _ABOVE)

    @property
    def row(self) -> int:
        """Pixels from one layer to the next."""
        return self.size + (_BELOW + _ABOVE if self.named else 4)

    @property
    def with_shares(self) -> bool:
        """Whether there is room for a head's share above it."""
        return self.pitch >= _WITH_SHARE

    @property
    def named(self) -> bool:
        """Whether every pattern has its head above it, or only every column."""
        return self.pitch >= _WITH_NAME

    def place(self, head: HeadId) -> tuple[int, int]:
        """Left and top of a head's pattern in the grid."""
        return self.columns.index(head.head) * self.pitch + 1, self.layers.index(head.layer) * self.row + _ABOVE


def plan_norm_grid(found: WrittenOutputs, heads: Sequence[HeadContribution], look: Look) -> NormGridPlan:
    """Plan the overview; one layer's patterns are in memory at a time, and pooled as they come.

    Args:
        found: what the heads of the text write.
        heads: at least one.
        look: theme, width, and scale: ``shared`` by all heads of the model, or ``per-head``.

    Raises:
        UsageError: the width has no room for so many heads, or the scale is logarithmic.
    """
    check_scale(look)
    layers, columns = sorted({head.id.layer for head in heads}), sorted({head.id.head for head in heads})
    n = len(found.tokens)
    pitch, square = _pitch(len(columns), look)
    fine = 1 if look.width is None else 2  # as many pixels as a picture of a chosen width has
    pooled = math.ceil(n / (fine * square))
    m = math.ceil(n / pooled)
    whole = look.width is None and m * (square // m) >= 0.7 * square
    size = m * (square // m) if whole else square
    all_of_them = len(heads) == len(found.heads)
    return NormGridPlan(
        heads=tuple(_drawn(found, heads, look, pooled)),
        layers=tuple(layers),
        columns=tuple(columns),
        size=size,
        pitch=pitch,
        fine=fine,
        pooled=pooled,
        top=None if look.scale == "per-head" else found.largest,
        model=found.title,
        text=found.text_line,
        count=f"all {len(heads)} heads" if all_of_them else f"{len(heads)} of {len(found.heads)} heads",
    )


def draw_norm_grid(ax: Axes, plan: NormGridPlan, look: Look) -> AxesImage:
    """Draw the grid on the caller's Axes: patterns, ids, shares, layers.

    Returns:
        the image that carries all patterns, a pixel a pixel.
    """
    image = _image(plan, look)
    width, height = plan.extent
    drawn = ax.imshow(image, interpolation="none", aspect="auto", extent=(0, width, height, 0))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    ink = look.greys.ink
    for head, share, _ in plan.heads:
        left, top = plan.place(head)
        if plan.with_shares:
            name = str(head) if plan.pitch >= 104 else f"H{head.head}"
            ax.text(left, top - 5, name, fontsize=7, weight="bold", color=ink, va="bottom")
            ax.text(left + plan.size, top - 5, share, fontsize=6, color=ink, va="bottom", ha="right")
        elif plan.named or head.layer == plan.layers[0]:
            name = f"H{head.head}" if plan.named else str(head.head)
            ax.text(left + plan.size / 2, top - 4, name, fontsize=6, color=ink, va="bottom", ha="center")
    for layer in plan.layers:
        middle = plan.place(HeadId(layer, plan.columns[0]))[1] + plan.size / 2
        name = f"layer {layer}" if plan.size >= 60 else f"L{layer}"
        upright = 0 if plan.size < _LEAST_TURNED else 90
        ax.text(-10, middle, name, fontsize=7, color=ink, rotation=upright, ha="right", va="center")
    return drawn


def norm_grid_figure(plan: NormGridPlan, look: Look) -> Figure:
    """A new figure with the overview, its colour bar, title and notes."""
    with figure_style():
        width, height = plan.extent
        norm = Normalize(0.0, plan.top or 1.0)
        name = (
            "share of the head’s largest ‖A f(x)‖"
            if plan.top is None
            else "norm-weighted ‖A f(x)‖ (scale of all heads)"
        )
        wide = page_width(look, _LEFT + width + MARGIN)
        left, long, bar = bar_place(name, wide, _LEFT)
        page = view_page(plan.title, plan.notes, wide, height + bar, look)
        draw_norm_grid(page.axes(_LEFT, 0, width, height), plan, look)
        draw_colour_bar(page.axes(left, height + 24, long, 12), norm, name, look)
        return page.figure


def _drawn(
    found: WrittenOutputs, heads: Sequence[HeadContribution], look: Look, pooled: int
) -> Iterator[tuple[HeadId, str, Array]]:
    """Every head with its share and its pooled norms, over the largest of all or its own; layer by layer."""
    by_id = {head.id: head for head in sorted(heads, key=lambda head: head.id)}
    for writing in found.each_layer(sorted({id.layer for id in by_id})):
        for id, head in by_id.items():
            if id.layer == writing.layer:
                norms: Array = writing.norms(id.head).float().cpu().numpy()
                top = head.largest if look.scale == "per-head" else found.largest
                yield id, percent(head.projection_share), max_pool(norms, pooled) / (top or 1.0)


def _pitch(columns: int, look: Look) -> tuple[int, int]:
    """Pixels from one column to the next, and of a pattern at most.

    Raises:
        UsageError: the width has no room for so many columns.
    """
    if look.width is None:
        return _SQUARE + _APART, _SQUARE
    pitch = int((look.width * DPI - _LEFT - MARGIN) / columns)
    if pitch < _LEAST_PITCH:
        needed = math.ceil((columns * _LEAST_PITCH + _LEFT + MARGIN) / DPI * 10) / 10
        raise UsageError(
            f"a width of {look.width:g} inches has no room for {columns} heads side by side; expected at least "
            f"{needed:g}in."
        )
    return min(pitch, 4 * _SQUARE), min(pitch, 4 * _SQUARE) - (_APART if pitch >= 60 else 3)


def _image(plan: NormGridPlan, look: Look) -> Pixels:
    """The patterns with their frames, [height, width, 3]."""
    width, height = (plan.fine * pixels for pixels in plan.extent)
    size = plan.fine * plan.size
    image = np.empty((height, width, 3), np.uint8)
    image[:] = _bytes(to_rgb(look.greys.paper))
    table = _bytes(look.colour_map()(np.linspace(0, 1, 256))[:, :3])
    for head, _, values in plan.heads:
        left, top = (plan.fine * pixel for pixel in plan.place(head))
        image[top - 1 : top + size + 1, left - 1 : left + size + 1] = _bytes(to_rgb(look.greys.frame))
        nearest = np.arange(size) * len(values) // size
        steps = (np.clip(values, 0, 1) * 255).round().astype(np.uint8)[nearest][:, nearest]
        image[top : top + size, left : left + size] = table[steps]
    return image


def _bytes(colours: object) -> Pixels:
    found: Pixels = (np.asarray(colours, dtype=np.float64) * 255).round().astype(np.uint8)
    return found
