"""Which positions of a text a decoder rests its attention on: found, beside those that are so by convention.

Decoders put much of their attention on the first token, whatever it is (Xiao et al. 2023, "Efficient Streaming Language
Models with Attention Sinks"), and some on others, such as a line break or the second token, which then count as content
and hide what a head does. Here a position is a sink, too, where it gets more than 0.3 of the attention of the queries
after it, in the mean over these, from most heads of most layers. That share, and the mean over later queries, are those
of the sink metric of Gu et al. 2024, "When Attention Sink Emerges in Language Models", section 3; the majority of heads
and layers is our own, stricter than their rate over all heads.
"""

from dataclasses import replace

import torch
from torch import Tensor

from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.undeclared import Undeclared
from attnviz.models.tokens import Tokens
from attnviz.trace.recorder import PatternsAlone, record_attention, record_undeclared

SINK_ATTENTION = 0.3
"""Of the attention of later queries, in the mean: above this a head rests on a position (Gu et al. 2024)."""

_MAJORITY = 0.5
_LOOKED_AT = 64
"""Tokens of a text that are looked at: what comes later cannot change what a decoder does with them."""

_LEAST_QUERIES = 4
"""Queries after a position that it takes for a mean."""


def with_found_sinks(checkpoint: Checkpoint, tokens: Tokens) -> Tokens:
    """The tokens of a decoder's text with its sinks; those of any other model as they are.

    The first tokens of the text are run on their own, which in a decoder gives the attention that they have in the
    whole text. Nothing is measured here: the patterns are verified when they are.
    """
    n = min(len(tokens), _LOOKED_AT)
    if not checkpoint.architecture.causal or checkpoint.stacks or n <= _LEAST_QUERIES:
        return tokens
    begin = replace(tokens, ids=tokens.ids[:n], type_ids=None)
    resting: list[Tensor] = []

    def visit(layer: int, pattern: Tensor) -> None:
        received = _received(pattern[0].float(), checkpoint.windows[layer])
        resting.append((received > SINK_ATTENTION).cpu())  # layers may run on different devices

    record = record_undeclared if isinstance(checkpoint.architecture, Undeclared) else record_attention
    record(checkpoint, begin.model_inputs(checkpoint.device), PatternsAlone(visit), torch.inf)
    heads = torch.stack([layer.float().mean(0) for layer in resting])  # of each layer the share of its heads, [.., n]
    found = ((heads > _MAJORITY).float().mean(0) > _MAJORITY).tolist()
    sink = (known or (place < n and found[place]) for place, known in enumerate(tokens.sink))
    return replace(tokens, sink=tuple(sink))


def _received(pattern: Tensor, window: int | None) -> Tensor:
    """What each key gets of the queries after it that see it, in the mean, of patterns [n_heads, n, n]: [n_heads, n].

    0 of keys with too few such queries.
    """
    positions = torch.arange(pattern.shape[-1], device=pattern.device)
    behind = positions[:, None] - positions
    seen = (behind > 0) & (behind < (window or len(positions) + 1))
    count = seen.sum(0)
    received = torch.where(seen, pattern, 0.0).sum(-2) / count.clamp(min=1)
    return torch.where(count >= min(_LEAST_QUERIES, (window or len(positions)) - 1), received, 0.0)
