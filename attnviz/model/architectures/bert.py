"""BERT (Devlin et al. 2019) under transformers' names."""

from typing import Any

import torch
from torch import nn

from attnviz.attention.reference import HeadParameters, Projection
from attnviz.errors import ArchitectureError
from attnviz.model.architectures.base import Embeddings, LayerModules, NormKind

__all__ = ["Bert"]


class Bert:
    """Bidirectional attention; post-norm; W_O lives outside the attention module proper."""

    name = "bert"
    class_prefix = "Bert"
    head_weights: tuple[str, ...] = ("cls", "classifier", "qa_outputs")
    optional_weights: tuple[str, ...] = ("pooler",)
    old_buffers: tuple[str, ...] = ("embeddings.position_ids",)
    segments = True
    sink_first = False
    causal = False
    pre_norm = False
    norm_kind: NormKind = "layer"
    float32_steps = False
    epsilon_setting = "layer_norm_eps"
    activation_setting = "hidden_act"
    explained = True
    language_class = "BertForMaskedLM"

    def refuse(self, config: Any, dtype: torch.dtype) -> None:  # noqa: ARG002 - every dtype is reproduced
        """Refuse decoders, cross-attention and relative positions.

        Raises:
            ArchitectureError: naming the setting.
        """
        for flag in ("is_decoder", "add_cross_attention"):
            if getattr(config, flag, False):
                raise ArchitectureError(
                    f"this BERT has {flag}=True, which the reference attention does not reproduce; "
                    "expected an encoder without cross-attention."
                )
        positions = getattr(config, "position_embedding_type", None) or "absolute"
        if positions != "absolute":
            raise ArchitectureError(
                f"this BERT has position_embedding_type={positions!r}, which the reference attention "
                "does not reproduce; expected 'absolute'."
            )

    def base_model(self, model: nn.Module) -> nn.Module:
        """``BertModel`` inside any ``BertFor…``, or the model itself."""
        base: nn.Module = getattr(model, "bert", model)
        return base

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``BertLMPredictionHead`` of ``BertForMaskedLM`` and ``BertForPreTraining``."""
        head: nn.Module | None = getattr(getattr(model, "cls", None), "predictions", None)
        return head

    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """``BertSelfAttention`` gives the pattern, ``BertSelfOutput.dense`` the output; norms after residuals."""
        layers: Any = base_model.encoder.layer  # type: ignore[union-attr]
        return [
            LayerModules(
                block=layer,
                projections=(layer.attention.self.query, layer.attention.self.key, layer.attention.self.value),
                pattern=layer.attention.self,
                concatenated=layer.attention.output.dense,
                output=layer.attention.output.dense,
                attention_norm=layer.attention.output.LayerNorm,
                expand=layer.intermediate.dense,
                contract=layer.output.dense,
                feed_forward_norm=layer.output.LayerNorm,
            )
            for layer in layers
        ]

    def embeddings(self, base_model: nn.Module) -> Embeddings:
        """Words, positions and token types are added, then normalised."""
        tables: Any = base_model.embeddings
        return Embeddings(
            tables.word_embeddings.weight,
            tables.position_embeddings.weight,
            tables.token_type_embeddings.weight,
            tables.LayerNorm,
        )

    def final_norm(self, base_model: nn.Module) -> nn.Module | None:  # noqa: ARG002 - of no BERT
        """None: every layer ends with its own."""
        return None

    def parameters(self, base_model: nn.Module, layer: int) -> HeadParameters:
        """Split the layer's four nn.Linear (weight [out, in]) by head; scale 1/sqrt(d_head)."""
        attention: Any = base_model.encoder.layer[layer].attention  # type: ignore[union-attr,index]
        config: Any = base_model.config
        n_heads, d_model = config.num_attention_heads, config.hidden_size
        d_head = d_model // n_heads

        def split(linear: Any) -> Projection:
            weight = linear.weight.T.unflatten(1, (n_heads, d_head)).transpose(0, 1)
            return Projection(weight, linear.bias.unflatten(0, (n_heads, d_head)))

        return HeadParameters(
            query=split(attention.self.query),
            key=split(attention.self.key),
            value=split(attention.self.value),
            output_weight=attention.output.dense.weight.T.unflatten(0, (n_heads, d_head)),
            output_bias=attention.output.dense.bias,
            scale=d_head**-0.5,
            causal=False,
        )
