"""Pictures of what heads write: plans, artists, pixels, legibility, and equal bytes from run to run."""

from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

import attnviz
from attnviz.commands.outputs.drawing import draw_norms, draw_value_norms, weighted_figure
from attnviz.commands.outputs.figures import WeightedPlan, percent, signed, weighted_plans
from attnviz.commands.outputs.maps import draw_head_map, maps_figure, plan_effects, plan_shares
from attnviz.commands.outputs.overview import draw_norm_grid, norm_grid_figure, plan_norm_grid
from attnviz.commands.outputs.saving import EACH_OWN, HeadOutputs
from attnviz.errors import UsageError
from attnviz.figures.look import Look
from attnviz.figures.rendering import figure_bytes
from attnviz.model.head_ids import HeadId
from tests.conftest import SENTENCE
from tests.models import bert_tokenizer, gpt2_tokenizer, sharp_bert
from tests.test_outputs import model_of
from tests.test_outputs_promoted import sharper_gpt2

SHARED, DARK = Look(scale="shared"), Look("dark", "per-head")


@pytest.fixture(scope="module")
def bert() -> HeadOutputs:
    return attnviz.head_outputs(SENTENCE, model_of("bert"), tokenizer=bert_tokenizer())


@pytest.fixture(scope="module")
def gpt2() -> HeadOutputs:
    return attnviz.head_outputs(SENTENCE, sharper_gpt2(), tokenizer=gpt2_tokenizer(), at=2)


@pytest.fixture(scope="module")
def long() -> HeadOutputs:
    model = sharp_bert(max_position_embeddings=1200)
    return attnviz.head_outputs("the cat saw " * 366, model, tokenizer=bert_tokenizer())


def plan_of(found: HeadOutputs, head: str, look: Look = EACH_OWN) -> WeightedPlan:
    return next(weighted_plans(found, [found.head(head)], look))


def texts(figure: Figure) -> list[str]:
    FigureCanvasAgg(figure).draw()
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def drawn(figure: Figure) -> list[tuple[str, Any, float]]:
    """Every text with its place in pixels and its rotation; labels of ticks beyond an axis are not drawn."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    hidden = {
        label
        for ax in figure.axes
        for axis in (ax.xaxis, ax.yaxis)
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        for label in (tick.label1, tick.label2)
    }
    return [
        (text.get_text(), text.get_window_extent(canvas.get_renderer()), text.get_rotation())
        for text in figure.findobj(matplotlib.text.Text)
        if text.get_text() and text.get_visible() and text not in hidden
    ]


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that overprint each other; slanted ones take less room than the box around them."""
    shown = [(text, box) for text, box, rotation in drawn(figure) if rotation in (0.0, 90.0)]
    return [
        (one, other)
        for i, (one, box) in enumerate(shown)
        for other, second in shown[i + 1 :]
        if min(box.x1, second.x1) - max(box.x0, second.x0) > 1 and min(box.y1, second.y1) - max(box.y0, second.y0) > 1
    ]


def outside(figure: Figure) -> list[str]:
    """Texts that run over the edge of the figure."""
    width, height = figure.get_size_inches() * figure.dpi
    return [
        text
        for text, box, _ in drawn(figure)
        if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1
    ]


# --- one head ----------------------------------------------------------------------------------------------


def test_the_plan_has_the_numbers_of_the_head(bert):
    plan = plan_of(bert, "L1H2")
    assert np.array_equal(plan.pattern, bert.pattern("L1H2").numpy())
    assert np.array_equal(plan.weighted, bert.norms("L1H2").numpy())
    assert np.array_equal(plan.value_norms, bert.value_norms("L1H2").numpy())
    assert plan.pattern_top == pytest.approx(bert.pattern("L1H2").max())
    assert plan.weighted_top == bert.head("L1H2").largest
    assert plan.labels == bert.tokens.labels
    assert (plan.pooled, plan.stacked, plan.size) == (1, False, 9 * 44)


def test_a_shared_scale_ends_at_the_largest_of_all_heads(bert):
    plan = plan_of(bert, "L1H2", SHARED)
    assert plan.pattern_top == 1
    assert plan.weighted_top == bert.largest == max(float(bert.norms(head.id).max()) for head in bert.heads)
    shown = texts(weighted_figure(plan, SHARED))
    assert "attention weight A (0–1)" in shown
    assert "norm-weighted ‖A f(x)‖ (scale of all heads)" in shown
    assert "norm-weighted ‖A f(x)‖ (scale of this head)" in texts(weighted_figure(plan_of(bert, "L1H2"), EACH_OWN))
    assert "the same for every head" in plan.caption
    assert "the head’s largest" in plan_of(bert, "L1H2").caption


def test_the_notes_set_sinks_by_weight_beside_sinks_by_norm(bert, gpt2):
    head = bert.head("L0H1")
    notes = " ".join(plan_of(bert, "L0H1").notes)
    assert f"on special tokens: {percent(head.sink)} by weight, {percent(head.sink_by_norm)} by norm" in notes
    assert f"{percent(head.projection_share)} of the attention output’s norm in layer 0" in notes
    assert "on the first token:" in " ".join(plan_of(gpt2, "L0H1").notes)


def test_percent_is_whole_and_has_a_minus_of_its_own():
    assert [percent(share) for share in (0.126, -0.02, -0.001, None, 1.0)] == ["13 %", "−2 %", "0 %", "–", "100 %"]


def test_the_panels_hold_the_numbers_and_the_strip_stands_over_its_columns(bert):
    plan = plan_of(bert, "L1H2")
    figure = weighted_figure(plan, EACH_OWN)
    raw, strip, weighted, *bars = figure.axes
    assert len(bars) == 2
    for ax, values in ((raw, plan.pattern), (weighted, plan.weighted)):
        (mesh,) = ax.collections
        assert np.allclose(mesh.get_array().reshape(values.shape), values)
    content, sinks = strip.patches
    quiet = np.array(bert.tokens.sink, float)
    assert np.allclose(content.get_data().values, plan.value_norms * (1 - quiet))
    assert np.allclose(sinks.get_data().values, plan.value_norms * quiet)
    assert strip.get_xlim() == weighted.get_xlim()
    assert strip.get_position().x0 == weighted.get_position().x0
    assert strip.get_position().y0 > weighted.get_position().y1
    assert raw.get_position().y0 == pytest.approx(weighted.get_position().y0)
    assert [text.get_text() for text in raw.get_xticklabels()] == list(bert.tokens.labels)
    assert not [text for text in weighted.get_yticklabels() if text.get_text()]


def test_norms_are_written_into_few_cells_but_not_into_many(bert, long):
    plan = plan_of(bert, "L1H2")
    weighted = weighted_figure(plan, EACH_OWN).axes[2]
    shown = [(round(text.get_position()[1]), round(text.get_position()[0]), text.get_text()) for text in weighted.texts]
    expected = [(*place, f"{value:.2f}") for place, value in np.ndenumerate(plan.weighted) if value >= 0.005]
    assert sorted(shown) == sorted((int(q), int(k), text) for q, k, text in expected)
    assert not weighted_figure(plan_of(long, "L0H0"), EACH_OWN).axes[2].texts
    small = Figure(figsize=(1, 1)).add_axes((0, 0, 1, 1))
    draw_norms(small, plan, EACH_OWN)
    assert not small.texts


def test_norms_can_be_drawn_on_the_callers_axes(bert):
    figure = Figure(figsize=(6, 6), dpi=100)
    above, below = figure.subplots(2)
    plan = plan_of(bert, "L2H0")
    mesh = draw_norms(below, plan, DARK, sides="b")
    assert mesh.norm.vmax == plan.weighted_top
    assert len(draw_value_norms(above, plan, DARK)) == 2
    assert len(figure.axes) == 2


def test_long_texts_are_pooled_by_their_largest_and_say_so(long):
    assert len(long.tokens) == 1100
    plan = plan_of(long, "L0H0")
    assert plan.pooled == 2
    assert plan.size == 550 * round(640 / 550)
    norms = long.norms("L0H0").numpy()
    assert plan.weighted[3, 5] == norms[6:8, 10:12].max()
    assert plan.value_norms[5] == long.value_norms("L0H0")[10:12].max()
    assert plan.quiet_cells[0] == 0  # [CLS] and a word
    assert "Each cell is the largest of 2 × 2 (for drawing only)." in plan.notes
    assert "each cell is the largest of 2 × 2" in plan.caption
    figure = weighted_figure(plan, EACH_OWN)
    assert not overlaps(figure)
    assert not outside(figure)


@pytest.mark.parametrize(
    "look",
    [
        EACH_OWN,
        DARK,
        Look("dark", "per-head", 3.3),
        Look("light", "shared", 6.5),
        Look("light", "shared", 2.0),
        Look("light", "per-head", 2.4),
    ],
)
def test_nothing_overprints_or_runs_over_the_edge(bert, gpt2, look):
    for found in (bert, gpt2):
        plans: list[Any] = [weighted_figure(plan_of(found, "L1H1", look), look)]
        plans += [
            norm_grid_figure(plan_norm_grid(found, found.heads, look), look),
            maps_figure(plan_shares(found), look),
        ]
        if found.attribution is not None:
            plans.append(maps_figure(plan_effects(found, found.attribution), look))
        for figure in plans:
            assert not overlaps(figure)
            assert not outside(figure)
            assert look.width is None or figure.get_size_inches()[0] == pytest.approx(look.width, abs=0.01)


def test_narrow_pictures_are_stacked_and_wide_ones_are_not(bert):
    narrow, wide = Look(scale="per-head", width=3.3), Look(scale="per-head", width=7.0)
    assert plan_of(bert, "L0H0", narrow).stacked
    assert not plan_of(bert, "L0H0", wide).stacked
    raw, strip, weighted = weighted_figure(plan_of(bert, "L0H0", narrow), narrow).axes[:3]
    tops = [ax.get_position().y0 for ax in (raw, strip, weighted)]
    assert tops == sorted(tops, reverse=True)
    assert not [text for text in raw.get_xticklabels() if text.get_text()]


@pytest.mark.parametrize("width", [2.0, 3.3, 4.9, 5.0])
@pytest.mark.parametrize("text", ["the", SENTENCE])
def test_long_labels_leave_room_at_any_width(text, width):
    found = attnviz.head_outputs(text, model_of("bert"), tokenizer=bert_tokenizer())
    labels = tuple(f"incomprehensibilities{i}" for i in range(len(found.tokens)))
    look = Look(scale="per-head", width=width)
    plan = plan_of(replace(found, tokens=replace(found.tokens, labels=labels)), "L0H0", look)
    assert plan.size >= 75
    assert plan.labels[0].endswith("…")
    figure = weighted_figure(plan, look)
    assert not overlaps(figure)
    assert not outside(figure)


def test_a_logarithmic_scale_is_refused(bert):
    for what in ("overview", "L0H0"):
        with pytest.raises(UsageError, match="norms are not drawn on a logarithmic scale: expected shared or per-head"):
            bert.figure(what, Look(scale="log"))


# --- all heads ------------------------------------------------------------------------------------------------


def test_the_overview_has_every_head_in_its_place(bert):
    plan = plan_norm_grid(bert, bert.heads, EACH_OWN)
    assert [head for head, _, _ in plan.heads] == [HeadId(layer, head) for layer in range(3) for head in range(4)]
    for head, share, values in plan.heads:
        assert np.allclose(values, bert.norms(head).numpy() / bert.head(head).largest)
        assert share == percent(bert.head(head).projection_share)
    assert plan.place(HeadId(2, 3))[0] > plan.place(HeadId(2, 2))[0]
    shown = texts(norm_grid_figure(plan, EACH_OWN))
    assert {"L2H3", "layer 1", percent(bert.head("L2H3").projection_share)} <= set(shown)
    assert "share of the head’s largest ‖A f(x)‖" in shown


def test_the_pixels_of_the_overview_are_the_colours_of_the_norms(bert):
    plan = plan_norm_grid(bert, bert.heads, SHARED)
    assert plan.top == bert.largest
    ax = Figure().add_axes((0, 0, 1, 1))
    image = np.asarray(draw_norm_grid(ax, plan, SHARED).get_array())
    colours, cell = SHARED.colour_map(), plan.size // 9
    assert plan.size == 9 * cell
    for head in (HeadId(0, 0), HeadId(2, 1)):
        left, top = plan.place(head)
        norms = bert.norms(head).numpy() / bert.largest
        for q, k in ((0, 0), (3, 8), (8, 4)):
            pixel = image[top + q * cell + 2, left + k * cell + 2]
            step = round(float(norms[q, k]) * 255)
            assert np.abs(pixel.astype(int) - np.round(np.array(colours(step)[:3]) * 255)).max() <= 1
    assert "norm-weighted ‖A f(x)‖ (scale of all heads)" in texts(norm_grid_figure(plan, SHARED))


def test_some_heads_make_a_smaller_grid(bert):
    plan = plan_norm_grid(bert, bert.select(["L1H2", "L0H3"]), EACH_OWN)
    assert (plan.layers, plan.columns) == ((0, 1), (2, 3))
    assert "2 of 12 heads" in plan.title
    assert "all 12 heads" in plan_norm_grid(bert, bert.heads, EACH_OWN).caption


def test_long_overviews_are_pooled_and_narrow_ones_name_columns_only(long):
    plan = plan_norm_grid(long, long.heads, EACH_OWN)
    assert plan.pooled == 10
    assert "Each cell is the largest of 10 × 10" in plan.notes[-1]
    assert "each cell is the largest of 10 × 10" in plan.caption
    look = Look(scale="per-head", width=2.0)
    narrow = plan_norm_grid(long, long.heads, look)
    assert not narrow.with_shares
    assert "Above" not in " ".join(narrow.notes)
    assert {"H0", "H3"} <= set(texts(norm_grid_figure(narrow, look)))


def test_many_heads_need_a_width_for_them():
    model = sharp_bert(num_attention_heads=32)
    found = attnviz.head_outputs(SENTENCE, model, tokenizer=bert_tokenizer())
    narrow = Look(scale="per-head", width=3.6)
    plan = plan_norm_grid(found, found.heads, narrow)
    assert not plan.named
    assert {"0", "31", "L2"} <= set(texts(norm_grid_figure(plan, narrow)))
    with pytest.raises(
        UsageError, match=r"2\.5 inches has no room for 32 heads side by side; expected at least 3\.5in"
    ):
        plan_norm_grid(found, found.heads, Look(scale="per-head", width=2.5))
    FigureCanvasAgg(maps_figure(plan_shares(found), Look(width=2.0))).draw()


# --- maps ----------------------------------------------------------------------------------------------------------


def test_the_maps_of_shares_are_those_of_the_heads(bert):
    along, norms = plan_shares(bert).maps
    for head in bert.heads:
        assert along.values[head.id] == head.projection_share
        assert norms.values[head.id] == head.norm_share
    ((name, biases),) = along.beside
    assert name == "b_O"
    assert np.allclose(along.values.sum(1) + biases, 1, atol=1e-5)
    assert np.allclose(norms.values.sum(1), 1, atol=1e-5)
    assert along.norm.vmin == -along.norm.vmax
    assert norms.norm.vmin == 0
    assert norms.mark.value == 1 / 4
    shown = texts(maps_figure(plan_shares(bert), EACH_OWN))
    assert "equal shares 0.25" in shown
    assert along.written(bert.heads[0].projection_share) in shown


def test_a_map_on_the_callers_axes_has_the_cells_of_the_heads_and_of_what_stands_beside(bert):
    along, _ = plan_shares(bert).maps
    ax = Figure(figsize=(6, 3)).add_axes((0.1, 0.1, 0.8, 0.8))
    mesh = draw_head_map(ax, along, EACH_OWN)
    assert np.allclose(mesh.get_array().reshape(3, 4), along.values)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "2", "3", "b_O"]
    assert len(ax.texts) == 15


def test_the_map_of_effects_adds_up_to_the_logit(gpt2):
    plan = plan_effects(gpt2, gpt2.attribution)
    (effects,) = plan.maps
    rest = sum(part.predicted for part in gpt2.attribution.parts if part.layer is None)
    total = effects.values.sum() + sum(values.sum() for _, values in effects.beside) + rest
    assert total == pytest.approx(gpt2.attribution.predicted.logit, rel=1e-4)
    assert [name for name, _ in effects.beside] == ["b_O", "FFN"]
    assert f"“{gpt2.attribution.predicted.text}”" in plan.title
    assert "At position #2" in plan.notes[1]
    for head in gpt2.attribution.heads:
        assert effects.values[head.id] == head.predicted


def test_numbers_in_maps_have_no_negative_zero(gpt2):
    effects = plan_effects(gpt2, gpt2.attribution).maps[0]
    along = plan_shares(gpt2).maps[0]
    assert [effects.written(value) for value in (-0.001, -1.5, 2.0, np.nan)] == ["0.00", "−1.50", "2.00", "–"]
    assert [along.written(value) for value in (-0.001, -0.5, 0.126)] == ["0", "−50", "13"]
    assert [signed(value) for value in (-0.001, 0.001, -1.5, 2.0)] == ["0.00", "0.00", "−1.50", "+2.00"]
    parts = [replace(part, predicted=-0.001) for part in gpt2.attribution.parts]
    plan = plan_effects(gpt2, replace(gpt2.attribution, parts=tuple(parts)))
    assert "word embedding 0.00" in plan.notes[1]
    assert "−0.00" not in f"{plan.notes}{plan.caption}"


@pytest.mark.parametrize("width", [2.4, 2.8, 3.3, 4.0])
def test_a_number_stays_with_its_percent_sign(bert, width):
    lines = texts(maps_figure(plan_shares(bert), Look(width=width, scale="per-head")))
    assert any("100\N{NO-BREAK SPACE}%" in line for line in lines)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_equal_pictures_are_equal_files_and_leave_matplotlib_alone(gpt2, file_format):
    before = dict(matplotlib.rcParams)
    for what in ("overview", "shares", "effects", "L1H2"):
        files = [figure_bytes(gpt2.figure(what), file_format, indexed=False, look=EACH_OWN) for _ in range(2)]
        assert files[0] == files[1]
        if file_format == "svg":
            assert b"<text" in files[0]
    assert dict(matplotlib.rcParams) == before


def test_hostile_tokens_are_drawn_as_they_are():
    found = attnviz.head_outputs("$ \\ [ / b ] $", sharp_bert(), tokenizer=bert_tokenizer())
    shown = texts(found.figure("L0H0"))
    assert {"$", "\\", "[CLS]"} <= set(shown)
    assert "“$ \\ [ / b ] $” (9 tokens)" in shown
    assert "[/b]" not in found.report()
    hostile = attnviz.head_outputs("[/b] $x$", sharp_bert(), tokenizer=bert_tokenizer())
    assert "[/b]" in hostile.text_line
    assert [text for text in texts(hostile.figure("shares")) if "“[/b] $x$”" in text]


def test_a_head_that_writes_nothing_has_a_blank_picture():
    model = sharp_bert()
    with torch.no_grad():
        model.encoder.layer[0].attention.output.dense.weight[:, :8].zero_()
    found = attnviz.head_outputs(SENTENCE, model, tokenizer=bert_tokenizer())
    plan = plan_of(found, "L0H0")
    assert found.head("L0H0").largest == 0
    assert plan.weighted_top == 1
    assert isinstance(weighted_figure(plan, EACH_OWN).axes[2].collections[0].norm, Normalize)
    assert found.head("L0H0").sink_by_norm is None
    FigureCanvasAgg(norm_grid_figure(plan_norm_grid(found, found.heads, EACH_OWN), EACH_OWN)).draw()
