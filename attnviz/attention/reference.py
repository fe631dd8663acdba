"""The reference multi-head attention, on plain tensors.

Scaled dot-product attention over several heads (Vaswani et al. 2017, "Attention Is All You Need",
sections 3.2.1 and 3.2.2), all heads of a layer at once::

    q = x W_Q + b_Q        k = x W_K + b_K        v = x W_V + b_V         [.., n_heads, n, d_head]
    scores  = q k^T / sqrt(d_head)                                        [.., n_heads, n, n]
    pattern = softmax(scores where allowed, -inf elsewhere)               [.., n_heads, n, n]
    output  = concat(pattern v) W_O + b_O                                 [.., n, d_model]

``..`` is any number of leading axes (a batch). Axes come in the order head, query, key. Masks are
boolean, True = may attend. Nothing here knows of transformers; only ``torch`` is imported.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "HeadParameters",
    "Projection",
    "allowed_positions",
    "attention_output",
    "attention_pattern",
    "attention_scores",
    "head_outputs",
    "multi_head_attention",
    "project",
    "transformed_values",
]


@dataclass(frozen=True)
class Projection:
    """One linear map a head: ``weight`` [n_heads, d_model, d_head], ``bias`` [n_heads, d_head]."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class HeadParameters:
    """The parameters of one attention layer, a head at a time along the first axis.

    Attributes:
        query, key, value: the projections (W_Q, b_Q), (W_K, b_K), (W_V, b_V).
        output_weight: W_O, [n_heads, d_head, d_model]: what each head's values are multiplied by.
        output_bias: b_O, [d_model]: one for all heads together.
        scale: what the scores are multiplied by, 1/sqrt(d_head) unless the checkpoint says else.
        causal: whether a query may attend only to itself and to what precedes it.
        upcast: whether scores and softmax are computed in float32 (GPT-2's
            ``reorder_and_upcast_attn``).
    """

    query: Projection
    key: Projection
    value: Projection
    output_weight: Tensor
    output_bias: Tensor
    scale: float
    causal: bool
    upcast: bool = False


def project(x: Tensor, projection: Projection) -> Tensor:
    """Project the layer's input with every head's own matrix.

    Args:
        x: the input of the attention, [.., n, d_model].
        projection: weight [n_heads, d_model, d_head] and bias [n_heads, d_head].

    Returns:
        [.., n_heads, n, d_head].
    """
    n_heads, _, d_head = projection.weight.shape
    side_by_side = projection.weight.transpose(0, 1).flatten(1)  # [d_model, n_heads * d_head]
    projected = x @ side_by_side + projection.bias.flatten()  # [.., n, n_heads * d_head]
    return projected.reshape(*x.shape[:-1], n_heads, d_head).transpose(-3, -2)  # [.., n_heads, n, d_head]


def attention_scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scaled dot products of every query with every key.

    Args:
        query: [.., n_heads, n, d_head].
        key: [.., n_heads, n, d_head].
        scale: 1/sqrt(d_head) in the paper.

    Returns:
        [.., n_heads, n, n], axes query then key; before the mask and the softmax.
    """
    return torch.einsum("...qe,...ke->...qk", query, key).mul_(scale)


def attention_pattern(scores: Tensor, allowed: Tensor) -> Tensor:
    """Softmax of the scores over the keys that each query may attend to.

    Args:
        scores: [.., n_heads, n, n]; overwritten, to save the memory of a copy.
        allowed: boolean, True = may attend, broadcastable to ``scores``; every query needs a key.

    Returns:
        [.., n_heads, n, n]; rows sum to 1, and are exactly 0 where not allowed.
    """
    return torch.softmax(scores.masked_fill_(~allowed, -torch.inf), dim=-1)


def attention_output(pattern: Tensor, value: Tensor, parameters: HeadParameters) -> Tensor:
    """Weighted sums of the values, concatenated over the heads and multiplied by W_O.

    Concatenating the heads and multiplying by one [n_heads * d_head, d_model] matrix is the same as
    multiplying each head by its own [d_head, d_model] slice and adding up.

    Args:
        pattern: [.., n_heads, n, n].
        value: [.., n_heads, n, d_head].
        parameters: W_O, [n_heads, d_head, d_model], and b_O, [d_model], are used.

    Returns:
        [.., n, d_model].
    """
    weighted = torch.matmul(pattern, value)
    concatenated = weighted.transpose(-3, -2).flatten(-2)
    return concatenated @ parameters.output_weight.flatten(0, 1) + parameters.output_bias


def transformed_values(value: Tensor, output_weight: Tensor) -> Tensor:
    """What each head would write of each key, were all the attention on it: f(x) = (x W_V + b_V) W_O.

    The f of Kobayashi et al. 2020, "Attention is Not Only a Weight", section 3. b_O belongs to no head.

    Args:
        value: x W_V + b_V, [.., n_heads, n, d_head].
        output_weight: W_O, [n_heads, d_head, d_model]; of one head both may lack the axis of heads.

    Returns:
        [.., n_heads, n, d_model].
    """
    return torch.matmul(value, output_weight)


def head_outputs(pattern: Tensor, value: Tensor, output_weight: Tensor) -> Tensor:
    """What each head adds to the residual stream: (A V) W_O of the head.

    Added up over the heads, and b_O added once, this is the attention output (Elhage et al. 2021, "A Mathematical
    Framework for Transformer Circuits": heads are independent and additive).

    Args:
        pattern: [.., n_heads, n, n].
        value: [.., n_heads, n, d_head].
        output_weight: W_O, [n_heads, d_head, d_model]; of one head all three may lack the axis of heads.

    Returns:
        [.., n_heads, n, d_model].
    """
    return torch.matmul(torch.matmul(pattern, value), output_weight)


def allowed_positions(attention_mask: Tensor, causal: bool) -> Tensor:
    """Which keys each query may attend to.

    Args:
        attention_mask: [batch, n], 1 for a token and 0 for padding.
        causal: whether keys after the query are hidden.

    Returns:
        boolean [batch, 1, n, n], axes query then key, the second axis for the heads.
    """
    batch, n = attention_mask.shape
    allowed = attention_mask.bool()[:, None, None, :].expand(batch, 1, n, n)
    if causal:
        allowed = allowed & torch.ones(n, n, dtype=torch.bool, device=allowed.device).tril()
    return allowed


def multi_head_attention(x: Tensor, parameters: HeadParameters, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The whole reference attention of one layer.

    Args:
        x: the input of the attention, [.., n, d_model].
        parameters: the layer's parameters.
        allowed: boolean, True = may attend, broadcastable to [.., n_heads, n, n].

    Returns:
        the pattern of every head, [.., n_heads, n, n], and the output of all heads together after
        W_O and b_O, [.., n, d_model].
    """
    query = project(x, parameters.query)
    key = project(x, parameters.key)
    if parameters.upcast:
        query, key = query.float(), key.float()
    scores = attention_scores(query, key, parameters.scale)
    pattern = attention_pattern(scores, allowed).to(x.dtype)
    value = project(x, parameters.value)
    return pattern, attention_output(pattern, value, parameters)
