"""BERT's and GPT-2's successors, most with norms before attention and feed-forward network: ModernBERT, OPT, ESM."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.errors import DeviceError
from attnviz.models.families.base import Architecture, Embeddings, like, norm_of, not_reproduced, projection_of
from attnviz.models.families.bert_gpt2 import Bert, Roberta
from attnviz.models.families.llama import rotary_of, with_images
from attnviz.models.offloading import is_spread, parameter_of
from attnviz.reference.attention import Scoring, project
from attnviz.reference.positions import RelativePositions, Rotary


class ModernBert(Architecture, name="modernbert", prefix="ModernBert"):
    """Warner et al. 2024: rotary positions; windows on both sides in most layers; GeGLU; no norm before the first."""

    language_task = "ForMaskedLM"
    words_at = "embeddings.tok_embeddings"
    embedding_norm_at = "embeddings.norm"
    final_norm_at = "final_norm"
    attention_at = "attn"
    projection_names = ("Wqkv", "Wo")
    norm_names = ("attn_norm", None, "mlp_norm", None)
    network_names = ("Wi", "Wi", "act", "Wo")
    language_steps = ("head", "decoder")
    class_steps = token_steps = span_steps = ("head.dense", "head.act", "head.norm", "classifier")
    class_pooling = "cls"
    head_weights = ("head", "decoder", "classifier")
    linear_biases = False
    pre_norm = True
    float32_steps = True
    softmax_in_float32 = True
    epsilon_setting = "norm_eps"
    activation_setting = "hidden_activation"

    def window(self, config: Any, layer: int) -> int | None:
        """Half of ``local_attention`` on each side, and the query, in layers of that type."""
        return config.local_attention // 2 + 1 if config.layer_types[layer] == "sliding_attention" else None

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary:
        """By type of layer."""
        turned = rotary_of(base_model.config, d_head, base_model.config.layer_types[layer])
        return replace(turned, in_float32=True, rounded=True)


class OPT(Architecture, name="opt", prefix="OPT"):
    """Zhang et al. 2022: a GPT-2 with three projections, whose positions begin in the third row of their table."""

    layers_at = "decoder.layers"
    words_at = "decoder.embed_tokens"
    positions_at = "decoder.embed_positions"
    words_project_at = "decoder.project_in"
    output_map_at = "decoder.project_out"
    first_row = 2
    final_norm_at = "decoder.final_layer_norm"
    projection_names = ("q_proj", "k_proj", "v_proj", "out_proj")
    norm_names = ("self_attn_layer_norm", None, "final_layer_norm", None)
    network_at = ""
    network_names = ("fc1", None, None, "fc2")
    linear_biases = False
    causal = True
    pre_norm = True
    float32_steps = True
    softmax_in_float32 = True
    scales_queries = True
    epsilon_setting = 1e-5
    activation_setting = "activation_function"

    def refuse(self, config: Any) -> None:
        """Refuse narrower embeddings with norms before attention, and no norm after the last layer."""
        if config.do_layer_norm_before and config.word_embed_proj_dim != config.hidden_size:
            raise not_reproduced(self.name, "word_embed_proj_dim", config.word_embed_proj_dim, f"{config.hidden_size}")
        if config.do_layer_norm_before and config._remove_final_layer_norm:
            raise not_reproduced(self.name, "_remove_final_layer_norm", True, "a norm after the last layer")

    def variant(self, config: Any) -> Architecture:
        """Of OPT-350m norms stand after the residuals, and none after the last layer."""
        return self if config.do_layer_norm_before else self.but(pre_norm=False, final_norm_at="")


class Esm(Bert, name="esm", prefix="Esm"):
    """Lin et al. 2023, ESM-2: BERT on proteins, with rotary positions; what masks leave out is made up for."""

    final_norm_at = "encoder.emb_layer_norm_after"
    norm_names = ("attention.LayerNorm", None, "LayerNorm", None)
    language_steps = ("lm_head",)
    class_steps = Roberta.class_steps
    head_weights = ("lm_head", "classifier")
    optional_weights = ("pooler", "contact_head")
    old_buffers = (*Bert.old_buffers, "rotary_embeddings.inv_freq", "position_embeddings.weight")
    only = (*Bert.only, ("position_embedding_type", "rotary"), ("is_folding_model", False))
    needed = ("pad_token_id",)
    fixed_activation = "gelu"
    has_words = False
    segments = False
    pre_norm = True
    float32_steps = True
    scales_queries = True

    def refuse(self, config: Any) -> None:
        """Refuse also a config without the mask that its embeddings look for."""
        super().refuse(config)
        if config.token_dropout and config.mask_token_id is None:
            raise not_reproduced(self.name, "mask_token_id", None, "a number")

    def embeddings(self, base_model: Any) -> Embeddings:
        """Words, perhaps normalised; with ``token_dropout`` without masks, as if these were 12 % as in training."""
        tables = base_model.embeddings
        config = base_model.config
        words = Embeddings(parameter_of(tables.word_embeddings, "weight"), norm=tables.layer_norm)
        return replace(words, scale=1 - 0.15 * 0.8, dropped=config.mask_token_id) if config.token_dropout else words

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary:  # noqa: ARG002 - all are alike
        """Frequencies are those of the checkpoint, which it may have rounded."""
        return Rotary(base_model.rotary_embeddings.inv_freq.float(), in_float32=True, rounded=True)


class NomicBert(Bert, name="nomic_bert", prefix="NomicBert"):
    """Nussbaum et al. 2024: BERT with rotary positions, a gate, and biases in its norms and heads alone."""

    layers_at = "layers"
    positions_at = ""
    attention_at = "self_attn"
    pattern_at = ""
    output_alone = False
    projection_names = Architecture.projection_names
    norm_names = ("post_attention_layernorm", None, "post_mlp_layernorm", None)
    network_at = "mlp"
    network_names = Architecture.network_names
    old_buffers = (*Bert.old_buffers, "embeddings.token_type_ids")
    states_d_head = True
    linear_biases = False
    float32_steps = True

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary:  # noqa: ARG002 - all are alike
        """As the config says."""
        return rotary_of(base_model.config, d_head)


class DebertaV2(Bert, name="deberta-v2", prefix="DebertaV2"):
    """He et al. 2021, also DeBERTa v3: queries and keys are compared with vectors of relative positions, too."""

    projection_names = ("self.query_proj", "self.key_proj", "self.value_proj", "output.dense")
    class_steps = ("pooler.dense", nn.GELU(), "classifier")
    head_weights = ("cls", "lm_predictions", "mask_predictions", "pooler", "classifier", "qa_outputs")
    optional_weights = ()
    only = (
        ("relative_attention", True),
        ("conv_kernel_size", 0),
        ("type_vocab_size", 0),
        ("pooler_hidden_act", "gelu"),
    )
    segments = False
    bypassing = "forward"
    head_setting = ', for published weights of v3 with "legacy": false in config.json,'

    def refuse(self, config: Any) -> None:
        """Refuse also embeddings that are narrower than the layers."""
        super().refuse(config)
        if (width := getattr(config, "embedding_size", config.hidden_size)) != config.hidden_size:
            raise not_reproduced(self.name, "embedding_size", width, f"{config.hidden_size}, its hidden_size")

    def base_model(self, model: nn.Module) -> nn.Module:
        """Refuse a table that is offloaded although the model reads it outside of its module."""
        base: Any = super().base_model(model)
        tables = [base.encoder.rel_embeddings]
        tables += [base.embeddings.word_embeddings] if hasattr(model, "lm_predictions") else []
        if is_spread(model) and any(table.weight.is_meta for table in tables):
            raise DeviceError(
                "this model reads encoder.rel_embeddings, and a head with legacy=False embeddings.word_embeddings, as "
                "they are; expected a device map that has them where the model runs, not offloaded."
            )
        return base  # type: ignore[no-any-return]

    def language_head(self, model: Any) -> nn.Module | None:
        """The legacy head, or the other, which reads the table of words."""
        if not hasattr(model, "lm_predictions"):
            return super().language_head(model)
        head = model.lm_predictions.lm_head
        words = self.embeddings(self.base_model(model)).words
        unembedding: Any = nn.Linear(words.shape[1], len(words), device="meta")
        unembedding.weight, unembedding.bias = words, head.bias
        return self.head_of(model, (head.dense, head.transform_act_fn, head.LayerNorm, unembedding))

    def scoring(self, base_model: Any, layer: int, d_head: int) -> Scoring:
        """With vectors of relative positions, by maps of their own or those of the text (``share_att_key``)."""
        encoder = base_model.encoder
        attention = encoder.layer[layer].attention.self
        table = parameter_of(encoder.rel_embeddings, "weight")
        if "layer_norm" in encoder.norm_rel_ebd:
            table = norm_of(self, base_model.config, encoder.LayerNorm)(table)
        prefix = "" if attention.share_att_key else "pos_"
        vectors: dict[str, Tensor] = {}
        for kind, name, reads in (("c2p", "content_to_position", "key"), ("p2c", "position_to_content", "query")):
            if kind in attention.pos_att_type:
                linear = getattr(attention, f"{prefix}{reads}_proj")
                weight = parameter_of(linear, "weight")
                by_head = projection_of(weight, parameter_of(linear, "bias"), attention.num_attention_heads)
                vectors[name] = project(table.to(weight.device), by_head)
        divisor = torch.tensor(float(d_head * (1 + len(vectors)))).sqrt().to(table.dtype)  # as the model rounds it
        relative = RelativePositions(
            vectors, farthest=attention.max_relative_positions if attention.position_buckets > 0 else None
        )
        return replace(super().scoring(base_model, layer, d_head), scale=1 / float(divisor), relative=relative)


class ClipText(Architecture, name="clip_text_model", prefix="CLIPText"):
    """Radford et al. 2021, "Learning Transferable Visual Models": a GPT-2 that predicts no words."""

    language_task = "Model"
    layers_at = "encoder.layers"
    words_at = "embeddings.token_embedding"
    positions_at = "embeddings.position_embedding"
    final_norm_at = "final_layer_norm"
    projection_names = ("q_proj", "k_proj", "v_proj", "out_proj")
    norm_names = ("layer_norm1", None, "layer_norm2", None)
    network_names = ("fc1", None, None, "fc2")
    language_steps = ()
    class_steps = ()
    head_weights = ("text_projection",)
    old_buffers = ("embeddings.position_ids",)
    causal = True
    pre_norm = True
    float32_steps = True
    softmax_in_float32 = True
    epsilon_setting = "layer_norm_eps"


class SiglipText(ClipText, name="siglip_text_model", prefix="SiglipText"):
    """Zhai et al. 2023: CLIP's, both ways."""

    optional_weights = ("head",)
    causal = False


# Sturua et al. 2024: XLM-RoBERTa with rotary positions
_JINA = {"network_names": ("fc1", None, None, "fc2"), "linear_biases": True, "states_d_head": False}
_JINA |= {name: getattr(Roberta, name) for name in ("language_steps", "class_steps", "head_weights")}
JinaEmbeddingsV3 = like(NomicBert, "jina_embeddings_v3", "JinaEmbeddingsV3", **_JINA)
Clip = with_images("clip", "CLIP", ClipText, "text_model", "Model")
Siglip = with_images("siglip", "Siglip", SiglipText, "text_model", "Model")
