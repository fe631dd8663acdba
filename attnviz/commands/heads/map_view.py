"""The view ``map``: one statistic of every head, with uniform attention marked on the colour bar."""

from collections.abc import Iterator
from itertools import chain

import numpy as np
from matplotlib.colors import Normalize

from attnviz.commands.heads.analysis import Analysis
from attnviz.figures.head_map import HeadMap, HeadMapPlan, draw_head_map, head_map_figure
from attnviz.figures.matrix import Array
from attnviz.figures.page import ReferenceValue, format_number
from attnviz.measures.statistics import statistic_named
from attnviz.models.tokens import sinks_in_words
from attnviz.present.statistics import described
from attnviz.present.view import Drawing, ViewOptions


def _plans(analysis: Analysis, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    for name in dict.fromkeys(map(statistic_named, choices.maps or ("entropy",))):
        yield _plan(analysis, name)


def _plan(analysis: Analysis, statistic: str) -> HeadMapPlan:
    """Plan the map of all heads; of an encoder-decoder one per kind of attention that has the statistic."""
    parts = [part for part in analysis.parts if np.isfinite(_values(part, statistic)).any()] or analysis.parts[-1:]
    maps, facts, alone = zip(*(_map(part, statistic) for part in parts), strict=True)
    about, (name, meaning, unit) = analysis.figure_context, statistic_meaning(parts[0], statistic)
    sizes = (f"{_name_of(part)} {part.shape[0]} × {part.shape[1]}".strip() for part in parts)
    return HeadMapPlan(
        stem=f"map-{statistic.replace('_', '-')}",
        **about.caption_and_notes(
            f"{about.model} on {about.text_line}, {name}, head by head ({', '.join(sizes)})",
            f"{meaning}{f', in {unit}' if unit else ''}",
            *dict.fromkeys(facts),
            caption_only=tuple(dict.fromkeys(chain(*alone))),
        ),
        title=f"{about.model}: {name}, head by head",
        maps=maps,
    )


def _values(analysis: Analysis, statistic: str) -> Array:
    """Values [n_layers, n_heads], NaN for None, and for layers without attention."""
    values, layers = np.full(analysis.shape, np.nan), list(analysis.layers)
    for head in analysis.heads:
        value = head.statistics.get(statistic)
        if value is not None:
            values[layers.index(head.id.layer), head.id.head] = value
    return values


def _name_of(part: Analysis) -> str:
    return f"{part.stack.letter}: {part.stack.name}" if part.stack else ""


def _map(analysis: Analysis, statistic: str) -> tuple[HeadMap, str, tuple[str, ...]]:
    """The map of one kind of attention, a fact, and parts of the caption alone."""
    values, uniform = _values(analysis, statistic), uniform_value(analysis, statistic)
    measured = values[np.isfinite(values)]
    name, _, unit = statistic_meaning(analysis, statistic)
    unbounded = statistic.removesuffix("_non_sink") in ("entropy", "distance")
    top = (max(uniform or 0.0, float(measured.max(initial=0.0))) if unbounded else 0.0) or 1.0
    several = len({analysis.context_of(layer).window for layer in analysis.layers}) > 1
    mean = " (mean of layers)" if several else ""
    whose = f" ({analysis.stack.name})" if analysis.stack else ""
    reference, alone = None, list[str]()
    if len(measured):
        alone.append(f"colours from 0 to {format_number(top)}{whose}")
    if uniform is not None:
        reference = ReferenceValue(uniform, f"uniform attention{mean}")
        alone.append(f"uniform attention would give {format_number(uniform)}{whose}{mean}")
    n_heads = len(analysis.heads)
    lacking, none = n_heads - len(measured), values.size - n_heads
    hatched = f"hatched: not measurable on this text for {lacking} of {n_heads} heads" if lacking else ""
    if none:
        hatched = "; ".join(filter(None, [hatched, "hatched layers: without attention"]))
    bar = f"{name} ({unit or '0–1'})" if len(measured) else ""
    norm = Normalize(0, top, clip=True)
    drawn = HeadMap(values, analysis.layers, _name_of(analysis), norm=norm, bar=bar, reference=reference)
    return drawn, hatched, tuple(alone)


def statistic_meaning(analysis: Analysis, statistic: str) -> tuple[str, str, str]:
    """Title, meaning and unit of a statistic of this text; shares have unit ''."""
    unit = analysis.units.name
    return described(statistic, unit, sinks_in_words(analysis.keys, unit, "the special tokens"))


def uniform_value(analysis: Analysis, statistic: str) -> float | None:
    """The statistic under uniform attention; None if undefined.

    If layers have windows, the mean over the layers.
    """
    layers = analysis.checkpoint.layers if analysis.windowed else analysis.checkpoint.layers[:1]
    values = [analysis.context_of(layer).uniform.get(statistic) for layer in layers]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


MAP = Drawing(_plans, head_map_figure, draw_head_map)
