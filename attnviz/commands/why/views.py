"""The figure of an account: sources of the query × sources of the key."""

from collections.abc import Iterator

import numpy as np
import torch
from matplotlib.colors import Normalize

from attnviz.commands.why.measure import Account
from attnviz.commands.why.report import REST, short_name
from attnviz.figures.heatmap import HeatmapPlan, draw_heatmap, heatmap_figure
from attnviz.figures.matrix import Labels, signed_hundredths
from attnviz.present.figure_context import caption_of
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import rounded, signed

_SIDE = 8  # sources of a side with a row or column of their own

_SHORT = "FF: feed-forward network; b: bias, b_O: that of attention."  # what short_name shortens


def _plan_sources(result: Account, choices: ViewOptions) -> Iterator[HeatmapPlan]:
    key, about = result.keys[0], result.figure_context
    differences, names = key.differences, []
    for sources in (result.scores.query_sources, result.scores.key_sources):
        order = differences.abs().sum(1).argsort(descending=True, stable=True)
        shown = order if len(order) <= _SIDE + 1 else order[:_SIDE]
        named, differences = [short_name(sources[place]) for place in shown.tolist()], differences[order]
        if len(shown) < len(order):  # the others summed as one
            named.append(REST)
            rest = differences[len(shown) :].sum(0, keepdim=True)
            differences = torch.cat([differences[: len(shown)], rest])
        names.append(tuple(named))
        differences = differences.T
    values, (rows, columns) = differences.double().numpy(), names
    end = float(np.abs(values).max()) or 1.0
    norm = Normalize(-end, end, clip=True)
    where = f"{result.label(result.query)} → {result.label(key.key)}"
    score = f"score {rounded(key.score)}, {signed(key.difference)} from the mean of {result.scores.n_keys} keys"
    beside = [f"{name} {signed(difference)}" for name, (_, difference) in key.extras.items()]
    yield HeatmapPlan(
        stem="why",
        caption=caption_of(
            f"Why {result.label(result.query)} attends to {result.label(key.key)} in {result.head} of {about.subject}",
            f"parts of the difference of its score from the mean over the keys that it may attend to: {score}",
            "rows: parts of the query; columns: parts of the key; the largest first, the others together",
            *beside,
            f"colours from −{end:.3g} to {end:.3g}",
        ),
        title=f"{result.head}  {where}",
        evidence=score,
        notes=about.notes(_SHORT, *(f"Not drawn: {extra}." for extra in beside)),
        values=values,
        labels=Labels(rows, tuple(name == REST for name in rows)),
        keys=Labels(columns, tuple(name == REST for name in columns)),
        norm=norm,
        bar_norm=norm,
        bar="part of the difference of scores",
        colours=choices.style.diverging_map(),
        signed=True,
        forms=(signed_hundredths, lambda value: signed_hundredths(value).replace("0.", ".")),
    )


SOURCES = Drawing(_plan_sources, heatmap_figure, draw_heatmap)
