"""Intervals that hold at the n they are given for, and one false discovery rate over all roles of a model.

Errors are those of a bootstrap over texts, so that sentences, not words, are what is drawn at random. Their number less
one are the degrees of freedom of Student's t. Simulated for 72 heads at once (``tests/test_coverage.py``), intervals at
0.95 cover in 0.86 to 0.98 of samples of 30 sentences (proportions), 0.97 to 1.00 (differences) and 0.89 to 0.98 of
samples of 100 texts (shares); with fewer no verdict is given.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

__all__ = ["Evidence", "cosine_evidence", "false_discovery", "proportion_evidence", "share_evidence", "t_quantile",
           "t_tail"]  # fmt: skip

_EDGE = 1e-6
"""Distance from 0 and 1 at which the logit of a share is taken, at least."""

Interval = tuple[float, float]


class Evidence(NamedTuple):
    """Of one score: its interval, that of its difference from a baseline, and how surely this is above 0.

    Attributes:
        interval, difference: lowest and highest.
        p: one-sided, of a difference of 0 or less.
    """

    interval: Interval
    difference: Interval
    p: float


def t_quantile(p: float, freedom: int) -> float:
    """Quantile of Student's t, by Abramowitz & Stegun 1972, formula 26.7.5; within 0.01 from 20 degrees of freedom."""
    x = NormalDist().inv_cdf(p)
    g1 = (x**3 + x) / 4
    g2 = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    g3 = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    g4 = (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160
    return x + g1 / freedom + g2 / freedom**2 + g3 / freedom**3 + g4 / freedom**4


def t_tail(t: float, freedom: int) -> float:
    """Chance that Student's t is above ``t``, by Abramowitz & Stegun 1972, formula 26.7.8."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    x = t * (1 - 1 / (4 * freedom)) / math.sqrt(1 + t * t / (2 * freedom))
    return math.erfc(x / math.sqrt(2)) / 2


def proportion_evidence(
    score: float, baseline: float, errors: tuple[float, float], counts: tuple[int, int], rate: float
) -> Evidence:
    """Of a share of instances that are right: Wilson's interval of the score, Agresti and Min's of the difference.

    Wilson's (1927) interval takes for n the number of instances divided by the design effect (Kish 1965), since those
    of one sentence resemble each other. Agresti & Min (2005) add half an observation to each cell of the table of
    score and baseline; observations are sentences here, of which there are fewer than instances.

    Args:
        score: 0-1.
        baseline: 0-1.
        errors: of the score, and of the difference.
        counts: instances, and sentences that have them.
        rate: the chance that an interval misses.
    """
    (n, texts), (error, of_difference) = counts, errors
    t = t_quantile(1 - rate / 2, texts - 1)
    independent = score * (1 - score)
    effective = min(n, independent / error**2) if error > 0 and independent > 0 else texts
    spread = t * t / effective
    middle = (score + spread / 2) / (1 + spread)
    half = t * math.sqrt(independent / effective + spread / (4 * effective)) / (1 + spread)
    shrunk = (score - baseline) * texts / (texts + 2)
    standard = math.hypot(of_difference * texts, 1) / (texts + 2)
    return Evidence(
        (max(0.0, middle - half), min(1.0, middle + half)),
        (shrunk - t * standard, shrunk + t * standard),
        t_tail(shrunk / standard, texts - 1),
    )


def share_evidence(score: float, baseline: float, errors: tuple[float, float], texts: int, rate: float) -> Evidence:
    """Of a share of attention, on the logit scale, where its errors are about as wide on both sides.

    Args:
        score: 0-1.
        baseline: 0-1.
        errors: of the score, and of the difference.
        texts: how many the errors are over.
        rate: the chance that an interval misses.
    """
    t = t_quantile(1 - rate / 2, texts - 1)
    place, slope = _logit(score), 1 / max(score * (1 - score), _EDGE)

    def around(error: float, less: float) -> Interval:
        return tuple(_share(place + sign * t * error * slope) - less for sign in (-1, 1))  # type: ignore[return-value]

    away, width = place - _logit(baseline), errors[1] * slope
    p = t_tail(away / width if width > 0 else math.copysign(math.inf, away), texts - 1)
    return Evidence(around(errors[0], 0.0), around(errors[1], baseline), p)


def cosine_evidence(score: float, baseline: float, errors: tuple[float, float], texts: int, rate: float) -> Evidence:
    """Of a mean cosine, whose errors are far from its ends; arguments as for :func:`share_evidence`."""
    t, difference = t_quantile(1 - rate / 2, texts - 1), score - baseline
    interval = max(-1.0, score - t * errors[0]), min(1.0, score + t * errors[0])
    p = t_tail(difference / errors[1] if errors[1] > 0 else math.copysign(math.inf, difference), texts - 1)
    return Evidence(interval, (difference - t * errors[1], difference + t * errors[1]), p)


def false_discovery(p: Sequence[float]) -> list[float]:
    """The false discovery rate at which each test would just pass, whatever depends on what (Benjamini-Yekutieli 2001).

    q of the k-th smallest of m: the least of p m (1 + 1/2 + … + 1/m) / k of it and all larger ones, at most 1.
    """
    m = len(p)
    harmonic = sum(1 / k for k in range(1, m + 1))
    q, least = [1.0] * m, 1.0
    for rank, place in reversed(list(enumerate(sorted(range(m), key=p.__getitem__), start=1))):
        least = min(least, p[place] * m * harmonic / rank)
        q[place] = least
    return q


def _logit(share: float) -> float:
    inside = min(max(share, _EDGE), 1 - _EDGE)
    return math.log(inside / (1 - inside))


def _share(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > 0 else math.exp(logit) / (1 + math.exp(logit))
