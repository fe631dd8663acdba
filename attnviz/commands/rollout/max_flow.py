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

__all__ = ["FlowGraph", "Flows", "check_flow_library", "flow_shares"]

Flows = NDArray[np.float64]

_WHOLE = 1 << 30


def check_flow_library() -> None:
    """Raise AttnvizError where SciPy is not installed."""
    if importlib.util.find_spec("scipy") is None:
        raise AttnvizError(
            "the maximum flow (--flow) is found with SciPy, which is not installed; type: pip install 'attnviz[flow]'"
        )


class FlowGraph:
    """The graph of one output token: it at the top, all positions between the layers, one input token at the bottom.

    Edges to the other input tokens lead nowhere else and are left out: a graph has 2 + (n_layers - 1) n nodes.
    """

    def __init__(self, mixed: NDArray[Any], query: int) -> None:
        """Make the edges; of the lowest only the capacities change from one input token to the next.

        Args:
            mixed: [n_layers, n, n], capacities 0-1 from each position (row) to each position below (column).
            query: the position at the top.
        """
        from scipy.sparse import csr_array

        n = mixed.shape[-1]
        if len(mixed) == 1:  # an idle layer above it leaves every flow as it is
            mixed = np.concatenate([mixed, np.eye(n, dtype=mixed.dtype)[None]])
        n_layers = len(mixed)
        capacities = np.rint(mixed * np.float64(_WHOLE)).astype(np.int32)
        self._lowest, self._sink = capacities[0], 1 + (n_layers - 1) * n
        places = np.arange(n)
        above, below, sizes = [np.zeros(n, np.int64)], [1 + places], [capacities[-1, query]]
        for step, layer in enumerate(range(n_layers - 2, 0, -1)):
            above.append(np.repeat(1 + step * n + places, n))
            below.append(np.tile(1 + (step + 1) * n + places, n))
            sizes.append(capacities[layer].ravel())
        above.append(self._sink - n + places)
        below.append(np.full(n, self._sink))
        sizes.append(np.ones(n, np.int32))
        edges = tuple(np.concatenate(parts) for parts in (above, below, sizes))
        there = edges[2] > 0
        place = (edges[0][there], edges[1][there])
        self._graph = csr_array((edges[2][there], place), shape=(self._sink + 1, self._sink + 1))

    def flow_to(self, key: int) -> float:
        """The largest flow from the output token to one input token, 0-1."""
        from scipy.sparse.csgraph import maximum_flow

        self._graph.data[-len(self._lowest) :] = self._lowest[:, key]  # rows end with one edge each, to the sink
        return float(maximum_flow(self._graph, 0, self._sink).flow_value) / _WHOLE

    def flows(self) -> Flows:
        """The largest flow to every input token, [n]; n problems."""
        return np.array([self.flow_to(key) for key in range(len(self._lowest))])


def flow_shares(flows: Flows) -> Flows:
    """Flows to all input tokens, [.., n], divided by their sum, as the authors' own code does; rows sum to 1."""
    shares: Flows = flows / flows.sum(-1, keepdims=True)
    return shares
