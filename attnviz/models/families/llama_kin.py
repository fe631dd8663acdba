"""Decoders of the Llama kind that differ from those of :mod:`attnviz.models.families.llama` in an attribute or two."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from attnviz.models.families.base import Architecture, like
from attnviz.models.families.llama import Exaone4, Gemma2, GraniteMoE, Llama, Mistral, Qwen2, rotary_of, with_images
from attnviz.models.families.olmo import Olmo2
from attnviz.reference.attention import HeadParameters
from attnviz.reference.positions import Rotary

_UNGATED = ("up_proj", None, None, "down_proj")

SeedOss = like(Llama, "seed_oss", "SeedOss")  # ByteDance 2025
InternLM3 = like(Llama, "internlm3", "Llama")  # Shanghai AI Laboratory 2025
IQuestCoder = like(Llama, "iquestcoder", "Llama")  # IQuest Lab 2026
Arcee = like(Llama, "arcee", "Arcee", network_names=_UNGATED)  # Arcee AI 2025
# Parmar et al. 2024, "Nemotron-4"
_NEMOTRON = {"norm_kind": "layer, 1 + w", "epsilon_setting": "norm_eps", "partial_rotary": True}
Nemotron = like(Llama, "nemotron", "Nemotron", network_names=_UNGATED, **_NEMOTRON)
# Swiss AI 2025: its activation has weights of its own (xIELU), which explain does not recompute
_APERTUS_NORMS = ("attention_layernorm", None, "feedforward_layernorm", None)
_APERTUS = {"network_names": ("up_proj", None, "act_fn", "down_proj"), "heads_first": True, "explained": False}
Apertus = like(Llama, "apertus", "Apertus", norm_names=_APERTUS_NORMS, **_APERTUS)
Helium = like(Llama, "helium", "Helium", norm_kind="rms, rounded once", rotary_interleaved=True)  # Kyutai 2025
Ernie45 = like(Llama, "ernie4_5", "Ernie4_5", rotary_interleaved=True, rotary_in_float32=True)  # Baidu 2025
Glm4MoE = like(Llama, "glm4_moe", "Glm4Moe", partial_rotary=True)  # GLM Team 2025, "GLM-4.5"
MiniMaxM2 = like(Llama, "minimax_m2", "MiniMaxM2", partial_rotary=True)  # MiniMax 2025
ExaoneMoE = like(Exaone4, "exaone_moe", "ExaoneMoe", norm_names=Llama.norm_names)  # LG AI Research 2026, "K-EXAONE"
Ministral3 = like(Mistral, "ministral3", "Ministral3", query_temperature=True)  # Mistral AI 2025
Ministral = like(Qwen2, "ministral", "Ministral")  # Mistral AI 2024
Cwm = like(Qwen2, "cwm", "Cwm")  # Meta FAIR 2025, "Code World Model"
Mellum = like(Qwen2, "mellum", "Mellum", partial_rotary=True)  # JetBrains 2026
FlexOlmo = like(Olmo2, "flex_olmo", "FlexOlmo")  # Shi et al. 2025
# Sinha et al. 2025: Gemma 2 without norms of outputs
_VAULT_NORMS = ("input_layernorm", None, "pre_feedforward_layernorm", None)
VaultGemma = like(Gemma2, "vaultgemma", "VaultGemma", norm_names=_VAULT_NORMS)
# Text towers saved alone, which predict no words
Qwen2VLText = like(Qwen2, "qwen2_vl_text", "Qwen2VLText", language_task="Model")
Qwen25VLText = like(Qwen2VLText, "qwen2_5_vl_text", "Qwen2_5_VLText")
Qwen3VLText = like(Llama, "qwen3_vl_text", "Qwen3VLText", language_task="Model")
Qwen3VLMoEText = like(Qwen3VLText, "qwen3_vl_moe_text", "Qwen3VLMoeText")
Qwen3VLMoE = with_images("qwen3_vl_moe", "Qwen3VLMoe", Llama)


class HunYuan(Llama, name="hunyuan_v1_dense", prefix="HunYuanDenseV1"):
    """Tencent 2025: queries and keys are normed a head at a time once they are rotated."""

    head_norm_names = ("query_layernorm", "key_layernorm")
    heads_first = True

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary | None:
        """``dynamic`` with an ``alpha`` is another base, for texts of any length."""
        settings = base_model.config.rope_parameters
        if settings["rope_type"] != "dynamic" or not settings.get("alpha"):
            return super().rotary(base_model, layer, d_head)
        base = settings["rope_theta"] * settings["alpha"] ** (d_head / (d_head - 2))
        return rotary_of(SimpleNamespace(rope_parameters={"rope_type": "default", "rope_theta": base}), d_head)

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """With norms after the rotation."""
        return replace(super().parameters(base_model, layer), rotated_first=True)


class GraniteMoEShared(GraniteMoE, name="granitemoeshared", prefix="GraniteMoeShared"):
    """Granite Team 2025: experts beside a network for all tokens."""

    network_at = "shared_mlp"
    experts_at = "block_sparse_moe"
    network_names = ("input_linear", "input_linear", "activation", "output_linear")
    explained = False

    def variant(self, config: Any) -> Architecture:
        """Without that network it is a ``granitemoe``."""
        return self if config.shared_intermediate_size else like(GraniteMoE, self.name, self.class_prefix)()


class EuroBert(Llama, name="eurobert", prefix="EuroBert"):
    """Boizard et al. 2025: a Llama that reads both ways."""

    language_task = "ForMaskedLM"
    class_steps = ("dense", "activation", "classifier")
    class_pooling = "bos"
    token_steps = ("classifier",)
    head_weights = (*Llama.head_weights, "dense")
    causal = False
