"""The reference multi-head attention and the norms around it, on plain tensors.

Scaled dot-product attention over several heads (Vaswani et al. 2017, "Attention Is All You Need",
sections 3.2.1 and 3.2.2), all heads of a layer at once::

    q = x W_Q + b_Q        k = x W_K + b_K        v = x W_V + b_V         [.., n_heads, n, d_head]
    scores  = q k^T / sqrt(d_head)                                        [.., n_heads, n, n]
    pattern = softmax(scores where allowed, -inf elsewhere)               [.., n_heads, n, n]
    output  = concat(pattern v) W_O + b_O                                 [.., n, d_model]

Changes of later models apply where the parameters have them: keys and values shared by groups of heads,
q and k normed and rotated by their positions (:mod:`attnviz.reference.positions`), scores with a bias by position,
with products with vectors of relative positions, or capped, windows, and learned sinks, with which a row sums to less
than 1; a gate of ``pattern v`` (Qiu et al. 2025, "Gated Attention for Large Language Models"). Queries may come from
another input than keys and values (cross-attention).

``..`` is any number of leading axes (a batch). Axes come in the order head, query, key. Masks are
boolean, True = may attend. Nothing here knows of transformers; only ``torch`` is imported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attnviz.reference.positions import RelativePositions, Rotary, Temperature, apply_rotary


@dataclass(frozen=True)
class LayerNorm:
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over the last axis (Ba et al. 2016).

    The variance is that of the d_model numbers themselves (divided by d_model, not d_model - 1).
    """

    weight: Tensor | None  # [d_model]
    bias: Tensor | None  # [d_model]
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        """Every vector of x [.., d_model] with mean 0 and variance 1, then weighted and shifted; in the dtype of x."""
        linear = self.linear_part(x, self.scale(x))
        return (linear if self.bias is None else linear + upcast(self.bias)).to(x.dtype)

    def scale(self, x: Tensor) -> Tensor:
        """What the centred x [.., d_model] is divided by, [.., 1], in float32 at least."""
        x = upcast(x)
        variance = (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return (variance + self.epsilon).sqrt()

    def linear_part(self, x: Tensor, scale: Tensor | float) -> Tensor:
        """The norm of x [.., d_model] with this scale and without bias: linear in x; in float32 at least."""
        x = upcast(x)
        normed = (x - x.mean(-1, keepdim=True)) / scale
        return normed if self.weight is None else normed * upcast(self.weight)

    def read_by(self, weight: Tensor) -> Tensor:
        """The matrix that reads from x what ``weight`` [.., d_model, d] reads from the linear part at scale 1."""
        weighted = weight if self.weight is None else upcast(self.weight)[:, None] * weight
        return weighted - weighted.mean(-2, keepdim=True)


@dataclass(frozen=True)
class RMSNorm:
    """y = x / sqrt(mean(x²) + eps) * weight, over the last axis (Zhang & Sennrich 2019).

    It is computed in float32 whatever the number format, as transformers' models do.
    """

    weight: Tensor  # [d_model] or [d_head]
    epsilon: float
    one_more: bool = False  # whether the weight is the stored one plus 1 (Gemma)
    rounded_once: bool = False  # whether the weight is multiplied in float32, too (OLMo 2)
    clip: float | None = None  # the result is kept between -clip and clip (OLMoE)
    bias: None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Every vector of x with mean square 1, then weighted; in the dtype of x."""
        in_float32 = x.float()
        normed = in_float32 * torch.rsqrt(in_float32.pow(2).mean(-1, keepdim=True) + self.epsilon)
        if self.one_more:
            return (normed * (1.0 + self.weight.float())).to(x.dtype)
        weighted = (self.weight * normed).to(x.dtype) if self.rounded_once else self.weight * normed.to(x.dtype)
        return weighted if self.clip is None else weighted.clamp(-self.clip, self.clip)

    def scale(self, x: Tensor) -> Tensor:
        """What x is divided by, [.., 1], in float32 at least."""
        return (upcast(x).square().mean(-1, keepdim=True) + self.epsilon).sqrt()

    def linear_part(self, x: Tensor, scale: Tensor | float) -> Tensor:
        """The norm of x with this scale: linear in x; in float32 at least."""
        return upcast(x) / scale * (upcast(self.weight) + self.one_more)

    def read_by(self, weight: Tensor) -> Tensor:
        """As of a layer norm."""
        return (upcast(self.weight) + self.one_more)[:, None] * weight


Norm = LayerNorm | RMSNorm


def upcast(x: Tensor) -> Tensor:
    """The tensor in float32 at least."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


@dataclass(frozen=True)
class Latent:
    """A narrower vector, of which projections are made (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1: MLA)."""

    weight: Tensor  # [d_latent, d_model]
    bias: Tensor | None  # [d_latent]
    norm: RMSNorm  # of its first numbers, as many as it has weights

    @property
    def n_apart(self) -> int:
        """How many of its numbers are not normed: the last of a key, in all heads."""
        return len(self.weight) - len(self.norm.weight)

    def __call__(self, x: Tensor) -> Tensor:
        """From inputs [.., d_model] to [.., d_latent]."""
        normed, apart = self._before_norm(x)
        return torch.cat([self.norm(normed), apart], -1)

    def _before_norm(self, x: Tensor) -> tuple[Tensor, ...]:
        return linear(x, self.weight, self.bias).tensor_split([len(self.norm.weight)], -1)

    def scale(self, x: Tensor, d_head: int) -> Tensor:
        """What each number of a head is divided by, [.., d_head]; the last ones, which are not normed, by 1."""
        scale = self.norm.scale(self._before_norm(x)[0]).expand(*x.shape[:-1], d_head - self.n_apart)
        return torch.nn.functional.pad(scale, (0, self.n_apart), value=1.0)


@dataclass(frozen=True)
class Projection:
    """One linear map a head."""

    weight: Tensor  # [n_heads, d_model, d_head]; with a latent of that
    bias: Tensor | None = None  # [n_heads, d_head]
    clip: float | None = None  # the result is kept between -clip and clip (OLMo)
    latent: Latent | None = None
    rounding: Callable[[Tensor], Tensor] | None = None  # of the input, see :func:`linear`

    def linear_part(self) -> "Projection":
        """From the input itself, the norm of the latent at scale 1; in float32 at least."""
        if self.latent is None:
            return self
        normed, apart = upcast(self.weight).tensor_split([len(self.latent.norm.weight)], -2)
        read = torch.cat([self.latent.norm.read_by(normed), apart], -2)
        bias = None if self.latent.bias is None else upcast(self.latent.bias) @ read
        return Projection(upcast(self.latent.weight).T @ read, bias, self.clip)


class Chunk(int):
    """A window that does not slide: texts are cut into chunks of so many tokens, and a query sees its own (Llama 4)."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How queries and keys become a pattern."""

    scale: float  # what the scores are multiplied by, 1/sqrt(d_head) unless the checkpoint says else
    causal: bool  # whether a query may attend only to itself and to what precedes it
    upcast: bool = False  # whether scores and softmax are computed in float32 (GPT-2's ``reorder_and_upcast_attn``)
    softmax_in_float32: bool = False  # whether the softmax is, whatever the number format of the scores
    window: int | None = None  # keys on each visible side that a query may attend to, its own included; None for all
    cap: float | None = None  # bound of the scores, see :func:`softcap`
    # from the first query, the number of queries and that of keys to what is added to the scaled scores,
    # [n_heads, n_queries, n_keys], see :func:`attnviz.reference.positions.bucketed_bias`
    position_bias: Callable[[int, int, int], Tensor] | None = None
    relative: RelativePositions | None = None  # DeBERTa, where queries of padding attend to all keys alike
    rounded_once: bool = False  # whether scores are rounded only after this bias was added (BLOOM)
    sinks: Tensor | None = None  # [n_heads]: a learned score of a key that is no token, see :func:`attention_pattern`


@dataclass(frozen=True, kw_only=True)
class HeadParameters(Scoring):
    """The parameters of one attention layer, a head at a time along the first axis."""

    query: Projection  # W_Q, b_Q
    key: Projection  # with fewer heads where several query heads share them, see :func:`repeat_kv`
    value: Projection  # likewise
    output_weight: Tensor  # W_O, [n_heads, d_head, d_model]
    output_bias: Tensor | None  # b_O, [d_model], for all heads together
    rotary: Rotary | None = None
    query_norm: Norm | None = None  # before it is rotated, see :func:`normed_heads`
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    rotated_first: bool = False  # whether the norms of queries and keys stand after the rotation (HunYuan)
    temperature: Temperature | None = None  # of queries by position, once they are rotated and normed
    query_scale: float = 1.0  # what queries are multiplied by before they are rotated, and rounded (OPT, ESM)
    output_rounding: Callable[[Tensor], Tensor] | None = None  # of what W_O is applied to, see :func:`linear`
    gate: Projection | None = None  # of self-attention, from its input, see :func:`gate_of`

    @property
    def n_heads(self) -> int:
        """Query heads, which are those that have a pattern each."""
        return self.query.weight.shape[0]


def project(x: Tensor, projection: Projection) -> Tensor:
    """Project an input x [.., n, d_model] with every head's own matrix and bias, [.., n_heads, n, d_head]."""
    x = x if projection.latent is None else projection.latent(x)
    n_heads, _, d_head = projection.weight.shape
    one_below_the_other = projection.weight.mT.flatten(0, 1)  # [n_heads * d_head, d_model]
    bias = None if projection.bias is None else projection.bias.flatten()
    projected = linear(x, one_below_the_other, bias, projection.rounding)  # [.., n, n_heads * d_head]
    if projection.clip is not None:
        projected = projected.clamp(-projection.clip, projection.clip)
    return projected.reshape(*x.shape[:-1], n_heads, d_head).transpose(-3, -2)  # [.., n_heads, n, d_head]


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, rounding: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Linear map x W^T + b in the number format of W, of x as the map rounds it first, if it does (LLM.int8()).

    It is rounded once as in models; twice would move large scores by 1 in half precision.
    """
    x = x if rounding is None else rounding(x)
    if {x.dtype, x.dtype if bias is None else bias.dtype} == {weight.dtype}:  # each conversion is an operation
        return torch.nn.functional.linear(x, weight, bias)
    return torch.nn.functional.linear(x.to(weight), weight, None if bias is None else bias.to(weight)).to(x)


def repeat_kv(x: Tensor, n_heads: int) -> Tensor:
    """Keys or values of fewer heads, for all query heads: neighbours share one (Ainslie et al. 2023, "GQA", section 2).

    From [.., n_kv_heads, n, d_head], of which n_heads is a multiple, to [.., n_heads, n, d_head]: head h has what the
    key-value head h // (n_heads / n_kv_heads) has.
    """
    groups = n_heads // x.shape[-3]
    return x if groups == 1 else x.repeat_interleave(groups, dim=-3)


def values(source: Tensor, parameters: HeadParameters) -> Tensor:
    """The values of every query head, [.., n_heads, n_keys, d_head], from the keys' input [.., n_keys, d_model]."""
    return repeat_kv(normed_heads(project(source, parameters.value), parameters.value_norm), parameters.n_heads)


def queries_and_keys(
    x: Tensor, source: Tensor, parameters: HeadParameters, steps: dict[str, tuple[Tensor, Tensor]] | None = None
) -> tuple[Tensor, Tensor]:
    """Queries and keys: projected, normed a head (Henry et al. 2020), rotated, and keys repeated for their group.

    From x [.., n_queries, d_model] and the source of keys [.., n_keys, d_model] to [.., n_heads, n_queries, d_head] and
    [.., n_heads, n_keys, d_head]. ``steps`` gets both after each: ``projected``, ``head_norm``, ``rotated``; keys
    as many as they are before their groups share them.
    """
    steps = {} if steps is None else steps
    query, key = steps["projected"] = project(x, parameters.query), project(source, parameters.key)
    if parameters.rotated_first:
        query, key = _rotated(query, key, parameters, steps)
    if parameters.query_norm is not None or parameters.key_norm is not None:
        query, key = normed_heads(query, parameters.query_norm), normed_heads(key, parameters.key_norm)
        steps["head_norm"] = query, key
    if not parameters.rotated_first:
        query, key = _rotated(query, key, parameters, steps)
    if parameters.temperature is not None:
        query = parameters.temperature.times(query)
        steps["rotated"] = query, key
    return query, repeat_kv(key, parameters.n_heads)


def query_key_value(x: Tensor, source: Tensor, parameters: HeadParameters) -> tuple[Tensor, Tensor, Tensor]:
    """What every query head attends with, see :func:`queries_and_keys` and :func:`values`."""
    return *queries_and_keys(x, source, parameters), values(source, parameters)


def _rotated(
    query: Tensor, key: Tensor, parameters: HeadParameters, steps: dict[str, tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    query = query if parameters.query_scale == 1 else query * parameters.query_scale
    if parameters.rotary is not None:
        query, key = steps["rotated"] = apply_rotary(query, parameters.rotary), apply_rotary(key, parameters.rotary)
    return query, key


def normed_heads(x: Tensor, norm: Norm | None, linearly: bool = False) -> Tensor:
    """Queries or keys [.., n_heads, n, d_head], normed a head at a time, or all together if the norm is as wide.

    A head at a time the weights are the same for all, [d_head], or each head's own, [n_heads, 1, d_head].
    ``linearly`` is through the linear part of the norm, at scale 1.
    """
    if norm is None:
        return x
    normed = partial(norm.linear_part, scale=1.0) if linearly else norm
    if not of_all_heads(norm, x.shape[-1]):
        return normed(x)
    together = normed(x.transpose(-3, -2).flatten(-2))
    return together.reshape(*together.shape[:-1], x.shape[-3], -1).transpose(-3, -2)


def of_all_heads(norm: Norm | None, d_head: int) -> bool:
    """Whether a norm of queries or keys is as wide as all heads together."""
    return norm is not None and norm.weight is not None and norm.weight.shape[-1] != d_head


def softcap(scores: Tensor, cap: float) -> Tensor:
    """Scores of any size, bounded by ±cap: cap tanh(scores / cap) (Gemma Team 2024, "Gemma 2", section 2)."""
    return torch.tanh(scores / cap) * cap


def attention_scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scaled dot products of every query with every key, [.., n_heads, n_queries, n_keys], before mask and softmax."""
    return torch.matmul(query, key.transpose(-1, -2)).mul_(scale)


def scores_of(query: Tensor, key: Tensor, scoring: Scoring, first: int = 0) -> Tensor:
    """The scores as for :func:`pattern_of`: scaled, with their bias, not yet capped."""
    dtype = query.dtype
    if scoring.upcast:
        query, key = query.float(), key.float()
    elif scoring.rounded_once:
        query, key = upcast(query), upcast(key)
    scores = attention_scores(query, key, scoring.scale)
    for added in added_by_position(query, key, scoring, first).values():
        scores += added
    return scores.to(dtype) if scoring.rounded_once else scores


BY_POSITION = ("content_to_position", "position_to_content", "position_bias")  # what may be added to scores by position


def added_by_position(query: Tensor, key: Tensor, scoring: Scoring, first: int = 0) -> dict[str, Tensor]:
    """What is added to scaled scores by position, by name of :data:`BY_POSITION`, [.., n_heads, n_queries, n_keys]."""
    added: dict[str, Tensor] = {}
    if scoring.relative is not None:
        added |= scoring.relative.products(query, key, scoring.scale, first)
    if scoring.position_bias is not None:
        added["position_bias"] = scoring.position_bias(first, query.shape[-2], key.shape[-2])
    return added


def attention_pattern(scores: Tensor, allowed: Tensor | None, sinks: Tensor | None = None) -> Tensor:
    """Softmax of the scores [.., n_heads, n, n_keys] over the keys that each query may attend to, of the same shape.

    Rows sum to 1, and are exactly 0 where not ``allowed``: boolean, broadcastable to the scores of the last keys; every
    query may attend to those before these, and to all keys where it is None. A query that may attend to nothing
    (padding beyond a window) gets equal weights. Scores are overwritten, which saves memory.

    With learned ``sinks``, [n_heads], the softmax has one key more, and its share is dropped (OpenAI 2025, "gpt-oss
    model card", section 2.3): what rows lack to 1 goes to no token, see :func:`nowhere`.
    """
    if allowed is not None:
        lowest = torch.finfo(scores.dtype).min  # exp(lowest - any score) is 0
        scores[..., scores.shape[-1] - allowed.shape[-1] :].masked_fill_(~allowed, lowest)
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    with_sink = torch.cat([scores, sinks[:, None, None].to(scores).expand(*scores.shape[:-1], 1)], -1)
    return torch.softmax(with_sink - with_sink.amax(-1, keepdim=True), dim=-1)[..., :-1]


def nowhere(pattern: Tensor) -> Tensor:
    """The share of each row that goes to no token, [...] of rows [..., n_keys]: what they lack to 1."""
    return (1 - pattern.sum(-1)).clamp(min=0)  # below 0 by rounding alone


def gate_of(x: Tensor, parameters: HeadParameters) -> Tensor | None:
    """What weighted values are multiplied by before W_O, [.., n_heads, n, d_head], from x [.., n, d_model]; or None."""
    return None if parameters.gate is None else torch.sigmoid(project(x, parameters.gate))


def gated(weighted: Tensor, x: Tensor, parameters: HeadParameters) -> Tensor:
    """Weighted values [.., n_heads, n, d_head] times the gate of x, if there is one."""
    gate = gate_of(x, parameters)
    return weighted if gate is None else weighted * gate


def joined_output(weighted: Tensor, parameters: HeadParameters) -> Tensor:
    """From the weighted values of every head, [.., n_heads, n, d_head], through W_O and b_O to [.., n, d_model]."""
    concatenated = weighted.transpose(-3, -2).flatten(-2)
    weight = parameters.output_weight.flatten(0, 1).T
    return linear(concatenated, weight, parameters.output_bias, parameters.output_rounding)


def transformed_values(value: Tensor, output_weight: Tensor) -> Tensor:
    """What each head would add with all its attention on one key, for each key: f(x) = (x W_V + b_V) W_O.

    The f of Kobayashi et al. 2020, "Attention is Not Only a Weight", section 3. b_O belongs to no head. From values
    [.., n_heads, n, d_head] and W_O [n_heads, d_head, d_model] to [.., n_heads, n, d_model]; of one head all may lack
    the axis of heads.
    """
    return torch.matmul(value, output_weight)


def head_outputs(pattern: Tensor, value: Tensor, output_weight: Tensor, gate: Tensor | None = None) -> Tensor:
    """What each head adds to the residual stream: (A V) W_O of the head, or (A V ∘ gate) W_O.

    Added up over the heads, and b_O added once, this is the attention output (Elhage et al. 2021, "A Mathematical
    Framework for Transformer Circuits": heads are independent and additive). Shapes as for
    :func:`transformed_values`, of a pattern [.., n_heads, n, n_keys].
    """
    weighted = torch.matmul(pattern, value)
    return torch.matmul(weighted if gate is None else weighted * gate, output_weight)


def allowed_positions(
    attention_mask: Tensor, causal: bool, window: int | None = None, first: int = 0, n_queries: int | None = None
) -> Tensor:
    """Which keys each query may attend to: boolean [batch, 1, n_queries, n], the second axis for the heads.

    Of ``attention_mask`` [batch, n], 1 for a token and 0 for padding, in the rows of ``n_queries`` (by default all)
    from ``first`` on. ``causal`` hides keys after the query. A ``window`` hides keys k <= q - window from query q
    (Jiang et al. 2023, "Mistral 7B", section 2), and k >= q + window, too (Beltagy et al. 2020, "Longformer", section
    3.1). Chunks are counted from the first token that is no padding.
    """
    batch, n = attention_mask.shape
    rows = n if n_queries is None else n_queries
    allowed = attention_mask.bool()[:, None, None, :].expand(batch, 1, rows, n)
    if causal or window is not None:
        positions = torch.arange(n, device=attention_mask.device)
        if isinstance(window, Chunk):
            padding = (attention_mask.cumsum(-1) == 0).sum(-1)
            positions = positions - padding[:, None, None]  # [batch, 1, n]
        queries, keys = positions[..., first : first + rows, None], positions[..., None, :]
        allowed = allowed & (keys <= queries) if causal else allowed
        if window is not None:
            allowed = allowed & reached(queries, keys, window) & reached(keys, queries, window)
    return allowed


def reached(later: Tensor, earlier: Tensor, window: int) -> Tensor:
    """Whether positions are not further than a window after others, which may also be later ones."""
    if isinstance(window, Chunk):
        return later // window <= earlier // window
    return later - earlier < window


def pattern_of(query: Tensor, key: Tensor, scoring: Scoring, allowed: Tensor | None, first: int = 0) -> Tensor:
    """The pattern of some query rows over some keys, [.., n_heads, n_queries, n_keys], in the dtype of the queries.

    Queries are [.., n_heads, n_queries, d_head] from position ``first`` on, keys [.., n_heads, n_keys, d_head] from 0
    on; ``allowed`` as for :func:`attention_pattern`.
    """
    pattern = pattern_of_scores(scores_of(query, key, scoring, first), scoring, allowed)
    return pattern if pattern.dtype == query.dtype else pattern.to(query.dtype)


def pattern_of_scores(scores: Tensor, scoring: Scoring, allowed: Tensor | None) -> Tensor:
    """The softmax of scores that are capped first, if at all; they may be overwritten."""
    if scoring.cap is not None:
        scores = softcap(scores, scoring.cap)
    if scoring.softmax_in_float32:
        scores = scores.float()
    return attention_pattern(scores, allowed, scoring.sinks)


def uniform_pattern(allowed: Tensor, learned_sinks: bool = False) -> Tensor:
    """Attention that is uniform over the allowed keys, float64 [..., n_queries, n_keys]; rows without any are 0.

    With learned sinks nowhere is one outcome more, with as large a share.
    """
    weights = allowed.double()
    return weights / (weights.sum(-1, keepdim=True) + learned_sinks).clamp_min(1)


def weighted_logs(pattern: Tensor) -> Tensor:
    """A ln A of every weight, 0 ln 0 being 0, as a new tensor; three times as fast as ``torch.special.entr``."""
    return pattern.clamp_min(torch.finfo(pattern.dtype).tiny).log_().mul_(pattern)


def entropy(pattern: Tensor) -> Tensor:
    """The entropy of each row in nats, [...] of rows [..., n_keys]."""
    return -weighted_logs(pattern).sum(-1)
