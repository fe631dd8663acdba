"""The reference for what surrounds attention in a layer, on plain tensors: layer norm and feed-forward network.

    layer norm     y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias        (Ba et al. 2016), over d_model
    feed forward   f(x W_1 + b_1) W_2 + b_2                                      (Vaswani et al. 2017, section 3.3)

The variance is that of the d_model numbers themselves (divided by d_model, not d_model - 1). Norms and activations
are computed in float32 at least and rounded once, as torch's own kernels do. Nothing here knows of transformers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.errors import ArchitectureError

__all__ = ["ACTIVATIONS", "Activation", "LayerNorm", "LinearMap", "activation_named", "layer_norm", "widened"]


@dataclass(frozen=True)
class LinearMap:
    """x W + b: ``weight`` [d_in, d_out], ``bias`` [d_out]."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Of x [.., d_in], [.., d_out]."""
        return x @ self.weight + self.bias


@dataclass(frozen=True)
class LayerNorm:
    """The parameters of a layer norm: ``weight`` and ``bias`` [d_model], ``epsilon`` added to the variance."""

    weight: Tensor
    bias: Tensor
    epsilon: float

    def scale(self, x: Tensor) -> Tensor:
        """What the centred x [.., d_model] is divided by, [.., 1], in float32 at least."""
        wide = widened(x)
        centred = wide - wide.mean(-1, keepdim=True)
        return (centred.square().mean(-1, keepdim=True) + self.epsilon).sqrt()

    def linear_part(self, x: Tensor, scale: Tensor) -> Tensor:
        """The norm of x [.., d_model] with its scale held fixed and its bias left out: linear in x.

        In float32 at least.
        """
        wide = widened(x)
        return (wide - wide.mean(-1, keepdim=True)) / scale * widened(self.weight)


def layer_norm(x: Tensor, norm: LayerNorm) -> Tensor:
    """Every vector of x [.., d_model] with mean 0 and variance 1, then weighted and shifted; in the dtype of x."""
    return (norm.linear_part(x, norm.scale(x)) + widened(norm.bias)).to(x.dtype)


@dataclass(frozen=True)
class Activation:
    """The function between the two linear maps of a feed-forward network.

    Attributes:
        name: as transformers' configs give it.
        formula: for people.
        function: of a tensor in float32 at least.
    """

    name: str
    formula: str
    function: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Of every number of x; in the dtype of x."""
        return self.function(widened(x)).to(x.dtype)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def _gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_GELU = "x Φ(x)"
_GELU_TANH = "x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))"

ACTIVATIONS = {
    activation.name: activation
    for activation in (
        *(Activation(name, _GELU, _gelu) for name in ("gelu", "gelu_python")),
        *(
            Activation(name, _GELU_TANH, _gelu_tanh)
            for name in ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate", "gelu_fast")
        ),
        Activation("quick_gelu", "x σ(1.702 x)", lambda x: x * torch.sigmoid(1.702 * x)),
        Activation("relu", "max(x, 0)", lambda x: x.clamp(min=0)),
        *(Activation(name, "x σ(x)", lambda x: x * torch.sigmoid(x)) for name in ("silu", "swish")),
        Activation("tanh", "tanh(x)", torch.tanh),
        Activation("linear", "x", lambda x: x),
    )
}
"""By the name in the config, those that are reproduced. GELU: Hendrycks & Gimpel 2016; Φ is the normal distribution."""


def activation_named(name: object) -> Activation:
    """The activation of a config.

    Raises:
        ArchitectureError: it is not among those that are reproduced.
    """
    found = ACTIVATIONS.get(name) if isinstance(name, str) else None
    if found is None:
        shown = name if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
        raise ArchitectureError(
            f"this model's feed-forward network has the activation {shown!r}, which the reference does not reproduce; "
            f"expected one of: {', '.join(ACTIVATIONS)}."
        )
    return found


def widened(x: Tensor) -> Tensor:
    """The tensor in float32 at least."""
    return x if x.dtype == torch.float64 else x.float()
