"""Attention between spans of a text, and how much new tokens look back at the prompt.

The share from span A to span B is sum over k in B of A[q,k], its mean over the queries q of A, and of the last one by
itself, beside the same under attention that is uniform over what each query sees. Tokens are measured as they are,
sinks included, whatever units a text is shown in. A span that holds a sink, such as the first token, gets much for that
alone: so the same is measured of content keys, beside attention that is uniform over these.

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

from attnviz.inputs.prompt import Prompt, Span, merge_subwords
from attnviz.measures.statistics import CHUNK_BYTES, TextContext
from attnviz.measures.sums import copy_to_host
from attnviz.memory import row_blocks
from attnviz.models.head_ids import HeadId
from attnviz.reference.attention import uniform_pattern
from attnviz.run.verify import VerifiedRows


@dataclass(frozen=True)
class SpanShare:
    """Attention of one head from one span to another; shares are means over the queries of ``source``, 0-1."""

    id: HeadId
    source: str  # names of the spans that attend and are attended to
    target: str
    share: float
    uniform: float  # share under uniform attention
    per_token: float  # share over the tokens of ``target``
    content: float  # the part of ``share`` that goes to content, not to sinks
    content_uniform: float  # the same under attention that is uniform over content
    sink: float  # what ``source`` gives to all sinks of the text
    last: float | None  # share of the last query of ``source`` alone; None where that is not measured
    last_uniform: float | None
    last_content: float | None
    last_content_uniform: float | None
    to_sinks: bool  # whether ``target`` has no content

    @property
    def judged(self) -> tuple[float, float]:
        """What heads are ranked by, and its baseline: of content, or of a span that has none the whole share."""
        return (self.share, self.uniform) if self.to_sinks else (self.content, self.content_uniform)

    @property
    def last_judged(self) -> tuple[float | None, float | None]:
        """The same of the last query."""
        return (self.last, self.last_uniform) if self.to_sinks else (self.last_content, self.last_content_uniform)


@dataclass(frozen=True)
class SpanLayout:
    """Which token of a text is in which span."""

    spans: tuple[Span, ...]  # in the order of the text, or as they were named
    n_tokens: int
    first_new: int | None = None  # the first new token: generated, or of the answer that ends a chat
    sinks: frozenset[int] = frozenset()  # tokens that are no content
    _copies: dict[object, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def on(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """1 where a token is in a set, [n_tokens, 2 n_spans + 1], and the last token of each span, beside a pattern.

        The sets are the spans, their content, and all sinks. They are copied there once, for all layers.
        """
        kind = like.device, like.dtype
        if kind not in self._copies:
            inside = torch.zeros(self.n_tokens, 2 * len(self.spans) + 1)
            for number, span in enumerate(self.spans):
                inside[list(span.tokens), number] = 1
                inside[list(self.content_of(number)), len(self.spans) + number] = 1
            inside[list(self.sinks), -1] = 1
            lasts = torch.tensor([span.tokens[-1] for span in self.spans], dtype=torch.long)
            self._copies[kind] = inside.to(like), lasts.to(like.device)
        return self._copies[kind]

    def content_of(self, number: int) -> tuple[int, ...]:
        """The tokens of a span that are no sinks."""
        return tuple(token for token in self.spans[number].tokens if token not in self.sinks)


class SpanTally:
    """Sums the attention of every head of one layer between spans, in chunks of query rows, on the device."""

    def __init__(self, layout: SpanLayout) -> None:
        self.layout = layout
        self._rows: list[tuple[int, int]] = []
        self._sums: list[Tensor] = []

    def update(self, rows: VerifiedRows) -> None:
        """Add the next chunk of rows."""
        self.add(rows.first, rows.in_float32[0])

    def add(self, first: int, pattern: Tensor) -> None:
        """Add rows of tokens from ``first`` on, [n_heads, rows, n_keys]; later keys are hidden from them."""
        n_heads, n_rows, n_keys = pattern.shape
        inside, lasts = self.layout.on(pattern)
        onto = pattern @ inside[:n_keys]  # [n_heads, rows, n_sets]
        from_spans = torch.einsum("qa,hqb->hab", inside[first : first + n_rows, : len(lasts)], onto)
        here = (lasts >= first) & (lasts < first + n_rows)
        of_last = onto.index_select(1, (lasts - first).clamp(0, n_rows - 1)) * here[:, None]
        lookback, first_new = pattern.new_zeros(2, n_heads), self.layout.first_new  # sum and number of ratios
        if first_new is not None and first + n_rows > first_new:
            new_rows = pattern[:, max(0, first_new - first) :]
            queries = torch.arange(first + n_rows - new_rows.shape[1], first + n_rows, device=pattern.device)
            to_prompt = new_rows[..., :first_new].sum(-1) / first_new
            to_new = new_rows[..., first_new:].sum(-1) / (queries - first_new + 1)
            total = to_prompt + to_new
            ratios = torch.where(total > 0, to_prompt / total, 0.0)
            lookback = torch.stack([ratios.sum(-1), (total > 0).sum(-1).to(ratios)])
        on_host = pattern.device.type == "mps"  # it has no float64
        sums = [(new.cpu() if on_host else new).double() for new in (from_spans, of_last, lookback)]
        self._sums = [before + new for before, new in zip(self._sums, sums, strict=True)] if self._sums else sums
        self._rows.append((first, first + n_rows))

    def on_device(self) -> list[Tensor]:
        """The sums, to be copied at once with those of other layers."""
        return self._sums

    def take(self, copies: Iterator[Tensor]) -> None:
        """The copies of :meth:`on_device`, in order."""
        self._sums = [next(copies) for _ in self._sums]

    @cached_property
    def means(self) -> dict[str, Tensor]:
        """Shares from span to span, [n_heads, n_spans, n_spans], ``last_`` those of the last query of a span alone.

        ``content`` is the part of ``shares`` that goes to content, ``sink`` what goes to all sinks, [n_heads, n_spans],
        ``lookback`` the ratio, [n_heads]. NaN where nothing is measured.
        """
        spans = self.layout.spans
        measured = {token for first, end in self._rows for token in range(first, end)}
        counts = [sum(token in measured for token in span.tokens) or torch.nan for span in spans]
        missing = [span.tokens[-1] not in measured for span in spans]
        of_all = self._sums[0] / torch.tensor(counts)[:, None]
        of_last = self._sums[1].masked_fill(torch.tensor(missing)[:, None], torch.nan)
        n = len(spans)
        return {
            "shares": of_all[..., :n],
            "last_shares": of_last[..., :n],
            "content": of_all[..., n:-1],
            "last_content": of_last[..., n:-1],
            "sink": of_all[..., -1],
            "lookback": self._sums[2][0] / self._sums[2][1],
        }

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """The means as nested lists."""
        return {name: values.tolist() for name, values in self.means.items()}


@dataclass(frozen=True)
class SpanShares:
    """Attention between the spans of a text, of every head; tallies and baselines are by layer."""

    layout: SpanLayout
    tallies: dict[int, SpanTally]
    baselines: dict[int, SpanTally]  # of one head with uniform attention
    content_baselines: dict[int, SpanTally]  # of one head with attention that is uniform over content

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.layout.spans

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Numbers of two spans of which the first is measured and sees the second in some layer."""
        seen = torch.stack([baseline.means["shares"][0] for baseline in self.baselines.values()]).nan_to_num().amax(0)
        return [(source, target) for source, target in torch.nonzero(seen).tolist()]

    def between(self, head: HeadId, source: int, target: int) -> SpanShare:
        """The share of one head from one span to another, by their numbers."""
        head_numbers = {name: values[head.head] for name, values in self.tallies[head.layer].numbers.items()}
        uniform = {name: values[0] for name, values in self.baselines[head.layer].numbers.items()}
        of_content = {name: values[0] for name, values in self.content_baselines[head.layer].numbers.items()}
        share = head_numbers["shares"][source][target]
        return SpanShare(
            id=head,
            source=self.spans[source].name,
            target=self.spans[target].name,
            share=share,
            uniform=uniform["shares"][source][target],
            per_token=share / len(self.spans[target].tokens),
            content=head_numbers["content"][source][target],
            content_uniform=of_content["content"][source][target],
            sink=head_numbers["sink"][source],
            last=_known(head_numbers["last_shares"][source][target]),
            last_uniform=_known(uniform["last_shares"][source][target]),
            last_content=_known(head_numbers["last_content"][source][target]),
            last_content_uniform=_known(of_content["last_content"][source][target]),
            to_sinks=not self.layout.content_of(target),
        )

    def lookback(self, head: HeadId) -> float | None:
        """Mean lookback ratio of a head's new tokens; None where no new token is measured."""
        return _known(self.tallies[head.layer].numbers["lookback"][head.head])

    def lookback_uniform(self, head: HeadId) -> float | None:
        """The same under uniform attention."""
        return _known(self.baselines[head.layer].numbers["lookback"][0])


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def measured_spans(
    tallies: dict[int, SpanTally], tokens: Prompt, context_of: Callable[[int], TextContext]
) -> SpanShares:
    """What the tallies of all layers have summed, beside attention that is uniform over what each query sees."""
    copy_to_host(list(tallies.values()))
    layout = next(iter(tallies.values())).layout
    of_windows = dict[int | None, tuple[SpanTally, SpanTally]]()
    baselines, content_baselines = dict[int, SpanTally](), dict[int, SpanTally]()
    for layer in tallies:
        context = context_of(layer)
        if context.window not in of_windows:
            uniform, of_content = (_uniform(layout, tokens, context, alone) for alone in (False, True))
            of_windows[context.window] = uniform, of_content
        baselines[layer], content_baselines[layer] = of_windows[context.window]
    return SpanShares(layout, tallies, baselines, content_baselines)


def _uniform(layout: SpanLayout, tokens: Prompt, context: TextContext, of_content: bool) -> SpanTally:
    """The tally under attention that is uniform over all keys, or over content; the context's units may be words."""
    units, tally = merge_subwords(tokens, False), SpanTally(layout)
    of_tokens = TextContext(units, context.causal, None, window=context.window, device=context.device)
    wanted = torch.ones(len(units), dtype=torch.bool, device=context.device)
    wanted[list(layout.sinks)] = not of_content
    chunks = row_blocks(len(units), 8 * len(units), CHUNK_BYTES)
    if context.queries is not None:
        measured = sorted(token for unit in context.queries for token in context.units.members[unit])
        chunks = ((query, query + 1) for query in measured)
    for first, last in chunks:
        allowed = of_tokens.allowed_rows(first, last) & wanted
        tally.add(first, uniform_pattern(allowed, context.learned_sinks)[None])
    copy_to_host([tally])
    return tally
