"""A bootstrap over texts whose weights do not depend on the batch or the process that reads a text."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

ENOUGH_TEXTS = 30
"""Texts below which an interval says nothing and no verdict passes; attnviz's own choice.

A bootstrap over few texts is too narrow; over one text it has no width, since every replicate is that text.
"""

REPLICATES = 200
"""Enough for a standard error within about a twentieth of itself."""


def text_weights(seed: int, numbers: Sequence[int], replicates: int = REPLICATES) -> Tensor:
    """How often each text counts: once in the first row, in each other one a Poisson number of times with mean 1.

    A sum weighted so is a sum over a bootstrap sample of the texts, in one pass and without knowing how many there are
    (Chamandy et al. 2012). A text's weights depend only on the seed and on its number, not on batches or processes.

    Returns:
        [1 + replicates, n_texts], float64.
    """
    weights = torch.ones(1 + replicates, len(numbers), dtype=torch.float64)
    rates = torch.ones(replicates)
    for column, number in enumerate(numbers):
        weights[1:, column] = torch.poisson(rates, generator=named_generator(f"{seed}:{number}"))
    return weights


def named_generator(name: str) -> torch.Generator:
    """Random numbers that depend on the name alone."""
    digest = hashlib.sha256(name.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def standard_error(replicates: Tensor) -> Tensor:
    """Standard deviation over bootstrap samples, the first axis, without those in which no text counts.

    NaN where fewer than two samples can be measured.
    """
    measurable = replicates.isfinite()
    n = measurable.sum(0)
    mean = replicates.where(measurable, torch.nan).nanmean(0)
    squares = ((replicates - mean) ** 2).where(measurable, 0.0).sum(0)
    return (squares / (n - 1)).sqrt().where(n > 1, torch.nan)
