"""attnviz: what the attention heads of pretrained transformers do, recomputed and verified.

    >>> import attnviz
    >>> analysis = attnviz.analyze("The cat that I saw ran away", model="minilm")  # doctest: +SKIP
    >>> analysis.head("L2H8").label  # doctest: +SKIP

Importing the package is cheap; torch, transformers and matplotlib are imported when first needed.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from attnviz import errors

if TYPE_CHECKING:  # a checker of types shall see a wrong name as one
    from attnviz import figures as figures
    from attnviz.analysis.result import Analysis as Analysis
    from attnviz.commands.ablate import Ablation as Ablation
    from attnviz.commands.ablate import ablate as ablate
    from attnviz.commands.card import Card as Card
    from attnviz.commands.card import Cards as Cards
    from attnviz.commands.card import card as card
    from attnviz.commands.card import cards as cards
    from attnviz.commands.check import Check as Check
    from attnviz.commands.check import check as check
    from attnviz.commands.circuits import Circuits as Circuits
    from attnviz.commands.circuits import circuits as circuits
    from attnviz.commands.compare import Comparison as Comparison
    from attnviz.commands.compare import compare as compare
    from attnviz.commands.compare_corpus import CorpusComparison as CorpusComparison
    from attnviz.commands.compare_corpus import compare_corpus as compare_corpus
    from attnviz.commands.compare_roles import RoleComparison as RoleComparison
    from attnviz.commands.explain import Explanation as Explanation
    from attnviz.commands.explain import explain as explain
    from attnviz.commands.heads.given import RawAttention as RawAttention
    from attnviz.commands.heads.given import draw as draw
    from attnviz.commands.heads.measure import analyze as analyze
    from attnviz.commands.heads.texts import TextsAnalysis as TextsAnalysis
    from attnviz.commands.heads.texts import analyze_each as analyze_each
    from attnviz.commands.models import Configuration as Configuration
    from attnviz.commands.models import model_configurations as model_configurations
    from attnviz.commands.outputs import HeadOutputs as HeadOutputs
    from attnviz.commands.outputs import head_outputs as head_outputs
    from attnviz.commands.patch import Patching as Patching
    from attnviz.commands.patch import patch as patch
    from attnviz.commands.profile.measure import Profile as Profile
    from attnviz.commands.profile.measure import profile_heads as profile_heads
    from attnviz.commands.rollout import Rollout as Rollout
    from attnviz.commands.rollout import rollout as rollout
    from attnviz.commands.why import Account as Account
    from attnviz.commands.why import why as why
    from attnviz.errors import ArchitectureError as ArchitectureError
    from attnviz.errors import AttnvizError as AttnvizError
    from attnviz.errors import CheckpointError as CheckpointError
    from attnviz.errors import CorpusError as CorpusError
    from attnviz.errors import DeviceError as DeviceError
    from attnviz.errors import OutOfMemoryError as OutOfMemoryError
    from attnviz.errors import OutputError as OutputError
    from attnviz.errors import ParserError as ParserError
    from attnviz.errors import ProcessError as ProcessError
    from attnviz.errors import TextError as TextError
    from attnviz.errors import UsageError as UsageError
    from attnviz.errors import VerificationError as VerificationError
    from attnviz.models.head_ids import HeadId as HeadId
    from attnviz.present.report import register as register
    from attnviz.present.report import unregister as unregister
    from attnviz.version import __version__ as __version__
else:
    _NAMES = {
        "commands.ablate": ("Ablation", "ablate"),
        "commands.card": ("Card", "Cards", "card", "cards"),
        "commands.check": ("Check", "check"),
        "commands.circuits": ("Circuits", "circuits"),
        "commands.compare_corpus": ("CorpusComparison", "compare_corpus"),
        "commands.compare_roles": ("RoleComparison",),
        "commands.compare": ("Comparison", "compare"),
        "commands.explain": ("Explanation", "explain"),
        "analysis.result": ("Analysis",),
        "commands.heads.given": ("RawAttention", "draw"),
        "commands.heads.measure": ("analyze",),
        "commands.heads.texts": ("TextsAnalysis", "analyze_each"),
        "commands.models": ("Configuration", "model_configurations"),
        "commands.outputs": ("HeadOutputs", "head_outputs"),
        "commands.patch": ("Patching", "patch"),
        "commands.profile.measure": ("Profile", "profile_heads"),
        "commands.rollout": ("Rollout", "rollout"),
        "commands.why": ("Account", "why"),
        "errors": tuple(name for name, value in vars(errors).items() if isinstance(value, type)),
        "figures": ("figures",),
        "models.head_ids": ("HeadId",),
        "present.report": ("register", "unregister"),
        "version": ("__version__",),
    }
    _MODULES = {name: f"attnviz.{module}" for module, names in _NAMES.items() for name in names}
    __all__ = list(_MODULES)

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'attnviz' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        module = import_module(_MODULES[name])
        globals()[name] = value = getattr(module, name, module)
        return value

    def __dir__() -> list[str]:
        return sorted(_MODULES)
