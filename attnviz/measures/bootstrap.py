"""A bootstrap over texts, with the same weights whatever the batches and processes."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

# Texts below which no verdict passes (our own choice): bootstrap intervals of few texts are too narrow.
ENOUGH_TEXTS = 30

REPLICATES = 200  # enough for a standard error within about a twentieth of itself


def text_weights(seed: int, numbers: Sequence[int], replicates: int = REPLICATES) -> Tensor:
    """Weights of texts, [1 + replicates, n_texts] float64: 1 in the first row, Poisson with mean 1 in each other.

    A weighted sum is a sum over a bootstrap sample of the texts, in one pass (Chamandy et al. 2012). A text's weights
    depend on the seed and its number alone, not on batches or processes.
    """
    weights = torch.ones(1 + replicates, len(numbers), dtype=torch.float64)
    rates = torch.ones(replicates)
    for column, number in enumerate(numbers):
        weights[1:, column] = torch.poisson(rates, generator=named_generator(f"{seed}:{number}"))
    return weights


def named_generator(name: str) -> torch.Generator:
    """A random generator seeded by a name."""
    digest = hashlib.sha256(name.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def standard_error(replicates: Tensor) -> Tensor:
    """Standard deviation over bootstrap samples, the first axis, of finite values; NaN with fewer than two."""
    measurable = replicates.isfinite()
    n = measurable.sum(0)
    mean = replicates.where(measurable, torch.nan).nanmean(0)
    squares = ((replicates - mean) ** 2).where(measurable, 0.0).sum(0)
    return (squares / (n - 1)).sqrt().where(n > 1, torch.nan)
