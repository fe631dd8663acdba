"""JSON, CSV, tables and tree of an account of scores."""

from collections.abc import Iterator
from itertools import chain, product
from operator import itemgetter
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from attnviz.commands.why.measure import Account, ChainLink
from attnviz.measures.scores import KeyScore
from attnviz.present.documents import text_entry, verification_entry
from attnviz.present.fields import Field, NamedTable, entry, values_of
from attnviz.present.report import CommandSpec
from attnviz.present.tables import RowTable, cell, first_rows, notes, verification_line
from attnviz.present.view import ViewOptions
from attnviz.run.stream import SIDES, source_name
from attnviz.wording import counted, error, percent, quoted, rounded, signed

MOST_PAIRS = 200  # pairs of sources in files; the others are one row

REST = "all others"


class ScorePart(NamedTuple):
    """A part of a key's score: what one source of the query makes with one source of the key."""

    key: int
    query_source: str
    key_source: str
    difference: float
    share: float | None
    score: float


_PAIR_FIELDS: tuple[Field[ScorePart], ...] = (
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


def parts_of(result: Account, key: KeyScore, most: int | None) -> tuple[list[ScorePart], list[ScorePart]]:
    """The ``most`` largest parts of a key's difference; below them what is no product, and all others as one."""

    def part(names: tuple[str, str], difference: float, score: float) -> ScorePart:
        return ScorePart(key.key, *names, difference, key.share(difference), score)

    names = list(product(map(source_name, result.scores.query_sources), map(source_name, result.scores.key_sources)))
    differences, scores = key.differences.flatten(), key.pairs.flatten()
    ranked = differences.abs().argsort(descending=True, stable=True)
    shown = [part(names[at], float(differences[at]), float(scores[at])) for at in ranked[:most].tolist()]
    below = [part((name, "–"), difference, score) for name, (score, difference) in key.extras.items()]
    left = ranked[len(shown) :]
    if len(left):
        difference, score = (float(parts[left].double().sum()) for parts in (differences, scores))
        below.append(part((REST, counted(len(left), "pair")), difference, score))
    return shown, below


def totals_of(result: Account, key: KeyScore) -> list[dict[str, Any]]:
    """Entries of every source with its total on each side, the furthest from 0 first; None where it has no part."""
    sides = {side: dict(result.scores.totals(side, key)) for side in SIDES}
    entries = []
    for source in dict.fromkeys(source for totals in sides.values() for source in totals):
        of_source: dict[str, Any] = {"source": source_name(source)}
        for side, totals in sides.items():
            value = totals.get(source)
            of_source |= {f"{side}_difference": value, f"{side}_share": key.share(value)}
        entries.append(of_source)
    return sorted(entries, key=lambda entry: -max(abs(entry[f"{side}_difference"] or 0.0) for side in SIDES))


def _content(result: Account, _: ViewOptions) -> dict[str, Any]:
    scores, labels, effects = result.scores, result.tokens.labels, result.effects
    keys = [
        {
            "position": key.key,
            "text": labels[key.key],
            **entry(_KEY_FIELDS, key),
            "pairs": [entry(_PAIR_FIELDS, part) for part in chain(*parts_of(result, key, MOST_PAIRS))],
            "sources": totals_of(result, key),
        }
        for key in result.keys
    ]
    links = [
        {
            "head": str(link.scores.head),
            "query": link.scores.query,
            **values_of(link.scores.keys[0], "key", "score", "difference"),
            "error": link.scores.error,
            "side": link.side,
            "sources": [{"source": source_name(source), "share": share} for source, share in link.branches],
            "rest": link.rest,
            "source": None if link.source is None else str(link.source),
            "source_position": link.position,
            "source_key": link.key,
            "source_key_text": None if link.key is None else labels[link.key],
            "source_key_share": link.key_share,
        }
        for link in result.chain
    ]
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
        "keys": keys,
        "chain": links,
        "effects": effects
        and {
            **values_of(effects, "answer", "foil", "predicted", "difference", "linear", "error", "scale", "tolerance"),
            "direct_effect": effects.heads[result.head],
            "direct_effect_by_key": list(effects.keys),
        },
        "no_effects": result.no_effects or None,
    }


def _tables(result: Account, choices: ViewOptions) -> Iterator[RenderableType]:
    scores, key, effects = result.scores, result.keys[0], result.effects
    whole = choices.verbose
    sums = f", the sum of the parts of {counted(scores.n_keys, 'score')} by at most {error(scores.error)}"
    verified = verification_line(result.attention.verification, result.checkpoint, sums if whole else "")
    yield Text("\n").join([_answer(result), verified])
    of_key = Field[KeyScore]("Key", lambda key: result.label(key.key))
    title = f"{result.head}: what {result.label(result.query)} attends to"
    yield RowTable(title, [of_key, *_KEY_FIELDS], result.keys)
    shown, below = parts_of(result, key, choices.rows(4) or None)
    columns = _PAIR_FIELDS[1:]
    last = [cell(column.write(column.value_for(part))) for part in below[-1:] for column in columns]
    title = f"Why {result.label(key.key)}, rather than its other keys: parts of the difference"
    yield RowTable(title, columns, [*shown, *below[:-1]], last)
    if whole:
        totals = totals_of(result, key)
        yield first_rows("Sources", _TOTAL_FIELDS, totals, choices.top, "why.json", noun="source")
    if result.depth > 1:
        yield tree_of(result)
    if effects is not None:
        if whole:
            attended = [place for place, value in enumerate(effects.keys) if value]
            ranked = sorted(attended, key=lambda place: (-abs(effects.keys[place]), place))
            adds = Field[int]("Adds", lambda place: signed(effects.keys[place]), "logits")
            fields = [Field("Key", result.label), adds]
            yield first_rows("What it does", fields, ranked, choices.top, "why.json", noun="key")
        assert effects.foil is not None  # answers in question answering are not for why
        along = "" if effects.linear else " The head on top is not linear: direct effects are along its gradient."
        yield Text(
            f"At {result.label(result.query)} {result.head} adds {signed(effects.heads[result.head])} directly to the "
            f"logit of {quoted(effects.answer.text)} minus {quoted(effects.foil.text)}, which is "
            f"{signed(effects.difference)}.{along}"
        )
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

    def amount(part: float) -> str:
        """As a share of the difference; itself where the difference is small beside its parts."""
        share = key.share(part)
        return signed(part) if share is None else percent(share)

    where = "above" if key.difference > 0 else "below"
    most = []
    for side in SIDES:
        parts = [(source, value) for source, value in result.scores.totals(side, key) if value * key.difference > 0]
        named = [f"{source_name(source)} ({amount(value)})" for source, value in parts[:2]]
        most.append(f"{' and '.join(named) or 'no source'} in the {side}")
    beside = {name: difference for name, (_, difference) in key.extras.items()}
    beside = {"content": float(key.differences.sum()), **beside} if beside else beside
    extras = [f" {name.capitalize()}: {amount(value)}." for name, value in beside.items()]
    return Text(
        f"{head} gives {rounded(key.weight)} of its attention to {result.label(key.key)}, whose score is "
        f"{rounded(abs(key.difference))} {where} the mean of its keys. Largest parts of that: {'; '.join(most)}."
        f"{''.join(extras)}"
    )


def tree_of(result: Account) -> Tree:
    """The chain, a branch for each source of a score."""
    key = result.keys[0]
    both = f"{result.label(result.query)} → {result.label(key.key)}"
    branch = root = Tree(Text(f"{result.head}  {both}: difference {signed(key.difference)}", style="bold"))
    for link in result.chain:
        above = branch
        first, *others, rest = parts_in_words(result, link)
        branch = above.add(Text(first, style="" if link.source is None else "bold"))
        for part in others:
            above.add(Text(part))
        above.add(Text(rest, style="dim"))
    return root


def parts_in_words(result: Account, link: ChainLink) -> list[str]:
    """The parts of a link's score: of the followed head, also from where it took it; of other sources; of the rest."""
    parts = [f"{percent(share)} {source_name(source)}" for source, share in link.branches]
    if link.source is not None and link.key is not None:
        there = f" in the {link.side} {result.label(link.position)}"
        parts[0] += f"{there}, {percent(link.key_share)} of it from {result.label(link.key)}"
    return [*parts, f"{percent(link.rest)} {REST}"]


def path_of(result: Account) -> str:
    """From the first token to the explained head: ``‘five’ #4 → L0H2 → ‘one’ #5 → L1H0``."""
    followed = [link for link in result.chain if link.source is not None]
    if not followed:
        return f"{result.label(result.keys[0].key)} → {result.head}"
    steps = [result.label(followed[-1].key or 0), str(followed[-1].source)]
    for link in reversed(followed):
        steps += [result.label(link.position), str(link.scores.head)]
    return " → ".join(steps)


SPEC = CommandSpec[Account](
    content=_content,
    tables=_tables,
    table=lambda result, _: NamedTable(
        "", _PAIR_FIELDS, [part for key in result.keys for part in chain(*parts_of(result, key, MOST_PAIRS))]
    ),
)
