"""What stands on the axes, and that nobody's matplotlib is disturbed by it."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import matplotlib
import matplotlib.style
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnviz.figures import means, pair_heatmaps, pairs, statistic_map
from attnviz.figures.colours import INK, QUIET, colour_levels, colour_table
from attnviz.figures.heatmap_drawing import (
    draw_heatmap,
    figure_style,
    heatmap_figure,
    heatmap_layout,
)
from attnviz.figures.heatmaps import plan_heatmap
from attnviz.figures.look import Look
from attnviz.figures.overview_drawing import draw_overview, overview_figure
from attnviz.figures.overviews import model_overview_plan, plan_overview
from attnviz.model.head_ids import HeadId
from attnviz.model.wording import quoted

ODD_SETTINGS = {
    "text.usetex": True,
    "font.family": "DejaVu Serif",
    "font.size": 30,
    "figure.facecolor": "black",
    "axes.facecolor": "black",
    "savefig.facecolor": "black",
    "axes.grid": True,
    "text.color": "white",
    "xtick.color": "white",
    "ytick.color": "white",
    "axes.labelcolor": "white",
    "image.origin": "lower",
    "image.interpolation": "bilinear",
    "figure.dpi": 37,
    "savefig.dpi": 41,
    "savefig.bbox": "tight",
    "ytick.labelright": True,
    "xtick.top": True,
    "axes.linewidth": 9,
    "lines.antialiased": False,
}
HOSTILE = [
    "$\\frac$",
    "[/b]",
    "$",
    "a_{b}^c",
    "🦄",
    "猫",
    "مرحبا",
    "\x1b[31m",
    "\n",
    "\x00",
    "\t",
    "",
    " ",
    "&<>\"'",
    "%s{}",
]


def one_dark_cell(n=4, query=0, key=2):
    pattern = np.zeros((n, n), np.float32)
    pattern[query, key] = 1.0
    return pattern


def plan_of(pattern, labels=None, quiet=None, **changes):
    n = len(pattern)
    labels = [f"w{i}" for i in range(n)] if labels is None else labels
    return plan_heatmap(pattern, labels, quiet=quiet or [False] * n, **{"title": "L0H0  local", **changes})


def random_pattern(n, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(n) / 2, n).astype(np.float32)


def overview_of(heads=((0, 0), (0, 1), (1, 1)), title="model: 2 layers", notes=("“a text”",), n=4):
    patterns = ((HeadId(*head), "local", one_dark_cell(n)) for head in heads)
    return plan_overview(patterns, title=title, notes=notes)


def new_axes():
    return Figure(figsize=(4, 3)).add_axes((0.3, 0.3, 0.6, 0.5))


def pixels_of(figure):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def texts(labels):
    return [label.get_text() for label in labels]


def test_rows_are_queries_from_the_top_and_columns_keys_from_the_left():
    ax = new_axes()
    image = draw_heatmap(ax, plan_of(one_dark_cell(4, query=0, key=2)))
    drawn = image.get_array()
    assert drawn[0, 2].tolist() == colour_table()[-1].tolist()
    assert (np.delete(drawn.reshape(16, 3), 2, axis=0) == 255).all()
    assert ax.get_xlim()[0] < ax.get_xlim()[1]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # row 0 is at the top


@pytest.mark.parametrize(("n", "names"), [(4, ("key", "query")), (30, ("key (attended to)", "query (attends from)"))])
def test_the_axes_say_which_is_which_as_fully_as_there_is_room(n, names):
    ax = new_axes()
    draw_heatmap(ax, plan_of(one_dark_cell(n)))
    assert (ax.get_xlabel(), ax.get_ylabel()) == names


@pytest.mark.parametrize(("query", "key"), [(0, 2), (3, 0), (1, 1), (3, 3)])
def test_the_dark_pixels_are_where_query_and_key_say(query, key):
    ax = new_axes()
    draw_heatmap(ax, plan_of(one_dark_cell(4, query, key)))
    pixels = pixels_of(ax.figure)
    dark = (np.abs(pixels.astype(int) - colour_table()[-1]).sum(-1) < 10).nonzero()
    row, column = dark[0].mean(), dark[1].mean()
    expected = ax.transData.transform((key, query))
    assert column == pytest.approx(expected[0], abs=1.5)
    assert row == pytest.approx(pixels.shape[0] - expected[1], abs=1.5)
    assert len(dark[0]) > 500  # a cell, not a speck


def test_a_vector_heatmap_has_one_rectangle_a_cell_in_the_same_places():
    ax = new_axes()
    pattern = random_pattern(5)
    mesh = draw_heatmap(ax, plan_of(pattern), vector=True)
    assert isinstance(mesh, QuadMesh)
    np.testing.assert_array_equal(mesh.get_array(), pattern)
    corners = mesh.get_coordinates()
    assert corners[0, 0].tolist() == [-0.5, -0.5]
    assert corners[1, 3].tolist() == [2.5, 0.5]  # second index to the right, first downwards
    assert mesh.get_clim() == (0, 1)
    np.testing.assert_allclose(mesh.to_rgba(pattern)[..., :3] * 255, colour_table()[colour_levels(pattern)], atol=2.1)


def test_a_large_vector_heatmap_is_an_image():
    ax = new_axes()
    image = draw_heatmap(ax, plan_of(random_pattern(65)), vector=True)
    assert not isinstance(image, QuadMesh)
    assert image.get_interpolation() == "none"
    assert isinstance(draw_heatmap(new_axes(), plan_of(random_pattern(64)), vector=True), QuadMesh)


def test_labels_and_title_stand_on_the_callers_axes_and_special_tokens_in_grey():
    ax = new_axes()
    position = ax.get_position().bounds
    labels = ["[CLS]", "the", "cat", "[SEP]"]
    draw_heatmap(ax, plan_of(one_dark_cell(), labels, [True, False, False, True], evidence="local 0.70"))
    assert texts(ax.get_xticklabels()) == texts(ax.get_yticklabels()) == labels
    assert ax.get_title(loc="left") == "L0H0  local\nlocal 0.70"
    for axis_labels in (ax.get_xticklabels(), ax.get_yticklabels()):
        assert [to_hex(label.get_color()) for label in axis_labels] == [QUIET, INK, INK, QUIET]
    assert ax.get_xticks().tolist() == ax.get_yticks().tolist() == [0, 1, 2, 3]
    assert ax.get_position().bounds == position


def test_every_seventh_of_512_tokens_is_named_and_the_axis_says_so():
    ax = new_axes()
    draw_heatmap(ax, plan_of(np.eye(512, dtype=np.float32)))
    assert texts(ax.get_yticklabels())[:3] == ["w0", "w7", "w14"]
    assert ax.get_xlabel() == "key (attended to), every 7th token named"


@pytest.mark.parametrize(
    ("n", "unit", "ending"),
    [(80, "token", ", every 2nd token named"), (250, "word", ", every 4th word named"), (9, "word", "")],
)
def test_the_axis_tells_which_labels_are_left_out(n, unit, ending):
    ax = new_axes()
    draw_heatmap(ax, plan_of(np.eye(n, dtype=np.float32), unit=unit))
    assert ax.get_xlabel() == f"key (attended to){ending}"


def test_pooled_rows_are_counted_in_tokens():
    figure = heatmap_figure(plan_of(np.eye(1025, dtype=np.float32)))
    assert figure.axes[0].get_xlabel() == "key (attended to), every 14th token named"
    assert "each cell is the largest of 2 × 2 weights (pooled for drawing only)" in texts(figure.texts)


def test_only_the_given_axes_are_drawn_on():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    draw_heatmap(left, plan_of(one_dark_cell()))
    assert not right.images
    assert not right.get_title(loc="left")
    assert figure.axes == [left, right]


@pytest.mark.parametrize("n", [1, 2, 9, 21, 22, 60, 130])
def test_every_pixel_of_every_cell_has_the_colour_of_its_weight(n):
    plan = plan_of(random_pattern(n))
    layout = heatmap_layout(plan)
    pixels = pixels_of(heatmap_figure(plan))
    cells = pixels[layout.top : layout.top + plan.size, layout.left : layout.left + plan.size]
    expected = colour_table()[colour_levels(plan.values)].repeat(plan.cell, 0).repeat(plan.cell, 1)
    same = (cells == expected).all(-1)
    if plan.number_size is None:
        assert same.all()
    else:  # the number stands in the middle half of its cell
        inside = same.reshape(n, plan.cell, n, plan.cell)
        assert inside[:, : plan.cell // 4].all()
        assert inside[:, -plan.cell // 4 :].all()
        assert inside[..., : plan.cell // 8].all()
        assert inside[..., -plan.cell // 8 :].all()
        assert not same.all()
    border = pixels[layout.top - 1 : layout.top + plan.size + 1, layout.left - 1]
    assert (border[1:-1] < 250).all()  # the frame stands beside the cells


@pytest.mark.parametrize("labels", [["a", "b"], ["a" * 16, "W" * 30], ["W" * 16] * 9, ["m" * 16] * 60])
def test_nothing_runs_over_the_edge_of_a_heatmap(labels):
    plan = plan_of(random_pattern(len(labels)), labels, evidence="nearest: previous-token 0.00 · uniform attention 0.1")
    pixels = pixels_of(heatmap_figure(plan))
    assert_clear_edges(pixels)


@pytest.mark.parametrize(
    "text",
    [
        "The committee that the president had appointed last year finally published its long awaited report",
        "猫" * 90,
        "WWW " * 30,
    ],
    ids=["english", "without font", "wide"],
)
def test_the_text_does_not_run_over_the_edge_of_an_overview(text):
    assert_clear_edges(pixels_of(overview_figure(overview_of(heads=[(0, 0)], n=300, notes=[quoted(text)] * 2))))


def test_a_long_model_name_does_not_run_over_the_edge_of_an_overview():
    name = "organisation-with-a-long-name/a-model-with-a-still-longer-name-fine-tuned-on-many-things-v2"
    assert_clear_edges(pixels_of(overview_figure(overview_of(title=f"{name}: 12 layers × 12 heads"))))


def assert_clear_edges(pixels):
    for name, edge in {"left": pixels[:, 0], "right": pixels[:, -1], "top": pixels[0], "bottom": pixels[-1]}.items():
        assert (edge == 255).all(), f"something is cut off at the {name}"


def test_heatmap_labels_do_not_touch_each_other_or_the_axis_label():
    plan = plan_of(random_pattern(60), [f"somewhat{i}" for i in range(60)])
    figure = heatmap_figure(plan)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ax = figure.axes[0]
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert all(upper.y0 >= lower.y1 - 4 for upper, lower in pairwise(boxes))
    assert max(box.x1 for box in boxes) <= ax.get_window_extent().x0
    assert ax.yaxis.label.get_window_extent().x1 <= min(box.x0 for box in boxes)
    below = min(label.get_window_extent().y0 for label in ax.get_xticklabels())
    assert ax.xaxis.label.get_window_extent().y1 <= below


def test_a_heatmap_has_a_colour_bar_from_0_to_1():
    bar = heatmap_figure(plan_of(one_dark_cell())).axes[1]
    assert bar.get_ylim() == (0, 1)
    assert bar.get_ylabel() == "weight (shared scale)"
    assert texts(bar.get_yticklabels()) == ["0.00", "0.25", "0.50", "0.75", "1.00"]


def test_other_patterns_make_other_pictures_and_none_is_blank():
    first, second = (pixels_of(heatmap_figure(plan_of(random_pattern(6, seed)))) for seed in (1, 2))
    assert first.shape == second.shape
    assert (first != second).any()
    assert (first < 128).any()


@pytest.mark.parametrize("vector", [False, True])
def test_hostile_labels_are_drawn_without_crash_or_warning(vector):
    plan = plan_of(random_pattern(len(HOSTILE)), HOSTILE, title="$\\frac$ [/b]", evidence="$x_{$ \\")
    figure = heatmap_figure(plan, vector=vector)
    pixels_of(figure)
    shown = texts(figure.axes[0].get_yticklabels())
    assert shown[:4] == HOSTILE[:4]
    assert not any(character in "".join(shown) for character in "\x1b\n\x00\t")
    ax = new_axes()
    draw_heatmap(ax, plan, vector=vector)
    pixels_of(ax.figure)


@pytest.mark.parametrize("label", HOSTILE)
def test_a_figure_with_only_one_hostile_label_can_be_drawn(label):
    pixels_of(heatmap_figure(plan_of(np.ones((1, 1), np.float32), [label])))


@pytest.mark.parametrize("hostile", ["$\\frac$", "猫", "🦄", "مرحبا", "U+E000 \ue000"])
def test_hostile_texts_above_a_picture_are_drawn_without_crash_or_warning(hostile):
    pixels_of(overview_figure(overview_of(title=hostile, notes=[hostile])))
    pixels_of(heatmap_figure(plan_of(one_dark_cell(), title=hostile, evidence=hostile)))
    ax = new_axes()
    draw_heatmap(ax, plan_of(one_dark_cell(), title=hostile, evidence=hostile))
    pixels_of(ax.figure)


def test_an_overview_names_heads_labels_and_layers_on_the_callers_axes():
    ax = new_axes()
    image = draw_overview(ax, overview_of())
    assert texts(ax.texts) == ["L0H0", "local", "L0H1", "local", "L1H1", "local", "layer 0", "layer 1", "local"]
    height, width = image.get_array().shape[:2]
    assert ax.get_xlim() == (0, width)
    assert ax.get_ylim() == (height, 0)  # downwards


def test_the_pixels_of_an_overview_are_those_of_its_plan():
    plan = overview_of()
    pixels = pixels_of(overview_figure(plan))
    height = len(plan.image)
    left, top = plan.origin
    assert pixels.shape[0] == top + height + 8
    for _, _, x, y in plan.cells:
        found = pixels[top + y - 1 : top + y + plan.size + 1, left + x - 1 : left + x + plan.size + 1]
        np.testing.assert_array_equal(found, plan.image[y - 1 : y + plan.size + 1, x - 1 : x + plan.size + 1])


def test_the_texts_of_an_overview_do_not_overlap():
    plan = overview_of(heads=[(layer, head) for layer in range(2) for head in range(3)], n=9)
    plan = replace(plan, cells=tuple((head, "not measurable", x, y) for head, _, x, y in plan.cells))
    figure = overview_figure(plan)
    FigureCanvasAgg(figure).draw()
    boxes = [text.get_window_extent() for text in [*figure.texts, *figure.axes[0].texts]]
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])


def marks_of(ax):
    """Marker, colour and places of every family's marks."""
    return {
        line.get_marker(): (to_hex(line.get_markerfacecolor()), line.get_xydata().tolist()) for line in ax.get_lines()
    }


def test_every_head_of_an_overview_bears_the_mark_of_its_family_and_the_legend_names_it():
    heads = [(HeadId(0, 0), "syntactic:nsubj"), (HeadId(0, 1), "previous-token"), (HeadId(1, 0), "syntactic:obj")]
    heads += [(HeadId(1, 1), "heterogeneous")]
    plan = plan_overview(((head, label, one_dark_cell(4)) for head, label in heads), title="t")
    ax = overview_figure(plan).axes[0]
    marks = marks_of(ax)
    assert {marker: colour for marker, (colour, _) in marks.items()} == {
        "o": "#77aadd", "s": "#bbcc33", ".": "#ffffff"
    }  # fmt: skip
    assert len(marks["s"][1]) == 3  # two heads, and the legend
    entries = {entry.name: (entry.left, entry.middle) for entry in plan.legend}
    assert list(entries) == ["positional", "syntactic", "heterogeneous"]
    assert list(entries["syntactic"]) in marks["s"][1]
    for (head, _), (_, _, left, top) in zip(heads, plan.cells, strict=True):
        x, y = next(place for place in marks[plan.families[head].marker][1] if abs(place[0] - left) < 12
                    and 0 < top - place[1] < 30)  # fmt: skip
        assert (x, y) == (left + 5, top - 12)
    assert "syn: nsubj" in texts(ax.texts)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("scale", ["shared", "per-head", "log"])
@pytest.mark.parametrize("width", [2.0, 3.3, 7.0])
@pytest.mark.parametrize("n", [1, 9, 60, 300])
def test_a_figure_is_exactly_as_wide_as_was_asked_and_nothing_runs_over_its_edge(theme, scale, width, n):
    look = Look(theme, scale, width)
    evidence = "nearest: previous-token 0.00 · uniform attention 0.12 · n = 6"
    heat = heatmap_figure(plan_of(random_pattern(n), look=look, evidence=evidence, notes=["special tokens dropped"]))
    heads = [HeadId(layer, head) for layer in range(2) for head in range(12 if width > 3 else 4)]
    overview = overview_figure(
        plan_overview(((head, "previous-token", random_pattern(n)) for head in heads), title="model", look=look)
    )
    for figure in (heat, overview):
        assert figure.get_size_inches()[0] == pytest.approx(width, abs=1e-9)
        pixels = pixels_of(figure)
        paper = [round(255 * channel) for channel in to_rgb(look.greys.paper)]
        for edge in (pixels[:, 0], pixels[:, -1], pixels[0], pixels[-1]):
            assert (edge == paper).all()


def assert_all_inside(figure):
    pixels_of(figure)
    for text in figure.findobj(Text):
        if text.get_text() and text.get_visible():
            box = text.get_window_extent()
            assert box.x0 >= 0, text
            assert box.y0 >= 0, text
            assert box.x1 <= figure.bbox.width, text
            assert box.y1 <= figure.bbox.height, text


@pytest.mark.parametrize("scale", ["shared", "per-head", "log"])
@pytest.mark.parametrize("width", [None, 2.0, 2.5, 3.3, 4.0])
@pytest.mark.parametrize("rows", [1, 2])
def test_the_colour_bar_of_an_overview_fits_the_page(scale, width, rows):
    heads = [HeadId(layer, head) for layer in range(rows) for head in range(12)]
    look = Look(scale=scale, width=width)
    figure = overview_figure(plan_overview(((head, "sink", random_pattern(9)) for head in heads), title="t", look=look))
    assert_all_inside(figure)
    ax, bar = figure.axes
    assert len([text for text in bar.get_yticklabels() if text.get_text()]) == 5
    assert len(bar.get_ylabel()) > 5
    left, top, right, bottom = np.ravel(bar.bbox.get_points() / figure.bbox.get_points()[1])
    assert 0 < left < right < 1
    assert 0 < top < bottom < 1
    assert bar.bbox.y1 <= ax.bbox.y1


@pytest.mark.parametrize("scale", ["shared", "per-head", "log"])
@pytest.mark.parametrize("width", [None, 2.0, 3.3])
@pytest.mark.parametrize("n", [1, 2])
def test_the_colour_bar_of_a_text_of_one_token_can_be_read(scale, width, n):
    dropped = "special tokens dropped, rows renormalised"
    plan = plan_of(random_pattern(n), look=Look(scale=scale, width=width), evidence="x", dropped=dropped)
    figure = heatmap_figure(plan)
    assert_all_inside(figure)
    boxes = [text.get_window_extent() for text in figure.axes[1].get_yticklabels() if text.get_text()]
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("heads", [1, 4])
def test_the_sentence_about_the_scale_is_never_cut(theme, heads):
    look = Look(theme, "log")
    cells = ((HeadId(0, head), "local", random_pattern(9)) for head in range(heads))
    plan = plan_overview(cells, title="t", look=look)
    figure = overview_figure(plan)
    assert_all_inside(figure)
    said = " ".join(texts(figure.texts))
    assert "…" not in said
    assert said.endswith("log scale, the same for every head.")


@pytest.mark.parametrize("scale", ["shared", "per-head", "log"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_colour_bar_that_the_caller_draws_shows_the_scale_of_the_cells(scale, theme):
    look = Look(theme, scale)
    plan = plan_of(random_pattern(5) / 2, look=look)
    overview = plan_overview([(HeadId(0, 0), "local", plan.values)], title="t", look=look)
    for draw, of, largest in ((draw_heatmap, plan, plan.vmax), (draw_overview, overview, 1.0)):
        ax = new_axes()
        image = draw(ax, of)
        assert image.get_array().ndim == 3  # colours already, which neither map nor norm change
        bar = ax.figure.colorbar(image)
        pixels_of(ax.figure)
        assert (bar.vmin, bar.vmax) == pytest.approx((1e-4 if scale == "log" else 0.0, largest))
        assert bar.norm(bar.vmax) == pytest.approx(1)
        strongest = np.round(255 * np.array(bar.cmap(1.0)[:3])).astype(int)
        assert strongest.tolist() == colour_table(theme)[-1].tolist()
    barred = 255 * bar.cmap(look.norm(plan.vmax)(plan.values))[:, :, :3]
    assert np.abs(barred - colour_table(theme)[plan.levels]).max() <= 9  # a step of the scale


def test_no_letter_is_smaller_than_five_points_however_narrow_the_figure():
    look = Look(width=2.0)
    heat = heatmap_figure(plan_of(random_pattern(200), look=look, evidence="x"))
    overview = overview_figure(plan_overview([(HeadId(0, 0), "local", random_pattern(200))], title="t", look=look))
    for figure in (heat, overview):
        written = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
        assert len(written) > 8
        assert min(text.get_fontsize() for text in written) >= 5


@pytest.mark.parametrize(
    ("scale", "labels", "words"),
    [
        ("shared", ["0.00", "0.25", "0.50", "0.75", "1.00"], "attention weight (same scale for every head)"),
        ("log", ["≤ 10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "1"], "attention weight (log scale)"),
    ],
)
def test_the_colour_bar_says_which_scale_it_shows(scale, labels, words):
    for n in (1, 9):
        bar = heatmap_figure(plan_of(random_pattern(n), look=Look(scale=scale))).axes[1]
        assert texts(bar.get_yticklabels()) == labels
        assert bar.get_ylabel() == (words if n == 9 else {"shared": "shared", "log": "log scale"}[scale])


def test_a_head_with_its_own_scale_shows_its_largest_weight_in_the_strongest_colour():
    pattern = np.full((4, 4), 0.1, np.float32)
    pattern[1, 2] = 0.4
    plan = plan_of(pattern, look=Look(scale="per-head"))
    figure = heatmap_figure(plan)
    assert plan.levels[1, 2] == 175
    assert plan.levels[0, 0] == 44
    assert {"0.40", "0.30", "0.20", "0.10", "0.00"} <= set(texts(figure.texts))
    assert figure.axes[1].get_ylabel() == "weight (scale of this head)"
    faint = plan_of(pattern / 100, look=Look(scale="per-head"))
    assert "0.0040" in texts(heatmap_figure(faint).texts)
    assert plan_of(np.zeros((2, 2), np.float32), look=Look(scale="per-head")).vmax == 1


def test_weights_are_written_into_few_large_cells_and_small_ones_left_out():
    pattern = np.array([[0.93, 0.004], [0.006, 1.0]], np.float32)
    ax = heatmap_figure(plan_of(pattern)).axes[0]
    assert texts(ax.texts) == [".93", ".01", "1"]
    assert [to_hex(text.get_color()) for text in ax.texts] == ["#ffffff", INK, "#ffffff"]
    assert len(heatmap_figure(plan_of(np.full((24, 24), 0.5, np.float32))).axes[0].texts) == 576
    assert not heatmap_figure(plan_of(np.full((25, 25), 0.5, np.float32))).axes[0].texts


def test_numbers_on_the_callers_axes_depend_on_the_size_of_these():
    plan = plan_of(np.full((9, 9), 0.5, np.float32))
    large, small = Figure(figsize=(6, 6)).add_subplot(), Figure(figsize=(1.5, 1.5)).add_subplot()
    for ax in (large, small):
        draw_heatmap(ax, plan)
    assert texts(large.texts) == [".50"] * 81
    assert not small.texts


def test_a_dark_heatmap_is_bright_on_dark():
    plan = plan_of(one_dark_cell(9), look=Look(theme="dark"))
    figure = heatmap_figure(plan)
    pixels = pixels_of(figure)
    layout = heatmap_layout(plan)
    assert pixels[0, 0].tolist() == [20, 20, 20]
    bright = pixels[layout.top + 2, layout.left + 2 * plan.cell + 2]
    assert bright.tolist() == colour_table("dark")[-1].tolist()
    assert bright.sum() > 600
    assert to_hex(figure.axes[0].get_yticklabels()[0].get_color()) == "#ececec"


def test_notes_about_the_drawing_are_written_whole_above_it():
    note = "special tokens dropped, rows renormalised"
    for width in (None, 3.3, 2.5):
        plan = plan_of(random_pattern(9), notes=[note], look=Look(width=width))
        shown = [text for text in texts(heatmap_figure(plan).texts) if "dropped" in text]
        assert shown == [note]
    ax = new_axes()
    draw_heatmap(ax, plan_of(random_pattern(9), notes=[note]))
    assert ax.get_title(loc="left").endswith(note)


def test_evidence_that_does_not_fit_a_narrow_figure_goes_on_in_a_second_line():
    parts = ["induction 1.00 (1.00 where a token repeats)", "uniform attention 0.06", "n = 3"]
    plan = plan_of(random_pattern(9), evidence=" · ".join(parts), look=Look(width=3.0))
    layout = heatmap_layout(plan)
    assert layout.words(plan)[1:3] == (parts[0], " · ".join(parts[1:]))


def test_a_narrow_overview_names_heads_beside_their_layers():
    heads = [HeadId(layer, head) for layer in range(2) for head in range(12)]
    plan = plan_overview(((head, "sink", random_pattern(9)) for head in heads), title="t", look=Look(width=3.3))
    shown = texts(overview_figure(plan).axes[0].texts)
    assert {"H0", "H11", "L0", "L1"} <= set(shown)


@pytest.mark.parametrize("columns", [12, 16])
@pytest.mark.parametrize("width", [2.0, 2.5, 3.3])
def test_the_letters_of_a_narrow_overview_do_not_touch(columns, width):
    heads = [HeadId(layer, head) for layer in range(2) for head in range(columns)]
    look = Look(width=width)
    plan = plan_overview(((head, "previous-token", random_pattern(9)) for head in heads), title="t", look=look)
    figure = overview_figure(plan)
    pixels_of(figure)
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 5.5


def test_what_was_dropped_stands_in_the_title_in_bold():
    dropped = "special tokens dropped, rows renormalised"
    for width in (None, 3.3, 2.0):
        look = Look(width=width)
        heat = heatmap_figure(plan_of(random_pattern(9), dropped=dropped, look=look))
        bold = [text.get_text() for text in heat.texts if text.get_fontweight() == "bold"]
        assert set(bold) == {"L0H0  local", *bold[:-1]}
        assert " ".join(bold[:-1]) == dropped
        overview = plan_overview([(HeadId(0, 0), "local", one_dark_cell())], title=f"model ({dropped})", look=look)
        bold = [text.get_text() for text in overview_figure(overview).texts if text.get_fontweight() == "bold"]
        assert " ".join(bold) == f"model ({dropped})"
    ax = new_axes()
    draw_heatmap(ax, plan_of(random_pattern(9), dropped=dropped, evidence="local 0.70"))
    assert ax.get_title(loc="left") == f"L0H0  local\n{dropped}\nlocal 0.70"


@pytest.mark.parametrize("n", [1, 2, 3, 9, 60])
@pytest.mark.parametrize("width", [None, 2.0, 3.3])
def test_a_head_names_its_model_and_text_above_its_evidence(n, width):
    plan = plan_of(random_pattern(n), subject=f"minilm · “{'The cat ' * 12}ran”", evidence="x", look=Look(width=width))
    figure = heatmap_figure(plan)
    pixels_of(figure)
    (subject,) = [text for text in figure.texts if text.get_text().startswith("minilm · “The")]
    assert subject.get_text().endswith("…”") or n == 60
    boxes = [text.get_window_extent() for text in figure.texts if text.get_text()]
    boxes += [figure.axes[0].yaxis.label.get_window_extent(), figure.axes[0].bbox]
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])
        assert box.x1 < figure.bbox.width


def drawn_on_callers_axes(look):
    """Every text that the draw functions wrote beside the cells, by what drew it."""
    from tests.test_pairs import pair_of

    found = pair_of()
    pattern = found.layer_patterns(0)[0].numpy()
    means_plan, segments = means.plan_means(found, look), pair_heatmaps.pair_segments(found)
    one = pair_heatmaps.plan_pair_heatmap(found, found.head("L0H0"), pattern, segments, look)
    draws = {
        "heatmap": lambda ax: draw_heatmap(ax, plan_of(random_pattern(4), look=look)),
        "overview": lambda ax: draw_overview(ax, model_overview_plan(found, found.heads, look)),
        "mean": lambda ax: means.draw_mean(ax, means_plan, means_plan.tiles[0], look),
        "pair": lambda ax: pairs.draw_pair(ax, pairs.plan_pair(found), look),
        "map": lambda ax: statistic_map.draw_statistic_map(ax, statistic_map.plan_statistic_map(found, "sink"), look),
        "pair heatmap": lambda ax: pair_heatmaps.draw_pair_heatmap(ax, one, look),
    }
    for name, draw in draws.items():
        ax = Figure(figsize=(5, 5)).add_axes((0.2, 0.2, 0.6, 0.6))
        draw(ax)
        pixels_of(ax.figure)
        for text in ax.findobj(Text):
            box = text.get_window_extent()
            outside = box.x1 <= ax.bbox.x0 or box.y1 <= ax.bbox.y0 or box.x0 >= ax.bbox.x1 or box.y0 >= ax.bbox.y1
            if text.get_text() and text.get_visible() and outside:
                yield name, text


@pytest.mark.parametrize("style", ["dark_background", "default"])
def test_beside_the_cells_letters_have_the_colours_of_the_callers_style(style):
    expected = {"#ffffff", QUIET} if style == "dark_background" else {INK, QUIET}
    with matplotlib.style.context(style):
        shown = list(drawn_on_callers_axes(Look()))
        themed = list(drawn_on_callers_axes(Look("dark")))
    assert {name for name, _ in shown} == {"heatmap", "overview", "mean", "pair", "map", "pair heatmap"}
    for _, text in shown:
        assert to_hex(text.get_color()) in expected
    assert {to_hex(text.get_color()) for _, text in themed} <= {"#ececec", "#9a9a9a"}


def test_a_title_has_the_size_that_the_caller_chose():
    for settings, size in (({}, 9), ({"axes.titlesize": 14}, 14), ({"font.size": 20, "axes.titlesize": "medium"}, 20)):
        with matplotlib.rc_context(settings):
            ax = new_axes()
            draw_heatmap(ax, plan_of(one_dark_cell()))
            assert ax.title.get_text() == ""
            assert ax._left_title.get_fontsize() == size


def test_the_users_settings_do_not_change_the_figures():
    heat, overview = plan_of(random_pattern(9)), overview_of()
    expected = pixels_of(heatmap_figure(heat)), pixels_of(overview_figure(overview))
    with matplotlib.rc_context(ODD_SETTINGS):
        figures = heatmap_figure(heat), overview_figure(overview)
        found = []
        for figure in figures:
            with figure_style():
                found.append(pixels_of(figure))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_figure_that_the_user_draws_under_odd_settings_looks_the_same():
    plan = plan_of(random_pattern(9))
    expected = pixels_of(heatmap_figure(plan))
    with matplotlib.rc_context(ODD_SETTINGS):
        found = pixels_of(heatmap_figure(plan))
    np.testing.assert_array_equal(expected, found)


def test_drawing_leaves_settings_and_backend_as_they_were():
    with matplotlib.rc_context({"font.size": 17, "svg.hashsalt": "mine"}):
        before = dict(matplotlib.rcParams)
        heatmap_figure(plan_of(one_dark_cell()))
        overview_figure(overview_of())
        draw_heatmap(new_axes(), plan_of(one_dark_cell()))
        assert dict(matplotlib.rcParams) == before


def test_settings_come_back_after_an_error():
    with matplotlib.rc_context({"font.size": 17}):
        with pytest.raises(KeyError), figure_style():
            raise KeyError
        assert matplotlib.rcParams["font.size"] == 17


PYPLOT_CHECK = """
import sys, warnings
warnings.simplefilter("error")
import numpy as np
from attnviz.figures.heatmap_drawing import heatmap_figure, draw_heatmap
from attnviz.figures.heatmaps import plan_heatmap
from attnviz.figures.overview_drawing import overview_figure
from attnviz.figures.overviews import plan_overview
from attnviz.model.head_ids import HeadId
from attnviz.figures.rendering import figure_bytes, heatmap_files
plan = plan_heatmap(np.eye(3, dtype=np.float32), ["a", "b", "c"], quiet=[False] * 3, title="t")
overview = plan_overview([(HeadId(0, 0), "x", np.eye(3, dtype=np.float32))], title="t")
for kind in ("png", "svg", "pdf"):
    list(heatmap_files([plan], kind))
figure_bytes(overview_figure(overview), "png")
assert "matplotlib.pyplot" not in sys.modules, "pyplot was imported"
import matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as plt
mine = plt.figure()
heatmap_figure(plan); draw_heatmap(mine.add_subplot(), plan); list(heatmap_files([plan], "png"))
assert plt.get_fignums() == [1] and plt.gcf() is mine
assert matplotlib.get_backend() == "svg", matplotlib.get_backend()
print("undisturbed")
"""


def test_pyplot_is_neither_imported_nor_disturbed():
    done = subprocess.run([sys.executable, "-c", PYPLOT_CHECK], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("undisturbed\n", "")


def test_the_grid_of_the_callers_style_does_not_cross_the_cells():
    with matplotlib.rc_context({"axes.grid": True}):
        ax = Figure().add_subplot()
        draw_heatmap(ax, plan_of(random_pattern(4)))
    assert not any(line.get_visible() for line in [*ax.get_xgridlines(), *ax.get_ygridlines()])
