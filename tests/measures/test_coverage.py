"""How often the intervals of a profile hold for 72 heads at once, in samples whose truth is known.

Slow, so it has to be asked for: ``pytest -n0 -m thorough -s tests/measures/test_coverage.py`` prints the figures
that stand in :mod:`attnviz.measures.estimates`, but those of plain normal intervals. Samples are drawn as a corpus
gives them: instances come in sentences, and attention in texts of varying length; what is of one text is alike.
Bootstrap, errors, intervals: the product's.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from attnviz.judge.roles import (
    ENOUGH_INSTANCES,
    ENOUGH_SEQUENCES,
    ERROR_RATE,
    MIN_TEXTS_SHARES,
    Candidate,
    repeat_candidates,
)
from attnviz.judge.rules import Rule
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.estimates import Interval, estimated
from attnviz.measures.repeats import SEQUENCES, RepeatScores
from attnviz.models.head_ids import HeadId

pytestmark = pytest.mark.thorough

HEADS, TRIALS, LEAST = 72, 300, 0.85
LENGTHS = np.array([5, 8, 11, 14, 18, 22, 28, 40])
"""Content tokens of a text, one as likely as another."""

SKEW = 0.5
"""Of a head's mean cosines by text; in minilm 0.3 (median of the 72 heads), 0.7 at the ninth decile."""

Array = NDArray[np.float64]


class Sample(NamedTuple):
    """What was measured of all heads, and the truth about them."""

    candidate: Candidate
    score: Array
    difference: Array


def beta(rng: np.random.Generator, mean: Array, alike: float, n: int) -> Array:
    """For each of n texts and each head a share, [n, n_heads]; ``alike``: the correlation within a text."""
    size = 1 / alike - 1
    return rng.beta(mean * size, (1 - mean) * size, (n, len(mean)))


def ratios(seed: int, above: Array, below: Array) -> torch.Tensor:
    """Ratios of sums over texts in all bootstrap samples, [1 + replicates, 1, 1, n_heads]."""
    weights = text_weights(seed, range(len(above)))
    return ((weights @ torch.from_numpy(above)) / (weights @ torch.from_numpy(below)))[:, None, None]


def judged(values: torch.Tensor, baseline: torch.Tensor, counts: tuple[int, int], scale: str) -> Candidate:
    return Candidate("role", Rule("a rule"), estimated(values, {"guess": baseline}, *counts), scale, enough=0)


def accuracies(seed: int, n: int, alike: float) -> Sample:
    """Beta-binomial: of each sentence one to five instances, the more alike, the more often all or none right."""
    rng = np.random.default_rng(seed)
    score, baseline = np.linspace(0.05, 0.95, HEADS), np.linspace(0.1, 0.6, HEADS)
    instances = 1 + rng.binomial(4, 0.2, (n, 1))
    right, guessed = (rng.binomial(instances, beta(rng, mean, alike, n)) / 1.0 for mean in (score, baseline))
    values, guesses = ratios(seed, right, instances / 1.0), ratios(seed, guessed, instances / 1.0)
    return Sample(judged(values, guesses, (int(instances.sum()), n), "proportion"), score, score - baseline)


def shares(seed: int, n: int, alike: float) -> Sample:
    """Ratios of sums over texts, whose attention on content grows with their length; uniform attention falls."""
    rng = np.random.default_rng(seed)
    score, length = np.linspace(0.03, 0.97, HEADS), rng.choice(LENGTHS, (n, 1)) / 1.0
    mass = length * rng.uniform(0.3, 1, (n, HEADS))
    values, uniform = ratios(seed, beta(rng, score, alike, n) * mass, mass), ratios(seed, np.ones((n, 1)), length)
    return Sample(judged(values, uniform, (int(length.sum()), n), "share"), score, score - 1 / LENGTHS.mean())


def cosines(seed: int, n: int, spread: float) -> Sample:
    """Mean cosines of texts of varying length, skewed to one side."""
    rng, shape = np.random.default_rng(seed), 4 / SKEW**2
    score, length = np.linspace(-0.1, 0.4, HEADS), rng.choice(LENGTHS, (n, 1)) / 1.0
    of_text = score + spread * (rng.gamma(shape, 1, (n, HEADS)) - shape) / shape**0.5
    uniform = 0.02 + spread / 4 * rng.normal(size=(n, 1))
    values, even = ratios(seed, of_text * length, length), ratios(seed, uniform * length, length)
    return Sample(judged(values, even, (int(length.sum()), n), "cosine"), score, score - 0.02)


def repeats(seed: int, n: int, alike: float) -> Sample:
    """A mean of sequences each, beside a baseline that is known."""
    score = np.linspace(0.03, 0.97, HEADS)
    scores = torch.from_numpy(beta(np.random.default_rng(seed), score, alike, n))[:, None]
    named = RepeatScores(dict.fromkeys(("induction", "duplicate"), scores), 50, {"induction": 0.02, "duplicate": 0.02})
    return Sample(next(repeat_candidates(named)), score, score - 0.02)


def of_product(candidate: Candidate, head: int) -> tuple[Interval, Interval]:
    """The intervals of a role."""
    role = candidate.judge(HeadId(0, head), 0, ERROR_RATE / HEADS)
    return role.interval, role.difference


def coverage(draw: Callable[[int, int, float], Sample], n: int, alike: float) -> tuple[float, float]:
    """In which share of samples all 72 intervals hold, of the score and of the difference."""
    held = np.zeros(2)
    for seed in range(TRIALS):
        sample = draw(seed, n, alike)
        found = np.array([of_product(sample.candidate, head) for head in range(HEADS)])
        truth = np.stack([sample.score, sample.difference], 1)
        held += ((found[..., 0] <= truth) & (truth <= found[..., 1])).all(0)
    return float(held[0] / TRIALS), float(held[1] / TRIALS)


@pytest.mark.parametrize(
    ("draw", "n", "alike", "enough"),
    [
        *((accuracies, n, alike, ENOUGH_INSTANCES) for n in (30, 100) for alike in (0.02, 0.2, 0.5)),
        *((shares, n, alike, MIN_TEXTS_SHARES) for n in (30, 100) for alike in (0.02, 0.1, 0.2)),
        *((cosines, n, 0.04, MIN_TEXTS_SHARES) for n in (30, 100)),
        *((repeats, SEQUENCES, alike, ENOUGH_SEQUENCES) for alike in (0.02, 0.05)),
    ],
)
def test_intervals_hold_for_all_heads_at_once_where_verdicts_are_given(draw, n, alike, enough):
    score, difference = coverage(draw, n, alike)
    verdict = "" if n >= enough else " (no verdict)"
    print(f"\n{draw.__name__}, n = {n}, {alike} alike{verdict}: score {score:.3f}, difference {difference:.3f}", end="")
    assert n < enough or min(score, difference) >= LEAST
