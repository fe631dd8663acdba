"""What the rest of attnviz asks of an architecture."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from attnviz.attention import HeadParameters

__all__ = ["Architecture", "AttentionModules"]


@dataclass(frozen=True)
class AttentionModules:
    """The two modules of a layer from which the model's own attention is read.

    Attributes:
        pattern: its first argument is the attention's input [batch, n, d_model]; it returns a pair
            of which the second is the pattern [batch, n_heads, n, n] (with eager attention).
        output: it returns the attention's output after W_O and b_O [batch, n, d_model], alone or as
            the first of a pair, before the residual is added.
    """

    pattern: nn.Module
    output: nn.Module


class Architecture(Protocol):
    """One family of transformers models, as the reference attention needs to see it."""

    name: str
    """The ``model_type`` of transformers' config: ``bert``, ``gpt2``."""

    class_prefix: str
    """What the names of its model classes begin with: ``Bert``, ``GPT2``."""

    head_weights: tuple[str, ...]
    """First name of the weights that belong to a task's head, not to the model under it."""

    optional_weights: tuple[str, ...]
    """First name of the weights that no attention depends on, so that a checkpoint may lack them."""

    old_buffers: tuple[str, ...]
    """Endings of what earlier versions of transformers saved beside the weights: constant masks."""

    segments: bool
    """Whether it tells the two segments of a sentence pair apart by token type."""

    sink_first: bool
    """Whether position 0 counts as a sink even where no special token stands there."""

    causal: bool
    """Whether a query sees only itself and what precedes it."""

    def refuse(self, config: Any, dtype: torch.dtype) -> None:
        """Raise ArchitectureError where the config asks for what the reference does not reproduce."""

    def base_model(self, model: nn.Module) -> nn.Module:
        """The bare encoder or decoder inside a model with any head."""

    def modules(self, base_model: nn.Module) -> list[AttentionModules]:
        """Where to read each layer's own attention, first layer first."""

    def parameters(self, base_model: nn.Module, layer: int) -> HeadParameters:
        """The layer's parameters, split by head (views, not copies, where the layout permits)."""
