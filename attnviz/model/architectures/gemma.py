"""Gemma 2 (Gemma Team 2024) and Gemma 3 (Gemma Team 2025), text only, under transformers' names."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attention.reference import capped
from attnviz.attention.rotary import Rotary
from attnviz.model.architectures.base import Embeddings, LayerModules, NormKind
from attnviz.model.architectures.llama import Qwen2
from attnviz.model.architectures.rope import rotary_of

__all__ = ["CappedHead", "Gemma2", "Gemma3"]


class CappedHead(nn.Module):
    """A language-modelling head with its logits bounded by ±cap, as the whole model bounds them after its head."""

    def __init__(self, head: nn.Module, cap: float) -> None:
        super().__init__()
        self.head, self.cap = head, cap

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits [.., vocabulary] of normed final states [.., d_model]."""
        return capped(self.head(hidden), self.cap)


class Gemma2(Qwen2):
    """Capped scores; windows in every other layer; four norms a layer, whose weights are kept less 1."""

    name = "gemma2"
    class_prefix = "Gemma2"
    language_class = "Gemma2ForCausalLM"
    activation_setting = "hidden_activation"
    norm_kind: NormKind = "rms, 1 + w"

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``lm_head`` of ``Gemma2ForCausalLM``, with the bound on its logits that the model adds."""
        head, config = super().language_head(model), model.config
        cap = getattr(config, "final_logit_softcapping", None)
        return head if head is None or cap is None else CappedHead(head, cap)

    def _modules(self, layer: Any) -> LayerModules:
        return replace(
            super()._modules(layer),
            feed_forward_norm=layer.pre_feedforward_layernorm,
            attention_output_norm=layer.post_attention_layernorm,
            feed_forward_output_norm=layer.post_feedforward_layernorm,
        )

    def embeddings(self, base_model: nn.Module) -> Embeddings:
        """Words, multiplied by the root of d_model as the number format rounds it."""
        model: Any = base_model
        scale = torch.tensor(model.config.hidden_size**0.5).to(model.embed_tokens.weight.dtype)
        return replace(super().embeddings(base_model), scale=float(scale))

    def scale(self, config: Any, d_head: int) -> float:  # noqa: ARG002 - d_head has no part in it
        """By ``query_pre_attn_scalar``, not by d_head."""
        return float(config.query_pre_attn_scalar**-0.5)

    def cap(self, config: Any) -> float | None:
        """``attn_logit_softcapping``."""
        return None if config.attn_logit_softcapping is None else float(config.attn_logit_softcapping)


class Gemma3(Gemma2):
    """Queries and keys normed a head at a time instead of capped scores; rotary positions by type of layer."""

    name = "gemma3_text"
    class_prefix = "Gemma3Text"
    language_class = "Gemma3ForCausalLM"
    normed_heads = True

    def _modules(self, layer: Any) -> LayerModules:
        return replace(super()._modules(layer), heads_first=True)

    def rotary(self, config: Any, d_head: int, layer: int) -> Rotary | None:
        """Those of the layer's type: short ones with a window, long ones without."""
        return rotary_of(config, d_head, self.layer_type(config, layer))

    def cap(self, config: Any) -> float | None:  # noqa: ARG002 - transformers does not cap, whatever the config says
        """None."""
        return None
