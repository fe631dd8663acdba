"""GPT-NeoX (Black et al. 2022) and its kin: layer norms with rotary positions, and halves of a layer in parallel."""

from typing import Any

from attnviz.models.families.base import Architecture, NormKind
from attnviz.models.families.llama import Llama, Qwen2
from attnviz.reference.positions import Rotary


class GPTNeoX(Llama, name="gpt_neox", prefix="GPTNeoX"):
    """Every Pythia (Biderman et al. 2023): one map for Q, K and V, head by head; a part of a head is rotated."""

    token_steps = ("classifier",)
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


class StableLm(Llama, name="stablelm", prefix="StableLm"):
    """Bellagente et al. 2024: layer norms, of which each head may have its own; a part of a head is rotated.

    With ``use_parallel_residual`` one norm stands before both halves.
    """

    norm_kind: NormKind = "layer"
    epsilon_setting = "layer_norm_eps"
    partial_rotary = True
    head_norm_names = ("q_layernorm", "k_layernorm")
    heads_first = True


class Phi(StableLm, name="phi", prefix="Phi"):
    """Li et al. 2023: both halves read one norm; biases everywhere, and a network without a gate."""

    final_norm_at = "final_layernorm"
    projection_names = ("q_proj", "k_proj", "v_proj", "dense")
    norm_names = ("input_layernorm", None, None, None)
    network_names = ("fc1", None, None, "fc2")
    parallel = True


class Cohere(Llama, name="cohere", prefix="Cohere"):
    """Command R: both halves read one layer norm without bias; neighbours are pairs of rotary positions."""

    norm_kind: NormKind = "layer"
    norm_names = ("input_layernorm", None, None, None)
    parallel = True
    epsilon_setting = "layer_norm_eps"
    rotary_in_float32 = True
    rotary_interleaved = True

    def logits_divisor(self, config: Any) -> float:
        """They are multiplied by ``logit_scale``."""
        return 1 / float(config.logit_scale)


class Cohere2(Cohere, Qwen2, name="cohere2", prefix="Cohere2"):
    """Command R7B and A: windows, and no positions in layers without one."""

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary | None:
        """In layers with a window alone."""
        return super().rotary(base_model, layer, d_head) if self.window(base_model.config, layer) else None


class Falcon(Llama, name="falcon", prefix="Falcon"):
    """Almazrouei et al. 2023: GPT-NeoX with shared keys; both halves read the same, through one norm or two."""

    token_steps = ("classifier",)
    layers_at = "h"
    final_norm_at = "ln_f"
    states_d_head = False
    norm_kind: NormKind = "layer"
    epsilon_setting = "layer_norm_epsilon"
    activation_setting = "activation"
    fused_by_head = True
    words_at = "word_embeddings"
    attention_at = "self_attention"
    projection_names = ("query_key_value", "dense")
    norm_names: tuple[str | None, ...] = ("input_layernorm", None, None, None)
    network_names = ("dense_h_to_4h", None, None, "dense_4h_to_h")
    parallel = True
    softmax_in_float32 = False
    bypassing = "forward"
    only = (("alibi", False), ("bias", False), ("parallel_attn", True))

    def variant(self, config: Any) -> Architecture:
        """With two norms in newer ones."""
        if not config.new_decoder_architecture or config.num_ln_in_parallel_attn == 1:
            return self
        return self.but(norm_names=("ln_attn", None, "ln_mlp", None))

    def head_counts(self, config: Any, layer: int) -> tuple[int, int]:  # noqa: ARG002 - all layers are alike
        """``num_kv_heads`` in newer ones; else one for all, or one each."""
        if config.new_decoder_architecture or not config.multi_query:
            return config.num_attention_heads, config.num_kv_heads
        return config.num_attention_heads, 1
