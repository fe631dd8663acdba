"""How one layer's recomputed attention is held against the model's, and where it differs most."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from attnviz.attention.capture import LayerRecord, refuse_not_finite
from attnviz.attention.reference import LayerNorm
from attnviz.attention.tolerances import Tolerance, fit_scale, row_error
from attnviz.errors import VerificationError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId

_SURE = 1.5
"""Of a scale's limit: an error of this size is noticed even where rounding makes it look smaller."""


@dataclass(frozen=True)
class LayerCheck:
    """How closely one layer's heads reproduce the model.

    Attributes:
        pattern_error: largest absolute difference of a weight, over heads, queries and keys.
        output_error: largest absolute difference of the output divided by ``output_scale``.
        output_scale: the layer's largest absolute output in the model.
        passed_error: largest difference of what the layer passes on from what it should: of the sum of residual and
            output as a share of ``output_scale``, or of the norm of this sum as a share of its largest value.
        row_error: in half precision, the largest difference of a weight as a share of its row's largest.
        scale_error, scale_limit: in half precision, see :func:`attnviz.attention.tolerances.fit_scale`.
    """

    layer: int
    heads_compared: int
    pattern_error: float
    output_error: float
    output_scale: float
    passed_error: float = 0.0
    row_error: float | None = None
    scale_error: float | None = None
    scale_limit: float | None = None


@dataclass(frozen=True)
class Verification:
    """What was compared, and how closely; it exists only where everything passed."""

    tolerance: Tolerance
    layers: tuple[LayerCheck, ...]

    level: int = 4
    """How deep it goes: 1 patterns, from the model's own queries and keys; 2 these too, from input and weights; 3 also
    the output after W_O; 4 in a run whose final states are those of the untouched model, since hooks only read."""

    @property
    def heads_compared(self) -> int:
        """Heads whose pattern was compared, over all layers."""
        return sum(check.heads_compared for check in self.layers)

    @property
    def pattern_error(self) -> float:
        """The largest difference of an attention weight in any layer."""
        return max(check.pattern_error for check in self.layers)

    @property
    def output_error(self) -> float:
        """The largest relative difference of the attention output in any layer."""
        return max(check.output_error for check in self.layers)

    @property
    def passed_error(self) -> float:
        """The largest relative difference of what any layer passes on."""
        return max(check.passed_error for check in self.layers)

    @property
    def scale_seen(self) -> float | None:
        """In half precision, the error of any one layer's scale that is noticed for sure; None in the others."""
        limits = [check.scale_limit for check in self.layers if check.scale_limit is not None]
        return _SURE * max(limits) if limits else None


def worse_of(one: LayerCheck | None, other: LayerCheck) -> LayerCheck:
    """The larger errors of two checks of the same layer, and the smaller limit: an error has to pass both."""
    if one is None:
        return other
    errors = ("pattern_error", "output_error", "output_scale", "passed_error", "row_error", "scale_error")
    worse: dict[str, Any] = {name: _either(max, getattr(one, name), getattr(other, name)) for name in errors}
    return replace(other, **worse, scale_limit=_either(min, one.scale_limit, other.scale_limit))


def compare_layer(record: LayerRecord, pattern: Tensor, output: Tensor, checkpoint: Checkpoint) -> LayerCheck:
    """Compare the reference's pattern [batch, n_heads, n, n] and output [batch, n, d_model] with the model's.

    What the layer passes on is compared with what follows from the model's own output.

    Raises:
        VerificationError: the patterns have different shapes, or the model's own values overflow.
    """
    _refuse_overflow(record)
    if pattern.shape != record.pattern.shape:
        raise VerificationError(
            f"layer {record.layer}: the reference gives patterns of shape {tuple(pattern.shape)}, "
            f"the model of shape {tuple(record.pattern.shape)}."
        )
    scale = float(record.output.abs().max())
    return replace(
        compare_patterns(record.layer, pattern, record.pattern, checkpoint.tolerance),
        output_error=_largest_difference(output, record.output) / (scale or 1.0),
        output_scale=scale,
        passed_error=max(float(error.max()) for error in _passed_errors(record, checkpoint)),
    )


def compare_patterns(layer: int, pattern: Tensor, own: Tensor, tolerance: Tolerance) -> LayerCheck:
    """Compare the patterns alone, [batch, n_heads, n, n] each, of which the second is the model's own."""
    coarse: dict[str, float] = {}
    if tolerance.row is not None:
        error, limit = fit_scale(pattern, own, tolerance.scale)
        coarse = {"row_error": float(row_error(pattern, own).max()), "scale_error": error, "scale_limit": limit}
    return LayerCheck(layer, pattern.shape[1], _largest_difference(pattern, own), 0.0, 0.0, **coarse)


def _largest_difference(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference; where all bits agree nothing is subtracted, which saves memory and time."""
    return 0.0 if torch.equal(one, other) else float((one - other).abs_().max())


def _refuse_overflow(record: LayerRecord) -> None:
    """Refuse values that are not finite, and those whose squares, as norms add them up, are not."""
    wide = torch.promote_types(record.output.dtype, torch.float32)
    for values in (record.summed, record.pattern):
        refuse_not_finite(values, f"attention in layer {record.layer}")
    largest = float(record.summed.abs().max())
    if largest**2 > torch.finfo(wide).max / record.summed[0].numel():
        raise VerificationError(
            f"layer {record.layer} of the model has values up to {largest:.1e}, whose squares overflow in "
            f"{str(record.output.dtype).removeprefix('torch.')}; expected a model whose norms can be computed: --dtype "
            "float64 may help. Nothing was written."
        )


def _passed_errors(record: LayerRecord, checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
    """Errors of the sum of residual and output, and of its norm, [batch, n, d_model] each, as shares of their scales.

    Rounding the sum to the number format is no error: in a residual stream far larger than the output it is all of it.
    Where the model adds and norms as the reference does, all bits agree, and a single 0 stands for each.
    """
    norm, added = checkpoint.norm(record.norm), record.output
    if record.output_norm is not None:
        added = checkpoint.norm(record.output_norm)(added)
    expected = record.residual + added
    if isinstance(norm, LayerNorm):
        again = layer_norm(record.summed, norm.weight.shape, norm.weight, norm.bias, norm.epsilon)
    else:
        again = norm(record.summed)
    if torch.equal(record.summed, expected) and torch.equal(record.normed, again):
        return expected.new_zeros(1, 1, 1), expected.new_zeros(1, 1, 1)
    rounding = 2 * torch.finfo(expected.dtype).eps * expected.abs()
    summed = ((record.summed - expected).abs_() - rounding).clamp_min_(0)
    return _share(summed, record.output), _share((record.normed - again).abs_(), record.normed)


def _share(difference: Tensor, of: Tensor) -> Tensor:
    return difference / of.abs().max().clamp_min(torch.finfo(of.dtype).tiny)


def _either(choose: Callable[[float, float], float], one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else choose(one, other)


def within(check: LayerCheck, tolerance: Tolerance) -> bool:
    """Written so that a comparison with NaN is a failure."""
    patterns = check.pattern_error <= tolerance.pattern and _rows_agree(check, tolerance) and _scale_agrees(check)
    return patterns and check.output_error <= tolerance.output and check.passed_error <= tolerance.output


def _rows_agree(check: LayerCheck, tolerance: Tolerance) -> bool:
    return check.row_error is None or tolerance.row is None or check.row_error <= tolerance.row


def _scale_agrees(check: LayerCheck) -> bool:
    return check.scale_error is None or check.scale_limit is None or check.scale_error <= check.scale_limit


def locate(
    record: LayerRecord,
    pattern: Tensor,
    output: Tensor,
    check: LayerCheck,
    checkpoint: Checkpoint,
    labels: Callable[[int], Sequence[str]],
    keys: Callable[[int], Sequence[str]] | None = None,
) -> tuple[float, str]:
    """The worst difference of a layer that does not verify: how many times its tolerance, and where in words.

    ``labels`` names the queries of a text in the batch, ``keys`` the keys, where they are others.
    """
    keys, tolerance = labels if keys is None else keys, checkpoint.tolerance
    patterns_agree = check.pattern_error <= tolerance.pattern
    if not patterns_agree or not _rows_agree(check, tolerance):
        found = row_error(pattern, record.pattern) if patterns_agree else (pattern - record.pattern).abs()
        batch, head, query, key = worst_place(found)
        where = (
            f"layer {record.layer}, head {head} ({HeadId(record.layer, head)}), query {query} "
            f"({labels(batch)[query]!r}), key {key} ({keys(batch)[key]!r})"
        )
        weights = (
            f"the model attends {record.pattern[batch, head, query, key]:.6g}, "
            f"the reference {pattern[batch, head, query, key]:.6g}"
        )
        if not patterns_agree:
            message = f"The largest difference is in {where}: {weights} (tolerance {tolerance.pattern:g})."
            return check.pattern_error / tolerance.pattern, message
        share = f"{check.row_error:.2g} of the row's largest weight (tolerance {tolerance.row:g})"
        return float(check.row_error or 0) / (tolerance.row or 1), f"In {where} {weights}: {share}."
    if not _scale_agrees(check):
        message = (
            f"No single weight differs by more than rounding, but those of layer {record.layer} differ together, as if "
            f"its scores were off by {check.scale_error:.2g} of themselves (limit {check.scale_limit:.2g})."
        )
        return float(check.scale_error or 0) / (check.scale_limit or 1), message
    if check.output_error <= tolerance.output:
        return check.passed_error / tolerance.output, _located_passed(record, checkpoint, labels)
    batch, query, dimension = worst_place((output - record.output).abs())
    message = (
        f"All patterns agree, but the attention output of layer {record.layer} (all {pattern.shape[1]} heads together) "
        f"differs most at query {query} ({labels(batch)[query]!r}), dimension {dimension}: "
        f"the model gives {record.output[batch, query, dimension]:.6g}, "
        f"the reference {output[batch, query, dimension]:.6g} "
        f"(tolerance {tolerance.output:g} of the layer's largest output, {check.output_scale:.6g})."
    )
    return check.output_error / tolerance.output, message


def _located_passed(record: LayerRecord, checkpoint: Checkpoint, labels: Callable[[int], Sequence[str]]) -> str:
    """Where what the layer passes on differs most from what it should."""
    summed, normed = (error.nan_to_num_(nan=torch.inf) for error in _passed_errors(record, checkpoint))
    of_norm = bool(normed.max() > summed.max())
    batch, query, dimension = worst_place(normed if of_norm else summed)
    own = (record.normed if of_norm else record.summed)[batch, query, dimension]
    what = "the norm after its attention" if of_norm else "the sum of its input and its attention's output"
    expected = "" if of_norm else f", not {record.residual[batch, query, dimension]:.6g} + "
    expected += "" if of_norm else f"{record.output[batch, query, dimension]:.6g}"
    return (
        f"All patterns and attention outputs agree, but layer {record.layer} does not pass them on: {what} is "
        f"{own:.6g} at query {query} ({labels(batch)[query]!r}), dimension {dimension}{expected} "
        f"(tolerance {checkpoint.tolerance.output:g} of the largest)."
    )


def worst_place(differences: Tensor) -> tuple[int, ...]:
    """Where a difference is largest, or not a number; these are overwritten."""
    largest = differences.nan_to_num_(nan=torch.inf).argmax()
    return tuple(int(index) for index in torch.unravel_index(largest, differences.shape))
