"""GPT-NeoX (Black et al. 2022) and its kin: layer norms with rotary positions, and halves of a layer in parallel."""

from dataclasses import replace
from typing import Any

from torch import nn

from attnviz.models.families.base import LogitsHead, NormKind
from attnviz.models.families.llama import Llama, Qwen2
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
    words_at = "embed_in"
    attention_at = "attention"
    projection_names = ("query_key_value", "dense")
    network_names = ("dense_h_to_4h", None, None, "dense_4h_to_h")
    partial_rotary = True


class StableLm(Llama):
    """Bellagente et al. 2024: layer norms, of which each head may have its own; a part of a head is rotated.

    With ``use_parallel_residual`` one norm stands before both halves.
    """

    name = "stablelm"
    class_prefix = "StableLm"
    norm_kind: NormKind = "layer"
    epsilon_setting = "layer_norm_eps"
    partial_rotary = True
    head_norm_names = ("q_layernorm", "k_layernorm")
    heads_first = True


class Phi(StableLm):
    """Li et al. 2023: both halves read one norm; biases everywhere, and a network without a gate."""

    name = "phi"
    class_prefix = "Phi"
    final_norm_at = "final_layernorm"
    projection_names = ("q_proj", "k_proj", "v_proj", "dense")
    norm_names = ("input_layernorm", None, None, None)
    network_names = ("fc1", None, None, "fc2")
    parallel = True


class Cohere(Llama):
    """Command R: both halves read one layer norm without bias; neighbours are pairs of rotary positions."""

    name = "cohere"
    class_prefix = "Cohere"
    norm_kind: NormKind = "layer"
    norm_names = ("input_layernorm", None, None, None)
    parallel = True
    epsilon_setting = "layer_norm_eps"
    rotary_in_float32 = True
    rotary_interleaved = True

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``lm_head``, with its logits multiplied by ``logit_scale``."""
        config: Any = model.config
        head = super().language_head(model)
        return head if head is None else LogitsHead(head, divisor=1 / float(config.logit_scale))


class Cohere2(Cohere, Qwen2):
    """Command R7B and A: windows, and no positions in layers without one."""

    name = "cohere2"
    class_prefix = "Cohere2"

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """Rotary positions in layers with a window alone."""
        parameters = super().parameters(base_model, layer)
        return parameters if parameters.window is not None else replace(parameters, rotary=None)
