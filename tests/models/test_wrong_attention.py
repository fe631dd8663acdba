"""Every wrong variant of every family's attention fails verification, and the message names the step."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.integrations import sdpa_attention

import attnviz
from attnviz.commands.explain import reference, stages
from attnviz.commands.explain.stages import verify_stages
from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families import ARCHITECTURES
from attnviz.models.families.encoders import OPT
from attnviz.models.families.llama import Llama
from attnviz.reference import attention, positions
from attnviz.reference.attention import HeadParameters
from attnviz.reference.positions import Rotary, alibi_slopes, default_frequencies, linear_bias
from attnviz.trace import residual_parts
from tests.support.families import ENCODER_DECODERS, LLAMAS, TEXT, checkpoint_of, verified
from tests.support.llamas import (
    IN_PARALLEL,
    INTERLEAVED,
    LIKE_DEEPSEEK,
    NORMED,
    OF_LATENTS,
    PARTLY_ROTATED,
    SHARED,
    WINDOW,
    WINDOWED,
)
from tests.support.mutations import OUTPUT_MUTATIONS, PASSED_ON, PATTERN_MUTATIONS, rolled
from tests.support.relatives import KINDS

Change = Callable[[Any], Any]

PROTEIN, MASKED = "MKTAYIAKQRQISF", "MK<mask>AYI <mask>KQjRx"


def change_parameters(monkeypatch: pytest.MonkeyPatch, family: str, change: Change, stack: str = "") -> None:
    """Change what a family reads, of an encoder-decoder in the layers of one stack."""
    kind = type(ARCHITECTURES[family.removesuffix("-both")])
    original = kind.parameters

    def wrong(self: Any, model: Any, layer: int) -> HeadParameters:
        right = original(self, model, layer)
        return change(right) if str(layer).startswith(stack) else right

    monkeypatch.setattr(kind, "parameters", wrong)


def each_implementation(checkpoint: Checkpoint) -> Iterator[str]:
    """A model set to each implementation of attention that it has, in turn."""
    for name in dict.fromkeys((checkpoint.attention, "eager")):
        checkpoint.model.set_attn_implementation(name)
        yield name


def rotary(**changes: Any) -> Change:
    return lambda p: p if p.rotary is None else replace(p, rotary=replace(p.rotary, **changes))


def all_rotary(d: int, base: float, **more: Any) -> Change:
    """The same rotary positions in every layer."""
    return lambda p: replace(p, rotary=Rotary(default_frequencies(d, base), **more))


def part(*names: str, **changes: Any) -> Change:
    """Change some of query, key and value, or the norms of these."""
    return lambda p: replace(p, **{name: replace(getattr(p, name), **changes) for name in names if getattr(p, name)})


def in_latents(name: str, norm: float | None = None, **changes: Any) -> Change:
    """Change what queries, keys or values are made of; ``norm``: the epsilon of its norm."""

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
    """Change DeBERTa's vectors of relative positions, of one kind or both."""
    return lambda p: replace(
        p,
        relative=replace(
            p.relative,
            vectors={name: change(each) if kind in name else each for name, each in p.relative.vectors.items()},
        ),
    )


def heads_in_another_order(p: HeadParameters) -> HeadParameters:
    bias = p.query.bias
    return replace(
        p, query=replace(p.query, weight=p.query.weight.roll(1, 0), bias=None if bias is None else bias.roll(1, 0))
    )


ROTATED = tuple(family for family in LLAMAS if family != "jamba")
BIASED = ("llama", "gpt_oss", "qwen2", "qwen2_moe", "phimoe", "gpt_neox", "starcoder2", "phi")
ALTERNATING = ("qwen2", "qwen2_moe", "gemma2", "gemma3_text", "olmo3", "gpt_oss")

PARAMETERS: dict[str, tuple[tuple[str, ...], Change]] = {
    "scale": (LLAMAS, lambda p: replace(p, scale=p.scale * 1.1)),
    "no scale": ((*LLAMAS, *LIKE_DEEPSEEK, "falcon", "gptj", "bloom", "bart:E"), lambda p: replace(p, scale=1.0)),
    "a scale of T5": (("t5:E",), lambda p: replace(p, scale=8**-0.5)),
    "scaled scores": (("opt", "esm", "gpt_neo"), lambda p: replace(p, scale=0.5)),
    "unscaled queries": (("opt", "esm", "whisper:D", "whisper:X"), lambda p: replace(p, query_scale=1.0)),
    "RoPE base": (
        ROTATED,
        lambda p: rotary(frequencies=default_frequencies(2 * len(p.rotary.frequencies), 5000.0) if p.rotary else None)(
            p
        ),
    ),
    "RoPE factor": (ROTATED, rotary(factor=1.05)),
    "another base in half of a head": (("modernbert", "esm"), rotary(frequencies=torch.logspace(0, -1, 4))),
    "no temperature of YaRN": (OF_LATENTS, lambda p: replace(p, scale=p.query.weight.shape[-1] ** -0.5)),
    "the first part of a head rotated": (OF_LATENTS, rotary(at_end=False)),
    "interleaved once it is turned": (("deepseek_v3",), rotary(apart=False)),
    "halves once it is turned": (("deepseek_v2",), rotary(apart=True)),
    "no bias of the latent of queries": (("deepseek_v3",), in_latents("query", bias=None)),
    "no bias of the latent of keys": (("deepseek_v2", "minicpm3"), in_latents("key", bias=None)),
    "no bias of the latent of values": (("deepseek_v3",), in_latents("value", bias=None)),
    "another epsilon of the latent": (("deepseek_v3",), in_latents("key", norm=1e-2)),
    "no RoPE": ((*ROTATED, "falcon", "gptj", "modernbert", "esm", "nomic_bert"), without("rotary")),
    "RoPE of a whole head": (PARTLY_ROTATED, all_rotary(8, 10000.0)),
    "RoPE not interleaved": ((*INTERLEAVED, "gptj"), rotary(interleaved=False)),
    "RoPE interleaved": (("esm",), rotary(interleaved=True)),
    "RoPE in layers without a window": (("cohere2", "exaone4"), all_rotary(8, 10000.0, interleaved=True)),
    "RoPE in every layer": (("smollm3",), all_rotary(8, 2000000.0)),
    "RoPE of the other type of layer": (("gemma3_text",), all_rotary(16, 1000000.0)),
    "window one longer": (
        (*WINDOWED, "gpt_neo", "gemma3_text-both"),
        lambda p: replace(p, window=p.window and p.window + 1),
    ),
    "window one shorter": (
        (*WINDOWED, "gpt_neo", "gemma3_text-both", "modernbert"),
        lambda p: replace(p, window=p.window and p.window - 1),
    ),
    "no window": ((*WINDOWED, "gpt_neo", "modernbert"), without("window")),
    "a window in every layer": (ALTERNATING, lambda p: replace(p, window=WINDOW)),
    "a window on one side": (("modernbert", "gemma3_text-both"), lambda p: replace(p, causal=p.window is not None)),
    "not causal": (
        (*LLAMAS, "falcon", "gpt_neo", "gptj", "bloom", "opt", "bart:D", "whisper:D", "clip_text_model"),
        lambda p: replace(p, causal=False),
    ),
    "causal": (("t5:E", "siglip_text_model", "gemma3_text-both"), lambda p: replace(p, causal=True)),
    "no query norm": (NORMED, without("query_norm")),
    "no key norm": (NORMED, without("key_norm")),
    "query norm with w for 1 + w": (("gemma3_text",), part("query_norm", one_more=False)),
    "query norms of other heads": (
        ("stablelm", "cohere"),
        lambda p: part("query_norm", weight=p.query_norm.weight.roll(1, 0))(p),
    ),
    "no biases of queries and keys": (
        (*BIASED, "clip_text_model", "siglip_text_model"),
        part("query", "key", bias=None),
    ),
    "no bias of queries": (("bart:X", "whisper:X"), part("query", bias=None)),
    "no bias of values": ((*BIASED, "bart:X", "whisper:X"), part("value", bias=None)),
    "no bias of the output": (("llama", "gpt_oss", "phimoe", "gpt_neox", "bart:D"), without("output_bias")),
    "no bound": (("olmo",), part("query", "value", clip=None)),
    "another bound": (("olmo",), part("query", "value", clip=1.6)),
    "no bound of normed queries": (("olmoe",), part("query_norm", clip=None)),
    "no bound of values alone": (("olmoe",), part("value", clip=None)),
    "no cap": (("gemma2",), without("cap")),
    "another cap": (("gemma2",), lambda p: replace(p, cap=3.3)),
    "no sinks": (("gpt_oss",), without("sinks")),
    "sinks of other heads": (("gpt_oss",), lambda p: replace(p, sinks=p.sinks.roll(1))),
    "sinks scaled as scores are": (("gpt_oss",), lambda p: replace(p, sinks=p.sinks * p.scale)),
    "no bias by distance": (("mpnet", "bloom", "t5:E", "t5:D"), without("position_bias")),
    "one bias for both sides": (("mpnet",), lambda p: replace(p, position_bias=partial(p.position_bias, causal=True))),
    "buckets of other distances": (
        ("mpnet",),
        lambda p: replace(p, position_bias=partial(p.position_bias, max_distance=9)),
    ),
    "a bias of another head": (("mpnet", "bloom"), bias_of_the_head_before),
    "a bias in cross-attention": (("t5:X",), a_bias_across),
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
    "heads in another order": (("bart:X", "t5:D", "whisper:X", "falcon"), heads_in_another_order),
    **{
        name: (("bert", "gpt2", *KINDS[place % 3 :: 3]), change)
        for place, (name, change) in enumerate({**PATTERN_MUTATIONS, **OUTPUT_MUTATIONS}.items())
    },
}
"""By what is wrong, families (with a stack) and the change."""

SAID = {
    ("modernbert", "rolled heads"): "3 of 3 layers .*agree with the heads",
    ("modernbert", "window one shorter"): "2 of 3 layers differ.*layer [12],",
    ("opt", "scaled scores"): "scales its scores by 1, the reference by 0.5",
    ("esm", "no RoPE"): "queries differ before that",
    ("opt", "unscaled queries"): "queries differ before that",
    **{("bert", name): "All patterns agree, but the attention output of layer" for name in OUTPUT_MUTATIONS},
}
"""What a message says beside that it fails."""


@pytest.mark.parametrize(("family", "name"), [(family, name) for name in PARAMETERS for family in PARAMETERS[name][0]])
def test_wrong_parameters_fail_verification(monkeypatch, family, name):
    family, _, stack = family.partition(":")
    checkpoint = checkpoint_of(family, torch.float64 if family in ("llama", "qwen3", "gpt2") else torch.float32)
    change_parameters(monkeypatch, family, PARAMETERS[name][1], stack)
    message = rf"\d of {checkpoint.n_layers} .* layer {stack}\d" if stack else SAID.get((family, name), "")
    for _ in each_implementation(checkpoint):
        with pytest.raises(VerificationError, match=f"do not reproduce the model.*{message}"):
            verified(checkpoint, PROTEIN if family == "esm" else TEXT)


# --- wrong steps of the reference

right_pattern, right_rotary = attention.attention_pattern, attention.apply_rotary
right_allowed, right_keys = attention.allowed_positions, attention.queries_and_keys
right_buckets = positions.position_buckets


def queries_one_further(x: Tensor, turned: Rotary) -> Tensor:
    if x.shape[-3] != 4:  # keys, which have fewer heads
        return right_rotary(x, turned)
    return right_rotary(torch.cat([x[..., :1, :], x], dim=-2), turned)[..., 1:, :]


def interleaved(x: Tensor, turned: Rotary) -> Tensor:
    """Pairs (2i, 2i + 1), as GPT-J has them."""
    d = 2 * len(turned.frequencies)
    order = torch.arange(d).view(-1, 2).T.flatten()
    found = right_rotary(torch.cat([x[..., :d][..., order], x[..., d:]], -1), turned)
    return torch.cat([found[..., :d][..., order.argsort()], found[..., d:]], -1)


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


def keys_of_the_target(x: Tensor, source: Tensor, parameters: HeadParameters) -> tuple[Tensor, Tensor]:
    return right_keys(x, x[:, torch.arange(source.shape[1]) % x.shape[1]], parameters)  # as many as there were


STEPS: dict[str, tuple[tuple[str, ...], Any, str, Any]] = {
    "RoPE off by one": (
        tuple(each for each in SHARED if each in ROTATED),
        attention,
        "apply_rotary",
        queries_one_further,
    ),
    "RoPE interleaved": (
        tuple(family for family in ROTATED if family not in INTERLEAVED),
        attention,
        "apply_rotary",
        interleaved,
    ),
    "groups in turn": (SHARED, attention, "repeat_kv", lambda x, n: x.repeat(1, n // x.shape[-3], 1, 1)),
    "mask off by one": (LLAMAS, attention, "allowed_positions", one_key_too_many),
    "norms a head at a time": (("olmo2", "olmo3"), attention, "normed_heads", normed_a_head_at_a_time),
    "sinks renormalised": (("gpt_oss",), attention, "attention_pattern", renormalised),
    "sinks that know no scores": (("gpt_oss",), attention, "attention_pattern", sink_added_after_the_softmax),
    "norms after the rotation": (NORMED, attention, "queries_and_keys", normed_after_rotation),
    "buckets of an encoder": (
        ("t5",),
        positions,
        "position_buckets",
        lambda q, k, n, far, _: right_buckets(q, k, n, far, False),
    ),
    "keys of the target": (("bart", "t5"), attention, "queries_and_keys", keys_of_the_target),
}


@pytest.mark.parametrize(("family", "name"), [(family, name) for name in STEPS for family in STEPS[name][0]])
def test_wrong_steps_fail_verification(monkeypatch, family, name):
    _, module, function, wrong = STEPS[name]
    monkeypatch.setattr(module, function, wrong)
    checkpoint = checkpoint_of(family)
    for _ in each_implementation(checkpoint):
        with pytest.raises(VerificationError, match="The largest difference is in layer"):
            verified(checkpoint)


# --- wrong declarations

DECLARED: list[tuple[str, str, Any]] = [
    *((family, "epsilon_setting", 0.1) for family in ("olmo", "starcoder2", "gpt_neox", *KINDS)),
    *((family, "norm_kind", "rms") for family in ("gemma", "gemma2", "gemma3_text", "gpt_neox")),
    ("llama", "norm_kind", "rms, 1 + w"),
    ("gpt_neox", "fused_by_head", False),
    *((family, "pre_norm", False) for family in ("mbart", "m2m_100", "pegasus")),
    ("granite", "residual_multiplier", lambda *_: 1.0),
]


@pytest.mark.parametrize(("family", "attribute", "value"), DECLARED)
def test_a_wrong_declaration_fails_verification(monkeypatch, family, attribute, value):
    checkpoint = checkpoint_of(family, torch.float64)
    monkeypatch.setattr(type(ARCHITECTURES[family]), attribute, value)
    with pytest.raises(VerificationError):
        verified(checkpoint)


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "olmo2", "olmo3"])
def test_a_missing_norm_behind_the_output_map_fails_verification(monkeypatch, family):
    original = Llama.modules
    monkeypatch.setattr(
        Llama, "modules", lambda self, base: [replace(m, attention_output_norm=None) for m in original(self, base)]
    )
    with pytest.raises(VerificationError, match="does not pass them on"):
        verified(checkpoint_of(family))


@pytest.mark.parametrize(
    ("family", "parallel"),
    [*((family, True) for family in (*IN_PARALLEL, "stablelm")), ("gpt_neox", False), ("stablelm", False)],
)
def test_halves_in_the_other_order_fail_by_name(monkeypatch, family, parallel):
    """And a block that passes on another sum fails, too."""
    changes = {"use_parallel_residual": parallel} if family in ("gpt_neox", "stablelm") else {}
    checkpoint, kind = checkpoint_of(family, **changes), type(ARCHITECTURES[family])
    original = kind.layer_modules
    with monkeypatch.context() as patch:
        patch.setattr(kind, "layer_modules", lambda self, layer: replace(original(self, layer), parallel=not parallel))
        with pytest.raises(VerificationError, match="does not pass them on: the " + ("sum" if parallel else "norm")):
            verified(checkpoint)
    verified(checkpoint)
    checkpoint.model.layers[0].register_forward_hook(lambda _, args, output: output + args[0].pow(2))
    if parallel:
        with pytest.raises(VerificationError, match=r"layer 0 .*: the sum of its input and the outputs of both"):
            verified(checkpoint)


@pytest.mark.draws
@pytest.mark.parametrize("family", ["bert", "gpt2", *KINDS])
@pytest.mark.parametrize("name", PASSED_ON)
def test_an_output_that_is_changed_before_the_residual_fails_verification(family, name):
    checkpoint = checkpoint_of(family)
    modules = checkpoint.modules[2]
    w_o: Any = modules.o_proj
    given: list[Tensor] = []
    w_o.register_forward_hook(lambda _, __, output: given.append(output))
    modules.sum_input(checkpoint.architecture.pre_norm).register_forward_pre_hook(
        lambda _, args: (args[0] - given[-1] + PASSED_ON[name](given[-1], w_o.bias),)
    )
    with pytest.raises(VerificationError, match="but layer 2 does not pass them on: the sum"):
        verified(checkpoint)


def doubled(module: Any) -> Any:
    module.weight.data *= 2
    return module


EMBEDDINGS: list[tuple[str, str, dict[str, Any], Change]] = [
    ("albert", TEXT, {"embedding_size": 32}, lambda right: replace(right, project=None)),
    ("opt", TEXT, {}, lambda right: replace(right, positions=right.positions.roll(1, 0))),
    ("opt-350m", TEXT, {}, lambda right: replace(right, words=2 * right.words)),
    # a norm after it hides the scale
    *(
        (
            "esm",
            MASKED,
            {"emb_layer_norm_before": "norm" in wrong},
            partial(lambda wrong, it: replace(it, **wrong), wrong),
        )
        for wrong in ({"dropped": None}, {"dropped": 5}, {"scale": 1.0}, {"norm": None})
    ),
]


@pytest.mark.parametrize(("family", "text", "changes", "wrong"), EMBEDDINGS)
def test_other_embeddings_are_noticed(monkeypatch, family, text, changes, wrong):
    checkpoint = checkpoint_of(family, **changes)
    kind = type(checkpoint.architecture)
    right = kind.embeddings
    monkeypatch.setattr(kind, "embeddings", lambda *given: wrong(right(*given)))
    with pytest.raises(VerificationError, match="input of layer 0"):
        attnviz.explain(text, checkpoint)


@pytest.mark.parametrize("family", KINDS)
def test_positions_one_off_are_noticed(monkeypatch, family):
    checkpoint, right = checkpoint_of(family), residual_parts.position_rows
    monkeypatch.setattr(residual_parts, "position_rows", lambda *given: right(*given) + 1)
    with pytest.raises(VerificationError, match="input of layer 0"):
        verify_stages(checkpoint, checkpoint.tokenize(TEXT), [0], lambda _: None)


OF_350M: dict[str, tuple[str, Callable[..., Any]]] = {
    "norms before attention": ("variant", lambda _, self, __: self),
    "other final states": ("output_map", lambda right, *given: doubled(right(*given))),
    "a norm after the last layer": ("final_norm", lambda _, __, model: model.decoder.layers[2].final_layer_norm),
}


@pytest.mark.parametrize("name", OF_350M)
def test_what_is_special_about_opt_350m_is_noticed(monkeypatch, name):
    method, wrong = OF_350M[name]
    right = getattr(OPT, method)
    monkeypatch.setattr(OPT, method, lambda *given: wrong(right, *given))
    with pytest.raises(VerificationError):
        attnviz.ablate([TEXT, "the dog ran"], checkpoint_of("opt-350m", headed=True))


def test_the_other_half_as_gate_is_noticed(monkeypatch):
    checkpoint, right = checkpoint_of("modernbert"), reference.layer_parameters

    def exchanged(*given):
        parameters = right(*given)
        return replace(parameters, gate=parameters.up_proj, up_proj=parameters.gate)

    monkeypatch.setattr(stages, "layer_parameters", exchanged)
    with pytest.raises(VerificationError, match="gate of layer 1"):
        attnviz.explain(TEXT, checkpoint, layer=1)


@pytest.mark.parametrize("rounded", [False, True])
def test_cos_and_sin_of_modernbert_are_rounded_before_they_turn_in_float32(monkeypatch, rounded):
    checkpoint = checkpoint_of("modernbert", torch.bfloat16)
    checkpoint.model.set_attn_implementation("eager")
    change_parameters(monkeypatch, "modernbert", rotary(rounded=rounded))
    errors = [check.pattern_error for check in verified(checkpoint).verification.layers]
    assert (max(errors) == 0) == rounded


# --- encoder-decoders


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_cross_attention_that_reads_other_states_than_the_encoders_fails(family):
    checkpoint = checkpoint_of(family)
    wrong = next(layer for layer in checkpoint.layers if str(layer) == "X1")

    def shuffled(_: Any, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "key_value_states": kwargs["key_value_states"].flip(1)}

    checkpoint.modules[wrong].attention.register_forward_pre_hook(shuffled, with_kwargs=True)
    with pytest.raises(VerificationError, match=r"layer X1: the states .* are not the encoder's own output"):
        verified(checkpoint)


def test_a_pattern_across_two_texts_is_named_by_its_own_rows_and_columns(monkeypatch):
    right, checkpoint = attention.pattern_of, checkpoint_of("bart")
    read, source = checkpoint.tokenize("a dog ran away", target=True).labels, checkpoint.tokenize(TEXT).labels

    def wrong(query: Any, key: Any, scoring: Any, allowed: Any, first: int) -> Any:
        pattern = right(query, key, scoring, allowed, first)
        if 1 < query.shape[-2] != key.shape[-2] == len(source):  # no other layer has as many keys
            pattern[0, 1, 2, -2] += 0.5
        return pattern

    monkeypatch.setattr(attention, "pattern_of", wrong)
    key = rf", key {len(source) - 2} \({source[-2]!r}"
    for name in each_implementation(checkpoint):
        where = rf"\(X\dH1\), query 2 \({read[1]!r}\){key if name == 'eager' else ''}"
        with pytest.raises(VerificationError, match=where):
            verified(checkpoint)


# --- which step is wrong


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
    for place in (type(module).__module__, sdpa_attention.__name__):
        monkeypatch.setattr(f"{place}.repeat_kv", lambda x, n: x.repeat(1, n, 1, 1))
    monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", lambda *_: False)


def _without_bound(_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "clamp_", lambda x, **_: x)


def _changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Any, pytest.MonkeyPatch], None]:
    def disturb(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        linear = getattr(module, name)
        forward = linear.forward
        monkeypatch.setattr(linear, "forward", lambda x: change(forward(x)))

    return disturb


FORGOTTEN: list[tuple[str, Callable[[Any, pytest.MonkeyPatch], None], str]] = [
    ("qwen2", _without_bias_of("q_proj"), "queries .*bias"),
    ("llama", _without_bias_of("k_proj"), "keys .*bias"),
    ("llama", _without_bias_of("v_proj"), "values .*bias"),
    ("qwen3", _without_norm("q_norm"), "queries .*norm"),
    ("olmo", _without_bound, "keys .*bound"),
    ("olmo2", _without_norm("k_norm"), "keys .*norm"),
    ("llama", _without_rotary, "queries .*rotary"),
    ("qwen3", _changed("q_proj", lambda x: x.unflatten(-1, (4, -1)).flip(-2).flatten(-2)), "queries .*another order"),
    ("llama", _with_groups_in_turn, "agree with the groups of heads in another order"),
    ("mistral", _changed("v_proj", lambda x: 1.01 * x), "values differ"),
]


@pytest.mark.parametrize(("family", "forget", "expected"), FORGOTTEN)
def test_the_message_names_the_step_that_differs(monkeypatch, family, forget, expected):
    checkpoint = checkpoint_of(family)
    forget(checkpoint.model.layers[0].self_attn, monkeypatch)
    for _ in each_implementation(checkpoint):
        with pytest.raises(VerificationError, match=expected) as caught:
            verified(checkpoint)
        if "norm" in expected or "bias" in expected:  # of one of the three alone
            assert str(caught.value).count("differ before that") == 1
