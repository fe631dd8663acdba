"""Named spans of a text: stretches that a user names, messages of a chat, prompt and new text, both texts of a pair."""

import re
from collections.abc import Iterable, Mapping, Sequence

from attnviz.arguments import as_found
from attnviz.errors import UsageError
from attnviz.inputs.chats import free_name
from attnviz.inputs.prompt import Positions, Prompt, Span
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


def spans_of(prompt: Prompt, named: Mapping[str, str], units: Positions) -> list[Span]:
    """All spans of a text; a single one is measured against the rest of the text.

    They are those that it has by itself (messages of a chat, both texts of a pair, prompt and new text), and those that
    a user ``named``.

    UsageError for a name that the text has by itself, a rest of which nothing is left, and as :func:`named_span`.
    """
    spans = list(prompt.messages)
    if 1 in prompt.segments:
        for segment, name in enumerate(_SEGMENTS):
            spans.append(Span(name, tuple(token for token, of in enumerate(prompt.segments) if of == segment)))
    if prompt.written is not None:
        first = prompt.written.first
        for name, members in ((PROMPT, range(first)), (NEW, range(first, len(prompt)))):
            spans.append(Span(free_name(name, [span.name for span in spans]), tuple(members)))
    if taken := [span.name for span in spans if span.name in named]:
        raise UsageError(f"--span {visible(taken[0])}: this text has a span of that name by itself; take another.")
    spans += [named_span(name, what, prompt, units) for name, what in named.items() if what != REST]
    others = [_rest(name, spans, len(prompt), what) for name, what in named.items() if what == REST]
    if len(spans) == 1 and not others:
        rest = _rest(free_name(REST, [spans[0].name]), spans, len(prompt))
        others = [rest] if rest.tokens or spans[0].given else []
    if empty := [span.name for span in others if not span.tokens]:
        raise UsageError(f"--span {visible(empty[0])}: the other spans are the whole text, and leave no rest.")
    return spans + others


def _rest(name: str, spans: Iterable[Span], n_tokens: int, given: str = "") -> Span:
    """The tokens of a text that are in none of these spans, perhaps none."""
    inside = {token for span in spans for token in span.tokens}
    return Span(name, tuple(token for token in range(n_tokens) if token not in inside), given)


def named_span(name: str, what: str, prompt: Prompt, units: Positions) -> Span:
    """The span that a text, its n-th occurrence (``text#2``) or positions (``#10-#40``, both included) name.

    So do a special token (``[CLS]``), which need not stand in the text, and ``last`` of a span with a name. Without a
    ``name`` it is the span that ``--answer-span`` names, of the last text of a pair. ``units`` are what positions
    count: tokens, or words.

    Raises:
        UsageError: it is not in the text, is there several times, or has no token.
    """
    option, forms = (f"--span {visible(name)}", _FORMS) if name else ("--answer-span", _ANSWER_FORMS)
    if not what.strip():
        raise UsageError(f"{option} is empty; {forms}.")
    texts = dict(enumerate(prompt.texts))
    if not name:  # an answer is in the context of a question
        texts = dict([*texts.items()][-1:])
    if name and what == LAST:
        return Span(name, units.members[-1], what)
    places = _occurrences(what, prompt, texts)
    if not places and (positions := _POSITIONS.fullmatch(what)):
        first, last = int(positions[1]), int(positions[2] or positions[1])
        if not first <= last < len(units):
            known = f"from #0 to #{len(units) - 1}, the first one first"
            raise UsageError(f"{option}: expected positions {known}, found {what}.")
        return Span(name, tuple(sorted(token for unit in units.members[first : last + 1] for token in unit)), what)
    if not places and (numbered := _OCCURRENCE.fullmatch(what)):
        places = _occurrences(numbered[1], prompt, texts)
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


def _occurrences(text: str, prompt: Prompt, texts: Mapping[int, str]) -> list[tuple[int, ...]]:
    """The tokens of each occurrence; else the special tokens of this name; else of each occurrence in another case.

    ``texts`` are those to look in, by segment. Control tokens of a chat, which stand in its text, have no characters.
    """

    def in_text(flags: int) -> list[tuple[int, ...]]:
        matches = re.compile(re.escape(text), flags)
        return [
            tokens
            for segment, of in texts.items()
            for tokens in prompt.overlapping([match.span() for match in matches.finditer(of)], segment)
        ]

    exact = in_text(0)
    if any(exact):
        return exact
    labels = enumerate(zip(prompt.labels, prompt.special, strict=True))
    return [(token,) for token, label in labels if label == (text, True)] or exact or in_text(re.IGNORECASE)
