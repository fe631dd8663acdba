"""How much of the first layer's scores comes from content and how much from position embeddings.

Queries and keys of the first layer are sums of what word, position and segment embeddings and biases give
(:mod:`attnviz.trace.residual_parts`). Here the mean over the tokens of this text is taken out of each embedding and is,
with the biases, the part ``constant``: a vector may be added to all words and taken from all positions without changing
the model, and does not change the result. Every score is the sum of products of a part of the query with a part of the
key (Ke et al. 2021, "Rethinking Positional Encoding in Language Pre-training"), to which a bias by distance (MPNet) is
added.

The softmax ignores what all keys of a query have in common, so only differences between the keys of a query count. The
share of a term is its covariance with the score by the variance of the score, both over the keys that each query may
attend to: the terms' Shapley values of that variance (Colini-Baldeschi, Scarsini & Vaccari 2018, "Variance Allocation
and Shapley Value"). Shares sum to 1; a term that works against the others has a negative one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.commands.explain.stages import VerifiedStages
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.tokens import Tokens
from attnviz.reference.attention import Projection, upcast
from attnviz.trace.contributions import check_total, without_gradients
from attnviz.trace.residual_parts import WrittenParts

GROUPS = {
    "content": ("content_content", "constant_content"),
    "position": ("position_position", "constant_position"),
    "both": ("content_position", "position_content"),
    "segment": ("segment",),
    "constant": ("constant",),
}
"""Terms by what they depend on, besides a part that is the same for all tokens."""

TERMS = tuple(term for terms in GROUPS.values() for term in terms)
"""Part of the query, part of the key; ``segment``: of the key or the query; ``constant``: of the key."""

_ROWS = 128
"""Queries per block, so that no term is in memory for all scores of a head."""

_ROUNDING = 1e-6
"""Differences of scores below this share of the largest one are rounding."""


@dataclass(frozen=True)
class ScoreShares:
    """Shares of content and position in the scores of a head, or of all heads."""

    terms: dict[str, float | None]
    """Share of each of :data:`TERMS`; None if no score differs from another of the same query by more than
    rounding, and for ``segment`` where there is one segment alone."""
    spread: float
    """Root mean square difference of a score from the mean of its query's scores."""

    @property
    def groups(self) -> dict[str, float | None]:
        """Share of each of :data:`GROUPS`, by name."""
        parts = {name: [self.terms[term] for term in terms] for name, terms in GROUPS.items()}
        return {name: None if None in part else sum(share or 0.0 for share in part) for name, part in parts.items()}


@dataclass(frozen=True)
class PositionShares:
    """The shares of every head of the first layer, and of all its scores together."""

    heads: tuple[ScoreShares, ...]
    layer: ScoreShares  # a head whose scores vary more counts for more
    error: float  # largest difference between the sum of the terms and the score, divided by scale
    scale: float  # the largest absolute score
    tolerance: float
    segments: bool  # whether the text has two segments, which the model tells apart


def embeds_positions(checkpoint: Checkpoint) -> bool:
    """Whether positions enter as embeddings; rotary ones enter as rotations in every layer."""
    return checkpoint.architecture.embeddings(checkpoint.model).positions is not None


def position_shares(
    checkpoint: Checkpoint, tokens: Tokens, stages: VerifiedStages, written: WrittenParts
) -> PositionShares:
    """Split the scores of the first layer on a text into shares, head by head; ``written`` is of the same pass.

    Raises:
        VerificationError: the terms do not add up to the scores that were verified.
    """
    scores, allowed = stages["scores"].tensor, stages["mask"].tensor
    tolerance, sums, totals = checkpoint.tolerance.output, [], []
    with without_gradients(checkpoint.device):
        heads = checkpoint.architecture.parameters(checkpoint.model, 0)
        for head in range(len(scores)):
            query, key = (score_parts(written, projection, head) for projection in (heads.query, heads.key))
            products = torch.zeros(len(TERMS) + 1, dtype=torch.float64)
            for first in range(0, len(allowed), _ROWS):
                rows = slice(first, first + _ROWS)
                of_rows = {name: part[rows] for name, part in query.items()}
                terms = dict(score_terms(of_rows, key, heads.scale * heads.query_scale))
                if heads.position_bias is not None:
                    bias = heads.position_bias(first, len(allowed[rows]), len(allowed))
                    terms["position_position"] += bias[head]
                total = torch.stack([terms[term] for term in TERMS]).sum(0)
                totals.append(total)
                centred = _centred(total, allowed[rows])
                every = [*(_centred(terms[term], allowed[rows]) for term in TERMS), centred]
                products += torch.stack([(each * centred).sum() for each in every]).cpu().double()
            sums.append(products)
        error, scale = check_total(
            torch.cat(totals).view_as(scores),
            upcast(scores),
            tolerance,
            "the scores of the first layer, split into what comes from content and from positions, do not add up",
            "at score {} of all".format,
        )
    segments = checkpoint.architecture.segments and len(set(tokens.type_ids or ())) > 1
    count = int(allowed.sum())
    shares = [
        _shares(of.tolist(), count, float(own.abs().max()), segments) for of, own in zip(sums, scores, strict=True)
    ]
    of_all = _shares(torch.stack(sums).sum(0).tolist(), count * len(scores), scale, segments)
    return PositionShares(tuple(shares), of_all, error, scale, tolerance, segments)


def score_parts(written: WrittenParts, projection: Projection, head: int) -> dict[str, Tensor]:
    """A head's queries or keys of the first layer in parts, [n, d_head]: content, position, segment, constant."""
    terms = list(written.terms(projection.weight[head], 0))
    scale = terms[0].scale
    every = torch.arange(len(scale), device=scale.device)
    nothing = scale.new_zeros(len(scale), projection.weight.shape[-1])
    parts = dict.fromkeys(("content", "position", "segment", "constant"), nothing)
    if projection.bias is not None:
        parts["constant"] = nothing + upcast(projection.bias[head])
    for term in terms:
        name = str(term.sources[0][0]).removesuffix(" embedding").replace("word", "content")
        if name in parts:
            mean = upcast(term.vectors).mean(0, keepdim=True)
            parts[name] = replace(term, vectors=upcast(term.vectors) - mean).at(every)[0]
            term = replace(term, vectors=mean.expand_as(term.vectors))  # noqa: PLW2901
        parts["constant"] = parts["constant"] + term.at(every)[0]
    return parts


def score_terms(query: dict[str, Tensor], key: dict[str, Tensor], scale: float) -> Iterator[tuple[str, Tensor]]:
    """The terms of the scores of one head, [n_queries, n] each, from the parts of its queries and of its keys."""
    for one in ("content", "position", "constant"):
        for other in ("content", "position"):
            yield f"{one}_{other}", scale * query[one] @ key[other].T
    varying = query["content"] + query["position"] + query["constant"]
    whole_key = torch.stack(list(key.values())).sum(0)
    yield "segment", scale * (varying @ key["segment"].T + query["segment"] @ whole_key.T)
    yield "constant", scale * varying @ key["constant"].T


def _centred(values: Tensor, allowed: Tensor) -> Tensor:
    """Subtract the mean over the allowed keys of each query; 0 elsewhere."""
    kept = torch.where(allowed, values, 0)
    return torch.where(allowed, kept - kept.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True), 0)


def _shares(sums: Sequence[float], count: int, scale: float, segments: bool) -> ScoreShares:
    """Shares from the products of every term with the score; the last entry is the score with itself."""
    *products, variance = sums
    spread = (variance / count) ** 0.5
    shares: dict[str, float | None] = dict.fromkeys(TERMS)
    if spread > _ROUNDING * scale:
        terms = zip(TERMS, products, strict=True)
        shares |= {term: value / variance for term, value in terms if segments or term != "segment"}
    return ScoreShares(shares, spread)
