"""Encoder-decoders under transformers' names: what they share, BART (Lewis et al. 2020) and Marian (2018).

Their attention layers are three stacks, which follow one another in every list: those of the encoder (E), of the
decoder (D), and its cross-attention (X), from the target to the encoder's final states (Vaswani et al. 2017, section
3.2.3).
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attention.reference import HeadParameters
from attnviz.errors import ArchitectureError
from attnviz.model.architectures.base import Embeddings, LayerModules, NormKind
from attnviz.model.architectures.llama import projection
from attnviz.model.head_ids import Stack

__all__ = ["Bart", "EncoderDecoder", "LogitsHead", "Marian"]


class LogitsHead(nn.Module):
    """From the decoder's last hidden states to logits [.., vocabulary]."""

    def __init__(self, linear: nn.Module, bias: Tensor | None = None, scale: float = 1.0) -> None:
        super().__init__()
        self.linear, self.scale = linear, scale
        self.bias = None if bias is None else nn.Buffer(bias)

    @property
    def weight(self) -> Tensor:
        """From hidden states to logits, [vocabulary, d_model], the scale included."""
        weight: Tensor = self.linear.weight * self.scale  # type: ignore[operator,assignment]
        return weight

    def forward(self, hidden: Tensor) -> Tensor:
        """Scaled, projected on the vocabulary, and with the bias added."""
        logits: Tensor = self.linear(hidden * self.scale)
        return logits if self.bias is None else logits + self.bias


class EncoderDecoder(ABC):
    """Two texts: the encoder reads the source, the decoder the target, which attends to itself and to the source."""

    name: str
    class_prefix: str
    language_class: str
    head_weights: tuple[str, ...] = ("lm_head", "final_logits_bias", "classification_head", "qa_outputs")
    optional_weights: tuple[str, ...] = ()
    old_buffers: tuple[str, ...] = ("coder.version", "embed_positions.weight")
    segments = False
    positions_after_padding = False
    sink_first = False
    causal = False
    pre_norm = False
    norm_kind: NormKind = "layer"
    float32_steps = False
    epsilon_setting: str | float = 1e-5
    activation_setting = "activation_function"
    explained = False
    encoder_commands = ("rollout", "profile")
    """The commands that measure the encoder alone."""
    refused_commands: tuple[str, ...] = ()
    """The commands that take none of these models."""

    def refuse(self, config: Any, dtype: torch.dtype) -> None:  # noqa: ARG002 - every dtype is reproduced
        """Refuse an encoder or a decoder alone, and heads that do not divide the model.

        Raises:
            ArchitectureError: naming the setting.
        """
        if not config.is_encoder_decoder or getattr(config, "decoder_start_token_id", None) is None:
            setting = "is_encoder_decoder" if not config.is_encoder_decoder else "decoder_start_token_id"
            raise ArchitectureError(
                f"this {self.name} has {setting}={getattr(config, setting, None)}, which the reference attention does "
                "not reproduce; expected an encoder with its decoder."
            )
        for stack in self.stacks(config):
            if stack.n_layers < 1 or stack.n_heads < 1:
                raise ArchitectureError(
                    f"this {self.name} has {stack.n_layers} layers of {stack.n_heads} heads in its {stack.name}; "
                    "expected at least one."
                )

    def stacks(self, config: Any) -> tuple[Stack, ...]:
        """Its three kinds of attention."""
        (encoder, encoder_heads), (decoder, decoder_heads) = self.sizes(config)
        return (
            Stack("E", "encoder", 0, encoder, encoder_heads),
            Stack("D", "decoder", encoder, decoder, decoder_heads),
            Stack("X", "cross-attention", encoder + decoder, decoder, decoder_heads),
        )

    @abstractmethod
    def sizes(self, config: Any) -> tuple[tuple[int, int], tuple[int, int]]:
        """Layers and heads of the encoder, and of the decoder."""

    def base_model(self, model: nn.Module) -> nn.Module:
        """The model with encoder and decoder inside one with any head, or the model itself.

        Raises:
            ArchitectureError: it lacks one of them.
        """
        base: nn.Module = getattr(model, "model", model)
        if not hasattr(base, "encoder") or not hasattr(base, "decoder"):
            raise ArchitectureError(
                f"this {type(model).__name__} has no encoder or no decoder; expected {self.class_prefix}Model or "
                f"{self.language_class}."
            )
        return base

    @abstractmethod
    def language_head(self, model: nn.Module) -> nn.Module | None:
        """What makes logits of the decoder's last hidden states; None without it."""

    def class_head(self, model: nn.Module) -> nn.Module | None:  # noqa: ARG002 - of no encoder-decoder
        """None: classes of an encoder-decoder are not measured."""
        return None

    @abstractmethod
    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """Where to read each layer's own steps, stack after stack."""

    @abstractmethod
    def embeddings(self, base_model: nn.Module) -> Embeddings:
        """The tables that the encoder's first input is made from."""

    @abstractmethod
    def final_norm(self, base_model: nn.Module) -> nn.Module | None:
        """The decoder's norm after its last layer; None where there is none."""

    @abstractmethod
    def parameters(self, base_model: nn.Module, layer: int) -> HeadParameters:
        """The parameters of a layer by its place among all."""


class Bart(EncoderDecoder):
    """Post-norm; biases everywhere; learned positions."""

    name = "bart"
    class_prefix = "Bart"
    language_class = "BartForConditionalGeneration"

    def sizes(self, config: Any) -> tuple[tuple[int, int], tuple[int, int]]:
        """Both may differ."""
        return (
            (config.encoder_layers, config.encoder_attention_heads),
            (config.decoder_layers, config.decoder_attention_heads),
        )

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``lm_head`` with ``final_logits_bias``."""
        linear = getattr(model, "lm_head", None)
        return None if linear is None else LogitsHead(linear, getattr(model, "final_logits_bias", None))

    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """``BartAttention`` gives (output after W_O, pattern), and its norm stands after the residual."""
        encoder, decoder = _layers(base_model)
        own = [_modules(layer, layer.self_attn, layer.self_attn_layer_norm, layer) for layer in (*encoder, *decoder)]
        # post-norm: what cross-attention's output is added to is its own input
        return own + [
            _modules(layer, layer.encoder_attn, layer.encoder_attn_layer_norm, layer.encoder_attn) for layer in decoder
        ]

    def embeddings(self, base_model: nn.Module) -> Embeddings:
        """Words, scaled, and positions are added, then normalised (Marian: not)."""
        encoder: Any = base_model.encoder
        norm = getattr(encoder, "layernorm_embedding", None)
        return Embeddings(encoder.embed_tokens.weight, encoder.embed_positions.weight, None, norm)

    def final_norm(self, base_model: nn.Module) -> nn.Module | None:  # noqa: ARG002 - of no BART
        """None: every layer ends with its own."""
        return None

    def parameters(self, base_model: nn.Module, layer: int) -> HeadParameters:
        """Split the four nn.Linear (weight [out, in]) by head; scale 1/sqrt(d_head)."""
        encoder, decoder = _layers(base_model)
        attentions = [*(each.self_attn for each in (*encoder, *decoder)), *(each.encoder_attn for each in decoder)]
        attention, n_heads = attentions[layer], attentions[layer].num_heads
        query, key, value = (
            projection(each.weight, each.bias, n_heads)
            for each in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        return HeadParameters(
            query=query,
            key=key,
            value=value,
            output_weight=attention.out_proj.weight.T.unflatten(0, (n_heads, -1)),
            output_bias=attention.out_proj.bias,
            scale=query.weight.shape[-1] ** -0.5,
            causal=len(encoder) <= layer < len(encoder) + len(decoder),
        )


class Marian(Bart):
    """Junczys-Dowmunt et al. 2018, as OPUS-MT has it: BART with sinusoidal positions and no norm of the embeddings."""

    name = "marian"
    class_prefix = "Marian"
    language_class = "MarianMTModel"


def _layers(base_model: nn.Module) -> tuple[Any, Any]:
    encoder: Any = base_model.encoder
    decoder: Any = base_model.decoder
    return encoder.layers, decoder.layers


def _modules(layer: Any, attention: Any, norm: nn.Module, block: nn.Module) -> LayerModules:
    return LayerModules(
        block=block,
        projections=(attention.q_proj, attention.k_proj, attention.v_proj),
        pattern=attention,
        concatenated=attention.out_proj,
        output=attention,
        attention_norm=norm,
        expand=layer.fc1,
        contract=layer.fc2,
        feed_forward_norm=layer.final_layer_norm,
    )
