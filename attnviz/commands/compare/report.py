"""JSON, CSV and tables of a comparison."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.commands.compare.measure import Comparison, HeadDifference, LargestDifference, LayerDifference
from attnviz.commands.compare.wording import answer, side_lines
from attnviz.models.wording import signed, visible
from attnviz.present.documents import model_entry, stack_entry, tokens_entry, verification_entry
from attnviz.present.report import CommandSpec
from attnviz.present.tables import Column, column_table, left_out, listed_of, notes, verification_line
from attnviz.present.view import View, ViewOptions, page_view

_NARROWEST = 16
"""Least width of labels and differences in columns of the terminal."""


def _content(result: Comparison, choices: ViewOptions) -> dict[str, Any]:
    first, sides = result.first, (result.first, result.second)
    parser, target = first.parse.parser if first.parse else None, first.target
    return {
        "compared": result.compared,
        "models": [model_entry(side.checkpoint) for side in sides],
        "texts": [side.text for side in sides],
        "pairs": [side.pair for side in sides],
        "options": {**asdict(first.options), "tokens_cut_off": first.tokens.truncated, "parser": parser},
        "tokens": [tokens_entry(side.tokens) for side in sides],
        **({} if target is None else {"target": target.text, "target_tokens": tokens_entry(target.tokens)}),
        "words": [list(side.units.labels) for side in sides] if first.options.words else None,
        "differing": [position for position, differs in enumerate(result.rows.differing) if differs],
        "verification": [
            verification_entry(side.verification, lambda check: stack_entry(check.layer)) for side in sides
        ],
        "rounding": result.floor,
        "yardsticks": {"largest": result.furthest},
        "layers": [layer._asdict() | stack_entry(layer.layer) for layer in result.layers],
        "heads": [_head(head, result) for head in result.select(choices.select)],
    }


def _head(head: HeadDifference, result: Comparison) -> dict[str, Any]:
    return {
        "id": str(head.id), **head.id._asdict(), **stack_entry(head.id.layer),
        **{name: getattr(head, name) for name in ("rank", "divergence", "distance", "total_variation")},
        "largest": _difference(result, head, head.largest),
        "largest_content": head.largest_content and _difference(result, head, head.largest_content),
        **{name: getattr(head, name) for name in ("label_before", "label_after", "label_changed")},
        "label_certain": head.before.certain and head.after.certain,
        "beyond_rounding": not head.rounding,
    }  # fmt: skip


def _difference(result: Comparison, head: HeadDifference, most: LargestDifference) -> dict[str, Any]:
    query, key = result.ends(head, most)
    return {**most._asdict(), "query_label": query, "key_label": key}


def _rows(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for head in content["heads"]:
        largest, content = head["largest"], head["largest_content"] or {}
        of_content = {f"content_{name}": content.get(name) for name in largest}
        yield {
            **head,
            **largest,
            **{f"largest_{name}": largest[name] for name in ("difference", "query", "key")},
            **of_content,
        }


def _tables(result: Comparison, choices: ViewOptions, width: int) -> Iterator[RenderableType]:
    sides = result.first, result.second
    yield Text.assemble((answer(result), "bold"), "\n", "\n".join(side_lines(result)))
    yield Text("\n").join(verification_line(side.verification, side.checkpoint) for side in sides)
    table, starred = _heads_table(result, choices, width)
    yield table
    means: list[Column[LayerDifference]] = [
        Column("Layer", lambda layer: str(layer.layer)),
        Column("Distance", lambda layer: f"{layer.distance:.3f}", "√nats"),
        Column("Divergence", lambda layer: f"{layer.divergence:.3f}", "nats"),
        Column("Variation", lambda layer: f"{layer.total_variation:.3f}", "0–1"),
    ]
    yield column_table("Layers (means over their heads)", means, result.layers, width=width)
    yield _notes(result, starred)


def _heads_table(result: Comparison, choices: ViewOptions, width: int) -> tuple[Table, bool]:
    """Table of heads by Jensen-Shannon distance, with labels and the largest difference; whether any has a star."""
    selected = result.select(choices.select)
    listed, largest = selected[: choices.top or None], partial(_largest, result)
    columns: list[Column[HeadDifference]] = [
        Column("Rank", lambda head: head.rank),
        Column("Head", lambda head: head.id, left=True),
        Column("Distance", lambda head: f"{head.distance:.3f}", "√nats"),
        Column("Variation", lambda head: f"{head.total_variation:.3f}", "0–1", optional=1),
        Column("Label (A → B)", lambda head: visible(head.labels), left=True, least=_NARROWEST),
        Column("Largest difference of content", largest, "B − A", left=True, least=_NARROWEST, fit=largest),
    ]
    title = f"Heads ({listed_of(len(listed), len(selected))}, the most different first)"
    caption = left_out(len(listed), len(selected), "head", "compare.csv")
    table = column_table(title, columns, listed, width=width, caption=caption)
    return table, any("*" in str(cell) for cell in table.columns[-1].cells)


def _largest(result: Comparison, head: HeadDifference, room: int = 999) -> str:
    """The largest difference of content: number, then query and key; differing tokens in full if they fit."""
    most = head.largest_content
    if most is None or abs(most.difference) <= result.floor:
        return "none beyond rounding" if head.rounding else "none: to or from sinks alone"
    part, (_, *at) = result.part_of(head), most
    sides = (part.first.units, part.rows.differing), (part.first.keys, part.columns.differing)
    brief = [f"{units.labels[i]}{'*' * differing[i]}" for i, (units, differing) in zip(at, sides, strict=True)]
    texts = [f"{signed(most.difference)}  ‘{query}’ to ‘{key}’" for query, key in (result.ends(head, most), brief)]
    return texts[0] if cell_len(texts[0]) <= room else texts[1]


def _notes(result: Comparison, starred: bool) -> Text:
    return notes(
        "Distance: square root of the Jensen-Shannon divergence, averaged over queries: 0 for equal patterns, 0.833 "
        "for no key in common. Variation: share of the attention that went to other keys, averaged over queries.",
        f"A single label holds on both sides. Rounding alone may move a weight by {result.floor:.1e}. One text shows "
        "what changed here, not what changes in general.",
        f"A {result.unit} marked * differs between the sides; A's is shown." if starred else "",
    )


SPEC = CommandSpec(
    content=_content,
    columns=(
        "id", "layer", "head", "rank", "divergence", "distance", "total_variation", "largest_difference",
        "largest_query", "largest_key", "query_label", "key_label", "content_difference", "content_query",
        "content_key", "content_query_label", "content_key_label", "label_before", "label_after", "label_changed",
        "label_certain", "beyond_rounding",
    ),
    rows=_rows,
    tables=_tables,
    views=(
        View("overview", "the differences of all heads", stems="compare"),
        View("map", "layers × heads by distance", stems="compare-map"),
        View(
            "differences", "the differences of one head, for those that differ most",
            stems=r"differences/[LEDX]\d+H\d+",
        ),
        page_view("compare", "every head on A, on B, and their difference, in one HTML file"),
    ),
    same=("attnviz", "compared", "models", "texts", "pairs", "target", "options"),
    more_columns=lambda content: ("stack",) if "target" in content else (),
    all_selected=True,
    paper=(
        "rank", "id", "distance", "content_difference", "content_query_label", "content_key_label", "label_before",
        "label_after",
    ),
)  # fmt: skip
"""The command's presentation."""
