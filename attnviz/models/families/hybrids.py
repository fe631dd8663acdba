"""Hybrids: decoders of the Llama kind in which only some layers attend; the others mix tokens in another way."""

from collections.abc import Sequence
from typing import Any

from attnviz.models.families.base import NormKind
from attnviz.models.families.llama import Granite, Llama, with_images
from attnviz.reference.positions import Rotary


class Hybrid(Llama):
    """Layers of the type ``full_attention`` attend; all have the same norms and kind of network."""

    explained = False

    def attending(self, config: Any) -> Sequence[int]:
        """By the config's ``layer_types``."""
        return [number for number, kind in enumerate(config.layer_types) if kind == "full_attention"]

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary | None:
        """None where the model has none."""
        return None if getattr(base_model, "rotary_emb", None) is None else super().rotary(base_model, layer, d_head)


class Jamba(Hybrid, name="jamba", prefix="Jamba"):
    """Lieber et al. 2024: Mamba (Gu & Dao 2023) in most layers, no positions; experts in some layers."""

    mixer_at = "mamba"
    network_at = "feed_forward"
    norm_names = ("input_layernorm", None, "pre_ff_layernorm", None)
    final_norm_at = "final_layernorm"


class Lfm2(Hybrid, name="lfm2", prefix="Lfm2"):
    """Liquid AI 2025: short convolutions in most layers; queries and keys are normed a head at a time."""

    mixer_at = "conv"
    projection_names = ("q_proj", "k_proj", "v_proj", "out_proj")
    head_norm_names = ("q_layernorm", "k_layernorm")
    norm_names = ("operator_norm", None, "ffn_norm", None)
    network_at = "feed_forward"
    network_names = ("w3", "w1", None, "w2")
    final_norm_at = "embedding_norm"
    epsilon_setting = "norm_eps"


class GraniteHybrid(Granite, Hybrid, name="granitemoehybrid", prefix="GraniteMoeHybrid"):
    """Granite Team 2025, "Granite 4.0": Mamba 2 (Dao & Gu 2024) in most layers; experts beside a network for all."""

    mixer_at = "mamba"
    network_at = "shared_mlp"
    experts_at = "block_sparse_moe"
    network_names = ("input_linear", "input_linear", "activation", "output_linear")


class Qwen3Next(Hybrid, name="qwen3_next", prefix="Qwen3Next"):
    """Qwen Team 2025: Gated DeltaNet (Yang et al. 2025) in most layers; gated heads; experts."""

    mixer_at = "linear_attn"
    gated = True
    norm_kind: NormKind = "rms, 1 + w"
    partial_rotary = True


class Qwen35(Qwen3Next, name="qwen3_5_text", prefix="Qwen3_5Text"):
    """Qwen Team 2026: without experts."""

    language_class = "Qwen3_5ForCausalLM"


class Qwen35MoE(Qwen3Next, name="qwen3_5_moe_text", prefix="Qwen3_5MoeText"):
    """With experts."""

    language_class = "Qwen3_5MoeForCausalLM"


Qwen35WithImages = with_images("qwen3_5", "Qwen3_5", Qwen35)
Qwen35MoEWithImages = with_images("qwen3_5_moe", "Qwen3_5Moe", Qwen35MoE)
