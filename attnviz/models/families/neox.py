"""GPT-NeoX (Black et al. 2022) and its kin: layer norms with rotary positions, and halves of a layer in parallel."""

from dataclasses import replace
from typing import Any

from torch import nn

from attnviz.models.families.base import Embeddings, LayerModules, NormKind
from attnviz.models.families.llama import DividedHead, Llama, Qwen2
from attnviz.models.offloading import parameter_of
from attnviz.reference.attention import HeadParameters


class GPTNeoX(Llama):
    """Every Pythia (Biderman et al. 2023): one map for Q, K and V, head by head; a part of a head is rotated."""

    name = "gpt_neox"
    class_prefix = "GPTNeoX"
    final_norm_at = "final_layer_norm"
    head_weights = ("embed_out", *Llama.head_weights)
    old_buffers = (*Llama.old_buffers, ".attention.bias", ".attention.masked_bias")
    states_d_head = False
    norm_kind: NormKind = "layer"
    epsilon_setting = "layer_norm_eps"
    fused_by_head = True
    partial_rotary = True

    def head_counts(self, config: Any, layer: int) -> tuple[int, int]:  # noqa: ARG002 - all layers are alike
        """No heads share keys and values."""
        return config.num_attention_heads, config.num_attention_heads

    def layer_modules(self, layer: Any) -> LayerModules:
        """``GPTNeoXAttention`` gives pattern and output; with ``use_parallel_residual`` both norms are of the input."""
        attention, network = layer.attention, layer.mlp
        return LayerModules(
            block=layer,
            projections=(attention.query_key_value,),
            pattern=attention,
            o_proj=attention.dense,
            output=attention,
            attention_norm=layer.input_layernorm,
            up_proj=network.dense_h_to_4h,
            down_proj=network.dense_4h_to_h,
            feed_forward_norm=layer.post_attention_layernorm,
            parallel=layer.use_parallel_residual,
        )

    def embeddings(self, base_model: nn.Module) -> Embeddings:
        """Words alone; positions enter as rotations."""
        return Embeddings(parameter_of(base_model.embed_in, "weight"))


class StableLm(Llama):
    """Bellagente et al. 2024: layer norms, of which each head may have its own; a part of a head is rotated."""

    name = "stablelm"
    class_prefix = "StableLm"
    norm_kind: NormKind = "layer"
    epsilon_setting = "layer_norm_eps"
    partial_rotary = True
    heads_first = True

    def layer_modules(self, layer: Any) -> LayerModules:
        """As a Llama's; with ``use_parallel_residual`` one norm stands before both halves."""
        attention = layer.self_attn
        norms = (attention.q_layernorm, attention.k_layernorm) if attention.qk_layernorm else ()
        modules = super().layer_modules(layer)
        return replace(modules, head_norms=norms, parallel=layer.use_parallel_residual)


class Phi(StableLm):
    """Li et al. 2023: both halves read one norm; biases everywhere, and a network without a gate."""

    name = "phi"
    class_prefix = "Phi"
    final_norm_at = "final_layernorm"
    states_d_head = True

    def layer_modules(self, layer: Any) -> LayerModules:
        """``PhiAttention`` gives pattern and output."""
        attention, network = layer.self_attn, layer.mlp
        return LayerModules(
            block=layer,
            projections=(attention.q_proj, attention.k_proj, attention.v_proj),
            pattern=attention,
            o_proj=attention.dense,
            output=attention,
            attention_norm=layer.input_layernorm,
            up_proj=network.fc1,
            down_proj=network.fc2,
            feed_forward_norm=None,
            head_norms=(attention.q_layernorm, attention.k_layernorm) if attention.qk_layernorm else (),
            heads_first=True,
            parallel=True,
        )


class Cohere(Llama):
    """Command R: both halves read one layer norm without bias; neighbours are pairs of rotary positions."""

    name = "cohere"
    class_prefix = "Cohere"
    norm_kind: NormKind = "layer"
    norm_names = ("input_layernorm", None, None, None)
    epsilon_setting = "layer_norm_eps"
    rotary_in_float32 = True

    def layer_modules(self, layer: Any) -> LayerModules:
        """As a Llama's, in parallel; with ``use_qk_norm`` each head has norms of its own."""
        attention, modules = layer.self_attn, super().layer_modules(layer)
        norms = (attention.q_norm, attention.k_norm) if getattr(attention, "use_qk_norm", False) else ()
        return replace(modules, head_norms=norms, parallel=True)

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """With interleaved rotary positions."""
        parameters = super().parameters(base_model, layer)
        rotary = parameters.rotary
        return replace(parameters, rotary=None if rotary is None else replace(rotary, interleaved=True))

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``lm_head``, with its logits multiplied by ``logit_scale``."""
        config: Any = model.config
        head = super().language_head(model)
        return head if head is None else DividedHead(head, 1 / float(config.logit_scale))


class Cohere2(Cohere, Qwen2):
    """Command R7B and A: windows, and no positions in layers without one."""

    name = "cohere2"
    class_prefix = "Cohere2"

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """Rotary positions in layers with a window alone."""
        parameters = super().parameters(base_model, layer)
        return parameters if parameters.window is not None else replace(parameters, rotary=None)
