"""From what was measured over a corpus to roles: score, baseline, interval, threshold, verdict."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import torch
from torch import Tensor

from attnviz.commands.profile.instances import NameTally, RelationCount, RepeatScores
from attnviz.commands.profile.tallies import OFFSETS, MeaningTally, StatisticsTally
from attnviz.corpora.bootstrap import ENOUGH_TEXTS
from attnviz.model.head_ids import HeadId, all_heads
from attnviz.patterns.registry import NAMES, REPEATS, SHARES
from attnviz.patterns.verdicts import BROAD_SHARE, MAJORITY, MARGIN, SINK_ONLY, SINK_SHARE

__all__ = ["ERROR_RATE", "Role", "coreference_roles", "repeat_roles", "semantic_roles",
           "statistic_roles", "syntax_roles", "wilson"]  # fmt: skip

ERROR_RATE = 0.05
"""The chance that any of a role's intervals misses, over all heads of the model together (Bonferroni)."""

ENOUGH_INSTANCES = 30
"""Instances of a relation below which no verdict is given; attnviz's own choice."""

_CORRECTED = f"; the interval, at {ERROR_RATE} over all heads together (Bonferroni), above the baseline"
_ROUNDING = 1e-9  # so that 0.6 against 0.5 is 10 points in floating point, too
_NOT_RESTING = f", at most {SINK_ONLY} of the attention elsewhere (after Vig & Belinkov 2019)"
_POSITIONAL = (
    f"over {MAJORITY} of the attention on content (Clark et al. 2019), {MARGIN} above uniform attention "
    f"(after Voita et al. 2019){_NOT_RESTING}{_CORRECTED}"
)


@dataclass(frozen=True)
class Role:
    """One role of one head.

    Attributes:
        id: the head.
        role: ``previous-token``, ``sink``, ``syntactic:nsubj``, ``coreference``, …
        score: 0-1, of ``semantic`` a cosine; see ``threshold`` for what it is.
        baseline: the same under uniform attention, or of the trivial guess.
        n: what the score rests on: content positions, instances, or sequences.
        interval: of the score, corrected for the number of heads; everything from the least to the greatest
            possible score where there are too few texts to say more.
        threshold: the rule in words, with its source.
        passed: whether it holds.
        direction: of a relation or of coreference, who attends to whom.
    """

    id: HeadId
    role: str
    score: float
    baseline: float
    n: int
    interval: tuple[float, float]
    threshold: str
    passed: bool
    direction: str | None = None

    @property
    def margin(self) -> float:
        """Score above baseline."""
        return self.score - self.baseline


@dataclass(frozen=True)
class _Measured:
    """Scores of all heads for one role, [n_layers, n_heads], NaN where a head has none, and their standard errors.

    Attributes:
        baseline: None or NaN where the role cannot be measured.
        n: what the scores rest on.
        texts: over how many texts, or sequences, the errors are.
        least: the least possible score; the greatest is 1.
    """

    scores: Tensor
    errors: Tensor
    baseline: float | None
    n: int
    texts: int
    least: float = 0.0

    def heads(self, looks: int = 0) -> Iterator[tuple[HeadId, float, tuple[float, float]]]:
        """Every head that has a score, with it and its interval; ``looks`` scores were tried, 0: one a head."""
        z = _z(looks or self.scores.numel())
        for id in all_heads(*self.scores.shape):
            score, error = float(self.scores[id]), float(self.errors[id])
            if math.isfinite(score):
                known = self.texts >= ENOUGH_TEXTS and math.isfinite(error)
                low, high = (score - z * error, score + z * error) if known else (self.least, 1.0)
                yield id, min(1.0, score), (max(self.least, low), min(1.0, high))  # rounding may lead beyond 1


def statistic_roles(tally: StatisticsTally) -> Iterator[Role]:
    """Positional roles, sink and broad, of every head, and the fixed distance beyond these that it attends to most.

    The latter is ``offset:-3`` where keys stand three tokens before their queries; one look for each that was tried.
    """
    scores, errors = tally.results()
    baselines = tally.baselines()

    def measured(name: str) -> _Measured:
        return _Measured(scores[name], errors[name], baselines[name], tally.n_content, tally.n_texts)

    for name in SHARES:
        yield from _scored(NAMES[name], measured(name), _POSITIONAL, MAJORITY, 1 - scores["sink"])
    rule = f"over {SINK_SHARE} (Clark et al. 2019), {MARGIN} above uniform attention{_CORRECTED}"
    yield from _scored("sink", measured("sink"), rule, SINK_SHARE)
    uniform = baselines["entropy"] or math.nan
    shares = _Measured(scores["entropy"] / uniform, errors["entropy"] / uniform, 1.0, tally.n_content, tally.n_texts)
    rule = (
        f"entropy at least {BROAD_SHARE:.2f} of uniform attention's (after Clark et al. 2019), and all of the "
        f"interval, at {ERROR_RATE} over all heads together (Bonferroni)"
    )
    for id, score, interval in shares.heads():
        yield Role(id, "broad", score, 1.0, shares.n, interval, rule, interval[0] >= BROAD_SHARE)
    tried = {
        name: scores[name] - baseline
        for name in OFFSETS
        if (baseline := baselines[name]) is not None and math.isfinite(baseline)
    }
    best = torch.stack(list(tried.values())).nan_to_num(-1.0).argmax(0) if tried else torch.empty(0)
    for place, name in enumerate(tried):
        chosen = replace(measured(name), scores=scores[name].where(best == place, torch.nan))
        yield from _scored(name, chosen, _POSITIONAL, MAJORITY, 1 - scores["sink"], len(tried) * best.numel())


def semantic_roles(tally: MeaningTally) -> Iterator[Role]:
    """Attention drawn to words alike in meaning; ``n`` counts content tokens with another word to attend to.

    No paper gives a number for the margin of the cosine. Of the 72 heads of all-MiniLM-L6-v2 on a treebank (UD English
    EWT, dev) two are at 0.12 to 0.13, which join "payment" and "payments", "you" and "your" (one with 0.08 of its
    attention, too little for a verdict); the next, at 0.08, mostly joins punctuation. Freshly initialised they are all
    below 0.001.
    """
    scores, errors, baseline = tally.results()
    measured = _Measured(scores, errors, baseline, tally.n_queries, tally.n_texts, least=-1.0)
    rule = f"cosine of centred input embeddings {MARGIN} above uniform attention (attnviz's own choice)"
    yield from _scored("semantic", measured, f"{rule}{_NOT_RESTING}{_CORRECTED}", measurable=tally.on_pairs())


def syntax_roles(relations: Sequence[RelationCount]) -> Iterator[Role]:
    """One role for each relation with enough instances, in each head's better direction."""
    rule = f"{MARGIN} above the best fixed offset (Voita et al. 2019){_CORRECTED}"
    for each in relations:
        if each.n >= ENOUGH_INSTANCES:
            yield from _counted(f"syntactic:{each.relation}", each.hits, each.n, each.offset_hits / each.n, rule)


def coreference_roles(tally: NameTally) -> Iterator[Role]:
    """Which of two names a pronoun means, in each head's better direction, beside the nearer name."""
    rule = f"{MARGIN} above the nearer name (after Voita et al. 2019){_CORRECTED}"
    if tally.n:
        yield from _counted("coreference", tally.hits, tally.n, tally.nearer / tally.n, rule)


def repeat_roles(repeats: RepeatScores, *, previous: bool = False) -> Iterator[Role]:
    """Induction and duplicate-token heads; on request previous-token heads, which are better judged by text."""
    rule = f"mean attention over {MAJORITY} (after Clark et al. 2019), {MARGIN} above uniform attention{_CORRECTED}"
    for name in ("previous", *REPEATS) if previous else REPEATS:
        scores, n = repeats.scores[name], len(repeats.scores[name])
        errors = scores.std(0) / math.sqrt(n) if n > 1 else torch.full_like(scores[0], torch.nan)
        measured = _Measured(scores.mean(0), errors, repeats.baselines[name], n, n)
        yield from _scored(NAMES[name], measured, rule, MAJORITY)


def wilson(hits: int, n: int, z: float) -> tuple[float, float]:
    """Wilson's interval of a proportion (Wilson 1927)."""
    share, spread = hits / n, z * z / n
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def _scored(
    role: str,
    measured: _Measured,
    rule: str,
    above: float = -math.inf,
    measurable: Tensor | None = None,
    looks: int = 0,
) -> Iterator[Role]:
    """One role of the heads; none passes if too little of its attention is what the score is about, ``measurable``."""
    baseline = measured.baseline
    if baseline is None or not math.isfinite(baseline):
        return
    for id, score, interval in measured.heads(looks):
        resting = measurable is not None and float(measurable[id]) < 1 - SINK_ONLY - _ROUNDING
        far = score > above and score - baseline >= MARGIN - _ROUNDING
        passed = far and interval[0] > baseline and not resting
        yield Role(id, role, score, baseline, measured.n, interval, rule, passed)


def _counted(role: str, hits: dict[str, Tensor], n: int, baseline: float, rule: str) -> Iterator[Role]:
    """The heads of hits by direction, [n_layers, n_heads] each, in the better direction; every direction is a look."""
    directions = list(hits)
    best, direction = torch.stack(list(hits.values())).max(0)
    z = _z(len(hits) * best.numel())
    for id in all_heads(*best.shape):
        count = int(best[id])
        low, high = wilson(count, n, z)
        passed = count / n - baseline >= MARGIN - _ROUNDING and low > baseline
        yield Role(id, role, count / n, baseline, n, (low, high), rule, passed, directions[int(direction[id])])


def _z(looks: int) -> float:
    """Standard errors that an interval extends, so that this many hold together (Bonferroni)."""
    return NormalDist().inv_cdf(1 - ERROR_RATE / looks / 2)
