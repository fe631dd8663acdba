"""What is in memory, in every form, gives the rows that a file of it gives; and what cannot be read is named."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
import transformers

import attnviz
from attnviz.errors import AttnvizError, CorpusError, TextError, UsageError
from attnviz.inputs.reading import open_corpora, read_texts
from attnviz.inputs.tables import Columns
from attnviz.inputs.text import encode
from attnviz.models.checkpoint import from_loaded
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

TEXTS = ["the cat that i saw ran away", "the dog ran away", "he was in a tree"]
LABELS = ["yes", "no", "yes"]


class Series:
    """A column, as pandas has them."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def tolist(self) -> list[Any]:
        return self.values


class Frame:
    """A table with named columns, as pandas has them."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns, self._values = list(columns), columns

    def __getitem__(self, name: str) -> Series:
        return Series(self._values[name])


def rows(given: Any, columns: Columns = Columns(), **more: Any) -> list[tuple[Any, ...]]:  # noqa: B008 - frozen
    read = [text for corpus in open_corpora(given, columns, **more) for text in read_texts(corpus)]
    return [(text.number, text.text, text.pair, text.label) for text in read]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "texts.csv"
    lines = [f"{text},{label}" for text, label in zip(TEXTS, LABELS, strict=True)]
    path.write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("given", "more"),
    [
        (TEXTS, {"labels": LABELS}),
        (tuple(TEXTS), {"labels": Series(LABELS)}),
        (np.array(TEXTS), {"labels": np.array(LABELS)}),
        (Series(TEXTS), {"labels": LABELS}),
        (Frame(text=TEXTS, label=LABELS), {}),
        (Frame(year=[1, 2, 3], said=TEXTS, of=LABELS), {"columns": Columns(text="said", label="of")}),
        ({"text": TEXTS, "label": LABELS}, {}),
        (pyarrow.table({"text": TEXTS, "label": LABELS}), {}),
        (pyarrow.array(TEXTS), {"labels": pyarrow.array(LABELS)}),
        ([{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)], {}),
    ],
)
def test_every_form_gives_the_rows_of_the_file(csv: Path, given: Any, more: Any):
    assert rows(given, **more) == rows(csv) == rows(str(csv))


def test_files_and_texts_may_stand_in_one_list(csv: Path):
    found = open_corpora(["one text", str(csv), "another one", "and more"])
    assert [corpus.rows.content is None for corpus in found] == [False, True, False]
    read = [text.text for corpus in found for text in read_texts(corpus)]
    assert read == ["one text", *TEXTS, "another one", "and more"]
    assert rows("one text") == [(0, "one text", None, None)]
    assert rows([]) == []
    assert rows(Series([str(csv)]))[0][1] == str(csv)  # a column has texts, whatever they are called


@pytest.mark.parametrize(
    ("given", "more", "error"),
    [
        (TEXTS, {"labels": LABELS[:2]}, UsageError),
        ({"text": TEXTS, "label": LABELS[:2]}, {}, UsageError),
        ({"text": "the cat"}, {}, UsageError),
        (Frame(text=TEXTS, label=LABELS), {"labels": LABELS}, UsageError),
        (Frame(text=TEXTS), {"columns": Columns(text="said")}, CorpusError),
        (Frame(text=TEXTS), {"columns": Columns(label="said")}, CorpusError),
        ("gone.csv", {}, CorpusError),
        (Path(), {}, CorpusError),
        (["the cat", " "], {}, TextError),
        (["the cat", 1.5], {}, TextError),
        (["the cat", [1, 2]], {}, TextError),
        (1.5, {}, UsageError),
        (b"the cat", {}, UsageError),
    ],
)
def test_what_cannot_be_read_is_named(given: Any, more: Any, error: type[AttnvizError]):
    with pytest.raises(error) as raised:
        rows(given, **more)
    assert "\n" not in str(raised.value)


def test_labels_are_of_texts_in_memory(csv: Path):
    with pytest.raises(UsageError):
        rows(csv, labels=LABELS)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_ids_are_read_as_the_text_that_they_spell(kind: str):
    model, tokenizer = (sharp_bert(), bert_tokenizer()) if kind == "bert" else (sharp_gpt2(), gpt2_tokenizer())
    checkpoint = from_loaded(model, tokenizer)
    expected = encode(checkpoint, list(read_texts(*open_corpora(TEXTS))))
    ids = [list(item.ids) for item in expected]
    for given in (ids, [torch.tensor(of_text) for of_text in ids]):
        for found, wanted in zip(encode(checkpoint, list(read_texts(*open_corpora(given)))), expected, strict=True):
            assert (found.ids, found.sink, found.pieces, found.offsets) == (
                wanted.ids,
                wanted.sink,
                wanted.pieces,
                wanted.offsets,
            )
            assert found.source.text == wanted.source.text
    words = ((0, 3), (4, 7))  # as a parser finds them in what ids spell
    for text, wanted in zip(read_texts(*open_corpora(ids)), expected, strict=True):
        sources = [replace(source, spans=words) for source in (text, wanted.source)]
        by_ids, by_text = encode(checkpoint, sources)
        assert by_ids.members == by_text.members != ()
    [one] = open_corpora(ids[0])
    assert len(list(read_texts(one))) == 1
    with pytest.raises(UsageError):
        encode(checkpoint, list(read_texts(*open_corpora([[1, 10**6]]))))
    left_out = []
    encode(checkpoint, list(read_texts(*open_corpora([ids[0] * 100]))), lambda text, _: left_out.append(text.number))
    assert left_out == [0]


def numbers(result: Any) -> dict[str, Any]:
    """The document without the names of texts and files."""
    document: dict[str, Any] = result.document()
    for name in ("corpora", "texts", "lines"):
        document.pop(name, None)
    return document


@pytest.mark.parametrize("command", ["profile_heads", "compare_corpus", "analyze_each", "ablate"])
def test_commands_give_the_same_numbers_in_memory(csv: Path, command: str):
    model, tokenizer = sharp_bert(), bert_tokenizer()
    other = sharp_bert(seed=1)

    def run(given: Any) -> Any:
        if command == "profile_heads":
            return attnviz.profile_heads(model, given, tokenizer=tokenizer, control=False, examples=0, syntax=False)
        if command == "compare_corpus":
            return attnviz.compare_corpus(model, other, given, tokenizer=tokenizer, syntax=False)
        if command == "ablate":
            return attnviz.ablate(given, model, tokenizer=tokenizer, curve=False)
        return attnviz.analyze_each(given, model, tokenizer=tokenizer, syntax=False)

    expected = numbers(run(csv))
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    for given in (TEXTS, Frame(text=TEXTS, label=LABELS), ids):
        assert numbers(run(given)) == expected
    for wrong in ([" "], [[], ids[0]]):
        with pytest.raises(AttnvizError):
            run(wrong)


def test_labels_of_a_classifier(csv: Path):
    names = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model, other = (
        sharp_bert(seed, transformers.BertForSequenceClassification, num_labels=2, **names) for seed in (0, 1)
    )
    given: dict[str, Any] = {"tokenizer": bert_tokenizer()}
    from_file = attnviz.ablate(csv, model, **given, curve=False)
    in_memory = attnviz.ablate(TEXTS, model, labels=LABELS, **given, curve=False)
    assert from_file.kind == in_memory.kind == "labelled-class"
    assert numbers(in_memory) == numbers(from_file)
    given["syntax"] = False
    accuracies = [
        attnviz.compare_corpus(model, other, texts, labels=labels, **given).accuracy
        for texts, labels in ((csv, None), (TEXTS, LABELS), (TEXTS, [1, 0, 1]))
    ]
    assert (
        accuracies[0] == accuracies[1] == accuracies[2] != attnviz.compare_corpus(model, other, TEXTS, **given).accuracy
    )
    for call in (attnviz.ablate, lambda texts, *models, **more: attnviz.compare_corpus(*models, other, texts, **more)):
        with pytest.raises(UsageError):
            call(TEXTS, model, labels=["yes", "no", "perhaps"], tokenizer=bert_tokenizer())
        with pytest.raises(UsageError):
            call(TEXTS, model, labels=LABELS[:2], tokenizer=bert_tokenizer())
    with pytest.raises(UsageError):  # a model without classes
        attnviz.ablate(TEXTS, sharp_bert(), labels=LABELS, tokenizer=bert_tokenizer())


def test_pairs_in_memory_are_those_of_a_table(tmp_path: Path):
    clean, corrupt = ["the cat ran", "the dog saw"], ["the house was", "the cat was"]
    model = sharp_gpt2(model_class=transformers.GPT2LMHeadModel)
    given: dict[str, Any] = {"tokenizer": gpt2_tokenizer(), "metric": "logit_difference"}
    path = tmp_path / "pairs.csv"
    rows = [f"{one},{other}, cat, dog" for one, other in zip(clean, corrupt, strict=True)]
    path.write_text("\n".join(["clean,corrupt,answer,foil", *rows]), encoding="utf-8")
    table = {"clean": clean, "corrupt": corrupt, "answer": [" cat"] * 2, "foil": [" dog"] * 2}

    def of(result: Any) -> Any:
        document = result.document()
        return [document[name] for name in document if name not in ("file", "options", "answer", "foil", "pairs")]

    expected = of(attnviz.patch(path, model, **given))
    assert of(attnviz.patch(table, model, **given)) == expected
    assert of(attnviz.patch(Frame(**table), model, **given)) == expected
    beside: dict[str, Any] = {"answer": " cat", "foil": " dog", **given}
    assert of(attnviz.patch(clean, model, corrupt=corrupt, **beside)) == expected
    ids = [[given["tokenizer"](text)["input_ids"] for text in texts] for texts in (clean, corrupt)]
    assert of(attnviz.patch(ids[0], model, corrupt=ids[1], **beside)) == expected
    assert of(attnviz.patch(ids[0][0], model, corrupt=torch.tensor(ids[1][0]), **beside)) == of(
        attnviz.patch(clean[0], model, corrupt=corrupt[0], **beside)
    )
    letters = [token for letter in "cat" for token in given["tokenizer"](letter)["input_ids"]]  # of which it makes one
    for others in (corrupt, None, [[999_999], ids[1][1]], [letters, ids[1][1]]):
        with pytest.raises(UsageError):
            attnviz.patch(ids[0], model, corrupt=others, **beside)
    for wrong in ({"corrupt": corrupt[:1]}, {}, {"corrupt": corrupt, "labels": ["a"]}, {"corrupt": [1.5, " "]}):
        with pytest.raises(AttnvizError) as raised:
            attnviz.patch(clean, model, **given, answer=" cat", foil=" dog", **wrong)
        assert "\n" not in str(raised.value)
    names = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}, "num_labels": 2}
    classifier = sharp_bert(0, transformers.BertForSequenceClassification, **names)
    with torch.no_grad():
        classifier.classifier.weight.mul_(50)
    given = {"tokenizer": bert_tokenizer()}
    by_table = attnviz.patch({"clean": clean, "corrupt": corrupt, "label": ["yes", "yes"]}, classifier, **given)
    assert of(attnviz.patch(clean, classifier, corrupt=corrupt, labels=["yes", "yes"], **given)) == of(by_table)


def test_a_paper_is_checked_on_texts_in_memory(tmp_path: Path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS * 10), encoding="utf-8")
    given: dict[str, Any] = {"tokenizer": bert_tokenizer(), "published": "clark-2019"}
    rows = [
        [
            (row.claim.what, row.verdict, row.measured, row.n)
            for row in attnviz.check(texts, sharp_bert(), **given).claims
        ]
        for texts in (path, TEXTS * 10, {"text": TEXTS * 10})
    ]
    assert rows[0] == rows[1] == rows[2]
    assert any(measured is not None for _, _, measured, _ in rows[0])
