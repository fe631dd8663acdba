"""JSON, CSV and tables of a comparison."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.compare.measure import Comparison, HeadDifference, LargestDifference
from attnviz.commands.compare.wording import headline, side_lines
from attnviz.present.documents import model_entry, tokens_entry, verification_entry
from attnviz.present.fields import HEAD, Field, NamedTable, pick, plain
from attnviz.present.report import CommandSpec
from attnviz.present.tables import first_rows, notes, verification_line
from attnviz.present.view import ViewOptions
from attnviz.wording import rounded, signed, visible

THOUSANDTHS = partial(rounded, digits=3)  # writes a number with three decimals

# How much a head differs, on a text or over a corpus.
DIFFERENCE: tuple[Field[Any], ...] = (
    Field("Rank", name="rank"),
    Field("Divergence", name="divergence", unit="nats", write=THOUSANDTHS),
    Field(
        "Distance",
        name="distance",
        unit="√nats",
        write=THOUSANDTHS,
        meaning="root of the mean Jensen-Shannon divergence of its rows in nats, 0.83 for no key in common",
    ),
    Field("Variation", name="total_variation", unit="0–1", write=THOUSANDTHS, detail=True),
)

FEW, MOST_DIFFERENT_FIRST = 8, "the most different first"  # heads on the first screen, and their order

_LABELS = ("query_label", "key_label")


def _table(result: Comparison, choices: ViewOptions) -> NamedTable[HeadDifference]:
    def weight(name: str, prefix: str, prefix_of_labels: str) -> Field[HeadDifference]:
        def value(head: HeadDifference) -> dict[str, Any] | None:
            most: LargestDifference | None = getattr(head, name)
            return most and {**most._asdict(), **dict(zip(_LABELS, result.ends(head, most), strict=True))}

        columns = {f"{prefix}{key}": (key,) for key in LargestDifference._fields}
        columns |= {f"{prefix_of_labels}{key}": (key,) for key in _LABELS}
        return Field(value=value, name=name, csv=columns, meaning="the largest change of a weight, from query to key")

    fields: tuple[Field[HeadDifference], ...] = (
        *HEAD,
        *DIFFERENCE,
        weight("largest", "largest_", ""),
        weight("largest_content", "content_", "content_"),
        Field(name="label_before", meaning="what the head does in A"),
        Field(name="label_after", meaning="in B"),
        *plain("label_changed"),
        Field(value=lambda head: head.before.certain, name="label_before_certain"),
        Field(value=lambda head: head.after.certain, name="label_after_certain"),
        Field(value=lambda head: not head.rounding, name="beyond_rounding"),
    )
    return NamedTable("heads", fields, result.select(choices.select))


def _content(result: Comparison, _: ViewOptions) -> dict[str, Any]:
    first, sides = result.first, result.sides
    parser = first.parse.parser if first.parse else None
    target = first.target
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
        "verification": [verification_entry(side.verification) for side in sides],
        **({"decisions": [each.entry for each in result.decisions], "flips": result.flips} if result.decisions else {}),
        "rounding": result.floor,
        "largest_possible": result.furthest,
    }


def _tables(result: Comparison, choices: ViewOptions) -> Iterator[RenderableType]:
    verified = [verification_line(side.verification, side.checkpoint) for side in result.sides]
    if verified[0] == verified[1]:
        del verified[1]
    said = Text.assemble((headline(result), "bold"), "\n", "\n".join(side_lines(result)))
    yield Text("\n").join([said, *verified])
    rounding = f"Rounding alone may move a weight by {result.floor:.1e}."
    if not result.any_beyond_rounding:
        yield notes(f"{rounding} compare.csv has the heads with their labels.")
        return

    def largest(head: HeadDifference) -> str:
        """The largest difference of content: number, then query and key."""
        most = head.largest_content
        if most is None or abs(most.difference) <= result.floor:
            return "none beyond rounding" if head.rounding else "none: to or from sinks alone"
        query, key = result.ends(head, most)
        return f"{signed(most.difference)}  ‘{query}’ to ‘{key}’"

    table = _table(result, choices)
    columns: list[Field[HeadDifference]] = [
        *pick(table.fields, "rank", "id", "distance", "total_variation"),
        Field("Label (A → B)", lambda head: visible(head.labels)),
        Field("Largest difference of content", largest, "B − A"),
    ]
    yield first_rows("Heads", columns, table.rows, choices.rows(FEW), "compare.csv", order=MOST_DIFFERENT_FIRST)
    if not choices.verbose:
        yield notes("Distance: 0 for equal patterns, 0.833 for no key in common.")
        return
    yield notes(
        "Distance: square root of the Jensen-Shannon divergence, averaged over queries: 0 for equal patterns, 0.833 "
        "for no key in common. Variation: share of the attention that went to other keys, averaged over queries.",
        f"A single label holds on both sides. {rounding} One text shows what changed here, not what changes in "
        "general.",
    )


_OF_CONTENT = "content_difference content_query_label content_key_label"

SPEC = CommandSpec(
    content=_content,
    tables=_tables,
    table=_table,
    patterns=True,
    all_selected=True,
    paper=("id", "distance", "label_before", "label_after", *_OF_CONTENT.split()),
)
