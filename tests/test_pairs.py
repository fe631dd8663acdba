"""A sentence pair: shares of the four blocks and of the special tokens, and their pictures."""

import re
from dataclasses import replace
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm, to_hex
from matplotlib.figure import Figure

from attnviz.commands.heads.analysis import analyze
from attnviz.errors import UsageError
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.look import SCALES, Look
from attnviz.figures.pair_heatmaps import (
    draw_pair_heatmap,
    pair_heatmap_figure,
    pair_segments,
    percent,
    plan_pair_heatmap,
)
from attnviz.figures.pairs import draw_pair, pair_figure, pair_figures, pair_norm, plan_pair
from attnviz.figures.rendering import figure_bytes
from tests.hand_made import by_design, hand_made
from tests.test_drawing import HOSTILE, ODD_SETTINGS, pixels_of, texts

LABELS = ("[CLS]", "the", "cat", "ran", "[SEP]", "it", "was", "[SEP]")
PLAIN = Look()
LOOKS = [Look(), Look("dark", "log"), Look("light", "per-head", 3.3), Look("dark", "shared", 2.0)]


def pair_of(patterns=None, labels=LABELS, a=3, text="the cat ran", pair="it was", **changes):
    n = len(labels)
    special = (0, a + 1, n - 1)
    given = by_design(n) if patterns is None else patterns
    found = hand_made(labels=labels, special=special, patterns=given, text=text, pair=pair, **changes)
    segments = tuple(None if i in special else int(i > a) for i in range(n))
    return replace(found, tokens=replace(found.tokens, segments=segments))


def random_pair(n_layers, n_heads, labels=LABELS, **changes):
    random = np.random.default_rng(1)
    n = len(labels)
    drawn = random.dirichlet(np.ones(n) / 2, (n_layers, n_heads, n))
    return pair_of(torch.tensor(drawn, dtype=torch.float32), labels=labels, **changes)


def long_pair(n, n_layers=1, n_heads=1):
    return random_pair(n_layers, n_heads, labels=[f"w{i}" for i in range(n)], a=(n - 3) // 2)


@pytest.fixture(scope="module")
def found():
    return pair_of()


def heatmap_of(found, head="L0H0", look=PLAIN):
    segments = pair_segments(found)
    one = found.head(head)
    pattern = found.layer_patterns(one.id.layer)[one.id.head].numpy()
    return plan_pair_heatmap(found, one, pattern, segments, look)


def test_the_segments_are_those_of_the_tokens(found):
    segments = pair_segments(found)
    assert segments.members == ((1, 2, 3), (5, 6), (0, 4, 7))
    assert segments.uniform.tolist() == [3 / 8, 2 / 8, 3 / 8]


def test_the_shares_of_hand_made_heads_are_right(found):
    shares = plan_pair(found).shares
    expected = {
        (0, 0): [[2 / 3, 0, 1 / 3], [0, 1 / 2, 1 / 2]],  # previous token
        (0, 1): [[3 / 8, 2 / 8, 3 / 8]] * 2,  # uniform
        (1, 0): [[0, 0, 1]] * 2,  # first token
        (1, 1): [[1 / 2 + 1 / 6, 0, 1 / 4 + 1 / 12], [0, 1 / 2 + 1 / 8, 1 / 4 + 1 / 8]],
    }
    for place, of_head in expected.items():
        np.testing.assert_allclose(shares[place], of_head, atol=1e-6)


def test_the_shares_are_means_of_sums_over_the_definition():
    found = random_pair(2, 3)
    groups = ((1, 2, 3), (5, 6), (0, 4, 7))
    shares = plan_pair(found).shares
    for layer in range(2):
        patterns = found.layer_patterns(layer)
        for head in range(3):
            for x, source in enumerate(groups[:2]):
                for y, target in enumerate(groups):
                    by_hand = sum(float(patterns[head, q, k]) for q in source for k in target) / len(source)
                    assert shares[layer, head, x, y] == pytest.approx(by_hand, abs=1e-6)
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-6)


def test_without_a_pair_the_error_says_what_to_do():
    for attempt in (pair_segments, plan_pair, lambda one: next(pair_figures(one, one.heads, Look()))):
        with pytest.raises(UsageError, match=r"^pair needs --pair: expected two texts, found one; give the second"):
            attempt(hand_made())


@pytest.mark.parametrize(("left", "which"), [(0, "second"), (1, "first")])
def test_a_text_of_which_nothing_is_left_is_refused(found, left, which):
    segments = tuple(segment if segment is None else left for segment in found.tokens.segments)
    one = replace(found, tokens=replace(found.tokens, segments=segments))
    with pytest.raises(UsageError, match=f"no token is left of the {which} one"):
        pair_segments(one)


def test_words_are_counted_as_words():
    plan = plan_pair(pair_of(words=True))
    assert plan.unit == "word"
    assert plan.text == "“the cat ran” / “it was” (8 words)"
    assert "How the words of A and of B" in plan.notes(Look())[1]


def test_a_real_model(bert_folder):
    found = analyze("the cat saw", str(bert_folder), pair="it ran away", syntax=False, device="cpu")
    shares = plan_pair(found).shares
    assert shares.shape == (3, 4, 2, 3)
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-5)


def blocks_of(ax):
    (blocks,) = [child for child in ax.collections if isinstance(child, PolyCollection)]
    return blocks


def drawn(plan, look=PLAIN, size=(6, 4)):
    ax = Figure(figsize=size, dpi=150).add_axes((0.1, 0.1, 0.8, 0.8))
    return ax, draw_pair(ax, plan, look)


def test_every_head_has_a_tile_of_six_blocks_in_its_place(found):
    plan = plan_pair(found)
    ax, blocks = drawn(plan)
    np.testing.assert_allclose(blocks.get_array(), 100 * plan.shares.ravel())
    centres = [path.vertices[:4].mean(0) for path in blocks.get_paths()]
    for (layer, head, source, target), (x, y) in zip(np.ndindex(plan.shares.shape), centres, strict=True):
        assert (round(x), round(y)) == (head, layer)
        assert (y > layer) == (source == 1)  # from A above from B
        assert np.digitize(x - head, [-0.16, 0.15]) == target
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_numbers_are_percent_and_bold_where_above_uniform_attention(found):
    plan = plan_pair(found)
    ax, _ = drawn(plan, size=(4, 2))
    first = [(text.get_text(), text.get_weight()) for text in ax.texts[:6]]
    assert first == [("67", "bold"), ("0", "normal"), ("33", "normal"), ("0", "normal"), ("50", "bold"), ("50", "bold")]
    uniform = [text.get_weight() for text in ax.texts[6:12]]
    assert uniform == ["normal"] * 6
    assert len(ax.texts) == 24


def test_where_tiles_are_too_small_there_are_no_numbers_and_no_word_about_bold():
    found = random_pair(2, 12)
    plan = plan_pair(found)
    narrow = Look(width=3.3)
    assert not pair_figure(plan, narrow).axes[0].texts
    assert "Bold" not in plan.notes(narrow)[1]
    assert len(pair_figure(plan, Look()).axes[0].texts) == 144
    assert plan.notes(Look())[1].endswith("Bold: more than uniform attention gives.")


def test_numbers_stay_inside_their_blocks():
    figure = pair_figure(plan_pair(random_pair(2, 12)), Look())
    pixels_of(figure)
    ax = figure.axes[0]
    block = 0.27 * ax.get_window_extent().width / 12
    assert max(text.get_window_extent().width for text in ax.texts) <= block


def test_many_heads_get_smaller_tiles():
    figure = pair_figure(plan_pair(random_pair(1, 20)), Look())
    assert figure.axes[0].get_window_extent().width == pytest.approx(20 * 36)


def test_the_key_holds_uniform_attention_and_names_rows_and_columns(found):
    key = pair_figure(plan_pair(found), Look()).axes[1]
    np.testing.assert_allclose(blocks_of(key).get_array(), [37.5, 25, 37.5] * 2)
    assert texts(key.texts) == ["38", "25", "38"] * 2
    assert {text.get_weight() for text in key.texts} == {"normal"}
    assert texts(key.get_xticklabels()) == ["to A", "to B", "special"]
    assert texts(key.get_yticklabels()) == ["from A", "from B"]
    assert key.get_xlabel() == "uniform attention"


@pytest.mark.parametrize(
    ("look", "limits", "name"),
    [
        (Look(), (0, 100), "share (percent; shared scale)"),
        (Look(scale="per-head"), (0, 80), "share (percent; scale of this picture)"),
        (Look(scale="log"), (1, 100), "share (percent; log scale)"),
    ],
)
def test_the_scales(found, look, limits, name):
    plan = plan_pair(found)
    plan = replace(plan, shares=plan.shares * 0.8)
    norm = pair_norm(plan, look)
    assert (norm.vmin, norm.vmax) == pytest.approx(limits)
    assert isinstance(norm, LogNorm) == (look.scale == "log")
    bar = pair_figure(plan, look).axes[2]
    assert bar.get_xlim() == pytest.approx(limits)
    assert bar.get_xlabel() == name


@pytest.mark.parametrize("width", [2, 3.3])
@pytest.mark.parametrize("scale", SCALES)
def test_a_bar_says_its_scale_in_whole_words_and_numbers_both_its_ends(found, width, scale):
    look = Look(scale=scale, width=width)
    plan = heatmap_of(found, look=look)
    for figure in (pair_heatmap_figure(plan, look), pair_figure(plan_pair(found), look)):
        pixels_of(figure)
        bar = figure.axes[-1]
        words = {"shared": "shared scale", "per-head": "scale of this", "log": "log scale"}[scale]
        assert words in bar.get_xlabel().replace("\n", " ")
        assert "…" not in bar.get_xlabel()
        assert bar.get_xticks()[[0, -1]] == pytest.approx(bar.get_xlim())
        boxes = [text.get_window_extent() for text in (*bar.get_xticklabels(), bar.xaxis.label)]
        assert min(box.x0 for box in boxes) > 0
        assert max(box.x1 for box in boxes) < figure.bbox.width
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))


@pytest.mark.parametrize(
    ("look", "scale"),
    [
        (Look(), "colours from 0 to 100 %"),
        (Look(scale="per-head"), "colours from 0 to the largest share, 100 %"),
        (Look(scale="log"), "logarithmic colours from 1 to 100 %"),
    ],
)
def test_the_caption_of_all_heads(found, look, scale):
    assert plan_pair(found).caption(look) == (
        "by-hand on text A, “the cat ran”, and text B, “it was” (8 tokens in all): share of the attention of A (upper "
        "row of each tile) and of B (lower row) that lands on A, on B and on the special tokens, mean over the tokens "
        "of the attending text, in percent, for each of the 2 × 2 heads (uniform attention: 38 % on A, 25 % on B, "
        f"38 % on special tokens); {scale}."
    )


def test_all_heads_get_one_picture_and_a_selection_also_one_a_head(found):
    assert [stem for stem, _, _ in pair_figures(found, found.heads, Look())] == ["pair"]
    chosen = found.select(["L0H1", "L1"])
    assert [stem for stem, _, _ in pair_figures(found, chosen, Look())] == [
        "pair",
        "pair/L00H01",
        "pair/L01H00",
        "pair/L01H01",
    ]
    shares = [figure.axes[0].texts for _, figure, _ in pair_figures(found, chosen, Look())]
    assert any("→ special 100 %" in text.get_text() for text in shares[2])  # L1H0 attends to the first


def test_a_heatmap_has_rules_between_the_blocks_and_shares_beside_their_rows(found):
    plan = heatmap_of(found)
    assert plan.spans == ((1, 4), (5, 7))
    figure = pair_heatmap_figure(plan, Look())
    ax = figure.axes[0]
    edges = sorted(line.get_ydata()[0] for line in ax.lines if list(line.get_xdata()) == [0, 1])
    assert edges == [0.5, 3.5, 4.5, 6.5]
    assert sorted(line.get_xdata()[0] for line in ax.lines if list(line.get_ydata()) == [0, 1]) == edges
    shown = {text.get_text(): text.xy for text in ax.texts if hasattr(text, "xy")}
    assert shown.keys() == {
        "A",
        "B",
        "from A\n→ A 67 %\n→ B 0 %\n→ special 33 %",
        "from B\n→ A 0 %\n→ B 50 %\n→ special 50 %",
    }
    assert shown["A"] == (pytest.approx(2.5 / 8), 1)
    assert shown["from A\n→ A 67 %\n→ B 0 %\n→ special 33 %"] == (1, pytest.approx(1 - 2.5 / 8))
    assert figure.axes[1].get_xlabel() == "attention weight (shared scale)"


def test_labels_stand_at_rows_and_columns_and_special_tokens_stand_back(found):
    figure = pair_heatmap_figure(heatmap_of(found), Look())
    ax = figure.axes[0]
    assert texts(ax.get_yticklabels()) == texts(ax.get_xticklabels()) == list(LABELS)
    quiet = [to_hex(label.get_color()) == Look().greys.quiet for label in ax.get_yticklabels()]
    assert quiet == [True, False, False, False, True, False, False, True]


@pytest.mark.parametrize("n", [5, 8, 60])
def test_the_shares_of_a_and_b_do_not_overlap(n):
    look = Look(width=3.3)
    figure = pair_heatmap_figure(heatmap_of(long_pair(n), look=look), look)
    pixels_of(figure)
    beside = [text for text in figure.axes[0].texts if text.get_text().startswith("from")]
    a, b = (text.get_window_extent() for text in beside)
    assert a.y0 >= b.y1 - 1
    right = figure.axes[0].get_window_extent().x1
    assert min(a.x0, b.x0) > right


def test_where_there_is_no_room_beside_the_shares_stand_above(found):
    look = Look(width=2)
    plan = heatmap_of(found, look=look)
    assert not plan.beside
    assert plan.notes[2] == (
        "From A 67 % to A, 0 % to B, 33 % to special tokens; from B 0 % to A, 50 % to B, 50 % to special tokens."
    )
    figure = pair_heatmap_figure(plan, look)
    assert [text.get_text() for text in figure.axes[0].texts if hasattr(text, "xy")] == ["A", "B"]
    assert heatmap_of(found).notes == (
        "A / B: “the cat ran” / “it was” (8 tokens)",
        "Shares of a text’s attention on A, B and the special tokens; uniform attention: 38 % on A, 25 % on B, "
        "38 % on special tokens.",
    )


def test_a_long_pair_is_pooled_for_drawing_but_its_shares_are_not():
    found = long_pair(1000)
    plan = heatmap_of(found)
    assert (plan.pooled, plan.values.shape) == (2, (500, 500))
    pattern = found.layer_patterns(0)[0].numpy()
    assert plan.values[0, 0] == pattern[:2, :2].max()
    np.testing.assert_array_equal(plan.shares, pair_segments(found).shares(pattern))
    assert plan.notes[-1] == "Each cell is the largest of 2 × 2 weights (for drawing only)."
    assert plan.notes[-2] == "Every 14th token is named."
    assert plan.caption(Look()).endswith("; each cell is the largest of 2 × 2 weights.")
    figure = pair_heatmap_figure(plan, Look())
    edges = sorted(line.get_ydata()[0] for line in figure.axes[0].lines if list(line.get_xdata()) == [0, 1])
    assert edges == [0.0, 249.0, 249.5, 499.0]  # positions 1, 499, 500 and 999, two to a cell


@pytest.mark.parametrize(
    ("look", "scale"),
    [
        (Look(), "colours from 0 to 1"),
        (Look(scale="per-head"), "colours from 0 to the head’s largest weight, 1.00"),
        (Look(scale="log"), "logarithmic colours from 0.0001 to 1"),
    ],
)
def test_the_caption_of_one_head(found, look, scale):
    plan = heatmap_of(found, look=look)
    assert plan.caption(look) == (
        "by-hand on text A, “the cat ran”, and text B, “it was” (8 tokens in all): attention weights of L0H0 "
        "(previous-token); from A 67 % to A, 0 % to B, 33 % to special tokens; from B 0 % to A, 50 % to B, 50 % to "
        f"special tokens (uniform attention: 38 % on A, 25 % on B, 38 % on special tokens); {scale}."
    )
    assert plan.title == "by-hand L0H0 (previous-token)"


def test_percent_is_whole():
    assert [percent(share) for share in (0.0, 0.004, 0.126, 1.0)] == ["0", "0", "13", "100"]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("n", [5, 9, 60, 300])
def test_nothing_runs_over_the_edge_and_the_width_is_kept(n, look):
    paper = [int(look.greys.paper[i : i + 2], 16) for i in (1, 3, 5)]
    found = long_pair(n, 2, 4)
    for _, figure, _ in pair_figures(found, found.select(["L1H1"]), look):
        pixels = pixels_of(figure)
        assert all((edge == paper).all() for edge in (pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]))
        if look.width is not None:
            assert pixels.shape[1] == round(look.width * 150)


@pytest.mark.parametrize("hostile", [*(label for label in HOSTILE if label), "W" * 300])
def test_hostile_texts_are_drawn_without_crash_or_warning(hostile):
    labels = ["[CLS]", hostile, "x", "[SEP]", hostile, "[SEP]"]
    found = random_pair(1, 2, labels=labels, a=2, text=hostile, pair=hostile, name=hostile)
    for _, figure, caption in pair_figures(found, found.heads[:1], Look()):
        pixels_of(figure)
        assert not re.search(r"[\x00-\x1f]", caption)


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_files_are_the_same_on_every_run(found, file_format):
    first, second = (
        [
            figure_bytes(figure, file_format, indexed=False)
            for _, figure, _ in pair_figures(found, found.heads[1:2], Look("dark"))
        ]
        for _ in range(2)
    )
    assert first == second
    assert len(first) == 2


def test_text_in_svg_stays_text(found):
    content = figure_bytes(pair_figure(plan_pair(found), Look()), "svg", indexed=False).decode()
    assert ">from A</text>" in content
    assert ">67</text>" in content


def test_the_users_settings_neither_change_the_figures_nor_are_changed(found):
    def figures():
        return [figure for _, figure, _ in pair_figures(found, found.heads[:1], Look())]

    expected = [pixels_of(figure) for figure in figures()]
    with matplotlib.rc_context(ODD_SETTINGS):
        before = dict(matplotlib.rcParams)
        odd = figures()
        drawn(plan_pair(found))
        draw_pair_heatmap(Figure().add_axes((0.2, 0.2, 0.5, 0.5)), heatmap_of(found), Look())
        assert dict(matplotlib.rcParams) == before
        with figure_style():
            again = [pixels_of(figure) for figure in odd]
    for one, other in zip(expected, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_only_the_given_axes_are_drawn_on(found):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    draw_pair(left, plan_pair(found), Look())
    assert figure.axes == [left, right]
    assert (len(right.collections), len(right.texts)) == (0, 0)
