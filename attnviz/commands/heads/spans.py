"""Attention between spans of a text: rows of heads-spans.csv, tables of the terminal, and the entry of the page."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.analysis.findings import HeadFindings
from attnviz.analysis.result import Analysis, units_with
from attnviz.inputs.prompt import Span
from attnviz.measures.spans import SpanShare, SpanShares
from attnviz.models.head_ids import HeadId
from attnviz.page.page import short_float
from attnviz.present.fields import HEAD, Field, Table, left_out, listed_of, plain
from attnviz.present.tables import glued
from attnviz.wording import rounded, visible

_STRONGEST = 3  # heads that a row of the terminal's table names

_NUMBERS = (
    *("share", "uniform", "per_token", "content", "content_uniform", "sink"),
    *("last", "last_uniform", "last_content", "last_content_uniform"),
)

_SHARE: tuple[Field[SpanShare], ...] = (
    *HEAD,
    Field(value="source", name="from"),
    Field(value="target", name="to"),
    *plain(*_NUMBERS),
)


def span_table(shares: SpanShares, heads: Sequence[HeadFindings]) -> Table[SpanShare]:
    """A row for every head and two spans of which the first sees the second; heads.json has them by pair."""
    return Table("", _SHARE, [shares.between(head.id, *pair) for head in heads for pair in shares.pairs])


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


def span_tables(
    analysis: Analysis, heads: Sequence[HeadFindings], top: int | None, whole: bool
) -> Iterator[RenderableType]:
    """The heads that read each span most from each other, and those that look back at the prompt; none without spans.

    ``top`` is the number of pairs; None for all, 0 also for those of a span and one that holds it. ``whole`` also
    explains the numbers.
    """
    spans = analysis.spans
    if spans is None or not heads:
        return
    tokens = [set(span.tokens) for span in spans.spans]
    within = [pair for pair in spans.pairs if tokens[pair[0]] <= tokens[pair[1]]]
    apart = [pair for pair in spans.pairs if pair not in within]
    apart.sort(key=lambda pair: (-pair[0], pair[1]))  # from the last span first: in a chat, from the answer
    pairs = [*apart, *within]
    listed = pairs[: len(pairs) if top == 0 else min(top or len(apart), len(apart))]
    if not listed:
        return
    rows = []
    for pair in listed:  # the names of both spans, and the shares of the heads, the largest above uniform first
        shares = sorted(
            (spans.between(head.id, *pair) for head in heads),
            key=lambda share: (share.judged[1] - share.judged[0], share.id),
        )
        source, target = (visible(spans.spans[number].name) for number in pair)
        strongest = shares[:_STRONGEST]
        rows.append(
            {
                "Attends": source,
                "to": target,
                "Heads": glued(f"{share.id} {rounded(share.judged[0])}" for share in strongest),
                "Uniform": shares[0].judged[1],
                "On sinks": glued(rounded(share.sink) for share in strongest),
                "Last token (uniform)": _strongest_last(shares),
            }
        )
    columns = [Field[Any](title, title, detail=title.startswith("Last")) for title in rows[0]]
    title = f"Heads that read one span from another ({listed_of(len(listed), len(pairs))} pairs)"
    known = ((spans.lookback(head.id), head.id) for head in heads)
    said = list[str]()
    ratios = sorted((-ratio, id) for ratio, id in known if ratio is not None)
    if ratios:
        most = ", ".join(f"{id} {rounded(-ratio)}" for ratio, id in ratios[:_STRONGEST])
        least = f"; least {ratios[-1][1]} {rounded(-ratios[-1][0])}" if len(ratios) > _STRONGEST else ""
        said.append(f"Lookback ratio (uniform {rounded(spans.lookback_uniform(heads[0].id))}): {most}{least}.")
    if whole:
        said = [
            "Attention to content (to sinks, where a span has nothing else), mean over the tokens of the first span; "
            "largest above attention that is uniform over content first. On sinks: what the same heads give to special "
            "tokens and other sinks of the text.",
            *said,
            left_out(len(listed), len(pairs), "pair", "heads-spans.csv"),
        ]
    yield Table(title, columns, rows, caption=" ".join(filter(None, said)))


def _strongest_last(shares: Sequence[SpanShare]) -> Text:
    """The head whose last token reads most, and what uniform attention would."""
    known = [share for share in shares if share.last is not None]
    if not known:
        return glued([])
    best = max(known, key=lambda share: share.last_judged[0] or 0.0)
    share, uniform = best.last_judged
    return glued([f"{best.id} {rounded(share)} ({rounded(uniform)})"])


def lookback_fields(spans: SpanShares | None) -> list[Field[Any]]:
    """How much a head looks back from new tokens at the prompt, and uniform attention; none without new tokens."""
    if spans is None or spans.layout.first_new is None:
        return []
    return [
        Field(value=lambda head: spans.lookback(head.id), name="lookback"),
        Field(value=lambda head: spans.lookback_uniform(head.id), name="lookback_uniform"),
    ]


def page_spans(analysis: Analysis) -> dict[str, Any]:
    """``spans`` of the page: their names and positions, and of each pair the share of every head; empty without."""
    spans = analysis.spans
    if spans is None:
        return {}
    pairs = []
    for source, target in spans.pairs:
        judged = [spans.between(head.id, source, target).judged for head in analysis.heads]
        uniform = sum(baseline for _, baseline in judged) / len(judged)
        values = [short_float(share) for share, _ in judged]
        pairs.append({"from": source, "to": target, "uniform": short_float(uniform), "values": values})
    names = [visible(span.name) for span in spans.spans]
    places = [units_with(analysis.context.units, span.tokens) for span in spans.spans]
    return {"spans": {"names": names, "places": places, "pairs": pairs}}
