"""The attention rollout of one text: the data that figures, tables and files are made from."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from torch import Tensor

from attnviz.attention.verify import VerifiedAttention
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.tokens import Tokens, Units

__all__ = ["METHODS", "InputShares", "LayerShares", "RolledOut", "RolloutOptions"]

METHODS = ("attention", "rollout", "norm_rollout", "flow")
"""The ways to share an output token's attention among the input tokens; each is a field of :class:`InputShares`."""


@dataclass(frozen=True)
class RolloutOptions:
    """What was asked for, as far as it changes numbers.

    Attributes:
        words: merge the pieces of words, in what was rolled out over tokens.
        layer: up to which to roll out; None for the last.
        residual: share of the identity in every layer, 0-1.
        from_token: whose inputs to rank: a token, or ``#3``; None for [CLS] (the first), in GPT-2 the last.
        flow: find the maximum flow from that token.
        all_flows: find it from every token.
    """

    words: bool = False
    layer: int | None = None
    residual: float = 0.5
    from_token: str | None = None
    flow: bool = False
    all_flows: bool = False


class InputShares(NamedTuple):
    """How one output token's attention is shared among the input tokens, [n] by method; None where not measured.

    Attributes:
        attention: the mean pattern of the heads of the layer shown.
        rollout: of mean patterns.
        norm_rollout: of norms.
        flow: maximum flows, divided by their sum.
        uniform: as ``attention``, were it the same for all keys that a query may see.
        uniform_rollout: the rollout of that.
    """

    attention: Tensor
    rollout: Tensor
    norm_rollout: Tensor
    flow: Tensor | None
    uniform: Tensor
    uniform_rollout: Tensor


@dataclass(frozen=True)
class LayerShares:
    """What can be said of the rollout up to one layer as a whole, by method (no flow) and for uniform attention.

    Attributes:
        layer: counted from 0.
        sink: mean over content positions of what lies on sinks, 0-1; None where there is no content.
        rows_apart: mean total variation distance between two rows, 0-1; None where there is one row.
        parts_error: how far the vectors whose norms are taken, summed, are from the model's own attention output,
            as a share of the layer's largest.
    """

    layer: int
    sink: dict[str, float | None]
    rows_apart: dict[str, float | None]
    parts_error: float


@dataclass(frozen=True)
class RolledOut:
    """The attention rollout of one text; nothing in it comes from an unverified head.

    Matrices are [n, n] over :attr:`units`: row = position at a layer's output, column = input token; rows sum to 1.

    Attributes:
        text, pair: as given.
        checkpoint: the model.
        tokens: the text as the model read it.
        units: tokens, or words.
        attention: the verified heads.
        options: what was asked for.
        means: [n_layers, n, n], the mean pattern of the heads of each layer.
        norm_means: [n_layers, n, n], the norms of what attention adds, rows divided by their sum.
        weights: [n_layers, n, n], rollout up to each layer from the mean patterns.
        norms: [n_layers, n, n], the same from the norms.
        uniform: [n, n], uniform attention.
        uniform_rollout: [n, n], the rollout of uniform attention up to the layer shown.
        layers: one entry a layer; where a layer was chosen, up to that one, as all of the above.
        positions: of the output token whose inputs are ranked; several where it occurs more than once.
        flow: [n], maximum flow from it to each input token, divided by the sum; None where it was not asked for.
        max_flow: [n], the same before that, 0-1 each; None likewise, and with words.
        flows: [n, n], ``flow`` of every output token; None where it was not asked for.
    """

    text: str
    pair: str | None
    checkpoint: Checkpoint
    tokens: Tokens
    units: Units
    attention: VerifiedAttention
    options: RolloutOptions
    means: Tensor
    norm_means: Tensor
    weights: Tensor
    norms: Tensor
    uniform: Tensor
    uniform_rollout: Tensor
    layers: tuple[LayerShares, ...]
    positions: tuple[int, ...]
    flow: Tensor | None
    max_flow: Tensor | None
    flows: Tensor | None

    @property
    def layer(self) -> int:
        """Up to which was rolled out, counted from 0."""
        return len(self.layers) - 1

    @cached_property
    def inputs(self) -> InputShares:
        """How the chosen token's attention is shared among the input tokens; of several positions the mean."""
        rows = list(self.positions)
        matrices = (self.means[-1], self.weights[-1], self.norms[-1], self.uniform, self.uniform_rollout)
        attention, rollout, norms, uniform, uniform_rollout = (matrix[rows].mean(0) for matrix in matrices)
        return InputShares(attention, rollout, norms, self.flow, uniform, uniform_rollout)
