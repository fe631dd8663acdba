"""The grid of many heads: every square shows its matrix, and every text has room."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attnviz.errors import UsageError
from attnviz.figures.families import FAMILIES, family_of_label
from attnviz.figures.head_grid import HeadCell, HeadGridPlan, grid_pooling
from attnviz.figures.matrix import Labels, max_pool
from attnviz.figures.style import Style
from attnviz.models.head_ids import HeadId, Stack
from tests.support.drawn import legible, pixels_of

LABELS = ["previous-token", "unnamed", "syntactic:nsubj:pass", "sink", "duplicate-token", "broad", "local"]


def grid(
    layers: int, heads: int, n: int = 9, style: Style | None = None, *, marked: bool = True, **more: Any
) -> HeadGridPlan:
    ids = [HeadId(layer, head) for layer in range(layers) for head in range(heads)]
    pooled, _ = grid_pooling(n, ids, style or Style(), marked=marked)
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


@pytest.mark.parametrize("n", [2, 9, 120])
def test_every_square_holds_its_matrix_in_equal_cells(n: int):
    plan, style = grid(2, 3, n, marked=False), Style()
    plan = replace(plan, cells=tuple(replace(cell, beside="") for cell in plan.cells))
    image, places = drawn(plan.figure(style))
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
    figure = grid(2, 3, 120, marked=False).figure(Style())
    image, places = drawn(figure)
    left, top = places["L1H2"]
    square, page = image[top : top + 120, left : left + 120], pixels_of(figure)
    box = figure.axes[0].get_window_extent()
    x, y = round(box.x0) + left, round(len(page) - box.y1) + top
    np.testing.assert_array_equal(page[y : y + 120, x : x + 120], square)


def test_what_is_missing_is_hatched():
    plan = grid(1, 1, 3, marked=False)
    plan.cells[0].values[0, 2] = np.nan
    figure = plan.figure(Style(theme="dark"))
    _, places = drawn(figure)
    left, top = places["L0H0"]
    assert figure.axes[0].images[0].get_array()[top + 5, left + 200 : left + 240, 3].max() == 0
    box = figure.axes[0].get_window_extent()
    x, y = round(box.x0) + left, round(figure.bbox.height - box.y1) + top
    assert len(np.unique(pixels_of(figure)[y + 5, x + 200 : x + 235])) > 1


def test_a_width_too_small_for_the_heads_is_refused_with_the_least():
    with pytest.raises(UsageError, match=r"2\.6"):
        grid(1, 32, style=Style(width=2.0))
    assert grid(1, 32, style=Style(width=2.6)).cells


def test_heads_bear_the_mark_of_their_family_and_the_legend_names_those_that_occur():
    plan = grid(2, 4)
    ax = plan.figure(Style()).axes[0]
    families = [family for family in FAMILIES if family in {cell.family for cell in plan.cells}]
    assert [line.get_marker() for line in ax.lines] == [family.marker for family in families]
    assert [len(line.get_xdata()) for line in ax.lines] == [
        sum(cell.family == family for cell in plan.cells) for family in families
    ]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [family.name for family in families]
    assert grid(2, 4, marked=False).figure(Style()).axes[0].get_legend() is None


def test_a_tick_marks_the_columns_of_sinks_and_no_others():
    plain = grid(1, 2, marked=False)
    ticked = replace(plain, cells=tuple(replace(cell, sinks=frozenset({0, 8})) for cell in plain.cells))
    (without, places), (image, _) = (drawn(plan.figure(Style())) for plan in (plain, ticked))
    changed = (image != without).any(-1)
    left, top = places["L0H0"]
    side = (changed.nonzero()[0].min() - top) // 9 * 9
    assert changed.any()
    assert changed.nonzero()[0].min() > top + side  # below the squares
    columns = {int(x - left) // (side // 9) for x in changed.nonzero()[1] if x < left + side}
    assert columns == {0, 8}


def test_rectangles_of_few_heads_name_both_texts_and_weights_are_written_in_all_squares_or_none():
    rows, columns = Labels(("a", "b", "c"), (False,) * 3), Labels(("x", "y"), (False,) * 2)
    values = np.array([[0.25, 0.004], [1, 0], [0.5, 0.125]])
    cells = [HeadCell(HeadId(0, head), values) for head in range(2)]
    plan = replace(grid(1, 2), cells=tuple(cells), labels=rows, keys=columns)
    beside = plan.figure(Style()).axes[0].child_axes
    assert [label.get_text() for label in beside[0].get_yticklabels()] == ["a", "b", "c"]
    for ax in beside:
        assert [label.get_text() for label in ax.get_xticklabels()] == ["x", "y"]
        written = {text.get_position()[::-1]: text.get_text() for text in ax.texts}
        assert written == {(0, 0): ".25", (1, 0): "1", (2, 0): ".50", (2, 1): ".12"}


LARGE: dict[str, tuple[list[HeadId], Style]] = {
    "blocks side by side": ([HeadId(layer, head) for layer in range(30) for head in range(6)], Style())
}
_ENCODER, _DECODER = Stack("E", "encoder", 0, 6, 8), Stack("D", "decoder", 6, 3, 4)
_CROSS = replace(_DECODER, letter="X", name="cross-attention", first=9)
LARGE["stacks"] = [head for stack in (_ENCODER, _DECODER, _CROSS) for head in stack.heads], Style(width=3.3)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LARGE)
def test_large_grids_are_legible_and_name_every_head(name: str):
    ids, style = LARGE[name]
    pooled, _ = grid_pooling(9, ids, style, marked=True)
    values = max_pool(np.random.default_rng(0).random((len(ids), 9, 9)), pooled)
    role = family_of_label("coreference"), ("coref",), True
    cells = tuple(
        HeadCell(id, matrix, "sink", family_of_label("sink"), right=role)
        for id, matrix in zip(ids, values, strict=True)
    )
    figure = replace(grid(1, 1), cells=cells, roles="On the right: roles.").figure(style)
    assert legible(figure)
    (marks, *_) = figure.axes[0].lines
    assert len(np.unique(np.column_stack(marks.get_data()).round(3), axis=0)) == len(ids)
