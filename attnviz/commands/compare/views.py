"""The figures of a comparison: all heads at a glance, the map of distances, and the differences of one head."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.colors import FuncNorm, Normalize

from attnviz.commands.compare.measure import LARGEST_DISTANCE, Comparison, HeadDifference
from attnviz.commands.compare.sides import short, side_lines, sides_in_words
from attnviz.errors import UsageError
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, draw_head_grid, grid_pooling, head_grid_figure
from attnviz.figures.head_map import HeadMap, HeadMapPlan, draw_head_map, head_map_figure
from attnviz.figures.heatmap import HeatmapPlan, draw_heatmap, heatmap_figure, heatmap_pooling
from attnviz.figures.look import Look
from attnviz.figures.matrix import Array, Labels, max_pool
from attnviz.model.wording import counted, signed
from attnviz.results.facts import Facts, sentence
from attnviz.results.view import Choices, View

__all__ = ["VIEWS", "root_norm", "rounded_up"]

_COLOURS = "orange is more in B, blue more in A"


def root_norm(end: float) -> FuncNorm:
    """From differences, -end to end, to places on the colour map: by the square root of their size.

    A few weights change a lot and most a little; on a linear scale long texts would look blank.
    """
    return FuncNorm((_signed_root, _signed_square), -end, end, clip=True)


def rounded_up(largest: float) -> float:
    """The end of a scale: the first digit counted up, so that 0.37 gives 0.4; 1 for nothing at all."""
    if largest <= 0:
        return 1.0
    step = 10.0 ** math.floor(math.log10(largest))
    return float(f"{math.ceil(largest / step - 1e-9) * step:.1g}")


def _plan_overview(result: Comparison, choices: Choices) -> Iterator[HeadGridPlan]:
    """The differences of all selected heads, on one scale."""
    look, n, heads = choices.look, len(result.labels), result.select(choices.select)
    end = _end(result, look, None)
    pooled = grid_pooling(n, [head.id for head in heads], look)
    model = result.first.checkpoint
    count = f"{model.n_layers} layers × {model.n_heads} heads"
    if len(heads) < len(result.heads):
        count = f"{len(heads)} of {len(result.heads)} heads"
    nothing = "" if result.any_beyond_rounding else "no weight differs beyond rounding"
    of_heads = result.differences(heads)
    cells = tuple(HeadCell(head.id, max_pool(values, pooled), f"{head.distance:.3f}") for head, values in of_heads)
    yield HeadGridPlan(
        stem="compare",
        caption=sentence(
            f"Attention in B minus that in A of {count}, {sides_in_words(result)}",
            f"{_COLOURS}, on a square-root scale to ±{end:g}, the same for every head",
            _pooled(pooled),
            nothing,
        ),
        title=f"What changed: {count}{'; ' * bool(nothing)}{nothing}",
        notes=(
            *side_lines(result),
            f"In each square rows attend to columns ({counted(n, result.unit)}).",
            _pooled(pooled),
        ),
        cells=cells,
        norm=root_norm(end),
        bar=_bar("same for all heads"),
        colours=look.diverging_map(),
        signed=True,
        beside="Beside each id: the Jensen-Shannon distance.",
    )


def _plan_map(result: Comparison, _: Choices) -> Iterator[HeadMapPlan]:
    """The distance of every head, the mean of every layer, and which labels differ."""
    model = result.first.checkpoint
    distances = np.zeros((model.n_layers, model.n_heads))
    for head in result.heads:
        distances[head.id] = head.distance
    changed = frozenset((head.id.layer, head.id.head) for head in result.heads if head.label_changed)
    end = min(rounded_up(float(distances.max())), LARGEST_DISTANCE) if result.any_beyond_rounding else LARGEST_DISTANCE
    corners = f"{len(changed)} of {len(result.heads)} heads"
    yield HeadMapPlan(
        stem="compare-map",
        caption=sentence(
            "Jensen-Shannon distance (root nats, 0 to 0.83) between the attention of every head in A and in B, "
            f"{sides_in_words(result)}, with the mean of every layer",
            f"the strongest colour is {end:.2g}",
            f"a marked corner is a head whose label differs ({corners.removesuffix(' heads')})",
        ),
        title="Jensen-Shannon distance of every head",
        notes=(*side_lines(result), *([f"Corner marked: another label on B ({corners})."] if changed else [])),
        maps=(
            HeadMap(
                distances,
                norm=Normalize(0, end, clip=True),
                bar="Jensen-Shannon distance (root nats; 0: equal patterns, 0.83: no key in common)",
                write=lambda value: f"{value:.{2 if end >= 0.1 else 3}f}",
                beside=(("mean", distances.mean(axis=1)),),
                corners=changed,
            ),
        ),
    )


def _plan_differences(result: Comparison, choices: Choices) -> Iterator[HeatmapPlan]:
    """One head after the other: those selected, or those that differ most."""
    heads = result.select(choices.select)[: choices.top or None]
    for head, values in result.differences(heads):
        yield _plan_difference(result, head, values, choices.look)


def _plan_difference(result: Comparison, head: HeadDifference, values: Array, look: Look) -> HeatmapPlan:
    own, largest = look.scale == "per-head", head.largest
    end = _end(result, look, head if own else None)
    labels = Labels(result.labels, result.muted, result.differing)
    pooled, every = heatmap_pooling(labels.texts, look)
    named = Facts("", (), len(labels.texts), result.unit).named(every)
    nothing = "no weight differs beyond rounding"
    names = [short(result.labels[position]) for position in (largest.query, largest.key)]
    outlined = f"outlined: largest difference, ‘{names[0]}’ attends to ‘{names[1]}’ {signed(largest.difference)}"
    label = head.labels if head.label_changed else f"{head.labels} (both)"
    about = f"label {label} · total variation {head.total_variation:.2f}"
    return HeatmapPlan(
        stem=f"differences/{head.id.file_stem}",
        caption=sentence(
            f"Attention of {head.id} in B minus that in A, query by row and key by column, {sides_in_words(result)}",
            f"{_COLOURS}, on a square-root scale to ±{end:g} ({'of this head' if own else 'the same for every head'})",
            f"Jensen-Shannon distance {head.distance:.3f} (root nats), rank {head.rank} of {len(result.heads)}",
            _pooled(pooled),
            nothing if head.rounding else "",
        ),
        title=f"{head.id}  Jensen-Shannon distance {head.distance:.3f}, rank {head.rank} of {len(result.heads)}",
        evidence=f"{about} · {nothing if head.rounding else outlined}",
        notes=(*side_lines(result), _pooled(pooled), named),
        values=max_pool(values, pooled),
        labels=labels,
        norm=root_norm(end),
        bar_norm=root_norm(end),
        bar=_bar("of this head alone" if own else "same for all heads"),
        pooled=pooled,
        colours=look.diverging_map(),
        outlined=None if head.rounding else (largest.query // pooled, largest.key // pooled),
        forms=(_in_cell, lambda value: _in_cell(value).replace("0.", ".")),
        signed=True,
    )


def _in_cell(value: float) -> str:
    """``+0.31``; nothing for what would be zero."""
    return signed(value) if abs(value) >= 0.005 else ""


def _end(result: Comparison, look: Look, head: HeadDifference | None) -> float:
    """Where the colours end: at the largest difference of this head, or of all heads.

    Raises:
        UsageError: the scale is logarithmic.
    """
    if look.scale == "log":
        raise UsageError("differences have signs, which a logarithmic scale cannot show: expected shared or per-head.")
    rounding = not result.any_beyond_rounding if head is None else head.rounding
    largest = result.largest if head is None else abs(head.largest.difference)
    return 1.0 if rounding else rounded_up(largest)


def _bar(heads: str) -> str:
    return f"attention in B minus A: + is more in B (root scale, {heads})"


def _pooled(factor: int) -> str:
    """That a cell stands for several differences; empty where it does not."""
    of = f"{factor} × {factor}"
    return f"Each cell is the largest of {of} differences, with its sign (pooled for drawing only)." * (factor > 1)


def _signed_root(values: Any) -> Any:
    return np.sign(values) * np.sqrt(np.abs(values))


def _signed_square(values: Any) -> Any:
    return np.sign(values) * np.square(values)


VIEWS: tuple[View[Any, Any], ...] = (
    View("overview", "the differences of all heads", _plan_overview, head_grid_figure, draw_head_grid, stems="compare"),
    View("map", "layers × heads by distance", _plan_map, head_map_figure, draw_head_map, stems="compare-map"),
    View(
        "differences", "the differences of one head, for those that differ most", _plan_differences,
        heatmap_figure, draw_heatmap, stems=r"differences/L\d+H\d+",
    ),
)  # fmt: skip
"""What ``attnviz compare`` draws."""
