"""The figure of a training: lines over its steps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnviz.commands.profile.training.measure import EARLY, LATE, Training, TrainingStep
from attnviz.commands.profile.training.report import headline, source_line
from attnviz.figures.fonts import text_width
from attnviz.figures.lines import HEAD_COLOURS
from attnviz.figures.page import PagePlan, dress_chart, new_page, page_width
from attnviz.figures.style import DPI, Style, figure_style, outer_ink
from attnviz.present.figure_context import capital, caption_of
from attnviz.present.view import Drawing, ViewOptions

_LABEL = 7.0
"""Size of the letters of axes, in points."""


@dataclass(frozen=True)
class _StepsPlan(PagePlan):
    """Steps, in the order of training, and the untrained copy."""

    steps: tuple[TrainingStep, ...]
    untrained: TrainingStep | None
    losses: bool


def _plan(result: Training, _: ViewOptions) -> Iterator[_StepsPlan]:
    what = "Prefix matching and copying of the head of the highest prefix matching at each step of training"
    facts = ["steps are evenly spaced, whatever lies between them", "bands: intervals"]
    if result.untrained is not None:
        facts.append("dotted: an untrained copy")
    if result.contexts:
        facts.append(f"below: loss of the {LATE}th token less that of the {EARLY}th")
    caption = caption_of(f"{what}, {source_line(result)}", headline(result), *facts)
    notes = (f"{source_line(result)}.", f"{capital('; '.join(facts))}.")
    steps = result.steps, result.untrained, result.contexts > 0
    yield _StepsPlan("profile-training-steps", caption, headline(result), notes, *steps)


def _figure(plan: _StepsPlan, style: Style, _: bool = False) -> Figure:
    with figure_style():
        width = page_width(style, 4.8)
        page = new_page(plan.title, plan.notes, style, width=width, body=2.4 + 1.5 * plan.losses)
        heights = [1.6, 1.0][: 1 + plan.losses]
        panels = page.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        _draw_scores(panels[0], plan, style)
        if plan.losses:
            changes = [float(step.in_context or 0) for step in plan.steps]
            ends = [step.in_context_interval or (change,) * 2 for step, change in zip(plan.steps, changes, strict=True)]
            _line(panels[1], changes, ends, HEAD_COLOURS[style.theme][2], "-o", "")
            panels[1].axhline(0, color=style.greys.frame, lw=0.8)
            _dress(panels[1], "in-context (nats)", style)
        _name_steps(panels[-1], [step.step for step in plan.steps], 0.8 * width)
        return page


def _draw_scores(ax: Axes, plan: _StepsPlan, style: Style) -> None:
    matching, copying = HEAD_COLOURS[style.theme][:2]
    scores = [step.prefix_matching for step in plan.steps]
    ends = [step.interval or (step.prefix_matching,) * 2 for step in plan.steps]
    _line(ax, scores, ends, matching, "-o", "prefix matching")
    if plan.untrained is not None:
        ax.axhline(plan.untrained.prefix_matching, color=matching, lw=0.9, ls=":")
    copied = [step.copying for step in plan.steps if step.copying is not None]
    if len(copied) == len(plan.steps):
        _line(ax, copied, [(each, each) for each in copied], copying, "--s", "copying (−1 to 1)")
    ax.set_ylim(min(-0.05, *copied, 0) - 0.02, 1.05)
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=_LABEL, borderpad=0.2,
        labelcolor=outer_ink(style),
    )  # fmt: skip
    _dress(ax, "score", style)


def _line(
    ax: Axes, values: Sequence[float], ends: Sequence[tuple[float, ...]], colour: str, shape: str, name: str
) -> None:
    steps = np.arange(len(values))
    low, high = np.array(ends).T
    ax.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    ax.plot(steps, values, shape, color=colour, lw=1.3, ms=3, label=name)


def _dress(ax: Axes, name: str, style: Style) -> None:
    ax.set_facecolor(style.greys.paper)
    ax.set_ylabel(name, fontsize=_LABEL, color=outer_ink(style, "axes.labelcolor"))
    dress_chart(ax, style, "y", ("left", "bottom"))


def _name_steps(ax: Axes, names: Sequence[str], room: float) -> None:
    """Write the names of as many steps as fit into a width in inches, evenly, upright if few fit level."""
    widest = max(text_width(name, _LABEL, DPI) for name in names) / DPI + 0.1
    upright = len(names) > 2 and room / widest < min(len(names), 4)
    every = int(np.ceil(len(names) * (0.16 if upright else widest) / room))
    ticks = range(0, len(names), max(1, every))
    ax.set_xticks(list(ticks), [names[at] for at in ticks], rotation=90 if upright else 0)


STEPS = Drawing(_plan, _figure)
