"""DeepSeek V2 and V3 (DeepSeek-AI 2024) and their like: keys and values are made of one narrower vector (MLA)."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.errors import ArchitectureError
from attnviz.models.families.base import Architecture, LayerModules, like, not_reproduced, projection_of
from attnviz.models.families.llama import Llama, temperature, with_images
from attnviz.models.offloading import parameter_of
from attnviz.models.quantised import input_rounding
from attnviz.reference.attention import Latent, Projection, RMSNorm
from attnviz.reference.positions import Rotary


class DeepseekV3(Llama, name="deepseek_v3", prefix="DeepseekV3"):
    """The last part of a head is rotated, of keys the same in all heads; experts in groups, and one for all tokens."""

    projection_names: tuple[str, ...] = ("q_b_proj", "kv_b_proj", "o_proj")  # to queries, to keys beside values, W_O
    # linear map and norm of the latent of queries, which may be missing, and of that of keys and values
    latent_names = (("q_a_proj", "q_a_layernorm"), ("kv_a_proj_with_mqa", "kv_a_layernorm"))
    d_head_setting = "qk_head_dim"
    rotary_interleaved = True
    rotary_apart = True  # whether what was interleaved is halves once it is turned

    def variant(self, config: Any) -> Architecture:
        """Queries may have no latent, and pairs may be halves."""
        query = "q_proj" if config.q_lora_rank is None else self.projection_names[0]
        return self.but(
            rotary_interleaved=getattr(config, "rope_interleave", self.rotary_interleaved),
            projection_names=(query, *self.projection_names[1:]),
        )

    def refuse(self, config: Any) -> None:
        """Refuse also keys that heads share."""
        super().refuse(config)
        n_heads, n_shared = self.head_counts(config, 0)
        if n_shared != n_heads:
            raise not_reproduced(self.name, "num_key_value_heads", n_shared, f"{n_heads}, one for each head")

    def projections(self, modules: LayerModules, n_heads: int, n_shared: int) -> tuple[Projection, ...]:  # noqa: ARG002
        """Of latents; a key is made of what its head has, and of what all heads have, which is not normed."""
        if any(input_rounding(linear) is not None for linear in modules.projections):
            raise ArchitectureError(
                "LLM.int8() rounds what latent vectors are made of; load this model in 4 bits (nf4)."
            )
        query, both = (projection_of(self.weight(linear), None, n_heads) for linear in modules.projections)
        latents: list[Any] = []
        for names in self.latent_names:
            linear, norm = (self.declared("latent_names", modules.attention, name) for name in names)
            if linear is None:
                latents.append(None)
                continue
            normed = RMSNorm(parameter_of(norm, "weight"), norm.variance_epsilon)  # which is not the config's
            latents.append(Latent(self.weight(linear), parameter_of(linear, "bias"), normed))
        of_query, latent = latents
        rank = both.weight.shape[1]
        n_own = query.weight.shape[-1] - latent.n_apart
        key, value = pad(both.weight, (0, 0, 0, latent.n_apart)).tensor_split([n_own], -1)
        key = pad(key, (0, latent.n_apart))
        key[:, rank:, n_own:] = torch.eye(latent.n_apart)
        return replace(query, latent=of_query), Projection(key, latent=latent), Projection(value, latent=latent)

    def scale(self, config: Any, layer: int, d_head: int) -> float:
        """Times the square of YaRN's temperature."""
        settings = config.rope_parameters
        weight = settings.get("mscale_all_dim") if settings["rope_type"] != "default" else None
        return super().scale(config, layer, d_head) * (temperature(weight, settings["factor"]) ** 2 if weight else 1.0)

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary | None:
        """Of ``qk_rope_head_dim`` numbers."""
        width = d_head if self.partial_rotary else base_model.config.qk_rope_head_dim
        turned = super().rotary(base_model, layer, width)
        return turned and replace(turned, apart=self.rotary_apart and turned.interleaved, at_end=True)


class DeepseekV2(DeepseekV3, name="deepseek_v2", prefix="DeepseekV2"):
    """What is rotated stays interleaved, and is in float32."""

    only = (*Llama.only, ("norm_topk_prob", False))
    rotary_apart = False
    rotary_in_float32 = True


Glm4MoeLite = like(DeepseekV3, "glm4_moe_lite", "Glm4MoeLite")  # GLM-4.7-Flash
Youtu = like(DeepseekV3, "youtu", "Youtu")  # Tencent 2026: without experts
KimiK25 = with_images("kimi_k25", "Kimi_K25", DeepseekV3)


class MiniCPM3(DeepseekV3, name="minicpm3", prefix="MiniCPM3"):
    """OpenBMB 2024: without experts; multipliers of embeddings, of what is added to the residual stream, and logits."""

    rotary_interleaved = False

    def embedding_scale(self, config: Any, words: Tensor) -> float:  # noqa: ARG002 - in any format
        """``scale_emb``."""
        return float(config.scale_emb)

    def residual_multiplier(self, config: Any) -> float:
        """``scale_depth`` by the root of the number of layers."""
        return float(config.scale_depth / config.num_hidden_layers**0.5)


class DeepseekV32(DeepseekV3, name="deepseek_v32", prefix="DeepseekV32"):
    """DeepSeek-AI 2025: an indexer chooses the keys of each query in long texts."""

    def longest(self, config: Any) -> tuple[int, str]:
        """Up to ``index_topk`` tokens it chooses all."""
        most, why = super().longest(config)
        if config.index_topk >= most:
            return most, why
        return int(config.index_topk), "beyond index_topk its indexer chooses the keys"


# GLM-5: layers may share what an indexer chose
GlmMoeDsa = like(DeepseekV32, "glm_moe_dsa", "GlmMoeDsa", resumable=False)


class Mistral4(DeepseekV3, name="mistral4", prefix="Mistral4"):
    """Mistral AI 2026: queries have a temperature by position; what is rotated is stated as a share of a head."""

    partial_rotary = True
    query_temperature = True
