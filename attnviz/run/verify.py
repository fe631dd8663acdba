"""Recompute every head with the reference attention and compare it with the model's own, chunk by chunk."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from attnviz.errors import UsageError, VerificationError
from attnviz.inputs.prompt import Prompt
from attnviz.locks import alone
from attnviz.memory import row_blocks
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import letter_of
from attnviz.models.offloading import running_device
from attnviz.progress import Progress, tell
from attnviz.reference import attention
from attnviz.reference.attention import HeadParameters, Scoring
from attnviz.reference.tolerances import Tolerance
from attnviz.run.checks import INPUTS, LayerCheck, LayerComparison, Step, Verification, largest, steps_of
from attnviz.run.finite import not_finite
from attnviz.run.patterns import LayerHeads, MaskCache
from attnviz.run.record import (
    AttentionCall,
    LayerRecord,
    Observer,
    OnLayer,
    Rows,
    default_memory,
    inference,
    random_numbers,
    random_values,
    record_attention,
)
from attnviz.run.sites import COMPUTED, at_named, site_of, what_to_try

_SAME_WEIGHTS = 1e-4  # tolerance of a fingerprint: recomputed from the same weights, it differs by rounding alone


@dataclass(frozen=True)
class PendingCheck:
    """The check of a layer whose numbers are still on the device: its pass raises at the end unless all agree."""

    layer: int


@dataclass(frozen=True)
class VerifiedRows:
    """Query rows of a layer's reference patterns, each weight compared with the model's own.

    During the pass the check is pending, and nothing of them may be used unless the pass ends without an error.
    Construction fails if a ``check`` that is known is not within the tolerance.
    """

    check: LayerCheck | PendingCheck
    tolerance: Tolerance
    pattern: Tensor  # [batch, n_heads, rows, n_keys]; keys after the last of them are hidden from all these rows
    first: int  # the first query
    n_queries: int  # of the whole layer, as n_keys
    n_keys: int
    end: int = 0  # past the last query that is verified; 0 for all

    @property
    def in_float32(self) -> Tensor:
        """The pattern in float32 at least, so that sums over it are exact enough for statistics."""
        return attention.upcast(self.pattern)

    @property
    def layer(self) -> int:
        return self.check.layer

    @property
    def last(self) -> bool:
        """Whether they are the layer's last."""
        return self.first + self.pattern.shape[2] == (self.end or self.n_queries)

    @classmethod
    def of(
        cls,
        heads: LayerHeads,
        check: LayerCheck | PendingCheck,
        tolerance: Tolerance,
        pattern: Tensor,
        first: int,
        queries: Sequence[int] | None,
    ) -> "VerifiedRows":
        """Rows of a pattern of these heads, where all queries are verified, or some."""
        n_queries, n_keys = heads.query.shape[-2], heads.key.shape[-2]
        end = n_queries if queries is None else queries[-1] + 1
        return cls(check, tolerance, pattern, first, n_queries, n_keys, end)

    def __post_init__(self) -> None:
        if isinstance(self.check, PendingCheck):
            return
        if not self.check.within(self.tolerance) or self.check.heads_compared != self.pattern.shape[1]:
            raise VerificationError(f"layer {self.check.layer} did not verify: {self.check}")


@dataclass(eq=False)
class VerifiedAttention:
    """The verified heads of one text: patterns are recomputed on demand, not kept.

    Inputs and outputs of the layers stay in memory, and masks that they share. A recomputed layer must match the
    fingerprint taken at verification, so that a changed model is noticed. Made by :func:`verify_attention`.
    """

    checkpoint: Checkpoint
    tokens: Prompt
    verification: Verification
    memory: float | None  # bytes that a chunk of rows may take
    _kept: "dict[int, _KeptLayer]"
    _final: Tensor  # hidden states, [1, n, d_model]
    target: Prompt | None = None  # of an encoder-decoder, what its decoder reads
    queries: tuple[int, ...] | None = None  # those that were verified, in order; None for all
    _mask_cache: MaskCache = field(default_factory=dict)

    def tokens_of(self, layer: int) -> tuple[Prompt, Prompt]:
        """The tokens of a layer's queries and of its keys; other than :attr:`tokens` only in an encoder-decoder."""
        return _read_by(self.checkpoint.layers[layer], self.tokens, self.target)

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What the model read, [1, n] each."""
        return _inputs(self.checkpoint, self.tokens, self.target)

    def inputs_of(self, layer: int) -> tuple[Tensor, Tensor]:
        """What W_Q, and what W_K and W_V are applied to, [1, n, d_model]; of cross-attention the encoder's states."""
        x, source = self._kept[layer].inputs
        return x, x if source is None else source

    def model_output(self, layer: int) -> Tensor:
        """The model's own attention output of a layer, after W_O and b_O, before the residual, [1, n, d_model].

        UsageError: it was not kept when the heads were verified.
        """
        output = self._kept[layer].output
        if output is None:
            raise UsageError(
                "the model's attention outputs were not kept; expected the heads of attnviz.head_outputs(TEXT, MODEL)"
                ".attention, or verify_attention(..., keep_outputs=True)."
            )
        return output

    def rows(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[VerifiedRows]:
        """Recompute the patterns of a layer in chunks of query rows, in order; of all or some heads.

        VerificationError: the model's weights are no longer those that were verified.
        """
        of_layer, check = self.recomputed(layer), self.verification.layers[layer]
        if heads is not None:
            of_layer, check = of_layer.of(heads), replace(check, heads_compared=len(heads))
        device = of_layer.query.device
        memory = default_memory(device) if self.memory is None else self.memory
        for first, last in row_blocks(of_layer.query.shape[-2], of_layer.row_bytes, memory):
            for start, stop in _stretches(self.queries, first, last):
                with inference(device):
                    pattern = of_layer.rows(start, stop)
                yield VerifiedRows.of(of_layer, check, self.verification.tolerance, pattern, start, self.queries)

    def activation(self, name: str, layer: int) -> Tensor:
        """The tensor of a named site of a layer, without the axis of the batch, on the CPU.

        Scores and pattern are recomputed from the verified inputs of the layer, others read in a pass that is verified.
        """
        checkpoint = self.checkpoint
        layer = checkpoint.layer_of(layer)
        if name not in COMPUTED:
            site_of(checkpoint, layer, name)
        heads = self.recomputed(layer)
        queries = slice(None) if self.queries is None else list(self.queries)
        with inference(heads.query.device):
            if name == "scores":
                return heads.scores()[0, :, queries].cpu()
            if name == "pattern":
                return heads.rows(0, heads.query.shape[-2], heads.key.shape[-2])[0, :, queries].cpu()
            value = self._read_again(layer, "z" if name == "head_out" else name)
            if name == "head_out":
                value = torch.einsum("nhd,hdm->nhm", value, heads.parameters.output_weight.to(value))
            return (value[queries] if name in ("z", "head_out") else value).cpu()

    def _read_again(self, layer: int, name: str) -> Tensor:
        """The value of a site in another verified pass; VerificationError where it is not the pass of before."""
        seen = list[Tensor]()
        with at_named(self.checkpoint, [(layer, name)], lambda _, tensor: seen.append(tensor)):
            again = verify_attention(
                self.checkpoint, self.tokens, target=self.target, memory=self.memory, keep_outputs=False
            )
        passes = [(self._final, again._final)]
        passes += [(kept.inputs[0], again._kept[layer].inputs[0]) for layer, kept in self._kept.items()]
        for before, now in passes:
            if not float(largest(now - before)) <= self.verification.tolerance.output * float(largest(before)):
                raise VerificationError("the model's weights changed since it was verified; analyze again.")
        return seen[-1][0]

    @alone
    def recomputed(self, layer: int) -> LayerHeads:
        """What a layer's heads attend with, checked against its fingerprint.

        VerificationError: as for :meth:`rows`.
        """
        kept, model = self._kept[layer], self.checkpoint
        x, source = kept.inputs
        device = running_device(model.modules[layer].attention)
        if (x.dtype, x.device) != (model.dtype, device):
            raise VerificationError(
                f"the model was verified in {x.dtype} on {x.device}, but is now in {model.dtype} on {device}; "
                "analyze again."
            )
        heads = _heads_of(model, layer, x, source, None, self._mask_cache)
        if self.verification.attention != "eager":
            heads = heads.without_rounding()
        again = _fingerprint(heads)
        same = torch.allclose(again, kept.fingerprint, rtol=_SAME_WEIGHTS, atol=_SAME_WEIGHTS)
        if not same or _scoring_of(heads.scoring) != kept.scoring:
            raise VerificationError(
                f"layer {layer} no longer gives the verified patterns: "
                "the model's weights changed since; analyze again."
            )
        return heads


@dataclass(frozen=True)
class _KeptLayer:
    inputs: tuple[Tensor, Tensor | None]
    output: Tensor | None
    fingerprint: Tensor
    scoring: tuple[object, ...]


def verify_attention(
    checkpoint: Checkpoint,
    tokens: Prompt,
    on_rows: Callable[[VerifiedRows], None] = lambda _: None,
    progress: Progress | None = None,
    target: Prompt | None = None,
    memory: float | None = None,
    queries: tuple[int, ...] | None = None,
    keep_outputs: bool = True,
) -> VerifiedAttention:
    """Run the model once on a text; recompute and compare its attention in chunks of rows, layer by layer.

    For every layer the reference recomputes, from the layer's input and the checkpoint's parameters, queries, keys and
    values, the pattern of every head, its weighted values and the attention output after W_O, and compares each with
    the model's own. ``on_rows`` is called with each chunk, first layer and first row first; nothing of it may be used
    unless this function returns. ``target`` is what the decoder of an encoder-decoder reads. Where ``queries`` are
    given, positions in order, the rows of these alone are recomputed; queries, keys and values are compared at all
    positions. Without ``keep_outputs`` there is no :meth:`VerifiedAttention.model_output`.

    VerificationError: a layer differs by more than the tolerance of the dtype; it locates the worst difference.
    """
    verifier = Verifier(
        checkpoint,
        _inputs(checkpoint, tokens, target),
        on_rows,
        progress=progress,
        queries=queries,
        keep_outputs=keep_outputs,
    )
    tell(progress, "verifying", 0, checkpoint.n_layers)
    verifier.run(memory)
    return VerifiedAttention(
        checkpoint=checkpoint,
        tokens=tokens,
        verification=verifier.verification(),
        memory=memory,
        _kept=verifier.kept,
        _final=verifier.final,
        target=target,
        queries=queries,
        _mask_cache=verifier.mask_cache,
    )


def _inputs(checkpoint: Checkpoint, tokens: Prompt, target: Prompt | None) -> dict[str, Tensor]:
    inputs = tokens.model_inputs(checkpoint.device)
    if target is not None:
        inputs |= {f"decoder_{name}": tensor for name, tensor in target.model_inputs(checkpoint.device).items()}
    return inputs


def _read_by(layer: int, tokens: Prompt, target: Prompt | None) -> tuple[Prompt, Prompt]:
    target = tokens if target is None else target
    return {"E": (tokens, tokens), "D": (target, target), "X": (target, tokens)}[letter_of(layer)]


@dataclass
class _Layer:
    """A layer while it is verified: what its inputs give, and what its chunks of rows have given so far."""

    compared: LayerComparison
    heads: LayerHeads
    random: Tensor | None = None  # what the model's attention is called on once more, [n_keys, d_head]
    both: Tensor | None = None  # values and random values side by side
    weighted: list[Tensor] = field(default_factory=list)  # values, [batch, n_heads, rows, d_head]
    blind: list[Tensor] = field(default_factory=list)  # which queries of padding attend to nothing
    gated: Tensor = field(init=False)  # weighted values of all queries, behind any gate, [batch, n, n_heads, d_head]

    def compare(self, first: int, model_rows: Tensor) -> Tensor:
        """The pattern of consecutive queries, compared with the model's weights, or what it makes of random values."""
        heads, compared, checkpoint = self.heads, self.compared, self.compared.checkpoint
        last = first + model_rows.shape[2]
        pattern = heads.rows(first, last, None if self.random is not None else model_rows.shape[-1])
        n_keys = pattern.shape[-1]
        if self.both is not None:
            weighted, expected = torch.matmul(pattern, self.both[..., :n_keys, :]).chunk(2, -1)
        else:
            weighted, expected = heads.weighted(pattern), pattern
            if model_rows.shape[-1] < n_keys:
                model_rows = torch.nn.functional.pad(model_rows, (0, n_keys - model_rows.shape[-1]))
        if self.both is not None or checkpoint.architecture.bypassing:
            model_rows = self._but_blind(first, n_keys, expected, model_rows)
        agree = compared.add_rows(first, pattern, expected, model_rows, self.random)
        if not agree and not compared.causes:
            compared.causes += self._other_ways(first, model_rows)
        self.weighted.append(weighted.to(checkpoint.dtype))
        return pattern

    def _but_blind(self, first: int, n_keys: int, expected: Tensor, model_rows: Tensor) -> Tensor:
        """The model's rows, but for queries of padding that may attend to nothing, in which implementations differ."""
        heads = self.heads
        if heads.mask is None or heads.across or (not heads.scoring.causal and heads.scoring.window is None):
            return model_rows
        allowed = heads.allowed(first, first + model_rows.shape[2], n_keys)
        if allowed is None:
            return model_rows
        self.blind.append(~allowed.any(-1, keepdim=True))
        return torch.where(self.blind[-1], expected, model_rows)

    def _other_ways(self, first: int, model_rows: Tensor) -> Iterator[str]:
        """What else than the reference's way of attending explains the model's rows."""
        heads, scoring, tolerance = self.heads, self.heads.scoring, self.compared.tolerance
        of_group = heads.key.shape[1] // len(heads.parameters.key.weight)
        # head h with the keys of key-value head h mod n_kv_heads
        groups = replace(heads, key=heads.key[:, ::of_group].repeat(1, of_group, 1, 1))
        ways = {_OTHER_GROUPS: groups} if of_group > 1 else {}
        if self.random is not None:
            way = (
                "both ways as it was loaded (is_causal=False)" if scoring.causal else "backwards only as it was loaded"
            )
            ahead = replace(scoring, causal=not scoring.causal)
            ways[f"This model attends {way}."] = replace(heads, scoring=ahead, mask_cache={})
        for sentence, other in ways.items():
            n_keys = model_rows.shape[-1] if self.random is None else heads.key.shape[-2]
            rows = other.rows(first, first + model_rows.shape[2], n_keys)
            rows = rows if self.random is None else torch.matmul(rows, self.random)
            limit = tolerance.pattern if self.random is None else tolerance.probe
            if rows.shape == model_rows.shape and float(largest(rows - model_rows)) <= limit:
                yield sentence

    def steps(self, record: LayerRecord, queries: Sequence[int] | None) -> dict[str, Step]:
        """The steps after the patterns."""
        by_head = self.weighted[0] if len(self.weighted) == 1 else torch.cat(self.weighted, 2)
        parameters = self.heads.parameters
        x = record.attention_input if queries is None else record.attention_input[:, queries]
        gated = attention.gated(by_head, x, parameters)
        output = attention.joined_output(gated, parameters)
        weighted, self.gated = by_head.transpose(1, 2), gated.transpose(1, 2)
        if self.blind:
            blind = torch.cat(self.blind, 2)[:, 0]
            weighted = torch.where(blind[..., None], record.weighted, weighted)
            output = torch.where(blind, record.output, output)
        return steps_of(record, self.compared.checkpoint, weighted, output, queries)


_OTHER_GROUPS = "Queries, keys and values agree before that; it agrees with the groups of heads in another order."


@dataclass
class Verifier(Observer):
    """The observer that recomputes a recorded pass and compares it; see :func:`verify_attention`.

    During the pass no comparison waits for the device; nothing that it gave may be used unless :meth:`run` returns.
    """

    overwrites = probes = True

    checkpoint: Checkpoint
    inputs: dict[str, Tensor]  # what the model's forward takes
    on_rows: Callable[[VerifiedRows], None]
    masks: Callable[[int], Tensor] | None = None  # the keys of a layer that are tokens, [batch, n_keys]; default all
    keep: bool = True  # whether layers can be recomputed later
    progress: Progress | None = None
    queries: tuple[int, ...] | None = None
    keep_outputs: bool = True
    # called with the reference's of each layer, behind any gate, [batch, n, n_heads, d_head]
    on_weighted_values: OnLayer | None = None

    checks: dict[int, LayerCheck] = field(default_factory=dict)
    kept: dict[int, _KeptLayer] = field(default_factory=dict)
    mask_cache: MaskCache = field(default_factory=dict)
    located: list[tuple[float, str]] | None = None  # in a second pass, of layers that differ
    _comparisons: dict[int, LayerComparison] = field(default_factory=dict)
    _layer: _Layer = field(init=False)  # that attends
    final: Tensor = field(init=False)  # hidden states, [batch, n, d_model]

    def run(self, memory: float | None = None) -> None:
        """Run the model once; where a layer differs, once more, to raise VerificationError with the place."""
        try:
            self.final = record_attention(self.checkpoint, self.inputs, self, memory, check_finite=False)
            wrong = self._wrong(self.final)
        except VerificationError:  # perhaps what follows from a layer that differs
            wrong = self._wrong(None)
            if not wrong:
                raise
        if not wrong:
            return
        located = list[tuple[float, str]]()
        again = Verifier(
            self.checkpoint, self.inputs, lambda _: None, self.masks, keep=False, queries=self.queries, located=located
        )
        try:
            record_attention(self.checkpoint, self.inputs, again, memory)
        except VerificationError:
            if not located:
                raise
        agreed = "A second run agreed, so the model gives other numbers each time."
        worst = max(located, default=(0.0, agreed))[1]
        raise VerificationError(
            f"the recomputed heads do not reproduce the model: {len(wrong)} of {len(self.checks)} layers differ. "
            f"{worst} Nothing was written. {what_to_try(self.checkpoint)}"
        )

    def _wrong(self, states: Tensor | None) -> list[int]:
        """The layers that differ, after a pass with these final states; one copy to the host gives :attr:`checks`."""
        comparisons = [self._comparisons[layer] for layer in sorted(self._comparisons)]
        if not comparisons:
            return []
        first = comparisons[0].on_device
        final = torch.zeros_like(first[:1]) if states is None else largest(states)[None].to(first)
        of_layers = [compared.on_device.to(final) for compared in comparisons]  # perhaps of several devices
        numbers = torch.stack([torch.cat([of_layer, final]) for of_layer in of_layers]).tolist()
        for compared, of_layer in zip(comparisons, numbers, strict=True):
            self.checks[compared.layer] = compared.result(of_layer[:-1])
        if states is not None and not math.isfinite(numbers[0][-1]):
            raise not_finite("final hidden state", str(states.dtype).removeprefix("torch."))
        return [layer for layer, check in self.checks.items() if not check.within(self.checkpoint.tolerance)]

    def verification(self) -> Verification:
        """The checks of all layers, in order."""
        return Verification(self.checkpoint.tolerance, tuple(self.checks[layer] for layer in sorted(self.checks)))

    def begin(self, call: AttentionCall) -> None:
        """Recompute and compare queries, keys and values."""
        x, model, layer = call.attention_input, self.checkpoint, call.layer
        assert x is not None
        compared = LayerComparison(model, layer, call.attention, self.inputs, self.located is not None)
        mask = None if self.masks is None else self.masks(layer)
        heads = _heads_of(model, layer, x, call.source, mask, self.mask_cache)
        parameters = heads.parameters
        inputs = x, x if call.source is None else call.source
        expected, model_values = (heads.query, heads.key, heads.value), (call.query, call.key, call.value)
        for name, ours, theirs in zip(INPUTS, expected, model_values, strict=True):
            shared_by = ours.shape[1] // theirs.shape[1]
            once = ours[:, ::shared_by] if shared_by > 1 else ours  # heads of a group share keys and values
            compared.add_inputs(name, once, theirs, partial(_reason, model, name, inputs, parameters, theirs))
        self._layer = state = _Layer(compared, heads)
        if call.attention != "eager":
            state.heads = heads = heads.without_rounding()
            state.random = attention.upcast(random_values(heads.value))
            state.both = torch.cat([heads.value, state.random.expand(heads.value.shape)], -1)
        # a scale that the model does not say, NaN, differs from none
        if compared.locating and abs(parameters.scale - call.scale) > 1e-6 * abs(call.scale):
            compared.causes.append(
                f"The model scales its scores by {call.scale:.6g}, the reference by {parameters.scale:.6g}."
            )

    def rows(self, layer: int, rows: Rows) -> None:
        """Recompute some rows of the patterns, compare them, and pass them on."""
        state, tolerance = self._layer, self.checkpoint.tolerance
        shown = rows.weights if rows.probe is None else rows.probe.transpose(1, 2)
        assert shown is not None  # the observer probes
        for start, stop in _stretches(self.queries, rows.first, rows.last):
            chosen = shown if self.queries is None else shown[:, :, start - rows.first : stop - rows.first]
            pattern = state.compare(start, chosen)
            self.on_rows(VerifiedRows.of(state.heads, PendingCheck(layer), tolerance, pattern, start, self.queries))

    def end(self, record: LayerRecord) -> None:
        """Compare the layer's output, and the residual stream and norm after it."""
        model, layer, state = self.checkpoint, record.layer, self._layer
        compared = self._comparisons[layer] = state.compared
        compared.add_steps(state.steps(record, self.queries))
        if self.located is not None:
            check = compared.result(compared.on_device.tolist())
            if not check.within(model.tolerance):
                ratio, where = compared.located(check)
                self.located.append((ratio, " ".join([where, *compared.causes])))
        if self.keep:
            self.kept[layer] = _KeptLayer(
                inputs=(record.attention_input, record.source),
                output=record.output if self.keep_outputs else None,
                fingerprint=_fingerprint(state.heads),
                scoring=_scoring_of(state.heads.scoring),
            )
        if self.on_weighted_values is not None:
            self.on_weighted_values(layer, state.gated)
        tell(self.progress, "verifying", len(self._comparisons), model.n_layers)


def _stretches(queries: Sequence[int] | None, first: int, last: int) -> list[tuple[int, int]]:
    """First and past-the-last query of each stretch of ``queries`` between ``first`` and ``last`` (excluded)."""
    if queries is None:
        return [(first, last)]
    runs: list[tuple[int, int]] = []
    for query in queries[bisect_left(queries, first) : bisect_left(queries, last)]:
        if runs and runs[-1][1] == query:
            runs[-1] = runs[-1][0], query + 1
        else:
            runs.append((query, query + 1))
    return runs


def _reason(
    checkpoint: Checkpoint, name: str, x: tuple[Tensor, Tensor], parameters: HeadParameters, model_values: Tensor
) -> str:
    """The step of the reference whose omission alone explains the difference, or an empty text."""
    model_values = attention.repeat_kv(model_values, parameters.n_heads)
    kind = {"queries": "query", "keys": "key", "values": "value"}[name]
    projection = getattr(parameters, kind)
    ways: dict[str, dict[str, object]] = {"without rotary positions": {"rotary": None}}
    if kind != "value":
        ways["without the norm"] = {f"{kind}_norm": None}
        if parameters.rotary is not None:
            other = not parameters.rotary.interleaved
            ways[f"with rotary_interleaved = {other}"] = {"rotary": replace(parameters.rotary, interleaved=other)}
    if projection.bias is not None:
        ways["without the bias"] = {kind: replace(projection, bias=None)}
    if projection.clip is not None:
        ways["without the bound"] = {kind: replace(projection, clip=None)}
    ways["with the heads in another order"] = {}
    limit = checkpoint.tolerance.output * float(model_values.abs().max())
    for way, changes in ways.items():
        changed = replace(parameters, **changes)  # type: ignore[arg-type]
        result = attention.query_key_value(*x, changed)[INPUTS.index(name)]
        if not changes:  # any permutation of the heads: sorted by the sum of their numbers
            result, model_values = (x[:, x[0].double().sum((-1, -2)).argsort()] for x in (result, model_values))
        if result.shape == model_values.shape and float((result - model_values).abs().max()) <= limit:
            return f"; they agree {way}"
    return ""


def _heads_of(
    checkpoint: Checkpoint, layer: int, x: Tensor, source: Tensor | None, mask: Tensor | None, mask_cache: MaskCache
) -> LayerHeads:
    """A layer's heads, from its input, and from that of its keys if it is another one."""
    keys = x if source is None else source
    with inference(x.device):
        parameters = checkpoint.parameters(layer)
        vectors = attention.query_key_value(x, keys, parameters)
    return LayerHeads(*vectors, parameters, mask, source is not None and bool(checkpoint.stacks), mask_cache)


def _fingerprint(heads: LayerHeads) -> Tensor:
    """A few numbers a head that change when queries, keys, values or patterns do, or heads are permuted."""
    n = heads.query.shape[-2]
    rows = list[int]()
    if heads.scoring.position_bias is not None or heads.scoring.relative is not None or heads.scoring.sinks is not None:
        rows = sorted({0, n // 2, n - 1})
    with inference(heads.query.device):
        patterns = [heads.rows(row, row + 1, heads.key.shape[-2]) for row in rows]
        parts = [attention.upcast(x) for x in (heads.query, heads.key, heads.value, *patterns)]
        return torch.stack(
            [torch.einsum("bhnd,nd->bh", x, random_numbers(*x.shape[-2:], x.dtype, x.device)) for x in parts]
        )


def _scoring_of(scoring: Scoring) -> tuple[object, ...]:
    """What besides queries, keys and tensors makes patterns."""
    return scoring.scale, scoring.causal, scoring.upcast, scoring.softmax_in_float32, scoring.window, scoring.cap
