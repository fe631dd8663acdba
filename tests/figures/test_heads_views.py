"""Views of a text's heads: overview, heatmaps, maps of a statistic, means of layers; and pictures without words."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from attnviz.analysis.result import Analysis
from attnviz.commands.heads import views
from attnviz.commands.heads.first_look import heads_to_look_at
from attnviz.errors import UsageError
from attnviz.figures.style import Style
from attnviz.language.syntax import Arc
from attnviz.measures.statistics import OPTIONAL, scalars
from attnviz.present.statistics import described
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of
from tests.support.hand_made import LABELS, PARSE, by_design, hand_made, uniform_pattern
from tests.support.stored import PROFILE
from tests.support.tolerances import SUMS_32


def plans(analysis: Analysis, view: str, scale: str = "auto", **choices: Any) -> list[Any]:
    return list(drawing_of("heads", view).plans(analysis, ViewOptions(style=Style(scale=scale), **choices)))


def plan(analysis: Analysis, view: str, scale: str = "auto", **choices: Any) -> Any:
    (only,) = plans(analysis, view, scale, **choices)
    return only


def long_one(n: int, n_layers: int = 2, n_heads: int = 2) -> Analysis:
    patterns = np.random.default_rng(n).dirichlet(np.ones(n) / 9, (n_layers, n_heads, n))
    given = torch.tensor(patterns, dtype=torch.float32)
    return hand_made(labels=[f"w{i}" for i in range(n)], special=(0, n - 1), patterns=given)


def test_heatmaps_come_in_the_models_order_with_their_labels():
    of = plans(hand_made(), "heads")
    assert [plan.stem for plan in of] == ["heads/L00H00", "heads/L00H01", "heads/L01H00", "heads/L01H01"]
    for plan, pattern in zip(of, by_design(6).reshape(4, 6, 6), strict=True):
        np.testing.assert_array_equal(plan.values, pattern.numpy())
        assert plan.labels.texts == LABELS
        assert plan.labels.muted == (True, False, False, False, False, True)


@pytest.mark.usefixtures("undrawn")
def test_of_a_model_of_many_heads_those_to_look_at_get_a_heatmap_unless_they_are_asked_for(monkeypatch, tmp_path: Path):
    analysis = hand_made(patterns=by_design(6)[:1].repeat(1, 4, 1, 1))
    counts = []
    for most in (8, 7):
        monkeypatch.setattr(views, "MOST_DRAWN", most)
        for choices in ({}, {"figures": ["heads"]}):
            written = analysis.save(tmp_path, **choices)["figures"]
            counts.append(sum(name.startswith("heads/") for name in written))
    assert (counts[0], counts[1], counts[3]) == (8, 8, 8)
    assert counts[2] == len(heads_to_look_at(analysis.heads)) < 8


def test_a_role_over_the_corpus_stands_beside_the_label_and_never_in_its_place():
    result, plain = hand_made(profile=PROFILE, parse=PARSE), hand_made(parse=PARSE)
    assert [head.label for head in result.heads] == [head.label for head in plain.heads]
    of_head, alone = (plan(each, "heads", select=("L0H1",)) for each in (result, plain))
    assert "0.70" in of_head.evidence.removeprefix(alone.evidence)
    assert ("a.conllu" in of_head.caption, "b.tsv" in of_head.caption) == (True, False)  # what measured this role
    cells = plan(result, "overview").cells
    right = [cell.right and (cell.right[0].name, cell.right[1][0], cell.right[2]) for cell in cells]
    coreference = ("coreference", "coreference (corpus only)", None)
    assert right == [("local", "previous-token", True), ("syntactic", "nsubj (too few)", None), None, coreference]
    elsewhere = replace(PARSE, arcs=(Arc(0, 1, "det"),))
    for parse, shown, filled in ((elsewhere, "nsubj (none here)", False), (None, "nsubj (not parsed)", None)):
        beside = plan(hand_made(profile=PROFILE, parse=parse), "overview").cells[1].right
        assert (beside[1][0], beside[2]) == (shown, filled)


def test_the_overview_shows_every_selected_head_with_its_label():
    cells = plan(hand_made(), "overview", select=("L1",)).cells
    assert [(str(cell.id), cell.family.name) for cell in cells] == [("L1H0", "sink"), ("L1H1", "local")]
    np.testing.assert_array_equal(cells[0].values, by_design(6)[1, 0].numpy())


def test_a_head_with_its_own_scale_has_its_largest_weight_in_the_strongest_colour():
    result = hand_made(patterns=(torch.eye(6) * 0.7 + uniform_pattern(6) * 0.3)[None, None])
    of_head, grid = plan(result, "heads", "per-head"), plan(result, "overview", "per-head")
    assert of_head.norm(of_head.values.max()) == pytest.approx(1)
    assert grid.cells[0].values.max() == 1
    assert (of_head.bar_norm.vmin, of_head.bar_norm.vmax) == (0, 1)


def test_a_long_text_is_pooled_and_its_largest_weights_stay():
    n = 1100
    pattern = uniform_pattern(n)
    pattern[701, 401] = 0.9
    result = hand_made(labels=[str(i) for i in range(n)], special=(), patterns=pattern[None, None])
    of_head, grid, mean = plan(result, "heads"), plan(result, "overview"), plan(result, "mean")
    assert (of_head.pooled, of_head.values.shape) == (2, (550, 550))
    assert of_head.values[350, 200] == pytest.approx(0.9)
    assert grid.cells[0].values[701 // grid.pooled, 401 // grid.pooled] == pytest.approx(0.9)
    assert mean.tiles[0].values[701 // mean.pooled, 401 // mean.pooled] == pytest.approx(0.9)


def test_special_tokens_can_be_left_out_and_rows_are_renormalised():
    of_head = plan(hand_made(), "heads", select=("L0H1",), drop_special=True)
    np.testing.assert_allclose(of_head.values, np.full((4, 4), 0.25), rtol=SUMS_32)
    assert of_head.labels.texts == LABELS[1:-1]
    grid = plan(hand_made(), "overview", drop_special=True)
    np.testing.assert_allclose(grid.cells[1].values, of_head.values, rtol=SUMS_32)
    mean = plan(hand_made(), "mean", drop_special=True)
    inner = by_design(6).numpy()[:, :, 1:5, 1:5]
    sums = inner.sum(-1, keepdims=True)
    expected = np.divide(inner, sums, out=np.zeros_like(inner), where=sums > 0).mean(1)
    np.testing.assert_allclose([tile.values for tile in mean.tiles[:2]], expected, atol=SUMS_32)
    assert mean.labels.texts == LABELS[1:-1]
    with pytest.raises(UsageError, match="special"):
        plans(hand_made(labels="a", special=(), causal=True, patterns=by_design(1, True)), "heads", drop_special=True)


# --- maps of a statistic


def map_of(analysis: Analysis, statistic: str) -> Any:
    (drawn,) = plan(analysis, "map", maps=(statistic,)).maps
    return drawn


@pytest.mark.parametrize("name", [*scalars(), *OPTIONAL])
def test_every_statistic_is_a_map_with_the_value_of_each_head_and_a_column_with_its_unit(name: str):
    analysis = hand_made()
    found = [map_of(analysis, name).values[head.id.layer, head.id.head] for head in analysis.heads]
    expected = [head.statistics.get(name) for head in analysis.heads]
    assert found == pytest.approx([np.nan if value is None else value for value in expected], nan_ok=True)
    header = " ".join(analysis.report(maps=[name], width=150).partition(" n ")[2].partition("─")[0].split())
    unit = described(name, "token", "")[2]
    assert header.endswith(f"({unit})") if unit else "(" not in header


@pytest.mark.parametrize(
    ("found", "name", "expected"),
    [
        (hand_made(), "entropy", np.log(6)),
        (hand_made(), "distance", 35 / 18),
        (hand_made(), "sink", 1 / 3),
        (hand_made(), "previous", 3 / 16),
        (hand_made(causal=True, special=()), "distance", np.mean([q / 2 for q in range(6)])),
        (hand_made(labels=("[CLS]", "a", "b", "a", "b", "[SEP]")), "duplicate_on_repeats", 1 / 6),
    ],
)
def test_uniform_attention_is_marked_on_the_colour_bar(found: Analysis, name: str, expected: float):
    assert map_of(found, name).reference[0] == pytest.approx(expected)
    if name in ("entropy", "distance"):
        assert map_of(found, name).values[0, 1] == pytest.approx(expected)  # L0H1 is uniform


def test_what_cannot_be_measured_is_hatched_and_has_a_dash():
    analysis = hand_made()
    pairs = zip(analysis.heads, [0.2, None, 0.4, 1.0], strict=True)
    heads = tuple(replace(head, statistics={**head.statistics, "sink": value}) for head, value in pairs)
    ax, bar = plan(replace(analysis, heads=heads), "map", maps=("sink",)).figure(Style()).axes
    assert ax.patch.get_hatch()
    np.testing.assert_array_equal(np.ma.getmaskarray(ax.images[0].get_array()), [[False, True], [False, False]])
    written = {text.get_position()[::-1]: text.get_text() for text in ax.texts}
    assert written == {(0, 0): "0.20", (0, 1): "–", (1, 0): "0.40", (1, 1): "1.00"}
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # layer 0 above
    assert "0.33" in bar.texts[0].get_text()


# --- means of layers


def test_the_mean_is_over_the_heads_of_each_layer_and_over_all_or_over_those_selected():
    patterns, means = by_design(6).numpy(), plan(hand_made(), "mean").tiles
    assert [tile.name for tile in means] == ["layer 0", "layer 1", "all layers"]
    for tile, expected in zip(means, [*patterns.mean(1), patterns.mean((0, 1))], strict=True):
        np.testing.assert_allclose(tile.values, expected, atol=SUMS_32)
    found = long_one(6, 2, 3)
    patterns = np.stack([found.layer_patterns(layer).numpy() for layer in (0, 1)])
    expected = patterns[0, 1], patterns[1].mean(0), np.stack([patterns[0, 1], *patterns[1]]).mean(0)
    for tile, values in zip(plan(found, "mean", select=("L0H1", "L1")).tiles, expected, strict=True):
        np.testing.assert_allclose(tile.values, values, atol=SUMS_32)


def test_the_shared_scale_of_means_covers_nearly_all_cells_and_says_where_it_ends():
    n = 120
    patterns = torch.full((1, 1, n, n), 0.01)
    patterns[..., 0, 0] = 0.9
    means = plan(hand_made(labels=["w"] * n, special=(), patterns=patterns), "mean", "shared")
    assert (means.norm.vmax, means.cut) == (0.01, True)
    other = plan(long_one(60), "mean", "shared")
    drawn = np.concatenate([tile.values.ravel() for tile in other.tiles])
    assert (drawn <= other.norm.vmax).mean() >= 0.995


def test_rows_are_queries_and_weights_are_written_where_there_is_room():
    means = plan(hand_made(), "mean")
    ax, values = means.figure(Style()).axes[1], means.tiles[1].values
    np.testing.assert_array_equal(ax.images[0].get_array(), values)
    written = {text.get_position()[::-1]: text.get_text() for text in ax.texts}
    assert (written[0, 0], written[1, 0]) == ("1", ".75")
    assert written.keys() == {place for place, value in np.ndenumerate(values) if value >= 0.005}
    cells = means.draw(Figure().subplots(), Style())
    np.testing.assert_array_equal(cells.get_array(), means.tiles[-1].values)


def test_a_bare_figure_has_no_words_above_in_the_fast_files_too(tmp_path: Path):
    analysis = hand_made()
    for name in ("heads", "mean"):
        full, bare = (analysis.figure(name, Style(bare=bare)) for bare in (False, True))
        assert (bool(full.texts), bool(bare.texts)) == (True, False)
        assert bare.get_figheight() < full.get_figheight()
    for is_bare in (False, True):
        folder = tmp_path / str(is_bare)
        analysis.save(folder, figures=["heads"], formats=["svg"], select=["L0H1"], style=Style(bare=is_bare))
        assert ("the cat ran away" in (folder / "heads/L00H01.svg").read_text()) != is_bare


@pytest.mark.parametrize(
    ("n", "scale", "logarithmic"), [(6, "auto", False), (41, "auto", True), (41, "shared", False), (6, "log", True)]
)
def test_means_have_the_scale_of_heatmaps(n: int, scale: str, logarithmic: bool):
    for view in ("mean", "heads"):
        first, *_ = plans(long_one(n), view, scale)
        assert (isinstance(first.norm, LogNorm), "log scale" in first.bar) == (logarithmic, logarithmic)
