"""The statistics of a head: entropy, distance, confidence, sink, and shares under masks.

For one head: ``A[q, k]`` is the pattern over n positions; ``S`` are the sink positions, ``C`` all others ("content").
The baseline of a share is the same share under uniform attention over allowed content.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.arguments import did_you_mean
from attnviz.errors import UsageError
from attnviz.inputs.prompt import Positions, UnitRows
from attnviz.measures.contacts import CONTACTS, ContactMap
from attnviz.measures.guesses import fast_argmax
from attnviz.measures.patterns import (
    CHOSEN,
    HOST,
    NAMES,
    ON_REPEATS,
    PATTERNS,
    REPEATS,
    SHARES,
    SHUFFLED,
    TYPES,
    Choice,
    MaskInput,
    applicable,
    choosing,
    chosen_weights,
    masks_of,
)
from attnviz.measures.sums import copy_to_host
from attnviz.memory import MOST_MASKS, row_blocks
from attnviz.plugins import live
from attnviz.reference.attention import nowhere, reached, uniform_pattern, weighted_logs
from attnviz.run.verify import VerifiedRows

_OF_ROWS = "entropy entropy_non_sink distance distance_non_sink confidence confidence_non_sink sink".split()

# All statistics of every head but TYPES and SHUFFLED, which only labels need.
SCALARS = live(lambda: (*_OF_ROWS, *SHARES, *REPEATS, *ON_REPEATS.values()))

_HALF = 0.5  # a head shows a pattern from a token if its mean over the token's positions is above this
_MOST_RUNS = 8  # most stretches of keys whose maxima are taken one by one

# The statistic of cross-attention alone, where statistics of positions within one text are None.
DIAGONALITY = "diagonality"

NOWHERE = "nowhere"  # the statistic of models with learned sinks alone: the share of attention that goes to no token
OPTIONAL = (DIAGONALITY, NOWHERE, *CONTACTS)  # what some texts of some models have


def statistic_named(name: str) -> str:
    """The statistic of heads.json that a name means, hyphens being underscores; UsageError where there is none."""
    wanted = name.strip().lower().replace("-", "_") if isinstance(name, str) else ""
    known = (*SCALARS, *OPTIONAL)
    if wanted not in known:
        near = did_you_mean(wanted, known)
        raise UsageError(f"unknown statistic {name!r} for a map: expected one of {', '.join(known)}.{near}")
    return wanted


Run = tuple[int, int]  # first and past-the-last key of a stretch


@dataclass(frozen=True)
class RowPlan:
    """The keys of content, the sinks, and the pairs under every mask in a chunk of rows.

    Pairs are listed as indices into the flattened chunk [rows, n_keys]. For a mask of more than half of a chunk's pairs
    of content, the pairs outside of it are listed.
    """

    non_sink: Tensor  # boolean [rows], the queries of content
    content: list[Run] | Tensor  # stretches of the keys of content; where there are many, the numbers of these keys
    sinks: Tensor  # the numbers of the other keys
    inverted: Tensor  # boolean [rows, n_masks], whether the pairs outside are listed
    indices: Tensor  # index in the chunk
    onto: Tensor  # the mask, plus the number of masks times the row
    to_choose: dict[str, Choice]  # by statistic, of the CHOSEN patterns


@dataclass(frozen=True)
class PairWeights:
    """What a chunk of rows is multiplied by, in its dtype."""

    # [rows, 4, n_keys]: 1 for content, 1 for sinks, the distance, and the distance of content; of cross-attention a
    # fifth, where each key of content stands from 0 to 1. Products with few columns are fastest the other way round.
    of_pairs: Tensor
    of_keys: Tensor  # [n_heads, 2, n_keys]: 1 for every key, and 1 for content
    to_choose: dict[str, tuple[Tensor, Tensor]]  # by statistic, the factors of each choice

    @property
    def nbytes(self) -> int:
        return self.of_pairs.nbytes + sum(factor.nbytes for both in self.to_choose.values() for factor in both)


CHUNK_BYTES = 128 * 2**20  # bytes of a chunk of rows of uniform attention


@dataclass(frozen=True)
class TextContext:
    """What the statistics of all heads of one text share."""

    units: Positions  # tokens, or words
    causal: bool  # whether a query sees only itself and what precedes it
    text: MaskInput | None  # input of the patterns' masks; None for cross-attention, which has none
    source: Positions | None = None  # of cross-attention, the units of the text attended to
    window: int | None = None  # attention window in tokens on each side, including the query; None for no window
    queries: tuple[int, ...] | None = None  # the units whose rows are measured, in order; None for all
    learned_sinks: bool = False  # whether rows may sum to less than 1
    contacts: ContactMap | None = None  # between the residues of a protein, if they are known
    device: torch.device = HOST  # where masks are made
    _plans: dict[object, RowPlan] = field(default_factory=dict, init=False, repr=False, compare=False)
    _weights: dict[object, PairWeights] = field(default_factory=dict, init=False, repr=False, compare=False)
    _types: dict[str, NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def keys(self) -> Positions:
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
        return range(len(self.units)) if self.queries is None else self.queries

    @cached_property
    def key_non_sink(self) -> Tensor:
        return ~torch.tensor(self.keys.sink, dtype=torch.bool)

    @cached_property
    def n_non_sink(self) -> int:
        return int(np.count_nonzero(self.non_sink.numpy()))

    @cached_property
    def n_key_non_sink(self) -> int:
        return sum(not sink for sink in self.keys.sink)

    def allowed_rows(self, first: int, last: int) -> Tensor:
        """Keys that the queries from ``first`` to before ``last`` may attend to, boolean [rows, n_keys]."""
        queries = torch.arange(first, last, device=self.device)[:, None]
        keys = torch.arange(len(self.keys), device=self.device)
        allowed = torch.ones(last - first, len(keys), dtype=torch.bool, device=self.device)
        if self.source is None and self.causal:
            allowed &= keys <= queries
        if self.source is None and self.window is not None:
            firsts = torch.tensor([unit[0] for unit in self.units.members], device=self.device)
            lasts = torch.tensor([unit[-1] for unit in self.units.members], device=self.device)
            allowed &= reached(firsts[first:last, None], lasts, self.window)
            allowed &= reached(firsts, lasts[first:last, None], self.window)
        return allowed

    @cached_property
    def masks(self) -> tuple[str, ...]:
        """The statistics of patterns that apply to the model; none for cross-attention."""
        return () if self.text is None else applicable(tuple(PATTERNS), self.text.causal)

    def mask_rows(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Allowed pairs in some rows, boolean [rows, n_keys]; those of content, and those under each mask, stacked."""
        allowed = self.allowed_rows(first, last)
        pairs = allowed & self.non_sink[first:last, None].to(self.device) & self.key_non_sink.to(self.device)
        if self.text is None:
            return allowed, pairs[None]
        masks = masks_of(replace(self.text, first=first, last=last, device=self.device))
        return allowed, torch.stack([pairs, *(mask for mask in masks.values() if mask is not None)]) & pairs

    @cached_property
    def selected(self) -> tuple[str, ...]:
        """The statistics whose masks are not empty in this text."""
        return tuple(name for name in self.masks if self.counts[name])

    def plan(self, first: int, pattern: Tensor) -> RowPlan:
        """The pairs under each of the :attr:`masks` in rows from ``first`` on, [n_heads, rows, n_keys]; made once."""
        kind = first, *pattern.shape[1:], pattern.device
        if kind in self._plans:
            return self._plans[kind]
        (rows, n_keys), device = pattern.shape[1:], pattern.device
        allowed, under = self.mask_rows(first, first + rows)
        pairs, masks = under[0, :, :n_keys], under[1:, :, :n_keys]
        n_pairs, *counts = under[..., :n_keys].sum((1, 2)).tolist()
        inverted = torch.tensor([2 * count > n_pairs for count in counts], dtype=torch.bool)
        inverted = inverted.to(self.device, non_blocking=True)
        row, key, mask = (masks ^ (pairs & inverted[:, None, None])).permute(1, 2, 0).nonzero().to(device).T
        runs, sinks, start = list[Run](), list[int](), 0
        for is_sink, group in groupby(self.keys.sink[:n_keys]):
            end = start + len(list(group))
            if is_sink:
                sinks += range(start, end)
            else:
                runs.append((start, end))
            start = end
        content = [number for run in runs for number in range(*run)]
        n_visible = allowed.sum(-1, dtype=pattern.dtype).to(device)
        to_choose = {
            name: choosing(n_visible, pairs.to(device), under_mask.to(device))
            for name, under_mask in zip(self.masks, masks, strict=True)
            if name in CHOSEN
        }
        self._plans[kind] = RowPlan(
            non_sink=self.non_sink[first : first + rows].to(device),
            content=runs if len(runs) <= _MOST_RUNS else torch.tensor(content, device=device),
            sinks=torch.tensor(sinks, dtype=torch.long, device=device),
            inverted=inverted.to(device).expand(rows, -1),
            indices=row * n_keys + key,
            onto=row * len(counts) + mask,
            to_choose=to_choose,
        )
        return self._plans[kind]

    def weights(self, first: int, pattern: Tensor) -> PairWeights:
        """What a chunk of rows is multiplied by; as :meth:`plan`, but kept only for texts that are not long."""
        kind = first, *pattern.shape, pattern.device, pattern.dtype
        if kind in self._weights:
            return self._weights[kind]
        far, content = distances(pattern, first), self.key_non_sink[: pattern.shape[-1]].to(pattern)
        columns = [content.expand_as(far), (1 - content).expand_as(far), far, far * content]
        if self.source is not None:
            columns.append((_along(self.key_non_sink).to(pattern) * content).expand_as(far))
        choices = self.plan(first, pattern).to_choose
        weights = PairWeights(
            torch.stack(columns, 1),
            torch.stack([torch.ones_like(content), content]).expand(len(pattern), -1, -1),
            {name: choice.factors(pattern.dtype) for name, choice in choices.items()},
        )
        if weights.nbytes + sum(kept.nbytes for kept in self._weights.values()) <= MOST_MASKS:
            self._weights[kind] = weights
        return weights

    @cached_property
    def _uniform(self) -> "HeadStatistics":
        """Two heads: attention uniform over allowed keys, and over allowed keys that are not sinks."""
        statistics = HeadStatistics(self, 2, kept=self.masks)
        statistics.begin(0)
        chunks = row_blocks(len(self.units), 2 * 8 * len(self.keys), CHUNK_BYTES)
        if self.queries is not None:
            chunks = ((query, query + 1) for query in self.queries)
        for first, last in chunks:
            allowed = self.allowed_rows(first, last)
            visible = torch.stack([allowed, allowed & self.key_non_sink.to(self.device)])
            statistics.add(first, uniform_pattern(visible, self.learned_sinks))
        self._weights.clear()  # those of layers are of another dtype
        copy_to_host([statistics])
        return statistics

    @cached_property
    def counts(self) -> dict[str, int]:
        """By share, its n: the number of content queries with a key under the mask."""
        counts = dict.fromkeys(NAMES, 0)
        if self.masks:
            counts |= zip(self.masks, (self._uniform.seen[:, 1, 0] > 0).sum(-1).tolist(), strict=True)
        return counts

    @cached_property
    def uniform(self) -> dict[str, float | None]:
        """Every statistic under uniform attention, by name; for shares it is uniform over content alone."""
        both = {DIAGONALITY: (None, None), **self._uniform.results()[0]}
        uniform = {name: of_content if name in NAMES else of_all for name, (of_all, of_content) in both.items()}
        return uniform if self.contacts is None else uniform | self.contacts.chance

    def baselines_of(self, statistics: Mapping[str, float | None]) -> dict[str, float | None]:
        """The baseline of each share of a head with these statistics; None where not measurable.

        Uniform attention over allowed content; of :data:`CHOSEN` patterns the head's own weights with keys shuffled.
        """
        shuffled = {name: statistics.get(of_shuffled) for name, of_shuffled in SHUFFLED.items()}
        return {name: self.uniform.get(name) for name in NAMES} | shuffled

    def types(self, name: str) -> NDArray[np.int64]:
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
            types = [-1] * len(self.non_sink)
            tokens = self.text.tokens
            non_sink = [*self.non_sink.tolist(), False]
            for i, (token, later) in enumerate(zip(tokens, [*tokens[1:], None], strict=True)):
                first = firsts.setdefault(token, i)
                if non_sink[i] and non_sink[i + 1] and (token, later) in pairs:
                    types[i] = first
                pairs.add((token, later))
            numbers = np.array(types)
        else:
            ids = {token: number for number, token in enumerate(dict.fromkeys(self.text.tokens))}
            numbers = np.array([ids[token] for token in self.text.tokens])
        counted = (numbers >= 0) & (self._uniform.seen[self.masks.index(name), 1, 0] > 0)
        of_types, numbers = np.unique(np.where(counted, numbers, -1), return_inverse=True)
        self._types[name] = numbers - int(of_types[0] == -1)
        return self._types[name]


@dataclass(frozen=True)
class _Chunk:
    """What is kept of a chunk of rows of one layer until all layers are summed."""

    positions: range
    plan: RowPlan
    on_pairs: Tensor  # sums of the weights times PairWeights.of_pairs, [rows, 4 or 5, n_heads]
    logs: Tensor  # sums of A ln A over all keys, and over content, [n_heads, 2, rows]
    largest: Tensor  # weight on content, [n_heads, rows]
    of_sinks: Tensor  # the largest weight on sinks, [n_heads, rows]
    masked: Tensor | None  # sums over the listed pairs of each mask, [n_heads, rows * n_masks]
    chosen: dict[str, Tensor]  # by pattern of CHOSEN, on chosen keys as they are and shuffled, [rows, n_heads, 2]
    nowhere: Tensor | None  # what goes to learned sinks, [n_heads, rows]
    aligned: Tensor | None  # of cross-attention, each query's key of largest weight, [n_heads, rows]

    @property
    def nbytes(self) -> int:
        """About their size in memory."""
        return self.largest.nbytes * (self.on_pairs.shape[1] + 4 + 2 * len(self.chosen) + self.plan.inverted.shape[-1])


_MOST_PENDING = 2**26  # bytes of chunks that are kept before they are summed


class HeadStatistics:
    """The statistics of every head of the verified layers of one context, for a single text.

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
    long_range_baseline  the same, expected where each row's keys in C are shuffled  attnviz
    diagonality         see below; of cross-attention alone                         after Shim et al. 2022
    on repeats          mean of sum_k A under M over the q with such a k, 0-1       Olsson et al. 2022
    types               tokens of :meth:`TextContext.types` with over half there    attnviz
    ==================  ==========================================================  =======================

    Voita et al. 2019 leave the end-of-sentence token out of confidence, since it is a sink; here all sinks are left out
    of the three numbers of content, and rows with all of their attention on sinks. In cross-attention q runs over the
    target and k over the source; distances and shares, which compare positions within one text, are None.

    Diagonality is how closely attention follows the diagonal from target to source, 0-1: 1 - mean over q in C of
    |sum_k A[q,k] k / (n_keys - 1) - q / (n_queries - 1)|, positions counted among content alone, rows divided by their
    sum over content. 1 is a straight diagonal; None where either text has fewer than two content positions (after Shim
    et al. 2022, "Understanding the Role of Self Attention for Efficient Speech Recognition", section 3, which measures
    distances from the diagonal of one text).

    With learned sinks a row has one outcome more, ``nowhere``, which entropy counts, too. Patterns of tokens are merged
    to the context's units here; sums over rows are in float64. ``kept`` are masks whose attention is kept by query, see
    :attr:`seen`; default those of repeated tokens.
    """

    def __init__(self, context: TextContext, n_heads: int, kept: Sequence[str] | None = None) -> None:
        self._context, self._n_heads = context, n_heads
        self._kept = [name for name in REPEATS if name in context.selected] if kept is None else kept
        self._merge: UnitRows | None = None
        self.layers: list[int] = []
        self._chunks: list[_Chunk] = []
        self._names: list[str] = []
        self._positions: list[int] = []
        self._n_summed = 0
        self._sums, self._seen, self._aligned = list[Tensor](), list[Tensor](), list[Tensor]()

    def update(self, rows: VerifiedRows) -> None:
        """Add the next chunk of rows, merging tokens to units; layers come one after the other."""
        if self.layers[-1:] != [rows.layer]:
            self.begin(rows.layer)
            units, keys = self._context.units.members, self._context.keys.members
            self._merge = UnitRows(units, keys, rows.n_queries, rows.n_keys)
        assert self._merge is not None
        self.add(*self._merge.add(rows.first, rows.in_float32[0]))

    def begin(self, layer: int) -> None:
        """Begin a layer."""
        if sum(chunk.nbytes for chunk in self._chunks) > _MOST_PENDING:
            self._sum()
        self.layers.append(layer)

    def add(self, first: int, pattern: Tensor) -> None:
        """Add rows of units from ``first`` on, [n_heads, rows, n_keys], perhaps none."""
        n_rows = pattern.shape[1]
        if not n_rows:
            return
        context = self._context
        plan, weights = context.plan(first, pattern), context.weights(first, pattern)
        rows = pattern.transpose(0, 1)
        masked = None
        if context.masks:
            masked = pattern.new_zeros(len(pattern), n_rows * len(context.masks))
            masked.index_add_(1, plan.onto, pattern.flatten(1).index_select(1, plan.indices))
        self._chunks.append(
            _Chunk(
                positions=range(first, first + n_rows),
                plan=plan,
                on_pairs=torch.bmm(weights.of_pairs, pattern.permute(1, 2, 0)),
                logs=torch.bmm(weights.of_keys, weighted_logs(pattern).mT),
                largest=_largest_of(pattern, plan.content),
                of_sinks=_largest_of(pattern, plan.sinks),
                masked=masked,
                chosen={
                    name: torch.bmm(chosen_weights(rows, factors), columns)
                    for name, (factors, columns) in weights.to_choose.items()
                },
                nowhere=nowhere(pattern) if context.learned_sinks else None,
                aligned=None if context.source is None else fast_argmax(pattern),
            )
        )

    def _sum(self) -> None:
        """Sum the chunks of complete layers over their rows."""
        chunks, self._chunks = self._chunks, []
        if not chunks:
            return
        n_layers = len(self.layers) - self._n_summed
        self._n_summed = len(self.layers)
        self._positions = [position for chunk in chunks[: len(chunks) // n_layers] for position in chunk.positions]
        values, under = self._values(chunks)
        stacked = torch.stack(list(values.values()))
        stacked = stacked.cpu() if stacked.device.type == "mps" else stacked  # it has no float64
        self._names = list(values)
        self._sums.append(stacked.view(len(stacked), self._n_heads, n_layers, -1).sum(-1, dtype=torch.float64))
        if self._kept:
            seen = torch.stack([under[name] for name in self._kept]).float()
            self._seen.append(seen.view(len(seen), self._n_heads, n_layers, -1))
        if self._context.source is not None:
            self._aligned.append(_rows_of("aligned", chunks).view(self._n_heads, n_layers, -1))

    def _values(self, chunks: Sequence[_Chunk]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The values of each row of some layers, [n_heads, n_layers * n_rows], and attention under each mask."""
        context = self._context
        total, sink, distance, of_content, *along = torch.cat([chunk.on_pairs for chunk in chunks]).permute(1, 2, 0)
        of_all, spread = torch.cat([chunk.logs for chunk in chunks], -1).unbind(1)
        largest = _rows_of("largest", chunks)
        non_sink = torch.cat([chunk.plan.non_sink for chunk in chunks])
        has_content = non_sink & (total > 0)
        divisors = torch.where(has_content, total, torch.inf)
        on_pairs = total * non_sink
        values = {
            "entropy": -of_all,
            "entropy_non_sink": (torch.xlogy(total, total) - spread).clamp(min=0.0) / divisors,  # -1e-8 by rounding
            "distance": distance,
            "distance_non_sink": of_content / divisors,
            "confidence": torch.maximum(largest, _rows_of("of_sinks", chunks)),
            "confidence_non_sink": largest / divisors,
            "sink": sink * non_sink,
            "total": on_pairs,
            "rows": has_content.to(total),
        }
        if context.learned_sinks:
            values = with_nowhere(values, _rows_of("nowhere", chunks))
            values[NOWHERE] = values[NOWHERE] * non_sink
        if context.source is not None:
            positions = [position for chunk in chunks for position in chunk.positions]
            diagonal = _along(context.non_sink)[positions].to(total)
            values["off_diagonal"] = torch.where(has_content, (along[0] / total - diagonal).abs(), 0.0)
        if not context.masks:
            return values, {}
        sums = _rows_of("masked", chunks).view(self._n_heads, -1, len(context.masks))
        inverted = torch.cat([chunk.plan.inverted for chunk in chunks])
        sums = torch.where(inverted, on_pairs[..., None] - sums, sums)
        under = dict(zip(context.masks, sums.unbind(-1), strict=True))
        chosen = {}
        for name in chunks[0].chosen:
            of_rows = torch.cat([chunk.chosen[name] for chunk in chunks])
            chosen[name], chosen[SHUFFLED[name]] = of_rows.permute(2, 1, 0)
        return values | under | chosen, under

    def on_device(self) -> list[Tensor]:
        """All that :meth:`results` needs from the device, to be copied at once with that of others."""
        self._sum()
        return [*self._sums, *self._seen, *self._aligned]

    def take(self, copies: Iterator[Tensor]) -> None:
        """The copies of :meth:`on_device`, in order."""
        for kept in (self._sums, self._seen, self._aligned):
            kept[:] = [next(copies) for _ in kept]

    @cached_property
    def seen(self) -> NDArray[np.float32]:
        """Each query's attention under the masks that are kept, [n_kept, n_heads, n_layers, n]; 0 for sinks."""
        return self._of_units(self._seen)

    def _of_units(self, of_rows: Sequence[Tensor]) -> NDArray[Any]:
        """Values of all units, from those of the rows of some layers each; 0 for other units."""
        values = np.concatenate([rows.numpy() for rows in of_rows], -2)
        of_units = np.zeros((*values.shape[:-1], len(self._context.units)), values.dtype)
        of_units[..., self._positions] = values
        return of_units

    @property
    def aligned(self) -> dict[int, list[list[int]]]:
        """By layer and head each query's key of largest weight, in cross-attention (Koehn & Knowles 2017, 3.6)."""
        if self._context.source is None:
            return {}
        by_layer = self._of_units(self._aligned).swapaxes(0, 1).tolist()
        return dict(zip(self.layers, by_layer, strict=True))

    def results(self) -> dict[int, dict[str, list[float | None]]]:
        """By layer and name one number a head; None where not measurable.

        Names are :data:`SCALARS`, :data:`SHUFFLED`, :data:`TYPES`, and where they apply :data:`DIAGONALITY`,
        :data:`NOWHERE`.
        """
        by_name: dict[str, list[list[float | None]]] = {}
        for name, values in self._measured().items():
            of_layers = values.T.tolist()
            by_name[name] = [[value if math.isfinite(value) else None for value in row] for row in of_layers]
        names = [*SCALARS, *SHUFFLED.values(), *TYPES.values()]
        if self._context.source is not None:
            names.append(DIAGONALITY)
        nothing: list[float | None] = [None] * self._n_heads
        return {
            layer: dict.fromkeys(names, nothing) | {name: rows[i] for name, rows in by_name.items()}
            for i, layer in enumerate(self.layers)
        }

    def _measured(self) -> dict[str, NDArray[np.float64]]:
        """The statistics that are measurable, [n_heads, n_layers]; NaN for heads that have none."""
        context = self._context
        n = len(self._context.query_positions)
        sums = dict(zip(self._names, np.concatenate([part.numpy() for part in self._sums], -1), strict=True))
        result = {"entropy": sums["entropy"] / n, "confidence": sums["confidence"] / n}
        if context.source is None:
            result["distance"] = sums["distance"] / n
        if not context.n_non_sink:
            return result
        if context.n_key_non_sink < len(context.keys):
            result["sink"] = sums["sink"] / context.n_non_sink
        if context.learned_sinks:
            result[NOWHERE] = sums[NOWHERE] / context.n_non_sink
        of_content = ["confidence_non_sink", "entropy_non_sink"]
        if context.source is None:
            of_content.append("distance_non_sink")
        with np.errstate(divide="ignore", invalid="ignore"):
            if context.n_key_non_sink:
                result |= {name: sums[name] / sums["rows"] for name in of_content}
            if context.source is not None and min(context.n_non_sink, context.n_key_non_sink) >= 2:
                result[DIAGONALITY] = 1 - sums["off_diagonal"] / sums["rows"]
            for name in context.selected:
                result[name] = sums[name] / sums["total"]
                if name in CHOSEN:
                    result[SHUFFLED[name]] = sums[SHUFFLED[name]] / sums["total"]
        for name in REPEATS:
            if name in context.selected:
                result[ON_REPEATS[name]] = sums[name] / context.counts[name]
                result[TYPES[name]] = self._types(name)
        return result

    def _types(self, name: str) -> NDArray[np.float64]:
        """Number of types from which each head shows the pattern, its mean over the type's positions above half."""
        numbers = self._context.types(name)
        seen = self.seen[self._kept.index(name)]
        order = np.argsort(numbers, kind="stable")[(numbers < 0).sum() :]
        if not len(order):
            return np.zeros(seen.shape[:2])
        counts = np.bincount(numbers[order])
        sums = np.add.reduceat(seen[..., order], np.cumsum(counts) - counts, axis=-1)
        shown: NDArray[np.float64] = (sums / counts > _HALF).sum(-1).astype(np.float64)
        return shown


def _rows_of(name: str, chunks: Sequence[_Chunk]) -> Tensor:
    return torch.cat([getattr(chunk, name) for chunk in chunks], 1)


def distances(pattern: Tensor, first: int) -> Tensor:
    """How far apart query and key are, [rows, n_keys], of rows from query ``first`` on."""
    n_rows, n_keys = pattern.shape[-2:]
    positions = torch.arange(max(first + n_rows, n_keys), dtype=pattern.dtype, device=pattern.device)
    return (positions[:n_keys] - positions[first : first + n_rows, None]).abs_()


def with_nowhere(values: dict[str, Tensor], gone: Tensor) -> dict[str, Tensor]:
    """Values of rows with what goes to no token, which is one more outcome in the entropy."""
    return values | {NOWHERE: gone, "entropy": values["entropy"] - torch.xlogy(gone, gone)}


def _along(non_sink: Tensor) -> Tensor:
    """Where each position stands among those of content, 0 to 1, [n]."""
    return (non_sink.cumsum(0) - 1) / max(int(non_sink.sum()) - 1, 1)


def _largest_of(pattern: Tensor, keys: list[Run] | Tensor) -> Tensor:
    """The largest weight of each row on some of the keys, [n_heads, rows]; 0 without keys."""
    if not len(keys):
        return pattern.new_zeros(pattern.shape[:2])
    if isinstance(keys, Tensor):
        return pattern.index_select(-1, keys).amax(-1)
    largest = [pattern[..., first:last].amax(-1) for first, last in keys]
    return largest[0] if len(largest) == 1 else torch.stack(largest).amax(0)


def ratio(value: float | None, of: float | None) -> float | None:
    """A quotient; None where either is unknown, or the divisor 0."""
    return None if value is None or not of else value / of
