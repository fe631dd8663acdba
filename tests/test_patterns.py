"""Verdicts at the edges of their thresholds, and the one label that comes of them."""

from dataclasses import replace

import pytest

from attnviz.commands.heads.measure import HeadFindings
from attnviz.model.head_ids import HeadId
from attnviz.patterns.profile_store import HeadProfile, StoredRole
from attnviz.patterns.registry import NAMES
from attnviz.patterns.statistics import SCALARS, TextContext
from attnviz.patterns.syntax import DIRECTIONS, RelationAccuracy
from attnviz.patterns.verdicts import (
    BROAD_SHARE,
    ENOUGH,
    HETEROGENEOUS,
    NOT_MEASURABLE,
    Verdict,
    deciding_verdict,
    judge,
    label_of,
)
from tests.stored import role
from tests.verified import context_of

# [CLS], ten words, [SEP]: the baselines are previous = next = 0.09, current 0.1, local 0.28, long-range 0.42, sink 1/6
CONTEXT = context_of([True] + [False] * 10 + [True])


def judged(
    context: TextContext = CONTEXT, relations: list[RelationAccuracy] | None = None, **found: float
) -> dict[str, Verdict]:
    statistics = {**dict.fromkeys(SCALARS), **found}
    return {verdict.name: verdict for verdict in judge(statistics, context, relations or [], head=0)}


def passed(context: TextContext = CONTEXT, **found: float) -> list[str]:
    return [name for name, verdict in judged(context, **found).items() if verdict.passed]


def relation(forward: float, backward: float = 0.0, offset_accuracy: float = 0.5, n: int = 20) -> RelationAccuracy:
    accuracy = {"dependent_to_head": [forward], "head_to_dependent": [backward]}
    return RelationAccuracy("nsubj", n, 1, accuracy, {name: {"fixed offset": offset_accuracy} for name in DIRECTIONS})


def with_score(name: str, score: float | None = 0.8, kind: str = "positional", n: int = 20, **more: float) -> Verdict:
    return Verdict(name, kind, score, more.get("baseline", 0.1), n, True, "a test")


# --- thresholds ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fails", "passes"),
    [
        ("previous", 0.5, 0.5001),
        ("current", 0.5, 0.5001),
        ("next", 0.5, 0.5001),
        ("local", 0.5, 0.5001),
        ("long_range", 0.51, 0.53),  # uniform attention has 0.42
        ("sink", 0.6, 0.6001),
        ("entropy", BROAD_SHARE * CONTEXT.entropy_uniform - 1e-6, BROAD_SHARE * CONTEXT.entropy_uniform + 1e-9),
    ],
)
def test_a_score_has_to_be_above_its_threshold(name: str, fails: float, passes: float):
    assert passed(**{name: fails}) == []
    assert passed(**{name: passes}) == [NAMES.get(name, {"entropy": "broad"}.get(name, name))]
    assert pytest.approx(0.8444, abs=1e-4) == BROAD_SHARE


@pytest.mark.parametrize(
    ("sinks", "baseline", "name", "fails", "passes"),
    [
        ([False] * 3, 7 / 9, "local", 7 / 9 + 0.09, 7 / 9 + 0.11),
        ([False] * 2, 0.5, "current", 0.59, 0.625),
        ([True, False, True], 2 / 3, "sink", 0.75, 0.78),
    ],
)
def test_a_score_that_uniform_attention_almost_reaches_does_not_pass(
    sinks: list[bool], baseline: float, name: str, fails: float, passes: float
):
    context = context_of(sinks)
    assert (context.sink_baseline if name == "sink" else context.baselines[name]) == pytest.approx(baseline)
    assert passed(context, **{name: fails}) == []
    assert passed(context, **{name: passes}) == [NAMES.get(name, name)]


def test_broad_cannot_be_measured_on_one_token():
    broad = judged(context_of([True], causal=True), entropy=0.0)["broad"]
    assert (broad.score, broad.baseline, broad.passed) == (None, None, False)


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (relation(0.6), True),
        (relation(0.5, 0.6), True),
        (relation(0.59), False),
        (relation(0.8, offset_accuracy=0.7), True),
    ],
)
def test_a_relation_passes_ten_points_above_the_best_offset(found: RelationAccuracy, holds: bool):
    assert judged(relations=[found])["nsubj"].passed is holds


def test_a_relation_is_judged_in_its_better_direction():
    forward, backward = judged(relations=[relation(0.7, 0.2)]), judged(relations=[relation(0.2, 0.7)])
    assert (forward["nsubj"].direction, forward["nsubj"].score) == ("dependent_to_head", 0.7)
    assert (backward["nsubj"].direction, backward["nsubj"].score) == ("head_to_dependent", 0.7)
    assert (forward["nsubj"].offset, forward["nsubj"].baseline, forward["nsubj"].n) == (1, 0.5, 20)


def test_the_largest_baseline_of_a_relation_decides():
    accuracy = {"dependent_to_head": [0.8], "head_to_dependent": [0.1]}
    others: dict[str, float | list[float]] = {"fixed offset": 0.5, "chance": 0.1, "longest word": 0.75}
    found = judged(relations=[RelationAccuracy("det", 12, 1, accuracy, dict.fromkeys(DIRECTIONS, others))])["det"]
    assert (found.baseline, found.largest_baseline, found.passed) == (0.75, "longest word", False)
    assert found.baselines == others
    found = judged(relations=[relation(0.8)])["nsubj"]
    assert (found.baseline, found.largest_baseline, found.passed) == (0.5, "+1", True)


def test_a_relation_is_judged_where_it_is_furthest_above_its_own_baseline():
    """0.9 is less than 0.95, which always the last word is right, and 0.6 is more than 0.3."""
    accuracy = {"dependent_to_head": [0.9, 0.9], "head_to_dependent": [0.6, 0.6]}
    baselines: dict[str, dict[str, float | list[float]]] = {
        "dependent_to_head": {"fixed offset": 0.2, "last word": 0.95, "other words": [0.0, 0.0]},
        "head_to_dependent": {"fixed offset": 0.2, "last word": 0.3, "other words": [0.1, 0.55]},
    }
    relations = [RelationAccuracy("det", 12, 1, accuracy, baselines)]
    first, second = (judge(dict.fromkeys(SCALARS), CONTEXT, relations, head)[-1] for head in (0, 1))
    assert (first.direction, first.score, first.baseline, first.passed) == ("head_to_dependent", 0.6, 0.3, True)
    assert (second.baseline, second.largest_baseline, second.passed) == (0.55, "other words", False)


def test_the_relations_of_the_right_head_are_read():
    accuracy = {"dependent_to_head": [0.1, 0.9], "head_to_dependent": [0.0, 0.0]}
    relations = [RelationAccuracy("det", 12, 1, accuracy, {name: {"fixed offset": 0.5} for name in DIRECTIONS})]
    scores = [judge(dict.fromkeys(SCALARS), CONTEXT, relations, head)[-1].score for head in (0, 1)]
    assert scores == [0.1, 0.9]


def test_verdicts_carry_baseline_and_n():
    verdicts = judged(previous=0.2, sink=0.3, entropy=1.0)
    previous, sink, broad = (verdicts[name] for name in ("previous-token", "sink", "broad"))
    assert (previous.baseline, previous.n, previous.margin) == (pytest.approx(0.09), 9, pytest.approx(0.11))
    assert (sink.baseline, sink.n) == (pytest.approx(1 / 6), 10)
    assert (broad.score, broad.n) == (pytest.approx(1 / CONTEXT.entropy_uniform), 12)


def test_what_is_not_measured_does_not_pass_and_has_no_margin():
    verdicts = judged()
    assert not any(verdict.passed for verdict in verdicts.values())
    assert verdicts["local"].score is None
    assert verdicts["local"].margin == float("-inf")


@pytest.mark.parametrize(("n", "enough"), [(ENOUGH - 1, False), (ENOUGH, True)])
def test_few_instances_are_weak_evidence(n: int, enough: bool):
    assert ENOUGH == 10
    assert with_score("local", n=n).enough is enough


# --- labels -------------------------------------------------------------------------------------

IN_ORDER = ["previous-token", "current-token", "next-token", "sink", "local", "long-range", "broad"]


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_the_more_telling_pattern_gives_the_label(first: int):
    verdicts = [with_score(name, kind=name if name in ("sink", "broad") else "positional") for name in IN_ORDER[first:]]
    assert label_of(verdicts) == label_of(verdicts[::-1]) == IN_ORDER[first]


def test_a_sink_over_nine_tenths_comes_before_everything():
    sink, syntactic = with_score("sink", 0.901, "sink"), with_score("nsubj", kind="syntactic")
    assert label_of([with_score("previous-token"), syntactic, sink]) == "sink"
    assert label_of([with_score("previous-token"), replace(sink, score=0.9)]) == "previous-token"
    assert label_of([syntactic, replace(sink, score=0.9)]) == "syntactic:nsubj"


def test_a_relation_comes_before_the_positions_where_it_has_ten_instances():
    previous = with_score("previous-token")
    assert label_of([previous, with_score("nsubj", kind="syntactic", n=10)]) == "syntactic:nsubj"
    assert label_of([previous, with_score("nsubj", kind="syntactic", n=9)]) == "previous-token"


def test_a_relation_with_few_instances_alone_is_no_label():
    verdicts = [replace(with_score("local"), passed=False), with_score("nsubj", kind="syntactic", n=9)]
    assert label_of(verdicts) == HETEROGENEOUS
    assert deciding_verdict(verdicts) is None


def test_the_relation_furthest_above_its_offset_gives_the_label():
    near = with_score("det", 0.9, "syntactic", baseline=0.7)
    far = with_score("nsubj", 0.6, "syntactic", baseline=0.2)
    assert label_of([near, far]) == label_of([far, near]) == "syntactic:nsubj"
    assert label_of([near, replace(far, passed=False)]) == "syntactic:det"


def test_a_relation_named_like_a_position_is_not_taken_for_one():
    impostor = with_score("sink", 0.95, "syntactic", n=3)
    assert label_of([impostor, replace(with_score("local"), passed=False)]) == HETEROGENEOUS


SHOWS_NOTHING = {
    "previous": 0.2, "current": 0.2, "next": 0.2, "local": 0.4, "long_range": 0.3, "sink": 0.1, "entropy": 1.0
}  # fmt: skip


@pytest.mark.parametrize("found", [SHOWS_NOTHING, {"sink": 0.1}, {"current": 0.1}])
def test_a_head_that_shows_nothing_is_heterogeneous(found: dict[str, float]):
    verdicts = list(judged(**found).values())
    assert label_of(verdicts) == HETEROGENEOUS
    assert deciding_verdict(verdicts) is None


def test_a_head_about_which_the_text_says_nothing_is_not_measurable():
    assert label_of(list(judged(context_of([True, True]), entropy=0.0).values())) == NOT_MEASURABLE


def findings(**found: float) -> HeadFindings:
    verdicts = tuple(judged(**found).values())
    return HeadFindings(HeadId(0, 0), {**dict.fromkeys(SCALARS), **found}, verdicts, label_of(verdicts))


def test_the_deciding_verdict_is_the_one_of_the_label_and_the_strongest():
    head = findings(previous=0.8, local=1.0, entropy=1.0)
    assert head.deciding is not None
    assert (head.deciding.name, head.deciding.score, head.label) == ("previous-token", 0.8, "previous-token")
    assert head.strongest == head.deciding


def test_the_strongest_verdict_of_a_heterogeneous_head_is_furthest_above_its_baseline():
    head = findings(previous=0.3, long_range=0.45, local=0.4, sink=0.5, entropy=1.0)
    assert head.deciding is None
    assert head.strongest is not None
    assert head.strongest.name == "previous-token"
    assert findings(entropy=1.0).strongest is None


# --- labels with a stored profile ---------------------------------------------------------------


def profile_with(*roles: StoredRole, judged: bool = True) -> HeadProfile:
    return HeadProfile(tuple(sorted(roles, key=lambda role: -role.margin)), judged)


NSUBJ = role("syntactic:nsubj", 0.7, 0.4, direction="dependent_to_head")


LOCAL, DET = with_score("local"), with_score("det", 0.95, "syntactic", n=50)


@pytest.mark.parametrize(
    ("verdicts", "profile", "label"),
    [
        ([LOCAL, DET], None, "syntactic:det"),
        ([LOCAL, DET], profile_with(NSUBJ), "syntactic:nsubj"),  # whatever the text says of relations
        ([LOCAL], profile_with(NSUBJ), "syntactic:nsubj"),
        ([LOCAL, DET], profile_with(role("sink", 0.8, 0.1)), "local"),  # the profile does not find it
        ([DET], profile_with(), NOT_MEASURABLE),
        ([LOCAL, DET], profile_with(role("sink", 0.8, 0.1), judged=False), "syntactic:det"),
    ],
)
def test_a_profile_that_judged_relations_decides_on_them(
    verdicts: list[Verdict], profile: HeadProfile | None, label: str
):
    assert label_of(verdicts, profile) == label


def test_the_relation_furthest_above_its_baseline_that_is_right_more_often_than_not_gives_the_label():
    case, rare = role("syntactic:case", 0.6, 0.45), role("syntactic:list", 0.5, 0.1)
    assert label_of([with_score("local")], profile_with(case, NSUBJ)) == "syntactic:nsubj"
    assert label_of([with_score("local")], profile_with(case, rare)) == "syntactic:case"
    assert label_of([with_score("local")], profile_with(rare)) == "local"


@pytest.mark.parametrize(
    ("name", "kind"), [("previous-token", "positional"), ("sink", "sink"), ("induction", "repeats")]
)
def test_what_the_text_shows_more_clearly_comes_before_a_relation_of_the_profile(name: str, kind: str):
    clear, faint = with_score(name, 0.8, kind, baseline=0.49), with_score(name, 0.8, kind, baseline=0.51)
    assert label_of([clear], profile_with(NSUBJ)) == name  # 0.31 above its baseline, the relation 0.30
    assert label_of([faint], profile_with(NSUBJ)) == "syntactic:nsubj"
    assert label_of([with_score("sink", 0.91, "sink", baseline=0.7)], profile_with(NSUBJ)) == "sink"


def test_a_sink_is_no_rival_of_a_relation_where_a_token_is_named():
    sink, previous = with_score("sink", 0.8, "sink"), with_score("previous-token", 0.6, baseline=0.45)
    assert label_of([sink, previous], profile_with(NSUBJ)) == "syntactic:nsubj"
    assert label_of([sink, previous], profile_with()) == "previous-token"


@pytest.mark.parametrize("name", ["local", "long-range", "broad"])
def test_a_relation_of_the_profile_comes_before_what_is_general(name: str):
    assert label_of([with_score(name, 1.0, baseline=0.0)], profile_with(NSUBJ)) == "syntactic:nsubj"


def test_the_deciding_verdict_of_such_a_label_has_the_numbers_of_the_profile():
    found = deciding_verdict([with_score("local")], profile_with(NSUBJ))
    assert found is not None
    assert (found.name, found.kind, found.direction, found.offset) == ("nsubj", "profile", "dependent_to_head", None)
    assert (found.score, found.baseline, found.n, found.passed) == (0.7, 0.4, 200, True)
    head = HeadFindings(HeadId(0, 0), {}, (with_score("local"),), "syntactic:nsubj", profile_with(NSUBJ))
    assert head.deciding == head.strongest == found
