"""Texts to padded batches: words tied to tokens, padding that changes nothing, texts that do not fit."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnviz.errors import TextError
from attnviz.inputs.batches import batches, collate, split_batch
from attnviz.inputs.lines import Place
from attnviz.inputs.prompt import Text
from attnviz.inputs.text import encode
from attnviz.models.checkpoint import from_loaded
from tests.support.corpora import sentence
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.recorded import own_patterns
from tests.support.tolerances import SHARP_32, SUMS_32

WORDS = ["the", "unbelievable", "cat", "saw", "the", "dog", "antidisestablishmentarian", "."]


def test_words_are_tied_to_the_tokens_of_pre_split_words_and_pieces_are_their_characters(checkpoint):
    words = WORDS[:-1]  # a space before a full stop is a token of its own in this GPT-2, and of no word
    (item,) = encode(checkpoint, [sentence(words)])
    tokenizer, causal = checkpoint.tokenizer, checkpoint.architecture.causal
    spaced = [f" {word}" if causal and place else word for place, word in enumerate(words)]
    sizes = [len(tokenizer(word, add_special_tokens=False)["input_ids"]) for word in spaced]
    assert [len(positions) for positions in item.members] == sizes
    special = tokenizer(item.source.text, return_special_tokens_mask=True)["special_tokens_mask"]
    assert [p for positions in item.members for p in positions] == [i for i, no in enumerate(special) if not no]
    assert not any(piece for piece, is_special in zip(item.pieces, special, strict=True) if is_special)
    assert "".join(item.pieces).replace(" ", "") == "".join(words)
    assert item.sink == tuple(is_special or (causal and place == 0) for place, is_special in enumerate(special))


BERT = from_loaded(sharp_bert(), bert_tokenizer())


@given(st.lists(st.sampled_from(["the", "cat", "unbelievable", "ran", "."]), min_size=1, max_size=12))
@settings(max_examples=30)
def test_every_token_of_a_sentence_is_in_exactly_one_word(words):
    (item,) = encode(BERT, [sentence(words)])
    positions = [position for word in item.members for position in word]
    assert positions == list(range(1, len(item) - 1))


def test_padding_changes_no_attention(checkpoint):
    texts = [sentence(WORDS), sentence(["the", "cat"]), sentence(["the", "dog", "ran", "away"])]
    together = patterns_of(checkpoint, texts)
    for place, text in enumerate(texts):
        for layer, pattern in patterns_of(checkpoint, [text]).items():
            n = pattern.shape[-1]
            torch.testing.assert_close(together[layer][place, :, :n, :n], pattern[0], atol=SUMS_32, rtol=SHARP_32)
            assert (together[layer][place, :, :n, n:] == 0).all()


def patterns_of(checkpoint, texts):
    return own_patterns(checkpoint, collate(checkpoint, encode(checkpoint, texts)).inputs)


def test_every_text_is_in_one_batch_of_texts_of_like_length(checkpoint):
    texts = [sentence(["cat"] * (2 + i * 7 % 13), line=i) for i in range(50)]
    found = list(batches(checkpoint, iter(texts), 8))
    assert sorted(item.source.place.line for batch in found for item in batch.items) == list(range(50))
    assert max(len(batch.items) for batch in found) == 8
    lengths = [[len(item) for item in batch.items] for batch in found]
    assert all(of_batch == sorted(of_batch) for of_batch in lengths)
    assert sum(max(of_batch) - min(of_batch) for of_batch in lengths) < 2 * len(lengths)
    assert lengths != sorted(lengths)  # a sample of the batches has texts of all lengths


def test_a_batch_of_long_texts_is_cut_so_that_a_layer_has_few_weights(checkpoint):
    texts = [sentence(["cat"] * (4 + i % 3), line=i) for i in range(9)]
    whole = collate(checkpoint, encode(checkpoint, texts))
    n = whole.valid.shape[1]
    for size in (1, 4, 9):
        parts = list(split_batch(checkpoint, whole, checkpoint.n_heads * n**2 * size))
        assert [len(part.items) for part in parts] == {1: [1] * 9, 4: [4, 4, 1], 9: [9]}[size]
        assert [item for part in parts for item in part.items] == list(whole.items)
    assert [len(part.items) for part in split_batch(checkpoint, whole, 1)] == [1] * 9


def test_a_name_without_a_token_is_told_and_left_out(checkpoint):
    told = []
    place = Path("gap.tsv")
    row = Text("the \u200b saw a dog and he ran", ((23, 25), (4, 5), (12, 15)), (), Place(place, 7), answer=0)
    encode(checkpoint, [row], lambda text, why: told.append(f"{text.place}: {why}"))
    without = "" if checkpoint.architecture.causal else "the model has no token for its pronoun or one of its names"
    assert told == ([f"gap.tsv:7: {without}"] if without else [])


def test_a_text_that_does_not_fit_is_told_and_left_out(checkpoint):
    limit = checkpoint.config.max_position_embeddings
    told = []
    texts = [sentence(["cat"] * (limit + 1), line=7), sentence(["the", "cat"], line=8)]
    (item,) = encode(checkpoint, texts, lambda text, why: told.append((str(text.place), why)))
    assert item.source.place.line == 8
    extra = 0 if checkpoint.architecture.causal else 2
    assert told[0][0] == "corpus.txt:7"
    assert f"{limit + 1 + extra} tokens" in told[0][1]
    with pytest.raises(TextError, match=f"corpus.txt:7: .*{limit} positions"):
        encode(checkpoint, texts)
