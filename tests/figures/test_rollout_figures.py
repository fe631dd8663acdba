"""The figures of an attention rollout: what is planned, and what stands on the axes."""

from typing import Any

import numpy as np
import pytest

import attnviz
from attnviz.figures.style import Style
from attnviz.present.view import ViewOptions
from tests.support.drawn import drawing_of
from tests.support.models import bert_tokenizer, sharp_bert

TEXT = "the cat that i saw ran away"
WORDS = "the cat that i saw ran away one two three four five dog house tree".split()
LONG = " ".join(WORDS[i * 7 % 15] for i in range(300))


@pytest.fixture(scope="module")
def result() -> Any:
    return attnviz.rollout(TEXT, sharp_bert(), tokenizer=bert_tokenizer())


@pytest.fixture(scope="module")
def long() -> Any:
    return attnviz.rollout(LONG, sharp_bert(max_position_embeddings=512), tokenizer=bert_tokenizer())


def plan(result: Any, name: str, style: Style | None = None) -> Any:
    view = drawing_of("rollout", name)
    (only,) = view.plans(result, ViewOptions(style or Style()))
    return only


def test_the_last_layer_has_attention_rollout_and_norm_rollout_on_one_scale(result: Any):
    of = plan(result, "rollout")
    tiles = of.tiles
    assert [tile.name for tile in tiles] == ["attention of layer 2 (mean of 4 heads)", "rollout", "norm rollout"]
    for tile, matrix in zip(tiles, (result.means, result.weights, result.norms), strict=True):
        np.testing.assert_array_equal(tile.values, matrix[-1].numpy())
    assert (of.labels.texts, of.labels.muted) == (result.units.labels, result.units.sink)
    assert np.mean(np.concatenate([tile.values.ravel() for tile in tiles]) <= of.norm.vmax) >= 0.98
    for said in ("layers 0 to 2", "0.5 attention + 0.5 identity", f"from 0 to {of.norm.vmax:g}"):
        assert said in of.caption


def test_pooling_keeps_the_largest_share_and_is_told(long: Any):
    of = plan(long, "rollout", Style(width=3.3))
    assert of.pooled > 1
    tile = of.tiles[1].values
    assert tile.max() == pytest.approx(float(long.weights[-1].max()))
    assert tile[0, 0] == pytest.approx(float(long.weights[-1][: of.pooled, : of.pooled].max()))
    assert f"{of.pooled} × {of.pooled}" in of.caption
