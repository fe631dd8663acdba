r"""A head's scores of one query as sums over what query and key are made of.

With q = sum over sources a of q_a and k = sum over sources b of k_b (:mod:`attnviz.run.stream`; then through
W_Q and W_K, norms of queries and keys at their own scale, and rotary positions)::

    score(q, k)      = scale × sum over a and b of q_a · k_b  + what is added by position + what a soft cap changes
    difference(q, k) = score(q, k) - mean over the keys that q may attend to of score(q, k')

The softmax ignores what all keys of a query have in common, so the difference is what makes a query choose one key
rather than the others; it is linear in the key, so it is the same sum with k_b less its mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attnviz.errors import UsageError
from attnviz.models.head_ids import HeadId
from attnviz.reference import attention
from attnviz.reference.attention import HeadParameters, Norm, RMSNorm, normed_heads, of_all_heads, softcap, upcast
from attnviz.reference.positions import apply_rotary
from attnviz.run.contributions import check_total, without_gradients
from attnviz.run.record import AttentionCall
from attnviz.run.stream import Source, Term, WrittenParts, constant_term, parts_at
from attnviz.run.verify import VerifiedAttention

_KEYS = 256  # keys per chunk, so that the parts of all keys are never in memory

SIDES = ("query", "key")

LEAST_OF_PARTS = 0.1  # a difference below this share of its largest part is not divided by (our own choice)


@dataclass(frozen=True, eq=False)
class KeyScore:
    """The score of one key, of a query and a head."""

    key: int  # position, counted from 0
    weight: float  # attention to it, 0-1
    score: float  # the model's own, after position bias and cap
    mean: float  # the model's own mean over the keys that the query may attend to
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
    error: float  # largest difference of the sums from the model's own scores of all its keys, as a share of the scale
    scale: float  # the largest absolute score of the query
    tolerance: float  # of the error
    vector: Tensor  # [d_head], the query

    def totals(self, side: str, key: KeyScore) -> list[tuple[Source, float]]:
        """Parts of the difference by source of one side, the furthest from 0 first."""
        sources, axis = (self.query_sources, 1) if side == "query" else (self.key_sources, 0)
        values = zip(sources, key.differences.sum(axis).tolist(), strict=True)
        return sorted(values, key=lambda part: -abs(part[1]))


@dataclass(frozen=True, eq=False)
class ScoreDecomposer:
    """Takes the scores of one head apart; of a pass whose attention was verified."""

    verified: VerifiedAttention
    written: WrittenParts
    call: AttentionCall  # what the model itself handed to the attention of this layer
    head: HeadId

    @cached_property
    def parameters(self) -> HeadParameters:
        checkpoint = self.verified.checkpoint
        return checkpoint.architecture.parameters(checkpoint.model, self.head.layer)

    def allowed(self, query: int) -> Tensor:
        """Positions of the keys that a query may attend to."""
        scoring, n = self.parameters, self.call.n_queries
        every = torch.ones(1, n, device=self.call.key.device)
        mask = attention.allowed_positions(every, scoring.causal, scoring.window, query, 1)
        return mask[0, 0, 0].nonzero()[:, 0]

    @cached_property
    def terms(self) -> dict[str, list[Term]]:
        return {side: self._terms(side) for side in SIDES}

    def _terms(self, side: str) -> list[Term]:
        projection = getattr(self.parameters, side)
        norm: Norm | None = getattr(self.parameters, f"{side}_norm")
        rotary = self.parameters.rotary
        n_projected = len(projection.weight)  # fewer keys than heads where several share them
        number = self.head.head // (self.parameters.n_heads // n_projected)
        x = self.verified.inputs_of(self.head.layer)[SIDES.index(side)][0]
        shared = self.verified.checkpoint.modules[self.head.layer].keys_layer
        layer = self.head.layer if shared is None or side == "query" else shared  # whose input this is
        projected = upcast(attention.project(x, replace(projection, clip=None)))  # [n_projected, n, d_head]
        if self.parameters.rotated_first and isinstance(norm, RMSNorm):  # its weights come after, see _compared
            projected = projected if rotary is None else apply_rotary(projected, rotary)
            norm = RMSNorm(torch.ones_like(norm.weight), norm.epsilon)
        scale = _norm_scale(norm, projected)[number].reciprocal().expand(len(x), 1)
        if projection.latent is not None:
            scale = scale / projection.latent.scale(x, projected.shape[-1])
        projection = projection.linear_part()
        weight = normed_heads(upcast(projection.weight), norm, linearly=True)[number]
        terms = [replace(term, scale=term.scale * scale) for term in self.written.terms(weight, layer)]
        linearly = upcast(x) @ weight * scale
        if projection.bias is not None:
            bias = normed_heads(upcast(projection.bias)[:, None], norm, linearly=True)[number, 0]
            terms.append(constant_term((f"{side} bias", self.head.layer), bias, scale))
            linearly = linearly + bias * scale
        if norm is not None and norm.bias is not None:
            bias = upcast(norm.bias)
            terms.append(constant_term((f"{side} norm bias", self.head.layer), bias, torch.ones_like(scale)))
            linearly = linearly + bias
        if projection.clip is not None or getattr(norm, "clip", None) is not None:
            bounded = upcast(normed_heads(attention.project(x, projection), norm)[number])
            identity = torch.eye(bounded.shape[-1]).to(bounded)
            source = (f"bound of {side}", self.head.layer)
            terms.append(Term((source,), (bounded - linearly)[:, None], identity[None], torch.ones_like(scale)))
        return terms

    def _compared(self, side: str, parts: Tensor, positions: Tensor) -> Tensor:
        """Parts of queries or keys [.., n_positions, d_head] as they are compared: rotated, with their temperature."""
        heads = self.parameters
        if heads.rotary is not None:
            parts = apply_rotary(parts, heads.rotary, positions, self.call.n_queries)
        if heads.rotated_first:
            parts = normed_heads(parts, getattr(heads, f"{side}_norm"), linearly=True)
        if side == "query" and heads.temperature is not None:
            parts = parts * heads.temperature.of(positions)[:, None]
        return parts

    def parts(self, side: str, positions: Tensor) -> tuple[list[Source], Tensor]:
        """Sources and parts of queries or keys at some positions, [n_sources, n_positions, d_head]."""
        sources, parts = parts_at(self.terms[side], positions)
        return sources, self._compared(side, parts, positions)

    @property
    def factor(self) -> float:
        return self.parameters.scale * self.parameters.query_scale

    def decompose(self, query: int, key: int | None, most: int) -> QueryScores:
        """The scores of a query: of one key, or of the ``most`` strongest.

        Raises UsageError where the query may attend to itself alone, or not to this key; VerificationError where the
        parts do not sum to the model's own scores of all its keys.
        """
        allowed = self.allowed(query)
        self._refuse_key(query, key, allowed.tolist())
        row = self.pattern_row(query)
        ranked = allowed[row[allowed].argsort(descending=True, stable=True)]  # their weights may round to 0, too
        chosen = [key] if key is not None else ranked[:most].tolist()
        places = torch.searchsorted(allowed, allowed.new_tensor(chosen))
        with without_gradients(self.call.key.device):
            query_sources, parts = self.parts("query", allowed.new_tensor([query]))
            of_query = parts[:, 0]
            vector = of_query.sum(0)
            products, means = [], []
            for chunk in torch.split(allowed, _KEYS):
                _, parts = self.parts("key", chunk)
                products.append(self.factor * (parts.sum(0) @ vector))
                means.append(parts.sum(1) / len(allowed))
            extra, cap = self._added(query, allowed), self.parameters.cap
            total = torch.cat(products) + sum(extra.values())
            if cap is not None:
                extra["soft cap"] = softcap(total, cap) - total
                total = total + extra["soft cap"]
            key_sources, parts = self.parts("key", allowed.new_tensor(chosen))
            of_keys = parts.transpose(0, 1)  # [n_chosen, n_sources, d_head]
            against = of_keys - torch.stack(means).sum(0)
            pairs, differences = (self.factor * (of_query @ keys.mT) for keys in (of_keys, against))
            extras = {name: torch.stack([part, part - part.mean()])[:, places] for name, part in extra.items()}
            sums = torch.stack([pairs.sum((1, 2)), differences.sum((1, 2))]) + sum(extras.values())
            scores, error, scale = self._check_sums(query, allowed, places, torch.cat([total, sums.flatten()]))
        keys = [
            KeyScore(
                key=key,
                weight=float(row[key]),
                score=float(scores[place]),
                mean=float(scores.mean()),
                pairs=pairs[number].cpu(),
                differences=differences[number].cpu(),
                extras={name: (float(part[0, number]), float(part[1, number])) for name, part in extras.items()},
                against=against[number].sum(0),
            )
            for number, (key, place) in enumerate(zip(chosen, places.tolist(), strict=True))
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
        position = scores.query if side == "query" else key.key
        (term,) = [term for term in self.terms[side] if source in term.sources]
        row = self.pattern_row(position, source)
        with without_gradients(row.device):
            by_key = term.by_key(self.verified, source, position)
            rotated = self._compared(side, by_key, torch.full((len(by_key),), position, device=row.device))
            if side == "query":
                return self.factor * (rotated @ key.against)
            mean = float((key.pairs - key.differences)[:, scores.key_sources.index(source)].sum())
            return self.factor * (rotated @ scores.vector) - row * mean / row.sum()

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
            window = "" if self.parameters.window is None else f", its window of {self.parameters.window}"
            raise UsageError(
                f"{named} does not see the key #{key} ({labels[key]!r}) in {self.head}: expected one of #{first} to "
                f"#{last}{window}."
            )

    def _check_sums(self, query: int, allowed: Tensor, places: Tensor, sums: Tensor) -> tuple[Tensor, float, float]:
        """Compare sums of parts with the model's own scores, from the queries and keys that it handed to its attention.

        Of the allowed keys, of those at ``places`` among them, and of these less the mean. Returns the model's own
        scores of the allowed keys, the largest difference as a share of the largest score, and this.
        """
        group = self.head.head // (self.call.query.shape[1] // self.call.key.shape[1])
        keys = upcast(self.call.key[0, group, allowed])
        scores = (keys @ upcast(self.call.query[0, self.head.head, query])) * self.call.scale
        scores = scores + sum(self._added(query, allowed).values())
        scores = scores if self.call.cap is None else softcap(scores, self.call.cap)
        labels, positions = self.verified.tokens.labels, torch.cat([allowed, allowed[places], allowed[places]]).tolist()
        error, scale = check_total(
            self.verified.checkpoint,
            sums,
            torch.cat([scores, scores[places], scores[places] - scores.mean()]),
            f"the parts of the scores of {self.head} do not sum to the model's own, of query #{query} "
            f"({labels[query]!r})",
            lambda worst: f"at key #{positions[worst]} ({labels[positions[worst]]!r})",
            largest="the largest score",
        )
        return scores, error, scale

    def _added(self, query: int, allowed: Tensor) -> dict[str, Tensor]:
        """What the scores of the allowed keys have by position, as the verified pattern has it."""
        queries, keys = upcast(self.call.query[0, :, query : query + 1]), upcast(self.call.key[0])
        keys = attention.repeat_kv(keys, self.parameters.n_heads)
        added = attention.added_by_position(queries, keys, self.parameters, query)
        return {name.replace("_", " "): upcast(part[self.head.head, 0, allowed]) for name, part in added.items()}

    def pattern_row(self, query: int, head: HeadId | None = None) -> Tensor:
        """The verified attention of a query in this or another head, [n_keys that it sees]."""
        layer, number = head or self.head
        (rows,) = replace(self.verified, queries=(query,)).rows(layer, [number])
        return rows.in_float32[0, 0, 0]


def _norm_scale(norm: Norm | None, projected: Tensor) -> Tensor:
    """What a norm divides queries or keys [n_projected, n, d_head] by, [n_projected, n, 1]."""
    if norm is None:
        return torch.ones_like(projected[..., :1])
    if of_all_heads(norm, projected.shape[-1]):
        together = norm.scale(projected.transpose(0, 1).flatten(1))
        return together.expand(len(projected), *together.shape)
    return norm.scale(projected)
