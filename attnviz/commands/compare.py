"""Compare every head on two sides: two models on one text, or one model on two texts.

A is the first side and B the second; every difference is B - A, so that a positive one is attention that B has more of.
Heads are ordered by their Jensen-Shannon distance (:mod:`attnviz.measures.differences`).
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import torch
from rich.console import RenderableType

from attnviz.analysis.result import Analysis, Part
from attnviz.arguments import as_found
from attnviz.errors import TextError, UsageError
from attnviz.inputs.prompt import Positions, Prompt, merge_subwords
from attnviz.judge.verdicts import Label
from attnviz.measures.decisions import Decision
from attnviz.measures.differences import Difference, DifferenceTally, Weight, noting_largest, side_by_side
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.compared import check_shapes, model_names, same_weights, why_not_compared
from attnviz.models.head_ids import HeadId, layers_in_words
from attnviz.options import checked
from attnviz.present.documents import tokens_entry, verification_entry
from attnviz.present.fields import HEAD, Field, Table, pick, plain
from attnviz.present.figure_context import capital
from attnviz.present.report import CommandSpec
from attnviz.present.result import OfHeads, Result
from attnviz.present.sentences import first_lines, verification_line
from attnviz.present.tables import notes
from attnviz.present.view import ViewOptions
from attnviz.wording import amount, counted, quoted, rounded, shortened_token, signed, visible


class LargestDifference(NamedTuple):
    """The weight that differs most."""

    difference: float  # B - A, -1 to 1
    query: int  # counted from 0
    key: int
    query_label: str  # of A, or A's and B's with an arrow between
    key_label: str


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadDifference(Difference):
    """Difference of one head on one text."""

    largest: LargestDifference
    largest_content: LargestDifference | None  # where no token is a sink on any side; None where no such weight differs
    before: Label  # on A, of its own text alone
    after: Label  # likewise on B
    rounding: bool  # no weight differs by more than rounding may

    @property
    def label_changed(self) -> bool:
        return self.before.name != self.after.name

    @property
    def labels(self) -> str:
        """The label, or both with an arrow between; with a question mark where one is an indication only."""
        return f"{self.before.shown} → {self.after.shown}" if self.label_changed else self.after.shown


class Axis(NamedTuple):
    """Tokens (or words) of both sides, [n] each."""

    labels: tuple[str, ...]  # of each position, or A's and B's with an arrow between
    muted: tuple[bool, ...]  # the special tokens and other sinks of both sides
    differing: tuple[bool, ...]  # where the sides have different tokens, by vocabulary entry

    @classmethod
    def of(cls, a: tuple[Prompt, Positions], b: tuple[Prompt, Positions]) -> "Axis":
        """The axis of two sides of equal length."""
        (tokens_a, units_a), (tokens_b, units_b) = a, b
        members = zip(units_a.members, units_b.members, strict=True)
        return cls(
            tuple(a if a == b else f"{a} → {b}" for a, b in zip(units_a.labels, units_b.labels, strict=True)),
            tuple(map(all, zip(units_a.sink, units_b.sink, strict=True))),
            tuple([tokens_a.ids[p] for p in a] != [tokens_b.ids[p] for p in b] for a, b in members),
        )


@dataclass(frozen=True, eq=False)
class ComparedPart:
    """One kind of attention of both sides."""

    first: Part  # A
    second: Part  # B

    @property
    def sides(self) -> tuple[Part, Part]:
        return self.first, self.second

    @cached_property
    def rows(self) -> Axis:
        return Axis.of(*((side.rows, side.units) for side in self.sides))

    @cached_property
    def columns(self) -> Axis:
        return Axis.of(*((side.columns, side.keys) for side in self.sides))


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(Result, OfHeads[HeadDifference]):
    """What :func:`compare` measured; both sides are verified, unless they are given weights."""

    command: ClassVar[str] = "compare"

    first: Analysis  # A
    second: Analysis  # B
    parts: tuple[ComparedPart, ...]  # one for each kind of attention: of encoder-decoders up to three
    heads: tuple[HeadDifference, ...]  # one entry a head, the most different first
    # by so much a weight may differ from rounding alone: the largest errors of both verifications together, at least
    # the step of the coarser dtype
    floor: float
    furthest: float  # the largest possible distance; less in causal models, whose first token sees itself alone

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What A and B decide, if both are classifiers with the same classes; else empty."""
        a, b = self.first.decision, self.second.decision
        if a is None or b is None or why_not_compared(self.first.checkpoint, self.second.checkpoint):
            return ()
        return a, b

    @property
    def flips(self) -> bool:
        """Whether A and B decide differently."""
        return len({decision.label for decision in self.decisions}) > 1

    @property
    def sides(self) -> tuple[Analysis, Analysis]:
        return self.first, self.second

    @property
    def checkpoint(self) -> Checkpoint:  # type: ignore[override] # of the heads' numbers
        return self.first.checkpoint

    @property
    def compared(self) -> str:
        """``texts`` where one model read two texts, else ``models``."""
        same = (self.first.text, self.first.pair) == (self.second.text, self.second.pair)
        return "models" if same else "texts"

    @property
    def reading_notes(self) -> list[str]:
        return list(dict.fromkeys([*self.first.reading_notes, *self.second.reading_notes]))

    @property
    def unit(self) -> str:
        return self.first.units.name

    def part_of(self, head: HeadDifference) -> ComparedPart:
        """The part that a head is of."""
        return next(part for part in self.parts if self.own(head).id.layer in part.first.layers)

    @property
    def rows(self) -> Axis:  # of encoder-decoders those of the encoder
        return self.parts[0].rows

    @property
    def any_beyond_rounding(self) -> bool:
        return not all(head.rounding for head in self.heads)

    @property
    def side_names(self) -> tuple[str, str]:
        if self.compared == "texts":
            return _quoted(self.first), _quoted(self.second)
        return model_names(self.first.checkpoint, self.second.checkpoint)

    @property
    def in_words(self) -> str:
        first, second = self.side_names
        most = self.heads[0]
        heads = counted(len(self.heads), "head")
        return f"of {first} with {second}: {heads}, {most.id} first ({most.distance:.3f})"


@checked
def compare(first: Analysis, second: Analysis) -> Comparison:
    """Compare two sides head by head: two models on one text, or one model on two texts.

    >>> attnviz.compare(before, after).heads[0].id  # doctest: +SKIP

    Args:
        first: A, the side before, as :func:`attnviz.analyze` returns it, or both sides as :func:`attnviz.draw` does.
        second: B; what B has more of is positive.

    Raises:
        TextError: the texts have different lengths, or the models read the text as different tokens; of
            encoder-decoders, the targets are not the same.
        UsageError: other architectures, numbers of layers or heads, or options; or text and model both differ; or no
            analyses.
        VerificationError: a model was changed since it was analysed.
    """
    for side in (first, second):
        if not isinstance(side, Analysis):
            raise UsageError(f"expected two analyses, as attnviz.analyze returns them, found {as_found(side)}.")
    check_comparable(first, second)
    floor = max(
        first.verification.pattern_error + second.verification.pattern_error,
        *(torch.finfo(side.checkpoint.dtype).eps for side in (first, second)),
    )
    context = first.context
    tally = DifferenceTally(first.checkpoint.kinds, context.causal, context.learned_sinks, samples=0)
    parts = tuple(map(ComparedPart, first.parts, second.parts))
    part_of = {layer: part for part in parts for layer in part.first.layers}
    largest, of_content = dict[HeadId, Weight](), dict[HeadId, Weight]()
    tally.count_texts([0], [len(first.tokens)])
    for layer in first.checkpoint.layers:
        contexts = [side.context_of(layer) for side in (first, second)]
        queries = torch.stack([context.non_sink for context in contexts]).all(0)[list(contexts[0].query_positions)]
        keys = torch.stack([context.key_non_sink for context in contexts]).all(0)
        chunks = side_by_side(*(side.chunks(layer) for side in part_of[layer].sides))
        chunks = noting_largest(layer, chunks, largest, of_content, queries, keys)
        tally.compare(layer, chunks, torch.ones(1, len(queries), dtype=torch.bool))

    def labelled(id: HeadId, weight: Weight) -> LargestDifference:
        part, (_, query, key) = part_of[id.layer], weight
        return LargestDifference(*weight, part.rows.labels[query], part.columns.labels[key])

    heads = []
    for head in tally.ranked():
        most, content = labelled(head.id, largest[head.id]), labelled(head.id, of_content[head.id])
        heads.append(
            HeadDifference(
                **vars(head),
                largest=most,
                largest_content=content if content.difference else None,
                before=first.head(head.id).labelled,
                after=second.head(head.id).labelled,
                rounding=abs(most.difference) <= floor,
            )
        )
    return Comparison(first, second, parts, tuple(heads), floor, tally.largest)


def check_comparable(first: Analysis, second: Analysis) -> None:
    """Check that two sides can be compared head by head and weight by weight.

    Raises:
        TextError: other tokens of the same text; texts of different length.
        UsageError: other architectures, layers, heads or options; another text and another model at once.
    """
    are_given = [not side.verification.level for side in (first, second)]
    if not any(are_given):
        check_shapes(first.checkpoint, second.checkpoint)
    elif not all(are_given) or first.checkpoint.kinds != second.checkpoint.kinds:
        raise UsageError(
            "expected two analyses, or given weights on both sides with the same layers and heads, found "
            f"{first!r} and {second!r}."
        )
    if first.options != second.options:
        raise UsageError(
            f"the two sides were analysed with different options, {first.options} and {second.options}; "
            "expected the same."
        )
    if (first.parse is None) != (second.parse is None):
        side, analysis = ("B", second) if first.parse else ("A", first)
        raise UsageError(
            "one side was analysed with syntax and the other without, so that their labels cannot be compared; "
            "expected both with, or both without (--no-syntax, syntax=False). "
            f"Why {side} has no relations: {analysis.syntax_note}"
        )
    targets = [side.target for side in (first, second) if side.target is not None]
    if len({(target.tokens.ids, target.tokens.labels) for target in targets}) == 2:
        texts = [quoted(target.text) for target in targets]
        if targets[0].text == targets[1].text:
            raise TextError("the models read the target as different tokens; expected models with the same tokenizer.")
        raise TextError(
            f"the decoders read different targets, {' and '.join(texts)}; expected the same on both sides: --target "
            "(target=...)."
        )
    a, b = first.tokens, second.tokens
    same = (a.ids, a.labels, a.type_ids) == (b.ids, b.labels, b.type_ids)
    if same and first.units.members == second.units.members:
        return
    if (first.text, first.pair) == (second.text, second.pair):
        found = f"found {len(a)} and {len(b)} tokens, with the same names but other ids, segments, words or sinks"
        for position, labels in enumerate(zip(a.labels, b.labels, strict=False)):
            if labels[0] != labels[1]:
                found = f"at position {position} found {labels[0]!r} and {labels[1]!r}"
                break
        raise TextError(f"the models read the text differently: {found}; expected models with the same tokenizer.")
    if any(are_given) or not same_weights(first.checkpoint, second.checkpoint):
        raise UsageError(
            "both the text and the model differ, so that no difference could be put down to either; expected "
            "the same text (token by token) for two models, or the same model for two texts."
        )
    n, n_other, unit = len(first.units), len(second.units), first.units.name
    if n != n_other:
        words, words_of_other = (len(merge_subwords(tokens, True)) for tokens in (a, b))
        advice = "replace tokens or words, but add and remove none"
        if unit == "token" and words == words_of_other:
            advice = f"word by word they are equally long ({words}): compare words (--words, words=True)"
        raise TextError(f"the texts have {n} and {n_other} {unit}s; expected as many in both: {advice}.")


# What is written and said

THOUSANDTHS = partial(rounded, digits=3)  # writes a number with three decimals
FEW, MOST_DIFFERENT_FIRST = 8, "the most different first"  # heads on the first screen, and their order
LONGEST_LABEL = 24  # most characters of a label in a sentence
_MOST_TOKENS = 4

# How much a head differs, on a text or over a corpus.
DIFFERENCE: tuple[Field[Any], ...] = (
    Field(name="rank"),
    Field(name="divergence", unit="nats", write=THOUSANDTHS),
    Field(
        name="distance",
        unit="√nats",
        write=THOUSANDTHS,
        meaning="root of the mean Jensen-Shannon divergence of its rows in nats, 0.83 for no key in common",
    ),
    Field("Variation", name="total_variation", unit="0–1", write=THOUSANDTHS, detail=True),
)


def _weight(name: str, of_numbers: str, of_labels: str) -> Field[HeadDifference]:
    """One of a head's largest differences, with what its columns begin with."""
    columns = {f"{of_labels if 'label' in key else of_numbers}{key}": (key,) for key in LargestDifference._fields}
    return Field(name=name, csv=columns, meaning="the largest change of a weight, from query to key")


_FIELDS: tuple[Field[HeadDifference], ...] = (
    *HEAD,
    *DIFFERENCE,
    _weight("largest", "largest_", ""),
    _weight("largest_content", "content_", "content_"),
    Field(value="before.name", name="label_before", meaning="what the head does in A"),
    Field(value="after.name", name="label_after", meaning="in B"),
    *plain("label_changed"),
    Field(value="before.certain", name="label_before_certain"),
    Field(value="after.certain", name="label_after_certain"),
    Field(value=lambda head: not head.rounding, name="beyond_rounding"),
)


def _content(result: Comparison, _: ViewOptions) -> dict[str, Any]:
    first, sides, target = result.first, result.sides, result.first.target
    parser = first.parse.parser if first.parse else None
    return {
        "compared": result.compared,
        "models": [side.model_entry for side in sides],
        "texts": [side.text for side in sides],
        "pairs": [side.pair for side in sides],
        "options": {**asdict(first.options), "tokens_cut_off": first.tokens.truncated, "parser": parser},
        "tokens": [tokens_entry(side.tokens) for side in sides],
        **({} if target is None else {"target": target.text, "target_tokens": tokens_entry(target.tokens)}),
        "words": [side.units.labels for side in sides] if first.options.words else None,
        "differing": [position for position, differs in enumerate(result.rows.differing) if differs],
        "verification": [verification_entry(side.verification) for side in sides],
        **({"decisions": result.decisions, "flips": result.flips} if result.decisions else {}),
        "rounding": result.floor,
        "largest_possible": result.furthest,
    }


def _tables(result: Comparison, choices: ViewOptions) -> Iterator[RenderableType]:
    verified = [verification_line(side.verification, side.checkpoint) for side in result.sides]
    yield first_lines(_headline(result), side_lines(result), *verified)
    rounding = f"Rounding alone may move a weight by {result.floor:.1e}."
    if not result.any_beyond_rounding:
        yield notes(f"{rounding} compare.csv has the heads with their labels.")
        return

    def largest(head: HeadDifference) -> str:
        """The largest difference of content: number, then query and key."""
        most = head.largest_content
        if most is None or abs(most.difference) <= result.floor:
            return "none beyond rounding" if head.rounding else "none: to or from sinks alone"
        return f"{signed(most.difference)}  ‘{most.query_label}’ to ‘{most.key_label}’"

    columns: list[Field[HeadDifference]] = [
        *pick(_FIELDS, "rank", "id", "distance", "total_variation"),
        Field("Label (A → B)", lambda head: visible(head.labels)),
        Field("Largest difference of content", largest, "B − A"),
    ]
    listed = Table("Heads", columns, result.select(choices.select))
    yield listed.first(choices.rows(FEW), "compare.csv", order=MOST_DIFFERENT_FIRST)
    if not choices.verbose:
        yield notes("Distance: 0 for equal patterns, 0.833 for no key in common.")
        return
    yield notes(
        "Distance: square root of the Jensen-Shannon divergence, averaged over queries: 0 for equal patterns, 0.833 "
        "for no key in common. Variation: share of the attention that went to other keys, averaged over queries.",
        f"A single label holds on both sides. {rounding} One text shows what changed here, not what changes in "
        "general.",
    )


SPEC = CommandSpec[Comparison](
    content=_content,
    tables=_tables,
    table=lambda result, choices: Table("", _FIELDS, result.select(choices.select), name="heads"),
    patterns=True,
    all_selected=True,
    paper=tuple(
        "id distance label_before label_after content_difference content_query_label content_key_label".split()
    ),
)


def _headline(result: Comparison) -> str:
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


def side_lines(result: Comparison) -> list[str]:
    """A, B, and what they share, a line each."""
    a, b = result.side_names
    shared = f"text: {_quoted(result.first)}"
    if result.compared == "texts":
        shared = f"model: {result.checkpoint.short_name}"
    lines = [f"A: {a}", f"B: {b}", f"{shared}{_target(result, '; ')}", _differing(result)]
    if result.decisions:
        a, b = (decision.in_words for decision in result.decisions)
        lines.append(f"class by A: {a}, by B: {b}{' (it flips)' if result.flips else ''}")
    return list(filter(None, lines))


def sides_in_words(result: Comparison) -> str:
    """A, B and what they share for a caption."""
    a, b = result.side_names
    shared = f"on the text {_quoted(result.first)}"
    if result.compared == "texts":
        shared = f"both read by {result.checkpoint.short_name}"
    by_words, differing = ", by words" if result.unit == "word" else "", _differing(result)
    said = f"A being {a} and B {b}, {shared}{_target(result, ', ')}{by_words}"
    return f"{said} ({differing})" if differing else said


def _quoted(side: Analysis) -> str:
    """Quote the text, and the second one of a pair."""
    return " + ".join(quoted(text) for text in (side.text, side.pair) if text is not None)


def _differing(result: Comparison) -> str:
    """Number of tokens (or words) that differ, and the first, or ''."""
    labels = [label for label, _, differs in zip(*result.rows, strict=True) if differs]
    if not labels:
        return ""
    first = ", ".join(shortened_token(label, LONGEST_LABEL) for label in labels[:_MOST_TOKENS])
    more = f", and {len(labels) - _MOST_TOKENS} more" if len(labels) > _MOST_TOKENS else ""
    number = f"{len(labels)} of {counted(len(result.rows.labels), result.unit)}"
    return f"{number} {'differs' if len(labels) == 1 else 'differ'}: {first}{more}"


def _target(result: Comparison, before: str) -> str:
    target = result.first.target
    return "" if target is None else f"{before}target: {quoted(target.text)}"
