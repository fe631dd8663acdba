"""What is said of a text that the model does not read as it stands: unknown, doubled and randomly divided tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnviz
from attnviz.measures.patterns import PatternSpec
from attnviz.measures.tallies import StatisticsTally
from attnviz.models.checkpoint import from_loaded
from attnviz.models.opening import open_checkpoint
from attnviz.texts.batches import collate, encode
from attnviz.texts.reading import Text
from tests.support.encoder_decoders import saved_marian, unigram_tokenizer
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2

UNKNOWN = "zebra yak xerus wolf vole cat"


def notes_of(result: Any) -> str:
    """The notes, which stand in the document and below the tables."""
    notes = result.document().get("reading_notes", [])
    assert notes == result.reading_notes
    assert all(note in " ".join(result.report(100).split()) for note in notes)
    return " ".join(notes)


# --- unknown tokens


def test_unknown_tokens_are_told_and_are_no_copies_of_one_another() -> None:
    result = attnviz.analyze(f"{UNKNOWN} cat", sharp_bert(), tokenizer=bert_tokenizer(), syntax=False)
    assert "5 of 7 tokens are unknown to this tokenizer ([UNK])." in notes_of(result)
    assert result.context.text.earlier_copies.nonzero().tolist() == [[7, 6]]
    drawing = attnviz.draw(np.eye(3)[None, None], ["[UNK]", "cat", "[UNK]"])
    assert not drawing.context.text.earlier_copies.any()
    for text, model, tokenizer in (
        ("the cat", sharp_bert(), bert_tokenizer()),
        ("the cat <|endoftext|> ran", sharp_gpt2(), gpt2_tokenizer()),  # also its end of a text
    ):
        assert not attnviz.analyze(text, model, tokenizer=tokenizer, syntax=False).reading_notes


def test_unknown_tokens_of_a_corpus_are_no_copies_of_one_another() -> None:
    checkpoint = from_loaded(sharp_bert(), bert_tokenizer())
    batch = collate(checkpoint, encode(checkpoint, [Text(f"{UNKNOWN} cat")]))
    assert batch.items[0].n_unknown == 5
    tally = StatisticsTally(checkpoint.n_layers, checkpoint.n_heads, causal=False)
    mask = lambda text: text.earlier_copies  # noqa: E731
    tally._patterns = [PatternSpec("copies", "copies", mask, "copies", "other", reads_text=True)]
    assert tally.masks_of(batch)[0, 0].nonzero().tolist() == [[7, 6]]


@pytest.mark.parametrize(
    ("measure", "counted"),
    [
        (lambda file, model: attnviz.ablate([file], model, curve=False), "10 of 19 tokens are"),
        (lambda file, model: attnviz.analyze_each(file, model, syntax=False), "10 of 19 tokens are"),
        (lambda file, model: attnviz.profile_heads(model, [file], control=False), "10 of 19 tokens of corpus.txt are"),
        (lambda file, model: attnviz.compare_corpus(model, model, file), "10 of 19 tokens of corpus.txt are"),
    ],
    ids=["ablate", "each line", "profile", "compare"],
)
def test_unknown_tokens_of_several_texts_are_counted(measure, counted, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"{UNKNOWN}\nthe dog {UNKNOWN} ran\n", encoding="utf-8")
    result = measure(str(corpus), from_loaded(sharp_bert(), bert_tokenizer()))
    assert counted in notes_of(result)


# --- special tokens that the text has, too


@pytest.mark.parametrize(
    ("make", "tokenizer", "text", "special", "told"),
    [
        (sharp_bert, bert_tokenizer, "[CLS] the cat ran", [0, 1, 5], "begins with [CLS]"),
        (sharp_bert, bert_tokenizer, "[CLS] the cat [SEP]", [0, 1, 4, 5], "ends with [SEP]"),
        (sharp_bert, bert_tokenizer, "the [CLS] cat", [0, 4], ""),
        (lambda: sharp_llama("llama"), sentencepiece_tokenizer, "<s>the cat", [0, 1], "begins with <s>"),
    ],
)
def test_a_special_token_that_the_text_has_too_is_special_and_told(make, tokenizer, text, special, told):
    result = attnviz.analyze(text, make(), tokenizer=tokenizer(), syntax=False)
    tokens = result.tokens
    assert [at for at, each in enumerate(tokens.special) if each] == special
    assert set(special) <= tokens.sinks
    assert [tokens.word_labels[word] for word in tokens.words if word is not None][-1] == tokens.labels[
        max(set(range(len(tokens))) - set(special))
    ]
    assert told in notes_of(result)
    assert bool(told) == bool(result.reading_notes)
    (item,) = encode(result.checkpoint, [Text(text)])
    assert item.sink == tokens.sink


# --- tokenizers that divide at random


@pytest.mark.parametrize("setting", [{"dropout": 0.5}, {"alpha": 0.1, "nbest_size": 5}], ids=["bpe", "unigram"])
@pytest.mark.parametrize("from_file", [False, True])
def test_a_tokenizer_that_divides_at_random_does_not(setting: dict[str, Any], from_file: bool, tmp_path: Path) -> None:
    tokenizer = gpt2_tokenizer() if "dropout" in setting else unigram_tokenizer()
    model = sharp_gpt2() if "dropout" in setting else sharp_bert(vocab_size=len(tokenizer))
    plain = tuple(tokenizer("the unbelievable cat ran away").input_ids)
    for name, value in setting.items():
        setattr(tokenizer.backend_tokenizer.model, name, value)
    given: dict[str, Any] = {"model": model, "tokenizer": tokenizer}
    if from_file:
        given = {"model": save_checkpoint(model, tokenizer, tmp_path / "model")}
    results = [attnviz.analyze("the unbelievable cat ran away", **given, syntax=False) for _ in "ab"]
    assert {result.tokens.ids for result in results} == {plain}
    assert from_file or "switched off" in notes_of(results[0])
    assert {getattr(tokenizer.backend_tokenizer.model, name) for name in setting} == set(setting.values())


def test_marian_does_not_sample(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    folder = saved_marian(tmp_path / "marian")
    plain = open_checkpoint(folder)[0].tokenize("the cat ran away").ids
    file = folder / "tokenizer_config.json"
    sampling = {"sp_model_kwargs": {"enable_sampling": True, "alpha": 0.1, "nbest_size": -1}}
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | sampling), encoding="utf-8")
    checkpoint, _ = open_checkpoint(folder)
    assert {checkpoint.tokenize("the cat ran away").ids for _ in range(5)} == {plain}
    assert "switched off" in checkpoint.notes[0]
