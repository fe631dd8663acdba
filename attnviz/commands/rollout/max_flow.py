"""Attention flow: how much could pass from an output token down to each input token, were weights capacities.

Abnar & Zuidema 2020, section 3: a node a position and layer, an edge from each position at a layer's output to each at
its input, whose capacity is the weight mixed with the identity; the largest flow between two nodes is the attention
flow. Every pair of output and input token is a problem of its own. They are solved by SciPy's Dinic, whose capacities
are whole numbers: a weight of 1 is 2^30, so that a flow is right to about a millionth.
"""

import importlib.util
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import AttnvizError

_WHOLE = 1 << 30


def check_flow_library() -> None:
    """Raise AttnvizError where SciPy is not installed."""
    if importlib.util.find_spec("scipy") is None:
        raise AttnvizError(
            "the maximum flow (--flow) is found with SciPy, which is not installed; type: pip install 'attnviz[flow]'"
        )


def maximum_flows(mixed: NDArray[Any], query: int) -> NDArray[np.float64]:
    """The largest flow from one output token to each input token; n problems.

    The graph has the output token at the top, all positions between the layers, and one input token at the bottom.
    Edges to the other input tokens lead nowhere else and are left out: it has 2 + (n_layers - 1) n nodes, and from one
    input token to the next only the capacities of the lowest edges change.

    Args:
        mixed: [n_layers, n, n], capacities 0-1 from each position (row) to each position below (column).
        query: the position at the top.

    Returns:
        [n], 0-1 each.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    n = mixed.shape[-1]
    if len(mixed) == 1:  # an idle layer above it leaves every flow as it is
        mixed = np.concatenate([mixed, np.eye(n, dtype=mixed.dtype)[None]])
    n_layers, places = len(mixed), np.arange(n)
    capacities = np.rint(mixed * np.float64(_WHOLE)).astype(np.int32)
    sink = 1 + (n_layers - 1) * n
    above, below, sizes = [np.zeros(n, np.int64)], [1 + places], [capacities[-1, query]]
    for step, layer in enumerate(range(n_layers - 2, 0, -1)):
        above.append(np.repeat(1 + step * n + places, n))
        below.append(np.tile(1 + (step + 1) * n + places, n))
        sizes.append(capacities[layer].ravel())
    above.append(sink - n + places)
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
