"""The figure of an account: sources of the query × sources of the key."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from matplotlib.colors import Normalize
from torch import Tensor

from attnviz.commands.why.measure import Account
from attnviz.commands.why.report import REST, short_name
from attnviz.figures.heatmap import HeatmapPlan, draw_heatmap, heatmap_figure
from attnviz.figures.matrix import Array, Labels, signed_hundredths
from attnviz.present.figure_context import caption_of
from attnviz.present.view import Drawing, ViewOptions
from attnviz.trace.residual_parts import Source
from attnviz.wording import rounded, signed

_SIDE = 8  # sources of a side with a row or column of their own

_SHORT = "FF: feed-forward network; b: bias, b_O: that of attention."
"""What :func:`short_name` shortens."""


def _plan_sources(result: Account, choices: ViewOptions) -> Iterator[HeatmapPlan]:
    """Plan the matrix of the first key's difference."""
    key, of = result.keys[0], result.figure_context
    values, rows, columns = _largest(key.differences, result.scores.query_sources, result.scores.key_sources)
    end = float(np.abs(values).max()) or 1.0
    norm = Normalize(-end, end, clip=True)
    where = f"{result.label(result.query)} → {result.label(key.key)}"
    score = f"score {rounded(key.score)}, {signed(key.difference)} from the mean of {result.scores.n_keys} keys"
    beside = [f"{name} {signed(difference)}" for name, (_, difference) in key.extras.items()]
    yield HeatmapPlan(
        stem="why",
        caption=caption_of(
            f"Why {result.label(result.query)} attends to {result.label(key.key)} in {result.head} of {of.subject}",
            f"parts of the difference of its score from the mean over the keys that it may attend to: {score}",
            "rows: parts of the query; columns: parts of the key; the largest first, the others together",
            *beside,
            f"colours from −{end:.3g} to {end:.3g}",
        ),
        title=f"{result.head}  {where}",
        evidence=score,
        notes=of.notes(_SHORT, *(f"Not drawn: {each}." for each in beside)),
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


def _largest(
    differences: Tensor, rows: Sequence[Source], columns: Sequence[Source]
) -> tuple[Array, tuple[str, ...], tuple[str, ...]]:
    """The sources with the largest parts on each side, the others summed as one row and one column."""
    values, names = differences, []
    for sources in (rows, columns):
        order = values.abs().sum(1).argsort(descending=True, stable=True)
        shown = order if len(order) <= _SIDE + 1 else order[:_SIDE]
        rest = values[order[len(shown) :]].sum(0, keepdim=True)
        names.append((*(short_name(sources[at]) for at in shown.tolist()), *[REST] * (len(shown) < len(order))))
        values = torch.cat([values[shown], rest][: 1 + (len(shown) < len(order))]).T
    return values.double().numpy(), names[0], names[1]


SOURCES = Drawing(_plan_sources, heatmap_figure, draw_heatmap)
