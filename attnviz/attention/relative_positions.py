"""Relative position biases in buckets (Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.1).

Every head has a learned number for every bucket of distances, which is added to its scores. Half of the buckets are of
one distance each; the others grow logarithmically up to a largest distance, beyond which all share the last one.
"""

import math

import torch
from torch import Tensor

__all__ = ["bucketed_bias", "position_buckets"]


def position_buckets(
    n_queries: int, n_keys: int, n_buckets: int, max_distance: int, causal: bool, device: torch.device | None = None
) -> Tensor:
    """The bucket of each pair of a query and a key, [n_queries, n_keys].

    Args:
        n_queries: positions of queries, counted from 0.
        n_keys: of keys, likewise.
        n_buckets: of the table.
        max_distance: from which on all distances share a bucket.
        causal: one set of buckets, for keys at or before the query; else the second half is for those after it.
        device: to make it on.
    """
    positions = (torch.arange(n, device=device) for n in (n_queries, n_keys))
    queries, keys = positions
    ahead = keys[None, :] - queries[:, None]
    of_side = n_buckets if causal else n_buckets // 2
    distance = (-ahead).clamp(min=0) if causal else ahead.abs()
    exact = of_side // 2
    # float32, as the models were trained: where buckets meet, its rounding decides
    growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (growth * (of_side - exact)).long()).clamp(max=of_side - 1)
    bucket = torch.where(distance < exact, distance, far)
    return bucket if causal else bucket + of_side * (ahead > 0)


def bucketed_bias(table: Tensor, n_queries: int, n_keys: int, max_distance: int, causal: bool) -> Tensor:
    """What is added to the scores, [n_heads, n_queries, n_keys], from the learned ``table`` [n_buckets, n_heads]."""
    buckets = position_buckets(n_queries, n_keys, len(table), max_distance, causal, table.device)
    return table[buckets].permute(2, 0, 1)
