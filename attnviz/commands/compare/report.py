"""JSON, CSV and tables of a comparison, and the sentences that it shares with figures and with one over a corpus."""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.compare.corpus.measure import RoleComparison
from attnviz.commands.compare.measure import Comparison, HeadDifference, LargestDifference, quoted_text
from attnviz.models.head_ids import layers_in_words
from attnviz.present.documents import model_entry, tokens_entry, verification_entry
from attnviz.present.fields import HEAD, Field, NamedTable, pick, plain
from attnviz.present.figure_context import capital
from attnviz.present.report import CommandSpec
from attnviz.present.tables import first_rows, notes, verification_line
from attnviz.present.view import ViewOptions
from attnviz.wording import amount, counted, quoted, rounded, shortened_token, signed, visible

LONGEST_LABEL = 24  # most characters of a label in a sentence

_MOST_TOKENS = 4


def side_lines(result: Comparison | RoleComparison) -> list[str]:
    """Lines that name A, B, and what they share."""
    if isinstance(result, RoleComparison):
        shared = [f"corpus: {result.source}"]
    else:
        line = f"text: {quoted_text(result.first)}"
        if result.compared == "texts":
            line = f"model: {result.checkpoint.short_name}"
        shared = ["; ".join([line, *_target(result)]), *_differing(result), *_decisions(result)]
    return [*(f"{name}: {side}" for name, side in zip("AB", result.side_names, strict=True)), *shared]


def headline(result: Comparison) -> str:
    """What changed, in a sentence: which layers, how many heads, the head that moved most, labels."""
    if not any(head.largest.difference for head in result.heads):
        return "Nothing changed: every weight of every head is the same on both sides."
    if not result.any_beyond_rounding:
        return "No weight of any head differs by more than rounding allows: both sides attend alike."
    moved = [head for head in result.heads if not head.rounding]
    touched = {head.id.layer for head in moved}
    layers = sorted({head.id.layer for head in result.heads})
    same, other = ([layer for layer in layers if (layer in touched) == has] for has in (False, True))
    n = sum(head.id.layer in touched for head in result.heads)
    which = "every head" if len(moved) == n else f"{len(moved)} of {counted(n, 'head')}"
    n_labels = sum(head.label_changed for head in result.heads)
    most = moved[0].distance
    distance = amount(most) if most < 0.0005 else rounded(most, 3)
    parts = [
        *([f"{layers_in_words(same)} identical"] if same else []),
        f"{which} of {layers_in_words(other)} moved",
        f"most {moved[0].id}, {distance} of at most {result.furthest:.2f}",
        f"{counted(n_labels, 'label') if n_labels else 'no label'} changed",
    ]
    return f"{capital('; '.join(parts))}."


def _decisions(result: Comparison) -> list[str]:
    if not result.decisions:
        return []
    a, b = (decision.in_words for decision in result.decisions)
    return [f"class by A: {a}, by B: {b}{' (it flips)' if result.flips else ''}"]


def sides_in_words(result: Comparison | RoleComparison) -> str:
    """A, B and what they share for a caption."""
    a, b = result.side_names
    sides = f"A being {a} and B {b}"
    if isinstance(result, RoleComparison):
        return f"{sides}, over the corpus {result.source}"
    shared = f"on the text {quoted_text(result.first)}"
    if result.compared == "texts":
        shared = f"both read by {result.checkpoint.short_name}"
    words = ["by words"] if result.unit == "word" else []
    said = ", ".join([sides, shared, *_target(result), *words])
    return " ".join([said, *(f"({differing})" for differing in _differing(result))])


def _differing(result: Comparison) -> list[str]:
    """Number of tokens (or words) that differ, and the first, if any do."""
    labels = [label for label, _, differs in zip(*result.rows, strict=True) if differs]
    if not labels:
        return []
    first = ", ".join(shortened_token(label, LONGEST_LABEL) for label in labels[:_MOST_TOKENS])
    more = f", and {len(labels) - _MOST_TOKENS} more" if len(labels) > _MOST_TOKENS else ""
    number = f"{len(labels)} of {counted(len(result.rows.labels), result.unit)}"
    return [f"{number} {'differs' if len(labels) == 1 else 'differ'}: {first}{more}"]


def _target(result: Comparison) -> list[str]:
    target = result.first.target
    return [] if target is None else [f"target: {quoted(target.text)}"]


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
