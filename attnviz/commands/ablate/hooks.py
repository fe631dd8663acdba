"""Taking heads out of a running model, by hooks on transformers' own modules.

What a head writes is decided where the heads' weighted values stand side by side, just before W_O: the head's slice of
d_head columns is replaced there, and everything after it is the model's own. b_O belongs to no head and stays.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnviz.attention import reference as attention
from attnviz.commands.ablate.resumed_forward import attention_input, pre_hook
from attnviz.errors import VerificationError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId

__all__ = ["METHODS", "Replacement", "gated_heads", "removed_heads"]

METHODS = ("zero", "mean", "uniform")
"""A removed head gives zeros; its mean over all tokens of the texts; or the mean of the values that it may see."""


@dataclass(frozen=True)
class Replacement:
    """What stands in the place of a removed head's weighted values.

    Attributes:
        method: one of :data:`METHODS`. ``zero``: nothing, so that the layer gives what the other heads and b_O give
            (Michel et al. 2019). ``mean``: the head's mean weighted value, the same for every token. ``uniform``: what
            the head would give with a pattern that is uniform over the allowed keys (Kovaleva et al. 2019).
        means: for ``mean``, [n_layers, n_heads, d_head]; else None.
    """

    method: str
    means: Tensor | None = None


@contextmanager
def removed_heads(
    checkpoint: Checkpoint, variants: Sequence[Collection[HeadId]], replacement: Replacement, attention_mask: Tensor
) -> Iterator[None]:
    """Inside the block, each copy of a batch lacks other heads.

    Args:
        checkpoint: the model.
        variants: for each copy of the batch, the heads that it lacks.
        replacement: what stands in their place.
        attention_mask: [rows, n] of one copy, 1 for a token and 0 for padding; the model must run on the stacked
            copies, [n_variants * rows, n].

    Raises:
        VerificationError: a layer with a removed head did not run exactly once, so the output is not that of the
            model without the head.
    """
    missing = torch.zeros(len(variants), checkpoint.n_layers, checkpoint.n_heads, dtype=torch.bool)
    for variant, heads in enumerate(variants):
        for layer, head in heads:
            missing[variant, layer, head] = True
    layers = missing.any(0).any(1).nonzero().flatten().tolist()
    missing = missing.to(checkpoint.device)
    modules = checkpoint.architecture.modules(checkpoint.model)
    runs = dict.fromkeys(layers, 0)
    attention_inputs: dict[int, Tensor] = {}

    def remember(layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        attention_inputs[layer] = attention_input(args, kwargs)

    def replace(layer: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        runs[layer] += 1
        values: Tensor = args[0]
        copies = values.reshape(len(variants), -1, values.shape[1], checkpoint.n_heads, checkpoint.d_head)
        instead = torch.zeros((), dtype=values.dtype, device=values.device)
        if replacement.means is not None:
            instead = replacement.means[layer].to(values)
        elif replacement.method == "uniform":
            instead = _uniform_values(checkpoint, layer, attention_inputs.pop(layer), attention_mask)
            instead = instead.reshape(copies.shape)
        replaced = torch.where(missing[:, layer, None, None, :, None], instead, copies)
        return (replaced.reshape(values.shape), *args[1:]), kwargs

    with ExitStack() as stack:
        for layer in layers:
            if replacement.method == "uniform":
                stack.enter_context(pre_hook(modules[layer].pattern, partial(remember, layer)))
            stack.enter_context(pre_hook(modules[layer].concatenated, partial(replace, layer)))
        yield
    if wrong := {layer: count for layer, count in runs.items() if count != 1}:
        raise VerificationError(
            f"expected every layer that lacks a head to run once, found {wrong} (runs by layer); "
            "what the model does without its heads cannot be measured."
        )


@contextmanager
def gated_heads(checkpoint: Checkpoint, layer: int, gates: Tensor) -> Iterator[None]:
    """Inside the block, the heads of a layer are multiplied by gates, [rows, n_heads]."""

    def multiply(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        heads = args[0].unflatten(-1, (checkpoint.n_heads, checkpoint.d_head))
        return ((heads * gates[:, None, :, None]).flatten(-2), *args[1:]), kwargs

    with pre_hook(checkpoint.architecture.modules(checkpoint.model)[layer].concatenated, multiply):
        yield


def _uniform_values(checkpoint: Checkpoint, layer: int, x: Tensor, attention_mask: Tensor) -> Tensor:
    """What every head would give with uniform attention, [copies * rows, n, n_heads, d_head]."""
    parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
    allowed = attention.allowed_positions(attention_mask, parameters.causal).to(x.dtype)
    pattern = allowed / allowed.sum(-1, keepdim=True)  # [rows, 1, n, n]
    value = attention.project(x, parameters.value)
    copies = value.reshape(-1, len(attention_mask), *value.shape[1:])
    return torch.matmul(pattern, copies).flatten(0, 1).transpose(1, 2)
