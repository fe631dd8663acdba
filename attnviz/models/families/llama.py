"""Llama (Touvron et al. 2023) and its relatives under transformers' names: decoders with rotary positions, RMS norms.

They differ in windows, biases, and norms of queries and keys.
"""

import json
import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.models.families.base import Architecture, Family, NormKind, like, not_reproduced, rope_by_layer_type
from attnviz.reference.attention import Chunk, HeadParameters, RMSNorm, softcap
from attnviz.reference.positions import (
    Rotary,
    Temperature,
    default_frequencies,
    llama3_frequencies,
    longrope_frequencies,
    yarn_frequencies,
)

_TEMPERATURE = ("llama_4_scaling_beta", "original_max_position_embeddings")  # of queries, in the settings of RoPE


class Llama(Architecture, name="llama", prefix="Llama"):
    """Causal attention with rotary positions; pre-norm with RMS norms; grouped-query attention."""

    final_norm_at = "norm"
    old_buffers: tuple[str, ...] = ("rotary_emb.inv_freq",)
    states_d_head = True
    causal = True
    pre_norm = True
    linear_biases = False
    norm_kind: NormKind = "rms"
    float32_steps = True
    epsilon_setting: str | float = "rms_norm_eps"
    words_at = "embed_tokens"
    rotary_in_float32 = False  # whether queries and keys are turned in float32
    rotary_interleaved = False  # whether neighbours are pairs, not halves of what is rotated
    query_temperature = False  # whether queries have a temperature by position
    softmax_in_float32 = True
    layer_types: tuple[str, ...] = ("full_attention", "sliding_attention")
    only: tuple[tuple[str, object], ...] = (("use_bidirectional_attention", False),)

    def refuse(self, config: Any) -> None:
        """Refuse also types of layers and groups of heads that are not reproduced."""
        super().refuse(config)
        for setting in _TEMPERATURE if self.query_temperature else ():
            if not config.rope_parameters.get(setting):
                raise not_reproduced(self.name, setting, config.rope_parameters.get(setting), "a number above 0")
        for layer in range(config.num_hidden_layers):
            n_heads, n_shared = self.head_counts(config, layer)
            if n_heads % n_shared:
                raise not_reproduced(self.name, "num_key_value_heads", n_shared, f"a divisor of {n_heads} heads")
            if (kind := self.layer_type(config, layer)) not in self.layer_types:
                raise not_reproduced(self.name, "layer_types", kind, " or ".join(self.layer_types))

    def layer_type(self, config: Any, layer: int) -> str:  # noqa: ARG002 - all layers are alike
        """``full_attention``, or ``sliding_attention`` for a window."""
        return "full_attention"

    def head_counts(self, config: Any, layer: int) -> tuple[int, int]:  # noqa: ARG002 - all layers are alike
        """``num_attention_heads`` and ``num_key_value_heads``, if there are such."""
        return config.num_attention_heads, getattr(config, "num_key_value_heads", config.num_attention_heads)

    def window(self, config: Any, layer: int) -> int | None:
        """The config's ``sliding_window`` in layers of that type; else None."""
        return config.sliding_window if self.layer_type(config, layer) == "sliding_attention" else None

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary | None:
        """As the config says, perhaps by type of layer."""
        turned = rotary_of(base_model.config, d_head, self.layer_type(base_model.config, layer))
        return replace(turned, in_float32=self.rotary_in_float32, interleaved=self.rotary_interleaved)

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """With a temperature of queries, if they have one."""
        parameters = super().parameters(base_model, layer)
        if not self.query_temperature:
            return parameters
        beta, original = (base_model.config.rope_parameters[setting] for setting in _TEMPERATURE)
        return replace(parameters, temperature=Temperature(beta, original))


class Mistral(Llama, name="mistral", prefix="Mistral"):
    """Jiang et al. 2023: a window in all layers."""

    def layer_type(self, config: Any, layer: int) -> str:  # noqa: ARG002 - all layers are alike
        """``sliding_attention`` in all layers if the config has a window."""
        return "full_attention" if config.sliding_window is None else "sliding_attention"


class Starcoder2(Mistral, name="starcoder2", prefix="Starcoder2"):
    """Lozhkov et al. 2024: layer norms, and a feed-forward network without a gate."""

    norm_kind: NormKind = "layer"
    epsilon_setting = "norm_epsilon"
    network_names = ("c_fc", None, None, "c_proj")


class Mixtral(Mistral, name="mixtral", prefix="Mixtral"):
    """Jiang et al. 2024: experts."""


class Qwen2(Llama, name="qwen2", prefix="Qwen2"):
    """Yang et al. 2024: biases of queries, keys and values; windows in the layers that the config names."""

    def layer_type(self, config: Any, layer: int) -> str:
        """The config's ``layer_types``."""
        return str(config.layer_types[layer])


class Qwen3(Qwen2, name="qwen3", prefix="Qwen3"):
    """Yang et al. 2025: queries and keys are normed a head at a time."""


class SmolLM3(Qwen2, name="smollm3", prefix="SmolLM3"):
    """Bakouch et al. 2025: no positions at all in every fourth layer (Yang et al. 2025, "RoPE to NoPE and Back")."""

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary | None:
        """None in layers where ``no_rope_layers`` is 0."""
        return super().rotary(base_model, layer, d_head) if base_model.config.no_rope_layers[layer] else None


class GptOss(Qwen2, name="gpt_oss", prefix="GptOss"):
    """OpenAI 2025: learned sinks (Miller 2023, "Attention is off by one"); experts; windows in every other layer."""

    norm_kind: NormKind = "rms, rounded once"
    learned_sinks = True
    softmax_in_float32 = False


class Qwen2MoE(Qwen2, name="qwen2_moe", prefix="Qwen2Moe"):
    """Yang et al. 2024: experts, one of which every token takes; dense networks in the layers that the config names."""


class Qwen3MoE(Mixtral, name="qwen3_moe", prefix="Qwen3Moe"):
    """Yang et al. 2025: experts, none of which all tokens take; queries and keys as in Qwen3."""


class PhiMoE(Mixtral, name="phimoe", prefix="Phimoe"):
    """Abdin et al. 2024: layer norms, biases; experts (Liu et al. 2024, "GRIN")."""

    norm_kind: NormKind = "layer"

    def refuse(self, config: Any) -> None:
        """As in Mixtral; and another factor of cos and sin in longer texts."""
        super().refuse(config)
        short, long = (config.rope_parameters.get(name) for name in ("short_mscale", "long_mscale"))
        if short != long:
            raise not_reproduced(self.name, "long_mscale", long, f"{short}, as short_mscale")

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary | None:
        """Scaled, with the frequencies of short texts, and a factor of its own."""
        turned = super().rotary(base_model, layer, d_head)
        factor = base_model.config.rope_parameters.get("short_mscale")
        return turned if factor is None or turned is None else Rotary(turned.frequencies, float(factor))


class Phi3(Mistral, name="phi3", prefix="Phi3"):
    """Abdin et al. 2024: W_Q, W_K and W_V in one matrix, as are the two of the network; a part of a head is rotated."""

    partial_rotary = True
    projection_names = ("qkv_proj", "o_proj")
    network_names = ("gate_up_proj", "gate_up_proj", "activation_fn", "down_proj")


class Glm(Llama, name="glm", prefix="Glm"):
    """GLM Team 2024: neighbours are pairs of rotary positions; a part of a head is rotated."""

    partial_rotary = True
    rotary_interleaved = True
    network_names = Phi3.network_names


class Glm4(Glm, name="glm4", prefix="Glm4"):
    """GLM-4-0414: norms of outputs, too."""

    norm_names = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


class Exaone4(Qwen2, name="exaone4", prefix="Exaone4"):
    """LG AI Research 2025: outputs alone are normed; in a model with windows, no positions in layers without one."""

    norm_names = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
    heads_first = True

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary | None:
        """In layers with a window, or if none has one."""
        config = base_model.config
        nowhere = config.sliding_window is not None and self.window(config, layer) is None
        return None if nowhere else super().rotary(base_model, layer, d_head)


class Gemma(Llama, name="gemma", prefix="Gemma"):
    """Gemma Team 2024: norms whose stored weights are less 1, and larger embeddings."""

    norm_kind: NormKind = "rms, 1 + w"

    def embedding_scale(self, config: Any, words: Tensor) -> float:
        """The root of d_model as the number format rounds it."""
        return float(torch.tensor(config.hidden_size**0.5).to(words.dtype))


class Gemma2(Gemma, Qwen2, name="gemma2", prefix="Gemma2"):
    """Capped scores; windows in every other layer; four norms a layer."""

    activation_setting = "hidden_activation"
    cap_setting = "attn_logit_softcapping"
    norm_names = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``lm_head`` of ``Gemma2ForCausalLM``, with the softcap that the model applies to its logits."""
        head = super().language_head(model)
        config = model.config
        cap = getattr(config, "final_logit_softcapping", None)
        return head if head is None or cap is None else CappedHead(head, cap)

    def scale(self, config: Any, layer: int, d_head: int) -> float:  # noqa: ARG002 - whatever d_head is
        """By ``query_pre_attn_scalar``."""
        return float(config.query_pre_attn_scalar**-0.5)


class Gemma3(Gemma2, name="gemma3_text", prefix="Gemma3Text"):
    """Queries and keys normed a head at a time instead of capped scores; rotary positions by type of layer."""

    language_class = "Gemma3ForCausalLM"
    cap_setting = ""  # whatever the config says, as in transformers
    only = ()
    heads_first = True

    def variant(self, config: Any) -> Architecture:
        """EmbeddingGemma (Vera et al. 2025) attends both ways, also in windows, and predicts no words."""
        if not config.use_bidirectional_attention:
            return self
        return self.but(causal=False, language_steps=(), class_steps=())


def with_images(
    name: str, prefix: str, text: type[Family], tower: str = "language_model", task: str = "ForConditionalGeneration"
) -> type[Family]:
    """A family that reads images, too: here its text tower, on text alone, by default of the family ``text``."""
    parts = {"text_tower_at": tower, "language_task": task, "language_class": prefix + task}
    return like(text, name, prefix, old_buffers=(*text.old_buffers, "language_model.lm_head.weight"), **parts)


Gemma3WithImages = with_images("gemma3", "Gemma3", Gemma3)
Llava = with_images("llava", "Llava", Llama)
LlavaNext = with_images("llava_next", "LlavaNext", Llama)
LlavaOnevision = with_images("llava_onevision", "LlavaOnevision", Qwen2)
InternVL = with_images("internvl", "InternVL", Qwen2)
Mistral3 = with_images("mistral3", "Mistral3", Mistral)
Idefics3 = with_images("idefics3", "Idefics3", Llama, "text_model")
SmolVLM = with_images("smolvlm", "SmolVLM", Llama, "text_model")
Qwen2VL = with_images("qwen2_vl", "Qwen2VL", Qwen2)  # of text alone all three positions of a token are one
Qwen25VL = with_images("qwen2_5_vl", "Qwen2_5_VL", Qwen2)
Qwen3VL = with_images("qwen3_vl", "Qwen3VL", Llama)


class Granite(Llama, name="granite", prefix="Granite"):
    """Granite Team 2024: multipliers of embeddings, scores, what is added to the residual stream, and logits."""


class GraniteMoE(Granite, name="granitemoe", prefix="GraniteMoe"):
    """Granite Team 2024: experts."""

    network_at = "block_sparse_moe"


class Llama4(SmolLM3, name="llama4_text", prefix="Llama4Text"):
    """Meta AI 2025: chunks in layers with positions, a temperature in those without; norms have no weights; experts.

    The norms come after the rotation, whose factor they take out, so they are the same before it but for epsilon.
    """

    language_class = "Llama4ForCausalLM"
    network_at = "feed_forward"
    network_names = ("up_proj", "gate_proj", "activation_fn", "down_proj")
    layer_types = ("full_attention", "chunked_attention")
    needed = ("attention_chunk_size",)
    rotary_interleaved = True
    rotary_in_float32 = True
    softmax_in_float32 = False
    explained = False

    def window(self, config: Any, layer: int) -> int | None:
        """The chunk, in layers that have one."""
        return Chunk(config.attention_chunk_size) if self.layer_type(config, layer) == "chunked_attention" else None

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """With the norms, or with a temperature."""
        parameters, config = super().parameters(base_model, layer), base_model.config
        rotary, weight = parameters.rotary, parameters.query.weight
        if rotary is None and config.attn_temperature_tuning:
            heat = Temperature(config.attn_scale, config.floor_scale, first=1, rounded=False)
            return replace(parameters, temperature=heat)
        if rotary is None or not config.use_qk_norm:
            return parameters
        norm = RMSNorm(weight.new_ones(weight.shape[-1]), config.rms_norm_eps / rotary.factor**2)
        return replace(parameters, rotary=replace(rotary, factor=1.0), query_norm=norm, key_norm=norm)


class CappedHead(nn.Module):
    """A language-modelling head with its logits bounded by ±cap, as the whole model bounds them after its head."""

    def __init__(self, head: nn.Module, cap: float) -> None:
        super().__init__()
        self.head, self.cap = head, cap

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits [.., vocabulary] of normed final states [.., d_model]."""
        return softcap(self.head(hidden), self.cap)


def rotary_of(config: Any, d_head: int, layer_type: str = "") -> Rotary:
    """The rotary positions of a layer, from a checked config, of which some have others for each type of layer."""
    by_type = rope_by_layer_type(config)
    return _rotary_by(
        json.dumps(by_type.get(layer_type) or by_type[""]),
        d_head,
        getattr(config, "max_position_embeddings", 0),
        config.rope_parameters.get("truncate", True),  # of all layers, as transformers reads it
    )


@lru_cache(maxsize=16)  # layers share cos and sin
def _rotary_by(settings_json: str, d_head: int, longest: int, truncate: bool) -> Rotary:
    settings: dict[str, Any] = json.loads(settings_json)
    kind = settings["rope_type"]
    base = float(settings["rope_theta"])
    share = settings.get("partial_rotary_factor", 1.0)
    if kind == "proportional":  # the frequencies of a whole head, of which the last turn nothing
        frequencies = default_frequencies(d_head, base) / settings.get("factor", 1.0)
        frequencies[int(share * d_head // 2) :] = 0.0
        return Rotary(frequencies)
    frequencies = default_frequencies(int(d_head * share), base)
    if kind == "linear":
        return Rotary(frequencies / settings["factor"])
    if kind == "llama3":
        low, high = settings["low_freq_factor"], settings["high_freq_factor"]
        original = settings["original_max_position_embeddings"]
        return Rotary(llama3_frequencies(frequencies, settings["factor"], low, high, original))
    if kind not in ("yarn", "longrope"):
        return Rotary(frequencies)  # "dynamic" differs in texts longer than the model's positions alone
    original = settings["original_max_position_embeddings"]
    factor = settings.get("factor") or longest / original
    stated = settings.get("attention_factor")
    if kind == "longrope":
        larger = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        short, long = (longrope_frequencies(frequencies, settings[name]) for name in ("short_factor", "long_factor"))
        return Rotary(short, larger if stated is None else stated, original, long)
    slowed = yarn_frequencies(
        frequencies,
        base,
        factor,
        fast=settings.get("beta_fast") or 32,
        slow=settings.get("beta_slow") or 1,
        original=original,
        whole=truncate,
    )
    if stated is None:  # a temperature of the softmax (Peng et al. 2023, section 3.4)
        weight, of_all = settings.get("mscale"), settings.get("mscale_all_dim")
        stated = temperature(1, factor)
        if weight and of_all:
            stated = temperature(weight, factor) / temperature(of_all, factor)
    return Rotary(slowed, float(stated))


def temperature(weight: float, factor: float) -> float:
    """YaRN's for texts longer by a factor."""
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0
