"""The steps of layers of the Llama kind against the running model; every wrong step fails; words and figures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnviz.commands.explain import reference, stages
from attnviz.commands.explain.measure import Explanation, explain
from attnviz.commands.explain.reference import ACTIVATIONS, LayerParameters
from attnviz.commands.explain.stages import VerifiedStages, verify_stages
from attnviz.commands.explain.steps import norm_order, numbers_of, step_of
from attnviz.errors import UsageError, VerificationError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.reference.attention import RMSNorm
from attnviz.reference.positions import Rotary
from tests.support.explained import order, planned
from tests.support.llamas import FAMILIES, WINDOW, WINDOWED, sentencepiece_tokenizer, sharp_llama

TOKENIZER = sentencepiece_tokenizer()
TEXT = "the cat that i saw ran away."
NEAR = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
SILENT = {"split", "rotated", "scores", "capped", "mask", "weighted"}

Change = Callable[[LayerParameters], LayerParameters]


def of(family: str, **changes: Any) -> Checkpoint:
    return from_loaded(sharp_llama(family, **changes), TOKENIZER)


def steps_of(checkpoint: Checkpoint, layers: tuple[int, ...] = (0, 1)) -> list[VerifiedStages]:
    steps: list[VerifiedStages] = []
    verify_stages(checkpoint, checkpoint.tokenize(TEXT), layers, steps.append)
    return steps


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, torch.float32) for family in FAMILIES),
        *(("gemma2", dtype) for dtype in NEAR),
        ("qwen3", torch.float16),
    ],
)
def test_the_last_step_is_the_next_hidden_state_of_the_model(family: str, dtype: torch.dtype) -> None:
    checkpoint = of(family, dtype=dtype)
    inputs = checkpoint.tokenize(TEXT).model_inputs(checkpoint.device)
    with torch.inference_mode():
        hidden = checkpoint.model(**inputs, output_hidden_states=True).hidden_states
    for verified in steps_of(checkpoint):
        last, expected = list(verified.values())[-1], hidden[verified.layer + 1][0]
        assert last.name == ("final_norm" if verified.layer else "output")
        assert (last.tensor - expected).abs().max() <= NEAR[dtype] * expected.abs().max()
        assert last.tensor.dtype == dtype
        assert set(verified) - set(verified.checks) == (SILENT | ({"input"} if verified.layer else set())) & set(
            verified
        )


@pytest.mark.parametrize(
    ("family", "has"),
    [
        ("llama", {"rotated", "gate", "gated"}),
        ("qwen3", {"head_norm", "rotated"}),
        ("gemma2", {"rotated", "capped", "attention_output_norm", "feed_forward_output_norm"}),
        ("gemma3_text", {"head_norm", "rotated", "attention_output_norm", "feed_forward_output_norm"}),
        ("phi3", {"rotated", "gate", "gated"}),
    ],
)
def test_a_family_has_its_own_steps_and_no_others(family: str, has: set[str]) -> None:
    special = {"head_norm", "capped", "attention_output_norm", "feed_forward_output_norm"}
    found = set(steps_of(of(family), (0,))[0])
    assert has <= found
    assert found & special == has & special


def test_a_layer_without_rotary_positions_has_no_such_step() -> None:
    turned, still = steps_of(of("smollm3"))
    assert "rotated" in turned
    assert "rotated" not in still


@pytest.mark.parametrize("family", WINDOWED)
def test_a_window_is_in_the_mask(family: str) -> None:
    masks = [verified["mask"].tensor for verified in steps_of(of(family))]
    narrow = [mask for mask in masks if int(mask.sum(-1).max()) == WINDOW]
    assert len(narrow) == (2 if family in ("mistral", "phi3") else 1)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "phi3"])
def test_groups_of_heads(family: str, n_kv_heads: int) -> None:
    """As many tokens as heads, so that no axis can be told by its length."""
    checkpoint = of(family, num_key_value_heads=n_kv_heads)
    steps: list[VerifiedStages] = []
    tokens = checkpoint.tokenize("the cat ran")
    assert len(tokens) == checkpoint.n_heads
    verify_stages(checkpoint, tokens, [0], steps.append)
    assert steps[0]["key"].shape[1] == n_kv_heads * checkpoint.d_head
    _, key, value = steps[0]["split"].tensor
    group = 4 // n_kv_heads
    assert all(torch.equal(part[0], part[group - 1]) for part in (key, value))


@pytest.mark.parametrize(
    "changes",
    [{"mlp_bias": True}, {"hidden_act": "gelu"}, {"rms_norm_eps": 1e-2}, {"tie_word_embeddings": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_of_a_llama_are_reproduced(changes: dict[str, Any]) -> None:
    assert len(steps_of(of("llama", **changes))) == 2


# --- wrong formulas must fail ------------------------------------------------------------------------------------


def in_heads(**changes: Callable[[Any], Any]) -> Change:
    return lambda p: replace(
        p, heads=replace(p.heads, **{name: change(getattr(p.heads, name)) for name, change in changes.items()})
    )


def without_one(norm: RMSNorm) -> RMSNorm:
    return replace(norm, one_more=not norm.one_more)


def unweighted(norm: RMSNorm) -> RMSNorm:
    return replace(norm, weight=torch.ones_like(norm.weight))


def slower(rotary: Rotary) -> Rotary:
    return replace(rotary, frequencies=rotary.frequencies * 0.9)


WRONG: dict[str, tuple[str, Change]] = {
    "layer norms": ("llama", lambda p: replace(p, attention_norm=MeanTaken(p.attention_norm))),
    "1 + w": ("llama", lambda p: replace(p, attention_norm=without_one(p.attention_norm))),
    "w for 1 + w": ("gemma2", lambda p: replace(p, attention_norm=without_one(p.attention_norm))),
    "a large epsilon": ("llama", lambda p: replace(p, feed_forward_norm=replace(p.feed_forward_norm, epsilon=0.1))),
    "norms exchanged": (
        "llama",
        lambda p: replace(p, attention_norm=p.feed_forward_norm, feed_forward_norm=p.attention_norm),
    ),
    "no rotation": ("llama", in_heads(rotary=lambda _: None)),
    "slower rotation": ("llama", in_heads(rotary=slower)),
    "rotation where there is none": ("smollm3", in_heads(rotary=lambda _: Rotary(torch.ones(4)))),
    "no norm of queries": ("qwen3", in_heads(query_norm=unweighted)),
    "no norms of heads": ("gemma3_text", in_heads(query_norm=lambda _: None)),
    "no cap": ("gemma2", in_heads(cap=lambda _: None)),
    "another cap": ("gemma2", in_heads(cap=lambda cap: cap + 1)),
    "no window": ("mistral", in_heads(window=lambda _: None)),
    "a window off by one": ("mistral", in_heads(window=lambda window: window + 1)),
    "no scale": ("llama", in_heads(scale=lambda _: 1.0)),
    "groups in another order": ("llama", in_heads(key=lambda key: replace(key, weight=key.weight.flip(0)))),
    "no bias of keys": ("qwen2", in_heads(key=lambda key: replace(key, bias=None))),
    "no gate": ("llama", lambda p: replace(p, gate=None)),
    "gate for what it gates": ("llama", lambda p: replace(p, gate=p.up_proj, up_proj=p.gate)),
    "halves exchanged": ("phi3", lambda p: replace(p, gate=p.up_proj, up_proj=p.gate)),
    "another activation": ("llama", lambda p: replace(p, activation=ACTIVATIONS["gelu"])),
    "the other gelu": ("gemma2", lambda p: replace(p, activation=ACTIVATIONS["gelu"])),
    "no norm after the attention": ("gemma2", lambda p: replace(p, attention_output_norm=None)),
    "no norm after the network": ("gemma3_text", lambda p: replace(p, feed_forward_output_norm=None)),
    "post-norm": ("llama", lambda p: replace(p, pre_norm=False)),
}  # fmt: skip


class MeanTaken:
    """A norm that also takes the mean out."""

    def __init__(self, norm: Any) -> None:
        self.norm = norm

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x - x.mean(-1, keepdim=True))  # type: ignore[no-any-return]


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_formula_fails(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, change = WRONG[mistake]
    layer = 1 if family in ("smollm3", "gemma3_text") else 0
    right = reference.layer_parameters
    assert steps_of(of(family), (layer,))
    monkeypatch.setattr(stages, "layer_parameters", lambda *given: change(right(*given)))
    with pytest.raises(VerificationError):
        steps_of(of(family), (layer,))


def test_an_embedding_without_its_scale_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = of("gemma2")
    tables = checkpoint.architecture.embeddings(checkpoint.model)
    monkeypatch.setattr(type(checkpoint.architecture), "embeddings", lambda *_: replace(tables, scale=1.0))
    with pytest.raises(VerificationError, match="first at input of layer 0"):
        steps_of(checkpoint, (0,))


@pytest.mark.parametrize(
    ("family", "module", "step"),
    [
        ("llama", "mlp.gate_proj", "gate"),
        ("llama", "mlp.act_fn", "activated"),
        ("qwen3", "self_attn.k_norm", "head norm"),
        ("gemma2", "post_attention_layernorm", "attention output norm"),
        ("gemma2", "post_feedforward_layernorm", "feed forward output norm"),
        ("phi3", "self_attn.qkv_proj", "query"),
        ("phi3", "mlp.gate_up_proj", "gate"),
    ],
)
def test_a_model_that_computes_something_else_fails_at_the_step(family: str, module: str, step: str) -> None:
    checkpoint = of(family)
    changed: Any = checkpoint.model.get_submodule(f"layers.0.{module}")
    changed.register_forward_hook(lambda _, __, result: result + 0.5)
    with pytest.raises(VerificationError, match=f"first at {step} of layer 0"):
        steps_of(checkpoint, (0,))


def test_parts_of_another_width_are_an_error_of_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.recompute_layer
    narrow = lambda *given: {**(steps := right(*given)), "gate": steps["gate"][:, :-1]}  # noqa: E731
    monkeypatch.setattr(stages, "recompute_layer", narrow)
    with pytest.raises(VerificationError, match=r"gate_up_proj is 96 wide; expected 47 \+ 48"):
        steps_of(of("phi3"), (0,))


# --- words and figures ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def explained() -> dict[str, Explanation]:
    def result(family: str, **options: Any) -> Explanation:
        return explain(TEXT, sharp_llama(family), tokenizer=TOKENIZER, **options)

    return {
        "llama": result("llama", head="L1H3", token="cat"),
        "gemma2": result("gemma2"),
        "gemma3_text": result("gemma3_text", layer=1),
    }


def test_steps_are_told_with_this_models_numbers(explained: dict[str, Explanation]) -> None:
    llama, gemma = explained["llama"], explained["gemma2"]
    told = {
        "query": "Q = norm(x) W_Q + b_Q",
        "split": "Q: 64 = 4 × 16; K, V: 32 = 2 × 16",
        "attention_norm": "norm(x) = x / √(mean(x²) + ε) · γ",
        "rotated": "pair i of Q and K turned by position · f_i",
        "gated": "f(g) · u",
        "feed_forward_output": "(f(g) · u) W_down",
    }
    assert {name: step_of(llama, name).formula for name in told} == told
    assert step_of(gemma, "capped").formula == "3 · tanh(scores / 3)"
    assert step_of(gemma, "input").formula == "x = word · √d_model"
    assert step_of(gemma, "attention_residual").formula == "h = x + norm(attention)"
    assert step_of(gemma, "attention_norm").formula.endswith("· (1 + γ)")
    assert step_of(gemma, "mask").formula == "allowed: query − 4 < key ≤ query"
    assert "(with key-value head 1)" in numbers_of(llama, "split")
    assert "at position 2 is turned by 2 radians" in numbers_of(llama, "rotated")
    row = llama.tensor("input")[2]
    assert f"root mean square, {float(row.square().mean().sqrt()):.3g}" in numbers_of(llama, "attention_norm")
    positive = int((llama.tensor("gate")[2] > 0).sum())
    assert f": {positive} of 48 inputs are positive" in numbers_of(llama, "activated")
    added = float(gemma.tensor("attention_output_norm")[gemma.token].norm())
    assert f"plus a vector of length {added:.3g} " in numbers_of(gemma, "attention_residual")
    assert norm_order(llama).startswith("Pre-norm (Llama): an RMS norm stands before")
    assert "and one after each" in norm_order(gemma)
    assert step_of(explain(TEXT, sharp_llama("phi3"), tokenizer=TOKENIZER), "rotated").formula.startswith(
        "pair i of the first 4 dimensions of Q and K"
    )


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text"])
def test_the_report_and_the_document_have_every_step(family: str, explained: dict[str, Explanation]) -> None:
    result = explained[family]
    text, content = result.report(80), result.document()
    assert "{" not in text
    assert "this model has no position embeddings" in text.replace("\n", " ")
    assert [stage["name"] for stage in content["stages"]] == list(result.stages)
    assert content["positions"] is None
    with pytest.raises(UsageError, match="not told apart in a model without position embeddings"):
        result.figure("positions")


def test_the_diagram_has_the_steps_of_the_model(explained: dict[str, Explanation]) -> None:
    heads = ["input", "RMS norm", "attention_norm", "split"]
    gated = ["RMS norm", "feed_forward_norm", "gates", "activated gate", "gated", "feed_forward_output"]
    middle = ["mask", "pattern", "weighted", "concatenated", "attention_output"]
    llama = [*heads, "turned heads", "scores", *middle, "+", "attention_residual", *gated, "+", "output"]
    assert order(explained["llama"]) == [*llama, "RMS norm", "final_norm"]
    names = order(explained["gemma3_text"])
    assert names[3:6] == ["split", "normed heads", "turned heads"]
    assert names.count("attention_output_norm") == names.count("feed_forward_output_norm") == 1
    assert "capped" in order(explained["gemma2"])


def test_panels_hold_the_numbers_of_the_steps(explained: dict[str, Explanation]) -> None:
    llama = explained["llama"]
    plan = planned(llama)
    assert torch.equal(torch.from_numpy(plan.panels["turned key"].values), llama.tensor("rotated")[1, 3])
    assert torch.equal(torch.from_numpy(plan.panels["gate"].values), llama.tensor("gate"))
    assert plan.panels["turned query"].limit == plan.panels["turned key"].limit
