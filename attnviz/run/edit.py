"""Run a model once, then resume it at the layer of removed heads; all layers below keep their results.

What a head writes is decided where the heads' weighted values stand side by side, just before W_O: the head's slice of
d_head columns is replaced there, and everything after it is the model's own. b_O belongs to no head and stays.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.reference import attention
from attnviz.run.record import in_blocks
from attnviz.run.sites import at_site, sites_of, taps


@dataclass(frozen=True)
class Replacement:
    """Replaces a removed head's weighted values, by one of :data:`attnviz.options.METHODS` or ``patch``.

    ``zero``: nothing, so that the layer gives what the other heads and b_O give (Michel et al. 2019). ``mean``: the
    head's mean weighted value, the same for every token, of ``means``. ``uniform``: what the head
    would give with a pattern that is uniform over the allowed keys (Kovaleva et al. 2019). ``patch``: what it gives in
    another pass over as many rows and tokens, ``values``.
    """

    method: str
    means: Sequence[Tensor] | None = None  # a layer each, [n_heads, d_head]
    values: Mapping[int, Tensor] | None = None  # by layer, [rows, n, n_heads * d_head]
    positions: Tensor | None = None  # where it is replaced, [rows, n]; None for all tokens


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword arguments of a module


@dataclass(frozen=True)
class KeptPass:
    """An unchanged pass of the model, with the inputs of its layers."""

    calls: dict[int, _Arguments]  # by layer; the first argument is the residual stream, [rows, n, d_model]
    attention_inputs: dict[int, Tensor]  # by layer the input of W_K and W_V; empty unless requested
    o_proj: dict[int, Tensor]  # by layer the weighted values of all heads, [rows, n, n_heads * d_head]
    final: Tensor  # the last hidden state, after GPT-2's final norm, [rows, n, d_model]
    inputs: dict[str, Tensor]  # the model's inputs
    encoded: Tensor | None = None  # of an encoder-decoder its encoder's output, [rows, n, d_model]


@contextmanager
def running(checkpoint: Checkpoint) -> Iterator[None]:
    """Eager attention in blocks of rows, no dropout, no gradients and no autocast inside the block.

    Not ``torch.inference_mode``, whose tensors no gradient can be taken through later on.
    """
    heads = checkpoint.language_head, checkpoint.whole
    autocast = torch.autocast(checkpoint.device.type, enabled=False)
    training = [module for head in heads if head is not None for module in head.modules() if module.training]
    with ExitStack() as stack, in_blocks(checkpoint), torch.no_grad(), autocast:
        for module in training:
            module.training = False
            stack.callback(setattr, module, "training", True)
        yield


def run_model(checkpoint: Checkpoint, inputs: dict[str, Any]) -> Tensor:
    """Run the model: its last hidden states, [rows, n, d_model], of an encoder-decoder those of its decoder."""
    if not checkpoint.stacks:
        final: Tensor = checkpoint.model(**inputs, use_cache=False)[0]  # a tuple, or what can be read as one
        return final
    decoder: Any = checkpoint.model.decoder  # T5's whole model gives logits
    decoded: list[Tensor] = []
    with at_site(decoder, "output", decoded.append):
        checkpoint.model(**inputs, use_cache=False)
    return decoded[0]


def run_and_keep(checkpoint: Checkpoint, inputs: dict[str, Tensor], *, inside: bool = False) -> KeptPass:
    """Run the model once inside :func:`running`, and keep every layer's input, optionally also that of attention."""
    kept: dict[str, dict[int, Any]] = {"arguments": {}, "source": {}, "concatenated": {}}
    names = [name for name in kept if inside or name != "source"]
    encoded: list[Tensor] = []

    def keep(site: tuple[int, str], value: Any) -> None:
        layer, name = site
        kept[name][layer] = value

    with ExitStack() as stack:
        stack.enter_context(taps(sites_of(checkpoint, names), keep))
        if checkpoint.stacks:
            encoder: Any = checkpoint.model.encoder
            stack.enter_context(at_site(encoder, "output", encoded.append))
        final = run_model(checkpoint, inputs)
    return KeptPass(
        calls=kept["arguments"],
        attention_inputs=kept["source"],
        o_proj=kept["concatenated"],
        final=final,
        inputs=inputs,
        encoded=encoded[0] if encoded else None,
    )


def resume(checkpoint: Checkpoint, kept: KeptPass, layer: int, copies: int = 1) -> Tensor:
    """Run the model from W_O of a layer on, on stacked copies of a batch: final states [copies * rows, n, d_model].

    All before W_O is taken from the kept pass. Hooks can change the input of W_O and all that follows. A model that is
    not resumable runs again from the beginning, a decoder from its encoder's output on.
    """
    if not checkpoint.architecture.resumable:
        inputs: dict[str, Any] = {name: _repeated(value, copies) for name, value in kept.inputs.items()}
        if kept.encoded is not None and layer >= checkpoint.stacks[1].first:  # nothing in the encoder changes
            del inputs["input_ids"]
            inputs["encoder_outputs"] = (_repeated(kept.encoded, copies),)
        return run_model(checkpoint, inputs)
    layers = checkpoint.modules
    hidden = _repeated(kept.calls[layer][0][0], copies)
    with attention_known(checkpoint, layer, _repeated(kept.o_proj[layer], copies)):
        hidden = run_block(layers[layer].block, kept, layer, hidden, copies)
    every = checkpoint.every_layer
    for later in every[every.index(layer) + 1 :]:
        hidden = run_block(layers[later].block, kept, later, hidden, copies)
    return checkpoint.architecture.final_states(checkpoint.model, hidden)


def _repeated(tensor: Tensor, copies: int) -> Tensor:
    return tensor.repeat(copies, *[1] * (tensor.ndim - 1))


@contextmanager
def attention_known(checkpoint: Checkpoint, layer: int, values: Tensor) -> Iterator[None]:
    """Inside the block, a layer's attention uses these weighted values instead of computing them for every copy."""
    modules = checkpoint.modules[layer]

    def attended(*given: Tensor, **_: Any) -> tuple[Tensor, None]:
        if checkpoint.architecture.attention_adds_residual:
            return given[1] + modules.o_proj(values), None
        return modules.o_proj(values) if modules.output is modules.attention else values, None

    with answering(modules.attention, attended):
        yield


@contextmanager
def answering(module: Any, answer: Callable[..., Any]) -> Iterator[None]:
    """Inside the block, a module gives what ``answer`` does of its arguments."""
    before = vars(module).get("forward")
    module.forward = answer
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
        return _repeated(value, copies)

    result = block(hidden, *map(repeated, args[1:]), **{name: repeated(value) for name, value in kwargs.items()})
    after: Tensor = result[0] if isinstance(result, tuple) else result
    return after


@contextmanager
def removed_heads(
    checkpoint: Checkpoint,
    variants: Sequence[Collection[HeadId]],
    replacement: Replacement,
    attention_mask: Tensor,
    decoder_mask: Tensor | None = None,
) -> Iterator[None]:
    """Remove the heads of one variant from each copy of a batch, inside the block.

    ``attention_mask``: [rows, n] of one copy, 1 for a token and 0 for padding; the model must run on the stacked
    copies, [n_variants * rows, n]. ``decoder_mask``: likewise of what a decoder reads. VerificationError: a layer with
    a removed head did not run exactly once, so the output is not that of the model without the head.
    """
    runs = dict.fromkeys(sorted({int(head.layer) for heads in variants for head in heads}), 0)
    attention_inputs: dict[int, Tensor] = {}

    def replace(site: tuple[int, str], values: Tensor) -> Tensor | None:
        layer, name = site
        if name == "source":
            attention_inputs[layer] = values
            return None
        runs[layer] += 1
        n_heads = checkpoint.n_heads_of(layer)
        missing = [[HeadId(layer, head) in heads for head in range(n_heads)] for heads in variants]
        copies = values.reshape(len(variants), -1, values.shape[1], n_heads, values.shape[2] // n_heads)
        instead = torch.zeros((), dtype=values.dtype, device=values.device)
        if replacement.values is not None:
            instead = replacement.values[layer].reshape(copies.shape[1:])
        elif replacement.means is not None:
            instead = replacement.means[layer].to(values)
        elif replacement.method == "uniform":
            in_decoder = checkpoint.stacks and layer in checkpoint.stacks[1].layers
            mask = decoder_mask if in_decoder and decoder_mask is not None else attention_mask
            uniform = _uniform_values(checkpoint, layer, attention_inputs.pop(layer), mask)
            instead = uniform.reshape(*copies.shape[:2], -1, *copies.shape[3:])  # of cross-attention for all queries
        where = torch.tensor(missing, device=values.device)[:, None, None, :, None]
        if replacement.positions is not None:
            where = where & replacement.positions.to(values.device)[:, :, None, None]
        replaced = torch.where(where, instead, copies)
        return replaced.reshape(values.shape).contiguous()

    names = ("concatenated", "source") if replacement.method == "uniform" else ("concatenated",)
    with taps(sites_of(checkpoint, names, runs), replace):
        yield
    wrong = {layer: count for layer, count in runs.items() if count != 1}
    if wrong:
        raise VerificationError(
            f"expected every layer with a removed head to run once, found {wrong} (runs by layer); "
            "the model without these heads cannot be measured."
        )


@contextmanager
def gated_heads(checkpoint: Checkpoint, gates: Mapping[int, Tensor]) -> Iterator[None]:
    """Multiply the heads of some layers by gates, each [rows, n_heads], inside the block."""

    def multiply(site: tuple[int, str], values: Tensor) -> Tensor:
        gate = gates[site[0]]
        heads = values.reshape(*values.shape[:2], gate.shape[1], -1)
        return (heads * gate[:, None, :, None]).flatten(-2)

    with taps(sites_of(checkpoint, ("concatenated",), gates), multiply):
        yield


def _uniform_values(checkpoint: Checkpoint, layer: int, x: Tensor, attention_mask: Tensor) -> Tensor:
    """Weighted values of every head under uniform attention, [copies * rows, n, n_heads, d_head]."""
    parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
    allowed = attention.allowed_positions(attention_mask, parameters.causal, parameters.window)
    if checkpoint.stacks and layer >= checkpoint.stacks[2].first:
        allowed = allowed[:, :, :1]  # every query of the target sees the whole source
    pattern = attention.uniform_pattern(allowed).to(x)  # [rows, 1, n, n]
    value = attention.values(x, parameters)
    copies = value.reshape(-1, len(attention_mask), *value.shape[1:])
    return attention.gated(torch.matmul(pattern, copies).flatten(0, 1), x, parameters).transpose(1, 2)
