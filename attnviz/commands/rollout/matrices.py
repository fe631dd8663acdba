"""Attention rollout: the share of each input token at each position, through all layers.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3. Of layer l let A be the mean pattern of
the heads, rows = queries. What a position passes on is part attention, part its own vector (the residual)::

    Â_l = (1 - r) A_l + r I        r = 0.5 in the paper
    R_0 = Â_0        R_l = Â_l R_{l-1}        [n, n], row: position at the layer's output, column: input token

Rows sum to 1, and where attention is causal, so is the rollout. In a norm rollout the norm of what attention adds from
key k to query q, ``||sum_h A_h[q, k] f_h(x_k)||`` (Kobayashi et al. 2020: a large weight on a short vector moves
little), takes the place of the weight.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

import torch
from torch import Tensor

_AT_ONCE = 1 << 23  # numbers in the vectors of one chunk of queries: 32 MiB in float32


def mixed_with_identity(patterns: Tensor, residual: float = 0.5, learned_sinks: bool = False) -> Tensor:
    """Mix patterns, [.., n, n], with the identity by the share ``residual``, 0-1; rows sum to 1.

    Rows of the patterns sum to 1 up to rounding, which is divided out. With ``learned_sinks`` both sum to less: what
    goes nowhere carries nothing.
    """
    shares = patterns if learned_sinks else patterns / patterns.sum(-1, keepdim=True)
    identity = torch.eye(patterns.shape[-1], dtype=patterns.dtype, device=patterns.device)
    return (1 - residual) * shares + residual * identity


def rolled_out(mixed: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the rollout up to each layer, [n, n] in float64, from :func:`mixed_with_identity`, first layer first.

    Row = position at the layer's output, column = input token; rows sum to 1.
    """
    return accumulate((layer.double() for layer in mixed), lambda rolled, layer: layer @ rolled)


def summed_norms(pattern: Tensor, transformed: Tensor, at_once: int = _AT_ONCE) -> tuple[Tensor, Tensor]:
    """Norms of weighted values, heads summed, [rows, n], query by key; and the output without b_O, [rows, d_model].

    ``pattern``: rows of it, [n_heads, rows, n]; ``transformed``: f_h(x_k), [n_heads, n, d_model]. A chunk of queries
    has ``at_once`` numbers in memory, which does not grow with n².
    """
    n, d_model = transformed.shape[1:]
    n_queries = pattern.shape[1]
    weights, vectors = pattern.permute(2, 1, 0), transformed.transpose(0, 1)  # [key, query, head], [key, head, d_model]
    norms, totals = pattern.new_empty(n_queries, n), pattern.new_empty(n_queries, d_model)
    chunk = max(1, at_once // (n * d_model))
    for first in range(0, n_queries, chunk):
        queries = slice(first, first + chunk)
        added = torch.bmm(weights[:, queries], vectors)  # [key, query, d_model]
        norms[queries] = added.norm(dim=-1).T
        totals[queries] = added.sum(0)
    return norms, totals


def norm_patterns(norms: Tensor) -> Tensor:
    """Norms of weighted values, [.., n, n], query by key, as a pattern whose rows sum to 1.

    The row of a query with zero norms is that of the identity.
    """
    totals = norms.sum(-1, keepdim=True)
    identity = torch.eye(norms.shape[-1], dtype=norms.dtype, device=norms.device)
    return torch.where(totals > 0, norms / totals.clamp_min(torch.finfo(norms.dtype).tiny), identity)


def rows_apart(matrix: Tensor) -> float | None:
    """Mean total variation distance over all pairs of rows, which sum to 1; 0-1, None for a single row.

    0 where all rows are alike, 1 where no two have a column in common. The sum over pairs is taken column by column
    over sorted values, so that it takes no [n, n, n].
    """
    n = len(matrix)
    if n < 2:
        return None
    ordered = matrix.double().sort(dim=0).values
    ranks = torch.arange(n, dtype=torch.float64, device=matrix.device)[:, None]
    over_pairs = ((2 * ranks - (n - 1)) * ordered).sum()  # of |a - b|, over all pairs and columns
    return max(0.0, float(over_pairs) / (n * (n - 1)))
