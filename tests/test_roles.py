"""Verdicts at the edges of their thresholds, intervals against other formulas, and what cannot be measured."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnviz.commands.profile.instances import NameTally, RelationCount, RepeatScores
from attnviz.commands.profile.roles import (
    ENOUGH_INSTANCES,
    ERROR_RATE,
    Role,
    coreference_roles,
    repeat_roles,
    semantic_roles,
    statistic_roles,
    syntax_roles,
    wilson,
)
from attnviz.commands.profile.tallies import OFFSETS
from attnviz.corpora.bootstrap import ENOUGH_TEXTS
from attnviz.model.head_ids import HeadId
from attnviz.patterns.registry import NAMES, SHARES
from attnviz.patterns.syntax import DIRECTIONS
from attnviz.patterns.verdicts import BROAD_SHARE, MARGIN

NOTHING = math.nan
ANYTHING = (0.0, 1.0)


def tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def statistics(n_texts: int = 100, error: float = 0.0, heads: int = 1, causal: bool = False, **changes: Any) -> Any:
    """A tally of one layer: shares 0.2 beside 0.1, offsets 0.01 beside 0.05, no sink, uniform entropy of 2 nats."""
    given = changes.pop("baselines", {})
    found = dict.fromkeys(SHARES, 0.2) | dict.fromkeys(OFFSETS, 0.01) | {"sink": 0.0, "entropy": 1.0} | changes
    baselines = dict.fromkeys(SHARES, 0.1) | dict.fromkeys(OFFSETS, 0.05) | {"sink": 0.1, "entropy": 2.0} | given
    if causal:
        baselines |= dict.fromkeys([name for name in OFFSETS if "+" in name])
    values = {name: tensor(value).expand(1, heads) for name, value in found.items()}
    errors = {name: torch.full((1, heads), error, dtype=torch.float64) for name in found}
    return SimpleNamespace(
        results=lambda: (values, errors), baselines=lambda: baselines, n_content=1000, n_texts=n_texts
    )


def role_of(tally: Any, name: str) -> Role:
    return only(role for role in statistic_roles(tally) if role.role == name)


def passed(tally: Any) -> set[str]:
    return {role.role for role in statistic_roles(tally) if role.passed}


def only(roles: Any) -> Role:
    (role,) = roles
    assert isinstance(role, Role)
    return role


# --- intervals


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 5))
def test_the_ends_of_wilsons_interval_are_where_the_score_test_just_rejects(counts: tuple[int, int], z: float):
    """Its definition: the p at which |hits / n - p| is z standard errors of a proportion p (Wilson 1927)."""
    hits, n = counts
    low, high = wilson(hits, n, z)
    assert 0 <= low <= hits / n + 1e-12
    assert hits / n - 1e-12 <= high <= 1
    for end in (low, high):
        assert (hits / n - end) ** 2 == pytest.approx(z * z * end * (1 - end) / n, abs=1e-9)


@pytest.mark.parametrize("heads", [1, 72, 144])
def test_intervals_hold_for_all_heads_together(heads: int):
    """Both tails of one interval hold the error rate divided by the number of heads."""
    roles = [role for role in statistic_roles(statistics(error=0.01, heads=heads)) if role.role == "previous-token"]
    assert len(roles) == heads
    for role in roles:
        low, high = role.interval
        z = (high - role.score) / 0.01
        assert role.score - low == pytest.approx(high - role.score)
        assert math.erfc(z / math.sqrt(2)) == pytest.approx(ERROR_RATE / heads)


def test_intervals_end_where_scores_do():
    assert role_of(statistics(error=0.2, previous=0.2), "previous-token").interval[0] == 0
    assert role_of(statistics(error=0.2, previous=0.8), "previous-token").interval[1] == 1
    assert role_of(statistics(entropy=2.00001), "broad").score == 1


@pytest.mark.parametrize(("n_texts", "verdict"), [(1, False), (ENOUGH_TEXTS - 1, False), (ENOUGH_TEXTS, True)])
def test_few_texts_give_scores_but_no_verdict(n_texts: int, verdict: bool):
    """Over one text every replicate is that text: the spread is 0, and would make any score certain."""
    tally = statistics(n_texts=n_texts, previous=1.0, sink=0.8, entropy=2.0)
    for name in ("previous-token", "sink", "broad"):
        role = role_of(tally, name)
        assert role.passed is verdict
        assert role.score >= 0.8
        assert role.interval == ((role.score, role.score) if verdict else ANYTHING)


# --- positions, sink, broad


@pytest.mark.parametrize("name", SHARES)
def test_a_share_has_to_be_over_a_half_and_ten_points_above_uniform_attention(name: str):
    def verdict(score: float, baseline: float, error: float = 0.0) -> bool:
        tally = statistics(error=error, **{name: score}, baselines={name: baseline})
        return role_of(tally, NAMES[name]).passed

    assert not verdict(0.5, 0.1)
    assert verdict(0.500001, 0.1)
    assert verdict(0.6, 0.5)
    assert not verdict(0.599999, 0.5)
    assert verdict(0.6, 0.5, error=0.051)  # 1.96 errors reach to 0.50004
    assert not verdict(0.6, 0.5, error=0.052)


def test_a_head_that_rests_on_sinks_has_no_position():
    assert passed(statistics(previous=1.0, sink=0.9)) == {"previous-token", "sink"}
    assert passed(statistics(previous=1.0, sink=0.90001)) == {"sink"}


def test_a_sink_takes_over_six_tenths():
    assert not role_of(statistics(sink=0.6), "sink").passed
    assert role_of(statistics(sink=0.600001), "sink").passed
    assert role_of(statistics(sink=0.7, baselines={"sink": 0.6}), "sink").passed
    assert not role_of(statistics(sink=0.699999, baselines={"sink": 0.6}), "sink").passed


def test_broad_is_a_share_of_the_uniform_entropy_interval_included():
    edge = role_of(statistics(entropy=2 * BROAD_SHARE), "broad")
    assert (edge.score, edge.baseline, edge.passed) == (pytest.approx(3.8 / 4.5), 1.0, True)
    assert not role_of(statistics(entropy=2 * BROAD_SHARE - 1e-6), "broad").passed
    assert role_of(statistics(entropy=1.9, error=0.1), "broad").passed  # its share 0.95, its error 0.05
    assert not role_of(statistics(entropy=1.9, error=0.11), "broad").passed


def test_what_cannot_be_measured_gets_no_role():
    tally = statistics(next=NOTHING, previous=NOTHING, baselines={"next": None, "local": NOTHING, "entropy": 0.0})
    roles = {role.role for role in statistic_roles(tally) if "offset" not in role.role}
    assert roles == {"current-token", "long-range", "sink"}


def test_heads_keep_their_places():
    values = tensor([[0.1, 0.9], [0.2, NOTHING]])
    tally = statistics()
    found, errors = tally.results()
    for name in found:
        found[name], errors[name] = values if name == "previous" else torch.zeros(2, 2), torch.zeros(2, 2)
    roles = {role.id: role for role in statistic_roles(tally) if role.role == "previous-token"}
    assert {str(id): role.score for id, role in roles.items()} == {"L0H0": 0.1, "L0H1": 0.9, "L1H0": 0.2}
    assert [str(id) for id, role in roles.items() if role.passed] == ["L0H1"]


# --- offsets


def test_every_head_is_judged_by_its_strongest_offset():
    tally = statistics(heads=2, **{"offset:-3": [0.8, 0.1], "offset:+5": [0.2, 0.3], "offset:-2": [0.1, 0.2]})
    roles = [role for role in statistic_roles(tally) if "offset" in role.role]
    assert {(str(role.id), role.role, role.score, role.passed) for role in roles} == {
        ("L0H0", "offset:-3", 0.8, True),
        ("L0H1", "offset:+5", 0.3, False),
    }
    assert {(role.baseline, role.n) for role in roles} == {(0.05, 1000)}


def test_a_fixed_offset_has_the_threshold_of_the_previous_token():
    def verdict(share: float, **options: Any) -> bool:
        return role_of(statistics(**{"offset:-4": share}, **options), "offset:-4").passed

    assert not verdict(0.5)
    assert verdict(0.500001)
    assert verdict(0.9, sink=0.9)
    assert not verdict(0.9, sink=0.9001)
    assert not verdict(0.9, n_texts=ENOUGH_TEXTS - 1)


@pytest.mark.parametrize(("causal", "tried"), [(False, 14), (True, 7)])
def test_every_offset_that_was_tried_counts_as_a_look(causal: bool, tried: int):
    tally = statistics(heads=2, error=0.01, causal=causal, **{"offset:-3": 0.6})
    first, *_ = (role for role in statistic_roles(tally) if role.role == "offset:-3")
    z = (first.interval[1] - 0.6) / 0.01
    assert math.erfc(z / math.sqrt(2)) == pytest.approx(ERROR_RATE / (2 * tried))


# --- meaning


def meaning(score: float, baseline: float, error: float = 0.0, n_texts: int = 100, on_pairs: float = 1.0) -> Any:
    return SimpleNamespace(
        results=lambda: (tensor([[score]]), tensor([[error]]), baseline),
        on_pairs=lambda: tensor([[on_pairs]]),
        n_queries=300,
        n_texts=n_texts,
    )


def test_a_semantic_head_is_a_margin_above_uniform_attention_wherever_that_lies():
    def verdict(*arguments: float, **options: Any) -> bool:
        return only(semantic_roles(meaning(*arguments, **options))).passed

    for baseline in (-0.3, 0.0, 0.4):
        assert verdict(baseline + MARGIN, baseline)
        assert not verdict(baseline + MARGIN - 1e-6, baseline)
    assert verdict(0.5, 0.3, error=0.1)
    assert not verdict(0.5, 0.3, error=0.11)
    assert verdict(0.5, 0.1, on_pairs=0.1)
    assert not verdict(0.5, 0.1, on_pairs=0.0999)


def test_cosines_may_be_negative():
    assert only(semantic_roles(meaning(-0.2, 0.1, error=0.05))).interval == pytest.approx((-0.298, -0.102), abs=1e-3)
    role = only(semantic_roles(meaning(0.5, 0.1, n_texts=1)))
    assert (role.interval, role.passed, role.n) == ((-1.0, 1.0), False, 300)


# --- relations and coreference


def relation(n: int, hits: dict[str, Any], offset_hits: int) -> RelationCount:
    return RelationCount("nsubj", n, 1, offset_hits, {name: torch.tensor(count) for name, count in hits.items()})


def test_a_relation_is_judged_in_each_heads_better_direction():
    first, second = DIRECTIONS
    found = relation(1000, {first: [[900, 300, 400]], second: [[100, 800, 400]]}, 500)
    roles = list(syntax_roles([found]))
    assert [(role.score, role.direction, role.passed) for role in roles] == [
        (0.9, first, True),
        (0.8, second, True),
        (0.4, first, False),
    ]
    assert {(role.role, role.baseline, role.n) for role in roles} == {("syntactic:nsubj", 0.5, 1000)}


def test_both_directions_of_all_heads_count_as_looks():
    first, second = DIRECTIONS
    low, high = next(syntax_roles([relation(100, {first: [[90, 0]], second: [[0, 0]]}, 50)])).interval
    z = abs(0.9 - low) / math.sqrt(low * (1 - low) / 100)
    assert math.erfc(z / math.sqrt(2)) == pytest.approx(ERROR_RATE / 4)
    assert low < 0.9 < high


def test_a_relation_has_to_be_ten_points_above_the_best_offset_interval_included():
    def verdict(n: int, hits: int, offset_hits: int) -> bool:
        return only(syntax_roles([relation(n, {name: [[hits]] for name in DIRECTIONS}, offset_hits)])).passed

    assert verdict(10000, 6000, 5000)
    assert not verdict(10000, 5999, 5000)
    assert not verdict(50, 30, 25)  # as many points above, but on few instances


@pytest.mark.parametrize(("n", "count"), [(ENOUGH_INSTANCES - 1, 0), (ENOUGH_INSTANCES, 1)])
def test_a_rare_relation_gets_no_verdict(n: int, count: int):
    hits = {name: [[n]] for name in DIRECTIONS}
    assert len(list(syntax_roles([relation(n, hits, 0)]))) == count


def test_coreference_stands_beside_the_nearer_name():
    tally = NameTally(1, 2)
    tally.n, tally.nearer = 1000, 600.0
    tally.hits["pronoun_to_name"] = torch.tensor([[650, 720]])
    tally.hits["name_to_pronoun"] = torch.tensor([[700, 100]])
    roles = list(coreference_roles(tally))
    assert [(role.id, role.score, role.direction, role.passed) for role in roles] == [
        (HeadId(0, 0), 0.7, "name_to_pronoun", True),
        (HeadId(0, 1), 0.72, "pronoun_to_name", True),
    ]
    assert {(role.role, role.baseline) for role in roles} == {("coreference", 0.6)}


# --- repeats


def repeats(induction: Any, duplicate: Any, baseline: float = 0.1) -> RepeatScores:
    scores = {"previous": tensor([[[1.0]]]), "induction": tensor(induction), "duplicate": tensor(duplicate)}
    return RepeatScores(scores, 10, dict.fromkeys(scores, baseline))


def test_repeats_are_judged_by_the_spread_over_sequences():
    up_and_down = [[[0.55]], [[0.65]]] * 32
    found = {role.role: role for role in repeat_roles(repeats(up_and_down, [[[0.3]]] * 64))}
    assert set(found) == {"induction", "duplicate-token"}
    role = found["induction"]
    assert (role.score, role.n, role.passed) == (pytest.approx(0.6), 64, True)
    error = 0.05 * math.sqrt(64 / 63) / math.sqrt(64)
    assert role.interval == pytest.approx((0.6 - 1.959964 * error, 0.6 + 1.959964 * error))
    assert not found["duplicate-token"].passed


# --- words


def test_every_threshold_names_its_source_and_its_correction():
    name_tally = NameTally(1, 1)
    name_tally.n = 10
    roles = [
        *statistic_roles(statistics(**{"offset:+2": 0.5})),
        *semantic_roles(meaning(0.2, 0.1)),
        *syntax_roles([relation(50, {name: [[1]] for name in DIRECTIONS}, 1)]),
        *coreference_roles(name_tally),
        *repeat_roles(repeats([[[0.9]]] * 2, [[[0.9]]] * 2)),
    ]
    clark = {*(NAMES[name] for name in SHARES), "sink", "broad", "offset:+2", "induction", "duplicate-token"}
    sources = dict.fromkeys(clark, "Clark et al. 2019") | dict.fromkeys(
        ("syntactic:nsubj", "coreference"), "Voita et al. 2019"
    )
    sources["semantic"] = "attnviz's own choice"
    assert {role.role for role in roles} == set(sources)
    for role in roles:
        assert sources[role.role] in role.threshold
        assert "Bonferroni" in role.threshold
