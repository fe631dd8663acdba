"""ELECTRA (Clark et al. 2020) under transformers' names: generator and discriminator."""

from typing import Any

from torch import nn

from attnviz.model.architectures.base import chained
from attnviz.model.architectures.bert import Bert

__all__ = ["Electra"]


class Electra(Bert):
    """BERT without pooler, whose embeddings may be narrower than its layers and are then projected."""

    name = "electra"
    title = "ELECTRA"
    class_prefix = "Electra"
    base_name = "electra"
    head_weights: tuple[str, ...] = (
        "generator_predictions", "generator_lm_head", "discriminator_predictions", "classifier", "qa_outputs",
        "sequence_summary",
    )  # fmt: skip
    optional_weights: tuple[str, ...] = ()
    language_class = "ElectraForMaskedLM"

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """That of the generator; the discriminator has none."""
        return chained(getattr(model, "generator_predictions", None), getattr(model, "generator_lm_head", None))

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """``ElectraClassificationHead``."""
        head: Any = getattr(model, "classifier", None)
        return chained(*(getattr(head, step, None) for step in ("dense", "activation", "out_proj")))
