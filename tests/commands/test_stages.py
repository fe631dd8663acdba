"""Every step of a layer against the running model: oracle, mutations, what cannot be compared, what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertForMaskedLM, GPT2LMHeadModel
from transformers.activations import ACT2FN

from attnviz.commands.explain import reference, stages
from attnviz.commands.explain.reference import ACTIVATIONS, LayerParameters, activation_named
from attnviz.commands.explain.stages import Probe, StageCheck, VerifiedStages, probes_of, verify_stages
from attnviz.errors import ArchitectureError, VerificationError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.reference import attention
from attnviz.reference.attention import HeadParameters, LayerNorm
from tests.conftest import SENTENCE
from tests.support.explained import BOTH, DTYPES, bert, gpt2, sharper, steps_of
from tests.support.models import bert_tokenizer, gpt2_tokenizer, sharp_bert, sharp_gpt2

Build = Callable[..., Checkpoint]


@BOTH
@DTYPES
def test_the_last_step_is_the_next_hidden_state_of_the_model(build: Build, dtype: torch.dtype) -> None:
    checkpoint = build()
    checkpoint.model.to(dtype)
    tokens = checkpoint.tokenize(SENTENCE)
    with torch.inference_mode():
        hidden = checkpoint.model(**tokens.model_inputs(checkpoint.device), output_hidden_states=True)
    near = {torch.float64: 1e-12, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}[dtype]
    for verified in steps_of(checkpoint):
        last = list(verified.values())[-1]  # GPT-2's last hidden state is the one after its final norm
        expected = hidden.hidden_states[verified.layer + 1][0]
        assert last.name == ("final_norm" if verified.layer == 2 and build is gpt2 else "output")
        assert (last.tensor - expected).abs().max() <= near * expected.abs().max()
        assert last.tensor.dtype == dtype


@BOTH
def test_what_is_compared_and_where(build: Build) -> None:
    checkpoint = build()
    first, second, last = steps_of(checkpoint)
    silent = {"split", "scores", "mask", "weighted"}
    assert set(first) - set(first.checks) == silent
    assert set(second) - set(second.checks) == {*silent, "input"}
    assert [len(each.checks) for each in (first, second, last)] == [14, 13, 13 + (build is gpt2)]
    assert ("final_norm" in last) == (build is gpt2)
    assert 0 < last.checks[last.worst].error < 1e-5
    modules = dict(checkpoint.model.named_modules())
    for check in (*first.checks.values(), *last.checks.values()):
        side, path = check.place.split(" of ")
        assert side in ("input", "output", "pattern")
        assert path == "the model" or path in modules
    assert first.checks["output"].place == ("input of encoder.layer.1" if build is bert else "input of h.1")
    n = first["mask"].shape[0]
    assert first["split"].shape == (3, 4, n, 8)
    assert first["scores"].shape == first["pattern"].shape == (4, n, n)
    assert first["pattern"].wide.sum(-1).allclose(torch.ones(4, n))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in checkpoint.model.modules())


@pytest.mark.parametrize(
    ("build", "changes"),
    [
        (gpt2, {"scale_attn_weights": False}),
        (gpt2, {"scale_attn_by_inverse_layer_idx": True}),
        (gpt2, {"reorder_and_upcast_attn": True}),
        (gpt2, {"n_inner": 20}),
        (gpt2, {"activation_function": "relu"}),
        (gpt2, {"layer_norm_epsilon": 1e-2}),
        (bert, {"hidden_act": "gelu_new"}),
        (bert, {"hidden_act": "silu"}),
        (bert, {"layer_norm_eps": 1e-2}),
        (bert, {"chunk_size_feed_forward": 3}),  # nine tokens, so that a chunk of three divides them
    ],
)
def test_settings_are_reproduced(build: Build, changes: dict[str, Any]) -> None:
    assert len(steps_of(build(**changes))[0]["expanded"].tensor) == 9


def test_a_pair_and_a_model_with_any_head_are_reproduced() -> None:
    whole = sharper(sharp_bert(model_class=BertForMaskedLM))
    assert len(steps_of(from_loaded(whole, bert_tokenizer()), pair="the dog ran")) == 3
    whole = sharper(sharp_gpt2(model_class=GPT2LMHeadModel))
    assert len(steps_of(from_loaded(whole, gpt2_tokenizer()))) == 3
    checkpoint, found = bert(), list[VerifiedStages]()
    verify_stages(checkpoint, replace(checkpoint.tokenize(SENTENCE), type_ids=None), [0], found.append)
    assert found[0].checks["input"].passed  # a tokenizer without token types means the first type


# --- wrong formulas must fail ------------------------------------------------------------------------------------

Change = Callable[[LayerParameters], LayerParameters]


def no_bias(part: Any) -> Any:
    return replace(part, bias=torch.zeros_like(part.bias))


def in_heads(change: Callable[[HeadParameters], dict[str, Any]]) -> Change:
    return lambda parameters: replace(parameters, heads=replace(parameters.heads, **change(parameters.heads)))


WRONG: dict[str, Change] = {
    "no scale": in_heads(lambda heads: {"scale": 1.0}),
    "scale by d_model": in_heads(lambda heads: {"scale": 32**-0.5}),
    "no query bias": in_heads(lambda heads: {"query": no_bias(heads.query)}),
    "no key bias": in_heads(lambda heads: {"key": no_bias(heads.key)}),
    "no value bias": in_heads(lambda heads: {"value": no_bias(heads.value)}),
    "no output bias": in_heads(lambda heads: {"output_bias": torch.zeros_like(heads.output_bias)}),
    "queries for keys": in_heads(lambda heads: {"query": heads.key, "key": heads.query}),
    "heads in another order": in_heads(lambda heads: {"output_weight": heads.output_weight.flip(0)}),
    "the other mask": in_heads(lambda heads: {"causal": not heads.causal}),
    "no bias of the first map": lambda p: replace(p, up_proj=no_bias(p.up_proj)),
    "no bias of the second map": lambda p: replace(p, down_proj=no_bias(p.down_proj)),
    "the other gelu": lambda p: replace(
        p, activation=ACTIVATIONS["gelu_new" if p.activation.name == "gelu" else "gelu"]
    ),
    "relu": lambda p: replace(p, activation=ACTIVATIONS["relu"]),
    "norms in the wrong place": lambda p: replace(p, pre_norm=not p.pre_norm),
    "norms exchanged": lambda p: replace(p, attention_norm=p.feed_forward_norm, feed_forward_norm=p.attention_norm),
    "a large epsilon": lambda p: replace(p, attention_norm=replace(p.attention_norm, epsilon=1e-2)),
    "a large second epsilon": lambda p: replace(p, feed_forward_norm=replace(p.feed_forward_norm, epsilon=1e-2)),
    "a norm without bias": lambda p: replace(p, feed_forward_norm=no_bias(p.feed_forward_norm)),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_formula_fails(build: Build, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.layer_parameters
    monkeypatch.setattr(stages, "layer_parameters", lambda *given: WRONG[mistake](right(*given)))
    with pytest.raises(VerificationError):
        steps_of(build(), [1])


STEPS: dict[str, tuple[str, Callable[[dict[str, Tensor], Tensor], Tensor]]] = {
    "no residual": ("attention_residual", lambda steps, x: steps["attention_output"]),
    "heads interleaved": ("concatenated", lambda steps, x: steps["weighted"].flatten(0, 1).reshape(x.shape)),
    "no mask, keys moved": ("pattern", lambda steps, x: attention.attention_pattern(
        steps["scores"].clone(), torch.ones_like(steps["mask"])).roll(1, 1)),
    "one weight": (r"pattern of layer 1 .*head 2, query 1 .*, key 3 ", lambda steps, x: steps["pattern"].index_put(
        (torch.tensor(2), torch.tensor(1), torch.tensor(3)), torch.tensor(0.5), accumulate=True)),
    "no activation": ("activated", lambda steps, x: steps["expanded"]),
    "another shape": (r"expanded .* the shape \[2, 3\], the model", lambda steps, x: torch.zeros(2, 3)),
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("mistake", STEPS)
def test_a_wrong_step_fails_by_its_name(build: Build, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, (named, change) = reference.recompute_layer, STEPS[mistake]

    def wrong(x: Tensor, parameters: LayerParameters, allowed: Tensor) -> dict[str, Tensor]:
        steps = right(x, parameters, allowed)
        return {**steps, named.split(" ")[0]: change(steps, x)}

    monkeypatch.setattr(stages, "recompute_layer", wrong)
    message = named if " " in named else f"first at {named.replace('_', ' ')} of layer 1"
    with pytest.raises(VerificationError, match=message):
        steps_of(build(), [1])


def test_another_kind_of_gelu_is_told_apart_beside_large_values() -> None:
    checkpoint = bert()
    with torch.no_grad():  # one hidden unit of 100: 5e-4 is far below the tolerance of an output beside it
        checkpoint.model.encoder.layer[0].intermediate.dense.bias[0] = 100.0  # type: ignore[union-attr,index]
    assert steps_of(checkpoint, [0])
    checkpoint.model.config.hidden_act = "gelu_new"
    with pytest.raises(VerificationError, match="is not gelu_new, which the config names"):
        steps_of(checkpoint, [0])


def test_a_variance_of_a_sample_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_a_sample(self: LayerNorm, x: Tensor) -> Tensor:
        return (x.var(-1, keepdim=True) + self.epsilon).sqrt()

    monkeypatch.setattr(LayerNorm, "scale", of_a_sample)
    with pytest.raises(VerificationError, match="first at input of layer 0"):
        steps_of(bert(), [0])


@pytest.mark.parametrize("forgotten", ["words", "positions", "segments"])
def test_wrong_embeddings_fail(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = bert()
    tables = checkpoint.architecture.embeddings(checkpoint.model)
    wrong = replace(tables, **{forgotten: torch.zeros_like(getattr(tables, forgotten))})
    monkeypatch.setattr(type(checkpoint.architecture), "embeddings", lambda *_: wrong)
    with pytest.raises(VerificationError, match="first at input of layer 0"):
        steps_of(checkpoint, [0])


# --- a changed model must fail, at the step that was changed ---------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("part", "step"),
    [("down_proj", "feed forward output"), ("up_proj", "expanded"), ("block", "output")],
)
def test_a_model_that_computes_something_else_fails(build: Build, part: str, step: str) -> None:
    checkpoint = build()
    module = getattr(checkpoint.architecture.modules(checkpoint.model)[1], part)

    def change(_: Any, __: Any, result: Any) -> Any:
        return result + 0.01 if isinstance(result, Tensor) else (result[0] + 0.01, *result[1:])

    module.register_forward_hook(change)
    with pytest.raises(VerificationError, match=f"first at {step} of layer 1"):
        steps_of(checkpoint, [1])


def test_values_that_are_not_finite_are_named() -> None:
    checkpoint = gpt2()
    with torch.no_grad():
        checkpoint.model.h[1].mlp.c_fc.bias[0] = torch.inf  # type: ignore[union-attr,index]
    with pytest.raises(VerificationError, match=r"own expanded of layer 1 .* not finite in float32"):
        steps_of(checkpoint, [1])


def test_a_model_that_is_all_zeros_is_compared_absolutely() -> None:
    checkpoint = gpt2()
    with torch.no_grad():
        for parameter in checkpoint.model.parameters():
            parameter.zero_()
    (found,) = steps_of(checkpoint, [0])
    assert found["output"].check == StageCheck("input of h.1", 0.0, 0.0, 1e-4)
    assert not StageCheck("here", float("nan"), 1.0, 1.0).passed


# --- what is refused, and what stays as it was --------------------------------------------------------------------


@pytest.mark.parametrize(("name", "shown"), [("gelu_10", "gelu_10"), (torch.sin, "sin"), (3, "int")])
def test_an_activation_that_is_not_reproduced_is_refused_by_name(name: object, shown: str) -> None:
    with pytest.raises(ArchitectureError, match=f"activation '{shown}'.*expected one of: gelu, "):
        activation_named(name)


def test_it_is_refused_before_the_model_runs() -> None:
    checkpoint = bert(hidden_act="relu6")
    checkpoint.model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(ArchitectureError, match="'relu6'"):
        steps_of(checkpoint)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_transformers(name: str) -> None:
    x = torch.linspace(-8, 8, 1001, dtype=torch.float64)
    assert torch.allclose(ACTIVATIONS[name](x), ACT2FN[name](x), atol=1e-9)
    assert ACTIVATIONS[name](x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("more", "message"), [("input of nowhere", "ran without input of nowhere"), ("extra", "extra")]
)
def test_what_nothing_is_compared_to_is_an_error(more: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_one_more(checkpoint: Checkpoint, layer: int) -> list[Probe]:
        block = checkpoint.architecture.modules(checkpoint.model)[layer].block
        module = block if more == "extra" else torch.nn.Linear(1, 1)
        return [Probe("extra", module, "input", "input of nowhere"), *probes_of(checkpoint, layer)]

    monkeypatch.setattr("attnviz.commands.explain.stages.probes_of", with_one_more)
    with pytest.raises(VerificationError, match=message):
        steps_of(gpt2(), [0])


def test_a_layer_that_did_not_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnviz.commands.explain.stages.record_attention", lambda *_: None)
    with pytest.raises(VerificationError, match=r"expected the steps of layers \[0\], found those of \[\]"):
        steps_of(bert(), [0])


def test_something_else_than_a_tensor_is_an_error() -> None:
    checkpoint = gpt2()
    checkpoint.model.h[0].ln_1.register_forward_hook(lambda *_: (None,))  # type: ignore[union-attr,index]
    with pytest.raises(VerificationError, match=r"expected a tensor as output of h\.0\.ln_1, found NoneType"):
        steps_of(checkpoint, [0])
