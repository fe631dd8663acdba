"""BERT (Devlin et al. 2019) and its relatives, GPT-2 and its successors, under transformers' names: layer norms."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from attnviz.models.families.base import Architecture, Embeddings, LayerModules, PositionBias, like, not_reproduced
from attnviz.models.offloading import parameter_of, running_device
from attnviz.reference.attention import Scoring
from attnviz.reference.positions import Rotary, alibi_slopes, bucketed_bias, default_frequencies, linear_bias


class Bert(Architecture, name="bert", prefix="Bert"):
    """Bidirectional attention; post-norm; W_O is outside the self-attention module. Relatives are subclasses."""

    layers_at = "encoder.layer"
    words_at = "embeddings.word_embeddings"
    positions_at = "embeddings.position_embeddings"
    segments_at = "embeddings.token_type_embeddings"
    embedding_norm_at = "embeddings.LayerNorm"
    attention_at = "attention"
    pattern_at = "self"
    output_alone = True
    projection_names: tuple[str, ...] = ("self.query", "self.key", "self.value", "output.dense")
    norm_names = ("attention.output.LayerNorm", None, "output.LayerNorm", None)
    network_at = ""
    network_names: tuple[str | None, ...] = ("intermediate.dense", None, None, "output.dense")
    language_steps: tuple[str | nn.Module, ...] = ("cls.predictions",)
    class_steps: tuple[str | nn.Module, ...] = ("base.pooler.dense", "base.pooler.activation", "classifier")
    token_steps: tuple[str | nn.Module, ...] = ("classifier",)
    next_steps: tuple[str | nn.Module, ...] = (*class_steps[:2], "cls.seq_relationship")
    head_weights: tuple[str, ...] = ("cls", "classifier", "qa_outputs")
    optional_weights: tuple[str, ...] = ("pooler",)
    old_buffers: tuple[str, ...] = ("embeddings.position_ids",)
    only: tuple[tuple[str, object], ...] = (
        ("is_decoder", False),
        ("add_cross_attention", False),
        ("position_embedding_type", "absolute"),
    )
    segments = True
    epsilon_setting: str | float = "layer_norm_eps"
    language_task = "ForMaskedLM"

    def refuse(self, config: Any) -> None:
        """Refuse also heads that do not divide the model."""
        n_heads, width = config.num_attention_heads, config.hidden_size
        if width % n_heads:
            raise not_reproduced(self.name, "num_attention_heads", n_heads, f"a divisor of its width {width}")
        super().refuse(config)


class Electra(Bert, name="electra", prefix="Electra"):
    """BERT without pooler, whose embeddings may be narrower than its layers and are then projected."""

    project_at = "embeddings_project"
    language_steps = ("generator_predictions", "generator_lm_head")  # of the generator; the discriminator has none
    class_steps = ("classifier.dense", "classifier.activation", "classifier.out_proj")
    head_weights = (
        *("generator_predictions", "generator_lm_head", "discriminator_predictions"),
        *("sequence_summary", "classifier", "qa_outputs"),
    )
    optional_weights = ()


class Albert(Bert, name="albert", prefix="Albert"):
    """Lan et al. 2020: BERT whose layers share modules in groups; embeddings may be narrower and are projected."""

    project_at = "encoder.embedding_hidden_mapping_in"
    pattern_at = ""
    projection_names = ("query", "key", "value", "dense")
    norm_names = ("attention.LayerNorm", None, "full_layer_layer_norm", None)
    network_names = ("ffn", None, None, "ffn_output")
    language_steps = ("predictions",)
    class_steps = ("base.pooler", "base.pooler_activation", "classifier")
    resumable = False
    head_weights = ("predictions", "sop_classifier", "classifier", "qa_outputs")

    def refuse(self, config: Any) -> None:
        """Refuse also a model without modules."""
        super().refuse(config)
        for setting in ("num_hidden_groups", "inner_group_num"):
            if getattr(config, setting) < 1:
                raise not_reproduced(self.name, setting, getattr(config, setting), "at least one")

    def attending(self, config: Any) -> Sequence[int]:
        """Each of ``num_hidden_layers`` is a run of a group of ``inner_group_num`` layers."""
        return range(config.num_hidden_layers * config.inner_group_num)

    def modules(self, base_model: nn.Module) -> list[LayerModules]:
        """The modules of each layer: layers are dealt to the groups in as many stretches."""
        model: Any = base_model
        groups = model.encoder.albert_layer_groups
        n = model.config.num_hidden_layers
        blocks = [block for run in range(n) for block in groups[int(run / (n / len(groups)))].albert_layers]
        return [
            replace(self.layer_modules(block), run=blocks[:layer].count(block), n_runs=blocks.count(block))
            for layer, block in enumerate(blocks)
        ]

    def modules_of(self, base_model: nn.Module, layer: int) -> LayerModules:
        """The modules of one layer, and which of their runs it is."""
        return self.modules(base_model)[layer]


class DistilBert(Bert, name="distilbert", prefix="DistilBert"):
    """BERT without segments and pooler; W_O is inside the attention module; the epsilon of its norms is fixed."""

    layers_at = "transformer.layer"
    segments_at = ""
    pattern_at = ""
    output_alone = False
    projection_names = ("q_lin", "k_lin", "v_lin", "out_lin")
    norm_names = ("sa_layer_norm", None, "output_layer_norm", None)
    network_at = "ffn"
    network_names = ("lin1", None, None, "lin2")
    language_steps = ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector")
    class_steps = ("pre_classifier", nn.ReLU(), "classifier")
    head_weights = (
        *("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        *("pre_classifier", "classifier", "qa_outputs"),
    )
    optional_weights = ()
    segments = False
    epsilon_setting = 1e-12
    activation_setting = "activation"


class Roberta(Bert, name="roberta", prefix="Roberta"):
    """BERT without segments (its one token type is always added), its positions counted from padding_idx + 1."""

    language_steps = ("lm_head",)
    class_steps = ("classifier.dense", nn.Tanh(), "classifier.out_proj")
    head_weights = ("lm_head", "classifier", "qa_outputs")
    segments = False
    positions_after_padding = True

    def refuse(self, config: Any) -> None:
        """Refuse also a ``pad_token_id`` that leaves no position for a token."""
        super().refuse(config)
        padding, positions = config.pad_token_id, config.max_position_embeddings
        if not isinstance(padding, int) or not 0 <= padding < positions - 1:
            raise not_reproduced(self.name, "pad_token_id", padding, f"a number from 0 to {positions - 2}")


XLMRoberta = like(Roberta, "xlm-roberta", "XLMRoberta")  # pieces of SentencePiece instead of bytes
Camembert = like(Roberta, "camembert", "Camembert")  # likewise
Data2VecText = like(Roberta, "data2vec-text", "Data2VecText")  # Baevski et al. 2022


class Ernie(Bert, name="ernie", prefix="Ernie"):
    """Sun et al. 2020, "ERNIE 2.0": BERT, perhaps with an embedding of the task, here always the first."""

    first_rows: tuple[str, ...] = ("task_type",)  # tables of which every token gets the first row

    def embeddings(self, base_model: Any) -> Embeddings:
        """With these rows in those of positions."""
        tables = super().embeddings(base_model)
        for name in self.first_rows:
            table = getattr(base_model.embeddings, f"{name}_embeddings", None)
            if table is not None:
                tables = replace(tables, positions=tables.positions + parameter_of(table, "weight")[0])
        return tables


class LayoutLM(Ernie, name="layoutlm", prefix="LayoutLM"):
    """Xu et al. 2020: BERT on words of a page; of text alone all boxes are empty, in the page's corner."""

    first_rows = tuple(f"{side}_position" for side in "xyxyhw")


class MPNet(Roberta, name="mpnet", prefix="MPNet"):
    """Song et al. 2020: RoBERTa with one bias by distance for all layers, in T5's buckets."""

    segments_at = ""
    attention_at = "attention.attn"
    pattern_at = ""
    output_alone = False
    projection_names = ("q", "k", "v", "o")
    norm_names = ("attention.LayerNorm", None, "output.LayerNorm", None)
    # as in transformers' class, whatever the config says
    only = (*Roberta.only, ("pad_token_id", 1), ("relative_attention_num_buckets", 32))
    bypassing = "forward"

    def position_bias(self, base_model: Any, layer: int) -> PositionBias:
        """The encoder's bias by distance, which is the same from 128 tokens on."""
        device = running_device(self.modules_of(base_model, layer).o_proj)
        table = parameter_of(base_model.encoder.relative_attention_bias, "weight").to(device)
        return partial(bucketed_bias, table, max_distance=128, causal=False)


class GPT(Architecture):
    """What GPT-2 and its successors share: causal attention, pre-norm, names."""

    layers_at = "h"
    words_at = "wte"
    final_norm_at = "ln_f"
    token_steps = ("classifier",)
    attention_at = "attn"
    norm_names: tuple[str | None, ...] = ("ln_1", None, "ln_2", None)
    network_names: tuple[str | None, ...] = ("c_fc", None, None, "c_proj")
    causal = True
    pre_norm = True
    activation_setting = "activation_function"


class GPT2(GPT, name="gpt2", prefix="GPT2"):
    """Radford et al. 2019: Q, K and V in one Conv1D (weight [in, out])."""

    positions_at = "wpe"
    projection_names = ("c_attn", "c_proj")
    head_weights = (*Architecture.head_weights, "multiple_choice_head")
    old_buffers = (".attn.bias", ".attn.masked_bias")
    only = (("add_cross_attention", False),)
    not_in_float64 = "reorder_and_upcast_attn"
    language_class = "GPT2LMHeadModel"

    def weight(self, linear: Any) -> Any:
        """The transposed weight of a Conv1D, which is [in, out]; what bitsandbytes puts in its place is not."""
        weight = parameter_of(linear, "weight")
        return weight if isinstance(linear, nn.Linear) else weight.T

    def scale(self, config: Any, layer: int, d_head: int) -> float:
        """As ``scale_attn_weights`` and ``scale_attn_by_inverse_layer_idx`` say, layers counted from 1."""
        scale = super().scale(config, layer, d_head) if config.scale_attn_weights else 1.0
        return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale

    def scoring(self, base_model: Any, layer: int, d_head: int) -> Scoring:
        """With ``reorder_and_upcast_attn``."""
        return replace(super().scoring(base_model, layer, d_head), upcast=base_model.config.reorder_and_upcast_attn)


class GPTNeo(GPT, name="gpt_neo", prefix="GPTNeo"):
    """Black et al. 2021: three projections, scores without a scale, windows in every other layer."""

    positions_at = "wpe"
    attention_at = "attn.attention"
    projection_names = ("q_proj", "k_proj", "v_proj", "out_proj")
    old_buffers = (".attention.bias", ".attention.masked_bias")
    linear_biases = False
    float32_steps = True
    scaled = False
    upcast_scores = True
    bypassing = "_attn"

    def window(self, config: Any, layer: int) -> int | None:
        """``window_size`` in layers that are ``local``."""
        return int(config.window_size) if config.attention_layers[layer] == "local" else None


class GPTJ(GPT, name="gptj", prefix="GPTJ"):
    """Wang & Komatsuzaki 2021: both halves read one norm; neighbours are pairs of rotary positions."""

    projection_names = ("q_proj", "k_proj", "v_proj", "out_proj")
    norm_names = ("ln_1", None, None, None)
    network_names = ("fc_in", None, None, "fc_out")
    old_buffers = (".attn.bias", ".attn.masked_bias", ".attn.embed_positions")
    linear_biases = False
    parallel = True
    float32_steps = True
    upcast_scores = True
    bypassing = "_attn"

    def rotary(self, base_model: Any, layer: int, d_head: int) -> Rotary:  # noqa: ARG002 - all are alike
        """Of ``rotary_dim`` numbers of each head."""
        return Rotary(default_frequencies(base_model.config.rotary_dim, 10000.0), interleaved=True)


class Bloom(GPT, name="bloom", prefix="Bloom"):
    """Scao et al. 2022: no positions but a linear bias of scores; one map for Q, K and V, head by head."""

    words_at = "word_embeddings"
    embedding_norm_at = "word_embeddings_layernorm"
    attention_at = "self_attention"
    projection_names = ("query_key_value", "dense")
    norm_names = ("input_layernorm", None, "post_attention_layernorm", None)
    network_names = ("dense_h_to_4h", None, None, "dense_4h_to_h")
    only = (("apply_residual_connection_post_layernorm", False), ("slow_but_exact", False))
    fused_by_head = True
    float32_steps = True
    softmax_in_float32 = True
    scores_rounded_once = True
    bypassing = "forward"
    attention_adds_residual = True
    fixed_activation = "gelu_new"
    resumable = False  # what it adds to scores has a row a text and head
    output_alone = True

    def position_bias(self, base_model: Any, layer: int) -> PositionBias:
        """By slopes that the number of heads gives."""
        o_proj = self.modules_of(base_model, layer).o_proj
        slopes = alibi_slopes(base_model.config.num_attention_heads).to(running_device(o_proj))
        return partial(linear_bias, slopes, parameter_of(o_proj, "weight").dtype)
