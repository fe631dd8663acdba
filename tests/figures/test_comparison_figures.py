"""The figures of a comparison: the numbers reach the artists, the words say what A and B are."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import attnviz
from attnviz.commands.compare.views import root_norm, rounded_up
from attnviz.commands.compare.wording import side_lines
from attnviz.commands.heads.measure import analyze
from attnviz.figures.matrix import Labels, Outline, max_pool
from attnviz.figures.style import Style
from attnviz.models.wording import signed
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.results import layer_differences

TEXT, OTHER = "the cat that i saw ran away", "the dog that i saw ran away"


@cache
def model_of(dtype=torch.float32):
    return sharp_bert(max_position_embeddings=256).to(dtype)


@cache
def side(text, **options):
    return analyze(text, model_of(), tokenizer=bert_tokenizer(), syntax=False, **options)


@pytest.fixture(scope="module")
def result():
    return attnviz.compare(side(TEXT), side(OTHER))


@pytest.fixture(scope="module")
def same():
    return attnviz.compare(side(TEXT), side(TEXT))


@pytest.fixture(scope="module")
def long():
    words = "the cat that i saw ran away one two three four five dog house tree".split()
    text = [words[i * 7 % 15] for i in range(200)]
    return attnviz.compare(side(" ".join(text)), side(" ".join([*text[:-1], "he"])))


def plans(result, name, style=None, **choices):
    return list(drawing_of("compare", name).plans(result, ViewOptions(style=style or Style(), top=0, **choices)))


# --- plans


@pytest.mark.parametrize(
    ("largest", "end"), [(0.37, 0.4), (0.4, 0.4), (0.401, 0.5), (0.95, 1.0), (1.0, 1.0), (0.0123, 0.02), (0, 1.0)]
)
def test_a_scale_ends_at_a_round_number(largest, end):
    assert rounded_up(largest) == end


def test_colours_follow_the_square_root_of_a_difference():
    norm = root_norm(0.4)
    np.testing.assert_allclose(norm([-0.9, -0.4, -0.1, 0, 0.1, 0.4, 0.9]), [0, 0, 0.25, 0.5, 0.75, 1, 1])
    np.testing.assert_allclose(norm.inverse(norm(0.3)), 0.3)


def test_the_plan_of_a_head_has_its_differences_and_says_sides_scale_and_rank(result):
    first = result.heads[0]
    (plan,) = plans(result, "differences", select=(str(first.id),))
    np.testing.assert_array_equal(plan.values, layer_differences(result, first.id.layer)[first.id.head])
    assert plan.labels == Labels(result.rows.labels, (True, *[False] * 7, True), result.rows.differing)
    assert plan.outlines == (Outline((first.largest.query,) * 2, (first.largest.key,) * 2),)
    assert plan.norm.vmax == rounded_up(result.largest)
    for said in (plan.title, plan.caption):
        assert f"{first.distance:.3f}" in said
        assert "rank 1 of 12" in said
    for said in (" ".join(plan.notes), plan.caption):
        assert [part for part in (TEXT, OTHER, "BertModel", "cat → dog") if part not in said] == []
    assert plan.evidence.endswith(signed(first.largest.difference))
    assert f"±{rounded_up(result.largest):g}" in plan.caption
    stems = [plan.stem for plan in plans(result, "differences")]
    assert stems == [f"differences/L0{layer}H0{head}" for layer in range(3) for head in range(4)]


def test_where_nothing_differs_the_figures_say_so(same):
    plan = plans(same, "differences")[0]
    assert (plan.outlines, plan.norm.vmax) == ((), 1.0)
    for said in (plan.evidence, plan.caption, plans(same, "overview")[0].title):
        assert "no weight differs" in said
    cells = same.draw("differences", Figure().subplots())
    assert {to_hex(colour) for colour in cells.cmap(cells.norm(cells.get_array())).reshape(-1, 4)} == {"#fffefe"}


def test_long_texts_are_pooled_where_there_is_no_room_and_the_picture_says_so(long):
    (grid,) = plans(long, "overview")
    pooled = -(-202 // len(grid.cells[0].values))
    assert pooled > 1
    for said in (" ".join(grid.notes), grid.caption):
        assert f"{pooled} × {pooled} differences" in said
    np.testing.assert_array_equal(grid.cells[1].values, max_pool(layer_differences(long, 0)[1], pooled))
    assert "Every 3rd token is named." in plans(long, "differences")[0].notes


# --- what A and B are


def test_sides_are_named_by_what_tells_them_apart(result, same):
    assert same.side_names == ("BertModel", "BertModel")
    assert result.side_names == (f"“{TEXT}”", f"“{OTHER}”")

    def renamed(analysis, **changes):
        return replace(analysis, checkpoint=replace(analysis.checkpoint, **changes))

    def names(second, first=same.first):
        return replace(same, first=first, second=second).side_names

    assert names(renamed(same.second, name="other\x1b")) == ("BertModel", "other\\x1b")
    at_two = renamed(same.second, revision="two")
    assert names(at_two, renamed(same.first, revision="one")) == ("BertModel at one", "BertModel at two")
    wide = renamed(same.second, model=model_of(torch.float64))
    assert names(wide) == ("BertModel in float32", "BertModel in float64")
    pair = attnviz.compare(side(TEXT, pair="he ran"), side(TEXT, pair="it ran"))
    assert pair.compared == "texts"
    assert side_lines(pair)[0] == f"A: “{TEXT}” + “he ran”"


# --- artists


def test_a_head_is_drawn_with_numbers_outline_and_bold_names(result):
    first = result.heads[0]
    ax = result.figure("differences", select=first.id).axes[0]
    values = layer_differences(result, first.id.layer)[first.id.head]
    np.testing.assert_array_equal(ax.images[0].get_array(), values)
    written = {(round(y), round(x)): text.get_text() for text in ax.texts for x, y in [text.get_position()]}
    assert written == {cell: signed(float(value)) for cell, value in np.ndenumerate(values) if abs(value) >= 0.005}
    (outline,) = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    assert outline.get_xy() == (first.largest.key - 0.5, first.largest.query - 0.5)
    assert [label.get_text() for label in ax.get_yticklabels()] == list(result.rows.labels)
    assert [label.get_text() for label in ax.get_yticklabels() if label.get_fontweight() == "bold"] == ["cat → dog"]
