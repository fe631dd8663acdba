"""The text as shaded prose: what each piece receives, and how lines are broken."""

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_hex

import attnviz
from attnviz.analysis.result import Analysis
from attnviz.commands.heads.token_views import TEXT
from attnviz.figures.matrix import contrasting_ink
from attnviz.figures.style import Style
from attnviz.figures.text import Piece, TextPlan, text_lines
from attnviz.models.checkpoint import from_loaded
from attnviz.present.view import ViewOptions
from tests.support.encoder_decoders import sharp, unigram_tokenizer
from tests.support.hand_made import by_design, hand_made
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.tolerances import SUMS_32

LIGHT, DARK = Style(), Style("dark")
SENTENCE = "The cat ran away, and I saw the cat."


def plans(analysis: Analysis, *select: str, **choices: Any) -> list[TextPlan]:
    return list(TEXT.plans(analysis, ViewOptions(select=select, **choices)))


@pytest.fixture(scope="module")
def bert() -> Analysis:
    return attnviz.analyze(SENTENCE, sharp_bert(), tokenizer=bert_tokenizer(), syntax=False)


@pytest.fixture(scope="module")
def gpt2() -> Analysis:
    return attnviz.analyze(SENTENCE, sharp_gpt2(), tokenizer=gpt2_tokenizer(), syntax=False)


def test_each_piece_has_what_it_receives_and_all_of_it_adds_up(bert: Analysis, gpt2: Analysis) -> None:
    for analysis in (bert, gpt2):
        (plan,) = plans(analysis, "L1H2", "L2H0")
        content = [place for place, sink in enumerate(analysis.units.sink) if not sink]
        text = [place for place, special in enumerate(analysis.units.special) if not special]
        for block, head in zip(plan.blocks, ("L1H2", "L2H0"), strict=True):
            received = analysis.pattern(head).double()[content].mean(0).numpy()
            np.testing.assert_allclose(block.values, received[text], atol=1e-12)
    sink = bert.head("L1H2").statistics["sink"]
    assert 1 - plans(bert, "L1H2")[0].blocks[0].values.sum() == pytest.approx(sink, abs=SUMS_32)
    values = [block.values for block in plans(bert, "L0")[0].blocks + plans(bert, "L1,L2")[0].blocks]
    np.testing.assert_allclose(plans(bert)[0].blocks[0].values, np.mean(values, axis=0))  # of more than eight the mean


def test_from_one_token_it_is_its_row_and_the_token_is_framed(bert: Analysis) -> None:
    place = bert.units.labels.index("away")
    (plan,) = plans(bert, "L1H2", token="away")
    np.testing.assert_allclose(plan.blocks[0].values, bert.pattern("L1H2").double()[place, 1:-1].numpy())
    assert [plan.pieces[number].text for number in plan.framed] == ["away"]


def test_the_text_is_as_it_was_written_with_the_pieces_of_words_together() -> None:
    text = "Unbelievably, cats\nran"
    analysis = attnviz.analyze(text, sharp_bert(), tokenizer=bert_tokenizer(), syntax=False)
    (plan,) = plans(analysis, "L0H0")
    parts = ["\n" * piece.begins + " " * (piece.space and not piece.begins) + piece.text for piece in plan.pieces]
    assert "".join(parts).strip() == text
    words = attnviz.analyze(text, sharp_bert(), tokenizer=bert_tokenizer(), syntax=False, words=True)
    assert {"Unbelievably", "cats", "ran"} <= {piece.text for piece in plans(words, "L0H0")[0].pieces}
    np.testing.assert_allclose(
        plans(words, "L0H0")[0].blocks[0].values, words.pattern("L0H0").double()[1:-1].mean(0).numpy()[1:-1]
    )


def test_tokens_that_share_a_character_are_one_piece_with_the_sum() -> None:
    analysis = attnviz.analyze("a 🦄 b", sharp_gpt2(), tokenizer=gpt2_tokenizer(), syntax=False)
    (plan,) = plans(analysis, "L1H0")
    assert "".join(piece.text for piece in plan.pieces) == "a␣🦄␣b"  # this tokenizer has tokens of white space
    received = analysis.pattern("L1H0").double()[1:].mean(0).numpy()
    assert len(received) == 8
    np.testing.assert_allclose(plan.blocks[0].values, [*received[:2], received[2:6].sum(), *received[6:]])


def test_colours_are_of_one_scale_that_tells_content_apart_or_of_each_blocks_own() -> None:
    pattern = torch.full((2, 12, 12), 0.01)
    pattern[:, :, 0], pattern[1, :, 3] = 0.88, 0.04
    causal = hand_made(labels="abcdefghijkl", special=(), causal=True, patterns=pattern[None])
    (plan,) = plans(causal)
    assert (plan.norm.vmax, plan.cut) == (0.05, True)  # the first token, a sink, would leave all others white


def test_shades_on_the_page_are_the_values_and_letters_can_be_read_on_them() -> None:
    for style in (LIGHT, DARK):
        labels = ["[CLS]", *(f"word{i}" for i in range(30)), "[SEP]"]
        analysis = hand_made(labels=labels, special=(0, 31), patterns=by_design(32))
        (plan,) = plans(analysis, "L0H0,L1H1", style=style)
        figure = plan.figure(style)
        shades = next(each for each in figure.axes[0].collections if isinstance(each, PatchCollection))
        values = np.concatenate([block.values for block in plan.blocks])
        np.testing.assert_allclose(np.asarray(shades.get_array()), values)
        colours = style.colour_map()(plan.norm(values))
        words = [text for text in figure.axes[0].texts if text.get_text().startswith("word")]
        inks = [to_hex(text.get_color()) for text in words]
        assert inks == [contrasting_ink(colour) for colour in colours]


def test_lines_break_between_words_and_a_word_too_long_for_one_is_cut() -> None:
    ((cut,),) = text_lines([Piece("antidisestablishmentarianism")], 10, 50)
    assert "…" in cut.text
    assert cut.text.endswith("m")
    assert cut.width <= 50
    chinese = [Piece(character, False, True) for character in "我们喜欢猫"]
    assert len(text_lines(chinese, 10, 25)) > 1
    pieces = [Piece("one"), Piece("two"), Piece("three", False), Piece("end", begins=True)]
    lines = [[placed.text for placed in line] for line in text_lines(pieces, 10, 60)]
    assert lines == [["one"], ["two", "three"], ["end"]]


def test_right_to_left_text_runs_from_the_right_and_other_words_keep_their_order() -> None:
    hebrew = [Piece(word) for word in ["כלב", "רדף", "New", "York", "אחרי"]]
    (line,) = text_lines(hebrew, 10, 300)
    places = {placed.number: placed.x for placed in line}
    assert places[0] > places[1] > places[3] > places[2] > places[4]
    assert places[0] + line[0].width == pytest.approx(300)
    (line,) = text_lines([Piece("a"), Piece("כלב"), Piece("רדף"), Piece("b")], 10, 300)
    places = {placed.number: placed.x for placed in line}
    assert places[0] < places[2] < places[1] < places[3]


def test_encoder_decoders_have_a_picture_for_each_kind_of_attention() -> None:
    checkpoint = from_loaded(sharp("bart"), unigram_tokenizer())
    analysis = attnviz.analyze("the cat ran", checkpoint, target="a dog ran away")
    encoder, decoder, cross = plans(analysis, "E0", "D0", "X0")
    assert [plan.stem for plan in (encoder, decoder, cross)] == ["text-encoder", "text-decoder", "text-cross-attention"]
    read = ["".join(piece.text for piece in plan.pieces) for plan in (encoder, decoder, cross)]
    assert read == ["the␣catran", "adogran␣away", "the␣catran"]
    queries = [place for place, sink in enumerate(analysis.parts[2].units.sink) if not sink]
    received = analysis.pattern("X0H0").double()[queries].mean(0).numpy()
    # white space before the first letter is a token that shares its character
    np.testing.assert_allclose(cross.blocks[0].values, [received[:2].sum(), *received[2 : 1 + len(cross.pieces)]])
