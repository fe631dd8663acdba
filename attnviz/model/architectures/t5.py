"""T5 (Raffel et al. 2020) and mT5 (Xue et al. 2021) under transformers' names."""

from functools import partial
from typing import Any

import torch
from torch import nn

from attnviz.attention.reference import HeadParameters
from attnviz.attention.relative_positions import bucketed_bias
from attnviz.errors import ArchitectureError
from attnviz.model.architectures.base import Embeddings, LayerModules, NormKind
from attnviz.model.architectures.encoder_decoder import EncoderDecoder, LogitsHead
from attnviz.model.architectures.llama import projection

__all__ = ["MT5", "T5"]


class T5(EncoderDecoder):
    """Pre-norm with RMS norms; no biases, no scale; the first block's bias by distance in all blocks of its stack."""

    name = "t5"
    class_prefix = "T5"
    language_class = "T5ForConditionalGeneration"
    old_buffers: tuple[str, ...] = ("EncDecAttention.relative_attention_bias.weight",)
    pre_norm = True
    norm_kind: NormKind = "rms"
    float32_steps = True
    epsilon_setting = "layer_norm_epsilon"
    activation_setting = "dense_act_fn"

    def refuse(self, config: Any, dtype: torch.dtype) -> None:
        """Refuse also buckets that are no buckets.

        Raises:
            ArchitectureError: naming the setting.
        """
        super().refuse(config, dtype)
        buckets, farthest = config.relative_attention_num_buckets, config.relative_attention_max_distance
        if buckets < 4 or buckets % 2 or farthest <= buckets // 2:
            raise ArchitectureError(
                f"this {self.name} has relative_attention_num_buckets={buckets} and "
                f"relative_attention_max_distance={farthest}; expected an even number of 4 buckets or more, and a "
                "distance above half of it."
            )

    def sizes(self, config: Any) -> tuple[tuple[int, int], tuple[int, int]]:
        """The decoder may have another number of layers."""
        return (config.num_layers, config.num_heads), (config.num_decoder_layers, config.num_heads)

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``lm_head``, before which the first T5 scales hidden states (later ones do not)."""
        linear: Any = getattr(model, "lm_head", None)
        config: Any = model.config
        scale = config.d_model**-0.5 if getattr(config, "scale_decoder_outputs", False) else 1.0
        return None if linear is None else LogitsHead(linear, scale=scale)

    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """``T5Attention`` gives (output after W_O, bias, pattern); the norm of what comes next gets the sum."""
        encoder, decoder = _blocks(base_model)
        own = [_modules(block, 0, "SelfAttention") for block in (*encoder, *decoder)]
        return own + [_modules(block, 1, "EncDecAttention") for block in decoder]

    def embeddings(self, base_model: nn.Module) -> Embeddings:
        """Words alone; positions come in as biases of scores."""
        encoder: Any = base_model.encoder
        return Embeddings(encoder.embed_tokens.weight, None, None, None)

    def final_norm(self, base_model: nn.Module) -> nn.Module | None:
        """``final_layer_norm`` of the decoder."""
        decoder: Any = base_model.decoder
        norm: nn.Module = decoder.final_layer_norm
        return norm

    def parameters(self, base_model: nn.Module, layer: int) -> HeadParameters:
        """Split the four nn.Linear (weight [out, in], no bias) by head; d_head is ``d_kv`` whatever d_model."""
        config: Any = base_model.config
        encoder, decoder = _blocks(base_model)
        n_heads, n_own = config.num_heads, len(encoder) + len(decoder)
        causal = len(encoder) <= layer < n_own
        block = [*encoder, *decoder, *decoder][layer]
        attention = block.layer[0].SelfAttention if layer < n_own else block.layer[1].EncDecAttention
        bias = None
        if layer < n_own:
            table = (decoder if causal else encoder)[0].layer[0].SelfAttention.relative_attention_bias.weight
            bias = partial(bucketed_bias, table, max_distance=config.relative_attention_max_distance, causal=causal)
        return HeadParameters(
            query=projection(attention.q.weight, None, n_heads),
            key=projection(attention.k.weight, None, n_heads),
            value=projection(attention.v.weight, None, n_heads),
            output_weight=attention.o.weight.T.unflatten(0, (n_heads, -1)),
            output_bias=None,
            scale=1.0,
            causal=causal,
            position_bias=bias,
        )


class MT5(T5):
    """T5 in a hundred languages."""

    name = "mt5"
    class_prefix = "MT5"
    language_class = "MT5ForConditionalGeneration"


def _blocks(base_model: nn.Module) -> tuple[Any, Any]:
    encoder: Any = base_model.encoder
    decoder: Any = base_model.decoder
    return encoder.block, decoder.block


def _modules(block: Any, place: int, name: str) -> LayerModules:
    sublayer, following, network = block.layer[place], block.layer[place + 1], block.layer[-1].DenseReluDense
    attention = getattr(sublayer, name)
    return LayerModules(
        block=sublayer,
        projections=(attention.q, attention.k, attention.v),
        pattern=attention,
        concatenated=attention.o,
        output=attention,
        attention_norm=sublayer.layer_norm,
        expand=network.wi_1 if hasattr(network, "wi_1") else network.wi,
        contract=network.wo,
        feed_forward_norm=following.layer_norm,
    )
