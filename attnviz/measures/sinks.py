"""Finds the attention sinks of a text in a decoder, beside the first token and special tokens.

Decoders put much of their attention on the first token, whatever it is (Xiao et al. 2023, "Efficient Streaming Language
Models with Attention Sinks"), and some on others, such as a line break, which then count as content and hide what a
head does. Here a position is a sink, too, where it gets more than 0.3 of the attention of the queries after it, in the
mean over these, from most heads of most layers. That share and mean are those of Gu et al. 2024, "When Attention Sink
Emerges in Language Models", section 3; the majority of heads and layers, stricter than their rate over all, is our own.
"""

from dataclasses import replace

import torch
from torch import Tensor

from attnviz.inputs.prompt import Prompt
from attnviz.measures.measure import Measure, PatternRows
from attnviz.measures.patterns import allowed_units
from attnviz.models.checkpoint import Checkpoint
from attnviz.run.verify import verify_attention

SINK_ATTENTION = 0.3  # mean attention from later queries above which a position is a sink of a head (Gu et al. 2024).

_MAJORITY = 0.5
# Tokens of a text among which sinks are searched: later ones do not change a decoder's attention to these.
_SEARCHED = 64

_LEAST_QUERIES = 4  # fewest later queries for a mean


class SinkTally(Measure):
    """Finds the sinks of a decoder's text in the rows of its verified run; of other models nothing."""

    def __init__(self, checkpoint: Checkpoint, tokens: Prompt) -> None:
        super().__init__()
        self._tokens, self._windows, self._device = tokens, checkpoint.windows, checkpoint.device
        n = min(len(tokens), _SEARCHED)
        self.searched = n if checkpoint.architecture.causal and not checkpoint.stacks and n > _LEAST_QUERIES else 0
        self._patterns: dict[int, Tensor] = {}  # by layer, [n_heads, n, n]

    def update(self, rows: PatternRows) -> None:
        """Keep the attention of the text's first tokens among themselves; rows come in order, from the first on."""
        first, n = rows.first, self.searched
        if first >= n:
            return
        part = rows.in_float32[0, :, : n - first, :n]
        if rows.layer not in self._patterns:
            self._patterns[rows.layer] = part.new_zeros(part.shape[0], n, n, device=self._device)
        self._patterns[rows.layer][:, first : first + part.shape[1], : part.shape[2]] = part

    def tokens(self) -> Prompt:
        """The tokens with the sinks found."""
        if not self._patterns:
            return self._tokens
        received = self._received(torch.stack(list(self._patterns.values())))
        share = (received > SINK_ATTENTION).float().mean(1)  # of the heads, [n_layers, n]
        is_sink = ((share > _MAJORITY).float().mean(0) > _MAJORITY).tolist()
        known = self._tokens.sink
        return replace(
            self._tokens, sink=(*(a or b for a, b in zip(known, is_sink, strict=False)), *known[self.searched :])
        )

    def _received(self, patterns: Tensor) -> Tensor:
        """Mean attention to each key from the later queries that see it, of patterns [n_layers, n_heads, n, n]."""
        n, device, windows = self.searched, patterns.device, self._windows
        allowed = {window: allowed_units(n, True, window).to(device) for window in set(windows)}
        seen = torch.stack([allowed[window] for window in windows]).tril(-1)  # [n_layers, n, n]
        count = seen.sum(1)
        received = torch.where(seen[:, None], patterns, 0.0).sum(-2) / count.clamp(min=1)[:, None]
        least = torch.tensor([min(_LEAST_QUERIES, (window or n) - 1) for window in windows], device=device)
        return torch.where((count >= least[:, None])[:, None], received, 0.0)


def with_found_sinks(checkpoint: Checkpoint, tokens: Prompt) -> Prompt:
    """The tokens with the sinks found in a run of the first of them alone, which a decoder attends with as in all."""
    tally = SinkTally(checkpoint, tokens)
    if tally.searched:
        begin = replace(tokens, ids=tokens.ids[: tally.searched], type_ids=None)
        verify_attention(checkpoint, begin, tally.update)
    return tally.tokens()
