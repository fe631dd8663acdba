"""Parameters of heads and inputs drawn at random, in float64."""

import torch
from torch import Tensor

from attnviz.reference.attention import HeadParameters, Projection


def random_parameters(
    n_heads: int,
    d_head: int,
    *,
    d_model: int | None = None,
    seed: int = 0,
    sharpness: float = 1.0,
    causal: bool = False,
) -> HeadParameters:
    generator = torch.Generator().manual_seed(seed)
    d_model = n_heads * d_head if d_model is None else d_model

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def projection(factor: float) -> Projection:
        return Projection(factor * normal(n_heads, d_model, d_head), normal(n_heads, d_head))

    return HeadParameters(
        query=projection(sharpness),
        key=projection(1.0),
        value=projection(1.0),
        output_weight=normal(n_heads, d_head, d_model),
        output_bias=normal(d_model),
        scale=d_head**-0.5,
        causal=causal,
    )


def random_input(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + 1000), dtype=torch.float64)
