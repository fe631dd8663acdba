"""Finds the attention sinks of a text in a decoder, beside the first token and special tokens.

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
from attnviz.models.tokens import Tokens
from attnviz.trace.patterns import PatternsAlone
from attnviz.trace.recorder import record_attention

SINK_ATTENTION = 0.3
"""Mean attention from later queries above which a position is a sink of a head (Gu et al. 2024)."""

_MAJORITY = 0.5
_SEARCHED = 64
"""Tokens of a text among which sinks are searched: later ones do not change a decoder's attention to these."""

_LEAST_QUERIES = 4
"""Fewest later queries for a mean."""


def with_found_sinks(checkpoint: Checkpoint, tokens: Tokens) -> Tokens:
    """The tokens of a decoder's text, with the sinks found; unchanged for other models.

    The first tokens of the text are run on their own, which in a decoder gives the attention that they have in the
    whole text. These patterns are not verified, and nothing else is taken from them.
    """
    n = min(len(tokens), _SEARCHED)
    if not checkpoint.architecture.causal or checkpoint.stacks or n <= _LEAST_QUERIES:
        return tokens
    begin = replace(tokens, ids=tokens.ids[:n], type_ids=None)
    sink_of_head: list[Tensor] = []  # a layer each, [n_heads, n]

    def visit(layer: int, pattern: Tensor) -> None:
        received = _received(pattern[0], checkpoint.windows[layer])
        sink_of_head.append((received > SINK_ATTENTION).to(checkpoint.device))  # layers may run on different devices

    record_attention(checkpoint, begin.model_inputs(checkpoint.device), PatternsAlone(checkpoint, visit), torch.inf)
    share = torch.stack([layer.float().mean(0) for layer in sink_of_head])  # of the heads, [n_layers, n]
    is_sink = ((share > _MAJORITY).float().mean(0) > _MAJORITY).tolist()
    sink = (known or (position < n and is_sink[position]) for position, known in enumerate(tokens.sink))
    return replace(tokens, sink=tuple(sink))


def _received(pattern: Tensor, window: int | None) -> Tensor:
    """Mean attention to each key from the later queries that see it, [n_heads, n], of patterns [n_heads, n, n].

    0 for keys with too few such queries.
    """
    positions = torch.arange(pattern.shape[-1], device=pattern.device)
    behind = positions[:, None] - positions
    seen = (behind > 0) & (behind < (window or len(positions) + 1))
    count = seen.sum(0)
    received = torch.where(seen, pattern, 0.0).sum(-2) / count.clamp(min=1)
    return torch.where(count >= min(_LEAST_QUERIES, (window or len(positions)) - 1), received, 0.0)
