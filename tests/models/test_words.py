"""Words are what stands between spaces, punctuation apart, and one rule names a token in every command."""

import pytest

import attnviz
from attnviz.errors import UsageError
from attnviz.models.tokens import Positions, find_positions, merge_subwords
from attnviz.models.words import word_spans
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't know.", ["I", "don't", "know", "."]),
        ("a well-known fact", ["a", "well-known", "fact"]),
        ("“Yes,” she said…", ["“", "Yes", ",", "”", "she", "said", "…"]),
        ("wait... what?!", ["wait", "...", "what", "?", "!"]),
        ("this—that 3.14 e.g. 'tis", ["this", "—", "that", "3.14", "e.g", ".", "'", "tis"]),
        ("हिन्दी में", ["हिन्दी", "में"]),  # vowel signs are marks, no letters
        ("สวัสดีครับ ผม", ["สวัสดีครับ", "ผม"]),
        ("我喜欢 cats", ["我", "喜", "欢", "cats"]),
        ("ねこ カタカナ", ["ね", "こ", "カタカナ"]),
        ("한국어 말", ["한국어", "말"]),
        ("café naïve", ["café", "naïve"]),
        ("👍🏽 $5", ["👍🏽", "$", "5"]),
        (" \t\n", []),
        ("", []),
    ],
)
def test_words_stand_between_spaces_with_punctuation_apart(text: str, words: list[str]):
    assert [text[start:end] for start, end in word_spans(text)] == words


@pytest.mark.parametrize("make", [bert_tokenizer, gpt2_tokenizer])
@pytest.mark.parametrize("text", ["the cat don't know", "हिन्दी में", "well-known cat", "สวัสดีครับ"])
def test_merged_words_are_the_texts_own(make: object, text: str):
    """GPT-2's pre-tokenizer splits at apostrophes and hyphens, and takes marks for punctuation.

    The first token, a sink, is in no word.
    """
    model = sharp_bert() if make is bert_tokenizer else sharp_gpt2()
    found = attnviz.analyze(f"a {text}", model, tokenizer=make(), words=True).units  # type: ignore[operator]
    of_text = [label for label, special in zip(found.labels, found.special, strict=True) if not special]
    if "[UNK]" not in "".join(of_text):
        assert of_text == ["a", *text.split()]
    assert len(of_text) == 1 + len(text.split())


def test_of_a_first_word_of_bytes_the_rest_is_shown_as_the_word():
    found = attnviz.analyze("हिन्दी में", sharp_gpt2(), tokenizer=gpt2_tokenizer(), words=True).units
    assert found.labels[1:] == ("~हिन्दी", "में")
    assert found.sink == (True, False, False)
    assert find_positions(found, "हिन्दी") == (0, 1)


def units(*labels: str, wholes: tuple[tuple[str, tuple[int, ...]], ...] = ()) -> Positions:
    n = len(labels)
    return Positions("token", labels, (False,) * n, (False,) * n, tuple((place,) for place in range(n)), wholes)


def test_a_token_is_named_by_its_text_its_word_or_its_number():
    text = units("[CLS]", "the", "un", "##able", "cat", wholes=(("unable", (2, 3)),))
    named = {"cat": (4,), "unable": (2, 3), "#1": (1,), 1: (1,), "The": (1,)}
    assert {name: find_positions(text, name) for name in named} == named
    both = units("The", "the", "cat")  # the case decides where a text has both
    assert (find_positions(both, "The"), find_positions(both, "the")) == ((0,), (1,))
    several = units("the", "cat", "saw", "the", "dog", "#2", "2")
    assert find_positions(several, "the#2") == (3,)
    assert find_positions(several, "#2") == (5,)  # a text goes before a number
    refused = ((both, "THE", "THE#1"), (several, "the", "the#2"), (several, "the#3", "2 times"))
    for given, token, word in (*refused, (several, "cat#2", "once")):
        with pytest.raises(UsageError, match=word):
            find_positions(given, token)


@pytest.mark.parametrize("token", ["mouse", "#7", "mouse#1", "#", "", "cat#", "#1234567890", "#²"])
def test_a_token_that_the_text_lacks_is_answered_with_those_it_has(token: str):
    with pytest.raises(UsageError, match="expected one of the, cat"):
        find_positions(units("the", "cat"), token)


def test_every_command_names_tokens_alike():
    model, tokenizer, text = sharp_bert(), bert_tokenizer(), "the unable cat saw the dog"
    heads = attnviz.analyze(text, model, tokenizer=tokenizer)
    assert merge_subwords(heads.tokens, words=False).wholes == (("unable", (2, 3)),)
    explained = attnviz.explain(text, model, tokenizer=tokenizer, token="Unable")
    assert explained.token == 3
    assert attnviz.rollout(text, model, tokenizer=tokenizer, token="unable").positions == (2, 3)
    for refused in (
        lambda: heads.figure("lines", token="the"),
        lambda: attnviz.explain(text, model, tokenizer=tokenizer, token="the"),
        lambda: attnviz.rollout(text, model, tokenizer=tokenizer, token="the"),
    ):
        with pytest.raises(UsageError, match="stands in the text 2 times; name one: the#1"):
            refused()


@pytest.mark.usefixtures("undrawn")
def test_a_long_text_is_drawn_on_the_logarithmic_scale_unless_another_is_asked_for(tmp_path):
    model, tokenizer = sharp_bert(max_position_embeddings=64), bert_tokenizer()

    def caption(n: int, **look: str) -> str:
        analysis, out = attnviz.analyze("the cat " * n, model, tokenizer=tokenizer, syntax=False), tmp_path / str(n)
        analysis.save(out, figures=["overview"], style=attnviz.figures.Style(**look))
        return (out / "captions.md").read_text(encoding="utf-8")

    assert "logarithmic" in caption(25)
    assert "logarithmic" not in caption(10)
    assert "logarithmic" not in caption(25, scale="shared")
