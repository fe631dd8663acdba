"""Mean patterns: what is averaged, how it is drawn, and that every picture says that it is a mean."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from attnviz.commands.heads.views import DRAWINGS
from attnviz.figures.style import Style
from attnviz.present.view import ViewOptions
from tests.support.drawn import texts_of
from tests.support.hand_made import by_design, hand_made

MEAN = DRAWINGS["mean"]
STYLES = [Style(), Style("dark", "log", 3.3), Style("light", "per-head", 2.0)]


@pytest.fixture(scope="module")
def analysis():
    return hand_made()


def plans_of(analysis, style=None, **choices):
    """The plan of all layers, and that of the mean over all heads."""
    return list(MEAN.plans(analysis, ViewOptions(style=style or Style(), **choices)))


def tiles_of(plan):
    ((_, tiles),) = plan.groups
    return tiles


def long_one(n, n_layers=2, n_heads=2):
    patterns = np.random.default_rng(n).dirichlet(np.ones(n) / 9, (n_layers, n_heads, n))
    given = torch.tensor(patterns, dtype=torch.float32)
    return hand_made(labels=[f"w{i}" for i in range(n)], special=(0, n - 1), patterns=given)


def test_the_mean_is_over_the_heads_of_each_layer_and_over_all(analysis):
    each, alone = plans_of(analysis)
    patterns = by_design(6).numpy()
    assert [tile.name for tile in tiles_of(each)] == ["layer 0", "layer 1", "all layers"]
    for tile, expected in zip(tiles_of(each), [*patterns.mean(1), patterns.mean((0, 1))], strict=True):
        np.testing.assert_allclose(tile.values, expected, atol=1e-7)
    np.testing.assert_array_equal(tiles_of(alone)[0].values, tiles_of(each)[-1].values)
    assert (each.stem, alone.stem) == ("mean", "mean-all")


def test_dropping_special_tokens_averages_the_renormalised_patterns(analysis):
    plan, _ = plans_of(analysis, drop_special=True)
    inner = by_design(6).numpy()[:, :, 1:5, 1:5]
    sums = inner.sum(-1, keepdims=True)
    expected = np.divide(inner, sums, out=np.zeros_like(inner), where=sums > 0).mean(1)
    np.testing.assert_allclose([tile.values for tile in tiles_of(plan)[:2]], expected, atol=1e-6)
    assert plan.labels.texts == ("the", "cat", "ran", "away")
    assert plan.notes[:2] == ("“the cat ran away” (4 tokens)", "Special tokens dropped, rows renormalised.")
    assert "; special tokens dropped, rows renormalised." in plan.caption
    causal, _ = plans_of(hand_made(causal=True, special=()), drop_special=True)
    assert (len(causal.labels.texts), causal.notes[1]) == (5, "First token dropped, rows renormalised.")


@pytest.mark.parametrize(
    ("style", "scale"),
    [
        (Style(), "colours from 0 to 1"),
        (Style(scale="per-head"), "colours from 0 to the largest weight of each picture"),
        (Style(scale="log"), "logarithmic colours from 0.0001 to 1"),
    ],
)
def test_every_picture_says_that_it_is_a_mean_of_what_and_on_which_scale(analysis, style, scale):
    each, alone = plans_of(analysis, style)
    assert each.title == "by-hand: mean pattern of each layer’s 2 heads"
    assert alone.title == "by-hand: mean of all 4 heads"
    honest = "; a mean: no head need look like it. Rows attend to columns"
    assert each.caption.endswith(f"the 2 heads of each layer, and of all layers{honest}; {scale}.")
    assert alone.caption.endswith(f"all 4 heads{honest}; {scale.removesuffix(' of each picture')}.")
    for plan in (each, alone):
        assert any("no head need look like it" in written for written in texts_of(MEAN.figure(plan, style, False)))
    (_, single) = plans_of(hand_made(patterns=by_design(6)[:1, :1]), style)
    assert single.title == "by-hand: mean of 1 head"


def test_the_shared_scale_covers_nearly_all_cells_is_one_for_both_pictures_and_says_where_it_ends():
    n = 120
    patterns = torch.full((1, 1, n, n), 0.01)
    patterns[..., 0, 0] = 0.9
    each, alone = plans_of(hand_made(labels=["w"] * n, special=(), patterns=patterns))
    assert each.norm.vmax == alone.norm.vmax == 0.01
    assert each.cut
    assert "colours from 0 to 0.01 (larger weights look the same)" in each.caption
    bar = MEAN.figure(each, Style(), False).axes[-1]
    ends = [label.get_text() for label in bar.get_xticklabels()]
    assert (ends[0], ends[-1], bar.get_xlim()) == ("0", "≥ 0.01", (0, 0.01))
    other, _ = plans_of(long_one(60))
    drawn = np.concatenate([tile.values.ravel() for tile in tiles_of(other)])
    assert (drawn <= other.norm.vmax).mean() >= 0.995


def test_with_a_scale_of_its_own_each_tile_says_how_far_it_goes(analysis):
    each, alone = plans_of(analysis, Style(scale="per-head"))
    assert [tile.name for tile in tiles_of(each)] == ["layer 0 · 0–0.58", "layer 1 · 0–1.00", "all layers · 0–0.79"]
    figure = MEAN.figure(each, Style(scale="per-head"), False)
    limits = [ax.images[0].get_clim() for ax in figure.axes[:3]]
    assert limits == [(0, pytest.approx(tile.values.max())) for tile in tiles_of(each)]
    assert (each.bar, figure.axes[3].get_xlim()) == ("share of each picture’s largest weight (own scales)", (0, 1))
    assert alone.bar == "mean attention weight (scale of this picture)"


def test_rows_are_queries_and_weights_are_written_where_there_is_room(analysis):
    plan, _ = plans_of(analysis)
    figure = MEAN.figure(plan, Style(), False)
    values = tiles_of(plan)[1].values
    np.testing.assert_array_equal(figure.axes[1].images[0].get_array(), values)
    written = {text.get_position()[::-1]: text.get_text() for text in figure.axes[1].texts}
    assert (written[0, 0], written[1, 0]) == ("1", ".75")
    assert written.keys() == {place for place, value in np.ndenumerate(values) if value >= 0.005}
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(plan.labels.texts)


def test_a_long_text_is_pooled_by_maximum_and_both_that_and_missing_names_are_said():
    found = long_one(700, 1, 1)
    plan, _ = plans_of(found)
    assert plan.pooled == 3
    pattern = found.layer_patterns(0)[0].numpy()
    assert tiles_of(plan)[0].values.shape == (234, 234)
    assert tiles_of(plan)[0].values[0, 0] == pytest.approx(pattern[:3, :3].max())
    assert "cell is the largest of 3 × 3 weights (pooled for drawing only);" in plan.caption
    labels = [label.get_text() for label in MEAN.figure(plan, Style(), False).axes[0].get_yticklabels()]
    every = int(labels[1][1:])
    assert f"Every {every}th token is named. Each cell is the largest of 3 × 3 weights" in plan.notes[-1]
    assert not any("named" in note for note in plans_of(long_one(9))[0].notes)


def test_the_mean_over_all_heads_is_drawn_on_the_callers_axes(analysis):
    figure = Figure(figsize=(8, 4))
    left, right = figure.subplots(1, 2)
    plan, _ = plans_of(analysis)
    cells = MEAN.draw(left, plan, Style())
    np.testing.assert_array_equal(cells.get_array(), tiles_of(plan)[-1].values)
    assert left.texts
    assert (figure.axes, right.has_data()) == ([left, right], False)
