"""Compare every head on two sides: two models on one text, or one model on two texts.

A is the first side and B the second; every difference is B - A, so that a positive one is attention that B has more of.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.arguments import as_found
from attnviz.commands.heads.analysis import Analysis
from attnviz.errors import TextError, UsageError
from attnviz.inputs.prompt import Positions, Prompt, merge_subwords
from attnviz.judge.verdicts import Label
from attnviz.measures.decisions import Decision
from attnviz.measures.differences import Difference, DifferenceTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.reproduced import config_in
from attnviz.models.sources import Source
from attnviz.options import checked
from attnviz.present.result import OfHeads, Result
from attnviz.wording import counted, quoted, visible


class LargestDifference(NamedTuple):
    """The weight that differs most."""

    difference: float  # B - A, -1 to 1
    query: int  # counted from 0
    key: int


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadDifference(Difference):
    """Difference of one head on one text."""

    largest: LargestDifference
    largest_content: LargestDifference | None  # where no token is a sink on any side; None where no such weight differs
    before: Label  # on A, of its own text alone
    after: Label  # likewise on B
    rounding: bool  # no weight differs by more than rounding may

    @property
    def label_before(self) -> str:
        return self.before.name

    @property
    def label_after(self) -> str:
        return self.after.name

    @property
    def label_changed(self) -> bool:
        return self.label_before != self.label_after

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


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(Result, OfHeads[HeadDifference]):
    """What :func:`compare` measured; both sides are verified."""

    command: ClassVar[str] = "compare"

    first: Analysis  # A
    second: Analysis  # B
    heads: tuple[HeadDifference, ...]  # one entry a head, the most different first
    # by so much a weight may differ from rounding alone: the largest errors of both verifications together, at least
    # the step of the coarser dtype
    floor: float
    furthest: float  # the largest possible distance; less in causal models, whose first token sees itself alone

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What A and B decide, if both are classifiers with the same classes; else empty."""
        if why_not_compared(self.first.checkpoint, self.second.checkpoint):
            return ()
        decided = [side.decision for side in self.sides if side.decision is not None]
        return tuple(decided) if len(decided) == len(self.sides) else ()

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

    @cached_property
    def parts(self) -> "tuple[Comparison, ...]":
        """Of encoder-decoders one for each kind of attention, with its heads and texts; else the whole."""
        if not self.first.checkpoint.stacks or self.first.stack is not None:
            return (self,)
        parts = zip(self.checkpoint.stacks, self.first.parts, self.second.parts, strict=True)
        return tuple(
            replace(self, first=a, second=b, heads=tuple(head for head in self.heads if head.id.layer in stack.layers))
            for stack, a, b in parts
        )

    def part_of(self, head: HeadDifference) -> "Comparison":
        """The part that a head is of."""
        return next(part for part in self.parts if self.own(head) in part.heads)

    @cached_property
    def rows(self) -> Axis:
        return Axis.of(*((side.row_tokens, side.units) for side in self.sides))

    @cached_property
    def columns(self) -> Axis:
        crossed = self.first.stack_letter == "X"
        return Axis.of(*((side.tokens if crossed else side.row_tokens, side.keys) for side in self.sides))

    def ends(self, head: HeadDifference, most: LargestDifference) -> tuple[str, str]:
        """The labels of the query and the key of one of a head's largest differences."""
        part = self.part_of(head)
        return part.rows.labels[most.query], part.columns.labels[most.key]

    @property
    def any_beyond_rounding(self) -> bool:
        return not all(head.rounding for head in self.heads)

    @property
    def side_names(self) -> tuple[str, str]:
        if self.compared == "texts":
            return quoted_text(self.first), quoted_text(self.second)
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
        first: A, the side before, as :func:`attnviz.analyze` returns it.
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
    tally = DifferenceTally(first.checkpoint, samples=0)
    largest, of_content = (dict[HeadId, LargestDifference]() for _ in range(2))
    tally.begin([0], [len(first.tokens)])
    for layer in first.checkpoint.layers:
        contexts = [side.context_of(layer) for side in (first, second)]
        queries = torch.stack([context.non_sink for context in contexts]).all(0)[list(contexts[0].query_positions)]
        keys = torch.stack([context.key_non_sink for context in contexts]).all(0)
        chunks = side_by_side(first.chunks(layer), second.chunks(layer))
        chunks = noting_largest(layer, chunks, largest, of_content, queries, keys)
        tally.add(layer, chunks, torch.ones(1, len(queries), dtype=torch.bool))
    heads = []
    for difference in tally.ranked():
        most, content = largest[difference.id], of_content[difference.id]
        heads.append(
            HeadDifference(
                **vars(difference),
                largest=most,
                largest_content=content if content.difference else None,
                before=first.head(difference.id).labelled,
                after=second.head(difference.id).labelled,
                rounding=abs(most.difference) <= floor,
            )
        )
    return Comparison(first, second, tuple(heads), floor, tally.largest)


def noting_largest(
    layer: int,
    chunks: Iterable[tuple[int, Tensor, Tensor]],
    largest: dict[HeadId, LargestDifference],
    of_content: dict[HeadId, LargestDifference],
    queries: Tensor,
    keys: Tensor,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The chunks of :func:`side_by_side` as a batch of one text, each head's largest differences noted on the way.

    ``largest`` is of all weights, ``of_content`` of the ``queries`` and ``keys`` that are True. Of several equally
    large ones it is the first in reading order.
    """
    for first, p, q in chunks:
        content = queries[first : first + p.shape[1], None] & keys[: p.shape[2]]
        for head, (of_a, of_b) in enumerate(zip(p, q, strict=True)):
            difference = of_b.double() - of_a.double()
            for noted, rows in ((largest, difference), (of_content, difference * content)):
                query, key = divmod(int(rows.abs().argmax()), rows.shape[1])
                here = LargestDifference(float(rows[query, key]), first + query, key)
                before = noted.get(HeadId(layer, head), LargestDifference(0.0, 0, 0))
                noted[HeadId(layer, head)] = max(before, here, key=lambda weight: abs(weight.difference))
        yield first, p[None], q[None]


def side_by_side(
    one: Iterator[tuple[int, Tensor]], other: Iterator[tuple[int, Tensor]]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Align the chunks of two sides, which may differ in size, to the same rows and keys.

    From those of :meth:`attnviz.commands.heads.analysis.Analysis.chunks` to the first query and the rows of both,
    [n_heads, rows, n_keys] each.
    """
    first, waiting = 0, [torch.empty(0, 0, 0), torch.empty(0, 0, 0)]
    while True:
        for number, side in enumerate((one, other)):
            while not waiting[number].shape[1]:
                chunk = next(side, None)
                if chunk is None:
                    return
                waiting[number] = chunk[1]
        n, n_keys = (min(rows.shape[1] for rows in waiting), max(rows.shape[2] for rows in waiting))
        a, b = (pad(rows[:, :n], (0, n_keys - rows.shape[2])) for rows in waiting)
        yield first, a, b
        first, waiting = first + n, [rows[:, n:] for rows in waiting]


def check_comparable(first: Analysis, second: Analysis) -> None:
    """Check that two sides can be compared head by head and weight by weight.

    Raises:
        TextError: other tokens of the same text; texts of different length.
        UsageError: other architectures, layers, heads or options; another text and another model at once.
    """
    check_shapes(first.checkpoint, second.checkpoint)
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
    if not _same_weights(first.checkpoint, second.checkpoint):
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


def model_names(first: Checkpoint, second: Checkpoint) -> tuple[str, str]:
    """The shortest names that tell two models apart."""
    models = first, second
    ways = (
        [model.short_name for model in models],
        [model.name for model in models],
        [f"{model.name} at {model.revision}" for model in models if model.revision is not None],
        [f"{model.name} in {str(model.dtype).removeprefix('torch.')}" for model in models],
    )
    a, b = next((names for names in ways if len(set(names)) == 2), ways[0])
    return visible(a), visible(b)


def shape_of(model: Checkpoint | Source) -> str:
    """Architecture, layers and heads in words; of a source its config says so."""
    if isinstance(model, Source):
        config, architecture = config_in(model.folder, torch.float32)
        config = getattr(config, "text_config", config)  # of a model that also reads images
    else:
        config, architecture = model.config, model.architecture
    sizes = [(f"{stack.name} layer", stack.n_layers, stack.n_heads) for stack in architecture.stacks(config)]
    sizes = sizes or [("layer", len(architecture.attending(config)), int(config.num_attention_heads))]
    of_layers = (f"{counted(n_layers, name)} of {counted(n_heads, 'head')}" for name, n_layers, n_heads in sizes)
    return f"{architecture.name} with {', '.join(of_layers)}"


def check_shapes(a: Checkpoint | Source, b: Checkpoint | Source) -> None:
    """Raise UsageError unless architectures, layers and heads are the same."""
    shapes = shape_of(a), shape_of(b)
    if shapes[0] != shapes[1]:
        raise UsageError(
            f"the models cannot be compared head by head: {a.name} is {shapes[0]}, {b.name} is {shapes[1]}; expected "
            "the same architecture with as many layers and heads, such as a model before and after fine-tuning, or a "
            "file of texts (--corpus, compare_corpus), over which they are compared role by role."
        )


def _same_weights(first: Checkpoint, second: Checkpoint) -> bool:
    """Whether the weights are equal, except for parameters that the files lack, which are random in each."""
    if first.weights_sha256 is not None and first.weights_sha256 == second.weights_sha256:
        return True
    mine, other = (dict(side.model.named_parameters()) for side in (first, second))
    return mine.keys() == other.keys() and all(
        a is b or (a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu()))
        for a, b in ((weights, other[name]) for name, weights in mine.items())
    )


def quoted_text(side: Analysis) -> str:
    """Quote the text, and the second one of a pair."""
    return " + ".join(quoted(text) for text in (side.text, side.pair) if text is not None)


def why_not_compared(a: Checkpoint, b: Checkpoint) -> str:
    """Reason why the decisions of two models cannot be compared, or ''."""
    if a.classifier is None or b.classifier is None or a.why_no_classes or b.why_no_classes:
        return a.why_no_classes or b.why_no_classes
    if a.classifier.labels == b.classifier.labels:
        return ""
    return f"A has the classes {a.classifier.listed}; B has {b.classifier.listed}"
