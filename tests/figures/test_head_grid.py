"""The grid of many heads: every square shows its matrix, and every text has room."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attnviz.errors import UsageError
from attnviz.figures.families import FAMILIES, family_of_label
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, grid_pooling, head_grid_figure
from attnviz.figures.matrix import Labels, max_pool
from attnviz.figures.style import Style
from attnviz.models.head_ids import HeadId, Stack
from tests.support.drawn import covered, nothing_over_the_edge, pixels_of, texts_of

LABELS = ["previous-token", "unnamed", "syntactic:nsubj:pass", "sink", "duplicate-token", "broad", "local"]


def grid(
    layers: int, heads: int, n: int = 9, style: Style | None = None, *, marked: bool = True, **more: Any
) -> HeadGridPlan:
    ids = [HeadId(layer, head) for layer in range(layers) for head in range(heads)]
    pooled = grid_pooling(n, ids, style or Style(), marked=marked)
    cells = []
    for place, (id, values) in enumerate(zip(ids, np.random.default_rng(0).random((len(ids), n, n)), strict=True)):
        label, family = f"{place / 100:.3f}", None
        if marked:
            label = LABELS[place % len(LABELS)]
            family = family_of_label(label)
        cells.append(HeadCell(id, max_pool(values, pooled), label, family, (label[:9],)))
    given: dict[str, Any] = {"title": "model: a title", "notes": ("“a text” (9 tokens)",), "bar": "attention weight"}
    return HeadGridPlan("grid", "A caption.", cells=tuple(cells), norm=Normalize(0, 1, clip=True), **(given | more))


def drawn(figure: Figure) -> tuple[Any, dict[str, tuple[int, int]]]:
    """The image, and for each id above a square the left and top pixel of that square."""
    ax = figure.axes[0]
    (image,) = ax.images
    pixels = image.get_array().shape[1] / image.get_extent()[1]
    places = {text.get_text(): text.get_position() for text in ax.texts}
    return image.get_array()[..., :3], {
        name: (round(x * pixels), round((y + 5) * pixels)) for name, (x, y) in places.items()
    }


@pytest.mark.parametrize("n", [2, 9, 70, 120])
def test_every_square_holds_its_matrix_in_equal_cells(n: int):
    plan, style = grid(2, 3, n, marked=False), Style()
    plan = replace(plan, cells=tuple(replace(cell, beside="") for cell in plan.cells))
    image, places = drawn(head_grid_figure(plan, style))
    for cell in plan.cells:
        left, top = places[str(cell.id)]
        side = int((image[top:, left] != 0x9A).any(axis=-1).argmin())  # up to the frame
        assert side % n == 0
        assert 60 < side < 134
        colours = style.colour_map()(plan.norm(cell.values), bytes=True)[..., :3]
        square = colours.repeat(side // n, axis=0).repeat(side // n, axis=1)
        np.testing.assert_array_equal(image[top : top + side, left : left + side], square)
        assert (image[top - 1, left : left + side] == 0x9A).all()  # a frame that covers no cell


def test_pixels_of_the_image_are_pixels_of_the_figure():
    figure = head_grid_figure(grid(2, 3, 120, marked=False), Style())
    image, places = drawn(figure)
    left, top = places["L1H2"]
    square, page = image[top : top + 120, left : left + 120], pixels_of(figure)
    box = figure.axes[0].get_window_extent()
    x, y = round(box.x0) + left, round(len(page) - box.y1) + top
    np.testing.assert_array_equal(page[y : y + 120, x : x + 120], square)


def test_what_is_missing_has_the_colour_of_the_paper():
    plan = grid(1, 1, 3, marked=False)
    plan.cells[0].values[0, 2] = np.nan
    image, places = drawn(head_grid_figure(plan, Style(theme="dark")))
    left, top = places["L0H0"]
    assert (image[top + 5, left + 115] == 0x14).all()


def test_where_heads_would_be_small_a_layer_goes_on_in_further_rows():
    style = Style(width=3.3)
    plan = grid(2, 12, style=style, marked=False)
    plan = replace(plan, cells=tuple(replace(cell, beside="") for cell in plan.cells))
    _, places = drawn(head_grid_figure(plan, style))
    tops = {name: top for name, (_, top) in places.items()}
    assert tops["L0H0"] < tops["L0H11"] < tops["L1H0"] < tops["L1H11"]
    _, wide = drawn(head_grid_figure(grid(2, 12, marked=False), Style()))
    assert wide["L0H0"][1] == wide["L0H11"][1]


def test_many_layers_stand_in_blocks_side_by_side_in_the_shape_of_a_page():
    plan = grid(30, 9)
    figure = head_grid_figure(plan, Style())
    width, height = figure.get_size_inches()
    assert 0.7 < height / width < 1.5
    image, places = drawn(figure)
    assert places["L15H0"][1] == places["L0H0"][1]
    assert places["L15H0"][0] > places["L0H8"][0]
    layers = [text for text in texts_of(figure) if text.startswith("layer ")]
    assert sorted(layers) == sorted(f"layer {layer}" for layer in range(30))
    assert nothing_over_the_edge(figure)
    assert covered(figure) == []
    for cell in (plan.cells[0], plan.cells[-1]):
        left = places[str(cell.id)][0]
        strongest = Style().colour_map()(plan.norm(cell.values), bytes=True)[..., :3]
        assert (image[:, left + 2] == strongest[0, 0]).all(axis=-1).any()
    _, few = drawn(head_grid_figure(grid(6, 12), Style()))
    assert few["L0H0"][1] < few["L5H0"][1]


def test_a_width_too_small_for_the_heads_is_refused_with_the_least():
    with pytest.raises(UsageError, match=r"at least 2\.6 inches for a figure with 32 heads in a row, found 2:"):
        grid(1, 32, style=Style(width=2.0))
    assert grid(1, 32, style=Style(width=2.6)).cells


def test_heads_bear_the_mark_of_their_family_and_the_legend_names_those_that_occur():
    plan = grid(2, 4)
    ax = head_grid_figure(plan, Style()).axes[0]
    families = [family for family in FAMILIES if family in {cell.family for cell in plan.cells}]
    assert [line.get_marker() for line in ax.lines] == [family.marker for family in families]
    assert [len(line.get_xdata()) for line in ax.lines] == [
        sum(cell.family == family for cell in plan.cells) for family in families
    ]
    legend = ax.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names == [family.name for family in families]
    assert head_grid_figure(grid(2, 4, marked=False), Style()).axes[0].get_legend() is None


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (-6.59, 6.59, ["−6.59", "0", "6.59"]),
        (0, 3.56, ["0", "1", "2", "3", "3.56"]),
        (0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
    ],
)
def test_the_bar_has_no_tick_close_to_its_ends(low: float, high: float, ticks: list[str]):
    plan = replace(grid(1, 2, marked=False), norm=Normalize(low, high))
    figure = head_grid_figure(plan, Style(width=3.3))
    texts = [label.get_text() for label in figure.axes[1].get_xticklabels()]
    assert texts == ticks


def test_a_tick_marks_the_columns_of_sinks_and_no_others():
    plain, ticked = (grid(1, 2, marked=False, sinks=sinks) for sinks in (frozenset(), frozenset({0, 8})))
    (without, places), (image, _) = (drawn(head_grid_figure(plan, Style())) for plan in (plain, ticked))
    changed = (image != without).any(-1)
    left, top = places["L0H0"]
    side = (changed.nonzero()[0].min() - top) // 9 * 9
    assert changed.any()
    assert changed.nonzero()[0].min() > top + side  # below the squares
    columns = {int(x - left) // (side // 9) for x in changed.nonzero()[1] if x < left + side}
    assert columns == {0, 8}


@pytest.mark.parametrize(
    ("width", "marks", "name"), [(10, 72, "L5H11"), (4.6, 72, "H11"), (3.3, 72, "H11"), (2, 0, "H10")]
)
def test_marks_of_roles_and_their_names_in_the_legend_stand_wherever_two_marks_have_room(
    width: float, marks: int, name: str
):
    role, style = (family_of_label("coreference"), ("coref",), True), Style(width=width)
    whole = grid(6, 12, style=style, roles="On the right: roles.")
    figure = head_grid_figure(replace(whole, cells=tuple(replace(cell, right=role) for cell in whole.cells)), style)
    ax = figure.axes[0]
    drawn_marks = {line.get_label(): len(line.get_xdata()) for line in ax.lines}
    assert drawn_marks.get("coreference", 0) == marks
    assert ("coreference" in [text.get_text() for text in ax.get_legend().get_texts()]) == bool(marks)
    assert ("On the right: roles." in texts_of(figure)) == bool(marks)
    assert name in texts_of(figure)
    assert covered(figure) == []


@pytest.mark.parametrize(("kept", "packed"), [(36, True), (37, False), (71, False)])
def test_only_where_half_of_the_grid_would_be_empty_are_heads_packed(kept: int, packed: bool):
    whole = grid(6, 12)
    some = np.random.default_rng(1).permutation(72)[:kept]
    part = replace(whole, cells=tuple(cell for place, cell in enumerate(whole.cells) if place in some))
    figure = head_grid_figure(part, Style())
    assert bool(figure.axes[0].get_yticklabels()) is not packed  # the names of layers
    assert {str(cell.id) for cell in part.cells} <= set(texts_of(figure))
    assert packed == (figure.get_figheight() < 0.8 * head_grid_figure(whole, Style()).get_figheight())


@pytest.mark.parametrize(("width", "named"), [(None, (2, 4)), (3.3, (2, 3)), (7.0, (1, 5))])
def test_the_tokens_of_a_few_heads_are_named_beside_rows_and_below_columns(width: float | None, named: Any):
    tokens = ("[CLS]", "the", "cat", "that", "i", "saw", "ran", "away", "[SEP]")
    plan = grid(1, 5, labels=Labels(tokens, tuple(token[0] == "[" for token in tokens)))
    beside = head_grid_figure(plan, Style(width=width)).axes[0].child_axes
    assert len(beside) == 5
    sides = [
        [[label.get_text() for label in get()] for get in (ax.get_yticklabels, ax.get_xticklabels)] for ax in beside
    ]
    assert all(names in ([], list(tokens)) for of_head in sides for names in of_head)
    assert tuple(sum(bool(of_head[side]) for of_head in sides) for side in (0, 1)) == named
    assert beside[0].get_yticklabels()[0].get_color() != beside[0].get_yticklabels()[1].get_color()


def test_rectangles_of_few_heads_name_both_texts_and_weights_are_written_in_all_squares_or_none():
    rows, columns = Labels(("a", "b", "c"), (False,) * 3), Labels(("x", "y"), (False,) * 2)
    values = np.array([[0.25, 0.004], [1, 0], [0.5, 0.125]])
    cells = [HeadCell(HeadId(0, head), values) for head in range(2)]
    plan = replace(grid(1, 2), cells=tuple(cells), labels=rows, keys=columns)
    beside = head_grid_figure(plan, Style()).axes[0].child_axes
    assert [label.get_text() for label in beside[0].get_yticklabels()] == ["a", "b", "c"]
    for ax in beside:
        assert [label.get_text() for label in ax.get_xticklabels()] == ["x", "y"]
        written = {text.get_position()[::-1]: text.get_text() for text in ax.texts}
        assert written == {(0, 0): ".25", (1, 0): "1", (2, 0): ".50", (2, 1): ".12"}
    of_many = Labels(("a",) * 30, (False,) * 30)
    many = replace(plan, cells=(replace(cells[0], values=np.full((30, 30), 0.5)),), labels=of_many, keys=of_many)
    assert not head_grid_figure(many, Style()).axes[0].child_axes[0].texts


@pytest.mark.parametrize("width", [None, 3.3, 7.0])
def test_heads_of_encoder_decoder_and_cross_attention_have_a_row_a_layer(width: float | None):
    encoder, decoder = Stack("E", "encoder", 0, 6, 8), Stack("D", "decoder", 6, 3, 4)
    cross = replace(decoder, letter="X", name="cross-attention", first=9)
    ids = [head for stack in (encoder, decoder, cross) for head in stack.heads]
    style = Style(width=width)
    pooled = grid_pooling(9, ids, style, marked=True)
    values = max_pool(np.random.default_rng(0).random((len(ids), 9, 9)), pooled)
    cells = tuple(HeadCell(id, matrix, "sink", family_of_label("sink")) for id, matrix in zip(ids, values, strict=True))
    figure = head_grid_figure(replace(grid(1, 1), cells=cells), style)
    assert covered(figure) == []
    assert nothing_over_the_edge(figure)
    (marks,) = figure.axes[0].lines
    assert len(np.unique(np.column_stack(marks.get_data()).round(3), axis=0)) == len(ids)
    assert any(text.endswith("X2") for text in texts_of(figure))
