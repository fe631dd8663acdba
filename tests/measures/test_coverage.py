"""Intervals of a profile hold for 72 heads at once, in samples whose truth is known.

Samples are drawn as a corpus gives them: instances come in sentences, and attention in texts of varying length; what is
of one text is alike. Bootstrap, errors, intervals: the product's.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from attnviz.judge.roles import (
    ENOUGH_INSTANCES,
    ENOUGH_SEQUENCES,
    MIN_TEXTS_SHARES,
    Candidate,
    repeat_candidates,
)
from attnviz.judge.rules import Rule
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.estimates import estimated
from attnviz.measures.repeats import RepeatScores
from attnviz.models.head_ids import HeadId

pytestmark = pytest.mark.thorough

HEADS, TRIALS, LEAST = 72, 50, 40
"""With a coverage of 0.9 fewer than 40 of 50 hold in 1 of 100 such tests."""

Drawn = tuple[Any, Any, Any, Any, Any, Any]
"""Numerators and denominators of the scores, [n, n_heads], those of the baselines, and the true values of both."""


def beta(rng: np.random.Generator, mean: Any, alike: float, n: int) -> Any:
    """For each of n texts and each head a share; ``alike``: the correlation within a text."""
    size = 1 / alike - 1
    return rng.beta(mean * size, (1 - mean) * size, (n, len(mean)))


def lengths(rng: np.random.Generator, n: int) -> Any:
    return rng.choice([5.0, 8, 11, 14, 18, 22, 28, 40], (n, 1))


def proportion(rng: np.random.Generator, n: int, alike: float) -> Drawn:
    """Of each sentence one to five instances, the more alike, the more often all or none right."""
    score, baseline = np.linspace(0.05, 0.95, HEADS), np.linspace(0.1, 0.6, HEADS)
    instances = 1.0 + rng.binomial(4, 0.2, (n, 1))
    right, guessed = (
        1.0 * rng.binomial(instances.astype(int), beta(rng, mean, alike, n)) for mean in (score, baseline)
    )
    return right, instances, guessed, instances, score, baseline


def share(rng: np.random.Generator, n: int, alike: float) -> Drawn:
    """Attention on content grows with the length of a text; uniform attention falls, 1 / 18.25 on average."""
    score, length = np.linspace(0.03, 0.97, HEADS), lengths(rng, n)
    mass = length * rng.uniform(0.3, 1, (n, HEADS))
    return beta(rng, score, alike, n) * mass, mass, np.ones((n, 1)), length, score, 1 / 18.25


def cosine(rng: np.random.Generator, n: int, spread: float) -> Drawn:
    """Skewed to one side by 0.5; in minilm 0.3 (median of the heads), 0.7 at the ninth decile."""
    score, length = np.linspace(-0.1, 0.4, HEADS), lengths(rng, n)
    of_text = score + spread * (rng.gamma(16, 1, (n, HEADS)) - 16) / 4
    return of_text * length, length, (0.02 + spread / 4 * rng.normal(size=(n, 1))) * length, length, score, 0.02


def measured(draw: Callable[..., Drawn], seed: int, n: int, alike: float) -> tuple[Candidate, Any, Any]:
    """Scores and baselines in all bootstrap samples, and the truth."""
    above, below, guessed, among, score, baseline = draw(np.random.default_rng(seed), n, alike)
    weights = text_weights(seed, range(n))
    values, guesses = (
        ((weights @ torch.from_numpy(one)) / (weights @ torch.from_numpy(other)))[:, None, None]
        for one, other in ((above, below), (guessed, among))
    )
    found = estimated(values, {"guess": guesses}, int(below.sum()), n)
    return Candidate("role", Rule("a rule"), found, draw.__name__, enough=0), score, score - baseline


def on_repeats(_: Any, seed: int, n: int, alike: float) -> tuple[Candidate, Any, Any]:
    """A mean of sequences each, beside a baseline that is known."""
    score = np.linspace(0.03, 0.97, HEADS)
    scores = torch.from_numpy(beta(np.random.default_rng(seed), score, alike, n))[:, None]
    named = RepeatScores(dict.fromkeys(("induction", "duplicate"), scores), 50, {"induction": 0.02, "duplicate": 0.02})
    return next(repeat_candidates(named)), score, score - 0.02


@pytest.mark.parametrize(
    ("sample", "draw", "n", "alike"),
    [
        (measured, proportion, ENOUGH_INSTANCES, 0.2),
        (measured, share, MIN_TEXTS_SHARES, 0.1),
        (measured, cosine, MIN_TEXTS_SHARES, 0.04),
        (on_repeats, None, ENOUGH_SEQUENCES, 0.05),
    ],
)
def test_intervals_hold_for_all_heads_at_once_where_verdicts_are_given(sample, draw, n, alike):
    """In samples of as many texts as a verdict takes."""
    held = np.zeros(2)
    for seed in range(TRIALS):
        candidate, *truth = sample(draw, seed, n, alike)
        roles = [candidate.tested(HeadId(0, head), 0) for head in range(HEADS)]
        low, high = np.moveaxis(np.array([(role.interval, role.difference) for role in roles]), 2, 0)
        held += ((truth >= low.T) & (truth <= high.T)).all(1)
    print(f"held in {held / TRIALS}, score and difference")
    assert held.min() >= LEAST
