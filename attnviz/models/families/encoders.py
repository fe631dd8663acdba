"""BERT's and GPT-2's successors with norms before attention and feed-forward network: ModernBERT, OPT."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from attnviz.models.families.base import Architecture, Embeddings, LayerModules, chained, not_reproduced
from attnviz.models.families.llama import refuse_rope, rotary_of
from attnviz.models.offloading import parameter_of
from attnviz.reference.attention import HeadParameters


class ModernBert(Architecture):
    """Warner et al. 2024: rotary positions; windows on both sides in most layers; GeGLU; no norm before the first."""

    name = "modernbert"
    class_prefix = "ModernBert"
    language_task = "ForMaskedLM"
    final_norm_at = "final_norm"
    head_weights = ("head", "decoder", "classifier")
    linear_biases = False
    pre_norm = True
    float32_steps = True
    epsilon_setting = "norm_eps"
    activation_setting = "hidden_activation"

    def refuse(self, config: Any, dtype: torch.dtype) -> None:  # noqa: ARG002 - every dtype is reproduced
        """Refuse kinds of rotary positions that are not reproduced."""
        refuse_rope(config, partial=False)

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``ModernBertPredictionHead`` and ``decoder``."""
        return chained(model, "head", "decoder")

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """The modules of head and ``classifier``, of the final state of [CLS]; None where states are averaged."""
        config: Any = model.config
        head = getattr(model, "head", None) if config.classifier_pooling == "cls" else None
        return chained(head, "dense", "act", "norm", getattr(model, "classifier", None))

    def layer_modules(self, layer: Any) -> LayerModules:
        """``ModernBertAttention`` gives (output after W_O, pattern); one map gives gate and network side by side."""
        return LayerModules(
            block=layer,
            projections=(layer.attn.Wqkv,),
            pattern=layer.attn,
            o_proj=layer.attn.Wo,
            output=layer.attn,
            attention_norm=None if isinstance(layer.attn_norm, nn.Identity) else layer.attn_norm,
            up_proj=layer.mlp.Wi,
            down_proj=layer.mlp.Wo,
            feed_forward_norm=layer.mlp_norm,
            gate=layer.mlp.Wi,
            activation=layer.mlp.act,
        )

    def embeddings(self, base_model: Any) -> Embeddings:
        """Words alone, normalised; positions enter as rotations."""
        tables = base_model.embeddings
        return Embeddings(parameter_of(tables.tok_embeddings, "weight"), norm=tables.norm)

    def window(self, config: Any, layer: int) -> int | None:
        """Half of ``local_attention`` on each side, and the query, in layers of that type."""
        return config.local_attention // 2 + 1 if config.layer_types[layer] == "sliding_attention" else None

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """With the rotary positions of the type of layer, and the softmax in float32."""
        config, parameters = base_model.config, super().parameters(base_model, layer)
        rotary = rotary_of(config, parameters.query.weight.shape[-1], config.layer_types[layer])
        return replace(parameters, softmax_in_float32=True, rotary=replace(rotary, in_float32=True, rounded=True))


class OPT(Architecture):
    """Zhang et al. 2022: a GPT-2 with three projections, whose positions begin in the third row of their table."""

    name = "opt"
    class_prefix = "OPT"
    layers_at = "decoder.layers"
    final_norm_at = "decoder.final_layer_norm"
    linear_biases = False
    causal = True
    pre_norm = True
    float32_steps = True
    epsilon_setting = 1e-5
    activation_setting = "activation_function"

    def refuse(self, config: Any, dtype: torch.dtype) -> None:  # noqa: ARG002 - every dtype is reproduced
        """Refuse norms after the residuals, and narrower embeddings (both of OPT-350m alone)."""
        if not config.do_layer_norm_before:
            raise not_reproduced(self.name, "do_layer_norm_before", False, "norms before attention")
        if config.word_embed_proj_dim != config.hidden_size:
            raise not_reproduced(self.name, "word_embed_proj_dim", config.word_embed_proj_dim, f"{config.hidden_size}")
        if config._remove_final_layer_norm:
            raise not_reproduced(self.name, "_remove_final_layer_norm", True, "a norm after the last layer")

    def layer_modules(self, layer: Any) -> LayerModules:
        """``OPTAttention`` gives (output after W_O, pattern)."""
        attention = layer.self_attn
        return LayerModules(
            block=layer,
            projections=(attention.q_proj, attention.k_proj, attention.v_proj),
            pattern=attention,
            o_proj=attention.out_proj,
            output=attention,
            attention_norm=layer.self_attn_layer_norm,
            up_proj=layer.fc1,
            down_proj=layer.fc2,
            feed_forward_norm=layer.final_layer_norm,
        )

    def embeddings(self, base_model: Any) -> Embeddings:
        """Words and positions are added; the first two rows of positions are for no token."""
        words, positions = base_model.decoder.embed_tokens, base_model.decoder.embed_positions
        return Embeddings(parameter_of(words, "weight"), parameter_of(positions, "weight")[positions.offset :])

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """Queries, not scores, are scaled; the softmax is in float32."""
        parameters = super().parameters(base_model, layer)
        return replace(parameters, query_scale=parameters.scale, scale=1.0, softmax_in_float32=True)
