"""The view ``map``: one statistic of every head, with uniform attention marked on the colour bar."""

from collections.abc import Iterator

import numpy as np
from matplotlib.colors import Normalize

from attnviz.commands.heads.analysis import Analysis
from attnviz.figures.head_map import HeadMap, HeadMapPlan, draw_head_map, head_map_figure
from attnviz.figures.matrix import Array
from attnviz.figures.page import format_number
from attnviz.measures.statistics import statistic_named
from attnviz.models.tokens import sinks_in_words
from attnviz.present.statistics import described
from attnviz.present.view import Drawing, ViewOptions


def _plans(analysis: Analysis, choices: ViewOptions) -> Iterator[HeadMapPlan]:
    """Plan the map of all heads by each statistic; of an encoder-decoder one per kind of attention that has it."""
    about = analysis.figure_context
    for statistic in dict.fromkeys(map(statistic_named, choices.maps or ("entropy",))):
        of_parts = [(part, _values(part, statistic)) for part in analysis.parts]
        of_parts = [(part, values) for part, values in of_parts if np.isfinite(values).any()] or of_parts[-1:]
        name, meaning, unit = statistic_meaning(of_parts[0][0], statistic)
        maps, facts, alone, sizes = [], list[str](), list[str](), []
        for part, values in of_parts:
            measured = values[np.isfinite(values)]
            uniform = uniform_value(part, statistic)
            unbounded = statistic.removesuffix("_non_sink") in ("entropy", "distance")
            top = (max(uniform or 0.0, float(measured.max(initial=0.0))) if unbounded else 0.0) or 1.0
            several = len({part.context_of(layer).window for layer in part.layers}) > 1
            mean = " (mean of layers)" if several else ""
            title, whose, reference = "", "", None
            if part.stack:
                title, whose = f"{part.stack.letter}: {part.stack.name}", f" ({part.stack.name})"
            if len(measured):
                alone.append(f"colours from 0 to {format_number(top)}{whose}")
            if uniform is not None:
                reference = (uniform, f"uniform attention{mean}")
                alone.append(f"uniform attention would give {format_number(uniform)}{whose}{mean}")
            n_heads = len(part.heads)
            hatched = []
            if lacking := n_heads - len(measured):
                hatched.append(f"hatched: not measurable on this text for {lacking} of {n_heads} heads")
            if values.size > n_heads:
                hatched.append("hatched layers: without attention")
            facts.append("; ".join(hatched))
            sizes.append(f"{title} {part.shape[0]} × {part.shape[1]}".strip())
            bar = f"{name} ({unit or '0–1'})" if len(measured) else ""
            norm = Normalize(0, top, clip=True)
            maps.append(HeadMap(values, part.layers, title, norm=norm, bar=bar, reference=reference))
        yield HeadMapPlan(
            stem=f"map-{statistic.replace('_', '-')}",
            **about.caption_and_notes(
                f"{about.model} on {about.text_line}, {name}, head by head ({', '.join(sizes)})",
                f"{meaning}{f', in {unit}' if unit else ''}",
                *dict.fromkeys(facts),
                caption_only=tuple(dict.fromkeys(alone)),
            ),
            title=f"{about.model}: {name}, head by head",
            maps=tuple(maps),
        )


def _values(analysis: Analysis, statistic: str) -> Array:
    """Values [n_layers, n_heads], NaN for None, and for layers without attention."""
    values = np.full(analysis.shape, np.nan)
    layers = list(analysis.layers)
    for head in analysis.heads:
        value = head.statistics.get(statistic)
        if value is not None:
            values[layers.index(head.id.layer), head.id.head] = value
    return values


def statistic_meaning(analysis: Analysis, statistic: str) -> tuple[str, str, str]:
    """Title, meaning and unit of a statistic of this text; shares have unit ''."""
    unit = analysis.units.name
    return described(statistic, unit, sinks_in_words(analysis.keys, unit, "the special tokens"))


def uniform_value(analysis: Analysis, statistic: str) -> float | None:
    """The statistic under uniform attention, if layers have windows the mean over the layers; None if undefined."""
    layers = analysis.checkpoint.layers if analysis.windowed else analysis.checkpoint.layers[:1]
    values = [analysis.context_of(layer).uniform.get(statistic) for layer in layers]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


MAP = Drawing(_plans, head_map_figure, draw_head_map)
