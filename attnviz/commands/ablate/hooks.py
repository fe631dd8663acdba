"""Run a model once, then resume it at the layer at which heads are taken out: all layers below keep their results.

What a head writes is decided where the heads' weighted values stand side by side, just before W_O: the head's slice of
d_head columns is replaced there, and everything after it is the model's own. b_O belongs to no head and stays.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnviz.attention import reference as attention
from attnviz.attention.capture import eager_and_eval
from attnviz.errors import VerificationError
from attnviz.model.architectures import LayerModules
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId

__all__ = [
    "METHODS", "KeptPass", "Replacement", "gated_heads", "removed_heads", "resume", "run_and_keep", "run_block",
    "running",
]  # fmt: skip

METHODS = ("zero", "mean", "uniform")


@dataclass(frozen=True)
class Replacement:
    """What stands in the place of a removed head's weighted values, by one of :data:`METHODS`.

    ``zero``: nothing, so that the layer gives what the other heads and b_O give (Michel et al. 2019). ``mean``: the
    head's mean weighted value, the same for every token, of ``means`` [n_layers, n_heads, d_head]. ``uniform``: what
    the head would give with a pattern that is uniform over the allowed keys (Kovaleva et al. 2019).
    """

    method: str
    means: Tensor | None = None


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and named, of a module."""


@dataclass(frozen=True)
class KeptPass:
    """One pass of the model as it is, with what its layers were given."""

    calls: list[_Arguments]  # of each layer; the first argument is the residual stream, [rows, n, d_model]
    attention_inputs: list[Tensor]  # of each layer what W_Q, W_K and W_V are applied to; empty unless asked for
    concatenated: list[Tensor]  # of each layer the weighted values of all heads, [rows, n, n_heads * d_head]
    final: Tensor  # the last hidden state, after GPT-2's final norm, [rows, n, d_model]


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


def _pre_hook(module: nn.Module, hook: Callable[..., Any]) -> RemovableHandle:
    """Until the handle's block ends, call the hook with a module's arguments before it runs; it may return others."""
    return module.register_forward_pre_hook(lambda _, *given: hook(*given), with_kwargs=True)


def _attention_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """What W_Q, W_K and W_V are applied to, from the arguments of an attention module."""
    states: Tensor = args[0] if args else kwargs["hidden_states"]
    return states


def run_and_keep(checkpoint: Checkpoint, inputs: dict[str, Tensor], *, inside: bool = False) -> KeptPass:
    """Run the model once inside :func:`running`, and keep every layer's input, on request also that of attention."""
    calls, attention_calls, concatenated = list[_Arguments](), list[_Arguments](), list[Tensor]()
    with ExitStack() as stack:
        for modules in checkpoint.architecture.modules(checkpoint.model):
            stack.enter_context(_pre_hook(modules.block, lambda *given: calls.append(given)))
            stack.enter_context(_pre_hook(modules.concatenated, lambda args, _: concatenated.append(args[0])))
            if inside:
                stack.enter_context(_pre_hook(modules.pattern, lambda *given: attention_calls.append(given)))
        final = checkpoint.model(**inputs, use_cache=False)[0]  # a tuple, or what can be read as one
    return KeptPass(
        calls=calls,
        attention_inputs=[_attention_input(*given) for given in attention_calls],
        concatenated=concatenated,
        final=final,
    )


def resume(checkpoint: Checkpoint, kept: KeptPass, layer: int, copies: int = 1) -> Tensor:
    """Run the model from W_O of a layer on, on stacked copies of a batch: final states [copies * rows, n, d_model].

    All before W_O is taken from the kept pass, with the layer's residual stream and mask. Hooks can change the input of
    W_O and all that follows.
    """
    layers = checkpoint.architecture.modules(checkpoint.model)
    hidden = kept.calls[layer][0][0].repeat(copies, 1, 1)
    with _attention_known(layers[layer], kept.concatenated[layer].repeat(copies, 1, 1)):
        hidden = run_block(layers[layer].block, kept, layer, hidden, copies)
    for later in range(layer + 1, len(layers)):
        hidden = run_block(layers[later].block, kept, later, hidden, copies)
    norm = checkpoint.architecture.final_norm(checkpoint.model)
    final: Tensor = hidden if norm is None else norm(hidden)
    return final


@contextmanager
def _attention_known(layer: LayerModules, values: Tensor) -> Iterator[None]:
    """Inside the block, a layer's attention takes these weighted values instead of computing them for every copy."""
    module: Any = layer.pattern
    before = vars(module).get("forward")
    module.forward = lambda *_, **__: (layer.concatenated(values) if layer.output is module else values, None)
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def run_block(block: nn.Module, kept: KeptPass, layer: int, hidden: Tensor, copies: int = 1) -> Tensor:
    """Run one layer, with its mask and other arguments in a kept pass, on copies: [copies * rows, n, d_model]."""
    args, kwargs = kept.calls[layer]
    rows = len(args[0])

    def repeated(value: Any) -> Any:
        if copies == 1 or rows == 1 or not isinstance(value, Tensor) or value.shape[:1] != (rows,):
            return value  # one row is broadcast
        return value.repeat(copies, *[1] * (value.ndim - 1))

    result = block(hidden, *map(repeated, args[1:]), **{name: repeated(value) for name, value in kwargs.items()})
    after: Tensor = result[0] if isinstance(result, tuple) else result
    return after


@contextmanager
def removed_heads(
    checkpoint: Checkpoint, variants: Sequence[Collection[HeadId]], replacement: Replacement, attention_mask: Tensor
) -> Iterator[None]:
    """Inside the block, each copy of a batch lacks the heads of one variant.

    ``attention_mask``: [rows, n] of one copy, 1 for a token and 0 for padding; the model must run on the stacked
    copies, [n_variants * rows, n].

    Raises:
        VerificationError: a layer with a removed head did not run exactly once, so the output is not that of the
            model without the head.
    """
    layers = sorted({head.layer for heads in variants for head in heads})
    missing = torch.zeros(len(variants), checkpoint.n_layers, checkpoint.n_heads, dtype=torch.bool)
    for variant, heads in enumerate(variants):
        for head in heads:
            missing[variant][head] = True
    missing = missing.to(checkpoint.device)
    modules = checkpoint.architecture.modules(checkpoint.model)
    runs = dict.fromkeys(layers, 0)
    attention_inputs: dict[int, Tensor] = {}

    def remember(layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        attention_inputs[layer] = _attention_input(args, kwargs)

    def replace(layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
        runs[layer] += 1
        values: Tensor = args[0]
        copies = values.reshape(len(variants), -1, values.shape[1], checkpoint.n_heads, checkpoint.d_head)
        instead = torch.zeros((), dtype=values.dtype, device=values.device)
        if replacement.means is not None:
            instead = replacement.means[layer].to(values)
        elif replacement.method == "uniform":
            uniform = _uniform_values(checkpoint, layer, attention_inputs.pop(layer), attention_mask)
            instead = uniform.reshape(copies.shape)
        replaced = torch.where(missing[:, layer, None, None, :, None], instead, copies)
        return (replaced.reshape(values.shape).contiguous(), *args[1:]), kwargs

    with ExitStack() as stack:
        for layer in layers:
            if replacement.method == "uniform":
                stack.enter_context(_pre_hook(modules[layer].pattern, partial(remember, layer)))
            stack.enter_context(_pre_hook(modules[layer].concatenated, partial(replace, layer)))
        yield
    if wrong := {layer: count for layer, count in runs.items() if count != 1}:
        raise VerificationError(
            f"expected every layer with a removed head to run once, found {wrong} (runs by layer); "
            "the model without these heads cannot be measured."
        )


def gated_heads(checkpoint: Checkpoint, layer: int, gates: Tensor) -> RemovableHandle:
    """Until the handle's block ends, the heads of a layer are multiplied by gates, [rows, n_heads]."""

    def multiply(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
        heads = args[0].unflatten(-1, (checkpoint.n_heads, checkpoint.d_head))
        return ((heads * gates[:, None, :, None]).flatten(-2), *args[1:]), kwargs

    return _pre_hook(checkpoint.architecture.modules(checkpoint.model)[layer].concatenated, multiply)


def _uniform_values(checkpoint: Checkpoint, layer: int, x: Tensor, attention_mask: Tensor) -> Tensor:
    """What every head would give with uniform attention, [copies * rows, n, n_heads, d_head]."""
    parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
    allowed = attention.allowed_positions(attention_mask, parameters.causal, parameters.window).to(x.dtype)
    pattern = allowed / allowed.sum(-1, keepdim=True).clamp_min(1)  # [rows, 1, n, n]; padding may have none
    value = attention.values(x, parameters)
    copies = value.reshape(-1, len(attention_mask), *value.shape[1:])
    return torch.matmul(pattern, copies).flatten(0, 1).transpose(1, 2)
