"""One row of one head, number by number: what a softmax and a weighted sum are made of, to compute by hand."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.commands.explain.stages import VerifiedStages
from attnviz.reference.attention import HeadParameters, upcast

MOST_KEYS = 64
"""Keys of which vectors are listed: those with the largest weights."""


@dataclass(frozen=True)
class RowKey:
    """What one key gives to the row."""

    position: int
    product: float  # query · key
    score: float  # scaled, and with a bias by distance
    capped: float | None  # the score after a cap; None without
    allowed: bool
    exponential: float  # of the (capped) score less the largest one; 0 of a masked key
    weight: float
    key: Tensor  # [d_head], as it enters the product
    value: Tensor  # [d_head]

    @property
    def weighted_value(self) -> Tensor:
        """The value times the weight, [d_head]."""
        return self.weight * self.value


@dataclass(frozen=True)
class FollowedRow:
    """The row of a token in a head: ``weight = exponential / total``, ``output = sum of the weighted values``."""

    query: Tensor  # [d_head], as it enters the products
    scale: float  # what products are multiplied by
    largest: float  # the largest score that enters the softmax
    sink: float | None  # exponential of a learned sink, which is no token; None without
    total: float  # sum of all exponentials
    keys: Sequence[RowKey]
    output: Tensor  # [d_head]

    @property
    def strongest(self) -> list[RowKey]:
        """The keys whose vectors are listed, in the order of the text."""
        ranked = sorted(self.keys, key=lambda key: -key.weight)[:MOST_KEYS]
        return sorted(ranked, key=lambda key: key.position)


def queries_and_keys(stages: VerifiedStages, parameters: HeadParameters) -> Tensor:
    """Queries and keys as they enter the scores, [2, n_heads, n, d_head]: normed, scaled, turned."""
    if "rotated" in stages:
        return stages["rotated"].wide
    query, key = stages["head_norm" if "head_norm" in stages else "split"].wide[:2]
    return torch.stack([query * parameters.query_scale, key])


def row_of(stages: VerifiedStages, parameters: HeadParameters, head: int, token: int) -> FollowedRow:
    """The row of a token in a head, from the verified steps of its layer."""
    both, values = queries_and_keys(stages, parameters)[:, head], stages["split"].wide[2, head]
    query, keys = both[0, token], both[1]
    scores, allowed = stages["scores"].wide[head, token], stages["mask"].tensor[token].cpu()
    capped = stages["capped"].wide[head, token] if "capped" in stages else None
    entering = scores if capped is None else capped
    sink = None if parameters.sinks is None else float(upcast(parameters.sinks[head].detach()))
    largest = max(float(entering[allowed].max()), -torch.inf if sink is None else sink)
    exponentials = torch.where(allowed, (entering - largest).exp(), 0)
    weights, products = stages["pattern"].wide[head, token], keys @ query
    of_sink = None if sink is None else float(torch.tensor(sink - largest).exp())
    return FollowedRow(
        query=query,
        scale=float(parameters.scale),
        largest=largest,
        sink=of_sink,
        total=float(exponentials.sum()) + (of_sink or 0.0),
        keys=[
            RowKey(
                position=at,
                product=float(products[at]),
                score=float(scores[at]),
                capped=None if capped is None else float(capped[at]),
                allowed=bool(allowed[at]),
                exponential=float(exponentials[at]),
                weight=float(weights[at]),
                key=keys[at],
                value=values[at],
            )
            for at in range(len(keys))
        ],
        output=stages["weighted"].wide[head, token],
    )
