"""What the figures of an ablation show, planned: numbers, names, words and scales, ready to draw."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnviz.commands.ablate.compensation import method_words, source_line, what_is_measured
from attnviz.commands.ablate.inputs import STATES
from attnviz.commands.ablate.metrics import Measure
from attnviz.commands.ablate.results import Ablated, Estimate
from attnviz.figures.view_drawing import Numbers
from attnviz.model.tokens import visible

__all__ = [
    "CurvePlan",
    "GradientPlan",
    "HeadsPlan",
    "ImportancePlan",
    "Line",
    "Scatter",
    "plan_curve",
    "plan_gradient",
    "plan_heads",
    "plan_importance",
]

_NAMED = 5
_POWERS = {1: "", 1_000: "10⁻³ ", 1_000_000: "10⁻⁶ "}


@dataclass(frozen=True)
class HeadsPlan:
    """Heads by rank, each with its damage by both measures.

    Attributes:
        title, notes, caption: words around the figure.
        names: of the heads, the one that matters most first.
        measures: of the panels.
        values: for each panel the damage of each head.
        middle: for each panel the damage of the middle one of all heads.
    """

    title: str
    notes: tuple[str, ...]
    caption: str
    names: tuple[str, ...]
    measures: tuple[Measure, Measure]
    values: tuple[tuple[Estimate, ...], tuple[Estimate, ...]]
    middle: tuple[float, float]


@dataclass(frozen=True)
class ImportancePlan:
    """What removing each head does, as a map.

    Attributes:
        title, notes, caption: words around the figure.
        values: [n_layers, n_heads], in units of 1 / ``factor``; NaN where a head was not removed.
        unsure: boolean [n_layers, n_heads], where the interval has zero in it.
        factor: that the values are multiplied by, so that they can be read: 1, 10³ or 10⁶.
        signed: whether some are below zero.
        top: the largest size, in the same units.
        bar: the name of the colour bar.
    """

    title: str
    notes: tuple[str, ...]
    caption: str
    values: Numbers
    unsure: np.ndarray
    factor: int
    signed: bool
    top: float
    bar: str


@dataclass(frozen=True)
class Line:
    """One line of a curve.

    Attributes:
        name: for the legend.
        values: [n_points].
        low, high: ends of the intervals, [n_points]; None where there are none.
    """

    name: str
    values: Numbers
    low: Numbers | None
    high: Numbers | None


@dataclass(frozen=True)
class CurvePlan:
    """More and more heads removed: ``least`` important first, one at a time summed up, and in ``random`` order."""

    title: str
    notes: tuple[str, ...]
    caption: str
    removed: tuple[int, ...]
    least: Line
    singles: Line
    random: Line
    unit: str


@dataclass(frozen=True)
class Scatter:
    """Importance by gradients against one measure.

    Attributes:
        measure: of the vertical axis.
        values: of every head.
        logarithmic: whether both axes are; where no number is zero or below.
        correlation: Spearman's; None where it cannot be told.
    """

    measure: Measure
    values: Numbers
    logarithmic: bool
    correlation: float | None


@dataclass(frozen=True)
class GradientPlan:
    """What removing heads does beside their importance by gradients.

    Attributes:
        title, notes, caption: words around the figure.
        gradients: of every head.
        names: of the heads that are named, "" for the others.
        panels: one a measure.
    """

    title: str
    notes: tuple[str, ...]
    caption: str
    gradients: Numbers
    names: tuple[str, ...]
    panels: tuple[Scatter, Scatter]


def plan_heads(found: Ablated, top: int) -> HeadsPlan:
    """The heads that matter most, with intervals.

    Args:
        found: the ablation.
        top: how many; 0 for all.
    """
    shown = found.heads[: top or None]
    first, second = found.measures
    count = f"{len(shown)} of {len(found.heads)} heads" if len(shown) < len(found.heads) else _heads(len(shown))
    values = tuple(tuple(head.damage[measure.name] for head in shown) for measure in found.measures)
    middle = tuple(
        float(np.median([head.damage[measure.name].value for head in found.heads])) for measure in found.measures
    )
    bars = "bars: 95 % intervals, bootstrap over texts" if shown[0].damage[first.name].low is not None else _few(found)
    return HeadsPlan(
        title=f"{_model(found)} without one head: {count}",
        notes=(*_notes(found), f"{_sentence(bars)} Dotted: the median of all heads."),
        caption=(
            f"{_subject(found)}: {first.title} and {second.title} on removing one head, {count}, the one that matters "
            f"most first; {method_words(found)}; {bars}; dotted the median of all heads."
        ),
        names=tuple(str(head.id) for head in shown),
        measures=(first, second),
        values=values,  # type: ignore[arg-type]
        middle=middle,  # type: ignore[arg-type]
    )


def plan_importance(found: Ablated) -> ImportancePlan:
    """The damage of every head by the first measure, layers by heads."""
    model, measure = found.checkpoint, found.measure
    values = np.full((model.n_layers, model.n_heads), np.nan)
    unsure = np.zeros(values.shape, dtype=bool)
    for head in found.heads:
        estimate = head.damage[measure.name]
        values[head.id] = estimate.value
        unsure[head.id] = estimate.low is not None and not (estimate.above_zero or estimate.below_zero)
    largest = float(np.nanmax(np.abs(values)))
    factor = 1 if largest >= 1 or largest == 0 else 1_000 if largest >= 0.001 else 1_000_000
    signed = bool(np.nanmin(values) < 0)
    inside = f"({measure.unit})" if " " in measure.unit else measure.unit
    unit = measure.unit if factor == 1 else f"{_POWERS[factor]}{inside}"
    scale = f"{'blue below zero, ' if signed else ''}colours by the square root of the size"
    extra = [f"In {unit}." if factor > 1 else ""]
    if unsure.any():
        extra.append("In brackets: the 95 % interval has zero in it.")
    missing = values.size - len(found.heads)
    if missing:
        extra.append(f"Hatched: {missing} heads that were not removed.")
    return ImportancePlan(
        title=f"{_model(found)}: {measure.title} on removing each head",
        notes=(*_notes(found), *([" ".join(part for part in extra if part)] if any(extra) else [])),
        caption=(
            f"{_subject(found)}: {measure.title} on removing each head, layers by heads, in {unit}; "
            f"{method_words(found)}; {scale}"
            f"{'; in brackets where the 95 % interval has zero in it' if unsure.any() else ''}."
        ),
        values=values * factor,
        unsure=unsure,
        factor=factor,
        signed=signed,
        top=largest * factor or 1.0,
        bar=f"{measure.title} ({unit}; root scale)",
    )


def plan_curve(found: Ablated) -> CurvePlan:
    """Damage by the number of heads removed."""
    assert found.curve is not None
    name, points = found.measure.name, found.curve.points
    lines = (
        _line("least important first", [point.least.damage[name] for point in points]),
        _line("their sum, one at a time", [point.least.singles[name] for point in points]),
        _line("random order", [point.random.damage[name] for point in points]),
    )
    bands = "Bands: 95 % intervals. " if lines[0].low is not None else f"{_sentence(_few(found))} "
    note = f"{bands}The order was found on the same texts. Above the dashed line: more than the sum."
    return CurvePlan(
        title=f"{_model(found)} without more and more of its heads",
        notes=(*_notes(found), note),
        caption=(
            f"{_subject(found)}: {found.measure.title} on removing more and more of {len(found.curve.order)} heads, "
            f"the least important first (line), beside the sum of what these do one at a time (dashed) and a random "
            f"order (dotted); {method_words(found)}; the order was found on the same texts."
        ),
        removed=tuple(point.removed for point in points),
        least=lines[0],
        singles=lines[1],
        random=lines[2],
        unit=_axis(found.measure),
    )


def plan_gradient(found: Ablated) -> GradientPlan:
    """Every head's damage beside its importance by gradients."""
    gradients = np.array([head.gradient or 0.0 for head in found.heads])
    panels = []
    for measure in found.measures:
        values = np.array([head.damage[measure.name].value for head in found.heads])
        logarithmic = bool((values > 0).all() and (gradients > 0).all())
        panels.append(Scatter(measure, values, logarithmic, found.rank_correlations[measure.name]))
    most = {str(head.id) for head in found.heads[:_NAMED]}
    most |= {str(found.heads[int(place)].id) for place in np.argsort(-gradients)[:_NAMED]}
    names = tuple(str(head.id) if str(head.id) in most else "" for head in found.heads)
    of = "random projections of the final states" if found.kind == STATES else "the loss"
    what = f"|Att·dL/dAtt|, mean over texts, L = {of} (Michel et al. 2019)"
    return GradientPlan(
        title=f"{_model(found)}: removing heads beside their importance by gradients",
        notes=(*_notes(found), f"Gradient importance: {what}. One dot a head."),
        caption=(
            f"{_subject(found)}: what removing each head does beside its importance by gradients, {what}; "
            f"Spearman's rank correlation {', '.join(f'{_rho(panel)} ({panel.measure.title})' for panel in panels)}."
        ),
        gradients=gradients,
        names=names,
        panels=(panels[0], panels[1]),
    )


def _rho(panel: Scatter) -> str:
    return "–" if panel.correlation is None else f"{panel.correlation:.2f}".replace("-", "−")


def _line(name: str, estimates: Sequence[Estimate]) -> Line:
    ends = [[math.nan if end is None else end for end in (each.low, each.high)] for each in estimates]
    low, high = np.array(ends, dtype=float).T
    known = bool(np.isfinite(low).all())
    return Line(name, np.array([each.value for each in estimates]), low if known else None, high if known else None)


def _axis(measure: Measure) -> str:
    return f"{measure.title} ({measure.unit})"


def _model(found: Ablated) -> str:
    return visible(found.checkpoint.short_name)


def _notes(found: Ablated) -> tuple[str, ...]:
    what = what_is_measured(found)
    return (f"{source_line(found)}: {what}.", _sentence(method_words(found)))


def _subject(found: Ablated) -> str:
    return f"{_model(found)} on {source_line(found)}, {what_is_measured(found)}"


def _heads(count: int) -> str:
    return f"{count} head{'s' * (count != 1)}"


def _few(found: Ablated) -> str:
    return f"{found.n_texts} text{'s' * (found.n_texts != 1)}: too few for intervals"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
