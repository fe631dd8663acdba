"""The figures of a profile: what is planned, what stands on the axes, and the same bytes on every run."""

import builtins
import io
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from attnviz.commands.profile import drawing
from attnviz.commands.profile.drawing import profile_figures, profile_files
from attnviz.commands.profile.figures import (
    MOST_MAPS,
    MOST_RELATIONS,
    Caption,
    file_stems,
    plan_layers,
    plan_relations,
    plan_role_map,
    plan_score_maps,
)
from attnviz.commands.profile.likeness import (
    LABEL_SIZE,
    NEAR,
    ROOM,
    arrange,
    label_edge,
    likeness_unavailable,
    place_labels,
    plan_likeness,
)
from attnviz.commands.profile.pages import new_page
from attnviz.commands.profile.role_families import FAMILIES, NO_ROLE, clearest_roles, family_of, short_name
from attnviz.commands.profile.roles import Role
from attnviz.figures.colours import colour_table
from attnviz.figures.fonts import text_width
from attnviz.model.head_ids import HeadId
from tests.test_drawing import HOSTILE, ODD_SETTINGS

LAYERS, HEADS = 2, 3
SVG = "{http://www.w3.org/2000/svg}"


def role(head, name, score, baseline=0.2, passed=None, n=100, direction=None, layer=0):
    passed = score - baseline >= 0.1 if passed is None else passed
    interval = (max(0.0, score - 0.05), min(1.0, score + 0.05))
    return Role(HeadId(layer, head), name, score, baseline, n, interval, "the rule", passed, direction)


def roles_of(name, scores, baseline=0.2, **changes):
    """Of every head, by layers."""
    return [
        role(place % HEADS, name, score, baseline, layer=place // HEADS, **changes)
        for place, score in enumerate(scores)
    ]


def relation(name, n=100, offset=1, offset_hits=20):
    return SimpleNamespace(relation=name, n=n, offset=offset, offset_hits=offset_hits)


def corpus(name, kind, texts=1234, tokens=56789):
    return SimpleNamespace(corpus=SimpleNamespace(path=Path("/folder") / name, kind=kind), texts=texts, tokens=tokens)


def statistics(entropy=None, distance=None, uniform=2.5):
    entropy = torch.tensor([[1.0, 2.0, 0.0], [0.5, 1.5, 2.5]]) if entropy is None else entropy
    distance = 3 * entropy if distance is None else distance
    return SimpleNamespace(
        results=lambda: ({"entropy": entropy, "distance": distance}, {}), baselines=lambda: {"entropy": uniform}
    )


def profile(roles=None, **changes):
    """A profile by hand, of everything that the figures look at."""
    if roles is None:
        roles = [
            *roles_of("previous-token", [0.9, 0.1, 0.1, 0.1, 0.1, 0.1]),
            *roles_of("sink", [0.1, 0.7, 0.1, 0.1, 0.1, 0.95]),
            *roles_of("syntactic:nsubj", [0.1, 0.1, 0.1, 0.6, 0.1, 0.5], direction="dependent_to_head"),
            *roles_of("syntactic:acl:relcl", [0.1, 0.1, 0.1, 0.35, 0.1, 0.2], direction="head_to_dependent"),
            *roles_of("syntactic:obl", [0.1, 0.1, 0.1, 0.25, 0.1, 0.2], direction="head_to_dependent"),
            *roles_of("coreference", [0.5] * 5 + [0.8], 0.55),
        ]
    repeats = SimpleNamespace(scores={"previous": torch.zeros(32, LAYERS, HEADS)}, length=50)
    parts = {
        "checkpoint": SimpleNamespace(short_name="a-model", n_layers=LAYERS, n_heads=HEADS),
        "corpora": (corpus("trees.conllu", "conllu"), corpus("names.tsv", "gap", 77, 888)),
        "statistics": statistics(),
        "relations": (
            relation("nsubj", 1000, -2, 200),
            relation("obl", 90, 3, 18),
            relation("acl:relcl", 40, 1, 8),
            relation("dep", 3),
        ),
        "gold": True,
        "repeats": repeats,
        "roles": tuple(roles),
    }
    return SimpleNamespace(**(parts | changes))


def distances(n=LAYERS * HEADS, seed=0):
    points = np.random.default_rng(seed).random((n, 3))
    return torch.tensor(np.linalg.norm(points[:, None] - points[None], axis=-1)) / 3


def drawn_texts(ax):
    return {text.get_text() for text in ax.texts}


def new_axes():
    return Figure(figsize=(6, 5)).add_axes((0.2, 0.2, 0.6, 0.6))


def patches(ax):
    return [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def everything(figure):
    """All texts of a figure, and their boxes in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    beyond = {  # ticks that matplotlib keeps but does not draw
        tick.label1
        for ax in figure.axes
        for axis in (ax.xaxis, ax.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) - 1e-9 <= tick.get_loc() <= max(axis.get_view_interval()) + 1e-9
    }
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text() and text.get_visible()]
    texts = [text for text in texts if text not in beyond]
    return [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in texts]


# Families


def test_every_family_has_its_own_colour_and_marker():
    assert len({family.colour for family in FAMILIES}) == len({family.marker for family in FAMILIES}) == len(FAMILIES)


def test_family_colours_leave_dark_text_legible():
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for family in FAMILIES:
        assert (luminance(family.colour) + 0.05) / (luminance("#222222") + 0.05) > 4.5  # WCAG AA


@pytest.mark.parametrize(
    ("name", "family", "short"),
    [
        ("previous-token", "positional", "prev"),
        ("next-token", "positional", "next"),
        ("current-token", "positional", "curr"),
        ("offset:-3", "positional", "offset −3"),
        ("local", "local", "local"),
        ("long-range", "long-range", "long"),
        ("sink", "sink", "sink"),
        ("broad", "broad", "broad"),
        ("syntactic:acl:relcl", "syntactic", "acl:relcl"),
        ("coreference", "coreference", "coref"),
        ("semantic", "semantic", "semantic"),
        ("induction", "repeats", "induction"),
        ("duplicate-token", "repeats", "duplicate"),
        ("something-new", "other", "something-new"),
    ],
)
def test_roles_have_a_family_and_a_short_name(name, family, short):
    assert family_of(role(0, name, 0.5)).name == family
    assert short_name(name) == short


def test_a_heads_roles_come_by_margin_and_only_those_that_pass():
    roles = [
        role(0, "sink", 0.95, 0.8),
        role(0, "local", 0.6, 0.1),
        role(0, "broad", 0.99, 1.0, passed=True),
        role(0, "syntactic:obj", 0.9, 0.1, passed=False),
    ]
    found = clearest_roles(profile(roles))
    assert [role.role for role in found[HeadId(0, 0)]] == ["local", "sink", "broad"]
    assert len(found) == LAYERS * HEADS
    assert found[HeadId(1, 2)] == []
    assert family_of(None) is NO_ROLE


# Maps of one role


def test_a_score_map_has_every_heads_score_and_who_passes():
    (plan,) = [plan for plan in plan_score_maps(profile()) if plan.role == "sink"]
    np.testing.assert_allclose(plan.values, [[0.1, 0.7, 0.1], [0.1, 0.1, 0.95]])
    assert plan.passed.tolist() == [[False, True, False], [False, False, True]]
    assert (plan.baseline, plan.vmax) == (0.2, 1.0)
    assert plan.caption.title == "sink: score of every head, 2 of 6 pass"
    assert plan.caption.notes == (
        "Score: attention on special tokens. Baseline: uniform attention, 0.20.",
        "Outlined: heads that pass (the rule).",
    )
    assert plan.caption.source == "a-model · trees.conllu (1,234 texts, 56,789 tokens) · n = 100 content tokens"


def test_a_map_of_a_relation_names_its_offset_and_whose_trees():
    (plan,) = [plan for plan in plan_score_maps(profile(gold=False)) if plan.role == "syntactic:nsubj"]
    assert plan.caption.notes[0] == (
        "Score: accuracy, in the head's better direction, a parser's trees, not gold. "
        "Baseline: best fixed offset (−2), 0.20."
    )
    assert plan.caption.source.endswith("n = 100 instances")


@pytest.mark.parametrize(
    ("gold", "name", "named"),
    [
        (True, "sink", ["trees.conllu", "plain.txt"]),
        (True, "syntactic:nsubj", ["trees.conllu"]),
        (False, "syntactic:nsubj", ["plain.txt"]),
        (True, "coreference", ["names.tsv"]),
        (True, "induction", ["32 × 50 random tokens, repeated"]),
    ],
)
def test_what_a_map_rests_on_is_named_and_nothing_else(gold, name, named):
    corpora = (corpus("trees.conllu", "conllu"), corpus("plain.txt", "txt"), corpus("names.tsv", "gap"))
    (plan,) = plan_score_maps(profile(roles_of(name, [0.9] * 6), corpora=corpora, gold=gold))
    for part in ("trees.conllu", "plain.txt", "names.tsv", "32 × 50 random tokens, repeated"):
        assert (part in plan.caption.source) == (part in named)


def test_roles_that_no_head_passes_have_no_map():
    assert [plan.role for plan in plan_score_maps(profile())] == [
        "previous-token", "sink", "coreference", "syntactic:nsubj", "syntactic:acl:relcl",
    ]  # fmt: skip
    assert list(plan_score_maps(profile([]))) == []


def test_of_many_relations_the_clearest_have_a_map():
    relations = [role(0, f"syntactic:r{i}", 0.3 + i / 100) for i in range(40)]
    counts = tuple(relation(f"r{i}") for i in range(40))
    found = profile([*relations, role(0, "broad", 0.9, 1.0, passed=True)], relations=counts)
    names = [plan.role for plan in plan_score_maps(found)]
    assert names == ["broad", *(f"syntactic:r{i}" for i in range(39, 16, -1))]
    assert len(names) == MOST_MAPS


def test_heads_without_a_score_are_blank_and_said_to_be():
    (plan,) = plan_score_maps(profile([role(1, "offset:-3", 0.8)]))
    assert plan.values[0, 1] == 0.8
    assert np.isnan(plan.values).sum() == 5
    assert "only for the offset" in plan.caption.notes[-1]
    ax = new_axes()
    drawing.draw_score_map(ax, plan)
    assert drawn_texts(ax) == {"0.80", "–"}


def test_cosines_have_a_scale_of_their_own():
    (plan,) = plan_score_maps(profile(roles_of("semantic", [-0.1, 0.02, 0.1, 0.32, 0.0, 0.1], 0.01)))
    assert plan.vmax == pytest.approx(0.4)
    assert plan.caption.notes[0].endswith(" White: 0 or less.")
    ax = new_axes()
    drawing.draw_score_map(ax, plan)
    assert ax.collections[0].get_clim() == (0, plan.vmax)
    assert "-0.10" in drawn_texts(ax)


def test_a_map_is_drawn_with_scores_and_outlines_where_the_heads_are():
    (plan,) = [plan for plan in plan_score_maps(profile()) if plan.role == "sink"]
    ax = new_axes()
    drawing.draw_score_map(ax, plan)
    texts = {text.get_position(): text for text in ax.texts}
    assert {place: text.get_text() for place, text in texts.items()} == {
        (0, 0): "0.10", (1, 0): "0.70", (2, 0): "0.10", (0, 1): "0.10", (1, 1): "0.10", (2, 1): "0.95",
    }  # fmt: skip
    assert texts[2, 1].get_color() == "white"
    assert texts[0, 0].get_color() != "white"
    assert {place for place, text in texts.items() if text.get_weight() == "bold"} == {(1, 0), (2, 1)}
    centres = {(round(p.get_x() + p.get_width() / 2), round(p.get_y() + p.get_height() / 2)) for p in patches(ax)}
    assert centres == {(1, 0), (2, 1)}
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # layer 0 is at the top
    mesh = ax.collections[0]
    np.testing.assert_allclose(mesh.to_rgba([[0.0, 1.0]])[0, :, :3] * 255, colour_table()[[0, -1]], atol=1)


@pytest.mark.parametrize(("n_heads", "texts"), [(12, 12), (16, 16), (20, 0)])
def test_scores_are_written_where_there_is_room(n_heads, texts):
    roles = [role(head, "sink", 0.5) for head in range(n_heads)]
    checkpoint = SimpleNamespace(short_name="m", n_layers=1, n_heads=n_heads)
    (plan,) = plan_score_maps(profile(roles, checkpoint=checkpoint))
    ax = drawing.score_map_figure(plan).axes[0]
    assert len(ax.texts) == texts
    cell = ax.get_window_extent().width / n_heads
    assert all(text_width(text.get_text(), 7, 150, "bold") < cell for text in ax.texts)


@pytest.mark.parametrize(("baseline", "height"), [(0.2, 0.2), (1.0, 1.0), (-0.1, 0.0)])
def test_the_baseline_stands_beside_the_colour_bar(baseline, height):
    (plan,) = plan_score_maps(profile(roles_of("broad", [0.9] * 6, baseline, passed=True)))
    bar = drawing.score_map_figure(plan).axes[1]
    (note,) = bar.texts
    assert note.get_text() == f"baseline {baseline:.2f}"
    assert note.xy == (0, height)
    assert [list(line.get_ydata()) for line in bar.lines] == [[height, height]]
    assert bar.get_ylim() == (0, 1)


# The map of all roles


def test_the_map_of_roles_shows_the_clearest_and_counts_the_others():
    plan = plan_role_map(profile())
    assert plan.names == (("prev", "sink", ""), ("nsubj", "", "sink"))
    assert plan.more == ((0, 0, 0), (1, 0, 2))
    assert [[family.name for family in row] for row in plan.families] == [
        ["positional", "sink", "no role"],
        ["syntactic", "no role", "sink"],
    ]
    assert [(family.name, count) for family, count in plan.counts] == [
        ("positional", 1), ("syntactic", 1), ("sink", 2), ("no role", 2),
    ]  # fmt: skip
    assert plan.caption.title == "a-model: the clearest role of every head, 4 of 6 have one"
    assert plan.caption.source == (
        "a-model · trees.conllu (1,234 texts, 56,789 tokens) · names.tsv (77 texts, 888 tokens) · "
        "32 × 50 random tokens, repeated"
    )
    assert "random" not in plan_role_map(profile(repeats=None)).caption.source


def test_the_map_of_roles_is_coloured_and_written():
    ax = new_axes()
    drawing.draw_role_map(ax, plan_role_map(profile()))
    colours = {(round(p.get_x() + 0.5), round(p.get_y() + 0.5)): to_hex(p.get_facecolor()) for p in patches(ax)}
    by_name = {family.name: family.colour.lower() for family in FAMILIES}
    assert colours == {
        (0, 0): by_name["positional"], (1, 0): by_name["sink"], (2, 0): by_name["no role"],
        (0, 1): by_name["syntactic"], (1, 1): by_name["no role"], (2, 1): by_name["sink"],
    }  # fmt: skip
    written = {(round(x), round(y)): set() for x, y in (text.get_position() for text in ax.texts)}
    for text in ax.texts:
        x, y = text.get_position()
        written[round(x), round(y)].add(text.get_text())
    assert written[0, 1] == {"nsubj", "+1"}
    assert written[2, 1] == {"sink", "+2"}
    assert written[0, 0] == {"prev"}


def test_the_legend_names_every_family_that_occurs():
    figure = drawing.role_map_figure(plan_role_map(profile()))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.texts] == ["positional (1)", "syntactic (1)", "sink (2)", "no role (2)"]


# Relations


def test_relations_come_by_gain_with_their_best_head():
    plan = plan_relations(profile())
    assert [(row.relation, str(row.best.id), row.n, row.offset) for row in plan.rows] == [
        ("nsubj", "L1H0", 1000, -2),
        ("acl:relcl", "L1H0", 40, 1),
        ("obl", "L1H0", 90, 3),
    ]
    assert [row.gain for row in plan.rows] == pytest.approx([0.4, 0.15, 0.05])
    assert plan.threshold == pytest.approx(0.1)
    assert plan.caption.title == "a-model: best head against best fixed offset, 2 of 3 relations pass"
    assert plan.caption.notes[-1] == "1 rarer relation is left out."
    assert "gold trees" in plan.caption.notes[0]
    assert plan.caption.source.endswith("n = 1,090 instances")  # a subtype's are its relation's, too


def test_without_relations_that_were_judged_there_is_no_figure():
    assert plan_relations(profile([], relations=None)) is None
    assert plan_relations(profile([role(0, "sink", 0.9)])) is None


def test_of_very_many_relations_the_most_frequent_are_shown():
    counts = tuple(relation(f"r{i}", 1000 - i) for i in range(80))
    roles = [role(0, f"syntactic:r{i}", 0.3) for i in range(80)]
    plan = plan_relations(profile(roles, relations=counts))
    assert {row.relation for row in plan.rows} == {f"r{i}" for i in range(MOST_RELATIONS)}
    assert plan.caption.notes[-1] == "20 rarer relations are left out."


def test_nothing_is_said_of_relations_left_out_where_none_are():
    counts = (relation("nsubj"),)
    plan = plan_relations(profile([role(0, "syntactic:nsubj", 0.5)], relations=counts))
    assert len(plan.caption.notes) == 1


def test_relations_are_drawn_with_interval_threshold_baseline_and_score():
    ax = new_axes()
    plan = plan_relations(profile())
    drawing.draw_relations(ax, plan)
    lines = [(list(np.atleast_1d(line.get_xdata())), list(np.atleast_1d(line.get_ydata()))) for line in ax.lines]
    for y, row in enumerate(plan.rows):
        for x in ([row.baseline, row.best.score], list(row.best.interval)):
            assert (pytest.approx(x), [y, y]) in lines
        (tick,) = [x for x, ys in lines if len(ys) == 2 and ys[0] < y < ys[1]]
        assert tick == pytest.approx([row.baseline + 0.1] * 2)
        assert ([row.best.score], [y]) in lines
        assert ([row.baseline], [y]) in lines
    colours = {
        line.get_ydata()[0]: to_hex(line.get_markerfacecolor())
        for line in ax.lines
        if len(line.get_xdata()) == 1 and line.get_markerfacecolor() != "white"
    }
    assert colours == {0: drawing.STRONG, 1: drawing.STRONG, 2: drawing.PALE}  # the third does not pass
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_beside_each_relation_stands_what_it_rests_on():
    ax = new_axes()
    drawing.draw_relations(ax, plan_relations(profile()))
    rows = {}
    for text in ax.texts:
        rows.setdefault(text.xy[1], []).append(text.get_text())
    assert rows == {
        -1: ["relation", "n", "head", "direction", "offset", "gain"],
        0: ["nsubj", "1,000", "L1H0", "dep → head", "−2", "+0.40"],
        1: ["acl:relcl", "40", "L1H0", "head → dep", "+1", "+0.15"],
        2: ["obl", "90", "L1H0", "head → dep", "+3", "+0.05"],
    }


def test_the_columns_beside_relations_do_not_overlap():
    counts = (relation("nmod:unmarked-and-long", 123_456, -12, 2), relation("b", 77, 1, 20))
    roles = [
        replace(role(11, "syntactic:nmod:unmarked-and-long", 0.05, direction="head_to_dependent"), id=HeadId(11, 11)),
        role(0, "syntactic:b", 0.5, direction="dependent_to_head"),
    ]
    figure = drawing.relations_figure(plan_relations(profile(roles, relations=counts)))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in figure.axes[0].texts]
    assert len(boxes) == 18
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]


# Layers


def test_layers_have_a_dot_a_head_a_line_of_means_and_uniform_attention():
    plan = plan_layers(profile())
    entropy, distance = new_axes(), new_axes()
    drawing.draw_layers(entropy, distance, plan)
    for ax, values in ((entropy, plan.entropy), (distance, plan.distance)):
        dots = ax.collections[0].get_offsets()
        np.testing.assert_allclose(dots[:, 1], values.ravel())
        assert [round(x) for x in dots[:, 0]] == [0, 0, 0, 1, 1, 1]
        assert (np.diff(dots[:3, 0]) > 0).all()
        np.testing.assert_allclose(ax.lines[0].get_ydata(), values.mean(1))
        assert ax.get_ylim()[0] == 0
    assert list(entropy.lines[1].get_ydata()) == [2.5, 2.5]
    assert drawn_texts(entropy) == {"uniform attention 2.50"}
    assert len(distance.lines) == 1
    assert entropy.get_ylim()[1] > 2.5
    assert (entropy.get_ylabel(), distance.get_ylabel()) == ("entropy (nats)", "distance (tokens)")


def test_without_sentences_there_are_no_layers():
    assert plan_layers(profile(statistics=None)) is None


def test_layers_without_a_uniform_entropy_have_no_line_for_it():
    entropy, distance = new_axes(), new_axes()
    drawing.draw_layers(entropy, distance, plan_layers(profile(statistics=statistics(uniform=None))))
    assert len(entropy.lines) == 1
    assert not entropy.texts


# Likeness


def test_points_of_a_plane_are_found_again():
    plane = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 1.0], [0.0, 1.0], [2.0, 0.5]])
    gaps = np.linalg.norm(plane[:, None] - plane[None], axis=-1)
    points, stress = arrange(gaps)
    np.testing.assert_allclose(np.linalg.norm(points[:, None] - points[None], axis=-1), gaps, atol=1e-3)
    assert stress == pytest.approx(0, abs=1e-3)
    assert np.ptp(points[:, 0]) > np.ptp(points[:, 1])


def test_what_no_plane_holds_has_stress_and_an_arrangement_is_always_the_same():
    matrix = (1 - torch.eye(8)).double().numpy()  # all alike far from each other
    points, stress = arrange(matrix)
    assert 0.1 < stress < 0.6
    assert np.array_equal(points, arrange(matrix)[0])


def test_an_arrangement_is_wider_than_high():
    for seed in range(8):
        spread = np.ptp(arrange(distances(9, seed).numpy())[0], axis=0)
        assert spread[0] >= spread[1]


def test_heads_are_planned_with_family_and_id():
    plan = plan_likeness(profile(), distances(), 4321)
    assert [str(head) for head in plan.heads] == ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
    assert [family.name for family in plan.families] == [
        "positional", "sink", "no role", "syntactic", "no role", "sink",
    ]  # fmt: skip
    assert all(plan.labels)
    assert (plan.points >= 0).all()
    assert (plan.points <= plan.size).all()
    assert plan.size[0] <= ROOM[0] + 100
    assert plan.size[1] <= ROOM[1] + 100
    assert "stress-1 = " in plan.caption.notes[0]
    assert plan.caption.source == (
        "a-model · trees.conllu (1,234 texts, 56,789 tokens) · a sample of 4,321 tokens compared · n = 6 heads"
    )
    assert "sample of" not in plan_likeness(profile(), distances()).caption.source


def test_of_many_heads_only_those_with_a_role_are_named():
    checkpoint = SimpleNamespace(short_name="m", n_layers=9, n_heads=9)
    plan = plan_likeness(profile([role(4, "sink", 0.9, layer=7)], checkpoint=checkpoint), distances(81))
    assert [str(head) for head, label in zip(plan.heads, plan.labels, strict=True) if label] == ["L7H4"]
    assert len(plan.caption.notes) == 1


def test_too_few_heads_or_no_numbers_are_not_arranged():
    small = SimpleNamespace(short_name="m", n_layers=1, n_heads=2)
    assert plan_likeness(profile([], checkpoint=small), distances(2)) is None
    assert plan_likeness(profile([]), torch.full((6, 6), torch.nan)) is None


def test_distances_of_another_model_are_refused():
    with pytest.raises(ValueError, match=r"must have shape \(6, 6\). Got \(5, 5\)"):
        plan_likeness(profile(), distances(5))


def test_heads_that_are_all_alike_stand_in_one_place_and_those_without_room_are_counted():
    checkpoint = SimpleNamespace(short_name="m", n_layers=8, n_heads=10)
    plan = plan_likeness(profile(checkpoint=checkpoint), torch.zeros(80, 80))
    assert np.ptp(plan.points, axis=0).max() == 0
    assert 0 < plan.labels.count(None) < 80
    assert plan.caption.notes[1:] == (f"Ids left out for want of room: {plan.labels.count(None)}.",)
    drawing.likeness_figure(plan)


def boxes_of(labels, texts):
    half = LABEL_SIZE * 150 / 144
    sizes = [(text_width(text, LABEL_SIZE, 150) / 2, half) for text in texts]
    return [(x - w, y - h, x + w, y + h) for (x, y), (w, h) in zip(labels, sizes, strict=True)]


def test_labels_cover_neither_each_other_nor_dots_and_stay_inside():
    points = np.random.default_rng(1).random((40, 2)) * 360 + 20
    texts = [f"L{i}H{i}" for i in range(40)]
    labels = place_labels(points, (400, 400), texts)
    placed = [(label, text) for label, text in zip(labels, texts, strict=True) if label is not None]
    assert len(placed) > 25
    boxes = boxes_of(*zip(*placed, strict=True))
    for first, second in combinations(boxes, 2):
        assert first[2] <= second[0] or second[2] <= first[0] or first[3] <= second[1] or second[3] <= first[1]
    for left, top, right, bottom in boxes:
        assert min(left, top) >= 0
        assert max(right, bottom) <= 400
        inside = (points > (left, top)) & (points < (right, bottom))
        assert not inside.all(1).any()


def test_no_label_stands_on_the_line_to_another():
    points = np.random.default_rng(2).normal(size=(40, 2)) * 40 + 200
    texts = [f"L{i}H{i}" for i in range(40)]
    labels = place_labels(points, (400, 400), texts)
    placed = [i for i, label in enumerate(labels) if label is not None]
    boxes = dict(zip(placed, boxes_of([labels[i] for i in placed], [texts[i] for i in placed]), strict=True))
    far = 0
    for i in placed:
        end = np.array(label_edge(points[i], labels[i], texts[i]))
        if np.hypot(*(points[i] - end)) <= NEAR:
            continue
        far += 1
        middle = (points[i] + end) / 2
        crossed = [j for j, (x0, y0, x1, y1) in boxes.items() if x0 < middle[0] < x1 and y0 < middle[1] < y1]
        assert crossed in ([], [i])
    assert far > 3


def test_a_lone_label_stands_to_the_right_of_its_dot_at_its_height():
    ((x, y),) = place_labels(np.array([[200.0, 200.0]]), (400, 400), ["L0H0"])
    assert x > 200
    assert y == 200


def test_a_label_with_no_free_place_is_left_out():
    assert place_labels(np.array([[5.0, 5.0]]), (10, 10), ["L0H0"]) == [None]


def test_a_line_to_a_label_ends_at_its_border():
    x, y = label_edge(np.array([0.0, 0.0]), (100.0, 0.0), "L0H0")
    assert x == pytest.approx(100 - text_width("L0H0", LABEL_SIZE, 150) / 2)
    assert y == 0


def test_likeness_is_drawn_with_markers_ids_and_lines_to_ids_far_off():
    plan = plan_likeness(profile(), distances())
    far = (plan.points[0][0] + 200, plan.points[0][1])
    ax = new_axes()
    drawing.draw_likeness(ax, replace(plan, labels=(far, None, *plan.labels[2:])))
    dots = [line for line in ax.lines if len(line.get_xdata()) == 1]
    np.testing.assert_allclose([line.get_xydata()[0] for line in dots], plan.points)
    assert [line.get_marker() for line in dots] == [family.marker for family in plan.families]
    assert [to_hex(line.get_markerfacecolor()) for line in dots] == [f.colour.lower() for f in plan.families]
    assert len(ax.lines) == len(dots) + 1
    assert drawn_texts(ax) == {"L0H0", "L0H2", "L1H0", "L1H1", "L1H2"}
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


# Without scikit-learn


@pytest.fixture
def no_sklearn(monkeypatch):
    real = builtins.__import__

    def blocked(name, *rest, **more):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", blocked)


def test_without_scikit_learn_the_figure_is_left_out_and_the_message_says_what_to_type(no_sklearn):
    assert likeness_unavailable() == "likeness.png needs scikit-learn: pip install 'attnviz[profile]'"
    assert "likeness" not in [name for name, _ in profile_figures(profile(), distances())]


def test_with_scikit_learn_there_is_nothing_to_say():
    assert likeness_unavailable() is None


# All of them


def test_all_figures_have_safe_names():
    assert [name for name, _ in profile_figures(profile(), distances())] == [
        "roles", "roles/previous-token", "roles/sink", "roles/coreference", "roles/syntactic-nsubj",
        "roles/syntactic-acl-relcl", "relations", "layers", "likeness",
    ]  # fmt: skip


def test_what_the_corpora_cannot_give_is_left_out():
    only_names = profile(
        roles_of("coreference", [0.5] * 5 + [0.9], 0.55),
        statistics=None,
        relations=None,
        corpora=(corpus("names.tsv", "gap"),),
        repeats=None,
    )
    assert [name for name, _ in profile_figures(only_names, None)] == ["roles", "roles/coreference"]
    nothing = profile_figures(profile([]), torch.full((6, 6), torch.nan))
    assert [name for name, _ in nothing] == ["roles", "layers"]


def test_file_names_are_safe_and_distinct():
    names = ["syntactic:a/../b", "syntactic:a:b", "syntactic:A-b", "syntactic:a-b", "..", "猫", "x" * 200, "x" * 201]
    stems = file_stems(names)
    assert stems[:6] == ["syntactic-a-..-b", "syntactic-a-b", "syntactic-A-b-2", "syntactic-a-b-3", "role", "-"]
    assert stems[6:] == ["x" * 80, "x" * 80 + "-2"]


@pytest.mark.parametrize("file_format", ["svg", "pdf", "png"])
def test_two_runs_give_the_same_bytes(file_format):
    first, second = (dict(profile_files(profile(), distances(), [file_format])) for _ in range(2))
    assert first == second
    assert len(first) == 9
    assert all(name.endswith(f".{file_format}") for name in first)


def test_several_formats_come_side_by_side():
    names = [name for name, _ in profile_files(profile([]), None, ["png", "svg"])]
    assert names == ["roles.png", "roles.svg", "layers.png", "layers.svg"]


def test_the_settings_of_the_user_neither_matter_nor_change():
    plain = dict(profile_files(profile(), distances()))
    with matplotlib.rc_context(ODD_SETTINGS):
        before = dict(matplotlib.rcParams)
        odd = dict(profile_files(profile(), distances()))
        assert dict(matplotlib.rcParams) == before
    assert odd == plain


def test_an_unfinished_run_leaves_no_settings_behind():
    before = dict(matplotlib.rcParams)
    figures = profile_figures(profile(), distances())
    next(figures)
    assert dict(matplotlib.rcParams) == before


def test_pictures_are_in_colour_and_of_the_planned_size():
    name, data = next(profile_files(profile(), None))
    assert name == "roles.png"
    image = Image.open(io.BytesIO(data))
    assert image.mode == "RGB"
    assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
    colours = {to_hex(np.array(colour) / 255) for _, colour in image.getcolors(1 << 24)}
    assert {family.colour.lower() for family in FAMILIES if family.name in ("positional", "sink")} <= colours
    width, height = drawing.role_map_figure(plan_role_map(profile())).get_size_inches() * 150
    assert image.size == (round(width), round(height))


def test_text_in_svg_stays_text():
    for name, data in profile_files(profile(), distances(), ["svg"]):
        texts = ["".join(node.itertext()) for node in ElementTree.fromstring(data).iter(f"{SVG}text")]
        assert any("a-model" in text for text in texts), name
        assert any("n = " in text or name == "roles.svg" for text in texts), name


@pytest.mark.parametrize("hostile", [*HOSTILE, "long-name " * 40, "x" * 500])
def test_hostile_names_of_models_files_and_relations_are_drawn(hostile):
    checkpoint = SimpleNamespace(short_name=hostile, n_layers=LAYERS, n_heads=HEADS)
    name = hostile.replace("/", "|").replace("\x00", "") or "empty"
    found = profile(
        roles_of(f"syntactic:{hostile}", [0.1] * 5 + [0.9]),
        relations=(relation(hostile),),
        checkpoint=checkpoint,
        corpora=(corpus(name, "conllu"),),
    )
    figures = dict(profile_figures(found, distances()))
    assert len(figures) == 5
    for figure in figures.values():
        width, height = figure.get_size_inches() * 150
        for text, box in everything(figure):
            assert box.x0 >= 0, text
            assert box.x1 <= width, text
            assert 0 <= box.y0 < box.y1 <= height, text


@pytest.mark.parametrize(("n_layers", "n_heads"), [(1, 1), (2, 3), (6, 12), (3, 16), (2, 20)])
def test_no_text_is_cut_or_covers_another(n_layers, n_heads):
    names = ["sink", "previous-token", "broad", "long-range", "coreference", "semantic", "induction", "local"]
    names += ["syntactic:nsubj", "something"]
    heads = [HeadId(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    roles = [
        replace(role(0, names[place % len(names)], 0.9), id=head) for place, head in enumerate(heads) if place % 11 < 10
    ]
    entropy = 3 * torch.rand(n_layers, n_heads, generator=torch.Generator().manual_seed(n_heads))
    found = profile(
        roles,
        checkpoint=SimpleNamespace(short_name="m", n_layers=n_layers, n_heads=n_heads),
        statistics=statistics(entropy),
    )
    figures = dict(profile_figures(found, None))
    assert {"roles", "layers"} <= set(figures)
    for name, figure in figures.items():
        width, height = figure.get_size_inches() * 150
        texts = everything(figure)
        for text, box in texts:
            assert box.x0 >= 0, (name, text)
            assert box.x1 <= width, (name, text)
            assert 0 <= box.y0 < box.y1 <= height, (name, text)
        overlapping = [
            (first[0], second[0])
            for first, second in combinations(texts, 2)
            if min(first[1].x1, second[1].x1) - max(first[1].x0, second[1].x0) > 1
            and min(first[1].y1, second[1].y1) - max(first[1].y0, second[1].y0) > 3
        ]
        assert overlapping == [], name


def test_a_legend_takes_as_many_rows_as_it_needs():
    handles = [Rectangle((0, 0), 1, 1, label=f"a family with a long name {i}") for i in range(9)]
    page = new_page(Caption("title", ("note",), "source"), 840, 100, handles)
    few = new_page(Caption("title", ("note",), "source"), 840, 100, handles[:2])
    none = new_page(Caption("title", ("note",), "source"), 840, 100)
    assert none.top < few.top < page.top
    (legend,) = page.figure.legends
    canvas = FigureCanvasAgg(page.figure)
    canvas.draw()
    box = legend.get_window_extent(canvas.get_renderer())
    assert box.x1 <= 840
    assert box.y0 >= page.height - page.top
    one = new_page(Caption("title", (), "source"), 840, 100, [Rectangle((0, 0), 1, 1, label="x" * 200)])
    assert one.top > 0
