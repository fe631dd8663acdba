"""Labels, special and sink positions, words, how a token is named, and what is refused."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

import attnviz
from attnviz.errors import TextError, UsageError
from attnviz.inputs.prompt import Positions, Prompt, UnitRows, find_positions, merge_subwords
from attnviz.inputs.text import tokenize
from attnviz.inputs.words import vocabulary_labels, word_spans
from attnviz.wording import visible
from tests.support.llamas import sentencepiece_tokenizer
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert
from tests.support.parsed import reading_alone
from tests.support.tolerances import SUMS_64

BERT = bert_tokenizer()
GPT2 = gpt2_tokenizer()


def read_by(tokenizer: Any, segments: bool, text: str, pair: str | None = None, **changes: Any) -> Prompt:
    how = {name: changes.pop(name) for name in ("truncate", "target") if name in changes}
    return tokenize(reading_alone(tokenizer, not segments, **changes), text, pair, **how)


def as_bert(text: str, pair: str | None = None, **changes: Any) -> Prompt:
    return read_by(BERT, True, text, pair, **changes)


def as_gpt2(text: str, pair: str | None = None, **changes: Any) -> Prompt:
    return read_by(GPT2, False, text, pair, **changes)


def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    pieces = [("<unk>", 0.0), ("▁the", -1.0), ("▁cat", -1.0), ("s", -2.0), ("▁", -3.0)]
    backend = Tokenizer(tokenizer_models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def test_labels_mark_what_continues_a_word_in_every_kind_of_tokenizer():
    tokens = as_bert("The unbelievableness ran")
    assert tokens.labels == ("[CLS]", "the", "un", "##believ", "##able", "##ness", "ran", "[SEP]")
    assert tokens.word_labels == ("the", "unbelievableness", "ran")
    tokens = as_gpt2("the cats saw a dog")
    assert tokens.labels[:3] == ("the", "cat", "~s")
    assert tokens.word_labels == ("the", "cats", "saw", "a", "dog")
    tokens = read_by(metaspace_tokenizer(), False, "the cats")
    assert (tokens.labels, tokens.word_labels) == (("the", "cat", "~s"), ("the", "cats"))
    assert read_by(metaspace_tokenizer(), False, "the  cat").labels == ("the", "␣", "cat")


@pytest.mark.parametrize(
    ("text", "labels", "words"),
    [
        ("cat Ġ ▁", (), ("cat", "Ġ", "▁")),  # typed stand-ins are the user's own text
        ("cat   dog", ("cat", "␣", "~␣"), None),
        ("cat\ncat\tcat", ("cat", "\\n", "cat", "\\t", "cat"), None),
        ("cat\x1b[31m", ("cat", "\\x1b"), None),
        ("a 😀", ("a", "␣", "~\\xf0", "~\\x9f", "~\\x98", "~\\x80"), ("a", "😀")),  # split over bytes
        ("a\u202eb\u00a0b", (), ("a", "\\u202e", "b", "\\xa0", "b")),
    ],
)
def test_byte_level_tokens_are_shown_without_stand_ins_and_steer_nothing(text: str, labels: Any, words: Any):
    tokens = as_gpt2(text)
    assert tokens.labels[: len(labels)] == labels
    assert words is None or tokens.word_labels == words
    assert "".join((*tokens.labels, *tokens.word_labels)).isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x00\x1b\x7f\x85", "\\x00\\x1b\\x7f\\x85"),
        ("\u202a\u2066\u2069\u200f\u2028", "\\u202a\\u2066\\u2069\\u200f\\u2028"),
        ("\u00a0\u2003\u3000\u200b\ufeff\u00ad", "\\xa0\\u2003\\u3000\\u200b\\ufeff\\xad"),
        ("\U000e0041\ud800\ue000", "\\U000e0041\\ud800\\ue000"),
        *((text, text) for text in ("été 中 😀", "a b", "")),
        ("  ", "␣␣"),
    ],
)
def test_what_cannot_be_seen_is_written_as_an_escape(text: str, shown: str):
    assert visible(text) == shown


@pytest.mark.draws
@settings(max_examples=30)
@given(st.text(min_size=1))
def test_labels_hold_nothing_that_steers_a_terminal(text: str):
    assert visible(text).isprintable()


def test_only_tokens_that_the_tokenizer_adds_are_special():
    tokens = as_bert("[MASK] cat [SEP] qqq")
    assert tokens.labels == ("[CLS]", "[MASK]", "cat", "[SEP]", "[UNK]", "[SEP]")
    assert tokens.special == (True, False, False, False, False, True)
    assert tokens.sink == tokens.special
    assert tokens.words == (None, 0, 1, 2, 3, None)
    assert tokens.segments == (None, 0, 0, 0, 0, None)


def test_the_first_position_of_gpt2_is_a_sink_and_a_typed_end_of_text_is_content():
    tokens = as_gpt2("the cat saw")
    assert (tokens.sink, tokens.special) == ((True, False, False), (False, False, False))
    tokens = as_gpt2("cat<|endoftext|>dog")
    place = tokens.labels.index("<|endoftext|>")
    assert not tokens.special[place]
    assert not tokens.sink[place]
    assert tokens.words[place] is not None


def test_words_offsets_and_inputs_of_a_pair():
    text, pair = "the unable cat", "un dog"
    tokens = as_bert(text, pair)
    assert tokens.words == (None, 0, 1, 1, 2, None, 3, 4, None)
    assert tokens.segments == (None, 0, 0, 0, 0, None, 1, 1, None)
    assert tokens.type_ids == (0, 0, 0, 0, 0, 0, 1, 1, 1)
    assert tokens.word_labels == ("the", "unable", "cat", "un", "dog")
    spans = [(segment, *span) for segment, span in zip(tokens.segments, tokens.offsets, strict=True)]
    found = [(text, pair)[segment][first:last] for segment, first, last in spans if segment is not None]
    assert found == ["the", "un", "able", "cat", "un", "dog"]
    inputs = {name: values.tolist() for name, values in tokens.model_inputs(torch.device("cpu")).items()}
    expected = {"input_ids": [[*tokens.ids]], "attention_mask": [[1] * 9], "token_type_ids": [[*tokens.type_ids]]}
    assert inputs == expected
    assert "token_type_ids" not in as_gpt2("the cat").model_inputs(torch.device("cpu"))


def test_words_gather_their_pieces_and_special_tokens_stay():
    units = merge_subwords(as_bert("the unable cat", "ran"), words=True)
    assert units.name == "word"
    assert units.labels == ("[CLS]", "the", "unable", "cat", "[SEP]", "ran", "[SEP]")
    assert units.members == ((0,), (1,), (2, 3), (4,), (5,), (6,), (7,))
    assert units.special == units.sink == (True, False, False, False, True, False, True)
    assert len(units) == 7
    tokens = as_bert("the unable")
    units = merge_subwords(tokens, words=False)
    assert (units.name, units.labels, len(units.members)) == ("token", tokens.labels, 5)


def test_of_the_first_word_of_gpt2_the_first_piece_alone_is_a_sink():
    tokens = as_gpt2("The cat")
    assert tokens.labels == ("T", "~he", "cat")
    units = merge_subwords(tokens, words=True)
    assert units.labels == ("T", "~he", "cat")
    assert units.members == ((0,), (1,), (2,))
    assert units.sink == (True, False, False)
    assert units.wholes == (("The", (0, 1)),)
    assert find_positions(units, "The") == (0, 1)
    whole = merge_subwords(replace(tokens, sink=(True, True, False)), words=True)
    assert (whole.labels, whole.members, whole.sink) == (("The", "cat"), ((0, 1), (2,)), (True, False))
    inside = replace(as_bert("the unbelievable"), sink=(True, False, False, True, False, True))
    found = merge_subwords(inside, words=True)
    assert found.labels == ("[CLS]", "the", "un", "##believ", "##able", "[SEP]")


@pytest.mark.parametrize(
    ("read", "given", "options", "word"),
    [
        *((as_gpt2, (text,), {}, "text") for text in ("", " \t\n", "\u00a0\u2003", "ab\udcff", "\ud800")),
        *((as_bert, ("the cat", text), {}, "pair") for text in ("", " \t\n", "ab\udcff")),
        (as_bert, ("\u200b",), {}, "no tokens"),
        (as_bert, ("the cat saw",), {"max_positions": 4}, "5 tokens.* 4 positions"),
        (as_bert, ("the cat",), {"max_positions": 2, "truncate": True}, "no tokens"),
        (as_gpt2, ("the cat", "the dog"), {}, "segments"),
    ],
)
def test_what_is_no_text_for_this_model_is_refused(read: Any, given: Any, options: Any, word: str):
    with pytest.raises(TextError, match=word):
        read(*given, **options)


@pytest.mark.parametrize(
    ("read", "pair", "most", "labels", "cut"),
    [
        (as_bert, None, 5, ("[CLS]", "the", "cat", "saw", "[SEP]"), 2),
        (as_bert, "a tree", 7, ("[CLS]", "the", "cat", "[SEP]", "a", "tree", "[SEP]"), 3),  # the longer of both
        (as_bert, None, 7, ("[CLS]", "the", "cat", "saw", "the", "dog", "[SEP]"), 0),
        (as_gpt2, None, 3, ("the", "cat", "saw"), 2),
    ],
)
def test_truncation_keeps_special_tokens_and_says_how_much_it_cut(read, pair, most, labels, cut):
    tokens = read("the cat saw the dog", pair, max_positions=most, truncate=True)
    assert (tokens.labels, tokens.truncated) == (labels, cut)
    assert len(read("the cat saw the dog")) == {as_bert: 7, as_gpt2: 5}[read]  # the tokenizer is as it was


@pytest.mark.parametrize("pretokens", [False, True])
def test_sentencepiece_of_llama_marks_words_and_bytes(pretokens):
    tokens = read_by(sentencepiece_tokenizer(pretokens), False, "the unbelievable cat, é", vocab_size=400)
    assert tokens.labels == ("<s>", "the", "un", "~believ", "~able", "cat", ",", "␣", r"~\xc3", r"~\xa9")
    assert tokens.words == (None, 0, 1, 1, 1, 2, 3, 4, 4, 4)
    assert tokens.word_labels == ("the", "unbelievable", "cat", ",", "é")
    assert tokens.sinks == {0}
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(["▁cat", "able", "▁", ",", "<0x0A>", "<s>"])
    assert vocabulary_labels(tokenizer, ids) == ["cat", "~able", "␣", ",", r"\n", "<s>"]


def runs(draw: Any, n: int) -> list[tuple[int, ...]]:
    """Units of tokens in the order of the text; some tokens are in none, some in two."""
    groups, at = list[tuple[int, ...]](), 0
    while at < n:
        run = tuple(range(at, min(n, at + draw(st.integers(1, 4)))))
        groups.append(run)
        at = n if run[-1] == n - 1 else run[-1] + (draw(st.sampled_from([0, 1, 1, 2])) if len(run) > 1 else 1)
    return groups


@given(st.data(), st.booleans(), st.integers(1, 14), st.integers(1, 14))
def test_units_merged_while_rows_come_are_those_of_a_dense_product(data, causal, n_queries, n_keys):
    n_keys = n_queries if causal else n_keys
    pattern = torch.rand(2, n_queries, n_keys, generator=torch.Generator().manual_seed(n_keys), dtype=torch.float64)
    pattern = pattern.tril() if causal else pattern
    members = runs(data.draw, n_queries)
    keys = [*members, ()] if causal else runs(data.draw, n_keys)
    keys.append(tuple(sorted(data.draw(st.sets(st.integers(0, n_keys - 1))))))  # scattered, as sinks are
    attending = torch.zeros(len(members), n_queries, dtype=torch.float64)
    for unit, group in enumerate(members):
        attending[unit, list(group)] = 1 / len(group)
    attended = torch.zeros(n_keys, len(keys), dtype=torch.float64)
    for unit, group in enumerate(keys):
        attended[list(group), unit] = 1
    merge, found = UnitRows(members, keys, n_queries, n_keys), list[Tensor]()
    begin = sorted({0, *data.draw(st.sets(st.integers(0, n_queries - 1)))})
    for first, last in pairwise([*begin, n_queries]):
        unit, merged = merge.add(first, pattern[:, first:last, : last if causal else n_keys])
        assert unit == sum(each.shape[1] for each in found)
        found.append(torch.nn.functional.pad(merged, (0, len(keys) - merged.shape[-1])))
    torch.testing.assert_close(torch.cat(found, 1), attending @ pattern @ attended, rtol=SUMS_64, atol=SUMS_64)


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
        ("தமிழ் שָׁלוֹם السَّلَامُ", ["தமிழ்", "שָׁלוֹם", "السَّلَامُ"]),
        ("क्\u200dष न\u200cी", ["क्\u200dष", "न\u200cी"]),
        ("か\u3099a", ["か\u3099", "a"]),  # a mark takes what follows no further
        ("“\u0301a!\u0301", ["“\u0301", "a", "!\u0301"]),
        ("👩\u200d❤\ufe0f\u200d👨a", ["👩\u200d❤\ufe0f\u200d👨", "a"]),  # one picture, five characters
        ("\u0600123", ["\u0600123"]),  # the sign of a number goes before it
        (" \t\n", []),
        ("", []),
    ],
)
def test_words_stand_between_spaces_with_punctuation_apart(text: str, words: list[str]):
    assert [text[start:end] for start, end in word_spans(text)] == words


@pytest.mark.parametrize("text", ["the well-known cat don't know", "हिन्दी में", "สวัสดีครับ"])
def test_merged_words_are_the_texts_own(text: str):
    """GPT-2's pre-tokenizer splits at apostrophes and hyphens, and takes marks for punctuation; its sink is no word."""
    found = merge_subwords(as_gpt2(f"a {text}"), words=True)
    of_text = [label for label, special in zip(found.labels, found.special, strict=True) if not special]
    assert of_text == ["a", *text.split()]


@pytest.mark.parametrize(
    "text",
    [
        "हिन्दी",
        "क्षत्रिय",
        "สวัสดีครับ",
        "தமிழ்",
        "שָׁלוֹם",
        "السَّلَامُ",
        "e\u0301te\u0301",
        "👩\u200d❤\ufe0f\u200d👨",
        "don't",
        "1.5",
    ],
)
@pytest.mark.parametrize("pieces", ["bytes", "sentencepiece"])
def test_every_piece_after_the_first_is_marked_as_one_of_its_word(pieces: str, text: str):
    """GPT-2's pre-tokenizer divides words at combining marks, apostrophes and full stops."""
    tokenizer = GPT2 if pieces == "bytes" else sentencepiece_tokenizer()
    tokens = read_by(tokenizer, False, f"a {text}", max_positions=90, vocab_size=400)
    first = tokens.words.index(tokens.words[-1])
    labels = tokens.labels[first:]
    assert tokens.words[first:] == (tokens.words[-1],) * len(labels)
    assert not labels[0].startswith("~")
    assert all(label.startswith("~") for label in labels[1:])
    assert tokens.word_labels[-1] == visible(text)


def test_of_a_first_word_of_bytes_the_rest_is_shown_as_the_word():
    found = merge_subwords(as_gpt2("हिन्दी में"), words=True)
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
    for text, token, word in ((both, "THE", "THE#1"), (several, "the", "the#2")):
        with pytest.raises(UsageError, match=word):
            find_positions(text, token)
    missing = "the#3", "cat#2", "mouse", "#7", "mouse#1", "#", "", "cat#", "#1234567890", "#²"
    for token in missing:
        with pytest.raises(UsageError):
            find_positions(several, token)


@pytest.mark.thorough
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
        with pytest.raises(UsageError, match="the#1"):
            refused()
