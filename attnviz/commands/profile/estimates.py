"""Scores of all heads for one role, the baselines beside them, and errors of both from one bootstrap."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.corpora.batches import standard_error


@dataclass(frozen=True)
class Estimate:
    """Scores for one role; tensors are [n_directions, n_layers, n_heads], NaN where a head has none.

    Attributes:
        scores, errors: and the standard errors of these.
        baselines: by name, what a head has to beat.
        baseline, differences: the largest of them, and the standard error of the score above it.
        n: what the scores rest on: instances, positions or sequences.
        texts: how many texts, or sequences, the errors are over.
        directions: who attends to whom; one empty name for roles without.
    """

    scores: Tensor
    errors: Tensor
    baselines: dict[str, Tensor]
    baseline: Tensor
    differences: Tensor
    n: int
    texts: int
    directions: tuple[str, ...] = ("",)


def estimated(
    values: Tensor, baselines: Mapping[str, Tensor], n: int, texts: int, directions: tuple[str, ...] = ("",)
) -> Estimate:
    """From bootstrap samples of scores and baselines, paired: both are of the same texts in each.

    Args:
        values: [1 + replicates, n_directions, n_layers, n_heads], the first as measured.
        baselines: by name, of the same shape or one that broadcasts to it. The largest one as measured decides, of
            each head and direction; it stays the same in all samples.
        n: as in :class:`Estimate`, like the others below.
        texts: over which the samples are.
        directions: of the second axis of the values.
    """
    every = torch.stack([each.expand_as(values) for each in baselines.values()])
    largest = every[:, 0].argmax(0)
    deciding = every.gather(0, largest.expand(1, *values.shape))[0]
    return Estimate(
        values[0], standard_error(values[1:]), dict(zip(baselines, every[:, 0], strict=True)), deciding[0],
        standard_error((values - deciding)[1:]), n, texts, directions,
    )  # fmt: skip
