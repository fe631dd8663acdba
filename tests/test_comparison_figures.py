"""The figures of a comparison: what is planned, what stands on the axes, and that nobody's matplotlib is disturbed."""

import math
import warnings
from dataclasses import replace
from itertools import combinations, pairwise

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

import attnviz
from attnviz.commands.compare.differences import LARGEST_DISTANCE, Differences
from attnviz.commands.compare.drawing import (
    difference_figure,
    difference_grid_figure,
    difference_map_figure,
    draw_difference,
    draw_difference_grid,
    draw_difference_map,
    root_norm,
)
from attnviz.commands.compare.figures import (
    difference_plans,
    extreme_pool,
    plan_difference,
    plan_difference_grid,
    plan_difference_map,
    rounded_up,
)
from attnviz.commands.compare.sizes import (
    MEAN_COLUMN,
    cell_numbers,
    every_which,
    fitting_pitch,
    grid_layout,
    label_size,
    room_for_cells,
)
from attnviz.commands.compare.words import short, side_lines, side_names, signed
from attnviz.errors import UsageError
from attnviz.figures.fonts import text_width
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import THEMES, Look
from attnviz.figures.rendering import FORMATS, figure_bytes
from attnviz.model.head_ids import HeadId
from tests.models import bert_tokenizer, sharp_bert
from tests.test_drawing import HOSTILE, ODD_SETTINGS

LIGHT, DARK = Look(), Look("dark")
TEXT, OTHER = "the cat that i saw ran away", "the dog that i saw ran away"
PAPER = {name: tuple(int(theme.paper[i : i + 2], 16) for i in (1, 3, 5)) for name, theme in THEMES.items()}


@pytest.fixture(scope="module")
def model():
    return sharp_bert(max_position_embeddings=128)


@pytest.fixture(scope="module")
def analysed(model):
    made = {}

    def analyse(text, **options):
        key = (text, *options.items())
        if key not in made:
            made[key] = attnviz.analyze(text, model, tokenizer=bert_tokenizer(), syntax=False, **options)
        return made[key]

    return analyse


@pytest.fixture(scope="module")
def found(analysed):
    return attnviz.compare(analysed(TEXT), analysed(OTHER))


@pytest.fixture(scope="module")
def long(analysed):
    words = "the cat that i saw ran away one two three four five dog house tree".split()
    text = [words[i * 7 % 15] for i in range(100)]
    return attnviz.compare(analysed(" ".join(text)), analysed(" ".join([*text[:-1], "he"])))


@pytest.fixture(scope="module")
def plan(found):
    return next(difference_plans(found, found.heads[:1], LIGHT))


def new_axes():
    return Figure(figsize=(4, 3)).add_axes((0.3, 0.3, 0.6, 0.5))


def pixels_of(figure):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def texts(labels):
    return [label.get_text() for label in labels]


def figures_of(found, look):
    grid = difference_grid_figure(plan_difference_grid(found, found.heads, look), look)
    of_all = difference_map_figure(plan_difference_map(found, look), look)
    return [grid, of_all, difference_figure(next(difference_plans(found, found.heads[:1], look)), look)]


# --- plans


def test_pooling_keeps_the_strongest_with_its_sign():
    values = np.zeros((5, 5), np.float32)
    values[0, 1], values[1, 0] = 0.2, -0.3
    values[4, 4] = -0.1
    np.testing.assert_array_equal(
        extreme_pool(values, 2), np.array([[-0.3, 0, 0], [0, 0, 0], [0, 0, -0.1]], np.float32)
    )
    assert extreme_pool(values, 1) is values


@pytest.mark.parametrize(
    ("largest", "end"), [(0.37, 0.4), (0.4, 0.4), (0.401, 0.5), (0.95, 1.0), (1.0, 1.0), (0.0123, 0.02), (0, 1.0)]
)
def test_a_scale_ends_at_a_round_number(largest, end):
    assert rounded_up(largest) == end


def test_the_plan_of_a_head_has_the_differences_labels_and_the_largest(found, plan):
    head = found.heads[0]
    np.testing.assert_array_equal(plan.values, found.layer_differences(head.id.layer)[head.id.head])
    assert plan.labels == found.labels
    assert plan.differing == found.differing
    assert plan.quiet == (True, *[False] * 7, True)
    assert plan.largest == (head.largest.query, head.largest.key)
    assert plan.vmax == rounded_up(found.largest)
    assert plan.title == f"{head.id}  Jensen-Shannon distance {head.distance:.3f}, rank 1 of 12"
    differing = "1 of 9 tokens differs: cat → dog"
    assert plan.notes[1:] == (f"A: “{TEXT}”", f"B: “{OTHER}”", "model: BertModel", differing)
    assert f"label {head.labels}" in plan.notes[0]
    assert plan.notes[0].endswith(signed(head.largest.difference))


def test_a_caption_is_one_sentence_with_sides_scale_and_head(found, plan):
    head = found.heads[0]
    assert plan.caption == (
        f"Attention of {head.id} in B minus that in A, query by row and key by column, A being “{TEXT}” and B "
        f"“{OTHER}”, both read by BertModel (1 of 9 tokens differs: cat → dog); "
        "orange is more in B, blue more in A, on a square-root scale to "
        f"±{plan.vmax:g} (the same for every head); Jensen-Shannon distance {head.distance:.3f} (root nats), rank "
        "1 of 12."
    )
    grid = plan_difference_grid(found, found.heads[:2], LIGHT)
    assert grid.caption.startswith("Attention in B minus that in A of 2 of 12 heads, A being “")
    assert grid.title == "What changed: 2 of 12 heads"
    of_all = plan_difference_map(found, LIGHT)
    assert of_all.caption.startswith("Jensen-Shannon distance (root nats, 0 to 0.83) between the attention of every")


def test_plans_come_layer_by_layer_whatever_the_rank(found):
    ids = [plan.title.split()[0] for plan in difference_plans(found, found.heads, LIGHT)]
    assert ids == [f"L{layer}H{head}" for layer in range(3) for head in range(4)]


def test_the_scale_is_shared_or_each_heads_own_never_logarithmic(found):
    last = found.heads[-1]
    shared, own = (next(difference_plans(found, [last], Look(scale=scale))) for scale in ("shared", "per-head"))
    assert shared.vmax == rounded_up(found.largest)
    assert own.vmax == rounded_up(abs(last.largest.difference)) < shared.vmax
    assert "(of this head)" in own.caption
    grid = plan_difference_grid(found, found.heads, Look(scale="per-head"))
    assert grid.vmax == shared.vmax
    assert "same for all heads" in grid.scale
    with pytest.raises(UsageError, match="which a logarithmic scale cannot show: expected shared or per-head"):
        next(difference_plans(found, [last], Look(scale="log")))


def test_where_nothing_differs_the_figures_say_so(analysed):
    same = attnviz.compare(analysed(TEXT), analysed(TEXT))
    plan = next(difference_plans(same, same.heads[:1], LIGHT))
    assert (plan.largest, plan.vmax) == (None, 1.0)
    assert next(difference_plans(same, same.heads[:1], Look(scale="per-head"))).vmax == 1.0
    assert "no weight differs beyond rounding" in plan.notes[0]
    assert plan.caption.endswith("; no weight differs beyond rounding.")
    grid = plan_difference_grid(same, same.heads, LIGHT)
    assert grid.title.endswith("no weight differs beyond rounding")
    assert plan_difference_map(same, LIGHT).vmax == LARGEST_DISTANCE
    pixels = pixels_of(draw_and_return(plan).figure)
    assert len(np.unique(pixels[len(pixels) // 2, 170:300].reshape(-1, 3), axis=0)) <= 3  # a blank picture


def draw_and_return(plan):
    ax = new_axes()
    draw_difference(ax, plan, LIGHT)
    return ax


def test_the_map_has_every_distance_mean_and_changed_label(found):
    changed = replace(found.heads[0], label_before="local", label_after="sink")
    other = Differences(found.first, found.second, (changed, *found.heads[1:]), found.floor)
    plan = plan_difference_map(other, LIGHT)
    for head in other.heads:
        assert plan.distances[head.id] == head.distance
        assert plan.changed[head.id] == head.label_changed
    np.testing.assert_allclose(plan.means, [layer.distance for layer in other.layers])
    assert max(head.distance for head in found.heads) <= plan.vmax <= LARGEST_DISTANCE
    assert any("Corner marked: another label on B" in note for note in plan.notes)


def test_long_texts_are_pooled_where_there_is_no_room_and_the_picture_says_so(long):
    grid = plan_difference_grid(long, long.heads, Look(width=3.3))
    (_, _, values), pooled = grid.heads[0], -(-102 // (grid.pitch - (14 if grid.pitch >= 60 else 4)))
    assert pooled > 1
    assert len(values) == -(-102 // pooled)
    note = f"Each pixel is the largest of {pooled} × {pooled} differences, with its sign (pooled for drawing only)."
    assert note in grid.notes
    assert f"for drawing only, the largest of {pooled} × {pooled} differences is shown" in grid.caption
    assert not any("pooled" in note for note in plan_difference_grid(long, long.heads, LIGHT).notes)


def test_a_heads_picture_is_pooled_in_a_narrow_column(found):
    n = 1100
    wide = type("Wide", (), {})()
    for name in ("compared", "unit", "first", "second", "heads", "floor", "largest", "any_beyond_rounding"):
        setattr(wide, name, getattr(found, name))
    wide.labels, wide.differing, wide.quiet = ("a",) * n, (False,) * (n - 1) + (True,), (False,) * n
    values = np.zeros((n, n), np.float32)
    values[7, 9] = -0.5
    plan = plan_difference(wide, found.heads[0], values, LIGHT)
    assert plan.pooled == 2
    assert plan.values.shape == (550, 550)
    assert plan.values[3, 4] == -0.5
    assert plan.differing[-1]
    assert not any(plan.differing[:-1])
    assert "Each cell is the largest of 2 × 2 differences, with its sign (pooled for drawing only)." in plan.notes
    figure = difference_figure(plan, LIGHT)
    assert ", 1 token in 26 named" in figure.axes[0].get_xlabel()


def test_widths_without_room_are_refused_with_the_least():
    with pytest.raises(UsageError, match=r"a width of 2 inches has no room for 16 heads .*; expected at least 2\.1in"):
        grid_layout(16, 12, Look(width=2))
    assert grid_layout(16, 12, Look(width=2.1)) == (16, 14, 10)
    assert grid_layout(12, 12, Look(width=2)) == (12, 18, 14)  # minilm and bert-base in the narrowest column
    with pytest.raises(UsageError, match=r"no room for 17 heads side by side; expected at least 2\.2in"):
        fitting_pitch(16 + MEAN_COLUMN, 2.0, 14)


def test_labels_leave_a_narrow_figure_room_for_its_cells(found):
    long = tuple(f"{label} antidisestablishment" for label in found.labels)
    labels, room, pooled = room_for_cells(long, Look(width=2))
    assert all(label.endswith("…") for label in labels)
    assert max(text_width(label, label_size(300 // 9), DPI, "bold") for label in labels) <= 300 / 4
    assert room >= 150
    assert pooled == 1
    assert room_for_cells(long, LIGHT)[0] == list(long)
    figure = difference_figure(next(difference_plans(found, found.heads[:1], Look(width=2))), Look(width=2))
    assert figure.get_figwidth() == 2


@pytest.mark.parametrize(
    ("values", "vmax", "width", "expected"),
    [
        ([0.0, 0.245, 0.7], 0.7, 54, (["0.00", "0.24", "0.70"], 7.0)),
        ([0.0, 0.245], 0.3, 32, (["0.00", "0.24"], 5.5)),
        ([0.0, 0.245], 0.3, 30, ([".00", ".24"], 6.5)),
        ([0.0, 0.245], 0.3, 25, ([".00", ".24"], 5.5)),
        ([0.0, 0.245], 0.3, 23, None),
        ([0.0, 0.045], 0.05, 54, (["0.000", "0.045"], 7.0)),
        ([0.0, 0.045], 0.05, 32, ([".000", ".045"], 5.5)),
    ],
)
def test_values_are_written_as_fully_as_a_cell_has_room(values, vmax, width, expected):
    assert cell_numbers(values, vmax, width) == expected


def test_names_of_columns_are_thinned_before_they_touch():
    names = [str(head) for head in range(12)]
    assert [every_which(names, 6, pitch) for pitch in (54, 30, 22, 18, 14)] == [1, 1, 1, 2, 2]


def test_sides_are_named_by_what_tells_them_apart(found, analysed, model):
    same = attnviz.compare(analysed(TEXT), analysed(TEXT))
    assert side_names(same) == ("BertModel", "BertModel")
    assert side_lines(same) == ["A: BertModel", "B: BertModel", f"text: “{TEXT}”"]
    first, second = same.first, same.second

    def named(**changes):
        checkpoint = replace(second.checkpoint, **changes)
        return Differences(first, replace(second, checkpoint=checkpoint), same.heads, same.floor)

    assert side_names(named(name="other\x1b")) == ("BertModel", "other\\x1b")
    at = [replace(side.checkpoint, revision=name) for side, name in ((first, "one"), (second, "two"))]
    both = [replace(side, checkpoint=checkpoint) for side, checkpoint in zip((first, second), at, strict=True)]
    assert side_names(Differences(*both, same.heads, same.floor)) == ("BertModel at one", "BertModel at two")
    wide = sharp_bert(max_position_embeddings=128).to(torch.float64)
    assert side_names(named(model=wide)) == ("BertModel in float32", "BertModel in float64")
    assert side_names(found) == (f"“{TEXT}”", f"“{OTHER}”")


BEGINNING = "the committee of the old city decided on a very long day in the middle of the winter that the "


def sides_of(texts, pairs=(None, None)):
    """What A and B are called where they are these texts."""
    named = type("Named", (), {"compared": "texts"})()
    named.first, named.second = (
        type("Side", (), {"text": text, "pair": pair})() for text, pair in zip(texts, pairs, strict=True)
    )
    return side_names(named)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("cat ran", "dog ran", ("…of the winter that the cat ran", "…of the winter that the dog ran")),
        ("cat", "cat ran", ("…of the winter that the cat", "…of the winter that the cat ran")),
        ("b" * 99 + "x", "b" * 99 + "y", ("…" + "b" * 30 + "x", "…" + "b" * 30 + "y")),
        ("\u200b" * 9 + "x", "\u200b" * 9 + "y", ("…" + r"\u200b" * 5 + "x", "…" + r"\u200b" * 5 + "y")),
    ],
)
def test_texts_that_begin_alike_are_quoted_where_they_differ(first, second, expected):
    assert sides_of([BEGINNING + first, BEGINNING + second]) == tuple(f"“{text}”" for text in expected)
    pairs = sides_of(["the cat"] * 2, [BEGINNING + first, BEGINNING + second])
    assert pairs == tuple(f"“the cat” + “{text}”" for text in expected)


def test_texts_that_differ_within_their_quotations_are_quoted_from_the_beginning():
    first, second = sides_of(["the cat " + BEGINNING, "the dog " + BEGINNING])
    assert first.startswith("“the cat the committee")
    assert second.startswith("“the dog the committee")
    assert sides_of(["the cat", "the cat"], ["a", "b"]) == ("“the cat” + “a”", "“the cat” + “b”")


def test_a_pair_stands_beside_its_text(analysed):
    pair = attnviz.compare(analysed(TEXT, pair="he ran"), analysed(TEXT, pair="it ran"))
    assert pair.compared == "texts"
    assert side_lines(pair)[0] == f"A: “{TEXT}” + “he ran”"


def test_words_and_signs():
    assert (signed(0.314), signed(-0.08)) == ("+0.31", "−0.08")
    assert short("x" * 30) == "x" * 23 + "…"
    assert short("x" * 24) == "x" * 24


# --- what is drawn


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_the_colours_are_paper_for_0_orange_for_more_blue_for_less(plan, look):
    values = np.array([[0, 0.4], [-0.4, 0.1]], np.float32)
    small = replace(plan, values=values, labels=("a", "b"), differing=(False,) * 2, quiet=(False,) * 2, vmax=0.4)
    ax = new_axes()
    image = draw_difference(ax, replace(small, largest=None), look)
    drawn = (image.to_rgba(image.get_array(), bytes=True)[..., :3]).astype(int)
    assert tuple(drawn[0, 0]) == pytest.approx(PAPER[look.theme], abs=2)
    more, less = drawn[0, 1], drawn[1, 0]
    assert more[0] > more[2] + 50  # orange: more red than blue
    assert less[2] > less[0] + 50
    half = drawn[1, 1]  # a quarter of the largest difference is half way up the scale
    expected = (np.array(PAPER[look.theme]) + more) / 2
    np.testing.assert_allclose(half, expected, atol=4)


def test_the_scale_is_symmetric_and_by_square_root():
    norm = root_norm(0.4)
    assert [float(norm(value)) for value in (-0.4, -0.1, 0, 0.1, 0.4, 0.9)] == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])
    assert norm.inverse(0.75) == pytest.approx(0.1)


def test_rows_are_queries_from_the_top_and_the_largest_is_outlined(found, plan):
    ax = new_axes()
    image = draw_difference(ax, plan, LIGHT)
    np.testing.assert_array_equal(image.get_array(), plan.values)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    (outline,) = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    row, column = plan.largest
    assert outline.get_xy() == (column - 0.5, row - 0.5)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key (attended to)", "query (attends from)")
    values = {tuple(text.get_position()): text.get_text() for text in ax.texts}
    assert values[column, row] == signed(float(plan.values[row, column]))
    assert len(values) == (np.abs(plan.values) >= 0.005).sum()


def test_labels_of_differing_tokens_are_bold_and_of_sinks_grey(plan):
    ax = new_axes()
    draw_difference(ax, plan, DARK)
    for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
        assert texts(labels)[2] == "cat → dog"
        assert [label.get_fontweight() for label in labels] == [*["normal"] * 2, "bold", *["normal"] * 6]
        colours = [to_hex(label.get_color()) for label in labels]
        assert colours == [THEMES["dark"].quiet, *[THEMES["dark"].ink] * 7, THEMES["dark"].quiet]


def test_a_vector_picture_has_one_rectangle_a_cell_while_they_are_few(plan, long):
    mesh = draw_difference(new_axes(), plan, LIGHT, vector=True)
    assert isinstance(mesh, QuadMesh)
    np.testing.assert_array_equal(mesh.get_array(), plan.values)
    big = next(difference_plans(long, long.heads[:1], LIGHT))
    image = draw_difference(new_axes(), big, LIGHT, vector=True)
    assert image.get_interpolation() == "none"


def test_many_tokens_have_thinned_labels_no_numbers_and_a_visible_outline(long):
    plan = next(difference_plans(long, long.heads[:1], LIGHT))
    ax = new_axes()
    draw_difference(ax, plan, LIGHT)
    assert not ax.texts
    assert len(ax.get_xticks()) == 51
    assert ax.get_xlabel() == "key (attended to), 1 token in 2 named"
    tiny = replace(plan, room=150)
    ax = new_axes()
    draw_difference(ax, tiny, LIGHT)
    assert ax.patches[0].get_width() == 10
    assert ax.get_xlabel().startswith("key, 1 token in ")


@pytest.mark.parametrize("width", [None, 3.3, 2])
@pytest.mark.parametrize("scale", ["shared", "per-head"])
def test_the_colour_bar_says_which_scale_b_minus_a_and_what_its_ends_are(found, scale, width):
    last = found.heads[-1]
    look = Look(scale=scale, width=width)
    grid = difference_grid_figure(plan_difference_grid(found, found.heads, look), look)
    head = difference_figure(next(difference_plans(found, [last], look)), look)
    own = scale == "per-head"
    for figure, whose, end in (
        (grid, "same for all heads", rounded_up(found.largest)),
        (head, "of this head alone" if own else "same for all heads",
         rounded_up(abs(last.largest.difference) if own else found.largest)),
    ):  # fmt: skip
        bar = figure.axes[1]
        words = " ".join(bar.get_xlabel().split("\n"))
        assert words == f"attention in B minus A (root scale, {whose})"
        assert bar.get_xlim() == (-end, end)
        assert texts(bar.get_xticklabels()) == [f"−{end:g}", f"−{end / 4:.3g}", "0", f"+{end / 4:.3g}", f"+{end:g}"]
        assert texts(bar.texts) == ["more in A", "more in B"]
        assert [text.get_ha() for text in bar.texts] == ["left", "right"]


@pytest.mark.parametrize("width", [None, 3.3, 2])
def test_the_colour_bar_of_the_map_names_its_scale_and_both_ends(found, width):
    look = Look(width=width)
    plan = replace(plan_difference_map(found, look), vmax=0.7)
    bar = difference_map_figure(plan, look).axes[1]
    assert " ".join(bar.get_xlabel().split("\n")) == "Jensen-Shannon distance (same scale for all heads)"
    assert texts(bar.get_xticklabels()) == ["0", "0.35", "0.7"]
    widest = difference_map_figure(replace(plan, vmax=LARGEST_DISTANCE), look).axes[1]
    assert texts(widest.get_xticklabels()) == ["0", "0.42", "0.83"]
    assert bar.get_xlim()[0] == 0


def test_every_pixel_of_every_pattern_of_the_overview_is_drawn(found):
    plan = plan_difference_grid(found, found.heads, LIGHT)
    ax = new_axes()
    image = draw_difference_grid(ax, plan, LIGHT)
    grid = image.get_array()
    left_of, top_of = 1, 24
    side = plan.size
    head, _, values = plan.heads[5]
    top = top_of + head.layer * (side + 34)
    left = left_of + head.head * plan.pitch
    step = side // len(values)
    assert side == step * len(values)
    cells = grid[top : top + side : step, left : left + side : step].astype(int)
    expected = (LIGHT.diverging_map()(root_norm(plan.vmax)(values))[..., :3] * 255).round()
    np.testing.assert_allclose(cells, expected, atol=3)
    figure = difference_grid_figure(plan, LIGHT)
    pixels = pixels_of(figure)
    box = figure.axes[0].get_window_extent()
    x, y = round(box.x0) + left, round(pixels.shape[0] - box.y1) + top
    np.testing.assert_array_equal(pixels[y : y + side, x : x + side], grid[top : top + side, left : left + side])


def test_the_overview_names_heads_distances_and_layers(found):
    plan = plan_difference_grid(found, found.heads, LIGHT)
    ax = new_axes()
    draw_difference_grid(ax, plan, LIGHT)
    written = texts(ax.texts)
    for head in found.heads:
        assert str(head.id) in written
        assert f"{head.distance:.3f}" in written
    assert written[-3:] == ["layer 0", "layer 1", "layer 2"]
    narrow = plan_difference_grid(found, found.heads, Look(width=2.5))
    ax = new_axes()
    draw_difference_grid(ax, narrow, LIGHT)
    assert texts(ax.texts) == ["H0", "H1", "H2", "H3", "L0", "L1", "L2"]
    ax = new_axes()
    draw_difference_grid(ax, replace(narrow, size=9, pitch=20), LIGHT)
    assert texts(ax.texts) == ["0", "1", "2", "3", "L0", "L1", "L2"]
    middle = plan_difference_grid(found, found.select(["L0", "L2"]), Look(width=3))
    ax = new_axes()
    draw_difference_grid(ax, middle, LIGHT)
    assert texts(ax.texts) == ["H0", "H1", "H2", "H3", "L0", "L2"]


@pytest.mark.parametrize("width", [2, 2.5, 3.3, 5, 8.4])
@pytest.mark.parametrize("columns", [1, 4, 12, 16, 25])
def test_the_heads_of_one_layer_are_large_at_every_width(columns, width):
    beside, pitch, size = grid_layout(columns, 1, Look(width=width))
    assert pitch * beside <= width * DPI - 84
    assert size >= 46  # 8 mm
    rows = math.ceil(columns / beside)
    assert rows == 1 or rows * (size + 34) <= 1000  # on a page


def test_layers_go_on_in_further_rows_where_heads_side_by_side_would_be_small(found):
    plan = plan_difference_grid(found, found.heads, Look(width=2))
    assert (plan.beside, plan.rows, plan.pitch, plan.size) == (2, 2, 108, 90)
    ax = new_axes()
    image = draw_difference_grid(ax, plan, LIGHT).get_array()
    assert image.shape[:2] == (6 * 124, 216)
    by_text = {text.get_text(): text.get_position() for text in ax.texts}
    assert [by_text[f"L{layer}H{head}"] for layer, head in ((0, 0), (0, 1), (0, 3), (1, 0))] == [
        (1, 19), (109, 19), (109, 143), (1, 267),
    ]  # fmt: skip
    assert by_text["layer 1"][1] == (272 + 396 + 90) / 2
    for head, _, values in plan.heads:
        row, column = divmod(head.head, 2)
        top, left = 24 + 124 * (2 * head.layer + row), 1 + 108 * column
        drawn = image[top : top + 90 : 10, left : left + 90 : 10].astype(int)
        expected = (LIGHT.diverging_map()(root_norm(plan.vmax)(values))[..., :3] * 255).round()
        np.testing.assert_allclose(drawn, expected, atol=3)
    pixels_of(difference_grid_figure(plan, LIGHT))


def test_small_squares_use_the_room_that_there_is(found):
    plan = replace(plan_difference_grid(found, found.heads, Look(width=2.5)), size=14, pitch=18)
    image = draw_difference_grid(new_axes(), plan, LIGHT).get_array()
    _, _, values = plan.heads[0]
    expected = (LIGHT.diverging_map()(root_norm(plan.vmax)(values))[..., :3] * 255).round()
    np.testing.assert_allclose(image[24 + 13, 1 + 13].astype(int), expected[8, 8], atol=3)
    np.testing.assert_allclose(image[24, 1].astype(int), expected[0, 0], atol=3)


def test_ids_and_distances_of_the_overview_do_not_touch(found):
    plan = plan_difference_grid(found, found.heads, LIGHT)
    tight = replace(
        plan, size=94, beside=12, heads=tuple((HeadId(10, i), *rest) for i, (_, *rest) in enumerate(plan.heads))
    )
    ax = Figure(figsize=(12 * plan.pitch / 150, 1), dpi=150).add_axes((0, 0, 1, 1))
    draw_difference_grid(ax, tight, LIGHT)
    FigureCanvasAgg(ax.figure).draw()
    renderer = FigureCanvasAgg(ax.figure).get_renderer()
    boxes = sorted(
        (text.get_window_extent(renderer) for text in ax.texts if text.get_rotation() == 0), key=lambda b: b.x0
    )
    assert len(boxes) == 24
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert all(text.get_text().startswith((".", "L10", "layer")) for text in ax.texts)


def test_one_token_is_one_token(found):
    one = type("One", (), {})()
    for name in ("compared", "unit", "first", "second", "heads", "floor", "largest", "any_beyond_rounding"):
        setattr(one, name, getattr(found, name))
    one.labels, one.differing, one.quiet = ("a",), (True,), (False,)
    one.layer_differences = lambda layer: found.layer_differences(layer)[:, :1, :1]
    notes = plan_difference_grid(one, found.heads, LIGHT).notes
    assert any("(1 token)" in note for note in notes)


def test_the_map_writes_values_means_and_marks(found):
    plan = replace(plan_difference_map(found, LIGHT), changed=np.eye(3, 4, dtype=np.bool_))
    ax = new_axes()
    mesh = draw_difference_map(ax, plan, LIGHT)
    np.testing.assert_array_equal(mesh.get_array(), plan.distances)
    values = [*plan.distances.ravel(), *plan.means]
    assert texts(ax.texts) == [f"{value:.2f}" for value in values]
    assert sum(isinstance(patch, Polygon) for patch in ax.patches) == 3
    assert texts(ax.get_xticklabels()) == ["0", "1", "2", "3", "mean"]
    narrow = new_axes()
    draw_difference_map(narrow, replace(plan, cell=(20, 24)), LIGHT)
    assert not narrow.texts
    short = new_axes()
    draw_difference_map(short, replace(plan, cell=(29, 24)), LIGHT)
    assert texts(short.texts) == [f"{value:.2f}"[1:] for value in values]
    middle = new_axes()
    draw_difference_map(middle, replace(plan, cell=(34, 24)), LIGHT)
    assert texts(middle.texts) == texts(ax.texts)
    assert middle.texts[0].get_fontsize() == 6.0


def test_means_look_like_the_other_values_and_every_cell_has_a_whole_border(found):
    ax = new_axes()
    draw_difference_map(ax, plan_difference_map(found, LIGHT), LIGHT)
    assert {(text.get_fontname(), text.get_fontweight()) for text in ax.texts} == {("DejaVu Sans", "normal")}
    assert [mesh.get_clip_on() for mesh in ax.collections] == [False, False]
    figure = difference_map_figure(plan_difference_map(found, LIGHT), LIGHT)
    pixels = pixels_of(figure).astype(int)
    box = figure.axes[0].get_window_extent()
    middle = round(pixels.shape[0] - (box.y0 + box.y1) / 2)
    for edge in (round(box.x0), round(box.x1)):
        assert pixels[middle, edge - 1 : edge + 2].sum(1).min() < 3 * 200  # a grey line, left and right


def test_numbers_of_a_head_are_shorter_where_cells_are_narrow(found):
    look = Look(width=3.3)
    plan = next(difference_plans(found, found.heads[:1], look))
    assert (plan.numbers, replace(plan, room=9 * 40).numbers, replace(plan, room=9 * 30).numbers) == (
        "short",
        "full",
        "",
    )
    ax = new_axes()
    draw_difference(ax, plan, look)
    row, column = plan.largest
    values = {tuple(text.get_position()): text for text in ax.texts}
    assert values[column, row].get_text() == signed(float(plan.values[row, column])).replace("0.", ".")
    assert values[column, row].get_fontsize() == 5.5
    many = replace(plan, values=np.ones((25, 25), np.float32), room=25 * 31)
    assert not many.numbers


@pytest.mark.parametrize("width", [None, 2, 3.3, 6.5])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_runs_over_the_edge_or_over_another_text(found, long, theme, width):
    look = Look(theme, width=width)
    for figure in (*figures_of(found, look), *figures_of(long, look)):
        pixels = pixels_of(figure)
        for edge in (pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]):
            assert (edge == PAPER[theme]).all()
        if width is not None:
            assert pixels.shape[1] == round(150 * width)
        boxes = [text.get_window_extent() for text in figure.texts]
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
        body = max(ax.get_window_extent().y1 for ax in figure.axes)
        assert min(box.y0 for box in boxes) > body
        ax, bar = figure.axes[:2]
        assert bar.get_tightbbox().y1 < ax.get_tightbbox().y0  # below the cells and all that names them
        assert bar.get_tightbbox().x0 > 0
        assert bar.get_tightbbox().x1 < pixels.shape[1]
        numbers = [label.get_window_extent() for label in bar.get_xticklabels()]
        assert not any(
            one.overlaps(other) for one, other in combinations([*numbers, bar.xaxis.label.get_window_extent()], 2)
        )


def test_labels_of_tokens_do_not_overlap(long):
    figure = difference_figure(next(difference_plans(long, long.heads[:1], LIGHT)), LIGHT)
    pixels_of(figure)
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert all(upper.y0 >= lower.y1 - 4 for upper, lower in pairwise(boxes))


def test_hostile_texts_are_drawn_without_crash_or_warning(found, plan):
    n = len(HOSTILE)
    values = np.linspace(-1, 1, n * n, dtype=np.float32).reshape(n, n)
    hostile = replace(
        plan, values=values, labels=tuple(HOSTILE), differing=(True,) * n, quiet=(False,) * n,
        title="$\\frac$ [/b] 猫 🦄", notes=("$x_{$ \\", "مرحبا", *HOSTILE),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for vector in (False, True):
            figure = difference_figure(hostile, LIGHT, vector=vector)
            pixels_of(figure)
        shown = texts(figure.axes[0].get_yticklabels())
        assert shown[:4] == HOSTILE[:4]
        assert not any(character in "".join(shown) for character in "\x1b\n\x00\t")
        grid = replace(plan_difference_grid(found, found.heads, LIGHT), title="$\\frac$", notes=tuple(HOSTILE))
        pixels_of(difference_grid_figure(grid, DARK))
        of_all = replace(plan_difference_map(found, LIGHT), title="$\\frac$", notes=("猫" * 200, *HOSTILE))
        pixels_of(difference_map_figure(of_all, LIGHT))


@pytest.mark.parametrize("kind", FORMATS)
def test_files_are_the_same_bytes_on_every_run_with_text_as_text(found, kind):
    for first, second in zip(figures_of(found, DARK), figures_of(found, DARK), strict=True):
        content = figure_bytes(first, kind, indexed=False)
        assert content == figure_bytes(second, kind, indexed=False)
        if kind == "svg":
            assert "A: “the cat that i saw ran away”</text>" in content.decode()


def test_the_users_settings_neither_change_the_figures_nor_are_changed(found):
    expected = [pixels_of(figure) for figure in figures_of(found, LIGHT)]
    with matplotlib.rc_context(ODD_SETTINGS):
        before = dict(matplotlib.rcParams)
        figures = [figure_bytes(figure, "png", indexed=False) for figure in figures_of(found, LIGHT)]
        assert dict(matplotlib.rcParams) == before
    plain = [figure_bytes(figure, "png", indexed=False) for figure in figures_of(found, LIGHT)]
    assert figures == plain
    assert len({picture.shape for picture in expected}) == 3


def test_only_the_given_axes_are_drawn_on(found, plan):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    place = left.get_position().bounds
    draw_difference(left, plan, LIGHT)
    draw_difference_grid(left, plan_difference_grid(found, found.heads, LIGHT), LIGHT)
    draw_difference_map(left, plan_difference_map(found, LIGHT), LIGHT)
    assert figure.axes == [left, right]
    assert not right.images
    assert not right.collections
    assert left.get_position().bounds == place


def test_a_head_is_named_by_its_id(found):
    assert found.figure(HeadId(0, 1)).texts[0].get_text().startswith("L0H1  ")
    assert found.figure("overview", select=["L1"]).texts[0].get_text() == "What changed: 4 of 12 heads"
