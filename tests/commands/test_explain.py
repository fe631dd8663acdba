"""An explained layer: what is followed, its numbers, its tables, documents and files."""

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.text import Text

import attnviz
from attnviz.commands.explain import Explanation, explain
from attnviz.errors import TextError, UsageError, VerificationError
from attnviz.models.head_ids import HeadId
from attnviz.present.layer_steps import steps_of
from tests.conftest import SENTENCE, needs_minilm
from tests.support.explained import of_bert, of_gpt2
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, sharp_bert
from tests.support.tolerances import SHARP_32, SUMS_32

FAMILIES = ["bert", "gpt2", "llama", "gemma2", "olmo2", "gpt_neox", "granite", "gpt_oss"]


@cache
def explained(family: str, layer: int = 1) -> Explanation:
    followed: dict[str, Any] = {"head": f"L{layer}H2", "token": "saw"}
    if family in ("bert", "gpt2"):
        return {"bert": of_bert, "gpt2": of_gpt2}[family](**followed)
    tokenizer = sentencepiece_tokenizer()
    return explain("the cat that i saw ran away.", sharp_llama(family), tokenizer=tokenizer, **followed)


@pytest.mark.parametrize(
    ("options", "head"),
    [({}, "L0H0"), ({"layer": 2}, "L2H0"), ({"head": "3"}, "L0H3"), ({"head": " 1.2 ", "layer": 1}, "L1H2")],
)
def test_which_layer_and_head(options: dict[str, Any], head: str) -> None:
    result = of_bert(**options)
    assert str(result.head) == head
    assert result.layer == result.stages.layer == HeadId.parse(head).layer


@pytest.mark.parametrize(("token", "position"), [(None, 7), ("cat", 2), ("#0", 0), (3, 3)])
def test_which_token(token: str | int | None, position: int) -> None:
    """By default the last that is not special, or the last."""
    assert of_bert(token=token).token == position
    assert of_gpt2("<|endoftext|>").token == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"layer": 3}, "layer 3"),
        ({"layer": "0"}, "layer"),
        ({"head": "4"}, "L0H4"),
        *(({"head": head}, "head") for head in ("x", True, -1, "9" * 5000)),
        ({"head": "L1H0", "layer": 0}, "--layer"),
        *(({"token": token}, str(token)) for token in ("zebra", 9, True)),
        ({"changes": {"type_vocab_size": 1}, "pair": "the dog"}, "token type"),
    ],
)
def test_what_cannot_be_followed(options: dict[str, Any], word: str) -> None:
    with pytest.raises(TextError if "pair" in options else UsageError, match=word):
        of_bert(**options)


def test_a_broken_layer_fails_only_where_it_is_looked_at() -> None:
    model = sharp_bert()
    model.encoder.layer[2].output.dense.register_forward_hook(lambda *given: given[2] + 1)
    with pytest.raises(VerificationError, match="layer 2"):
        explain(SENTENCE, model, tokenizer=bert_tokenizer(), layer=2)
    assert explain(SENTENCE, model, tokenizer=bert_tokenizer()).layer == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_has_a_formula_and_stands_in_the_report_and_the_document(family: str) -> None:
    result = explained(family)
    text, content = result.report(80, verbose=True), result.document()
    assert all(f"{step.number:2d}  {step.title}" in text for step in steps_of(result.stages).values())
    assert text.count("✓") == len(result.stages.checks)
    assert "{" not in text
    assert [stage["name"] for stage in content["stages"]] == list(result.stages)


@pytest.mark.parametrize(
    ("family", "step", "formula"),
    [
        ("llama", "attention_norm", "norm(x) = x / √(mean(x²) + ε) · γ"),
        ("gemma2", "attention_norm", "norm(x) = x / √(mean(x²) + ε) · (1 + γ)"),
        ("gemma2", "capped", "3 · tanh(scores / 3)"),
        ("gemma2", "mask", "allowed: query − 4 < key ≤ query"),
        ("olmo2", "query", "Q = x W_Q"),
        ("ministral3", "rotated", "pair i of Q and K turned by position · f_i; q · (1 + 0.8 ln(1 + ⌊position / 6⌋))"),
        ("gpt_neox", "output", "x + attention + feed forward"),
    ],
)
def test_formulas_are_of_this_model(family: str, step: str, formula: str) -> None:
    assert steps_of(explained(family, layer=0).stages)[step].formula == formula


def test_numbers_of_the_document_are_those_of_the_tensors(tmp_path: Path) -> None:
    result = of_gpt2(layer=2)
    content = result.save(tmp_path, figures=[])
    stages, n = {stage["name"]: stage for stage in content["stages"]}, len(result.tokens)
    assert stages["split"]["shape"] == [3, 4, n, 8]
    assert stages["scores"]["error"] is None
    assert stages["output"]["error"] <= stages["output"]["tolerance"] == 1e-4
    query = result.tensor("query")
    assert (stages["query"]["min"], stages["query"]["max"]) == (float(query.min()), float(query.max()))
    assert stages["query"]["norm"] == pytest.approx(float(query.square().sum(-1).sqrt().mean()))
    assert stages["mask"]["mean"] == pytest.approx((n + 1) / (2 * n))
    with (tmp_path / "explain.csv").open(encoding="utf-8", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == list(stages)


@pytest.mark.parametrize(
    "family", ["bert", "gpt2", "llama", "gemma2", "granite", "gpt_oss", "hunyuan_v1_dense", "ministral3"]
)
def test_the_softmax_of_the_followed_row_can_be_done_by_hand(family: str) -> None:
    result = explained(family)
    row = result.document()["followed"]
    assert (row["head"], row["token"], len(row["keys"])) == ("L1H2", result.token, len(result.tokens))
    query, output = np.array(row["query"]), np.zeros(len(row["output"]))
    exponentials = []
    for key in row["keys"]:
        product = query @ np.array(key["key"])
        assert key["product"] == pytest.approx(product, abs=SHARP_32)
        assert key["score"] == pytest.approx(row["scale"] * product, abs=SHARP_32)
        entering = 3 * np.tanh(key["score"] / 3) if family == "gemma2" else key["score"]
        exponentials.append(np.exp(entering) if key["allowed"] else 0.0)
        output += key["weight"] * np.array(key["value"])
    sinks = result.parameters.sinks
    total = sum(exponentials) + (0 if sinks is None else float(sinks[2].detach().exp()))
    weights = result.tensor("pattern")[2, result.token]
    assert [key["weight"] for key in row["keys"]] == weights.tolist()
    np.testing.assert_allclose(np.array(exponentials) / total, weights, atol=SUMS_32)
    np.testing.assert_allclose([key["exponential"] / row["total"] for key in row["keys"]], weights, atol=SUMS_32)
    np.testing.assert_allclose(output, row["output"], atol=SHARP_32)


def test_the_report_and_the_figure_have_the_followed_row() -> None:
    result = of_bert(head="L0H2", token="cat")
    line = next(line for line in result.report().splitlines() if line.startswith("#5 saw "))
    (saw,) = (key for key in result.document()["followed"]["keys"] if key["token"] == "saw")
    printed = [float(number.replace("−", "-")) for number in line.split()[2:6]]
    expected = [saw[name] for name in ("product", "score", "exponential", "weight")]
    assert printed == pytest.approx(expected, abs=SHARP_32)
    assert set(line.split()[2:6]) <= {text.get_text() for text in result.figure("row").findobj(Text)}


def test_half_precision_is_explained() -> None:
    result = explain(SENTENCE, sharp_bert().bfloat16(), tokenizer=bert_tokenizer())
    assert result.stages["output"].tensor.dtype == torch.bfloat16
    with pytest.raises(UsageError, match="nothing"):
        result.stages["nothing"]


@needs_minilm
@pytest.mark.parametrize("model", ["minilm", pytest.param("tiny-gpt2", marks=pytest.mark.thorough)])
def test_the_built_in_models_are_explained(model: str) -> None:
    result = attnviz.explain(SENTENCE, model, device="cpu")
    assert max(check.error for check in result.stages.checks.values()) < SUMS_32
    assert result.output.error < SUMS_32


def test_a_mixture_of_experts_is_one_step_named_so() -> None:
    result = explain("the cat saw the dog", sharp_llama("mixtral"), tokenizer=sentencepiece_tokenizer(), token=2)
    assert "feed_forward_output" in steps_of(result.stages)
    (entry,) = (stage for stage in result.document()["stages"] if stage["title"] == "Mixture of experts")
    assert (entry["name"], entry["compared"]) == ("feed_forward_output", False)
    assert result.stages.d_ff == result.checkpoint.config.intermediate_size
    assert not of_gpt2("the cat").stages.experts
