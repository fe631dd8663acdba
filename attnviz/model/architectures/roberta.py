"""RoBERTa (Liu et al. 2019), XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020)."""

from typing import Any

import torch
from torch import nn

from attnviz.errors import ArchitectureError
from attnviz.model.architectures.base import chained
from attnviz.model.architectures.bert import Bert

__all__ = ["Camembert", "Roberta", "XLMRoberta"]


class Roberta(Bert):
    """BERT without segments (its one token type is always added), its positions counted from padding_idx + 1."""

    name = "roberta"
    title = "RoBERTa"
    class_prefix = "Roberta"
    base_name = "roberta"
    head_weights: tuple[str, ...] = ("lm_head", "classifier", "qa_outputs")
    segments = False
    positions_after_padding = True
    language_class = "RobertaForMaskedLM"

    def refuse(self, config: Any, dtype: torch.dtype) -> None:
        """Refuse also what leaves no position for a token.

        Raises:
            ArchitectureError: naming the setting.
        """
        super().refuse(config, dtype)
        padding, positions = config.pad_token_id, config.max_position_embeddings
        if not isinstance(padding, int) or not 0 <= padding < positions - 1:
            raise ArchitectureError(
                f"this {self.title} has pad_token_id={padding}, from which its {positions} positions are counted; "
                f"expected a number from 0 to {positions - 2}."
            )

    def language_head(self, model: nn.Module) -> nn.Module | None:
        """``RobertaLMHead``."""
        head: nn.Module | None = getattr(model, "lm_head", None)
        return head

    def class_head(self, model: nn.Module) -> nn.Module | None:
        """``RobertaClassificationHead``."""
        head: Any = getattr(model, "classifier", None)
        return chained(getattr(head, "dense", None), nn.Tanh(), getattr(head, "out_proj", None))


class XLMRoberta(Roberta):
    """RoBERTa in a hundred languages: pieces of SentencePiece instead of bytes."""

    name = "xlm-roberta"
    title = "XLM-RoBERTa"
    class_prefix = "XLMRoberta"
    language_class = "XLMRobertaForMaskedLM"


class Camembert(Roberta):
    """RoBERTa in French."""

    name = "camembert"
    title = "CamemBERT"
    class_prefix = "Camembert"
    language_class = "CamembertForMaskedLM"
