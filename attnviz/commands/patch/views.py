"""The figure of patching: a map of all heads."""

from collections.abc import Iterator

import numpy as np
from matplotlib.colors import Normalize

from attnviz.commands.patch.measure import Patching
from attnviz.commands.patch.patched import HEAD, LAYER
from attnviz.commands.patch.report import (
    direction_text,
    end_text,
    interval_text,
    metric_text,
    prompts_line,
    rest_text,
)
from attnviz.figures.head_map import HeadMap, HeadMapPlan, draw_head_map, head_map_figure
from attnviz.models.head_ids import HeadId
from attnviz.present.figure_context import capital, caption_of
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import counted


def _map(result: Patching, choices: ViewOptions) -> HeadMap:
    """Layers × heads, or of whole layers one column; by position heads, or layers, × positions."""
    model = result.checkpoint
    effects = {(effect.layer, effect.head, effect.position): effect.effect for effect in result.effects}
    layers = list(model.every_layer if result.kind == LAYER else model.layers)
    numbers: list[int | None] = [*range(model.n_heads)]
    if result.kind != HEAD:
        numbers = list(dict.fromkeys(sorted((number for _, number, _ in effects), key=lambda number: number or 0)))
    parts = [(layer, number) for layer in layers for number in numbers]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    axes = ("layer", result.kind)
    if result.by_position:
        tokens = {effect.position: effect.token or str(effect.position) for effect in result.effects}
        places = sorted(tokens, key=lambda position: position or 0)
        parts = [part for part in parts if (*part, places[0]) in effects]
        cells = [[(*part, place) for place in places] for part in parts]
        layers, columns, axes = (
            [layer for layer, _ in parts],
            tuple(map(tokens.__getitem__, places)),
            (result.kind, "position"),
        )
        if result.kind != LAYER:
            rows = tuple(
                f"{HeadId(layer, 0).layer_name}{'H' if result.kind == HEAD else ' KV'}{number}"
                for layer, number in parts
            )
    else:
        cells = [[(layer, number, None) for number in numbers] for layer in layers]
        if result.kind == LAYER:
            columns, axes = (result.site,), ("layer", "")
    values = np.array([[effects.get(cell, np.nan) for cell in row] for row in cells])
    top = max(float(np.nanmax(np.abs(values))), 1e-6)
    return HeadMap(
        values,
        layers,
        rows=rows,
        columns=columns,
        axes=axes,
        norm=Normalize(-top, top, clip=True),
        bar="effect, share of the difference",
        colours=choices.style.diverging_map(),
    )


def _plan_effects(result: Patching, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    model = result.checkpoint
    drawn = _map(result, choices)
    left = int(np.isnan(drawn.values).sum())
    hatched = f"hatched: {counted(left, result.kind)} not patched" if left else ""
    facts = (metric_text(result), direction_text(result), hatched, interval_text(result), rest_text(result))
    what = f"patching each {result.kind}" + ("" if result.site == "z" else f"’s {result.site}")
    if result.by_position:
        what += " at each position"
    if result.receiver:
        what = f"each head’s path to {end_text(result)}"
    title = f"{model.short_name}: effect of {what}"
    yield HeadMapPlan(
        stem="patch",
        caption=caption_of(
            f"{title}, on {prompts_line(result)}", *facts, "effects are shares of the difference of both prompts"
        ),
        title=title,
        notes=(prompts_line(result), *(f"{capital(fact.removesuffix('.'))}." for fact in facts if fact)),
        maps=(drawn,),
    )


PATCH = Drawing(_plan_effects, head_map_figure, draw_head_map)
