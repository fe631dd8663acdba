"""GPT-2 (Radford et al. 2019) under transformers' names."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from attnviz.attention.reference import HeadParameters
from attnviz.errors import ArchitectureError
from attnviz.model.architectures.base import Architecture, Embeddings, LayerModules


class GPT2(Architecture):
    """Causal attention; pre-norm; Q, K and V in one Conv1D (weight [in, out])."""

    name = "gpt2"
    class_prefix = "GPT2"
    base_name = "transformer"
    layers_at = "h"
    final_norm_at = "ln_f"
    head_weights = ("lm_head", "score", "classifier", "qa_outputs", "multiple_choice_head")
    old_buffers = (".attn.bias", ".attn.masked_bias")
    causal = True
    pre_norm = True
    activation_setting = "activation_function"
    language_class = "GPT2LMHeadModel"

    def refuse(self, config: Any, dtype: torch.dtype) -> None:
        """Refuse cross-attention, and float64 where scores are upcast to float32; other flags are reproduced.

        Raises:
            ArchitectureError: naming the setting.
        """
        if getattr(config, "add_cross_attention", False):
            raise ArchitectureError(
                "this GPT-2 has add_cross_attention=True, which the reference attention does not "
                "reproduce; expected a decoder without an encoder."
            )
        if config.reorder_and_upcast_attn and dtype == torch.float64:
            raise ArchitectureError(
                "this GPT-2 has reorder_and_upcast_attn=True, with which transformers cannot compute in float64; "
                "expected float32, float16 or bfloat16."
            )

    def layer_modules(self, layer: Any) -> LayerModules:
        """``GPT2Attention`` gives pattern and output: it returns (output after W_O, pattern); norms come first."""
        return LayerModules(
            block=layer,
            projections=(layer.attn.c_attn,),
            pattern=layer.attn,
            concatenated=layer.attn.c_proj,
            output=layer.attn,
            attention_norm=layer.ln_1,
            expand=layer.mlp.c_fc,
            contract=layer.mlp.c_proj,
            feed_forward_norm=layer.ln_2,
        )

    def embeddings(self, base_model: nn.Module) -> Embeddings:
        """Words and positions are added; the first norm is the first layer's."""
        model: Any = base_model
        return Embeddings(model.wte.weight, model.wpe.weight)

    def weight(self, linear: Any) -> Any:
        """That of a Conv1D is [in, out]."""
        return linear.weight.T

    def parameters(self, base_model: nn.Module, layer: int) -> HeadParameters:
        """Scaled by 1/sqrt(d_head) with ``scale_attn_weights`` (else 1), divided by the layer's number counted from 1
        with ``scale_attn_by_inverse_layer_idx``.
        """  # noqa: D205
        config: Any = base_model.config
        parameters = super().parameters(base_model, layer)
        scale = parameters.scale if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
        return replace(parameters, scale=scale, upcast=config.reorder_and_upcast_attn)
