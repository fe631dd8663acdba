"""ablate with an answer and a foil: how far the logit difference falls, by hooks on transformers' own models."""

import json
from typing import Any

import pytest
import torch
from transformers import BertForMaskedLM, GPT2LMHeadModel

import attnviz
from attnviz.errors import AttnvizError, CorpusError, UsageError
from tests.support.ablations import without
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


@pytest.mark.parametrize("kind", MODELS)
def test_the_difference_falls_as_in_the_model_without_the_head(kind):
    (model, tokenizer), (text, answer, foil) = MODELS[kind](), TEXTS[kind]
    names = {"label": answer} if kind == "classifier" else {"answer": answer}
    result = attnviz.ablate(text, model, tokenizer=tokenizer, method="zero", foil=foil, curve=False, **names)
    assert result.kind == "answer"
    clean = difference(kind, model, tokenizer, text, answer, foil)
    assert result.clean_difference == pytest.approx(clean, abs=SUMS_32)
    assert result.document()["measured"]["logit_difference"] == result.clean_difference
    falls = [head.damage["logit_difference"].value for head in result.heads]
    assert falls == sorted(falls, key=abs, reverse=True)  # what works against the answer matters, too
    for head, fall in zip(result.heads, falls, strict=True):
        less = difference(kind, without(model, tokenizer, [head.id]), tokenizer, text, answer, foil)
        assert fall == pytest.approx(clean - less, abs=SUMS_32)
    assert max(map(abs, falls)) > 1e-3


@pytest.mark.parametrize("name", ["answers.tsv", "answers.csv", "answers.jsonl"])
def test_a_table_has_an_answer_and_a_foil_for_each_text(name, tmp_path):
    model, tokenizer = MODELS["gpt2"]()
    table = tmp_path / name

    def ablate(*rows: tuple[str, str, str], **options: str) -> Any:
        separator = "\t" if name.endswith("tsv") else ","
        columns = "text", "answer", "foil"
        lines = [separator.join(row) for row in (columns, *rows)]
        if name.endswith("jsonl"):
            lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
        table.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return attnviz.ablate(table, model, tokenizer=tokenizer, curve=False, **options)

    rows = [("the cat that i saw ran", " away", " house"), ("one two", " three", " four")]
    expected = [difference("gpt2", model, tokenizer, *row) for row in rows]
    assert ablate(*rows).clean_difference == pytest.approx(sum(expected) / 2, abs=SUMS_32)
    with pytest.raises(UsageError):
        ablate(*rows, answer=" away", foil=" house")
    line = 1 if name.endswith("jsonl") else 2
    with pytest.raises(AttnvizError, match=rf"{name}:{line}: .*unbelievable"):
        ablate(("one two", " three", " unbelievable"))
    with pytest.raises(CorpusError, match=rf"{name}:{line}: "):
        ablate(("one two", "", " three"), rows[1])


@pytest.mark.parametrize(
    ("columns", "options", "unread"),
    [
        ("text,answer,foil,label", {}, "label"),
        ("text,label,foil", {"answer": "bad", "foil": "good"}, "foil, label"),
        ("text,label", {"answer": "bad", "foil": "good"}, "label"),
        ("text,answer,foil", {"label": "bad"}, None),
        ("text,answer,foil,label", {"label_column": "label"}, None),
        ("text,label", {"answer": "bad", "foil": "good", "label_column": "label"}, None),
    ],
)
def test_labels_beside_answers_are_named_as_not_read_or_refused(columns, options, unread, tmp_path):
    model, tokenizer = MODELS["classifier"]()
    table, cells = tmp_path / "table.csv", {"text": "the cat ran", "answer": "bad", "foil": "good", "label": "good"}
    table.write_text(f"{columns}\n{','.join(cells[name] for name in columns.split(','))}\n")
    if unread is None:
        with pytest.raises(UsageError):
            attnviz.ablate(table, model, tokenizer=tokenizer, **options)
        return
    result = attnviz.ablate(table, model, tokenizer=tokenizer, curve=False, **options)
    assert result.kind == "answer"
    assert f": {unread}" in result.report()
