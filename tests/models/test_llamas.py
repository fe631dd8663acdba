"""Models of the Llama kind against transformers' eager; every wrong attention of theirs fails verification."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import attnviz
from attnviz.errors import ArchitectureError, CheckpointError, TextError, VerificationError
from attnviz.models.checkpoint import Checkpoint, from_loaded
from attnviz.models.families import ARCHITECTURES
from attnviz.models.families.llama import Llama
from attnviz.models.opening import open_checkpoint
from attnviz.reference import attention
from attnviz.reference.attention import HeadParameters
from attnviz.reference.positions import Rotary, default_frequencies
from attnviz.reference.tolerances import FLOAT32_STEPS, TOLERANCES, tolerance_of
from attnviz.trace.checks import LayerCheck
from attnviz.trace.verify import VerifiedRows, verify_attention
from tests.support.explained import steps_of
from tests.support.llamas import (
    DRAWN,
    FAMILIES,
    IN_PARALLEL,
    INTERLEAVED,
    N_HEADS,
    N_LAYERS,
    NORMED,
    PARTLY_ROTATED,
    ROPE,
    SHARED,
    WINDOW,
    WINDOWED,
    WINDOWED_THROUGHOUT,
    WITH_IMAGES,
    drawn_settings,
    llama_config,
    sentencepiece_tokenizer,
    sharp_llama,
    sharp_with_images,
)
from tests.support.models import save_checkpoint
from tests.support.recorded import batch, verified_batch

TOKENIZER = sentencepiece_tokenizer()
TEXT = "the cat that i saw ran away."
N = 12
ROUNDING = 5e-6
"""Of float32 in a sharp pattern; Phi's is off by 1.1e-6 on some processors, by less on others."""


def checks_of(model: Any, inputs: dict[str, Tensor]) -> tuple[list[LayerCheck], list[Tensor]]:
    """Every layer verified, and its patterns."""
    seen: list[VerifiedRows] = []
    verification = verified_batch(from_loaded(model, TOKENIZER), inputs, seen.append)
    return list(verification.layers), [rows.pattern for rows in seen]


def run(model: Any) -> None:
    checks_of(model, batch(400, (N,)))


# --- the right attention ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_format_verifies(family, dtype):
    checks, patterns = checks_of(sharp_llama(family, dtype=dtype), batch(400, (N,)))
    limit = {torch.float32: ROUNDING, torch.float64: ROUNDING, torch.bfloat16: 0.02, torch.float16: 0.003}[dtype]
    assert [check.heads_compared for check in checks] == [N_HEADS] * N_LAYERS
    assert max(check.pattern_error for check in checks) <= limit
    assert max(check.output_error for check in checks) <= limit
    assert max(check.residual_error for check in checks) <= limit
    for pattern in patterns:  # far from uniform, or wrong formulas would agree
        on_tokens = pattern.float() / pattern.float().sum(-1, keepdim=True)
        assert on_tokens.max(-1).values[..., 2:].mean() > 0.3


@pytest.mark.parametrize(("family", "wrong"), [
    ("olmo", {}), ("olmo", {"rotary_in_float32": False}), ("olmo2", {}), ("olmo2", {"norm_kind": "rms"}), ("olmo3", {}),
    ("olmo3", {"rotary_in_float32": False}),
])  # fmt: skip
def test_what_is_rounded_once_agrees_to_the_bit(monkeypatch, family, wrong):
    for name, value in wrong.items():
        monkeypatch.setattr(ARCHITECTURES[family], name, value)
    checks, _ = checks_of(sharp_llama(family, dtype=torch.bfloat16), batch(400, (N,)))
    errors = [(check.pattern_error, check.input_error, check.output_error, check.residual_error) for check in checks]
    assert any(map(any, errors)) == bool(wrong)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("padded", ["left", "right"])
@pytest.mark.parametrize("family", FAMILIES)
def test_groups_of_heads_and_padding_on_either_side_verify(family, n_kv_heads, padded):
    inputs = batch(400, (N, 7))
    if padded == "left":
        inputs = {name: values.flip(1) for name, values in inputs.items()}
    checks, patterns = checks_of(sharp_llama(family, num_key_value_heads=n_kv_heads), inputs)
    assert max(check.pattern_error for check in checks) <= ROUNDING
    real = inputs["attention_mask"][1].bool()
    assert all((pattern[1][:, real][..., ~real] == 0).all() for pattern in patterns)


@settings(max_examples=12)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), left=st.booleans())
@pytest.mark.parametrize("family", DRAWN)
def test_settings_drawn_at_random_verify(family, data, dtype, left):
    # in float64 a window of padding alone is NaN in the model itself
    inputs, changes = batch(400, (N,) if dtype == torch.float64 else (N, 7)), data.draw(drawn_settings(family))
    if left:
        inputs = {name: values.flip(1) for name, values in inputs.items()}
    model = sharp_llama(family, dtype=dtype, **changes)
    checks, _ = checks_of(model, inputs)
    assert max(check.pattern_error for check in checks) <= (ROUNDING if dtype != torch.bfloat16 else 0.05)
    assert len(steps_of(from_loaded(model, TOKENIZER), range(N_LAYERS), TEXT)) == N_LAYERS


@pytest.mark.parametrize("family", WINDOWED)
def test_windows_are_shorter_than_the_text(family):
    _, patterns = checks_of(sharp_llama(family), batch(400, (N,)))
    beyond = torch.ones(N, N, dtype=torch.bool).tril(-WINDOW)
    windowed = [bool((pattern[..., beyond] == 0).all()) for pattern in patterns]
    every = family in WINDOWED_THROUGHOUT
    assert windowed == ([False, True] if family == "qwen2" else [True, every])


@pytest.mark.parametrize("kind", ROPE)
def test_scaled_kinds_of_rotary_positions_verify(kind):
    settings = {"rope_type": kind.split(",")[0], "rope_theta": 10000.0, **ROPE[kind]}
    scaled, patterns = checks_of(sharp_llama(rope_parameters=settings), batch(400, (N,)))
    assert max(check.pattern_error for check in scaled) <= ROUNDING
    if kind != "dynamic":  # which scales what is longer than the model's positions alone
        _, plain = checks_of(sharp_llama(), batch(400, (N,)))
        assert (patterns[0] - plain[0]).abs().max() > 0.02


def test_a_model_that_was_loaded_with_sdpa_is_set_to_eager_and_back():
    model = sharp_llama()
    model.set_attn_implementation("sdpa")
    run(model)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_loads_with_its_head(family, tmp_path):
    model = sharp_llama(family)
    folder = save_checkpoint(model, TOKENIZER, tmp_path / "model")
    checkpoint, _ = open_checkpoint(str(folder), device="cpu")
    assert verify_attention(checkpoint, checkpoint.tokenize(TEXT)).verification.heads_compared == N_LAYERS * N_HEADS
    assert checkpoint.d_head == getattr(model.config, "head_dim", 8)
    inputs = {"input_ids": torch.tensor([[5, 6, 7]])}
    with torch.no_grad():
        logits = checkpoint.language_head(checkpoint.model(**inputs).last_hidden_state)
        torch.testing.assert_close(logits, model(**inputs).logits)


def test_a_pythia_is_read_by_the_names_that_its_files_have(tmp_path):
    """Its head is embed_out there, and masks lie beside the weights."""
    folder = save_checkpoint(sharp_llama("gpt_neox"), TOKENIZER, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights = {name.replace("lm_head", "embed_out"): weight for name, weight in weights.items()}
    weights["gpt_neox.layers.0.attention.bias"] = torch.ones(1, 1, 64, 64).tril()
    weights["gpt_neox.layers.0.attention.masked_bias"] = torch.tensor(-1e9)
    weights["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] = torch.ones(2)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    checkpoint, _ = open_checkpoint(str(folder), device="cpu")
    assert torch.equal(checkpoint.language_head.weight, weights["embed_out.weight"])


@pytest.mark.parametrize("family", WITH_IMAGES)
def test_the_text_tower_of_a_model_with_images_is_the_text_model(family, tmp_path):
    model = sharp_with_images(family)
    folder = save_checkpoint(model, TOKENIZER, tmp_path / "model")
    (known,) = attnviz.model_configurations(str(folder))
    expected = attnviz.analyze(TEXT, sharp_llama(WITH_IMAGES[family][1]), tokenizer=TOKENIZER, syntax=False)
    assert (known.reproduced, known.n_layers, known.d_head) == (True, N_LAYERS, expected.checkpoint.d_head)
    for source in ({"model": model, "tokenizer": TOKENIZER}, {"model": str(folder), "device": "cpu"}):
        result = attnviz.analyze(TEXT, **source, syntax=False)
        assert (result.verification.level, result.checkpoint.architecture.name) == (4, family)
        assert torch.equal(result.pattern("L1H2"), expected.pattern("L1H2"))
        with pytest.raises(TextError, match=f"the token '<0x02>', in place of which '{family}' reads an image"):
            attnviz.analyze("the \x02", **source, syntax=False)
    with pytest.raises(TextError, match="reads an image"):  # of several texts, too
        from_loaded(model, TOKENIZER).encode([TEXT, "the \x02"])
    checkpoint, _ = open_checkpoint(str(folder), device="cpu")
    inputs = checkpoint.tokenize(TEXT).model_inputs(checkpoint.device)
    with torch.no_grad():
        logits = checkpoint.language_head(checkpoint.model(**inputs).last_hidden_state)
        torch.testing.assert_close(logits, model(**inputs).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_counts_are_those_of_the_model(family, tmp_path):
    model = sharp_llama(family).base_model
    folder = save_checkpoint(model, TOKENIZER, tmp_path / family)
    (known,) = attnviz.model_configurations(str(folder))
    assert known.reproduced
    assert known.parameters == sum(parameter.numel() for parameter in model.parameters())
    within = re.compile(r"\.(self_attn|attention)\.")
    of_attention = sum(p.numel() for name, p in model.named_parameters() if within.search(name))
    assert known.attention_parameters == of_attention
    assert (known.n_heads, known.n_kv_heads) == (N_HEADS, 2 if family in SHARED else None)
    assert known.d_head == getattr(model.config, "head_dim", 8)


# --- wrong attention must be noticed ------------------------------------------------------------------

Change = Callable[[HeadParameters], HeadParameters]


def _rotary(parameters: HeadParameters, change: Callable[[Rotary], Rotary]) -> HeadParameters:
    return parameters if parameters.rotary is None else replace(parameters, rotary=change(parameters.rotary))


def _without_bias(parameters: HeadParameters, *names: str) -> HeadParameters:
    changed = {name: replace(getattr(parameters, name), bias=None) for name in names}
    return replace(parameters, **changed)


def _bounded(parameters: HeadParameters, clip: float | None) -> HeadParameters:
    return replace(parameters, **{name: replace(getattr(parameters, name), clip=clip) for name in ("query", "value")})


def _no_one(parameters: HeadParameters) -> HeadParameters:
    assert parameters.query_norm is not None
    return replace(parameters, query_norm=replace(parameters.query_norm, one_more=False))


def _norms_of_other_heads(parameters: HeadParameters) -> HeadParameters:
    norm: Any = parameters.query_norm
    return replace(parameters, query_norm=replace(norm, weight=norm.weight.roll(1, 0)))


def _sinks(parameters: HeadParameters) -> Tensor:
    assert parameters.sinks is not None
    return parameters.sinks


ALL = tuple(FAMILIES)
BIASED = ("llama", "gpt_oss", "qwen2", "qwen2_moe", "phimoe", "gpt_neox", "starcoder2", "phi")
CHANGES: dict[str, tuple[tuple[str, ...], Change]] = {
    "scale": (ALL, lambda p: replace(p, scale=p.scale * 1.1)),
    "no scale": (ALL, lambda p: replace(p, scale=1.0)),
    "RoPE base": (
        ALL, lambda p: _rotary(p, lambda r: replace(r, frequencies=default_frequencies(2 * len(r.frequencies), 5000.0)))
    ),
    "RoPE factor": (ALL, lambda p: _rotary(p, lambda r: replace(r, factor=1.05))),
    "no RoPE": (ALL, lambda p: replace(p, rotary=None)),
    "RoPE of a whole head": (
        PARTLY_ROTATED, lambda p: replace(p, rotary=Rotary(default_frequencies(8, 10000.0)))
    ),
    "RoPE not interleaved": (INTERLEAVED, lambda p: _rotary(p, lambda r: replace(r, interleaved=False))),
    "RoPE in layers without a window": (
        ("cohere2",), lambda p: replace(p, rotary=Rotary(default_frequencies(8, 10000.0), interleaved=True))
    ),
    "query norms of other heads": (("stablelm", "cohere"), _norms_of_other_heads),
    "RoPE in every layer": (("smollm3",), lambda p: replace(p, rotary=Rotary(default_frequencies(8, 2000000.0)))),
    "RoPE of the other type of layer": (
        ("gemma3_text",), lambda p: replace(p, rotary=Rotary(default_frequencies(16, 1000000.0)))
    ),
    "window one longer": (WINDOWED, lambda p: replace(p, window=p.window and p.window + 1)),
    "window one shorter": (WINDOWED, lambda p: replace(p, window=p.window and p.window - 1)),
    "no window": (WINDOWED, lambda p: replace(p, window=None)),
    "a window in every layer": (
        ("qwen2", "qwen2_moe", "gemma2", "gemma3_text", "olmo3", "gpt_oss"), lambda p: replace(p, window=WINDOW)
    ),
    "not causal": (ALL, lambda p: replace(p, causal=False)),
    "no query norm": (NORMED, lambda p: replace(p, query_norm=None)),
    "no key norm": (NORMED, lambda p: replace(p, key_norm=None)),
    "query norm with w for 1 + w": (("gemma3_text",), _no_one),
    "no biases of queries and keys": (BIASED, lambda p: _without_bias(p, "query", "key")),
    "no bias of values": (BIASED, lambda p: _without_bias(p, "value")),
    "no bias of the output": (("llama", "gpt_oss", "phimoe", "gpt_neox"), lambda p: replace(p, output_bias=None)),
    "no bound": (("olmo",), lambda p: _bounded(p, None)),
    "another bound": (("olmo",), lambda p: _bounded(p, 1.6)),
    "no bound of normed queries": (
        ("olmoe",), lambda p: replace(p, query_norm=p.query_norm and replace(p.query_norm, clip=None))
    ),
    "no bound of values alone": (("olmoe",), lambda p: replace(p, value=replace(p.value, clip=None))),
    "no cap": (("gemma2",), lambda p: replace(p, cap=None)),
    "no sinks": (("gpt_oss",), lambda p: replace(p, sinks=None)),
    "sinks of other heads": (("gpt_oss",), lambda p: replace(p, sinks=_sinks(p).roll(1))),
    "sinks scaled as scores are": (("gpt_oss",), lambda p: replace(p, sinks=_sinks(p) * p.scale)),
    "another cap": (("gemma2",), lambda p: replace(p, cap=3.3)),
}  # fmt: skip


def change_parameters(monkeypatch: pytest.MonkeyPatch, family: str, change: Change) -> None:
    kind = type(ARCHITECTURES[family])
    original = kind.parameters
    monkeypatch.setattr(kind, "parameters", lambda self, model, layer: change(original(self, model, layer)))


@pytest.mark.parametrize(("family", "name"), [(family, name) for name in CHANGES for family in CHANGES[name][0]])
def test_wrong_parameters_fail_verification(monkeypatch, family, name):
    dtype = torch.float64 if family in ("llama", "qwen3") else torch.float32
    change_parameters(monkeypatch, family, CHANGES[name][1])
    with pytest.raises(VerificationError, match="do not reproduce the model"):
        run(sharp_llama(family, dtype=dtype))


right_pattern, right_rotary, right_allowed, right_keys = (
    attention.attention_pattern,
    attention.apply_rotary,
    attention.allowed_positions,
    attention.queries_and_keys,
)


def queries_one_further(x: Tensor, rotary: Rotary) -> Tensor:
    if x.shape[-3] != N_HEADS:  # keys, which have fewer heads
        return right_rotary(x, rotary)
    return right_rotary(torch.cat([x[..., :1, :], x], dim=-2), rotary)[..., 1:, :]


def interleaved(x: Tensor, rotary: Rotary) -> Tensor:
    """Pairs (2i, 2i + 1), as GPT-J has them."""
    d = 2 * len(rotary.frequencies)
    order = torch.arange(d).view(-1, 2).T.flatten()
    turned = right_rotary(torch.cat([x[..., :d][..., order], x[..., d:]], -1), rotary)
    return torch.cat([turned[..., :d][..., order.argsort()], turned[..., d:]], -1)


def normed_after_rotation(x: Tensor, source: Tensor, parameters: HeadParameters) -> tuple[Tensor, Tensor]:
    query, key = right_keys(x, source, replace(parameters, query_norm=None, key_norm=None))
    if parameters.query_norm is None or parameters.key_norm is None:  # where the message looks for a reason
        return query, key
    own = key[..., :: parameters.n_heads // len(parameters.key.weight), :, :]  # before they are repeated
    key = attention.repeat_kv(attention.normed_heads(own, parameters.key_norm), parameters.n_heads)
    return attention.normed_heads(query, parameters.query_norm), key


def normed_a_head_at_a_time(x: Tensor, norm: Any) -> Tensor:
    if norm is None:
        return x
    weight = norm.weight.view(x.shape[-3], 1, -1)
    return replace(norm, weight=torch.ones_like(weight[0, 0]))(x) * weight


def one_key_too_many(mask: Tensor, causal: bool, window: int | None, first: int, n_queries: int) -> Tensor:
    later = torch.arange(mask.shape[1]) - torch.arange(first, first + n_queries)[:, None]
    return right_allowed(mask, False, window, first, n_queries) & (later <= 1)


def renormalised(scores: Tensor, allowed: Tensor, sinks: Tensor | None = None) -> Tensor:
    pattern = right_pattern(scores, allowed, sinks)
    return pattern / pattern.sum(-1, keepdim=True)


def sink_added_after_the_softmax(scores: Tensor, allowed: Tensor, sinks: Tensor) -> Tensor:
    return right_pattern(scores, allowed) * (1 - sinks.sigmoid()[:, None, None])


STEPS: dict[str, tuple[tuple[str, ...], str, Any]] = {
    "RoPE off by one": (SHARED, "apply_rotary", queries_one_further),
    "RoPE interleaved": (tuple(family for family in ALL if family not in INTERLEAVED), "apply_rotary", interleaved),
    "groups in turn": (SHARED, "repeat_kv", lambda x, n: x.repeat(1, n // x.shape[-3], 1, 1)),
    "mask off by one": (ALL, "allowed_positions", one_key_too_many),
    "norms a head at a time": (("olmo2", "olmo3"), "normed_heads", normed_a_head_at_a_time),
    "sinks renormalised": (("gpt_oss",), "attention_pattern", renormalised),
    "sinks that know no scores": (("gpt_oss",), "attention_pattern", sink_added_after_the_softmax),
    "norms after the rotation": (NORMED, "queries_and_keys", normed_after_rotation),
}  # fmt: skip


@pytest.mark.parametrize(("family", "name"), [(family, name) for name in STEPS for family in STEPS[name][0]])
def test_wrong_steps_fail_verification(monkeypatch, family, name):
    _, function, wrong = STEPS[name]
    monkeypatch.setattr(attention, function, wrong)
    with pytest.raises(VerificationError, match="The largest difference is in layer"):
        run(sharp_llama(family))


@pytest.mark.parametrize(
    ("family", "attribute", "value"),
    [
        ("olmo", "epsilon_setting", 0.1),
        ("starcoder2", "epsilon_setting", 0.1),
        ("gemma", "norm_kind", "rms"),
        ("gemma2", "norm_kind", "rms"),
        ("gemma3_text", "norm_kind", "rms"),
        ("llama", "norm_kind", "rms, 1 + w"),
        ("gpt_neox", "norm_kind", "rms"),
        ("gpt_neox", "epsilon_setting", 0.1),
        ("gpt_neox", "fused_by_head", False),
    ],
)
def test_a_wrong_declaration_fails_verification(monkeypatch, family, attribute, value):
    monkeypatch.setattr(ARCHITECTURES[family], attribute, value)
    with pytest.raises(VerificationError):
        run(sharp_llama(family))


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "olmo2", "olmo3"])
def test_a_missing_norm_behind_the_output_map_fails_verification(monkeypatch, family):
    original = Llama.modules
    monkeypatch.setattr(
        Llama, "modules", lambda self, base: [replace(m, attention_output_norm=None) for m in original(self, base)]
    )
    with pytest.raises(VerificationError, match="does not pass them on"):
        run(sharp_llama(family))


def test_a_multiplier_of_the_residual_stream_that_is_left_out_fails_verification(monkeypatch):
    monkeypatch.setattr(type(ARCHITECTURES["granite"]), "residual_multiplier", lambda *_: 1.0)
    with pytest.raises(VerificationError, match="does not pass them on"):
        run(sharp_llama("granite"))


@pytest.mark.parametrize(
    ("family", "parallel"),
    [*((family, True) for family in (*IN_PARALLEL, "stablelm")), ("gpt_neox", False), ("stablelm", False)],
)
def test_halves_in_the_other_order_fail_by_name(monkeypatch, family, parallel):
    """And a block that passes on another sum fails, too."""
    changes = {"use_parallel_residual": parallel} if family in ("gpt_neox", "stablelm") else {}
    model, kind = sharp_llama(family, **changes), type(ARCHITECTURES[family])
    original = kind.layer_modules
    wrong = "the norm before its feed-forward network" if not parallel else "the sum of its input and its attention's"
    with monkeypatch.context() as patch:
        patch.setattr(kind, "layer_modules", lambda self, layer: replace(original(self, layer), parallel=not parallel))
        with pytest.raises(VerificationError, match=rf"does not pass them on: {wrong}"):
            run(model)
    run(model)
    model.base_model.layers[0].register_forward_hook(lambda _, args, output: output + args[0].pow(2))
    if parallel:
        with pytest.raises(VerificationError, match=r"layer 0 .*: the sum of its input and the outputs of both its h"):
            run(model)


# --- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "changes", "setting"),
    [
        ("llama", {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, "rope_type='proportional'"),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
         "partial_rotary_factor=0.5"),
        ("gemma3_text", {"rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}, "rope_type='proportional'"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types='chunked_attention'"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ("phimoe", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "short_mscale": 1.0,
                                        "long_mscale": 1.5}}, "long_mscale=1.5"),
    ],
)  # fmt: skip
def test_settings_that_are_not_reproduced_are_refused_by_name_and_value(family, changes, setting, tmp_path):
    config = llama_config(family, **changes)
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ArchitectureError, match=re.escape(setting)):
        open_checkpoint(str(tmp_path), device="cpu")


def test_rounded_frequencies_are_refused():
    with pytest.raises(CheckpointError, match=r"rotary frequencies to bfloat16.*dtype=torch\.bfloat16"):
        from_loaded(sharp_llama().to(torch.bfloat16), TOKENIZER)


def test_only_float64_has_another_tolerance():
    assert tolerance_of(torch.float64, True) == FLOAT32_STEPS
    assert "float32" in FLOAT32_STEPS.reason
    assert all(tolerance_of(dtype, False) == TOLERANCES[dtype] for dtype in TOLERANCES)
    assert all(tolerance_of(dtype, True) == TOLERANCES[dtype] for dtype in TOLERANCES if dtype != torch.float64)


# --- commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_what_heads_write_sums_to_outputs_and_logits(family):
    result = attnviz.head_outputs(TEXT, sharp_llama(family), tokenizer=TOKENIZER)
    assert max(layer.sum_error for layer in result.layers) <= 1e-5
    both = {"attention bias", "final norm bias"}
    biases = {
        "llama": {"attention bias"},
        "gpt_oss": {"attention bias"},
        "phimoe": both,
        "gpt_neox": both,
        "starcoder2": both,
    }
    biases |= {
        "gemma2": {"unembedding (not linear)"},
        "stablelm": {"final norm bias"},
        "phi": {*both, "unembedding bias"},
    }
    assert result.effects is not None
    assert result.effects.error <= 1e-5
    names = {part.name for part in result.effects.parts}
    assert names == {"word embedding", "feed-forward"} | biases.get(family, set())


def _checkpoint(family: str) -> Checkpoint:
    return from_loaded(sharp_llama(family), TOKENIZER)


@pytest.mark.parametrize("method", ["zero", "uniform"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gpt_neox"])
def test_removing_a_head_is_what_editing_the_weights_does(family, method):
    """Zero: W_O of the head is zero. Uniform: its queries are, so that all its scores are equal."""
    model, edited = sharp_llama(family), sharp_llama(family)
    architecture = ARCHITECTURES[family]
    modules: Any = architecture.modules(edited.base_model)[0]
    d_head = modules.o_proj.in_features // N_HEADS
    first = 3 * d_head if architecture.fused_by_head else d_head
    with torch.no_grad():
        if method == "zero":
            modules.o_proj.weight[:, d_head : 2 * d_head] = 0
        else:
            for parameter in modules.projections[0].parameters():
                parameter[first : first + d_head] = 0
        ids = torch.tensor([TOKENIZER(TEXT).input_ids])
        losses = [each(input_ids=ids, labels=ids).loss.double() for each in (model, edited)]
    result = attnviz.ablate(TEXT, model, tokenizer=TOKENIZER, method=method, curve=False)
    effect = next(head for head in result.heads if head.id == (0, 1))
    assert effect.damage["loss"].value == pytest.approx(float(losses[1] - losses[0]), rel=1e-3, abs=1e-5)


def test_the_first_token_is_a_sink_with_and_without_a_beginning_of_text():
    tokens = _checkpoint("llama").tokenize(TEXT)
    assert (tokens.labels[0], tokens.special[0]) == ("<s>", True)
    assert tokens.sinks == {0}


def test_baselines_of_a_layer_with_a_window_are_those_within_it():
    analysis = attnviz.analyze(TEXT, sharp_llama("gemma2"), tokenizer=TOKENIZER, syntax=False)
    n, sinks = len(analysis.tokens), 1
    assert n > WINDOW + 2
    first, second = (next(head for head in analysis.document()["heads"] if head["layer"] == layer) for layer in (0, 1))
    keys = [min(query + 1, WINDOW) for query in range(n)]
    assert first["entropy_uniform"] == pytest.approx(sum(math.log(count) for count in keys) / n)
    assert second["entropy_uniform"] == pytest.approx(sum(math.log(query + 1) for query in range(n)) / n)
    content = [min(query + 1, WINDOW) - (query < WINDOW) for query in range(sinks, n)]
    current = sum(1 / count for count in content) / len(content)
    assert analysis.context_of(0).baselines["current"] == pytest.approx(current)
    assert first["baseline"]["current"] == pytest.approx(current)
    assert "in 1 layer of 2 a token sees the last 4 tokens alone" in " ".join(analysis.report(width=300).split())
    plain = attnviz.analyze(TEXT, sharp_llama("llama"), tokenizer=TOKENIZER, syntax=False)
    assert plain.windowed == {}
    assert "Windows:" not in plain.report()
    by_word = attnviz.analyze("unbelievable cat that i saw", sharp_llama("gemma2"), tokenizer=TOKENIZER, syntax=False,
                              words=True)  # fmt: skip
    seen = by_word.context_of(0).allowed.int().tolist()  # <s> un ~believ ~able cat that i saw: 8 tokens, 6 words
    assert seen == [
        [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 0],
        [0, 0, 1, 1, 1, 1],
    ]  # fmt: skip


# --- which step is wrong ---------------------------------------------------------------------------------


def _without_bias_of(name: str) -> Callable[[Any, pytest.MonkeyPatch], None]:
    def forget(attention_module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        linear = getattr(attention_module, name)
        monkeypatch.setattr(linear, "forward", lambda x: nn.functional.linear(x, linear.weight))

    return forget


def _without_norm(name: str) -> Callable[[Any, pytest.MonkeyPatch], None]:
    return lambda module, monkeypatch: monkeypatch.setattr(getattr(module, name), "forward", lambda x: x)


def _without_rotary(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{type(module).__module__}.apply_rotary_pos_emb", lambda q, k, *_, **__: (q, k))


def _with_groups_in_turn(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{type(module).__module__}.repeat_kv", lambda x, n: x.repeat(1, n, 1, 1))


def _changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Any, pytest.MonkeyPatch], None]:
    def disturb(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        linear = getattr(module, name)
        forward = linear.forward
        monkeypatch.setattr(linear, "forward", lambda x: change(forward(x)))

    return disturb


FORGOTTEN: dict[str, tuple[str, Callable[[Any, pytest.MonkeyPatch], None], str]] = {
    "bias of queries": ("qwen2", _without_bias_of("q_proj"), "queries differ {}; they agree without the bias"),
    "bias of keys": ("llama", _without_bias_of("k_proj"), "keys differ {}; they agree without the bias"),
    "bias of values": ("llama", _without_bias_of("v_proj"), "values differ {}; they agree without the bias"),
    "norm of queries": ("qwen3", _without_norm("q_norm"), "queries differ {}; they agree without the norm"),
    "bound of keys": (
        "olmo", lambda _, monkeypatch: monkeypatch.setattr(Tensor, "clamp_", lambda x, **_: x),
        "keys differ {}; they agree without the bound"
    ),
    "norm of keys of all heads": ("olmo2", _without_norm("k_norm"), "keys differ {}; they agree without the norm"),
    "norm of keys": ("qwen3", _without_norm("k_norm"), "keys differ {}; they agree without the norm"),
    "rotary positions": ("llama", _without_rotary, "queries differ {}; they agree without rotary positions"),
    "order of heads": (
        "qwen3", _changed("q_proj", lambda x: x.unflatten(-1, (N_HEADS, -1)).flip(-2).flatten(-2)),
        "queries differ {}; they agree with the heads in another order",
    ),
    "order of groups": (
        "llama", _with_groups_in_turn,
        "values agree before that; patterns agree with the groups of heads in another order",
    ),
    "projection of queries": ("qwen3", _changed("q_proj", lambda x: x.flip(1)), "queries differ {}"),
    "projection of values": ("mistral", _changed("v_proj", lambda x: 1.01 * x), "values differ {}"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGOTTEN)
def test_the_message_names_the_step_that_differs(monkeypatch, name):
    family, forget, expected = FORGOTTEN[name]
    model = sharp_llama(family)
    forget(model.base_model.layers[0].self_attn, monkeypatch)
    with pytest.raises(VerificationError) as caught:
        run(model)
    sentence = expected.format(r"before that, by [\d.e-]+ of the largest")
    assert re.search(rf"{sentence}\.", str(caught.value)), str(caught.value)
    if name.startswith(("norm", "bias")):  # of one of the three alone
        assert str(caught.value).count("differ before that") == 1
