"""Named thresholds with their sources: from numbers to verdicts, and from verdicts to one label."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnviz.statistics import SHARES, Frame
from attnviz.syntax import DIRECTIONS, RelationAccuracy

__all__ = [
    "ENOUGH",
    "HETEROGENEOUS",
    "NOT_MEASURABLE",
    "PATTERN_NAMES",
    "Pattern",
    "deciding_pattern",
    "judge",
    "label_of",
]

MAJORITY = 0.5
"""A positional pattern holds where it takes more than half of the attention (Clark et al. 2019, section 3.1)."""

MARGIN = 0.10
"""... and is at least 10 points above its baseline (Voita et al. 2019, section 5.2, for syntactic heads)."""

_LEAST_MARGIN = MARGIN - 1e-9  # so that 0.6 against 0.5 is 10 points in floating point, too

SINK_SHARE = 0.6
"""A head rests on the sinks where they take more than this (Clark et al. 2019, plotting code for [CLS], [SEP])."""

SINK_ONLY = 0.9
"""Above this, too little attention lands on content for a positional pattern (Vig & Belinkov 2019, section 4.3)."""

BROAD_SHARE = 3.8 / 4.5
"""Entropy as a share of the uniform entropy (Clark et al. 2019: above 3.8 of about 4.5 nats)."""

ENOUGH = 10
"""Below this ``n`` a score is an indication only; attnviz's own choice, since no paper judges by one sentence."""

HETEROGENEOUS = "heterogeneous"
"""The label of a head that shows none of the patterns (Kovaleva et al. 2019)."""

NOT_MEASURABLE = "not measurable"
"""The label of a head about which this text can say nothing."""

PATTERN_NAMES = {
    "previous": "previous-token",
    "current": "current-token",
    "next": "next-token",
    "local": "local",
    "long_range": "long-range",
}
"""From the statistic of a share to the name of the pattern that it measures."""

_SPECIFIC = ("previous-token", "next-token", "current-token")
_GENERAL = ("sink", "local", "long-range", "broad")


@dataclass(frozen=True)
class Pattern:
    """A verdict on one pattern of one head, with its evidence.

    Attributes:
        name: ``previous-token``, ``sink``, …, or a relation of the parser (``nsubj``).
        kind: ``positional``, ``sink``, ``broad`` or ``syntactic``.
        score: the share (0-1) or accuracy (0-1) measured; None where this text cannot measure it.
        baseline: the same under uniform attention, or the best fixed offset's accuracy.
        n: how many queries (or instances of the relation) the score rests on.
        passed: score against threshold; see ``threshold``.
        threshold: the rule in words, with its source.
        direction: of a relation, who attends to whom; None otherwise.
        offset: of a relation, the best fixed offset; None otherwise.
    """

    name: str
    kind: str
    score: float | None
    baseline: float | None
    n: int
    passed: bool
    threshold: str
    direction: str | None = None
    offset: int | None = None

    @property
    def enough(self) -> bool:
        """Whether ``n`` is large enough for more than an indication."""
        return self.n >= ENOUGH

    @property
    def margin(self) -> float:
        """Score above baseline; minus infinity where not measurable."""
        return float("-inf") if self.score is None else self.score - (self.baseline or 0.0)


def judge(
    statistics: dict[str, float | None], frame: Frame, relations: Sequence[RelationAccuracy], head: int
) -> list[Pattern]:
    """Every pattern of one head with its verdict; roles overlap, so several may pass.

    Args:
        statistics: of this head, by name, from :func:`attnviz.statistics.measure`.
        frame: of the text, for baselines and n.
        relations: of the head's layer, from :func:`attnviz.syntax.relation_accuracy`.
        head: the head's place in its layer.
    """
    resting = (statistics["sink"] or 0.0) > SINK_ONLY
    patterns = [_positional(name, statistics[name], frame, resting) for name in SHARES]
    patterns += [_sink(statistics["sink"], frame), _broad(statistics["entropy"], frame)]
    return patterns + [_syntactic(relation, head) for relation in relations]


def label_of(patterns: Sequence[Pattern]) -> str:
    """One word for a head: the most telling of the patterns that passed.

    In order: sink, where it takes over 0.9; a syntactic relation with ``n`` of 10 or more; previous,
    next, current token; sink; local; long-range; broad; else heterogeneous. Scores come first: a
    head may show several patterns, and all of them stand in its evidence.
    """
    pattern = deciding_pattern(patterns)
    if pattern is not None:
        return f"syntactic:{pattern.name}" if pattern.kind == "syntactic" else pattern.name
    measurable = any(pattern.score is not None for pattern in patterns if pattern.kind in ("positional", "sink"))
    return HETEROGENEOUS if measurable else NOT_MEASURABLE


def deciding_pattern(patterns: Sequence[Pattern]) -> Pattern | None:
    """The pattern that gave the label; None for a heterogeneous head."""
    passed = {pattern.name: pattern for pattern in patterns if pattern.passed and pattern.kind != "syntactic"}
    sink = passed.get("sink")
    if sink is not None and sink.score is not None and sink.score > SINK_ONLY:
        return sink
    syntactic = [pattern for pattern in patterns if pattern.kind == "syntactic" and pattern.passed and pattern.enough]
    if syntactic:
        return max(syntactic, key=lambda pattern: pattern.margin)
    return next((passed[name] for name in (*_SPECIFIC, *_GENERAL) if name in passed), None)


def _positional(name: str, score: float | None, frame: Frame, resting: bool) -> Pattern:
    baseline = frame.baselines[name]
    return Pattern(
        name=PATTERN_NAMES[name],
        kind="positional",
        score=score,
        baseline=baseline,
        n=frame.counts[name],
        passed=_above(score, MAJORITY, baseline) and not resting,
        threshold="over 0.5 (Clark et al. 2019) and 0.10 above uniform attention (after Voita et al. 2019), "
        "sink at most 0.9 (Vig & Belinkov 2019)",
    )


def _sink(score: float | None, frame: Frame) -> Pattern:
    baseline = frame.sink_baseline
    return Pattern(
        name="sink",
        kind="sink",
        score=score,
        baseline=baseline,
        n=int(frame.content.sum()),
        passed=_above(score, SINK_SHARE, baseline),
        threshold="over 0.6 (Clark et al. 2019) and 0.10 above uniform attention (after Voita et al. 2019)",
    )


def _broad(entropy: float | None, frame: Frame) -> Pattern:
    uniform = frame.entropy_uniform
    score = entropy / uniform if entropy is not None and uniform > 0 else None
    return Pattern(
        name="broad",
        kind="broad",
        score=score,
        baseline=None if score is None else 1.0,
        n=len(frame.units),
        passed=score is not None and score >= BROAD_SHARE,
        threshold="entropy at least 0.84 of the uniform entropy (after Clark et al. 2019)",
    )


def _above(score: float | None, threshold: float, baseline: float | None) -> bool:
    return score is not None and baseline is not None and score > threshold and score - baseline >= _LEAST_MARGIN


def _syntactic(relation: RelationAccuracy, head: int) -> Pattern:
    direction = max(DIRECTIONS, key=lambda direction: relation.accuracy[direction][head])
    score = relation.accuracy[direction][head]
    return Pattern(
        name=relation.relation,
        kind="syntactic",
        score=score,
        baseline=relation.offset_accuracy,
        n=relation.n,
        passed=score - relation.offset_accuracy >= _LEAST_MARGIN,
        threshold="0.10 above the best fixed offset (Voita et al. 2019)",
        direction=direction,
        offset=relation.offset,
    )
