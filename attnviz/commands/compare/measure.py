"""Compare every head on two sides: two models on one text, or one model on two texts.

A is the first side and B the second; every difference is B - A, so that a positive one is attention that B has more of.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.arguments import as_found
from attnviz.commands.compare.differences import Difference, DifferenceTally
from attnviz.commands.compare.sides import check_comparable, model_names, quoted_text
from attnviz.commands.heads.analysis import Analysis
from attnviz.errors import UsageError
from attnviz.judge.verdicts import Label
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.tokens import Positions, Tokens
from attnviz.options import checked
from attnviz.present.result import OfHeads, Result
from attnviz.wording import counted


class LargestDifference(NamedTuple):
    """The weight that differs most: B - A, -1 to 1, and its query and key, counted from 0."""

    difference: float
    query: int
    key: int


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadDifference(Difference):
    """Difference of one head on one text.

    Attributes:
        largest: the weight that differs most.
        largest_content: likewise from content to content, where neither token is a sink on any side; None where no
            such weight differs.
        before, after: the labels on A and on B, each of its own text alone.
        rounding: no weight differs by more than rounding may.
    """

    largest: LargestDifference
    largest_content: LargestDifference | None
    before: Label
    after: Label
    rounding: bool

    @property
    def label_before(self) -> str:
        """The name of the label on A."""
        return self.before.name

    @property
    def label_after(self) -> str:
        """The name of the label on B."""
        return self.after.name

    @property
    def label_changed(self) -> bool:
        """Whether the head has another label on B than on A."""
        return self.label_before != self.label_after

    @property
    def labels(self) -> str:
        """The label, or both with an arrow between; with a question mark where one is an indication only."""
        return f"{self.before.shown} → {self.after.shown}" if self.label_changed else self.after.shown


class Axis(NamedTuple):
    """Tokens (or words) of both sides, [n] each.

    Attributes:
        labels: of each position, or A's and B's with an arrow between.
        muted: the special tokens and other sinks of both sides.
        differing: where the sides have different tokens, by vocabulary entry.
    """

    labels: tuple[str, ...]
    muted: tuple[bool, ...]
    differing: tuple[bool, ...]

    @classmethod
    def of(cls, *sides: tuple[Tokens, Positions]) -> "Axis":
        """The axis of two sides of equal length."""
        labels, sinks = (
            list(zip(*(getattr(units, name) for _, units in sides), strict=True)) for name in ("labels", "sink")
        )
        read = ([[tokens.ids[at] for at in unit] for unit in units.members] for tokens, units in sides)
        return cls(
            tuple(a if a == b else f"{a} → {b}" for a, b in labels),
            tuple(map(all, sinks)),
            tuple(one != other for one, other in zip(*read, strict=True)),
        )


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(Result, OfHeads[HeadDifference]):
    """What :func:`compare` measured; both sides are verified.

    Attributes:
        first, second: the sides, A and B.
        heads: one entry a head, the most different first.
        floor: a weight may differ by so much from rounding alone: the largest error of A's verification and that of
            B's together, at least the step of the coarser number format.
        furthest: the largest possible distance, a little less in causal models, whose first token sees itself alone.
    """

    command: ClassVar[str] = "compare"

    first: Analysis
    second: Analysis
    heads: tuple[HeadDifference, ...]
    floor: float
    furthest: float

    @property
    def checkpoint(self) -> Checkpoint:  # type: ignore[override] # of the heads' numbers
        """A's model, which has as many layers and heads as B's."""
        return self.first.checkpoint

    @property
    def compared(self) -> str:
        """``texts`` where one model read two texts, else ``models``."""
        same = (self.first.text, self.first.pair) == (self.second.text, self.second.pair)
        return "models" if same else "texts"

    @property
    def reading_notes(self) -> list[str]:
        """Those of both sides."""
        return list(dict.fromkeys([*self.first.reading_notes, *self.second.reading_notes]))

    @property
    def unit(self) -> str:
        """Unit of the patterns: ``token`` or ``word``."""
        return self.first.units.name

    @cached_property
    def parts(self) -> "tuple[Comparison, ...]":
        """Of encoder-decoders one for each kind of attention, with its heads and texts; else the whole."""
        if not self.first.checkpoint.stacks or self.first.stack is not None:
            return (self,)
        parts = zip(self.checkpoint.stacks, self.first.parts, self.second.parts, strict=True)
        return tuple(
            replace(self, first=a, second=b, heads=tuple(each for each in self.heads if each.id.layer in stack.layers))
            for stack, a, b in parts
        )

    def part_of(self, head: HeadDifference) -> "Comparison":
        """The part that a head is of."""
        own = self.own(head)
        return next(part for part in self.parts if own in part.heads)

    @cached_property
    def rows(self) -> Axis:
        """The queries of both sides."""
        return Axis.of(*((side.row_tokens, side.units) for side in (self.first, self.second)))

    @cached_property
    def columns(self) -> Axis:
        """The keys of both sides; in cross-attention those of the source."""
        if self.first.stack_letter != "X":
            return Axis.of(*((side.row_tokens, side.keys) for side in (self.first, self.second)))
        return Axis.of(*((side.tokens, side.keys) for side in (self.first, self.second)))

    def ends(self, head: HeadDifference, of: LargestDifference | None = None) -> tuple[str, str]:
        """The labels of the query and the key of a head's largest difference, or of another one of it."""
        part, (_, query, key) = self.part_of(head), of or head.largest
        return part.rows.labels[query], part.columns.labels[key]

    @property
    def largest(self) -> float:
        """The largest absolute difference of any weight of any head."""
        return max(abs(head.largest.difference) for head in self.heads)

    @property
    def any_beyond_rounding(self) -> bool:
        """Whether any weight of any head differs by more than rounding may."""
        return not all(head.rounding for head in self.heads)

    def blocks(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The patterns of a layer, or of some of its heads, on A and on B; see :func:`side_by_side`."""
        return side_by_side(self.first.blocks(layer, heads), self.second.blocks(layer, heads))

    @property
    def side_names(self) -> tuple[str, str]:
        """Names of A and B: the models, or the quoted texts."""
        if self.compared == "texts":
            return quoted_text(self.first), quoted_text(self.second)
        return model_names(self.first.checkpoint, self.second.checkpoint)

    def __repr__(self) -> str:
        first, second = self.side_names
        most = self.heads[0]
        heads = counted(len(self.heads), "head")
        return f"<Comparison of {first} with {second}: {heads}, {most.id} first ({most.distance:.3f})>"


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
    tally, found = DifferenceTally(first.checkpoint, samples=0), dict[HeadId, tuple[LargestDifference, ...]]()
    tally.begin(torch.ones(1, 1, dtype=torch.float64), [len(first.tokens)])
    for layer in first.checkpoint.layers:
        contexts, nothing = [side.context_of(layer) for side in (first, second)], LargestDifference(0.0, 0, 0)
        queries, keys = (
            torch.stack([getattr(context, name) for context in contexts]).all(0)
            for name in ("non_sink", "key_non_sink")
        )
        queries = queries[list(contexts[0].query_positions)]
        largest, of_content = ([nothing] * first.checkpoint.n_heads_of(layer) for _ in range(2))
        blocks = side_by_side(first.blocks(layer), second.blocks(layer))
        blocks = noting_largest(blocks, largest, of_content, queries, keys)
        tally.add(layer, blocks, torch.ones(1, len(queries), dtype=torch.bool))
        found |= {HeadId(layer, head): each for head, each in enumerate(zip(largest, of_content, strict=True))}
    heads = []
    for each in tally.ranked():
        before, after = (side.head(each.id).labelled for side in (first, second))
        most, content = found[each.id]
        heads.append(
            HeadDifference(
                **vars(each),
                largest=most,
                largest_content=content if content.difference else None,
                before=before,
                after=after,
                rounding=abs(most.difference) <= floor,
            )
        )
    return Comparison(first, second, tuple(heads), floor, tally.largest)


def noting_largest(
    blocks: Iterable[tuple[int, Tensor, Tensor]],
    largest: list[LargestDifference],
    of_content: list[LargestDifference],
    queries: Tensor,
    keys: Tensor,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """The blocks of :func:`side_by_side` as a batch of one text, each head's largest differences noted on the way.

    ``largest`` is of all weights, ``of_content`` of the ``queries`` and ``keys`` that are True. Of several equally
    large ones it is the first in reading order.
    """
    for first, p, q in blocks:
        content = queries[first : first + p.shape[1], None] & keys[: p.shape[2]]
        for head, (of_a, of_b) in enumerate(zip(p, q, strict=True)):
            difference = of_b.double() - of_a.double()
            for noted, each in ((largest, difference), (of_content, difference * content)):
                query, key = divmod(int(each.abs().argmax()), each.shape[1])
                here = LargestDifference(float(each[query, key]), first + query, key)
                noted[head] = max(noted[head], here, key=lambda one: abs(one.difference))
        yield first, p[None], q[None]


def side_by_side(
    one: Iterator[tuple[int, Tensor]], other: Iterator[tuple[int, Tensor]]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Align the blocks of two sides, which may differ in size, to the same rows and keys.

    From blocks of :meth:`attnviz.commands.heads.analysis.Analysis.blocks` to the first query and the rows of both,
    [n_heads, rows, n_keys] each.
    """
    first, waiting = 0, [torch.empty(0, 0, 0), torch.empty(0, 0, 0)]
    while True:
        for number, side in enumerate((one, other)):
            while not waiting[number].shape[1]:
                if (block := next(side, None)) is None:
                    return
                waiting[number] = block[1]
        n, n_keys = (min(block.shape[1] for block in waiting), max(block.shape[2] for block in waiting))
        a, b = (pad(block[:, :n], (0, n_keys - block.shape[2])) for block in waiting)
        yield first, a, b
        first, waiting = first + n, [block[:, n:] for block in waiting]
