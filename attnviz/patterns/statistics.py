"""What the numbers of a head are: entropy, distance, confidence, sink, and shares under masks.

Written for one head: ``A[q, k]`` is the pattern over n positions; ``S`` are the sink positions,
``C`` all others ("content"). Every share stands beside its baseline, the same share under attention
that is uniform over what the mask allows.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnviz.attention.verify import VerifiedLayer
from attnviz.model.tokens import Units, merge_pattern
from attnviz.patterns.registry import ON_REPEATS, REPEATS, SHARES, TOP, TYPES, allowed_units, distances

SCALARS = (
    "entropy", "entropy_content", "distance", "distance_content", "confidence", "confidence_content", "sink", *SHARES,
    *REPEATS, *ON_REPEATS.values(),
)  # fmt: skip
"""All statistics that :func:`measure` gives for every head, but :data:`TYPES` and :data:`TOP`, which labels need."""

_MEASURED = *SCALARS, *TYPES.values(), *TOP.values()

_HALF = 0.5
"""A head attends so from a token where its mean over the token's places is above this."""

DIAGONALITY = "diagonality"
"""What it gives for heads of cross-attention, too, where those of positions in one text are None."""


@dataclass(frozen=True)
class TextContext:
    """What the statistics of every head of one text have in common.

    Attributes:
        units: tokens, or words.
        causal: whether a query sees only itself and what precedes it.
        masks: by statistic, boolean [n, n], from :func:`attnviz.patterns.registry.masks_of`; None where one cannot
            apply to this architecture.
        source: of cross-attention, the units of the text attended to; None where that is the same text.
        window: how many tokens a query sees, itself and those before it; None for all.
    """

    units: Units
    causal: bool
    masks: dict[str, Tensor | None]
    source: Units | None = None
    window: int | None = None

    @property
    def keys(self) -> Units:
        """What is attended to."""
        return self.units if self.source is None else self.source

    @cached_property
    def content(self) -> Tensor:
        """Queries that are not sinks, boolean [n_queries]."""
        return ~torch.tensor(self.units.sink, dtype=torch.bool)

    @cached_property
    def key_content(self) -> Tensor:
        """Keys that are not sinks, boolean [n_keys]."""
        return ~torch.tensor(self.keys.sink, dtype=torch.bool)

    @property
    def n_content(self) -> int:
        """How many queries are content."""
        return int(self.content.sum())

    @cached_property
    def allowed(self) -> Tensor:
        """Keys that each query may attend to, boolean [n_queries, n_keys]."""
        if self.source is not None:
            return torch.ones(len(self.units), len(self.source), dtype=torch.bool)
        allowed = allowed_units(len(self.units), self.causal)
        if self.window is None:
            return allowed
        firsts, lasts = (torch.tensor([unit[end] for unit in self.units.members]) for end in (0, -1))
        return allowed & (firsts[:, None] - lasts[None, :] < self.window)

    @cached_property
    def diagonality_baseline(self) -> float | None:
        """The diagonality of uniform attention; None of self-attention, or where it is not defined."""
        if self.source is None:
            return None
        return _diagonality(self.allowed[None].double(), self)[0]

    @cached_property
    def entropy_uniform(self) -> float:
        """Mean over all queries of ln of the number of allowed keys, in nats."""
        return float(self.allowed.sum(1).double().log().mean())

    @cached_property
    def entropy_content_uniform(self) -> float | None:
        """Mean over content queries of ln of the number of allowed content keys, in nats; None without any."""
        keys = (self.content_pairs & self.allowed).sum(1)
        return float(keys[keys > 0].double().log().mean()) if bool(keys.any()) else None

    @cached_property
    def sink_baseline(self) -> float | None:
        """Mean over content queries of the share of allowed keys that are sinks; None without either."""
        allowed = self.allowed[self.content]
        if not len(allowed) or bool(self.key_content.all()):
            return None
        return _mean_share((allowed & ~self.key_content).sum(1), allowed.sum(1))

    @cached_property
    def content_pairs(self) -> Tensor:
        """Pairs of a content query and a content key, boolean [n_queries, n_keys]."""
        return self.content[:, None] & self.key_content[None, :]

    @cached_property
    def selected(self) -> dict[str, Tensor]:
        """The masks over allowed content pairs; without those that hold no pair on this text."""
        pairs = self.content_pairs & self.allowed
        restricted = {name: mask & pairs for name, mask in self.masks.items() if mask is not None}
        return {name: mask for name, mask in restricted.items() if bool(mask.any())}

    @cached_property
    def weights(self) -> Tensor:
        """What attention is multiplied by and summed: distance, content pairs, each mask; [n * n, 2 + masks].

        Every sum of a layer then comes from one matrix product with its flattened patterns.
        """
        columns = [distances(len(self.units)).abs(), self.content_pairs, *self.selected.values()]
        return torch.stack([column.flatten().float() for column in columns], 1)

    @cached_property
    def baselines(self) -> dict[str, float | None]:
        """By share: the same under uniform attention over allowed content; None where not measurable."""
        keys = (self.content_pairs & self.allowed)[self.content].sum(1)
        shares = {name: _mean_share(mask[self.content].sum(1), keys) for name, mask in self.selected.items()}
        return {name: shares.get(name) for name in self.masks}

    @cached_property
    def counts(self) -> dict[str, int]:
        """By share: how many content queries have a key under the mask, which is what a share rests on."""
        return {name: int(self.selected[name].any(1).sum()) if name in self.selected else 0 for name in self.masks}

    @cached_property
    def baselines_on_repeats(self) -> dict[str, float | None]:
        """By share of :data:`REPEATS`: what uniform attention gives a copy, mean over the queries with one."""
        keys = self.allowed.sum(1)
        repeated = {name: mask for name, mask in self.selected.items() if name in REPEATS}
        shares = {name: _mean_share(mask.sum(1)[mask.any(1)], keys[mask.any(1)]) for name, mask in repeated.items()}
        return {name: shares.get(name) for name in REPEATS}

    def types(self, name: str) -> Tensor:
        """The different tokens that a label of :data:`REPEATS` can rest on, [n_types, n]: each row a mean over places.

        Places are content queries with an earlier copy; of induction only those that are followed by what followed an
        earlier copy, as all are in the repeated random tokens of Olsson et al. 2022. Where "the" alone comes back, and
        before other words, attention to what followed it is not told from attention to nouns.
        """
        copies = self.masks["duplicate"] if name == "induction" else self.selected["duplicate"]
        assert copies is not None  # repeats are looked for in every text
        copies = copies & self.content[:, None]  # what followed a copy counts even where the copy itself is a sink
        places = copies.any(1)
        if name == "induction":
            places = torch.nn.functional.pad((copies[:-1, :-1] & copies[1:, 1:]).any(1), (0, 1))
        own = torch.arange(len(copies))
        types = torch.where(copies.any(1), copies.int().argmax(1), own)  # the first place of the same token
        rows = (types == own[:, None]) & places
        rows = rows[rows.any(1)].float()
        return rows / rows.sum(1, keepdim=True)


def measure(layer: VerifiedLayer, context: TextContext) -> dict[str, list[float | None]]:
    """The statistics of every head of one verified layer, for a single text.

    ==================  ==========================================================  =======================
    entropy             mean over q of -sum_k A ln A, in nats                       Clark et al. 2019
    entropy_content     the same over q and k in C, of A / sum over C of A          after Clark et al. 2019
    distance            mean over q of sum_k A[q,k] abs(q-k), in tokens (or words)  Vig & Belinkov 2019
    distance_content    the same over q and k in C, of A / sum over C of A          after Voita et al. 2019
    confidence          mean over q of max_k A[q,k], 0-1                            after Voita et al. 2019
    confidence_content  the same over q and k in C, of A / sum over C of A          after Voita et al. 2019
    sink                mean over q in C of sum over k in S of A[q,k], 0-1          Xiao et al. 2023
    share of M          sum of A over content pairs under M / over content pairs    after Clark et al. 2019
    diagonality         see :func:`_diagonality`; of cross-attention alone          after Shim et al. 2022
    on repeats          mean of sum_k A under M over the q with such a k, 0-1       Olsson et al. 2022
    top of a share      of the q with a key under M, those whose largest A is there attnviz
    types               tokens of :meth:`TextContext.types` with over half there    attnviz
    ==================  ==========================================================  =======================

    Voita et al. 2019 leave the end-of-sentence token out of confidence, since heads that do nothing rest on it; here
    all sinks are left out of the three numbers of content, and rows of which nothing is left. Of cross-attention,
    q runs over the target and k over the source; distances and shares, which compare places in one text, are None.

    The layer's pattern, [1, n_heads, n_queries, n_keys] of tokens, is merged to the context's units here.

    Returns:
        by name (:data:`SCALARS`, :data:`TYPES`, :data:`TOP`), one number a head; None for what a text cannot measure.
    """
    pattern = merge_pattern(layer.wide[0], context.units.members, context.keys.members)
    if context.source is not None:
        return _between_texts(pattern, context)
    n, content = pattern.shape[1], context.content.to(pattern.device)
    distance, total, *shares = [_numbers(sums) for sums in (pattern.flatten(1) @ context.weights.to(pattern)).T]
    spread = torch.special.entr(pattern)
    result = _of_rows(pattern, spread, context)
    result["distance"] = [ratio(of_head, n) for of_head in distance]
    if not content.any():
        return result
    kept = _in_a_row(content)
    apart = distances(n).abs().to(pattern)
    spread = spread[:, kept][..., kept].sum(-1)  # from here on of rows: the whole is as large as all patterns
    result |= _on_content(pattern[:, kept][..., kept], apart[kept][:, kept], spread)
    largest = pattern.argmax(-1, keepdim=True).cpu()
    for name, values in zip(context.selected, shares, strict=True):
        result[name] = [ratio(value, of) for value, of in zip(values, total, strict=True)]
        if name in TOP:
            there = context.selected[name].expand_as(pattern).gather(-1, largest)[..., 0].sum(-1)
            result[TOP[name]] = [ratio(value, context.counts[name]) for value in _numbers(there)]
        if name in REPEATS:
            result[ON_REPEATS[name]] = [ratio(value, context.counts[name]) for value in values]
            seen = torch.einsum("hqk,qk->hq", pattern, context.selected[name].to(pattern))
            result[TYPES[name]] = _numbers((seen @ context.types(name).T.to(seen) > _HALF).sum(-1))
    return result


def _of_rows(pattern: Tensor, spread: Tensor, context: TextContext) -> dict[str, list[float | None]]:
    """Entropy, from -A ln A, confidence and sink of a pattern A, [n_heads, n_queries, n_keys]; None for all others."""
    content, keys = context.content.to(pattern.device), context.key_content.to(pattern.device)
    result: dict[str, list[float | None]] = {name: [None] * len(pattern) for name in _MEASURED}
    result |= {"entropy": _numbers(spread.sum(-1).mean(-1)), "confidence": _numbers(pattern.amax(-1).mean(-1))}
    if content.any() and not keys.all():
        result["sink"] = _numbers(pattern[..., ~keys][:, content].sum(-1).mean(-1))
    return result


def _between_texts(pattern: Tensor, context: TextContext) -> dict[str, list[float | None]]:
    """The statistics that have a meaning between two texts, of patterns [n_heads, n_queries, n_keys]."""
    own = pattern[:, context.content.to(pattern.device)][..., context.key_content.to(pattern.device)]
    result = _of_rows(pattern, torch.special.entr(pattern), context) | {DIAGONALITY: _diagonality(pattern, context)}
    if own.numel():
        found = _on_content(own, torch.zeros_like(own[0]), torch.special.entr(own).sum(-1))
        result |= {name: found[name] for name in ("confidence_content", "entropy_content")}
    return result


def _diagonality(pattern: Tensor, context: TextContext) -> list[float | None]:
    """How far a head goes through the source as the decoder goes through the target, 0-1, of each head.

    1 - mean over q in C of |sum_k A[q,k] k / (n_keys - 1) - q / (n_queries - 1)|: both places as shares of their texts,
    among content alone, rows divided by what they sum to there. 1 is a straight diagonal. After the diagonality of Shim
    et al. 2022, "Understanding the Role of Self Attention for Efficient Speech Recognition", section 3, which measures
    distances from the diagonal of one text. None where either text has fewer than two content positions. ``pattern`` is
    [n_heads, n_queries, n_keys].
    """
    content, keys = context.content.to(pattern.device), context.key_content.to(pattern.device)
    own = pattern[:, content][..., keys]
    n_queries, n_keys = own.shape[-2:]
    if min(n_queries, n_keys) < 2:
        return [None] * len(pattern)
    places, expected = (torch.linspace(0, 1, n, dtype=own.dtype, device=own.device) for n in (n_keys, n_queries))
    totals = own.sum(-1)
    rows = totals > 0
    apart = torch.where(rows, ((own @ places) / totals - expected).abs(), 0.0)
    return _numbers(1 - apart.sum(-1) / rows.sum(-1))


def alignment(pattern: Tensor) -> list[int]:
    """Word alignment: each query's key of largest weight in [n_queries, n_keys] (Koehn & Knowles 2017, section 3.6)."""
    positions: list[int] = pattern.argmax(-1).tolist()
    return positions


def _in_a_row(content: Tensor) -> Tensor | slice:
    """The positions as a slice, which copies no pattern, where they stand in a row: all but the first, say."""
    places = content.nonzero()[:, 0]
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else content


def _on_content(pattern: Tensor, apart: Tensor, spread: Tensor) -> dict[str, list[float | None]]:
    """Distance, confidence and entropy between content positions, of rows divided by what they sum to, t.

    Of a pattern A, [n_heads, n, n_keys], distances [n, n_keys], and sums of -A ln A, s, [n_heads, n], of which the
    entropy of such a row is s / t + ln t.
    """
    totals = pattern.sum(-1)
    rows, left = totals > 0, (totals > 0).sum(-1)

    def mean(values: Tensor) -> list[float | None]:
        return _numbers(torch.where(rows, values / totals, 0.0).sum(-1) / left)

    entropies = (spread + torch.xlogy(totals, totals)).clamp(min=0.0)  # below 0 by rounding alone
    return {
        "distance_content": mean((pattern * apart).sum(-1)),
        "confidence_content": mean(pattern.amax(-1)),
        "entropy_content": mean(entropies),
    }


def _mean_share(part: Tensor, of: Tensor) -> float:
    """Mean of a quotient of counts, in float64."""
    return float((part.double() / of).mean())


def ratio(value: float | None, of: float | None) -> float | None:
    """A quotient; None where either is unknown, or the divisor 0."""
    return None if value is None or not of else value / of


def _numbers(values: Tensor) -> list[float | None]:
    return [number if math.isfinite(number) else None for number in values.double().tolist()]
