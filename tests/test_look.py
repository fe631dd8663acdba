"""Looks: what can be chosen, and what the choice does to colours."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from attnviz.errors import UsageError
from attnviz.figures.indexed import LEVELS, palette
from attnviz.figures.look import PLAIN, SCALES, THEMES, Look, parse_width
from attnviz.figures.matrix import contrasting_ink


@pytest.mark.parametrize(
    ("text", "inches"),
    [("3.3in", 3.3), ("3.3", 3.3), (" 8.4 cm ", 8.4 / 2.54), ("84mm", 8.4 / 2.54), ("240pt", 10 / 3), (".5in", 0.5)],
)
def test_a_width_is_read_in_any_unit_of_a_page(text, inches):
    assert parse_width(text) == pytest.approx(inches)


@pytest.mark.parametrize("text", ["", "in", "3,3in", "3.3 inches", "-3in", "300px", "1e3", "nan"])
def test_what_is_no_width_is_refused(text):
    with pytest.raises(UsageError, match=r"expected a width such as 3\.3in, 8\.4cm, 84mm or 240pt, found"):
        parse_width(text)


@pytest.mark.parametrize("width", [0.0, 1.99, 40.1, -3.0, float("nan"), float("inf")])
def test_a_width_that_no_page_has_is_refused(width):
    with pytest.raises(UsageError, match="expected a width of 2 to 40 inches"):
        Look(width=width)


@pytest.mark.parametrize("width", [[3], b"3in", True, (3, 4), {}])
def test_what_is_no_number_is_no_width(width):
    with pytest.raises(UsageError, match="expected a width in inches, or a text such as '84mm', found"):
        Look(width=width)


def test_unknown_themes_and_scales_are_refused_with_those_that_exist():
    with pytest.raises(UsageError, match="unknown theme 'sepia': expected one of light, dark"):
        Look(theme="sepia")
    with pytest.raises(UsageError, match="unknown scale 'linear': expected one of shared, per-head, log"):
        Look(scale="linear")


def test_the_plain_look_is_light_shared_and_as_wide_as_it_needs():
    assert Look("light", "shared", None) == PLAIN


@pytest.mark.parametrize("theme", THEMES)
def test_the_greys_of_a_theme_are_greys_and_text_is_readable(theme):
    greys = Look(theme).greys
    for grey in (greys.paper, greys.ink, greys.quiet, greys.frame):
        assert len(set(to_rgb(grey))) == 1
    assert abs(to_rgb(greys.paper)[0] - to_rgb(greys.ink)[0]) > 0.7
    assert abs(to_rgb(greys.paper)[0] - to_rgb(greys.quiet)[0]) > 0.4


@pytest.mark.parametrize("theme", THEMES)
def test_the_scale_of_a_theme_begins_at_its_paper_and_goes_one_way(theme):
    table = palette(theme)[:LEVELS].astype(int)
    assert to_hex(table[0] / 255) == THEMES[theme].paper
    steps = np.diff(table[:: 1 if theme == "light" else 5].sum(1))  # rounding may hold a step of the dark one back
    assert (steps < 0).all() if theme == "light" else (steps > 0).all()
    assert abs(table[-1].sum() - table[0].sum()) > 500


@pytest.mark.parametrize("theme", THEMES)
def test_the_maps_of_a_look_begin_at_paper_or_have_it_in_the_middle(theme):
    look = Look(theme)
    assert to_hex(look.colour_map()(0.0)) == THEMES[theme].paper
    less, none, more = (np.array(look.diverging_map()(place)[:3]) for place in (0.0, 0.5, 1.0))
    assert np.allclose(none, to_rgb(THEMES[theme].paper), atol=0.02)
    assert less[2] > less[0]  # blue
    assert more[0] > more[2]  # orange


@pytest.mark.parametrize("theme", THEMES)
def test_numbers_contrast_with_every_step_of_the_scale(theme):
    def luminance(colour):
        channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return sum(weight * channel for weight, channel in zip((0.2126, 0.7152, 0.0722), channels, strict=True))

    for level in range(LEVELS):
        colour = palette(theme)[level] / 255
        pair = [luminance(to_rgb(contrasting_ink(colour))), luminance(colour)]
        assert (max(pair) + 0.05) / (min(pair) + 0.05) >= 3.0


@pytest.mark.parametrize(
    ("scale", "places"), [("shared", [0, 0.2, 0.4]), ("per-head", [0, 0.5, 1]), ("log", [0, 0.8253, 0.9005])]
)
def test_the_norm_of_each_scale(scale, places):
    assert list(Look(scale=scale).norm(0.4)([1e-5, 0.2, 0.4])) == pytest.approx(places, abs=1e-4)


def test_a_head_without_any_weight_has_a_norm():
    assert Look(scale="per-head").norm(0.0).vmax == 1.0


def test_scales_are_described_in_words():
    assert [Look(scale=scale).describe() for scale in SCALES] == [
        "attention weight",
        "attention weight (scale of this head)",
        "attention weight (log scale)",
    ]


def test_a_width_may_be_given_as_on_the_command_line():
    assert Look(width="84mm").width == pytest.approx(84 / 25.4)
    with pytest.raises(UsageError, match=r"expected a width such as 3\.3in"):
        Look(width="wide")


def test_a_look_is_made_anew_copied_and_not_changed():
    look = replace(Look(width="84mm"), theme="dark")
    assert (look.theme, look.width) == ("dark", pytest.approx(84 / 25.4))
    assert look == Look("dark", "shared", look.width)
    assert hash(look) == hash(Look("dark", "shared", look.width))
    with pytest.raises(FrozenInstanceError):
        look.theme = "light"
