"""ablate with an answer and a foil: how far the logit difference falls, by hooks on transformers' own models."""

import json
from typing import Any

import pytest
import torch
from transformers import BertForMaskedLM, GPT2LMHeadModel

import attnviz
from attnviz.errors import AttnvizError, CorpusError, UsageError
from tests.support.ablations import next_token_model, states_model, without
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
    assert result.clean["logit_difference"] == pytest.approx(clean, abs=SUMS_32)
    assert result.document()["measured"]["logit_difference"] == result.clean["logit_difference"]
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
    assert ablate(*rows).clean["logit_difference"] == pytest.approx(sum(expected) / 2, abs=SUMS_32)
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


def above_mean(logits: torch.Tensor, row: Any) -> torch.Tensor:
    """The logit of a token less half the mean of all: no function of probabilities."""
    token = {"the cat that i saw ran": 7, "one two three": 12}[row["text"]]
    return logits[:, token] - logits.mean(-1) / 2


@pytest.mark.parametrize("options", [{}, {"answer": " away", "foil": " house", "batch_size": 1}])
def test_a_function_of_the_logits_falls_as_with_plain_hooks(options):
    model, tokenizer = next_token_model()
    texts = ["the cat that i saw ran", "one two three"]
    rows = dict[str, Any]()

    def metric(logits: torch.Tensor, row: Any) -> torch.Tensor:
        rows[row["text"]] = row
        return above_mean(logits, row)

    def mean_score() -> float:
        with torch.no_grad():
            last = {text: model(**tokenizer(text, return_tensors="pt")).logits[:, -1] for text in texts}
        return float(torch.cat([above_mean(logits, {"text": text}) for text, logits in last.items()]).mean())

    result = attnviz.ablate(texts, model, tokenizer=tokenizer, method="zero", curve=False, metric=metric, **options)
    clean = mean_score()
    assert (result.kind, result.metrics[0].name, result.options["metric"]) == ("function", "metric", "metric")
    assert result.clean["metric"] == pytest.approx(clean, abs=1e-5)
    assert [rows[text]["answer"] for text in texts] == [options.get("answer")] * 2
    falls = []
    for block, layer in enumerate(model.transformer.h):
        for head in range(model.config.n_head):
            d_head = model.config.n_embd // model.config.n_head

            def without(_: Any, args: Any, head: int = head, d_head: int = d_head) -> Any:
                z = args[0].clone()
                z[..., head * d_head : (head + 1) * d_head] = 0
                return (z,)

            handle = layer.attn.c_proj.register_forward_pre_hook(without)
            falls.append(clean - mean_score())
            handle.remove()
            assert result.head((block, head)).damage["metric"].value == pytest.approx(falls[-1], abs=1e-5)
    assert max(map(abs, falls)) > 1e-2
    (entry,) = [entry for entry in result.document()["heads"] if entry["id"] == str(result.heads[0].id)]
    assert entry["metric"]["value"] == result.heads[0].damage["metric"].value
    assert result.document()["measured"]["metric"] == result.clean["metric"]


def raising(logits: torch.Tensor, row: Any) -> torch.Tensor:
    return logits[:, row["subject"]]


@pytest.mark.parametrize(
    ("kind", "metric", "options", "found"),
    [
        ("gpt2", lambda logits, _: logits, {}, "400|shape"),
        ("gpt2", lambda *_: 0.5, {}, "0.5"),
        ("gpt2", lambda logits, _: logits[:, 0] * float("nan"), {}, "nan"),
        ("gpt2", lambda logits, _: logits[:, 0] * 1j, {}, "complex"),
        ("gpt2", lambda logits, _: logits[:, 0].to("meta"), {}, "meta"),
        ("gpt2", raising, {}, "raising.*KeyError.*subject"),
        ("gpt2", lambda logits, _: (logits.argmax(-1) == 3).float(), {"gradient": True}, "gradient"),
        ("gpt2", lambda logits, _: logits[:, 0], {"role": "obj"}, "--role"),
        ("states", lambda logits, _: logits[:, 0], {}, "metric="),
        ("gpt2", "loss", {}, "loss"),
    ],
)
def test_a_function_that_gives_no_numbers_is_refused_by_name(kind, metric, options, found):
    model, tokenizer = states_model() if kind == "states" else MODELS[kind]()
    with pytest.raises(UsageError, match=found) as raised:
        attnviz.ablate(TEXTS["gpt2"][0], model, tokenizer=tokenizer, metric=metric, **{"gradient": False, **options})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_a_function_without_a_gradient_measures_a_classifier(dtype):
    model, tokenizer = MODELS["classifier"]()

    def is_right(logits: torch.Tensor, row: Any) -> torch.Tensor:
        return (logits.argmax(-1) == model.config.label2id[row["label"]]).to(dtype)

    options = {"tokenizer": tokenizer, "label": "good", "gradient": False, "curve": False}
    result = attnviz.ablate(TEXTS["classifier"][0], model, metric=is_right, **options)
    decision = attnviz.ablate(TEXTS["classifier"][0], model, **options).decisions[0]
    assert result.clean["metric"] == float(decision.right)
    assert result.decisions == (decision,)
    with pytest.raises(UsageError, match="worst"):  # no class of the model
        attnviz.ablate(TEXTS["classifier"][0], model, metric=is_right, **options | {"label": "worst"})
    assert all(abs(head.damage["metric"].value) <= 1 for head in result.heads)
