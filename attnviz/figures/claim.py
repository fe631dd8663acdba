"""One claim on one head, one column wide: all heads by score, the score beside guess and control, two examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attnviz.figures.fonts import put_text, text_width, wrapped
from attnviz.figures.page import PagePlan, dress_chart, freeze_layout
from attnviz.figures.sentences import COLOURS, TITLE, NamedText, draw_sentences, sentences_height
from attnviz.figures.style import DPI, Style
from attnviz.measures.estimates import Interval

# Inches: natural width, width below which panels stand one below the other, a bar with its name, heading and axis.
_WIDTH, _NARROW, _ROW, _AROUND = 3.3, 2.8, 0.28, 0.55
_ROWS = 3  # of bars beside the map
_TEXT = 6.5  # font size in points
_LARGEST, _RING = 8.0, 10.0  # points across: of the largest dot, less for many heads, and of the ring around one


class Bar(NamedTuple):
    """A number with its name."""

    name: str
    value: float
    written: str  # the value as the caption writes it, with the interval
    interval: Interval | None = None


@dataclass(frozen=True)
class ClaimPlan(PagePlan):
    """The parts of a claim."""

    dots: tuple[tuple[int, int, float], ...]  # head, layer and score of all heads, that of the claim last
    bars: tuple[Bar, ...]  # the score, and what it is held against, from 0 to 1
    end: str  # how 1 is written
    strips: tuple[NamedText, ...]
    removed: tuple[Bar, ...] = ()  # effects of removing the head
    effect: str = ""  # their name and unit

    def page(self, style: Style) -> Figure:
        """A new figure with the parts that the plan has."""
        width = style.room or _WIDTH
        beside = width >= _NARROW
        of_scores = _AROUND + _ROW * _ROWS
        heights = [of_scores if beside else 2 * of_scores]
        if self.strips:
            heights.append(sentences_height(self.strips, width))
        if self.removed:
            heights.append(_AROUND + _ROW * max(len(self.removed), _ROWS))
        page, parts = self.parts(style, heights, width=width)
        of_map, scores = parts[0].subplots(*((1, 2) if beside else (2, 1)))
        _draw_map(of_map, self, style)
        _draw_bars(scores, "Score", self.bars, width / 2 if beside else width, style)
        scores.set(xlim=(0, 1))
        for end, side in zip(scores.set_xticks([0, 1], ["0", self.end]), ("left", "right"), strict=True):
            end.label1.set_ha(side)
        if self.strips:
            draw_sentences(parts[1].subplots(), "Examples (dotted: right word)", self.strips, width, style)
        if self.removed:
            effects = parts[-1].subplots()
            _draw_bars(effects, f"Without it: {self.effect}", self.removed, width, style)
            effects.xaxis.set_major_locator(MaxNLocator(3))
        freeze_layout(page)
        return page


def _draw_map(ax: Axes, plan: ClaimPlan, style: Style) -> None:
    """Draw a dot a head, its area by the score; where that is not known, or 0, a point."""
    heads, layers, scores = map(np.array, zip(*plan.dots, strict=True))
    largest = min(_LARGEST, 80 / len({*heads}), 50 / len({*layers}))
    areas = largest**2 * scores.clip(0) / (scores.max() or 1.0)
    own = COLOURS[style.theme]["hit"]
    colours = [style.muted] * (len(heads) - 1) + [own]
    ax.scatter(heads, layers, s=areas.clip(0.5), c=colours, lw=0, clip_on=False)
    ax.plot(heads[-1], layers[-1], "o", ms=_RING, mfc="none", mec=own, mew=0.8, clip_on=False)
    for axis, numbers in ((ax.xaxis, heads), (ax.yaxis, layers)):
        axis.set_ticks(range(0, numbers.max() + 1, 1 + numbers.max() // 5))
    ax.set(xlim=(-0.5, heads.max() + 0.5), ylim=(layers.max() + 0.5, -0.5))
    look: dict[str, Any] = {"fontsize": _TEXT, "color": style.ink, "labelpad": 1}
    ax.set_xlabel("head", **look)
    ax.set_ylabel("layer", **look)
    _dress(ax, "All heads by score", "both", ("left", "bottom"), style)


def _draw_bars(ax: Axes, heading: str, bars: Sequence[Bar], inches: float, style: Style) -> None:
    """Draw bars below their names, those of the head in colour, with a dot at the value and a line for the interval."""
    room = (inches - 0.35) * DPI
    y = 0.0  # in rows with one line of text
    for bar in bars:
        colour = COLOURS[style.theme]["hit"] if y == 0 or bar.interval else style.muted
        look: dict[str, Any] = {"size": _TEXT, "color": style.ink, "transform": ax.get_yaxis_transform()}
        written = bar.written
        if text_width(f"{bar.name}  {written}", _TEXT) > room:  # the caption has the interval, too
            written = written.partition(" (")[0]
        put_text(ax, 1, y + 0.35, written, ha="right", **look)
        for line in wrapped(bar.name, _TEXT, room - text_width(written, _TEXT) - 8):
            y += 0.35
            put_text(ax, 0, y, line, **look)
        y += 0.37
        ax.hlines(y, 0, bar.value, colors=colour, lw=2.5, alpha=0.5)
        if bar.interval is not None:
            ax.hlines(y, *bar.interval, colors=style.ink, lw=0.8)
        ax.plot(bar.value, y, "o", ms=4, mew=0, color=colour, clip_on=False)
        y += 0.28
    ax.set(ylim=(max(y, _ROWS), 0), yticks=[])
    _dress(ax, heading, "y", ("bottom",), style)


def _dress(ax: Axes, heading: str, grid: Literal["both", "y"], sides: Sequence[str], style: Style) -> None:
    dress_chart(ax, style, grid, sides)
    ax.set_facecolor(style.paper)
    ax.set_title(heading, loc="left", parse_math=False, fontsize=TITLE, weight="bold", color=style.ink, pad=3)
