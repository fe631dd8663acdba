"""An explained layer: what is followed, its numbers, its tables, documents and files."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import attnviz
from attnviz.commands.explain.measure import Explanation, explain
from attnviz.commands.explain.steps import numbers_of, step_of
from attnviz.errors import TextError, UsageError, VerificationError
from attnviz.models.head_ids import HeadId
from attnviz.present.view import ViewOptions
from tests.conftest import SENTENCE, needs_minilm
from tests.support.drawn import drawing_of
from tests.support.explained import of_bert, of_gpt2, planned
from tests.support.llamas import sentencepiece_tokenizer, sharp_llama
from tests.support.models import bert_tokenizer, sharp_bert


@pytest.fixture(scope="module")
def bert() -> Explanation:
    return of_bert(head="2", token="cat")


@pytest.fixture(scope="module")
def gpt2() -> Explanation:
    return of_gpt2(layer=2)


# --- what is followed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "head"),
    [({}, "L0H0"), ({"layer": 2}, "L2H0"), ({"head": "3"}, "L0H3"), ({"head": " 1.2 ", "layer": 1}, "L1H2")],
)
def test_which_layer_and_head(options: dict[str, Any], head: str) -> None:
    result = of_bert(**options)
    assert str(result.head) == head
    assert result.layer == result.stages.layer == HeadId.parse(head).layer
    assert (result.positions is None) == (result.layer > 0)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"layer": 3}, "layer 3"),
        ({"layer": "0"}, "whole number"),
        ({"head": "4"}, "L0H4"),
        *(({"head": head}, "the number of a head") for head in ("x", True, -1, "9" * 5000)),
        ({"head": "L1H0", "layer": 0}, "--layer"),
        *(({"token": token}, str(token)) for token in ("zebra", 9, True)),
        ({"changes": {"type_vocab_size": 1}, "pair": "the dog"}, "one token type"),
    ],
)
def test_what_cannot_be_followed(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError if {"layer", "head", "token"} & set(options) else TextError, match=word):
        of_bert(**options)


@pytest.mark.parametrize(("token", "position"), [(None, 7), ("cat", 2), ("#0", 0), (3, 3)])
def test_which_token(token: str | int | None, position: int) -> None:
    """By default the last that is not special, or the last."""
    assert of_bert(token=token).token == position
    assert of_gpt2("<|endoftext|>").token == 0


def test_a_broken_layer_fails_only_where_it_is_looked_at() -> None:
    model = sharp_bert()
    model.encoder.layer[2].output.dense.register_forward_hook(lambda *given: given[2] + 1)
    with pytest.raises(VerificationError, match="feed forward output of layer 2"):
        explain(SENTENCE, model, tokenizer=bert_tokenizer(), layer=2)
    assert explain(SENTENCE, model, tokenizer=bert_tokenizer()).layer == 0


# --- numbers and words --------------------------------------------------------------------------------------------


def test_numbers_of_the_followed_token_are_those_of_the_tensors(bert: Explanation) -> None:
    pattern, added = bert.tensor("pattern")[2, 2], bert.tensor("attention_output")[2]
    query, weighted = bert.tensor("split")[0, 2, 2], bert.tensor("weighted")[2, 2]
    told = {
        "pattern": f" in L0H2, highest: ‘{bert.tokens.labels[int(pattern.argmax())]}’ {float(pattern.max()):.2f}",
        "attention_output": f": length {float(added.norm()):.3g} [",
        "split": f" in L0H2: query length {float(query.norm()):.3g} [",
        "weighted": f" in L0H2: length {float(weighted.norm()):.3g} [",
        "mask": " may attend to 9 of 9 tokens",
    }
    for name, numbers in told.items():
        assert numbers_of(bert, name).startswith(f"‘cat’{numbers}")


def test_numbers_of_a_causal_head_leave_out_what_is_masked() -> None:
    result = of_gpt2("the cat ran", token="#0")
    assert numbers_of(result, "pattern").count("‘") == 2  # the token, and itself as the only key
    assert "may attend to 1 of" in numbers_of(result, "mask")


# --- documents ----------------------------------------------------------------------------------------------------


def test_the_document_has_every_step(gpt2: Explanation, tmp_path: Path) -> None:
    content = gpt2.save(tmp_path, figures=[])
    stages, n = {stage["name"]: stage for stage in content["stages"]}, len(gpt2.tokens)
    assert list(stages) == list(gpt2.stages)
    assert stages["split"]["shape"] == [3, 4, n, 8]
    assert stages["scores"]["error"] is None
    assert stages["output"]["error"] <= stages["output"]["tolerance"] == 1e-4
    query = gpt2.tensor("query")
    assert (stages["query"]["min"], stages["query"]["max"]) == (float(query.min()), float(query.max()))
    assert stages["query"]["norm"] == pytest.approx(float(query.square().sum(-1).sqrt().mean()))
    assert stages["mask"]["mean"] == pytest.approx((n + 1) / (2 * n))
    with (tmp_path / "explain.csv").open(encoding="utf-8", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == list(stages)


def test_steps_are_a_mapping(bert: Explanation) -> None:
    assert len(bert.stages) == len(list(bert.stages)) == 18
    with pytest.raises(UsageError, match="no step"):
        bert.stages["nothing"]


def test_half_precision_is_explained() -> None:
    result = explain(SENTENCE, sharp_bert().bfloat16(), tokenizer=bert_tokenizer())
    assert "bfloat16" in result.report()
    assert result.stages["output"].tensor.dtype == torch.bfloat16


@needs_minilm
@pytest.mark.parametrize("model", ["minilm", "tiny-gpt2"])
def test_the_built_in_models_are_explained(model: str) -> None:
    """L0H2 of MiniLM attends by position: its scores owe nothing to the words, on any text."""
    result = attnviz.explain(SENTENCE, model, device="cpu")
    assert max(check.error for check in result.stages.checks.values()) < 1e-5
    assert result.output.error < 1e-6
    assert result.positions is not None
    assert result.positions.error < 1e-6
    if model == "minilm":
        assert result.positions.heads[2].groups["position"] == pytest.approx(1.0, abs=0.05)
        assert (result.positions.heads[1].groups["content"] or 0) > 0.8


# --- of the Llama kind ---------------------------------------------------------------------------------------------

LLAMAS_TEXT = "the cat that i saw ran away."


@pytest.fixture(scope="module")
def llamas() -> dict[str, Explanation]:
    def result(family: str, **options: Any) -> Explanation:
        return explain(LLAMAS_TEXT, sharp_llama(family), tokenizer=sentencepiece_tokenizer(), **options)

    return {
        "llama": result("llama", head="L1H3", token="cat"),
        "gemma2": result("gemma2"),
        "gemma3_text": result("gemma3_text", layer=1),
        "olmo2": result("olmo2"),
        "gpt_neox": result("gpt_neox"),
    }


def test_steps_are_told_with_this_models_numbers(llamas: dict[str, Explanation]) -> None:
    llama, gemma, olmo, neox = (llamas[family] for family in ("llama", "gemma2", "olmo2", "gpt_neox"))
    phi, granite, starcoder, plain = (
        explain(LLAMAS_TEXT, sharp_llama(family, **changes), tokenizer=sentencepiece_tokenizer())
        for family, changes in (("phi3", {}), ("granite", {}), ("starcoder2", {}), ("starcoder2", {"use_bias": False}))
    )
    cohere = explain(LLAMAS_TEXT, sharp_llama("cohere"), tokenizer=sentencepiece_tokenizer())
    for result, step, formula in (
        (of_bert(pair="the dog"), "input", "x = norm(word + position + segment)"),
        (of_gpt2(), "input", "x = word + position"),
        (of_gpt2(), "scores", "Q Kᵀ / √d_head = Q Kᵀ / √8"),
        (of_gpt2(changes={"scale_attn_weights": False}), "scores", "Q Kᵀ"),
        (of_gpt2(changes={"scale_attn_by_inverse_layer_idx": True}, layer=1), "scores", "Q Kᵀ · 0.1768"),
        (llama, "split", "Q: 64 = 4 × 16; K, V: 32 = 2 × 16"),
        (llama, "attention_norm", "norm(x) = x / √(mean(x²) + ε) · γ"),
        (llama, "gated", "f(g) · u"),
        (gemma, "capped", "3 · tanh(scores / 3)"),
        (gemma, "input", "x = word · √d_model"),
        (gemma, "attention_residual", "h = x + norm(attention)"),
        (gemma, "attention_norm", "norm(x) = x / √(mean(x²) + ε) · (1 + γ)"),
        (starcoder, "expanded", "u = norm(h) W_1 + b_1"),
        (plain, "expanded", "u = norm(h) W_1"),
        (granite, "input", "x = word · 12"),
        (granite, "attention_residual", "h = x + 0.22 · attention"),
        (olmo, "query", "Q = x W_Q"),
        (olmo, "gate", "g = h W_gate"),
        (gemma, "mask", "allowed: query − 4 < key ≤ query"),
        (phi, "rotated", "pair i of the first 4 dimensions of Q and K turned by position · f_i"),
        (neox, "feed_forward_norm", "norm(x) = (x − mean) / √(var + ε) · γ + β"),
        (neox, "expanded", "u = norm(x) W_1 + b_1"),
        (neox, "output", "x + attention + feed forward"),
        (cohere, "attention_norm", "norm(x) = (x − mean) / √(var + ε) · γ"),
    ):
        assert step_of(result, step).formula == formula


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gemma2", "gemma3_text", "olmo2", "gpt_neox"])
def test_the_report_and_the_document_have_every_step(family: str, llamas: dict[str, Explanation]) -> None:
    result = {"bert": of_bert, "gpt2": of_gpt2}[family]() if family in ("bert", "gpt2") else llamas[family]
    text, content = result.report(80), result.document()
    titles = re.findall(r"^[ 12]\d  (\S.*?)  ", text, re.MULTILINE)
    assert titles == [step_of(result, name).title for name in result.stages]
    assert text.count("✓") == len(result.stages.checks)
    assert "{" not in text
    assert [stage["name"] for stage in content["stages"]] == list(result.stages)
    assert (content["positions"] is None) == (family not in ("bert", "gpt2"))
    orders = {"olmo2": "reordered norm", "gpt_neox": "pre-norm, in parallel", "bert": "post-norm"}
    assert content["norm_order"] == orders.get(family, "pre-norm")


def test_the_diagram_has_the_steps_of_the_model(llamas: dict[str, Explanation]) -> None:
    plans = {
        family: next(iter(drawing_of("explain", "path").plans(of, ViewOptions()))) for family, of in llamas.items()
    }
    steps = {
        family: [name for band in plan.bands.values() for group in band for name in group]
        for family, plan in plans.items()
    }
    assert [steps[family].count("RMS norm") for family in ("llama", "gemma3_text", "olmo2")] == [3, 5, 2]
    assert steps["gemma3_text"][3:6] == ["split", "normed heads", "turned heads"]
    assert steps["gemma3_text"].count("attention_output_norm") == 1
    assert ["capped" in steps[family] for family in ("llama", "gemma2")] == [False, True]
    assert [name for name in ("gates", "activated gate", "gated") if name not in steps["llama"]] == []
    llama, panels = llamas["llama"], plans["llama"].panels
    assert torch.equal(torch.from_numpy(panels["turned key"].values), llama.tensor("rotated")[1, 3])
    assert torch.equal(torch.from_numpy(panels["gate"].values), llama.tensor("gate"))
    assert panels["turned query"].limit == panels["turned key"].limit


def test_a_layer_with_experts_says_which_each_token_takes() -> None:
    result = explain("the cat saw the dog", sharp_llama("mixtral"), tokenizer=sentencepiece_tokenizer(), token=2)
    weights = result.tensor("experts")
    assert [(weights[token] > 0).sum() for token in range(len(weights))] == [2] * len(weights)
    first, second = result.experts_of(2)
    assert weights[2, first] == weights[2].max() >= weights[2, second] == result.experts_of(2)[second] > 0
    entry = result.document()["tokens"][2]["experts"]
    assert entry == [{"expert": each, "weight": float(weights[2, each])} for each in (first, second)]
    assert "experts" in planned(result).panels
    assert of_gpt2("the cat").experts_of(0) == {}
