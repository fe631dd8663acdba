"""The view of lines: what is planned, what stands on the axes, and what is left out and said to be."""

import math
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from attnviz.commands.heads.findings import without_sinks
from attnviz.errors import UsageError
from attnviz.figures.line_drawing import MOST_HEIGHT, draw_lines, lines_figure, lines_figures
from attnviz.figures.line_layout import LEAST_DISTANCE, SMALLEST_LETTERS, LinesLayout, laid_out
from attnviz.figures.line_legend import HEAD_COLOURS
from attnviz.figures.line_rows import spaced_out
from attnviz.figures.line_views import (
    MOST_PICTURES,
    MOST_ROWS,
    find_positions,
    heads_with_lines,
    lines_plan,
    lines_plans,
)
from attnviz.figures.lines import MOST_HEADS, MOST_LINES, WHOLE_ROWS, plan_lines
from attnviz.figures.look import THEMES, Look
from attnviz.figures.rendering import figure_bytes
from attnviz.model.head_ids import HeadId
from tests.hand_made import LABELS, by_design, hand_made
from tests.test_drawing import HOSTILE, ODD_SETTINGS, new_axes, pixels_of, random_pattern, texts

LIGHT, DARK = Look(), Look(theme="dark")
SVG = "{http://www.w3.org/2000/svg}"


def plan_of(*patterns, look=LIGHT, labels=None, **changes):
    n = len(patterns[0])
    settings = {
        "heads": [(HeadId(0, head), "local") for head in range(len(patterns))],
        "quiet": [False] * n,
        "title": "model: L0H0  local",
        **changes,
    }
    return plan_lines(patterns, labels or [f"w{i}" for i in range(n)], look=look, **settings)


def pattern_of(*weights, n=4):
    """All zero but for (query, key, weight)."""
    pattern = np.zeros((n, n), np.float32)
    for query, key, weight in weights:
        pattern[query, key] = weight
    return pattern


def lines_of(plan):
    return list(zip(plan.head.tolist(), plan.query.tolist(), plan.key.tolist(), strict=True))


def drawn_in(figure):
    (lines,) = (child for child in figure.axes[0].collections if isinstance(child, PathCollection))
    return lines


def ends(lines):
    return [(path.vertices[0].tolist(), path.vertices[-1].tolist()) for path in lines.get_paths()]


def columns(ax, plan):
    """The texts of the left and of the right column, and their colours; the column's own name comes last."""
    n = len(plan.labels)
    parts = ax.texts[:n], ax.texts[n + 1 : 2 * n + 1]
    return [{text.get_text(): to_hex(text.get_color()) for text in part} for part in parts]


def test_a_line_a_weight_from_query_to_key_the_strongest_last():
    plan = plan_of(pattern_of((0, 3, 0.9), (2, 1, 0.3), (3, 3, 0.05)))
    assert lines_of(plan) == [(0, 3, 3), (0, 2, 1), (0, 0, 3)]
    np.testing.assert_allclose(plan.weights, [0.05, 0.3, 0.9])
    assert plan.largest == pytest.approx((0.9,))


def test_lines_of_several_heads_are_drawn_by_weight_whichever_the_head():
    plan = plan_of(pattern_of((0, 1, 0.5), (1, 1, 0.1)), pattern_of((2, 3, 0.3)))
    assert lines_of(plan) == [(0, 1, 1), (1, 2, 3), (0, 0, 1)]


@pytest.mark.parametrize(
    ("scale", "strengths"),
    [
        ("shared", [0.02, 0.2, 0.4]),
        ("per-head", [0.05, 0.5, 1.0]),
        ("log", [0, 1 - math.log(0.2) / math.log(0.02), 1 - math.log(0.4) / math.log(0.02)]),
    ],
)
def test_the_strength_of_a_line_is_its_weight_under_the_scale(scale, strengths):
    plan = plan_of(pattern_of((0, 0, 0.02), (1, 1, 0.2), (2, 2, 0.4)), look=Look(scale=scale))
    np.testing.assert_allclose(plan.strengths, strengths, atol=1e-6)


def test_each_head_has_its_own_scale_and_the_legend_tells_its_largest_weight():
    plan = plan_of(pattern_of((0, 0, 0.4)), pattern_of((0, 0, 0.8), (1, 1, 0.4)), look=Look(scale="per-head"))
    strengths = dict(zip(lines_of(plan), plan.strengths.tolist(), strict=True))
    assert strengths == pytest.approx({(0, 0, 0): 1.0, (1, 1, 1): 0.5, (1, 0, 0): 1.0})
    assert plan.legend == ("L0H0 local (up to 0.4)", "L0H1 local (up to 0.8)")
    assert [text for _, text in plan.scale_key] == ["¼ of its largest", "½", "largest"]


@pytest.mark.parametrize(
    ("scale", "threshold", "key"),
    [
        ("shared", None, [(0.02, "0.02"), (0.1, "0.1"), (0.5, "0.5"), (1, "1")]),
        ("shared", 0.08, [(0.08, "0.08"), (0.5, "0.5"), (1, "1")]),
        ("per-head", None, [(0.25, "0.2"), (0.5, "0.4"), (1, "0.8")]),
        ("log", 0.01, [(0, "0.01"), (0.5, "0.1"), (1 - math.log10(0.5) / -2, "0.5"), (1, "1")]),
    ],
)
def test_the_key_gives_examples_from_the_least_weight_drawn_on(scale, threshold, key):
    plan = plan_of(pattern_of((0, 0, 0.8)), look=Look(scale=scale), threshold=threshold)
    assert [text for _, text in plan.scale_key] == [text for _, text in key]
    assert [strength for strength, _ in plan.scale_key] == pytest.approx([strength for strength, _ in key])


@pytest.mark.parametrize("threshold", [0, 1])
def test_the_logarithmic_scale_stands_any_threshold(threshold):
    plan = plan_of(pattern_of((0, 0, 1.0), (1, 1, 1e-6)), look=Look(scale="log"), threshold=threshold)
    assert plan.strengths[-1] == 1
    assert np.isfinite(plan.strengths).all()


def test_weak_lines_are_dropped_and_the_picture_says_what_share_they_carry():
    plan = plan_of(pattern_of((0, 0, 0.96), (0, 1, 0.02), (0, 2, 0.015), (0, 3, 0.005)))
    assert lines_of(plan) == [(0, 0, 1), (0, 0, 0)]
    assert plan.threshold == 0.02
    assert plan.hidden == pytest.approx((0.02,), abs=1e-6)
    assert plan.reading == ("Weights below 0.02, 2% of the attention, are not drawn.",)


def test_where_nothing_is_dropped_the_picture_says_so():
    assert plan_of(pattern_of((0, 0, 1.0))).reading == ("All weights are drawn, none is below 0.02.",)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.3, 0.3, "30% of the attention of each head"),
        (0.1, 0.4, "10% to 40% of the attention of each head"),
        (0.002, 0.4, "up to 40% of the attention of each head"),
        (0.002, 0.0101, "up to 1% of the attention of each head"),
        (0.002, 0.003, "under 1% of the attention of each head"),
        (0.002, 0.998, "under 1% to over 99% of the attention of each head"),
        (0.0, 0.998, "0% to over 99% of the attention of each head"),
        (0.5, 1.0, "50% to 100% of the attention of each head"),
    ],
)
def test_the_hidden_share_of_several_heads_is_a_range(low, high, said):
    def hiding(share):
        """Half a unit on one weight, and beside it so much spread out that it is this share of all."""
        pattern = np.zeros((200, 200), np.float32)
        pattern[1:] = (0.5 * share / (1 - share) if share < 1 else 1) / (199 * 200)
        pattern[0, 0] = 0.5 if share < 1 else 0
        return pattern

    patterns = [hiding(low), hiding(high)]
    assert plan_of(*patterns).reading == (f"Weights below 0.02, {said}, are not drawn.",)


def test_the_threshold_rises_until_few_enough_lines_remain():
    pattern = random_pattern(100)
    plan = plan_of(pattern, pattern.T, pattern, pattern)
    assert plan.threshold > 0.02
    assert plan.threshold == round(plan.threshold, 3)
    assert 0.9 * MOST_LINES < len(plan.weights) <= MOST_LINES
    assert plan.weights[0] >= plan.threshold
    every = np.stack([pattern, pattern.T, pattern, pattern])
    assert len(plan.weights) == (every >= plan.threshold).sum()
    assert (every >= plan.threshold - 0.001).sum() > MOST_LINES  # and no higher than it takes


def test_weights_that_are_all_alike_are_drawn_all_or_not_at_all():
    plan = plan_of(np.full((48, 48), 1 / 48, np.float32))
    assert (plan.threshold, len(plan.weights)) == (0.021, 0)
    assert plan.reading == ("Weights below 0.021, 100% of the attention, are not drawn.",)
    assert len(plan_of(np.full((44, 44), 1 / 44, np.float32)).weights) == 44 * 44


def test_a_threshold_of_the_users_own_is_kept_to():
    pattern = pattern_of((0, 0, 0.3), (1, 1, 0.001), (2, 2, 0.2))
    assert len(plan_of(pattern, threshold=0).weights) == 3  # lines of no weight are not lines
    assert len(plan_of(pattern, threshold=0.25).weights) == 1


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan])
def test_a_threshold_that_is_no_weight_is_refused(threshold):
    with pytest.raises(UsageError, match=r"expected a threshold from 0 to 1, an attention weight, found"):
        plan_of(pattern_of(), threshold=threshold)


def test_a_threshold_that_leaves_too_many_lines_is_refused():
    with pytest.raises(UsageError, match=r"a threshold of 0 leaves 22,500 lines, but a picture holds 20,000; raise"):
        plan_of(np.full((150, 150), 1 / 150, np.float32), threshold=0)


@pytest.mark.parametrize("count", [0, MOST_HEADS + 1])
def test_more_heads_than_colours_are_refused(count):
    with pytest.raises(UsageError, match=rf"expected 1 to 8 heads .* found {count}; choose some with --select"):
        plan_lines(
            [pattern_of()] * count, list("abcd"), heads=[(HeadId(0, i), "x") for i in range(count)],
            quiet=[False] * 4, title="t", look=LIGHT,
        )  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": list("abc")},
        {"quiet": [True]},
        {"segments": [0]},
        {"heads": [(HeadId(0, 0), "x")] * 2},
        {"from_positions": [4]},
        {"from_positions": [-1]},
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes):
    with pytest.raises(ValueError, match=r"Got "):
        plan_of(pattern_of(), **changes)


@pytest.mark.parametrize(
    ("n", "pitch"), [(1, 24), (9, 24), (60, 20), (100, 12), (110, 1200 / 110), (512, 1200 / 512), (1024, 1200 / 1024)]
)
def test_rows_stand_as_far_apart_as_the_length_of_the_text_allows(n, pitch):
    layout = laid_out(plan_of(np.eye(n, dtype=np.float32)), 1200)
    assert layout.pitch == pytest.approx(pitch)
    assert layout.height == pytest.approx(min(1200, n * pitch))
    for named in layout.named:
        assert named == (tuple(range(n)) if pitch >= LEAST_DISTANCE else tuple(range(0, n, math.ceil(12 / pitch))))
        assert min(np.diff(named), default=1) * pitch >= LEAST_DISTANCE
    assert layout.font_size >= 5.5
    assert layout.font_size * 150 / 72 <= max(layout.pitch, LEAST_DISTANCE)
    assert layout.widest * 150 / 72 < max(layout.pitch, 1.3)


@pytest.mark.parametrize("width", [None, 3.3, 2.0])
@pytest.mark.parametrize("n", [60, 150, 512, 1024])
def test_a_picture_fits_on_a_page_whatever_the_length_of_the_text(n, width):
    look = Look(width=width)
    pattern = random_pattern(n)
    note = "“a rather long text that needs to be broken where a column of a page is narrow, and must be”"
    figure = lines_figure(plan_of(*[pattern] * 8, look=look, notes=[note]), look)
    height = figure.get_size_inches()[1] * 150
    assert height <= MOST_HEIGHT == 9 * 150
    assert height > MOST_HEIGHT - 150  # and a long text has all of it
    pixels_of(figure)
    names = figure.axes[0].texts
    assert min(text.get_fontsize() for text in names) >= SMALLEST_LETTERS == 5.5
    boxes = sorted((text.get_window_extent() for text in names), key=lambda box: (box.x0 > 150, -box.y0))
    middles = [(box.y0 + box.y1) / 2 for box in boxes]
    apart = -np.diff(middles)
    assert all(distance > 11.4 or distance < -100 for distance in apart)  # from the bottom left to the top right


def test_where_there_is_no_room_for_every_name_those_of_strong_lines_stand_and_the_picture_says_so():
    pattern = np.eye(300, dtype=np.float32) * 0.1
    pattern[:, 101] = 0.3
    pattern[202, 7] = 0.9
    plan = plan_of(pattern)
    layout = laid_out(plan, 1200)
    left, right = layout.named
    assert {99, 100, 101, 102, 103} & set(right) == {101}
    assert 202 in left
    for named in (left, right):
        assert named == tuple(sorted(set(named)))
        assert len(named) > 0.6 * 1200 / LEAST_DISTANCE  # as many as there is room for, or nearly
        assert min(np.diff(named)) * layout.pitch >= LEAST_DISTANCE
    said = "Not every token is named; those that give (left) or get (right) more attention come first."
    assert layout.reading == (*plan.reading, said)
    assert laid_out(plan_of(pattern, unit="word"), 1200).reading[-1].startswith("Not every word is named; those")
    figure = lines_figure(plan, LIGHT)
    assert texts(figure.texts)[2] == said
    assert ends(drawn_in(figure))[-1] == ([0, 202], [1, 7])  # lines are where their tokens are, named or not
    short = lines_figure(plan_of(np.eye(60, dtype=np.float32)), LIGHT)
    assert not any("named" in text for text in texts(short.texts))


def test_tokens_of_about_the_same_attention_are_named_evenly():
    pattern = np.diag(np.random.default_rng(0).uniform(0.8, 1, 300)).astype(np.float32)
    assert laid_out(plan_of(pattern), 1200).named == (tuple(range(0, 300, 3)),) * 2


def test_chosen_tokens_are_named_before_all_others():
    plan = plan_of(random_pattern(400) ** 0.1 / 400, from_positions=[100, 200], threshold=0.0001)
    assert max(plan.counts) == 1  # every token has a line
    left, _ = laid_out(plan, 1200).named
    assert {100, 200} <= set(left)


@pytest.mark.parametrize(
    ("ranks", "least", "chosen"),
    [
        ([0, 0, 0, 0, 0], 1, (0, 1, 2, 3, 4)),
        ([0, 0, 0, 0, 0], 2, (0, 2, 4)),
        ([0, 1, 0, 0, 0], 2, (1, 3)),
        ([0, 1, 0, 0, 2], 2, (1, 4)),
        ([0, 1, 2, 1, 0], 2, (0, 2, 4)),
        ([5, 1, 2, 1, 0], 10, (0,)),
    ],
)
def test_places_are_chosen_by_rank_and_apart(ranks, least, chosen):
    assert spaced_out([0.0, 1.0, 2.0, 3.0, 4.0], ranks, least) == chosen


def test_in_a_long_text_tokens_without_a_line_from_the_chosen_one_share_rows():
    pattern = pattern_of((20, 4, 0.5), (20, 21, 0.3), (20, 24, 0.1), (7, 8, 1.0), (20, 30, 0.01), n=50)
    plan = plan_of(pattern, from_positions=[20])
    assert plan.labels == (
        "… 4 tokens", "w4", "… 15 tokens", "w20", "w21", "w22", "w23", "w24", "… 25 tokens",
    )  # fmt: skip
    assert plan.counts == (4, 1, 15, 1, 1, 1, 1, 1, 25)
    assert sum(plan.counts) == 50
    assert plan.quiet == tuple(count > 1 for count in plan.counts)
    assert [(plan.labels[query], plan.labels[key]) for _, query, key in lines_of(plan)] == [
        ("w20", "w24"), ("w20", "w21"), ("w20", "w4"),
    ]  # fmt: skip
    assert plan.written == {1: "0.50", 4: "0.30", 7: "0.10"}
    assert plan.from_positions == (3,)
    assert plan.hidden == pytest.approx((0.01 / 0.91,))
    assert plan.reading[-1] == "Runs of tokens without a line share a row."
    assert plan.described().endswith("are not drawn; runs of tokens without a line share a row")
    assert plan_of(pattern, from_positions=[20], unit="word").labels[0] == "… 4 words"
    assert lines_figure(plan, LIGHT).get_size_inches()[1] < 3.5


def test_rows_are_shared_neither_in_short_texts_nor_without_a_chosen_token():
    n = WHOLE_ROWS
    short = plan_of(pattern_of((0, 1, 1.0), n=n), from_positions=[0])
    everything = plan_of(pattern_of((0, 1, 1.0), n=n + 1))
    assert (len(short.labels), len(everything.labels)) == (n, n + 1)
    assert (short.gathered, everything.gathered) == ("", "")
    assert not any("share" in line for line in (*short.reading, short.described(), *everything.reading))
    assert len(plan_of(pattern_of((0, 1, 1.0), n=n + 1), from_positions=[0]).labels) == 3


def test_shared_rows_end_where_a_text_ends():
    segments = [None, *[0] * 19, None, *[1] * 19, None]
    plan = plan_of(pattern_of((0, 0, 0.5), n=41), from_positions=[0], segments=segments)
    assert plan.labels == ("w0", "… 20 tokens", "… 20 tokens")
    assert plan.breaks == (2,)
    np.testing.assert_allclose(plan.rows, [0, 1, 2.9], rtol=1e-6)
    assert plan.extent == pytest.approx(3.9)


def test_where_a_shared_row_has_little_room_its_number_stays():
    pattern = pattern_of((50, 50, 1.0), n=400)
    figure = lines_figure(plan_of(pattern, from_positions=[50], look=Look(width=2.0)), Look(width=2.0))
    names = texts(figure.axes[0].texts)
    assert names[0] == "… 50"
    assert names[2] == "… 349"
    assert texts(lines_figure(plan_of(pattern, from_positions=[50]), LIGHT).axes[0].texts)[0] == "… 50 tokens"


def test_a_new_segment_begins_after_a_gap():
    plan = plan_of(np.eye(6, dtype=np.float32), segments=[None, 0, 0, None, 1, None])
    assert plan.breaks == (4,)
    np.testing.assert_allclose(plan.rows, [0, 1, 2, 3, 4.9, 5.9], rtol=1e-6)
    assert plan_of(np.eye(3, dtype=np.float32), segments=[None, 0, None]).breaks == ()
    assert plan_of(np.eye(3, dtype=np.float32)).rows.tolist() == [0, 1, 2]


def test_only_the_chosen_tokens_attention_is_planned_and_shares_are_of_it():
    pattern = pattern_of((0, 1, 1.0), (2, 0, 0.5), (2, 3, 0.01))
    plan = plan_of(pattern, from_positions=[2])
    assert lines_of(plan) == [(0, 2, 0)]
    assert plan.hidden == pytest.approx((0.01 / 0.51,))
    assert plan.reading == ("Weights below 0.02, 2% of the attention from the chosen token, are not drawn.",)
    assert plan.written == {0: "0.50"}
    two = plan_of(pattern, pattern, from_positions=[2, 0])
    assert two.reading == (
        "Weights below 0.02, under 1% of the attention from the chosen tokens of each head, are not drawn.",
    )
    assert (two.from_positions, two.written) == ((0, 2), {})


def test_lines_run_from_the_queries_row_left_to_the_keys_row_right():
    ax = new_axes()
    lines = draw_lines(ax, plan_of(pattern_of((0, 3, 0.5), (2, 1, 1.0))), LIGHT)
    assert ends(lines) == [([0, 0], [1, 3]), ([0, 2], [1, 1])]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # row 0 is at the top
    assert ax.get_xlim() == (0, 1)


def test_colour_tells_the_head_opacity_and_width_the_weight():
    patterns = pattern_of((0, 0, 0.5), (1, 1, 1.0)), pattern_of((0, 0, 0.3))
    ax = new_axes()
    lines = draw_lines(ax, plan_of(*patterns), LIGHT)
    colours = lines.get_edgecolors()
    assert [to_hex(colour[:3]) for colour in colours] == [HEAD_COLOURS["light"][i] for i in (1, 0, 0)]
    assert colours[:, 3].tolist() == [0.48, 0.62, 1.0]
    widths = lines.get_linewidths()
    assert all(thin < thick for thin, thick in pairwise(widths))
    pitch = ax.get_window_extent().height * 150 / ax.figure.dpi / 4
    assert widths[-1] == pytest.approx(LinesLayout(plan_of(*patterns), pitch).widest, abs=0.026)


def test_the_lines_of_two_heads_between_the_same_tokens_do_not_cover_each_other():
    patterns = [pattern_of((0, 3, 0.5 + 0.05 * head)) for head in range(8)]
    plan = plan_of(*patterns)
    starts = [start[1] for start, _ in ends(draw_lines(new_axes(), plan, LIGHT))]
    assert np.allclose(np.diff(starts), 0.6 / 8)
    assert np.mean(starts) == pytest.approx(0, abs=1e-6)
    assert max(map(abs, starts)) < 0.5  # within the row


def test_special_tokens_stand_back_on_both_sides():
    plan = plan_of(np.eye(3, dtype=np.float32), labels=["[CLS]", "cat", "dog"], quiet=[True, False, False])
    ax = new_axes()
    draw_lines(ax, plan, LIGHT)
    greys = THEMES["light"]
    expected = {"[CLS]": greys.quiet, "cat": greys.ink, "dog": greys.ink}
    assert columns(ax, plan) == [expected, expected]
    names = ax.texts[3].get_text(), ax.texts[7].get_text()
    assert names == ("attends from", "attended to")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_the_chosen_token_does_not_attend_to_stands_back(theme):
    look = Look(theme=theme)
    plan = plan_of(pattern_of((2, 0, 0.5), (2, 1, 0.4), (0, 3, 1.0)), look=look, from_positions=[2])
    ax = new_axes()
    draw_lines(ax, plan, look)
    ink, quiet = look.greys.ink, look.greys.quiet
    assert columns(ax, plan) == [
        {"w0": quiet, "w1": quiet, "w2": ink, "w3": quiet},
        {"0.50 w0": ink, "0.40 w1": ink, "w2": quiet, "w3": quiet},
    ]


def test_a_chosen_token_without_a_line_stands_out_all_the_same():
    plan = plan_of(pattern_of((2, 0, 0.01)), from_positions=[2])
    ax = new_axes()
    draw_lines(ax, plan, LIGHT)
    ink, quiet = LIGHT.greys.ink, LIGHT.greys.quiet
    assert columns(ax, plan) == [{"w0": quiet, "w1": quiet, "w2": ink, "w3": quiet}, dict.fromkeys(plan.labels, quiet)]


def test_a_rule_stands_between_two_segments():
    plan = plan_of(np.eye(4, dtype=np.float32), segments=[0, 0, 1, 1])
    ax = new_axes()
    draw_lines(ax, plan, LIGHT)
    (rule,) = ax.lines
    assert rule.get_ydata() == pytest.approx([1.95, 1.95])  # half-way between rows 1 and 2.9


def test_callers_axes_keep_their_place_and_get_title_notes_and_legend():
    figure = Figure(figsize=(8, 4))
    left, right = figure.subplots(1, 2)
    place = left.get_position().bounds
    draw_lines(left, plan_of(pattern_of((0, 0, 0.9)), pattern_of((1, 1, 0.9)), notes=["“a text”"]), LIGHT)
    pixels_of(figure)
    assert left.get_position().bounds == place
    assert left.get_title(loc="left") == "model: L0H0  local\n“a text”\nAll weights are drawn, none is below 0.02."
    weights, heads = (texts(legend.get_texts()) for legend in left.findobj(Legend))
    assert heads == ["L0H0 local", "L0H1 local"]
    assert weights == ["attention weight:", "0.02", "0.1", "0.5", "1"]
    assert not right.texts
    assert not right.collections
    assert figure.axes == [left, right]


def test_a_figure_has_title_notes_legend_and_key_in_its_own_colours():
    look = Look(theme="dark")
    plan = plan_of(pattern_of((0, 0, 0.9)), pattern_of((1, 1, 0.9)), look=look, notes=["“a text”"])
    figure = lines_figure(plan, look)
    assert texts(figure.texts) == [
        "model: L0H0  local", "“a text”", "All weights are drawn, none is below 0.02.",
        "L0H0 local", "L0H1 local", "attention weight:", "0.02", "0.1", "0.5", "1",
    ]  # fmt: skip
    samples = figure.artists
    assert [line.get_color() for line in samples] == [*HEAD_COLOURS["dark"][:2], *[look.greys.ink] * 4]
    assert to_hex(figure.get_facecolor()) == look.greys.paper
    widths = [line.get_linewidth() for line in samples[2:]]
    assert widths == sorted(widths)
    assert widths[-2] < drawn_in(figure).get_linewidths()[-1] < widths[-1]  # 0.9 is between 0.5 and 1


@pytest.mark.parametrize(
    ("scale", "count", "named"),
    [
        ("shared", 1, "attention weight:"),
        ("per-head", 1, "attention weight (scale of this head):"),
        ("per-head", 2, "attention weight (scale of each head):"),
        ("log", 1, "attention weight (log scale):"),
    ],
)
def test_the_key_says_which_scale(scale, count, named):
    look = Look(scale=scale)
    figure = lines_figure(plan_of(*[pattern_of((0, 0, 0.9))] * count, look=look), look)
    assert named in texts(figure.texts)


@pytest.mark.parametrize("width", [2.0, 3.3, 7.0, None])
@pytest.mark.parametrize("labels", [["a"] * 12, ["WWWWWWWWWWWWWWWWWWWW"] * 12])
def test_nothing_is_cut_off_or_overlaps_at_any_width(width, labels):
    look = Look(width=width)
    patterns = [random_pattern(12, seed) for seed in range(4)]
    note = "“a rather long text that needs to be broken where a column of a page is narrow, and must be”"
    figure = lines_figure(plan_of(*patterns, look=look, labels=labels, notes=[note]), look)
    pixels = pixels_of(figure)
    if width is not None:
        assert pixels.shape[1] == round(width * 150)
    for edge in (pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]):
        assert (edge == 255).all()
    boxes = [text.get_window_extent() for text in (*figure.texts, *figure.axes[0].texts)]
    clear = [box.shrunk(1, 0.6) for box in boxes]  # the boxes of lines of text touch, their letters do not
    assert not any(one.overlaps(other) for one, other in combinations(clear, 2))


@pytest.mark.parametrize("scale", ["shared", "per-head", "log"])
@pytest.mark.parametrize("width", [None, 3.3, 2.0])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_legend_is_whole_and_in_columns_at_any_width(scale, width, count):
    look = Look(scale=scale, width=width)
    heads = [(HeadId(0, head), "heterogeneous" if head % 2 else "sink") for head in range(count)]
    plan = plan_of(*[random_pattern(9, head) for head in range(count)], look=look, heads=heads, title="t")
    figure = lines_figure(plan, look)
    pixels_of(figure)
    legend = figure.texts[len(plan.reading) + 1 :]
    words = " ".join(text.get_text() for text in legend)
    assert "…" not in words
    for name in (*(plan.legend if count > 1 else ()), *(text for _, text in plan.scale_key)):
        assert name in words
    page = figure.bbox.width
    samples = [line.get_xdata()[0] * page for line in figure.artists]
    assert len(samples) == (count if count > 1 else 0) + len(plan.scale_key)
    assert all(text.get_window_extent().x0 > 14 - 0.1 and text.get_window_extent().x1 < page - 13 for text in legend)
    heads_at = {round(left) for left in samples[: count if count > 1 else 0]}
    assert len(heads_at) <= math.ceil(page / 200)  # aligned: no more left edges than columns


def test_on_callers_narrow_axes_names_are_thinned_texts_broken_and_legends_apart():
    figure = Figure(figsize=(4, 6), dpi=150)
    ax = figure.add_axes((0.3, 0.4, 0.4, 0.2))
    plan = plan_of(*[random_pattern(60, head) for head in range(8)], notes=["“a text that is longer than the axes”"])
    draw_lines(ax, plan, LIGHT)
    pixels_of(figure)
    names = [text.get_window_extent() for text in ax.texts]
    assert len(names) < 2 * 60 / 3
    assert not any(one.overlaps(other) for one, other in combinations([box.shrunk(1, 0.6) for box in names], 2))
    assert "Not every token is named" in ax.get_title(loc="left").replace("\n", " ")
    assert ax.get_title(loc="left").count("\n") > len(plan.reading) + 1
    weights, heads = (legend.get_window_extent() for legend in ax.findobj(Legend))
    assert not weights.overlaps(heads)


def test_columns_without_room_for_their_names_have_short_ones():
    look = Look(width=2.0)
    figure = lines_figure(plan_of(np.eye(2, dtype=np.float32), look=look), look)
    assert [figure.axes[0].texts[i].get_text() for i in (2, 5)] == ["from", "to"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_colours_of_heads_differ_for_any_colour_vision_and_from_the_paper(theme):
    colours = np.array([to_rgb(colour) for colour in HEAD_COLOURS[theme]]) ** 2.2
    paper = np.array(to_rgb(THEMES[theme].paper)) ** 2.2
    luminance = np.array([0.2126, 0.7152, 0.0722])
    assert len({*HEAD_COLOURS[theme]}) == MOST_HEADS
    for seen in (np.eye(3), PROTAN, DEUTAN):
        shown = (colours @ seen.T).clip(0, 1) ** (1 / 2.2)
        assert min(np.linalg.norm(one - other) for one, other in combinations(shown, 2)) > 0.12
    light = colours @ luminance
    contrast = (np.maximum(light, paper @ luminance) + 0.05) / (np.minimum(light, paper @ luminance) + 0.05)
    assert contrast.min() > 2


PROTAN = np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]])
DEUTAN = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]])
"""What people without red or green cones see of linear RGB (Machado et al. 2009, severity 1)."""


@pytest.mark.parametrize("file_format", ["svg", "pdf"])
def test_vector_files_are_the_same_on_every_run(file_format):
    look = Look(theme="dark")

    def made():
        plan = plan_of(random_pattern(9), random_pattern(9, 1), look=look, segments=[0] * 4 + [1] * 5)
        return figure_bytes(lines_figure(plan, look), file_format)

    assert made() == made()


def test_an_svg_holds_every_line_as_a_curve_and_every_label_as_text():
    plan = plan_of(random_pattern(9), labels=[f"token{i}" for i in range(9)])
    root = ET.fromstring(figure_bytes(lines_figure(plan, LIGHT), "svg"))
    curves = [path for path in root.iter(f"{SVG}path") if "C" in path.get("d", "")]
    assert len(curves) == len(plan.weights)
    written = [text.text for text in root.iter(f"{SVG}text")]
    assert sorted(text for text in written if text.startswith("token")) == sorted(2 * list(plan.labels))
    assert not list(root.iter(f"{SVG}image"))


def test_the_svg_of_400_tokens_is_small():
    plan = plan_of(*[random_pattern(400, seed) for seed in range(3)])
    assert 0.8 * MOST_LINES < len(plan.weights) <= MOST_LINES
    assert len(figure_bytes(lines_figure(plan, LIGHT), "svg")) < 700_000


@pytest.mark.parametrize("chosen", [None, [3, 77, 250]])
def test_the_svg_of_8_heads_and_512_tokens_is_small_and_its_text_is_text(chosen):
    plan = plan_of(*[random_pattern(512, seed) for seed in range(8)], from_positions=chosen)
    content = figure_bytes(lines_figure(plan, LIGHT), "svg")
    assert len(content) < 1_000_000
    written = [text.text for text in ET.fromstring(content).iter(f"{SVG}text")]
    left, right = laid_out(plan, 1200).named
    assert 0.9 * (len(left) + len(right)) < len(written)
    assert {"attends from", "attended to", "w77" if chosen else "w0"} <= set(written)


def test_a_text_of_1024_tokens_can_be_drawn():
    figure = lines_figure(plan_of(np.eye(1024, dtype=np.float32)), LIGHT)
    assert figure.get_size_inches()[1] <= 9
    assert len(drawn_in(figure).get_paths()) == 1024


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_hostile_texts_are_drawn_without_crash_or_warning(theme):
    look = Look(theme=theme, scale="per-head")
    pattern = random_pattern(len(HOSTILE))
    plan = plan_of(
        pattern, pattern, look=look, labels=HOSTILE, title="$\\frac$ 猫 [/b]", notes=["$x_{$ \\ \ue000"],
        heads=[(HeadId(0, 0), "$\\frac$"), (HeadId(0, 1), "🦄")],
    )  # fmt: skip
    figure = lines_figure(plan, look)
    for file_format in ("png", "svg", "pdf"):
        figure_bytes(figure, file_format, indexed=False) if file_format == "png" else figure_bytes(figure, file_format)
    shown = texts(figure.axes[0].texts)
    assert shown[:4] == HOSTILE[:4]
    assert not any(character in "".join(shown) for character in "\x1b\n\x00\t")
    ax = new_axes()
    draw_lines(ax, plan, look)
    pixels_of(ax.figure)


def test_long_labels_are_cut_at_twenty_characters():
    plan = plan_of(np.eye(2, dtype=np.float32), labels=["a" * 20, "b" * 21])
    assert plan.labels == ("a" * 20, "b" * 19 + "…")


def test_the_users_settings_neither_change_a_figure_nor_are_changed():
    plan = plan_of(random_pattern(9), random_pattern(9, 1), segments=[0] * 4 + [1] * 5)
    expected = pixels_of(lines_figure(plan, LIGHT))
    with matplotlib.rc_context(ODD_SETTINGS):
        before = dict(matplotlib.rcParams)
        figure = lines_figure(plan, LIGHT)
        found = pixels_of(figure)
        assert dict(matplotlib.rcParams) == before
    np.testing.assert_array_equal(found, expected)
    before = dict(matplotlib.rcParams)
    draw_lines(new_axes(), plan, LIGHT)
    assert dict(matplotlib.rcParams) == before


def test_a_picture_without_a_single_line_can_be_drawn():
    figure = lines_figure(plan_of(np.full((60, 60), 1 / 60, np.float32)), LIGHT)
    pixels_of(figure)
    assert not drawn_in(figure).get_paths()


@pytest.mark.parametrize(
    ("token", "positions"), [("the", (0, 2)), ("cat", (1,)), ("#3", (3,)), ("#0", (0,)), ("#4", (2, 4))]
)
def test_tokens_are_found_by_text_or_else_by_number(token, positions):
    labels = ["the", "cat", "the", "dog", "#4"]
    if token == "#4":
        labels[2] = "#4"  # a token that looks like a number is a token
    assert find_positions(labels, token) == positions


@pytest.mark.parametrize("token", ["mouse", "#5", "#-1", "#", "", "#１"])
def test_an_unknown_token_is_answered_with_all_there_are(token):
    message = rf"no token “{token}” in the text: expected one of the, cat, dog, \[SEP\], or a position from #0 to #4\."
    with pytest.raises(UsageError, match=message):
        find_positions(["the", "cat", "the", "dog", "[SEP]"], token)


@pytest.mark.parametrize(
    ("token", "example"),
    [(2, "write '#2' for the token at position 2"), (-1, "write 'cat' or '#2'"), (True, "write 'cat' or '#2'"),
     (["cat"], "write 'cat' or '#2'"), (b"cat", "write 'cat' or '#2'")],
)  # fmt: skip
def test_a_token_that_is_no_string_is_refused(token, example):
    analysis = hand_made()
    with pytest.raises(UsageError) as refused:
        analysis.lines(["L0H0"], from_token=token)
    assert str(refused.value) == (
        "expected the token that lines start from (from_token) as a string, its text or '#' and its position, "
        f"found {token!r}: {example}."
    )


def test_no_heads_at_all_are_refused():
    with pytest.raises(UsageError, match=r"expected at least one head to draw lines of, found none: select some, such"):
        list(lines_figures(hand_made(), [], LIGHT))


@pytest.mark.parametrize("threshold", ["0.1", [0.1]])
def test_a_threshold_that_is_no_number_is_refused(threshold):
    with pytest.raises(UsageError, match=r"expected a threshold from 0 to 1, an attention weight, found \W"):
        plan_of(pattern_of(), threshold=threshold)


def test_in_a_long_text_the_nearest_tokens_are_named():
    labels = [f"w{'x' * i}" for i in range(30)] + ["president"]
    with pytest.raises(UsageError, match=r"expected a token as figures show it \(near: president\), or a position"):
        find_positions(labels, "presidents")
    with pytest.raises(UsageError, match=r"no token “\\x1b” .* expected a token as figures show it, or a position"):
        find_positions(labels, "\x1b")


def test_few_heads_share_one_picture_with_an_honest_caption():
    analysis = hand_made(pair="and then")
    ((stem, figure, caption),) = lines_figures(analysis, analysis.select(["L0H0", "L1H0"]), LIGHT)
    assert stem == "lines"
    assert texts(figure.texts)[:3] == [
        "by-hand: 2 heads",
        "“the cat ran away” / “and then” (6 tokens)",
        "All weights are drawn, none is below 0.02.",
    ]
    assert caption == (
        "Attention in by-hand on “the cat ran away” and “and then”, heads L0H0 (previous-token), L1H0 (sink): lines "
        "run from the token that attends (left) to the token attended to (right), their width and opacity the "
        "attention weight on a scale from 0 to 1 that is the same for every head; all weights are drawn, none is "
        "below 0.02."
    )


def test_the_planned_lines_are_the_verified_patterns():
    analysis = hand_made()
    ((_, plan, _),) = lines_plans(analysis, analysis.heads, LIGHT)
    drawn = np.zeros((4, 6, 6), np.float32)
    drawn[plan.head, plan.query, plan.key] = plan.weights
    np.testing.assert_array_equal(drawn, by_design(6).reshape(4, 6, 6).numpy())
    assert plan.labels == LABELS
    assert plan.quiet == (True, False, False, False, False, True)


def test_one_tokens_attention_is_named_in_title_and_caption():
    analysis = hand_made(labels=("[CLS]", "the", "cat", "the", "dog", "[SEP]"))
    ((_, plan, caption),) = lines_plans(analysis, analysis.select(["L0H1"]), LIGHT, "the")
    assert plan.title == "by-hand: L0H1  broad, from “the” (#1, #3)"
    assert caption.startswith("Attention from “the” (#1, #3) alone in by-hand on “the cat ran away”, head L0H1 (broad)")
    assert set(plan.query.tolist()) == {1, 3}


def test_many_equal_tokens_are_not_all_numbered():
    analysis = hand_made(labels=("[CLS]", *["the"] * 6, "[SEP]"), special=(0, 7), patterns=by_design(8))
    ((_, plan, _),) = lines_plans(analysis, analysis.select(["L0H1"]), LIGHT, "the")
    assert plan.title.endswith("from “the” (#1, #2, #3, #4, …)")
    assert plan.from_positions == (1, 2, 3, 4, 5, 6)


def test_special_tokens_are_dropped_rows_renormalised_and_both_said():
    analysis = hand_made()
    ((_, plan, caption),) = lines_plans(analysis, analysis.select(["L1H1"]), LIGHT, "#2", drop_special=True)
    assert plan.title == "by-hand: L1H1  current-token, from “cat” (#2), special tokens dropped, rows renormalised"
    assert "(current-token): special tokens dropped, rows renormalised; lines run" in caption
    assert plan.labels == LABELS[1:5]
    assert lines_of(plan) == [(0, 1, 0), (0, 1, 1)]  # numbers are those of the whole text, rows those of what is left
    np.testing.assert_allclose(plan.weights, [1 / 3, 2 / 3], rtol=1e-6)


@pytest.mark.parametrize(("n", "counted"), [(6, "(4 tokens)"), (3, "(1 token)")])
def test_the_tokens_that_are_drawn_are_counted(n, counted):
    labels = ["[CLS]", *[f"w{i}" for i in range(n - 2)], "[SEP]"]
    analysis = hand_made(labels=labels, special=(0, n - 1), patterns=by_design(n))
    ((_, dropped, _),) = lines_plans(analysis, analysis.select(["L0H0"]), LIGHT, drop_special=True)
    assert dropped.reading[0].endswith(counted)
    assert len(dropped.labels) == n - 2
    ((_, kept, _),) = lines_plans(analysis, analysis.select(["L0H0"]), LIGHT)
    assert kept.reading[0].endswith(f"({n} tokens)")


def test_a_row_with_nothing_left_stays_empty():
    analysis = hand_made()
    ((_, plan, _),) = lines_plans(analysis, analysis.select(["L1H0"]), LIGHT, drop_special=True)
    assert not lines_of(plan)  # all of it went to [CLS]
    assert plan.reading[-1] == "All weights are drawn, none is below 0.02."


def test_where_nothing_is_dropped_nothing_is_said_of_it():
    analysis = hand_made()
    ((_, plan, caption),) = lines_plans(analysis, analysis.select(["L0H0"]), LIGHT)
    assert "dropped" not in plan.title + caption


def test_what_cannot_be_shown_without_special_tokens_is_refused():
    analysis = hand_made()
    with pytest.raises(UsageError, match=r"“\[CLS\]” is among the tokens that are dropped; keep them to see"):
        list(lines_plans(analysis, analysis.heads, LIGHT, "[CLS]", drop_special=True))
    bare = hand_made(labels=("[CLS]", "[SEP]"), special=(0, 1), patterns=by_design(2))
    with pytest.raises(UsageError, match=r"leaves nothing of this text to draw"):
        list(lines_plans(bare, bare.heads, LIGHT, drop_special=True))


def many_heads(n=6, layers=8):
    return hand_made(
        labels=["[CLS]", *[f"w{i}" for i in range(n - 2)], "[SEP]"],
        special=(0, n - 1),
        patterns=torch.cat([by_design(n)] * (layers // 2)),
    )


def test_more_heads_than_colours_get_a_picture_each():
    analysis = many_heads()
    heads = analysis.heads[:9]
    assert heads_with_lines(analysis, heads) == (list(heads), "")
    made = list(lines_plans(analysis, heads, LIGHT))
    assert [stem for stem, _, _ in made[:3]] == ["lines/L00H00", "lines/L00H01", "lines/L01H00"]
    assert [plan.heads[0][0] for _, plan, _ in made] == [head.id for head in heads]
    assert made[0][1].title == "by-hand: L0H0  previous-token"


@pytest.mark.parametrize(("n", "most"), [(6, MOST_PICTURES), (200, MOST_ROWS // 200)])
def test_of_very_many_heads_those_furthest_above_their_baselines_are_drawn(n, most):
    analysis = many_heads(n, layers=20)
    chosen, message = heads_with_lines(analysis, analysis.heads)
    assert len(chosen) == most
    assert message.startswith(
        f"lines are drawn of {most} of the 40 heads, those furthest above their baselines; choose"
    )
    assert chosen == [head for head in analysis.heads if head in chosen]  # the model's order
    margins = [head.strongest.margin for head in analysis.heads if head not in chosen]
    assert max(margins) <= min(head.strongest.margin for head in chosen)


@pytest.mark.parametrize("drop_special", [False, True])
def test_only_rows_that_are_drawn_count_where_tokens_share_them(drop_special):
    analysis = many_heads(398, layers=20)
    assert len(heads_with_lines(analysis, analysis.heads)[0]) == MOST_ROWS // 398
    made = list(lines_plans(analysis, analysis.heads, LIGHT, "#9", drop_special))
    assert len(made) == MOST_PICTURES
    assert sum(len(plan.labels) for _, plan, _ in made) < MOST_ROWS / 5
    chosen, message = heads_with_lines(without_sinks(analysis) if drop_special else analysis, analysis.heads, "#9")
    assert [plan.heads[0][0] for _, plan, _ in made] == [head.id for head in chosen]
    assert message.startswith(f"lines are drawn of {MOST_PICTURES} of the 40 heads")


def test_rows_that_are_drawn_are_no_more_than_the_limit(monkeypatch):
    analysis = many_heads(60, layers=20)
    rows = [len(plan.labels) for _, plan, _ in lines_plans(analysis, analysis.heads, LIGHT, "#9")]
    monkeypatch.setattr("attnviz.figures.line_views.MOST_ROWS", sum(sorted(rows)[:10]))
    made = list(lines_plans(analysis, analysis.heads, LIGHT, "#9"))
    assert 5 <= len(made) <= 10
    assert sum(len(plan.labels) for _, plan, _ in made) <= sum(sorted(rows)[:10])


def test_one_plan_of_lines_is_had_from_an_analysis():
    analysis = many_heads()
    ((_, expected, _),) = lines_plans(analysis, analysis.select(["L0", "L1H1"]), DARK, "w2", True, 0.1)
    found = lines_plan(analysis, ["L0", "L1H1"], DARK, from_token="w2", drop_special=True, threshold=0.1)
    assert (found.title, found.heads, found.threshold) == (expected.title, expected.heads, 0.1)
    np.testing.assert_array_equal(found.weights, expected.weights)
    assert lines_plan(analysis, "L0H1").heads == ((HeadId(0, 1), analysis.head("L0H1").label),)
    with pytest.raises(UsageError, match=r"expected 1 to 8 heads in one picture of lines, .* found 16; choose some"):
        lines_plan(analysis, [])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("n", [9, 40])
def test_every_sample_of_the_legend_can_be_seen(n, theme):
    look = Look(theme=theme)
    figure = lines_figure(plan_of(random_pattern(n), look=look), look)
    pixels = pixels_of(figure).astype(int)
    samples = [line for line in figure.artists if isinstance(line, Line2D)]
    assert len(samples) == 4
    paper = np.array([round(255 * part) for part in to_rgb(look.greys.paper)])
    for line in samples:
        (left, right), (y, _) = line.get_data()
        row = round((1 - y) * len(pixels))
        around = pixels[row - 3 : row + 4, round((left + right) / 2 * pixels.shape[1])]
        assert np.abs(around - paper).sum(1).max() > 60


@pytest.mark.parametrize("width", [None, 3.3, 2.0])
def test_a_word_too_long_for_its_line_keeps_its_closing_quotation_mark(width):
    word = "Pneumonoultramicroscopicsilicovolcanoconiosisand…"
    look = Look(width=width)
    plan = plan_of(random_pattern(4), title=f"a: L0H0, from “{word}” (#1)", notes=[f"“{word}” (4 tokens)"], look=look)
    for written in (texts(lines_figure(plan, look).texts), [drawn_title(plan, look, width or 4)]):
        said = " ".join(written)
        assert said.count("“") == said.count("”") == 2


def drawn_title(plan, look, width):
    ax = Figure(figsize=(width, 3)).add_axes((0.2, 0.2, 0.6, 0.5))
    draw_lines(ax, plan, look)
    return ax.get_title(loc="left")


def test_heads_that_cannot_be_measured_come_last():
    analysis = hand_made(
        labels=("[CLS]", "[SEP]"), special=(0, 1), patterns=torch.cat([by_design(2)] * 13),
    )  # fmt: skip
    unmeasured = [head for head in analysis.heads if head.strongest is None]
    assert len(unmeasured) == 39
    chosen, _ = heads_with_lines(analysis, [*unmeasured, *(h for h in analysis.heads if h.strongest is not None)])
    left_out = [head for head in analysis.heads if head not in chosen]
    assert left_out == unmeasured[MOST_PICTURES - 13 :]


def test_words_are_called_words():
    analysis = hand_made(words=True)
    ((_, plan, caption),) = lines_plans(analysis, analysis.select(["L0H0"]), LIGHT)
    assert plan.unit == "word"
    assert "from the word that attends" in caption


def test_drawing_needs_no_more_than_an_axes_of_a_subfigure():
    figure = Figure(figsize=(6, 3))
    ax = figure.subfigures(1, 2)[0].add_axes((0.3, 0.2, 0.4, 0.5))
    lines = draw_lines(ax, plan_of(random_pattern(4)), LIGHT)
    FigureCanvasAgg(figure).draw()
    assert lines in ax.collections
