"""BERT (Devlin et al. 2019) and its relatives, and GPT-2, under transformers' names: layer norms, learned positions."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from attnviz.errors import ArchitectureError
from attnviz.models.families.base import Architecture, Embeddings, LayerModules, chained, not_reproduced
from attnviz.models.offloading import parameter_of
from attnviz.reference.attention import HeadParameters
from attnviz.reference.positions import bucketed_bias


class Bert(Architecture):
    """Bidirectional attention; post-norm; W_O is outside the self-attention module.

    Relatives are subclasses.
    """

    name = "bert"
    title = "BERT"
    class_prefix = "Bert"
    layers_at = "encoder.layer"
    attention_at = "attention"
    projection_names = ("self.query", "self.key", "self.value", "output.dense")
    norm_names = ("attention.output.LayerNorm", None, "output.LayerNorm", None)
    network_at = ""
    network_names = ("intermediate.dense", None, None, "output.dense")
    position_type = "absolute"  # the one that is reproduced
    head_weights: tuple[str, ...] = ("cls", "classifier", "qa_outputs")
    optional_weights: tuple[str, ...] = ("pooler",)
    old_buffers: tuple[str, ...] = ("embeddings.position_ids",)
    segments = True
    epsilon_setting: str | float = "layer_norm_eps"
    language_task = "ForMaskedLM"

    def refuse(self, config: Any, dtype: torch.dtype) -> None:  # noqa: ARG002 - every dtype is reproduced
        """Refuse decoders, cross-attention, relative positions, and heads that do not divide the model."""
        if config.hidden_size % config.num_attention_heads:
            n_heads, width = config.num_attention_heads, config.hidden_size
            raise not_reproduced(self.title, "num_attention_heads", n_heads, f"a divisor of its width {width}")
        for flag in ("is_decoder", "add_cross_attention"):
            if getattr(config, flag, False):
                raise not_reproduced(self.title, flag, True, "an encoder without cross-attention")
        positions = getattr(config, "position_embedding_type", None) or "absolute"
        if positions != self.position_type:
            raise not_reproduced(self.title, "position_embedding_type", positions, repr(self.position_type))

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``BertLMPredictionHead`` of ``BertForMaskedLM`` and ``BertForPreTraining``."""
        head: nn.Module | None = getattr(getattr(model, "cls", None), "predictions", None)
        return head

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """The pooler and ``classifier`` of ``BertForSequenceClassification``, of the final state of [CLS]."""
        pooler = getattr(self.base_model(model), "pooler", None)
        return chained(pooler, "dense", "activation", getattr(model, "classifier", None))

    def layer_modules(self, layer: Any) -> LayerModules:
        """``BertSelfAttention`` gives the pattern, ``BertSelfOutput.dense`` the output; norms after residuals."""
        modules = super().layer_modules(layer)
        return replace(modules, pattern=layer.attention.self, output=modules.o_proj)

    def embeddings(self, base_model: Any) -> Embeddings:
        """Words, positions and token types (if any) are added, then normalised; ELECTRA then projects."""
        tables = base_model.embeddings
        types = getattr(tables, "token_type_embeddings", None)
        return Embeddings(
            parameter_of(tables.word_embeddings, "weight"),
            parameter_of(tables.position_embeddings, "weight"),
            None if types is None else parameter_of(types, "weight"),
            tables.LayerNorm,
            getattr(base_model, "embeddings_project", None),
        )


class Electra(Bert):
    """BERT without pooler, whose embeddings may be narrower than its layers and are then projected."""

    name = "electra"
    title = "ELECTRA"
    class_prefix = "Electra"
    head_weights = (
        "generator_predictions", "generator_lm_head", "discriminator_predictions", "classifier", "qa_outputs",
        "sequence_summary",
    )  # fmt: skip
    optional_weights = ()

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """The generator's head; the discriminator has none."""
        return chained(model, "generator_predictions", "generator_lm_head")

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """``ElectraClassificationHead``."""
        return chained(getattr(model, "classifier", None), "dense", "activation", "out_proj")


class Albert(Bert):
    """Lan et al. 2020: BERT whose layers share modules in groups; embeddings may be narrower and are projected."""

    name = "albert"
    title = "ALBERT"
    class_prefix = "Albert"
    projection_names = ("query", "key", "value", "dense")
    norm_names = ("attention.LayerNorm", None, "full_layer_layer_norm", None)
    network_names = ("ffn", None, None, "ffn_output")
    resumable = False
    head_weights = ("predictions", "sop_classifier", "classifier", "qa_outputs")

    def refuse(self, config: Any, dtype: torch.dtype) -> None:
        """Refuse also a model without modules."""
        super().refuse(config, dtype)
        for setting in ("num_hidden_groups", "inner_group_num"):
            if getattr(config, setting) < 1:
                raise not_reproduced(self.title, setting, getattr(config, setting), "at least one")

    def n_layers(self, config: Any) -> int:
        """Each of ``num_hidden_layers`` is a run of a group of ``inner_group_num`` layers."""
        return int(config.num_hidden_layers * config.inner_group_num)

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``AlbertMLMHead``."""
        head: nn.Module | None = getattr(model, "predictions", None)
        return head

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """The pooler and ``classifier``, of the final state of [CLS]."""
        classifier = getattr(model, "classifier", None)
        return chained(self.base_model(model), "pooler", "pooler_activation", classifier)

    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """The modules of each layer: layers are dealt to the groups in as many stretches."""
        model: Any = base_model
        groups, n = model.encoder.albert_layer_groups, model.config.num_hidden_layers
        blocks = [block for run in range(n) for block in groups[int(run / (n / len(groups)))].albert_layers]
        return [
            replace(self.layer_modules(block), run=blocks[:layer].count(block), n_runs=blocks.count(block))
            for layer, block in enumerate(blocks)
        ]

    def layer_modules(self, layer: Any) -> LayerModules:
        """``AlbertAttention`` has W_O and the norm after the residual inside."""
        return replace(Architecture.layer_modules(self, layer), output=layer.attention.dense)

    def embeddings(self, base_model: Any) -> Embeddings:
        """As of BERT, then projected."""
        return replace(super().embeddings(base_model), project=base_model.encoder.embedding_hidden_mapping_in)


class DistilBert(Bert):
    """BERT without segments and pooler; W_O is inside the attention module; the epsilon of its norms is fixed."""

    name = "distilbert"
    title = "DistilBERT"
    class_prefix = "DistilBert"
    layers_at = "transformer.layer"
    attention_at = "attention"
    projection_names = ("q_lin", "k_lin", "v_lin", "out_lin")
    norm_names = ("sa_layer_norm", None, "output_layer_norm", None)
    network_at = "ffn"
    network_names = ("lin1", None, None, "lin2")
    layer_modules = Architecture.layer_modules
    head_weights = (
        "vocab_transform", "vocab_layer_norm", "vocab_projector", "pre_classifier", "classifier", "qa_outputs",
    )  # fmt: skip
    optional_weights = ()
    segments = False
    epsilon_setting = 1e-12
    activation_setting = "activation"

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """The four modules of ``DistilBertForMaskedLM``'s head."""
        return chained(model, "vocab_transform", "activation", "vocab_layer_norm", "vocab_projector")

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """The three modules of ``DistilBertForSequenceClassification``'s head."""
        return chained(model, "pre_classifier", nn.ReLU(), "classifier")


class Roberta(Bert):
    """BERT without segments (its one token type is always added), its positions counted from padding_idx + 1."""

    name = "roberta"
    title = "RoBERTa"
    class_prefix = "Roberta"
    head_weights = ("lm_head", "classifier", "qa_outputs")
    segments = False
    positions_after_padding = True
    language_head = Architecture.language_head

    def refuse(self, config: Any, dtype: torch.dtype) -> None:
        """Refuse also a ``pad_token_id`` that leaves no position for a token."""
        super().refuse(config, dtype)
        padding, positions = config.pad_token_id, config.max_position_embeddings
        if not isinstance(padding, int) or not 0 <= padding < positions - 1:
            raise ArchitectureError(
                f"this {self.title} has pad_token_id={padding}, from which its {positions} positions are counted; "
                f"expected a number from 0 to {positions - 2}."
            )

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """``RobertaClassificationHead``."""
        return chained(getattr(model, "classifier", None), "dense", nn.Tanh(), "out_proj")


class XLMRoberta(Roberta):
    """RoBERTa in a hundred languages: pieces of SentencePiece instead of bytes."""

    name = "xlm-roberta"
    title = "XLM-RoBERTa"
    class_prefix = "XLMRoberta"


class Camembert(Roberta):
    """RoBERTa in French."""

    name = "camembert"
    title = "CamemBERT"
    class_prefix = "Camembert"


class MPNet(Roberta):
    """Song et al. 2020: RoBERTa with one bias by distance for all layers, in T5's buckets."""

    name = "mpnet"
    title = "MPNet"
    class_prefix = "MPNet"
    attention_at = "attention.attn"
    projection_names = ("q", "k", "v", "o")
    norm_names = ("attention.LayerNorm", None, "output.LayerNorm", None)
    layer_modules = Architecture.layer_modules
    through_interface = False

    def refuse(self, config: Any, dtype: torch.dtype) -> None:
        """Refuse also other numbers than those of transformers' class, which does not read them in the config."""
        super().refuse(config, dtype)
        for setting, only in (("pad_token_id", 1), ("relative_attention_num_buckets", 32)):
            if getattr(config, setting) != only:
                raise not_reproduced(self.title, setting, getattr(config, setting), f"{only}, whatever the config says")

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """With the encoder's bias by distance, which is the same from 128 tokens on."""
        parameters = super().parameters(base_model, layer)
        table = parameter_of(base_model.encoder.relative_attention_bias, "weight").to(parameters.query.weight.device)
        return replace(parameters, position_bias=partial(bucketed_bias, table, max_distance=128, causal=False))


class GPT2(Architecture):
    """Radford et al. 2019: causal attention; pre-norm; Q, K and V in one Conv1D (weight [in, out])."""

    name = "gpt2"
    class_prefix = "GPT2"
    layers_at = "h"
    final_norm_at = "ln_f"
    attention_at = "attn"
    projection_names = ("c_attn", "c_proj")
    norm_names = ("ln_1", None, "ln_2", None)
    network_names = ("c_fc", None, None, "c_proj")
    head_weights = ("lm_head", "score", "classifier", "qa_outputs", "multiple_choice_head")
    old_buffers = (".attn.bias", ".attn.masked_bias")
    causal = True
    pre_norm = True
    activation_setting = "activation_function"
    language_class = "GPT2LMHeadModel"

    def refuse(self, config: Any, dtype: torch.dtype) -> None:
        """Refuse cross-attention, and float64 where scores are upcast to float32; other flags are reproduced."""
        if getattr(config, "add_cross_attention", False):
            raise not_reproduced("GPT-2", "add_cross_attention", True, "a decoder without an encoder")
        if config.reorder_and_upcast_attn and dtype == torch.float64:
            raise ArchitectureError(
                "this GPT-2 has reorder_and_upcast_attn=True, with which transformers cannot compute in float64; "
                "expected float32, float16 or bfloat16."
            )

    def embeddings(self, base_model: Any) -> Embeddings:
        """Words and positions are added; the first norm is the first layer's."""
        return Embeddings(parameter_of(base_model.wte, "weight"), parameter_of(base_model.wpe, "weight"))

    def weight(self, linear: Any) -> Any:
        """The transposed weight of a Conv1D, which is [in, out]."""
        return parameter_of(linear, "weight").T

    def parameters(self, base_model: Any, layer: int) -> HeadParameters:
        """Scaled by 1/sqrt(d_head) with ``scale_attn_weights`` (else 1), divided by the layer's number counted from 1
        with ``scale_attn_by_inverse_layer_idx``.
        """  # noqa: D205
        config, parameters = base_model.config, super().parameters(base_model, layer)
        scale = parameters.scale if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
        return replace(parameters, scale=scale, upcast=config.reorder_and_upcast_attn)
