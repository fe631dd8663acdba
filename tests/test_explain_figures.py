"""The figure of a whole layer: what is drawn, where it stands, at every length, width and theme."""

import io
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from PIL import Image

from attnviz.commands.explain.path_drawing import draw_path, path_figure
from attnviz.commands.explain.path import PathPlan, plan_path
from attnviz.commands.explain.path_layout import Node, Sizes, arrange, row_width, rows_of
from attnviz.commands.explain.path_panels import Panel, fitting, panel_of, pooled
from attnviz.commands.explain.views import plan_positions
from attnviz.commands.explain.saving import Explanation, explain
from attnviz.errors import UsageError
from attnviz.figures.heatmaps import DPI
from attnviz.figures.look import Look
from attnviz.figures.rendering import figure_bytes
from tests.conftest import SENTENCE, needs_minilm
from tests.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

POST = [
    "input", "query", "key", "value", "scores", "mask", "pattern", "weighted", "concatenated", "attention_output",
    "attention_norm", "expanded", "activated", "feed_forward_output", "output",
]  # fmt: skip
PRE = [
    "input", "attention_norm", "query", "key", "value", "scores", "mask", "pattern", "weighted", "concatenated",
    "attention_output", "attention_residual", "feed_forward_norm", "expanded", "activated", "feed_forward_output",
    "output",
]  # fmt: skip


def of_bert(text: str = SENTENCE, **options: Any) -> Explanation:
    return explain(text, sharp_bert(max_position_embeddings=400), tokenizer=bert_tokenizer(), **options)


def of_gpt2(text: str = SENTENCE, **options: Any) -> Explanation:
    return explain(text, sharp_gpt2(n_positions=400), tokenizer=gpt2_tokenizer(), **options)


def operations(plan: PathPlan) -> list[str]:
    return [
        placed.node.operation or "/".join(panel.name for panel in placed.node.panels) for placed in plan.layout.placed
    ]


def residuals(plan: PathPlan) -> list[tuple[tuple[float, float], ...]]:
    return [line.points for line in plan.layout.lines if line.residual]


def test_a_post_norm_layer_has_its_norms_after_the_sums() -> None:
    plan = plan_path(of_bert(), Look())
    assert list(plan.panels) == POST
    order = operations(plan)
    assert order[8:11] == ["+", "norm", "attention_norm"]
    assert order[-3:] == ["+", "norm", "output"]
    assert "post-norm" in plan.notes[0]


def test_a_pre_norm_layer_has_its_norms_first() -> None:
    plan = plan_path(of_gpt2(layer=1), Look())
    assert list(plan.panels) == PRE
    order = operations(plan)
    assert order[:3] == ["input", "norm", "attention_norm"]
    assert order[order.index("attention_residual") :][:3] == ["attention_residual", "norm", "feed_forward_norm"]
    assert order[-2:] == ["+", "output"]
    assert "pre-norm" in plan.notes[0]


def test_the_last_layer_of_a_gpt2_ends_with_the_final_norm() -> None:
    plan = plan_path(of_gpt2(layer=2), Look())
    assert operations(plan)[-4:] == ["+", "output", "norm", "final_norm"]


@pytest.mark.parametrize("width", [None, 3.3, 5.0, 7.0])
@pytest.mark.parametrize("build", [of_bert, of_gpt2])
def test_residuals_lead_from_the_stream_to_the_sums(build: Any, width: float | None) -> None:
    plan = plan_path(build(), Look(width=width))
    lines = residuals(plan)
    starts = [plan.layout.placed[0], next(p for p in plan.layout.placed if p.node.panels and p.node.panels[0].name in
              (("attention_norm",) if build is of_bert else ("attention_residual",)))]  # fmt: skip
    sums = [placed for placed in plan.layout.placed if placed.node.operation == "+"]
    assert len(lines) == 2
    for points, start, total in zip(lines, starts, sums, strict=True):
        assert points[0][1] == start.middle
        assert start.right < points[0][0] < start.right + plan.sizes.gap
        assert points[-1] == (total.left + total.width / 2, total.middle - total.width / 2)


@pytest.mark.parametrize("width", [None, 3.3, 4.5, 7.0])
@pytest.mark.parametrize("build", [of_bert, of_gpt2])
def test_nothing_overlaps_or_leaves_the_page(build: Any, width: float | None) -> None:
    plan = plan_path(build(layer=2), Look(width=width))
    boxes = [
        (left, top, left + panel.width, top + panel.height)
        for placed in plan.layout.placed
        for panel, left, top in placed.panels()
    ]
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert plan.left <= left < right <= plan.page
        assert 0 <= top < bottom <= plan.layout.height
        for other in boxes[number + 1 :]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    for line in plan.layout.lines:
        assert all(0 <= x <= plan.page and 0 <= y <= plan.layout.height for x, y in line.points)


def test_panels_hold_the_numbers_of_the_steps() -> None:
    found = of_bert(head="2")
    plan = plan_path(found, Look())
    assert np.array_equal(plan.panels["scores"].values, found.tensor("scores")[2].numpy())
    assert np.array_equal(plan.panels["key"].values, found.tensor("split")[1, 2].numpy())
    assert np.array_equal(plan.panels["weighted"].values, found.tensor("weighted")[2].numpy())
    assert plan.panels["pattern"].kind == "weights"
    assert plan.panels["pattern"].limit == float(found.tensor("pattern")[2].max())
    assert plan.panels["concatenated"].marked == (0.5, 0.75)
    assert plan.panels["query"].limit == plan.panels["key"].limit
    assert plan.panels["scores"].shape == "[4, 9, 9]"
    assert plan.panels["mask"].scale == "all allowed"
    assert plan_path(of_gpt2(), Look()).panels["mask"].scale == "key ≤ query"


def test_long_texts_are_pooled_and_say_so() -> None:
    found = of_bert("the cat saw a dog . " * 55)
    plan = plan_path(found, Look())
    rows, columns = plan.panels["pattern"].pooling
    assert rows == columns > 1
    n = len(found.tokens)
    assert plan.panels["pattern"].values.shape == (-(-n // rows), -(-n // rows))
    assert "tokens are one row" in plan.notes[1]
    assert f"({len(plan.names)} of {n} named)" in plan.notes[1]
    assert plan.panels["pattern"].values.max() == float(found.tensor("pattern")[0].max())


def test_short_ones_of_a_small_model_are_not() -> None:
    plan = plan_path(of_bert(), Look())
    assert "drawn" not in plan.notes[1]
    assert len(plan.names) == 9


def test_dimensions_are_thinned_and_say_so() -> None:
    found = explain(SENTENCE, sharp_gpt2(n_embd=400, n_head=4), tokenizer=gpt2_tokenizer())
    plan = plan_path(found, Look())
    panel = plan.panels["input"]
    step = panel.pooling[1]
    assert step > 1
    assert np.array_equal(panel.values, found.tensor("input")[:, ::step].numpy())
    assert "is drawn where they are too many" in plan.notes[1]


def test_the_largest_number_of_a_block_is_kept_with_its_sign() -> None:
    values = np.array([[1, -5, 2], [0, 3, -1], [4, 0, 0]], dtype=np.float32)
    assert pooled(values, 2, 2).tolist() == [[-5, 2], [4, 0]]
    assert np.array_equal(pooled(values, 1, 1), values)


@pytest.mark.parametrize(
    ("cells", "room", "expected"),
    [(9, 132, (1, 126)), (384, 152, (3, 128)), (128, 152, (1, 128)), (53, 132, (1, 106)), (1, 10, (1, 10))],
)
def test_cells_are_whole_pixels(cells: int, room: float, expected: tuple[int, float]) -> None:
    factor, length = fitting(cells, room, 1.0)
    assert (factor, length) == expected
    assert length % -(-cells // factor) == 0


def test_rows_break_only_where_they_may() -> None:
    panel = panel_of(of_bert(), "scores", 100, 1.0)
    nodes = [Node((panel,)), Node((panel,), joined=True), Node((panel,)), Node(operation="+", joined=True)]
    sizes = Sizes()
    assert [len(row) for row in rows_of(nodes, 1000, sizes)] == [4]
    assert [len(row) for row in rows_of(nodes, row_width(nodes[:3], sizes), sizes)] == [2, 2]
    assert [len(row) for row in rows_of(nodes, 10, sizes)] == [2, 2]
    found = arrange([("a", nodes)], 0, 10, sizes)
    assert len({placed.middle for placed in found.placed}) == 2


# --- drawn ------------------------------------------------------------------------------------------------------


def test_every_panel_is_drawn_in_its_place() -> None:
    plan = plan_path(of_bert(), Look())
    figure = path_figure(plan)
    images = figure.axes[0].images
    assert len(images) == len(POST)
    placed = [(panel, left, top) for node in plan.layout.placed for panel, left, top in node.panels()]
    for image, (panel, left, top) in zip(images, placed, strict=True):
        assert list(image.get_extent()) == [left, left + panel.width, top + panel.height, top]
        rows, columns = panel.values.shape
        shown = np.asarray(image.get_array())
        assert np.array_equal(shown[:: shown.shape[0] // rows, :: shown.shape[1] // columns], panel.values)
    texts = [text.get_text() for text in figure.axes[0].texts]
    for words in ("input x", "pattern A", "Q Kᵀ/√8", "[4, 9, 9]", "residual", "layer norm", "[CLS]", "Q", "K", "V"):
        assert words in texts
    assert sum(isinstance(patch, Circle) and patch.radius > 5 for patch in figure.axes[0].patches) == 2


def test_it_is_drawn_on_the_axes_of_the_caller_alone() -> None:
    figure = Figure(figsize=(9, 5))
    left, right = figure.subplots(1, 2)
    before = dict(matplotlib.rcParams)
    images = draw_path(left, plan_path(of_gpt2(), Look("dark")))
    assert len(images) == len(PRE)
    assert not right.images
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_files_are_the_same_on_every_run(file_format: str, tmp_path: Path) -> None:
    found = of_gpt2("$\\frac$ [/b] the")
    first, second = (figure_bytes(found.figure(), file_format, indexed=False) for _ in range(2))
    assert first == second
    if file_format == "svg":
        assert b">pattern A<" in first


def test_the_width_is_the_width_asked_for() -> None:
    look = Look(width=3.3)
    data = figure_bytes(of_bert().figure("path", look), "png", indexed=False, look=look)
    assert Image.open(io.BytesIO(data)).size[0] == 990


def test_a_page_that_is_too_narrow_is_refused() -> None:
    for explained, plan in (
        (of_bert(), plan_path),
        (of_gpt2("the " + "believ" * 4), plan_path),
        (of_bert(pair="the dog"), plan_positions),
    ):
        width = 2.0
        with pytest.raises(UsageError, match="does not fit in 2 inches") as refused:
            plan(explained, Look(width=width))
        found = re.search(r"a --width of at least ([\d.]+)in", str(refused.value))
        assert found is not None
        least = float(found[1])
        plan(explained, Look(width=least))
        with pytest.raises(UsageError, match="does not fit"):
            plan(explained, Look(width=round(least - 0.1, 1)))


def test_the_caption_is_one_sentence_with_model_text_and_scale() -> None:
    plan = plan_path(of_bert(pair="the dog"), Look())
    assert plan.caption.startswith("Layer 0 of BertModel (post-norm) on “The cat that I saw ran away” / “the dog”")
    assert "±" in plan.caption
    assert "\n" not in plan.caption


def test_large_numbers_are_written_without_powers() -> None:
    found = of_bert()
    found.stages["input"].tensor.data.mul_(150)
    panel: Panel = panel_of(found, "input", 100, 1.0)
    assert "e+" not in panel.scale
    found.stages["input"].tensor.data.zero_()
    assert panel_of(found, "input", 100, 1.0).limit == 1.0


def test_names_that_are_long_are_cut() -> None:
    found = of_gpt2("\u732b" * 3)
    assert all(len(name.text) <= 14 for name in plan_path(found, Look()).names)


def test_another_scale_is_written_as_it_is() -> None:
    found = explain(SENTENCE, sharp_gpt2(scale_attn_weights=False), tokenizer=gpt2_tokenizer())
    assert plan_path(found, Look()).panels["scores"].formula == "Q Kᵀ"


@needs_minilm
@pytest.mark.parametrize("width", [None, 3.3, 6.7])
def test_the_limit_is_of_all_numbers_whatever_is_drawn(width: float | None) -> None:
    found = explain(SENTENCE, "minilm")
    for name in ("input", "expanded", "attention_output", "weighted"):
        tensor = found.tensor(name)
        numbers = (tensor[found.head.head] if tensor.ndim == 3 else tensor).abs().numpy()
        limit = plan_path(found, Look(width=width)).panels[name].limit
        assert limit == pytest.approx(np.quantile(numbers, 0.99)), name
        assert 0.985 <= (numbers <= limit).mean() <= 0.995, name


def test_where_nearly_all_numbers_are_zero_the_limit_is_the_largest() -> None:
    found = of_bert()
    found.stages["input"].tensor.data.zero_()
    with torch.inference_mode():
        found.stages["input"].tensor[0, 0] = 3.0
    panel = panel_of(found, "input", 100, 1.0)
    assert panel.limit == 3.0
    assert panel.scale == "±3 (3)"


def boxes(plan: PathPlan) -> dict[str, Any]:
    """Where every text of the drawn figure stands, in pixels of the plan."""
    figure = path_figure(plan)
    ax = figure.axes[0] if len(figure.axes[0].images) > 0 else next(one for one in figure.axes if one.images)
    figure.canvas.draw()
    turned = ax.transData.inverted()
    found = {}
    for text in ax.texts:
        if text.get_text() and text.get_rotation() == 0:
            (left, low), (right, high) = turned.transform(text.get_window_extent().get_points())
            found[f"{text.get_text()}@{left:.0f},{low:.0f}"] = (left, right, min(low, high), max(low, high))
    return found


@needs_minilm
@pytest.mark.parametrize("width", [3.3, 84 / 25.4, 3.5])
def test_no_line_strikes_words_through(width: float) -> None:
    plan = plan_path(explain(SENTENCE, "minilm"), Look(width=width))
    words = {name: box for name, box in boxes(plan).items() if not name.startswith("residual")}
    for line in plan.layout.lines:
        for (x, y), (to_x, to_y) in pairwise(line.points):
            for name, (left, right, top, bottom) in words.items():
                across = min(x, to_x) < right - 1 and max(x, to_x) > left + 1
                down = min(y, to_y) < bottom - 1 and max(y, to_y) > top + 1
                assert not (across and down), (name, line)


@pytest.mark.parametrize("width", [None, 3.3])
def test_letters_stand_above_the_heads_of_arrows(width: float | None) -> None:
    plan = plan_path(of_bert(), Look(width=width))
    figure = path_figure(plan)
    (three,) = (placed for placed in plan.layout.placed if len(placed.node.panels) == 3)
    feet = {panel.title: top + panel.height / 2 for panel, _, top in three.panels()}
    letters = {text.get_text(): text for one in figure.axes for text in one.texts if text.get_text() in feet}
    head = 2 * DPI / 72
    assert set(letters) == {"Q", "K", "V"}
    for name, text in letters.items():
        assert text.get_verticalalignment() == "baseline"
        assert text.get_position()[1] <= feet[name] - head


def test_ten_tokens_are_all_named() -> None:
    plan = plan_path(of_bert("The cat that I saw ran away dog"), Look())
    assert len(plan.names) == 10
    assert "named" not in plan.notes[1]
    many = plan_path(of_bert("the cat " * 12), Look())
    assert 1 < len(many.names) < 26
    assert many.fonts[2] >= 5.5


def test_one_token_is_one() -> None:
    assert "(1 token)" in plan_path(of_gpt2("a"), Look()).notes[0]
