"""The heatmap of one head: on a page, on the caller's Axes, and the fast files of many."""

import io
import re
import threading
from collections.abc import Iterator
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from attnviz.figures.heatmap import HeatmapPlan, heatmap_files, heatmap_pooling
from attnviz.figures.matrix import Labels, max_pool
from attnviz.figures.style import Style, figure_bytes
from tests.support.drawn import ODD_SETTINGS

STYLES = [Style(), Style(width=3.3), Style("dark", "log", 4.5)]
EVIDENCE = "previous-token 0.{} · uniform attention 0.12 · n = 6"


def plan(n: int = 9, style: Style | None = None, seed: int = 0, **more: Any) -> HeatmapPlan:
    style = style or Style()
    labels = more.pop("labels", ["[CLS]", *(f"token{place}" for place in range(1, n))])
    pooled, _ = heatmap_pooling(labels, style)
    weights = np.random.default_rng(seed).dirichlet(np.full(n, 0.2), n).astype(np.float32)
    said = {"stem": f"heads/{seed}", "caption": f"Head {seed}.", "title": f"L0H{seed}  previous-token"}
    said |= {"evidence": EVIDENCE.format(50 + seed), "notes": ("a note",), "bar": "attention weight"}
    shown = {"values": max_pool(weights, pooled), "norm": style.norm(), "bar_norm": style.norm(), "pooled": pooled}
    given = {**said, **shown, "labels": Labels(tuple(labels), tuple(label == "[CLS]" for label in labels))}
    return HeatmapPlan(**(given | more))


def files(plans: Any, style: Style | None = None, file_format: str = "png") -> list[bytes]:
    return [content for _, content, _ in heatmap_files(plans, style or Style(), file_format)]


def picture(content: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(np.int16)


def cells_of(content: bytes, box: Any, m: int, style: Style) -> Any:
    """The colour of each of m × m cells near its upper left corner, found by the box of the matplotlib figure."""
    scale, pixels = 1 if style.width is None else 2, picture(content)
    x, y, cell = round(box.x0 * scale), round(len(pixels) - box.y1 * scale), round(box.width * scale / m)
    assert box.width * scale / m == pytest.approx(cell)
    assert box.height == pytest.approx(box.width)
    corners = np.arange(m) * cell + min(2, cell // 2)
    return pixels[y + corners][:, x + corners]


@pytest.mark.parametrize(
    ("n", "style"),
    [
        (2, STYLES[0]),
        (9, STYLES[1]),
        pytest.param(50, STYLES[2], marks=pytest.mark.thorough),
        pytest.param(300, STYLES[1], marks=pytest.mark.thorough),
    ],
)
def test_both_ways_paint_every_cell_in_the_colour_of_its_weight_and_the_same_letters(n: int, style: Style):
    of = plan(n, style)
    figure = of.figure(style)
    box = figure.axes[0].get_window_extent().frozen()  # saving changes it
    slow, (fast,) = figure_bytes(figure, "png", style), files([of], style)
    colours = style.colour_map()(of.norm(of.values), bytes=True)[..., :3].astype(int)
    for content in (slow, fast):
        inner = slice(None) if n < 10 else slice(2, -2)  # matplotlib's frame is on the outermost pixels
        difference = np.abs(cells_of(content, box, len(of.values), style) - colours)[inner, inner]
        assert difference.max() <= 10  # 176 steps of 256, the first of which is paper
    assert len(fast) < len(slow)
    assert np.abs(picture(slow) - picture(fast)).mean() < 2  # letters are a pixel aside at most


@pytest.mark.parametrize("file_format", ["png", "svg"])
def test_a_file_is_the_same_whatever_was_written_before_it(file_format: str):
    heads = [plan(6, seed=0), plan(6, seed=1, title="L0H1  x", evidence="much longer: " + EVIDENCE * 3)]
    names, together, _ = zip(*heatmap_files(heads, Style(), file_format), strict=True)
    assert names == (f"heads/0.{file_format}", f"heads/1.{file_format}")
    assert together[0] != together[1]
    assert files(heads[:1], file_format=file_format) == [together[0]]
    with matplotlib.rc_context(ODD_SETTINGS):  # of a user, which matter as little
        assert files(heads[1:], file_format=file_format) == [together[1]]


def shown_in(svg: str, cells: str) -> tuple[list[Any], dict[Any, str]]:
    """The texts of an SVG with their places, and the colours of its group of cells by their upper left corners."""
    texts = re.findall(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)<', svg)
    paths = re.findall(r'<path d="([^"]+)"[^>]*fill[=:] ?"?(#\w+)', svg[svg.index(cells) :].partition("</g>")[0])
    corners = [(corner, colour) for path, colour in paths for corner in re.findall(r"M ?([\d.]+) ([\d.]+)", path)]
    colours = {(round(float(x), 1), round(float(y), 1)): colour for (x, y), colour in corners}
    return sorted((text, round(float(x), 2), round(float(y), 2)) for x, y, text in texts), colours


@pytest.mark.parametrize("style", [Style(), Style("dark", width=3.3, font_size=9)])
def test_an_svg_that_is_filled_shows_what_a_new_figure_shows(style: Style):
    heads = [plan(6, style, seed) for seed in (0, 1)]
    heads[1].values[0, 1:] = np.nan
    _, filled = (content.decode() for content in files(heads, style, "svg"))
    new = figure_bytes(heads[1].figure(style.for_file("svg")), "svg", style).decode()
    texts, cells = shown_in(filled, '<g stroke-width="0.1">')
    assert (texts, cells) == shown_in(new, '<g id="QuadMesh_1">')
    assert len(cells) == 31
    assert {text for text, *_ in texts} > {".02", heads[1].title}


def test_closing_early_and_errors_end_the_threads():
    before = threading.active_count()
    some = heatmap_files((plan(seed=seed) for seed in range(9)), Style(), "png")
    next(some)
    some.close()  # type: ignore[attr-defined]

    def broken() -> Iterator[HeatmapPlan]:
        yield plan()
        raise ValueError("a broken plan")

    with pytest.raises(ValueError, match="a broken plan"):
        list(heatmap_files(broken(), Style(), "png"))
    assert threading.active_count() == before
    assert files([]) == []


def test_on_the_callers_axes_numbers_stand_where_cells_have_room_and_rows_are_queries():
    values = np.array([[0.25, 0.75], [1.0, 0.0]], dtype=np.float32)
    of = plan(2, values=values)
    figure = Figure(figsize=(6, 3))
    mine, small = figure.add_axes((0.2, 0.2, 0.3, 0.6)), figure.add_axes((0.7, 0.4, 0.03, 0.06))
    cells = of.draw(mine, Style())
    assert [(text.get_text(), text.get_position()) for text in mine.texts] == [
        (".25", (0, 0)), (".75", (1, 0)), ("1", (0, 1)),
    ]  # fmt: skip
    np.testing.assert_array_equal(np.asarray(cells.get_array()).reshape(2, 2), values)
    of.draw(small, Style())
    assert not small.texts
