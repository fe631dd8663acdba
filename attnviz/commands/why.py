"""Why one head's query attends to a key: its scores in parts, and the chain of heads behind them.

A score is linear in what made query and key where norms are held at their own scale::

    score(q, k) = sum over sources s of the query, t of the key of  scale * (part s of query q) · (part t of key k)

A difference is a score less its mean over the keys that the query may attend to: the softmax ignores what all keys have
in common. See :mod:`attnviz.measures.scores`.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import chain, product
from typing import TYPE_CHECKING, ClassVar, Unpack

import torch

from attnviz.errors import UsageError
from attnviz.inputs.prompt import Prompt, position_of
from attnviz.inputs.text import tokenize
from attnviz.measures.direct_effects import DirectEffects, answer_ids, direct_effects
from attnviz.measures.scores import ChainLink, KeyScore, QueryScores, ScoreDecomposer, follow
from attnviz.measures.sinks import with_found_sinks
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, head_named
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked
from attnviz.present.documents import Entry, text_entry, verification_entry
from attnviz.present.fields import Field, Table, entry, plain, values_of
from attnviz.present.report import CommandSpec
from attnviz.present.result import TextResult
from attnviz.present.view import Drawing, ViewOptions
from attnviz.progress import Progress
from attnviz.run.record import block_memory
from attnviz.run.stream import SIDES, Source, recording_parts, source_name, why_no_effects
from attnviz.run.verify import VerifiedAttention, verify_attention
from attnviz.wording import counted, error, percent, quoted, rounded, shortened_token, signed, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnviz.figures.text import ArcsPlan, Piece

MOST_PAIRS = 200  # pairs of sources in files; the others are one row
REST = "all others"

_WHOLE, _AROUND = 40, 5  # tokens of a text that is shown whole; of a longer one, on either side of the path's tokens


@dataclass(frozen=True, repr=False, eq=False)
class Account(TextResult):
    """Result of :func:`why`: scores of one query of one head as sums over what made them."""

    command: ClassVar[str] = "why"

    attention: VerifiedAttention  # the verified heads
    scores: QueryScores  # of the keys that are explained, the strongest first
    chain: tuple[ChainLink, ...]  # the first key's score, followed from head to head
    depth: int  # how many heads were asked for
    named: bool  # whether the key was
    effects: DirectEffects | None  # at the query on an answer minus a foil, those of the head also by key
    no_effects: str  # why there are none, or ''

    @property
    def head(self) -> HeadId:
        return self.scores.head

    @property
    def query(self) -> int:
        return self.scores.query

    @property
    def keys(self) -> tuple[KeyScore, ...]:
        return self.scores.keys

    def label(self, position: int) -> str:
        """A token, shortened, with its position: ``‘cat’ #2``."""
        return f"‘{shortened_token(self.tokens.labels[position], 24)}’ #{position}"

    @property
    def in_words(self) -> str:
        key = self.keys[0]
        where = f"{self.label(self.query)} → {self.label(key.position)}"
        return f"of {self.head} in {self.checkpoint.short_name}: {where}, score {rounded(key.score)}"


@checked
def why(
    text: str,
    model: Model | None = None,
    *,
    head: str | HeadId | None = None,
    query: str | int | None = None,
    key: str | int | None = None,
    answer: str | int | None = None,
    foil: str | int | None = None,
    depth: int = 1,
    pair: str | None = None,
    truncate: bool = False,
    memory: int | str | None = None,
    progress: Progress | None = None,
    **opening: Unpack[ModelOptions],
) -> Account:
    """Take the scores of one query of a head apart: what in query and key made them.

    Of an encoder-decoder the encoder alone.

    >>> attnviz.why("The cat that I saw ran away", head="L2H8", query="saw").keys[0].difference  # doctest: +SKIP

    ``query``: a token, ``#3`` or 3; of a word of several pieces the last; default the last that is not special.
    ``key``: likewise; default the keys with most attention. ``answer``: whose logit the head's output at the query
    moves, less that of ``foil``. ``depth``: how many heads the chain goes through. The other arguments are as of
    :func:`attnviz.head_outputs`.

    Raises:
        AttnvizError: VerificationError where the heads do not reproduce the model, or the parts do not sum to its
            scores or logits; UsageError for a head, a token, a key or an answer that is not there.
    """
    if head is None:
        raise UsageError("why explains one head: expected --head (head=...), such as L2H8; attnviz heads shows all.")
    of_chunk = block_memory(memory)
    checkpoint = open_checkpoint(model, **opening)[0].encoder
    ids = answer_ids(checkpoint, answer, foil)
    chosen = head_named(head, checkpoint.kinds)
    tokens = with_found_sinks(checkpoint, tokenize(checkpoint, text, pair, truncate))
    at_query = position_of(tokens, query)
    at_key = None if key is None else position_of(tokens, key)
    no_effects = _no_effects_at(checkpoint, tokens, at_query)
    if no_effects and ids != (None, None):
        raise UsageError(f"--answer and --foil (answer=..., foil=...) cannot be read at #{at_query}. {no_effects}")
    with recording_parts(checkpoint, tokens, chosen.layer if no_effects else None) as written:
        verified = verify_attention(checkpoint, tokens, progress=progress, memory=of_chunk, keep_outputs=False)
    decomposer = ScoreDecomposer(verified, written, chosen)
    scores = decomposer.decompose(at_query, at_key)
    return Account(
        checkpoint=checkpoint,
        tokens=tokens,
        attention=verified,
        scores=scores,
        chain=follow(decomposer, scores, depth),
        depth=depth,
        named=key is not None,
        effects=None if no_effects else direct_effects(verified, written, at_query, *ids, by_key=chosen),
        no_effects=no_effects,
    )


def _no_effects_at(checkpoint: Checkpoint, tokens: Prompt, position: int) -> str:
    """Sentence on why direct effects are not given at a position, or ''."""
    if checkpoint.answers_questions:
        return "Direct effects on start and end of an answer are given by attnviz outputs --answer-span."
    read = position if checkpoint.classifier is None else checkpoint.classifier.position(tokens.ids)
    if read != position and not why_no_effects(checkpoint):
        return f"Direct effects are not given: the classifier reads #{read}; add --query '#{read}'."
    return why_no_effects(checkpoint)


# --- tables


_PART_COLUMNS: tuple[Field[Entry], ...] = (
    Field(name="key"),
    Field("Query's part", name="query_source"),
    Field("Key's part", name="key_source"),
    Field("Difference", name="difference", write=signed),
    Field("Share", name="share", write=percent),
    Field("Score", name="score", detail=True),
)
_KEY_COLUMNS: tuple[Field[KeyScore], ...] = (
    Field("Attention", name="weight"),
    Field("Score", name="score"),
    Field("Mean of its keys", name="mean"),
    Field("Difference", name="difference", write=signed),
)
_SOURCE_COLUMNS: tuple[Field[Entry], ...] = (
    Field("Source", name="source"),
    Field("In the query", name="query_difference", write=signed),
    Field("share", name="query_share", write=percent),
    Field("In the key", name="key_difference", write=signed),
    Field("share", name="key_share", write=percent),
)


def _parts(result: Account, key: KeyScore, most: int | None = MOST_PAIRS) -> tuple[list[Entry], list[Entry]]:
    """The ``most`` largest parts of a key's difference; below them what is no product, and all others as one."""

    def part(query_source: str, key_source: str, score: float, difference: float) -> Entry:
        row = {"key": key.position, "query_source": query_source, "key_source": key_source}
        return row | {"difference": difference, "share": key.share(difference), "score": score}

    names = list(product(map(source_name, result.scores.query_sources), map(source_name, result.scores.key_sources)))
    values = torch.stack([key.pairs.flatten(), key.differences.flatten()], 1)
    ranked = values[:, 1].abs().argsort(descending=True, stable=True)
    shown = [part(*names[at], *values[at].tolist()) for at in ranked[:most].tolist()]
    below = [part(name, "–", *both) for name, both in key.extras.items()]
    left = values[ranked[len(shown) :]]
    if len(left):
        below.append(part(REST, counted(len(left), "pair"), *left.double().sum(0).tolist()))
    return shown, below


def _sources(result: Account, key: KeyScore) -> Table[Entry]:
    """A row a source with its total on each side, the furthest from 0 first; None where it has no part."""
    query, of_key = (dict(result.scores.totals(side, key)) for side in SIDES)

    def furthest(source: Source) -> float:
        return -max(abs(query.get(source, 0.0)), abs(of_key.get(source, 0.0)))

    rows = [
        {
            "source": source_name(source),
            "query_difference": query.get(source),
            "query_share": key.share(query.get(source)),
            "key_difference": of_key.get(source),
            "key_share": key.share(of_key.get(source)),
        }
        for source in sorted(query | of_key, key=furthest)
    ]
    return Table("Sources", _SOURCE_COLUMNS, rows)


def _chain(result: Account) -> Table[ChainLink]:
    """A row a link of the chain of heads."""
    labels = result.tokens.labels
    columns: tuple[Field[ChainLink], ...] = (
        Field("Head", "scores.head", name="head"),
        Field("Query", "scores.query", name="query", write=result.label),
        Field("Key", "explained.position", name="key", write=result.label),
        Field(value="explained.score", name="score"),
        Field("Difference", "explained.difference", name="difference", write=signed),
        Field("Made of", lambda link: "\n".join(_made_of(result, link))),
        Field(value="scores.error", name="error"),
        *plain("side", "sources", "rest", "source", "source_position", "source_key"),
        Field(value=lambda link: None if link.source_key is None else labels[link.source_key], name="source_key_text"),
        Field(name="source_key_share"),
    )
    return Table("Chain: where the first key's score came from", columns, result.chain)


def _content(result: Account, _: ViewOptions) -> Entry:
    scores, labels, effects = result.scores, result.tokens.labels, result.effects
    keys = [
        {
            "position": key.position,
            "text": labels[key.position],
            **entry(_KEY_COLUMNS, key),
            "pairs": list(chain(*_parts(result, key))),
            "sources": _sources(result, key).rows,
        }
        for key in result.keys
    ]
    of_effects = "answer foil predicted difference linear error scale tolerance".split()
    return {
        **text_entry(
            result,
            {
                **values_of(result, "head", "query"),
                "key": result.keys[0].position if result.named else None,
                "depth": result.depth,
            },
        ),
        "verification": verification_entry(result.attention.verification)
        | {f"scores_{name}": getattr(scores, name) for name in ("error", "scale", "tolerance")},
        "head": result.head,
        "query": {"position": result.query, "text": labels[result.query], "n_keys": scores.n_keys},
        "keys": keys,
        "chain": _chain(result).entries(),
        "effects": effects
        and {
            **values_of(effects, *of_effects),
            "direct_effect": effects.heads[result.head],
            "direct_effect_by_key": effects.keys,
        },
        "no_effects": result.no_effects or None,
    }


def _pairs(result: Account, _: ViewOptions) -> Table[Entry]:
    """A row a pair of sources, key by key."""
    return Table("", _PART_COLUMNS, [part for key in result.keys for part in chain(*_parts(result, key))])


def _tables(result: Account, choices: ViewOptions) -> "Iterator[RenderableType]":
    from attnviz.present.sentences import verification_line

    scores, key, effects, whole = result.scores, result.keys[0], result.effects, choices.verbose
    sums = f", the sum of the parts of {counted(scores.n_keys, 'score')} by at most {error(scores.error)}"
    yield _answer(result)
    yield verification_line(result.attention.verification, result.checkpoint, sums if whole else "")
    of_key = Field[KeyScore]("Key", lambda key: result.label(key.position))
    yield Table(f"{result.head}: what {result.label(result.query)} attends to", [of_key, *_KEY_COLUMNS], result.keys)
    shown, below = _parts(result, key, choices.rows(4) or None)
    columns = _PART_COLUMNS[1:]
    last = [column.shown_for(part) for part in below[-1:] for column in columns]
    title = f"Why {result.label(key.position)}, rather than its other keys: parts of the difference"
    yield Table(title, columns, [*shown, *below[:-1]], last)
    if whole:
        yield _sources(result, key).first(choices.top, "why.json", "source")
    if result.depth > 1:
        yield _chain(result).pick("head", "query", "key", "difference", "")
    if effects is None:
        return
    if whole:
        attended = [place for place, value in enumerate(effects.keys) if value]
        ranked = sorted(attended, key=lambda place: -abs(effects.keys[place]))
        adds = Field[int]("Adds", lambda place: effects.keys[place], "logits", write=signed)
        yield Table("What it does", [Field("Key", result.label), adds], ranked).first(choices.top, "why.json", "key")
    assert effects.foil is not None  # answers in question answering are not for why
    along = "" if effects.linear else " The head on top is not linear: direct effects are along its gradient."
    yield (
        f"At {result.label(result.query)} {result.head} adds {signed(effects.heads[result.head])} directly to the "
        f"logit of {quoted(effects.answer.text)} minus {quoted(effects.foil.text)}, which is "
        f"{signed(effects.difference)}.{along}"
    )


# --- sentences


def _answer(result: Account) -> str:
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
    return (
        f"{head} gives {rounded(key.weight)} of its attention to {result.label(key.position)}, whose score is "
        f"{rounded(abs(key.difference))} {where} the mean of its keys. Largest parts of that: {'; '.join(most)}."
        f"{''.join(extras)}"
    )


def _made_of(result: Account, link: ChainLink) -> list[str]:
    """The parts of a link's score: of the followed head, also from where it took it; of other sources; of the rest."""
    parts = [f"{percent(share)} {source}" for source, share in link.sources]
    if link.source_key is not None:
        there = f" in the {link.side} {result.label(link.source_position)}"
        parts[0] += f"{there}, {percent(link.source_key_share)} of it from {result.label(link.source_key)}"
    return [*parts, f"{percent(link.rest)} {REST}"]


def _path(result: Account) -> str:
    """From the first token to the explained head: ``‘five’ #4 → L0H2 → ‘one’ #5 → L1H0``."""
    steps, first = [str(result.head)], result.keys[0].position
    for link in result.chain:
        if link.source_key is not None:
            steps += [result.label(link.source_position), str(link.source)]
            first = link.source_key
    return " → ".join(reversed([*steps, result.label(first)]))


def _notes(result: Account, choices: ViewOptions) -> Iterator[str]:
    if choices.verbose:
        yield (
            f"Difference: the score less its mean over the {counted(result.scores.n_keys, 'key')} that the query may "
            "attend to, since the softmax ignores what all keys have in common. Each norm is held at its own scale. "
            "Parts that work against the others are negative; the sources of either side sum to the difference."
        )
        yield result.no_effects


SPEC = CommandSpec[Account](content=_content, table=_pairs, tables=_tables, notes=_notes)


# --- picture


def _plan(result: Account, _: ViewOptions) -> "Iterator[ArcsPlan]":
    """The path over the text from head to head to the explained score."""
    from attnviz.figures.text import Arc, ArcsPlan, Sentence

    key, about = result.keys[0], result.figure_context
    arcs, parts = [(key.position, result.query, f"{result.head} {rounded(key.weight)}")], []
    for link in result.chain:
        parts.append(f"{link.scores.head}, by parts of the {link.side}: {', '.join(_made_of(result, link))}")
        if link.source_key is not None:
            arcs.append((link.source_key, link.source_position, f"{link.source} {percent(link.sources[0].share)}"))
    pieces, numbers = _pieces(result.tokens.labels, {place for arc in arcs for place in arc[:2]})
    score = f"score {rounded(key.score)}, {signed(key.difference)} from the mean of {result.scores.n_keys} keys"
    beside = [f"{name} {signed(difference)}" for name, (_, difference) in key.extras.items()]
    title = (
        f"Why {result.label(result.query)} attends to {result.label(key.position)} in {result.head} of {about.subject}"
    )
    shown = [Arc(numbers[start], numbers[end], name, step=True) for start, end, name in arcs]
    yield ArcsPlan(
        stem="why",
        **about.caption_and_notes(
            f"{title}: {_path(result)}",
            f"arrows go from what a head reads to where it writes; beside {result.head} stands its attention, beside "
            "an earlier head its share of the next head's score, less the mean over its keys",
            caption_only=(score, *parts, *beside),
        ),
        title=_path(result),
        words=pieces,
        blocks=(Sentence(str(result.head), score, tuple(shown)),),
    )


def _pieces(labels: tuple[str, ...], ends: Set[int]) -> "tuple[tuple[Piece, ...], dict[int, int]]":
    """The tokens as running text, of a long one those around the ends of arcs; also each token's place there."""
    from attnviz.figures.text import Piece

    pieces: list[Piece] = []
    numbers: dict[int, int] = {}
    for position, label in enumerate(labels):
        if len(labels) <= _WHOLE or any(abs(position - end) <= _AROUND for end in ends):
            numbers[position] = len(pieces)
            pieces.append(Piece(visible(label)))
        elif position == 0 or position - 1 in numbers:
            pieces.append(Piece("…"))
    return tuple(pieces), numbers


PATH = Drawing(_plan)
