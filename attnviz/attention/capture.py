"""One forward pass of the model with hooks: what went into every attention layer and what came out."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.errors import VerificationError
from attnviz.model.checkpoint import Checkpoint

__all__ = ["LayerRecord", "capture_layers", "eager_and_eval"]


@dataclass(frozen=True)
class LayerRecord:
    """What one attention layer of the model took and gave.

    Attributes:
        layer: counted from 0.
        attention_input: [batch, n, d_model]: what W_Q, W_K and W_V are applied to.
        pattern: [batch, n_heads, n, n]: the model's own.
        output: [batch, n, d_model]: the model's own, after W_O and b_O, before the residual.
    """

    layer: int
    attention_input: Tensor
    pattern: Tensor
    output: Tensor


def capture_layers(checkpoint: Checkpoint, inputs: dict[str, Tensor], visit: Callable[[LayerRecord], None]) -> None:
    """Run the model once and hand over each layer's record as soon as the layer has run.

    The model runs in eval mode with its eager attention, since sdpa and flash attention give no
    pattern; a model that was loaded otherwise gets its own settings back afterwards. Nothing is
    kept here: a record's pattern lives as long as ``visit`` keeps it.

    Args:
        checkpoint: the model.
        inputs: what its forward takes, on its device.
        visit: called once a layer, first layer first, during the forward pass.

    Raises:
        VerificationError: a layer gave no pattern, or ran more or less than once.
    """
    visited: list[int] = []

    def visit_next(record: LayerRecord) -> None:
        visited.append(record.layer)
        visit(record)

    with ExitStack() as stack:
        stack.enter_context(eager_and_eval(checkpoint.model))
        for layer, modules in enumerate(checkpoint.architecture.modules(checkpoint.model)):
            stack.enter_context(_hooked(layer, modules.pattern, modules.output, visit_next))
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.autocast(checkpoint.device.type, enabled=False))
        checkpoint.model(**inputs, use_cache=False)
    if visited != list(range(checkpoint.n_layers)):
        raise VerificationError(
            f"expected one attention pattern from each of {checkpoint.n_layers} layers, in order, "
            f"found them from layers {visited}; nothing can be verified against this model."
        )


@contextmanager
def _hooked(
    layer: int, pattern_module: nn.Module, output_module: nn.Module, visit: Callable[[LayerRecord], None]
) -> Iterator[None]:
    seen: dict[str, Tensor] = {}

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen["input"] = args[0] if args else kwargs["hidden_states"]

    def after_pattern(_: nn.Module, __: Any, result: Any) -> None:
        if not isinstance(result[1], Tensor):
            raise VerificationError(
                f"layer {layer} of the model returned no attention pattern, although it was set to eager attention; "
                "expected a tensor of attention weights to compare with."
            )
        seen["pattern"] = result[1]

    def after_output(_: nn.Module, __: Any, result: Any) -> None:
        output = result[0] if isinstance(result, tuple) else result
        visit(LayerRecord(layer, seen.pop("input"), seen.pop("pattern"), output))

    handles = [
        pattern_module.register_forward_pre_hook(before, with_kwargs=True),
        pattern_module.register_forward_hook(after_pattern),
        output_module.register_forward_hook(after_output),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def eager_and_eval(model: Any) -> Iterator[None]:
    """Eager attention and no dropout, for the time of one pass."""
    implementation = model.config._attn_implementation
    training = [module for module in model.modules() if module.training]
    if implementation != "eager":
        model.set_attn_implementation("eager")
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
        if implementation != "eager":
            model.set_attn_implementation(implementation)
