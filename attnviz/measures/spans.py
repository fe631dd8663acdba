"""Attention between spans of a text, and how much new tokens look back at the prompt.

The share from span A to span B is sum over k in B of A[q,k], its mean over the queries q of A, and of the last one by
itself; the same under attention that is uniform over what each query sees stands beside it. Tokens are measured as
they are, sinks included, whatever units a text is shown in.

Lookback ratio (Chuang et al. 2024, "Lookback Lens", section 2.1), of a new token q: P / (P + N), P being the mean
attention to a token of the prompt and N that to a new token, q itself included. Here its mean over new tokens.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnviz.measures.statistics import TextContext
from attnviz.measures.sums import copy_to_host
from attnviz.models.head_ids import HeadId
from attnviz.models.spans import Span
from attnviz.models.tokens import Tokens, merge_subwords
from attnviz.reference.attention import uniform_pattern
from attnviz.trace.recorder import row_blocks
from attnviz.trace.verify import VerifiedRows

_BLOCK_BYTES = 128 * 2**20  # bytes of a block of uniform attention


@dataclass(frozen=True)
class SpanShare:
    """Attention of one head from one span to another.

    Attributes:
        source, target: names of the spans that attend and are attended to.
        share: of the attention of ``source``, mean over its queries, 0-1.
        uniform: the same under uniform attention.
        per_token: ``share`` over the tokens of ``target``.
        last: ``share`` of the last query of ``source`` alone; None where that is not measured.
        last_uniform: likewise.
    """

    id: HeadId
    source: str
    target: str
    share: float
    uniform: float
    per_token: float
    last: float | None
    last_uniform: float | None


@dataclass(frozen=True)
class SpanLayout:
    """Which token of a text is in which span.

    Attributes:
        spans: in the order of the text, or as they were named.
        first_new: the first new token: generated, or of the answer that ends a chat; None where there is none.
    """

    spans: tuple[Span, ...]
    n_tokens: int
    first_new: int | None = None
    _copies: dict[object, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def on(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """1 where a token is in a span, [n_tokens, n_spans], and the last token of each, beside a pattern.

        They are copied there once, for all layers.
        """
        kind = like.device, like.dtype
        if kind not in self._copies:
            inside = torch.zeros(self.n_tokens, len(self.spans))
            for number, span in enumerate(self.spans):
                inside[list(span.tokens), number] = 1
            lasts = torch.tensor([span.tokens[-1] for span in self.spans], dtype=torch.long)
            self._copies[kind] = inside.to(like), lasts.to(like.device)
        return self._copies[kind]


class SpanTally:
    """Sums the attention of every head of one layer between spans, block by block of query rows, on the device."""

    def __init__(self, layout: SpanLayout) -> None:
        self.layout = layout
        self._rows: list[tuple[int, int]] = []
        self._sums: list[Tensor] = []

    def update(self, rows: VerifiedRows) -> None:
        """Add the next block of rows."""
        self.add(rows.first, rows.wide[0])

    def add(self, first: int, pattern: Tensor) -> None:
        """Add rows of tokens from ``first`` on, [n_heads, rows, n_keys]; later keys are hidden from them."""
        _, n_rows, n_keys = pattern.shape
        inside, lasts = self.layout.on(pattern)
        onto = pattern @ inside[:n_keys]  # [n_heads, rows, n_spans]
        from_spans = torch.einsum("qa,hqb->hab", inside[first : first + n_rows], onto)
        here = (lasts >= first) & (lasts < first + n_rows)
        of_last = onto.index_select(1, (lasts - first).clamp(0, n_rows - 1)) * here[:, None]
        sums = [_wide(each) for each in (from_spans, of_last, self._lookback(first, pattern))]
        self._sums = [before + new for before, new in zip(self._sums, sums, strict=True)] if self._sums else sums
        self._rows.append((first, first + n_rows))

    def _lookback(self, first: int, pattern: Tensor) -> Tensor:
        """Lookback ratios of the new tokens among some rows: their sum and their number, [2, n_heads]."""
        first_new, (n_heads, n_rows, _) = self.layout.first_new, pattern.shape
        if first_new is None or first + n_rows <= first_new:
            return pattern.new_zeros(2, n_heads)
        new_rows = pattern[:, max(0, first_new - first) :]
        queries = torch.arange(first + n_rows - new_rows.shape[1], first + n_rows, device=pattern.device)
        to_prompt = new_rows[..., :first_new].sum(-1) / first_new
        to_new = new_rows[..., first_new:].sum(-1) / (queries - first_new + 1)
        total = to_prompt + to_new
        ratios = torch.where(total > 0, to_prompt / total, 0.0)
        return torch.stack([ratios.sum(-1), (total > 0).sum(-1).to(ratios)])

    def on_device(self) -> list[Tensor]:
        """The sums, to be copied at once with those of other layers."""
        return self._sums

    def take(self, copies: Iterator[Tensor]) -> None:
        """The copies of :meth:`on_device`, in order."""
        self._sums = [next(copies) for _ in self._sums]

    def _measured(self, token: int) -> bool:
        return any(first <= token < end for first, end in self._rows)

    @cached_property
    def shares(self) -> Tensor:
        """Mean share over the queries of each span, to each span, [n_heads, n_spans, n_spans]; NaN without queries."""
        counts = [sum(map(self._measured, span.tokens)) for span in self.layout.spans]
        return self._sums[0] / torch.tensor([count or torch.nan for count in counts])[:, None]

    @cached_property
    def last_shares(self) -> Tensor:
        """Likewise of the last token of each span alone."""
        missing = [not self._measured(span.tokens[-1]) for span in self.layout.spans]
        return self._sums[1].masked_fill(torch.tensor(missing)[:, None], torch.nan)

    @cached_property
    def lookback(self) -> Tensor:
        """Mean lookback ratio of the new tokens, [n_heads]; NaN without any."""
        return self._sums[2][0] / self._sums[2][1]

    @cached_property
    def numbers(self) -> tuple[Any, Any, Any]:
        """These three, as nested lists."""
        return self.shares.tolist(), self.last_shares.tolist(), self.lookback.tolist()


def _wide(sums: Tensor) -> Tensor:
    """In float64; on the host where the device has none."""
    return (sums.cpu() if sums.device.type == "mps" else sums).double()


@dataclass(frozen=True)
class SpanShares:
    """Attention between the spans of a text, of every head.

    Attributes:
        layout: the spans.
        tallies: by layer.
        baselines: by layer, of one head with uniform attention.
    """

    layout: SpanLayout
    tallies: dict[int, SpanTally]
    baselines: dict[int, SpanTally]

    @property
    def spans(self) -> tuple[Span, ...]:
        """In the order of the text, or as they were named."""
        return self.layout.spans

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Numbers of two spans of which the first is measured and sees the second in some layer."""
        seen = torch.stack([baseline.shares[0] for baseline in self.baselines.values()]).nan_to_num().amax(0)
        return [(source, target) for source, target in torch.nonzero(seen).tolist()]

    def between(self, head: HeadId, source: int, target: int) -> SpanShare:
        """The share of one head from one span to another, by their numbers."""
        shares, lasts, _ = self.tallies[head.layer].numbers
        uniform, last_uniform, _ = self.baselines[head.layer].numbers
        share = shares[head.head][source][target]
        return SpanShare(
            id=head,
            source=self.spans[source].name,
            target=self.spans[target].name,
            share=share,
            uniform=uniform[0][source][target],
            per_token=share / len(self.spans[target].tokens),
            last=_known(lasts[head.head][source][target]),
            last_uniform=_known(last_uniform[0][source][target]),
        )

    def lookback(self, head: HeadId) -> float | None:
        """Mean lookback ratio of a head's new tokens; None where no new token is measured."""
        return _known(self.tallies[head.layer].numbers[2][head.head])

    def lookback_uniform(self, head: HeadId) -> float | None:
        """The same under uniform attention."""
        return _known(self.baselines[head.layer].numbers[2][0])


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def measured_spans(
    tallies: dict[int, SpanTally], tokens: Tokens, context_of: Callable[[int], TextContext]
) -> SpanShares:
    """What the tallies of all layers have summed, beside attention that is uniform over what each query sees."""
    copy_to_host(list(tallies.values()))
    layout = next(iter(tallies.values())).layout
    of_windows = dict[int | None, SpanTally]()
    for layer in tallies:
        context = context_of(layer)
        if context.window not in of_windows:
            of_windows[context.window] = _uniform(layout, tokens, context)
    return SpanShares(layout, tallies, {layer: of_windows[context_of(layer).window] for layer in tallies})


def _uniform(layout: SpanLayout, tokens: Tokens, context: TextContext) -> SpanTally:
    """The tally under uniform attention; the context's units may be words."""
    units, measured = merge_subwords(tokens, False), None
    if context.queries is not None:
        measured = [token for unit in context.queries for token in context.units.members[unit]]
    of_tokens = TextContext(units, context.causal, None, window=context.window, device=context.device)
    tally = SpanTally(layout)
    blocks = row_blocks(len(units), 8 * len(units), _BLOCK_BYTES)
    for first, last in blocks if measured is None else ((query, query + 1) for query in sorted(measured)):
        tally.add(first, uniform_pattern(of_tokens.allowed_rows(first, last), context.learned_sinks)[None])
    copy_to_host([tally])
    return tally
