"""attnviz: what the attention heads of a pretrained BERT or GPT-2 do, recomputed and verified.

    >>> import attnviz
    >>> analysis = attnviz.analyze("The cat that I saw ran away", model="minilm")  # doctest: +SKIP
    >>> analysis.head("L2H8").label  # doctest: +SKIP

Importing the package is cheap; torch, transformers and matplotlib are imported when first needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attnviz.errors import (
    ArchitectureError,
    AttnvizError,
    CheckpointError,
    CorpusError,
    DeviceError,
    OutputError,
    ParserError,
    ProcessError,
    TextError,
    UsageError,
    VerificationError,
)

if TYPE_CHECKING:
    from attnviz.ablation_saving import Ablation, ablate
    from attnviz.analysis import Analysis, analyze
    from attnviz.comparison_saving import compare
    from attnviz.configurations import Configuration
    from attnviz.explain_saving import Explanation, explain
    from attnviz.heads import HeadId
    from attnviz.model_listing import model_configurations
    from attnviz.outputs_saving import HeadOutputs, head_outputs
    from attnviz.profile import Profile, profile_heads
    from attnviz.profile_saving import save_profile
    from attnviz.rollout_saving import Rollout, rollout

__version__ = "0.1.0"

__all__ = [
    "Ablation",
    "Analysis",
    "ArchitectureError",
    "AttnvizError",
    "CheckpointError",
    "Configuration",
    "CorpusError",
    "DeviceError",
    "Explanation",
    "HeadId",
    "HeadOutputs",
    "OutputError",
    "ParserError",
    "ProcessError",
    "Profile",
    "Rollout",
    "TextError",
    "UsageError",
    "VerificationError",
    "__version__",
    "ablate",
    "analyze",
    "compare",
    "explain",
    "head_outputs",
    "model_configurations",
    "profile_heads",
    "rollout",
    "save_profile",
]

_LAZY = {
    "Ablation": "attnviz.ablation_saving",
    "Analysis": "attnviz.analysis",
    "Configuration": "attnviz.configurations",
    "Explanation": "attnviz.explain_saving",
    "HeadId": "attnviz.heads",
    "HeadOutputs": "attnviz.outputs_saving",
    "Profile": "attnviz.profile",
    "Rollout": "attnviz.rollout_saving",
    "ablate": "attnviz.ablation_saving",
    "analyze": "attnviz.analysis",
    "compare": "attnviz.comparison_saving",
    "explain": "attnviz.explain_saving",
    "head_outputs": "attnviz.outputs_saving",
    "model_configurations": "attnviz.model_listing",
    "profile_heads": "attnviz.profile",
    "rollout": "attnviz.rollout_saving",
    "save_profile": "attnviz.profile_saving",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'attnviz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
