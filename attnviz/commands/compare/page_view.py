"""The view ``page`` of ``attnviz compare``: every head on A, on B, and their difference, in one file."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from attnviz.commands.compare.measure import Comparison, HeadDifference
from attnviz.commands.compare.wording import side_lines, sides_in_words
from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.page_view import Empty, axis_of, command_options, kept_note
from attnviz.models.head_ids import HeadId
from attnviz.page.page import ERROR, PackedPattern, colours_entry, families_entry, label_entry, pack, statistic_entry
from attnviz.present.figure_context import caption_of
from attnviz.present.tables import verification_line
from attnviz.present.view import ViewOptions
from attnviz.wording import counted, signed

_OF_SIDES = ("entropy", "distance", "sink")


def page_data(result: Comparison, choices: ViewOptions, end: float) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``.

    ``choices``: initial heads; ``end``: end of the colours of differences, for every head.
    """
    chosen = [head.id for head in result.select(choices.select)] if choices.select else []
    ranked = [*chosen, *(head.id for head in result.heads if head.id not in chosen)]
    sides, model, n = (result.first, result.second), result.first.checkpoint, len(result.rows.labels)

    def patterns(ids: Sequence[HeadId], empty: Empty) -> Iterator[tuple[HeadId, Sequence[PackedPattern]]]:
        of_sides = (side.read(map(side.head, ids), lambda head: empty(head.id)) for side in sides)
        return ((head.id, [a, b]) for (head, a), (_, b) in zip(*of_sides, strict=True))

    causal = result.first.context.causal
    kept = pack(ranked, patterns, 2 * n * n, lambda _: causal, choices.budget)
    axes = _axes(sides)
    position = {head: 2 * at for at, head in enumerate(kept)}
    left_out = kept_note(len(kept), len(ranked), choices.budget, "that differ most")
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
        "end": end,
        "rows": [HeadId(layer, 0).layer_name for layer in model.layers],
        "columns": model.n_heads,
        "statistics": list(_statistics(result)),
        "heads": [
            {
                **_entry(result, head),
                "patterns": [position[head.id], position[head.id] + 1] if head.id in position else [],
            }
            for head in sorted(result.heads, key=lambda head: head.id)
        ],
        "patterns": [
            {"rows": axis, "columns": axis, "triangle": causal, "data": side}
            for of_head in kept.values()
            for axis, side in zip((0, len(axes) - 1), of_head, strict=True)
        ],
        "dropped": result.first.sinks,
        "colours": colours_entry(),
        "families": families_entry(),
        "command_line": _command_line(result),
        "start": {
            "head": str(ranked[0]),
            "scale": "shared",
            "drop": choices.drop_special,
            "token": [],
        },
        "tables": [],
    }


def _axes(sides: tuple[Analysis, Analysis]) -> list[dict[str, Any]]:
    """Axes of both sides, one if tokens are the same; words only if of the same tokens."""
    first, second = map(axis_of, sides)
    if "words" in first and first["words"]["members"] != second["words"]["members"]:
        del first["words"], second["words"]
    return [first] if first["labels"] == second["labels"] else [first, second]


def _entry(result: Comparison, head: HeadDifference) -> dict[str, Any]:
    most = head.largest
    query, key = result.ends(head)
    return {
        "id": str(head.id),
        "row": int(head.id.layer),
        "column": head.id.head,
        **label_entry(head.labels, head.label_after),
        "evidence": f"Jensen-Shannon distance {head.distance:.3f}, rank {head.rank} of {len(result.heads)} · total "
        f"variation {head.total_variation:.2f} · most: {query} attends to {key} {signed(most.difference)}",
        "role": None,
    }


def _statistics(result: Comparison) -> Iterator[dict[str, Any]]:
    heads = sorted(result.heads, key=lambda head: head.id)

    distances, variations = ([getattr(head, name) for head in heads] for name in ("distance", "total_variation"))
    yield statistic_entry("distance", "Jensen-Shannon distance", "between A and B", "root nats", [None], distances)
    variation = "attention that went to other keys, mean over queries"
    yield statistic_entry("total_variation", "total variation", variation, "", [None], variations)
    largest = (abs(head.largest.difference) for head in heads)
    yield statistic_entry("largest", "largest difference", "of one weight, without its sign", "", [None], largest)
    for name, (side, analysis) in product(_OF_SIDES, zip("AB", (result.first, result.second), strict=True)):
        values = (head.statistics[name] for head in analysis.heads)
        yield statistic_entry(f"{name}_{side}", f"{name} in {side}", "as in attnviz heads", "", [None], values)


def _command_line(result: Comparison) -> dict[str, Any]:
    first, second = result.first, result.second
    texts = [first.text] if result.compared == "models" else [first.text, second.text]
    options = command_options(first)
    if result.compared == "models":
        options += second.checkpoint.model_options if second.checkpoint.name else []
    return {"program": ["compare"], "texts": texts, "options": options}
