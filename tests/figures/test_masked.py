"""Cells that a mask forbids are hatched, and no others: a weight of zero looks otherwise."""

import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import Image

import attnviz
from attnviz.figures.style import Style, figure_bytes
from attnviz.present.view import ViewOptions
from tests.figures import test_pooling
from tests.support.drawn import drawing_of, pixels_of
from tests.support.encoder_decoders import SOURCE, TARGET, sharp, unigram_tokenizer
from tests.support.llamas import WINDOW, sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

TEXT = "the cat that i saw ran away"
GPT2: dict[str, Any] = {"tokenizer": gpt2_tokenizer()}
LLAMA: dict[str, Any] = {"tokenizer": sentencepiece_tokenizer()}


def forbidden(n: int, window: int | None, causal: bool = True) -> Any:
    """By the definition, pair by pair."""
    pairs = [[(causal and key > query) or abs(query - key) >= (window or n) for key in range(n)] for query in range(n)]
    return np.array(pairs)


windowed = cache(test_pooling.windowed)


@cache
def gpt2() -> Any:
    return attnviz.analyze(TEXT, sharp_gpt2(), syntax=False, **GPT2)


def bert() -> Any:
    return attnviz.analyze(TEXT, sharp_bert(), tokenizer=bert_tokenizer(), syntax=False)


def of_window(layer: int) -> int | None:
    return windowed().checkpoint.windows[layer]


RESULTS: dict[str, tuple[Callable[[], Any], Callable[[int], int | None], bool]] = {
    "causal": (gpt2, lambda _: None, True),
    "windows": (windowed, of_window, True),
    "every pair": (bert, lambda _: None, False),
    "compare": (lambda: attnviz.compare(gpt2(), gpt2()), lambda _: None, True),
    "compare windows": (lambda: attnviz.compare(windowed(), windowed()), of_window, True),
    "outputs": (lambda: attnviz.head_outputs(TEXT, sharp_gpt2(), **GPT2), lambda _: None, True),
    "outputs windows": (lambda: attnviz.head_outputs(TEXT, sharp_llama("gemma2"), **LLAMA), of_window, True),
}
VIEWS = {"heads": ("overview", "heads"), "compare": ("overview", "differences"), "outputs": ("overview", "heads")}


def test_the_model_with_windows_has_some_that_hide_keys_of_this_text() -> None:
    windows = {of_window(layer) for layer in range(windowed().checkpoint.n_layers)}
    assert windows == {WINDOW, None}
    assert len(windowed().units) > WINDOW


@pytest.mark.parametrize("name", RESULTS)
def test_a_cell_of_a_head_is_hatched_where_the_mask_forbids_it(name: str) -> None:
    make, window, causal = RESULTS[name]
    result = make()
    overview, heads = (drawing_of(result.command, view) for view in VIEWS[result.command])
    (grid,) = overview.plans(result, ViewOptions())
    values = {cell.id: [cell.values] for cell in grid.cells}
    plans = list(heads.plans(result, ViewOptions(top=99)))
    by_stem = {head.file_stem: of_head for head, of_head in values.items()}
    for plan in plans:
        shown = plan.tiles[0].values if hasattr(plan, "tiles") else plan.values
        by_stem[plan.stem.rpartition("/")[2]].append(shown)
    assert {len(of_head) for of_head in values.values()} == {2}
    for head, of_head in values.items():
        n = len(of_head[0])
        for cells in of_head:
            np.testing.assert_array_equal(np.isnan(cells), forbidden(n, window(head.layer), causal))
    said = ["hatched" in plan.caption for plan in (grid, *plans)]
    assert said[0] is causal
    assert any(said) is causal


def test_means_are_hatched_where_no_head_may_attend_and_special_tokens_and_pooling_follow() -> None:
    (plan,) = drawing_of("heads", "mean").plans(windowed(), ViewOptions())
    n, windows = len(windowed().units), windowed().checkpoint.windows
    for tile, window in zip(plan.tiles, (*windows, None), strict=True):
        np.testing.assert_array_equal(np.isnan(tile.values), forbidden(n, window))
    (grid,) = drawing_of("heads", "overview").plans(gpt2(), ViewOptions(drop_special=True))
    kept = np.flatnonzero(~np.array(gpt2().units.sink))
    np.testing.assert_array_equal(np.isnan(grid.cells[0].values), forbidden(len(gpt2().units), None)[kept][:, kept])
    (of_cross,) = drawing_of("heads", "overview").plans(test_pooling.translated().analysis, ViewOptions(select=("X",)))
    assert not any(np.isnan(cell.values).any() for cell in of_cross.cells)


def test_of_an_encoder_decoder_the_decoder_alone_hides_what_comes_later() -> None:
    tokenizer = unigram_tokenizer()
    options: dict[str, Any] = {"tokenizer": tokenizer, "target": TARGET}
    model = sharp("t5", len(tokenizer))
    for result in (
        attnviz.analyze(SOURCE, model, syntax=False, **options),
        attnviz.head_outputs(SOURCE, model, **options),
    ):
        (grid,) = drawing_of(result.command, "overview").plans(result, ViewOptions())
        assert {(str(cell.id)[0], bool(np.isnan(cell.values).any())) for cell in grid.cells} == {
            ("E", False),
            ("D", True),
            ("X", False),
        }


@pytest.mark.parametrize("file_format", ["svg", "pdf"])
def test_vector_files_hatch_by_a_pattern_and_are_hardly_larger(file_format: str) -> None:
    drawing, style = drawing_of("heads", "heads"), Style()
    plan = next(drawing.plans(gpt2(), ViewOptions()))
    plain = replace(plan, values=np.nan_to_num(plan.values))
    style = style.for_file(file_format)
    hatched, other = (figure_bytes(each.figure(style), file_format, style) for each in (plan, plain))
    pattern = {"svg": b"<pattern", "pdf": b"/PatternType 1"}[file_format]
    assert (pattern in hatched, pattern in other) == (True, False)
    assert len(hatched) < 1.1 * len(other)


@pytest.mark.parametrize("residual", [0.5, 1.0])
def test_of_a_rollout_what_no_layer_passes_on_is_hatched(residual: float) -> None:
    result = attnviz.rollout(TEXT, sharp_llama("gemma2"), residual=residual, **LLAMA)
    (plan,) = drawing_of("rollout", "rollout").plans(result, ViewOptions())
    n, last = len(result.units), result.checkpoint.windows[-1]
    attention, *rolled = (np.isnan(tile.values) for tile in plan.tiles)
    np.testing.assert_array_equal(attention, forbidden(n, last))
    for cells in rolled:
        assert cells[np.triu_indices(n, 1)].all()
        assert residual == 1 or not cells[np.tril_indices(n)].any()


def colours(pixels: Any, box: Any, n: int, row: int, column: int) -> set[tuple[int, ...]]:
    """Of the inside of one of n × n cells in a box of a figure."""
    cell = box.width / n
    y, x = round(len(pixels) - box.y1 + (row + 0.15) * cell), round(box.x0 + (column + 0.15) * cell)
    inside = pixels[y : y + round(0.7 * cell), x : x + round(0.7 * cell)]
    return set(map(tuple, inside.reshape(-1, 3).tolist()))


def pixels_of_file(content: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", ["overview", "heads", "mean", "file of heads"])
def test_what_is_forbidden_does_not_look_like_a_weight_of_zero(view: str, theme: str) -> None:
    n = 6
    weights = np.zeros((1, 2, n, n), np.float32)
    weights[..., 0] = 1
    result, choices = attnviz.draw(weights, list("abcdef")), ViewOptions(style=Style(theme), select=("L0H0",))
    drawing = drawing_of("heads", view.removeprefix("file of "))
    figure = next(drawing.plans(result, choices)).figure(choices.style)
    pixels, box = pixels_of(figure), figure.axes[0].get_window_extent()
    if view == "file of heads":
        pixels = pixels_of_file(next(drawing.files(result, choices, "png"))[1])
    if view == "overview":
        (square,) = figure.axes[0].child_axes
        box = square.get_window_extent()
    assert colours(pixels, box, n, 4, 2) == {tuple(round(255 * part) for part in figure.get_facecolor()[:3])}
    hatched = colours(pixels, box, n, 1, 4)
    assert len(hatched) > 1
    assert all(max(colour) - min(colour) <= 3 for colour in hatched)  # greys


def test_heads_with_and_without_a_window_are_written_by_the_same_page() -> None:
    result, drawing, n = windowed(), drawing_of("heads", "heads"), len(windowed().units)
    plans = list(drawing.plans(result, ViewOptions()))
    box = plans[0].figure(Style()).axes[0].get_window_extent()
    for plan, (_, content, _) in zip(plans, drawing.files(result, ViewOptions(), "png"), strict=True):
        beyond = np.isnan(plan.values[-1, 1])
        written = plan.values[-1, 1] >= 0.005
        assert (len(colours(pixels_of_file(content), box, n, n - 1, 1)) > 1) == (beyond or written)
