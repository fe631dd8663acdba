"""Layer norm and root-mean-square norm, on plain tensors, each also as a linear map with its scale held fixed."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerNorm:
    """The parameters of a layer norm: ``weight`` and ``bias`` [d_model], ``epsilon`` added to the variance.

    y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias (Ba et al. 2016), over the last axis. The variance is that of
    the d_model numbers themselves (divided by d_model, not d_model - 1).
    """

    weight: Tensor
    bias: Tensor
    epsilon: float

    def __call__(self, x: Tensor) -> Tensor:
        """Every vector of x [.., d_model] with mean 0 and variance 1, then weighted and shifted; in the dtype of x."""
        return (self.linear_part(x, self.scale(x)) + widened(self.bias)).to(x.dtype)

    def scale(self, x: Tensor) -> Tensor:
        """What the centred x [.., d_model] is divided by, [.., 1], in float32 at least."""
        wide = widened(x)
        variance = (wide - wide.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return (variance + self.epsilon).sqrt()

    def linear_part(self, x: Tensor, scale: Tensor | float) -> Tensor:
        """The norm of x [.., d_model] with this scale and without bias: linear in x; in float32 at least."""
        wide = widened(x)
        return (wide - wide.mean(-1, keepdim=True)) / scale * widened(self.weight)


@dataclass(frozen=True)
class RMSNorm:
    """The parameters of a root-mean-square norm: ``weight``, [d_model] or [d_head], and ``epsilon``.

    y = x / sqrt(mean(x²) + eps) * weight (Zhang & Sennrich 2019), over the last axis, computed in float32 whatever the
    number format, as transformers' models do. With ``one_more`` (Gemma) the weight is that of what is kept plus 1, and
    is multiplied in float32, too.
    """

    weight: Tensor
    epsilon: float
    one_more: bool = False
    bias: None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Every vector of x with mean square 1, then weighted; in the dtype of x."""
        narrow = x.float()
        normed = narrow * torch.rsqrt(narrow.pow(2).mean(-1, keepdim=True) + self.epsilon)
        if self.one_more:
            return (normed * (1.0 + self.weight.float())).to(x.dtype)
        return self.weight * normed.to(x.dtype)

    def scale(self, x: Tensor) -> Tensor:
        """What x is divided by, [.., 1], in float32 at least."""
        return (widened(x).square().mean(-1, keepdim=True) + self.epsilon).sqrt()

    def linear_part(self, x: Tensor, scale: Tensor | float) -> Tensor:
        """The norm of x with this scale: linear in x; in float32 at least."""
        return widened(x) / scale * (widened(self.weight) + self.one_more)


Norm = LayerNorm | RMSNorm


def widened(x: Tensor) -> Tensor:
    """The tensor in float32 at least."""
    return x if x.dtype == torch.float64 else x.float()
