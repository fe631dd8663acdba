"""The statistics of a head: entropy, distance, confidence, sink, and shares under masks.

For one head: ``A[q, k]`` is the pattern over n positions; ``S`` are the sink positions, ``C`` all others ("content").
A statistic is a declaration (:class:`attnviz.measures.rows.Statistic`): a value a row, and over which rows it is
averaged. What uniform attention gives is the same function on uniform rows; of a share it is uniform over content.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.arguments import did_you_mean
from attnviz.errors import UsageError
from attnviz.inputs.prompt import Positions, UnitRows
from attnviz.measures import alignments, contacts
from attnviz.measures.contacts import ContactMap
from attnviz.measures.guesses import fast_argmax
from attnviz.measures.measure import Measure, PatternRows, copy_to_host, on_host
from attnviz.measures.patterns import (
    CHOSEN,
    HOST,
    ON_REPEATS,
    PATTERNS,
    REPEATS,
    SHUFFLED,
    TYPES,
    MaskInput,
    PatternSpec,
    applicable,
    check_words,
    masks_of,
)
from attnviz.measures.rows import (
    ATTENTION,
    CONTENT,
    LEARNED_SINKS,
    NEEDS,
    ON_CONTENT,
    ONE_TEXT,
    QUERIES,
    SINKS,
    TWO_TEXTS,
    AttentionRows,
    RowPlan,
    Statistic,
)
from attnviz.memory import MOST_MASKS, row_blocks
from attnviz.plugins import Registry
from attnviz.reference.attention import allowed_positions, reached, uniform_pattern

_HALF = 0.5  # a head shows a pattern from a token if its mean over the token's positions is above this

_PENDING = 2**22  # bytes of layers that are measured together, since small ones take as many operations as large ones

_ON_GPU = 2**26  # the same of a GPU

# Kinds of what is kept of a text's rows.
_SUMS, _SEEN, _ALIGNED = "sums", "seen", "aligned"

_COLUMN_BYTES = 6 * 4  # bytes of what a weight is multiplied by, in float32

CHUNK_BYTES = 128 * 2**20  # bytes of a chunk of rows of uniform attention

# The statistic of cross-attention alone, where statistics of positions within one text are None.
DIAGONALITY = "diagonality"

NOWHERE = "nowhere"  # the statistic of models with learned sinks alone: the share of attention that goes to no token


def _entropy(rows: AttentionRows) -> Tensor:
    """With learned sinks a row has one outcome more, nowhere."""
    of_content, of_sinks = rows.logs
    entropy = -(of_content + of_sinks)
    return entropy - torch.xlogy(rows.nowhere, rows.nowhere) if rows.plan.learned_sinks else entropy


def _entropy_on_content(rows: AttentionRows) -> Tensor:
    """That of the row divided by its sum; -1e-8 by rounding is 0."""
    total = rows.to_content
    return (torch.xlogy(total, total) - rows.logs[0]).clamp(min=0.0) / total


def _diagonality(rows: AttentionRows) -> Tensor:
    """How closely attention follows the diagonal from target to source.

    1 - |sum_k A[q,k] k / (n_keys - 1) - q / (n_queries - 1)|, positions counted among content alone, rows divided by
    their sum over content; 1 is a straight diagonal (after Shim et al. 2022, "Understanding the Role of Self Attention
    for Efficient Speech Recognition", section 3, which measures distances from the diagonal of one text).
    """
    assert rows.plan.along is not None
    return 1 - (rows.linear[4] / rows.to_content - rows.plan.along[1].to(rows.pattern)).abs()


_CONTENT_ROWS = "without sinks, rows renormalised"

# Voita et al. 2019 leave the end-of-sentence token out of confidence, since it is a sink; here all sinks are left out
# of the numbers on content, and rows with all of their attention on sinks.
_OF_ALL = (
    Statistic(
        "entropy",
        "entropy",
        "mean entropy of the rows",
        _entropy,
        unit="nats",
        bounded=False,
        column="Entropy",
        source="Clark et al. 2019",
    ),
    Statistic(
        "entropy_non_sink",
        "entropy on content",
        f"mean entropy of the rows, {_CONTENT_ROWS}",
        _entropy_on_content,
        over=ON_CONTENT,
        unit="nats",
        bounded=False,
    ),
    Statistic(
        "distance",
        "distance",
        "mean distance between query and key, weighted by attention",
        lambda rows: rows.linear[2],
        unit="{unit}s",
        bounded=False,
        column="Distance",
        needs=ONE_TEXT,
        source="Vig & Belinkov 2019",
    ),
    Statistic(
        "distance_non_sink",
        "distance on content",
        f"mean distance between query and key, {_CONTENT_ROWS}",
        lambda rows: rows.linear[3] / rows.to_content,
        over=ON_CONTENT,
        unit="{unit}s",
        bounded=False,
        column="Distance, content",
        needs=ONE_TEXT,
    ),
    Statistic(
        "confidence",
        "confidence",
        "mean of each row’s largest weight",
        lambda rows: rows.pattern.amax(-1),
        column="Conf",
        source="after Voita et al. 2019",
    ),
    Statistic(
        "confidence_non_sink",
        "confidence on content",
        f"mean of each row’s largest weight, {_CONTENT_ROWS}",
        lambda rows: rows.on_content.amax(-1) / rows.to_content,
        over=ON_CONTENT,
        column="Conf, content",
    ),
    Statistic(
        "sink",
        "sink share",
        "mean attention of the other {unit}s to {sinks}",
        lambda rows: rows.linear[1],
        over=CONTENT,
        column="Sink",
        needs=SINKS,
        source="Xiao et al. 2023",
    ),
)
# What some texts of some models have.
_OF_SOME = (
    Statistic(
        DIAGONALITY,
        DIAGONALITY,
        "how far a head goes through the source as the target goes on, 1 for a diagonal",
        _diagonality,
        over=ON_CONTENT,
        column="Diagonal",
        needs=TWO_TEXTS,
    ),
    Statistic(
        NOWHERE,
        NOWHERE,
        "mean attention of content that goes to a learned sink, no token",
        lambda rows: rows.nowhere,
        over=CONTENT,
        column="Nowhere",
        needs=LEARNED_SINKS,
        source="after OpenAI 2025",
    ),
    *contacts.STATISTICS,
)
OPTIONAL = tuple(statistic.name for statistic in _OF_SOME)


def _check(statistic: Statistic) -> None:
    check_words(statistic.name.split("_"), "effective_keys")
    if statistic.name in [spec.statistic for spec in PATTERNS.values()]:
        raise ValueError("a pattern has this name")
    overs = (QUERIES, CONTENT, ON_CONTENT, ATTENTION)
    if not callable(statistic.value) or statistic.over not in overs or statistic.needs not in NEEDS:
        raise ValueError(
            f"expected a function as value, over as one of {', '.join(overs)}, and needs as one of {', '.join(NEEDS)}"
        )


# Statistics but for those of patterns: of attnviz, then of plug-ins, by name.
STATISTICS = Registry(
    "statistic",
    "attnviz.measures.rows.Statistic",
    {statistic.name: statistic for statistic in (*_OF_ALL, *_OF_SOME, *alignments.STATISTICS)},
    check=_check,
)


def _of_patterns(patterns: Iterable[PatternSpec]) -> Iterator[Statistic]:
    """The statistics of patterns: the share of each, and of repeated tokens the mean over the queries with a copy.

    A share is the sum of A over content pairs under the mask, divided by that over all content pairs (after Clark et
    al. 2019); of chosen patterns only the keys count that a head chooses.
    """
    on_repeats = []
    for spec in patterns:

        def under(rows: AttentionRows, spec: PatternSpec = spec) -> Tensor:
            return rows.chosen[0] if spec.chosen else rows.under[spec.statistic]

        name, target = spec.statistic, spec.target
        meaning = f"share of the attention on content that lands on {target}"
        yield Statistic(name, f"{spec.name} share", meaning, under, over=ATTENTION, column=spec.column, needs=ONE_TEXT)
        if spec.on_repeats:
            title = f"{spec.name} where a token repeats"
            meaning = f"mean attention of the {{unit}}s with a copy before them to {target}"
            on_repeats.append(Statistic(ON_REPEATS[name], title, meaning, under, over=name, needs=ONE_TEXT))
    yield from on_repeats


# The baseline of the chosen pattern: what it is expected to be where each row's keys of content are shuffled.
_SHUFFLED = Statistic(
    SHUFFLED, "long-range share, keys shuffled", "baseline", lambda rows: rows.chosen[1], over=ATTENTION, needs=ONE_TEXT
)


def statistics() -> dict[str, Statistic]:
    """Every statistic by name, those of patterns too, in the order of the documents."""
    every = [*_OF_ALL, *_of_patterns(PATTERNS.values()), *STATISTICS.plugins.values(), *STATISTICS.natives.values()]
    return {statistic.name: statistic for statistic in every}


def scalars() -> list[str]:
    """The statistics that heads.json has of every head, null where a text has nothing of them."""
    of_patterns = [statistic.name for statistic in _of_patterns(PATTERNS.values())]
    return [*(statistic.name for statistic in _OF_ALL), *of_patterns, *STATISTICS.plugins]


def measurable(patterns: Sequence[PatternSpec], has: Collection[str]) -> list[Statistic]:
    """The statistics with a value a row that texts have, which have some of NEEDS, and to which the patterns apply.

    Baselines of chosen patterns are among them.
    """
    found = [each for each in STATISTICS.values() if each.value is not None and each.needs in ("", *has)]
    return [*found, *_of_patterns(patterns), *([_SHUFFLED] if any(spec.chosen for spec in patterns) else [])]


def statistic_named(name: str) -> str:
    """The statistic of heads.json that a name means, hyphens being underscores; UsageError where there is none."""
    wanted = name.strip().lower().replace("-", "_") if isinstance(name, str) else ""
    known = (*scalars(), *OPTIONAL)
    if wanted not in known:
        near = did_you_mean(wanted, known)
        raise UsageError(f"unknown statistic {name!r} for a map: expected one of {', '.join(known)}.{near}")
    return wanted


def row_sums(statistics: Sequence[Statistic], rows: AttentionRows) -> Tensor:
    """Sums over the rows of each text, [n_sums, n_heads, n_texts] in float64: of values, and of what divides them.

    UsageError for a statistic from outside that fails, or is no number of each row.
    """
    shape = rows.pattern.shape[:2]
    counted = {over: rows.counted(over).expand(shape) for over in _overs(statistics)}
    values = [*(_value(statistic, rows) for statistic in statistics), rows.to_content]
    counts = [*(counted[statistic.over] for statistic in statistics), counted[ATTENTION]]
    of_rows = torch.stack(values).masked_fill_(~torch.stack(counts), 0.0), torch.stack([*counted.values()])
    parts = (part.cpu() if part.device.type == "mps" else part for part in of_rows)  # it has no float64
    return torch.cat([part.view(*part.shape[:2], rows.plan.n_texts, -1).sum(-1, dtype=torch.float64) for part in parts])


def uniform_sums(statistics: Sequence[Statistic], rows: AttentionRows) -> Tensor:
    """The :func:`row_sums` of uniform attention, [n_sums, n_texts].

    The rows are of two heads, uniform over all keys and over content. Shares of attention on content are of the second
    one, of which nothing else is read: its rows without content are 0.
    """
    of_all, of_content = row_sums(statistics, rows).unbind(1)
    is_share = [*(statistic.over == ATTENTION for statistic in statistics), True]  # and the attention on content
    is_share += [False] * (len(of_all) - len(is_share))
    return torch.where(torch.tensor(is_share, device=of_all.device)[:, None], of_content, of_all)


def quotients(statistics: Sequence[Statistic], sums: Tensor) -> dict[str, Tensor]:
    """Statistics by name, from the sums of :func:`row_sums`, [n_sums, …] to […] each; NaN where nothing counts."""
    n, overs = len(statistics), _overs(statistics)
    divisors = [n + (0 if each.over == ATTENTION else 1 + overs.index(each.over)) for each in statistics]
    return dict(zip([statistic.name for statistic in statistics], sums[:n] / sums[divisors], strict=True))


def _overs(statistics: Sequence[Statistic]) -> list[str]:
    return list(dict.fromkeys([ATTENTION, *(statistic.over for statistic in statistics)]))


def _value(statistic: Statistic, rows: AttentionRows) -> Tensor:
    with STATISTICS.errors_named(statistic.name):
        assert statistic.value is not None
        value = statistic.value(rows)
        if value.shape != rows.pattern.shape[:2]:
            raise ValueError(f"expected a number of each row, {[*rows.pattern.shape[:2]]}, found {[*value.shape]}")
        return value.to(rows.pattern)


class LayerSums(Measure):
    """The :func:`row_sums` of every layer; small layers that see the same keys are measured together.

    ``statistics_of`` gives those of a layer, which are the same of all that see the same keys.
    """

    def __init__(self, statistics_of: Callable[[int], Sequence[Statistic]]) -> None:
        super().__init__()
        self._statistics_of = statistics_of
        self.by_layer: dict[int, Tensor] = {}  # [n_sums, n_heads, n_texts]
        self._pending: dict[RowPlan, list[tuple[int, Tensor]]] = {}

    def add_rows(self, layer: int, pattern: Tensor, plan: RowPlan) -> None:
        """Add rows of a layer, [n_heads, n_rows, n_keys]."""
        self._pending.setdefault(plan, []).append((layer, pattern))
        waiting = sum(rows.nbytes for of_plan in self._pending.values() for _, rows in of_plan)
        if waiting >= (_ON_GPU if pattern.is_cuda else _PENDING):
            self.finish()

    def finish(self) -> None:
        """Measure what waits for other layers."""
        for plan in [*self._pending]:
            self._measure(plan)

    def _measure(self, plan: RowPlan) -> None:
        layers, patterns = zip(*self._pending.pop(plan), strict=True)
        rows = AttentionRows(patterns[0] if len(patterns) == 1 else torch.cat(patterns), plan)
        with torch.autocast(patterns[0].device.type, enabled=False):
            n_heads = [len(pattern) for pattern in patterns]
            parts = torch.split(row_sums(self._statistics_of(layers[0]), rows), n_heads, 1)
            for layer, part in zip(layers, parts, strict=True):
                self.by_layer[layer] = self.by_layer[layer] + part if layer in self.by_layer else part
            self.on_rows(rows, layers, n_heads)

    def on_rows(self, rows: AttentionRows, layers: Sequence[int], n_heads: list[int]) -> None:
        """Keep what else is needed of the rows of some layers, which have so many heads each."""


@dataclass(frozen=True)
class TextContext:
    """What the statistics of all heads of one text share."""

    units: Positions  # tokens, or words
    causal: bool  # whether a query sees only itself and what precedes it; not of cross-attention
    text: MaskInput | None  # input of the patterns' masks; None for cross-attention, which has none
    source: Positions | None = None  # of cross-attention, the units of the text attended to
    window: int | None = None  # attention window in tokens on each side, including the query; None for no window
    queries: tuple[int, ...] | None = None  # the units whose rows are measured, in order; None for all
    learned_sinks: bool = False  # whether rows may sum to less than 1
    contacts: ContactMap | None = None  # between the residues of a protein, if they are known
    device: torch.device = HOST  # where masks are made
    _plans: dict[object, RowPlan] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def keys(self) -> Positions:
        return self.units if self.source is None else self.source

    @cached_property
    def _measured(self) -> Tensor:
        """Queries that are measured, boolean [n_units]."""
        measured = torch.full((len(self.units),), self.queries is None)
        measured[list(self.queries or ())] = True
        return measured

    @cached_property
    def non_sink(self) -> Tensor:
        """Queries that are measured and are not sinks, boolean [n_units]."""
        return ~torch.tensor(self.units.sink, dtype=torch.bool) & self._measured

    @property
    def query_positions(self) -> Sequence[int]:
        return range(len(self.units)) if self.queries is None else self.queries

    @property
    def measured_tokens(self) -> tuple[int, ...] | None:
        """The tokens whose rows are measured, in order; None for all."""
        return self.queries and tuple(sorted(token for unit in self.queries for token in self.units.members[unit]))

    @cached_property
    def key_non_sink(self) -> Tensor:
        return ~torch.tensor(self.keys.sink, dtype=torch.bool)

    @cached_property
    def n_non_sink(self) -> int:
        return int(self.non_sink.sum())

    def allowed_rows(self, first: int, last: int) -> Tensor:
        """Keys that the queries from ``first`` to before ``last`` may attend to, boolean [rows, n_keys]."""
        every = torch.ones(1, len(self.keys), device=self.device)
        allowed = allowed_positions(every, self.causal, None, first, last - first)[0, 0]
        if self.window is None:
            return allowed
        ends = [(unit[0], unit[-1]) for unit in self.units.members]
        firsts, lasts = torch.tensor(ends, device=self.device).T
        near = reached(firsts[first:last, None], lasts, self.window)
        return allowed & near & reached(firsts, lasts[first:last, None], self.window)

    @cached_property
    def patterns(self) -> tuple[PatternSpec, ...]:
        """The patterns that apply to the model; none for cross-attention."""
        return () if self.text is None else applicable(tuple(PATTERNS.values()), self.text.causal)

    @cached_property
    def statistics(self) -> list[Statistic]:
        """What is measured: of patterns those that have a pair in this text."""
        n_keys, has = int(self.key_non_sink.sum()), set[str]()
        if self.source is None:
            has.add(ONE_TEXT)
        elif min(self.n_non_sink, n_keys) >= 2:
            has.add(TWO_TEXTS)
        if n_keys < len(self.keys):
            has.add(SINKS)
        if self.learned_sinks:
            has.add(LEARNED_SINKS)
        return measurable([spec for spec in self.patterns if self.counts[spec.statistic]], has)

    @cached_property
    def repeats(self) -> list[str]:
        """The statistics of repeated tokens, of which this text has some."""
        return [name for name in REPEATS if self.counts.get(name)]

    def plan(self, first: int, n_rows: int, n_keys: int, device: torch.device) -> RowPlan:
        """What rows from ``first`` on may attend to of the first ``n_keys`` keys; made once."""
        kind = first, n_rows, n_keys, device
        if kind not in self._plans:
            last, masks, along = first + n_rows, None, None
            if self.text is not None:
                text = replace(self.text, first=first, last=last, device=self.device)
                masks = masks_of(text, self.patterns)[..., :n_keys]
            if self.source is not None:
                along = _along(self.key_non_sink)[:n_keys], _along(self.non_sink)[first:last]
            self._plans[kind] = RowPlan(
                device,
                queries=self._measured[first:last],
                non_sink=self.non_sink[first:last].to(self.device),
                first=first,
                allowed=self.allowed_rows(first, last)[:, :n_keys],
                content=self.key_non_sink[:n_keys].to(self.device),
                names=[spec.statistic for spec in self.patterns],
                masks=masks,
                along=along,
                learned_sinks=self.learned_sinks,
                keep=len(self.units) * len(self.keys) * _COLUMN_BYTES <= MOST_MASKS,
            )
        return self._plans[kind]

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """First and past-the-last row of chunks of the measured rows."""
        if self.queries is not None:
            return ((query, query + 1) for query in self.queries)
        return row_blocks(len(self.units), 2 * 8 * len(self.keys), CHUNK_BYTES)

    def uniform_rows(self) -> Iterator[tuple[int, Tensor]]:
        """Chunks of the measured rows of two heads, uniform over all keys and over content; each with its first row."""
        for first, last in self._chunks():
            allowed = self.allowed_rows(first, last)
            visible = torch.stack([allowed, allowed & self.key_non_sink.to(self.device)])
            yield first, uniform_pattern(visible, self.learned_sinks)

    @cached_property
    def uniform(self) -> dict[str, float | None]:
        """Every statistic under uniform attention, by name; for shares it is uniform over content alone."""
        heads = HeadStatistics(lambda _: self)
        for first, rows in self.uniform_rows():
            heads.add(0, first, rows)
        copy_to_host([heads])
        of_shares = {statistic.name for statistic in self.statistics if statistic.over == ATTENTION}
        uniform = {name: both[name in of_shares] for name, both in heads.results()[0].items()}
        return {DIAGONALITY: None, **uniform, **(self.contacts.chance if self.contacts else {})}

    @cached_property
    def _has_key(self) -> dict[str, NDArray[np.bool_]]:
        """By share, which content queries have a key under the mask, [n_units]."""
        has_key = np.zeros((len(self.patterns), len(self.units)), dtype=np.bool_)
        if self.patterns:
            chunks = [*self._chunks()]
            plans = [self.plan(first, last - first, len(self.keys), self.device) for first, last in chunks]
            for (first, last), rows in zip(chunks, on_host([plan.has_key for plan in plans]), strict=True):
                has_key[:, first:last] = rows.numpy()
        return dict(zip([spec.statistic for spec in self.patterns], has_key, strict=True))

    @cached_property
    def counts(self) -> dict[str, int]:
        """By share, its n: the number of content queries with a key under the mask."""
        counts = {spec.statistic: 0 for spec in PATTERNS.values()}
        return counts | {name: int(of_queries.sum()) for name, of_queries in self._has_key.items()}

    def baselines_of(self, statistics: Mapping[str, float | None]) -> dict[str, float | None]:
        """The baseline of each share of a head with these statistics; None where not measurable.

        Uniform attention over allowed content; of :data:`CHOSEN` the head's own weights with keys shuffled.
        """
        return {name: self.uniform.get(name) for name in self.counts} | {CHOSEN: statistics.get(SHUFFLED)}

    @cached_property
    def types(self) -> dict[str, NDArray[np.int64]]:
        """By statistic of :attr:`repeats` the position of the first copy of each query's token; -1 where none counts.

        Counted are content queries with a key under the mask; for induction only those followed by the same token as an
        earlier copy, as in the repeated random tokens of Olsson et al. 2022. Where only "the" comes back, before other
        words, attention to what followed it cannot be told from attention to nouns.
        """
        assert self.text is not None  # not called for cross-attention
        tokens, non_sink = self.text.tokens, [*self.non_sink.tolist(), False]
        firsts, pairs = dict[object, int](), set[tuple[object, object]]()
        followed = list[bool]()
        for i, (token, later) in enumerate(zip(tokens, [*tokens[1:], None], strict=True)):
            firsts.setdefault(token, i)
            followed.append(non_sink[i] and non_sink[i + 1] and (token, later) in pairs)
            pairs.add((token, later))  # what followed a copy counts even where the copy itself is a sink
        numbers = np.array([firsts[token] for token in tokens])
        counted = {name: self._has_key[name] & (np.array(followed) | (name != "induction")) for name in self.repeats}
        return {name: np.where(of_name, numbers, -1) for name, of_name in counted.items()}


def _along(non_sink: Tensor) -> Tensor:
    """Where each position stands among those of content, 0 to 1, [n]."""
    return (non_sink.cumsum(0) - 1) / max(int(non_sink.sum()) - 1, 1)


class HeadStatistics(LayerSums):
    """The statistics of every head of the verified layers of a single text; ``context_of`` gives the context of each.

    Patterns of tokens are merged to the context's units here; sums over rows are in float64. Besides
    :attr:`TextContext.statistics` these are TYPES, of :attr:`TextContext.types` those with over half of a token's
    attention there; and of cross-attention :attr:`aligned`.
    """

    def __init__(self, context_of: Callable[[int], TextContext]) -> None:
        super().__init__(lambda layer: context_of(layer).statistics)
        self._context_of = context_of
        self._merges = dict[int, UnitRows]()  # by layer

    def update(self, rows: PatternRows) -> None:
        """Add the next rows of a layer, merging tokens to units."""
        if rows.layer not in self._merges:
            context = self._context_of(rows.layer)
            units, keys = context.units.members, context.keys.members
            self._merges[rows.layer] = UnitRows(units, keys, rows.n_queries, rows.n_keys)
        self.add(rows.layer, *self._merges[rows.layer].add(rows.first, rows.in_float32[0]))

    def add(self, layer: int, first: int, pattern: Tensor) -> None:
        """Add rows of units from ``first`` on, [n_heads, rows, n_keys], perhaps none."""
        _, n_rows, n_keys = pattern.shape
        if n_rows:
            self.add_rows(layer, pattern, self._context_of(layer).plan(first, n_rows, n_keys, pattern.device))

    def on_rows(self, rows: AttentionRows, layers: Sequence[int], n_heads: list[int]) -> None:
        """Keep what single queries attend to, by layer and the first row of a chunk.

        This is attention under the masks of repeats, [n_repeats, n_heads, n_rows], and in cross-attention the key of
        largest weight, [n_heads, n_rows].
        """
        context = self._context_of(layers[0])  # all have the same
        of_rows = {}
        if context.repeats:
            of_rows[_SEEN] = torch.stack([rows.under[name] for name in context.repeats]).float()
        if context.source is not None:
            of_rows[_ALIGNED] = fast_argmax(rows.pattern)
        for kind, values in of_rows.items():
            for layer, part in zip(layers, torch.split(values, n_heads, -2), strict=True):
                self._keep((kind, layer, rows.plan.first), part)

    def on_device(self) -> list[Tensor]:
        """All that :meth:`results` needs from the device, to be copied at once with that of others."""
        self.finish()
        self._kept |= {(_SUMS, layer, 0): [sums] for layer, sums in self.by_layer.items()}
        return super().on_device()

    def take(self, copies: Iterator[Tensor]) -> None:
        """The copies of :meth:`on_device`, in order."""
        self._counts = {name: next(copies) for name in self._kept}

    def _of_units(self, kind: str, layer: int) -> NDArray[Any]:
        """Values of all units of a layer, [.., n_heads, n_units], from those of chunks of rows; 0 for other units."""
        chunks = {name[2]: values.numpy() for name, values in self._counts.items() if name[:2] == (kind, layer)}
        one = next(iter(chunks.values()))
        of_units = np.zeros((*one.shape[:-1], len(self._context_of(layer).units)), one.dtype)
        for first, values in chunks.items():
            of_units[..., first : first + values.shape[-1]] = values
        return of_units

    @property
    def aligned(self) -> dict[int, list[list[int]]]:
        """By layer and head each query's key of largest weight, in cross-attention (Koehn & Knowles 2017, 3.6)."""
        across = [layer for layer in self.by_layer if self._context_of(layer).source is not None]
        return {layer: self._of_units(_ALIGNED, layer).tolist() for layer in across}

    def results(self) -> dict[int, dict[str, list[float | None]]]:
        """By layer, in order, and name one number a head; None where not measurable.

        Names are :func:`scalars`, SHUFFLED, TYPES, and where they apply :data:`DIAGONALITY`, :data:`NOWHERE`.
        """
        names = [*scalars(), SHUFFLED, *TYPES.values()]
        results = {}
        for layer in sorted(self.by_layer):
            context, sums = self._context_of(layer), self._counts[_SUMS, layer, 0][..., 0]
            of_layer: dict[str, list[float | None]] = {name: [None] * sums.shape[1] for name in names}
            if context.source is not None:
                of_layer[DIAGONALITY] = [None] * sums.shape[1]
            measured: dict[str, Any] = {**quotients(context.statistics, sums), **self._types(layer)}
            for name, values in measured.items():
                of_layer[name] = [value if math.isfinite(value) else None for value in values.tolist()]
            results[layer] = of_layer
        return results

    def _types(self, layer: int) -> dict[str, NDArray[np.float64]]:
        """Number of types from which each head shows a repeat, its mean over the type's positions above half."""
        found, context = {}, self._context_of(layer)
        of_repeats = self._of_units(_SEEN, layer) if context.repeats else ()
        for name, seen in zip(context.repeats, of_repeats, strict=True):
            numbers = context.types[name]
            order = np.argsort(numbers, kind="stable")[(numbers < 0).sum() :]
            _, starts, counts = np.unique(numbers[order], return_index=True, return_counts=True)
            sums = np.add.reduceat(seen[..., order], starts, axis=-1)
            found[TYPES[name]] = (sums / counts > _HALF).sum(-1).astype(np.float64)
        return found


def ratio(value: float | None, of: float | None) -> float | None:
    """A quotient; None where either is unknown, or the divisor 0."""
    return None if value is None or not of else value / of
