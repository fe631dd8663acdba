"""The view ``page`` of ``attnviz compare``: every head on A, on B, and their difference, in one file."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnviz.commands.compare.measure import Comparison
from attnviz.commands.compare.wording import side_lines, sides_in_words
from attnviz.commands.heads.page_view import Empty, axis_of, command_options, kept_note, pattern_entry
from attnviz.models.head_ids import HeadId
from attnviz.page.page import ERROR, PackedPattern, colours_entry, families_entry, label_entry, pack, statistic_entry
from attnviz.present.figure_context import caption_of
from attnviz.present.tables import verification_line
from attnviz.present.view import ViewOptions
from attnviz.wording import counted, signed


def page_data(result: Comparison, choices: ViewOptions, end: float) -> dict[str, Any]:
    """``PageData`` as in ``attnviz/page/patterns.js``; ``end`` is that of the colours of differences."""
    chosen = [head.id for head in result.select(choices.select)] if choices.select else []
    ranked = [*chosen, *(head.id for head in result.heads if head.id not in chosen)]
    first, second = sides = result.sides
    model, n, causal = first.checkpoint, len(result.rows.labels), first.context.causal

    def patterns(ids: Sequence[HeadId], empty: Empty) -> Iterator[tuple[HeadId, Sequence[PackedPattern]]]:
        of_sides = (side.read(map(side.head, ids), lambda head: empty(head.id)) for side in sides)
        return ((head.id, [a, b]) for (head, a), (_, b) in zip(*of_sides, strict=True))

    kept = pack(ranked, patterns, 2 * n * n, lambda _: causal, choices.budget)
    position = {head: 2 * number for number, head in enumerate(kept)}
    left_out = kept_note(len(kept), len(ranked), choices.budget, "that differ most")
    axes = [axis_of(side) for side in sides]
    if "words" in axes[0] and axes[0]["words"]["members"] != axes[1]["words"]["members"]:
        for axis in axes:  # words are of the same tokens, or none
            del axis["words"]
    if axes[0]["labels"] == axes[1]["labels"]:
        del axes[1]
    texts = [first.text, second.text]
    options = command_options(first)
    if result.compared == "models":
        texts = texts[:1]
        options += second.checkpoint.model_options if second.checkpoint.name else []
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
        "heads": list(_head_entries(result, position)),
        "patterns": [
            pattern_entry(packed, axis, axis, side.context_of(head.layer))
            for head, of_head in kept.items()
            for axis, side, packed in zip((0, len(axes) - 1), sides, of_head, strict=True)
        ],
        "dropped": first.sinks,
        "colours": colours_entry(),
        "families": families_entry(),
        "command_line": {"program": ["compare"], "texts": texts, "options": options},
        "start": {"head": str(ranked[0]), "scale": "shared", "drop": choices.drop_special, "token": []},
        "tables": [],
    }


def _head_entries(result: Comparison, position: Mapping[HeadId, int]) -> Iterator[dict[str, Any]]:
    for head in sorted(result.heads, key=lambda head: head.id):
        query, key = result.ends(head, head.largest)
        evidence = (
            f"Jensen-Shannon distance {head.distance:.3f}, rank {head.rank} of {len(result.heads)} · total variation "
            f"{head.total_variation:.2f} · most: {query} attends to {key} {signed(head.largest.difference)}"
        )
        patterns = [position[head.id], position[head.id] + 1] if head.id in position else []
        entry = {"id": str(head.id), "row": int(head.id.layer), "column": head.id.head, "evidence": evidence}
        yield {**entry, **label_entry(head.labels, head.label_after), "role": None, "patterns": patterns}


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
