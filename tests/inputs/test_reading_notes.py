"""What is said of a text that the model does not read as it stands: unknown, doubled and randomly divided tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnviz
from attnviz.inputs.prompt import Text
from attnviz.inputs.text import encode, tokenize
from attnviz.models.checkpoint import from_loaded
from attnviz.models.opening import open_checkpoint
from tests.support.encoder_decoders import saved_marian, unigram_tokenizer
from tests.support.families import first_of
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, gpt2_tokenizer, save_checkpoint, sharp_bert, sharp_gpt2

UNKNOWN = "zebra yak xerus wolf vole cat"


def notes_of(result: Any) -> str:
    notes = result.document().get("reading_notes", [])
    assert notes == result.reading_notes
    return " ".join(notes)


def test_unknown_tokens_are_told_and_are_no_copies_of_one_another() -> None:
    result = attnviz.analyze(f"{UNKNOWN} cat", sharp_bert(), tokenizer=bert_tokenizer(), syntax=False)
    assert "5 of 7 tokens" in notes_of(result)
    assert result.context.text.earlier_copies.nonzero().tolist() == [[7, 6]]
    drawing = attnviz.draw(np.eye(3)[None, None], ["[UNK]", "cat", "[UNK]"])
    assert not drawing.context.text.earlier_copies.any()
    for text, model, tokenizer in (
        ("the cat", sharp_bert(), bert_tokenizer()),
        ("the cat <|endoftext|> ran", sharp_gpt2(), gpt2_tokenizer()),  # also its end of a text
    ):
        assert not attnviz.analyze(text, model, tokenizer=tokenizer, syntax=False).reading_notes


@pytest.mark.parametrize(
    "measure",
    first_of(
        [
            lambda file, model: attnviz.profile_heads(model, [file], control=False),
            lambda file, model: attnviz.ablate([file], model, curve=False),
            lambda file, model: attnviz.analyze_each(file, model, syntax=False),
            lambda file, model: attnviz.compare_corpus(model, model, file),
        ]
    ),
)
def test_unknown_tokens_of_several_texts_are_counted(measure, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(f"{UNKNOWN}\nthe dog {UNKNOWN} ran\n", encoding="utf-8")
    assert "10 of 19 tokens" in notes_of(measure(str(corpus), from_loaded(sharp_bert(), bert_tokenizer())))


@pytest.mark.parametrize(
    ("make", "tokenizer", "text", "special", "told"),
    [
        (sharp_bert, bert_tokenizer, "[CLS] the cat ran", [0, 1, 5], "[CLS]"),
        (sharp_bert, bert_tokenizer, "[CLS] the cat [SEP]", [0, 1, 4, 5], "[SEP]"),
        (sharp_bert, bert_tokenizer, "the [CLS] cat", [0, 4], ""),
        (lambda: sharp_llama("llama"), sentencepiece_tokenizer, "<s>the cat", [0, 1], "<s>"),
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
    assert from_file or results[0].reading_notes
    assert {getattr(tokenizer.backend_tokenizer.model, name) for name in setting} == set(setting.values())


def test_marian_does_not_sample(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    folder = saved_marian(tmp_path / "marian")
    plain = tokenize(open_checkpoint(folder)[0], "the cat ran away").ids
    file = folder / "tokenizer_config.json"
    sampling = {"sp_model_kwargs": {"enable_sampling": True, "alpha": 0.1, "nbest_size": -1}}
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | sampling), encoding="utf-8")
    checkpoint, _ = open_checkpoint(folder)
    assert {tokenize(checkpoint, "the cat ran away").ids for _ in range(5)} == {plain}
    assert checkpoint.notes
