"""The figures of an ablation: heads with intervals, and the curve."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from attnviz.commands.ablate.effects import HeadEffect
from attnviz.commands.ablate.measure import Ablation
from attnviz.commands.ablate.report import REPLACEMENT_TEXT, source_line, what_is_measured
from attnviz.figures.matrix import Array
from attnviz.figures.page import PIXEL, PagePlan, chart_page, new_page, page_width, power_of_ten
from attnviz.figures.style import Style, figure_style, text_colour
from attnviz.measures.intervals import ERROR_RATE, Estimate
from attnviz.present.figure_context import capital, caption_of
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import counted

_BLUE = {"light": "#2171b5", "dark": "#6baed6"}
_ORANGE = {"light": "#b35806", "dark": "#f1a340"}
_TOO_SMALL = 0.001  # the numbers of an axis whose largest is smaller have a power of ten in their unit
_HEADROOM = 0.25  # room for the legend above the curve, as a share of its height


@dataclass(frozen=True)
class EffectsPlan(PagePlan):
    """A figure of effects."""

    result: Ablation
    heads: tuple[HeadEffect, ...]  # that are drawn, or named


def _plan(
    result: Ablation, name: str, title: str, what: str, *more: str, heads: tuple[HeadEffect, ...] = ()
) -> EffectsPlan:
    model, source = result.checkpoint.short_name, source_line(result)
    measured, unchanged = what_is_measured(result)
    method = REPLACEMENT_TEXT[result.method]
    last = " ".join(f"{capital(part)}." for part in more if part)
    notes = (f"{source}: {measured}.", unchanged and f"{capital(unchanged)}.", f"{capital(method)}.", last)
    measured = "; ".join(filter(None, (measured, unchanged)))
    caption = caption_of(f"{model} on {source}, {measured}: {what}", method, *more)
    return EffectsPlan(
        stem=f"ablate-{name}",
        caption=caption,
        title=model + title,
        notes=tuple(filter(None, notes)),
        result=result,
        heads=heads,
    )


def _plan_heads(result: Ablation, choices: ViewOptions) -> Iterator[EffectsPlan]:
    heads = result.heads[: choices.top or None]
    n = len(result.heads)
    count = counted(n, "head") if len(heads) == n else f"{len(heads)} of {n} heads"
    titles = " and ".join(metric.title for metric in result.metrics[:2])
    what = f"{titles} on removing one head, {count}, the one that matters most first"
    more = _intervals(result, "bars"), "dotted: the median of all heads"
    yield _plan(result, "heads", f" without one head: {count}", what, *more, heads=heads)


def _plan_curve(result: Ablation, _: ViewOptions) -> Iterator[EffectsPlan]:
    what = (
        f"{result.metrics[0].title} on removing ever more of {len(result.heads)} heads, the least important first "
        "(line), beside the sum of what these do one at a time (dashed) and a random order (dotted)"
    )
    more = "the order was found on the same texts", "above the dashed line: more than the sum"
    yield _plan(result, "curve", " without more and more of its heads", what, _intervals(result, "bands"), *more)


def _intervals(result: Ablation, drawn: str) -> str:
    if not result.has_intervals:
        return f"{counted(result.n_texts, 'text')}: too few for intervals"
    return f"{drawn}: intervals at {ERROR_RATE} over all of them together, bootstrap over texts; none where not known"


def _heads_figure(plan: EffectsPlan, style: Style, _: bool = False) -> Figure:
    rows = range(len(plan.heads))
    width = page_width(style, 4.8)
    with figure_style():
        page = new_page(plan.title, plan.notes, style, width=width, body=0.6 + 0.15 * max(2, len(rows)))
        for ax, metric in zip(page.subplots(1, 2, sharey=True), plan.result.metrics[:2], strict=True):
            values, low, high = _ends([head.damage[metric.name] for head in plan.heads])
            largest = max(float(np.abs(ends).max()) for ends in (values, low, high))
            exponent = 0
            unit = metric.unit
            if 0 < largest < _TOO_SMALL:  # take the largest to at least 1: 10⁻³ nats/token
                exponent = 3 * math.floor(math.log10(largest) / 3)
                unit = f"{power_of_ten(exponent)} {f'({unit})' if ' ' in unit else unit}"
            factor = 10.0**-exponent
            values, low, high = (factor * ends for ends in (values, low, high))
            for row in rows[::2]:
                ax.axhspan(row - 0.5, row + 0.5, color=style.ink, alpha=0.05, linewidth=0)
            median = np.median([head.damage[metric.name].value for head in plan.result.heads])
            ax.axvline(factor * float(median), color=style.frame, lw=0.9, ls=":")
            ax.axvline(0, color=style.frame, lw=PIXEL)
            ends = (values - low, high - values)
            ax.errorbar(values, rows, xerr=ends, fmt="o", ms=3.5, lw=1.2, color=_BLUE[style.theme])
            ax.margins(x=0.08)
            ax.set(ylim=(len(rows) - 0.5, -0.5), yticks=rows, yticklabels=[str(head.id) for head in plan.heads])
            ax.set_xlabel(f"{metric.title}\n({unit})", loc="center" if width > 4 else "right")
            _dress(ax, style)
            ax.tick_params(axis="y", length=0)
            ax.locator_params(axis="x", nbins=5 if width > 4 else 2)
        return page


def _curve_figure(plan: EffectsPlan, style: Style, _: bool = False) -> Figure:
    return chart_page(plan, style, draw_curve, width=4.8, body=2.9)


def draw_curve(ax: Axes, plan: EffectsPlan, style: Style) -> Line2D:
    """Draw the three lines, intervals as bands; returns the line of the least important heads first."""
    assert plan.result.curve is not None
    metric, points = plan.result.metrics[0], plan.result.curve.points
    removed = [point.removed for point in points]
    lines: list[Line2D] = []
    for name, effects, colour, properties, marker in (
        ("least important first", [point.least.damage for point in points], _BLUE, "-", "o"),
        ("sum, one at a time", [point.least.singles for point in points], _BLUE, "--", ""),
        ("random order", [point.random.damage for point in points], _ORANGE, ":", "s"),
    ):
        values, low, high = _ends([effect[metric.name] for effect in effects])
        if properties != "--" and (low < high).any():
            ax.fill_between(removed, low, high, color=colour[style.theme], alpha=0.18, linewidth=0)
        lines += ax.plot(
            removed, values, properties, color=colour[style.theme], marker=marker, lw=1.4, ms=3, label=name
        )
    ax.axhline(0, color=style.frame, lw=PIXEL)
    ax.set(xlim=(0, None), xlabel="heads removed", ylabel=f"{metric.title} ({metric.unit})")
    ax.locator_params(axis="x", integer=True)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + _HEADROOM * (high - low))
    room = {"fontsize": 6.5, "handlelength": 1.6, "borderaxespad": 0.2}
    ax.legend(loc="upper left", labelcolor=text_colour(style), frameon=False, **room)
    _dress(ax, style)
    return lines[0]


def _ends(estimates: Sequence[Estimate]) -> Array:
    """Values and both ends of their intervals, [3, n]; without intervals three times the values."""
    return np.array([(one.value, *(one.interval or (one.value, one.value))) for one in estimates]).T


def _dress(ax: Axes, style: Style) -> None:
    ax.set_facecolor("none")
    ax.spines[:].set(linewidth=PIXEL, edgecolor=style.frame)
    ax.tick_params(labelsize=7, length=2, pad=2, width=PIXEL, color=style.frame)
    ax.tick_params(which="minor", length=0)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_tick_params(labelcolor=text_colour(style, "xtick.color"))
        axis.label.set(size=7.5, color=text_colour(style, "axes.labelcolor"))


def _no_curve(result: Ablation) -> str:
    if result.curve is not None:
        return ""
    if len(result.heads) == 1:
        return "one head alone was removed"
    return "the selected heads were removed as one set" if result.together is not None else "no curve was asked for"


HEADS = Drawing(_plan_heads, _heads_figure)
CURVE = Drawing(_plan_curve, _curve_figure, draw_curve, missing=_no_curve)
