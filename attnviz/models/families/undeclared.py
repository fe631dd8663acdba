"""Families without a declaration, read through transformers' attention interface.

Nearly all models of transformers pass queries, keys and a mask to one function, which users may replace. So their
patterns can be recomputed, but not the queries and keys themselves.
"""

import sys
from copy import deepcopy
from inspect import signature
from typing import Any, NoReturn

from torch import nn

from attnviz.errors import ArchitectureError
from attnviz.models.configs import empty_model
from attnviz.models.families.base import Architecture

EAGER = "eager_attention_forward"
"""Name of the eager attention function in each of transformers' modeling files."""

_HEADS = ("lm_head", "score", "classifier", "qa_outputs", "cls", "embed_out", "head", "predictions", "decoder")
_SETTINGS = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")


class Undeclared(Architecture):
    """A family of which the patterns alone are recomputed.

    Attributes:
        windows: attention window of each layer, in tokens on each visible side, with the query; None for no window.
    """

    optional_weights = ("pooler",)
    old_buffers = (".attention.bias", ".masked_bias", ".inv_freq", "position_ids")
    states_d_head = True
    float32_steps = True
    explained = False

    def __init__(self, config: Any, model: nn.Module, causal: bool) -> None:
        """Called by :func:`undeclared` alone, after its checks; the model may be empty."""
        children = {child for child, _ in model.named_children()}
        takes: Any = type(model).forward
        self.name = str(config.model_type)
        self.class_prefix = type(model).__name__.removesuffix("Model")
        self.head_weights = tuple(head for head in _HEADS if head not in children)
        self.segments = "token_type_ids" in signature(takes).parameters and getattr(config, "type_vocab_size", 0) > 1
        self.causal = causal
        # transformers counts the query in windows of causal models alone
        self.windows = tuple(None if size is None else size + (not causal) for size in _windows(config))

    def base_model(self, model: nn.Module) -> nn.Module:
        """The bare model, by transformers' own name for it.

        Raises:
            ArchitectureError: not a class of transformers.
        """
        base = super().base_model(model)
        expected, kind = f"{self.class_prefix}Model", type(base)
        if kind.__name__ != expected or not kind.__module__.startswith("transformers."):
            raise ArchitectureError(f"expected transformers' own {expected}, found {kind.__module__}.{kind.__name__}.")
        return base

    def language_head(self, model: nn.Module) -> nn.Module | None:  # noqa: ARG002 - not known
        """None: not known."""
        return None

    def _unknown(self, *_: Any, **__: Any) -> NoReturn:
        """Raise ArchitectureError: not known."""
        raise ArchitectureError(
            f"of {self.name!r} attnviz recomputes the patterns alone (heads --any-family), not the other steps."
        )

    class_head = language_head
    modules = layer_modules = embeddings = parameters = _unknown


def undeclared(config: Any) -> Undeclared:
    """The architecture of an undeclared family, from its config and empty model.

    Raises:
        ArchitectureError: an encoder-decoder; no attention interface; learned sinks; attention that is partly causal;
            types of layers that are neither full nor windowed; a config without the usual settings.
        CheckpointError: transformers cannot build the model.
    """
    name = str(config.model_type)
    for setting in _SETTINGS:
        if not isinstance(value := getattr(config, setting, None), int):
            raise ArchitectureError(f"{name!r} has {setting}={value!r}; expected a whole number, of a text model.")
    if getattr(config, "is_encoder_decoder", False):
        raise ArchitectureError(
            f"{name!r} is an encoder-decoder that is not declared; --any-family takes no such model."
        )
    model = empty_model(deepcopy(config))  # which it sets to eager attention
    if "input_ids" not in signature(type(model).forward).parameters:
        raise ArchitectureError(f"{name!r} reads no text; expected a text model.")
    attentions = [module for module in model.modules() if isinstance(getattr(module, "is_causal", None), bool)]
    kinds = {bool(module.is_causal) for module in attentions}
    if not all(hasattr(sys.modules[type(module).__module__], EAGER) for module in attentions) or len(kinds) != 1:
        raise ArchitectureError(
            f"the attention of {name!r} does not go through transformers' attention interface as one kind, causal or "
            "not; --any-family recomputes nothing else."
        )
    if any(hasattr(module, "sinks") for module in attentions):
        raise ArchitectureError(
            f"{name!r} has learned sinks, with which the weights of a query do not sum to 1; --any-family does not "
            "recompute them."
        )
    return Undeclared(config, model, kinds.pop())


def _windows(config: Any) -> list[int | None]:
    """Windows by layer, from the config; a wrong guess shows when patterns are compared."""
    size = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    types = getattr(config, "layer_types", None)
    if types is None:
        return [size] * config.num_hidden_layers
    if other := sorted(set(types) - {"full_attention", "sliding_attention"}):
        raise ArchitectureError(
            f"{config.model_type!r} has layer_types={other[0]!r}, which --any-family does not recompute; expected "
            "full_attention or sliding_attention."
        )
    return [size if kind == "sliding_attention" else None for kind in types]
