"""How a comparison is told: JSON, CSV, and tables of the heads that differ most and of the layers."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.commands.compare.measure import Comparison, HeadDifference, LayerDifference
from attnviz.commands.compare.sides import side_lines
from attnviz.model.wording import signed
from attnviz.results.documents import model_entry, tokens_entry, verification_entry
from attnviz.results.report import Report
from attnviz.results.tables import Column, column_table, left_out, notes, verification_line
from attnviz.results.view import Choices

__all__ = ["REPORT"]

_NARROWEST_LABELS, _WIDEST_LABELS = 16, 48
_OTHERS, _VARIATION, _WIDE = 27, 11, 100
"""Columns of the terminal that ranks, ids and distances take, that variations take, and from which on these stand."""


def _content(result: Comparison, choices: Choices) -> dict[str, Any]:
    first, sides = result.first, (result.first, result.second)
    parser = first.parse.parser if first.parse else None
    return {
        "compared": result.compared,
        "models": [model_entry(side.checkpoint) for side in sides],
        "texts": [side.text for side in sides],
        "pairs": [side.pair for side in sides],
        "options": {**asdict(first.options), "tokens_cut_off": first.tokens.truncated, "parser": parser},
        "tokens": [tokens_entry(side.tokens) for side in sides],
        "words": [list(side.units.labels) for side in sides] if first.options.words else None,
        "differing": [position for position, differs in enumerate(result.differing) if differs],
        "verification": [verification_entry(side.verification) for side in sides],
        "rounding": result.floor,
        "layers": [layer._asdict() for layer in result.layers],
        "heads": [_head(head, result) for head in result.select(choices.select)],
    }


def _head(head: HeadDifference, result: Comparison) -> dict[str, Any]:
    query, key = (result.labels[position] for position in (head.largest.query, head.largest.key))
    return {
        "id": str(head.id), **head.id._asdict(),
        **{name: getattr(head, name) for name in ("rank", "divergence", "distance", "total_variation")},
        "largest": {**head.largest._asdict(), "query_label": query, "key_label": key},
        **{name: getattr(head, name) for name in ("label_before", "label_after", "label_changed")},
        "beyond_rounding": not head.rounding,
    }  # fmt: skip


def _rows(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for head in content["heads"]:
        largest = head["largest"]
        yield {**head, **largest, **{f"largest_{name}": largest[name] for name in ("difference", "query", "key")}}


def _tables(result: Comparison, choices: Choices, width: int) -> Iterator[RenderableType]:
    sides = result.first, result.second
    yield Text("\n".join(side_lines(result)), style="bold")
    yield Text("\n").join(verification_line(side.verification, side.checkpoint) for side in sides)
    table, starred = _heads_table(result, choices, width)
    yield table
    means: list[Column[LayerDifference]] = [
        Column("Layer", lambda layer: layer.layer),
        Column("Distance", lambda layer: f"{layer.distance:.3f}", "√nats"),
        Column("Divergence", lambda layer: f"{layer.divergence:.3f}", "nats"),
        Column("Variation", lambda layer: f"{layer.total_variation:.3f}", "0–1"),
    ]
    yield column_table("Layers (means over their heads)", means, result.layers)
    yield _notes(result, starred)


def _heads_table(result: Comparison, choices: Choices, width: int) -> tuple[Table, bool]:
    """The heads ranked by Jensen-Shannon distance, with labels and the largest difference; whether one has a star."""
    selected = result.select(choices.select)
    listed, wide = selected[: choices.top or None], width >= _WIDE
    room = max(width - _OTHERS - _VARIATION * wide, 2 * _NARROWEST_LABELS)
    widest = max((len(head.labels) for head in listed), default=0)
    of_labels = max(_NARROWEST_LABELS, min(widest, _WIDEST_LABELS, room - _NARROWEST_LABELS))
    variation: Column[HeadDifference] = Column("Variation", lambda head: f"{head.total_variation:.3f}", "0–1")
    columns: list[Column[HeadDifference]] = [
        Column("Rank", lambda head: head.rank),
        Column("Head", lambda head: head.id, left=True),
        Column("Distance", lambda head: f"{head.distance:.3f}", "√nats"),
        *([variation] if wide else []),
        Column("Label (A → B)", lambda head: _cut(head.labels, of_labels), left=True),
        Column("Largest difference (B − A)", lambda head: _largest(result, head, room - of_labels)[0], left=True),
    ]
    count = str(len(listed)) if len(listed) == len(selected) else f"{len(listed)} of {len(selected)}"
    caption = left_out(len(listed), len(selected), "head", "compare.csv")
    starred = any(_largest(result, head, room - of_labels)[1] for head in listed)
    return column_table(f"Heads ({count}, the most different first)", columns, listed, caption=caption), starred


def _largest(result: Comparison, head: HeadDifference, room: int) -> tuple[str, bool]:
    """The number first, so that a long label cannot push it out; a token that differs in full, or with a star."""
    if head.rounding:
        return _cut("none beyond rounding", room), False
    positions = head.largest.query, head.largest.key
    full = [result.labels[position] for position in positions]
    brief = [f"{result.first.units.labels[position]}{'*' * result.differing[position]}" for position in positions]
    texts = [f"{signed(head.largest.difference)}  ‘{query}’ to ‘{key}’" for query, key in (full, brief)]
    if cell_len(texts[0]) <= room:
        return texts[0], False
    cut = _cut(texts[1], room)
    return cut, "*" in cut and any(result.differing[position] for position in positions)


def _cut(text: str, room: int) -> str:
    cut = Text(text)
    cut.truncate(room, overflow="ellipsis")
    return cut.plain


def _notes(result: Comparison, starred: bool) -> Text:
    changed = sum(head.label_changed for head in result.heads)
    nothing = "No weight of any head differs by more than rounding may: the two sides attend alike."
    return notes(
        "" if result.any_beyond_rounding else nothing,
        "Distance: square root of the Jensen-Shannon divergence, averaged over queries: 0 for equal patterns, 0.833 "
        "for no key in common. Variation: share of the attention that went to other keys, averaged over queries.",
        f"Rounding alone may move a weight by {result.floor:.1e}. Labels, of the text alone, differ for {changed} of "
        f"{len(result.heads)} heads. One text shows what changed here, not what changes in general.",
        f"A {result.unit} with * differs between the sides; shown is A's." if starred else "",
    )


REPORT = Report(
    content=_content,
    columns=(
        "id", "layer", "head", "rank", "divergence", "distance", "total_variation", "largest_difference",
        "largest_query", "largest_key", "query_label", "key_label", "label_before", "label_after", "label_changed",
        "beyond_rounding",
    ),
    rows=_rows,
    tables=_tables,
    same=("attnviz", "compared", "models", "texts", "pairs", "options"),
    all_selected=True,
)  # fmt: skip
"""How ``attnviz compare`` tells what it measured."""
