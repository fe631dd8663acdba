"""The figure of a training: lines over its steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnviz.commands.profile.training.measure import EARLY, LATE, Training
from attnviz.commands.profile.training.report import headline, source_line
from attnviz.figures.fonts import text_width
from attnviz.figures.lines import HEAD_COLOURS
from attnviz.figures.page import PagePlan, dress_chart, new_page, page_width
from attnviz.figures.style import DPI, Style, figure_style, text_colour
from attnviz.measures.estimates import Interval
from attnviz.present.figure_context import capital, caption_of
from attnviz.present.view import Drawing, ViewOptions

_LABEL = 7.0  # size of the letters of axes, in points


@dataclass(frozen=True)
class _StepsPlan(PagePlan):
    """A page of a training."""

    result: Training


def _plan(result: Training, _: ViewOptions) -> Iterator[_StepsPlan]:
    what = "Prefix matching and copying of the head of the highest prefix matching at each step of training"
    facts = ["steps are evenly spaced, whatever lies between them", "bands: intervals"]
    if result.untrained is not None:
        facts.append("dotted: an untrained copy")
    if result.contexts:
        facts.append(f"below: loss of the {LATE}th token less that of the {EARLY}th")
    caption = caption_of(f"{what}, {source_line(result)}", headline(result), *facts)
    notes = (f"{source_line(result)}.", f"{capital('; '.join(facts))}.")
    yield _StepsPlan("profile-training-steps", caption, headline(result), notes, result)


def _figure(plan: _StepsPlan, style: Style, _: bool = False) -> Figure:
    steps = plan.result.steps
    heights = [1.6, 1.0] if plan.result.contexts else [1.6]
    with figure_style():
        width = page_width(style, 4.8)
        page = new_page(plan.title, plan.notes, style, width=width, body=0.9 + 1.5 * len(heights))
        panels = page.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        _draw_scores(panels[0], plan.result, style)
        if plan.result.contexts:
            changes = [np.nan if step.in_context is None else step.in_context for step in steps]
            _line(
                panels[1],
                changes,
                [step.in_context_interval for step in steps],
                HEAD_COLOURS[style.theme][2],
                marker="o",
            )
            panels[1].axhline(0, color=style.greys.frame, lw=0.8)
            _dress(panels[1], "in-context (nats)", style)
        _name_steps(panels[-1], [step.step for step in steps], 0.8 * width)
        return page


def _draw_scores(ax: Axes, result: Training, style: Style) -> None:
    matching, copying = HEAD_COLOURS[style.theme][:2]
    scores = [step.prefix_matching for step in result.steps]
    _line(ax, scores, [step.interval for step in result.steps], matching, marker="o", label="prefix matching")
    if result.untrained is not None:
        ax.axhline(result.untrained.prefix_matching, color=matching, lw=0.9, ls=":")
    copied = [step.copying for step in result.steps if step.copying is not None]
    if len(copied) == len(result.steps):
        _line(ax, copied, [None] * len(copied), copying, ls="--", marker="s", label="copying (−1 to 1)")
    ax.set_ylim(min(-0.05, *copied, 0) - 0.02, 1.05)
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=_LABEL, borderpad=0.2,
        labelcolor=text_colour(style),
    )  # fmt: skip
    _dress(ax, "score", style)


def _line(ax: Axes, values: Sequence[float], intervals: Sequence[Interval | None], colour: str, **look: Any) -> None:
    steps = range(len(values))
    low, high = np.array([each or (np.nan, np.nan) for each in intervals]).T
    ax.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    ax.plot(steps, values, color=colour, lw=1.3, ms=3, **look)


def _dress(ax: Axes, name: str, style: Style) -> None:
    ax.set_facecolor(style.greys.paper)
    ax.set_ylabel(name, fontsize=_LABEL, color=text_colour(style, "axes.labelcolor"))
    dress_chart(ax, style, "y", ("left", "bottom"))


def _name_steps(ax: Axes, names: Sequence[str], room: float) -> None:
    """Write the names of as many steps as fit into a width in inches, evenly, upright if few fit level."""
    widest = max(text_width(name, _LABEL) for name in names) / DPI + 0.1
    upright = len(names) > 2 and room / widest < min(len(names), 4)
    every = int(np.ceil(len(names) * (0.16 if upright else widest) / room))
    ticks = range(0, len(names), max(1, every))
    ax.set_xticks(list(ticks), [names[at] for at in ticks], rotation=90 if upright else 0)


STEPS = Drawing(_plan, _figure)
