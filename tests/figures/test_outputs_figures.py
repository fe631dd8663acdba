"""Pictures of what heads write and of what a classifier decides: their numbers reach plans and artists."""

import numpy as np
import pytest
from matplotlib.colors import LogNorm, Normalize

import attnviz
from attnviz.commands.outputs.measure import HeadOutputs
from attnviz.figures.style import Style
from attnviz.figures.tiles import TilesPlan
from attnviz.present.report import views_of
from attnviz.present.view import ViewOptions
from tests.conftest import SENTENCE
from tests.support.ablations import TEXTS, masked_token_model, next_token_model
from tests.support.classifiers import sharp_classifier
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.tolerances import SUMS_32

OWN, SHARED = Style(scale="per-head"), Style(scale="shared")


@pytest.fixture(scope="module")
def bert() -> HeadOutputs:
    model, tokenizer = masked_token_model()
    return attnviz.head_outputs(SENTENCE, model, tokenizer=tokenizer)


def plan_of(result: HeadOutputs, name: str, style: Style = OWN, select: str = ""):
    (view,) = [view for view in views_of("outputs") if view.name == name]
    return next(view.drawing.plans(result, ViewOptions(style, select=(select,) if select else (), top=0)))


def head_plan(result: HeadOutputs, head: str, style: Style = OWN) -> TilesPlan:
    return plan_of(result, "heads", style, head)


def test_the_tiles_are_weights_times_norms_of_values(bert):
    plan, figure = head_plan(bert, "L1H2"), bert.figure("heads", select="L1H2")
    weights, value_norms, weighted = (tile.values for tile in plan.tiles)
    pattern, norms = bert.pattern("L1H2").numpy(), bert.norms("L1H2").numpy()
    assert np.allclose(weights, pattern)
    assert np.allclose(weighted, norms / bert.head("L1H2").largest)
    assert np.allclose(value_norms, bert.value_norms("L1H2").numpy() / bert.value_norms("L1H2").max().item())
    assert np.allclose(weights * value_norms / (weights * value_norms).max(), weighted, atol=SUMS_32)
    drawn = [ax for ax in figure.axes if ax.images]
    for ax, tile in zip(drawn, plan.tiles, strict=True):
        assert np.allclose(ax.images[0].get_array(), tile.values)


def test_a_shared_scale_ends_at_the_largest_of_all_heads(bert):
    plan = head_plan(bert, "L1H2", SHARED)
    assert bert.largest == max(float(bert.norms(head.id).max()) for head in bert.heads)
    assert np.allclose(plan.tiles[0].values, bert.pattern("L1H2").numpy())
    assert np.allclose(plan.tiles[2].values, bert.norms("L1H2").numpy() / bert.largest)
    for cell in plan_of(bert, "overview", SHARED).cells:
        assert np.allclose(cell.values, bert.norms(cell.id).numpy() / bert.largest)


@pytest.mark.parametrize(("n", "scale"), [(40, Normalize), (41, LogNorm)])
def test_the_scale_is_logarithmic_from_41_tokens_on(n, scale):
    result = attnviz.head_outputs("cat " * (n - 2), sharp_bert(max_position_embeddings=41), tokenizer=bert_tokenizer())
    assert len(result.tokens) == n
    head, overview = head_plan(result, "L1H2", Style()), plan_of(result, "overview", Style())
    assert {type(plan.norm) for plan in (head, overview)} == {scale}
    if scale is LogNorm:
        assert (head.norm.vmin, head.norm.vmax) == (overview.norm.vmin, overview.norm.vmax) == (1e-4, 1)


def test_long_texts_are_pooled_by_their_largest_and_say_so():
    model = sharp_bert(max_position_embeddings=1000, num_hidden_layers=1)
    long = attnviz.head_outputs("the cat saw " * 300, model, tokenizer=bert_tokenizer())
    plan, norms = head_plan(long, "L0H0"), long.norms("L0H0").numpy()
    assert plan.pooled > 1
    value_norms = long.value_norms("L0H0").numpy()
    largest, p = long.head("L0H0").largest, plan.pooled
    assert plan.tiles[2].values[3, 5] == pytest.approx(norms[3 * p : 4 * p, 5 * p : 6 * p].max() / largest)
    assert plan.tiles[1].values[0, 5] == pytest.approx(value_norms[5 * p : 6 * p].max() / value_norms.max())


def test_the_overview_has_every_head_with_its_share(bert):
    plan = plan_of(bert, "overview")
    assert [cell.id for cell in plan.cells] == sorted(head.id for head in bert.heads)
    for cell in plan.cells:
        assert np.allclose(cell.values, bert.norms(cell.id).numpy() / bert.head(cell.id).largest)
        assert cell.beside == f"{100 * bert.head(cell.id).projection_share:.0f} %".replace("-", "−")


@pytest.mark.parametrize(
    ("kind", "columns"), [("gpt2", ["b_O", "FFN"]), ("bert", ["b_O", "FFN", "LN"]), ("gemma2", ["FFN"])]
)
def test_the_map_of_effects_has_every_part_of_every_layer_and_adds_up(kind: str, columns: list[str]) -> None:
    model, tokenizer = next_token_model() if kind == "gpt2" else sharp_classifier(kind)
    result = attnviz.head_outputs(TEXTS[0], model, tokenizer=tokenizer)
    (drawn,) = plan_of(result, "effects").maps
    assert result.effects is not None
    assert [name for name, _ in drawn.beside] == columns
    rest = [part.direct_effect for part in result.effects.parts if part.layer is None]
    total = np.sum(drawn.values) + sum(np.sum(values) for _, values in drawn.beside) + sum(rest)
    assert total == pytest.approx(result.effects.difference, abs=SUMS_32)
    for head, effect in result.effects.heads.items():
        assert drawn.values[head] == effect
