"""Measure why one head's query attends to a key: its scores in parts, and the chain of heads behind them."""

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Unpack

import torch

from attnviz.commands.why.chain import ChainLink, follow
from attnviz.commands.why.scores import KeyScore, QueryScores, ScoreDecomposer
from attnviz.errors import UsageError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.classifier import SPAN
from attnviz.models.head_ids import HeadId, head_named
from attnviz.models.opening import Model, open_checkpoint
from attnviz.models.tokens import Tokens, find_positions, merge_subwords
from attnviz.options import ModelOptions, checked
from attnviz.present.result import TextResult
from attnviz.progress import Progress
from attnviz.trace.direct_effects import DirectEffects, answer_ids, direct_effects
from attnviz.trace.recorder import AttentionCall, block_memory
from attnviz.trace.residual_parts import recording_parts, why_no_effects
from attnviz.trace.sinks import with_found_sinks
from attnviz.trace.verify import VerifiedAttention, verify_attention
from attnviz.wording import rounded, shortened_token

_KEYS = 3  # keys that are explained where none is named


@dataclass(frozen=True, repr=False, eq=False)
class Account(TextResult):
    """Result of :func:`why`: scores of one query of one head as sums over what made them.

    Attributes:
        attention: the verified heads.
        scores: of the keys that are explained, the strongest first.
        chain: the first key's score, followed from head to head.
        depth: how many heads were asked for.
        named: whether the key was.
        effects: direct effects at the query on an answer minus a foil, those of the head also by key; None if
            ``no_effects`` gives a reason.
    """

    command: ClassVar[str] = "why"

    attention: VerifiedAttention
    scores: QueryScores
    chain: tuple[ChainLink, ...]
    depth: int
    named: bool
    effects: DirectEffects | None
    no_effects: str

    @property
    def head(self) -> HeadId:
        """The head."""
        return self.scores.head

    @property
    def query(self) -> int:
        """Position of the query."""
        return self.scores.query

    @property
    def keys(self) -> tuple[KeyScore, ...]:
        """The keys that are explained, the strongest first."""
        return self.scores.keys

    def label(self, position: int) -> str:
        """A token, shortened, with its position: ``‘cat’ #2``."""
        return f"‘{shortened_token(self.tokens.labels[position], 24)}’ #{position}"

    def __repr__(self) -> str:
        key = self.keys[0]
        where = f"{self.label(self.query)} → {self.label(key.key)}"
        return f"<Account of {self.head} in {self.checkpoint.short_name}: {where}, score {rounded(key.score)}>"


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

    Args:
        text: one text.
        model: see :data:`attnviz.models.opening.Model`.
        head: ``"L2H8"``, ``"2.8"`` or a HeadId.
        query: a token, ``#3`` or 3; of a word of several pieces the last; default the last that is not special.
        key: likewise; default the keys with most attention.
        answer: whose logit the head's output at the query moves: a token, as text or as its id in the vocabulary, or a
            class; default the model's first choice.
        foil: whose logit is subtracted; default the first of the model's other choices.
        depth: how many heads the chain goes through.
        pair: a second segment (BERT).
        truncate: cut a text that is longer than the model instead of raising.
        memory: that a block of query rows may take, in bytes, or as ``"64M"``; default 48 MiB, on a GPU 1 GiB or a
            quarter of what is free.
        progress: callback for every layer verified.
        opening: see :class:`attnviz.options.ModelOptions`.

    Raises:
        AttnvizError: VerificationError where the heads do not reproduce the model, or the parts do not sum to its
            scores or logits; UsageError for a head, a token, a key or an answer that is not there.
    """
    if head is None:
        raise UsageError("why explains one head: expected --head (head=...), such as L2H8; attnviz heads shows all.")
    of_block = block_memory(memory)
    opened, _ = open_checkpoint(model, **opening)
    checkpoint = opened.encoder
    ids = answer_ids(checkpoint, answer, foil)
    chosen = head_named(head, checkpoint.kinds)
    tokens = with_found_sinks(checkpoint, checkpoint.tokenize(text, pair, truncate))
    units = merge_subwords(tokens, words=False)
    last = max((at for at, special in enumerate(tokens.special) if not special), default=len(tokens) - 1)
    at_query = last if query is None else find_positions(units, query)[-1]
    at_key = None if key is None else find_positions(units, key)[-1]
    calls: dict[int, AttentionCall] = {}

    def called(call: AttentionCall) -> None:
        if call.layer == chosen.layer or (depth > 1 and call.layer < chosen.layer):
            calls[call.layer] = replace(call, value=torch.empty(0))

    no_effects = _why_no_effects(checkpoint, tokens, at_query)
    if no_effects and ids != (None, None):
        raise UsageError(f"--answer and --foil (answer=..., foil=...) cannot be read at #{at_query}. {no_effects}")
    with recording_parts(checkpoint, tokens, chosen.layer if no_effects else None) as written:
        verified = verify_attention(
            checkpoint, tokens, progress=progress, memory=of_block, keep_outputs=False, called=called
        )

    @cache
    def scores_of(of: HeadId) -> ScoreDecomposer:
        return ScoreDecomposer(verified, written, calls[of.layer], of)

    scores = scores_of(chosen).decompose(at_query, at_key, _KEYS)
    chain = follow(scores_of, scores, depth)
    effects = None if no_effects else direct_effects(verified, written, at_query, *ids, by_key=chosen)
    named = key is not None
    return Account(text, pair, checkpoint, tokens, verified, scores, chain, depth, named, effects, no_effects)


def _why_no_effects(checkpoint: Checkpoint, tokens: Tokens, query: int) -> str:
    """Sentence on why the head has no direct effect at the query, or ''."""
    read = None if checkpoint.classifier is None else checkpoint.classifier.position(tokens.ids)
    elsewhere = f"Direct effects are not given: the classifier reads #{read}; add --query '#{read}'."
    if checkpoint.class_head is not None and checkpoint.class_head.task == SPAN:
        return "Direct effects on start and end of an answer are given by attnviz outputs --answer-span."
    return why_no_effects(checkpoint) or ("" if read in (None, query) else elsewhere)
