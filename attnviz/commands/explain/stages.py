"""The steps of a layer, recomputed end to end, each compared with what the running model shows of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from attnviz.attention.reference import allowed_positions
from attnviz.attention.tolerances import TOLERANCES
from attnviz.commands.explain.capture import Activations, capture_stages
from attnviz.commands.explain.reference import Activation, embedded, layer_parameters, recompute_layer, widened
from attnviz.errors import UsageError, VerificationError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.tokens import Tokens

__all__ = ["Stage", "StageCheck", "UnknownStageError", "VerifiedStages", "check_layer", "verify_stages"]

_ACTIVATION_TOLERANCES = {torch.float32: 1e-6}
"""Of an activation on the model's own input; for other dtypes that of every output."""

_AXES = {2: ("token", "dimension"), 3: ("head", "query", "key")}


@dataclass(frozen=True)
class StageCheck:
    """How closely a recomputed step reproduces the model.

    Attributes:
        place: where in the model its own was taken.
        error: largest absolute difference, divided by ``scale``.
        scale: the largest absolute value of the model's own; 1 for weights of attention.
        tolerance: what ``error`` may be.
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
    """One recomputed step of a layer.

    Attributes:
        name: as in :func:`attnviz.commands.explain.reference.recompute_layer`, or ``input``.
        tensor: on the model's device and in its dtype; a boolean for ``mask``.
        check: None where the model shows nothing to compare with.
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
        """The step of this name.

        Raises:
            UnknownStageError: there is none.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
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
    """Run the model once; recompute these layers, compare every step and hand them over.

    The first layer is recomputed from the embedding tables, another one from what the layer before it gave; within
    a layer every step follows from the recomputed step before, so that the last one checks them all.

    Args:
        checkpoint: the model.
        tokens: one text.
        layers: counted from 0.
        visit: called with each verified layer, during the forward pass.

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
    unused = set(activations.values) - set(steps)
    if unused:
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
        raise VerificationError(
            f"{where}: the reference gives the shape {list(tensor.shape)}, the model {list(own.shape)}."
        )
    if not torch.isfinite(own).all():
        raise VerificationError(
            f"the model's own {where} has values that are not finite in {str(dtype).removeprefix('torch.')}; "
            "a wider --dtype may help. Nothing was written."
        )
    tolerance, is_pattern = TOLERANCES[dtype], name == "pattern"
    scale = 1.0 if is_pattern else float(own.abs().max())
    difference = (widened(tensor) - widened(own)).abs().nan_to_num_(nan=torch.inf)
    largest = float(difference.max())
    check = StageCheck(
        activations.places[name],
        largest / scale if scale > 0 else largest,
        scale,
        tolerance.pattern if is_pattern else tolerance.output,
    )
    if not check.passed:
        position = [int(index) for index in torch.unravel_index(difference.argmax(), difference.shape)]
        raise VerificationError(_mismatch(where, position, tensor, own, check, tokens))
    return check


def _check_activation(activation: Activation, activations: Activations, dtype: torch.dtype) -> None:
    """Compare the activation by itself, on what the model's own first map gives, without the rounding before it.

    Two kinds of GELU differ by 5e-4 at most, which beside a few large values is little; in formats of 16 bits it
    is lost in rounding.
    """
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
