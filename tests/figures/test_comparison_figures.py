"""The figures of a comparison: the numbers reach the artists, the words say what A and B are."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

import attnviz
from attnviz.commands.compare.views import root_norm, rounded_up
from attnviz.commands.heads.measure import analyze
from attnviz.figures.matrix import Labels, Outline
from attnviz.figures.style import Style
from attnviz.present.view import ViewOptions
from attnviz.wording import signed
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


def plans(result, name, style=None, **choices):
    return list(drawing_of("compare", name).plans(result, ViewOptions(style=style or Style(), top=0, **choices)))


@pytest.mark.parametrize(
    ("largest", "end"), [(0.37, 0.4), (0.4, 0.4), (0.401, 0.5), (0.95, 1.0), (1.0, 1.0), (0.0123, 0.02), (0, 1.0)]
)
def test_a_scale_ends_at_a_round_number(largest, end):
    assert rounded_up(largest) == end


def test_colours_follow_the_square_root_of_a_difference():
    norm = root_norm(0.4)
    np.testing.assert_allclose(norm([-0.9, -0.4, -0.1, 0, 0.1, 0.4, 0.9]), [0, 0, 0.25, 0.5, 0.75, 1, 1])
    np.testing.assert_allclose(norm.inverse(norm(0.3)), 0.3)


def test_the_plan_of_a_head_has_its_differences_on_one_scale(result):
    first = result.heads[0]
    (plan,) = plans(result, "differences", select=(str(first.id),))
    np.testing.assert_array_equal(plan.values, layer_differences(result, first.id.layer)[first.id.head])
    assert plan.labels == Labels(result.rows.labels, (True, *[False] * 7, True), result.rows.differing)
    assert plan.outlines == (Outline((first.largest.query,) * 2, (first.largest.key,) * 2),)
    assert plan.norm.vmax == rounded_up(result.largest)


def test_a_head_is_drawn_with_numbers_outline_and_bold_names(result):
    first = result.heads[0]
    ax = result.figure("differences", select=first.id).axes[0]
    values = layer_differences(result, first.id.layer)[first.id.head]
    np.testing.assert_array_equal(ax.images[0].get_array(), values)
    written = {(round(y), round(x)): text.get_text() for text in ax.texts for x, y in [text.get_position()]}
    assert written == {cell: signed(float(value)) for cell, value in np.ndenumerate(values) if abs(value) >= 0.005}
    (outline,) = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    assert outline.get_xy() == (first.largest.key - 0.5, first.largest.query - 0.5)


def test_sides_are_named_by_what_tells_them_apart(result):
    same = attnviz.compare(side(TEXT), side(TEXT))

    def names(first=None, **changes):
        second = replace(same.second, checkpoint=replace(same.second.checkpoint, **changes))
        return replace(same, first=first or same.first, second=second).side_names

    one = replace(same.first, checkpoint=replace(same.first.checkpoint, revision="one"))
    assert result.side_names == (f"“{TEXT}”", f"“{OTHER}”")
    assert names() == ("BertModel", "BertModel")
    assert names(name="other\x1b") == ("BertModel", "other\\x1b")
    assert names(one, revision="two") == ("BertModel at one", "BertModel at two")
    assert names(model=model_of(torch.float64)) == ("BertModel in float32", "BertModel in float64")
