"""The figure of patching: a map of all heads."""

from collections.abc import Iterator

import numpy as np
from matplotlib.colors import Normalize

from attnviz.commands.patch.measure import Patching
from attnviz.commands.patch.report import direction_text, end_text, interval_text, metric_text, prompts_line
from attnviz.figures.head_map import HeadMap, HeadMapPlan, draw_head_map, head_map_figure
from attnviz.present.figure_context import capital, caption_of
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import counted


def _plan_effects(result: Patching, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    model = result.checkpoint
    n_patched = len(result.heads)
    values = np.full((model.n_layers, model.n_heads), np.nan)
    for head in result.heads:
        values[head.id.layer, head.id.head] = head.effect
    top = max(float(np.nanmax(np.abs(values))), 1e-6)
    left = values.size - n_patched
    hatched = f"hatched: {counted(left, 'head')} not patched" if left else ""
    facts = (metric_text(result), direction_text(result), hatched, interval_text(result))
    what = f"each head’s path to {end_text(result)}" if result.receiver else "patching each head"
    title = f"{model.short_name}: effect of {what}"
    yield HeadMapPlan(
        stem="patch",
        caption=caption_of(
            f"{title}, on {prompts_line(result)}", *facts, "effects are shares of the difference of both prompts"
        ),
        title=title,
        notes=(prompts_line(result), *(f"{capital(fact.removesuffix('.'))}." for fact in facts if fact)),
        maps=(
            HeadMap(
                values,
                model.layers,
                norm=Normalize(-top, top, clip=True),
                bar="effect, share of the difference",
                colours=choices.style.diverging_map(),
            ),
        ),
    )


PATCH = Drawing(_plan_effects, head_map_figure, draw_head_map)
