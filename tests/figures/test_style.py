"""Looks: what can be chosen, and what the choice does to colours."""

import re

import numpy as np
import pytest
from matplotlib.colors import rgb_to_hsv, to_hex, to_rgb
from PIL import Image

from attnviz.errors import UsageError
from attnviz.figures.fonts import text_width
from attnviz.figures.heatmap import LEVELS, blended, palette
from attnviz.figures.matrix import contrasting_ink
from attnviz.figures.style import THEMES, Style, parse_width
from tests.support.drawn import contrasts
from tests.support.hand_made import hand_made


@pytest.mark.parametrize(
    ("text", "inches"),
    [
        ("3.3in", 3.3),
        ("3.3", 3.3),
        (" 8.4 cm ", 8.4 / 2.54),
        ("84mm", 8.4 / 2.54),
        ("240pt", 10 / 3),
        (".5in", 0.5),
        ("column", 3.3),
        (" page ", 6.9),
    ],
)
def test_a_width_is_read_in_any_unit_of_a_page(text, inches):
    assert parse_width(text) == pytest.approx(inches)


@pytest.mark.parametrize("text", ["", "in", "3,3in", "3.3 inches", "-3in", "300px", "1e3", "nan"])
def test_what_is_no_width_is_refused(text):
    for read in (parse_width, lambda width: Style(width=width)):
        with pytest.raises(UsageError):
            read(text)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("width", [1.99, 40.1, -3.0, float("nan"), float("inf"), [3], b"3in", True]),
        ("theme", ["sepia"]),
        ("scale", ["linear"]),
        ("font_size", [3.9, 41.0, float("nan"), "9pt", True]),
        ("font", ["DejaVu Sanz", "missing.ttf"]),
    ],
)
def test_what_cannot_be_chosen_is_refused(name, values):
    for value in values:
        with pytest.raises(UsageError, match=name.partition("_")[0]):
            Style(**{name: value})
    with pytest.raises(UsageError, match=r"11\.5"):  # the largest font in so narrow a figure
        Style(font_size=14.0, width=3.3)


@pytest.mark.parametrize(
    ("look", "inches"),
    [
        pytest.param({"width": 13.3}, 13.3, marks=pytest.mark.thorough),
        ({"width": 6.0, "font_size": 12.0}, 6.0),
        pytest.param({"width": 3.3}, 3.3, marks=pytest.mark.thorough),
    ],
)
def test_a_file_of_any_format_is_as_wide_as_was_asked_for(look, inches, tmp_path):
    """What is narrower at its own size is magnified with its text, whose size may be chosen."""
    hand_made().save(tmp_path, figures=["map"], formats=["png", "svg", "pdf"], **look)
    with Image.open(tmp_path / "map-entropy.png") as picture:
        width, (dpi, _) = picture.width, picture.info["dpi"]
    assert width / dpi == pytest.approx(inches, rel=0.005)
    assert dpi >= 299
    (width, across) = re.search(
        r'width="([\d.]+)pt".*? viewBox="0 0 ([\d.]+)', (tmp_path / "map-entropy.svg").read_text()
    ).groups()
    assert float(width) == pytest.approx(72 * inches, rel=0.005)
    magnified = float(width) / float(across)
    if "font_size" in look:
        assert magnified == pytest.approx(look["font_size"] / 7, rel=0.005)
    else:
        assert (magnified > 1.5) == (inches > 6)
    pdf = (tmp_path / "map-entropy.pdf").read_bytes()
    assert float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", pdf)[1]) == pytest.approx(72 * inches, rel=0.005)


def test_another_font_is_measured_and_drawn(tmp_path):
    widths = [text_width("attention", 7)]
    with Style(font="DejaVu Serif").in_font():
        widths.append(text_width("attention", 7))
    assert len({*widths, text_width("attention", 7)}) == 2
    hand_made().save(tmp_path, figures=["map"], formats=["svg"], font="dejavu serif")
    assert "DejaVu Serif" in (tmp_path / "map-entropy.svg").read_text()


@pytest.mark.parametrize("theme", THEMES)
def test_the_scale_of_a_theme_begins_at_its_paper_and_goes_one_way(theme):
    table = palette(theme)[:LEVELS].astype(int)
    assert to_hex(table[0] / 255) == Style(theme).paper
    steps = np.diff(table[:: 1 if theme == "light" else 5].sum(1))  # rounding may hold a step of the dark one back
    assert (steps < 0).all() if theme == "light" else (steps > 0).all()
    assert abs(table[-1].sum() - table[0].sum()) > 500


@pytest.mark.parametrize("theme", THEMES)
def test_small_weights_differ_from_the_paper_and_numbers_from_every_step_of_the_scale(theme):
    colours = Style(theme).colour_map()([0.05, 0.1])[:, :3]
    assert (contrasts(colours, np.array([to_rgb(Style(theme).paper)] * 2)) >= (1.08, 1.15)).all()

    colours = palette(theme)[:LEVELS] / 255
    inks = np.array([to_rgb(contrasting_ink(colour)) for colour in colours])
    assert contrasts(colours, inks).min() >= 4.5
    written = palette(theme)[[blended(level, theme)[-1] for level in range(LEVELS)]] / 255
    assert contrasts(colours, written).min() >= 4.5


@pytest.mark.parametrize(
    ("scale", "places"), [("shared", [0, 0.2, 0.4]), ("per-head", [0, 0.5, 1]), ("log", [0, 0.8253, 0.9005])]
)
def test_the_norm_of_each_scale(scale, places):
    assert list(Style(scale=scale).norm(0.4)([1e-5, 0.2, 0.4])) == pytest.approx(places, abs=1e-4)
    assert Style(scale=scale).norm(0.0).vmax == 1.0  # a head without any weight


@pytest.mark.parametrize("theme", THEMES)
def test_no_signed_number_has_a_colour_of_weights(theme: str) -> None:
    every = np.arange(256)
    weights = rgb_to_hsv(Style(theme).colour_map()(every)[:, :3])
    signed = rgb_to_hsv(Style(theme).diverging_map()(every)[:, :3])
    hues = [colours[colours[:, 1] > 0.1, 0] for colours in (weights, signed)]  # greys and the paper have none
    apart = np.abs(hues[0][:, None] - hues[1])
    assert 360 * np.minimum(apart, 1 - apart).min() > 20
