"""The architectures that the reference attention reproduces: one file and one entry each."""

from typing import Any

from attnviz.architectures.base import Architecture, AttentionModules
from attnviz.architectures.bert import Bert
from attnviz.architectures.gpt2 import GPT2
from attnviz.errors import ArchitectureError

__all__ = ["ARCHITECTURES", "Architecture", "AttentionModules", "architecture_of"]

ARCHITECTURES: dict[str, Architecture] = {"bert": Bert(), "gpt2": GPT2()}


def architecture_of(config: Any) -> Architecture:
    """The architecture of a transformers config, checked to be one that is reproduced.

    Raises:
        ArchitectureError: an unknown ``model_type``, or a setting that is not reproduced.
    """
    model_type = getattr(config, "model_type", None)
    if model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ArchitectureError(
            f"the reference attention does not reproduce the architecture {model_type!r}; expected one of: {known}."
        )
    architecture = ARCHITECTURES[model_type]
    architecture.refuse(config)
    return architecture
