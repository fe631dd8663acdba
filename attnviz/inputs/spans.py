"""Named spans of a text: stretches that a user names, messages of a chat, prompt and new text, both texts of a pair."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

from attnviz.arguments import as_found
from attnviz.errors import UsageError
from attnviz.inputs.tokens import Positions, Tokens
from attnviz.wording import counted, quoted, visible

PROMPT, NEW = "prompt", "new"  # the spans of a text that the model continued

# What names the last token, and all tokens that are in no other span; also a span of these, without a name.
LAST, REST = "last", "rest"

_SEGMENTS = "text", "pair"
_SPECIAL = re.compile(r"(?:\[[^]]+\]|<[^>]+>)(?:#[0-9]{1,9})?")
_POSITIONS = re.compile(r"#([0-9]{1,9})(?:-#?([0-9]{1,9}))?")
_OCCURRENCE = re.compile(r"(.+)#([0-9]{1,9})", re.DOTALL)
_FORMS = (
    "expected NAME=TEXT, NAME=TEXT#2 (its second occurrence), NAME=#10-#40 (positions), or last, rest (in heads alone) "
    "or a special token such as [CLS], with or without NAME="
)
_ANSWER_FORMS = "expected TEXT, TEXT#2 (its second occurrence), #10-#40 (positions), or a special token such as [CLS]"
_MOST_LISTED = 6


@dataclass(frozen=True)
class Span:
    """A stretch of a text."""

    name: str
    tokens: tuple[int, ...]  # positions, in order, at least one
    given: str = ""  # what a user named it by; '' of one that the text has by itself


def free_name(name: str, taken: Container[str]) -> str:
    """The name, or where it is taken the first of ``name#2``, ``name#3`` … that is not."""
    numbered = (f"{name}#{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if free not in taken)


def spans_by_name(given: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """What names each span, from a mapping or from texts ``NAME=TEXT``; UsageError for other forms, or a name twice."""
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise UsageError(f"expected spans as {{'NAME': 'TEXT'}} or ['NAME=TEXT'], found {as_found(given)}.")
    pairs: Iterable[tuple[object, object]]
    if isinstance(given, Mapping):
        pairs = given.items()
    else:
        parts = [str(text).partition("=") for text in given]
        pairs = [
            (name, name if not equals and (name in (LAST, REST) or _SPECIAL.fullmatch(name)) else text)
            for name, equals, text in parts
        ]
    spans = dict[str, str]()
    for name, text in pairs:
        if not isinstance(name, str) or not isinstance(text, str) or not name.strip() or not text:
            raise UsageError(f"--span (spans=...): {_FORMS}, found {as_found(name)} with the text {as_found(text)}.")
        if name.strip() in spans:
            raise UsageError(f"--span (spans=...): two spans are named {visible(name)!r}; expected a name for each.")
        spans[name.strip()] = text
    return spans


def rest_span(name: str, spans: Iterable[Span], n_tokens: int, given: str = "") -> Span:
    """The tokens of a text that are in none of these spans, perhaps none."""
    inside = {token for span in spans for token in span.tokens}
    return Span(name, tuple(token for token in range(n_tokens) if token not in inside), given)


def named_span(name: str, what: str, texts: Sequence[str], tokens: Tokens, units: Positions) -> Span:
    """The span that a text, its n-th occurrence (``text#2``) or positions (``#10-#40``, both included) name.

    So do a special token (``[CLS]``), which need not stand in the text, and ``last`` of a span with a name. Without a
    ``name`` it is the span that ``--answer-span`` names. ``texts`` are the text, or both of a pair, ``tokens`` theirs,
    and ``units`` what positions count: tokens, or words.

    Raises:
        UsageError: it is not in the text, is there several times, or has no token.
    """
    option, forms = (f"--span {visible(name)}", _FORMS) if name else ("--answer-span", _ANSWER_FORMS)
    if not what.strip():
        raise UsageError(f"{option} is empty; {forms}.")
    if name and what == LAST:
        return Span(name, units.members[-1], what)
    places = _occurrences(what, texts, tokens)
    if not places and (positions := _POSITIONS.fullmatch(what)):
        first, last = int(positions[1]), int(positions[2] or positions[1])
        if not first <= last < len(units):
            known = f"from #0 to #{len(units) - 1}, the first one first"
            raise UsageError(f"{option}: expected positions {known}, found {what}.")
        return Span(name, tuple(sorted(token for unit in units.members[first : last + 1] for token in unit)), what)
    if not places and (numbered := _OCCURRENCE.fullmatch(what)):
        places = _occurrences(numbered[1], texts, tokens)
        if places and not 1 <= int(numbered[2]) <= len(places):
            raise UsageError(f"{option}: {_how_often(numbered[1], len(places))}.")
        places = places[int(numbered[2]) - 1 :][:1]
    if not places:
        raise UsageError(f"{option}: the text has no {quoted(what)}; {forms}.")
    if len(places) > 1:
        raise UsageError(f"{option}: {_how_often(what, len(places))}.")
    if not places[0]:
        raise UsageError(f"{option}: no token of the text is of {quoted(what)}.")
    return Span(name, places[0], what)


def _how_often(text: str, n: int) -> str:
    some = ", ".join(f"{visible(text)}#{number}" for number in range(1, 1 + min(n, _MOST_LISTED)))
    return f"{quoted(text)} stands in the text {counted(n, 'time')}; name one: {some}"


def message_spans(tokens: Tokens, messages: Mapping[str, tuple[int, int]]) -> list[Span]:
    """The messages of a chat by the characters of each; those that were cut off are left out."""
    spans = [Span(name, _within(tokens, first, last)) for name, (first, last) in messages.items()]
    return [span for span in spans if span.tokens]


def segment_spans(tokens: Tokens) -> list[Span]:
    """The two texts of a pair, without special tokens; none where there is one text."""
    if 1 not in tokens.segments:
        return []
    return [
        Span(name, tuple(token for token, of in enumerate(tokens.segments) if of == segment))
        for segment, name in enumerate(_SEGMENTS)
    ]


def _within(tokens: Tokens, first: int, last: int, segment: int = 0) -> tuple[int, ...]:
    """Positions of the tokens that overlap the characters from ``first`` to before ``last`` of a segment."""
    placed = enumerate(zip(tokens.segments, tokens.offsets, strict=True))
    return tuple(token for token, (of, (start, end)) in placed if of == segment and start < last and end > first)


def _occurrences(text: str, texts: Sequence[str], tokens: Tokens) -> list[tuple[int, ...]]:
    """The tokens of each occurrence; else the special tokens of this name; else of each occurrence in another case.

    Control tokens stand in the text of a chat, but have no characters there.
    """

    def in_text(flags: int) -> list[tuple[int, ...]]:
        matches = re.compile(re.escape(text), flags)
        spans = [(match.span(), segment) for segment, of in enumerate(texts) for match in matches.finditer(of)]
        return [_within(tokens, *span, segment) for span, segment in spans]

    exact = in_text(0)
    if any(exact):
        return exact
    labels = enumerate(zip(tokens.labels, tokens.special, strict=True))
    return [(token,) for token, label in labels if label == (text, True)] or exact or in_text(re.IGNORECASE)
