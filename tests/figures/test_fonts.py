"""Which font draws a character, and what stands where no font can."""

from pathlib import Path
from types import SimpleNamespace

import matplotlib
import pytest
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.ft2font import FT2Font

from attnviz.figures import fonts
from attnviz.figures.fonts import drawable, fitted_token, font_families, text_width, wrapped
from attnviz.figures.style import DEFAULT_FAMILY
from attnviz.present.figure_context import FigureContext
from attnviz.wording import isolated


def clear_caches():
    fonts._family_with.cache_clear()
    fonts._fallback_fonts.cache_clear()


@pytest.fixture
def installed(monkeypatch):
    """A function that sets the fonts that matplotlib knows of for one test."""

    def use(*entries):
        monkeypatch.setattr(fonts, "fontManager", SimpleNamespace(ttflist=list(entries), findfont=fontManager.findfont))
        clear_caches()

    yield use
    monkeypatch.undo()
    clear_caches()


STIX = matplotlib.get_data_path() + "/fonts/ttf/STIXGeneral.ttf"


def entry(name, path=STIX, style="normal", weight=400):
    return SimpleNamespace(fname=str(path), name=name, style=style, weight=weight)


def only_in_stix():
    default = FT2Font(fontManager.findfont(FontProperties(family=DEFAULT_FAMILY))).get_charmap()
    return min(chr(code) for code in FT2Font(STIX).get_charmap() if code not in default and chr(code).isprintable())


SHALOM, END = "שלום", "\u2069"
RTL, LTR = "\u2067", "\u2066"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a猫b🦄", "aU+732BbU+1F984"),
        ("\x1b\n\x00", "U+001BU+000AU+0000"),
        (f"##{SHALOM}", f"{RTL}##{SHALOM}{END}"),  # no line begins from right to left: PNG and SVG agree
        *[(text, text) for text in ("Ġthé ##ça ▁ … “x” → ✓ мир مرحبا", f"cat {SHALOM}", "")],
    ],
)
def test_a_character_that_no_font_has_is_written_as_its_code_point(installed, text, shown):
    installed()
    assert drawable(text) == drawable(drawable(text)) == shown
    assert font_families([text]) == [DEFAULT_FAMILY]


@pytest.mark.parametrize(
    ("text", "shown"),
    [(f"##{SHALOM} cat", f"{RTL}##{SHALOM} cat{END}"), (f"a {SHALOM}", f"{LTR}a {SHALOM}{END}"), ("猫 thé", "猫 thé")],
)
def test_what_runs_from_right_to_left_is_isolated_from_what_stands_around_it(text, shown):
    assert isolated(text) == shown


def test_bold_slanted_emoji_mathematics_and_broken_fonts_are_no_fallbacks(installed, tmp_path):
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"not a font")
    unfit = [entry(name) for name in ("Noto Color Emoji", "Last Resort", "STIXGeneral", "cmr10")]
    unfit += [entry("Broken", broken), entry("Missing", tmp_path / "missing.ttf")]
    unfit += [entry("Bold", weight=700), entry("Slanted", style="italic")]
    installed(*unfit)
    assert font_families([only_in_stix()]) == [DEFAULT_FAMILY]
    installed(*unfit, entry("Regular", weight="normal"), entry("Good"), entry("Good"))
    assert font_families([only_in_stix()]) == [DEFAULT_FAMILY, "Good"]


def test_the_first_fallback_in_order_of_path_wins_on_every_machine(installed, tmp_path):
    copies = [tmp_path / "a.ttf", tmp_path / "b.ttf"]
    for copy in copies:
        copy.write_bytes(Path(STIX).read_bytes())
    installed(entry("Second", copies[1]), entry("First", copies[0]))
    assert font_families([only_in_stix()]) == [DEFAULT_FAMILY, "First"]


@pytest.mark.parametrize("pixels", [60, 140])
def test_tokens_that_begin_alike_are_told_apart_by_their_ends(pixels: int):
    one, other = (fitted_token(f"electroencephalograph{end}", 8, pixels) for end in ("ically", "ers"))
    assert (one[0], one[-1], other[-1]) == ("e", "y", "s")
    assert max(text_width(shown, 8) for shown in (one, other)) <= pixels
    assert fitted_token("graph", 8, 140) == "graph"


def test_no_line_ends_in_an_equation():
    text = "nearest: 3 of 7 · 0.74 of 0.35 · 37 % of uniform attention 0.07 · n = 12 · 5 × 4 weights, n = 1,190"
    for pixels in range(150, 900, 50):
        lines = wrapped(text, 7, pixels)
        assert " ".join(lines) == text
        assert not any(line.endswith((" n", "=", "3", "3 of", "0.74 of", "37", "×")) for line in lines[:-1])


@pytest.mark.parametrize(
    ("texts", "drawn"),
    [
        (("猫猫 犬",), "a text of 21 tokens"),
        (("猫猫 犬", "犬"), "two texts of 21 tokens"),
        (("cat 猫",), "“cat 猫” (21 tokens)"),
    ],
)
def test_a_text_in_a_script_without_a_font_is_named_by_its_size(installed, texts, drawn):
    installed()
    about = FigureContext("m", texts, 21)
    about.caption_and_notes("Attention")
    assert (about.drawn_line, "猫" in about.text_line) == (drawn, True)
    assert bool(fonts.fonts_to_install()) == (drawn != about.text_line)


def test_what_no_font_has_is_named_once_with_the_fonts_to_install(installed):
    installed()
    fonts.fonts_to_install()
    assert fonts.drawable("猫 𐎠 cat \ue000") == "U+732B U+103A0 cat U+E000"
    message = fonts.fonts_to_install()
    assert "OLD PERSIAN SIGN A" in message
    assert "fonts-noto-cjk" in message
    fonts.drawable("\ue000")  # for private use: no font is the one
    assert fonts.fonts_to_install() == ""
