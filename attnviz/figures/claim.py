"""One claim on one head, one column wide: all heads by score, the score beside its guesses, a hit and a miss."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnviz.figures.fonts import fitted, put_text, text_width
from attnviz.figures.matrix import Array
from attnviz.figures.page import MARGIN, PIXEL, PagePlan, new_page
from attnviz.figures.resolution import DPI
from attnviz.figures.sentences import COLOURS, TITLE, NamedText, draw_sentences, sentences_height
from attnviz.figures.style import Style, figure_style
from attnviz.measures.estimates import Interval

# Inches: natural width, width below which panels stand one below the other, tallest map, height of a bar with its name.
_WIDTH, _NARROW, _TALLEST, _ROW = 3.3, 2.8, 1.6, 0.26
_HEADING, _LABELS, _NUMBERS, _GAP = 0.16, 0.3, 0.2, 0.14  # heading, axis with a name, axis without, gap
_LEFT = 0.44  # of the width, what the map has beside the bars
_TEXT, _NUMBER = 6.5, 6.0  # font sizes in points
_LEAST_DOT, _LARGEST_DOT = 0.8, 10.0  # points across; the least is of heads whose score is 0 or not known


@dataclass(frozen=True)
class Bar:
    """A number with its name."""

    name: str
    value: float
    written: str  # the value as the caption writes it, with the interval
    interval: Interval | None = None
    own: bool = False  # of the head that the claim is on


@dataclass(frozen=True)
class ClaimPlan(PagePlan):
    """The parts of a claim."""

    scores: Array  # [n_layers, n_heads], NaN where not known
    layers: Sequence[int]
    lit: tuple[int, int]  # row and column of the head that the claim is on
    bars: tuple[Bar, ...]  # from 0 to 1
    is_share: bool  # whether these are written in per cent
    strips: tuple[NamedText, ...]
    heading: str  # of the strips
    removed: tuple[Bar, ...] = ()  # effects of removing the head
    effect: str = ""  # their name and unit


@figure_style()
def claim_figure(plan: ClaimPlan, style: Style, vector: bool = False) -> Figure:  # noqa: ARG001 - as all views
    """A new figure with the parts that the plan has."""
    width = style.room or _WIDTH
    inner = width - 2 * MARGIN
    beside = width >= _NARROW
    n_layers, n_heads = plan.scores.shape
    of_bars, of_removed = (_ROW * len(bars) for bars in (plan.bars, plan.removed))
    map_width = inner * _LEFT if beside else inner
    across = min((map_width - _LABELS) / n_heads, _TALLEST / n_layers)
    down = min(max(across, of_bars / n_layers), 1.6 * across) if beside else across
    of_map = down * n_layers
    bars_top = 0.0 if beside else of_map + _HEADING + _LABELS
    strips_top = _HEADING + max(of_map + _LABELS, bars_top + of_bars + _NUMBERS)
    removed_top = strips_top + (sentences_height(plan.strips, width) if plan.strips else 0.0)
    body = removed_top + (_GAP + _HEADING + of_removed + _NUMBERS if plan.removed else 0.0)
    page = new_page(plan.title, plan.notes, style, width=width, body=body)
    page.set_layout_engine("none")
    height = page.get_figheight()

    def panel(left: float, top: float, across: float, down: float) -> Axes:
        """Axes at inches from the left and from the top of the body."""
        bottom = MARGIN / 3 + body - top - down
        rectangle = (left / width, bottom / height, across / width, down / height)
        return page.add_axes(rectangle, facecolor=style.greys.paper)

    _draw_map(panel(MARGIN + _LABELS, _HEADING, across * n_heads, of_map), plan, min(across, down), style)
    left = width - MARGIN - (inner - map_width - _GAP) if beside else MARGIN
    scores = panel(left, bars_top + _HEADING, width - MARGIN - left, of_bars)
    _draw_bars(scores, "Score", plan.bars, style)
    scores.set(xlim=(0, 1))
    scores.set_xticks([0, 0.5, 1], ["0", "50", "100 %"] if plan.is_share else ["0", "0.5", "1"])
    for label, side in zip(scores.get_xticklabels(), ("left", "center", "right"), strict=True):
        label.set_horizontalalignment(side)
    if plan.strips:
        sentences = panel(MARGIN / 2, strips_top, width - MARGIN, removed_top - strips_top)
        draw_sentences(sentences, plan.heading, plan.strips, width, style)
    if plan.removed:
        effects = panel(MARGIN, removed_top + _GAP + _HEADING, inner, of_removed)
        _draw_bars(effects, f"Without it: {plan.effect}", plan.removed, style)
        rows = np.arange(len(plan.removed))
        effects.vlines(np.zeros(len(rows)), rows + 0.55, rows + 0.9, colors=style.greys.ink, lw=2 * PIXEL)
        effects.xaxis.set_major_locator(MaxNLocator(3))
    return page


def _draw_map(ax: Axes, plan: ClaimPlan, cell: float, style: Style) -> None:
    """Draw a dot a head, its area by the score."""
    n_layers, n_heads = plan.scores.shape
    largest = min(72 * cell * 0.9, _LARGEST_DOT)
    _put_heading(ax, "All heads, by score", style, -_LABELS)
    areas = np.nan_to_num(plan.scores).clip(0)
    diameters = largest * np.sqrt(areas / (areas.max() or 1.0))
    for layer, head in np.ndindex(*areas.shape):
        colour = COLOURS[style.theme]["hit"] if (layer, head) == plan.lit else style.greys.muted
        ax.plot(head, layer, "o", ms=max(diameters[layer, head], _LEAST_DOT), mew=0, color=colour)
    ax.set(xlim=(-0.5, n_heads - 0.5), ylim=(n_layers - 0.5, -0.5))
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    rows = range(0, n_layers, -(-n_layers // 6))
    ax.set_yticks(rows, [str(plan.layers[row]) for row in rows])
    ax.set_xlabel("head", fontsize=_NUMBER, color=style.greys.ink, labelpad=1)
    ax.set_ylabel("layer", fontsize=_NUMBER, color=style.greys.ink, labelpad=1)
    _dress(ax, style, ("left", "bottom"))


def _draw_bars(ax: Axes, heading: str, bars: Sequence[Bar], style: Style) -> None:
    """Draw bars from 0 below their names, with a dot at the value and a line for the interval."""
    _put_heading(ax, heading, style, 0)
    room = ax.get_window_extent().width * DPI / ax.figure.dpi
    across = ax.get_yaxis_transform()
    for row, bar in enumerate(bars):
        colour = COLOURS[style.theme]["hit"] if bar.own else style.greys.muted
        weight = "bold" if bar.own else "normal"
        look = {"size": _TEXT, "color": style.greys.ink, "weight": weight, "transform": across, "va": "baseline"}
        written = bar.written
        if text_width(f"{bar.name}  {written}", _TEXT, weight) > room:  # the caption has the interval, too
            written = written.partition(" (")[0]
        name = fitted(bar.name, _TEXT, room - text_width(written, _TEXT, weight) - 8, weight)
        put_text(ax, 0, row + 0.45, name, **look)
        put_text(ax, 1, row + 0.45, written, ha="right", **look)
        ax.plot([0, bar.value], [row + 0.72] * 2, color=colour, lw=2.5, alpha=0.5, solid_capstyle="butt")
        if bar.interval is not None:
            ax.plot(bar.interval, [row + 0.72] * 2, color=style.greys.ink, lw=0.8, clip_on=False)
        ax.plot(bar.value, row + 0.72, "o", ms=4, mew=0, color=colour, clip_on=False)
    ax.set(ylim=(len(bars), 0))
    ax.set_yticks([])
    _dress(ax, style, ("bottom",))


def _put_heading(ax: Axes, heading: str, style: Style, left: float) -> None:
    ax.annotate(
        heading,
        (0, 1),
        xycoords="axes fraction",
        xytext=(72 * left, 3),
        textcoords="offset points",
        fontsize=TITLE,
        weight="bold",
        color=style.greys.ink,
        parse_math=False,
    )


def _dress(ax: Axes, style: Style, sides: Sequence[str]) -> None:
    ax.tick_params(length=2, width=PIXEL, pad=1.5, labelsize=_NUMBER, color=style.greys.frame)
    ax.tick_params(labelcolor=style.greys.ink)
    for side, spine in ax.spines.items():
        spine.set(visible=side in sides, linewidth=PIXEL, edgecolor=style.greys.frame)
