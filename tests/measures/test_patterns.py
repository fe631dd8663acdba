"""Verdicts at the edges of their thresholds, and the one label that comes of them."""

from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch

from attnviz.analysis.findings import HeadFindings
from attnviz.judge.rules import BROAD_SHARE
from attnviz.judge.verdicts import ENOUGH, LEAST_N, TOO_SHORT, UNNAMED, Label, Verdict, judge, label_of
from attnviz.language.syntax import DIRECTIONS
from attnviz.measures.estimates import estimated
from attnviz.measures.patterns import PATTERNS
from attnviz.measures.relations import RelationCount
from attnviz.measures.statistics import TextContext, scalars
from attnviz.models.head_ids import HeadId
from tests.support.hand_made import uniform_pattern
from tests.support.verified import context_of, measure, random_patterns, verified

NAMES = {spec.statistic: spec.name for spec in PATTERNS.values()}

# [CLS], ten words, [SEP]: the baselines are previous = next = 0.09, current 0.1, local 0.28, long-range 0, sink 1/6
CONTEXT = context_of([True] + [False] * 10 + [True])


def judged(
    context: TextContext = CONTEXT, relations: list[RelationCount] | None = None, **found: float
) -> dict[str, Verdict]:
    statistics = {**dict.fromkeys(scalars()), **found}
    return {verdict.name: verdict for verdict in judge(statistics, context, relations or [], HeadId(0, 0))}


def passed(context: TextContext = CONTEXT, **found: float) -> list[str]:
    return [name for name, verdict in judged(context, **found).items() if verdict.holds]


def counted(
    scores: list[list[float]], baselines: dict[str, list[list[float]]], n: int, on_sinks: list[bool] | None = None
) -> RelationCount:
    """Of scores [n_directions, n_heads] and baselines of that shape, of one layer."""

    def of_layer(values: list[list[float]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)[None, :, None]

    guesses = {name: of_layer(values) for name, values in baselines.items()}
    resting = None if on_sinks is None else torch.tensor(on_sinks)[:, None, None]
    return RelationCount("nsubj", 1, estimated(of_layer(scores), guesses, n, 1, DIRECTIONS), resting)


def relation(forward: float, backward: float = 0.0, offset_accuracy: float = 0.5, n: int = 20) -> RelationCount:
    return counted([[forward], [backward]], {"fixed offset": [[offset_accuracy]] * 2}, n)


def with_score(name: str, score: float | None = 0.8, kind: str = "positional", n: int = 20, **more: float) -> Verdict:
    return Verdict(name, kind, score, more.get("baseline", 0.1), n, True, "a test")


@pytest.mark.parametrize(
    ("name", "fails", "passes"),
    [
        ("previous", 0.5, 0.5001),
        ("current", 0.5, 0.5001),
        ("next", 0.5, 0.5001),
        ("local", 0.639, 0.641),  # half of what uniform attention, 0.28, leaves
        ("long_range", 0.15, 0.1501),
        ("sink", 0.6, 0.6001),
    ],
)
def test_a_score_has_to_be_above_its_threshold(name: str, fails: float, passes: float):
    for score, expected in ((fails, []), (passes, [NAMES.get(name, name)])):
        assert passed(**{name: score}, long_range_baseline=0.15) == expected


@pytest.mark.parametrize(
    ("above", "above_without", "holds"), [(1e-9, 1e-9, True), (-1e-6, 1e-9, False), (1e-9, -1e-6, False)]
)
def test_broad_is_broad_with_sinks_and_without_them(above: float, above_without: float, holds: bool):
    with_sinks, without = (BROAD_SHARE * uniform for uniform in (log(12), log(10)))
    found = judged(entropy=with_sinks + above, entropy_non_sink=without + above_without)["broad"]
    assert (found.holds, found.on_content) == (holds, pytest.approx(BROAD_SHARE, abs=1e-5))
    assert pytest.approx(0.8444, abs=1e-4) == BROAD_SHARE


@pytest.mark.parametrize(("n", "causal"), [(20, False), (200, True)])
def test_a_head_that_chooses_far_keys_is_long_range_in_texts_of_any_length_and_no_other_is(n: int, causal: bool):
    """Heads with half on a key ten away, with half on one three away, uniform, and as if untrained."""
    rows, uniform = torch.arange(n), uniform_pattern(n, causal)

    def choosing(apart: int) -> torch.Tensor:
        keys = torch.where(rows >= apart, rows - apart, rows if causal else rows + apart)
        return (uniform + torch.eye(n)[keys]) / 2

    heads = torch.stack([choosing(10), choosing(3), uniform, random_patterns(n, 1, causal, 0, 0.5)[0]])
    found = long_range_of(heads, causal)
    assert [each.holds for each in found] == [True, False, False, False]
    assert [each.score for each in found[1:]] == [0, 0, 0]
    assert found[0].score > 0.15
    assert found[1].baseline > 0.15 > 0 == found[2].baseline


@pytest.mark.parametrize("causal", [False, True])
def test_sharp_heads_are_long_range_as_far_as_distance_does_not_matter_to_them(causal: bool):
    """Random sharp heads choose far keys as often as any; where near ones are chosen more readily, they are not."""
    n, drawn = 150, torch.Generator().manual_seed(0)
    away = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    scores = 20 * torch.randn(8, n, n, generator=drawn) + uniform_pattern(n, causal).log()
    found = long_range_of(torch.cat([scores.softmax(-1), (scores - 3.0 * away).softmax(-1)]), causal)
    score, baseline = (torch.tensor([vars(each)[name] for each in found]) for name in ("score", "baseline"))
    assert float(score[:8].mean() / baseline[:8].mean()) == pytest.approx(1, abs=0.05)
    assert 0.15 < float(score[8:].mean()) < 0.8 * float(baseline[8:].mean())
    assert [each.holds for each in found] == [True] * 8 + [False] * 8


def long_range_of(heads: torch.Tensor, causal: bool) -> list[Any]:
    """What is found of each head of a text whose first token is a sink."""
    context = context_of([True] + [False] * (heads.shape[-1] - 1), causal)
    found = measure(verified(heads), context)
    of_heads = ({name: values[head] or 0.0 for name, values in found.items()} for head in range(len(heads)))
    return [judged(context, **values)["long-range"] for values in of_heads]


@pytest.mark.parametrize(("baseline", "holds"), [(0.2, True), (0.25, True), (0.2501, False), (0.0, True)])
def test_long_range_needs_four_fifths_of_what_shuffled_keys_would_give(baseline: float, holds: bool):
    assert judged(long_range=0.2, long_range_baseline=baseline)["long-range"].holds is holds


@pytest.mark.parametrize("n", [1, 2, 3])
def test_nothing_passes_on_fewer_than_three_instances(n: int):
    context = context_of([True, *[False] * n, *[True] * 2])
    found = judged(context, [relation(1.0, n=n)], current=1.0, sink=1.0, entropy=99.0)
    assert {name: found[name].holds for name in ("sink", "nsubj")} == dict.fromkeys(("sink", "nsubj"), n >= LEAST_N)
    assert passed(context, current=1.0) == (["current-token"] if n >= LEAST_N else [])


@pytest.mark.parametrize(
    ("scores", "offset_accuracy", "holds"),
    [((0.6,), 0.5, True), ((0.5, 0.6), 0.5, True), ((0.59,), 0.5, False), ((0.8,), 0.7, True)],
)
def test_a_relation_passes_ten_points_above_the_best_offset(scores, offset_accuracy, holds):
    assert judged(relations=[relation(*scores, offset_accuracy=offset_accuracy)])["nsubj"].holds is holds


def test_a_relation_is_judged_where_it_is_furthest_above_its_own_baseline():
    """0.9 is less than 0.95, which always the last word is right, and 0.6 is more than 0.3."""
    baselines = {
        "fixed offset": [[0.2, 0.2], [0.2, 0.2]],
        "last word": [[0.95, 0.95], [0.3, 0.3]],
        "other words": [[0.0, 0.0], [0.1, 0.55]],
    }
    both = counted([[0.9, 0.9], [0.6, 0.6]], baselines, 12)
    first, second = (judge(dict.fromkeys(scalars()), CONTEXT, [both], HeadId(0, head))[-1] for head in (0, 1))
    assert (first.direction, first.holds) == ("head_to_dependent", True)
    assert (first.score, first.baseline) == pytest.approx((0.6, 0.3))
    assert (second.baseline, second.largest_baseline, second.holds) == (pytest.approx(0.55), "other words", False)


IN_ORDER = ["previous-token", "local", "broad"]


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_the_more_telling_pattern_gives_the_label(first: int):
    verdicts = [with_score(name, kind="broad" if name == "broad" else "positional") for name in IN_ORDER[first:]]
    verdicts[-1] = replace(verdicts[-1], score=0.99)  # the largest error reduction, of the least telling
    assert label_of(verdicts, 20).name == label_of(verdicts[::-1], 20).name == IN_ORDER[first]


def test_a_label_says_where_attention_rests_and_what_the_rest_of_it_does():
    sink, previous = with_score("sink", kind="sink"), with_score("previous-token")
    both = label_of([sink, with_score("broad", kind="broad"), previous], 20)
    assert (both.name, both.verdict) == ("sink; previous-token", previous)
    assert (label_of([sink], 20).name, label_of([sink], 20).verdict) == ("sink", sink)
    assert label_of([replace(sink, holds=False), previous], 20).name == "previous-token"


def test_of_specific_patterns_the_largest_error_reduction_gives_the_label():
    """As of L2H8 of minilm: case has the larger margin, det the larger share of what its baseline misses."""
    det = with_score("det", 0.81, "syntactic", baseline=0.59)
    case = with_score("case", 0.68, "syntactic", baseline=0.38)
    assert case.margin > det.margin
    label = label_of([case, det], 20)
    assert (label.name, label.verdict, label.error_reduction) == ("syntactic:det", det, pytest.approx(0.22 / 0.41))
    following = with_score("next-token", 0.57, baseline=0.12)
    assert label_of([case, det, following], 20).name == "syntactic:det"
    assert label_of([case, det, replace(following, score=0.61)], 20).name == "next-token"
    assert label_of([case, replace(det, holds=False)], 20).name == "syntactic:case"


@pytest.mark.parametrize(
    ("n", "baseline", "named"), [(10, 0.1, True), (9, 0.1, False), (10, 0.7, False), (10, 0.6, True), (30, 0.8, True)]
)
def test_a_relation_of_few_instances_or_few_more_right_is_no_label(n: int, baseline: float, named: bool):
    relation = with_score("nsubj", 0.9, "syntactic", n=n, baseline=baseline)
    assert label_of([with_score("local"), relation], 50).name == ("syntactic:nsubj" if named else "local")


def test_induction_is_compared_by_what_it_has_on_repeats():
    found = replace(with_score("induction", 0.2, "repeats"), on_repeats=0.9, baseline_on_repeats=0.2)
    assert found.error_reduction == pytest.approx(0.7 / 0.8)
    assert label_of([with_score("previous-token", 0.85, baseline=0.1), found], 20).name == "induction"
    assert label_of([with_score("previous-token", 0.95, baseline=0.1), found], 20).name == "previous-token"


def test_a_short_text_has_no_label_and_one_of_less_than_ten_an_uncertain_one():
    verdict = with_score("previous-token", n=9)
    assert label_of([verdict], LEAST_N - 1) == Label(TOO_SHORT, (), 2)
    few, enough = label_of([verdict], LEAST_N), label_of([replace(verdict, n=ENOUGH)], ENOUGH)
    assert (few.name, few.n, few.certain, few.shown) == ("previous-token", 9, False, "previous-token?")
    assert (enough.n, enough.certain, enough.shown) == (10, True, "previous-token")
    assert not label_of([verdict], 50).certain  # nine of fifty tokens have what it rests on
    assert label_of([verdict], 2).shown == TOO_SHORT


@pytest.mark.parametrize(
    ("found", "label", "strongest"),
    [
        ({"previous": 0.8, "local": 1.0, "entropy": 1.0}, "previous-token", "previous-token"),
        ({"previous": 0.3, "long_range": 0.12, "local": 0.4, "sink": 0.5}, UNNAMED, "previous-token"),
        ({"entropy": 1.0}, UNNAMED, None),
    ],
)
def test_the_strongest_verdict_is_that_of_the_label_or_of_the_largest_error_reduction(found, label, strongest):
    verdicts = tuple(judged(**found).values())
    head = HeadFindings(HeadId(0, 0), {**dict.fromkeys(scalars()), **found}, verdicts, label_of(verdicts, 10))
    assert (head.label, head.strongest and head.strongest.name) == (label, strongest)


@pytest.mark.parametrize(("on_sinks", "label"), [(True, UNNAMED), (False, "syntactic:nsubj")])
def test_a_relation_is_no_label_where_its_words_attend_more_to_sinks(on_sinks: bool, label: str):
    both = counted([[1.0], [0.0]], {"fixed offset": [[0.5]] * 2}, 12, [on_sinks, not on_sinks])
    found = judged(relations=[both])["nsubj"]
    assert found.holds
    assert label_of([found], 20).name == label
