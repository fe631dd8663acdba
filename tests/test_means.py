"""Mean patterns: what is averaged, how it is drawn, and that every picture says that it is a mean."""

from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attnviz.errors import UsageError
from attnviz.figures.heatmap_drawing import figure_style
from attnviz.figures.look import Look
from attnviz.figures.means import draw_mean, mean_figures, means_figure, plan_means
from attnviz.figures.rendering import figure_bytes
from tests.hand_made import by_design, hand_made
from tests.test_drawing import HOSTILE, ODD_SETTINGS, pixels_of, texts

LOOKS = [Look(), Look("dark", "log"), Look("light", "per-head", 3.3), Look("dark", "shared", 2.0)]


@pytest.fixture(scope="module")
def analysis():
    return hand_made()


def long_one(n, n_layers=2, n_heads=2, labels=None, **changes):
    random = np.random.default_rng(n)
    patterns = torch.tensor(random.dirichlet(np.ones(n) / 9, (n_layers, n_heads, n)), dtype=torch.float32)
    named = [f"w{i}" for i in range(n)] if labels is None else labels
    return hand_made(labels=named, special=(0, n - 1), patterns=patterns, **changes)


def new_axes():
    return Figure(figsize=(4, 4), dpi=150).add_axes((0.25, 0.25, 0.6, 0.6))


def cells_of(ax):
    (found,) = [child for child in ax.get_children() if isinstance(child, QuadMesh | AxesImage)]
    return found


def test_the_mean_is_over_the_heads_of_each_layer_and_over_all(analysis):
    plan = plan_means(analysis, Look())
    patterns = by_design(6).numpy()
    assert [(tile.name, tile.n_heads) for tile in plan.tiles] == [("layer 0", 2), ("layer 1", 2), ("all layers", 4)]
    for tile, expected in zip(plan.tiles, [*patterns.mean(1), patterns.mean((0, 1))], strict=True):
        np.testing.assert_allclose(tile.values, expected, atol=1e-7)
        assert tile.largest == pytest.approx(expected.max())
        np.testing.assert_allclose(tile.values.sum(1), 1, atol=1e-6)


def test_the_overall_mean_alone_is_the_last_tile(analysis):
    alone, last = plan_means(analysis, Look(), overall=True).tiles, plan_means(analysis, Look()).tiles[-1]
    assert len(alone) == 1
    np.testing.assert_array_equal(alone[0].values, last.values)
    assert (alone[0].name, alone[0].n_heads) == (last.name, last.n_heads)


def test_dropping_special_tokens_averages_the_renormalised_patterns(analysis):
    plan = plan_means(analysis, Look(), drop_special=True)
    inner = by_design(6).numpy()[:, :, 1:5, 1:5]
    sums = inner.sum(-1, keepdims=True)
    expected = np.divide(inner, sums, out=np.zeros_like(inner), where=sums > 0).mean(1)
    np.testing.assert_allclose([tile.values for tile in plan.tiles[:2]], expected, atol=1e-6)
    assert plan.labels == ("the", "cat", "ran", "away")
    assert plan.quiet == (False,) * 4
    assert plan.title.endswith("2 heads (special tokens dropped, rows renormalised)")
    assert "Rows renormalised to sum to 1 in every head, before the mean." in plan.notes(Look())[1]
    assert "; special tokens dropped, rows renormalised in every head before the mean; " in plan.caption(Look())
    assert "(4 tokens)" in plan.text  # as many as are drawn


def test_a_row_that_puts_nothing_on_the_text_stays_empty():
    patterns = torch.eye(6)[[0] * 6].expand(1, 1, 6, 6)
    plan = plan_means(hand_made(patterns=patterns), Look(), drop_special=True)
    assert (plan.tiles[0].values == 0).all()
    assert pixels_of(means_figure(plan, Look(scale="per-head"))).min() < 100


def test_a_causal_model_loses_its_first_token_and_the_title_says_so():
    found = hand_made(causal=True, special=())
    assert plan_means(found, Look()).quiet == (True, *[False] * 5)
    plan = plan_means(found, Look(), drop_special=True)
    assert len(plan.labels) == 5
    assert plan.title.endswith("(first token dropped, rows renormalised)")


def test_dropping_everything_is_refused():
    with pytest.raises(UsageError, match="leaves nothing of this text to draw"):
        next(mean_figures(hand_made(special=range(6)), Look(), drop_special=True))
    with pytest.raises(UsageError, match="leaves nothing of this text to draw"):
        plan_means(hand_made(special=range(6)), Look(), drop_special=True)
    one = hand_made(labels=["[CLS]"], special=[0], patterns=torch.ones(1, 1, 1, 1))
    with pytest.raises(UsageError, match="to draw: its only token is special or the first; give a longer text"):
        plan_means(one, Look(), drop_special=True)


def test_every_picture_says_that_it_is_a_mean(analysis):
    for stem, figure, caption in mean_figures(analysis, Look()):
        written = " ".join(texts(figure.texts))
        assert "mean" in written
        assert "no head need look like it" in written
        assert "a mean: no head need look like it" in caption
        assert stem in ("mean", "mean-all")
        assert figure.axes[-1].get_xlabel() == "mean attention weight (shared scale)"


def test_titles_and_captions(analysis):
    (_, one, first), (_, other, second) = mean_figures(analysis, Look())
    assert one.texts[0].get_text() == "by-hand: mean pattern of each layer’s 2 heads"
    assert other.texts[0].get_text() == "by-hand: mean of all 4 heads"
    text = "by-hand on “the cat ran away” (6 tokens): mean attention pattern of "
    assert first == (
        f"{text}the 2 heads of each layer, and of all layers (a mean: no head need look like it); colours from 0 to 1."
    )
    assert second == f"{text}all 4 heads (a mean: no head need look like it); colours from 0 to 1."


def test_one_head_is_one_head():
    single = hand_made(patterns=by_design(6)[:1, :1])
    assert plan_means(single, Look(), overall=True).title == "by-hand: mean of 1 head"
    assert "pattern of 1 head (" in plan_means(single, Look(), overall=True).caption(Look())


@pytest.mark.parametrize(
    ("look", "scale"),
    [
        (Look(), "colours from 0 to 1."),
        (Look(scale="per-head"), "colours from 0 to the largest weight of each picture."),
        (Look(scale="log"), "logarithmic colours from 0.0001 to 1."),
    ],
)
def test_captions_name_the_scale(analysis, look, scale):
    assert plan_means(analysis, look).caption(look).endswith(f"; {scale}")


def test_a_shared_scale_that_ends_below_the_largest_weight_says_so():
    n = 120
    patterns = torch.full((1, 1, n, n), 0.01)
    patterns[..., 0, 0] = 0.9
    plan = plan_means(hand_made(labels=["w"] * n, special=(), patterns=patterns), Look())
    assert plan.top == 0.01
    assert plan.notes(Look())[1].endswith("Weights above 0.01 look the same.")
    assert "colours from 0 to 0.01 (larger weights look the same)" in plan.caption(Look())
    figure = means_figure(plan, Look())
    assert cells_of(figure.axes[0]).get_clim() == (0, 0.01)
    ends = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert (ends[0], ends[-1]) == ("0", "≥ 0.01")
    assert figure.axes[-1].get_xlim() == (0, 0.01)


def test_all_pictures_of_means_share_one_scale():
    found = long_one(60)
    assert plan_means(found, Look()).top == plan_means(found, Look(), overall=True).top


@pytest.mark.parametrize(("n", "look", "note"), [(9, Look(), ""), (60, Look(), "4th"), (60, Look(width=3.3), "5th")])
def test_labels_that_are_left_out_are_said(n, look, note):
    plan = plan_means(long_one(n), look)
    assert (f"Every {note} token is named." in plan.notes(look)[1]) == bool(note)
    assert ("is named" in plan.notes(look)[1]) == bool(note)
    labels = [label.get_text() for label in means_figure(plan, look).axes[0].get_yticklabels()]
    every = int(note[:1] or 1)
    assert labels == list(plan.labels[::every])


def test_the_scale_covers_nearly_all_cells_and_is_the_same_for_every_tile():
    plan = plan_means(long_one(60), Look())
    drawn = np.concatenate([tile.values.ravel() for tile in plan.tiles])
    assert (drawn <= plan.top).mean() >= 0.995
    figure = means_figure(plan, Look())
    assert {cells_of(ax).get_clim() for ax in figure.axes[:3]} == {(0, plan.top)}
    assert figure.axes[3].get_xlim() == (0, plan.top)


def test_with_a_scale_of_its_own_each_tile_says_how_far_it_goes(analysis):
    look = Look(scale="per-head")
    plan = plan_means(analysis, look)
    figure = means_figure(plan, look)
    assert [ax.get_title(loc="left") for ax in figure.axes[:3]] == [
        "layer 0 · 0–0.58",
        "layer 1 · 0–1.00",
        "all layers · 0–0.79",
    ]
    limits = [cells_of(ax).get_clim()[1] for ax in figure.axes[:3]]
    assert limits == pytest.approx([tile.largest for tile in plan.tiles])
    assert figure.axes[3].get_xlabel() == "share of each picture’s largest weight (own scales)"
    assert figure.axes[3].get_xlim() == (0, 1)
    (_, _, _), (_, alone, _) = mean_figures(analysis, look)
    assert alone.axes[1].get_xlabel() == "mean attention weight (scale of this picture)"


def test_a_logarithmic_scale_is_one():
    figure = means_figure(plan_means(long_one(9), Look(scale="log")), Look(scale="log"))
    assert isinstance(cells_of(figure.axes[0]).norm, LogNorm)
    assert figure.axes[-1].get_xlabel() == "mean attention weight (log scale)"
    pixels_of(figure)
    named = [text.get_text() for text in figure.axes[-1].get_xticklabels()]
    assert named == ["≤ 10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "1"]  # what is smaller looks the same


@pytest.mark.parametrize("width", [2.0, 3.3])
@pytest.mark.parametrize(("n", "n_layers"), [(9, 6), (9, 24), (60, 12)])
@pytest.mark.parametrize("scale", ["shared", "per-head", "log"])
def test_a_figure_of_a_chosen_width_is_no_higher_than_a_page(width, n, n_layers, scale):
    look = Look(scale=scale, width=width)
    figure = means_figure(plan_means(long_one(n, n_layers), look), look)
    assert figure.get_size_inches()[1] <= 9
    pixels = pixels_of(figure)
    assert all((edge == 255).all() for edge in (pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]))
    tiles = figure.axes[: n_layers + 1]
    for ax in tiles:
        (name,) = [text for text in ax.get_children() if getattr(text, "get_text", str)() == ax.get_title(loc="left")]
        assert name.get_window_extent().width <= ax.get_window_extent().width + 18
    every = [text.get_window_extent() for text in tiles[0].get_yticklabels() if text.get_text()]
    assert not any(one.overlaps(other) for one, other in pairwise(every))


def test_rows_are_queries_from_the_top_and_special_tokens_stand_back(analysis):
    plan = plan_means(analysis, Look())
    ax = new_axes()
    cells = draw_mean(ax, plan, plan.tiles[0], Look())
    np.testing.assert_array_equal(np.asarray(cells.get_array()).reshape(6, 6), plan.tiles[0].values)
    assert texts(ax.get_yticklabels()) == list(plan.labels)
    assert texts(ax.get_xticklabels()) == list(plan.labels)
    assert [to_hex(label.get_color()) == Look().greys.quiet for label in ax.get_yticklabels()] == list(plan.quiet)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert ax.get_title(loc="left") == "layer 0: mean of 2 heads"


def test_weights_are_written_where_there_is_room(analysis):
    plan = plan_means(analysis, Look())
    ax = new_axes()
    draw_mean(ax, plan, plan.tiles[1], Look())
    shown = {text.get_position()[::-1]: text.get_text() for text in ax.texts}
    values = plan.tiles[1].values
    assert shown[0, 0] == "1"
    assert shown[1, 0] == ".75"
    assert shown.keys() == {(row, column) for (row, column), value in np.ndenumerate(values) if value >= 0.005}
    crowded = plan_means(long_one(40), Look())
    other = new_axes()
    draw_mean(other, crowded, crowded.tiles[0], Look())
    assert not other.texts


@pytest.mark.parametrize(("n", "kind"), [(9, QuadMesh), (60, AxesImage)])
def test_few_cells_are_rectangles_and_many_an_image(n, kind):
    plan = plan_means(long_one(n), Look())
    assert isinstance(cells_of(means_figure(plan, Look()).axes[0]), kind)


@pytest.mark.parametrize("n", [1, 2, 9, 31, 60, 120])
@pytest.mark.parametrize("overall", [False, True])
def test_every_pixel_of_every_cell_has_the_colour_of_its_weight(n, overall):
    look = Look(scale="log")
    plan = plan_means(long_one(n), look, overall=overall)
    figure = means_figure(plan, look)
    for ax in figure.axes:
        for text in ax.texts:
            text.set_visible(False)
    pixels = pixels_of(figure)
    ax, tile = figure.axes[0], plan.tiles[0]
    left, top = round(ax.get_window_extent().x0) + 1, round(len(pixels) - ax.get_window_extent().y1) + 1
    found = pixels[top : top + plan.size, left : left + plan.size].astype(int)
    expected = look.colour_map()(look.norm()(tile.values))[..., :3] * 255
    middle = plan.cell // 2
    np.testing.assert_allclose(found[middle :: plan.cell, middle :: plan.cell], expected, atol=1.01)
    if isinstance(cells_of(ax), AxesImage):
        np.testing.assert_allclose(found, expected.repeat(plan.cell, 0).repeat(plan.cell, 1), atol=1.01)


def test_a_long_text_is_pooled_by_maximum_and_says_so():
    found = long_one(700, 1, 1)
    plan = plan_means(found, Look())
    assert plan.pooled == 3
    assert plan.tiles[0].values.shape == (234, 234)
    pattern = found.layer_patterns(0)[0].numpy()
    assert plan.tiles[0].values[0, 0] == pytest.approx(pattern[:3, :3].max())
    assert plan.tiles[0].largest == pytest.approx(pattern.max())
    assert "Each cell is the largest of 3 × 3 weights (for drawing only)." in plan.notes(Look())[1]
    assert plan.caption(Look()).endswith("each cell is the largest of 3 × 3 weights.")
    labels = texts(means_figure(plan, Look()).axes[0].get_yticklabels())
    assert (labels[0], labels[1]) == ("w0", "w39")  # every 13th cell of 3 tokens


def test_tiles_stand_in_rows_of_four_and_are_named_at_the_left_and_below():
    figure = means_figure(plan_means(long_one(9, 6, 2), Look()), Look())
    tiles = figure.axes[:7]
    boxes = [ax.get_window_extent() for ax in tiles]
    assert [round(box.y0) for box in boxes[:4]] == [round(boxes[0].y0)] * 4
    assert [round(box.x0) for box in boxes[4:]] == [round(box.x0) for box in boxes[:3]]
    assert [bool(texts(ax.get_yticklabels())) for ax in tiles] == [i in (0, 4) for i in range(7)]
    assert [bool(texts(ax.get_xticklabels())) for ax in tiles] == [i >= 3 for i in range(7)]


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("n", [2, 9, 60, 300])
def test_nothing_runs_over_the_edge_and_the_width_is_kept(n, look):
    paper = [int(look.greys.paper[i : i + 2], 16) for i in (1, 3, 5)]
    for _, figure, _ in mean_figures(long_one(n, 3, 2), look):
        pixels = pixels_of(figure)
        assert all((edge == paper).all() for edge in (pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]))
        if look.width is not None:
            assert pixels.shape[1] == round(look.width * 150)


def test_names_of_tiles_do_not_run_into_each_other():
    look = Look(scale="per-head", width=3.3)
    figure = means_figure(plan_means(long_one(60, 12, 2), look), look)
    pixels_of(figure)
    for ax in figure.axes[:13]:
        assert ax.title.get_window_extent().width == 0
        (name,) = [text for text in ax.get_children() if getattr(text, "get_text", str)() == ax.get_title(loc="left")][
            :1
        ]
        assert name.get_window_extent().width <= ax.get_window_extent().width + 18


@pytest.mark.parametrize("label", [*HOSTILE, "W" * 300])
def test_hostile_labels_are_drawn_without_crash_or_warning(label):
    found = long_one(3, labels=[label] * 3, name=label or "x", text=label or "x")
    for _, figure, caption in mean_figures(found, Look()):
        pixels_of(figure)
        assert "\n" not in caption


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
@pytest.mark.parametrize("n", [6, 40])
def test_files_are_the_same_on_every_run(n, file_format):
    first, second = (
        [figure_bytes(figure, file_format, indexed=False) for _, figure, _ in mean_figures(long_one(n), Look("dark"))]
        for _ in range(2)
    )
    assert first == second


def test_text_in_svg_stays_text(analysis):
    (_, figure, _), _ = mean_figures(analysis, Look())
    content = figure_bytes(figure, "svg", indexed=False).decode()
    assert ">by-hand: mean pattern of each layer’s 2 heads</text>" in content
    assert ">[CLS]</text>" in content


def test_the_users_settings_neither_change_the_figure_nor_are_changed(analysis):
    plan = plan_means(analysis, Look())
    expected = pixels_of(means_figure(plan, Look()))
    with matplotlib.rc_context(ODD_SETTINGS):
        before = dict(matplotlib.rcParams)
        figure = means_figure(plan, Look())
        draw_mean(new_axes(), plan, plan.tiles[0], Look())
        assert dict(matplotlib.rcParams) == before
        with figure_style():
            found = pixels_of(figure)
    np.testing.assert_array_equal(expected, found)
