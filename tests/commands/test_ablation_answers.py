"""ablate with an answer and a foil: how far the logit difference falls, by hooks on transformers' own models."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import BertForMaskedLM, GPT2LMHeadModel

import attnviz
from attnviz.errors import AttnvizError, CorpusError, UsageError
from tests.support.classifiers import sharp_classifier
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2
from tests.support.tolerances import SUMS_32

MODELS: dict[str, Any] = {
    "gpt2": lambda: (sharp_gpt2(model_class=GPT2LMHeadModel), gpt2_tokenizer()),
    "bert": lambda: (sharp_bert(model_class=BertForMaskedLM), bert_tokenizer()),
    "classifier": lambda: sharp_classifier("bert"),
}
TEXTS = {
    "gpt2": ("the cat that i saw ran", " away", " house"),
    "bert": ("the cat [MASK] away", "ran", "saw"),
    "classifier": ("the cat ran away", "good", "bad"),
}


def difference(kind: str, model: Any, tokenizer: Any, text: str, answer: str, foil: str) -> float:
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
    if kind == "classifier":
        first, second = (model.config.label2id[name] for name in (answer, foil))
        return float(logits[0, first] - logits[0, second])
    ids = inputs["input_ids"][0].tolist()
    at = ids.index(tokenizer.mask_token_id) if kind == "bert" else len(ids) - 1
    first, second = (tokenizer(name, add_special_tokens=False)["input_ids"][0] for name in (answer, foil))
    return float(logits[0, at, first] - logits[0, at, second])


def without(kind: str, model: Any, head: Any, measure: Any) -> float:
    """What is measured while one head gives zeros."""
    layer, number = head
    if kind == "gpt2":
        module = model.transformer.h[layer].attn.c_proj
    else:
        module = model.bert.encoder.layer[layer].attention.output.dense

    def zeroed(_: Any, given: Any) -> Any:
        values = given[0].clone()
        values[..., 8 * number : 8 * (number + 1)] = 0
        return (values,)

    hook = module.register_forward_pre_hook(zeroed)
    try:
        return float(measure())
    finally:
        hook.remove()


@pytest.mark.parametrize("kind", MODELS)
def test_the_difference_falls_as_in_the_model_without_the_head(kind):
    (model, tokenizer), (text, answer, foil) = MODELS[kind](), TEXTS[kind]
    names = {"label": answer} if kind == "classifier" else {"answer": answer}
    result = attnviz.ablate(text, model, tokenizer=tokenizer, method="zero", foil=foil, curve=False, **names)
    assert result.kind == "answer"

    def measure() -> float:
        return difference(kind, model, tokenizer, text, answer, foil)

    clean = measure()
    assert result.clean_difference == pytest.approx(clean, abs=SUMS_32)
    assert result.document()["measured"]["logit_difference"] == result.clean_difference
    falls = [head.damage["logit_difference"].value for head in result.heads]
    assert falls == sorted(falls, key=abs, reverse=True)  # what works against the answer matters, too
    for head in result.heads:
        fall = clean - without(kind, model, head.id, measure)
        assert head.damage["logit_difference"].value == pytest.approx(fall, abs=SUMS_32)
    assert max(map(abs, falls)) > 1e-3


@pytest.mark.parametrize("name", ["answers.tsv", "answers.csv", "answers.jsonl"])
def test_a_table_has_an_answer_and_a_foil_for_each_text(name, tmp_path):
    model, tokenizer = MODELS["gpt2"]()
    rows = [("the cat that i saw ran", " away", " house"), ("one two", " three", " four")]
    table, columns = tmp_path / name, ("text", "answer", "foil")

    def write(*rows: Sequence[str]) -> None:
        separator = "\t" if name.endswith("tsv") else ","
        lines = [separator.join(row) for row in (columns, *rows)]
        if name.endswith("jsonl"):
            lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")

    write(*rows)
    found = attnviz.ablate(table, model, tokenizer=tokenizer, curve=False)
    expected = [difference("gpt2", model, tokenizer, *row) for row in rows]
    assert found.clean_difference == pytest.approx(sum(expected) / 2, abs=SUMS_32)
    with pytest.raises(UsageError, match="answers of its own"):
        attnviz.ablate(table, model, tokenizer=tokenizer, answer=" away", foil=" house")
    line = 1 if name.endswith("jsonl") else 2
    write(("one two", " three", " unbelievable"))
    with pytest.raises(AttnvizError, match=rf"{name}:{line}: .*unbelievable"):
        attnviz.ablate(table, model, tokenizer=tokenizer)
    write(("one two", "", " three"), ("one two", " three", " four"))
    with pytest.raises(CorpusError, match=rf"{name}:{line}: .*an answer"):
        attnviz.ablate(table, model, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("kind", "options", "word"),
    [
        ("gpt2", {"answer": " away"}, "--answer .* alone"),
        ("gpt2", {"foil": " away"}, "--foil .* alone"),
        ("gpt2", {"answer": " away", "foil": " away"}, "two tokens"),
        ("gpt2", {"answer": " away", "foil": " unbelievable"}, "expected one"),
        ("gpt2", {"answer": " away", "foil": " house", "label": "x"}, "--label"),
        ("gpt2", {"answer": " away", "foil": " house", "role": "obj"}, "--role"),
        ("bert", {"answer": "ran", "foil": "saw"}, r"\[MASK\] once"),
        ("classifier", {"answer": "good", "foil": "worst"}, "no class"),
    ],
)
def test_what_is_no_answer_and_foil_is_one_line(kind, options, word):
    model, tokenizer = MODELS[kind]()
    with pytest.raises(AttnvizError, match=word) as error:
        attnviz.ablate("the cat ran", model, tokenizer=tokenizer, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("columns", "options", "unread"),
    [
        ("text,answer,foil,label", {}, ["label"]),
        ("text,label,foil", {"answer": "bad", "foil": "good"}, ["foil", "label"]),
        ("text,label", {"answer": "bad", "foil": "good"}, ["label"]),
        ("text,answer,foil", {"label": "bad"}, None),
        ("text,answer,foil,label", {"label_column": "label"}, None),
        ("text,label", {"answer": "bad", "foil": "good", "label_column": "label"}, None),
    ],
)
def test_labels_beside_answers_are_not_read_and_named(columns, options, unread, tmp_path):
    """Or refused, where an option asks for them."""
    model, tokenizer = MODELS["classifier"]()
    table, cells = tmp_path / "table.csv", {"text": "the cat ran", "answer": "bad", "foil": "good", "label": "good"}
    table.write_text(f"{columns}\n{','.join(cells[name] for name in columns.split(','))}\n")
    if unread is None:
        with pytest.raises(UsageError):
            attnviz.ablate(table, model, tokenizer=tokenizer, **options)
        return
    result = attnviz.ablate(table, model, tokenizer=tokenizer, curve=False, **options)
    assert result.kind == "answer"
    assert f"columns not read: {', '.join(unread)}" in result.report()


def test_a_model_without_logits_has_no_answer():
    with pytest.raises(AttnvizError, match="without logits"):
        attnviz.ablate("the cat", sharp_bert(), tokenizer=bert_tokenizer(), answer="ran", foil="saw")
