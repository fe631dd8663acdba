"""Encoder-decoders under transformers' names: BART and its kin (Marian, mBART, NLLB, Pegasus, Whisper), T5 and mT5.

Their attention layers are three stacks, in this order: those of the encoder (E), of the
decoder (D), and its cross-attention (X), from the target to the encoder's final states (Vaswani et al. 2017, section
3.2.3).
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from attnviz.errors import ArchitectureError
from attnviz.models.families.base import Architecture, LayerModules, NormKind, PositionBias
from attnviz.models.head_ids import Stack
from attnviz.models.offloading import parameter_of, running_device
from attnviz.reference.attention import Scoring
from attnviz.reference.positions import bucketed_bias


class EncoderDecoder(Architecture, ABC):
    """Two texts: the encoder reads the source, the decoder the target, which attends to itself and to the source."""

    head_weights: tuple[str, ...] = ("lm_head", "final_logits_bias", "classification_head", "qa_outputs")
    old_buffers: tuple[str, ...] = ("coder.version", "embed_positions.weight", "embed_positions.weights")
    epsilon_setting: str | float = 1e-5
    activation_setting = "activation_function"
    resumable = False
    explained = False
    encoder_commands = ("rollout", "profile", "why", "circuits")
    language_task = "ForConditionalGeneration"
    class_steps = ()  # classes of an encoder-decoder are not measured
    only = (("is_encoder_decoder", True),)
    needed: tuple[str, ...] = ("decoder_start_token_id",)
    # the config's settings of layers and heads, of the encoder and of the decoder
    size_settings: tuple[tuple[str, str], tuple[str, str]]

    def refuse(self, config: Any) -> None:
        """Refuse also stacks without layers or heads."""
        super().refuse(config)
        for stack in self.stacks(config):
            if stack.n_layers < 1 or stack.n_heads < 1:
                raise ArchitectureError(
                    f"this {self.name} has {stack.n_layers} layers of {stack.n_heads} heads in its {stack.name}; "
                    "expected at least one."
                )

    def stacks(self, config: Any) -> tuple[Stack, ...]:
        """Encoder, decoder and cross-attention; not the encoder of a sound."""
        (encoder, encoder_heads), (decoder, decoder_heads) = (
            [getattr(config, setting) for setting in settings] for settings in self.size_settings
        )
        first = 0 if self.reads_sound else encoder
        stacks = (
            Stack("E", "encoder", 0, encoder, encoder_heads),
            Stack("D", "decoder", first, decoder, decoder_heads),
            Stack("X", "cross-attention", first + decoder, decoder, decoder_heads),
        )
        return stacks[1:] if self.reads_sound else stacks

    def base_model(self, model: nn.Module) -> nn.Module:
        """The bare model with encoder and decoder inside a model with any head; ArchitectureError without them."""
        base: nn.Module = getattr(model, "model", model)
        if not hasattr(base, "encoder") or not hasattr(base, "decoder"):
            raise ArchitectureError(
                f"this {type(model).__name__} has no encoder or no decoder; expected {self.class_prefix}Model or "
                f"{self.language_class}."
            )
        return base

    def head_counts(self, config: Any, layer: int) -> tuple[int, int]:
        """The heads of the layer's stack."""
        n_heads = self._stack(config, layer).n_heads
        return n_heads, n_heads

    def _stack(self, config: Any, layer: int) -> Stack:
        return next(stack for stack in reversed(self.stacks(config)) if stack.first <= layer)

    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """The modules of each layer, stack after stack."""
        encoder, decoder = (base_model.get_submodule(f"{name}.{self.layers_at}") for name in ("encoder", "decoder"))
        blocks: Any = [*decoder] if self.reads_sound else [*encoder, *decoder]  # type: ignore[misc]
        across: Any = decoder
        return [*map(self.layer_modules, blocks), *(self.layer_modules(block, across=True) for block in across)]

    def modules_of(self, base_model: nn.Module, layer: int) -> LayerModules:
        """The modules of one layer."""
        stack = self._stack(base_model.config, layer)
        blocks: Any = base_model.get_submodule(f"{'encoder' if stack.letter == 'E' else 'decoder'}.{self.layers_at}")
        return self.layer_modules(blocks[layer - stack.first], across=stack.letter == "X")

    @abstractmethod
    def layer_modules(self, layer: Any, across: bool = False) -> LayerModules:
        """The modules of a layer's self-attention, or of its cross-attention (``across``)."""

    def scoring(self, base_model: Any, layer: int, d_head: int) -> Scoring:
        """As for other architectures; the decoder's self-attention is causal."""
        causal = self._stack(base_model.config, layer).letter == "D"
        return replace(super().scoring(base_model, layer, d_head), causal=causal)


class Bart(EncoderDecoder, name="bart", prefix="Bart"):
    """Lewis et al. 2020: post-norm; biases everywhere; learned positions, from the third row of their table on."""

    size_settings = (("encoder_layers", "encoder_attention_heads"), ("decoder_layers", "decoder_attention_heads"))
    words_at = "decoder.embed_tokens"
    positions_at = "decoder.embed_positions"
    embedding_norm_at = "decoder.layernorm_embedding"
    first_row = 2

    def layer_modules(self, layer: Any, across: bool = False) -> LayerModules:
        """``BartAttention`` gives (output after W_O, pattern), and its norm stands after the residual."""
        name = "encoder_attn" if across else "self_attn"
        attention = getattr(layer, name)
        return LayerModules(
            block=attention if across else layer,  # what cross-attention's output is added to is its own input
            projections=(attention.q_proj, attention.k_proj, attention.v_proj),
            attention=attention,
            o_proj=attention.out_proj,
            output=attention,
            attention_norm=getattr(layer, f"{name}_layer_norm"),
            up_proj=layer.fc1,
            down_proj=layer.fc2,
            feed_forward_norm=layer.final_layer_norm,
        )

    def embedding_scale(self, config: Any, words: Tensor) -> float:  # noqa: ARG002 - in any format
        """With ``scale_embedding`` the root of d_model."""
        return float(config.d_model**0.5) if config.scale_embedding else 1.0


class Marian(Bart, name="marian", prefix="Marian"):
    """Junczys-Dowmunt et al. 2018, as in OPUS-MT: BART with sinusoidal positions and no norm of the embeddings."""

    language_class = "MarianMTModel"
    embedding_norm_at = ""
    first_row = 0


class MBart(Bart, name="mbart", prefix="MBart"):
    """Liu et al. 2020: BART with norms before attention and feed-forward network, and after the last layer."""

    final_norm_at = "decoder.layer_norm"
    pre_norm = True

    def layer_modules(self, layer: Any, across: bool = False) -> LayerModules:
        """As of BART; cross-attention's output is added to the input of the norm before it."""
        modules = super().layer_modules(layer, across)
        following = getattr(layer, "encoder_attn_layer_norm", None)
        if across:
            return replace(modules, block=layer.encoder_attn_layer_norm)
        return modules if following is None else replace(modules, feed_forward_norm=following)


class M2M100(MBart, name="m2m_100", prefix="M2M100"):
    """Fan et al. 2021, also NLLB (2022): mBART with sinusoidal positions, counted over tokens, without their norm."""

    positions_after_padding = True
    positions_computed = True
    needed = (*MBart.needed, "pad_token_id")  # after which positions are counted
    position_table = "weights"
    embedding_norm_at = ""
    first_row = 0


class Pegasus(MBart, name="pegasus", prefix="Pegasus"):
    """Zhang et al. 2020: mBART with sinusoidal positions, without a norm of the embeddings."""

    embedding_norm_at = ""
    first_row = 0


class Whisper(MBart, name="whisper", prefix="Whisper"):
    """Radford et al. 2022: mBART whose encoder reads sound, without biases of keys; queries are scaled, not scores."""

    reads_sound = True
    head_weights: tuple[str, ...] = ("proj_out",)
    language_steps = ("proj_out",)
    linear_biases = False
    scales_queries = True
    embedding_norm_at = ""
    first_row = 0


class T5(EncoderDecoder, name="t5", prefix="T5"):
    """Raffel et al. 2020: pre-norm with RMS norms; no biases, no scale; one bias by distance for each stack."""

    states_d_head = True
    size_settings = (("num_layers", "num_heads"), ("num_decoder_layers", "num_heads"))
    layers_at = "block"
    words_at = "encoder.embed_tokens"
    final_norm_at = "decoder.final_layer_norm"
    old_buffers = ("EncDecAttention.relative_attention_bias.weight",)
    pre_norm = True
    linear_biases = False
    norm_kind: NormKind = "rms"
    scaled = False
    float32_steps = True
    epsilon_setting = "layer_norm_epsilon"
    activation_setting = "dense_act_fn"
    scaled_if = "scale_decoder_outputs"  # the setting with which final states are scaled

    def refuse(self, config: Any) -> None:
        """Refuse also invalid settings of position buckets."""
        super().refuse(config)
        buckets, farthest = config.relative_attention_num_buckets, config.relative_attention_max_distance
        if buckets < 4 or buckets % 2 or farthest <= buckets // 2:
            raise ArchitectureError(
                f"this {self.name} has relative_attention_num_buckets={buckets} and "
                f"relative_attention_max_distance={farthest}; expected an even number of 4 buckets or more, and a "
                "distance above half of it."
            )

    def states_scale(self, config: Any) -> float:
        """The first T5 and UMT5 scale them, other ones do not."""
        return float(config.d_model**-0.5) if getattr(config, self.scaled_if, False) else 1.0

    def layer_modules(self, layer: Any, across: bool = False) -> LayerModules:
        """``T5Attention`` gives (output after W_O, bias, pattern); the next sublayer's norm gets the sum."""
        sublayer = layer.layer[across]
        following = layer.layer[across + 1]
        network = layer.layer[-1].DenseReluDense
        attention = sublayer.EncDecAttention if across else sublayer.SelfAttention
        return LayerModules(
            block=sublayer,
            projections=(attention.q, attention.k, attention.v),
            attention=attention,
            o_proj=attention.o,
            output=attention,
            attention_norm=sublayer.layer_norm,
            up_proj=network.wi_1 if hasattr(network, "wi_1") else network.wi,
            down_proj=network.wo,
            feed_forward_norm=following.layer_norm,
        )

    def position_bias(self, base_model: Any, layer: int) -> PositionBias | None:
        """All blocks of a stack use the table of the first, of UMT5 their own; cross-attention has none."""
        stack = self._stack(base_model.config, layer)
        if stack.letter == "X":
            return None
        own, first = (self.modules_of(base_model, each) for each in (layer, stack.first))
        owner: Any = (own if hasattr(own.attention, "relative_attention_bias") else first).attention
        table = parameter_of(owner.relative_attention_bias, "weight").to(running_device(own.o_proj))
        farthest = base_model.config.relative_attention_max_distance
        return partial(bucketed_bias, table, max_distance=farthest, causal=stack.letter == "D")


class MT5(T5, name="mt5", prefix="MT5"):
    """Xue et al. 2021: T5 in a hundred languages."""


class UMT5(T5, name="umt5", prefix="UMT5"):
    """Chung et al. 2023: mT5 with a bias of its own in every layer."""

    scaled_if = "tie_word_embeddings"
