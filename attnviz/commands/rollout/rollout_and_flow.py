"""Attention rollout and attention flow: the share of each input token at each position, through all layers.

Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3. Of layer l let A be the mean pattern of
the heads, rows = queries. What a position passes on is part attention, part its own vector (the residual)::

    Â_l = (1 - r) A_l + r I        r = 0.5 in the paper
    R_0 = Â_0        R_l = Â_l R_{l-1}        [n, n], row: position at the layer's output, column: input token

Rows sum to 1, and where attention is causal, so is the rollout. In a norm rollout the norm of what attention adds from
key k to query q, ``||sum_h A_h[q, k] f_h(x_k)||`` (Kobayashi et al. 2020: a large weight on a short vector moves
little), takes the place of the weight.

The flow takes the weights Â for capacities: a node a position and layer, an edge from each position at a layer's output
to each at its input; the largest flow between two nodes is the attention flow. Every pair of output and input token is
a problem of its own. They are solved by SciPy's Dinic, whose capacities are whole numbers: a weight of 1 is 2^30, so
that a flow is right to about a millionth.
"""

import importlib.util
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.errors import AttnvizError

_AT_ONCE = 1 << 23
"""Numbers in the vectors of one block of queries: 32 MiB in float32."""

_WHOLE = 1 << 30


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

    Args:
        pattern: rows of it, [n_heads, rows, n], axes head, query, key.
        transformed: f_h(x_k), [n_heads, n, d_model], axes head, key.
        at_once: numbers in memory at once; queries are taken in blocks, so that memory does not grow with n².
    """
    n, d_model = transformed.shape[1:]
    n_queries = pattern.shape[1]
    weights, vectors = pattern.permute(2, 1, 0), transformed.transpose(0, 1)  # [key, query, head], [key, head, d_model]
    norms, totals = pattern.new_empty(n_queries, n), pattern.new_empty(n_queries, d_model)
    block = max(1, at_once // (n * d_model))
    for first in range(0, n_queries, block):
        queries = slice(first, first + block)
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
    """Mean total variation distance over all pairs of rows, which sum to 1; 0-1.

    Half the sum of absolute differences: 0 where all rows are alike, 1 where no two have a column in common; None where
    there is only one row. The sum over pairs is taken column by column over sorted values, so that it takes no
    [n, n, n].
    """
    n = len(matrix)
    if n < 2:
        return None
    ordered = matrix.double().sort(dim=0).values
    ranks = torch.arange(n, dtype=torch.float64, device=matrix.device)[:, None]
    over_pairs = ((2 * ranks - (n - 1)) * ordered).sum()  # of |a - b|, over all pairs and columns
    return max(0.0, float(over_pairs) / (n * (n - 1)))


def check_flow_library() -> None:
    """Raise AttnvizError where SciPy is not installed."""
    if importlib.util.find_spec("scipy") is None:
        raise AttnvizError(
            "the maximum flow (--flow) is found with SciPy, which is not installed; type: pip install 'attnviz[flow]'"
        )


def maximum_flows(mixed: NDArray[Any], query: int) -> NDArray[np.float64]:
    """The largest flow from one output token (``query``) to each input token, [n], 0-1 each; n problems.

    The graph has the output token at the top, all positions between the layers, and one input token at the bottom.
    Edges to the other input tokens lead nowhere else and are left out: it has 2 + (n_layers - 1) n nodes, and from one
    input token to the next only the capacities of the lowest edges change. ``mixed``, [n_layers, n, n], has the
    capacities, 0-1, from each position (row) to each position below (column).
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    n = mixed.shape[-1]
    if len(mixed) == 1:  # an idle layer above it leaves every flow as it is
        mixed = np.concatenate([mixed, np.eye(n, dtype=mixed.dtype)[None]])
    n_layers, positions = len(mixed), np.arange(n)
    capacities = np.rint(mixed * np.float64(_WHOLE)).astype(np.int32)
    sink = 1 + (n_layers - 1) * n
    above, below, sizes = [np.zeros(n, np.int64)], [1 + positions], [capacities[-1, query]]
    for step, layer in enumerate(range(n_layers - 2, 0, -1)):
        above.append(np.repeat(1 + step * n + positions, n))
        below.append(np.tile(1 + (step + 1) * n + positions, n))
        sizes.append(capacities[layer].ravel())
    above.append(sink - n + positions)
    below.append(np.full(n, sink))
    sizes.append(np.ones(n, np.int32))
    edges = tuple(np.concatenate(parts) for parts in (above, below, sizes))
    there = edges[2] > 0
    graph = csr_array((edges[2][there], (edges[0][there], edges[1][there])), shape=(sink + 1, sink + 1))
    flows = np.zeros(n)
    for key in range(n):
        graph.data[-n:] = capacities[0, :, key]  # rows end with one edge each, to the sink
        flows[key] = maximum_flow(graph, 0, sink).flow_value / _WHOLE
    return flows
