"""The figures of a comparison: all heads, one head, the page; over a corpus heads by rank, and best heads by role."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.colors import FuncNorm

from attnviz.analysis.pictures import (
    axis_of,
    command_options,
    hidden_cells,
    kept_note,
    packed_patterns,
    pattern_entry,
)
from attnviz.commands.compare import (
    LONGEST_LABEL,
    ComparedPart,
    Comparison,
    HeadDifference,
    side_lines,
    sides_in_words,
)
from attnviz.commands.compare_corpus import CorpusComparison, heads_headline
from attnviz.commands.compare_roles import CHOSEN_HERE, RoleComparison, roles_headline
from attnviz.figures.charts import Estimates, PairsPlan, RankedPlan
from attnviz.figures.fonts import fitted
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, grid_pooling
from attnviz.figures.heatmap import OF_TWO_TEXTS, HeatmapPlan, heatmap_pooling
from attnviz.figures.matrix import Array, Labels, Outline, PooledPattern, signed_hundredths
from attnviz.measures.differences import side_by_side
from attnviz.measures.intervals import ERROR_RATE
from attnviz.models.head_ids import HeadId
from attnviz.page.page import ERROR, PackedPattern, label_entry, pack, statistic_entry
from attnviz.present.fields import listed_of
from attnviz.present.figure_context import FigureContext, capital, caption_of, hatched_in_words
from attnviz.present.published import role_name
from attnviz.present.sentences import verification_line
from attnviz.present.view import Drawing, ViewOptions, page_drawing
from attnviz.wording import counted, shortened_token, signed

_COLOURS = "orange is more in B, teal more in A"
_NOTHING = "no weight differs beyond rounding"
_DISTANCE = "the Jensen-Shannon distance"
_BAR = "attention in B minus A: + is more in B (root scale, same for all heads)"


def root_norm(end: float) -> FuncNorm:
    """Norm from differences, -end to end, to 0-1 by the square root of their size.

    A few weights change a lot and most a little; on a linear scale long texts would look blank.
    """
    return FuncNorm(
        (lambda values: np.sign(values) * np.sqrt(np.abs(values)), lambda values: np.sign(values) * np.square(values)),
        -end,
        end,
        clip=True,
    )


def rounded_up(largest: float) -> float:
    """Round the end of a scale up in its first digit: 0.37 to 0.4; 1 for 0."""
    if largest <= 0:
        return 1.0
    step = 10.0 ** math.floor(math.log10(largest))
    return float(f"{math.ceil(largest / step - 1e-9) * step:.1g}")


def _plan_overview(result: Comparison, choices: ViewOptions) -> Iterator[HeadGridPlan]:

    end = _end(result.heads)
    heads = result.select(choices.select)
    n = max(len(labels) for part in result.parts for labels, *_ in (part.rows, part.columns))
    pooled, _ = grid_pooling(n, [head.id for head in heads], choices.style)
    count = f"all {len(heads)} heads"
    if len(heads) < len(result.heads):
        count = f"{len(heads)} of {len(result.heads)} heads"
    sizes = counted(len(result.rows.labels), result.unit)
    if len(result.parts) > 1:
        source, target, _ = (counted(len(part.rows.labels), result.unit) for part in result.parts)
        sizes = f"E: encoder, {source}; D: decoder, {target}; X: cross-attention, from target to source"
    nothing = "" if result.any_beyond_rounding else _NOTHING
    a, b, *shared = side_lines(result)
    of_heads = [
        HeadCell(head.id, values, f"{head.distance:.3f}")
        for head, values in _pooled_differences(result, heads, lambda _: pooled)
    ]
    yield HeadGridPlan(
        stem="compare",
        caption=caption_of(
            f"Attention in B minus that in A of {count}, {sides_in_words(result)}",
            f"{_COLOURS}, on a square-root scale to ±{end:g}, the same for every head",
            _pooled(pooled),
            hatched_in_words(*(cell.values for cell in of_heads)),
            f"in each square rows attend to columns ({sizes})",
            f"beside each id, where there is room, {_DISTANCE}",
            nothing,
        ),
        title="; ".join(filter(None, [f"What changed: {count}", nothing])),
        notes=(f"{a}; {b}", *shared, f"In each square rows attend to columns ({sizes}).", _pooled(pooled, note=True)),
        cells=tuple(of_heads),
        norm=root_norm(end),
        bar=_BAR,
        colours=choices.style.diverging_map(),
        signed=True,
        beside=f"Beside each id: {_DISTANCE}.",
    )


def _plan_differences(result: Comparison, choices: ViewOptions) -> Iterator[HeatmapPlan]:

    style, sides, end = choices.style, sides_in_words(result), _end(result.heads)
    heads = result.select(choices.select)[: choices.top or None]

    def pooling(part: ComparedPart) -> tuple[int, int]:  # positions per cell, and the label interval
        return heatmap_pooling(part.rows.labels, style, len(part.columns.labels))

    for head, values in _pooled_differences(result, heads, lambda part: pooling(part)[0]):
        part = result.part_of(head)
        labels = Labels(*part.rows)
        keys = None if part.first.context.source is None else Labels(*part.columns)
        pooled, every = pooling(part)
        named = FigureContext("", (), len(labels.texts), result.unit).label_interval_note(every)
        largest = head.largest
        query, key = (shortened_token(label, LONGEST_LABEL) for label in (largest.query_label, largest.key_label))
        shown = f"outlined: largest difference, ‘{query}’ attends to ‘{key}’ {signed(largest.difference)}"
        outline = Outline((largest.query // pooled,) * 2, (largest.key // pooled,) * 2)
        if head.rounding:
            shown = _NOTHING
        label = head.labels if head.label_changed else f"{head.labels} (both)"
        distance = f"Jensen-Shannon distance {head.distance:.3f}"
        rank = f"rank {head.rank} of {len(result.heads)}"
        yield HeatmapPlan(
            stem=f"differences/{head.id.file_stem}",
            caption=caption_of(
                f"Attention of {head.id} in B minus that in A, query by row and key by column, {sides}",
                f"{_COLOURS}, on a square-root scale to ±{end:g} (the same for every head)",
                f"{distance} (root nats), {rank}",
                _pooled(pooled),
                hatched_in_words(values),
                _NOTHING if head.rounding else "",
            ),
            title=f"{head.id}  {distance}, {rank}",
            evidence=f"label {label} · total variation {head.total_variation:.2f} · {shown}",
            notes=(*side_lines(result), _pooled(pooled, note=True), f"{capital(named)}." if named else ""),
            values=values,
            labels=labels,
            keys=keys,
            axes=HeatmapPlan.axes if keys is None else OF_TWO_TEXTS,
            norm=root_norm(end),
            bar_norm=root_norm(end),
            bar=_BAR,
            pooled=pooled,
            colours=style.diverging_map(),
            outlines=() if head.rounding else (outline,),
            forms=(signed_hundredths, lambda value: signed_hundredths(value).replace("0.", ".")),
            signed=True,
        )


def _pooled_differences(
    result: Comparison, heads: Iterable[HeadDifference], factor: Callable[[ComparedPart], int]
) -> Iterator[tuple[HeadDifference, Array]]:
    """Yield heads in the model's order, each with its pooled B - A; a layer is recomputed once."""
    for layer, group in groupby(sorted(heads, key=lambda head: head.id), lambda head: head.id.layer):
        of_layer = list(group)
        part = result.part_of(of_layer[0])
        numbers = [head.id.head for head in of_layer]
        shape = len(part.rows.labels), len(part.columns.labels)
        pooled = [PooledPattern(*shape, factor(part)) for _ in of_layer]
        for first, a, b in side_by_side(*(side.chunks(layer, numbers) for side in part.sides)):
            for differences, rows in zip(pooled, b.double() - a.double(), strict=True):
                differences.add(first, rows)
        a_hidden, b_hidden = (hidden_cells(side, layer, factor(part)) for side in part.sides)
        for head, differences in zip(of_layer, pooled, strict=True):
            yield head, np.where(a_hidden & b_hidden, np.nan, differences.cells)


def _command_line(result: Comparison) -> dict[str, Any]:
    """What measures it again; of given weights nothing does."""
    first, second = result.sides
    if not first.verification.level:
        return {"program": [], "texts": [], "options": []}
    texts, options = [first.text, second.text], command_options(first)
    if result.compared == "models":
        texts = texts[:1]
        options += second.checkpoint.model_options if second.checkpoint.name else []
    return {"program": ["compare"], "texts": texts, "options": options}


def _end(heads: Sequence[HeadDifference]) -> float:
    """End of the colours: the largest difference of these heads; 1 where none is beyond rounding."""
    return rounded_up(max((abs(head.largest.difference) for head in heads if not head.rounding), default=0.0))


def _pooled(factor: int, note: bool = False) -> str:
    """What a figure says of cells that stand for several differences, as part of a caption or as a note, or ''."""
    if factor == 1:
        return ""
    text = f"each cell is the largest of {factor} × {factor} differences, with its sign (pooled for drawing only)"
    return f"{capital(text)}." if note else text


def page_data(result: Comparison, choices: ViewOptions) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``."""
    chosen = [head.id for head in result.select(choices.select)] if choices.select else []
    ranked = [*chosen, *(head.id for head in result.heads if head.id not in chosen)]
    sides, first = result.sides, result.first
    model, n = first.checkpoint, len(result.rows.labels)

    def patterns(ids: Sequence[HeadId]) -> Iterator[tuple[HeadId, Sequence[PackedPattern]]]:
        of_sides = (packed_patterns(side.parts[0], ids) for side in sides)
        return ((id, [a, b]) for (id, a), (_, b) in zip(*of_sides, strict=True))

    kept = pack(ranked, patterns, 2 * n * n, choices.budget)
    position = {head: 2 * number for number, head in enumerate(kept)}
    left_out = kept_note(len(kept), len(ranked), choices.budget, "that differ most")
    axes = both_axes(*(axis_of(side.parts[0]) for side in sides))
    return {
        "command": "compare",
        "title": " · ".join(side_lines(result)),
        "caption": caption_of(
            f"Interactive page of {counted(len(result.heads), 'head')}, {sides_in_words(result)}; opens from disk, "
            "without network",
            left_out,
        ),
        "verification": " ".join(
            f"{name}: {verification_line(side.verification, side.checkpoint).plain}"
            for name, side in zip("AB", sides, strict=True)
        ),
        "notes": [
            *([left_out] if left_out else []),
            "A label with an arrow is that on A and that on B, each of its own text alone; ? marks an indication only.",
            f"Weights on the page are within {ERROR} of the verified ones, differences within {2 * ERROR}.",
        ],
        "sides": [f"{name}: {side}" for name, side in zip("AB", result.side_names, strict=True)],
        "axes": axes,
        "end": _end(result.heads),
        "rows": [HeadId(layer, 0).layer_name for layer in model.layers],
        "columns": first.parts[0].shape[1],
        "statistics": list(_statistics(result)),
        "heads": list(_head_entries(result, position)),
        "patterns": [
            pattern_entry(packed, axis, axis, side.context_of(head.layer))
            for head, of_head in kept.items()
            for axis, side, packed in zip((0, len(axes) - 1), sides, of_head, strict=True)
        ],
        "dropped": first.sinks,
        "command_line": _command_line(result),
        "start": {"head": str(ranked[0]), "scale": "shared", "drop": choices.drop_special, "token": []},
        "tables": [],
    }


def both_axes(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    """The axes of both sides, one where they are named alike; words are of the same tokens, or none."""
    if "words" in a and a["words"]["members"] != b["words"]["members"]:
        del a["words"], b["words"]
    return [a] if a["labels"] == b["labels"] else [a, b]


def _head_entries(result: Comparison, position: Mapping[HeadId, int]) -> Iterator[dict[str, Any]]:
    for head in sorted(result.heads, key=lambda head: head.id):
        largest = head.largest
        evidence = (
            f"Jensen-Shannon distance {head.distance:.3f}, rank {head.rank} of {len(result.heads)} · total variation "
            f"{head.total_variation:.2f} · most: {largest.query_label} attends to {largest.key_label} "
            f"{signed(largest.difference)}"
        )
        patterns = [position[head.id], position[head.id] + 1] if head.id in position else []
        entry = {"id": str(head.id), "row": int(head.id.layer), "column": head.id.head, "evidence": evidence}
        yield {**entry, **label_entry(head.labels, head.after.name), "role": None, "patterns": patterns}


def _statistics(result: Comparison) -> Iterator[dict[str, Any]]:
    heads = sorted(result.heads, key=lambda head: head.id)
    largest = [abs(head.largest.difference) for head in heads]
    variation = "attention that went to other keys, mean over queries"
    for name, title, meaning, unit, values in (
        ("distance", "Jensen-Shannon distance", "between A and B", "root nats", [head.distance for head in heads]),
        ("total_variation", "total variation", variation, "", [head.total_variation for head in heads]),
        ("largest", "largest difference", "of one weight, without its sign", "", largest),
    ):
        yield statistic_entry(name, title, meaning, unit, [None], values)
    for name in ("entropy", "distance", "sink"):
        for side, analysis in zip("AB", result.sides, strict=True):
            numbers = (head.statistics[name] for head in analysis.heads)
            yield statistic_entry(f"{name}_{side}", f"{name} in {side}", "as in attnviz heads", "", [None], numbers)


def _plan_ranked(result: CorpusComparison, choices: ViewOptions) -> Iterator[RankedPlan]:
    intervals = "too few texts for intervals"
    if result.judged:
        intervals = f"lines: intervals at {ERROR_RATE} over all heads together; none where not known"
    said, heads = heads_headline(result), result.select(choices.select)
    yield RankedPlan(
        stem="compare-corpus-distances",
        caption=caption_of(
            "Mean Jensen-Shannon distance (root nats) between the attention of each head in A and in B, the most "
            f"different head first, {result.sides_in_words}",
            intervals,
            f"the largest possible distance is {result.largest:.2f}",
            said,
            "heads are named where their names have room",
        ),
        title=said,
        notes=(*result.side_lines, f"The most different head first; {intervals}."),
        names=tuple(str(head.id) for head in heads),
        ranks=tuple(head.rank for head in heads),
        distances=Estimates.of([(head.distance, head.interval) for head in heads]),
        largest=result.largest,
    )


def _plan_roles(result: RoleComparison, choices: ViewOptions) -> Iterator[PairsPlan]:
    known = result.judged_roles
    rows = known[: choices.top or None]
    listed = f"{listed_of(len(rows), len(known))} roles with an interval, the largest difference first"
    sides = [[getattr(row, side) for row in rows] for side in "ab"]
    a, b = (Estimates.of([(role.score, role.interval) for role in side]) for side in sides)
    guesses_a, guesses_b = ([role.baseline for role in side] for side in sides)
    yield PairsPlan(
        stem="compare-roles",
        caption=caption_of(
            f"The best head of each model by role, {result.sides_in_words}",
            roles_headline(result),
            f"{listed}; below each role the best head of A and of B, and n",
            CHOSEN_HERE,
        ),
        title=roles_headline(result),
        notes=(f"{result.source}; {listed}.",),
        names=tuple(
            f"{fitted(role_name(row.role, None), 7, 130)}\n{row.a.id}, {row.b.id}, n = {min(row.a.n, row.b.n):,}"
            for row in rows
        ),
        scores=(a, b),
        guesses=(guesses_a, guesses_b),
        models=result.side_names,
    )


def _no_roles(result: RoleComparison) -> str:
    return "" if result.judged_roles else "these texts are too few for an interval"


OVERVIEW = Drawing(_plan_overview)
DIFFERENCES = Drawing(_plan_differences)
PAGE: Drawing[Comparison, Any] = page_drawing(
    "compare",
    page_data,
    lambda result: "" if result.first.target is None else "it is made for models of one kind of attention only",
)
DISTANCES = Drawing(_plan_ranked)
ROLES = Drawing(_plan_roles, missing=_no_roles)
