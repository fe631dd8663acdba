"""The figures of a profile: what is planned, and what reaches the axes."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from attnviz.figures.style import Style
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of
from tests.support.profiles import ROLES, corpus, profile, roles_of


def plan_of(name, result=None):
    (plan,) = drawing_of("profile", name).plans(result or profile(), ViewOptions())
    return plan


def relations_drawn(plan):
    """On Axes of a caller's own."""
    ax = Figure(figsize=(7, 6)).add_axes((0.25, 0.2, 0.45, 0.6))
    drawing_of("profile", "relations").draw(ax, plan, Style())
    return ax


def test_the_map_of_roles_shows_the_clearest_and_counts_the_others():
    (drawn,) = plan_of("roles").maps
    assert drawn.texts == (("prev", "sink", ""), ("nsubj\n+1", "", "coref\n+2"))
    assert np.isnan(drawn.values).tolist() == [[False, False, True], [False, True, False]]


@pytest.mark.parametrize(
    ("gold", "name", "named"),
    [
        (True, "sink", ["trees.conllu", "plain.txt"]),
        (True, "syntactic:nsubj", ["trees.conllu"]),
        (False, "syntactic:nsubj", ["plain.txt"]),
        (True, "coreference", ["names.tsv"]),
        (True, "induction", ["32 × 50 random tokens"]),
    ],
)
def test_what_a_role_rests_on_is_named_and_nothing_else(gold, name, named):
    corpora = (corpus("trees.conllu", "conllu"), corpus("plain.txt", "txt"), corpus("names.tsv", "gap"))
    source = profile(roles_of(name, [0.9] * 6), corpora=corpora, gold=gold).source(name)
    every = ("trees.conllu", "plain.txt", "names.tsv", "32 × 50 random tokens")
    assert [part for part in every if part in source] == named


def test_relations_are_counted_where_any_head_passes_of_those_that_were_tested():
    """Of nsubj the best head fails and another passes; acl:relcl can be decided, obl has too few cases."""
    few = {"too_few": "n = 9, 30 needed", "holds": False}
    roles = [
        *(replace(each, holds=each.id.head == 2) for each in ROLES if each.role == "syntactic:nsubj"),
        *(replace(each, holds=False, refuted=False) for each in ROLES if each.role == "syntactic:acl:relcl"),
        *(replace(each, **few) for each in ROLES if each.role == "syntactic:obl"),
    ]
    plan = plan_of("relations", profile(roles))
    assert "1 of 2 relations" in plan.title
    (right,) = relations_drawn(plan).child_axes
    said = [text.get_text() for text in right.get_yticklabels()]
    named = dict(zip([row.relation.relation for row in plan.rows], said, strict=True))
    assert "cannot be decided" in named["acl:relcl"]
    assert few["too_few"] in named["obl"]


def test_relations_come_by_gain_and_are_drawn_with_interval_threshold_baseline_and_score():
    plan = plan_of("relations")
    best = [(row.relation.relation, str(row.best.id)) for row in plan.rows]
    assert best == [("nsubj", "L1H0"), ("acl:relcl", "L1H0"), ("obl", "L1H0")]
    assert [row.best.margin for row in plan.rows] == pytest.approx([0.4, 0.15, 0.05])
    gains, intervals, needed, best, offset = relations_drawn(plan).collections
    for i, row in enumerate(plan.rows):
        assert gains.get_segments()[i].tolist() == [[row.best.baseline, i], [row.best.score, i]]
        ends = [row.best.baseline + end for end in row.best.difference]  # of what the verdict rests on
        assert intervals.get_segments()[i][:, 0].tolist() == ends
        assert needed.get_segments()[i][:, 0] == pytest.approx([row.best.baseline + 0.1] * 2)
        assert best.get_offsets()[i].tolist() == [row.best.score, i]
        assert offset.get_offsets()[i].tolist() == [row.best.baseline, i]
    passing, _, failing = (to_hex(colour) for colour in best.get_facecolors())
    assert passing != failing
