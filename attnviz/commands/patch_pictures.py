"""The picture of patching: the effect of every head, or other part of a layer, perhaps at each position."""

from collections.abc import Iterator

import numpy as np
from matplotlib.colors import Normalize

from attnviz.commands.patch import Patching, direction_text, interval_text, metric_text, prompts_text, rest_text
from attnviz.figures.maps import HeadMap, HeadMapPlan
from attnviz.measures.patching import LAYER, ONE_HEAD
from attnviz.models.head_ids import HeadId
from attnviz.present.figure_context import capital, caption_of
from attnviz.present.view import Drawing, ViewOptions
from attnviz.wording import counted


def _map(result: Patching, choices: ViewOptions) -> HeadMap:
    """Layers × heads, or of whole layers one column; by position heads, or layers, × positions."""
    kind = result.kind
    effects = {(effect.layer, effect.head, effect.position): effect.effect for effect in result.effects}
    layers = list(result.checkpoint.every_layer if kind == LAYER else result.checkpoint.layers)
    numbers: list[int | None] = [*range(result.checkpoint.n_heads)]
    if kind != ONE_HEAD:
        numbers = sorted({number for _, number, _ in effects}, key=lambda number: number or 0)
    rows: list[str] = []
    columns = [result.site] if kind == LAYER else []
    axes = "layer", "" if kind == LAYER else kind
    places: list[int | None] = [None]
    parts = [(layer, number) for layer in layers for number in numbers]
    if result.by_position:
        tokens = {effect.position: effect.token or str(effect.position) for effect in result.effects}
        places = sorted(tokens, key=lambda position: position or 0)
        parts = [part for part in parts if (*part, places[0]) in effects]
        if kind != LAYER:
            letter = "H" if kind == ONE_HEAD else " KV"
            rows = [f"{HeadId(layer, 0).layer_name}{letter}{number}" for layer, number in parts]
        layers, columns, axes = [layer for layer, _ in parts], [tokens[place] for place in places], (kind, "position")
    cells = [effects.get((*part, place), np.nan) for part in parts for place in places]
    values = np.array(cells).reshape(len(layers), -1)
    top = max(float(np.nanmax(np.abs(values))), 1e-6)
    return HeadMap(
        values,
        layers,
        rows=tuple(rows),
        columns=tuple(columns),
        axes=axes,
        norm=Normalize(-top, top, clip=True),
        bar="effect, share of the difference",
        colours=choices.style.diverging_map(),
    )


def _plan(result: Patching, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    drawn = _map(result, choices)
    left = int(np.isnan(drawn.values).sum())
    hatched = f"hatched: {counted(left, result.kind)} not patched" if left else ""
    facts = (metric_text(result), direction_text(result), hatched, interval_text(result), rest_text(result))
    what = f"patching each {result.kind}" + ("" if result.site == "z" else f"’s {result.site}")
    if result.by_position:
        what += " at each position"
    if result.path is not None:
        what = f"each head’s path to {result.path.in_words}"
    title, prompts = f"{result.checkpoint.short_name}: effect of {what}", prompts_text(result)
    yield HeadMapPlan(
        stem="patch",
        caption=caption_of(f"{title}, on {prompts}", *facts, "effects are shares of the difference of both prompts"),
        title=title,
        notes=(prompts, *(f"{capital(fact.removesuffix('.'))}." for fact in facts if fact)),
        maps=(drawn,),
    )


PATCH = Drawing(_plan)
