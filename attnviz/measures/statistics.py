"""The statistics of a head: entropy, distance, confidence, sink, and shares under masks.

For one head: ``A[q, k]`` is the pattern over n positions; ``S`` are the sink positions,
``C`` all others ("content"). The baseline of a share is the same share under uniform attention over
allowed content.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from attnviz.arguments import did_you_mean
from attnviz.errors import UsageError
from attnviz.measures.guesses import first_largest
from attnviz.measures.patterns import (
    CHOSEN,
    NAMES,
    ON_REPEATS,
    REGISTRY,
    REPEATS,
    SHARES,
    TYPES,
    MaskInput,
    masks_of,
    on_chosen,
)
from attnviz.measures.sums import on_host
from attnviz.models.tokens import Positions, UnitRows
from attnviz.plugins import live
from attnviz.reference.attention import nowhere, uniform_pattern, weighted_logs
from attnviz.trace.recorder import row_blocks
from attnviz.trace.verify import VerifiedRows

SCALARS = live(REGISTRY, lambda: (
    "entropy", "entropy_non_sink", "distance", "distance_non_sink", "confidence", "confidence_non_sink", "sink",
    *SHARES, *REPEATS, *ON_REPEATS.values(),
))  # fmt: skip
"""All statistics of every head but :data:`TYPES`, which only labels need."""

HOST = torch.device("cpu")

_HALF = 0.5
"""A head shows a pattern from a token if its mean over the token's positions is above this."""

_MOST_RUNS = 8
"""Most stretches of keys whose maxima are taken one by one."""

DIAGONALITY = "diagonality"
"""The statistic of cross-attention alone, where statistics of positions within one text are None."""


NOWHERE = "nowhere"
"""The statistic of models with learned sinks alone: the share of attention that goes to no token."""


def statistic_named(name: str) -> str:
    """The statistic of heads.json that a name means; hyphens count as underscores.

    Raises:
        UsageError: there is none of that name.
    """
    wanted = name.strip().lower().replace("-", "_") if isinstance(name, str) else ""
    known = (*SCALARS, DIAGONALITY, NOWHERE)
    if wanted not in known:
        raise UsageError(
            f"unknown statistic {name!r} for a map: expected one of {', '.join(known)}.{did_you_mean(wanted, known)}"
        )
    return wanted


Run = tuple[int, int]
"""First and past-the-last key of a stretch."""


@dataclass(frozen=True)
class KeyGroups:
    """The keys of content and the sinks, on the device of the patterns.

    Attributes:
        content_and_sinks: 1 for content, and 1 for sinks, [n_keys, 2].
        all_and_content: 1 for every key, and 1 for content, [n_keys, 2].
        content, sinks: their stretches; where there are many, their numbers instead.
    """

    content_and_sinks: Tensor
    all_and_content: Tensor
    content: list[Run] | Tensor
    sinks: list[Run] | Tensor

    @classmethod
    def of(cls, non_sink: Sequence[bool], like: Tensor) -> "KeyGroups":
        """Those of keys that are content or not, in the number format and on the device of a pattern."""
        content = torch.tensor(non_sink).to(like)
        parts = []
        for wanted in (True, False):
            runs, first = list[Run](), 0
            for value, group in groupby(non_sink):
                last = first + len(list(group))
                if value == wanted:
                    runs.append((first, last))
                first = last
            numbers = [key for first, last in runs for key in range(first, last)]
            parts.append(runs if len(runs) <= _MOST_RUNS else torch.tensor(numbers, device=like.device))
        return cls(
            torch.stack([content, 1 - content], -1), torch.stack([torch.ones_like(content), content], -1), *parts
        )


@dataclass(frozen=True)
class RowPlan:
    """The pairs under every mask in a block of rows, as indices into the flattened block [rows, n_keys].

    For a mask of more than half of a block's pairs of content, the pairs outside of it are listed.

    Attributes:
        inverted: boolean [n_masks, 1], whether the pairs outside are listed.
        indices: index in the block.
        onto: row, plus rows times the number of the mask.
        n_visible: [rows], keys that each query may attend to.
        to_choose: by statistic, the pairs of :data:`CHOSEN` patterns, boolean [rows, n_keys].
        non_sink: boolean [rows], the queries of content.
        keys: those of content and the sinks.
    """

    inverted: Tensor
    indices: Tensor
    onto: Tensor
    n_visible: Tensor
    to_choose: dict[str, Tensor]
    non_sink: Tensor
    keys: KeyGroups


_BLOCK_BYTES = 128 * 2**20
"""Bytes of a block of uniform attention."""


@dataclass(frozen=True)
class TextContext:
    """What the statistics of all heads of one text share.

    Attributes:
        units: tokens, or words.
        causal: whether a query sees only itself and what precedes it.
        text: input of the patterns' masks; None for cross-attention, which has none.
        source: of cross-attention, the units of the text attended to; else None.
        window: attention window in tokens on each side, including the query; None for no window.
        queries: the units whose rows are measured, in order; None for all.
        learned_sinks: whether rows may sum to less than 1.
        device: where masks are made.
    """

    units: Positions
    causal: bool
    text: MaskInput | None
    source: Positions | None = None
    window: int | None = None
    queries: tuple[int, ...] | None = None
    learned_sinks: bool = False
    device: torch.device = HOST
    _plans: dict[object, RowPlan] = field(default_factory=dict, init=False, repr=False, compare=False)
    _types: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def keys(self) -> Positions:
        """The units of the keys."""
        return self.units if self.source is None else self.source

    @cached_property
    def non_sink(self) -> Tensor:
        """Queries that are measured and are not sinks, boolean [n_units]."""
        non_sink = ~torch.tensor(self.units.sink, dtype=torch.bool)
        if self.queries is None:
            return non_sink
        measured = torch.zeros_like(non_sink)
        measured[list(self.queries)] = True
        return non_sink & measured

    @property
    def query_positions(self) -> Sequence[int]:
        """The units whose rows are measured."""
        return range(len(self.units)) if self.queries is None else self.queries

    @cached_property
    def key_non_sink(self) -> Tensor:
        """Keys that are not sinks, boolean [n_keys]."""
        return ~torch.tensor(self.keys.sink, dtype=torch.bool)

    @cached_property
    def n_non_sink(self) -> int:
        """Number of measured queries that are not sinks."""
        return int(np.count_nonzero(self.non_sink.numpy()))

    @cached_property
    def n_key_non_sink(self) -> int:
        """Number of keys that are not sinks."""
        return sum(not sink for sink in self.keys.sink)

    def allowed_rows(self, first: int, last: int) -> Tensor:
        """Keys that the queries from ``first`` to before ``last`` may attend to, boolean [rows, n_keys]."""
        queries = torch.arange(first, last, device=self.device)[:, None]
        keys = torch.arange(len(self.keys), device=self.device)
        allowed = torch.ones(last - first, len(keys), dtype=torch.bool, device=self.device)
        if self.source is None and self.causal:
            allowed &= keys <= queries
        if self.source is None and self.window is not None:
            firsts, lasts = (
                torch.tensor([unit[end] for unit in self.units.members], device=self.device) for end in (0, -1)
            )
            allowed &= firsts[first:last, None] - lasts < self.window
            allowed &= firsts - lasts[first:last, None] < self.window
        return allowed

    @cached_property
    def allowed(self) -> Tensor:
        """Keys that each query may attend to, boolean [n_queries, n_keys], on the host."""
        return self.allowed_rows(0, len(self.units)).cpu()

    @cached_property
    def masks(self) -> tuple[str, ...]:
        """The statistics of patterns that apply to the model; none for cross-attention."""
        if self.text is None:
            return ()
        return tuple(name for name, mask in masks_of(replace(self.text, last=1)).items() if mask is not None)

    def mask_rows(self, first: int, last: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Allowed pairs of content in some rows, boolean [rows, n_keys], and those under each mask."""
        non_sink, keys = (each.to(self.device) for each in (self.non_sink[first:last, None], self.key_non_sink))
        pairs = self.allowed_rows(first, last) & non_sink & keys
        if self.text is None:
            return pairs, {}
        masks = masks_of(replace(self.text, first=first, last=last, device=self.device))
        return pairs, {name: mask & pairs for name, mask in masks.items() if mask is not None}

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """First and past-the-last unit of every block of measured queries."""
        if self.queries is None:
            yield from row_blocks(len(self.units), 2 * 8 * len(self.keys), _BLOCK_BYTES)
        else:
            yield from ((query, query + 1) for query in self.queries)

    @cached_property
    def selected(self) -> tuple[str, ...]:
        """The statistics whose masks are not empty in this text."""
        return tuple(name for name in self.masks if self.counts[name])

    def plan(self, first: int, pattern: Tensor) -> RowPlan:
        """The pairs under each of the :attr:`masks` in a block of rows from ``first`` on, [n_heads, rows, n_keys].

        It is made once for all layers.
        """
        kind = first, *pattern.shape[1:], pattern.dtype, pattern.device
        if kind not in self._plans:
            self._plans[kind] = self._planned(first, pattern)
        return self._plans[kind]

    def _planned(self, first: int, like: Tensor) -> RowPlan:
        rows, n_keys = like.shape[1:]
        pairs, masks = self.mask_rows(first, first + rows)
        under = torch.stack([pairs, *(masks[name] for name in self.masks)])[..., :n_keys]
        n_pairs, *counts = under.sum((1, 2)).tolist()
        inverted = [2 * count > n_pairs for count in counts]
        listed = [under[0] & ~mask if outside else mask for outside, mask in zip(inverted, under[1:], strict=True)]
        number, row, key = torch.stack([*listed, torch.zeros_like(under[0])]).nonzero().to(like.device).T
        return RowPlan(
            torch.tensor(inverted, dtype=torch.bool).to(like.device, non_blocking=True)[:, None],
            row * n_keys + key,
            number * rows + row,
            self.allowed_rows(first, first + rows).sum(-1).to(like.device),
            {name: masks[name][:, :n_keys].to(like.device) for name in self.masks if name in CHOSEN},
            self.non_sink[first : first + rows].to(like.device),
            KeyGroups.of([not sink for sink in self.keys.sink[:n_keys]], like),
        )

    @cached_property
    def _uniform(self) -> "HeadStatistics":
        """Two heads: attention uniform over allowed keys, and over allowed keys that are not sinks."""
        statistics = HeadStatistics(self, 2, kept=self.masks)
        for first, last in self._blocks():
            allowed = self.allowed_rows(first, last)
            visible = torch.stack([allowed, allowed & self.key_non_sink.to(self.device)])
            statistics.add(first, uniform_pattern(visible, self.learned_sinks))
        return copied([statistics])[0]

    @cached_property
    def counts(self) -> dict[str, int]:
        """By share, its n: the number of content queries with a key under the mask."""
        counts = dict.fromkeys(NAMES, 0)
        if self.masks:
            under = torch.stack([self._uniform.seen(name)[1] for name in self.masks])
            counts |= zip(self.masks, (under > 0).sum(1).tolist(), strict=True)
        return counts

    @cached_property
    def uniform(self) -> dict[str, float | None]:
        """Every statistic under uniform attention, by name: the baselines.

        For shares, attention is uniform over content alone. None where not measurable, as diagonality of
        self-attention.
        """
        return {
            name: of_content if name in NAMES else of_all
            for name, (of_all, of_content) in {DIAGONALITY: (None, None), **self._uniform.result()}.items()
        }

    @cached_property
    def baselines(self) -> dict[str, float | None]:
        """Each share under uniform attention over allowed content; None where not measurable."""
        return {name: self.uniform[name] for name in NAMES}

    def types(self, name: str) -> Tensor:
        """The type of each query's token, numbered from 0; -1 for queries that are not counted for :data:`REPEATS`.

        Counted are content queries with a key under the mask; for induction only those followed by the same token as an
        earlier copy, as in the repeated random tokens of Olsson et al. 2022. Where only "the" comes back, before other
        words, attention to what followed it cannot be told from attention to nouns.
        """
        if name in self._types:
            return self._types[name]
        assert self.text is not None  # not called for cross-attention
        if name == "induction":  # what followed a copy counts even where the copy itself is a sink
            firsts, pairs = dict[object, int](), set[tuple[object, object]]()
            types, tokens = [-1] * len(self.non_sink), self.text.tokens
            non_sink = self.non_sink.tolist()
            for i, (token, later) in enumerate(zip(tokens, [*tokens[1:], None], strict=True)):
                first = firsts.setdefault(token, i)
                follows = i + 1 < len(non_sink) and non_sink[i] and non_sink[i + 1]
                if follows and (token, later) in pairs:
                    types[i] = first
                pairs.add((token, later))
            numbers = torch.tensor(types)
        else:
            ids = {token: number for number, token in enumerate(dict.fromkeys(self.text.tokens))}
            numbers = torch.tensor([ids[token] for token in self.text.tokens])
        counted = (numbers >= 0) & (self._uniform.seen(name)[1] > 0)
        numbers = torch.where(counted, numbers, -1)
        of_types, again = np.unique(numbers.numpy(), return_inverse=True)
        numbers = torch.from_numpy(again - int(of_types[0] == -1))
        self._types[name] = numbers
        return numbers


def measure(rows: Iterable[VerifiedRows], context: TextContext) -> dict[str, list[float | None]]:
    """The statistics of every head of one verified layer, from all blocks of its rows; see :class:`HeadStatistics`."""
    statistics = None
    for block in rows:
        statistics = statistics or HeadStatistics(context, block.pattern.shape[1])
        statistics.update(block)
    assert statistics is not None
    return copied([statistics])[0].result()


def copied(of_layers: Sequence["HeadStatistics"]) -> Sequence["HeadStatistics"]:
    """Statistics of all layers of a pass, copied to the host at once."""
    copies = iter(on_host([tensor for each in of_layers for tensor in each.on_device()]))
    for each in of_layers:
        each.take(copies)
    return of_layers


class HeadStatistics:
    """The statistics of every head of one verified layer, for a single text, summed over blocks of query rows.

    ==================  ==========================================================  =======================
    entropy             mean over q of -sum_k A ln A, in nats                       Clark et al. 2019
    entropy_non_sink     the same over q and k in C, of A / sum over C of A          after Clark et al. 2019
    distance            mean over q of sum_k A[q,k] abs(q-k), in tokens (or words)  Vig & Belinkov 2019
    distance_non_sink    the same over q and k in C, of A / sum over C of A          after Voita et al. 2019
    confidence          mean over q of max_k A[q,k], 0-1                            after Voita et al. 2019
    confidence_non_sink  the same over q and k in C, of A / sum over C of A          after Voita et al. 2019
    sink                mean over q in C of sum over k in S of A[q,k], 0-1          Xiao et al. 2023
    nowhere             mean over q in C of 1 - sum_k A[q,k], 0-1                   after OpenAI 2025
    share of M          sum of A over content pairs under M / over content pairs    after Clark et al. 2019
    long_range          likewise, but of M only the keys that the head chooses      attnviz
    diagonality         see below; of cross-attention alone                         after Shim et al. 2022
    on repeats          mean of sum_k A under M over the q with such a k, 0-1       Olsson et al. 2022
    types               tokens of :meth:`TextContext.types` with over half there    attnviz
    ==================  ==========================================================  =======================

    Voita et al. 2019 leave the end-of-sentence token out of confidence, since it is a sink; here all sinks are left out
    of the three numbers of content, and rows with all of their attention on sinks. In cross-attention q runs over the
    target and k over the source; distances and shares, which compare positions within one text, are None.

    Diagonality is how closely attention follows the diagonal from target to source, 0-1: 1 - mean over q in C of
    |sum_k A[q,k] k / (n_keys - 1) - q / (n_queries - 1)|, positions counted among content alone, rows divided by their
    sum over content. 1 is a straight diagonal. It is None where either text has fewer than
    two content positions (after Shim et al. 2022, "Understanding the Role of Self Attention for Efficient Speech
    Recognition", section 3, which measures distances from the diagonal of one text).

    With learned sinks a row has one outcome more, ``nowhere``, which entropy counts, too.

    Patterns of tokens are merged to the context's units here; sums over rows are in float64.

    Args:
        context: of the text.
        n_heads: of the layer.
        kept: masks whose attention is kept by query, see :meth:`seen`; default those of repeated tokens.
    """

    def __init__(self, context: TextContext, n_heads: int, kept: Sequence[str] | None = None) -> None:
        self._context, self._n_heads = context, n_heads
        self._merge: UnitRows | None = None
        self._names: list[str] = []
        self._sums: Tensor | None = None  # [n_names, n_heads], in float64 on the device
        names = [name for name in REPEATS if name in context.selected] if kept is None else kept
        self._kept = names
        self._seen: dict[str, list[tuple[slice, Tensor]]] = {name: [] for name in names}
        self._largest: list[tuple[slice, Tensor]] = []

    def update(self, rows: VerifiedRows) -> None:
        """Add the next block of rows, merging tokens to units."""
        units, keys = self._context.units.members, self._context.keys.members
        self._merge = self._merge or UnitRows(units, keys, rows.n_queries, rows.n_keys)
        self.add(*self._merge.add(rows.first, rows.wide[0]))

    def add(self, first: int, pattern: Tensor) -> None:
        """Add rows of units from ``first`` on, [n_heads, rows, n_keys], perhaps none."""
        if not pattern.shape[1]:
            return
        values = self._values(first, pattern)
        self._names = list(values)
        sums = torch.stack(list(values.values()))
        sums = (sums.cpu() if sums.device.type == "mps" else sums).double().sum(-1)
        self._sums = sums if self._sums is None else self._sums + sums

    def _values(self, first: int, pattern: Tensor) -> dict[str, Tensor]:
        """The values of each row of a block, [n_heads, rows]."""
        context, plan = self._context, self._context.plan(first, pattern)
        rows, non_sink = slice(first, first + pattern.shape[1]), plan.non_sink
        values = content_values(pattern, first, plan.keys)
        if context.learned_sinks:
            values = with_nowhere(values, pattern)
            values[NOWHERE] = values[NOWHERE] * non_sink
        totals = values["total"]
        has_content = non_sink & (totals > 0)
        divisors = torch.where(has_content, totals, torch.inf)
        for name in ("entropy_non_sink", "distance_non_sink", "confidence_non_sink"):
            values[name] = values[name] / divisors
        values |= {"sink": values["sink"] * non_sink, "total": totals * non_sink, "rows": has_content.to(totals)}
        if context.source is not None:
            self._largest.append((rows, first_largest(pattern)))
            to, of = (_along(each).to(pattern) for each in (context.key_non_sink, context.non_sink))
            along = pattern @ (to * plan.keys.content_and_sinks[:, 0]) / totals
            values["off_diagonal"] = torch.where(has_content, (along - of[rows]).abs(), 0.0)
        elif context.masks:
            values |= self._masked(rows, pattern, values["total"], plan)
        return values

    def _masked(self, rows: slice, pattern: Tensor, totals: Tensor, plan: RowPlan) -> dict[str, Tensor]:
        """Attention under each mask; ``totals`` are sums over pairs of content."""
        n_heads, n_rows, _ = pattern.shape
        names = self._context.masks
        sums = pattern.new_zeros(n_heads, len(names) * n_rows)
        sums.index_add_(1, plan.onto, pattern.flatten(1).index_select(1, plan.indices))
        sums = sums.view(n_heads, len(names), n_rows)
        values = dict(zip(names, torch.where(plan.inverted, totals[:, None] - sums, sums).unbind(1), strict=True))
        for name in self._kept:
            self._seen[name].append((rows, values[name].float()))
        for name in plan.to_choose:
            values[name] = on_chosen(pattern[None], plan.n_visible[None], plan.to_choose[name][None])[0]
        return values

    def on_device(self) -> list[Tensor]:
        """All that :meth:`result` needs from the device, to be copied at once with that of other layers."""
        assert self._sums is not None
        return [self._sums, *(values for blocks in [*self._seen.values(), self._largest] for _, values in blocks)]

    def take(self, copies: Iterator[Tensor]) -> None:
        """The copies of :meth:`on_device`, in order."""
        self._sums = next(copies)
        for blocks in [*self._seen.values(), self._largest]:
            blocks[:] = [(rows, next(copies)) for rows, _ in blocks]

    def seen(self, name: str) -> Tensor:
        """Each query's attention under one of the masks that are kept, [n_heads, n] on the host; 0 for sinks."""
        seen = torch.zeros(self._n_heads, len(self._context.units))
        for rows, values in self._seen[name]:
            seen[:, rows] = values
        return seen

    @property
    def largest(self) -> Tensor:
        """Of cross-attention, each query's key of largest weight, [n_heads, n] on the host: word alignment.

        Koehn & Knowles 2017, section 3.6.
        """
        largest = torch.zeros(self._n_heads, len(self._context.units), dtype=torch.long)
        for rows, keys in self._largest:
            largest[:, rows] = keys
        return largest

    def result(self) -> dict[str, list[float | None]]:
        """One number a head by name; None where not measurable.

        Names are :data:`SCALARS`, :data:`TYPES`, and where they apply :data:`DIAGONALITY` and :data:`NOWHERE`.
        """
        context, n = self._context, len(self._context.query_positions)
        assert self._sums is not None
        sums = dict(zip(self._names, self._sums, strict=True))
        result: dict[str, list[float | None]] = {name: [None] * self._n_heads for name in (*SCALARS, *TYPES.values())}

        def give(name: str, values: Tensor) -> None:
            result[name] = [number if math.isfinite(number) else None for number in values.double().tolist()]

        give("entropy", sums["entropy"] / n)
        give("confidence", sums["confidence"] / n)
        if context.n_non_sink and context.n_key_non_sink < len(context.keys):
            give("sink", sums["sink"] / context.n_non_sink)
        if context.learned_sinks and context.n_non_sink:
            give(NOWHERE, sums[NOWHERE] / context.n_non_sink)
        if context.source is not None:
            short = min(context.n_non_sink, context.n_key_non_sink) < 2
            result[DIAGONALITY] = [None] * self._n_heads
            if not short:
                give(DIAGONALITY, 1 - sums["off_diagonal"] / sums["rows"])
            if context.n_non_sink and context.n_key_non_sink:
                give("confidence_non_sink", sums["confidence_non_sink"] / sums["rows"])
                give("entropy_non_sink", sums["entropy_non_sink"] / sums["rows"])
            return result
        give("distance", sums["distance"] / n)
        if not context.n_non_sink:
            return result
        for name in ("distance_non_sink", "confidence_non_sink", "entropy_non_sink"):
            give(name, sums[name] / sums["rows"])
        for name in context.selected:
            give(name, sums[name] / sums["total"])
            if name in REPEATS:
                give(ON_REPEATS[name], sums[name] / context.counts[name])
                give(TYPES[name], self._types(name))
        return result

    def _types(self, name: str) -> Tensor:
        """Number of types from which each head shows the pattern, its mean over the type's positions above half."""
        numbers = self._context.types(name)
        counts = np.bincount(numbers[numbers.numpy() >= 0].numpy())
        if not len(counts):
            return torch.zeros(self._n_heads)
        sums = torch.zeros(self._n_heads, len(counts) + 1).index_add_(1, numbers + 1, self.seen(name))[:, 1:]
        return (sums / torch.from_numpy(counts) > _HALF).sum(-1)


def row_values(pattern: Tensor) -> dict[str, Tensor]:
    """Entropy (nats), distance (positions) and confidence of each row of patterns [..., n, n], [..., n]."""
    return {
        "entropy": -weighted_logs(pattern).sum(-1),
        "confidence": pattern.amax(-1),
        "distance": torch.einsum("...qk,qk->...q", pattern, _distances(pattern, 0)),
    }


def content_values(pattern: Tensor, first: int, keys: KeyGroups) -> dict[str, Tensor]:
    """As :func:`row_values`, of a block of rows [n_heads, rows, n_keys] from query ``first`` on, [n_heads, rows].

    Also what is on content (``total``) and on sinks (``sink``), and the three of the weights on content
    (``…_non_sink``), not yet divided by their total.
    """
    total, sink = (pattern @ keys.content_and_sinks).unbind(-1)
    far = _distances(pattern, first)[..., None] * keys.all_and_content  # [rows, n_keys, 2]
    distance, of_content = torch.bmm(pattern.transpose(0, 1), far).transpose(0, 1).unbind(-1)
    of_all, spread = (weighted_logs(pattern) @ keys.all_and_content).unbind(-1)
    largest = _largest_of(pattern, keys.content)
    return {
        "entropy": -of_all,
        "entropy_non_sink": (torch.xlogy(total, total) - spread).clamp(min=0.0),  # below 0 by rounding alone
        "distance": distance,
        "distance_non_sink": of_content,
        "confidence": torch.maximum(largest, _largest_of(pattern, keys.sinks)),
        "confidence_non_sink": largest,
        "total": total,
        "sink": sink,
    }


def _distances(pattern: Tensor, first: int) -> Tensor:
    """How far apart query and key are, [rows, n_keys], of rows from query ``first`` on."""
    n_rows, n_keys = pattern.shape[-2:]
    positions = torch.arange(max(first + n_rows, n_keys), dtype=pattern.dtype, device=pattern.device)
    return (positions[:n_keys] - positions[first : first + n_rows, None]).abs_()


def with_nowhere(values: dict[str, Tensor], pattern: Tensor) -> dict[str, Tensor]:
    """Values of rows with the share that goes to no token, which is one more outcome in the entropy."""
    gone = nowhere(pattern)
    return values | {NOWHERE: gone, "entropy": values["entropy"] - torch.xlogy(gone, gone)}


def _along(non_sink: Tensor) -> Tensor:
    """Where each position stands among those of content, 0 to 1, [n]."""
    return (non_sink.cumsum(0) - 1) / max(int(non_sink.sum()) - 1, 1)


def _largest_of(pattern: Tensor, keys: list[Run] | Tensor) -> Tensor:
    """The largest weight of each row on some of the keys, [n_heads, rows]; 0 without keys.

    Stretches are read as slices, without copies.
    """
    if isinstance(keys, Tensor):
        return pattern[..., keys].amax(-1)
    if not keys:
        return pattern.new_zeros(pattern.shape[:2])
    largest = [pattern[..., first:last].amax(-1) for first, last in keys]
    return largest[0] if len(largest) == 1 else torch.stack(largest).amax(0)


def ratio(value: float | None, of: float | None) -> float | None:
    """A quotient; None where either is unknown, or the divisor 0."""
    return None if value is None or not of else value / of
