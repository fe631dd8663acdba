"""Llama (Touvron et al. 2023) and its kin under transformers' names: decoders with rotary positions and RMS norms.

What differs between them is a few lines each: which layers have a window, biases, norms of queries and keys.
"""

from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attention.norms import RMSNorm
from attnviz.attention.reference import HeadParameters, Projection
from attnviz.attention.rotary import Rotary
from attnviz.errors import ArchitectureError
from attnviz.model.architectures.base import Embeddings, LayerModules, NormKind, chained, norm_of
from attnviz.model.architectures.rope import refuse_rope, rotary_of

__all__ = ["Llama", "Mistral", "Phi3", "Qwen2", "Qwen3", "SmolLM3", "projection"]

_LAYER_TYPES = ("full_attention", "sliding_attention")


class Llama:
    """Causal attention with rotary positions; pre-norm with RMS norms; queries in groups share keys and values."""

    name = "llama"
    class_prefix = "Llama"
    head_weights: tuple[str, ...] = ("lm_head", "score", "classifier", "qa_outputs")
    optional_weights: tuple[str, ...] = ()
    old_buffers: tuple[str, ...] = ("rotary_emb.inv_freq",)
    segments = False
    positions_after_padding = False
    sink_first = True
    causal = True
    pre_norm = True
    norm_kind: NormKind = "rms"
    float32_steps = True
    epsilon_setting = "rms_norm_eps"
    activation_setting = "hidden_act"
    explained = True
    language_class = "LlamaForCausalLM"
    partial_rotary = False
    normed_heads = False
    """Whether queries and keys are normed, a head at a time, before they are rotated."""

    def refuse(self, config: Any, dtype: torch.dtype) -> None:  # noqa: ARG002 - every dtype is reproduced
        """Refuse rotary positions, types of layers and groups of heads that are not reproduced.

        Raises:
            ArchitectureError: naming the setting.
        """
        refuse_rope(config, self.partial_rotary)
        if config.num_attention_heads % config.num_key_value_heads:
            raise ArchitectureError(
                f"this {self.name} has num_key_value_heads={config.num_key_value_heads}, of which "
                f"{config.num_attention_heads} heads are no multiple."
            )
        if getattr(config, "use_bidirectional_attention", None):
            raise ArchitectureError(
                f"this {self.name} has use_bidirectional_attention=True, which the reference attention does not "
                "reproduce; expected causal attention."
            )
        for layer in range(config.num_hidden_layers):
            if (kind := self.layer_type(config, layer)) not in _LAYER_TYPES:
                raise ArchitectureError(
                    f"this {self.name} has layer_types={kind!r}, which the reference attention does not reproduce; "
                    f"expected {' or '.join(_LAYER_TYPES)}."
                )

    def layer_type(self, config: Any, layer: int) -> str:  # noqa: ARG002 - all layers are alike
        """``full_attention``, or ``sliding_attention`` for a window."""
        return "full_attention"

    def base_model(self, model: nn.Module) -> nn.Module:
        """``LlamaModel`` inside ``LlamaForCausalLM`` and its kin, or the model itself."""
        base: nn.Module = getattr(model, str(model.base_model_prefix), model)
        return base

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``lm_head`` of ``LlamaForCausalLM``."""
        head: nn.Module | None = getattr(model, "lm_head", None)
        return head

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """``score`` of ``LlamaForSequenceClassification``."""
        return chained(getattr(model, "score", None))

    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """``LlamaAttention`` gives pattern and output: it returns (output after W_O, pattern); norms come first."""
        layers: Any = base_model.layers
        return [self._modules(layer) for layer in layers]

    def _modules(self, layer: Any) -> LayerModules:
        attention, network = layer.self_attn, layer.mlp
        return LayerModules(
            block=layer,
            projections=(attention.q_proj, attention.k_proj, attention.v_proj),
            pattern=attention,
            concatenated=attention.o_proj,
            output=attention,
            attention_norm=layer.input_layernorm,
            expand=network.up_proj,
            contract=network.down_proj,
            feed_forward_norm=layer.post_attention_layernorm,
            head_norms=(attention.q_norm, attention.k_norm) if self.normed_heads else (),
            gate=network.gate_proj,
            activation=network.act_fn,
        )

    def embeddings(self, base_model: nn.Module) -> Embeddings:
        """Words alone; positions come in as rotations, the first norm is the first layer's."""
        model: Any = base_model
        return Embeddings(model.embed_tokens.weight, None, None, None)

    def final_norm(self, base_model: nn.Module) -> nn.Module | None:
        """``norm``."""
        norm = base_model.norm
        assert isinstance(norm, nn.Module)
        return norm

    def parameters(self, base_model: nn.Module, layer: int) -> HeadParameters:
        """Split the layer's nn.Linear (weight [out, in]) by head; keys and values have a head a group."""
        config: Any = base_model.config
        attention: Any = base_model.layers[layer].self_attn  # type: ignore[union-attr,index]
        d_head = int(attention.head_dim)
        query, key, value = self._projections(attention, config.num_attention_heads, config.num_key_value_heads)
        sliding = self.layer_type(config, layer) == "sliding_attention"
        return HeadParameters(
            query=query,
            key=key,
            value=value,
            output_weight=attention.o_proj.weight.T.unflatten(0, (config.num_attention_heads, d_head)),
            output_bias=attention.o_proj.bias,
            scale=self.scale(config, d_head),
            causal=True,
            softmax_in_float32=True,
            window=config.sliding_window if sliding else None,
            rotary=self.rotary(config, d_head, layer),
            query_norm=self._head_norm(config, attention, "q_norm"),
            key_norm=self._head_norm(config, attention, "k_norm"),
            cap=self.cap(config),
        )

    def _head_norm(self, config: Any, attention: Any, name: str) -> RMSNorm | None:
        norm = norm_of(self, config, getattr(attention, name)) if self.normed_heads else None
        return norm if isinstance(norm, RMSNorm) else None

    def _projections(self, attention: Any, n_heads: int, n_kv_heads: int) -> tuple[Projection, Projection, Projection]:
        query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
        return (
            projection(query.weight, query.bias, n_heads),
            projection(key.weight, key.bias, n_kv_heads),
            projection(value.weight, value.bias, n_kv_heads),
        )

    def scale(self, config: Any, d_head: int) -> float:  # noqa: ARG002 - of Gemma
        """What scores are multiplied by."""
        return float(d_head**-0.5)

    def rotary(self, config: Any, d_head: int, layer: int) -> Rotary | None:  # noqa: ARG002 - all layers are alike
        """The layer's rotary positions."""
        return rotary_of(config, d_head)

    def cap(self, config: Any) -> float | None:  # noqa: ARG002 - of Gemma 2
        """What scores are bounded by."""
        return None


class Mistral(Llama):
    """Jiang et al. 2023: a window in all layers."""

    name = "mistral"
    class_prefix = "Mistral"
    language_class = "MistralForCausalLM"

    def layer_type(self, config: Any, layer: int) -> str:  # noqa: ARG002 - all layers are alike
        """A window wherever the config has one."""
        return "full_attention" if config.sliding_window is None else "sliding_attention"


class Qwen2(Llama):
    """Yang et al. 2024: biases of queries, keys and values; windows in the layers that the config names."""

    name = "qwen2"
    class_prefix = "Qwen2"
    language_class = "Qwen2ForCausalLM"

    def layer_type(self, config: Any, layer: int) -> str:
        """As the config has it."""
        return str(config.layer_types[layer])


class Qwen3(Qwen2):
    """Yang et al. 2025: queries and keys are normed a head at a time."""

    name = "qwen3"
    class_prefix = "Qwen3"
    language_class = "Qwen3ForCausalLM"
    normed_heads = True


class SmolLM3(Qwen2):
    """Bakouch et al. 2025: no positions at all in every fourth layer (Yang et al. 2025, "RoPE to NoPE and Back")."""

    name = "smollm3"
    class_prefix = "SmolLM3"
    language_class = "SmolLM3ForCausalLM"

    def rotary(self, config: Any, d_head: int, layer: int) -> Rotary | None:
        """None in the layers that ``no_rope_layers`` has a 0 for."""
        return rotary_of(config, d_head) if config.no_rope_layers[layer] else None


class Phi3(Mistral):
    """Abdin et al. 2024: W_Q, W_K and W_V in one matrix, as are the two of the network; a part of a head is rotated."""

    name = "phi3"
    class_prefix = "Phi3"
    language_class = "Phi3ForCausalLM"
    partial_rotary = True

    def _modules(self, layer: Any) -> LayerModules:
        attention, network = layer.self_attn, layer.mlp
        return LayerModules(
            block=layer,
            projections=(attention.qkv_proj,),
            pattern=attention,
            concatenated=attention.o_proj,
            output=attention,
            attention_norm=layer.input_layernorm,
            expand=network.gate_up_proj,
            contract=network.down_proj,
            feed_forward_norm=layer.post_attention_layernorm,
            gate=network.gate_up_proj,
            activation=network.activation_fn,
        )

    def _projections(self, attention: Any, n_heads: int, n_kv_heads: int) -> tuple[Projection, Projection, Projection]:
        rows = [n * attention.head_dim for n in (n_heads, n_kv_heads, n_kv_heads)]
        query, key, value = attention.qkv_proj.weight.split(rows)
        return projection(query, None, n_heads), projection(key, None, n_kv_heads), projection(value, None, n_kv_heads)


def projection(weight: Tensor, bias: Tensor | None, n_heads: int) -> Projection:
    """An nn.Linear's weight [n_heads * d_head, d_model] and bias, split by head."""
    by_head = weight.reshape(n_heads, -1, weight.shape[-1]).mT
    return Projection(by_head, None if bias is None else bias.reshape(n_heads, -1))
