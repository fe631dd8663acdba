"""Verdicts and labels of heads from the statistics of one text.

The rules are those of :mod:`attnviz.judge.rules`. A text has no intervals, but a least number of instances.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnviz.judge import rules
from attnviz.judge.rules import Rule
from attnviz.measures.guesses import error_reduction
from attnviz.measures.patterns import ON_REPEATS, PATTERNS, SINK, TYPES, PatternSpec, describes
from attnviz.measures.relations import RelationCount
from attnviz.measures.statistics import DIAGONALITY, NOWHERE, TextContext, ratio
from attnviz.models.head_ids import HeadId

ENOUGH = 10  # below this ``n`` a score is an indication only (our own choice, since no paper judges by one sentence)

LEAST_N = 3  # below this ``n`` there is no verdict and no label: one or two agree by chance (our own choice)

# Fewest different tokens from which a head must attend to a copy, or to what followed it, since "the" alone is no
# evidence (our own choice; all tokens differ in the random sequences of paper: Olsson et al. 2022).
LEAST_TYPES = 2

UNNAMED = "unnamed"  # the label without any of the patterns, "heterogeneous" in Kovaleva et al. 2019
BOTH = "; "  # between the two parts of a label
TOO_SHORT = "too short"  # in place of a label, where the text has fewer than LEAST_N content positions
FEW_ROWS = "too few rows"  # the same where so few of its rows were chosen
NO_LABEL = (TOO_SHORT, FEW_ROWS)
DIAGONAL = "diagonal"  # of a cross-attention head that follows the diagonal from target to source

_AT_LEAST = f"n at least {LEAST_N} (our own)"
_REPEATED = f"{_AT_LEAST}, and over {rules.MAJORITY} from each of {LEAST_TYPES} different tokens"
# What repeats need on a text beside the rule, by statistic.
_COPIES = {
    "induction": f"{_REPEATED} that come back with what followed them (our own, after Olsson et al. 2022)",
    "duplicate": _REPEATED,
}


@dataclass(frozen=True)
class Verdict:
    """A verdict on one pattern of one head, with its evidence."""

    name: str  # previous-token, sink, …, or a relation of the parser (nsubj)
    kind: str  # positional, repeats, sink, broad or syntactic
    score: float | None  # the share or accuracy, 0-1; None where not measurable
    baseline: float | None  # under uniform attention; of long-range keys shuffled, of a relation its best guess
    n: int  # queries (or instances of the relation) of the score; of broad, the content queries
    holds: bool  # whether the head shows it, by the rule
    threshold: str  # the rule in words, with its source
    direction: str | None = None  # of a relation, who attends to whom
    offset: int | None = None  # of a relation, the best fixed one
    on_repeats: float | None = None  # of repeats, mean attention of the n queries with a copy (Olsson et al. 2022)
    baseline_on_repeats: float | None = None  # the same under uniform attention
    types: int | None = None  # different tokens where this mean is above a half; None where no token repeats
    baselines: dict[str, float] | None = None  # of a relation
    on_sinks: bool = False  # of a relation, whether its words attend more to sinks than to its other end
    on_content: float | None = None  # of broad, the score over content queries and keys alone

    @property
    def relation(self) -> str | None:
        """The relation, ``nsubj``; None for a pattern."""
        return self.name if self.kind == "syntactic" else None

    @property
    def role(self) -> str:
        """The role that a head with it has: ``previous-token``, ``syntactic:nsubj``."""
        return self.name if self.relation is None else f"syntactic:{self.name}"

    @property
    def passed(self) -> bool | None:
        """Whether it holds and is evidence; None for a pattern that only describes."""
        return None if describes(self.name) else self.holds

    @property
    def largest_baseline(self) -> str:
        """Name of a relation's best guess, or the offset if that is best; ``shuffle`` of long-range; else ``uniform``.

        The shuffle is what the head's own weights give with the keys of each row shuffled.
        """
        if self.baselines is None:
            return "shuffle" if self.name in PATTERNS and PATTERNS[self.name].chosen else "uniform"
        name = max(self.baselines, key=self.baselines.__getitem__)
        return f"{self.offset:+d}" if name == "fixed offset" else name

    @property
    def enough(self) -> bool:
        return self.n >= ENOUGH

    @property
    def tells(self) -> bool:
        """Whether a relation can be a label: enough instances, and enough of them right beyond the baseline."""
        return self.enough and not self.on_sinks and round(self.n * self.margin, 6) >= LEAST_N

    @property
    def margin(self) -> float:
        """Score above baseline; minus infinity where not measurable."""
        return float("-inf") if self.score is None else self.score - (self.baseline or 0.0)

    @property
    def judged(self) -> tuple[float | None, float | None]:
        """Score and baseline of the verdict: for induction and duplicate-token those on repeats."""
        return (self.on_repeats, self.baseline_on_repeats) if self.kind == "repeats" else (self.score, self.baseline)

    @property
    def error_reduction(self) -> float | None:
        """Share of the baseline's errors that the head does not make; None where not defined."""
        return error_reduction(*self.judged)


@dataclass(frozen=True)
class Label:
    """The label of a head on one text: whether its attention rests on sinks, and what it does among other tokens."""

    name: str  # sink, previous-token, both as "sink; previous-token", syntactic:det, …, unnamed or what is too little
    verdicts: tuple[Verdict, ...]  # behind each of its parts; none for the last three
    n: int  # of the last verdict; without one the content positions of the text

    @property
    def verdict(self) -> Verdict | None:  # behind the last part
        return self.verdicts[-1] if self.verdicts else None

    @property
    def judged(self) -> tuple[float | None, float | None]:  # score and baseline of the verdict
        return (None, None) if self.verdict is None else self.verdict.judged

    @property
    def error_reduction(self) -> float | None:
        """Error reduction of the verdict; None without one, and for broad, whose baseline is 1."""
        return None if self.verdict is None else self.verdict.error_reduction

    @property
    def certain(self) -> bool:
        return self.n >= ENOUGH

    @property
    def shown(self) -> str:
        """The name, with a question mark if not :attr:`certain`."""
        return self.name if self.certain or self.name in NO_LABEL else f"{self.name}?"


def judge(
    statistics: dict[str, float | None], context: TextContext, relations: Sequence[RelationCount], id: HeadId
) -> list[Verdict]:
    """The verdicts on every pattern of one head; several may hold.

    ``statistics`` are the head's own, by name, from :class:`attnviz.measures.statistics.HeadStatistics`; ``relations``
    are those of the text, from :class:`attnviz.measures.relations.RelationTally`; empty for layers of another text.
    """
    diagonality, n = statistics.get(DIAGONALITY), context.n_non_sink
    sink, uniform_sink = statistics["sink"], context.uniform["sink"]
    gone = statistics.get(NOWHERE)
    if gone is not None:  # a learned sink is one, too
        sink, uniform_sink = gone + (sink or 0.0), (context.uniform[NOWHERE] or 0.0) + (uniform_sink or 0.0)
    entropy = ratio(statistics["entropy"], context.uniform["entropy"])
    on_content = ratio(statistics["entropy_non_sink"], context.uniform["entropy_non_sink"])
    broad = replace(
        _verdict("broad", "broad", rules.BROAD, min(entropy or 0.0, on_content or 0.0), 1.0, n),
        score=entropy,
        baseline=None,
        threshold=f"{rules.BROAD.words}, without sinks, too (our own), {_AT_LEAST}",
        on_content=on_content,
    )
    general = [_verdict(SINK, SINK, rules.SINK, sink, uniform_sink, n), broad]
    rests = sink or 0.0
    if context.source is not None:
        baseline, n = context.uniform[DIAGONALITY], 0 if diagonality is None else n
        return [_verdict(DIAGONAL, "positional", rules.DIAGONALITY, diagonality, baseline, n, rests), *general]
    verdicts, baselines = [], context.baselines_of(statistics)
    for spec in PATTERNS.values():
        if not spec.on_repeats:
            score, baseline, n = statistics[spec.statistic], baselines[spec.statistic], context.counts[spec.statistic]
            verdicts.append(_verdict(spec.name, "positional", rules.of_position(spec), score, baseline, n, rests))
    verdicts += [*(_repeats(spec, statistics, context) for spec in PATTERNS.values() if spec.on_repeats), *general]
    for relation in relations:
        accuracy, on_sinks = relation.accuracy, relation.on_sinks
        direction = int(accuracy.best[id])  # that of the head's largest margin
        score, baseline, by_name = accuracy.at(direction, id)
        verdict = _verdict(relation.relation, "syntactic", rules.RELATION, score, baseline, relation.n)
        verdicts.append(
            replace(
                verdict,
                direction=accuracy.directions[direction],
                offset=relation.offset,
                baselines=by_name,
                on_sinks=on_sinks is not None and bool(on_sinks[(direction, *id)]),
            )
        )
    return verdicts


def _verdict(
    name: str, kind: str, rule: Rule, score: float | None, baseline: float | None, n: int, off_content: float = 0.0
) -> Verdict:
    return Verdict(
        name=name,
        kind=kind,
        score=score,
        baseline=baseline,
        n=n,
        holds=rule.holds(score, baseline, off_content) and n >= LEAST_N,
        threshold=f"{rule.words}, {_AT_LEAST}",
    )


def _repeats(spec: PatternSpec, statistics: dict[str, float | None], context: TextContext) -> Verdict:
    name = spec.statistic
    on_repeats, uniform, n = statistics[ON_REPEATS[name]], context.uniform[ON_REPEATS[name]], context.counts[name]
    types = statistics.get(TYPES[name])
    verdict = _verdict(spec.name, "repeats", rules.REPEATED, on_repeats, uniform, n)
    return replace(
        verdict,
        score=statistics[name],
        baseline=context.uniform[name],
        holds=verdict.holds and (types or 0) >= LEAST_TYPES,
        threshold=f"{rules.REPEATED.words}, {_COPIES.get(name, _AT_LEAST)}",
        on_repeats=on_repeats,
        baseline_on_repeats=uniform,
        types=None if types is None else int(types),
    )


def label_of(verdicts: Sequence[Verdict], n: int, too_few: str = TOO_SHORT) -> Label:
    """The label of a head on a text, from its verdicts.

    ``too_few`` where ``n``, the number of measured content positions, is below :data:`LEAST_N`. Else it has two
    parts, since where attention rests says nothing of the attention that is left. The first is sink, if that holds.
    The second is the first of these: previous, current and next token, induction, duplicate token and relations with
    10 instances or more of which the head has at least three more right than the baseline (our own choice), whichever
    has the largest error reduction, (score - baseline) / (1 - baseline); local or long-range, likewise; broad. A
    relation is left out where its words attend more to sinks than to its other end (our own choice). Without either
    part the label is ``unnamed``.
    """
    if n < LEAST_N:
        return Label(too_few, (), n)

    def order(verdict: Verdict) -> tuple[int, float]:
        """Specific patterns, local and long-range, broad."""
        rank = 2 if verdict.kind == "broad" else int(verdict.kind == "positional" and describes(verdict.name))
        return rank, -(verdict.error_reduction or 0.0)

    shown = [verdict for verdict in verdicts if verdict.holds and (verdict.kind != "syntactic" or verdict.tells)]
    sinks = [verdict for verdict in shown if verdict.kind == SINK]
    parts = (*sinks, *sorted((verdict for verdict in shown if verdict.kind != SINK), key=order)[:1])
    if not parts:
        return Label(UNNAMED, (), n)
    return Label(BOTH.join(verdict.role for verdict in parts), parts, parts[-1].n)
