"""Every wrong variant of every family's attention fails verification, and the message names the step."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.integrations import sdpa_attention

import attnviz
from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families import ARCHITECTURES
from attnviz.models.families.base import LayerModules
from attnviz.models.families.encoder_decoder import T5
from attnviz.models.families.gemma4 import Gemma4
from attnviz.models.families.llama import Llama
from attnviz.reference import attention
from attnviz.reference.attention import Chunk, HeadParameters
from attnviz.reference.positions import Rotary, alibi_slopes, default_frequencies, linear_bias
from tests.support.families import LLAMAS, TEXT, checkpoint_of, first_of, verified
from tests.support.llamas import GATED, NORMED, WINDOW, WINDOWED
from tests.support.mutations import OUTPUT_MUTATIONS, PASSED_ON, PATTERN_MUTATIONS, rolled
from tests.support.relatives import KINDS

Change = Callable[[Any], Any]

PROTEIN, MASKED = "MKTAYIAKQRQISF", "MK<mask>AYI <mask>KQjRx"


def change_parameters(monkeypatch: pytest.MonkeyPatch, family: str, change: Change, stack: str = "") -> None:
    kind = type(ARCHITECTURES[family.removesuffix("-both")])
    original = kind.parameters

    def wrong(self: Any, model: Any, layer: int) -> HeadParameters:
        right = original(self, model, layer)
        return change(right) if str(layer).startswith(stack) else right

    monkeypatch.setattr(kind, "parameters", wrong)


made = cache(checkpoint_of)
"""For what leaves the model as it is."""


def each_implementation(checkpoint: Checkpoint) -> Iterator[str]:
    """A model set to each implementation of attention that it has, in turn, and back."""
    own = checkpoint.attention
    for name in dict.fromkeys(("eager", own)):
        checkpoint.model.set_attn_implementation(name)
        yield name


def rotary(**changes: Any) -> Change:
    return lambda p: p if p.rotary is None else replace(p, rotary=replace(p.rotary, **changes))


def all_rotary(d: int, base: float, **more: Any) -> Change:
    return lambda p: replace(p, rotary=Rotary(default_frequencies(d, base), **more))


def part(*names: str, **changes: Any) -> Change:
    return lambda p: replace(p, **{name: replace(getattr(p, name), **changes) for name in names if getattr(p, name)})


def in_latents(name: str, norm: float | None = None, **changes: Any) -> Change:
    def changed(p: HeadParameters) -> HeadParameters:
        projection: Any = getattr(p, name)
        more = changes if norm is None else {"norm": replace(projection.latent.norm, epsilon=norm)}
        return replace(p, **{name: replace(projection, latent=replace(projection.latent, **more))})

    return changed


def without(*names: str) -> Change:
    return lambda p: replace(p, **dict.fromkeys(names))


def bias_of_the_head_before(p: HeadParameters) -> HeadParameters:
    right: Any = p.position_bias
    return replace(p, position_bias=lambda *rows: right(*rows).roll(1, 0))


def a_bias_across(p: HeadParameters) -> HeadParameters:
    return replace(p, position_bias=lambda _, n, m: torch.linspace(-1, 1, m).expand(p.n_heads, n, m))


def vectors(change: Callable[[Tensor], Tensor], kind: str = "") -> Change:
    return lambda p: replace(
        p,
        relative=replace(
            p.relative,
            vectors={name: change(each) if kind in name else each for name, each in p.relative.vectors.items()},
        ),
    )


def temperature(**changes: float) -> Change:
    return lambda p: replace(p, temperature=p.temperature and replace(p.temperature, **changes))


def heads_in_another_order(p: HeadParameters) -> HeadParameters:
    bias = p.query.bias
    return replace(
        p, query=replace(p.query, weight=p.query.weight.roll(1, 0), bias=None if bias is None else bias.roll(1, 0))
    )


def in_turn(p: HeadParameters) -> HeadParameters:
    """All queries before all gates, not of each head."""
    weights: Any = torch.stack([p.query.weight, p.gate.weight], 1).flatten(0, 1).chunk(2)
    return replace(p, query=replace(p.query, weight=weights[0]), gate=replace(p.gate, weight=weights[1]))


UNLIKE = ("llama", "mixtral", "gemma2", "gpt_oss", "olmo2", "gpt_neox", "phi", "cohere2", "granitemoehybrid")
UNLIKE += ("gemma4_text", "llama4_text")
"""Of Llama's kind, those that differ in what a wrong step would meet."""

PARAMETERS: dict[str, tuple[tuple[str, ...], Change]] = {
    "scale": (("gemma2", *LLAMAS, "t5:E"), lambda p: replace(p, scale=p.scale * 1.1)),
    "scale by d_head": (("gemma4_text",), lambda p: replace(p, scale=p.query.weight.shape[-1] ** -0.5)),
    "no scale": (("deepseek_v3", "falcon", "gptj", "bart:E"), lambda p: replace(p, scale=1.0)),
    "scaled scores": (("gpt_neo", "opt", "esm"), lambda p: replace(p, scale=0.5)),
    "unscaled queries": (("opt", "esm", "whisper:D", "whisper:X"), lambda p: replace(p, query_scale=1.0)),
    "RoPE base": (
        ("mixtral", "qwen3", "phi3", "deepseek_v2"),
        lambda p: rotary(frequencies=default_frequencies(2 * len(p.rotary.frequencies), 5000.0))(p),
    ),
    "RoPE factor": (("llama", *UNLIKE, "deepseek_v2"), rotary(factor=1.05)),
    "another base in half of a head": (("esm", "modernbert"), rotary(frequencies=torch.logspace(0, -1, 4))),
    "no temperature of YaRN": (
        ("deepseek_v3", "deepseek_v2", "minicpm3"),
        lambda p: replace(p, scale=p.query.weight.shape[-1] ** -0.5),
    ),
    "the first part of a head rotated": (("deepseek_v2", "youtu"), rotary(at_end=False)),
    "interleaved once it is turned": (("deepseek_v3",), rotary(apart=False)),
    "halves once it is turned": (("deepseek_v2",), rotary(apart=True)),
    "no bias of the latent of queries": (("deepseek_v3",), in_latents("query", bias=None)),
    "no bias of the latent of keys": (("minicpm3", "deepseek_v2"), in_latents("key", bias=None)),
    "no bias of the latent of values": (("deepseek_v3",), in_latents("value", bias=None)),
    "another epsilon of the latent": (("deepseek_v3",), in_latents("key", norm=1e-2)),
    "no RoPE": (("falcon", *UNLIKE, "gptj", "modernbert", "esm", "nomic_bert"), without("rotary")),
    "RoPE of a whole head": (("gpt_neox", "phi3", "stablelm", "phi", "glm"), all_rotary(8, 10000.0)),
    "RoPE not interleaved": (("cohere", "gptj", "glm4", "deepseek_v3"), rotary(interleaved=False)),
    "RoPE interleaved": (("mixtral", "llama", "gpt_neox", "gpt_oss", "esm"), rotary(interleaved=True)),
    "RoPE in layers without a window": (("cohere2", "exaone4"), all_rotary(8, 10000.0, interleaved=True)),
    "RoPE in every layer": (("smollm3",), all_rotary(8, 2000000.0)),
    "RoPE of the other type of layer": (("gemma3_text",), all_rotary(16, 1000000.0)),
    "RoPE of a part of a head": (("gemma4_text",), all_rotary(4, 1000000.0)),
    "window one longer": (
        ("mistral", *WINDOWED, "gpt_neo", "gemma3_text-both"),
        lambda p: replace(p, window=p.window and p.window + 1),
    ),
    "window one shorter": (
        ("modernbert", "gemma2", "gpt_neo", "gemma3_text-both"),
        lambda p: replace(p, window=p.window and p.window - 1),
    ),
    "chunk one longer": (("llama4_text",), lambda p: replace(p, window=p.window and Chunk(p.window + 1))),
    "a window for a chunk": (("llama4_text",), lambda p: replace(p, window=p.window and int(p.window))),
    "no temperature": (("llama4_text",), without("temperature")),
    "the temperature of the position before": (("llama4_text",), temperature(first=0)),
    "a temperature a little larger": (("llama4_text",), temperature(beta=0.51)),
    "no window": (("gpt_oss", "llama4_text", "modernbert", "phi3"), without("window")),
    "a window in every layer": (("gemma2", "qwen2", "olmo3"), lambda p: replace(p, window=WINDOW)),
    "a window on one side": (("modernbert", "gemma3_text-both"), lambda p: replace(p, causal=p.window is not None)),
    "not causal": (
        ("bloom", *UNLIKE, "falcon", "gpt_neo", "gptj", "opt", "bart:D", "whisper:D", "clip_text_model"),
        lambda p: replace(p, causal=False),
    ),
    "causal": (("t5:E", "siglip_text_model", "gemma3_text-both"), lambda p: replace(p, causal=True)),
    "no query norm": (NORMED, without("query_norm")),
    "no value norm": (("gemma4_text",), without("value_norm")),
    "values with the weights of the norm of keys": (("gemma4_text",), lambda p: replace(p, value_norm=p.key_norm)),
    "no key norm": (("qwen3", "cohere", "phi"), without("key_norm")),
    "query norm with w for 1 + w": (("gemma3_text",), part("query_norm", one_more=False)),
    "query norms of other heads": (
        ("stablelm", "cohere"),
        lambda p: part("query_norm", weight=p.query_norm.weight.roll(1, 0))(p),
    ),
    "no biases of queries and keys": (
        ("llama", "qwen2", "phimoe", "gpt_neox", "clip_text_model"),
        part("query", "key", bias=None),
    ),
    "no bias of queries": (("bart:X", "whisper:X"), part("query", bias=None)),
    "no bias of values": (("gpt_oss", "starcoder2", "phi", "bart:X", "whisper:X"), part("value", bias=None)),
    "no bias of the output": (("llama", "gpt_oss", "phimoe", "gpt_neox", "bart:D"), without("output_bias")),
    "no bound": (("olmo",), part("query", "value", clip=None)),
    "another bound": (("olmo",), part("query", "value", clip=1.6)),
    "no bound of normed queries": (("olmoe",), part("query_norm", clip=None)),
    "no bound of values alone": (("olmoe",), part("value", clip=None)),
    "no cap": (("gemma2",), without("cap")),
    "another cap": (("gemma2",), lambda p: replace(p, cap=3.3)),
    "no gate": (GATED, without("gate")),
    "gates of other heads": (GATED, lambda p: part("gate", weight=p.gate.weight.roll(1, 0))(p)),
    "no bias of gates": (GATED, part("gate", bias=None)),
    "gates of queries": (GATED, lambda p: replace(p, gate=p.query)),
    "queries of gates": (GATED, lambda p: replace(p, query=p.gate)),
    "gates and queries in turn": (GATED, in_turn),
    "no sinks": (("gpt_oss",), without("sinks")),
    "sinks of other heads": (("gpt_oss",), lambda p: replace(p, sinks=p.sinks.roll(1))),
    "sinks scaled as scores are": (("gpt_oss",), lambda p: replace(p, sinks=p.sinks * p.scale)),
    "no bias by distance": (("t5:D", "mpnet", "bloom", "t5:E", "umt5:D"), without("position_bias")),
    "one bias for both sides": (("mpnet",), lambda p: replace(p, position_bias=partial(p.position_bias, causal=True))),
    "buckets of other distances": (
        ("mpnet",),
        lambda p: replace(p, position_bias=partial(p.position_bias, max_distance=9)),
    ),
    "a bias of another head": (("bloom", "mpnet"), bias_of_the_head_before),
    "a bias in cross-attention": (("t5:X", "umt5:X"), a_bias_across),
    "slopes of twice as many heads": (
        ("bloom",),
        lambda p: replace(p, position_bias=partial(linear_bias, alibi_slopes(12)[:6], torch.float32)),
    ),
    "no products with positions": (("deberta-v2",), without("relative")),
    "no content to position": (("deberta-v2",), vectors(torch.zeros_like, "content_to")),
    "no position to content": (("deberta-v2",), vectors(torch.zeros_like, "to_content")),
    "positions the other way round": (("deberta-v2",), vectors(lambda each: each.flip(1))),
    "positions of another head": (("deberta-v2",), vectors(lambda each: each.roll(1, 0))),
    "a bucket each": (("deberta-v2",), lambda p: replace(p, relative=replace(p.relative, farthest=None))),
    "the scale of one product": (("deberta-v2",), lambda p: replace(p, scale=8**-0.5)),
    "rolled heads": (("modernbert", "bloom"), lambda p: replace(p, query=rolled(p.query))),
    "heads in another order": (("marian:X", "t5:D", "whisper:X", "falcon"), heads_in_another_order),
    **{
        name: (("bert", "gpt2", KINDS[place % len(KINDS)]), change)
        for place, (name, change) in enumerate({**PATTERN_MUTATIONS, **OUTPUT_MUTATIONS}.items())
    },
}
"""By what is wrong, families (with a stack) and the change."""


def cases(table: dict[str, Any]) -> list[Any]:
    return [
        case
        for name, (families, *_) in table.items()
        for case in first_of([(family, name) for family in dict.fromkeys(families)])
    ]


@pytest.mark.parametrize(("family", "name"), cases(PARAMETERS))
def test_wrong_parameters_fail_verification(monkeypatch, family, name):
    family, _, stack = family.partition(":")
    checkpoint = made(family, torch.float64 if family in ("llama", "qwen3", "gpt2") else torch.float32)
    change_parameters(monkeypatch, family, PARAMETERS[name][1], stack)
    for _ in each_implementation(checkpoint):
        with pytest.raises(VerificationError, match=rf"layer {stack}\d"):
            verified(checkpoint, PROTEIN if family == "esm" else TEXT)


# --- wrong steps of the reference

right_pattern, right_rotary = attention.attention_pattern, attention.apply_rotary
right_allowed, right_keys = attention.allowed_positions, attention.queries_and_keys


def queries_one_further(x: Tensor, turned: Rotary) -> Tensor:
    if x.shape[-3] != 4:  # keys, which have fewer heads
        return right_rotary(x, turned)
    return right_rotary(torch.cat([x[..., :1, :], x], dim=-2), turned)[..., 1:, :]


def normed_after_rotation(x: Tensor, source: Tensor, parameters: HeadParameters) -> tuple[Tensor, Tensor]:
    query, key = right_keys(x, source, replace(parameters, query_norm=None, key_norm=None))
    if parameters.query_norm is None or parameters.key_norm is None:  # where the message looks for a reason
        return query, key
    own = key[..., :: parameters.n_heads // len(parameters.key.weight), :, :]  # before they are repeated
    key = attention.repeat_kv(attention.normed_heads(own, parameters.key_norm), parameters.n_heads)
    return attention.normed_heads(query, parameters.query_norm), key


def one_key_too_many(mask: Tensor, causal: bool, window: int | None, first: int, n_queries: int) -> Tensor:
    later = torch.arange(mask.shape[1]) - torch.arange(first, first + n_queries)[:, None]
    return right_allowed(mask, False, window, first, n_queries) & (later <= 1)


def renormalised(scores: Tensor, allowed: Tensor, sinks: Tensor | None = None) -> Tensor:
    pattern = right_pattern(scores, allowed, sinks)
    return pattern / pattern.sum(-1, keepdim=True)


def keys_of_the_target(x: Tensor, source: Tensor, parameters: HeadParameters) -> tuple[Tensor, Tensor]:
    return right_keys(x, x[:, torch.arange(source.shape[1]) % x.shape[1]], parameters)  # as many as there were


STEPS: dict[str, tuple[tuple[str, ...], str, Any]] = {
    "RoPE off by one": (("llama", "gemma2", "phi3", "cohere2"), "apply_rotary", queries_one_further),
    "groups in turn": (
        tuple(each for each in UNLIKE if each != "gpt_neox"),
        "repeat_kv",
        lambda x, n: x.repeat(1, n // x.shape[-3], 1, 1),
    ),
    "mask off by one": (("gemma2", *UNLIKE, "deepseek_v3"), "allowed_positions", one_key_too_many),
    "sinks renormalised": (("gpt_oss",), "attention_pattern", renormalised),
    "norms after the rotation": (("qwen3", "cohere"), "queries_and_keys", normed_after_rotation),
    "keys of the target": (("bart", "t5"), "queries_and_keys", keys_of_the_target),
}


@pytest.mark.parametrize(("family", "name"), cases(STEPS))
def test_wrong_steps_fail_verification(monkeypatch, family, name):
    monkeypatch.setattr(attention, *STEPS[name][1:])
    checkpoint = made(family)
    for _ in each_implementation(checkpoint):
        with pytest.raises(VerificationError):
            verified(checkpoint)


# --- wrong declarations


def bias_of_the_first_layer(self: T5, model: Any, layer: int) -> Any:
    return T5.position_bias(self, model, self._stack(model.config, layer).first)


DECLARED: dict[str, tuple[tuple[str, ...], str, Any]] = {
    "epsilon": (("gpt_neox", "olmo", "starcoder2", *KINDS), "epsilon_setting", 0.1),
    "norms about zero": (("gemma2", "gemma", "gemma3_text", "gpt_neox"), "norm_kind", "rms"),
    "norms with 1 + w": (("llama",), "norm_kind", "rms, 1 + w"),
    "heads one after the other": (("gpt_neox",), "fused_by_head", False),
    "norms without 1 + w": (GATED, "norm_kind", "rms"),
    "neighbours as pairs": (GATED, "rotary_interleaved", True),
    "norms afterwards": (("mbart", "m2m_100", "pegasus"), "pre_norm", False),
    "no multiplier": (("granite",), "residual_multiplier", lambda *_: 1.0),
    "the bias of the first layer": (("umt5",), "position_bias", bias_of_the_first_layer),
}


@pytest.mark.parametrize(("family", "name"), cases(DECLARED))
def test_a_wrong_declaration_fails_verification(monkeypatch, family, name):
    checkpoint = made(family, torch.float64)
    monkeypatch.setattr(type(ARCHITECTURES[family]), *DECLARED[name][1:])
    with pytest.raises(VerificationError):
        verified(checkpoint)


@pytest.mark.parametrize("instead", [None, 1])
def test_keys_made_of_the_input_of_another_layer_fail_verification(monkeypatch, instead):
    checkpoint, right = made("gemma4_text"), Gemma4.modules_of

    def wrong(self: Gemma4, model: Any, layer: int) -> LayerModules:
        modules = right(self, model, layer)
        return replace(modules, keys_layer=instead) if modules.keys_layer == 0 else modules

    monkeypatch.setattr(Gemma4, "modules_of", wrong)
    for _ in each_implementation(checkpoint):
        with pytest.raises(VerificationError):
            verified(checkpoint)


@pytest.mark.parametrize("family", ["gemma2", pytest.param("olmo3", marks=pytest.mark.thorough)])
def test_a_missing_norm_behind_the_output_map_fails_verification(monkeypatch, family):
    original = Llama.modules
    monkeypatch.setattr(
        Llama, "modules", lambda self, base: [replace(m, attention_output_norm=None) for m in original(self, base)]
    )
    with pytest.raises(VerificationError):
        verified(checkpoint_of(family))


@pytest.mark.parametrize(
    ("family", "parallel"), [("gpt_neox", True), ("gpt_neox", False), ("cohere", True), ("stablelm", False)]
)
def test_halves_in_the_other_order_fail(monkeypatch, family, parallel):
    changes = {} if family == "cohere" else {"use_parallel_residual": parallel}
    checkpoint, kind = checkpoint_of(family, **changes), type(ARCHITECTURES[family])
    original = kind.layer_modules
    with monkeypatch.context() as patch:
        patch.setattr(kind, "layer_modules", lambda self, layer: replace(original(self, layer), parallel=not parallel))
        with pytest.raises(VerificationError):
            verified(checkpoint)
    verified(checkpoint)
    checkpoint.model.layers[0].register_forward_hook(lambda _, args, output: output + args[0].pow(2))
    if parallel:
        with pytest.raises(VerificationError, match="layer 0"):
            verified(checkpoint)


@pytest.mark.draws
@pytest.mark.parametrize(("family", "name"), cases(dict.fromkeys(PASSED_ON, (("bert", "gpt2", *KINDS[2:5]),))))
def test_an_output_that_is_changed_before_the_residual_fails_verification(family, name):
    checkpoint = checkpoint_of(family)
    modules = checkpoint.modules[2]
    w_o: Any = modules.o_proj
    given: list[Tensor] = []
    w_o.register_forward_hook(lambda _, __, output: given.append(output))
    modules.sum_input(checkpoint.architecture.pre_norm).register_forward_pre_hook(
        lambda _, args: (args[0] - given[-1] + PASSED_ON[name](given[-1], w_o.bias),)
    )
    with pytest.raises(VerificationError, match="layer 2"):
        verified(checkpoint)


EMBEDDINGS: list[tuple[str, str, dict[str, Any], Change]] = [
    ("albert", TEXT, {"embedding_size": 32}, lambda right: replace(right, project=None)),
    ("opt", TEXT, {}, lambda right: replace(right, positions=right.positions.roll(1, 0))),
    ("opt-350m", TEXT, {}, lambda right: replace(right, words=2 * right.words)),
    ("esm", MASKED, {}, lambda right: replace(right, norm=None)),
    # without a norm after it, which hides the scale
    ("esm", MASKED, {"emb_layer_norm_before": False}, lambda right: replace(right, dropped=5)),
    ("esm", MASKED, {"emb_layer_norm_before": False}, lambda right: replace(right, scale=1.0)),
]


@pytest.mark.parametrize(("family", "text", "changes", "wrong"), EMBEDDINGS)
def test_other_embeddings_are_noticed(monkeypatch, family, text, changes, wrong):
    checkpoint = checkpoint_of(family, **changes)
    kind = type(checkpoint.architecture)
    right = kind.embeddings
    monkeypatch.setattr(kind, "embeddings", lambda *given: wrong(right(*given)))
    with pytest.raises(VerificationError, match="layer 0"):
        attnviz.explain(text, checkpoint)


@pytest.mark.parametrize("rounded", [False, True])
def test_cos_and_sin_of_modernbert_are_rounded_before_they_turn_in_float32(monkeypatch, rounded):
    checkpoint = checkpoint_of("modernbert", torch.bfloat16)
    checkpoint.model.set_attn_implementation("eager")
    change_parameters(monkeypatch, "modernbert", rotary(rounded=rounded))
    errors = [check.pattern_error for check in verified(checkpoint).verification.layers]
    assert (max(errors) == 0) == rounded


@pytest.mark.parametrize("family", ["bart", pytest.param("t5", marks=pytest.mark.thorough)])
def test_cross_attention_that_reads_other_states_than_the_encoders_fails(family):
    checkpoint = checkpoint_of(family)
    wrong = next(layer for layer in checkpoint.layers if str(layer) == "X1")

    def shuffled(_: Any, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "key_value_states": kwargs["key_value_states"].flip(1)}

    checkpoint.modules[wrong].attention.register_forward_pre_hook(shuffled, with_kwargs=True)
    with pytest.raises(VerificationError, match="layer X1"):
        verified(checkpoint)


# --- which step is wrong

Disturbed = Callable[[Any, Tensor], Tensor]


def without_bias(linear: Any, x: Tensor) -> Tensor:
    return nn.functional.linear(x, linear.weight)


def other_order(linear: Any, x: Tensor) -> Tensor:
    return type(linear).forward(linear, x).unflatten(-1, (4, -1)).flip(-2).flatten(-2)


FORGOTTEN: list[tuple[str, str, Disturbed, str]] = [
    ("qwen2", "q_proj", without_bias, "queries .*bias"),
    ("llama", "k_proj", without_bias, "keys .*bias"),
    ("llama", "v_proj", without_bias, "values .*bias"),
    ("qwen3", "q_norm", lambda _, x: x, "queries .*norm"),
    ("olmo2", "k_norm", lambda _, x: x, "keys .*norm"),
    ("qwen3", "q_proj", other_order, "queries .*order"),
    ("mistral", "v_proj", lambda linear, x: 1.01 * type(linear).forward(linear, x), "values"),
]


@pytest.mark.parametrize(("family", "name", "wrong", "step"), FORGOTTEN)
def test_the_step_that_differs_is_named(monkeypatch, family, name, wrong, step):
    checkpoint = checkpoint_of(family)
    module = getattr(checkpoint.model.layers[0].self_attn, name)
    monkeypatch.setattr(module, "forward", partial(wrong, module))
    for _ in each_implementation(checkpoint):
        with pytest.raises(VerificationError, match=step) as caught:
            verified(checkpoint)
        if "norm" in step or "bias" in step:  # of one of the three alone
            assert str(caught.value).count("differ before that") == 1


@pytest.mark.parametrize(("family", "step"), [("llama", "queries .*rotary"), ("llama", "groups"), ("olmo", "bound")])
def test_a_step_of_no_module_is_named(monkeypatch, family, step):
    checkpoint = checkpoint_of(family)
    modeling = type(checkpoint.model).__module__
    if step == "groups":
        for place in (modeling, sdpa_attention.__name__):
            monkeypatch.setattr(f"{place}.repeat_kv", lambda x, n: x.repeat(1, n, 1, 1))
        monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False)
    elif step == "bound":
        monkeypatch.setattr(Tensor, "clamp_", lambda x, **_: x)
    else:
        monkeypatch.setattr(f"{modeling}.apply_rotary_pos_emb", lambda q, k, *_, **__: (q, k))
    for _ in each_implementation(checkpoint):
        with pytest.raises(VerificationError, match=step):
            verified(checkpoint)
