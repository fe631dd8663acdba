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
from attnviz.version import __version__

if TYPE_CHECKING:
    from attnviz import figures
    from attnviz.commands.ablate.measure import Ablation, ablate
    from attnviz.commands.compare.corpus.measure import CorpusComparison, compare_corpus
    from attnviz.commands.compare.measure import Comparison, compare
    from attnviz.commands.explain.measure import Explanation, explain
    from attnviz.commands.heads.analysis import Analysis
    from attnviz.commands.heads.measure import analyze
    from attnviz.commands.heads.texts.measure import TextsAnalysis, analyze_each
    from attnviz.commands.models.configurations import Configuration
    from attnviz.commands.models.measure import model_configurations
    from attnviz.commands.outputs.measure import HeadOutputs, head_outputs
    from attnviz.commands.profile.measure import Profile, profile_heads
    from attnviz.commands.rollout.measure import Rollout, rollout
    from attnviz.model.head_ids import HeadId

__all__ = [
    "Ablation",
    "Analysis",
    "ArchitectureError",
    "AttnvizError",
    "CheckpointError",
    "Comparison",
    "Configuration",
    "CorpusComparison",
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
    "TextsAnalysis",
    "UsageError",
    "VerificationError",
    "__version__",
    "ablate",
    "analyze",
    "analyze_each",
    "compare",
    "compare_corpus",
    "explain",
    "figures",
    "head_outputs",
    "model_configurations",
    "profile_heads",
    "rollout",
]

_MODULES = {
    "Ablation": "attnviz.commands.ablate.measure",
    "Analysis": "attnviz.commands.heads.analysis",
    "Comparison": "attnviz.commands.compare.measure",
    "Configuration": "attnviz.commands.models.configurations",
    "Explanation": "attnviz.commands.explain.measure",
    "CorpusComparison": "attnviz.commands.compare.corpus.measure",
    "HeadId": "attnviz.model.head_ids",
    "HeadOutputs": "attnviz.commands.outputs.measure",
    "Profile": "attnviz.commands.profile.measure",
    "Rollout": "attnviz.commands.rollout.measure",
    "TextsAnalysis": "attnviz.commands.heads.texts.measure",
    "ablate": "attnviz.commands.ablate.measure",
    "analyze": "attnviz.commands.heads.measure",
    "analyze_each": "attnviz.commands.heads.texts.measure",
    "compare": "attnviz.commands.compare.measure",
    "compare_corpus": "attnviz.commands.compare.corpus.measure",
    "explain": "attnviz.commands.explain.measure",
    "figures": "attnviz.figures",
    "head_outputs": "attnviz.commands.outputs.measure",
    "model_configurations": "attnviz.commands.models.measure",
    "profile_heads": "attnviz.commands.profile.measure",
    "rollout": "attnviz.commands.rollout.measure",
}


if not TYPE_CHECKING:  # a checker of types shall see a wrong name as one
    __getattr__ = lazily(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
