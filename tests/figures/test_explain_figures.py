"""The figures of an explained layer: what is planned, and that it reaches the artists."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.patches import FancyArrowPatch

from attnviz.commands.explain.measure import Explanation, explain
from attnviz.errors import UsageError
from attnviz.figures.style import Style
from tests.conftest import SENTENCE
from tests.support.drawn import legible
from tests.support.explained import of_bert, of_gpt2, order, planned
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama

CORE = ["split", "scores", "mask", "pattern", "weighted", "concatenated", "attention_output"]
FEED = ["expanded", "activated", "feed_forward_output"]


@pytest.fixture(scope="module")
def bert() -> Explanation:
    return of_bert(head="2")


@pytest.fixture(scope="module")
def gpt2() -> Explanation:
    return of_gpt2(layer=2)


@pytest.fixture(scope="module")
def parallel() -> Explanation:
    return explain("the cat saw", sharp_llama("gpt_neox"), tokenizer=sentencepiece_tokenizer(), layer=1)


@pytest.fixture(scope="module")
def long() -> Explanation:
    return of_bert("the cat saw a dog . " * 55, {"max_position_embeddings": 400})


def test_steps_stand_in_the_order_of_the_model(bert: Explanation, gpt2: Explanation, parallel: Explanation) -> None:
    post = ["input", *CORE, "+", "layer norm", "attention_norm", *FEED, "+", "layer norm", "output"]
    pre = [
        "input", "layer norm", "attention_norm", *CORE, "+",
        "attention_residual", "layer norm", "feed_forward_norm", *FEED, "+", "output", "layer norm", "final_norm",
    ]  # fmt: skip
    assert order(bert) == post
    assert order(gpt2) == pre
    assert order(of_gpt2(layer=1)) == pre[:-2]
    halves = {half: [block.name for block in blocks] for half, blocks in planned(parallel).halves.items()}
    assert halves["Attention"][-1] == "attention_output"
    assert halves["Feed-forward"][:3] == ["input", "layer norm", "feed_forward_norm"]
    assert halves["Feed-forward"][5:9] == ["feed_forward_output", "+ attention", "+", "output"]


def test_panels_hold_the_numbers_of_the_steps(bert: Explanation) -> None:
    blocks = planned(bert).steps
    assert np.array_equal(blocks["scores"].panels[0], bert.tensor("scores")[2].numpy())
    assert np.array_equal(blocks["split"].panels[1], bert.tensor("split")[1, 2].numpy())
    assert np.array_equal(blocks["weighted"].panels[0], bert.tensor("weighted")[2].numpy())
    assert blocks["pattern"].limit == float(bert.tensor("pattern")[2].max())
    assert blocks["concatenated"].marked == (16, 24)
    for name in ("input", "expanded", "attention_output"):
        assert blocks[name].limit == pytest.approx(np.quantile(bert.tensor(name).abs().numpy(), 0.99)), name
    images = [ax.images[0] for ax in bert.figure("path").axes if ax.images]
    drawn = [(values, block.limit) for block in blocks.values() for values in block.panels]
    for image, (values, limit) in zip(images, drawn, strict=True):
        assert np.array_equal(np.asarray(image.get_array()), values)
        assert image.norm.vmax == limit


def test_long_texts_are_pooled_by_their_largest(long: Explanation) -> None:
    plan, n = planned(long), len(long.tokens)
    rows, columns = plan.steps["pattern"].pooling
    assert rows == columns == plan.pooled > 1
    (pattern,) = plan.steps["pattern"].panels
    assert pattern.shape == (-(-n // rows), -(-n // rows))
    assert pattern.max() == float(long.tensor("pattern")[0].max())


def test_where_nearly_all_numbers_are_zero_the_limit_is_the_largest() -> None:
    result = of_bert()
    result.stages["input"].tensor.data.zero_()
    assert planned(result).steps["input"].limit == 1.0
    with torch.inference_mode():
        result.stages["input"].tensor[0, 0] = 300.0
    assert planned(result).steps["input"].limit == 300.0


@pytest.mark.parametrize("width", [None, 3.3])
@pytest.mark.parametrize("which", ["bert", "parallel"])
def test_arrows_lead_from_panel_to_panel(which: str, width: float | None, request: pytest.FixtureRequest) -> None:
    result: Explanation = request.getfixturevalue(which)
    figure = result.figure("path", Style(width=width))
    arrows = [artist for artist in figure.artists if isinstance(artist, FancyArrowPatch)]
    residual = [arrow for arrow in arrows if arrow.get_linewidth() > 1]
    assert bool(residual)
    if width is None:  # an arrow between two neighbours in each half, and the residual stream around them
        assert len(arrows) - len(residual) == len(order(result)) - 2
        assert len(residual) == sum(block.name == "+" for half in planned(result).halves.values() for block in half)
    inner = [ax.get_window_extent().padded(-2) for ax in figure.axes if ax.images]
    for arrow in arrows:
        points = figure.dpi_scale_trans.transform(arrow._path_original.vertices)
        assert points.min() >= 0
        assert (points <= (figure.bbox.width, figure.bbox.height)).all()
        for start, end in pairwise(points):
            along = np.linspace(start, end, 50)
            assert not any(box.count_contains(along) for box in inner)


@pytest.mark.parametrize("text", [SENTENCE, r"[/b] $\frac$ " + "believ" * 4])
def test_a_page_that_is_too_narrow_is_refused_with_the_least_width(text: str) -> None:
    result = of_gpt2(text)
    with pytest.raises(UsageError, match="does not fit") as refused:
        result.figure("path", Style(width=2.0))
    least = float(str(refused.value).partition("at least ")[2].split("in")[0])
    assert legible(result.figure("path", Style(width=least)))
