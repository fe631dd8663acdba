"""Attention between spans of a text: rows of heads-spans.csv, tables of the terminal, and the entry of the page."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings
from attnviz.measures.spans import SpanShare, SpanShares
from attnviz.models.head_ids import HeadId
from attnviz.models.spans import Span
from attnviz.page.page import short_float
from attnviz.present.fields import HEAD, Field, NamedTable
from attnviz.present.tables import RowTable, glued, left_out, listed_of
from attnviz.wording import rounded, visible

_STRONGEST = 3  # heads that a row of the terminal's table names

_NUMBERS = (
    *("share", "uniform", "per_token", "content", "content_uniform", "sink"),
    *("last", "last_uniform", "last_content", "last_content_uniform"),
)

_SHARE: tuple[Field[SpanShare], ...] = (
    *HEAD,
    Field(value=lambda row: row.source, name="from"),
    Field(value=lambda row: row.target, name="to"),
    *(Field(name=name) for name in _NUMBERS),
)


class _Pair(NamedTuple):
    """Two spans, and the shares of the listed heads, the largest above uniform attention first."""

    source: Span
    target: Span
    shares: list[SpanShare]


def span_table(found: SpanShares, heads: Sequence[HeadFindings]) -> NamedTable[SpanShare]:
    """A row for every head and two spans of which the first sees the second; heads.json has them by pair."""
    return NamedTable("", _SHARE, [found.between(head.id, *pair) for head in heads for pair in found.pairs])


def spans_entry(
    found: SpanShares | None, heads: Sequence[HeadId], positions: Callable[[Span], Sequence[int]]
) -> dict[str, Any]:
    """``spans`` of a document, and ``span_pairs``, whose lists have a number a head; empty without spans."""
    if found is None:
        return {}
    spans, pairs = [], []
    for span in found.spans:
        places = positions(span)
        spans.append({"name": span.name, "first": places[0], "last": places[-1], "tokens": len(span.tokens)})
    for source, target in found.pairs:
        shares = [found.between(head, source, target) for head in heads]
        numbers = {name: [getattr(share, name) for share in shares] for name in _NUMBERS}
        pairs.append({"from": found.spans[source].name, "to": found.spans[target].name, **numbers})
    return {"spans": spans, "span_pairs": pairs}


def positions_of_span(analysis: Analysis, span: Span) -> list[int]:
    """Positions of a span, tokens or words."""
    tokens = set(span.tokens)
    return [at for at, members in enumerate(analysis.context.units.members) if not tokens.isdisjoint(members)]


def span_tables(
    analysis: Analysis, heads: Sequence[HeadFindings], top: int | None, whole: bool
) -> Iterator[RenderableType]:
    """The heads that read each span most from each other, and those that look back at the prompt; none without spans.

    ``top`` is the number of pairs; None for all, 0 also for those of a span and one that holds it. ``whole`` also
    explains the numbers.
    """
    found = analysis.spans
    if found is None or not heads:
        return
    tokens = [set(span.tokens) for span in found.spans]
    within = [pair for pair in found.pairs if tokens[pair[0]] <= tokens[pair[1]]]
    apart = [pair for pair in found.pairs if pair not in within]
    apart.sort(key=lambda pair: (-pair[0], pair[1]))  # from the last span first: in a chat, from the answer
    pairs = [*apart, *within]
    most = len(pairs) if top == 0 else min(top or len(apart), len(apart))
    listed = [_ranked(found, heads, source, target) for source, target in pairs[:most]]
    if not listed:
        return
    columns: list[Field[_Pair]] = [
        Field("Attends", lambda pair: visible(pair.source.name)),
        Field("to", lambda pair: visible(pair.target.name)),
        Field("Heads", lambda pair: _strongest(pair.shares)),
        Field("Uniform", lambda pair: pair.shares[0].judged[1]),
        Field("On sinks", lambda pair: _on_sinks(pair.shares)),
        Field("Last token (uniform)", lambda pair: _strongest_last(pair.shares), detail=True),
    ]
    title = f"Heads that read one span from another ({listed_of(len(listed), len(pairs))} pairs)"
    said = [_lookback(found, heads)]
    if whole:
        said.append(left_out(len(listed), len(pairs), "pair", "heads-spans.csv"))
        said.insert(
            0,
            "Attention to content (to sinks, where a span has nothing else), mean over the tokens of the first span; "
            "largest above attention that is uniform over content first. On sinks: what the same heads give to special "
            "tokens and other sinks of the text.",
        )
    yield RowTable(title, columns, listed, caption=" ".join(filter(None, said)))


def _ranked(found: SpanShares, heads: Sequence[HeadFindings], source: int, target: int) -> _Pair:
    shares = [found.between(head.id, source, target) for head in heads]
    shares.sort(key=lambda share: (share.judged[1] - share.judged[0], share.id))
    return _Pair(found.spans[source], found.spans[target], shares)


def _strongest(shares: Sequence[SpanShare]) -> Text:
    return glued(f"{share.id} {rounded(share.judged[0])}" for share in shares[:_STRONGEST])


def _on_sinks(shares: Sequence[SpanShare]) -> Text:
    """What the same heads give to sinks."""
    return glued(rounded(share.sink) for share in shares[:_STRONGEST])


def _strongest_last(shares: Sequence[SpanShare]) -> Text:
    """The head whose last token reads most, and what uniform attention would."""
    known = [share for share in shares if share.last is not None]
    best = max(known, key=lambda share: share.last_judged[0] or 0.0, default=None)
    if best is None:
        return glued([])
    found, uniform = best.last_judged
    return glued([f"{best.id} {rounded(found)} ({rounded(uniform)})"])


def _lookback(found: SpanShares, heads: Sequence[HeadFindings]) -> str:
    """Which heads look back most and least at what precedes the last tokens; '' without new ones."""
    ratios = [(ratio, head.id) for head in heads if (ratio := found.lookback(head.id)) is not None]
    if not ratios:
        return ""
    ratios.sort(key=lambda each: (-each[0], each[1]))
    most = ", ".join(f"{head} {rounded(ratio)}" for ratio, head in ratios[:_STRONGEST])
    least = f"; least {ratios[-1][1]} {rounded(ratios[-1][0])}" if len(ratios) > _STRONGEST else ""
    return f"Lookback ratio (uniform {rounded(found.lookback_uniform(heads[0].id))}): {most}{least}."


def lookback_fields(found: SpanShares | None) -> list[Field[Any]]:
    """How much a head looks back from new tokens at the prompt, and uniform attention; none without new tokens."""
    if found is None or found.layout.first_new is None:
        return []
    return [
        Field(value=lambda head: found.lookback(head.id), name="lookback"),
        Field(value=lambda head: found.lookback_uniform(head.id), name="lookback_uniform"),
    ]


def spans_of_texts(texts: Iterable[SpanShares | None]) -> str:
    """Where the spans of several texts stand; '' where there are none."""
    if not any(texts):
        return ""
    return "Which heads read which message, over all chats: attnviz profile FILE; of each: span_pairs in heads.jsonl."


def page_spans(analysis: Analysis) -> dict[str, Any]:
    """``spans`` of the page: their names and positions, and of each pair the share of every head; empty without."""
    found = analysis.spans
    if found is None:
        return {}
    pairs = []
    for source, target in found.pairs:
        shares = [found.between(head.id, source, target) for head in analysis.heads]
        uniform = sum(share.judged[1] for share in shares) / len(shares)
        values = [short_float(share.judged[0]) for share in shares]
        pairs.append({"from": source, "to": target, "uniform": short_float(uniform), "values": values})
    names = [visible(span.name) for span in found.spans]
    return {
        "spans": {"names": names, "places": [positions_of_span(analysis, span) for span in found.spans], "pairs": pairs}
    }
