"""Which font draws a character, and what stands where no font can."""

from pathlib import Path
from types import SimpleNamespace

import matplotlib
import pytest
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.ft2font import FT2Font

from attnviz.figures import fonts
from attnviz.figures.fonts import DEFAULT_FAMILY, drawable, fitted_token, font_families, text_width, wrapped
from attnviz.present.figure_context import FigureContext
from attnviz.wording import isolated

CAT = "猫"


def clear_caches():
    fonts._family_with.cache_clear()
    fonts._fallback_fonts.cache_clear()


@pytest.fixture
def fallbacks(monkeypatch):
    """A function that sets the fallback fonts for one test."""

    def use(*entries):
        monkeypatch.setattr(fonts, "_fallback_fonts", lambda: entries)
        fonts._family_with.cache_clear()

    yield use
    fonts._family_with.cache_clear()


@pytest.fixture
def installed(monkeypatch):
    """A function that sets the fonts that matplotlib knows of for one test."""

    def use(*entries):
        monkeypatch.setattr(fonts, "fontManager", SimpleNamespace(ttflist=list(entries), findfont=fontManager.findfont))
        clear_caches()

    yield use
    monkeypatch.undo()
    clear_caches()


def entry(path, name, style="normal", weight=400):
    return SimpleNamespace(fname=str(path), name=name, style=style, weight=weight)


def stix():
    return str(matplotlib.get_data_path() + "/fonts/ttf/STIXGeneral.ttf")


def only_in_stix():
    default = FT2Font(fontManager.findfont(FontProperties(family=DEFAULT_FAMILY))).get_charmap()
    return min(chr(code) for code in FT2Font(stix()).get_charmap() if code not in default and chr(code).isprintable())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"a{CAT}b🦄", "aU+732BbU+1F984"),
        ("\x1b", "U+001B"),
        ("\n", "U+000A"),
        ("\x00", "U+0000"),
        *[(text, text) for text in ("Ġthé ##ça ▁ … “x” → ✓ мир مرحبا", "")],  # which the default font has
    ],
)
def test_a_character_that_no_font_has_is_written_as_its_code_point(fallbacks, text, shown):
    fallbacks()
    assert drawable(text) == shown
    assert font_families([text]) == [DEFAULT_FAMILY]


SHALOM, END = "שלום", "\u2069"
RTL, LTR = "\u2067", "\u2066"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"##{SHALOM} cat", f"{RTL}##{SHALOM} cat{END}"),
        (f"cat {SHALOM}", f"{LTR}cat {SHALOM}{END}"),
        ("猫 thé", "猫 thé"),
    ],
)
def test_what_runs_from_right_to_left_is_isolated_from_what_stands_around_it(text, shown):
    assert isolated(text) == shown
    assert isolated(shown).strip(RTL + LTR + END) == text


def test_a_line_never_begins_from_right_to_left_so_that_png_and_svg_agree(fallbacks):
    fallbacks()
    assert drawable(f"##{SHALOM}") == drawable(drawable(f"##{SHALOM}")) == f"{RTL}##{SHALOM}{END}"
    assert drawable(f"cat {SHALOM}") == f"cat {SHALOM}"


def test_bold_slanted_emoji_mathematics_and_broken_fonts_are_no_fallbacks(installed, tmp_path):
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"not a font")
    emoji_and_mathematics = [
        entry(stix(), name) for name in ("Noto Color Emoji", "Last Resort", "STIXGeneral", "cmr10")
    ]
    installed(
        entry(broken, "Broken"),
        entry(tmp_path / "missing.ttf", "Missing"),
        entry(stix(), "Bold", weight=700),
        entry(stix(), "Slanted", style="italic"),
        *emoji_and_mathematics,
        entry(stix(), "Regular", weight="normal"),
        entry(stix(), "Good"),
        entry(stix(), "Good"),
    )
    assert [family for _, family in fonts._fallback_fonts()] == ["Good", "Regular"]


def test_the_first_fallback_in_order_of_path_wins_on_every_machine(installed, tmp_path):
    copies = [tmp_path / "a.ttf", tmp_path / "b.ttf"]
    for copy in copies:
        copy.write_bytes(Path(stix()).read_bytes())
    installed(entry(copies[1], "Second"), entry(copies[0], "First"))
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
    ("texts", "sizes", "drawn"),
    [
        (("猫猫 犬",), (), "a text of 21 tokens"),
        (("猫猫 犬", "犬"), (), "two texts of 21 tokens"),
        (("猫猫 犬", "犬"), ("4 tokens", "3 tokens"), "a text of 4 tokens → a text of 3 tokens"),
        (("cat 猫",), (), "“cat 猫” (21 tokens)"),
    ],
)
def test_a_text_in_a_script_without_a_font_is_named_by_its_size(installed, texts, sizes, drawn):
    about = FigureContext("m", texts, 21, sizes=sizes)
    made = about.caption_and_notes("Attention")
    assert about.drawn_line == drawn
    assert ("no installed font" in made["caption"]) == (drawn != about.text_line)
    assert "猫" in about.text_line
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
