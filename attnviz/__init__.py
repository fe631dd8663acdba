"""attnviz: what the attention heads of a pretrained BERT or GPT-2 do, recomputed and verified.

    >>> import attnviz
    >>> analysis = attnviz.analyze("The cat that I saw ran away", model="minilm")  # doctest: +SKIP
    >>> analysis.head("L2H8").label  # doctest: +SKIP

Importing the package is cheap; torch, transformers and matplotlib are imported when first needed.
"""

from typing import TYPE_CHECKING

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
from attnviz.lazy import lazily

if TYPE_CHECKING:
    from attnviz import comparison, figures
    from attnviz.ablation.saving import Ablation, ablate
    from attnviz.analysis import Analysis, analyze
    from attnviz.comparison.saving import Comparison, compare
    from attnviz.explanation.saving import Explanation, explain
    from attnviz.heads import HeadId
    from attnviz.models.configurations import Configuration
    from attnviz.models.listing import model_configurations
    from attnviz.outputs.saving import HeadOutputs, head_outputs
    from attnviz.profile.profiling import Profile, profile_heads
    from attnviz.profile.saving import save_profile
    from attnviz.rollouts.saving import Rollout, rollout

__version__ = "0.1.0"

__all__ = [
    "Ablation",
    "Analysis",
    "ArchitectureError",
    "AttnvizError",
    "CheckpointError",
    "Comparison",
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
    "comparison",
    "explain",
    "figures",
    "head_outputs",
    "model_configurations",
    "profile_heads",
    "rollout",
    "save_profile",
]

_MODULES = {
    "Ablation": "attnviz.ablation.saving",
    "Analysis": "attnviz.analysis",
    "Comparison": "attnviz.comparison.saving",
    "Configuration": "attnviz.models.configurations",
    "Explanation": "attnviz.explanation.saving",
    "HeadId": "attnviz.heads",
    "HeadOutputs": "attnviz.outputs.saving",
    "Profile": "attnviz.profile.profiling",
    "Rollout": "attnviz.rollouts.saving",
    "ablate": "attnviz.ablation.saving",
    "analyze": "attnviz.analysis",
    "compare": "attnviz.comparison.saving",
    "comparison": "attnviz.comparison",
    "explain": "attnviz.explanation.saving",
    "figures": "attnviz.figures",
    "head_outputs": "attnviz.outputs.saving",
    "model_configurations": "attnviz.models.listing",
    "profile_heads": "attnviz.profile.profiling",
    "rollout": "attnviz.rollouts.saving",
    "save_profile": "attnviz.profile.saving",
}


if not TYPE_CHECKING:  # a checker of types shall see a wrong name as one
    __getattr__ = lazily(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
