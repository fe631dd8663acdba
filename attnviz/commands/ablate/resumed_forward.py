"""Run a model once, then resume it at the layer that is changed: all layers below keep their results."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attention.capture import eager_and_eval
from attnviz.model.architectures import LayerModules
from attnviz.model.checkpoint import Checkpoint

__all__ = ["Hook", "KeptPass", "attention_input", "pre_hook", "resume", "run_and_keep", "run_block", "running"]

Hook = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Called with the positional and named arguments of a module, before it runs."""


@dataclass(frozen=True)
class KeptPass:
    """One pass of the model as it is, with what its layers were given.

    Attributes:
        inputs: what the model's forward took, [rows, n] each.
        calls: for each layer the positional and named arguments of the whole layer; the first one is the residual
            stream [rows, n, d_model].
        attention_inputs: for each layer, what W_Q, W_K and W_V are applied to, [rows, n, d_model]; empty where that was
            not asked for.
        concatenated: for each layer, the heads' weighted values side by side, [rows, n, n_heads * d_head].
        final: the last hidden state, after GPT-2's final norm, [rows, n, d_model].
    """

    inputs: dict[str, Tensor]
    calls: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]
    attention_inputs: tuple[Tensor, ...]
    concatenated: tuple[Tensor, ...]
    final: Tensor


@contextmanager
def running(checkpoint: Checkpoint) -> Iterator[None]:
    """Eager attention, no dropout, no gradients and no autocast, for as long as the block takes.

    Not ``torch.inference_mode``, whose tensors no gradient can be taken through later on.
    """
    with ExitStack() as stack:
        stack.enter_context(eager_and_eval(checkpoint.model))
        head = checkpoint.language_head
        if head is not None and head.training:
            head.eval()
            stack.callback(head.train)
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(checkpoint.device.type, enabled=False))
        yield


@contextmanager
def pre_hook(module: nn.Module, hook: Hook) -> Iterator[None]:
    """Inside the block, call the hook before each run of the module with its arguments; it may return others."""
    handle = module.register_forward_pre_hook(lambda _, *given: hook(*given), with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def attention_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """What W_Q, W_K and W_V are applied to, from the arguments of an attention module."""
    states: Tensor = args[0] if args else kwargs["hidden_states"]
    return states


def run_and_keep(checkpoint: Checkpoint, inputs: dict[str, Tensor], *, inside: bool = False) -> KeptPass:
    """Run the model once inside :func:`running`, and keep every layer's input, on request also that of attention."""
    calls: list[Any] = []
    attention_inputs: list[Tensor] = []
    concatenated: list[Tensor] = []
    with ExitStack() as stack:
        for modules in checkpoint.architecture.modules(checkpoint.model):
            stack.enter_context(pre_hook(modules.block, lambda *given: calls.append(given)))
            stack.enter_context(pre_hook(modules.concatenated, lambda args, _: concatenated.append(args[0])))
            if inside:
                keep: Hook = lambda *given: attention_inputs.append(attention_input(*given))  # noqa: E731
                stack.enter_context(pre_hook(modules.pattern, keep))
        final = checkpoint.model(**inputs, use_cache=False).last_hidden_state
    return KeptPass(inputs, tuple(calls), tuple(attention_inputs), tuple(concatenated), final)


def resume(checkpoint: Checkpoint, kept: KeptPass, layer: int, copies: int = 1) -> Tensor:
    """Run the model from W_O of a layer on, on several copies of the batch at once.

    All before W_O is taken from the kept pass, with the layer's residual stream and mask. Hooks can change the input of
    W_O and all that follows.

    Args:
        checkpoint: the model, with any hooks.
        kept: the pass to resume.
        layer: the first one to run.
        copies: of the batch, stacked.

    Returns:
        the last hidden state, [copies * rows, n, d_model].
    """
    repeated: dict[int, Any] = {}
    layers = checkpoint.architecture.modules(checkpoint.model)
    hidden = kept.calls[layer][0][0].repeat(copies, 1, 1)
    with _attention_known(layers[layer], kept.concatenated[layer].repeat(copies, 1, 1)):
        hidden = run_block(layers[layer].block, kept, layer, hidden, copies, repeated)
    for number in range(layer + 1, len(layers)):
        hidden = run_block(layers[number].block, kept, number, hidden, copies, repeated)
    norm = checkpoint.architecture.final_norm(checkpoint.model)
    final: Tensor = hidden if norm is None else norm(hidden)
    return final


@contextmanager
def _attention_known(layer: LayerModules, values: Tensor) -> Iterator[None]:
    """Inside the block, a layer's attention takes these weighted values instead of computing them for every copy."""
    module: Any = layer.pattern
    before = vars(module).get("forward")

    def forward(*_: Any, **__: Any) -> tuple[Tensor, None]:
        return (layer.concatenated(values) if layer.output is module else values), None

    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def run_block(
    block: nn.Module, kept: KeptPass, layer: int, hidden: Tensor, copies: int, repeated: dict[int, Any]
) -> Tensor:
    """Run one layer of a kept pass, with its mask and other arguments, on another residual stream.

    Args:
        block: the layer.
        kept: the pass whose arguments are used.
        layer: which layer it is.
        hidden: the residual stream, [copies * rows, n, d_model].
        copies: how often the rows of the pass are repeated.
        repeated: arguments that are repeated already, by identity; added to.
    """
    args, kwargs = kept.calls[layer]
    rows = len(args[0])

    def again(value: Any) -> Any:
        if copies == 1 or not isinstance(value, Tensor) or value.shape[:1] != (rows,) or rows == 1:
            return value  # one row is broadcast
        if id(value) not in repeated:
            repeated[id(value)] = value.repeat(copies, *[1] * (value.ndim - 1))
        return repeated[id(value)]

    given = {name: again(value) for name, value in kwargs.items()}
    result = block(hidden, *(again(value) for value in args[1:]), **given)
    after: Tensor = result[0] if isinstance(result, tuple) else result
    return after
