r"""A head's scores of one query as sums over what query and key are made of, followed from head to head.

With q = sum over sources a of q_a and k = sum over sources b of k_b (:mod:`attnviz.run.stream`; then through
W_Q and W_K, norms of queries and keys at their own scale, and rotary positions)::

    score(q, k)      = scale × sum over a and b of q_a · k_b  + what is added by position + what a soft cap changes
    difference(q, k) = score(q, k) - mean over the keys that q may attend to of score(q, k')

The softmax ignores what all keys of a query have in common, so the difference is what makes a query choose one key
rather than the others; it is linear in the key, so it is the same sum with k_b less its mean.

A chain follows a score into the earlier head that most of it came from, and on from the score of that head.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from attnviz.errors import UsageError
from attnviz.models.head_ids import HeadId
from attnviz.reference import attention
from attnviz.reference.attention import normed_heads, softcap, upcast
from attnviz.reference.positions import apply_rotary
from attnviz.run.contributions import check_total, pattern_row, without_gradients
from attnviz.run.patterns import LayerHeads
from attnviz.run.stream import SIDES, Source, Term, WrittenParts, head_terms, parts_at, source_name
from attnviz.run.verify import VerifiedAttention

_KEYS = 256  # keys per chunk, so that the parts of all keys are never in memory
_STRONGEST = 3  # keys that are explained where none is named
_SHOWN = 3  # sources of a score that are named in a chain; all others are one

LEAST_OF_PARTS = 0.1  # a difference below this share of its largest part is not divided by (our own choice)


@dataclass(frozen=True, eq=False)
class KeyScore:
    """The score of one key, of a query and a head."""

    position: int  # of the key, counted from 0
    weight: float  # attention to it, 0-1
    score: float  # of which the verified pattern was made, after position bias and cap
    mean: float  # of the scores of the keys that the query may attend to
    pairs: Tensor  # [query sources, key sources], parts of the score
    differences: Tensor  # the same of the score less the mean
    extras: dict[str, tuple[float, float]]  # no products, such as position bias: part of score and of difference
    against: Tensor  # [d_head], the key less the mean key

    @property
    def difference(self) -> float:
        return self.score - self.mean

    def share(self, value: float | None) -> float | None:
        """A part of the difference as a share of it; None where parts cancel (:data:`LEAST_OF_PARTS`)."""
        return value / self.difference if value is not None and self._divides else None

    @cached_property
    def _divides(self) -> bool:
        """Whether the difference is not small beside its parts, which would be thousands of per cent of it."""
        largest = max(float(self.differences.sum(axis).abs().max()) for axis in (0, 1))
        return abs(self.difference) > LEAST_OF_PARTS * largest


@dataclass(frozen=True, eq=False)
class QueryScores:
    """The strongest keys of a query in a head, or one key that was asked for."""

    head: HeadId
    query: int
    n_keys: int  # that the query may attend to
    query_sources: tuple[Source, ...]
    key_sources: tuple[Source, ...]
    keys: tuple[KeyScore, ...]  # by attention, the strongest first
    error: float  # largest difference of the sums from the verified scores of all its keys, as a share of the scale
    scale: float  # the largest absolute score of the query
    tolerance: float  # of the error
    vector: Tensor  # [d_head], the query

    def totals(self, side: str, key: KeyScore) -> list[tuple[Source, float]]:
        """Parts of the difference by source of one side, the furthest from 0 first."""
        sources, axis = (self.query_sources, 1) if side == "query" else (self.key_sources, 0)
        values = zip(sources, key.differences.sum(axis).tolist(), strict=True)
        return sorted(values, key=lambda part: -abs(part[1]))


class SourceShare(NamedTuple):
    """A source of a score, by name, and its share of the difference; None where parts cancel."""

    source: str
    share: float | None


@dataclass(frozen=True)
class ChainLink:
    """The score of one head and key, and where most of it came from."""

    scores: QueryScores  # of the one key that the chain is at
    side: str  # on which the followed head stands, or the one with the largest source: query or key
    sources: tuple[SourceShare, ...]  # the largest of that side, the followed head first
    rest: float | None  # share of all that is left out
    source: HeadId | None  # the head with the largest part; None where no earlier head raises the difference
    source_position: int  # where that head wrote; that of the query or of the key
    source_key: int | None = None  # from which it took most of its part
    source_key_share: float | None = None  # what came from there, as a share of that part

    @property
    def explained(self) -> KeyScore:
        return self.scores.keys[0]


@dataclass(frozen=True, eq=False)
class ScoreDecomposer:
    """Takes the scores of one head apart; of a pass whose attention was verified."""

    verified: VerifiedAttention
    written: WrittenParts
    head: HeadId

    @cached_property
    def heads(self) -> LayerHeads:
        """What the one head attends with, in float32 at least."""
        return self.verified.recomputed(self.head.layer).of([self.head.head]).without_rounding()

    def allowed(self, query: int) -> Tensor:
        """Positions of the keys that a query may attend to."""
        scoring, key = self.heads.scoring, self.heads.key
        every = torch.ones(1, key.shape[-2], device=key.device)
        mask = attention.allowed_positions(every, scoring.causal, scoring.window, query, 1)
        return mask[0, 0, 0].nonzero()[:, 0]

    @cached_property
    def terms(self) -> dict[str, list[Term]]:
        return {side: head_terms(self.verified, self.written, self.head, side) for side in SIDES}

    def parts(self, side: str, positions: Tensor) -> tuple[list[Source], Tensor]:
        """Sources and parts of queries or keys at some positions, [n_sources, n_positions, d_head]."""
        sources, parts = parts_at(self.terms[side], positions)
        return sources, self._compared(side, parts, positions)

    def _compared(self, side: str, parts: Tensor, positions: Tensor) -> Tensor:
        """Parts [.., n_positions, d_head] as they are compared: rotated, queries times temperature and scale."""
        heads = self.heads.parameters
        if heads.rotary is not None:
            parts = apply_rotary(parts, heads.rotary, positions, len(self.verified.tokens))
        if heads.rotated_first:
            parts = normed_heads(parts, getattr(heads, f"{side}_norm"), linearly=True)
        if side == "key":
            return parts
        if heads.temperature is not None:
            parts = parts * heads.temperature.of(positions)[:, None]
        return parts * (heads.scale * heads.query_scale)

    def decompose(self, query: int, key: int | None) -> QueryScores:
        """The scores of a query: of one key, or of the strongest.

        Raises UsageError where the query may attend to itself alone, or not to this key; VerificationError where the
        parts do not sum to the verified scores of all its keys.
        """
        allowed = self.allowed(query)
        self._refuse_key(query, key, allowed.tolist())
        row = pattern_row(self.verified, self.head, query)
        ranked = allowed[row[allowed].argsort(descending=True, stable=True)]  # their weights may round to 0, too
        chosen = ranked[:_STRONGEST] if key is None else allowed.new_tensor([key])
        places = torch.searchsorted(allowed, chosen)
        with without_gradients(row.device):
            query_sources, of_query = self.parts("query", allowed.new_tensor([query]))
            of_query = of_query[:, 0]
            vector, products, mean = of_query.sum(0), list[Tensor](), torch.zeros(())
            for chunk in torch.split(allowed, _KEYS):
                key_sources, parts = self.parts("key", chunk)
                products.append(parts.sum(0) @ vector)
                mean = mean.to(parts) + parts.sum(1) / len(allowed)
            (scores, extra), cap = self._verified(query, allowed), self.heads.scoring.cap
            total = torch.cat(products) + sum(extra.values())
            if cap is not None:
                extra["soft cap"] = softcap(total, cap) - total
                total = total + extra["soft cap"]
            of_keys = self.parts("key", chosen)[1].transpose(0, 1)  # [n_chosen, n_sources, d_head]
            against = of_keys - mean
            pairs, differences = (of_query @ keys.mT for keys in (of_keys, against))
            extras = {name: torch.stack([part, part - part.mean()], 1)[places] for name, part in extra.items()}
            sums = torch.stack([pairs.sum((1, 2)), differences.sum((1, 2))], 1) + sum(extras.values())
        labels, positions = self.verified.tokens.labels, [*allowed.tolist(), *chosen.tolist(), *chosen.tolist()]
        error, scale = check_total(
            self.verified.checkpoint,
            torch.cat([total, sums.T.flatten()]),
            torch.cat([scores, scores[places], scores[places] - scores.mean()]),
            f"the parts of the scores of {self.head} do not sum to the verified ones, of query #{query} "
            f"({labels[query]!r})",
            lambda worst: f"at key #{positions[worst]} ({labels[positions[worst]]!r})",
        )
        keys = [
            KeyScore(
                position=position,
                weight=float(row[position]),
                score=float(scores[place]),
                mean=float(scores.mean()),
                pairs=pairs[number].cpu(),
                differences=differences[number].cpu(),
                extras={name: tuple(part[number].tolist()) for name, part in extras.items()},
                against=against[number].sum(0),
            )
            for number, (position, place) in enumerate(zip(chosen.tolist(), places.tolist(), strict=True))
        ]
        return QueryScores(
            head=self.head,
            query=query,
            n_keys=len(allowed),
            query_sources=tuple(query_sources),
            key_sources=tuple(key_sources),
            keys=tuple(keys),
            error=error,
            scale=scale,
            tolerance=self.verified.checkpoint.tolerance.output,
            vector=vector,
        )

    def attribute_to_source(self, scores: QueryScores, side: str, source: HeadId) -> Tensor:
        """What an earlier head's part of the first key's difference took from each of that head's keys, [n_keys].

        It is A (v W_O read by this head, on the key side less its mean over the keys divided by the sum of A, which is
        1 without learned sinks); the sum is the head's part.
        """
        key = scores.keys[0]
        position = scores.query if side == "query" else key.position
        (term,) = [term for term in self.terms[side] if source in term.sources]
        row = pattern_row(self.verified, source, position)
        with without_gradients(row.device):
            by_key = term.by_key(self.verified, source, position)
            rotated = self._compared(side, by_key, torch.full((len(by_key),), position, device=row.device))
            if side == "query":
                return rotated @ key.against
            mean = float((key.pairs - key.differences)[:, scores.key_sources.index(source)].sum())
            return rotated @ scores.vector - row * mean / row.sum()

    def link(self, scores: QueryScores) -> ChainLink:
        """The link from the head's first key to the earlier head that raises its score most, and to a key of that."""
        key = scores.keys[0]
        sides = {side: scores.totals(side, key) for side in SIDES}
        of_heads = [(value, side, of) for side in SIDES for of, value in sides[side] if isinstance(of, HeadId)]
        value, side, source = max(of_heads, key=lambda part: part[0], default=(0.0, "key", None))
        source = source if value > 0 and key.difference > 0 else None
        largest = sorted(sides[side], key=lambda part: part[0] != source)[:_SHOWN]
        link = ChainLink(
            scores=scores,
            side=side,
            sources=tuple(SourceShare(source_name(name), key.share(part)) for name, part in largest),
            rest=key.share(key.difference - sum(part for _, part in largest)),
            source=source,
            source_position=scores.query if side == "query" else key.position,
        )
        if source is None:
            return link
        taken = self.attribute_to_source(scores, side, source)
        most = int(taken.argmax())
        return replace(link, source_key=most, source_key_share=float(taken[most] / taken.sum()))

    def _refuse_key(self, query: int, key: int | None, allowed: Sequence[int]) -> None:
        labels = self.verified.tokens.labels
        first, last = allowed[0], allowed[-1]
        named = f"#{query} ({labels[query]!r})"
        if len(allowed) == 1:
            raise UsageError(
                f"{named} may attend to #{first} alone in {self.head}, whatever the score; expected a query with more "
                "keys: name another token, or give a longer text."
            )
        if key is not None and key not in allowed:
            window = "" if self.heads.scoring.window is None else f", its window of {self.heads.scoring.window}"
            raise UsageError(
                f"{named} does not see the key #{key} ({labels[key]!r}) in {self.head}: expected one of #{first} to "
                f"#{last}{window}."
            )

    def _verified(self, query: int, allowed: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The scores of the allowed keys that the verified pattern was made of, and what they have by position."""
        row, key, scoring = self.heads.query[0, :, query : query + 1], self.heads.key[0], self.heads.scoring
        by_position = attention.added_by_position(row, key, scoring, query)
        added = {name.replace("_", " "): upcast(part[0, 0, allowed]) for name, part in by_position.items()}
        scores = attention.scores_of(row, key, scoring, query)[0, 0, allowed]
        return (scores if scoring.cap is None else softcap(scores, scoring.cap)), added


def follow(head: ScoreDecomposer, scores: QueryScores, depth: int) -> tuple[ChainLink, ...]:
    """Follow the first key's score into the head that most of it came from, and so on, ``depth`` heads at most.

    It ends where no earlier head raises the score, or one has a single key.
    """
    links = [head.link(scores)]
    while links[-1].source is not None and len(links) < depth:
        link, head = links[-1], replace(head, head=links[-1].source)
        if len(head.allowed(link.source_position)) == 1:
            break
        links.append(head.link(head.decompose(link.source_position, link.source_key)))
    return tuple(links)
