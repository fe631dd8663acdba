"""BERT's and GPT-2's successors with norms before attention and feed-forward network: ModernBERT, OPT, ESM."""

from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from attnviz.models.families.base import Architecture, Embeddings, chained, not_reproduced
from attnviz.models.families.bert_gpt2 import Bert, Roberta
from attnviz.models.families.llama import refuse_rope, rotary_of
from attnviz.models.offloading import parameter_of
from attnviz.reference.attention import HeadParameters
from attnviz.reference.positions import Rotary


class ModernBert(Architecture):
    """Warner et al. 2024: rotary positions; windows on both sides in most layers; GeGLU; no norm before the first."""

    name = "modernbert"
    class_prefix = "ModernBert"
    language_task = "ForMaskedLM"
    final_norm_at = "final_norm"
    attention_at = "attn"
    projection_names = ("Wqkv", "Wo")
    norm_names = ("attn_norm", None, "mlp_norm", None)
    network_names = ("Wi", "Wi", "act", "Wo")
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
    projection_names = ("q_proj", "k_proj", "v_proj", "out_proj")
    norm_names = ("self_attn_layer_norm", None, "final_layer_norm", None)
    network_at = ""
    network_names = ("fc1", None, None, "fc2")
    linear_biases = False
    causal = True
    pre_norm = True
    float32_steps = True
    epsilon_setting = 1e-5
    activation_setting = "activation_function"

    def refuse(self, config: Any, dtype: torch.dtype) -> None:  # noqa: ARG002 - every dtype is reproduced
        """Refuse narrower embeddings with norms before attention, and no norm after the last layer."""
        if config.do_layer_norm_before and config.word_embed_proj_dim != config.hidden_size:
            raise not_reproduced(self.name, "word_embed_proj_dim", config.word_embed_proj_dim, f"{config.hidden_size}")
        if config.do_layer_norm_before and config._remove_final_layer_norm:
            raise not_reproduced(self.name, "_remove_final_layer_norm", True, "a norm after the last layer")

    def variant(self, config: Any) -> Architecture:
        """Of OPT-350m norms stand after the residuals, and none after the last layer."""
        if config.do_layer_norm_before:
            return self
        post_norm = copy(self)
        post_norm.pre_norm, post_norm.final_norm_at = False, ""
        return post_norm

    def embeddings(self, base_model: Any) -> Embeddings:
        """Words and positions are added; the first two rows of positions are for no token."""
        decoder = base_model.decoder
        words, positions = (parameter_of(each, "weight") for each in (decoder.embed_tokens, decoder.embed_positions))
        return Embeddings(words, positions[decoder.embed_positions.offset :], words_project=decoder.project_in)

    def output_map(self, base_model: Any) -> nn.Module | None:
        """``project_out``, to the width of the words."""
        project: nn.Module | None = base_model.decoder.project_out
        return project

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """Queries, not scores, are scaled; the softmax is in float32."""
        parameters = super().parameters(base_model, layer)
        return replace(parameters, query_scale=parameters.scale, scale=1.0, softmax_in_float32=True)


class Esm(Bert):
    """Lin et al. 2023, ESM-2: BERT on proteins, with rotary positions; what masks leave out is made up for."""

    name = "esm"
    title = "ESM"
    class_prefix = "Esm"
    final_norm_at = "encoder.emb_layer_norm_after"
    norm_names = ("attention.LayerNorm", None, "LayerNorm", None)
    head_weights = ("lm_head", "classifier")
    optional_weights = ("pooler", "contact_head")
    old_buffers = (*Bert.old_buffers, "rotary_embeddings.inv_freq", "position_embeddings.weight")
    has_words = False
    segments = False
    pre_norm = True
    float32_steps = True
    position_type = "rotary"
    language_head = Architecture.language_head
    class_head = Roberta.class_head

    def refuse(self, config: Any, dtype: torch.dtype) -> None:
        """Refuse also ESMFold, and a config without the tokens that its embeddings look for."""
        super().refuse(config, dtype)
        if config.is_folding_model:
            raise not_reproduced(self.title, "is_folding_model", True, "a language model")
        for setting in ("pad_token_id", *["mask_token_id"] * bool(config.token_dropout)):
            if getattr(config, setting) is None:
                raise not_reproduced(self.title, setting, None, "the number of that token")

    def activation(self, config: Any) -> object:  # noqa: ARG002 - the config names none
        """GELU."""
        return "gelu"

    def embeddings(self, base_model: Any) -> Embeddings:
        """Words, perhaps normalised; with ``token_dropout`` without masks, as if these were 12 % as in training."""
        tables, config = base_model.embeddings, base_model.config
        words = Embeddings(parameter_of(tables.word_embeddings, "weight"), norm=tables.layer_norm)
        return replace(words, scale=1 - 0.15 * 0.8, dropped=config.mask_token_id) if config.token_dropout else words

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """Queries, not scores, are scaled; frequencies are those of the checkpoint, which it may have rounded."""
        parameters = super().parameters(base_model, layer)
        rotary = Rotary(base_model.rotary_embeddings.inv_freq.float(), in_float32=True, rounded=True)
        return replace(parameters, query_scale=parameters.scale, scale=1.0, rotary=rotary)
