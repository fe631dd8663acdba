"""Intervals of means and ratios of all heads at once, by a studentised bootstrap over texts, or over pairs of prompts.

The ratio of a head is the sum of its numerators over texts divided by that of its denominators; a mean over texts has
the denominator 1. In a bootstrap sample t = (its ratio - the measured ratio) / its own error, where errors are those of
linearised ratios (delta method). The critical t is the 0.95 quantile of the largest absolute t of all heads (Westfall &
Young 1993), so that the intervals, ratio ± critical t × error, hold together in 0.95 of samples; ``python -m
tests.benchmarks.intervals`` simulates that. A sample that draws too few of the texts that have a head's effect has an
error of 0 for it, and an infinite t, which makes intervals wider. A head that fewer than :data:`LEAST_WITH_EFFECT`
texts have an effect of has no interval.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.measures.bootstrap import ENOUGH_TEXTS, standard_error, text_weights
from attnviz.measures.estimates import Interval, proportion_evidence, share_evidence

# Probability that an interval misses, over all heads together; and false discovery rate over all roles and heads of a
# model (Benjamini-Yekutieli 2001).
ERROR_RATE = 0.05

SAMPLES = 999  # bootstrap samples: with the measured one 1,000, of which 50 are beyond the critical t
LEAST_WITH_EFFECT = 5  # texts with an effect below which a head has no interval; attnviz's own choice
_SMALLEST = 1e-4  # effects on one text that are smaller, as a share of the head's largest, are rounding
_NO_ERROR = 1e-9  # errors that are smaller, as a share of what they are compared with, are rounding of 0


@dataclass(frozen=True)
class Estimate:
    """A number and its interval, which holds together with those of other ones; None where it is not known."""

    value: float
    low: float | None
    high: float | None

    def __float__(self) -> float:
        return self.value

    @property
    def interval(self) -> Interval | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def entry(self) -> dict[str, float | Interval | None]:
        """How documents name it."""
        return {"value": self.value, "interval": self.interval}

    @property
    def side(self) -> int | None:
        """Sign of the interval: 1 above zero, -1 below, 0 if it includes zero; None without an interval."""
        return None if self.interval is None else (self.interval[0] > 0) - (self.interval[1] < 0)


@dataclass(frozen=True)
class Simultaneous:
    """Estimates of all heads, with intervals that hold together; tensors are [n_heads]."""

    estimates: Tensor
    errors: Tensor  # standard errors
    known: Tensor  # boolean, whether a head has an interval
    critical: float  # what the largest |t| of all heads exceeds in 0.05 of samples; infinite where samples cannot tell

    def interval(self, head: int) -> Interval | None:
        """Interval of one head, by its number; None where it is not known."""
        if not self.known[head]:
            return None
        estimate, half = float(self.estimates[head]), self.critical * float(self.errors[head])
        return estimate - half, estimate + half

    def __iter__(self) -> Iterator[Estimate]:
        for head, value in enumerate(self.estimates.tolist()):
            yield Estimate(value, *(self.interval(head) or (None, None)))


class TextSamples:
    """Bootstrap samples of texts, or of pairs of prompts, and means and ratios over these with their intervals.

    Those of one number say nothing new: they are drawn together, and count once.
    """

    def __init__(self, seed: int, numbers: Sequence[int]) -> None:
        """Draw :data:`SAMPLES` samples of texts with these numbers."""
        column = {number: at for at, number in enumerate(dict.fromkeys(numbers))}
        self._weights = text_weights(seed, [*column], SAMPLES)
        self._columns = torch.tensor([column[number] for number in numbers])

    def ratios(self, numerators: Tensor, denominators: Tensor) -> Simultaneous:
        """Ratios of sums over texts: [n_texts, n_heads], and below [n_texts, n_heads] or [n_texts, 1]."""
        empty = torch.zeros(self._weights.shape[1], 1, dtype=torch.float64)
        above, below = (
            empty.repeat(1, side.shape[1]).index_add_(0, self._columns, side.double())
            for side in (numerators, denominators)
        )
        return of_ratios(above, below, self._weights)

    def means(self, values: Tensor) -> Simultaneous:
        """Means over texts, of [n_texts, n_heads]."""
        return self.ratios(values, torch.ones(len(values), 1, dtype=torch.float64))


def texts_needed(estimates: Iterable[tuple[float, Interval | None]], n: int) -> int | None:
    """About how many texts, if they are like these ``n``, tell the clearest of some estimates from 0; None for none.

    An interval is narrower by the root of their number.
    """
    halves = [(value, (ends[1] - ends[0]) / 2) for value, ends in estimates if value and ends is not None]
    return min((math.ceil(n * (half / value) ** 2) for value, half in halves), default=None)


def excludes_zero(interval: Interval | None) -> bool:
    """Whether there is an interval, and 0 is not in it."""
    return interval is not None and (interval[0] > 0 or interval[1] < 0)


def of_share(share: float, error: float, n: int, n_tests: int = 1) -> Interval:
    """Interval of one share of ``n_tests``, over n texts or prompts, from its standard error."""
    return share_evidence(share, 0.0, (error, error), n, ERROR_RATE / n_tests).interval


def of_samples(shares: Tensor, n: int) -> Interval:
    """Interval of a share over n texts, from its bootstrap samples, [1 + replicates]; the first is the share itself."""
    return of_share(float(shares[0]), float(standard_error(shares[1:])), n)


def of_proportion(share: float, n: int, n_tests: int = 1) -> Interval:
    """Interval of one share of ``n_tests`` that is a part of n prompts."""
    error = (share * (1 - share) / n) ** 0.5
    return proportion_evidence(share, 0.0, (error, error), (n, n), ERROR_RATE / n_tests).interval


def of_ratios(numerators: Tensor, denominators: Tensor, weights: Tensor) -> Simultaneous:
    """Ratios of sums over texts, of numerators [n_texts, n_heads] and denominators, [n_texts, n_heads] or [n_texts, 1].

    A text where both are 0 is none of the head's. ``weights`` are those of texts in each bootstrap sample, the first
    row as measured, [1 + n_samples, n_texts], as of :func:`attnviz.measures.bootstrap.text_weights`.
    """
    estimates = numerators.sum(0) / denominators.sum(0)
    residuals = numerators - estimates * denominators
    there = ((numerators != 0) | (denominators != 0)).double()
    n, below = weights @ there, weights @ denominators
    moved = weights @ residuals / below  # from the estimate, in each sample
    squares = weights @ residuals**2 - 2 * moved * (weights @ (residuals * denominators))
    squares += moved**2 * (weights @ denominators**2)  # of residuals from the ratio of each sample
    errors = (squares.clamp_min(0) * n / (n - 1)).sqrt() / below.abs()
    with_effect = (numerators.abs() > _SMALLEST * numerators.abs().amax(0)).sum(0)
    scale = (numerators.abs().sum(0) / below[0]).abs()
    return simultaneous(estimates, moved[1:], errors, n[0], with_effect, scale)


def simultaneous(
    estimates: Tensor, moved: Tensor, errors: Tensor, n: Tensor, with_effect: Tensor, scale: Tensor
) -> Simultaneous:
    """Intervals of estimates [n_heads] by the largest absolute t of all heads in each bootstrap sample.

    Samples differ from the estimates by ``moved``, [n_samples, n_heads]; ``errors`` are standard errors as measured,
    then within each sample, [1 + n_samples, n_heads]. An estimate rests on ``n`` texts, of which ``with_effect`` have
    an effect of the head, of the size ``scale``: an error that is next to nothing beside it is rounding.
    """
    error = errors[0]
    known = (n >= ENOUGH_TEXTS) & (with_effect >= LEAST_WITH_EFFECT) & (error > _NO_ERROR * scale)
    t = (moved / errors[1:]).abs()
    t = t.where((errors[1:] > _NO_ERROR * error) & t.isfinite(), torch.inf)[:, known]
    critical = math.inf
    if known.any():
        beyond = round(ERROR_RATE * (1 + len(t)))
        critical = float(t.amax(1).sort(descending=True).values[beyond - 1])
    return Simultaneous(estimates, error, known & math.isfinite(critical), critical)
