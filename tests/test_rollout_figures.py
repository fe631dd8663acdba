"""The figures of an attention rollout: what is planned, what stands on the axes, and what the words say."""

import io
import itertools
import warnings
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

import attnviz
from attnviz.commands.rollout.drawing import bars_figure, draw_bars, draw_tile, tiles_figure
from attnviz.commands.rollout.figures import MOST_BARS, plan_bars, plan_layers, plan_rollout
from attnviz.commands.rollout.words import chosen, flow_sentence, sink_sentence, spread_sentence, text_in_words
from attnviz.errors import UsageError
from attnviz.figures.look import THEMES, Look
from attnviz.figures.rendering import FORMATS, figure_bytes
from tests.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.test_drawing import HOSTILE, ODD_SETTINGS

LIGHT, DARK = Look(), Look("dark")
TEXT = "the cat that i saw ran away"
WORDS = "the cat that i saw ran away one two three four five dog house tree".split()
LONG = " ".join(WORDS[i * 7 % 15] for i in range(300))


@pytest.fixture(scope="module")
def found() -> Any:
    return attnviz.rollout(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), flow=True)


@pytest.fixture(scope="module")
def every_flow() -> Any:
    return attnviz.rollout(TEXT, sharp_gpt2(), tokenizer=gpt2_tokenizer(), all_flows=True)


@pytest.fixture(scope="module")
def long() -> Any:
    return attnviz.rollout(LONG, sharp_bert(max_position_embeddings=512), tokenizer=bert_tokenizer())


def pixels_of(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def figures_of(found: Any, look: Look) -> list[Figure]:
    return [found.figure(what, look) for what in ("rollout", "layers", "from")]


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


# --- plans


def test_the_last_layer_has_attention_rollout_and_norm_rollout_on_one_scale(found: Any):
    plan = plan_rollout(found, LIGHT)
    (group,) = plan.groups
    assert [tile.name for tile in group.tiles] == ["attention of layer 2 (mean of 4 heads)", "rollout", "norm rollout"]
    for tile, matrix in zip(group.tiles, (found.means, found.weights, found.norms), strict=True):
        np.testing.assert_array_equal(tile.values, matrix[-1].numpy())
    assert plan.labels == found.units.labels
    assert plan.quiet == found.units.sink
    assert (plan.columns, plan.pooled) == (3, 1)
    every = torch.stack([found.means[-1], found.weights[-1], found.norms[-1]])
    assert plan.largest == pytest.approx(float(every.max()))
    assert (every <= plan.top).float().mean() >= 0.98
    assert plan.caption.startswith("What comes to each position at the output of layer 2, the last: the mean attention")
    assert (
        "of BertModel on “the cat that i saw ran away” (9 tokens); 0.5 attention + 0.5 identity in every"
        in plan.caption
    )
    assert plan.caption.endswith(f"colours from 0 to {plan.top:g}{plan.cut}.")


def test_all_flows_stand_beside_them(every_flow: Any):
    plan = plan_rollout(every_flow, LIGHT)
    assert [tile.name for tile in plan.groups[0].tiles][-1] == "flow"
    np.testing.assert_allclose(plan.groups[0].tiles[-1].values, every_flow.flows.float().numpy())
    assert ", and the maximum flow, rows divided by their sum" in plan.caption
    assert any(note.startswith("Flow: the largest that could pass") for note in plan.notes)


def test_every_layer_has_a_tile_by_weights_and_by_norms(found: Any):
    plan = plan_layers(found, LIGHT)
    assert [group.heading for group in plan.groups] == ["Rollout up to each layer", "Norm rollout"]
    for group, matrices in zip(plan.groups, (found.weights, found.norms), strict=True):
        assert [tile.name for tile in group.tiles] == ["layer 0", "layer 1", "layer 2"]
        for tile, matrix in zip(group.tiles, matrices, strict=True):
            np.testing.assert_array_equal(tile.values, matrix.numpy())
    assert plan.n_tiles == 6


def test_bars_are_shares_beside_what_uniform_attention_gives(found: Any):
    plan = plan_bars(found)
    assert [panel.name for panel in plan.panels] == ["attention", "rollout", "norm rollout", "flow"]
    inputs = found.inputs
    for panel, row in zip(
        plan.panels, (inputs.attention, inputs.rollout, inputs.norm_rollout, inputs.flow), strict=True
    ):
        np.testing.assert_allclose(panel.values, row.float().numpy())
    for panel, row in zip(plan.panels, (inputs.uniform, inputs.uniform_rollout, inputs.uniform_rollout), strict=False):
        np.testing.assert_allclose(panel.uniform, row.float().numpy())
    assert plan.panels[3].uniform is None
    assert plan.labels[:3] == ("[CLS]  #0", "the  #1", "cat  #2")
    assert plan.quiet == found.units.sink
    assert plan.caption.startswith("Shares of the input tokens in “[CLS]” (#0) at the output of layer 2, the last of")
    assert "by attention, rollout, norm rollout and flow;" in plan.caption


def test_of_a_long_text_the_inputs_that_rank_highest_are_shown(long: Any):
    plan = plan_bars(long)
    rows = [int(label.rpartition("#")[2]) for label in plan.labels]
    assert len(rows) == MOST_BARS
    assert rows == sorted(rows)
    for row in (long.inputs.attention, long.inputs.rollout, long.inputs.norm_rollout):
        assert set(row.argsort(descending=True)[:13].tolist()) <= set(rows)  # 3 methods, 40 bars
        np.testing.assert_allclose(plan.panels[0].values, long.inputs.attention[rows].numpy())
    assert any(note.startswith("40 of 302 tokens are shown: those ranked highest by") for note in plan.notes)
    assert "40 of 302 tokens are shown" in plan.caption


@pytest.mark.parametrize("width", [2.0, 3.3, 7.0])
def test_a_chosen_width_is_filled_with_whole_half_pixels(long: Any, width: float):
    look = Look(width=width)
    for plan in (plan_rollout(long, look), plan_layers(long, look)):
        assert (2 * plan.cell).is_integer()
        m = len(plan.groups[0].tiles[0].values)
        assert m == -(-302 // plan.pooled)
        tiles = plan.columns * (plan.size + 20)
        assert 0.45 * width * 150 < tiles < width * 150
        if plan.pooled > 1:
            note = f"Each cell is the largest of {plan.pooled} × {plan.pooled} shares (pooled for drawing only)."
            assert note in plan.notes
            assert note[1:-1] in plan.caption
    assert figure_bytes(long.figure("layers", look), "png", indexed=False, look=look)


def test_pooling_keeps_the_largest_share(long: Any):
    plan = plan_layers(long, Look(width=2))
    assert plan.pooled > 1
    for tile, matrix in zip(plan.groups[0].tiles, long.weights, strict=True):
        block = matrix[: plan.pooled, : plan.pooled]
        assert tile.values[0, 0] == pytest.approx(float(block.max()))
        assert tile.values.max() == pytest.approx(float(matrix.max()))


# --- words


def test_words_say_how_alike_the_rows_are(found: Any, every_flow: Any):
    last = found.layers[-1]

    def with_distances(value: float) -> Any:
        apart = {**last.rows_apart, "rollout": value, "norm_rollout": value / 2}
        return replace(found, layers=(*found.layers[:-1], replace(last, rows_apart=apart)))

    nearly = spread_sentence(with_distances(0.05))
    assert nearly.startswith(
        "After layer 2 rows are nearly alike: the rollout says little about one token in particular (mean distance "
        "between two rows, 0 to 1: 0.050, by norms 0.025, with uniform attention 0.125, after layer 0 alone 0."
    )
    assert "rows have much in common (" in spread_sentence(with_distances(0.3))
    assert "rows still differ (" in spread_sentence(with_distances(0.7))
    alone = attnviz.rollout("two", sharp_gpt2(), tokenizer=gpt2_tokenizer(), layer=0)
    assert len(alone.units) > 1
    assert "after layer 0 alone" not in spread_sentence(alone)


def test_words_say_what_sinks_hold_and_what_flow_tells_apart(found: Any, every_flow: Any):
    rollout, norms, uniform = (found.layers[-1].sink[name] for name in ("rollout", "norm_rollout", "uniform_rollout"))
    assert sink_sentence(found) == (
        f"Sinks (special tokens) hold {rollout:.0%} of the rollout of all other tokens, {norms:.0%} by norms; "
        f"{uniform:.0%} if attention were uniform."
    )
    assert sink_sentence(every_flow).startswith("Sinks (the first token) hold ")
    assert f"from {found.flow.min():.3f} to {found.flow.max():.3f}" in flow_sentence(found)
    one = attnviz.rollout("!", sharp_gpt2(), tokenizer=gpt2_tokenizer())
    assert (sink_sentence(one), spread_sentence(one), flow_sentence(one)) == ("", "", "")
    assert text_in_words(one) == "“!” (1 token)"
    assert one.layers[0].rows_apart["rollout"] is None
    assert pixels_of(one.figure("from")).size
    assert pixels_of(one.figure("layers")).size
    assert "–" in one.report()


def test_several_places_of_a_token_are_named():
    tokens = attnviz.rollout("the the the the the", sharp_bert(), tokenizer=bert_tokenizer(), from_token="the")
    assert chosen(tokens) == "“the” (#1, #2, #3, #4, …, mean of 5)"


# --- what is drawn


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_a_tile_has_rows_from_the_top_labels_and_colours(found: Any, look: Look):
    plan = plan_rollout(found, look)
    ax = Figure(figsize=(5, 5)).add_axes((0.2, 0.2, 0.7, 0.7))
    cells = draw_tile(ax, plan, plan.groups[0].tiles[1], look)
    assert isinstance(cells, QuadMesh)
    np.testing.assert_array_equal(cells.get_array(), plan.groups[0].tiles[1].values)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert [label.get_text() for label in ax.get_yticklabels()] == list(found.units.labels)
    colours = [to_hex(label.get_color()) for label in ax.get_yticklabels()]
    greys = THEMES[look.theme]
    assert colours == [greys.quiet, *[greys.ink] * 7, greys.quiet]
    assert ax.get_title(loc="left") == "rollout"
    assert (cells.norm.vmin, cells.norm.vmax) == (0, plan.top)


def test_a_figure_of_tiles_has_every_tile_and_a_colour_bar_that_says_the_scale(found: Any):
    plan = replace(plan_layers(found, LIGHT), top=0.5, largest=0.83)
    figure = tiles_figure(plan, LIGHT)
    *tiles, bar = figure.axes
    assert [ax.get_title(loc="left") for ax in tiles] == [f"layer {i}" for i in range(3)] * 2
    assert [bool(ax.get_yticklabels()) for ax in tiles] == [True, False, False] * 2
    assert all(ax.get_xticklabels() for ax in tiles)
    assert bar.get_xlabel() == "share (larger ones, up to 0.83, look the same)"
    assert {"Rollout up to each layer", "Norm rollout"} <= set(texts_of(figure))
    whole = tiles_figure(replace(plan, top=1.0), LIGHT)
    assert whole.axes[-1].get_xlabel() == "share"


def test_tiles_are_whole_pixels_and_do_not_overlap(found: Any):
    figure = found.figure("layers", LIGHT)
    boxes = [ax.get_window_extent() for ax in figure.axes]
    plan = plan_layers(found, LIGHT)
    for box in boxes[:-1]:
        assert box.width == pytest.approx(plan.size + 2)
        assert box.height == pytest.approx(plan.size + 2)
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_bars_are_as_long_as_their_shares(found: Any):
    plan = plan_bars(found)
    figure = bars_figure(plan, LIGHT)
    assert [ax.get_title(loc="left") for ax in figure.axes] == [panel.name for panel in plan.panels]
    for ax, panel in zip(figure.axes, plan.panels, strict=True):
        np.testing.assert_allclose([bar.get_width() for bar in ax.patches], panel.values)
        numbers = [f"{value:.3f}".removeprefix("0") for value in panel.values]
        assert [text.get_text() for text in ax.texts] == numbers
        assert ax.get_xlim()[1] > panel.values.max()
        marks = [artist for artist in ax.collections if isinstance(artist, LineCollection)]
        if panel.uniform is None:
            assert not marks
        else:
            np.testing.assert_allclose([path[0, 0] for path in marks[0].get_segments()], panel.uniform)
    labelled = [[label.get_text() for label in ax.get_yticklabels()] for ax in figure.axes]
    assert labelled == [list(plan.labels), [], [], []]


@pytest.mark.parametrize(("width", "columns"), [(2.0, 2), (2.4, 2), (3.3, 4), (None, 4)])
def test_every_panel_is_named_and_its_numbers_stand_beside_its_bars(found: Any, width: float | None, columns: int):
    look = Look(width=width)
    plan = plan_bars(found)
    figure = bars_figure(plan, look)
    assert [" ".join(ax.get_title(loc="left").split()) for ax in figure.axes] == [panel.name for panel in plan.panels]
    assert [bool(ax.get_yticklabels()) for ax in figure.axes] == [number % columns == 0 for number in range(4)]
    for ax in figure.axes:
        panel, title = ax.get_window_extent(), ax.title.get_window_extent()
        numbers = min(text.get_window_extent().x0 for text in ax.texts)
        assert max(bar.get_window_extent().x1 for bar in ax.patches) < numbers
        assert panel.x1 < figure.bbox.width
        others = [other.get_window_extent() for other in figure.axes if other is not ax]
        assert not any(title.overlaps(other) or panel.overlaps(other) for other in others)


def test_bars_are_drawn_on_the_callers_axes_alone(found: Any):
    figure = Figure()
    left, right = figure.subplots(1, 2)
    plan = plan_bars(found)
    assert len(draw_bars(left, plan, plan.panels[1], DARK)) == 9
    draw_tile(left, plan_rollout(found, DARK), plan_rollout(found, DARK).groups[0].tiles[0], DARK)
    assert figure.axes == [left, right]
    assert not right.patches
    assert not right.collections


@pytest.mark.parametrize("look", [LIGHT, DARK, Look(width=3.3), Look("dark", width=7)], ids=str)
def test_nothing_stands_over_the_edge(found: Any, look: Look):
    for figure in figures_of(found, look):
        paper = np.array([int(look.greys.paper[i : i + 2], 16) for i in (1, 3, 5)])
        pixels = pixels_of(figure)
        for edge in (pixels[:3], pixels[-3:], pixels[:, :3], pixels[:, -3:]):
            assert (edge == paper).all()


def test_a_chosen_width_is_the_width_at_300_pixels_an_inch(found: Any):
    look = Look(width=3.3)
    for figure in figures_of(found, look):
        content = figure_bytes(figure, "png", indexed=False, look=look)
        with Image.open(io.BytesIO(content)) as picture:
            assert picture.width == 990


@pytest.mark.parametrize("kind", FORMATS)
def test_files_are_the_same_bytes_on_every_run_with_text_as_text(found: Any, kind: str):
    for first, second in zip(figures_of(found, DARK), figures_of(found, DARK), strict=True):
        content = figure_bytes(first, kind, indexed=False)
        assert content == figure_bytes(second, kind, indexed=False)
        if kind == "svg":
            assert "“the cat that i saw ran away” (9 tokens)</text>" in content.decode()


def test_the_users_settings_neither_change_the_figures_nor_are_changed(found: Any):
    with matplotlib.rc_context(ODD_SETTINGS):
        before = dict(matplotlib.rcParams)
        odd = [figure_bytes(figure, "png", indexed=False) for figure in figures_of(found, LIGHT)]
        assert dict(matplotlib.rcParams) == before
    assert odd == [figure_bytes(figure, "png", indexed=False) for figure in figures_of(found, LIGHT)]


def test_hostile_tokens_are_drawn_and_printed_as_they_are(found: Any):
    labels = (*HOSTILE[:6], "[unused1]", "x" * 60, "$a")
    hostile = replace(found, units=replace(found.units, labels=labels), text="$\\frac$ [/b]")
    for what in ("rollout", "layers", "from"):
        pixels_of(hostile.figure(what))
    printed = hostile.report(120, top=0)
    assert "[/b]" in printed
    assert "[unused1]" in printed
    assert "xxxx…" in printed


def test_an_unknown_figure_is_refused(found: Any):
    with pytest.raises(UsageError, match="unknown figure 'map': expected one of rollout, layers, from"):
        found.figure("map")


def test_a_model_of_many_layers_has_rows_of_eight_tiles():
    found = attnviz.rollout("the cat", sharp_bert(num_hidden_layers=13), tokenizer=bert_tokenizer())
    plan = plan_layers(found, LIGHT)
    assert plan.columns == 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = found.figure("layers")
    assert len(figure.axes) == 27


@pytest.mark.parametrize("width", [2.4, 84 / 25.4, 3.3, 5.0, 6.7])
@pytest.mark.parametrize(("text", "n_layers"), [(TEXT, 6), (" ".join(WORDS * 4), 3), ("the cat ran away", 13)])
def test_a_chosen_width_is_no_higher_than_a_page(text: str, n_layers: int, width: float):
    model = sharp_bert(num_hidden_layers=n_layers, max_position_embeddings=128)
    found = attnviz.rollout(text, model, tokenizer=bert_tokenizer(), all_flows=n_layers == 6)
    for figure in figures_of(found, Look(width=width)):
        assert figure.get_size_inches()[1] <= 9.5
    for plan in (plan_rollout(found, Look(width=width)), plan_layers(found, Look(width=width))):
        names = [ax.get_title("left") for ax in tiles_figure(plan, Look(width=width)).axes]
        assert not [name for name in names if name.endswith("…")]


def test_left_out_names_are_told():
    found = attnviz.rollout(" ".join(WORDS * 4), sharp_bert(max_position_embeddings=128), tokenizer=bert_tokenizer())
    plan = plan_layers(found, Look(width=3.3))
    figure = tiles_figure(plan, Look(width=3.3))
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    every = -(-len(plan.labels) // len(shown))
    assert every > 1
    assert any(note.startswith(f"Every {every}") and note.endswith(" token is named.") for note in plan.notes)


@pytest.mark.parametrize("text", ["cat", "the cat", TEXT])
def test_names_of_small_tiles_are_never_cut(text: str):
    found = attnviz.rollout(text, sharp_gpt2(), tokenizer=gpt2_tokenizer(), all_flows=True)
    figure = found.figure("rollout")
    names = [ax.get_title("left") for ax in figure.axes[:-1]]
    assert names[0].replace("\n", " of ").startswith("attention of layer 2")
    assert [name.replace("\n", " ") for name in names[1:]] == ["rollout", "norm rollout", "flow"]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [ax._left_title.get_window_extent(canvas.get_renderer()) for ax in figure.axes[:-1]]
    for box, other in itertools.pairwise(boxes):
        assert box.x1 < other.x0
    notes = [text.get_window_extent(canvas.get_renderer()) for text in figure.texts]
    assert min(note.y0 for note in notes) > max(box.y1 for box in boxes)
    assert boxes[-1].x1 < figure.bbox.x1


def test_the_range_of_all_flows_is_that_of_the_matrix(every_flow: Any):
    seen = every_flow.flows[every_flow.flows > 0]
    (note,) = [note for note in plan_rollout(every_flow, LIGHT).notes if note.startswith("Flow: ")]
    assert f"; over all rows from {seen.min():.3f} to {seen.max():.3f}, as even" in note
    assert flow_sentence(every_flow) in plan_bars(every_flow).notes
    assert flow_sentence(every_flow) != note


def test_bars_say_that_the_flow_has_no_orange_marks(found: Any):
    plan = plan_bars(found)
    assert "Orange marks: what uniform attention would give (not known for the flow)." in plan.notes[1]
    assert "uniform attention would give (not known for the flow); each" in plan.caption
    plain = plan_bars(replace(found, flow=None))
    assert "not known" not in f"{plain.notes}{plain.caption}"
