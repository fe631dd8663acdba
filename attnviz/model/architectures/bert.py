"""BERT (Devlin et al. 2019) under transformers' names, and what its relatives share with it."""

from typing import Any, cast

import torch
from torch import nn

from attnviz.attention.reference import HeadParameters, Projection
from attnviz.errors import ArchitectureError
from attnviz.model.architectures.base import Embeddings, LayerModules, NormKind, chained

__all__ = ["Bert"]


class Bert:
    """Bidirectional attention; post-norm; W_O lives outside the attention module proper.

    Relatives are subclasses that state what differs.
    """

    name = "bert"
    title = "BERT"
    class_prefix = "Bert"
    base_name = "bert"
    """What its classes with a head call the bare model."""
    layers_at = "encoder.layer"
    """Where the bare model has its layers."""
    head_weights: tuple[str, ...] = ("cls", "classifier", "qa_outputs")
    optional_weights: tuple[str, ...] = ("pooler",)
    old_buffers: tuple[str, ...] = ("embeddings.position_ids",)
    segments = True
    positions_after_padding = False
    sink_first = False
    causal = False
    pre_norm = False
    norm_kind: NormKind = "layer"
    float32_steps = False
    epsilon_setting: str | float = "layer_norm_eps"
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
                    f"this {self.title} has {flag}=True, which the reference attention does not reproduce; "
                    "expected an encoder without cross-attention."
                )
        positions = getattr(config, "position_embedding_type", None) or "absolute"
        if positions != "absolute":
            raise ArchitectureError(
                f"this {self.title} has position_embedding_type={positions!r}, which the reference attention "
                "does not reproduce; expected 'absolute'."
            )

    def base_model(self, model: nn.Module) -> nn.Module:
        """``BertModel`` inside any ``BertFor…``, or the model itself."""
        base: nn.Module = getattr(model, self.base_name, model)
        return base

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``BertLMPredictionHead`` of ``BertForMaskedLM`` and ``BertForPreTraining``."""
        head: nn.Module | None = getattr(getattr(model, "cls", None), "predictions", None)
        return head

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """The pooler and ``classifier`` of ``BertForSequenceClassification``, of the final state of [CLS]."""
        pooler: Any = getattr(self.base_model(model), "pooler", None)
        steps = (getattr(pooler, step, None) for step in ("dense", "activation"))
        return chained(*steps, getattr(model, "classifier", None))

    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """Of every layer, see :meth:`layer_modules`."""
        layers: Any = base_model.get_submodule(self.layers_at)
        return [self.layer_modules(layer) for layer in layers]

    def layer_modules(self, layer: Any) -> LayerModules:
        """``BertSelfAttention`` gives the pattern, ``BertSelfOutput.dense`` the output; norms after residuals."""
        return LayerModules(
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

    def embeddings(self, base_model: nn.Module) -> Embeddings:
        """Words, positions and, where there are any, token types are added, then normalised; ELECTRA then projects."""
        tables: Any = base_model.embeddings
        types = getattr(tables, "token_type_embeddings", None)
        return Embeddings(
            tables.word_embeddings.weight,
            tables.position_embeddings.weight,
            None if types is None else types.weight,
            tables.LayerNorm,
            getattr(base_model, "embeddings_project", None),
        )

    def final_norm(self, base_model: nn.Module) -> nn.Module | None:  # noqa: ARG002 - of no BERT
        """None: every layer ends with its own."""
        return None

    def parameters(self, base_model: nn.Module, layer: int) -> HeadParameters:
        """Split the layer's four nn.Linear (weight [out, in]) by head; scale 1/sqrt(d_head)."""
        layers: Any = base_model.get_submodule(self.layers_at)
        modules, config = self.layer_modules(layers[layer]), cast(Any, base_model.config)
        n_heads, d_model = config.num_attention_heads, config.hidden_size
        d_head = d_model // n_heads

        def split(linear: Any) -> Projection:
            weight = linear.weight.T.unflatten(1, (n_heads, d_head)).transpose(0, 1)
            return Projection(weight, linear.bias.unflatten(0, (n_heads, d_head)))

        query, key, value = map(split, modules.projections)
        w_o: Any = modules.concatenated
        return HeadParameters(
            query=query,
            key=key,
            value=value,
            output_weight=w_o.weight.T.unflatten(0, (n_heads, d_head)),
            output_bias=w_o.bias,
            scale=d_head**-0.5,
            causal=False,
        )
