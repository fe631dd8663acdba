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
    from attnviz.analysis import Analysis, analyze
    from attnviz.comparison_saving import compare
    from attnviz.heads import HeadId
    from attnviz.profile import Profile, profile_heads
    from attnviz.profile_saving import save_profile

__version__ = "0.1.0"

__all__ = [
    "Analysis",
    "ArchitectureError",
    "AttnvizError",
    "CheckpointError",
    "CorpusError",
    "DeviceError",
    "HeadId",
    "OutputError",
    "ParserError",
    "ProcessError",
    "Profile",
    "TextError",
    "UsageError",
    "VerificationError",
    "__version__",
    "analyze",
    "compare",
    "profile_heads",
    "save_profile",
]

_LAZY = {
    "Analysis": "attnviz.analysis",
    "HeadId": "attnviz.heads",
    "Profile": "attnviz.profile",
    "analyze": "attnviz.analysis",
    "compare": "attnviz.comparison_saving",
    "profile_heads": "attnviz.profile",
    "save_profile": "attnviz.profile_saving",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'attnviz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
