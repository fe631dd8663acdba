"""JSON, CSV, tables and tree of an account of scores."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import reduce
from operator import itemgetter
from typing import Any

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from attnviz.commands.why.chain import ChainLink
from attnviz.commands.why.measure import Account
from attnviz.commands.why.scores import SIDES, KeyScore
from attnviz.models.head_ids import HeadId
from attnviz.present.documents import text_entry, verification_entry
from attnviz.present.fields import Field, NamedTable, entry
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable, cell, first_rows, notes, verification_line
from attnviz.present.view import ViewOptions
from attnviz.trace.direct_effects import DirectEffects
from attnviz.trace.residual_parts import Source, source_name
from attnviz.wording import counted, error, percent, quoted, rounded, signed

MOST_PAIRS = 200
"""Pairs of sources in files; the others are one row."""

REST = "all others"


@dataclass(frozen=True)
class Pair:
    """A part of a key's score: what one source of the query makes with one source of the key."""

    key: int
    query_source: str
    key_source: str
    difference: float
    share: float | None
    score: float


_PAIR_FIELDS: tuple[Field[Pair], ...] = (
    Field(name="key"),
    Field("Query's part", name="query_source"),
    Field("Key's part", name="key_source"),
    Field("Difference", name="difference", write=signed),
    Field("Share", name="share", write=percent),
    Field("Score", name="score", detail=True),
)
_KEY_FIELDS: tuple[Field[KeyScore], ...] = (
    Field("Attention", name="weight"),
    Field("Score", name="score"),
    Field("Mean of its keys", name="mean"),
    Field("Difference", name="difference", write=signed),
)
_TOTAL_FIELDS: tuple[Field[dict[str, Any]], ...] = (
    Field("Source", itemgetter("source")),
    Field("In the query", itemgetter("query_difference"), write=signed),
    Field("share", itemgetter("query_share"), write=percent),
    Field("In the key", itemgetter("key_difference"), write=signed),
    Field("share", itemgetter("key_share"), write=percent),
)


def pairs_of(result: Account, key: KeyScore, most: int | None) -> tuple[list[Pair], list[Pair]]:
    """The ``most`` largest parts of a key's difference; below them what is no product, and all others as one."""
    names = [[source_name(source) for source in of] for of in (result.scores.query_sources, result.scores.key_sources)]
    order = key.differences.flatten().abs().argsort(descending=True, stable=True).tolist()
    values, scores = (of.flatten().tolist() for of in (key.differences, key.pairs))
    width = len(names[1])
    pairs = [
        Pair(key.key, names[0][at // width], names[1][at % width], values[at], key.share(values[at]), scores[at])
        for at in order
    ]
    shown = pairs[:most]
    left, others = pairs[len(shown) :], [(name, "–", *both) for name, both in key.extras.items()]
    if left:
        sums = (sum(getattr(pair, name) for pair in left) for name in ("score", "difference"))
        others.append((REST, counted(len(left), "pair"), *sums))
    return shown, [Pair(key.key, name, which, of, key.share(of), score) for name, which, score, of in others]


def totals_of(result: Account, key: KeyScore) -> list[dict[str, Any]]:
    """Entries of every source with its total on each side, the furthest from 0 first; None where it has no part."""
    sides = {side: dict(result.scores.totals(side, key)) for side in SIDES}
    sources = dict.fromkeys(source for of in sides.values() for source in of)
    ranked = sorted(sources, key=lambda source: -max(abs(of.get(source, 0.0)) for of in sides.values()))
    entries: list[dict[str, Any]] = [{"source": source_name(source)} for source in ranked]
    for side, of in sides.items():
        for row, value in zip(entries, map(of.get, ranked), strict=True):
            row |= {f"{side}_difference": value, f"{side}_share": key.share(value)}
    return entries


def _content(result: Account, _: ViewOptions) -> dict[str, Any]:
    scores, labels = result.scores, result.tokens.labels
    return {
        **text_entry(result),
        "options": {
            "head": str(result.head),
            "query": result.query,
            "key": result.keys[0].key if result.named else None,
            "depth": result.depth,
            "tokens_cut_off": result.tokens.truncated,
        },
        "verification": verification_entry(result.attention.verification)
        | {f"scores_{name}": getattr(scores, name) for name in ("error", "scale", "tolerance")},
        "head": str(result.head),
        "query": {"position": result.query, "text": labels[result.query], "n_keys": scores.n_keys},
        "keys": [_key(result, key) for key in result.keys],
        "chain": [_step(step, labels) for step in result.chain],
        "effects": result.effects and _effects(result, result.effects),
        "no_effects": result.no_effects or None,
    }


def _pairs(result: Account, key: KeyScore) -> list[Pair]:
    shown, below = pairs_of(result, key, MOST_PAIRS)
    return [*shown, *below]


def _key(result: Account, key: KeyScore) -> dict[str, Any]:
    return {
        "position": key.key,
        "text": result.tokens.labels[key.key],
        **entry(_KEY_FIELDS, key),
        "pairs": [entry(_PAIR_FIELDS, row) for row in _pairs(result, key)],
        "sources": totals_of(result, key),
    }


def _effects(result: Account, effects: DirectEffects) -> dict[str, Any]:
    return {
        **{name: asdict(getattr(effects, name)) for name in ("answer", "foil", "predicted")},
        **{name: getattr(effects, name) for name in ("difference", "linear", "error", "scale", "tolerance")},
        "direct_effect": effects.heads[result.head],
        "direct_effect_by_key": list(effects.keys),
    }


def _step(step: ChainLink, labels: tuple[str, ...]) -> dict[str, Any]:
    key = step.scores.keys[0]
    return {
        "head": str(step.scores.head),
        "query": step.scores.query,
        "key": key.key,
        "score": key.score,
        "difference": key.difference,
        "error": step.scores.error,
        "side": step.side,
        "sources": [{"source": source_name(source), "share": share} for source, share in step.branches],
        "rest": step.rest,
        "source": None if step.source is None else str(step.source),
        "source_position": step.position,
        "source_key": step.key,
        "source_key_text": None if step.key is None else labels[step.key],
        "source_key_share": step.key_share,
    }


def _tables(result: Account, choices: ViewOptions) -> Iterator[RenderableType]:
    scores, key = result.scores, result.keys[0]
    whole = choices.verbose
    sums = f", the sum of the parts of {counted(scores.n_keys, 'score')} by at most {error(scores.error)}"
    verified = verification_line(result.attention.verification, result.checkpoint, sums if whole else "")
    yield Text("\n").join([_answer(result), verified])
    of_key = Field[KeyScore]("Key", lambda each: result.label(each.key))
    title = f"{result.head}: what {result.label(result.query)} attends to"
    yield RowTable(title, [of_key, *_KEY_FIELDS], result.keys)
    (shown, below), columns = pairs_of(result, key, choices.rows(4) or None), _PAIR_FIELDS[1:]
    last = [cell(column.write(column.value_for(pair))) for pair in below[-1:] for column in columns]
    title = f"Why {result.label(key.key)}, rather than its other keys: parts of the difference"
    yield RowTable(title, columns, [*shown, *below[:-1]], last)
    if whole:
        totals = totals_of(result, key)
        yield first_rows("Sources", _TOTAL_FIELDS, totals, choices.top, "why.json", noun="source")
    if result.depth > 1:
        yield tree_of(result)
    if result.effects is not None:
        if whole:
            yield _keys_that_add(result, result.effects, choices.top)
        yield _what_it_does(result, result.effects)
    if not whole:
        return
    yield notes(
        f"Difference: the score less its mean over the {counted(scores.n_keys, 'key')} that the query may attend to, "
        "since the softmax ignores what all keys have in common. Each norm is held at its own scale. Parts that work "
        "against the others are negative; the sources of either side sum to the difference.",
        result.no_effects,
    )


def _answer(result: Account) -> Text:
    """The strongest key's score and the two sources of either side that most of its difference comes from."""
    key, head = result.keys[0], f"{result.label(result.query)} in {result.head}"
    where = "above" if key.difference > 0 else "below"
    most = []
    for side in SIDES:
        parts = [(source, value) for source, value in result.scores.totals(side, key) if value * key.difference > 0]
        named = [f"{source_name(source)} ({_amount(key, value)})" for source, value in parts[:2]]
        most.append(f"{' and '.join(named) or 'no source'} in the {side}")
    beside = {name: difference for name, (_, difference) in key.extras.items()}
    beside = {"content": float(key.differences.sum()), **beside} if beside else beside
    extras = [f" {name.capitalize()}: {_amount(key, value)}." for name, value in beside.items()]
    return Text(
        f"{head} gives {rounded(key.weight)} of its attention to {result.label(key.key)}, whose score is "
        f"{rounded(abs(key.difference))} {where} the mean of its keys. Largest parts of that: {'; '.join(most)}."
        f"{''.join(extras)}"
    )


def _keys_that_add(result: Account, effects: DirectEffects, top: int | None) -> RenderableType:
    attended = [key for key, value in enumerate(effects.keys) if value]
    ranked = sorted(attended, key=lambda key: (-abs(effects.keys[key]), key))
    columns: list[Field[int]] = [
        Field("Key", result.label),
        Field("Adds", lambda key: signed(effects.keys[key]), "logits"),
    ]
    return first_rows("What it does", columns, ranked, top, "why.json", noun="key")


def _what_it_does(result: Account, effects: DirectEffects) -> Text:
    assert effects.foil is not None  # answers in question answering are not for why
    answer, foil = (quoted(each.text) for each in (effects.answer, effects.foil))
    along = "" if effects.linear else " The head on top is not linear: direct effects are along its gradient."
    return Text(
        f"At {result.label(result.query)} {result.head} adds {signed(effects.heads[result.head])} directly to the "
        f"logit of {answer} minus {foil}, which is {signed(effects.difference)}.{along}"
    )


def _amount(key: KeyScore, part: float) -> str:
    """A part as a share of the difference; itself where the difference is small beside its parts."""
    share = key.share(part)
    return signed(part) if share is None else percent(share)


def tree_of(result: Account) -> Tree:
    """The chain, a branch for each source of a score."""
    key = result.keys[0]
    both = f"{result.label(result.query)} → {result.label(key.key)}"
    at = root = Tree(Text(f"{result.head}  {both}: difference {signed(key.difference)}", style="bold"))
    for step in result.chain:
        above = at
        for source, share in step.branches:
            if source != step.source:
                above.add(Text(f"{percent(share)}  {source_name(source)}"))
                continue
            there = f"{percent(share)}  {source_name(source)} in the {step.side} {result.label(step.position)}"
            took = f", {percent(step.key_share)} of it from {result.label(step.key or 0)}"
            at = above.add(Text(there + took, style="bold"))
        above.add(Text(f"{percent(step.rest)}  {REST}", style="dim"))
    return root


def short_name(source: Source) -> str:
    """The name of a source in a picture."""
    name = source_name(source)
    if isinstance(source, HeadId):
        return name
    short = {"feed-forward": "FF", " embedding": "", "attention bias": "b_O", "bias": "b"}
    return reduce(lambda text, each: text.replace(*each), short.items(), name)


SPEC = CommandSpec[Account](
    content=_content,
    tables=_tables,
    table=lambda result, _: NamedTable("", _PAIR_FIELDS, [pair for key in result.keys for pair in _pairs(result, key)]),
)
