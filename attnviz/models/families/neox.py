"""GPT-NeoX (Black et al. 2022) and its kin: layer norms with rotary positions, and halves of a layer in parallel."""

from typing import Any

from torch import nn

from attnviz.models.families.base import Embeddings, LayerModules, NormKind
from attnviz.models.families.llama import Llama
from attnviz.models.offloading import parameter_of


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
