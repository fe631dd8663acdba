"""Everything that a running model shows of its layers: one forward pass, hooks on the modules of each layer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attention.capture import capture_layers
from attnviz.errors import VerificationError
from attnviz.model.checkpoint import Checkpoint

__all__ = ["Activations", "Probe", "capture_stages", "probes_of"]


@dataclass(frozen=True)
class Probe:
    """One place of the model at which a step of a layer shows.

    Attributes:
        stage: the step, by the names of :func:`attnviz.commands.explain.reference.recompute_layer`; ``projected.0`` …
            for queries, keys and values side by side, or one of them each.
        module: of the running model.
        path: its name there.
        side: ``input`` (its first argument), ``output`` (what it returns, or the first of what it returns) or
            ``pattern`` (the second).
    """

    stage: str
    module: nn.Module
    path: str
    side: str

    @property
    def place(self) -> str:
        """Where, in words: ``input of encoder.layer.0.output.dense``."""
        return f"{self.side} of {self.path}"


@dataclass(frozen=True)
class Activations:
    """The model's own activations in one layer, without the batch axis.

    Attributes:
        layer: counted from 0.
        values: by the name of the step.
        places: by the name of the step, where in the model they were taken.
    """

    layer: int
    values: dict[str, Tensor]
    places: dict[str, str]


def probes_of(checkpoint: Checkpoint, layer: int) -> list[Probe]:
    """Where the steps of a layer show; the last one is the last that fires.

    A layer's output is taken where it is used: at the input of the next layer, or as the model's own last hidden
    state (after GPT-2's final norm: at the input of that).
    """
    architecture, model = checkpoint.architecture, checkpoint.model
    layers = architecture.modules(model)
    of, pre = layers[layer], architecture.pre_norm
    final = architecture.final_norm(model)
    probed: list[tuple[str, nn.Module, str]] = [
        ("input", of.block, "input"),
        *((f"projected.{number}", module, "output") for number, module in enumerate(of.projections)),
        ("pattern", of.pattern, "pattern"),
        ("concatenated", of.concatenated, "input"),
        ("attention_output", of.output, "output"),
        ("attention_residual", of.feed_forward_norm if pre else of.attention_norm, "input"),
        ("attention_norm", of.attention_norm, "output"),
        ("expanded", of.expand, "output"),
        ("activated", of.contract, "input"),
        ("feed_forward_output", of.contract, "output"),
        ("feed_forward_norm", of.feed_forward_norm, "output") if pre
        else ("feed_forward_residual", of.feed_forward_norm, "input"),
    ]  # fmt: skip
    if layer < len(layers) - 1:
        probed.append(("output", layers[layer + 1].block, "input"))
    elif final is not None:
        probed += [("output", final, "input"), ("final_norm", model, "output")]
    else:
        probed.append(("output", model, "output"))
    paths = {module: path for path, module in model.named_modules()}
    return [Probe(stage, module, paths[module] or "the model", side) for stage, module, side in probed]


def capture_stages(
    checkpoint: Checkpoint, inputs: dict[str, Tensor], layers: Sequence[int], visit: Callable[[Activations], None]
) -> None:
    """Run the model once and hand over the activations of each of these layers as soon as it is through.

    Nothing is kept here: the activations of a layer live as long as ``visit`` keeps them.

    Args:
        checkpoint: the model.
        inputs: what its forward takes, on its device, of one text.
        layers: counted from 0.
        visit: called once for each of them, during the forward pass.

    Raises:
        VerificationError: a module of a layer did not run, or gave what it should not.
    """
    visited: list[int] = []

    def visit_next(activations: Activations) -> None:
        visited.append(activations.layer)
        visit(activations)

    with ExitStack() as stack:
        for layer in layers:
            stack.enter_context(_probed(layer, probes_of(checkpoint, layer), visit_next))
        capture_layers(checkpoint, inputs, lambda _: None)
    if sorted(visited) != sorted(layers):
        raise VerificationError(
            f"expected the steps of layers {sorted(layers)}, found those of {sorted(visited)}; "
            "nothing can be verified against this model."
        )


@contextmanager
def _probed(layer: int, probes: Sequence[Probe], visit: Callable[[Activations], None]) -> Iterator[None]:
    seen: dict[str, list[Tensor]] = {}

    def keep(probe: Probe, value: Any) -> None:
        if not isinstance(value, Tensor):
            raise VerificationError(f"layer {layer}: expected a tensor as {probe.place}, found {type(value).__name__}.")
        seen.setdefault(probe.stage, []).append(value)
        if probe is probes[-1]:
            visit(_activations(layer, probes, seen))
            seen.clear()

    with ExitStack() as stack:
        for probe in probes:
            stack.callback(_hook(probe, keep).remove)
        yield


def _hook(probe: Probe, keep: Callable[[Probe, Any], None]) -> torch.utils.hooks.RemovableHandle:
    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(probe, args[0] if args else kwargs["hidden_states"])

    def after(_: nn.Module, __: Any, result: Any) -> None:
        whole = probe.side == "output" and isinstance(result, Tensor)
        keep(probe, result if whole else result[1 if probe.side == "pattern" else 0])

    if probe.side == "input":
        return probe.module.register_forward_pre_hook(before, with_kwargs=True)
    return probe.module.register_forward_hook(after)


def _activations(layer: int, probes: Sequence[Probe], seen: dict[str, list[Tensor]]) -> Activations:
    """Those of one text; a feed-forward network that runs in chunks of tokens is put together again."""
    missing = [probe.place for probe in probes if probe.stage not in seen]
    if missing:
        raise VerificationError(f"layer {layer} of the model ran without {missing[0]}; nothing can be verified.")
    values = {stage: (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))[0] for stage, parts in seen.items()}
    places = {probe.stage: probe.place for probe in probes}
    projected = [name for name in values if name.startswith("projected.")]
    thirds = torch.cat([values.pop(name) for name in projected], dim=-1).chunk(3, dim=-1)
    for number, (name, third) in enumerate(zip(("query", "key", "value"), thirds, strict=True)):
        values[name] = third
        places[name] = places[projected[min(number, len(projected) - 1)]]
    return Activations(layer, values, places)
