"""Roles of heads over corpora: score, baselines, intervals, threshold, verdict."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.judge import rules
from attnviz.judge.rules import Rule
from attnviz.measures.bootstrap import standard_error
from attnviz.measures.estimates import (
    HeadScores,
    Interval,
    cosine_evidence,
    false_discovery,
    proportion_evidence,
    share_evidence,
)
from attnviz.measures.guesses import error_reduction
from attnviz.measures.intervals import ERROR_RATE
from attnviz.measures.names import NameCount
from attnviz.measures.patterns import (
    INACTIVE,
    PATTERNS,
    RARE_WORD,
    RETRIEVAL,
    ROLES_ON_REPEATS,
    describes,
    rank_of_role,
)
from attnviz.measures.pointing import PointingTally
from attnviz.measures.relations import RelationCount
from attnviz.measures.repeats import RepeatScores
from attnviz.measures.tallies import OFFSETS, MeaningTally, StatisticsTally
from attnviz.measures.writing import WritingTally
from attnviz.models.head_ids import HeadId, all_heads
from attnviz.wording import counted

ENOUGH_INSTANCES = 30  # of a relation, and sentences that have it, below which no verdict is given; our own choice
MIN_TEXTS_SHARES = 100  # below which none on a share of attention is given, since intervals miss their coverage
ENOUGH_SEQUENCES = 30  # random ones, below which no verdict is given

_CORRECTED = f"at {ERROR_RATE} over all heads together (Bonferroni)"
_STANDS = (
    f"the interval of the difference, {_CORRECTED}, above 0; false discovery rate over all roles at most {ERROR_RATE} "
    "(Benjamini-Yekutieli 2001); above every head of an untrained copy"
)


@dataclass(frozen=True)
class Role:
    """One role of one head, over a corpus or stored; one that only describes has no intervals, p, q and untrained."""

    id: HeadId
    role: str  # previous-token, sink, syntactic:nsubj, coreference, …
    score: float  # 0-1, of semantic a cosine; see threshold for what it is
    baseline: float  # the largest of baselines
    n: int  # that the score is of: content positions, of a pattern with a key at its place; cases; instances; sequences
    texts: int  # or sequences, of the intervals
    interval: Interval | None  # of the score, corrected for the number of heads
    difference: Interval | None  # interval of score - baseline, from paired bootstrap samples of texts
    threshold: str  # the rule in words, with its source
    holds: bool  # by its rule, and where it is evidence by interval, q and control
    direction: str | None  # of a relation or of coreference, who attends to whom
    baselines: dict[str, float]  # by name
    p: float | None = None  # one-sided, of a difference of 0 or less, times the directions or offsets tried
    q: float | None = None  # its false discovery rate over all roles and heads (Benjamini-Yekutieli 2001)
    offset: int | None = None  # of the baseline "fixed offset": key minus query, -2 for two words back
    untrained: float | None = None  # best score of any head of a freshly initialised copy in the same direction
    refuted: bool = False  # even the upper ends break the rule, or do not exceed untrained; else it is undecided
    too_few: str = ""  # why there is no verdict: n = 29, 30 needed; intervals, p and q are then None
    simultaneous_over: int | None = (
        None  # how many tests, of heads × directions or offsets, that its intervals hold over together
    )

    @property
    def describes(self) -> bool:
        """Whether it says only where attention is: see :func:`attnviz.measures.patterns.describes`."""
        return describes(self.role)

    @property
    def passed(self) -> bool | None:
        """Whether it holds by evidence; None for a role that only describes."""
        return None if self.describes else self.holds

    @property
    def margin(self) -> float:
        return self.score - self.baseline

    @property
    def judged(self) -> tuple[float, float]:  # score and baseline, as those of a verdict
        return self.score, self.baseline

    @property
    def error_reduction(self) -> float | None:  # share of the baseline's errors that the head does not make
        return error_reduction(self.score, self.baseline)

    @property
    def relation(self) -> str | None:
        """The relation of a syntactic role, ``nsubj``; None for any other."""
        kind, _, relation = self.role.partition(":")
        return relation if kind == "syntactic" else None


@dataclass(frozen=True)
class Candidate:
    """The scores of all heads for one role, and the rule by which they pass."""

    role: str
    rule: Rule
    estimate: HeadScores
    scale: str = "share"  # or proportion, cosine: the kind of interval
    enough: int = MIN_TEXTS_SHARES  # fewest texts for a verdict
    measurable: Tensor | None = None  # [n_layers, n_heads], the share of attention that the score is of; None for all
    heads: Tensor | None = None  # boolean [n_layers, n_heads], heads that are judged; None for all
    n_tests: int = 0  # number of them, for the correction; 0 for the number of scores
    offset: int | None = None  # the best fixed one, key minus query in the first direction

    @property
    def threshold(self) -> str:
        """The rule in words, with the evidence that a corpus needs."""
        return self.rule.words if describes(self.role) else f"{self.rule.words}; {_STANDS}"

    def tested(self, id: HeadId, direction: int) -> Role:
        """One head in one direction, its intervals and p corrected for all tests of the role."""
        estimate, index = self.estimate, (direction, *id)
        score, baseline, baselines = estimate.at(direction, id)
        score, n, texts = min(1.0, score), int(estimate.n[id]), estimate.texts
        errors = float(estimate.errors[index]), float(estimate.differences[index])
        off_content = 0.0 if self.measurable is None else 1 - float(self.measurable[id])
        holds, refuted, too_few = self.rule.holds(score, baseline, off_content), False, ""
        if n < self.enough:
            too_few = f"n = {n}, {self.enough} needed"
        elif texts < self.enough:
            too_few = f"{counted(texts, 'text')}, {self.enough} needed"
        elif not all(map(math.isfinite, errors)):
            too_few = "no errors can be estimated"
        interval = difference = p = n_tests = None
        if not too_few and not describes(self.role):
            n_tests = self.n_tests or estimate.scores.numel()
            rate = ERROR_RATE / n_tests
            if self.scale == "proportion":
                evidence = proportion_evidence(score, baseline, errors, (n, texts), rate)
            else:
                evidence_of = cosine_evidence if self.scale == "cosine" else share_evidence
                evidence = evidence_of(score, baseline, errors, texts, rate)
            interval, difference, p = evidence
            p = min(1.0, p * n_tests / estimate.scores[0].numel())
            refuted = not self.rule.holds(interval[1], interval[1] - difference[1], off_content)
            holds = holds and difference[0] > 0
        return Role(
            id=id,
            role=self.role,
            score=score,
            baseline=baseline,
            n=n,
            texts=texts,
            interval=interval,
            difference=difference,
            threshold=self.threshold,
            holds=holds and not too_few,
            direction=estimate.directions[direction] or None,
            baselines=baselines,
            p=p,
            offset=self.offset if self.offset is None or direction == 0 else -self.offset,
            refuted=refuted,
            too_few=too_few,
            simultaneous_over=n_tests,
        )

    def roles(self) -> Iterator[Role]:
        """Every head that has a score, in the direction of its largest margin."""
        best, margins = self.estimate.best, self.estimate.margins
        for id in all_heads(*best.shape):
            if math.isfinite(float(margins[(int(best[id]), *id)])) and (self.heads is None or self.heads[id]):
                yield self.tested(id, int(best[id]))


@dataclass(frozen=True)
class BestHeads:
    """The head of the highest score for a role in each of two models, over the same texts."""

    role: str
    a: Role
    b: Role
    # of the difference, from paired samples of texts, at 0.05 over all pairs of heads, so that it holds for these two,
    # which were chosen on the same texts; None where a score has no interval
    interval: Interval | None

    @property
    def difference(self) -> float:
        return self.b.score - self.a.score

    @property
    def better(self) -> Role:
        return self.b if self.difference > 0 else self.a


def best_heads(of_a: Iterable[Candidate], of_b: Iterable[Candidate]) -> Iterator[BestHeads]:
    """The best head of each of two models for every role that both can have, but for fixed offsets."""
    others = {candidate.role: candidate for candidate in of_b if candidate.role not in OFFSETS}
    for candidate in of_a:
        if candidate.role not in others:
            continue
        both = candidate, others[candidate.role]
        places = [each.estimate.highest for each in both]
        a, b = (each.tested(HeadId(*head), direction) for each, (direction, *head) in zip(both, places, strict=True))
        interval = None
        if a.interval and b.interval:
            before, after = (each.estimate.highest_samples for each in both)
            errors = 0.0, float(standard_error(after - before))
            rate = ERROR_RATE / math.prod(each.estimate.scores.numel() for each in both)
            n, texts = min(a.n, b.n), min(a.texts, b.texts)
            evidence = cosine_evidence(b.score, a.score, errors, texts, rate)
            if candidate.scale == "proportion":
                evidence = proportion_evidence(b.score, a.score, errors, (n, texts), rate)
            interval = evidence.difference
        yield BestHeads(candidate.role, a, b, interval)


def statistic_candidates(tally: StatisticsTally) -> Iterator[Candidate]:
    """Positional roles, sink and broad, and each head's best fixed offset beyond these.

    That is ``offset:-3`` for keys three tokens before their queries; every offset tried counts as a test.
    """
    estimates = tally.estimates()
    on_content = 1 - estimates["sink"].scores[0]
    for spec in PATTERNS.values():
        if spec.statistic in estimates:
            yield Candidate(spec.name, rules.of_position(spec), estimates[spec.statistic], measurable=on_content)
    yield Candidate("sink", rules.SINK, estimates["sink"])
    yield Candidate("broad", rules.BROAD, estimates["broad"])
    tried = {name: estimates[name] for name in OFFSETS if name in estimates}
    best = torch.stack([estimate.margins[0] for estimate in tried.values()]).argmax(0)
    n_tests = len(tried) * best.numel()
    for i, (name, estimate) in enumerate(tried.items()):
        yield Candidate(name, rules.POSITION, estimate, measurable=on_content, heads=best == i, n_tests=n_tests)


def semantic_candidates(tally: MeaningTally) -> Iterator[Candidate]:
    """Attention to words similar in meaning; ``n`` counts content tokens with another word to attend to.

    No paper gives a number for the margin of the cosine. Of the 72 heads of all-MiniLM-L6-v2 on a treebank (UD English
    EWT, dev) two are at 0.12 to 0.13, which relate "payment" to "payments", "you" to "your" (one with 0.08 of its
    attention, too little for a verdict); the next, at 0.08, mostly relates punctuation. Freshly initialised they are
    all below 0.001.
    """
    yield Candidate("semantic", rules.SEMANTIC, tally.results(), "cosine", measurable=tally.on_pairs())


def rare_candidates(tally: PointingTally) -> Iterator[Candidate]:
    """Whose largest attention is on the rarest token of a text; n counts tokens that see it."""
    estimate = tally.rare()
    if estimate.texts:
        yield Candidate(RARE_WORD, rules.RARE, estimate, "proportion", ENOUGH_INSTANCES, offset=tally.rare_offset)


def writing_candidates(tally: WritingTally) -> Iterator[Candidate]:
    """Copying and copy-suppression, where they can be measured, and inactive."""
    for name, estimate in tally.estimates().items():
        yield Candidate(name, rules.OF_WRITTEN[name], estimate, measurable=None if name == INACTIVE else tally.cases())


def syntax_candidates(relations: Iterable[RelationCount]) -> Iterator[Candidate]:
    """One role for each relation."""
    for count in relations:
        role, of = f"syntactic:{count.relation}", count.accuracy
        yield Candidate(role, rules.RELATION, of, "proportion", ENOUGH_INSTANCES, offset=count.offset)


def coreference_candidates(names: NameCount | None) -> Iterator[Candidate]:
    """Which of two names a pronoun means."""
    if names is not None:
        yield Candidate("coreference", rules.RELATION, names.accuracy, "proportion", ENOUGH_INSTANCES)


def repeat_candidates(repeats: RepeatScores | None, *, previous: bool = False) -> Iterator[Candidate]:
    """Induction, duplicate-token and retrieval; with ``previous`` previous-token, which is better judged by text."""
    if repeats is None:
        return
    for role in (*(["previous-token"] if previous else []), *ROLES_ON_REPEATS):
        name = PATTERNS[role].statistic if role in PATTERNS else role
        if name not in repeats.scores:  # retrieval, of short contexts
            continue
        scores, n = repeats.scores[name], len(repeats.scores[name])
        errors = (scores.std(0) / math.sqrt(n) if n > 1 else torch.full_like(scores[0], torch.nan))[None]
        baseline = torch.as_tensor(repeats.baselines[name]).to(errors).expand_as(errors)
        estimate = HeadScores(
            scores.mean(0)[None],
            errors,
            baselines={"uniform attention": baseline},
            baseline=baseline,
            differences=errors,
            n=torch.full(scores.shape[1:], n),
            texts=n,
        )
        rule = rules.RETRIEVAL if role == RETRIEVAL else rules.REPEATED
        yield Candidate(role, rule, estimate, enough=ENOUGH_SEQUENCES)


def untrained_scores(candidates: Iterable[Candidate]) -> dict[tuple[str, str], float]:
    """By role that is evidence, and direction, the best score of any head of an untrained model with enough texts."""
    best = {}
    for candidate in candidates:
        estimate = candidate.estimate
        if describes(candidate.role) or estimate.texts < candidate.enough:
            continue
        measured = estimate.scores.isfinite() & (estimate.n >= candidate.enough)
        for direction, scores, known in zip(estimate.directions, estimate.scores, measured, strict=True):
            if known.any():
                best[candidate.role, direction] = float(scores[known].max())
    return best


def judged_roles(candidates: Iterable[Candidate], untrained: Mapping[tuple[str, str], float]) -> list[Role]:
    """Every head's verdict for every role: by its interval, the false discovery rate, and the control.

    Roles that only describe hold by their rule alone. ``untrained`` are the :func:`untrained_scores` of a freshly
    initialised copy of the model; empty without one.
    """
    roles = [role for candidate in candidates for role in candidate.roles()]
    rates = iter(false_discovery([role.p for role in roles if role.p is not None]))
    return [
        _verdict(role, None if role.p is None else next(rates), untrained.get((role.role, role.direction or "")))
        for role in roles
    ]


def _verdict(role: Role, q: float | None, control: float | None) -> Role:
    """The role with its false discovery rate, held against the score of an untrained copy, if there is one."""
    if role.describes:
        return role
    holds, refuted = role.holds and q is not None and q <= ERROR_RATE, role.refuted
    if control is not None and role.interval is not None:
        holds, refuted = holds and role.interval[0] > control, refuted or role.interval[1] <= control
    return replace(role, q=q, untrained=control, holds=holds, refuted=refuted)


def in_direction(
    roles: Sequence[Role], candidates: Iterable[Candidate], id: HeadId, role: str, direction: str
) -> Role | None:
    """A head's verdict for a role in this direction, by the rules of :func:`judged_roles`; None where none is given.

    ``roles`` are of all heads, each in its better direction, and have what an untrained copy scores in each.
    """
    for candidate in candidates:
        directions = candidate.estimate.directions
        if candidate.role == role and direction in directions:
            tested = candidate.tested(id, directions.index(direction))
            if math.isfinite(tested.score):
                others = [other for other in roles if other.role == role and other.untrained is not None]
                same = [other for other in others if other.direction == direction] or others
                rates = false_discovery([*(other.p for other in roles if other.p is not None), tested.p or 1.0])
                return _verdict(tested, None if tested.p is None else rates[-1], same[0].untrained if same else None)
    return None


def role_key(role: Role) -> tuple[float, float, str]:
    """Sort key of a head's roles, the clearest first.

    Local, long-range and broad come after specific ones, which many of these heads show, too; sink is the last, since
    it says where attention rests, not what the rest of it does.
    """
    return rank_of_role(role.role), -(role.error_reduction or 0.0), role.role


def roles_by_head(roles: Iterable[Role], heads: Iterable[HeadId]) -> dict[HeadId, list[Role]]:
    """The roles that each of these heads has, the clearest first."""
    of_heads: dict[HeadId, list[Role]] = {head: [] for head in heads}
    for role in sorted(roles, key=role_key):
        if role.holds:
            of_heads[role.id].append(role)
    return of_heads
