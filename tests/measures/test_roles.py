"""From measurements to verdicts: intervals against other formulas, thresholds at their edges, control."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnviz.judge.roles import (
    ENOUGH_SEQUENCES,
    ERROR_RATE,
    MIN_TEXTS_SHARES,
    Candidate,
    Role,
    coreference_candidates,
    in_direction,
    judged_roles,
    repeat_candidates,
    semantic_candidates,
    statistic_candidates,
    syntax_candidates,
    untrained_scores,
)
from attnviz.judge.rules import BROAD_SHARE, MARGIN, Rule
from attnviz.language.syntax import DIRECTIONS
from attnviz.measures.bootstrap import REPLICATES
from attnviz.measures.estimates import (
    HeadScores,
    cosine_evidence,
    false_discovery,
    proportion_evidence,
    share_evidence,
    t_quantile,
    t_tail,
)
from attnviz.measures.names import NameCount
from attnviz.measures.patterns import PATTERNS, shares
from attnviz.measures.relations import RelationCount
from attnviz.measures.repeats import RepeatScores
from attnviz.measures.tallies import OFFSETS
from attnviz.models.head_ids import HeadId
from tests.support.tolerances import SUMS_32, SUMS_64

NAMES = {spec.statistic: spec.name for spec in PATTERNS.values()}

NOTHING = math.nan
FIRST = HeadId(0, 0)

ANY_SCORE = Rule("a rule")


def tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def estimate(scores: Any, baselines: Any = 0.1, error: float = 0.0, n: int = 1000, texts: int = 1000) -> HeadScores:
    """Of scores [n_directions][n_layers][n_heads], or of one head; baselines by name, or one for all."""
    values = tensor(scores) if isinstance(scores, list) else tensor([[[scores]]])
    named = baselines if isinstance(baselines, dict) else {"guess": baselines}
    by_name = {name: tensor(each).expand_as(values) for name, each in named.items()}
    errors = torch.full_like(values, error)
    return HeadScores(
        scores=values,
        errors=errors,
        baselines=by_name,
        baseline=torch.stack(list(by_name.values())).amax(0),
        differences=errors,
        n=torch.full(values.shape[1:], n),
        texts=texts,
        directions=DIRECTIONS if len(values) == 2 else ("",),
    )


def of_relation(scores: Any, baselines: Any = 0.5, **numbers: Any) -> Candidate:
    (candidate,) = syntax_candidates([RelationCount("nsubj", 1, estimate(scores, baselines, **numbers))])
    return candidate


def only(candidate: Candidate) -> Role:
    (role,) = candidate.roles()
    return role


def verdicts(candidates: Any, untrained: Any = None) -> set[str]:
    return {role.role for role in judged_roles(candidates, untrained or {}) if role.holds}


@pytest.mark.parametrize(
    ("p", "freedom", "printed"),
    [(0.95, 29, 1.699), (0.975, 99, 1.984), (0.995, 60, 2.660), (0.9995, 20, 3.850), (0.9995, 100, 3.390)],
)
def test_quantiles_are_those_of_printed_tables(p: float, freedom: int, printed: float):
    assert t_quantile(p, freedom) == pytest.approx(printed, abs=0.001)
    assert t_quantile(1 - p, freedom) == pytest.approx(-printed, abs=0.001)
    assert 0.99 * (1 - p) <= t_tail(printed, freedom) <= 1.2 * (1 - p)  # if anything, too careful


def quantile(rate: float, texts: int) -> float:
    """With the degrees of freedom of an error over texts whose own spread is over bootstrap samples."""
    return t_quantile(1 - rate / 2, 1 / (1 / (texts - 1) + 1 / (REPLICATES - 1)))


@given(st.integers(0, 400), st.integers(30, 400), st.floats(0.0005, 0.2))
def test_the_ends_of_the_interval_of_a_proportion_are_where_the_score_test_just_rejects(hits: int, n: int, rate: float):
    """Its definition: the p at which |hits / n - p| is t standard errors of a proportion p (Wilson 1927)."""
    score = min(hits, n) / n
    error = math.sqrt(score * (1 - score) / n)
    low, high = proportion_evidence(score, 0.5, (error, error), (n, n), rate).interval
    assert 0 <= low <= score + 1e-12
    assert score - 1e-12 <= high <= 1
    for end in (low, high):
        assert (score - end) ** 2 == pytest.approx(quantile(rate, n) ** 2 * end * (1 - end) / n, abs=SUMS_64)


def test_instances_that_resemble_each_other_count_as_fewer():
    """Kish's design effect: twice the error of independent instances leaves a quarter of them, a smaller error all."""

    def interval(score: float, error: float, n: int, texts: int = 100) -> tuple[float, float]:
        return proportion_evidence(score, 0.5, (error, 0.1), (n, texts), 0.05).interval

    independent = math.sqrt(0.7 * 0.3 / 400)
    assert interval(0.7, 2 * independent, 400) == pytest.approx(interval(0.7, 0.0001, 100))
    assert interval(0.7, independent / 2, 400) == pytest.approx(interval(0.7, independent, 400))
    t = quantile(0.05, 40)  # a score of all is as uncertain as its sentences are few
    assert interval(1.0, 0.0, 400, 40) == (pytest.approx(40 / (40 + t * t)), pytest.approx(1))


def test_a_difference_is_shrunk_by_half_an_observation_in_each_cell():
    """Of a table of sentences: both right, score alone, baseline alone, neither (Agresti & Min 2005)."""
    alone, other, texts = 20.0, 5.0, 60
    difference = (alone - other) / texts
    error = math.sqrt((alone + other) / texts - difference**2) / math.sqrt(texts)
    found = proportion_evidence(0.75, 0.75 - difference, (0.05, error), (texts, texts), 0.05)
    more = texts + 2
    shrunk = (alone + 0.5 - other - 0.5) / more
    standard = math.sqrt((alone + other + 1) / more - shrunk**2) / math.sqrt(more)
    t = quantile(0.05, texts)
    assert found.difference == pytest.approx((shrunk - t * standard, shrunk + t * standard), abs=0.003)
    assert found.p == pytest.approx(t_tail(shrunk / standard, 46), abs=1e-3)


@given(st.floats(0.02, 0.98), st.floats(0.001, 0.05), st.integers(100, 500))
def test_shares_have_intervals_that_are_even_on_the_logit_scale(score: float, error: float, texts: int):
    found = share_evidence(score, 0.3, (error, 2 * error), texts, 0.01)
    low, high = (math.log(end / (1 - end)) for end in found.interval)
    middle, width = math.log(score / (1 - score)), quantile(0.01, texts) * error / (score * (1 - score))
    assert (low, high) == (pytest.approx(middle - width, abs=SUMS_32), pytest.approx(middle + width, abs=SUMS_32))
    paired = share_evidence(score, 0.3, (2 * error, error), texts, 0.01).difference
    assert paired == pytest.approx((found.interval[0] - 0.3, found.interval[1] - 0.3))
    rest = quantile(0.01, texts) * error * math.sqrt(3)  # what the baseline adds to the error of the difference
    low, high = (abs(end - score) for end in found.interval)
    expected = score - 0.3 - math.hypot(low, rest), score - 0.3 + math.hypot(high, rest)
    assert found.difference == pytest.approx(expected, abs=SUMS_64)
    assert (found.p < 0.005) == (found.difference[0] > 0)  # p and interval agree: one-sided 0.005, two-sided 0.01


@pytest.mark.parametrize("score", [0.999, 1 - 1e-9, 1.0])
def test_a_score_next_to_one_is_sure_though_its_baseline_varies(score: float):
    found = share_evidence(score, 0.05, ((1 - score) / 10, 0.004), 120, ERROR_RATE / 72)
    assert found.difference == pytest.approx((score - 0.066, score - 0.034), abs=0.003)
    assert found.p < 1e-15


def test_cosines_may_be_negative_and_end_at_one():
    t = quantile(0.05, 200)
    found = cosine_evidence(-0.2, 0.1, (0.05, 0.01), 200, 0.05)
    assert found.interval == pytest.approx((-0.2 - t * 0.05, -0.2 + t * 0.05))
    assert found.difference == pytest.approx((-0.3 - t * 0.01, -0.3 + t * 0.01))
    assert found.p > 0.999
    assert cosine_evidence(0.99, 0.1, (0.05, 0.01), 200, 0.05).interval[1] == 1


@given(st.lists(st.sampled_from([0.0, 1e-6, 0.001, 0.004, 0.01, 0.02, 0.03, 0.2, 0.7, 1.0]), min_size=1, max_size=12))
def test_the_rate_at_which_a_test_just_passes_is_that_of_the_step_up_rule(p: list[float]):
    """Reject the k smallest for the largest k with p_(k) <= rate k / (m (1 + … + 1/m))."""
    m = len(p)
    allowance = m * sum(1 / i for i in range(1, m + 1))
    for rate in (0.01, 0.05, 0.2):
        k = max((k for k, value in enumerate(sorted(p), start=1) if value <= rate * k / allowance), default=0)
        largest = sorted(p)[k - 1] if k else -1.0
        assert [q <= rate for q in false_discovery(p)] == [value <= largest for value in p]


def test_gain_is_the_share_of_the_baselines_errors_that_is_gone():
    assert only(of_relation([[[0.75]], [[0.75]]], 0.5)).error_reduction == pytest.approx(0.5)
    assert only(of_relation([[[0.2]], [[0.2]]], 0.6)).error_reduction == pytest.approx(-1)
    assert only(of_relation([[[0.75]], [[0.75]]], 1.0)).error_reduction is None


def statistics(error: float = 0.0, texts: int = 1000, causal: bool = False, **changes: Any) -> Any:
    """A tally of one head: shares 0.2 beside 0.1, offsets 0.01 beside 0.05, no sink, half of the uniform entropy."""
    given = changes.pop("baselines", {})
    offsets = [name for name in OFFSETS if not (causal and "+" in name)]
    scores = dict.fromkeys(shares(), 0.2) | dict.fromkeys(offsets, 0.01)
    scores |= {"long_range": 0.1, "sink": 0.0, "broad": 0.5, **changes}
    baselines = dict.fromkeys(shares(), 0.1) | dict.fromkeys(OFFSETS, 0.05) | {"sink": 0.1, "broad": 1.0, **given}
    found = {name: estimate(score, baselines[name], error, texts=texts) for name, score in scores.items()}
    return SimpleNamespace(estimates=lambda: found)


def of_statistics(name: str, **changes: Any) -> Role:
    candidates = statistic_candidates(statistics(**changes))
    (role,) = [role for each in candidates for role in each.roles() if role.role == name]
    return role


EDGES = [
    ("previous", 0.5, 0.1, 0, False),  # above its threshold
    ("previous", 0.500001, 0.1, 0, True),
    ("current", 0.6, 0.5, 0, True),  # and ten points above uniform attention
    ("current", 0.599999, 0.5, 0, False),
    ("next", 0.500001, 0.1, 0, True),
    ("next", 0.5, 0.1, 0, False),
    ("previous", 0.6, 0.5, 0.045, True),  # 0.0875 logits less 1.97 errors over 0.24
    ("previous", 0.6, 0.5, 0.055, False),
    ("sink", 0.6, 0.1, 0, False),
    ("sink", 0.600001, 0.1, 0, True),
    ("sink", 0.7, 0.6, 0, True),
    ("sink", 0.699999, 0.6, 0, False),
    ("sink", 0.7, 0.1, 0.5, True),  # whatever the errors: it describes
    ("long_range", 0.24, 0.3, 0, True),  # 0.8 of what its weights give with keys shuffled
    ("long_range", 0.2399, 0.3, 0, False),
    ("local", 0.05 + 0.49 * 0.95, 0.05, 0, False),  # half of what uniform attention leaves
    ("local", 0.05 + 0.51 * 0.95, 0.05, 0, True),
]


@pytest.mark.parametrize(("name", "score", "uniform", "error", "passed"), EDGES)
def test_a_share_passes_above_its_threshold_and_ten_points_above_uniform_attention(name, score, uniform, error, passed):
    role = of_statistics(NAMES.get(name, name), error=error, **{name: score}, baselines={name: uniform})
    assert role.holds is passed


def test_a_head_that_rests_on_sinks_has_no_position():
    assert verdicts(statistic_candidates(statistics(previous=1.0, sink=0.9))) == {"previous-token", "sink"}
    assert verdicts(statistic_candidates(statistics(previous=1.0, sink=0.90001))) == {"sink"}


def test_broad_is_above_a_share_of_the_uniform_entropy():
    role = of_statistics("broad", broad=0.9, error=0.01)
    assert (role.baseline, role.holds, role.error_reduction) == (1.0, True, None)
    assert not of_statistics("broad", broad=BROAD_SHARE - 1e-6).holds
    assert of_statistics("broad", broad=1.00001).score == 1


def test_roles_that_describe_have_no_control_no_chance_and_no_interval_and_count_as_no_test():
    found = statistics(error=0.01, previous=0.9, local=0.9, long_range=0.3, sink=0.8, broad=0.9)
    candidates = list(statistic_candidates(found))
    roles = judged_roles(candidates, untrained_scores(candidates))
    described, tested = ([role for role in roles if role.describes is which] for which in (True, False))
    assert {role.role for role in described if role.holds} == {"local", "long-range", "sink", "broad"}
    for role in described:
        assert {role.interval, role.difference, role.p, role.q, role.untrained, role.passed} == {None}
    assert all(role.untrained is not None and role.q is not None and role.interval is not None for role in tested)
    (alone,) = judged_roles([each for each in candidates if each.role == "previous-token"], {})
    (among_all,) = [role for role in judged_roles(candidates, {}) if role.role == "previous-token"]
    assert among_all.q == pytest.approx(min(1.0, alone.p * len(tested) * harmonic(len(tested))))


@pytest.mark.parametrize("texts", [1, MIN_TEXTS_SHARES - 1, MIN_TEXTS_SHARES])
def test_a_share_takes_a_hundred_texts(texts: int):
    enough = texts >= MIN_TEXTS_SHARES
    role = of_statistics("previous-token", texts=texts, previous=0.95)
    assert (role.passed, role.p is not None, role.interval is not None, not role.too_few) == (enough,) * 4
    assert role.score >= 0.8
    assert of_statistics("sink", texts=texts, sink=0.8).holds is enough


@pytest.mark.parametrize(("causal", "n_offsets"), [(False, 14), (True, 7)])
def test_every_head_is_judged_by_its_strongest_offset_and_each_that_was_tried_is_a_look(causal, n_offsets):
    found = statistics(error=0.01, causal=causal, **{"offset:-3": 0.6, "offset:-2": 0.3})
    (role,) = [role for each in statistic_candidates(found) for role in each.roles() if "offset" in role.role]
    assert (role.role, role.passed) == ("offset:-3", True)
    looks = ERROR_RATE / n_offsets
    assert role.interval == pytest.approx(share_evidence(0.6, 0.05, (0.01, 0.01), 1000, looks).interval)


def test_a_chance_counts_as_often_as_directions_or_offsets_were_tried():
    offset = of_statistics("offset:-3", error=0.02, **{"offset:-3": 0.1})
    assert offset.p == pytest.approx(14 * share_evidence(0.1, 0.05, (0.02, 0.02), 1000, 0.05).p)
    relation = only(of_relation([[[0.55]], [[0.1]]], error=0.03, n=100, texts=100))
    once = proportion_evidence(0.55, 0.5, (0.03, 0.03), (100, 100), 0.05).p
    assert relation.p == pytest.approx(2 * once)
    assert only(of_relation([[[0.1]], [[0.1]]], error=0.03)).p == 1


def test_a_relation_is_judged_in_the_direction_that_is_further_above_what_it_has_to_beat():
    first, second = DIRECTIONS
    low, high = [[0.9, 0.7, 0.4]], [[0.95, 0.8, 0.4]]
    baselines = {"fixed offset": 0.5, "other words": [[[0.1, 0.1, 0.1]], [[0.9, 0.1, 0.1]]]}
    roles = list(of_relation([low, high], baselines).roles())
    assert [(role.score, role.baseline, role.direction, role.passed) for role in roles] == [
        (0.9, 0.5, first, True),
        (0.8, 0.5, second, True),
        (0.4, 0.5, first, False),
    ]
    assert roles[0].baselines == {"fixed offset": 0.5, "other words": 0.1}
    alone = proportion_evidence(0.9, 0.5, (0, 0), (1000, 1000), ERROR_RATE / 6)
    assert roles[0].interval == pytest.approx(alone.interval)  # both directions of all heads are looks


@pytest.mark.parametrize(
    ("score", "numbers", "passed"),
    [(0.6, {}, True), (0.5999, {}, False), (0.65, {"error": 0.08, "texts": 40}, False)],  # an interval from below 0
)
def test_a_relation_has_to_be_ten_points_above_its_largest_baseline(score, numbers, passed):
    assert only(of_relation([[[score]], [[0.0]]], {"a": 0.1, "b": 0.5}, **numbers)).passed is passed


@pytest.mark.parametrize(("n", "texts", "enough"), [(29, 29, False), (200, 29, False), (30, 30, True)])
def test_a_verdict_takes_enough_instances_and_enough_sentences(n: int, texts: int, enough: bool):
    role = only(of_relation([[[0.95]], [[0.0]]], 0.1, n=n, texts=texts))
    assert (not role.too_few, role.passed, role.interval is not None, role.p is not None) == (enough,) * 4


def test_coreference_has_to_beat_the_largest_guess_by_ten_points():
    guesses = {"nearer name": 0.53, "subject, else nearer name": 0.743}
    names = NameCount(estimate([[[0.843, 0.842]], [[0.1, 0.1]]], guesses), tensor([]))
    (candidate,) = coreference_candidates(names)
    assert [role.passed for role in candidate.roles()] == [True, False]
    assert {role.baseline for role in candidate.roles()} == {0.743}
    assert list(coreference_candidates(None)) == []


@pytest.mark.parametrize(
    ("score", "baseline", "error", "on_pairs", "texts", "passed"),
    [
        (-0.3 + MARGIN, -0.3, 0, 1, 1000, True),
        (-0.3 + MARGIN - 1e-6, -0.3, 0, 1, 1000, False),
        (0.4 + MARGIN, 0.4, 0, 1, 1000, True),
        (0.4 + MARGIN - 1e-6, 0.4, 0, 1, 1000, False),
        (0.5, 0.3, 0.09, 1, 1000, True),
        (0.5, 0.3, 0.11, 1, 1000, False),
        (0.5, 0.1, 0, 0.1, 1000, True),
        (0.5, 0.1, 0, 0.0999, 1000, False),
        (0.5, 0.1, 0, 1, MIN_TEXTS_SHARES - 1, False),
    ],
)
def test_a_semantic_head_is_a_margin_above_uniform_attention(score, baseline, error, on_pairs, texts, passed):
    found = estimate(score, baseline, error, texts=texts)
    tally: Any = SimpleNamespace(results=lambda: found, on_pairs=lambda: tensor([[on_pairs]]))
    role = only(next(semantic_candidates(tally)))
    assert role.passed is passed
    assert (role.interval is None) == (role.difference is None) == (texts < MIN_TEXTS_SHARES)


def repeats(induction: Any, duplicate: Any) -> RepeatScores:
    scores = {"previous": tensor([[[1.0]]]), "induction": tensor(induction), "duplicate": tensor(duplicate)}
    return RepeatScores(scores, 10, dict.fromkeys(scores, 0.1))


def test_repeats_are_judged_by_the_spread_over_sequences():
    found = {each.role: only(each) for each in repeat_candidates(repeats([[[0.55]], [[0.65]]] * 32, [[[0.3]]] * 64))}
    assert set(found) == {"induction", "duplicate-token"}
    error = 0.05 * math.sqrt(64 / 63) / math.sqrt(64)
    role = found["induction"]
    assert (role.score, role.n, role.passed) == (pytest.approx(0.6), 64, True)
    assert role.interval == pytest.approx(share_evidence(0.6, 0.1, (error, error), 64, ERROR_RATE).interval)
    assert not found["duplicate-token"].passed
    few = repeats(*([[[0.9]]] * (ENOUGH_SEQUENCES - 1),) * 2)
    assert not any(only(each).passed for each in repeat_candidates(few))
    assert {each.role for each in repeat_candidates(few, previous=True)} == {"previous-token", *found}


def test_heads_keep_their_places_and_what_cannot_be_measured_gets_no_role():
    candidate = Candidate("rare-word", ANY_SCORE, estimate([[[0.1, 0.9], [0.2, NOTHING]]]))
    assert {str(role.id): role.score for role in candidate.roles()} == {"L0H0": 0.1, "L0H1": 0.9, "L1H0": 0.2}
    unsure = replace(candidate.estimate, errors=torch.full((1, 2, 2), NOTHING))
    assert not any(role.passed or role.p for role in replace(candidate, estimate=unsure).roles())


def harmonic(n: int) -> float:
    return sum(1 / i for i in range(1, n + 1))


def test_of_many_roles_one_alone_has_to_be_surer_than_its_own_interval_asks():
    """One head with p a little below 0.05 passes alone, and not among a hundred that show nothing."""
    alone = Candidate("alone", ANY_SCORE, estimate(0.6, 0.5, error=0.03))
    nothing = [Candidate(f"nothing-{i}", ANY_SCORE, estimate(0.5, 0.5, error=0.04)) for i in range(100)]
    assert verdicts([alone]) == {"alone"}
    (role,) = [role for role in judged_roles([alone, *nothing], {}) if role.role == "alone"]
    assert not role.passed
    assert ERROR_RATE < role.q == pytest.approx(role.p * 101 * harmonic(101))


def test_a_role_passes_only_above_every_untrained_head():
    candidate = Candidate("rare-word", ANY_SCORE, estimate([[[0.9, 0.7]]], error=0.01))
    fresh = Candidate("rare-word", ANY_SCORE, estimate([[[0.2, 0.7]]]))
    roles = judged_roles([candidate], untrained_scores([fresh]))
    assert [(role.untrained, role.passed) for role in roles] == [(0.7, True), (0.7, False)]
    low = roles[0].interval[0]
    for control, passed in ((low - 1e-6, True), (low + 1e-6, False)):  # all of the interval, not the score
        assert judged_roles([candidate], {("rare-word", ""): control})[0].passed is passed
    assert {role.untrained for role in judged_roles([candidate], {})} == {None}


def test_the_control_of_a_relation_is_that_of_its_direction():
    """The best untrained head is at 0.7 from dependent to head, and at 0.2 from head to dependent."""
    candidate = of_relation([[[0.9, 0.4]], [[0.5, 0.6]]], error=0.01)
    fresh = of_relation([[[0.1, 0.7]], [[0.2, NOTHING]]])
    roles = judged_roles([candidate], untrained_scores([fresh]))
    assert [role.untrained for role in roles] == [0.7, 0.2]


@pytest.mark.parametrize(
    ("score", "error", "untrained", "passed", "refuted"),
    [
        (0.3, 0.01, None, False, True),
        (0.595, 0.14, None, False, False),
        (0.9, 0.01, None, True, False),
        (0.9, 0.01, 0.99, False, True),
        (0.9, 0.01, 0.9, False, False),
    ],
)
def test_a_role_is_refuted_only_where_its_threshold_is_above_the_whole_interval(
    score, error, untrained, passed, refuted
):
    control = {} if untrained is None else {("syntactic:nsubj", ""): untrained}
    (role,) = judged_roles([of_relation(score, error=error)], control)
    assert (role.passed, role.refuted) == (passed, refuted)
    if untrained is None:
        assert refuted == (role.difference[1] < MARGIN)


def test_the_other_direction_of_a_head_is_judged_as_its_better_one_is():
    candidate = of_relation([[[0.9]], [[0.8]]], error=0.01)
    roles = judged_roles([candidate], {})
    for direction, score in zip(DIRECTIONS, (0.9, 0.8), strict=True):
        role = in_direction(roles, [candidate], FIRST, "syntactic:nsubj", direction)
        assert role is not None
        assert (role.direction, role.score, role.passed) == (direction, score, True)
    better = in_direction(roles, [candidate], FIRST, "syntactic:nsubj", DIRECTIONS[0])
    assert replace(better, q=None) == replace(roles[0], q=None)
    bounded = [replace(roles[0], untrained=0.85)]  # the copy's score in the other direction is not known
    other = in_direction(bounded, [candidate], FIRST, "syntactic:nsubj", DIRECTIONS[1])
    assert (other.passed, other.untrained) == (False, 0.85)
    assert in_direction(roles, [candidate], FIRST, "syntactic:obj", DIRECTIONS[0]) is None


def test_the_control_measures_what_it_has_enough_of_and_never_what_is_broad():
    fresh = [
        Candidate("broad", ANY_SCORE, estimate(0.99)),
        Candidate("few", ANY_SCORE, estimate(0.8, texts=MIN_TEXTS_SHARES - 1)),
        Candidate("nothing", ANY_SCORE, estimate(NOTHING)),
        Candidate("enough", ANY_SCORE, estimate(0.3)),
    ]
    assert untrained_scores(fresh) == {("enough", ""): 0.3}
    (broad,) = (each for each in statistic_candidates(statistics(broad=0.95)) if each.role == "broad")
    assert verdicts([broad], untrained_scores(fresh)) == {"broad"}
