"""How differently the heads attend on two sides: two models on one text, or one model on two texts.

A is the first side and B the second; every difference is B - A, so that a positive one is attention that B has more of.
For one query let p and q be its two rows of attention and m = (p + q) / 2. Their Jensen-Shannon divergence
is H(m) - (H(p) + H(q)) / 2 in nats, H being the entropy: 0 where they are equal, ln 2 where they have no key in
common (Lin 1991; Clark et al. 2019 compare heads by it). Its square root is a metric (Endres & Schindelin 2003).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from attnviz.commands.heads.findings import Findings
from attnviz.errors import TextError, UsageError
from attnviz.figures.colours import Array
from attnviz.model.head_ids import HeadId, select_heads
from attnviz.model.tokens import merge_units
from attnviz.patterns.verdicts import label_of

__all__ = [
    "LARGEST_DISTANCE",
    "Differences",
    "HeadDifference",
    "LargestDifference",
    "LayerDifference",
    "check_comparable",
    "find_differences",
    "measure_difference",
]

LARGEST_DISTANCE = math.sqrt(math.log(2))
"""The Jensen-Shannon distance of two patterns that share no key, in the square root of nats."""


@dataclass(frozen=True)
class LargestDifference:
    """The weight that differs most: B - A, -1 to 1, and its query and key, counted from 0."""

    difference: float
    query: int
    key: int


@dataclass(frozen=True)
class HeadDifference:
    """How differently one head attends on the two sides.

    Attributes:
        id: layer and head.
        rank: 1 for the head that differs most.
        divergence: mean over all queries of the Jensen-Shannon divergence, nats, 0 to ln 2 = 0.693.
        distance: the square root of it, 0 to 0.833: the root mean square of the queries' own distances.
        total_variation: mean over all queries of the attention that went to other keys, 0-1: half of what the
            absolute differences of a row add up to.
        largest: the weight that differs most.
        label_before, label_after: on A and on B, each of its own text alone (no stored profile).
        rounding: no weight differs by more than rounding may.
    """

    id: HeadId
    rank: int
    divergence: float
    distance: float
    total_variation: float
    largest: LargestDifference
    label_before: str
    label_after: str
    rounding: bool

    @property
    def label_changed(self) -> bool:
        """Whether the head has another label on B than on A."""
        return self.label_before != self.label_after

    @property
    def labels(self) -> str:
        """The label, or both with an arrow between."""
        return f"{self.label_before} → {self.label_after}" if self.label_changed else self.label_after


@dataclass(frozen=True)
class LayerDifference:
    """Means over the heads of one layer; units as in :class:`HeadDifference`."""

    layer: int
    divergence: float
    distance: float
    total_variation: float


@dataclass(frozen=True)
class Differences:
    """What a comparison found; both sides are verified.

    Attributes:
        first, second: the sides, A and B.
        heads: one entry a head, the most different first.
        floor: a weight may differ by so much from rounding alone: the largest error of A's verification and that of
            B's together, at least the step of the coarser number format.
    """

    first: Findings
    second: Findings
    heads: tuple[HeadDifference, ...]
    floor: float

    @property
    def compared(self) -> str:
        """``texts`` where one model read two texts, else ``models``."""
        return "models" if _texts(self.first) == _texts(self.second) else "texts"

    @property
    def unit(self) -> str:
        """What patterns are between: ``token`` or ``word``."""
        return self.first.units.name

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """[n], what stands at each position: one label, or A's and B's with an arrow between."""
        pairs = zip(self.first.units.labels, self.second.units.labels, strict=True)
        return tuple(a if a == b else f"{a} → {b}" for a, b in pairs)

    @cached_property
    def differing(self) -> tuple[bool, ...]:
        """[n], where the sides have different tokens (or words), by vocabulary entry."""
        sides = [
            [[side.tokens.ids[token] for token in unit] for unit in side.units.members]
            for side in (self.first, self.second)
        ]
        return tuple(a != b for a, b in zip(*sides, strict=True))

    @property
    def quiet(self) -> tuple[bool, ...]:
        """[n], the special tokens and other sinks of both sides."""
        return tuple(a and b for a, b in zip(self.first.units.sink, self.second.units.sink, strict=True))

    @property
    def layers(self) -> list[LayerDifference]:
        """One entry a layer: means over its heads."""
        found = []
        for layer in range(self.first.checkpoint.n_layers):
            heads = [head for head in self.heads if head.id.layer == layer]
            means = [
                math.fsum(getattr(head, name) for head in heads) / len(heads)
                for name in ("divergence", "distance", "total_variation")
            ]
            found.append(LayerDifference(layer, *means))
        return found

    @property
    def largest(self) -> float:
        """The largest absolute difference of any weight of any head."""
        return max(abs(head.largest.difference) for head in self.heads)

    @property
    def any_beyond_rounding(self) -> bool:
        """Whether any weight of any head differs by more than rounding may."""
        return not all(head.rounding for head in self.heads)

    def layer_differences(self, layer: int) -> Array:
        """B - A for every weight of a layer, float32 [n_heads, n, n], row = query, column = key."""
        a, b = (side.layer_patterns(layer).double() for side in (self.first, self.second))
        difference: Array = (b - a).float().numpy()
        return difference

    def select(self, selections: Iterable[str | HeadId] = ()) -> list[HeadDifference]:
        """The heads that the selections name (``L2H8``, ``L2``, …), the most different first; all without one.

        Raises:
            UsageError: a selection cannot be read or names what the models lack.
        """
        model = self.first.checkpoint
        chosen = set(select_heads(selections, model.n_layers, model.n_heads))
        return [head for head in self.heads if head.id in chosen]

    def head(self, head: str | HeadId) -> HeadDifference:
        """How differently one head attends, by ``"L2H8"``, ``"2.8"`` or ``HeadId(2, 8)``.

        Raises:
            UsageError: the models have no such head.
        """
        id = self.first.head(head).id
        return next(found for found in self.heads if found.id == id)


def measure_difference(first: Tensor, second: Tensor) -> tuple[float, float, LargestDifference]:
    """Compare the two patterns of one head.

    Args:
        first: [n, n], rows sum to 1; row = query, column = key.
        second: the same on B.

    Returns:
        mean Jensen-Shannon divergence over queries (nats), mean total variation over queries, largest difference;
        of several equally large ones the first in reading order.
    """
    p, q = first.double(), second.double()
    divergence = (_entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2).clamp(0, math.log(2)).mean()
    difference = (q - p).numpy()
    query, key = divmod(int(np.abs(difference).argmax()), difference.shape[1])
    variation = float(np.abs(difference).sum(1).mean() / 2)
    return float(divergence), variation, LargestDifference(float(difference[query, key]), query, key)


def find_differences(first: Findings, second: Findings) -> Differences:
    """Measure how differently every head attends on two sides, and rank the heads.

    Args:
        first: A.
        second: B; another model on the same tokens, or the same model on as many tokens.

    Raises:
        TextError, UsageError: the two cannot be compared; see :func:`check_comparable`.
        VerificationError: a model was changed since it was analysed.
    """
    check_comparable(first, second)
    floor = max(
        first.verification.pattern_error + second.verification.pattern_error,
        *(torch.finfo(side.checkpoint.dtype).eps for side in (first, second)),
    )
    measured: dict[HeadId, tuple[float, float, LargestDifference]] = {}
    for layer in range(first.checkpoint.n_layers):
        pairs = zip(first.layer_patterns(layer), second.layer_patterns(layer), strict=True)
        for head, (a, b) in enumerate(pairs):
            measured[HeadId(layer, head)] = measure_difference(a, b)
    ranked = sorted(measured, key=lambda id: (-measured[id][0], id))
    heads = []
    for rank, id in enumerate(ranked, start=1):
        divergence, variation, largest = measured[id]
        before, after = (label_of(side.head(id).patterns) for side in (first, second))
        rounding = abs(largest.difference) <= floor
        distance = math.sqrt(divergence)
        heads.append(HeadDifference(id, rank, divergence, distance, variation, largest, before, after, rounding))
    return Differences(first, second, tuple(heads), floor)


def check_comparable(first: Findings, second: Findings) -> None:
    """Refuse two sides that cannot be compared head by head and weight by weight.

    Raises:
        TextError: other tokens of the same text; texts of different length.
        UsageError: no findings; other architectures, layers, heads or options; another text and another model at once.
    """
    for side in (first, second):
        if not isinstance(side, Findings):
            raise UsageError(f"expected two analyses, as attnviz.analyze returns them, found {type(side).__name__}.")
    _check_models(first, second)
    _check_options(first, second)
    if _same_tokens(first, second):
        return
    if _texts(first) == _texts(second):
        other = _first_other_token(first, second)
        raise TextError(f"the models read the text differently: {other}; expected models with the same tokenizer.")
    if not _same_weights(first, second):
        raise UsageError(
            "both the text and the model differ, so that no difference could be put down to either; expected "
            "the same text (token by token) for two models, or the same model for two texts."
        )
    _check_lengths(first, second)


def _check_models(first: Findings, second: Findings) -> None:
    a, b = first.checkpoint, second.checkpoint
    shapes = [
        f"{side.architecture.name} with {_count(side.n_layers, 'layer')} of {_count(side.n_heads, 'head')}"
        for side in (a, b)
    ]
    if shapes[0] != shapes[1]:
        raise UsageError(
            f"the models cannot be compared head by head: {a.name} is {shapes[0]}, {b.name} is {shapes[1]}; expected "
            "the same architecture with as many layers and heads, such as a model before and after fine-tuning."
        )


def _check_options(first: Findings, second: Findings) -> None:
    if first.options != second.options:
        raise UsageError(
            f"the two sides were analysed with different options, {first.options} and {second.options}; "
            "expected the same."
        )
    if (first.parse is None) != (second.parse is None):
        raise UsageError(
            "one side was analysed with syntax and the other without, so that their labels cannot be compared; "
            "expected both with, or both without (syntax=False)."
        )


def _check_lengths(first: Findings, second: Findings) -> None:
    a, b = len(first.units), len(second.units)
    if a == b:
        return
    unit = first.units.name
    lengths = f"the texts have {a} and {b} {unit}s"
    special = sum(first.units.special)
    if special:
        lengths += f", {special} special tokens included"
    words = [len(merge_units(side.tokens, True)) for side in (first, second)]
    advice = "replace tokens or words, but add and remove none"
    if unit == "token" and words[0] == words[1]:
        advice = f"word by word they are equally long ({words[0]}): compare words (--words, words=True)"
    elif unit == "token":
        advice += f" (as words, --words, they have {words[0]} and {words[1]})"
    raise TextError(f"{lengths}; expected as many in both: {advice}.")


def _same_tokens(first: Findings, second: Findings) -> bool:
    a, b = first.tokens, second.tokens
    same = (a.ids, a.labels, a.type_ids) == (b.ids, b.labels, b.type_ids)
    return same and first.units.members == second.units.members


def _first_other_token(first: Findings, second: Findings) -> str:
    sides = [list(zip(side.tokens.labels, side.tokens.ids, strict=True)) for side in (first, second)]
    for position, (a, b) in enumerate(zip(*sides, strict=False)):
        if a != b:
            return f"at position {position} found {a[0]!r} (id {a[1]}) and {b[0]!r} (id {b[1]})"
    if len(sides[0]) != len(sides[1]):
        return f"found {len(sides[0])} and {len(sides[1])} tokens"
    return "found the same tokens with other segments or words"


def _same_weights(first: Findings, second: Findings) -> bool:
    a, b = first.checkpoint.model, second.checkpoint.model
    if a is b:
        return True
    mine, other = dict(a.named_parameters()), dict(b.named_parameters())
    return mine.keys() == other.keys() and all(
        weights.dtype == other[name].dtype and torch.equal(weights.cpu(), other[name].cpu())
        for name, weights in mine.items()
    )


def _texts(findings: Findings) -> tuple[str, str | None]:
    return findings.text, findings.pair


def _entropy(rows: Tensor) -> Tensor:
    """Of each row, in nats."""
    entropy: Tensor = torch.special.entr(rows).sum(-1)
    return entropy


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
