"""Tolerances of a recomputation by number format, and a test of the scores' scale in half precision.

A weight in half precision is rounded by so much that a wrong scale can hide behind the tolerance of a single weight.
But rounding moves weights at random, and a wrong scale moves all of them one way. With scores off by a factor of
1 + b, weights A change by b D to first order, since ln A is the score less a constant of the row::

    D[q, k] = A[q, k] (ln A[q, k] - sum over k' of A[q, k'] ln A[q, k'])

b is fitted by least squares to the difference M - A of the model's weights from the reference's, over all heads,
queries and keys, each relative to the largest weight of its row. Where the two patterns have nothing to do with each
other (queries and keys swapped, no scores at all), b is about -1. Its standard error is taken from the residuals, with
those of a row added up first, since a rounded query moves its whole row (Liang & Zeger 1986), and is no less than
rounding to the number format gives: where attention is nearly even, that is all there is to see.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.reference.attention import nowhere, weighted_logs

# Standard errors by which a scale must be off; correct references of trained and sharpened models stay below.
_ERRORS = 8.0

_ROUNDINGS = 3.0


@dataclass(frozen=True)
class Tolerance:
    """How far the reference may be from the model before it counts as wrong."""

    pattern: float  # largest absolute difference of an attention weight (weights are at most 1)
    output: float  # largest absolute difference of the output, as a share of the layer's largest output
    reason: str  # why a correct reference stays below
    # largest difference of a weight, as a share of the largest weight of its query; None where ``pattern`` is enough
    row: float | None = None
    scale: float = 0.0  # smallest error of a layer's scale that is tested; 0 likewise
    probe: float = 1e-4  # largest absolute difference of what a pattern makes of random values between -1 and 1


# By number format. Wrong variants of attention (no scale, swapped Q and K, …) move weights by 0.2 to 1.
TOLERANCES = {
    torch.float64: Tolerance(
        1e-12, 1e-12, "float64 rounds at 2e-16; a correct head differs by about 1e-14", probe=1e-12
    ),
    torch.float32: Tolerance(1e-4, 1e-4, "float32 rounds at 1e-7; a correct head differs by about 1e-6"),
    torch.float16: Tolerance(
        pattern=5e-2,
        output=2e-2,
        reason="float16 rounds scores of size 100 by 0.03, which moves a weight by up to 0.015",
        row=6e-2,
        scale=4e-3,
        probe=6e-3,
    ),
    torch.bfloat16: Tolerance(
        pattern=1e-1,
        output=5e-2,
        reason="bfloat16 rounds scores of size 100 by 0.25, which moves a weight by up to 0.12",
        row=3e-1,
        scale=8e-3,
        probe=8e-2,
    ),
}

# Tolerance in float64 of models that compute some steps in float32 (:attr:`Architecture.float32_steps`).
FLOAT32_STEPS = Tolerance(
    1e-5,
    1e-5,
    "cos, sin, norms and softmax are float32 in these models whatever the number format, which rounds at 1e-7",
    probe=1e-5,
)


def tolerance_of(dtype: torch.dtype, float32_steps: bool) -> Tolerance:
    """The tolerance for a model in a number format that computes some of its steps in float32, or none."""
    return FLOAT32_STEPS if float32_steps and dtype == torch.float64 else TOLERANCES[dtype]


def row_error(pattern: Tensor, model_pattern: Tensor) -> Tensor:
    """Differences of the model's weights, as shares of the reference row's largest, [.., n_heads, n, n]."""
    in_float32 = pattern.float()
    return (model_pattern.float() - in_float32).abs_() / _largest(in_float32)


def _largest(pattern: Tensor) -> Tensor:
    """The largest weight of each row, [.., 1]; with learned sinks that may be what goes nowhere."""
    return torch.maximum(pattern.amax(-1), nowhere(pattern))[..., None]


class ScaleFit:
    """The error of a layer's scale, fitted over chunks of rows, once relative to each of the two patterns.

    Both directions are needed: a uniform pattern has no gradient in the scale. Where the model shows no pattern, the
    fit is of what the patterns make of random values, relative to the reference's.
    """

    def __init__(self) -> None:
        self.sums: Tensor | None = None  # [1 or 2, 5], on the device of the patterns
        self._rounding = 0.0

    def add(self, pattern: Tensor, model_pattern: Tensor) -> Tensor:
        """Add a chunk of rows of both patterns, [batch, n_heads, n_queries, n_keys], in half precision.

        Returns the largest of :func:`row_error`.
        """
        self._rounding = torch.finfo(pattern.dtype).eps
        ours, theirs = pattern.float(), model_pattern.float()
        difference = theirs - ours
        largest = _largest(ours)[..., 0]
        in_rows: Tensor = torch.linalg.vector_norm(difference, torch.inf, -1) / largest
        of_theirs = _sums_of_fit(_change(theirs), difference, _largest(theirs)[..., 0])
        self._add(torch.stack([_sums_of_fit(_change(ours), difference, largest), of_theirs]))
        return in_rows.amax()

    def add_probe(self, pattern: Tensor, random: Tensor, difference: Tensor, rounding: float) -> None:
        """Add a chunk of rows of the reference's pattern, and what the model makes of random values beyond it.

        ``random`` is [.., n_keys, d], the ``difference`` [batch, n_heads, n_queries, d], rounded by about ``rounding``.
        """
        self._rounding = rounding
        change = torch.matmul(_change(pattern), random[..., : pattern.shape[-1], :])
        self._add(_sums_of_fit(change, difference, torch.ones_like(difference[..., 0]))[None])

    def _add(self, sums: Tensor) -> None:
        self.sums = sums if self.sums is None else self.sums + sums

    def result(self, sums: list[float], floor: float) -> tuple[float, float]:
        """The absolute error of the scale, as a share of it, and the limit above which it counts.

        ``sums`` are :attr:`sums`, flat and on the host. The limit is at least ``floor``, and infinite where every row
        is uniform or attends to one key alone, so that no scale would change it.
        """
        fits: list[tuple[float, float]] = []
        for start in range(0, len(sums), 5):
            information, common, *squares = sums[start : start + 5]
            if not information > 0:
                fits.append((0.0, torch.inf))
                continue
            error = common / information
            residual = squares[0] - 2 * error * squares[1] + error**2 * squares[2]
            deviation = max(residual, 0.0) ** 0.5 / information
            rounding = self._rounding / information**0.5
            fits.append((abs(error), max(floor, _ERRORS * deviation, _ROUNDINGS * rounding)))
        return max(fits, key=lambda error_and_limit: error_and_limit[0] / error_and_limit[1])


def _change(pattern: Tensor) -> Tensor:
    """D of a pattern A, [.., n_queries, n_keys]."""
    weighted = weighted_logs(pattern)
    return weighted.addcmul_(pattern, weighted.sum(-1, keepdim=True), value=-1)


def _sums_of_fit(change: Tensor, difference: Tensor, largest: Tensor) -> Tensor:
    """Sums over rows, [5]: of D², of D (M - A), and of the squares and the product of a row's own two sums."""
    squares = largest.square()
    changes = (torch.linalg.vector_norm(change, dim=-1).square() / squares).double()
    commons = ((difference * change).sum(-1) / squares).double()
    terms = changes, commons, commons.square(), commons * changes, changes.square()
    return torch.stack([term.sum() for term in terms])
