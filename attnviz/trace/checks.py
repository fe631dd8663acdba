"""Compares one layer's recomputed attention with the model's, block by block, and locates the worst difference."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.reference.attention import LayerNorm, upcast
from attnviz.reference.tolerances import ScaleFit, Tolerance, row_error
from attnviz.trace.recorder import LayerRecord, not_finite, refuse_not_finite
from attnviz.wording import counted

INPUTS = ("queries", "keys", "values")
"""What is compared before the patterns."""

_SURE = 1.5  # multiple of the scale's limit at which an error is detected even if rounding hides part of it


@dataclass(frozen=True)
class LayerCheck:
    """How closely one layer's heads reproduce the model.

    Attributes:
        pattern_error: largest absolute difference of a weight, over heads, queries and keys; under an implementation
            that returns no weights, of what the pattern makes of random values between -1 and 1.
        output_error: largest absolute difference of the output divided by ``output_scale``.
        output_scale: the layer's largest absolute output in the model.
        residual_error: largest difference of the sum of residual and output, as a share of ``output_scale``, or of the
            norm of this sum, as a share of its largest value.
        input_error: largest difference of a query, key or value, as a share of the largest of its kind.
        head_output_error: largest difference of a head's weighted values, before W_O, as a share of their largest.
        row_error: in half precision, the largest difference of a weight as a share of its row's largest; on random
            values, as a share of the length of the row.
        scale_error, scale_limit: in half precision, see :class:`attnviz.reference.tolerances.ScaleFit`.
        attention: the implementation that the model ran with.
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
    attention: str = "eager"


@dataclass(frozen=True)
class Verification:
    """The result of a verification in which every layer passed."""

    tolerance: Tolerance
    layers: tuple[LayerCheck, ...]

    level: int = 4
    """4: queries, keys, values, patterns, outputs, and the sum and norm after each attention were compared, in a run
    that changes nothing; what arrives at an attention is the model's own. 0: nothing was, since the weights were
    given."""

    def __repr__(self) -> str:
        heads = f"{counted(self.heads_compared, 'head')} in {counted(len(self.layers), 'layer')}"
        return f"<Verification of {heads}, level {self.level} of 4: patterns within {self.pattern_error:.1e}>"

    @property
    def attention(self) -> str:
        """The implementation of attention that the model ran with, in transformers' words."""
        return next((check.attention for check in self.layers), "eager")

    @property
    def pattern_tolerance(self) -> float:
        """What :attr:`pattern_error` may be."""
        return pattern_tolerance(self.attention, self.tolerance)

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


def pattern_tolerance(attention: str, tolerance: Tolerance) -> float:
    """What a ``pattern_error`` may be, seen in the weights of eager attention, or on random values."""
    return tolerance.pattern if attention == "eager" else tolerance.probe


def within(check: LayerCheck, tolerance: Tolerance) -> bool:
    """Whether all errors are within the tolerance; NaN is not."""
    ours = check.output_error, check.residual_error, check.input_error, check.head_output_error
    row_limit = tolerance.row if check.attention == "eager" else tolerance.probe  # as a share of the row
    return (
        check.pattern_error <= pattern_tolerance(check.attention, tolerance)
        and (check.row_error is None or row_limit is None or check.row_error <= row_limit)
        and (check.scale_error is None or check.scale_limit is None or check.scale_error <= check.scale_limit)
        and all(error <= tolerance.output for error in ours)
    )


@dataclass
class LayerComparison:
    """Running comparison of one layer, over blocks; ``labels`` and ``keys`` name the tokens of a text of the batch.

    What differs most stays on the device, in :attr:`numbers`, until the pass has ended. With ``locating`` every step is
    looked at as it comes, to say where and why: ``causes`` are then sentences on queries, keys or values that differ
    before any pattern does.
    """

    checkpoint: Checkpoint
    layer: int
    labels: Callable[[int], Sequence[str]]
    keys: Callable[[int], Sequence[str]]
    attention: str
    locating: bool = False
    numbers: dict[str, list[Tensor]] = field(default_factory=dict)
    causes: list[str] = field(default_factory=list)
    worst: tuple[float, str] = (0.0, "")
    n_heads: int = 0
    _scale: ScaleFit = field(default_factory=ScaleFit)

    @property
    def tolerance(self) -> Tolerance:
        """The checkpoint's tolerance."""
        return self.checkpoint.tolerance

    def _keep(self, name: str, values: Tensor) -> None:
        """Keep the smallest and the largest value, of which one is the largest absolute value; NaN is both."""
        self.numbers.setdefault(name, []).extend(torch.aminmax(values))

    def add_inputs(self, name: str, expected: Tensor, own: Tensor, why: Callable[[], str]) -> None:
        """Compare queries, keys or values, [batch, n_heads, n, d_head]; ``why`` returns what explains a difference."""
        if expected.shape != own.shape:
            raise VerificationError(
                f"layer {self.layer}: the reference gives {name} of shape {tuple(expected.shape)}, the model of shape "
                f"{tuple(own.shape)}."
            )
        difference = expected - own
        self._keep(name, difference)
        self._keep(f"scale of {name}", own)
        if not self.locating:
            return
        error = share(float(largest(difference)), float(largest(own)))
        if not error <= self.tolerance.output:
            refuse_not_finite(own, f"attention in layer {self.layer}")
            self.causes.append(f"The {name} differ before that, by {error:.2g} of the largest{why()}.")

    def add_rows(self, first: int, pattern: Tensor, own: Tensor) -> bool:
        """Compare a block of rows of the patterns, [batch, n_heads, rows, n_keys]; with ``locating`` do they agree?

        Without ``locating`` the model's ``own`` rows are overwritten, to save memory and time.
        """
        if pattern.shape != own.shape:
            raise VerificationError(
                f"layer {self.layer}: the reference gives patterns of shape {tuple(pattern.shape)}, "
                f"the model of shape {tuple(own.shape)}."
            )
        self.n_heads = pattern.shape[1]
        if self.tolerance.row is not None:
            self._keep("row", self._scale.add(pattern, own))
        if not self.locating:
            self._keep("pattern", own.sub_(pattern))
            return True
        return self._located_rows(first, pattern, own)

    def add_probe(self, first: int, pattern: Tensor, random: Tensor, expected: Tensor, own: Tensor) -> bool:
        """Compare what a block of rows makes of random values, [batch, n_heads, rows, d_head]; do they agree?

        ``pattern`` is [batch, n_heads, rows, n_keys], ``random`` has as many rows as there are keys or more. Only with
        ``locating`` is the answer known.
        """
        if expected.shape != own.shape:
            raise VerificationError(
                f"layer {self.layer}: the model's attention gives outputs of shape {tuple(own.shape)}; expected "
                f"{tuple(expected.shape)}."
            )
        self.n_heads = pattern.shape[1]
        difference = own - expected
        self._keep("pattern", difference)
        if self.tolerance.row is not None:
            self._scale.add_probe(pattern, random, difference, torch.finfo(own.dtype).eps)
            lengths = torch.linalg.vector_norm(pattern, dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float).tiny)
            difference = difference / lengths  # of a row over many keys little is left but what is rounded
            self._keep("row", difference)
        if not self.locating:
            return True
        error = float(largest(difference))
        if error <= self.tolerance.probe:
            return True
        refuse_not_finite(own, f"attention in layer {self.layer}")
        ratio = error / self.tolerance.probe
        if ratio > self.worst[0]:
            batch, head, query, column = worst_index(difference.abs())
            model, reference = own[batch, head, query, column], expected[batch, head, query, column]
            label = self.labels(batch)[first + query]
            message = (
                f"The largest difference is in layer {self.layer}, head {head} ({HeadId(self.layer, head)}), query "
                f"{first + query} ({label!r}): from random values instead of its own the model's attention "
                f"({self.attention}) makes {model:.6g}, the reference {reference:.6g} "
                f"(tolerance {self.tolerance.probe:g})."
            )
            self.worst = ratio, message
        return False

    def _located_rows(self, first: int, pattern: Tensor, own: Tensor) -> bool:
        """Whether the rows agree; if not, where they differ most is kept."""
        tolerance = self.tolerance
        difference = pattern - own
        self._keep("pattern", difference)
        error = float(largest(difference))
        agrees = error <= tolerance.pattern
        if agrees and tolerance.row is not None:
            rows = row_error(pattern, own)
            in_rows = float(rows.max())
            if not in_rows <= tolerance.row:
                self._locate(first, pattern, own, rows, in_rows / tolerance.row)
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

    def add_outputs(
        self, record: LayerRecord, weighted: Tensor, output: Tensor, queries: Sequence[int] | None = None
    ) -> None:
        """Compare weighted values, output, and the residual stream and norm after the layer.

        ``weighted`` are the heads' weighted values, [batch, n, n_heads, d_head], ``output`` is [batch, n, d_model].
        Residual stream and norm are compared with those that follow from the model's own output. With ``queries``,
        ``weighted`` and ``output`` hold these positions alone.
        """
        own = at_queries(record, queries)
        self._keep("output", output - own.output)
        self._keep("scale of output", record.output)
        self._keep("head output", weighted - own.weighted)
        self._keep("scale of head output", record.weighted)
        summed, normed = _residual_errors(record, self.checkpoint)
        self._keep("sum", summed)
        self._keep("scale of sum", record.summed)
        self._keep("norm", normed)
        self._keep("scale of norm", record.normed)

    @property
    def on_device(self) -> Tensor:
        """All numbers in one tensor, so that they are copied to the host at once."""
        of_blocks = [torch.aminmax(torch.stack(ends)) if len(ends) > 2 else ends for ends in self.numbers.values()]
        numbers = torch.stack([end for ends in of_blocks for end in ends])
        return numbers if self._scale.sums is None else torch.cat([numbers.double(), self._scale.sums.flatten()])

    def result(self, on_host: list[float], n_summed: int) -> LayerCheck:
        """The check of the layer, from its numbers on the host; sums have ``n_summed`` numbers a text.

        Raises:
            VerificationError: values of the model, or sums of their squares, are not finite.
        """
        ends = zip(on_host[::2], on_host[1::2], strict=False)
        numbers = {name: greatest(map(abs, each)) for name, each in zip(self.numbers, ends, strict=False)}
        self._refuse_overflow(numbers["scale of sum"], n_summed)
        tiny = torch.finfo(self.checkpoint.dtype).tiny
        check = LayerCheck(
            self.layer,
            self.n_heads,
            numbers["pattern"],
            share(numbers["output"], numbers["scale of output"]),
            numbers["scale of output"],
            residual_error=greatest(
                numbers[name] / max(numbers[f"scale of {of}"], tiny)
                for name, of in (("sum", "output"), ("norm", "norm"))
            ),
            input_error=greatest(share(numbers[name], numbers[f"scale of {name}"]) for name in INPUTS),
            head_output_error=share(numbers["head output"], numbers["scale of head output"]),
            row_error=numbers.get("row"),
            attention=self.attention,
        )
        if self.tolerance.row is None:
            return check
        error, limit = self._scale.result(on_host[2 * len(self.numbers) :], self.tolerance.scale)
        return replace(check, scale_error=error, scale_limit=limit)

    def _refuse_overflow(self, largest: float, n_summed: int) -> None:
        dtype = str(self.checkpoint.dtype).removeprefix("torch.")
        wide = torch.float64 if self.checkpoint.dtype == torch.float64 else torch.float32
        if not math.isfinite(largest):
            raise not_finite(f"attention in layer {self.layer}", dtype)
        if largest**2 > torch.finfo(wide).max / n_summed:
            raise VerificationError(
                f"layer {self.layer} of the model has values up to {largest:.1e}, whose squares overflow in {dtype}; "
                "expected a model whose norms can be computed: --dtype float64 may help. Nothing was written."
            )

    def located(
        self,
        check: LayerCheck,
        record: LayerRecord,
        weighted: Tensor,
        output: Tensor,
        queries: Sequence[int] | None = None,
    ) -> tuple[float, str]:
        """Error / tolerance of a check that is not within it, and where; arguments as for :meth:`add_outputs`."""
        positions = range(output.shape[1]) if queries is None else queries
        ratio, where = self._explained(check, at_queries(record, queries), weighted, output, positions)
        if not where:
            ratio = check.residual_error / self.tolerance.output
            where = _located_residual(record, self.checkpoint, self.labels)
        return ratio, " ".join([where, *self.causes])

    def _explained(
        self, check: LayerCheck, record: LayerRecord, weighted: Tensor, output: Tensor, positions: Sequence[int]
    ) -> tuple[float, str]:
        """The first step that differs; an empty sentence if that is the residual stream or norm after the layer."""
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


def largest(values: Tensor) -> Tensor:
    """The largest absolute value, on the device; NaN if there is one."""
    least, most = torch.aminmax(values)  # an eighth of the time of a norm on a processor
    return torch.maximum(most, -least)


def greatest(errors: Iterable[float]) -> float:
    """The largest, NaN being larger than all."""
    return max(errors, key=lambda error: (math.isnan(error), error))


def share(difference: float, scale: float) -> float:
    """A difference as a share of a scale, or as it is where that is 0."""
    return difference / (scale or 1.0)


def at_queries(record: LayerRecord, queries: Sequence[int] | None) -> LayerRecord:
    """The record with output and weighted values at some queries alone."""
    if queries is None:
        return record
    index = torch.tensor(queries, device=record.output.device)
    return replace(record, output=record.output[:, index], weighted=record.weighted[:, index])


def _residual_errors(record: LayerRecord, checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
    """Errors of the sum of residual and output, beyond its rounding, and of its norm, [batch, n, d_model] each."""
    norm, added = None if record.norm is None else checkpoint.norm(record.norm), record.output
    if record.output_norm is not None:
        added = checkpoint.norm(record.output_norm)(added)
    if record.network_output is not None:
        added = record.network_output + added
    multiplier = checkpoint.architecture.residual_multiplier(checkpoint.config)
    expected = record.residual + (added if multiplier == 1 else added * multiplier)
    if isinstance(norm, LayerNorm):
        kept = record.norm_input
        expected_norm = layer_norm(kept, kept.shape[-1:], norm.weight, norm.bias, norm.epsilon)
    else:
        expected_norm = record.norm_input if norm is None else norm(record.norm_input)
    size = expected.abs()
    if record.network_output is not None:  # the three may be added in any order
        size = size + record.residual.abs() + record.network_output.abs()
    summed = (record.summed - expected).abs_().sub_(size, alpha=2 * torch.finfo(expected.dtype).eps)
    return summed.clamp_min_(0), record.normed - expected_norm


def _located_residual(record: LayerRecord, checkpoint: Checkpoint, labels: Callable[[int], Sequence[str]]) -> str:
    """A sentence that locates the largest error of the residual stream, or of the norm after it."""
    errors = zip(_residual_errors(record, checkpoint), (record.output, record.normed), strict=True)
    summed, normed = (
        (error.abs() / largest(of).clamp_min(torch.finfo(of.dtype).tiny)).nan_to_num_(nan=torch.inf)
        for error, of in errors
    )
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
