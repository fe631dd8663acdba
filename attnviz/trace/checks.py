"""Compares one layer's recomputed attention with the model's, block by block, and locates the worst difference."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.models.wording import counted
from attnviz.reference.attention import LayerNorm, upcast
from attnviz.reference.tolerances import ScaleFit, Tolerance, row_error
from attnviz.trace.recorder import LayerRecord, refuse_not_finite

_SURE = 1.5
"""Multiple of the scale's limit at which an error is detected even if rounding hides part of it."""


@dataclass(frozen=True)
class LayerCheck:
    """How closely one layer's heads reproduce the model.

    Attributes:
        pattern_error: largest absolute difference of a weight, over heads, queries and keys.
        output_error: largest absolute difference of the output divided by ``output_scale``.
        output_scale: the layer's largest absolute output in the model.
        residual_error: largest difference of the sum of residual and output, as a share of ``output_scale``, or of the
            norm of this sum, as a share of its largest value.
        input_error: largest difference of a query, key or value, as a share of the largest of its kind.
        head_output_error: largest difference of a head's weighted values, before W_O, as a share of their largest.
        row_error: in half precision, the largest difference of a weight as a share of its row's largest.
        scale_error, scale_limit: in half precision, see :class:`attnviz.reference.tolerances.ScaleFit`.
    """

    layer: int
    heads_compared: int
    pattern_error: float
    output_error: float
    output_scale: float
    residual_error: float = 0.0
    input_error: float = 0.0
    head_output_error: float = 0.0
    row_error: float | None = None
    scale_error: float | None = None
    scale_limit: float | None = None


@dataclass(frozen=True)
class Verification:
    """The result of a verification in which every layer passed."""

    tolerance: Tolerance
    layers: tuple[LayerCheck, ...]

    level: int = 4
    """4: queries, keys, values, patterns, outputs, and what the layer passes on were compared, in a run that changes
    nothing. 0: nothing was, since the weights were given."""

    def __repr__(self) -> str:
        heads = f"{counted(self.heads_compared, 'head')} in {counted(len(self.layers), 'layer')}"
        return f"<Verification of {heads}, level {self.level} of 4: patterns within {self.pattern_error:.1e}>"

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
    def scale_seen(self) -> float | None:
        """In half precision, the smallest error of a layer's scale that is always detected; else None."""
        limits = [check.scale_limit for check in self.layers if check.scale_limit is not None]
        return _SURE * max(limits) if limits else None


def worse_of(one: LayerCheck | None, other: LayerCheck) -> LayerCheck:
    """The larger errors of two checks of the same layer, and the smaller limit: an error has to pass both."""
    if one is None:
        return other
    errors = (
        "pattern_error", "output_error", "output_scale", "residual_error", "input_error", "head_output_error",
        "row_error", "scale_error",
    )  # fmt: skip
    worse: dict[str, Any] = {name: _either(max, getattr(one, name), getattr(other, name)) for name in errors}
    return replace(other, **worse, scale_limit=_either(min, one.scale_limit, other.scale_limit))


def _either(choose: Callable[[float, float], float], one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else choose(one, other)


def within(check: LayerCheck, tolerance: Tolerance) -> bool:
    """Whether all errors are within the tolerance; NaN is not."""
    ours = check.output_error, check.residual_error, check.input_error, check.head_output_error
    return (
        check.pattern_error <= tolerance.pattern
        and (check.row_error is None or tolerance.row is None or check.row_error <= tolerance.row)
        and (check.scale_error is None or check.scale_limit is None or check.scale_error <= check.scale_limit)
        and all(error <= tolerance.output for error in ours)
    )


@dataclass
class LayerComparison:
    """Running comparison of one layer, over blocks; ``labels`` and ``keys`` name the tokens of a text of the batch.

    ``causes`` are sentences on queries, keys or values that differ before any pattern does.
    """

    checkpoint: Checkpoint
    layer: int
    labels: Callable[[int], Sequence[str]]
    keys: Callable[[int], Sequence[str]]
    causes: list[str] = field(default_factory=list)
    worst: tuple[float, str] = (0.0, "")
    pattern_error: float = 0.0
    row_error: float | None = None
    input_error: float = 0.0
    n_heads: int = 0
    _scale: ScaleFit = field(default_factory=ScaleFit)

    @property
    def tolerance(self) -> Tolerance:
        """The checkpoint's tolerance."""
        return self.checkpoint.tolerance

    def add_inputs(self, name: str, expected: Tensor, own: Tensor, why: Callable[[], str]) -> None:
        """Compare queries, keys or values, [batch, n_heads, n, d_head]; ``why`` returns what explains a difference."""
        if expected.shape != own.shape:
            raise VerificationError(
                f"layer {self.layer}: the reference gives {name} of shape {tuple(expected.shape)}, the model of shape "
                f"{tuple(own.shape)}."
            )
        error = largest_difference(expected, own) / (float(own.abs().max()) or 1.0)
        self.input_error = _worse(self.input_error, error)
        if not error <= self.tolerance.output:
            refuse_not_finite(own, f"attention in layer {self.layer}")
            self.causes.append(f"The {name} differ before that, by {error:.2g} of the largest{why()}.")

    def add_rows(self, first: int, pattern: Tensor, own: Tensor) -> bool:
        """Compare a block of rows of the patterns, [batch, n_heads, rows, n_keys]; return whether they agree."""
        if pattern.shape != own.shape:
            raise VerificationError(
                f"layer {self.layer}: the reference gives patterns of shape {tuple(pattern.shape)}, "
                f"the model of shape {tuple(own.shape)}."
            )
        tolerance, self.n_heads = self.tolerance, pattern.shape[1]
        error = largest_difference(pattern, own)
        agrees = error <= tolerance.pattern
        self.pattern_error = _worse(self.pattern_error, error)
        if tolerance.row is not None:
            rows = row_error(pattern, own)
            largest = float(rows.max())
            self.row_error = _worse(self.row_error or 0.0, largest)
            self._scale.add(pattern, own)
            if agrees and not largest <= tolerance.row:
                self._locate(first, pattern, own, rows, largest / tolerance.row)
                return False
        if not agrees:
            refuse_not_finite(own, f"attention in layer {self.layer}")
            self._locate(first, pattern, own, (pattern - own).abs(), error / tolerance.pattern)
        return agrees

    def _locate(self, first: int, pattern: Tensor, own: Tensor, differences: Tensor, ratio: float) -> None:
        """Keep the worst weight of all blocks, with a sentence that locates it."""
        if ratio <= self.worst[0]:
            return
        batch, head, query, key = worst_index(differences)
        query_label, key_label = self.labels(batch)[first + query], self.keys(batch)[key]
        where = (
            f"layer {self.layer}, head {head} ({HeadId(self.layer, head)}), query {first + query} "
            f"({query_label!r}), key {key} ({key_label!r})"
        )
        model_weight, reference_weight = own[batch, head, query, key], pattern[batch, head, query, key]
        weights = f"the model attends {model_weight:.6g}, the reference {reference_weight:.6g}"
        tolerance = self.tolerance
        if abs(float(model_weight - reference_weight)) <= tolerance.pattern:
            share = f"{ratio * (tolerance.row or 1):.2g} of the row's largest weight (tolerance {tolerance.row:g})"
            self.worst = ratio, f"In {where} {weights}: {share}."
        else:
            message = f"The largest difference is in {where}: {weights} (tolerance {tolerance.pattern:g})."
            self.worst = torch.inf if math.isnan(ratio) else ratio, message

    def patterns(self) -> LayerCheck:
        """The check of the patterns alone, after all blocks."""
        check = LayerCheck(self.layer, self.n_heads, self.pattern_error, 0.0, 0.0, input_error=self.input_error)
        if self.tolerance.row is None:
            return check
        error, limit = self._scale.result(self.tolerance.scale)
        return replace(check, row_error=self.row_error, scale_error=error, scale_limit=limit)

    def end(
        self, record: LayerRecord, weighted: Tensor, output: Tensor, queries: Sequence[int] | None = None
    ) -> tuple[LayerCheck, float, str]:
        """Compare weighted values, output, and the residual stream and norm after the layer.

        ``weighted`` are the heads' weighted values, [batch, n, n_heads, d_head], ``output`` is [batch, n, d_model].
        Residual stream and norm are compared with those that follow from the model's own output. With ``queries``,
        ``weighted`` and ``output`` hold these positions alone.

        Returns:
            the check; and, if it is not within the tolerance, error / tolerance and a sentence that locates it.

        Raises:
            VerificationError: the model's own values overflow.
        """
        _refuse_overflow(record)
        scale, largest = (float(each.abs().max()) or 1.0 for each in (record.output, record.weighted))
        own = record
        if queries is not None:
            index = torch.tensor(queries, device=record.output.device)
            own = replace(record, output=record.output[:, index], weighted=record.weighted[:, index])
        check = replace(
            self.patterns(),
            output_error=largest_difference(output, own.output) / scale,
            output_scale=float(record.output.abs().max()),
            head_output_error=largest_difference(weighted, own.weighted) / largest,
            residual_error=max(float(error.max()) for error in _residual_errors(record, self.checkpoint)),
        )
        if within(check, self.tolerance):
            return check, 0.0, ""
        positions = range(output.shape[1]) if queries is None else queries
        ratio, where = self._explained(check, own, weighted, output, positions)
        if not where:
            ratio, where = (
                check.residual_error / self.tolerance.output,
                _located_residual(record, self.checkpoint, self.labels),
            )
        return check, ratio, " ".join([where, *self.causes])

    def _explained(
        self, check: LayerCheck, record: LayerRecord, weighted: Tensor, output: Tensor, positions: Sequence[int]
    ) -> tuple[float, str]:
        """The first step that differs; an empty sentence if that is the residual stream or norm after the layer.

        ``positions`` are those of the rows of ``weighted`` and ``output``.
        """
        tolerance = self.tolerance
        if self.worst[1]:
            return self.worst
        if not (check.scale_error is None or check.scale_limit is None or check.scale_error <= check.scale_limit):
            return float(check.scale_error) / check.scale_limit, (
                f"No single weight differs by more than rounding, but those of layer {self.layer} differ together, as "
                f"if its scores were off by {check.scale_error:.2g} of themselves (limit {check.scale_limit:.2g})."
            )
        if not check.output_error <= tolerance.output:
            batch, query, dimension = worst_index((output - record.output).abs())
            at = f"query {positions[query]} ({self.labels(batch)[positions[query]]!r}), dimension {dimension}"
            return check.output_error / tolerance.output, (
                f"All patterns agree, but the attention output of layer {self.layer} (all {self.n_heads} heads "
                f"together) differs most at {at}: "
                f"the model gives {record.output[batch, query, dimension]:.6g}, "
                f"the reference {output[batch, query, dimension]:.6g} "
                f"(tolerance {tolerance.output:g} of the layer's largest output, {check.output_scale:.6g})."
            )
        if not check.residual_error <= tolerance.output:
            return 0.0, ""
        if not check.head_output_error <= tolerance.output:
            batch, query, head, dimension = worst_index((weighted - record.weighted).abs())
            at = f"query {positions[query]} ({self.labels(batch)[positions[query]]!r}), dimension {dimension}"
            return check.head_output_error / tolerance.output, (
                f"All patterns and attention outputs agree, but head {head} ({HeadId(self.layer, head)}) gives "
                f"{record.weighted[batch, query, head, dimension]:.6g} before W_O at {at}, the reference "
                f"{weighted[batch, query, head, dimension]:.6g} (tolerance {tolerance.output:g} of the largest)."
            )
        return check.input_error / tolerance.output, f"All patterns and outputs of layer {self.layer} agree."


def largest_difference(one: Tensor, other: Tensor) -> float:
    """The largest absolute difference; equal tensors are not subtracted, which saves memory and time."""
    return 0.0 if torch.equal(one, other) else float((one - other).abs_().max())


def _worse(one: float, other: float) -> float:
    """The larger of two, NaN as the largest."""
    return other if math.isnan(other) or other > one else one


def _refuse_overflow(record: LayerRecord) -> None:
    """Raise VerificationError if values, or the sums of squares that norms compute, are not finite."""
    wide = torch.promote_types(record.output.dtype, torch.float32)
    refuse_not_finite(record.summed, f"attention in layer {record.layer}")
    largest = float(record.summed.abs().max())
    if largest**2 > torch.finfo(wide).max / record.summed[0].numel():
        raise VerificationError(
            f"layer {record.layer} of the model has values up to {largest:.1e}, whose squares overflow in "
            f"{str(record.output.dtype).removeprefix('torch.')}; expected a model whose norms can be computed: --dtype "
            "float64 may help. Nothing was written."
        )


def _residual_errors(record: LayerRecord, checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
    """Errors of the sum of residual and output, and of its norm, [batch, n, d_model] each, as shares of their scales.

    Rounding of the sum to the number format does not count: it may exceed the output where the residual is far larger.
    Where all bits agree, each is a single 0.
    """
    norm, added = None if record.norm is None else checkpoint.norm(record.norm), record.output
    if record.output_norm is not None:
        added = checkpoint.norm(record.output_norm)(added)
    if record.network_output is not None:
        added = record.network_output + added
    expected = record.residual + added * checkpoint.architecture.residual_multiplier(checkpoint.config)
    if isinstance(norm, LayerNorm):
        kept = record.norm_input
        expected_norm = layer_norm(kept, kept.shape[-1:], norm.weight, norm.bias, norm.epsilon)
    else:
        expected_norm = record.norm_input if norm is None else norm(record.norm_input)
    if torch.equal(record.summed, expected) and torch.equal(record.normed, expected_norm):
        return expected.new_zeros(1, 1, 1), expected.new_zeros(1, 1, 1)
    size = expected.abs()
    if record.network_output is not None:  # the three may be added in any order
        size = size + record.residual.abs() + record.network_output.abs()
    rounding = 2 * torch.finfo(expected.dtype).eps * size
    summed = ((record.summed - expected).abs_() - rounding).clamp_min_(0)
    return _share(summed, record.output), _share((record.normed - expected_norm).abs_(), record.normed)


def _share(difference: Tensor, of: Tensor) -> Tensor:
    return difference / of.abs().max().clamp_min(torch.finfo(of.dtype).tiny)


def _located_residual(record: LayerRecord, checkpoint: Checkpoint, labels: Callable[[int], Sequence[str]]) -> str:
    """A sentence that locates the largest error of the residual stream, or of the norm after it."""
    summed, normed = (error.nan_to_num_(nan=torch.inf) for error in _residual_errors(record, checkpoint))
    of_norm = bool(normed.max() > summed.max())
    batch, query, dimension = worst_index(normed if of_norm else summed)
    own = (record.normed if of_norm else record.summed)[batch, query, dimension]
    parallel = record.network_output is not None
    what = "the norm before its feed-forward network" if parallel else "the norm after its attention"
    expected, terms = "", [record.residual, record.output]
    if not of_norm:
        what = "the sum of its input and its attention's output"
        if record.network_output is not None:
            what, terms = "the sum of its input and the outputs of both its halves", [*terms, record.network_output]
        expected = f", not {' + '.join(f'{float(term[batch, query, dimension]):.6g}' for term in terms)}"
    return (
        f"All patterns and attention outputs agree, but layer {record.layer} does not pass them on: {what} is "
        f"{own:.6g} at query {query} ({labels(batch)[query]!r}), dimension {dimension}{expected} "
        f"(tolerance {checkpoint.tolerance.output:g} of the largest)."
    )


def worst_index(differences: Tensor) -> tuple[int, ...]:
    """The index of the largest difference, NaN being the largest; the tensor may be overwritten."""
    largest = upcast(differences).nan_to_num_(nan=torch.inf).argmax()
    return tuple(int(index) for index in torch.unravel_index(largest, differences.shape))
