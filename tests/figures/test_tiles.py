"""Patterns side by side: means of layers; pictures without title and notes."""

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from attnviz.commands.heads.analysis import Analysis
from attnviz.figures.style import Style
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of
from tests.support.hand_made import by_design, hand_made
from tests.support.tolerances import SUMS_32

MEAN = drawing_of("heads", "mean")


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return hand_made()


def means_of(analysis: Analysis, scale: str = "auto", **choices: Any) -> Any:
    (plan,) = MEAN.plans(analysis, ViewOptions(style=Style(scale=scale), **choices))
    return plan


def long_one(n: int, n_layers: int = 2, n_heads: int = 2) -> Analysis:
    patterns = np.random.default_rng(n).dirichlet(np.ones(n) / 9, (n_layers, n_heads, n))
    given = torch.tensor(patterns, dtype=torch.float32)
    return hand_made(labels=[f"w{i}" for i in range(n)], special=(0, n - 1), patterns=given)


def test_the_mean_is_over_the_heads_of_each_layer_and_over_all(analysis: Analysis):
    each = means_of(analysis)
    patterns = by_design(6).numpy()
    assert [tile.name for tile in each.tiles] == ["layer 0", "layer 1", "all layers"]
    for tile, expected in zip(each.tiles, [*patterns.mean(1), patterns.mean((0, 1))], strict=True):
        np.testing.assert_allclose(tile.values, expected, atol=SUMS_32)


def test_of_a_selection_the_means_are_over_its_heads_and_it_says_so():
    found = long_one(6, 2, 3)
    patterns = np.stack([found.layer_patterns(layer).numpy() for layer in (0, 1)])
    each = means_of(found, select=("L0H1", "L1"))
    expected = patterns[0, 1], patterns[1].mean(0), np.stack([patterns[0, 1], *patterns[1]]).mean(0)
    for tile, values in zip(each.tiles, expected, strict=True):
        np.testing.assert_allclose(tile.values, values, atol=SUMS_32)
    *_, one = means_of(found, select=("L1H2",)).tiles
    np.testing.assert_allclose(one.values, patterns[1, 2], atol=SUMS_32)


def test_dropping_special_tokens_averages_the_renormalised_patterns(analysis: Analysis):
    plan = means_of(analysis, drop_special=True)
    inner = by_design(6).numpy()[:, :, 1:5, 1:5]
    sums = inner.sum(-1, keepdims=True)
    expected = np.divide(inner, sums, out=np.zeros_like(inner), where=sums > 0).mean(1)
    np.testing.assert_allclose([tile.values for tile in plan.tiles[:2]], expected, atol=SUMS_32)
    assert plan.labels.texts == ("the", "cat", "ran", "away")


def test_the_shared_scale_covers_nearly_all_cells_is_one_for_both_pictures_and_says_where_it_ends():
    n = 120
    patterns = torch.full((1, 1, n, n), 0.01)
    patterns[..., 0, 0] = 0.9
    each = means_of(hand_made(labels=["w"] * n, special=(), patterns=patterns), "shared")
    assert each.norm.vmax == 0.01
    assert each.cut
    other = means_of(long_one(60), "shared")
    drawn = np.concatenate([tile.values.ravel() for tile in other.tiles])
    assert (drawn <= other.norm.vmax).mean() >= 0.995


def test_rows_are_queries_and_weights_are_written_where_there_is_room(analysis: Analysis):
    plan = means_of(analysis)
    figure = MEAN.figure(plan, Style(), False)
    values = plan.tiles[1].values
    np.testing.assert_array_equal(figure.axes[1].images[0].get_array(), values)
    written = {text.get_position()[::-1]: text.get_text() for text in figure.axes[1].texts}
    assert (written[0, 0], written[1, 0]) == ("1", ".75")
    assert written.keys() == {place for place, value in np.ndenumerate(values) if value >= 0.005}
    cells = MEAN.draw(Figure().subplots(), plan, Style())
    np.testing.assert_array_equal(cells.get_array(), plan.tiles[-1].values)


def test_a_long_text_is_pooled_by_maximum_and_both_that_and_missing_names_are_said():
    found = long_one(700, 1, 1)
    plan = means_of(found)
    assert plan.pooled == 3
    pattern = found.layer_patterns(0)[0].numpy()
    assert plan.tiles[0].values.shape == (234, 234)
    assert plan.tiles[0].values[0, 0] == pytest.approx(pattern[:3, :3].max())


def test_a_bare_figure_has_no_words_above_in_the_fast_files_too(analysis: Analysis, tmp_path: Any):
    for name in ("heads", "mean"):
        full, bare = (analysis.figure(name, Style(bare=bare)) for bare in (False, True))
        assert full.texts
        assert not bare.texts
        assert bare.get_figheight() < full.get_figheight()
    for is_bare in (False, True):
        folder = tmp_path / str(is_bare)
        analysis.save(folder, figures=["heads"], formats=["svg"], select=["L0H1"], style=Style(bare=is_bare))
        assert ("the cat ran away" in (folder / "heads/L00H01.svg").read_text()) != is_bare


@pytest.mark.parametrize(
    ("n", "scale", "logarithmic"), [(6, "auto", False), (41, "auto", True), (41, "shared", False), (6, "log", True)]
)
def test_means_have_the_scale_of_heatmaps(n: int, scale: str, logarithmic: bool):
    found = long_one(n)
    heatmap = next(drawing_of("heads", "heads").plans(found, ViewOptions(style=Style(scale=scale))))
    for plan in (means_of(found, scale), heatmap):
        assert isinstance(plan.norm, LogNorm) is logarithmic
        assert ("log scale" in plan.bar) is logarithmic
