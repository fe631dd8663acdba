"""Finds the attention sinks of a text in a decoder, beside the first token and special tokens.

Decoders put much of their attention on the first token, whatever it is (Xiao et al. 2023, "Efficient Streaming Language
Models with Attention Sinks"), and some on others, such as a line break, which then count as content and hide what a
head does. Here a position is a sink, too, where it gets more than 0.3 of the attention of the queries after it, in the
mean over these, from most heads of most layers. That share and mean are those of Gu et al. 2024, "When Attention Sink
Emerges in Language Models", section 3; the majority of heads and layers, stricter than their rate over all, is our own.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnviz.models.checkpoint import Checkpoint
from attnviz.models.tokens import Tokens
from attnviz.reference.attention import allowed_positions
from attnviz.run.patterns import PatternCallback
from attnviz.run.record import record_attention

SINK_ATTENTION = 0.3  # mean attention from later queries above which a position is a sink of a head (Gu et al. 2024).

_MAJORITY = 0.5
# Tokens of a text among which sinks are searched: later ones do not change a decoder's attention to these.
_SEARCHED = 64

_LEAST_QUERIES = 4  # fewest later queries for a mean


def with_found_sinks(checkpoint: Checkpoint, tokens: Tokens) -> Tokens:
    """The tokens of a decoder's text, with the sinks found; unchanged for other models.

    The first tokens of the text are run on their own, which in a decoder gives the attention that they have in the
    whole text. These patterns are not verified, and nothing else is taken from them.
    """
    n = min(len(tokens), _SEARCHED)
    if not checkpoint.architecture.causal or checkpoint.stacks or n <= _LEAST_QUERIES:
        return tokens
    begin = replace(tokens, ids=tokens.ids[:n], type_ids=None)
    patterns: list[Tensor] = []  # a layer each, [1, n_heads, n, n]

    def keep(_: int, pattern: Tensor) -> None:
        same = pattern.device == checkpoint.device  # layers may run on different devices
        patterns.append(pattern if same else pattern.to(checkpoint.device))

    record_attention(checkpoint, begin.model_inputs(checkpoint.device), PatternCallback(checkpoint, keep), torch.inf)
    received = _received(torch.cat(patterns), checkpoint.windows)
    share = (received > SINK_ATTENTION).float().mean(1)  # of the heads, [n_layers, n]
    is_sink = ((share > _MAJORITY).float().mean(0) > _MAJORITY).tolist()
    sink = (known or (position < n and is_sink[position]) for position, known in enumerate(tokens.sink))
    return replace(tokens, sink=tuple(sink))


def _received(patterns: Tensor, windows: Sequence[int | None]) -> Tensor:
    """Mean attention to each key from the later queries that see it, of patterns [n_layers, n_heads, n, n]."""
    n, device = patterns.shape[-1], patterns.device
    every = torch.ones(1, n, device=device)
    allowed = {window: allowed_positions(every, True, window)[0, 0] for window in set(windows)}
    seen = torch.stack([allowed[window] for window in windows]).tril(-1)  # [n_layers, n, n]
    count = seen.sum(1)
    received = torch.where(seen[:, None], patterns, 0.0).sum(-2) / count.clamp(min=1)[:, None]
    least = torch.tensor([min(_LEAST_QUERIES, (window or n) - 1) for window in windows], device=device)
    return torch.where((count >= least[:, None])[:, None], received, 0.0)
