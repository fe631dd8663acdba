"""Compares one layer's recomputed attention with the model's, chunk by chunk, and locates the worst difference."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from attnviz.errors import VerificationError
from attnviz.inputs.words import vocabulary_labels
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, letter_of
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

    @property
    def scale_agrees(self) -> bool:
        return self.scale_error is None or self.scale_limit is None or self.scale_error <= self.scale_limit

    def within(self, tolerance: Tolerance) -> bool:
        """Whether all errors are within the tolerance; NaN is not."""
        errors = self.output_error, self.residual_error, self.input_error, self.head_output_error
        row_limit = tolerance.row if self.attention == "eager" else tolerance.probe  # as a share of the row
        return (
            self.pattern_error <= pattern_tolerance(self.attention, tolerance)
            and (self.row_error is None or row_limit is None or self.row_error <= row_limit)
            and self.scale_agrees
            and all(error <= tolerance.output for error in errors)
        )


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


def pattern_tolerance(attention: str, tolerance: Tolerance) -> float:
    """What a ``pattern_error`` may be, seen in the weights of eager attention, or on random values."""
    return tolerance.pattern if attention == "eager" else tolerance.probe


def worse_of(one: LayerCheck | None, other: LayerCheck) -> LayerCheck:
    """The larger errors of two checks of the same layer, and the smaller limit: an error has to pass both."""
    if one is None:
        return other
    worse = dict[str, float | None]()
    for name in vars(other):
        if name.endswith(("_error", "_limit", "_scale")):
            choose = min if name == "scale_limit" else max
            known = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
            worse[name] = choose(known, default=None)
    return replace(other, **worse)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Step:
    """A step of a layer, or some rows of it, as the model and as the reference computes it, [batch, ..]."""

    model: Tensor
    expected: Tensor
    error: Tensor
    axes: Sequence[str]  # those after the batch: head, query, key, ..
    positions: Sequence[int]  # of the queries
    scale: Tensor | None = None  # of whose largest absolute value errors are shares; None where they are absolute


# By step, what the sentence begins with that says where the step differs.
_SENTENCES = {
    "pattern": "The attention",
    "row": "The attention",
    "output": "All patterns agree, but the attention output of all heads together",
    "sum": "All patterns and attention outputs agree, but what the layer passes on, the sum with its input,",
    "norm": "All patterns and attention outputs agree, but the norm of what the layer passes on",
    "head output": "All patterns and attention outputs agree, but what a head gives before W_O",
}


# What the error of a step is a share of, in the same sentence.
_SHARE_OF = {
    "row": " of the row's largest weight",
    **dict.fromkeys(("output", "sum", "norm", "head output"), " of the largest"),
}


@dataclass
class LayerComparison:
    """Running comparison of one layer; what differs most stays on the device until the pass has ended.

    With ``locating`` every step is looked at as it comes, to say where and why.
    """

    checkpoint: Checkpoint
    layer: int
    attention: str
    inputs: Mapping[str, Tensor]  # what the model read
    locating: bool = False
    causes: list[str] = field(default_factory=list)  # sentences on queries, keys or values that differ before a pattern
    places: dict[str, tuple[float, str]] = field(default_factory=dict)  # by step: error / tolerance, and a sentence
    n_heads: int = 0
    n_summed: int = 0  # numbers of a text in the residual stream
    _numbers: dict[str, list[Tensor]] = field(default_factory=dict)
    _scale: ScaleFit = field(default_factory=ScaleFit)

    @property
    def tolerance(self) -> Tolerance:
        return self.checkpoint.tolerance

    def _keep(self, name: str, difference: Tensor, scale: Tensor | None = None) -> None:
        """Keep the smallest and the largest value, of which one is the largest absolute value; NaN is both."""
        self._numbers.setdefault(name, []).extend(torch.aminmax(difference))
        if scale is not None:
            self._keep(f"scale of {name}", scale)

    def _compare_shapes(self, what: str, expected: Tensor, model_values: Tensor) -> None:
        if expected.shape != model_values.shape:
            raise VerificationError(
                f"layer {self.layer}: the reference gives {what} of shape {tuple(expected.shape)}, the model of shape "
                f"{tuple(model_values.shape)}."
            )

    def add_inputs(self, name: str, expected: Tensor, model_values: Tensor, why: Callable[[], str]) -> None:
        """Compare queries, keys or values, [batch, n_heads, n, d_head]; ``why`` returns what explains a difference."""
        self._compare_shapes(name, expected, model_values)
        difference = expected - model_values
        self._keep(name, difference, model_values)
        if not self.locating:
            return
        error = share(float(largest(difference)), float(largest(model_values)))
        if not error <= self.tolerance.output:
            refuse_not_finite(model_values, f"attention in layer {self.layer}")
            self.causes.append(f"The {name} differ before that, by {error:.2g} of the largest{why()}.")

    def add_rows(
        self, first: int, pattern: Tensor, expected: Tensor, model_rows: Tensor, random: Tensor | None
    ) -> bool:
        """Compare a chunk of rows of the patterns, [batch, n_heads, rows, n_keys]; with ``locating`` do they agree?

        ``expected`` and ``model_rows`` are these rows themselves, or what they make of ``random`` values, [batch,
        n_heads, rows, d_head]; ``random`` has as many rows as there are keys or more. Without ``locating`` the model's
        own weights are overwritten, to save memory and time.
        """
        self._compare_shapes("patterns" if random is None else "outputs of attention", expected, model_rows)
        self.n_heads, tolerance, agree = pattern.shape[1], self.tolerance, True
        limit = tolerance.pattern if random is None else tolerance.probe
        axes = ("head", "query", "key" if random is None else "number")
        chunk = Step(model_rows, expected, model_rows, axes, range(first, first + pattern.shape[2]))
        if random is None and tolerance.row is not None:
            self._keep("row", self._scale.add(pattern, model_rows))
            if self.locating:
                agree = self._locate("row", replace(chunk, error=row_error(pattern, model_rows)), tolerance.row)
        overwrites = random is None and not self.locating
        difference = model_rows.sub_(expected) if overwrites else model_rows - expected
        self._keep("pattern", difference)
        if random is not None and tolerance.row is not None:
            self._scale.add_probe(pattern, random, difference, torch.finfo(model_rows.dtype).eps)
            lengths = torch.linalg.vector_norm(pattern, dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float).tiny)
            difference = difference / lengths  # of a row over many keys little is left but what is rounded
            self._keep("row", difference)
        return self._locate("pattern", replace(chunk, error=difference), limit) and agree

    def add_steps(self, steps: Mapping[str, Step]) -> None:
        """Compare the steps after the patterns, see :func:`steps_of`."""
        for name, step in steps.items():
            self._keep(name, step.error, step.scale)
            in_shares = replace(step, scale=steps["output"].scale) if name == "sum" else step
            self._locate(name, in_shares, self.tolerance.output)
        self.n_summed = steps["sum"].model.shape[1:].numel()

    def _locate(self, name: str, step: Step, limit: float) -> bool:
        """With ``locating``, whether a step is within a limit; where its worst chunk is, is kept if it is not."""
        if not self.locating:
            return True
        error = share(float(largest(step.error)), 1.0 if step.scale is None else float(largest(step.scale)))
        if error <= limit:
            return True
        refuse_not_finite(step.model, f"attention in layer {self.layer}")
        ratio = math.inf if math.isnan(error) else error / limit
        if ratio > self.places.get(name, (0.0, ""))[0]:
            self.places[name] = (
                ratio,
                f"{_SENTENCES[name]} differs most in {self._place(step)} ({error:.2g}{_SHARE_OF.get(name, '')}, under "
                f"{self.attention} attention; tolerance {limit:g}).",
            )
        return False

    def _place(self, step: Step) -> str:
        """Where the worst error of a step is, and what model and reference have there."""
        index = worst_index(step.error.abs())
        text, *numbers = index
        words = [f"layer {self.layer}"]
        for axis, number in zip(step.axes, numbers, strict=True):
            if axis == "head":
                words.insert(1, f"head {number} ({HeadId(self.layer, number)})")
            elif axis == "query":
                query = step.positions[number]
                words.append(f"query {query} ({self._label(text, query, 'DX')!r})")
            elif axis == "key":
                words.append(f"key {number} ({self._label(text, number, 'D')!r})")
            else:
                words.append(f"{axis} {number}")
        model, expected = step.model[index], step.expected[index]
        return f"{', '.join(words)}: the model has {model:.6g}, the reference {expected:.6g}"

    def _label(self, text: int, position: int, decoder: str) -> str:
        """A token that the model read, or its position where it read none (sounds)."""
        ids = self.inputs.get("decoder_input_ids" if letter_of(self.layer) in decoder else "input_ids")
        if ids is None:
            return str(position)
        return vocabulary_labels(self.checkpoint.tokenizer, [int(ids[text, position])])[0]

    @property
    def on_device(self) -> Tensor:
        """All numbers in one tensor, so that they are copied to the host at once."""
        of_chunks = [torch.aminmax(torch.stack(ends)) if len(ends) > 2 else ends for ends in self._numbers.values()]
        numbers = torch.stack([end for ends in of_chunks for end in ends])
        return numbers if self._scale.sums is None else torch.cat([numbers.double(), self._scale.sums.flatten()])

    def result(self, on_host: list[float]) -> LayerCheck:
        """The check of the layer, from its numbers on the host.

        VerificationError: values of the model, or sums of their squares, are not finite.
        """
        ends = zip(on_host[::2], on_host[1::2], strict=False)
        numbers = {name: greatest(map(abs, both)) for name, both in zip(self._numbers, ends, strict=False)}
        dtype = self.checkpoint.dtype
        in_words = str(dtype).removeprefix("torch.")
        squared = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32)  # what norms compute in
        if not math.isfinite(numbers["scale of sum"]):
            raise not_finite(f"attention in layer {self.layer}", in_words)
        if numbers["scale of sum"] ** 2 > squared.max / self.n_summed:
            raise VerificationError(
                f"layer {self.layer} of the model has values up to {numbers['scale of sum']:.1e}, whose squares "
                f"overflow in {in_words}; expected a model whose norms can be computed: --dtype float64 may help. "
                "Nothing was written."
            )
        tiny, scales = torch.finfo(dtype).tiny, {name: numbers.get(f"scale of {name}", 1.0) for name in numbers}
        check = LayerCheck(
            layer=self.layer,
            heads_compared=self.n_heads,
            pattern_error=numbers["pattern"],
            output_error=share(numbers["output"], scales["output"]),
            output_scale=scales["output"],
            residual_error=greatest(
                numbers[name] / max(scales[of], tiny) for name, of in (("sum", "output"), ("norm", "norm"))
            ),
            input_error=greatest(share(numbers[name], scales[name]) for name in INPUTS),
            head_output_error=share(numbers["head output"], scales["head output"]),
            row_error=numbers.get("row"),
            attention=self.attention,
        )
        if self.tolerance.row is None:
            return check
        error, limit = self._scale.result(on_host[2 * len(self._numbers) :], self.tolerance.scale)
        return replace(check, scale_error=error, scale_limit=limit)

    def located(self, check: LayerCheck) -> tuple[float, str]:
        """Error / tolerance of a check that is not within it, and the first step that differs."""
        of_rows = [self.places.pop(name) for name in ("pattern", "row") if name in self.places]
        if of_rows:
            return max(of_rows)
        if not check.scale_agrees:
            assert check.scale_error is not None
            assert check.scale_limit is not None
            return check.scale_error / check.scale_limit, (
                f"No single weight differs by more than rounding, but those of layer {self.layer} differ together, as "
                f"if its scores were off by {check.scale_error:.2g} of themselves (limit {check.scale_limit:.2g})."
            )
        agree = check.input_error / self.tolerance.output, f"All patterns and outputs of layer {self.layer} agree."
        return next(iter(self.places.values()), agree)


def steps_of(
    record: LayerRecord, checkpoint: Checkpoint, weighted: Tensor, output: Tensor, queries: Sequence[int] | None
) -> dict[str, Step]:
    """The steps after the patterns: output, the sum with the residual, its norm, and weighted values of heads.

    ``weighted`` [batch, n, n_heads, d_head] and ``output`` [batch, n, d_model] are the reference's, with ``queries`` of
    these positions alone. Sum and norm are those that follow from the model's own output; an error of the sum is what
    is beyond its rounding. Errors of the sum are shares of the output.
    """
    norm = None if record.norm is None else checkpoint.norm(record.norm)
    added = record.output
    if record.output_norm is not None:
        added = checkpoint.norm(record.output_norm)(added)
    if record.network_output is not None:
        added = record.network_output + added
    multiplier = checkpoint.residual_multiplier
    summed = record.residual + (added if multiplier == 1 else added * multiplier)
    normed = x = record.norm_input
    if isinstance(norm, LayerNorm):
        normed = layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.epsilon)
    elif norm is not None:
        normed = norm(x)
    size = summed.abs()
    if record.network_output is not None:  # the three may be added in any order
        size = size + record.residual.abs() + record.network_output.abs()
    beyond = (record.summed - summed).abs_().sub_(size, alpha=2 * torch.finfo(summed.dtype).eps).clamp_min_(0)
    every = range(record.output.shape[1])
    chosen: Sequence[int] = every if queries is None else queries
    model_output, model_weighted = record.output, record.weighted
    if queries is not None:
        index = torch.tensor(queries, device=output.device)
        model_output, model_weighted = model_output[:, index], model_weighted[:, index]
    axes = "query", "dimension"
    by_head = "query", "head", "dimension"
    return {
        "output": Step(model_output, output, output - model_output, axes, chosen, record.output),
        "sum": Step(record.summed, summed, beyond, axes, every, record.summed),
        "norm": Step(record.normed, normed, record.normed - normed, axes, every, record.normed),
        "head output": Step(model_weighted, weighted, weighted - model_weighted, by_head, chosen, record.weighted),
    }


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


def worst_index(differences: Tensor) -> tuple[int, ...]:
    """The index of the largest difference, NaN being the largest; the tensor may be overwritten."""
    largest = upcast(differences).nan_to_num_(nan=torch.inf).argmax()
    return tuple(int(index) for index in torch.unravel_index(largest, differences.shape))
