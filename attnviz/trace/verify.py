"""Recompute every head with the reference attention and compare it with the model's own, block by block."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from attnviz.errors import VerificationError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families import look_again
from attnviz.models.head_ids import LayerId
from attnviz.models.offloading import running_device
from attnviz.models.tokens import Tokens
from attnviz.progress import Progress, tell
from attnviz.reference import attention
from attnviz.reference.attention import HeadParameters, Scoring
from attnviz.reference.tolerances import Tolerance
from attnviz.trace.checks import LayerCheck, LayerComparison, Verification, largest_difference, within
from attnviz.trace.recorder import (
    BLOCK_MEMORY,
    AttentionCall,
    LayerRecord,
    Observer,
    record_attention,
    row_blocks,
)

_SAME_WEIGHTS = 1e-4
"""Tolerance of a layer's fingerprint: recomputed from the same weights, it differs by rounding alone."""

_SAMPLED_ROWS = 4
"""Rows of a pattern that are part of a layer's fingerprint."""

Names = Callable[[int], Sequence[str]]
"""From the index of a text in a batch to the labels of its tokens."""


@dataclass(frozen=True)
class VerifiedRows:
    """A block of query rows of a layer's reference patterns, each weight compared with the model's own.

    Construction fails if the ``check`` is not within the tolerance.

    Attributes:
        check: of this block; of a layer that is recomputed later, that of the whole layer.
        pattern: [batch, n_heads, rows, n_keys]; keys after the last of them are hidden from all these rows.
        first: the first query.
        n_queries, n_keys: of the whole layer.
        end: past the last query that is verified; 0 for all.
    """

    check: LayerCheck
    tolerance: Tolerance
    pattern: Tensor
    first: int
    n_queries: int
    n_keys: int
    end: int = 0

    @property
    def wide(self) -> Tensor:
        """The pattern in float32 at least, so that sums over it are exact enough for statistics."""
        return attention.upcast(self.pattern)

    @property
    def layer(self) -> int:
        """The layer of these rows."""
        return self.check.layer

    @property
    def last(self) -> bool:
        """Whether they are the layer's last."""
        return self.first + self.pattern.shape[2] == (self.end or self.n_queries)

    def __post_init__(self) -> None:
        """Raise VerificationError for rows that did not verify, so that no number can be taken from them."""
        if not within(self.check, self.tolerance) or self.check.heads_compared != self.pattern.shape[1]:
            raise VerificationError(f"layer {self.check.layer} did not verify: {self.check}")


@dataclass(frozen=True)
class _LayerQK:
    """What the patterns of a layer are computed from.

    Attributes:
        query: [batch, n_heads, n_queries, d_head].
        key: [batch, n_heads, n_keys, d_head].
        mask: [batch, n_keys], 1 for a token and 0 for padding.
        across: whether keys are of another text (cross-attention).
    """

    query: Tensor
    key: Tensor
    scoring: Scoring
    mask: Tensor
    across: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of one query row of the patterns, over all heads and texts."""
        return self.query.shape[:2].numel() * self.key.shape[-2] * self.query.element_size()

    def rows(self, first: int, last: int, n_keys: int | None = None) -> Tensor:
        """A block of the pattern, [batch, n_heads, rows, n_keys], over the keys that it sees, or ``n_keys``."""
        scoring, total = self.scoring, self.key.shape[-2]
        if self.across:
            allowed = self.mask.bool()[:, None, None, :]
        else:
            allowed = attention.allowed_positions(self.mask, scoring.causal, scoring.window, first, last - first)
        if n_keys is None:
            n_keys = last if scoring.causal and not self.across else total
        elif n_keys < total and bool(allowed[..., n_keys:].any()):
            n_keys = total  # the model hides what the reference does not: the comparison will say so
        query, key = self.query[:, :, first:last], self.key[:, :, :n_keys]
        return attention.pattern_of(query, key, scoring, allowed[..., :n_keys], first)


@dataclass(eq=False)
class VerifiedAttention:
    """The verified heads of one text: patterns are recomputed on demand, not kept.

    Only inputs and outputs of the layers stay in memory. A recomputed layer must match the fingerprint taken at
    verification, so that a changed model is noticed.
    Made by :func:`verify_attention`.

    Attributes:
        memory: bytes that a block of rows may take.
        queries: the queries that were verified, in order; None for all.
    """

    checkpoint: Checkpoint
    tokens: Tokens
    verification: Verification
    memory: float
    _kept: "dict[int, _KeptLayer]"
    _target: Tokens | None = None
    queries: tuple[int, ...] | None = None

    def tokens_of(self, layer: int) -> tuple[Tokens, Tokens]:
        """The tokens of a layer's queries and of its keys; other than :attr:`tokens` only in an encoder-decoder."""
        return _read_by(self.checkpoint.layers[layer], self.tokens, self._target)

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What the model read, [1, n] each."""
        return _inputs(self.checkpoint, self.tokens, self._target)

    def keys_input(self, layer: int) -> Tensor:
        """What W_K and W_V are applied to, [1, n_keys, d_model]; of cross-attention the encoder's states."""
        x, source = self._kept[layer].inputs
        return x if source is None else source

    def model_output(self, layer: int) -> Tensor:
        """The model's own attention output of a layer, after W_O and b_O, before the residual, [1, n, d_model]."""
        output = self._kept[layer].output
        assert output is not None  # kept by the commands that ask for it
        return output

    def rows(self, layer: int, heads: Sequence[int] | None = None) -> Iterator[VerifiedRows]:
        """Recompute the patterns of a layer in blocks of query rows, in order; of all or some heads.

        Raises:
            VerificationError: the model's weights are no longer those that were verified.
        """
        source, check = self._heads(layer), self.verification.layers[layer]
        if heads is not None:
            source, check = _of_heads(source, heads), replace(check, heads_compared=len(heads))
        n_queries, n_keys = source.query.shape[-2], source.key.shape[-2]
        end = n_queries if self.queries is None else self.queries[-1] + 1
        for first, last in row_blocks(n_queries, source.row_bytes, self.memory):
            for start, stop in _stretches(self.queries, first, last):
                with torch.inference_mode(), torch.autocast(source.query.device.type, enabled=False):
                    pattern = source.rows(start, stop)
                yield VerifiedRows(check, self.verification.tolerance, pattern, start, n_queries, n_keys, end)

    def _heads(self, layer: int) -> _LayerQK:
        """What a layer's patterns are computed from, checked against its fingerprint."""
        kept, model = self._kept[layer], self.checkpoint
        x, source = kept.inputs
        device = running_device(model.modules[layer].pattern)
        if (x.dtype, x.device) != (model.dtype, device):
            raise VerificationError(
                f"the model was verified in {x.dtype} on {x.device}, but is now in {model.dtype} on {device}; "
                "analyze again."
            )
        heads, _, value = _heads_of(model, layer, x, source)
        if not torch.allclose(_fingerprint(heads, value), kept.fingerprint, rtol=_SAME_WEIGHTS, atol=_SAME_WEIGHTS):
            raise VerificationError(
                f"layer {layer} no longer gives the verified patterns: "
                "the model's weights changed since; analyze again."
            )
        return heads


@dataclass(frozen=True)
class _KeptLayer:
    """What is needed to recompute a layer."""

    inputs: tuple[Tensor, Tensor | None]
    output: Tensor | None
    fingerprint: Tensor


def verify_attention(
    checkpoint: Checkpoint,
    tokens: Tokens,
    visit: Callable[[VerifiedRows], None] = lambda _: None,
    progress: Progress | None = None,
    target: Tokens | None = None,
    memory: float = BLOCK_MEMORY,
    queries: tuple[int, ...] | None = None,
    keep_outputs: bool = True,
    called: Callable[[AttentionCall], None] | None = None,
) -> VerifiedAttention:
    """Run the model once on a text; recompute and compare its attention in blocks, layer by layer.

    For every layer the reference recomputes, from the layer's input and the checkpoint's parameters, queries, keys and
    values, the pattern of every head, its weighted values and the attention output after W_O, and compares each with
    the model's own. ``visit`` is called with each block of rows that agrees, first layer and first row first; nothing
    of it may be used unless this function returns. ``target`` is what the decoder of an encoder-decoder reads. Where
    ``queries`` are given, positions in order, the rows of these alone are recomputed; queries, keys and values are
    compared at all positions. Without ``keep_outputs`` there is no :meth:`VerifiedAttention.model_output`. ``called``
    gets what each layer of the model hands to its attention, before it is compared.

    Raises:
        VerificationError: a layer differs by more than the tolerance of the dtype; the message
            locates the worst difference.
    """
    inputs = _inputs(checkpoint, tokens, target)

    def names(layer: int) -> tuple[Names, Names]:
        queries, keys = _read_by(layer, tokens, target)
        return (lambda _: queries.labels), (lambda _: keys.labels)

    verifier = Verifier(
        checkpoint, names, visit, progress=progress, queries=queries, keep_outputs=keep_outputs, called=called
    )
    tell(progress, "verifying", 0, checkpoint.n_layers)
    record_attention(checkpoint, inputs, verifier, memory)
    if verifier.mismatches:
        _, worst = max(verifier.mismatches, key=lambda mismatch: mismatch[0])
        raise VerificationError(
            f"the recomputed heads do not reproduce the model: {len(verifier.mismatches)} of {len(verifier.checks)} "
            f"layers differ. {worst} Nothing was written. Try --dtype float64: it makes rounding smaller, but not an "
            f"error.{look_again(checkpoint.architecture)}"
        )
    return VerifiedAttention(checkpoint, tokens, verifier.verification(), memory, verifier.kept, target, queries)


def _inputs(checkpoint: Checkpoint, tokens: Tokens, target: Tokens | None) -> dict[str, Tensor]:
    """What a model reads, with what its decoder does."""
    inputs = tokens.model_inputs(checkpoint.device)
    if target is not None:
        inputs |= {f"decoder_{name}": tensor for name, tensor in target.model_inputs(checkpoint.device).items()}
    return inputs


def _read_by(layer: int, tokens: Tokens, target: Tokens | None) -> tuple[Tokens, Tokens]:
    """The tokens of a layer's queries and of its keys."""
    letter = layer.stack.letter if target is not None and isinstance(layer, LayerId) else "E"
    target = tokens if target is None else target
    return {"E": (tokens, tokens), "D": (target, target), "X": (target, tokens)}[letter]


class Verifier(Observer):
    """The observer that recomputes a recorded pass and compares it; see :func:`verify_attention`.

    ``masks`` gives the keys of a layer that are tokens, [batch, n_keys], 1 for a token and 0 for padding; without it
    all are. ``keep`` is whether layers can be recomputed later; ``written`` is called with the model's own weighted
    values of each layer that agrees, [batch, n, n_heads, d_head]; ``called`` with each layer's call.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: Callable[[int], tuple[Names, Names]],
        visit: Callable[[VerifiedRows], None],
        masks: Callable[[int], Tensor] | None = None,
        keep: bool = True,
        progress: Progress | None = None,
        queries: tuple[int, ...] | None = None,
        keep_outputs: bool = True,
        written: Callable[[int, Tensor], None] | None = None,
        called: Callable[[AttentionCall], None] | None = None,
    ) -> None:
        self._queries, self._keep_outputs, self._written, self._called = queries, keep_outputs, written, called
        self._checkpoint, self._names, self._visit, self._masks = checkpoint, names, visit, masks
        self._keep, self._progress = keep, progress
        self.checks: dict[int, LayerCheck] = {}
        self.mismatches: list[tuple[float, str]] = []
        self.kept: dict[int, _KeptLayer] = {}
        self._heads: _LayerQK
        self._parameters: HeadParameters
        self._compared: LayerComparison
        self._groups = 1
        self._value, self._weighted = torch.empty(0), list[Tensor]()
        self._fingerprint = torch.empty(0)

    def verification(self) -> Verification:
        """The checks of all layers, in order."""
        return Verification(self._checkpoint.tolerance, tuple(self.checks[layer] for layer in sorted(self.checks)))

    def begin(self, call: AttentionCall, attention_input: Tensor | None, source: Tensor | None) -> None:
        """Recompute and compare queries, keys and values."""
        assert attention_input is not None
        model, layer = self._checkpoint, call.layer
        if self._called is not None:
            self._called(call)
        self._compared, self._weighted = LayerComparison(model, layer, *self._names(layer)), []
        self._groups = call.query.shape[1] // call.key.shape[1]
        mask = None if self._masks is None else self._masks(layer)
        self._heads, parameters, self._value = _heads_of(model, layer, attention_input, source, mask)
        self._parameters = parameters
        if self._keep:
            self._fingerprint = _fingerprint(self._heads, self._value)
        recomputed = self._heads.query, self._heads.key, self._value
        own = call.query, call.key, call.value
        x = attention_input, attention_input if source is None else source
        for name, ours, theirs in zip(("queries", "keys", "values"), recomputed, own, strict=True):
            repeated = attention.repeat_kv(theirs, ours.shape[1])
            self._compared.add_inputs(name, ours, repeated, partial(_reason, model, name, x, parameters, repeated))
        if abs(parameters.scale - call.scale) > 1e-6 * abs(call.scale):
            self._compared.causes.append(
                f"The model scales its scores by {call.scale:.6g}, the reference by {parameters.scale:.6g}."
            )

    def rows(self, layer: int, first: int, own: Tensor) -> None:
        """Recompute a block of the patterns, compare it, and visit it if all agrees so far."""
        for start, stop in _stretches(self._queries, first, first + own.shape[2]):
            self._compare(layer, start, own[:, :, start - first : stop - first])

    def _compare(self, layer: int, first: int, own: Tensor) -> None:
        """As :meth:`rows`, of consecutive queries that are all verified."""
        heads, compared = self._heads, self._compared
        n_queries, total = heads.query.shape[-2], heads.key.shape[-2]
        end = n_queries if self._queries is None else self._queries[-1] + 1
        pattern = heads.rows(first, first + own.shape[2], own.shape[-1])
        if own.shape[-1] < pattern.shape[-1]:
            own = torch.nn.functional.pad(own, (0, pattern.shape[-1] - own.shape[-1]))
        agrees = compared.add_rows(first, pattern, own)
        if not agrees and not compared.causes and self._interleaved(first, own):
            compared.causes.append(
                "Queries, keys and values agree before that; patterns agree with the groups of heads in another order."
            )
        self._weighted.append(torch.matmul(pattern, self._value[..., : pattern.shape[-1], :]).transpose(1, 2))
        if agrees and not self.mismatches and not compared.worst[1]:
            check = LayerCheck(layer, pattern.shape[1], compared.pattern_error, 0.0, 0.0)
            self._visit(VerifiedRows(check, self._checkpoint.tolerance, pattern, first, n_queries, total, end))

    def _interleaved(self, first: int, own: Tensor) -> bool:
        """Whether the model's rows agree if head h has the keys of key-value head h mod n_kv_heads."""
        heads, groups = self._heads, self._groups
        if groups == 1:
            return False
        key = heads.key[:, ::groups].repeat(1, groups, 1, 1)
        rows = replace(heads, key=key).rows(first, first + own.shape[2], own.shape[-1])
        return rows.shape == own.shape and largest_difference(rows, own) <= self._compared.tolerance.pattern

    def end(self, record: LayerRecord) -> None:
        """Compare the layer's output, and the residual stream and norm after it."""
        model, layer = self._checkpoint, record.layer
        weighted = self._weighted[0] if len(self._weighted) == 1 else torch.cat(self._weighted, 1)
        output = attention.joined_output(weighted.transpose(1, 2), self._parameters)
        check, ratio, where = self._compared.end(record, weighted, output, self._queries)
        self.checks[layer] = check
        if where:
            self.mismatches.append((ratio, where))
        elif self._keep:
            inputs = record.attention_input, record.source
            own = record.output if self._keep_outputs else None
            self.kept[layer] = _KeptLayer(inputs, own, self._fingerprint)
        if self._written is not None and not self.mismatches:
            self._written(layer, record.weighted)
        if not self.mismatches:
            tell(self._progress, "verifying", len(self.checks), model.n_layers)


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
    checkpoint: Checkpoint, name: str, x: tuple[Tensor, Tensor], parameters: HeadParameters, own: Tensor
) -> str:
    """The step of the reference whose omission alone explains the difference, or an empty text."""

    def variant(**changes: object) -> Tensor:
        changed = replace(parameters, **changes)  # type: ignore[arg-type]
        if name == "values":
            return attention.values(x[1], changed)
        return attention.queries_and_keys(*x, changed)[name == "keys"]

    kind = {"queries": "query", "keys": "key", "values": "value"}[name]
    projection = getattr(parameters, kind)
    ways: dict[str, dict[str, object]] = {"without rotary positions": {"rotary": None}}
    if kind != "value":
        ways["without the norm"] = {f"{kind}_norm": None}
    if projection.bias is not None:
        ways["without the bias"] = {kind: replace(projection, bias=None)}
    if projection.clip is not None:
        ways["without the bound"] = {kind: replace(projection, clip=None)}
    ways["with the heads in another order"] = {}
    limit = checkpoint.tolerance.output * float(own.abs().max())
    for way, changes in ways.items():
        result = variant(**changes)
        if not changes:  # any permutation of the heads: sorted by the sum of their numbers
            result, own = (x[:, x[0].double().sum((-1, -2)).argsort()] for x in (result, own))
        if result.shape == own.shape and float((result - own).abs().max()) <= limit:
            return f"; they agree {way}"
    return ""


def _heads_of(
    checkpoint: Checkpoint, layer: int, x: Tensor, source: Tensor | None, mask: Tensor | None = None
) -> tuple[_LayerQK, HeadParameters, Tensor]:
    """A layer's queries and keys, its parameters and its values, [batch, n_heads, n_keys, d_head]."""
    keys = x if source is None else source
    mask = torch.ones(keys.shape[:2], dtype=torch.long, device=x.device) if mask is None else mask
    with torch.inference_mode(), torch.autocast(x.device.type, enabled=False):
        parameters = checkpoint.architecture.parameters(checkpoint.model, layer)
        query, key = attention.queries_and_keys(x, keys, parameters)
        value = attention.values(keys, parameters)
    return _LayerQK(query, key, parameters, mask, source is not None), parameters, value


def _of_heads(heads: _LayerQK, chosen: Sequence[int]) -> _LayerQK:
    """Some of the heads of a layer."""
    numbers, scoring, bias = list(chosen), heads.scoring, heads.scoring.position_bias
    if bias is not None:
        scoring = replace(scoring, position_bias=lambda *rows: bias(*rows)[numbers])
    if scoring.sinks is not None:
        scoring = replace(scoring, sinks=scoring.sinks[numbers])
    return replace(heads, query=heads.query[:, numbers], key=heads.key[:, numbers], scoring=scoring)


def _fingerprint(heads: _LayerQK, value: Tensor) -> Tensor:
    """A few numbers a head that change when any weight does, or when weights or heads are permuted.

    Products of queries, keys, values and a few rows of the pattern with fixed random vectors, [batch, n_heads, 8].
    """
    generator = torch.Generator().manual_seed(0)
    n = heads.query.shape[-2]
    rows = torch.linspace(0, n - 1, min(n, _SAMPLED_ROWS)).long().tolist()
    with torch.inference_mode(), torch.autocast(heads.query.device.type, enabled=False):
        sampled = torch.cat([heads.rows(row, row + 1, heads.key.shape[-2]) for row in rows], dim=-2)
        parts = []
        for x in (heads.query, heads.key, value, sampled):
            wide = attention.upcast(x)
            onto = torch.rand(max(wide.shape[-2:]), 2, generator=generator).to(wide)
            parts.append((onto[: wide.shape[-2], :1].T @ wide @ onto[: wide.shape[-1]]).flatten(2))
        return torch.cat(parts, -1).float()
