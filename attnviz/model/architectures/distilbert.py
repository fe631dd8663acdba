"""DistilBERT (Sanh et al. 2019) under transformers' names."""

from typing import Any

from torch import nn

from attnviz.model.architectures.base import LayerModules, chained
from attnviz.model.architectures.bert import Bert

__all__ = ["DistilBert"]


class DistilBert(Bert):
    """BERT without segments and pooler; W_O is inside the attention module; the epsilon of its norms is fixed."""

    name = "distilbert"
    title = "DistilBERT"
    class_prefix = "DistilBert"
    base_name = "distilbert"
    layers_at = "transformer.layer"
    head_weights: tuple[str, ...] = (
        "vocab_transform", "vocab_layer_norm", "vocab_projector", "pre_classifier", "classifier", "qa_outputs",
    )  # fmt: skip
    optional_weights: tuple[str, ...] = ()
    segments = False
    epsilon_setting = 1e-12
    activation_setting = "activation"
    language_class = "DistilBertForMaskedLM"

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """The four steps that ``DistilBertForMaskedLM`` takes one by one."""
        steps = ("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector")
        return chained(*(getattr(model, step, None) for step in steps))

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """The three steps that ``DistilBertForSequenceClassification`` takes one by one."""
        return chained(getattr(model, "pre_classifier", None), nn.ReLU(), getattr(model, "classifier", None))

    def layer_modules(self, layer: Any) -> LayerModules:
        """``DistilBertSelfAttention`` gives pattern and output: it returns (output after W_O, pattern)."""
        attention = layer.attention
        return LayerModules(
            block=layer,
            projections=(attention.q_lin, attention.k_lin, attention.v_lin),
            pattern=attention,
            concatenated=attention.out_lin,
            output=attention,
            attention_norm=layer.sa_layer_norm,
            expand=layer.ffn.lin1,
            contract=layer.ffn.lin2,
            feed_forward_norm=layer.output_layer_norm,
        )
