r"""How much of the first layer's scores comes from content and how much from position embeddings.

The first layer's attention input is a layer norm of word + position (+ segment) embeddings. With the mean and the
standard deviation that the norm finds in the actual sum held fixed, the norm is linear, so that its output is exactly

    x = content + position + segment + constant

``content`` is the word embedding, ``position`` the position embedding, ``segment`` the token type's, each less its
mean over the tokens of this text, through the norm; ``constant`` is the sum of these means through the norm, and the
norm's bias. Taking the means out matters: a vector may be added to all words and taken from all positions without
changing the model, and here it does not change the result. Queries and keys split alike (their biases are constant),
and every score is exactly the sum of the products of a part of the query with a part of the key. Ke et al. 2021,
"Rethinking Positional Encoding in Language Pre-training", split scores so (without the norm) into word-to-word,
word-to-position, position-to-word and position-to-position, to which a bias by distance (MPNet) is added.

The softmax ignores what all keys of a query have in common, so only the differences between the keys of a query
count. The share of a term is

    sum over queries and keys of (term - its mean over the query's keys) (score - its mean over the query's keys)
    divided by the same sum of (score - its mean over the query's keys)^2

over the keys that the query may attend to: the covariance of the term with the score by the variance of the score.
Shares of all terms sum to 1; a term that works against the others has a negative one. They are the terms' Shapley
values of that variance (Colini-Baldeschi, Scarsini & Vaccari 2018, "Variance Allocation and Shapley Value").
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.explain.reference import layer_parameters, projection_of
from attnviz.commands.explain.stages import VerifiedStages
from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.tokens import Tokens
from attnviz.reference.attention import upcast
from attnviz.trace.contributions import without_gradients
from attnviz.trace.residual_parts import embeddings_of

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


def position_shares(checkpoint: Checkpoint, tokens: Tokens, stages: VerifiedStages) -> PositionShares:
    """Split the scores of the first layer on a text into shares, head by head.

    Raises:
        VerificationError: the terms do not add up to the scores that were verified.
        ValueError: the stages are not those of the first layer.
    """
    if stages.layer != 0:
        raise ValueError(f"embeddings enter the first layer alone. Got layer {stages.layer}.")
    with without_gradients(checkpoint.device):
        parts, heads = input_parts(checkpoint, tokens), layer_parameters(checkpoint, 0).heads
        factor = heads.scale * heads.query_scale
        scores, allowed = stages["scores"].tensor, stages["mask"].tensor
        error, sums = 0.0, []
        for head, own in enumerate(scores):
            query, key = (
                _mapped(parts, of.weight[head], None if of.bias is None else of.bias[head])
                for of in (heads.query, heads.key)
            )
            products = [0.0] * (len(TERMS) + 1)
            for first in range(0, len(own), _ROWS):
                rows = slice(first, first + _ROWS)
                terms = dict(_terms({name: part[rows] for name, part in query.items()}, key, factor))
                if heads.position_bias is not None:
                    terms["position_position"] += heads.position_bias(first, len(own[rows]), len(own))[head]
                total = torch.stack(list(terms.values())).sum(0)
                error = max(error, float((total - upcast(own[rows])).abs().nan_to_num_(nan=torch.inf).max()))
                centred = _centred(total, allowed[rows])
                of_rows = [*(_centred(terms[term], allowed[rows]) for term in TERMS), centred]
                products = [
                    so_far + float((each * centred).sum()) for so_far, each in zip(products, of_rows, strict=True)
                ]
            sums.append(products)
        scale, count = float(scores.abs().max()), int(allowed.sum())
    relative, tolerance = error / scale if scale > 0 else error, checkpoint.tolerance.output
    if not relative <= tolerance:
        raise VerificationError(
            "the scores of the first layer, split into what comes from content and from positions, do not add up: "
            f"the sum of the terms is off by {relative:.2g} of the largest score (tolerance {tolerance:g}). "
            "Nothing was written."
        )
    segments = checkpoint.architecture.segments and len(set(tokens.type_ids or ())) > 1
    shares = tuple(_shares(of, count, float(own.abs().max()), segments) for of, own in zip(sums, scores, strict=True))
    of_all = _shares([sum(of) for of in zip(*sums, strict=True)], count * len(scores), scale, segments)
    return PositionShares(shares, of_all, relative, scale, tolerance, segments)


def input_parts(checkpoint: Checkpoint, tokens: Tokens) -> dict[str, Tensor]:
    """Split the input into parts, [n, d_model]: ``content``, ``position``, ``segment``, ``constant``; they add up."""
    read = embeddings_of(checkpoint, tokens)
    raw = {"content" if name == "word" else name: upcast(part) for name, part in read.items()}
    raw.setdefault("segment", torch.zeros_like(raw["content"]))
    architecture, means = checkpoint.architecture, {name: part.mean(0, keepdim=True) for name, part in raw.items()}
    norm: Any = architecture.embeddings(checkpoint.model).norm
    if norm is None and not architecture.pre_norm:
        constant = torch.stack(list(means.values())).sum(0).expand_as(raw["content"])
        return {name: part - means[name] for name, part in raw.items()} | {"constant": constant}
    norm = norm or checkpoint.modules[0].attention_norm
    parameters = checkpoint.norm(norm)
    scale = parameters.scale(torch.stack(list(raw.values())).sum(0))
    parts = {name: parameters.linear_part(part - means[name], scale) for name, part in raw.items()}
    common = torch.stack(list(means.values())).sum(0)
    parts["constant"] = parameters.linear_part(common, scale)
    if parameters.bias is not None:
        parts["constant"] = parts["constant"] + upcast(parameters.bias)
    project = projection_of(checkpoint)
    return parts if project is None else _mapped(parts, project.weight, project.bias)


def _mapped(parts: dict[str, Tensor], weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    """Apply a linear map to every part of the input; the bias is constant."""
    mapped = {name: part @ upcast(weight) for name, part in parts.items()}
    return mapped if bias is None else {**mapped, "constant": mapped["constant"] + upcast(bias)}


def _terms(query: dict[str, Tensor], key: dict[str, Tensor], scale: float) -> Iterator[tuple[str, Tensor]]:
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
