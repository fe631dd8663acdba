"""One row of one head, number by number: what its softmax and its weighted sum are made of, to redo them by hand."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.commands.explain.stages import VerifiedStages
from attnviz.reference.attention import BY_POSITION, HeadParameters, upcast

MOST_KEYS = 32  # keys of which explain.json has the vectors: those with the largest weights


@dataclass(frozen=True, eq=False)
class FollowedRow:
    """The row of a token in a head: ``weight = exponential / total``, ``output = weight @ value``."""

    query: Tensor  # [d_head]
    key: Tensor  # [n, d_head], as is value
    value: Tensor
    product: Tensor  # [n], key @ query
    scale: float  # what products are multiplied by
    added: dict[str, Tensor]  # [n] each, to scaled products by position
    score: Tensor  # [n], the sum
    capped: Tensor | None  # [n]; None without a cap
    allowed: Tensor  # [n]
    largest: float  # score that enters the softmax
    exponential: Tensor  # [n], of the score less the largest; 0 of masked keys
    sink: float | None  # exponential of a learned sink, which is no token; None without
    total: float  # sum of all exponentials
    weight: Tensor  # [n]
    output: Tensor  # [d_head]

    def strongest(self, most: int) -> list[int]:
        """The keys with the largest weights, in the order of the text."""
        return sorted(self.weight.argsort(descending=True, stable=True)[:most].tolist())


def queries_and_keys(stages: VerifiedStages, parameters: HeadParameters) -> Tensor:
    """Queries and keys as they enter the scores, [2, n_heads, n, d_head]: normed, scaled, turned."""
    *_, last = (name for name in stages if name in ("split", "head_norm", "rotated"))
    query, key = stages[last].wide[:2]
    return torch.stack([query if "rotated" in stages else query * parameters.query_scale, key])


def row_of(stages: VerifiedStages, parameters: HeadParameters, head: int, token: int) -> FollowedRow:
    """The row of a token in a head, from the verified steps of its layer."""
    queries, keys = queries_and_keys(stages, parameters)[:, head]
    score = stages["scores"].wide[head, token]
    allowed = stages["mask"].tensor[token].cpu()
    capped = stages["capped"].wide[head, token] if "capped" in stages else None
    entering = score if capped is None else capped
    sinks = torch.empty(0) if parameters.sinks is None else upcast(parameters.sinks.detach()[head : head + 1]).cpu()
    largest = torch.cat([entering[allowed], sinks]).max()
    exponential = torch.where(allowed, (entering - largest).exp(), 0)
    of_sink = (sinks - largest).exp()
    return FollowedRow(
        query=queries[token],
        key=keys,
        value=stages["split"].wide[2, head, :, : parameters.output_weight.shape[1]],
        product=keys @ queries[token],
        scale=float(parameters.scale),
        added={name: stages[name].wide[head, token] for name in BY_POSITION if name in stages},
        score=score,
        capped=capped,
        allowed=allowed,
        largest=float(largest),
        exponential=exponential,
        sink=None if parameters.sinks is None else float(of_sink),
        total=float(exponential.sum() + of_sink.sum()),
        weight=stages["pattern"].wide[head, token],
        output=stages["weighted"].wide[head, token],
    )
