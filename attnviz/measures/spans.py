"""Attention between spans of a text, and how much new tokens look back at the prompt.

The share from span A to span B is sum over k in B of A[q,k], its mean over the queries q of A, and of the last one by
itself, beside the same under attention that is uniform over what each query sees. Tokens are measured as they are,
sinks included, whatever units a text is shown in. A span that holds a sink, such as the first token, gets much for that
alone: so the same is measured of content keys, beside attention that is uniform over these.

Lookback ratio (Chuang et al. 2024, "Lookback Lens", section 2.1), of a new token q: P / (P + N), P being the mean
attention to a token of the prompt and N that to a new token, q itself included. Here its mean over new tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnviz.inputs.prompt import Prompt, Span, merge_subwords
from attnviz.measures.measure import LayerRows, Measure, PatternRows, copy_to_host
from attnviz.measures.statistics import TextContext
from attnviz.models.head_ids import HeadId


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


class SpanTally(Measure):
    """Attention of every head between spans, summed in chunks of query rows, on the device."""

    def __init__(self, layout: SpanLayout) -> None:
        super().__init__()
        self.layout = layout
        self._measured = set[int]()  # tokens whose rows are measured

    def update(self, rows: PatternRows) -> None:
        """Add the next rows of the text; later keys are hidden from them."""
        pattern, first = rows.in_float32[0], rows.first
        n_heads, n_rows, n_keys = pattern.shape
        inside, lasts = self.layout.on(pattern)
        onto = pattern @ inside[:n_keys]  # [n_heads, rows, n_sets]
        from_spans = torch.einsum("qa,hqb->hab", inside[first : first + n_rows, : len(lasts)], onto)
        here = (lasts >= first) & (lasts < first + n_rows)
        of_last = onto.index_select(1, (lasts - first).clamp(0, n_rows - 1)) * here[:, None]
        lookback, first_new = pattern.new_zeros(n_heads, 2), self.layout.first_new  # sum and number of ratios
        if first_new is not None and first + n_rows > first_new:
            new_rows = pattern[:, max(0, first_new - first) :]
            queries = torch.arange(first + n_rows - new_rows.shape[1], first + n_rows, device=pattern.device)
            to_prompt = new_rows[..., :first_new].sum(-1) / first_new
            to_new = new_rows[..., first_new:].sum(-1) / (queries - first_new + 1)
            total = to_prompt + to_new
            ratios = torch.where(total > 0, to_prompt / total, 0.0)
            lookback = torch.stack([ratios.sum(-1), (total > 0).sum(-1).to(ratios)], -1)
        sums = torch.cat([from_spans.flatten(1), of_last.flatten(1), lookback], 1)
        sums = (sums.cpu() if sums.device.type == "mps" else sums).double()  # it has no float64
        before = self._kept.get(rows.layer)
        self._kept[rows.layer] = [before[0] + sums if before else sums]
        self._measured.update(range(first, first + n_rows))

    def _count(self, name: int, values: Tensor) -> None:
        """Keep the sums of a layer, [1, n_heads, n_sums]."""
        self._counts[name] = values[0]

    @cached_property
    def means(self) -> dict[int, dict[str, Tensor]]:
        """By layer shares from span to span, [n_heads, n_spans, n_spans]; ``last_``: of a span's last query alone.

        ``content`` is the part of ``shares`` that goes to content, ``sink`` what goes to all sinks, [n_heads, n_spans],
        ``lookback`` the ratio, [n_heads]. NaN where nothing is measured.
        """
        spans, n = self.layout.spans, len(self.layout.spans)
        counts = [sum(token in self._measured for token in span.tokens) or torch.nan for span in spans]
        missing = torch.tensor([span.tokens[-1] not in self._measured for span in spans], dtype=torch.bool)
        means = {}
        for layer, sums in self._counts.items():
            of_all, of_last = sums[:, :-2].view(-1, 2, n, 2 * n + 1).unbind(1)
            of_all = of_all / torch.tensor(counts)[:, None]
            of_last = of_last.masked_fill(missing[:, None], torch.nan)
            means[layer] = {
                "shares": of_all[..., :n],
                "last_shares": of_last[..., :n],
                "content": of_all[..., n:-1],
                "last_content": of_last[..., n:-1],
                "sink": of_all[..., -1],
                "lookback": sums[:, -2] / sums[:, -1],
            }
        return means

    def numbers(self) -> dict[int, dict[str, Any]]:
        """The means as nested lists."""
        return {layer: {name: of.tolist() for name, of in means.items()} for layer, means in self.means.items()}


@dataclass(frozen=True)
class SpanShares:
    """Attention between the spans of a text, of every head: by layer the numbers of :class:`SpanTally`."""

    layout: SpanLayout
    numbers: dict[int, dict[str, Any]]
    # of two heads in place of the layer's: attention that is uniform over all keys, and over content
    uniform: dict[int, dict[str, Any]]

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.layout.spans

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Numbers of two spans of which the first is measured and sees the second in some layer."""
        seen = torch.tensor([of_layer["shares"][0] for of_layer in self.uniform.values()]).nan_to_num().amax(0)
        return [(source, target) for source, target in torch.nonzero(seen).tolist()]

    def between(self, head: HeadId, source: int, target: int) -> SpanShare:
        """The share of one head from one span to another, by their numbers."""
        head_numbers = {name: values[head.head] for name, values in self.numbers[head.layer].items()}
        uniform, of_content = (
            {name: values[baseline] for name, values in self.uniform[head.layer].items()} for baseline in range(2)
        )
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
        return _known(self.numbers[head.layer]["lookback"][head.head])

    def lookback_uniform(self, head: HeadId) -> float | None:
        """The same under uniform attention."""
        return _known(self.uniform[head.layer]["lookback"][0])


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def measured_spans(tally: SpanTally, tokens: Prompt, context_of: Callable[[int], TextContext]) -> SpanShares:
    """What was summed of all layers, beside attention that is uniform over what each query sees."""
    numbers, of_windows = tally.numbers(), dict[int | None, dict[str, Any]]()
    uniform = {}
    for layer in numbers:
        context = context_of(layer)
        if context.window not in of_windows:
            of_windows[context.window] = _uniform(tally.layout, tokens, context)
        uniform[layer] = of_windows[context.window]
    return SpanShares(tally.layout, numbers, uniform)


def _uniform(layout: SpanLayout, tokens: Prompt, context: TextContext) -> dict[str, Any]:
    """The numbers of attention that is uniform over all keys, and over content; the context's units may be words."""
    of_tokens = replace(context, units=merge_subwords(tokens, False), text=None, queries=context.measured_tokens)
    tally = SpanTally(layout)
    for first, rows in of_tokens.uniform_rows():
        tally.update(LayerRows(0, rows[None], first))
    copy_to_host([tally])
    return tally.numbers()[0]
