"""One statistic of every head as a map: a row a layer, a column a head, the values written in the cells."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attnviz.commands.heads.findings import Findings
from attnviz.errors import UsageError
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.look import Look
from attnviz.figures.view_bars import Mark, bar_place, draw_colour_bar
from attnviz.figures.view_drawing import (
    MARGIN,
    PIXEL,
    Numbers,
    cell_points,
    contrasting_ink,
    dress_grid,
    page_width,
    text_line,
    value_size,
    view_page,
    written,
)
from attnviz.model.tokens import visible
from attnviz.patterns.masks import distances
from attnviz.patterns.registry import ON_REPEATS, REPEATS
from attnviz.patterns.statistics import SCALARS

__all__ = [
    "StatisticMapPlan",
    "draw_statistic_map",
    "map_figures",
    "map_norm",
    "plan_statistic_map",
    "statistic_map_figure",
    "statistic_named",
]

MOST_COLUMNS = 16
"""Heads a layer up to which values are written into the cells."""

DECADES = 2
"""Of the logarithmic scale: what is smaller than the top by more is drawn like its light end."""

_LEFT, _AXIS = 56, 50
_OPEN = ("entropy", "distance")
_WHOLE = (*_OPEN, "confidence")


@dataclass(frozen=True)
class StatisticMapPlan:
    """A statistic of every head, ready to draw.

    Attributes:
        statistic: its name in heads.json.
        values: [n_layers, n_heads]; NaN where the text cannot measure it.
        reading: what the number is, in words.
        unit: ``nats``, ``tokens`` or ``words``; empty for shares, which are 0-1.
        baseline: the same under uniform attention; None where that is not defined.
        top: the dark end of the shared scale.
        why_missing: why some heads could not be measured; empty where all were.
        model: short name, safe to show.
        text: quoted, with its number of tokens or words.
    """

    statistic: str
    values: Numbers
    reading: str
    unit: str
    baseline: float | None
    top: float
    why_missing: str
    model: str
    text: str

    @property
    def name(self) -> str:
        """Of the statistic, as people write it."""
        if self.statistic.endswith("_on_repeats"):
            return f"{self.statistic.removesuffix('_on_repeats')} where a token repeats"
        kind = {"previous": "previous-token", "current": "current-token", "next": "next-token"}.get(self.statistic)
        name = (kind or self.statistic).replace("_", "-")
        return name if self.statistic in _WHOLE else f"{name} share"

    @property
    def measured(self) -> Numbers:
        """The values that are numbers, [n]."""
        return self.values[np.isfinite(self.values)]

    @property
    def largest(self) -> float:
        """Of all heads; 0 where none could be measured."""
        return float(self.measured.max(initial=0.0))

    @property
    def title(self) -> str:
        """Model and statistic."""
        return f"{self.model}: {self.name}, head by head"

    @property
    def stem(self) -> str:
        """Of the file: ``map-long-range``."""
        return f"map-{self.statistic.replace('_', '-')}"

    def notes(self, look: Look) -> tuple[str, ...]:
        """The text, what the numbers are, and what is hatched."""
        notes = [self.text, f"{self.reading[0].upper()}{self.reading[1:]}."]
        missing = self.values.size - len(self.measured)
        if missing:
            which = "every head" if missing == self.values.size else f"{missing} of {self.values.size} heads"
            notes.append(f"Hatched: not measurable for {which}, {self.why_missing}.")
        return (*notes, *([_log_note(self)] if look.scale == "log" and len(self.measured) else []))

    def caption(self, look: Look) -> str:
        """One sentence: model, text, what is shown, scale."""
        n_layers, n_heads = self.values.shape
        shown = f"{self.model} on {self.text}, {self.name}, head by head ({n_layers} × {n_heads})"
        unit = f", in {self.unit}" if self.unit else ""
        missing = f"; hatched where not measurable, {self.why_missing}" if self.why_missing else ""
        uniform = "" if self.baseline is None else f"; uniform attention would give {written(self.baseline)}"
        scale = f"; {_scale_words(self, look)}" if len(self.measured) else ""
        return f"{shown}: {self.reading}{unit}{scale}{uniform}{missing}."


def statistic_named(name: str) -> str:
    """The statistic of heads.json that a name means; hyphens count as underscores.

    Raises:
        UsageError: there is none of that name.
    """
    wanted = name.strip().lower().replace("-", "_")
    if wanted not in SCALARS:
        raise UsageError(f"unknown statistic {name!r} for a map: expected one of {', '.join(SCALARS)}.")
    return wanted


def plan_statistic_map(findings: Findings, statistic: str) -> StatisticMapPlan:
    """Plan the map of one statistic over every head of the model.

    Args:
        findings: of one text.
        statistic: any of :data:`attnviz.patterns.statistics.SCALARS`; defined in :func:`attnviz.patterns.statistics.measure`.

    Raises:
        UsageError: no such statistic.
    """
    name = statistic_named(statistic)
    model = findings.checkpoint
    values = np.full((model.n_layers, model.n_heads), np.nan)
    for head in findings.heads:
        value = head.statistics[name]
        if value is not None:
            values[head.id.layer, head.id.head] = value
    baseline, measured = _baseline(findings, name), values[np.isfinite(values)]
    largest = float(measured.max(initial=0.0))
    top = 1.0 if name not in _OPEN else max(baseline or 0.0, largest if name == "distance" else 0.0)
    unit = findings.units.name
    return StatisticMapPlan(
        statistic=name,
        values=values,
        reading=_reading(findings, name),
        unit={"entropy": "nats", "distance": f"{unit}s"}.get(name, ""),
        baseline=baseline,
        top=top or 1.0,
        why_missing="" if len(measured) == values.size else _why_missing(findings, name, measured),
        model=visible(model.short_name),
        text=text_line(findings),
    )


def map_norm(plan: StatisticMapPlan, look: Look) -> Normalize:
    """From values to colours.

    ``shared``: 0 to 1 for shares, to the entropy of uniform attention for entropy, and to the largest head
    or uniform attention, whichever is larger, for distance. ``per-head`` means nothing for one number a
    head; it stands for the scale of this map alone, 0 to its largest head. ``log``: two decades, up to
    the top of the shared scale.
    """
    if look.scale == "log":
        return LogNorm(plan.top / 10**DECADES, plan.top, clip=True)
    own = look.scale == "per-head" and plan.largest > 0
    return Normalize(0.0, plan.largest if own else plan.top, clip=True)


def draw_statistic_map(ax: Axes, plan: StatisticMapPlan, look: Look) -> QuadMesh:
    """Draw a planned map on the caller's Axes: cells, values where there is room, hatching where there are none.

    Args:
        ax: any matplotlib Axes; only these are changed.
        plan: from :func:`plan_statistic_map`.
        look: theme and scale.

    Returns:
        the mesh that carries the cells.
    """
    n_layers, n_heads = plan.values.shape
    edges = [np.arange(n + 1) - 0.5 for n in (n_heads, n_layers)]
    norm, colours, paper = map_norm(plan, look), look.colour_map(), look.greys.paper
    masked = np.ma.masked_invalid(plan.values)
    mesh = ax.pcolormesh(*edges, masked, cmap=colours, norm=norm, edgecolors=paper, linewidth=PIXEL)
    dress_grid(ax, n_layers, n_heads, look)
    texts = {place: written(value) for place, value in np.ndenumerate(plan.values)}
    size = value_size(tuple(set(texts.values())), *cell_points(ax, n_heads, n_layers))
    for (layer, head), text in texts.items():
        value = plan.values[layer, head]
        ink = look.greys.quiet
        if math.isfinite(value):
            ink = contrasting_ink(colours(norm(value)))
        else:
            _hatch(ax, layer, head, look)
        if size is not None and n_heads <= MOST_COLUMNS:
            written_text = ax.text(head, layer, text, size=size, color=ink, ha="center", va="center", parse_math=False)
            if not math.isfinite(value):
                written_text.set_bbox({"fc": look.greys.paper, "ec": "none", "pad": 1.5})
    return mesh


def _hatch(ax: Axes, layer: int, head: int, look: Look) -> None:
    """A cell without a number: not the colour of 0, but two quiet strokes on the paper around its dash."""
    with rc_context({"hatch.linewidth": 0.5}):
        box = Rectangle((head - 0.5, layer - 0.5), 1, 1, fc=look.greys.paper, ec=look.greys.frame, lw=PIXEL, hatch="//")
    ax.add_patch(box)


def statistic_map_figure(plan: StatisticMapPlan, look: Look) -> Figure:
    """A new figure with the map, its colour bar with uniform attention marked, title and notes."""
    n_layers, n_heads = plan.values.shape
    natural = 58 if n_heads <= 12 else 48 if n_heads <= MOST_COLUMNS else 30
    width = page_width(look, _LEFT + n_heads * natural + MARGIN)
    cell = natural if look.width is None else max(1, min(90, (width - _LEFT - MARGIN) // n_heads))
    row = max(14, min(40, round(0.75 * cell)))
    body, rows = n_heads * cell, n_layers * row
    with figure_style():
        name = f"{plan.name} ({plan.unit or '0–1'}; {_SCALES[look.scale]})"
        left, length, height = bar_place(name, width, _LEFT)
        below = _AXIS + height * bool(len(plan.measured))
        page = view_page(plan.title, plan.notes(look), width, rows + below, look)
        draw_statistic_map(page.axes(_LEFT, 0, body, rows), plan, look)
        if not len(plan.measured):
            return page.figure
        mark = None if plan.baseline is None else Mark(plan.baseline, "uniform attention")
        draw_colour_bar(page.axes(left, rows + _AXIS + 24, length, 12), map_norm(plan, look), name, look, mark)
        return page.figure


def map_figures(findings: Findings, look: Look, statistic: str) -> Iterator[tuple[str, Figure, str]]:
    """The map of one statistic: file stem (``map-entropy``), figure and caption.

    Raises:
        UsageError: no such statistic.
    """
    plan = plan_statistic_map(findings, statistic)
    yield plan.stem, statistic_map_figure(plan, look), plan.caption(look)


_SCALES = {"shared": "shared scale", "per-head": "scale of this map", "log": "log scale"}


def _baseline(findings: Findings, name: str) -> float | None:
    """The statistic under attention that is uniform over the allowed keys."""
    frame = findings.frame
    keys = frame.allowed.sum(1)
    if name == "entropy":
        return frame.entropy_uniform
    if name == "distance":
        return float(((distances(len(keys)).abs() * frame.allowed).sum(1) / keys).double().mean())
    if name == "confidence":
        return float((1 / keys).double().mean())
    if name == "sink":
        return frame.sink_baseline
    for repeat, on_repeats in ON_REPEATS.items():
        if name == on_repeats:
            return frame.baselines_on_repeats[repeat]
    return frame.baselines[name]


def _reading(findings: Findings, name: str) -> str:
    """What the number is, in words."""
    unit, options = findings.units.name, findings.options
    sinks = _sinks(findings)
    targets = {
        "previous": f"the previous {unit}",
        "current": f"the {unit} itself",
        "next": f"the next {unit}",
        "local": f"{unit}s at most {options.local_window} away",
        "long_range": f"{unit}s at least {options.long_range_from} away",
        "induction": f"the {unit} after an earlier copy of the query",
        "duplicate": "an earlier copy of the query",
    }
    whole = {
        "entropy": "mean entropy of the rows",
        "distance": "mean distance between query and key, weighted by attention",
        "confidence": "mean of each row’s largest weight",
        "sink": f"mean attention of the other {unit}s to {sinks}",
    }
    for repeat, on_repeats in ON_REPEATS.items():
        whole[on_repeats] = f"mean attention of the {unit}s with a copy before them to {targets[repeat]}"
    if name in whole:
        return whole[name]
    return f"share of the attention on content that lands on {targets[name]}"


def _sinks(findings: Findings) -> str:
    """The sink positions, in words."""
    units = findings.units
    first = f"the first {units.name}" if units.sink[0] and not units.special[0] else ""
    return " and ".join(part for part in ("the special tokens" if any(units.special) else "", first) if part)


def _why_missing(findings: Findings, name: str, measured: Numbers) -> str:
    repeat = next((repeat for repeat, on_repeats in ON_REPEATS.items() if on_repeats == name), name)
    if findings.frame.masks.get(repeat, findings.frame.content) is None:
        return "because no query of this model can see it"
    if repeat in REPEATS and not findings.frame.counts[repeat]:
        return f"because no {findings.units.name} of this text repeats"
    if len(measured):
        return "because no attention lands on content there"
    placed = "so placed" if name in findings.frame.masks and bool(findings.frame.content.any()) else "to measure it on"
    return f"because this text has no {findings.units.name}s {placed}"


def _scale_words(plan: StatisticMapPlan, look: Look) -> str:
    top = written(plan.top)
    if look.scale == "log":
        return f"logarithmic colours from {plan.top / 10**DECADES:.2g} to {top}"
    if look.scale == "per-head" and plan.largest > 0:
        return f"colours from 0 to the largest head, {plan.largest:.2g}"
    return f"colours from 0 to {top}"


def _log_note(plan: StatisticMapPlan) -> str:
    low = plan.top / 10**DECADES
    below = int((plan.measured < low).sum())
    same = f"; what is smaller looks the same ({below} of {plan.values.size} heads)." if below else "."
    return f"Logarithmic colours from {low:.2g}{same}"
