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
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.estimates import Interval, proportion_evidence, share_evidence

# Probability that an interval misses, over all heads together; and false discovery rate over all roles and heads of a
# model (Benjamini-Yekutieli 2001).
ERROR_RATE = 0.05

SAMPLES = 999  # bootstrap samples: with the measured one 1,000, of which 50 are beyond the critical t
LEAST_WITH_EFFECT = 5  # texts with an effect below which a head has no interval; attnviz's own choice
_SMALLEST = 1e-4  # effects on one text that are smaller, as a share of the head's largest, are rounding
_NO_ERROR = 1e-9  # errors that are smaller, as a share of what they are compared with, are rounding of 0


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
