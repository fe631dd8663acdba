"""The steps of a layer, recomputed end to end, each compared with what the running model shows of it.

One forward pass, with hooks on the modules of each layer, shows the model's own steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attention.capture import capture_layers
from attnviz.attention.reference import allowed_positions
from attnviz.attention.tolerances import TOLERANCES
from attnviz.commands.explain.reference import Activation, embedded, layer_parameters, recompute_layer, widened
from attnviz.errors import UsageError, VerificationError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.tokens import Tokens

__all__ = [
    "Activations", "Probe", "Stage", "StageCheck", "UnknownStageError", "VerifiedStages", "capture_stages",
    "check_layer", "probes_of", "verify_stages",
]  # fmt: skip

_ACTIVATION_TOLERANCES = {torch.float32: 1e-6}
"""Of an activation on the model's own input; for other dtypes that of every output."""

_AXES = {2: ("token", "dimension"), 3: ("head", "query", "key")}


@dataclass(frozen=True)
class Probe:
    """One place of the model at which a step of a layer shows."""

    stage: str
    """As in :func:`recompute_layer`; ``projected.0`` … for queries, keys and values side by side, or one each."""
    module: nn.Module
    path: str
    """Name of the module in the model."""
    side: str
    """Its first argument (``input``), what it returns or the first of that (``output``), the second (``pattern``)."""

    @property
    def place(self) -> str:
        """Where, in words: ``input of encoder.layer.0.output.dense``."""
        return f"{self.side} of {self.path}"


@dataclass(frozen=True)
class Activations:
    """The model's own activations in one layer by the name of the step, without the batch axis, and their places."""

    layer: int
    values: dict[str, Tensor]
    places: dict[str, str]


def probes_of(checkpoint: Checkpoint, layer: int) -> list[Probe]:
    """Where the steps of a layer show; the last one is the last that fires.

    A layer's output is taken where it is used: at the input of the next layer, or as the model's own last hidden
    state (after GPT-2's final norm: at the input of that).
    """
    architecture, model = checkpoint.architecture, checkpoint.model
    layers, final = architecture.modules(model), architecture.final_norm(model)
    of, pre = layers[layer], architecture.pre_norm
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
    """Run the model once on one text and hand over the activations of each of these layers as soon as it is through.

    Nothing is kept here: the activations of a layer live as long as ``visit`` keeps them.

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

    def before(probe: Probe, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(probe, args[0] if args else kwargs["hidden_states"])

    def after(probe: Probe, _: nn.Module, __: Any, result: Any) -> None:
        whole = probe.side == "output" and isinstance(result, Tensor)
        keep(probe, result if whole else result[1 if probe.side == "pattern" else 0])

    with ExitStack() as stack:
        for probe in probes:
            if probe.side == "input":
                hooked = probe.module.register_forward_pre_hook(partial(before, probe), with_kwargs=True)
            else:
                hooked = probe.module.register_forward_hook(partial(after, probe))
            stack.callback(hooked.remove)
        yield


def _activations(layer: int, probes: Sequence[Probe], seen: dict[str, list[Tensor]]) -> Activations:
    """Those of one text; a feed-forward network that runs in chunks of tokens is put together again."""
    if missing := [probe.place for probe in probes if probe.stage not in seen]:
        raise VerificationError(f"layer {layer} of the model ran without {missing[0]}; nothing can be verified.")
    values = {stage: (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))[0] for stage, parts in seen.items()}
    places = {probe.stage: probe.place for probe in probes}
    projected = [name for name in values if name.startswith("projected.")]
    thirds = torch.cat([values.pop(name) for name in projected], dim=-1).chunk(3, dim=-1)
    for number, (name, third) in enumerate(zip(("query", "key", "value"), thirds, strict=True)):
        values[name] = third
        places[name] = places[projected[min(number, len(projected) - 1)]]
    return Activations(layer, values, places)


@dataclass(frozen=True)
class StageCheck:
    """How closely a recomputed step reproduces the model.

    ``error`` is the largest absolute difference from what the model has at ``place``, divided by ``scale``: the largest
    absolute value of the model's own, or 1 for weights of attention.
    """

    place: str
    error: float
    scale: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the step is reproduced; NaN is not."""
        return self.error <= self.tolerance


@dataclass(frozen=True)
class Stage:
    """One recomputed step of a layer, named as in :func:`attnviz.commands.explain.reference.recompute_layer`.

    ``tensor`` is on the model's device and in its dtype, boolean for ``mask``; ``check`` is None where the model shows
    nothing to compare with.
    """

    name: str
    tensor: Tensor
    check: StageCheck | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        return tuple(self.tensor.shape)

    @property
    def wide(self) -> Tensor:
        """On the CPU, in float32 at least, so that sums over it are exact enough."""
        return widened(self.tensor).cpu()


class UnknownStageError(UsageError, KeyError):
    """A layer has no step of this name."""

    def __str__(self) -> str:
        """The message, which a KeyError alone would show in quotes."""
        return str(self.args[0])


@dataclass(frozen=True)
class VerifiedStages(Mapping[str, Stage]):
    """The steps of one layer by name; it exists only where every step that the model shows is reproduced."""

    layer: int
    stages: tuple[Stage, ...]

    def __getitem__(self, name: str) -> Stage:
        """The step of this name; UnknownStageError where there is none."""
        if named := [stage for stage in self.stages if stage.name == name]:
            return named[0]
        raise UnknownStageError(f"layer {self.layer} has no step {name!r}: expected one of {', '.join(self)}.")

    def __iter__(self) -> Iterator[str]:
        """The names of the steps, in the order of computing."""
        return (stage.name for stage in self.stages)

    def __len__(self) -> int:
        """How many steps there are."""
        return len(self.stages)

    @property
    def checks(self) -> dict[str, StageCheck]:
        """By name, the checks of the steps that were compared with the model."""
        return {stage.name: stage.check for stage in self.stages if stage.check is not None}

    @property
    def worst(self) -> str:
        """The name of the step that differs most, as a share of its tolerance."""
        return max(self.checks, key=lambda name: self.checks[name].error / self.checks[name].tolerance)


def check_layer(checkpoint: Checkpoint, layer: int) -> None:
    """Raise UsageError where the model has no such layer."""
    last = checkpoint.n_layers - 1
    if isinstance(layer, bool) or not isinstance(layer, Integral):
        raise UsageError(f"expected a layer as a whole number from 0 to {last}, found {layer!r}.")
    if not 0 <= layer <= last:
        raise UsageError(f"the model {checkpoint.name} has no layer {layer}: expected one from 0 to {last}.")


def verify_stages(
    checkpoint: Checkpoint, tokens: Tokens, layers: Sequence[int], visit: Callable[[VerifiedStages], None]
) -> None:
    """Run the model once; recompute these layers, compare every step and hand them over, during the forward pass.

    The first layer is recomputed from the embedding tables, another one from what the layer before it gave; within
    a layer every step follows from the recomputed step before, so that the last one checks them all.

    Raises:
        UsageError: the model has no such layer.
        ArchitectureError: the model has an activation that is not reproduced.
        VerificationError: a step differs by more than the tolerance of the dtype; the message names the first.
    """
    for layer in layers:
        check_layer(checkpoint, layer)
        layer_parameters(checkpoint, layer)  # refuse what is not reproduced before the model runs
    inputs = tokens.model_inputs(checkpoint.device)
    capture_stages(checkpoint, inputs, layers, lambda activations: visit(_verified(checkpoint, tokens, activations)))


def _verified(checkpoint: Checkpoint, tokens: Tokens, activations: Activations) -> VerifiedStages:
    mask = torch.ones(1, len(tokens), dtype=torch.long, device=checkpoint.device)
    parameters = layer_parameters(checkpoint, activations.layer)
    allowed = allowed_positions(mask, parameters.heads.causal)[0, 0]
    first = activations.layer == 0
    x = embedded(checkpoint, tokens) if first else activations.values["input"]
    steps = {"input": x, **recompute_layer(x, parameters, allowed)}
    if unused := set(activations.values) - set(steps):
        raise VerificationError(f"layer {activations.layer}: the model shows {unused}, which nothing was compared to.")
    stages = []
    for name, tensor in steps.items():
        own = activations.values.get(name) if first or name != "input" else None
        check = None if own is None else _check(name, tensor, own, activations, checkpoint.dtype, tokens)
        stages.append(Stage(name, tensor, check))
    _check_activation(parameters.activation, activations, checkpoint.dtype)
    return VerifiedStages(activations.layer, tuple(stages))


def _check(
    name: str, tensor: Tensor, own: Tensor, activations: Activations, dtype: torch.dtype, tokens: Tokens
) -> StageCheck:
    """Compare one step, or raise VerificationError."""
    where = f"{name.replace('_', ' ')} of layer {activations.layer} ({activations.places[name]})"
    if tensor.shape != own.shape:
        shapes = f"the reference gives the shape {list(tensor.shape)}, the model {list(own.shape)}"
        raise VerificationError(f"{where}: {shapes}.")
    if not torch.isfinite(own).all():
        raise VerificationError(
            f"the model's own {where} has values that are not finite in {str(dtype).removeprefix('torch.')}; "
            "a wider --dtype may help. Nothing was written."
        )
    tolerance, is_pattern = TOLERANCES[dtype], name == "pattern"
    scale = 1.0 if is_pattern else float(own.abs().max())
    difference = (widened(tensor) - widened(own)).abs().nan_to_num_(nan=torch.inf)
    largest, most = float(difference.max()), tolerance.pattern if is_pattern else tolerance.output
    check = StageCheck(activations.places[name], largest / scale if scale > 0 else largest, scale, most)
    if not check.passed:
        position = [int(index) for index in torch.unravel_index(difference.argmax(), difference.shape)]
        raise VerificationError(_mismatch(where, position, tensor, own, check, tokens))
    return check


def _check_activation(activation: Activation, activations: Activations, dtype: torch.dtype) -> None:
    """Compare the activation on the model's own input: kinds of GELU differ by 5e-4, which rounding would hide."""
    own = activations.values["activated"]
    difference = float((widened(activation(activations.values["expanded"])) - widened(own)).abs().max())
    scale, tolerance = float(own.abs().max()), _ACTIVATION_TOLERANCES.get(dtype, TOLERANCES[dtype].output)
    if not difference <= tolerance * scale:
        raise VerificationError(
            f"the activation of layer {activations.layer} ({activations.places['activated']}) is not "
            f"{activation.name}, which the config names: values differ by up to {difference:.3g} on the same input "
            f"(tolerance {tolerance:g} of the largest, {scale:.6g}). Nothing was written."
        )


def _mismatch(where: str, position: list[int], tensor: Tensor, own: Tensor, check: StageCheck, tokens: Tokens) -> str:
    named = [
        f"{axis} {index}" + ("" if axis in ("head", "dimension") else f" ({tokens.labels[index]!r})")
        for axis, index in zip(_AXES[tensor.ndim], position, strict=True)
    ]
    return (
        f"the recomputed layer does not reproduce the model, first at {where}: the largest difference is at "
        f"{', '.join(named)}: the model gives {float(own[tuple(position)]):.6g}, the reference "
        f"{float(tensor[tuple(position)]):.6g}: {check.error:.2g} of {check.scale:.6g} "
        f"(tolerance {check.tolerance:g}). Nothing was written. --dtype float64 tells rounding, which it shrinks, from "
        "an error, which it does not."
    )
