"""GPT-2 (Radford et al. 2019) under transformers' names."""

from typing import Any

import torch
from torch import nn

from attnviz.attention.reference import HeadParameters, Projection
from attnviz.errors import ArchitectureError
from attnviz.model.architectures.base import Embeddings, LayerModules, NormKind, chained

__all__ = ["GPT2"]


class GPT2:
    """Causal attention; pre-norm; Q, K and V in one Conv1D (weight [in, out])."""

    name = "gpt2"
    class_prefix = "GPT2"
    head_weights: tuple[str, ...] = ("lm_head", "score", "classifier", "qa_outputs", "multiple_choice_head")
    optional_weights: tuple[str, ...] = ()
    old_buffers: tuple[str, ...] = (".attn.bias", ".attn.masked_bias")
    segments = False
    positions_after_padding = False
    sink_first = True
    causal = True
    pre_norm = True
    norm_kind: NormKind = "layer"
    float32_steps = False
    epsilon_setting = "layer_norm_epsilon"
    activation_setting = "activation_function"
    explained = True
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

    def base_model(self, model: nn.Module) -> nn.Module:
        """``GPT2Model`` inside ``GPT2LMHeadModel`` and its kin, or the model itself."""
        base: nn.Module = getattr(model, "transformer", model)
        return base

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``lm_head`` of ``GPT2LMHeadModel``."""
        head: nn.Module | None = getattr(model, "lm_head", None)
        return head

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """``score`` of ``GPT2ForSequenceClassification``."""
        return chained(getattr(model, "score", None))

    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """``GPT2Attention`` gives pattern and output: it returns (output after W_O, pattern); norms come first."""
        blocks: Any = base_model.h
        return [
            LayerModules(
                block=block,
                projections=(block.attn.c_attn,),
                pattern=block.attn,
                concatenated=block.attn.c_proj,
                output=block.attn,
                attention_norm=block.ln_1,
                expand=block.mlp.c_fc,
                contract=block.mlp.c_proj,
                feed_forward_norm=block.ln_2,
            )
            for block in blocks
        ]

    def embeddings(self, base_model: nn.Module) -> Embeddings:
        """Words and positions are added; the first norm is the first layer's."""
        model: Any = base_model
        return Embeddings(model.wte.weight, model.wpe.weight, None, None)

    def final_norm(self, base_model: nn.Module) -> nn.Module | None:
        """``ln_f``."""
        norm = base_model.ln_f
        assert isinstance(norm, nn.Module)
        return norm

    def parameters(self, base_model: nn.Module, layer: int) -> HeadParameters:
        """Split c_attn into Q, K, V and then by head, and c_proj by head.

        The scale is 1/sqrt(d_head) with ``scale_attn_weights`` (else 1), divided by the layer's
        number counted from 1 with ``scale_attn_by_inverse_layer_idx``.
        """
        config: Any = base_model.config
        attention: Any = base_model.h[layer].attn  # type: ignore[union-attr,index]
        n_heads, d_model = config.num_attention_heads, config.hidden_size
        d_head = d_model // n_heads

        def split(part: int) -> Projection:
            columns = slice(part * d_model, (part + 1) * d_model)
            weight = attention.c_attn.weight[:, columns].unflatten(1, (n_heads, d_head))
            bias = attention.c_attn.bias[columns].unflatten(0, (n_heads, d_head))
            return Projection(weight.transpose(0, 1), bias)

        scale = d_head**-0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
        return HeadParameters(
            query=split(0),
            key=split(1),
            value=split(2),
            output_weight=attention.c_proj.weight.unflatten(0, (n_heads, d_head)),
            output_bias=attention.c_proj.bias,
            scale=scale,
            causal=True,
            upcast=config.reorder_and_upcast_attn,
        )
