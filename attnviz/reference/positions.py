"""Positions in scores: rotary positions, and biases by distance.

Rotary positions: queries and keys turned by angles that grow with their positions (Su et al. 2021, "RoFormer").

The numbers of a head are taken in pairs (i, i + d/2), the half-rotated layout; pair i of a query or key at position p
is turned by the angle p f_i, so that a score depends on the distance alone::

    f_i = base^(-2i/d)                                     [d/2], the frequencies, in radians a position
    (x_i, x_{i+d/2}) -> (x_i cos - x_{i+d/2} sin, x_{i+d/2} cos + x_i sin)        cos, sin of p f_i

Scaled kinds divide the frequencies so that longer texts have angles of a kind seen in training. Frequencies, angles,
cos and sin are computed in float32, as transformers computes them whatever the number format.

Linear biases (Press et al. 2022, "Train Short, Test Long"): every head has a slope, and a score is less by the slope
times the distance.

Biases in buckets (Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.1): every head has a
learned number for every bucket of distances. Half of the buckets are of one distance each; the others grow
logarithmically up to a largest distance, beyond which all share the last one.

Vectors of relative positions (He et al. 2021, "DeBERTa", section 3.1): every bucket δ of distances has a learned key
and a learned query, and a score is the scaled sum of three products, q · k + q · k_δ + k · q_δ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotary:
    """The rotary positions of a layer."""

    frequencies: Tensor  # [d/2]: radians a position; of a head only the first d numbers are turned
    factor: float = 1.0  # what cos and sin are multiplied by
    longest: int | None = None  # the most positions for which ``frequencies`` hold; None for any number
    beyond: Tensor | None = None  # the frequencies of longer texts (LongRoPE)
    in_float32: bool = False  # whether queries and keys are turned in float32 and rounded once (OLMo)
    rounded: bool = False  # whether cos and sin are rounded to the number format even so (ModernBERT)
    interleaved: bool = False  # whether pairs are neighbours, (2i, 2i + 1), as in the paper (Cohere)
    apart: bool = False  # whether what was interleaved is halves once it is turned (DeepSeek V3)
    at_end: bool = False  # whether the last d numbers of a head are turned (MLA)

    def of(self, n: int) -> Tensor:
        """The frequencies of a text of n positions."""
        is_longer = self.longest is not None and n > self.longest
        return self.beyond if self.beyond is not None and is_longer else self.frequencies


@dataclass(frozen=True)
class Temperature:
    """What queries are multiplied by, so that those far into a text stay sharp (Nakanishi 2025, Meta's "Llama 4")."""

    beta: float
    original: int  # positions that share a temperature, the first ones 1
    first: int = 0  # what the first position counts as
    rounded: bool = True  # whether it is rounded to the number format

    def of(self, positions: Tensor) -> Tensor:
        """1 + beta ln(1 + ⌊(first + p) / original⌋) at each position p, [n], in float32."""
        return 1 + self.beta * torch.log(1 + torch.floor((positions + self.first) / self.original))

    def times(self, query: Tensor) -> Tensor:
        """Queries [.., n, d_head] of a whole text, each multiplied by that of its position."""
        factors = self.of(torch.arange(query.shape[-2], device=query.device))[:, None]
        return (query * (factors.to(query.dtype) if self.rounded else factors)).to(query.dtype)


def apply_rotary(x: Tensor, rotary: Rotary, positions: Tensor | None = None, length: int | None = None) -> Tensor:
    """Queries or keys [.., n, d_head], each turned by its position 0, 1, ..; in the dtype of x.

    Of a part of a text, ``positions`` [n] are those of its tokens, and ``length`` is how many the text has.
    """
    frequencies = rotary.of(x.shape[-2] if length is None else length)
    dtype = torch.promote_types(x.dtype, torch.float32) if rotary.in_float32 else x.dtype
    kept = x.dtype if rotary.rounded else dtype
    if positions is None:
        cos, sin = cos_and_sin_of_all(frequencies, x.shape[-2], x.device, rotary.factor, kept=kept, dtype=dtype)
    else:
        cos, sin = _cos_and_sin(frequencies.to(x.device), positions, rotary.factor, kept, dtype)
    given = x.dtype
    x = x.to(dtype)
    half = len(frequencies)
    start = x.shape[-1] - 2 * half if rotary.at_end else 0
    before, part, after = x.tensor_split([start, start + 2 * half], -1)
    sizes, axis = ((half, 2), -1) if rotary.interleaved else ((2, half), -2)
    first, second = part.reshape(*x.shape[:-1], *sizes).unbind(axis)
    both = [first * cos - second * sin, second * cos + first * sin]
    turned = torch.stack(both, -2 if rotary.apart else axis).flatten(-2)
    return torch.cat([before, turned, after], dim=-1).to(given)


@lru_cache(maxsize=8)
def cos_and_sin_of_all(
    frequencies: Tensor, n: int, device: torch.device, factor: float, kept: torch.dtype, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Those of positions 0 to n, made once for queries and keys of all layers of a pass that share the frequencies."""
    with torch.inference_mode(False):
        return _cos_and_sin(frequencies.to(device), torch.arange(n, device=device), factor, kept, dtype)


def _cos_and_sin(
    frequencies: Tensor, positions: Tensor, factor: float, kept: torch.dtype, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cos and sin of the angles, [n, d/2] each, rounded to ``kept``, in ``dtype``."""
    angles = positions.float()[:, None] * frequencies
    cos, sin = (part.mul(factor).to(kept).to(dtype) for part in (angles.cos(), angles.sin()))
    return cos, sin


def default_frequencies(d: int, base: float) -> Tensor:
    """base^(-2i/d), [d/2]: from one radian a position to nearly none (Su et al. 2021, section 3.2.2)."""
    return 1.0 / base ** (torch.arange(0, d, 2, dtype=torch.float) / d)


def llama3_frequencies(frequencies: Tensor, factor: float, low: float, high: float, original: int) -> Tensor:
    """Frequencies divided by a factor where they are low (Grattafiori et al. 2024, "The Llama 3 Herd of Models").

    A pair that turns fewer than ``low`` times within the ``original`` context is slowed down by ``factor``, one that
    turns more than ``high`` times is left alone; in between it is a mean of both, weighted by the number of turns.
    """
    turns = original * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / factor + kept * frequencies


def yarn_frequencies(
    frequencies: Tensor, base: float, factor: float, fast: float, slow: float, original: int, whole: bool = True
) -> Tensor:
    """Frequencies divided by a factor where they are low (Peng et al. 2023, "YaRN", section 3.2).

    Pairs that turn more than ``fast`` times within the ``original`` context are left alone, those that turn less than
    ``slow`` times are slowed down by ``factor``; in between the mean of both changes with the number of the pair.
    ``whole``: the ends of this range are rounded to whole pairs.
    """
    d = 2 * len(frequencies)

    def pair(turns: float) -> float:
        return d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(fast), pair(slow)
    if whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, d - 1)
    width = last - first or 0.001
    slowed = ((torch.arange(d // 2, dtype=torch.float) - first) / width).clamp(0, 1)
    return frequencies / factor * slowed + frequencies * (1 - slowed)


def longrope_frequencies(frequencies: Tensor, factors: Sequence[float]) -> Tensor:
    """Every frequency divided by a factor of its own (Ding et al. 2024, "LongRoPE", section 3.2)."""
    return frequencies / torch.tensor(factors, dtype=torch.float)


def position_buckets(queries: Tensor, n_keys: int, n_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """The bucket of each pair of a query and a key, [n_queries, n_keys]; queries are positions, keys count from 0.

    From ``max_distance`` on all distances share a bucket. Causal is one set of buckets, for keys at or before the
    query; else the second half is for those after it.
    """
    ahead = torch.arange(n_keys, device=queries.device)[None, :] - queries[:, None]
    of_side = n_buckets if causal else n_buckets // 2
    distance = (-ahead).clamp(min=0) if causal else ahead.abs()
    exact = of_side // 2
    # float32, as the models were trained: where buckets meet, its rounding decides
    growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (growth * (of_side - exact)).long()).clamp(max=of_side - 1)
    bucket = torch.where(distance < exact, distance, far)
    return bucket if causal else bucket + of_side * (ahead > 0)


def bucketed_bias(table: Tensor, first: int, n_queries: int, n_keys: int, max_distance: int, causal: bool) -> Tensor:
    """The bias of the scores of the queries from ``first`` on, [n_heads, n_queries, n_keys].

    ``table`` are the learned numbers, [n_buckets, n_heads].
    """
    queries = torch.arange(first, first + n_queries, device=table.device)
    return table[position_buckets(queries, n_keys, len(table), max_distance, causal)].permute(2, 0, 1)


def alibi_slopes(n_heads: int) -> Tensor:
    """The slopes of linear biases, [n_heads], a geometric sequence (Press et al. 2022, section 3).

    Of n heads, n a power of two, 2^(-8/n), 2^(-16/n), ..; more heads have every second one of twice as many.
    """
    n = 2 ** int(math.log2(n_heads))
    of_power, between = (2 ** (-8 / n * (torch.arange(n) + start)) for start in (1.0, 0.5))
    return torch.cat([of_power, between])[:n_heads]


def linear_bias(slopes: Tensor, dtype: torch.dtype, first: int, n_queries: int, n_keys: int) -> Tensor:  # noqa: ARG001
    """The bias of every key, slope times position, [n_heads, n_queries, n_keys], rounded to ``dtype``.

    Rows differ from minus slope times distance by a number each, which no softmax sees: so BLOOM has it.
    """
    keys = slopes[:, None, None] * torch.arange(n_keys, device=slopes.device)
    return keys.to(dtype).expand(-1, n_queries, -1)


@dataclass(frozen=True)
class RelativePositions:
    """The vectors of the relative positions of a layer, and their buckets."""

    # [n_heads, n_buckets, d_head] each: ``content_to_position``, with which queries are compared, and
    # ``position_to_content``, with which keys are; one of them may be missing
    vectors: dict[str, Tensor]
    # the distance from which on all share a bucket, where these are logarithmic; None where every distance has one, up
    # to half of them on each side
    farthest: int | None

    def products(self, query: Tensor, key: Tensor, scale: float, first: int = 0) -> dict[str, Tensor]:
        """Scaled products of queries and keys with these vectors by name, [.., n_heads, n_queries, n_keys].

        Of queries from position ``first`` on, [.., n_heads, n_queries, d_head], and keys from 0 on.
        """
        positions = torch.arange(max(first + query.shape[-2], key.shape[-2]), device=query.device)
        distance = positions[first : first + query.shape[-2], None] - positions[: key.shape[-2]]
        products: dict[str, Tensor] = {}
        for name, vectors in self.vectors.items():
            bucket = self._buckets(distance, vectors.shape[1] // 2)
            of_keys = name == "position_to_content"
            compared, index = (key, bucket.T) if of_keys else (query, bucket)
            product = (compared @ vectors.to(compared).mT).gather(-1, index.expand(*compared.shape[:-2], -1, -1))
            products[name] = scale * (product.mT if of_keys else product)
        return products

    def _buckets(self, distance: Tensor, half: int) -> Tensor:
        """The bucket of each distance of a query from a key; ``half`` of them are of keys before the query."""
        if self.farthest is not None:
            exact = half // 2  # float32, and rounded up, as in the models
            growth = torch.log(distance.abs().clamp(min=1) / exact)
            growth /= torch.log(torch.tensor((self.farthest - 1) / exact))
            far = (growth * (exact - 1)).ceil().long() + exact
            distance = torch.where(distance.abs() <= exact, distance, far * distance.sign())
        return (distance + half).clamp(0, 2 * half - 1)
