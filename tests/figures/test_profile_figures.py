"""The figures of a profile: what is planned, and what reaches the axes."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from attnviz.commands.profile.views import short_name
from attnviz.errors import UsageError
from attnviz.figures.style import Style
from attnviz.present.published import role_numbers
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of
from tests.support.profiles import corpus, profile, role, roles_of


def plans(name, of=None):
    return list(drawing_of("profile", name).plans(of or profile(), ViewOptions()))


def drawn(name, plan):
    """The Axes of a caller's own with one picture."""
    ax = Figure(figsize=(7, 6)).add_axes((0.25, 0.2, 0.45, 0.6))
    drawing_of("profile", name).draw(ax, plan, Style())
    return ax


# --- plans


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("previous-token", "previous-token"),
        ("offset:-3", "offset −3"),
        ("syntactic:acl:relcl", "acl:relcl"),
        ("new", "new"),
    ],
)
def test_roles_are_named_without_their_kind(name, short):
    assert short_name(name) == short


def test_the_map_of_roles_shows_the_clearest_and_counts_the_others():
    (plan,) = plans("roles")
    (each,) = plan.maps
    assert each.texts == (("prev", "sink", ""), ("nsubj\n+1", "", "coref\n+2"))
    assert np.isnan(each.values).tolist() == [[False, False, True], [False, True, False]]
    labels = [handle.get_label() for handle in each.legend]
    assert labels == ["positional (1)", "syntactic (1)", "coreference (1)", "sink (1)", "unnamed (2)"]
    assert "4 of 6" in plan.title
    assert "32 × 50 random tokens" in plan.notes[-1]


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
    for part in ("trees.conllu", "plain.txt", "names.tsv", "32 × 50 random tokens"):
        assert (part in source) == (part in named)


def test_broad_has_no_baseline_in_words():
    assert role_numbers(role(0, "broad", 0.9, 1.0, passed=True)) == "score 0.90, n = 100"
    assert role_numbers(role(0, "local", 0.9, 0.3)) == "score 0.90, baseline 0.30, n = 100"


def test_relations_come_by_gain_with_their_best_head():
    (plan,) = plans("relations")
    assert [(row.relation.relation, str(row.best.id)) for row in plan.rows] == [
        ("nsubj", "L1H0"),
        ("acl:relcl", "L1H0"),
        ("obl", "L1H0"),
    ]
    assert [row.best.margin for row in plan.rows] == pytest.approx([0.4, 0.15, 0.05])
    assert "2 of 3" in plan.title
    assert "1 rarer relation" in plan.notes[1]
    assert "n = 1,090" in plan.notes[-1]  # a subtype's are its relation's, too


# --- artists


def test_relations_are_drawn_with_interval_threshold_baseline_and_score():
    (plan,) = plans("relations")
    ax = drawn("relations", plan)
    gains, intervals, needed, best, offset = ax.collections
    for i, row in enumerate(plan.rows):
        assert gains.get_segments()[i].tolist() == [[row.best.baseline, i], [row.best.score, i]]
        assert intervals.get_segments()[i][:, 0].tolist() == list(row.best.interval)
        assert needed.get_segments()[i][:, 0] == pytest.approx([row.best.baseline + 0.1] * 2)
        assert best.get_offsets()[i].tolist() == [row.best.score, i]
        assert offset.get_offsets()[i].tolist() == [row.best.baseline, i]
    passing, _, failing = (to_hex(colour) for colour in best.get_facecolors())
    assert passing != failing
    (right,) = ax.child_axes
    assert ax.get_yticklabels()[0].get_text() == "nsubj"
    assert right.get_yticklabels()[0].get_text() == "L1H0 dep → head, +0.40 above −2"


# --- what there is, and what is missing


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("relations", {"roles": [role(0, "sink", 0.9)]}, "no relation is frequent enough"),
    ],
)
def test_what_the_corpora_cannot_give_is_refused_by_name_and_left_out_otherwise(name, changes, why):
    found = profile(**changes)
    with pytest.raises(UsageError, match=f"there is no figure '{name}': .*{why}"):
        found.figure(name)
    assert name not in [view.name for view in found.wanted_views(None)]
