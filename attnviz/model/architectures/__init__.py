"""The architectures that the reference attention reproduces: one file and one entry each."""

from typing import Any

import torch

from attnviz.errors import ArchitectureError
from attnviz.model.architectures.base import Architecture, Embeddings, LayerModules, norm_of
from attnviz.model.architectures.bert import Bert
from attnviz.model.architectures.gemma import Gemma2, Gemma3
from attnviz.model.architectures.gpt2 import GPT2
from attnviz.model.architectures.llama import Llama, Mistral, Phi3, Qwen2, Qwen3, SmolLM3

__all__ = ["ARCHITECTURES", "SIZES", "Architecture", "Embeddings", "LayerModules", "architecture_of", "norm_of"]

SIZES = {
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "hidden_size": "a width",
    "vocab_size": "a vocabulary",
    "max_position_embeddings": "positions",
}

_FAMILIES: list[Architecture] = [
    Bert(), GPT2(), Llama(), Mistral(), Qwen2(), Qwen3(), SmolLM3(), Phi3(), Gemma2(), Gemma3()
]  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {family.name: family for family in _FAMILIES}


def architecture_of(config: Any, dtype: torch.dtype) -> Architecture:
    """The architecture of a transformers config, checked to be one that is reproduced in this dtype.

    Raises:
        ArchitectureError: an unknown ``model_type``, a setting that is not reproduced, or a model
            without layers, heads or words.
    """
    model_type = getattr(config, "model_type", None)
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ArchitectureError(
            f"the reference attention does not reproduce the architecture {model_type!r}; expected one of: {known}."
        )
    for size, what in SIZES.items():
        if getattr(config, size) < 1:
            raise ArchitectureError(f"the config has {size}={getattr(config, size)}; expected a model with {what}.")
    architecture = ARCHITECTURES[model_type]
    epsilon = getattr(config, architecture.epsilon_setting)
    if not (isinstance(epsilon, int | float) and 0 < epsilon < 1):
        raise ArchitectureError(
            f"the config has {architecture.epsilon_setting}={epsilon}; expected a small number above 0, such as 1e-12: "
            "norms divide by its root where all values are alike."
        )
    architecture.refuse(config, dtype)
    return architecture
