"""Named thresholds with their sources: from numbers to verdicts, and from verdicts to one label."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnviz.patterns.profile_store import HeadProfile, StoredRole
from attnviz.patterns.registry import NAMES, ON_REPEATS, PATTERNS, REPEATS, SHARES
from attnviz.patterns.statistics import TextContext
from attnviz.patterns.syntax import DIRECTIONS, RelationAccuracy

__all__ = ["BROAD_SHARE", "ENOUGH", "HETEROGENEOUS", "MAJORITY", "MARGIN", "NOT_MEASURABLE", "SINK_ONLY", "SINK_SHARE",
           "Verdict", "deciding_verdict", "judge", "label_of"]  # fmt: skip

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

ENOUGH_REPEATS = 3
"""Queries with a copy before them that a label asks for; attnviz's own choice: one or two agree by chance."""

_SPECIFIC = tuple(spec.name for spec in PATTERNS if spec.specific)
_GENERAL = ("sink", *(spec.name for spec in PATTERNS if not spec.specific), "broad")


_POSITIONAL = (
    "over 0.5 (Clark et al. 2019) and 0.10 above uniform attention (after Voita et al. 2019), "
    "sink at most 0.9 (Vig & Belinkov 2019)"
)
_REPEATED = "on repeats over 0.5 (after Clark et al. 2019) and 0.10 above uniform attention (Olsson et al. 2022)"
_SINK = "over 0.6 (Clark et al. 2019) and 0.10 above uniform attention (after Voita et al. 2019)"
_BROAD = "entropy at least 0.84 of the uniform entropy (after Clark et al. 2019)"
_SYNTACTIC = "0.10 (Voita et al. 2019) above the largest of its baselines"


@dataclass(frozen=True)
class Verdict:
    """A verdict on one pattern of one head, with its evidence.

    Attributes:
        name: ``previous-token``, ``sink``, …, or a relation of the parser (``nsubj``).
        kind: ``positional``, ``repeats``, ``sink``, ``broad`` or ``syntactic``; ``profile`` for a relation that
            a stored profile found.
        score: the share (0-1) or accuracy (0-1) measured; None where this text cannot measure it.
        baseline: the same under uniform attention; of a relation the largest of its ``baselines``.
        n: how many queries (or instances of the relation) the score rests on.
        passed: score against threshold; see ``threshold``.
        threshold: the rule in words, with its source.
        direction: of a relation, who attends to whom; None otherwise.
        offset: of a relation, the best fixed offset; None otherwise.
        baselines: of a relation, how often each guess of :data:`attnviz.patterns.guesses.BASELINES` is right.
        on_repeats: of induction and duplicate-token, the mean attention under the mask of the ``n`` queries
            that have a copy before them, 0-1 (prefix-matching score, Olsson et al. 2022); None otherwise.
        baseline_on_repeats: the same under uniform attention.
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
    on_repeats: float | None = None
    baseline_on_repeats: float | None = None
    baselines: dict[str, float] | None = None

    @property
    def largest_baseline(self) -> str:
        """Of a relation, the name of the guess that decides, the offset by its number; nothing otherwise."""
        if self.baselines is None:
            return ""
        name = max(self.baselines, key=self.baselines.__getitem__)
        return f"{self.offset:+d}" if name == "fixed offset" else name

    @property
    def enough(self) -> bool:
        """Whether ``n`` is large enough for more than an indication."""
        return self.n >= ENOUGH

    @property
    def margin(self) -> float:
        """Score above baseline; minus infinity where not measurable."""
        return float("-inf") if self.score is None else self.score - (self.baseline or 0.0)


def judge(
    statistics: dict[str, float | None], context: TextContext, relations: Sequence[RelationAccuracy], head: int
) -> list[Verdict]:
    """Every pattern of one head with its verdict; roles overlap, so several may pass.

    Args:
        statistics: of this head, by name, from :func:`attnviz.patterns.statistics.measure`.
        context: of the text, for baselines and n.
        relations: of the head's layer, from :func:`attnviz.patterns.syntax.relation_accuracy`.
        head: the head's place in its layer.
    """
    resting = (statistics["sink"] or 0.0) > SINK_ONLY
    verdicts = [_positional(name, statistics[name], context, resting) for name in SHARES]
    verdicts += [_repeats(name, statistics, context) for name in REPEATS]
    verdicts += [_sink(statistics["sink"], context), _broad(statistics["entropy"], context)]
    return verdicts + [_syntactic(relation, head) for relation in relations]


def label_of(verdicts: Sequence[Verdict], profile: HeadProfile | None = None) -> str:
    """One word for a head: the most telling of the patterns that passed.

    In order: sink, where it takes over 0.9; a syntactic relation with ``n`` of 10 or more; previous,
    next or current token, induction or duplicate token (with ``n`` of 3 or more), whichever is further
    above its baseline; sink; local; long-range; broad; else heterogeneous. Scores come first: a
    head may show several patterns, and all of them stand in its evidence.

    A stored profile that judged relations takes precedence over the relations of the one text, which then
    give no label. The profile's does, if it passes there and is right for over half of the words, and if neither
    sink nor any of the tokens named above is further above its baseline on the text.

    Args:
        verdicts: of the head on the text.
        profile: what a stored profile says of the head; None where there is none.
    """
    verdict = deciding_verdict(verdicts, profile)
    if verdict is not None:
        return f"syntactic:{verdict.name}" if verdict.kind in ("syntactic", "profile") else verdict.name
    measurable = any(verdict.score is not None for verdict in verdicts if verdict.kind in ("positional", "sink"))
    return HETEROGENEOUS if measurable else NOT_MEASURABLE


def deciding_verdict(verdicts: Sequence[Verdict], profile: HeadProfile | None = None) -> Verdict | None:
    """The verdict that gave the label, of the text or of the profile; None for a heterogeneous head."""
    passed = {verdict.name: verdict for verdict in verdicts if verdict.passed and verdict.kind != "syntactic"}
    sink = passed.get("sink")
    if sink is not None and sink.score is not None and sink.score > SINK_ONLY:
        return sink
    specific = [passed[name] for name in _SPECIFIC if name in passed]
    specific = [verdict for verdict in specific if verdict.kind != "repeats" or verdict.n >= ENOUGH_REPEATS]
    strongest = max(specific, key=lambda verdict: verdict.margin, default=sink)
    if profile is not None and profile.judged_relations:
        relation = next((_of_profile(role) for role in profile.relations if role.score > MAJORITY), None)
        if relation is not None and (strongest is None or relation.margin > strongest.margin):
            return relation
    else:
        relations = [verdict for verdict in verdicts if verdict.kind == "syntactic" and verdict.passed]
        enough = [verdict for verdict in relations if verdict.enough]
        if enough:
            return max(enough, key=lambda verdict: verdict.margin)
    return strongest or next((passed[name] for name in _GENERAL if name in passed), None)


def _of_profile(role: StoredRole) -> Verdict:
    """A relation that passes in a stored profile, as a verdict."""
    return Verdict(
        role.relation or role.role, "profile", role.score, role.baseline, role.n, role.passed,
        threshold="the verdict of the stored profile", direction=role.direction,
    )  # fmt: skip


def _positional(name: str, score: float | None, context: TextContext, resting: bool) -> Verdict:
    baseline, n = context.baselines[name], context.counts[name]
    passed = _above(score, MAJORITY, baseline) and not resting
    return Verdict(NAMES[name], "positional", score, baseline, n, passed, _POSITIONAL)


def _repeats(name: str, statistics: dict[str, float | None], context: TextContext) -> Verdict:
    on_repeats, uniform = statistics[ON_REPEATS[name]], context.baselines_on_repeats[name]
    return Verdict(
        NAMES[name], "repeats", statistics[name], context.baselines[name], context.counts[name],
        _above(on_repeats, MAJORITY, uniform), _REPEATED, on_repeats=on_repeats, baseline_on_repeats=uniform,
    )  # fmt: skip


def _sink(score: float | None, context: TextContext) -> Verdict:
    baseline, n = context.sink_baseline, int(context.content.sum())
    return Verdict("sink", "sink", score, baseline, n, _above(score, SINK_SHARE, baseline), _SINK)


def _broad(entropy: float | None, context: TextContext) -> Verdict:
    uniform = context.entropy_uniform
    score = entropy / uniform if entropy is not None and uniform > 0 else None
    baseline, passed = (None, False) if score is None else (1.0, score >= BROAD_SHARE)
    return Verdict("broad", "broad", score, baseline, len(context.units), passed, _BROAD)


def _syntactic(relation: RelationAccuracy, head: int) -> Verdict:
    """In the direction in which the head is furthest above the largest baseline."""
    baselines = {direction: relation.baselines_of(direction, head) for direction in DIRECTIONS}
    scores = {direction: relation.accuracy[direction][head] for direction in DIRECTIONS}

    def margin(direction: str) -> float:
        return scores[direction] - max(baselines[direction].values())

    direction = max(DIRECTIONS, key=lambda direction: (round(margin(direction), 9), scores[direction]))
    return Verdict(
        relation.relation, "syntactic", scores[direction], max(baselines[direction].values()), relation.n,
        margin(direction) >= _LEAST_MARGIN, _SYNTACTIC, direction=direction, offset=relation.offset,
        baselines=baselines[direction],
    )  # fmt: skip


def _above(score: float | None, threshold: float, baseline: float | None) -> bool:
    return score is not None and baseline is not None and score > threshold and score - baseline >= _LEAST_MARGIN
