"""Compares one layer's recomputed attention with the model's, chunk by chunk, and locates the worst difference."""

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
from attnviz.run.finite import not_finite, refuse_not_finite
from attnviz.run.record import LayerRecord
from attnviz.wording import counted

INPUTS = ("queries", "keys", "values")  # what is compared before the patterns
_SURE = 1.5  # multiple of the scale's limit at which an error is detected even if rounding hides part of it


@dataclass(frozen=True)
class LayerCheck:
    """How closely one layer's heads reproduce the model; errors are largest absolute differences."""

    layer: int
    heads_compared: int
    # Of a weight, over heads, queries and keys; under an implementation that returns no weights, of what the pattern
    # makes of random values between -1 and 1.
    pattern_error: float
    output_error: float  # of the output, as a share of output_scale
    output_scale: float  # the layer's largest absolute output in the model
    # Of the sum of residual and output, as a share of ``output_scale``, or of the norm of this sum, as a share of its
    # largest value.
    residual_error: float = 0.0
    input_error: float = 0.0  # of a query, key or value, as a share of the largest of its kind
    head_output_error: float = 0.0  # of a head's weighted values, before W_O, as a share of their largest
    # In half precision, of a weight as a share of its row's largest; on random values of the length of the row.
    row_error: float | None = None
    scale_error: float | None = None  # in half precision, see attnviz.reference.tolerances.ScaleFit
    scale_limit: float | None = None
    attention: str = "eager"  # the implementation that the model ran with


@dataclass(frozen=True)
class Verification:
    """The result of a verification in which every layer passed."""

    tolerance: Tolerance
    layers: tuple[LayerCheck, ...]

    # 4: queries, keys, values, patterns, outputs, and the sum and norm after each attention were compared, in a run
    # that changes nothing; what arrives at an attention is the model's own. 0: nothing was, since the weights were
    # given.
    level: int = 4

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
        return sum(check.heads_compared for check in self.layers)

    @property
    def pattern_error(self) -> float:
        return max(check.pattern_error for check in self.layers)

    @property
    def output_error(self) -> float:
        return max(check.output_error for check in self.layers)

    @property
    def scale_seen(self) -> float | None:
        """In half precision, the smallest error of a layer's scale that is always detected; else None."""
        limits = [check.scale_limit for check in self.layers if check.scale_limit is not None]
        return _SURE * max(limits) if limits else None


_ERRORS = (
    "pattern_error output_error output_scale residual_error input_error head_output_error row_error scale_error"
).split()


def worse_of(one: LayerCheck | None, other: LayerCheck) -> LayerCheck:
    """The larger errors of two checks of the same layer, and the smaller limit: an error has to pass both."""
    if one is None:
        return other

    def either(choose: Callable[..., float], name: str) -> float | None:
        values = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        return choose(*values) if len(values) == 2 else next(iter(values), None)

    worse: dict[str, Any] = {name: either(max, name) for name in _ERRORS}
    return replace(other, **worse, scale_limit=either(min, "scale_limit"))


def pattern_tolerance(attention: str, tolerance: Tolerance) -> float:
    """What a ``pattern_error`` may be, seen in the weights of eager attention, or on random values."""
    return tolerance.pattern if attention == "eager" else tolerance.probe


def within(check: LayerCheck, tolerance: Tolerance) -> bool:
    """Whether all errors are within the tolerance; NaN is not."""
    errors = check.output_error, check.residual_error, check.input_error, check.head_output_error
    row_limit = tolerance.row if check.attention == "eager" else tolerance.probe  # as a share of the row
    return (
        check.pattern_error <= pattern_tolerance(check.attention, tolerance)
        and (check.row_error is None or row_limit is None or check.row_error <= row_limit)
        and _scale_agrees(check)
        and all(error <= tolerance.output for error in errors)
    )


def _scale_agrees(check: LayerCheck) -> bool:
    return check.scale_error is None or check.scale_limit is None or check.scale_error <= check.scale_limit


@dataclass
class LayerComparison:
    """Running comparison of one layer; what differs most stays on the device until the pass has ended.

    With ``locating`` every step is looked at as it comes, to say where and why.
    """

    checkpoint: Checkpoint
    layer: int
    labels: Callable[[int], Sequence[str]]  # of the queries of a text of the batch
    keys: Callable[[int], Sequence[str]]  # labels of its keys
    attention: str
    locating: bool = False
    numbers: dict[str, list[Tensor]] = field(default_factory=dict)
    causes: list[str] = field(default_factory=list)  # sentences on queries, keys or values that differ before a pattern
    worst: tuple[float, str] = (0.0, "")
    n_heads: int = 0
    _scale: ScaleFit = field(default_factory=ScaleFit)

    @property
    def tolerance(self) -> Tolerance:
        return self.checkpoint.tolerance

    def _keep(self, name: str, values: Tensor) -> None:
        """Keep the smallest and the largest value, of which one is the largest absolute value; NaN is both."""
        self.numbers.setdefault(name, []).extend(torch.aminmax(values))

    def add_inputs(self, name: str, expected: Tensor, model_values: Tensor, why: Callable[[], str]) -> None:
        """Compare queries, keys or values, [batch, n_heads, n, d_head]; ``why`` returns what explains a difference."""
        if expected.shape != model_values.shape:
            raise VerificationError(
                f"layer {self.layer}: the reference gives {name} of shape {tuple(expected.shape)}, the model of shape "
                f"{tuple(model_values.shape)}."
            )
        difference = expected - model_values
        self._keep(name, difference)
        self._keep(f"scale of {name}", model_values)
        if not self.locating:
            return
        error = share(float(largest(difference)), float(largest(model_values)))
        if not error <= self.tolerance.output:
            refuse_not_finite(model_values, f"attention in layer {self.layer}")
            self.causes.append(f"The {name} differ before that, by {error:.2g} of the largest{why()}.")

    def add_rows(self, first: int, pattern: Tensor, model_rows: Tensor) -> bool:
        """Compare a chunk of rows of the patterns, [batch, n_heads, rows, n_keys]; with ``locating`` do they agree?

        Without ``locating`` the model's rows are overwritten, to save memory and time.
        """
        if pattern.shape != model_rows.shape:
            raise VerificationError(
                f"layer {self.layer}: the reference gives patterns of shape {tuple(pattern.shape)}, "
                f"the model of shape {tuple(model_rows.shape)}."
            )
        self.n_heads = pattern.shape[1]
        tolerance = self.tolerance
        if tolerance.row is not None:
            self._keep("row", self._scale.add(pattern, model_rows))
        if not self.locating:
            self._keep("pattern", model_rows.sub_(pattern))
            return True
        difference = pattern - model_rows
        self._keep("pattern", difference)
        error = float(largest(difference))
        if not error <= tolerance.pattern:
            refuse_not_finite(model_rows, f"attention in layer {self.layer}")
            self._locate(first, pattern, model_rows, difference.abs(), error / tolerance.pattern)
            return False
        if tolerance.row is not None:
            rows = row_error(pattern, model_rows)
            in_rows = float(rows.max())
            if not in_rows <= tolerance.row:
                self._locate(first, pattern, model_rows, rows, in_rows / tolerance.row)
                return False
        return True

    def add_probe(self, first: int, pattern: Tensor, random: Tensor, expected: Tensor, model_outputs: Tensor) -> bool:
        """Compare what a chunk of rows makes of random values, [batch, n_heads, rows, d_head]; do they agree?

        ``pattern`` is [batch, n_heads, rows, n_keys], ``random`` has as many rows as there are keys or more. Only with
        ``locating`` is the answer known.
        """
        if expected.shape != model_outputs.shape:
            raise VerificationError(
                f"layer {self.layer}: the model's attention gives outputs of shape {tuple(model_outputs.shape)}; "
                f"expected {tuple(expected.shape)}."
            )
        self.n_heads = pattern.shape[1]
        difference = model_outputs - expected
        self._keep("pattern", difference)
        if self.tolerance.row is not None:
            self._scale.add_probe(pattern, random, difference, torch.finfo(model_outputs.dtype).eps)
            lengths = torch.linalg.vector_norm(pattern, dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float).tiny)
            difference = difference / lengths  # of a row over many keys little is left but what is rounded
            self._keep("row", difference)
        if not self.locating:
            return True
        error = float(largest(difference))
        if error <= self.tolerance.probe:
            return True
        refuse_not_finite(model_outputs, f"attention in layer {self.layer}")
        ratio = error / self.tolerance.probe
        if ratio > self.worst[0]:
            batch, head, query, column = worst_index(difference.abs())
            model, reference = (float(x[batch, head, query, column]) for x in (model_outputs, expected))
            label = self.labels(batch)[first + query]
            message = (
                f"The largest difference is in layer {self.layer}, head {head} ({HeadId(self.layer, head)}), query "
                f"{first + query} ({label!r}): from random values instead of its own the model's attention "
                f"({self.attention}) makes {model:.6g}, the reference {reference:.6g} "
                f"(tolerance {self.tolerance.probe:g})."
            )
            self.worst = ratio, message
        return False

    def _locate(self, first: int, pattern: Tensor, model_rows: Tensor, differences: Tensor, ratio: float) -> None:
        """Keep the worst weight of all chunks, with a sentence that locates it."""
        if ratio <= self.worst[0]:
            return
        batch, head, query, key = worst_index(differences)
        query_label, key_label = self.labels(batch)[first + query], self.keys(batch)[key]
        where = (
            f"layer {self.layer}, head {head} ({HeadId(self.layer, head)}), query {first + query} "
            f"({query_label!r}), key {key} ({key_label!r})"
        )
        model_weight, weight = model_rows[batch, head, query, key], pattern[batch, head, query, key]
        weights = f"the model attends {model_weight:.6g}, the reference {weight:.6g}"
        tolerance = self.tolerance
        if abs(float(model_weight - weight)) <= tolerance.pattern:
            share = f"{ratio * (tolerance.row or 1):.2g} of the row's largest weight (tolerance {tolerance.row:g})"
            self.worst = ratio, f"In {where} {weights}: {share}."
        else:
            message = f"The largest difference is in {where}: {weights} (tolerance {tolerance.pattern:g})."
            self.worst = torch.inf if math.isnan(ratio) else ratio, message

    def add_outputs(
        self, record: LayerRecord, weighted: Tensor, output: Tensor, queries: Sequence[int] | None = None
    ) -> None:
        """Compare weighted values [batch, n, n_heads, d_head], output [batch, n, d_model], stream and norm after it.

        The latter two are compared with those that follow from the model's own output. With ``queries``, ``weighted``
        and ``output`` hold these positions alone.
        """
        at_rows = at_queries(record, queries)
        summed, normed = _residual_errors(record, self.checkpoint)
        self._keep("output", output - at_rows.output)
        self._keep("scale of output", record.output)
        self._keep("head output", weighted - at_rows.weighted)
        self._keep("scale of head output", record.weighted)
        self._keep("sum", summed)
        self._keep("scale of sum", record.summed)
        self._keep("norm", normed)
        self._keep("scale of norm", record.normed)

    @property
    def on_device(self) -> Tensor:
        """All numbers in one tensor, so that they are copied to the host at once."""
        of_chunks = [torch.aminmax(torch.stack(ends)) if len(ends) > 2 else ends for ends in self.numbers.values()]
        numbers = torch.stack([end for ends in of_chunks for end in ends])
        return numbers if self._scale.sums is None else torch.cat([numbers.double(), self._scale.sums.flatten()])

    def result(self, on_host: list[float], n_summed: int) -> LayerCheck:
        """The check of the layer, from its numbers on the host; sums have ``n_summed`` numbers a text.

        VerificationError: values of the model, or sums of their squares, are not finite.
        """
        ends = zip(on_host[::2], on_host[1::2], strict=False)
        numbers = {name: greatest(map(abs, both)) for name, both in zip(self.numbers, ends, strict=False)}
        dtype = self.checkpoint.dtype
        in_words = str(dtype).removeprefix("torch.")
        squared = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32)  # what norms compute in
        if not math.isfinite(numbers["scale of sum"]):
            raise not_finite(f"attention in layer {self.layer}", in_words)
        if numbers["scale of sum"] ** 2 > squared.max / n_summed:
            raise VerificationError(
                f"layer {self.layer} of the model has values up to {numbers['scale of sum']:.1e}, whose squares "
                f"overflow in {in_words}; expected a model whose norms can be computed: --dtype float64 may help. "
                "Nothing was written."
            )
        tiny = torch.finfo(dtype).tiny
        in_sum = numbers["sum"] / max(numbers["scale of output"], tiny)
        check = LayerCheck(
            layer=self.layer,
            heads_compared=self.n_heads,
            pattern_error=numbers["pattern"],
            output_error=share(numbers["output"], numbers["scale of output"]),
            output_scale=numbers["scale of output"],
            residual_error=greatest([in_sum, numbers["norm"] / max(numbers["scale of norm"], tiny)]),
            input_error=greatest(share(numbers[name], numbers[f"scale of {name}"]) for name in INPUTS),
            head_output_error=share(numbers["head output"], numbers["scale of head output"]),
            row_error=numbers.get("row"),
            attention=self.attention,
        )
        if self.tolerance.row is None:
            return check
        error, limit = self._scale.result(on_host[2 * len(self.numbers) :], self.tolerance.scale)
        return replace(check, scale_error=error, scale_limit=limit)

    def located(
        self, check: LayerCheck, record: LayerRecord, weighted: Tensor, output: Tensor, queries: Sequence[int] | None
    ) -> tuple[float, str]:
        """Error / tolerance of a check that is not within it, and the first step that differs."""
        positions = range(output.shape[1]) if queries is None else queries
        tolerance = self.tolerance.output
        at_rows = at_queries(record, queries)
        if self.worst[1]:
            return self.worst
        if not _scale_agrees(check):
            assert check.scale_error is not None
            assert check.scale_limit is not None
            return check.scale_error / check.scale_limit, (
                f"No single weight differs by more than rounding, but those of layer {self.layer} differ together, as "
                f"if its scores were off by {check.scale_error:.2g} of themselves (limit {check.scale_limit:.2g})."
            )
        if not check.output_error <= tolerance:
            batch, query, dimension = worst_index((output - at_rows.output).abs())
            return check.output_error / tolerance, (
                f"All patterns agree, but the attention output of layer {self.layer} (all {self.n_heads} heads "
                f"together) differs most at query {positions[query]} ({self.labels(batch)[positions[query]]!r}), "
                f"dimension {dimension}: the model gives {at_rows.output[batch, query, dimension]:.6g}, "
                f"the reference {output[batch, query, dimension]:.6g} "
                f"(tolerance {tolerance:g} of the layer's largest output, {check.output_scale:.6g})."
            )
        if not check.residual_error <= tolerance:
            return check.residual_error / tolerance, _located_residual(record, self.checkpoint, self.labels)
        if not check.head_output_error <= tolerance:
            batch, query, head, dimension = worst_index((weighted - at_rows.weighted).abs())
            return check.head_output_error / tolerance, (
                f"All patterns and attention outputs agree, but head {head} ({HeadId(self.layer, head)}) gives "
                f"{at_rows.weighted[batch, query, head, dimension]:.6g} before W_O at query {positions[query]} "
                f"({self.labels(batch)[positions[query]]!r}), dimension {dimension}, the reference "
                f"{weighted[batch, query, head, dimension]:.6g} (tolerance {tolerance:g} of the largest)."
            )
        return check.input_error / tolerance, f"All patterns and outputs of layer {self.layer} agree."


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
    """The record with input, output and weighted values of the attention at some queries alone."""
    if queries is None:
        return record
    index = torch.tensor(queries, device=record.output.device)
    of_attention = {name: getattr(record, name)[:, index] for name in ("attention_input", "output", "weighted")}
    return replace(record, **of_attention)


def _residual_errors(record: LayerRecord, checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
    """Errors of the sum of residual and output, beyond its rounding, and of its norm, [batch, n, d_model] each."""
    norm = None if record.norm is None else checkpoint.norm(record.norm)
    added = record.output
    if record.output_norm is not None:
        added = checkpoint.norm(record.output_norm)(added)
    if record.network_output is not None:
        added = record.network_output + added
    multiplier = checkpoint.architecture.residual_multiplier(checkpoint.config)
    expected = record.residual + (added if multiplier == 1 else added * multiplier)
    if isinstance(norm, LayerNorm):
        x = record.norm_input
        expected_norm = layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.epsilon)
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
        (error.abs() / largest(scale).clamp_min(torch.finfo(scale.dtype).tiny)).nan_to_num_(nan=torch.inf)
        for error, scale in errors
    )
    of_norm = bool(normed.max() > summed.max())
    batch, query, dimension = worst_index(normed if of_norm else summed)
    model_value = (record.normed if of_norm else record.summed)[batch, query, dimension]
    parallel = record.network_output is not None
    what = "the norm before its feed-forward network" if parallel else "the norm after its attention"
    expected = ""
    terms = [record.residual, record.output]
    if not of_norm:
        what = "the sum of its input and its attention's output"
        if record.network_output is not None:
            what, terms = "the sum of its input and the outputs of both its halves", [*terms, record.network_output]
        expected = f", not {' + '.join(f'{float(term[batch, query, dimension]):.6g}' for term in terms)}"
    return (
        f"All patterns and attention outputs agree, but layer {record.layer} does not pass them on: {what} is "
        f"{model_value:.6g} at query {query} ({labels(batch)[query]!r}), dimension {dimension}{expected} "
        f"(tolerance {checkpoint.tolerance.output:g} of the largest)."
    )


def worst_index(differences: Tensor) -> tuple[int, ...]:
    """The index of the largest difference, NaN being the largest; the tensor may be overwritten."""
    largest = upcast(differences).nan_to_num_(nan=torch.inf).argmax()
    return tuple(int(index) for index in torch.unravel_index(largest, differences.shape))
