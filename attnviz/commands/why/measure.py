"""Measure why one head's query attends to a key: its scores in parts, and the chain of heads behind them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Unpack

import torch

from attnviz.errors import UsageError
from attnviz.inputs.prompt import position_of
from attnviz.inputs.text import tokenize
from attnviz.measures.direct_effects import DirectEffects, answer_ids, direct_effects
from attnviz.measures.scores import KeyScore, QueryScores, ScoreDecomposer
from attnviz.measures.sinks import with_found_sinks
from attnviz.models.classifier import SPAN
from attnviz.models.head_ids import HeadId, head_named
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, checked
from attnviz.present.result import TextResult
from attnviz.progress import Progress
from attnviz.run.record import AttentionCall, block_memory
from attnviz.run.stream import SIDES, Source, recording_parts, why_no_effects
from attnviz.run.verify import VerifiedAttention, verify_attention
from attnviz.wording import rounded, shortened_token

_KEYS = 3  # keys that are explained where none is named
_SHOWN = 3  # sources of a score that are nodes of their own in a chain; all others are one


@dataclass(frozen=True)
class ChainLink:
    """The score of one head and key, and where most of it came from; shares are None where parts cancel."""

    scores: QueryScores  # of the one key that the chain is at
    side: str  # on which the followed head stands, or the one with the largest source: query or key
    source: HeadId | None  # the head with the largest part; None where no earlier head raises the difference
    branches: tuple[tuple[Source, float | None], ...]  # the largest sources of that side, the followed head first
    rest: float | None  # share of all that is left out
    position: int  # where that head wrote; that of the query or of the key
    key: int | None = None  # from which it took most of its part
    key_share: float | None = None  # what came from there, as a share of that part


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
        where = f"{self.label(self.query)} → {self.label(key.key)}"
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
    opened, _ = open_checkpoint(model, **opening)
    checkpoint = opened.encoder
    ids = answer_ids(checkpoint, answer, foil)
    chosen = head_named(head, checkpoint.kinds)
    tokens = with_found_sinks(checkpoint, tokenize(checkpoint, text, pair, truncate))
    at_query = position_of(tokens, query)
    at_key = None if key is None else position_of(tokens, key)
    no_effects = why_no_effects(checkpoint)
    read = at_query if checkpoint.classifier is None else checkpoint.classifier.position(tokens.ids)
    if checkpoint.class_head is not None and checkpoint.class_head.task == SPAN:
        no_effects = "Direct effects on start and end of an answer are given by attnviz outputs --answer-span."
    elif not no_effects and read != at_query:
        no_effects = f"Direct effects are not given: the classifier reads #{read}; add --query '#{read}'."
    if no_effects and ids != (None, None):
        raise UsageError(f"--answer and --foil (answer=..., foil=...) cannot be read at #{at_query}. {no_effects}")
    with recording_parts(checkpoint, tokens, chosen.layer if no_effects else None) as written:

        def keep_call(call: AttentionCall) -> None:
            if call.layer == chosen.layer or (depth > 1 and call.layer < chosen.layer):
                written.calls[call.layer] = replace(call, value=torch.empty(0))

        verified = verify_attention(
            checkpoint, tokens, progress=progress, memory=of_chunk, keep_outputs=False, on_attention_call=keep_call
        )

    @cache
    def scores_of(head: HeadId) -> ScoreDecomposer:
        return ScoreDecomposer(verified, written, head)

    scores = scores_of(chosen).decompose(at_query, at_key, _KEYS)
    return Account(
        text=text,
        pair=pair,
        checkpoint=checkpoint,
        tokens=tokens,
        attention=verified,
        scores=scores,
        chain=follow(scores_of, scores, depth),
        depth=depth,
        named=key is not None,
        effects=None if no_effects else direct_effects(verified, written, at_query, *ids, by_key=chosen),
        no_effects=no_effects,
    )


def follow(heads: Callable[[HeadId], ScoreDecomposer], scores: QueryScores, depth: int) -> tuple[ChainLink, ...]:
    """Follow the first key's score into the head that most of it came from, and so on, ``depth`` heads at most.

    It ends where no earlier head raises the score, or one has a single key.
    """
    links: list[ChainLink] = []
    while True:
        key = scores.keys[0]
        sides = {side: scores.totals(side, key) for side in SIDES}
        ranked = [(value, side, of) for side in SIDES for of, value in sides[side] if isinstance(of, HeadId)]
        value, side, source = max(ranked, key=lambda part: part[0], default=(0.0, "key", None))
        source = source if value > 0 and key.difference > 0 else None
        largest = sorted(sides[side], key=lambda part: part[0] != source)[:_SHOWN]
        link = ChainLink(
            scores=scores,
            side=side,
            source=source,
            branches=tuple((name, key.share(part)) for name, part in largest),
            rest=key.share(key.difference - sum(part for _, part in largest)),
            position=scores.query if side == "query" else key.key,
        )
        if source is None:
            return (*links, link)
        taken = heads(scores.head).attribute_to_source(scores, side, source)
        most = int(taken.argmax())
        links.append(replace(link, key=most, key_share=float(taken[most] / taken.sum())))
        if len(links) == depth or len(heads(source).allowed(link.position)) == 1:
            return tuple(links)
        scores = heads(source).decompose(link.position, most, 1)
