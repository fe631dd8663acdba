"""Every step of a layer against the running model: oracle, mutations, what cannot be compared, what is refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.activations import ACT2FN

from attnviz.errors import ArchitectureError, VerificationError
from attnviz.inputs.text import tokenize
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.families import ARCHITECTURES
from attnviz.reference import attention
from attnviz.reference.attention import LayerNorm, RMSNorm
from attnviz.reference.layer import ACTIVATIONS, LayerParameters
from attnviz.run import layer_steps
from attnviz.run.contributions import check_total
from attnviz.run.layer_steps import StageCheck, probes_of
from attnviz.run.sites import Site
from tests.conftest import SENTENCE
from tests.support.explained import bert, gpt2, steps_of
from tests.support.families import first_of
from tests.support.llamas import (
    FAMILIES,
    IN_PARALLEL,
    OF_LATENTS,
    WINDOW,
    WINDOWED,
    WINDOWED_THROUGHOUT,
    sentencepiece_tokenizer,
    sharp_llama,
)
from tests.support.tolerances import SUMS_32

TOKENIZER = sentencepiece_tokenizer()
SILENT = {"split", "rotated", "scores", "capped", "mask", "weighted"}


def of(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Checkpoint:
    """A small model of BERT, GPT-2, or a family of Llamas, whose norms and activations matter."""
    if family in FAMILIES:
        return from_loaded(sharp_llama(family, dtype=dtype, **changes), TOKENIZER)
    checkpoint = {"bert": bert, "gpt2": gpt2}[family](**changes)
    checkpoint.model.to(dtype)
    return checkpoint


known = cache(of)
"""For tests that leave the model as it is."""

BOTH_NORMS = {"attention_output_norm", "feed_forward_output_norm"}
SPECIAL = {"head_norm", "capped", *BOTH_NORMS}
HAS = {
    "gpt2": set[str](),
    "llama": {"rotated", "gate", "gated"},
    "qwen3": {"head_norm", "rotated"},
    "gemma2": {"rotated", "capped", *BOTH_NORMS},
    "gemma3_text": {"head_norm", "rotated", *BOTH_NORMS},
    "olmo2": {"head_norm", "rotated", *BOTH_NORMS},
    "gpt_neox": {"rotated", "feed_forward_norm"},
    "mixtral": {"rotated", "feed_forward_output"},
    "deepseek_v3": {"rotated", "feed_forward_output"},
}
QUICK = ("bert", "gpt2", "gemma2", "llama", "qwen3", "olmo2", "gpt_neox", "mistral", "mixtral", "deepseek_v3")
MODELS = [(family, torch.float32) for family in ("bert", "gpt2", *FAMILIES) if ARCHITECTURES[family].explained]
MODELS += [(family, torch.float64) for family in ("bert", "gpt2", "gemma2")]
MODELS += [("bert", torch.float16), ("gpt2", torch.bfloat16), ("gemma2", torch.bfloat16), ("qwen3", torch.float16)]


@pytest.mark.draws
@pytest.mark.parametrize(
    ("family", "dtype"), first_of(MODELS, *((family, torch.float32) for family in QUICK), ("bert", torch.float16))
)
def test_a_family_has_its_steps_and_the_last_is_the_next_hidden_state_of_the_model(
    family: str, dtype: torch.dtype
) -> None:
    checkpoint = of(family, dtype)
    inputs = tokenize(checkpoint, SENTENCE).model_inputs(checkpoint.device)
    with torch.inference_mode():
        hidden = checkpoint.model(**inputs, output_hidden_states=True).hidden_states
    every = steps_of(checkpoint, range(checkpoint.n_layers))
    for verified in every:
        last, expected = list(verified.values())[-1], hidden[verified.layer + 1][0]
        after_norm = verified.layer == checkpoint.n_layers - 1 and family != "bert"
        assert last.name == ("final_norm" if after_norm else "output")
        assert (last.tensor - expected).abs().max() <= checkpoint.tolerance.output * expected.abs().max()
        assert last.tensor.dtype == dtype
        silent = SILENT | ({"input"} if verified.layer else set())
        silent |= {"key", "value"} if family in OF_LATENTS else set()  # one module gives both, another a part of keys
        silent |= {"feed_forward_output"} if checkpoint.modules[verified.layer].routed is not None else set()
        assert set(verified) - set(verified.checks) == silent & set(verified)
    if family in HAS:
        found, norms = set(every[0]), {"attention_norm", "feed_forward_norm"}
        assert HAS[family] <= found
        assert found & SPECIAL == HAS[family] & SPECIAL
        assert found & norms == (set() if family == "olmo2" else norms)
        assert ("attention_residual" in found) == (family not in IN_PARALLEL)
    if family in WINDOWED:
        narrow = [each for each in every if int(each["mask"].tensor.sum(-1).max()) == WINDOW]
        assert len(narrow) == (2 if family in WINDOWED_THROUGHOUT else 1)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_what_is_compared_and_where(family: str) -> None:
    first, second, last = steps_of(known(family))
    assert [len(each.checks) for each in (first, second, last)] == [14, 13, 13 + (family == "gpt2")]
    assert max(check.error for check in last.checks.values()) < SUMS_32
    assert first.checks["output"].place == ("input of encoder.layer.1" if family == "bert" else "input of h.1")


SETTINGS: dict[str, dict[str, Any]] = {
    "gpt2": {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True,
             "n_inner": 20, "activation_function": "relu", "layer_norm_epsilon": 1e-2},
    "bert": {"hidden_act": "gelu_new", "layer_norm_eps": 1e-2,
             "chunk_size_feed_forward": 3},  # nine tokens, so that a chunk of three divides them
    "llama": {"mlp_bias": True, "hidden_act": "gelu", "rms_norm_eps": 1e-2},
}  # fmt: skip


@pytest.mark.draws
@pytest.mark.parametrize(("family", "name"), [(family, name) for family in SETTINGS for name in SETTINGS[family]])
def test_settings_are_reproduced(family: str, name: str) -> None:
    assert len(steps_of(of(family, **{name: SETTINGS[family][name]}), [0, 1])) == 2


@pytest.mark.parametrize(("family", "n_kv_heads"), [("llama", 2), ("qwen3", 1), ("phi3", 2)])
def test_groups_of_heads(family: str, n_kv_heads: int) -> None:
    """As many tokens as heads, so that no axis can be told by its length."""
    checkpoint = of(family, num_key_value_heads=n_kv_heads)
    assert len(tokenize(checkpoint, "the cat ran")) == checkpoint.n_heads
    (steps,) = steps_of(checkpoint, [0], "the cat ran")
    assert steps["key"].shape[1] == n_kv_heads * checkpoint.d_head
    _, key, value = steps["split"].tensor
    group = 4 // n_kv_heads
    assert all(torch.equal(part[0], part[group - 1]) for part in (key, value))


Change = Callable[[LayerParameters], LayerParameters]


def no_bias(part: Any) -> Any:
    return replace(part, bias=torch.zeros_like(part.bias))


def in_heads(**changes: Callable[[Any], Any]) -> Change:
    return lambda p: replace(
        p, heads=replace(p.heads, **{name: change(getattr(p.heads, name)) for name, change in changes.items()})
    )


def in_layer(**changes: Callable[[Any], Any]) -> Change:
    return lambda p: replace(p, **{name: change(getattr(p, name)) for name, change in changes.items()})


def exchanged(one: str, other: str) -> Change:
    return lambda p: replace(p, **{one: getattr(p, other), other: getattr(p, one)})


def put(**values: Any) -> Change:
    return lambda p: replace(p, **values)


def taken_from(**sources: str) -> Change:
    return lambda p: replace(p, **{name: getattr(p, source) for name, source in sources.items()})


def large_epsilon(norm: Any) -> Any:
    return replace(norm, epsilon=0.1)


def without_one(norm: RMSNorm) -> RMSNorm:
    return replace(norm, one_more=not norm.one_more)


def mean_taken(norm: Any) -> Any:
    return lambda x: norm(x - x.mean(-1, keepdim=True))


WRONG: dict[str, Change] = {
    "no scale": in_heads(scale=lambda _: 1.0),
    "no query bias": in_heads(query=no_bias),
    "no value bias": in_heads(value=no_bias),
    "no output bias": in_heads(output_bias=torch.zeros_like),
    "queries for keys": lambda p: replace(p, heads=replace(p.heads, query=p.heads.key, key=p.heads.query)),
    "heads in another order": in_heads(output_weight=lambda weight: weight.flip(0)),
    "the other mask": in_heads(causal=lambda causal: not causal),
    "no bias of the first map": in_layer(up_proj=no_bias),
    "no bias of the second map": in_layer(down_proj=no_bias),
    "the other gelu": lambda p: replace(
        p, activation=ACTIVATIONS["gelu_new" if p.activation.name == "gelu" else "gelu"]
    ),
    "relu": put(activation=ACTIVATIONS["relu"]),
    "norms in the wrong place": in_layer(pre_norm=lambda pre_norm: not pre_norm),
    "norms exchanged": exchanged("attention_norm", "feed_forward_norm"),
    "a large epsilon": in_layer(attention_norm=large_epsilon),
    "a large second epsilon": in_layer(feed_forward_norm=large_epsilon),
    "a norm without bias": in_layer(feed_forward_norm=no_bias),
}
"""Of BERT and GPT-2."""

WRONG_LLAMAS: dict[str, tuple[str, Change]] = {
    "layer norms": ("llama", in_layer(attention_norm=mean_taken)),
    "1 + w": ("llama", in_layer(attention_norm=without_one)),
    "w for 1 + w": ("gemma2", in_layer(attention_norm=without_one)),
    "a large epsilon": ("llama", in_layer(feed_forward_norm=large_epsilon)),
    "no rotation": ("llama", in_heads(rotary=lambda _: None)),
    "a window off by one": ("mistral", in_heads(window=lambda window: window + 1)),
    "no norm behind the attention": ("olmo2", put(attention_output_norm=None)),
    "no norm behind the network": ("olmo2", put(feed_forward_output_norm=None)),
    "a norm before the attention": ("olmo2", taken_from(attention_norm="attention_output_norm")),
    "a norm before the network": ("olmo2", taken_from(feed_forward_norm="feed_forward_output_norm")),
    "no mean taken": ("olmo", lambda p: replace(p, attention_norm=RMSNorm(torch.ones(32), 1e-5))),
    "no multiplier": ("granite", put(residual_multiplier=1.0)),
    "no bias of a network without a gate": ("starcoder2", in_layer(up_proj=no_bias)),
    "RMS for layer norms": ("starcoder2", lambda p: replace(p, attention_norm=RMSNorm(p.attention_norm.weight, 1e-5))),
    "no gate": ("llama", put(gate=None)),
    "gate for what it gates": ("llama", exchanged("gate", "up_proj")),
    "halves exchanged": ("phi3", exchanged("gate", "up_proj")),
    "another activation": ("llama", put(activation=ACTIVATIONS["gelu"])),
    "halves in a row": ("gpt_neox", put(parallel=False)),
    "one norm for both halves": ("gpt_neox", taken_from(feed_forward_norm="attention_norm")),
    "post-norm": ("llama", put(pre_norm=False)),
}
"""By family; what is wrong of attention alone is tried with every command's heads, too."""

MISTAKES = [(family, name, change) for family in ("bert", "gpt2") for name, change in WRONG.items()]
MISTAKES += [(family, name, change) for name, (family, change) in WRONG_LLAMAS.items()]


@pytest.mark.draws
@pytest.mark.parametrize(
    ("family", "change"), [pytest.param(family, change, id=f"{family}, {name}") for family, name, change in MISTAKES]
)
def test_a_wrong_formula_fails(family: str, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = 1 if family in ("bert", "gpt2") else 0
    right = layer_steps.layer_parameters
    monkeypatch.setattr(layer_steps, "layer_parameters", lambda *given: change(right(*given)))
    with pytest.raises(VerificationError):
        steps_of(known(family), [layer])


STEPS: dict[str, tuple[str, Callable[[dict[str, Tensor], Tensor], Tensor]]] = {
    "no residual": ("attention_residual", lambda steps, x: steps["attention_output"]),
    "heads interleaved": ("concatenated", lambda steps, x: steps["weighted"].flatten(0, 1).reshape(x.shape)),
    "no mask, keys moved": ("pattern", lambda steps, x: attention.attention_pattern(
        steps["scores"].clone(), torch.ones_like(steps["mask"])).roll(1, 1)),
    "one weight": (r"pattern of layer 1 .*head 2, query 1 ", lambda steps, x: steps["pattern"].index_put(
        (torch.tensor(2), torch.tensor(1), torch.tensor(3)), torch.tensor(0.5), accumulate=True)),
    "no activation": ("activated", lambda steps, x: steps["expanded"]),
    "another shape": (r"expanded .*\[2, 3\]", lambda steps, x: torch.zeros(2, 3)),
}  # fmt: skip


@pytest.mark.draws
@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("mistake", STEPS)
def test_a_wrong_step_fails_by_its_name(family: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, (named, change) = layer_steps.recompute_layer, STEPS[mistake]

    def wrong(x: Tensor, *given: Any) -> dict[str, Tensor]:
        steps = right(x, *given)
        return {**steps, named.split(" ")[0]: change(steps, x)}

    monkeypatch.setattr(layer_steps, "recompute_layer", wrong)
    message = named if " " in named else f"first at {named.replace('_', ' ')} of layer 1"
    with pytest.raises(VerificationError, match=message):
        steps_of(known(family), [1])


def test_another_kind_of_gelu_is_told_apart_beside_large_values() -> None:
    checkpoint = bert()
    with torch.no_grad():  # one hidden unit of 100: 5e-4 is far below the tolerance of an output beside it
        checkpoint.model.encoder.layer[0].intermediate.dense.bias[0] = 100.0  # type: ignore[union-attr,index]
    assert steps_of(checkpoint, [0])
    checkpoint.model.config.hidden_act = "gelu_new"
    with pytest.raises(VerificationError, match="gelu_new"):
        steps_of(checkpoint, [0])


@pytest.mark.parametrize(
    ("family", "forgotten"),
    [("bert", "words"), ("bert", "positions"), ("bert", "segments"), ("bert", "variance"), ("gemma", "scale")],
)
def test_wrong_embeddings_fail(family: str, forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = known(family)
    if forgotten == "variance":  # of a sample, which is larger
        instead = lambda norm, x: (x.var(-1, keepdim=True) + norm.epsilon).sqrt()  # noqa: E731
        monkeypatch.setattr(LayerNorm, "scale", instead)
    else:
        tables = checkpoint.architecture.embeddings(checkpoint.model)
        instead = 1.0 if forgotten == "scale" else torch.zeros_like(getattr(tables, forgotten))
        wrong = replace(tables, **{forgotten: instead})
        monkeypatch.setattr(type(checkpoint.architecture), "embeddings", lambda *_: wrong)
    with pytest.raises(VerificationError, match="input of layer 0"):
        steps_of(checkpoint, [0])


@pytest.mark.parametrize(
    ("family", "module", "step"),
    [
        ("bert", "encoder.layer.1.output.dense", "feed forward output"),
        ("gpt2", "h.1", "output"),
        ("llama", "layers.1.mlp.act_fn", "activated"),
        ("qwen3", "layers.1.self_attn.k_norm", "head norm"),
        ("gemma2", "layers.1.post_attention_layernorm", "attention output norm"),
        ("gemma2", "layers.1.post_feedforward_layernorm", "feed forward output norm"),
        ("gpt_neox", "layers.1.attention.query_key_value", "query"),
        ("gpt_neox", "layers.1.post_attention_layernorm", "feed forward norm"),
        ("phi3", "layers.1.mlp.gate_up_proj", "gate"),
    ],
)
def test_a_model_that_computes_something_else_fails_at_the_step(family: str, module: str, step: str) -> None:
    def change(_: Any, __: Any, result: Any) -> Any:
        return result + 0.5 if isinstance(result, Tensor) else (result[0] + 0.5, *result[1:])

    checkpoint = of(family)
    checkpoint.model.get_submodule(module).register_forward_hook(change)
    with pytest.raises(VerificationError, match=f"first at {step} of layer 1"):
        steps_of(checkpoint, [1])


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_a_mixture_of_experts_is_one_step_with_the_numbers_of_the_model(family: str) -> None:
    checkpoint = of(family)
    given, results = [], []

    def keep(_: Any, args: Any, result: Any) -> None:
        given.append(args[0][0])
        results.append(result[0] if isinstance(result, Tensor) else result[0][0])

    checkpoint.model.get_submodule("layers.1.mlp").register_forward_hook(keep)
    (steps,) = steps_of(checkpoint, [1])
    assert not set(steps) & {"gate", "expanded", "activated", "gated"}
    assert torch.equal(steps["feed_forward_output"].tensor, results[0])
    assert steps["feed_forward_output"].check is None
    entered = steps["feed_forward_norm"]
    assert entered.check is not None
    assert (entered.tensor - given[0]).abs().max() <= checkpoint.tolerance.output * given[0].abs().max()


def test_values_that_are_not_finite_are_named() -> None:
    checkpoint = gpt2()
    with torch.no_grad():
        checkpoint.model.h[1].mlp.c_fc.bias[0] = torch.inf  # type: ignore[union-attr,index]
    with pytest.raises(VerificationError, match="expanded of layer 1"):
        steps_of(checkpoint, [1])


def test_a_model_that_is_all_zeros_is_compared_absolutely() -> None:
    checkpoint = gpt2()
    with torch.no_grad():
        for parameter in checkpoint.model.parameters():
            parameter.zero_()
    (found,) = steps_of(checkpoint, [0])
    assert found["output"].check == StageCheck("input of h.1", 0.0, 0.0, 1e-4)
    with pytest.raises(VerificationError, match="nan"):
        check_total(checkpoint, torch.tensor([0.0, torch.nan]), torch.zeros(2), "these differ", "at {}".format)


def test_an_activation_that_is_not_reproduced_is_refused_by_name_before_the_model_runs() -> None:
    checkpoint = bert()
    checkpoint.model.config.hidden_act = "gelu_10"
    checkpoint.model.register_forward_pre_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(ArchitectureError, match="'gelu_10'"):
        steps_of(checkpoint)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_transformers(name: str) -> None:
    x = torch.linspace(-8, 8, 1001, dtype=torch.float64)
    assert torch.allclose(ACTIVATIONS[name](x), ACT2FN[name](x), atol=1e-9)
    assert ACTIVATIONS[name](x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("more", ["input of nowhere", "extra"])
def test_what_nothing_is_compared_to_is_an_error(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_one_more(checkpoint: Checkpoint, layer: int) -> dict[str, Site]:
        checkpoint.model.nowhere = torch.nn.Linear(1, 1)
        module = checkpoint.modules[layer].block if more == "extra" else checkpoint.model.nowhere
        return {"extra": Site(module, "input"), **probes_of(checkpoint, layer)}

    monkeypatch.setattr(layer_steps, "probes_of", with_one_more)
    with pytest.raises(VerificationError, match=more):
        steps_of(gpt2(), [0])
