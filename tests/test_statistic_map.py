"""The map of one statistic over all heads: its plan, what stands on the axes, and its words."""

import re
from dataclasses import replace
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attnviz.errors import UsageError
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.look import Look
from attnviz.figures.rendering import figure_bytes
from attnviz.figures.statistic_map import (
    draw_statistic_map,
    map_figures,
    map_norm,
    plan_statistic_map,
    statistic_map_figure,
    statistic_named,
)
from attnviz.patterns.statistics import SCALARS
from tests.hand_made import by_design, hand_made
from tests.test_drawing import ODD_SETTINGS, pixels_of, texts

PLAIN = Look()
LOOKS = [
    Look(),
    Look("dark", "log"),
    Look("light", "per-head", 3.3),
    Look("dark", "shared", 2.0),
    Look("light", "log", 7.0),
]


@pytest.fixture(scope="module")
def analysis():
    return hand_made()


def wide(n_layers, n_heads, **changes):
    random = np.random.default_rng(0)
    patterns = torch.tensor(random.dirichlet(np.ones(6), (n_layers, n_heads, 6)), dtype=torch.float32)
    return hand_made(patterns=patterns, **changes)


def unmeasured(analysis, name, *heads):
    changed = (
        replace(head, statistics={**head.statistics, name: None}) if str(head.id) in heads else head
        for head in analysis.heads
    )
    return replace(analysis, heads=tuple(changed))


def drawn(plan, look=PLAIN, size=(6, 4)):
    ax = Figure(figsize=size, dpi=150).add_axes((0.2, 0.2, 0.7, 0.7))
    return ax, draw_statistic_map(ax, plan, look)


def clear_edges(figure, paper):
    pixels = pixels_of(figure)
    return all((edge == paper).all() for edge in (pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]))


def test_the_values_are_the_statistics_of_every_head_in_its_place(analysis):
    for name in SCALARS:
        plan = plan_statistic_map(analysis, name)
        assert plan.values.shape == (2, 2)
        for head in analysis.heads:
            value = head.statistics[name]
            found = plan.values[head.id.layer, head.id.head]
            assert np.isnan(found) if value is None else found == value


def test_the_numbers_of_hand_made_heads_are_right(analysis):
    distance = plan_statistic_map(analysis, "distance").values
    np.testing.assert_allclose(distance, [[5 / 6, 35 / 18], [2.5, 2.5 / 4 + 5 / 6 / 4]])
    assert plan_statistic_map(analysis, "entropy").values[0, 1] == pytest.approx(np.log(6))
    assert plan_statistic_map(analysis, "sink").values.tolist() == [[0.25, pytest.approx(1 / 3)], [1.0, 0.3125]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("entropy", np.log(6)),
        ("distance", 35 / 18),
        ("confidence", 1 / 6),
        ("sink", 1 / 3),
        ("previous", 3 / 16),
        ("induction", None),
        ("induction_on_repeats", None),
    ],
)
def test_uniform_attention_is_the_baseline(analysis, name, expected):
    plan = plan_statistic_map(analysis, name)
    assert plan.baseline == (expected if expected is None else pytest.approx(expected))
    if expected is not None and name in ("entropy", "distance", "confidence"):
        assert plan.values[0, 1] == pytest.approx(expected)  # L0H1 is uniform


def test_a_causal_model_has_the_baseline_of_its_mask():
    plan = plan_statistic_map(hand_made(causal=True, special=()), "distance")
    assert plan.baseline == pytest.approx(np.mean([q / 2 for q in range(6)]))
    assert plan.values[0, 1] == pytest.approx(plan.baseline)


def test_repeats_have_their_own_baseline():
    found = hand_made(labels=("[CLS]", "a", "b", "a", "b", "[SEP]"))
    assert plan_statistic_map(found, "duplicate_on_repeats").baseline == pytest.approx(1 / 6)
    assert plan_statistic_map(found, "duplicate").baseline == pytest.approx(2 / 16)


@pytest.mark.parametrize(("name", "meant"), [("entropy", "entropy"), ("long-range", "long_range"), (" Sink ", "sink")])
def test_names_may_be_written_with_hyphens(name, meant):
    assert statistic_named(name) == meant


@pytest.mark.parametrize("name", ["", "entropie", "L2H8", "$\\frac$"])
def test_an_unknown_statistic_is_refused_with_the_valid_ones(analysis, name):
    expected = f"unknown statistic {name!r} for a map: expected one of entropy, distance, .*duplicate_on_repeats"
    with pytest.raises(UsageError, match=expected.replace("$\\\\frac$", r"\$\\\\frac\$")):
        plan_statistic_map(analysis, name)
    with pytest.raises(UsageError):
        next(map_figures(analysis, Look(), name))


def test_the_scales(analysis):
    share, entropy, distance = (plan_statistic_map(analysis, name) for name in ("local", "entropy", "distance"))
    assert (map_norm(share, Look()).vmin, map_norm(share, Look()).vmax) == (0, 1)
    assert map_norm(entropy, Look()).vmax == pytest.approx(np.log(6))
    assert map_norm(distance, Look()).vmax == pytest.approx(2.5)  # L1H0 looks farther than uniform attention
    sink = plan_statistic_map(hand_made(patterns=by_design(6)[:1]), "sink")
    assert map_norm(sink, Look(scale="per-head")).vmax == pytest.approx(1 / 3)
    log = map_norm(share, Look(scale="log"))
    assert isinstance(log, LogNorm)
    assert (log.vmin, log.vmax) == (0.01, 1)


def test_where_all_is_zero_the_scale_of_the_map_is_the_shared_one(analysis):
    plan = plan_statistic_map(analysis, "next")
    zero = replace(plan, values=np.zeros((2, 2)))
    assert map_norm(zero, Look(scale="per-head")).vmax == 1
    one = plan_statistic_map(hand_made(labels=("a",), special=(), patterns=torch.ones(1, 1, 1, 1)), "entropy")
    assert (one.values.tolist(), map_norm(one, Look()).vmax) == ([[0.0]], 1.0)


def test_cells_values_and_heads_stand_where_they_belong(analysis):
    plan = plan_statistic_map(analysis, "sink")
    ax, mesh = drawn(plan)
    np.testing.assert_array_equal(mesh.get_array(), plan.values)
    assert [(text.get_text(), *text.get_position()) for text in ax.texts] == [
        ("0.25", 0, 0),
        ("0.33", 1, 0),
        ("1.00", 0, 1),
        ("0.31", 1, 1),
    ]
    assert texts(ax.get_xticklabels()) == texts(ax.get_yticklabels()) == ["0", "1"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("head", "layer")
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # layer 0 above


def test_letters_are_dark_on_light_cells_and_light_on_dark_ones(analysis):
    plan = plan_statistic_map(analysis, "sink")
    inks = {look.theme: [text.get_color() for text in drawn(plan, look)[0].texts] for look in (Look(), Look("dark"))}
    assert (inks["light"][2], inks["light"][0]) == ("#ffffff", "#222222")
    assert (inks["dark"][2], inks["dark"][0]) == ("#222222", "#ffffff")


@pytest.mark.parametrize(("n_heads", "size", "count"), [(16, (8, 4), 16), (17, (20, 4), 0), (16, (1.5, 4), 0)])
def test_values_are_written_up_to_sixteen_columns_and_only_where_there_is_room(n_heads, size, count):
    ax, _ = drawn(plan_statistic_map(wide(1, n_heads), "entropy"), size=size)
    assert len(ax.texts) == count


def test_values_of_the_figure_fit_into_their_cells():
    for look in LOOKS:
        figure = statistic_map_figure(plan_statistic_map(wide(3, 12), "entropy"), look)
        pixels_of(figure)
        ax = figure.axes[0]
        cell = ax.get_window_extent().width / 12
        assert all(text.get_window_extent().width < cell for text in ax.texts)
        assert bool(ax.texts) == (look.width != 2.0)


def test_what_cannot_be_measured_is_hatched_and_has_a_dash_and_is_said(analysis):
    plan = plan_statistic_map(unmeasured(analysis, "sink", "L0H1"), "sink")
    ax, mesh = drawn(plan)
    assert mesh.get_array().mask.tolist() == [[False, True], [False, False]]
    (box,) = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    assert (box.get_xy(), box.get_hatch(), to_hex(box.get_facecolor())) == ((0.5, -0.5), "//", "#ffffff")
    assert texts(ax.texts)[1] == "–"
    said = "Hatched: not measurable for 1 of 4 heads, because no attention lands on content there."
    assert said in plan.notes(Look())
    assert "hatched where not measurable, because no attention lands on content there." in plan.caption(Look())


@pytest.mark.parametrize(
    ("found", "name", "why"),
    [
        (hand_made(causal=True, special=()), "next", "because no query of this model can see it"),
        (hand_made(), "induction", "because no token of this text repeats"),
        (hand_made(), "duplicate_on_repeats", "because no token of this text repeats"),
        (hand_made(special=range(6)), "sink", "because this text has no tokens to measure it on"),
        (hand_made(), "long-range", "because this text has no tokens so placed"),
        (hand_made(special=range(6)), "local", "because this text has no tokens to measure it on"),
    ],
)
def test_a_map_without_any_value_says_why_and_has_no_colour_bar(found, name, why):
    plan = plan_statistic_map(found, name)
    assert f"Hatched: not measurable for every head, {why}." in plan.notes(Look(scale="log"))
    figure = statistic_map_figure(plan, Look())
    assert len(figure.axes) == 1
    assert texts(figure.axes[0].texts) == ["–"] * 4
    assert "colours" not in plan.caption(Look())


def bar_of(figure):
    return figure.axes[1]


def test_the_colour_bar_names_statistic_unit_and_scale_and_marks_uniform_attention(analysis):
    bar = bar_of(statistic_map_figure(plan_statistic_map(analysis, "distance"), Look()))
    assert bar.get_xlabel() == "distance (tokens; shared scale)"
    assert bar.get_xlim() == (0, 2.5)
    assert texts(bar.texts) == ["uniform attention 1.94"]
    (mark,) = [line for line in bar.lines if line.get_color() == "#d95f02"]
    assert mark.get_xdata() == pytest.approx([35 / 18] * 2)


def test_a_baseline_outside_the_scale_is_pointed_at(analysis):
    plan = replace(plan_statistic_map(analysis, "sink"), values=np.full((2, 2), 0.1))
    bar = bar_of(statistic_map_figure(plan, Look(scale="per-head")))
    assert (texts(bar.texts), len(bar.lines)) == (["uniform attention 0.33 →"], 0)
    low = replace(plan, baseline=0.001)
    assert texts(bar_of(statistic_map_figure(low, Look(scale="log"))).texts) == ["← uniform attention 0.00"]


def test_no_mark_without_a_baseline(analysis):
    plan = replace(plan_statistic_map(analysis, "sink"), baseline=None)
    bar = bar_of(statistic_map_figure(plan, Look()))
    assert (len(bar.texts), len(bar.lines)) == (0, 0)
    assert "uniform" not in plan.caption(Look())


@pytest.mark.parametrize(
    ("look", "ending"),
    [(Look(), "; shared scale"), (Look(scale="per-head"), "; scale of this map"), (Look(scale="log"), "; log scale")],
)
def test_the_bar_tells_the_scale(analysis, look, ending):
    bar = bar_of(statistic_map_figure(plan_statistic_map(hand_made(special=()), "long_range"), look))
    assert bar.get_xlabel() == f"long-range share (0–1{ending})"


def test_numbers_of_heads_do_not_run_into_each_other_in_a_narrow_map():
    look = Look(width=2)
    found = hand_made(patterns=by_design(6)[:1, :1].expand(2, 12, 6, 6))
    ax = statistic_map_figure(plan_statistic_map(found, "sink"), look).axes[0]
    pixels_of(ax.figure)
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert all(one.x1 + 2 < other.x0 for one, other in pairwise(boxes))


def test_numbers_on_a_logarithmic_bar_are_plain(analysis):
    figure = statistic_map_figure(plan_statistic_map(analysis, "sink"), Look(scale="log"))
    pixels_of(figure)
    shown = [text for text in texts(bar_of(figure).get_xticklabels()) if text]
    assert {"≤ 0.01", "0.1", "1"} <= set(shown)
    assert shown[0] == "≤ 0.01"
    assert all(re.fullmatch(r"[\d.]+", text) for text in shown[1:])


def test_a_logarithmic_map_says_how_many_heads_are_below_its_scale(analysis):
    plan = replace(plan_statistic_map(analysis, "sink"), values=np.array([[0.001, 0.5], [0.02, 0.9]]))
    note = "Logarithmic colours from 0.01; what is smaller looks the same (1 of 4 heads)."
    assert plan.notes(Look(scale="log"))[-1] == note
    above = replace(plan, values=np.full((2, 2), 0.5))
    assert above.notes(Look(scale="log"))[-1] == "Logarithmic colours from 0.01."


def test_title_notes_and_stem(analysis):
    plan = plan_statistic_map(hand_made(special=()), "long_range")
    assert plan.title == "by-hand: long-range share, head by head"
    assert plan.notes(Look()) == (
        "“the cat ran away” (6 tokens)",
        "Share of the attention on content that lands on tokens at least 4 away.",
    )
    assert plan.stem == "map-long-range"
    names = {name: plan_statistic_map(analysis, name).name for name in ("entropy", "previous", "induction_on_repeats")}
    assert names == {
        "entropy": "entropy",
        "previous": "previous-token share",
        "induction_on_repeats": "induction where a token repeats",
    }


@pytest.mark.parametrize(
    ("look", "scale"),
    [
        (Look(), "colours from 0 to 1.79"),
        (Look(scale="per-head"), "colours from 0 to the largest head, 1.8"),
        (Look(scale="log"), "logarithmic colours from 0.018 to 1.79"),
    ],
)
def test_the_caption_is_one_honest_sentence(analysis, look, scale):
    assert plan_statistic_map(analysis, "entropy").caption(look) == (
        "by-hand on “the cat ran away” (6 tokens), entropy, head by head (2 × 2): mean entropy of the rows, in nats; "
        f"{scale}; uniform attention would give 1.79."
    )


@pytest.mark.parametrize(
    ("found", "sinks"),
    [
        (hand_made(), "the special tokens"),
        (hand_made(causal=True, special=()), "the first token"),
        (hand_made(causal=True, special=(5,)), "the special tokens and the first token"),
    ],
)
def test_sinks_are_named_for_what_they_are(found, sinks):
    assert plan_statistic_map(found, "sink").reading == f"mean attention of the other tokens to {sinks}"


def test_words_are_called_words():
    plan = plan_statistic_map(hand_made(words=True), "distance")
    assert plan.unit == "words"
    assert plan.notes(Look())[0] == "“the cat ran away” (6 words)"


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["entropy", "induction", "sink"])
def test_nothing_runs_over_the_edge_and_the_width_is_kept(name, look):
    figure = statistic_map_figure(plan_statistic_map(wide(3, 12), name), look)
    paper = [int(look.greys.paper[i : i + 2], 16) for i in (1, 3, 5)]
    assert clear_edges(figure, paper)
    if look.width is not None:
        assert pixels_of(figure).shape[1] == round(look.width * 150)


def test_every_cell_is_a_whole_number_of_pixels():
    figure = statistic_map_figure(plan_statistic_map(wide(3, 12), "entropy"), Look())
    box = figure.axes[0].get_window_extent()
    assert (box.width, box.height) == (pytest.approx(12 * 58), pytest.approx(3 * 40))
    assert (box.x0, box.y0) == (pytest.approx(round(box.x0)), pytest.approx(round(box.y0)))


@pytest.mark.parametrize("text", ["$\\frac$ [/b]", "猫 🦄 مرحبا", "\x1b[31m\n\x00", "W" * 300, "a " * 200])
def test_hostile_texts_and_names_are_drawn_without_crash_or_warning(text):
    found = hand_made(name=text, text=text, pair=text)
    ((_, figure, caption),) = map_figures(found, Look("dark"), "sink")
    pixels_of(figure)
    assert "\n" not in caption
    assert "\x1b" not in caption


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_files_are_the_same_on_every_run(analysis, file_format):
    first, second = (
        figure_bytes(next(map_figures(analysis, Look(scale="log"), "sink"))[1], file_format, indexed=False)
        for _ in range(2)
    )
    assert first == second


def test_text_in_svg_stays_text(analysis):
    content = figure_bytes(next(map_figures(analysis, Look(), "sink"))[1], "svg", indexed=False).decode()
    assert ">by-hand: sink share, head by head</text>" in content
    assert ">0.31</text>" in content


def test_the_users_settings_neither_change_the_figure_nor_are_changed(analysis):
    expected = pixels_of(statistic_map_figure(plan_statistic_map(analysis, "induction"), Look()))
    with matplotlib.rc_context(ODD_SETTINGS):
        before = dict(matplotlib.rcParams)
        figure = statistic_map_figure(plan_statistic_map(analysis, "induction"), Look())
        drawn(plan_statistic_map(analysis, "induction"))
        assert dict(matplotlib.rcParams) == before
        with figure_style():
            found = pixels_of(figure)
    np.testing.assert_array_equal(expected, found)


def test_only_the_given_axes_are_drawn_on(analysis):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    position = left.get_position().bounds
    draw_statistic_map(left, plan_statistic_map(analysis, "sink"), Look())
    assert figure.axes == [left, right]
    assert (len(right.collections), len(right.texts)) == (0, 0)
    assert left.get_position().bounds == position
