"""DeepSeek V2 and V3 (DeepSeek-AI 2024) and their like: keys and values are made of one narrower vector (MLA)."""

from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.errors import ArchitectureError
from attnviz.models.families.base import Architecture, LayerModules, projection_of
from attnviz.models.families.llama import Llama, temperature
from attnviz.models.offloading import parameter_of
from attnviz.models.quantised import outlier_threshold
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
    sigmoid_router = True

    def variant(self, config: Any) -> Architecture:
        """Queries may have no latent, and pairs may be halves."""
        made = copy(self)
        made.rotary_interleaved = getattr(config, "rope_interleave", self.rotary_interleaved)
        if config.q_lora_rank is None:
            made.projection_names = ("q_proj", *self.projection_names[1:])
        return made

    def projections(self, modules: LayerModules, n_heads: int, n_shared: int) -> tuple[Projection, ...]:  # noqa: ARG002
        """Of latents; a key is made of what its head has, and of what all heads have, which is not normed."""
        if any(outlier_threshold(linear) is not None for linear in modules.projections):
            raise ArchitectureError(
                "LLM.int8() rounds what latent vectors are made of; load this model in 4 bits (nf4)."
            )
        query, both = (projection_of(self.weight(linear), None, n_heads) for linear in modules.projections)
        of_query, latent = (self._latent(modules.attention, *names) for names in self.latent_names)
        rank, n_own = both.weight.shape[1], query.weight.shape[-1] - latent.n_apart
        key, value = pad(both.weight, (0, 0, 0, latent.n_apart)).tensor_split([n_own], -1)
        key = pad(key, (0, latent.n_apart))
        key[:, rank:, n_own:] = torch.eye(latent.n_apart)
        return replace(query, latent=of_query), Projection(key, latent=latent), Projection(value, latent=latent)

    def _latent(self, attention: Any, down: str, norm: str) -> Any:
        linear, normed = (self.declared("latent_names", attention, name) for name in (down, norm))
        if linear is None:
            return None
        own = RMSNorm(parameter_of(normed, "weight"), normed.variance_epsilon)  # which is not the config's
        return Latent(self.weight(linear), parameter_of(linear, "bias"), own)

    def scale(self, config: Any, layer: int, d_head: int) -> float:
        """Times the square of YaRN's temperature."""
        settings = config.rope_parameters
        weight = settings.get("mscale_all_dim") if settings["rope_type"] != "default" else None
        return super().scale(config, layer, d_head) * (temperature(weight, settings["factor"]) ** 2 if weight else 1.0)

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary | None:  # noqa: ARG002 - of a part of it
        """Of ``qk_rope_head_dim`` numbers."""
        turned = super().rotary(base_model, layer, base_model.config.qk_rope_head_dim)
        return turned and replace(turned, apart=self.rotary_apart and turned.interleaved, at_end=True)

    def expert_choice(self, config: Any, router: Any, logits: Tensor) -> Tensor:
        """With a bias of its own; if in groups, in those whose best one, or best two with a bias, have most."""
        bias = getattr(router, "e_score_correction_bias", None)
        choice = logits if bias is None else logits.sigmoid() + bias
        if getattr(config, "topk_method", "") == "greedy":
            return choice
        best = choice.unflatten(-1, (config.n_group, -1)).topk(1 if bias is None else 2).values.sum(-1)
        outside = best < best.topk(config.topk_group).values[:, -1:]
        return choice.masked_fill(outside.repeat_interleave(choice.shape[-1] // config.n_group, -1), -torch.inf)


class DeepseekV2(DeepseekV3, name="deepseek_v2", prefix="DeepseekV2"):
    """Weights of experts by a softmax; what is rotated stays interleaved, and is in float32."""

    only = (*Llama.only, ("norm_topk_prob", False))
    rotary_apart = False
    rotary_in_float32 = True
    sigmoid_router = False


class Glm4MoeLite(DeepseekV3, name="glm4_moe_lite", prefix="Glm4MoeLite"):
    """GLM-4.7-Flash."""


class Youtu(DeepseekV3, name="youtu", prefix="Youtu"):
    """Tencent 2026: without experts."""


class MiniCPM3(DeepseekV3, name="minicpm3", prefix="MiniCPM3"):
    """OpenBMB 2024: without experts; multipliers of embeddings, of what is added to the residual stream, and logits."""

    rotary_interleaved = False

    def embedding_scale(self, config: Any, words: Tensor) -> float:  # noqa: ARG002 - in any format
        """``scale_emb``."""
        return float(config.scale_emb)

    def residual_multiplier(self, config: Any) -> float:
        """``scale_depth`` by the root of the number of layers."""
        return float(config.scale_depth / config.num_hidden_layers**0.5)
