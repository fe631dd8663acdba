"""Decoders of the Llama kind that differ from one of :mod:`attnviz.models.families.llama` in a line or two."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from torch import nn

from attnviz.models.families.base import Architecture, LayerModules, NormKind
from attnviz.models.families.llama import (
    Exaone4,
    Gemma2,
    GraniteMoE,
    Llama,
    Mistral,
    Qwen2,
    rotary_of,
    with_images,
)
from attnviz.models.families.olmo import Olmo2
from attnviz.reference.attention import HeadParameters
from attnviz.reference.positions import Rotary


class Glm4MoE(Llama, name="glm4_moe", prefix="Glm4Moe"):
    """GLM-4.5 (GLM Team 2025): a part of a head is rotated; experts in groups, and one for all tokens."""

    partial_rotary = True


class MiniMaxM2(Glm4MoE, name="minimax_m2", prefix="MiniMaxM2"):
    """MiniMax 2025: queries and keys of all heads are normed together."""


class Ernie45(Llama, name="ernie4_5", prefix="Ernie4_5"):
    """Baidu 2025: neighbours are pairs of rotary positions, turned in float32."""

    rotary_interleaved = True
    rotary_in_float32 = True


class Nemotron(Llama, name="nemotron", prefix="Nemotron"):
    """Parmar et al. 2024, "Nemotron-4": layer norms whose stored weights are less 1; a network without a gate."""

    norm_kind: NormKind = "layer, 1 + w"
    epsilon_setting = "norm_eps"
    partial_rotary = True
    network_names = ("up_proj", None, None, "down_proj")


class Arcee(Llama, name="arcee", prefix="Arcee"):
    """Arcee AI 2025: a network without a gate."""

    network_names = Nemotron.network_names


class Apertus(Llama, name="apertus", prefix="Apertus"):
    """Swiss AI 2025: queries and keys are normed a head at a time; the activation has weights of its own."""

    norm_names = ("attention_layernorm", None, "feedforward_layernorm", None)
    network_names = ("up_proj", None, "act_fn", "down_proj")
    heads_first = True


class Helium(Llama, name="helium", prefix="Helium"):
    """Kyutai 2025: neighbours are pairs of rotary positions."""

    norm_kind: NormKind = "rms, rounded once"
    rotary_interleaved = True


class ExaoneMoE(Exaone4, name="exaone_moe", prefix="ExaoneMoe"):
    """LG AI Research 2026, "K-EXAONE": inputs are normed, not outputs; experts, and one for all tokens."""

    norm_names = Llama.norm_names


class HunYuan(Llama, name="hunyuan_v1_dense", prefix="HunYuanDenseV1"):
    """Tencent 2025: queries and keys are normed a head at a time once they are turned."""

    head_norm_names = ("query_layernorm", "key_layernorm")
    heads_first = True

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary | None:
        """``dynamic`` with an ``alpha`` is another base for texts of any length."""
        settings = base_model.config.rope_parameters
        alpha = settings.get("alpha")
        if settings["rope_type"] != "dynamic" or not alpha:
            return super().rotary(base_model, layer, d_head)
        base = settings["rope_theta"] * alpha ** (d_head / (d_head - 2))
        return rotary_of(SimpleNamespace(rope_parameters={"rope_type": "default", "rope_theta": base}), d_head)

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """With norms after the rotation."""
        return replace(super().parameters(base_model, layer), rotated_first=True)


class SeedOss(Llama, name="seed_oss", prefix="SeedOss"):
    """ByteDance 2025."""


class InternLM3(Llama, name="internlm3", prefix="Llama"):
    """Shanghai AI Laboratory 2025: Llama under another name."""


class IQuestCoder(Llama, name="iquestcoder", prefix="Llama"):
    """IQuest Lab 2026: Llama under another name."""


class Ministral(Qwen2, name="ministral", prefix="Ministral"):
    """Mistral AI 2024: windows in the layers that the config names."""


class Cwm(Qwen2, name="cwm", prefix="Cwm"):
    """Meta FAIR 2025, "Code World Model": as Ministral."""


class Mellum(Qwen2, name="mellum", prefix="Mellum"):
    """JetBrains 2026: experts; rotary positions by type of layer; queries and keys are normed a head at a time."""

    partial_rotary = True


class GraniteMoEShared(GraniteMoE, name="granitemoeshared", prefix="GraniteMoeShared"):
    """Granite Team 2025: experts beside a network for all tokens."""

    network_at = "shared_mlp"
    network_names = ("input_linear", "input_linear", "activation", "output_linear")
    explained = False

    def variant(self, config: Any) -> Architecture:
        """Without that network it is a ``granitemoe``."""
        if config.shared_intermediate_size:
            return self
        without = GraniteMoE()
        without.name, without.class_prefix = self.name, self.class_prefix
        return without

    def layer_modules(self, layer: Any) -> LayerModules:
        """With the experts."""
        return replace(super().layer_modules(layer), experts=layer.block_sparse_moe)


class FlexOlmo(Olmo2, name="flex_olmo", prefix="FlexOlmo"):
    """Shi et al. 2025: OLMo 2 with experts."""


class VaultGemma(Gemma2, name="vaultgemma", prefix="VaultGemma"):
    """Sinha et al. 2025: Gemma 2 without norms of outputs."""

    norm_names = ("input_layernorm", None, "pre_feedforward_layernorm", None)


class Qwen2VLText(Qwen2, name="qwen2_vl_text", prefix="Qwen2VLText"):
    """The text tower of Qwen2-VL saved alone, which predicts no words."""

    language_task = "Model"


class Qwen25VLText(Qwen2VLText, name="qwen2_5_vl_text", prefix="Qwen2_5_VLText"):
    """As above, of Qwen2.5-VL."""


class Qwen3VLText(Llama, name="qwen3_vl_text", prefix="Qwen3VLText"):
    """As above, of Qwen3-VL."""

    language_task = "Model"


class Qwen3VLMoEText(Qwen3VLText, name="qwen3_vl_moe_text", prefix="Qwen3VLMoeText"):
    """As above, with experts."""


Qwen3VLMoE = with_images("qwen3_vl_moe", "Qwen3VLMoe", Llama)


class EuroBert(Llama, name="eurobert", prefix="EuroBert"):
    """Boizard et al. 2025: a Llama that reads both ways."""

    language_task = "ForMaskedLM"
    class_steps = ("dense", "activation", "classifier")
    token_steps = ("classifier",)
    head_weights = (*Llama.head_weights, "dense")
    causal = False

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """Of the final state of the first token; None where states or logits are averaged."""
        config: Any = model.config
        return super().class_head(model) if config.classifier_pooling == "bos" else None
