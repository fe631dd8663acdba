"""How much attention really adds from each token to each other: norms of the vectors, heads summed.

Kobayashi et al. 2020, "Attention is Not Only a Weight": a large weight on a short vector moves little. What a layer
adds from key k to query q is ``sum_h A_h[q, k] f_h(x_k)``, f(x) = (x W_V + b_V) W_O; its Euclidean norm takes the place
of the weight. These vectors, summed over the keys, and b_O are the layer's attention output, which is checked here
against the model's own.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.attention.reference import project, transformed_values
from attnviz.attention.verify import VerifiedAttention
from attnviz.errors import VerificationError

__all__ = ["CheckedNorms", "checked_norms", "summed_norms"]

_AT_ONCE = 1 << 23
"""Numbers in the vectors of one block of queries: 32 MiB in float32."""


@dataclass(frozen=True)
class CheckedNorms:
    """The norms of one layer.

    Attributes:
        norms: [n, n], of what attention adds from each key (column) to each query (row), heads summed.
        pattern: [n, n], the mean of the verified patterns of the layer's heads.
        error: largest absolute difference between the sum of the vectors with b_O and the model's attention output,
            divided by the largest absolute output.
    """

    norms: Tensor
    pattern: Tensor
    error: float


def summed_norms(pattern: Tensor, transformed: Tensor, at_once: int = _AT_ONCE) -> tuple[Tensor, Tensor]:
    """Norms of what attention adds from each key to each query, and the sum of it over the keys.

    Args:
        pattern: [n_heads, n, n], axes head, query, key.
        transformed: f_h(x_k), [n_heads, n, d_model], axes head, key.
        at_once: numbers to hold at once; queries are taken in blocks, so that memory does not grow with n².

    Returns:
        [n, n], query by key; and [n, d_model], the attention output without b_O.
    """
    n, d_model = transformed.shape[1:]
    weights, vectors = pattern.permute(2, 1, 0), transformed.transpose(0, 1)  # [key, query, head], [key, head, d_model]
    norms, totals = pattern.new_empty(n, n), pattern.new_empty(n, d_model)
    block = max(1, at_once // (n * d_model))
    for first in range(0, n, block):
        queries = slice(first, first + block)
        added = torch.bmm(weights[:, queries], vectors)  # [key, query, d_model]
        norms[queries] = added.norm(dim=-1).T
        totals[queries] = added.sum(0)
    return norms, totals


def checked_norms(attention: VerifiedAttention, layer: int) -> CheckedNorms:
    """Norms and mean pattern of one layer, from verified heads; the vectors are held against the model's output.

    Args:
        attention: the verified heads of one text.
        layer: counted from 0.

    Raises:
        VerificationError: the vectors do not sum to the model's own attention output within the tolerance of the
            dtype, or the model was changed since it was verified; the message names the place.
    """
    pattern = attention.layer(layer).wide[0]
    model, x = attention.checkpoint, attention.attention_input(layer)
    with torch.inference_mode(), torch.autocast(x.device.type, enabled=False):
        parameters = model.architecture.parameters(model.model, layer)
        wide = replace(parameters, output_weight=parameters.output_weight.to(pattern.dtype))
        transformed = transformed_values(project(x, parameters.value)[0].to(pattern.dtype), wide)
        norms, totals = summed_norms(pattern, transformed)
        recomputed = totals + parameters.output_bias.to(pattern.dtype)
        error = _error(attention, layer, recomputed)
        return CheckedNorms(norms, pattern.mean(0), error)


def _error(attention: VerifiedAttention, layer: int, recomputed: Tensor) -> float:
    """The largest difference from the model's attention output, as a share of its largest value."""
    output = attention.model_output(layer)[0].to(recomputed.dtype)
    difference, scale = (recomputed - output).abs(), float(output.abs().max())
    error = float(difference.max()) / scale if scale > 0 else float(difference.max())
    tolerance = attention.verification.tolerance.output
    if not error <= tolerance:  # so that NaN fails
        place = int(difference.nan_to_num(nan=torch.inf).argmax())
        query, dimension = divmod(place, output.shape[1])
        raise VerificationError(
            f"what attention adds from each token in layer {layer} does not sum to the model's attention output: at "
            f"query {query} ({attention.tokens.labels[query]!r}), dimension {dimension}, the model gives "
            f"{output[query, dimension]:.6g}, the sum {recomputed[query, dimension]:.6g} (tolerance {tolerance:g} of "
            f"the layer's largest output, {scale:.6g}). Nothing was drawn."
        )
    return error
