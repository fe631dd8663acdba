"""The tables of a profile say what was measured: rows, order, what is left out."""

from dataclasses import replace
from typing import Any

import pytest

from attnviz.commands.profile.measure import Profile, profile_heads
from attnviz.commands.profile.views import plan_relations
from attnviz.figures.style import Style
from attnviz.judge.roles import Role
from attnviz.language.syntax import DIRECTIONS
from attnviz.models.checkpoint import from_loaded
from attnviz.models.head_ids import HeadId
from attnviz.present.view import ViewOptions
from tests.support import corpora
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.printed import rows_in

pytest.importorskip("conllu", reason="needs the extra profile")
WHOLE = ViewOptions(top=0, verbose=True)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    path = corpora.treebank(tmp_path_factory.mktemp("corpora") / "trees.conllu", 40)
    found = profile_heads(from_loaded(sharp_bert(), bert_tokenizer()), [path])
    assert found is not None
    return found


def role(head: str, name: str, score: float, baseline: float = 0.1, passed: bool = True, **more: Any) -> Role:
    """With an interval of a hundredth on both sides, of 50 instances in 40 texts."""
    ends = (score - 0.01, score + 0.01), (score - baseline - 0.01, score - baseline + 0.01)
    direction, guesses = more.pop("direction", None), {"uniform attention": baseline}
    return Role(HeadId.parse(head), name, score, baseline, 50, 40, *ends, "a rule", passed, direction, guesses, **more)


def test_the_relations_are_those_of_the_profile_beside_their_largest_baseline(profile: Profile):
    assert profile.relations is not None
    rows = rows_in(profile.tables(WHOLE), "Relations (5")
    for row, relation in zip(rows, profile.relations, strict=True):
        scores, baselines = relation.accuracy.scores, relation.accuracy.baselines
        name, way = row["Relation"].split()
        direction, id = ["dep→head", "head→dep"].index(way), HeadId.parse(row["Best head"])
        place = (direction, *id)
        assert (name, float(scores[place])) == (relation.relation, float(scores.max()))
        largest = max(baselines, key=lambda name: float(baselines[name][place]))
        shown = f"{relation.offset:+d}" if largest == "fixed offset" else largest
        role = profile.role(id, f"syntactic:{name}", DIRECTIONS[direction])
        assert role is not None
        assert (role.score, role.baseline) == pytest.approx(
            (float(scores.max()), float(relation.accuracy.baseline[place]))
        )
        passing = sum(role.holds for role in profile.roles if role.role == f"syntactic:{name}")
        assert row["Accuracy"] == f"{scores.max():.2f}"
        assert row["Baseline"] == f"{shown}: {float(baselines[largest][place]):.2f}"
        assert row["Untrained"] == ("–" if role.untrained is None else f"{role.untrained:.2f}")
        assert row["n"] == str(relation.n)
        assert row["Pass"] == ("too few" if relation.accuracy.texts < 30 else f"{passing}/12")


def test_heads_are_listed_with_their_roles_the_clearest_first(profile: Profile):
    roles = (
        role("L0H1", "next-token", 0.6, untrained=0.31),
        role("L0H1", "local", 0.95, untrained=0.31),
        role("L2H3", "syntactic:obj", 0.75, 0.7, direction="dependent_to_head", untrained=0.22),
        role("L0H1", "previous-token", 0.9, 0.85, untrained=0.12),
        role("L0H1", "broad", 0.97, 1.0),
        role("L1H1", "sink", 0.99, passed=False),
    )
    found = replace(profile, roles=roles, relations=None)
    rows = rows_in(found.tables(WHOLE), "Heads (2 of 12; 10 show no role)")
    assert [[*row.values()] for row in rows] == [
        ["L0H1", "next-token", "0.60", "0.10", "0.59–0.61", "0.31", "50"],
        ["", "previous-token", "0.90", "0.85", "0.89–0.91", "0.12", "50"],
        ["", "local", "0.95", "0.10", "0.94–0.96", "0.31", "50"],  # of many heads with a role of their own
        ["", "broad", "0.97", "–", "0.96–0.98", "", "50"],  # untrained heads are broad, and not compared
        ["L2H3", "obj dep→head", "0.75", "0.70", "0.74–0.76", "0.22", "50"],
    ]  # by what of the baseline's errors is gone: 5/9, 1/3 and 1/6
    assert [*rows[0]] == ["Head", "Role", "Score", "Baseline", "Interval", "Untrained", "n"]


def test_the_figure_of_relations_has_the_best_heads_of_the_table_and_names_those_of_too_few(profile: Profile):
    (plan,) = plan_relations(profile, ViewOptions())
    relations = {relation.relation: relation for relation in profile.relations or ()}
    assert {row.relation for row in plan.rows} == {*relations}
    for row in plan.rows:
        best, relation = row.verdict, relations[row.relation]
        assert (best.id, best.direction, best.score) == relation.best
        assert (best.interval is None) == (relation.accuracy.texts < 30) == bool(best.too_few)
    assert {bool(row.verdict.too_few) for row in plan.rows} == {True, False}
    beside = plan.figure(Style()).axes[0].child_axes[0].get_yticklabels()
    assert [" needed" in text.get_text() for text in beside] == [bool(row.verdict.too_few) for row in plan.rows]
