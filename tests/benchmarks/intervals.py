"""How often intervals of 16 heads hold together, and find an effect: ``python -m tests.benchmarks.intervals``.

Eight heads have an effect, eight have none. In each of :data:`RUNS` samples of n pairs, numerators and denominators are
drawn anew; the product gives the intervals of the ratios (:mod:`attnviz.measures.intervals`). Beside them stand t
intervals of the same errors, by Bonferroni for 16 heads.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attnviz.measures.bootstrap import text_weights
from attnviz.measures.estimates import t_quantile
from attnviz.measures.intervals import ERROR_RATE, SAMPLES, of_ratios

HEADS, WITH_EFFECT, RUNS = 16, 8, 200

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], tuple[Array, Array]]

NO_EFFECT = np.arange(HEADS) >= WITH_EFFECT


def normal(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Effects of mean 0.5 or 0 and standard deviation 1."""
    return rng.normal(0.5, 1, (n, HEADS)) - 0.5 * NO_EFFECT, rng.normal(1, 0.3, (n, 1))


def lognormal(rng: np.random.Generator, n: int, sigma: float) -> tuple[Array, Array]:
    """Effects and denominators of mean 1; the effects of heads that have none less 1."""
    effects, denominators = (rng.lognormal(-(sigma**2) / 2, sigma, (n, width)) for width in (HEADS, 1))
    return effects - NO_EFFECT, denominators


def few_carry_it(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Effects of about 1 on 5 % of the pairs, and none on others; for heads without one, of either sign."""
    carries, size = rng.random((n, HEADS)) < 0.05, rng.normal(1, 0.3, (n, HEADS))
    sign = np.where(NO_EFFECT, rng.choice([-1, 1], (n, HEADS)), 1)
    return carries * size * sign, rng.normal(1, 0.3, (n, 1))


EVIDENCE: dict[str, tuple[Draw, float]] = {
    "normal": (normal, 0.5),
    "lognormal (σ 1)": (partial(lognormal, sigma=1.0), 1.0),
    "5 % of the pairs carry it": (few_carry_it, 0.05),
    "lognormal (σ 1.5)": (partial(lognormal, sigma=1.5), 1.0),
}
"""How each kind is drawn, and the true effect of the heads that have one."""


class Simulated(NamedTuple):
    """Shares of runs, or of heads in them."""

    holds: float  # runs in which all intervals hold
    wrongly: float  # runs in which a head without effect is named
    named: float  # heads with an effect that are named
    not_known: float  # heads without an interval
    width: float  # median over runs and heads, beside that of t intervals
    t_holds: float
    t_wrongly: float
    t_named: float


def simulate(kind: str, n: int, runs: int = RUNS) -> Simulated:
    """Draw samples of one kind of evidence of n pairs."""
    draw, effect = EVIDENCE[kind]
    truth, t = np.where(NO_EFFECT, 0.0, effect), t_quantile(1 - ERROR_RATE / HEADS / 2, n - 1)
    rows, widths = list[tuple[float, ...]](), list[float]()
    for seed in range(runs):
        numerators, denominators = map(torch.from_numpy, draw(np.random.default_rng(seed), n))
        found = of_ratios(numerators, denominators, text_weights(seed, range(n), SAMPLES))
        estimates, errors, known = found.estimates.numpy(), found.errors.numpy(), found.known.numpy()
        critical, shares = found.critical if known.any() else 0.0, list[float]()
        for half, there in ((critical * errors, known), (t * errors, np.full(HEADS, True))):
            named = there & (np.abs(estimates) > half)
            misses = there & (np.abs(estimates - truth) > half)
            shares += [not misses.any(), named[NO_EFFECT].any(), named[~NO_EFFECT].mean()]
        rows.append((*shares[:3], 1 - known.mean(), *shares[3:]))
        widths += [critical / t] * int(known.sum())
    holds, wrongly, named, not_known, *of_t = np.mean(rows, 0)
    return Simulated(holds, wrongly, named, not_known, float(np.median(widths)) if widths else math.nan, *of_t)


if __name__ == "__main__":
    titles = "evidence", "n", "hold", "wrongly", "named", "not known", "width / t", "t: hold", "wrongly", "named"
    print("|", " | ".join(titles), "|")
    print("|", " | ".join(["---"] * len(titles)), "|")
    for kind in EVIDENCE:
        for n in (30, 100, 300):
            numbers = simulate(kind, n)
            print("|", " | ".join([kind, str(n), *(f"{number:.2f}" for number in numbers)]), "|", flush=True)
