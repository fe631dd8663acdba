"""One pass of a model through one door: every layer's attention in blocks of query rows, and what stands around it.

A function of ours takes the place of the model's attention in transformers' attention interface. It calls the model
module's own eager attention on a block of queries at a time, so that no pattern of a whole layer has to be in memory,
and hands each block over. Where the model's own mask hides all keys after a block, these are left out, which gives the
same numbers in half the time. Inputs, outputs, the residual stream and norms are read by hooks.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from attnviz.arguments import n_bytes
from attnviz.errors import ArchitectureError, VerificationError
from attnviz.memory import TENSORS_OF_A_BLOCK
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.base import LayerModules
from attnviz.models.families.undeclared import EAGER
from attnviz.models.head_ids import LayerId
from attnviz.models.weights import all_finite

_NAME = "attnviz"

BLOCK_MEMORY = 48 * 2**20
"""Bytes that a block of rows may take, unless another number is asked for: small enough to stay near the processor."""


def block_memory(given: object) -> int:
    """Bytes that a block of rows may take, from a number of bytes or a text such as ``64M``; None for the default.

    Raises:
        UsageError: it is no size.
    """
    return BLOCK_MEMORY if given is None else n_bytes("memory", given)


@dataclass(frozen=True)
class AttentionCall:
    """What a layer of the model hands to its attention function.

    Attributes:
        query: [batch, n_heads, n_queries, d_head].
        key, value: [batch, n_kv_heads, n_keys, d_head]; heads in groups share them.
        scale: what scores are multiplied by.
        cap: what they are bounded by; None for nothing.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    cap: float | None

    @property
    def n_queries(self) -> int:
        """Query rows."""
        return self.query.shape[-2]


@dataclass(frozen=True)
class LayerRecord:
    """What stands around the attention of one layer of the model.

    Attributes:
        attention_input: [batch, n, d_model]: what W_Q, W_K and W_V are applied to.
        weighted: [batch, n, n_heads, d_head]: every head's weighted values, as the model's attention gave them.
        output: [batch, n, d_model]: the model's own, after W_O and b_O, before the residual.
        residual: [batch, n, d_model]: what the output is added to.
        summed: [batch, n, d_model]: the norm after the attention was given this, their sum.
        normed: [batch, n, d_model]: what this norm gave.
        output_norm: the norm of the output before it is added (Gemma); None where there is none.
        source: of cross-attention, [batch, n_keys, d_model]: what W_K and W_V are applied to, the encoder's final
            states; None of self-attention.
    """

    layer: int
    attention_input: Tensor
    weighted: Tensor
    output: Tensor
    residual: Tensor
    summed: Tensor
    normed: Tensor
    norm: nn.Module
    output_norm: nn.Module | None = None
    source: Tensor | None = None


class Observer(Protocol):
    """What is told of a pass, in this order for every layer."""

    def begin(self, call: AttentionCall, attention_input: Tensor | None, source: Tensor | None) -> None:
        """A layer is about to attend; its input and source are as in :class:`LayerRecord`, None if unknown."""

    def rows(self, layer: int, first: int, own: Tensor) -> None:
        """The model's own weights of a block of queries from ``first`` on, [batch, n_heads, rows, n_keys].

        Keys after the last of ``n_keys`` are hidden from all of them.
        """

    def end(self, record: LayerRecord) -> None:
        """The layer has passed on what it attended to; not called of families that are not declared."""


@dataclass(frozen=True)
class PatternsAlone:
    """An observer that hands on the model's own patterns, as they are; none with ``visit`` None."""

    visit: Callable[[int, Tensor], None] | None = None

    def begin(self, call: AttentionCall, attention_input: Tensor | None, source: Tensor | None) -> None:
        """Nothing."""

    def rows(self, layer: int, first: int, own: Tensor) -> None:  # noqa: ARG002 - one block is all
        """The block, which is the whole layer where memory for a block is not bounded."""
        if self.visit is not None:
            self.visit(layer, own)

    def end(self, record: LayerRecord) -> None:
        """Nothing."""


@dataclass(frozen=True)
class _Door:
    """The function that takes the place of the model's attention, for the time of one pass.

    ``layer`` says which layer is attending, None where that is not known yet.
    """

    observer: Observer
    memory: float
    inputs: dict[int, tuple[Tensor, Tensor | None]]
    current: Callable[[], int]
    passed: Callable[[int, Tensor], None]

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **more: Any) -> Any:
        """What transformers calls instead of the module's own eager attention."""
        scale = more.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        return self._in_blocks(partial(_own_attention(module), module), query, key, value, mask, more, scale)

    def upcast(
        self, module: Any, own: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, *mask: Any
    ) -> Any:
        """Instead of GPT-2's ``_upcast_and_reordered_attn``, which does not go through the interface."""
        return self._in_blocks(own, query, key, value, mask[0] if mask else None, {}, float(module.scaling))

    def _in_blocks(
        self, own: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
        more: dict[str, Any], scale: float,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        layer, bias = self.current(), more.get("position_bias")
        self.observer.begin(
            AttentionCall(layer, query, key, value, scale, more.get("softcap")),
            *self.inputs.pop(layer, (None, None)),
        )
        n, weighted, weights = query.shape[-2], list[Tensor](), Tensor()
        for first, last in row_blocks(n, query.shape[:2].numel() * key.shape[-2] * query.element_size(), self.memory):
            rows, n_keys = _rows_of(mask, first, last, key.shape[-2])
            if bias is not None:
                more["position_bias"] = bias[:, :, first:last, :n_keys] if bias.shape[-2] == n else bias[..., :n_keys]
            block = query[:, :, first:last], key[:, :, :n_keys], value[:, :, :n_keys]
            result, weights = own(*block, rows, **more)
            _refuse_no_pattern(layer, weights, (*query.shape[:2], last - first, n_keys))
            weighted.append(result)
            self.observer.rows(layer, first, weights)
        together = weighted[0] if len(weighted) == 1 else torch.cat(weighted, 1)
        self.passed(layer, together)
        return together, weights if len(weighted) == 1 else None


def _own_attention(module: Any) -> Callable[..., Any]:
    """The eager attention of the module's own file, or of the file of the class that it is made from."""
    for kind in type(module).__mro__:
        if (own := getattr(sys.modules[kind.__module__], EAGER, None)) is not None:
            attention: Callable[..., Any] = own
            return attention
    raise ArchitectureError(f"{type(module).__name__} has no eager attention of its own to call.")


def row_blocks(n: int, row_bytes: int, memory: float = BLOCK_MEMORY) -> Iterator[tuple[int, int]]:
    """The first and past-the-last query of each block of n, for rows of so many bytes in all heads and texts."""
    size = max(1, int(min(n, memory // (TENSORS_OF_A_BLOCK * row_bytes))))
    yield from ((first, min(first + size, n)) for first in range(0, n, size))


def _refuse_no_pattern(layer: int, weights: Any, expected: tuple[int, ...]) -> None:
    if not isinstance(weights, Tensor):
        raise VerificationError(
            f"layer {layer} of the model returned no attention pattern, although it was set to eager attention; "
            "expected a tensor of attention weights to compare with."
        )
    if weights.shape != expected:
        raise VerificationError(
            f"layer {layer} of the model gives patterns of shape {tuple(weights.shape)}; expected {expected}."
        )


class _Mask(Tensor):
    """A mask that takes no memory: ``of`` makes any of its rows, as transformers' own function would.

    It is full of NaN, so that nothing can take it for the mask itself.
    """

    of: Callable[[int, int], Tensor]

    def to(self, *given: Any, **named: Any) -> Tensor:
        """Itself, its rows moved to another device when they are made."""
        moved = super().to(*given, **named)
        if moved is not self:
            moved.of = lambda first, last: self.of(first, last).to(*given, **named)  # type: ignore[attr-defined]
        return moved

    def repeat(self, *sizes: int) -> Tensor:  # type: ignore[override]
        """Of copies of the texts: its rows are made when they are needed, too."""
        if set(sizes[1:]) != {1}:
            raise ValueError(f"expected copies of texts alone (n, 1, 1, 1). Got {sizes}.")
        return _lazy(lambda first, last: self.of(first, last).repeat(*sizes), sizes[0] * self.shape[0], *self.shape[2:])


def _lazy(of: Callable[[int, int], Tensor], n_texts: int, n_queries: int, n_keys: int) -> _Mask:
    """A mask whose rows ``of`` makes."""
    one = of(0, 1)
    empty = torch.full((1, 1, 1, 1), torch.nan, dtype=one.dtype, device=one.device)
    mask = empty.expand(n_texts, 1, n_queries, n_keys).as_subclass(_Mask)
    mask.of = of
    return mask


def _lazy_mask(*given: Any, **named: Any) -> Tensor | None:
    """Instead of transformers' ``eager_mask``: the same mask, made when its rows are needed."""
    from transformers.masking_utils import eager_mask

    if given or "q_length" not in named:  # as earlier versions call it
        whole: Tensor | None = eager_mask(*given, **named)
        return whole
    offset = int(named.get("q_offset", 0))

    def of(first: int, last: int) -> Any:
        return eager_mask(**{**named, "q_offset": offset + first, "q_length": last - first})

    one = of(0, 1)
    if one is None:
        return None
    return _lazy(of, one.shape[0], int(named["q_length"]), one.shape[-1])


def _rows_of(mask: Tensor | None, first: int, last: int, n_keys: int) -> tuple[Tensor | None, int]:
    """The rows of a mask, and how many keys to give them: none of those that follow is seen by any.

    The first key that is hidden from all is given, too, so that even in a block of one row a model that attends ahead
    in spite of its mask is found out.
    """
    if mask is None:
        return None, n_keys
    whole = mask if mask.shape[-2] == 1 else mask[..., first:last, :]
    rows = mask.of(first, last) if isinstance(mask, _Mask) else whole
    if last + 1 < n_keys and rows.shape[-2] == last - first:
        hidden = rows[..., last + 1 :]
        if bool((hidden <= torch.finfo(rows.dtype).min).all()):
            return rows[..., : last + 1], last + 1
    return rows, n_keys


@dataclass
class _State:
    """Which layers have run, and what is known of the one that runs."""

    visited: list[int] = field(default_factory=list)
    encoded: list[Tensor] = field(default_factory=list)
    attending: int | None = None
    weighted: dict[int, Tensor] = field(default_factory=dict)


def record_attention(
    checkpoint: Checkpoint, inputs: dict[str, Tensor], observer: Observer, memory: float = BLOCK_MEMORY
) -> Tensor:
    """Run the model once on what its forward takes, and tell the observer of each layer while it runs.

    The model runs in eval mode; one that was loaded with sdpa or flash attention gets its own settings back afterwards,
    whatever happens. Nothing is kept here.

    Returns:
        the final hidden states, [batch, n, d_model].

    Raises:
        VerificationError: a layer gave no pattern, or ran more or less than once, or the final state is not finite.
    """
    state, inputs_of = _State(), dict[int, tuple[Tensor, Tensor | None]]()

    def current() -> int:
        if state.attending is None:
            raise VerificationError(
                "the model attends outside of its layers; nothing can be verified against this model."
            )
        return state.attending

    def end(record: LayerRecord) -> None:
        state.visited.append(record.layer)
        if record.source is not None:
            _refuse_other_source(record, state.encoded)
        observer.end(record)

    with ExitStack() as stack:
        door = _Door(observer, memory, inputs_of, current, state.weighted.__setitem__)
        stack.enter_context(through(door, checkpoint.model, _upcast(checkpoint)))
        if checkpoint.stacks:
            encoder: Any = checkpoint.model.encoder
            stack.enter_context(encoder.register_forward_hook(lambda _, __, result: state.encoded.append(result[0])))
        for layer, modules in zip(checkpoint.layers, checkpoint.modules, strict=True):
            _read(stack, checkpoint, layer, modules, state, inputs_of, end)
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.autocast(checkpoint.device.type, enabled=False))
        result = checkpoint.running(**inputs, use_cache=False)
    if state.visited != _in_run_order(checkpoint.layers):
        raise VerificationError(
            f"expected one attention pattern from each of {checkpoint.n_layers} layers, in order, "
            f"found them from layers [{', '.join(map(str, state.visited))}]; nothing can be verified against this "
            "model."
        )
    states: Tensor = result[0]
    refuse_not_finite(states, "final hidden state")
    return states


def record_undeclared(
    checkpoint: Checkpoint, inputs: dict[str, Tensor], observer: Observer, memory: float = BLOCK_MEMORY
) -> Tensor:
    """As :func:`record_attention`, of a family that is not declared: attention alone, in the order in which it runs.

    Raises:
        ArchitectureError: not all layers go through the interface once.
    """
    runs: list[int] = []

    def current() -> int:
        runs.append(len(runs))
        if len(runs) > checkpoint.n_layers:
            raise not_through(checkpoint)
        return runs[-1]

    door = _Door(observer, memory, {}, current, lambda _, __: None)
    with through(door, checkpoint.model):
        states = final_states(checkpoint, inputs)
    if len(runs) != checkpoint.n_layers:
        raise not_through(checkpoint)
    return states


def not_through(checkpoint: Checkpoint) -> ArchitectureError:
    """The error for a model that attends elsewhere than in the interface, or with other heads than its config says."""
    return ArchitectureError(
        f"not every layer of this {checkpoint.architecture.name!r} goes once through transformers' attention interface "
        f"with {checkpoint.n_heads} heads; --any-family recomputes nothing else."
    )


def final_states(checkpoint: Checkpoint, inputs: dict[str, Any], eager: bool = False) -> Tensor:
    """Of one run of the model, as it is set or with its eager attention, [batch, n, d_model]."""
    model: Any = checkpoint.model
    given = inputs | ({"use_cache": False} if "use_cache" in signature(model.forward).parameters else {})
    with ExitStack() as stack:
        if eager:
            stack.enter_context(attending(model))
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.autocast(checkpoint.device.type, enabled=False))
        states: Tensor = model(**given)[0]
    refuse_not_finite(states, "final hidden state")
    return states


@contextmanager
def through(door: _Door, model: Any, upcast: Sequence[Any] = ()) -> Iterator[None]:
    """The model, in eval mode, with our function as its attention for the time of one pass.

    ``upcast`` are the modules of a GPT-2 with ``reorder_and_upcast_attn``: they call a method of their own, and only
    when the model is set to eager attention.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    _doors.append(door)
    AttentionInterface.register(_NAME, door.attend)
    AttentionMaskInterface.register(_NAME, _lazy_mask)  # without it the model would run without any mask
    name = "_upcast_and_reordered_attn"
    with attending(model, "eager" if upcast else _NAME), ExitStack() as stack:
        for module in upcast:
            setattr(module, name, partial(door.upcast, module, getattr(module, name)))
            stack.callback(delattr, module, name)
        stack.callback(_close)
        yield


_doors: list[_Door] = []
"""Those of the passes that run, one inside the other."""


def _close() -> None:
    """Open the door of the pass around the one that ends, or none, so that no model stays in memory."""
    from transformers import AttentionInterface

    _doors.pop()
    AttentionInterface.register(_NAME, _doors[-1].attend if _doors else _closed)


@contextmanager
def in_blocks(checkpoint: Checkpoint, memory: float = BLOCK_MEMORY) -> Iterator[None]:
    """The model attends in blocks of query rows, which nobody looks at, for as long as the block takes."""
    door = _Door(PatternsAlone(), memory, {}, lambda: -1, lambda _, __: None)
    with through(door, checkpoint.model, _upcast(checkpoint)):
        yield


def _upcast(checkpoint: Checkpoint) -> list[Any]:
    """The modules of a GPT-2 with ``reorder_and_upcast_attn``."""
    return [each.pattern for each in checkpoint.modules if getattr(each.pattern, "reorder_and_upcast_attn", False)]


def _closed(*_: Any, **__: Any) -> NoReturn:
    """What stands in the interface between two passes."""
    raise VerificationError("this model is set to attnviz's attention, but attnviz is not running it.")


def _refuse_other_source(record: LayerRecord, encoded: Sequence[Tensor]) -> None:
    """Refuse cross-attention whose keys and values come from anything but the encoder's own output."""
    source: Any = record.source
    if len(encoded) == 1 and torch.equal(source, encoded[0].to(source.device)):
        return
    raise VerificationError(
        f"layer {record.layer}: the states that cross-attention was given are not the encoder's own output, so that "
        "they stand for no tokens of the source. Nothing was written."
    )


def refuse_not_finite(values: Tensor, what: str) -> None:
    """A VerificationError for numbers of the model that are not finite; its weights are, or it would not be loaded."""
    if not all_finite(values):
        raise VerificationError(
            f"The model's own {what} has values that are not finite in {str(values.dtype).removeprefix('torch.')}; a "
            "wider --dtype may help. Nothing was written."
        )


def _in_run_order(layers: Sequence[int]) -> list[int]:
    """The layers as they run: a decoder's own attention and its cross-attention take turns after the encoder."""

    def turn(layer: int) -> tuple[bool, int, int]:
        return (layer.stack.first > 0, layer.number, layer) if isinstance(layer, LayerId) else (False, layer, layer)

    return sorted(layers, key=turn)


def _read(
    stack: ExitStack, checkpoint: Checkpoint, layer: int, modules: LayerModules, state: _State,
    inputs_of: dict[int, tuple[Tensor, Tensor | None]], end: Callable[[LayerRecord], None],
) -> None:  # fmt: skip
    """Until the stack ends, read what stands around a layer's attention."""
    seen: dict[str, Tensor] = {}
    norm = modules.after_attention(checkpoint.architecture.pre_norm)

    def before_block(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen["residual"] = args[0] if args else kwargs["hidden_states"]

    def before_attention(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen["attention_input"] = args[0] if args else kwargs["hidden_states"]
        if (source := kwargs.get("key_value_states")) is not None:
            seen["source"] = source
        inputs_of[layer], state.attending = (seen["attention_input"], source), layer

    def after_attention(*_: Any) -> None:
        state.attending = None

    def after_output(_: nn.Module, __: Any, result: Any) -> None:
        seen["output"] = result[0] if isinstance(result, tuple) else result

    def after_norm(_: nn.Module, args: tuple[Any, ...], result: Tensor) -> None:
        if layer in state.weighted:
            seen["weighted"] = state.weighted.pop(layer)
        if missing := {"attention_input", "weighted", "output"} - set(seen):
            raise VerificationError(
                f"layer {layer} of the model ran the norm after its attention without {' and '.join(sorted(missing))}; "
                "nothing can be verified against this model."
            )
        own_norm = modules.attention_output_norm
        of_layer = {name: given.to(result.device) for name, given in {**seen, "summed": args[0]}.items()}
        end(LayerRecord(layer, normed=result, norm=norm, output_norm=own_norm, **of_layer))
        seen.clear()

    for hook in (
        modules.block.register_forward_pre_hook(before_block, with_kwargs=True),
        modules.pattern.register_forward_pre_hook(before_attention, with_kwargs=True),
        modules.pattern.register_forward_hook(after_attention),
        modules.output.register_forward_hook(after_output),
        norm.register_forward_hook(after_norm),
    ):
        stack.enter_context(hook)


@contextmanager
def attending(model: Any, implementation: str = "eager") -> Iterator[None]:
    """Another implementation of attention, and no dropout, for the time of one pass."""
    before = model.config._attn_implementation
    training = [module for module in model.modules() if module.training]
    if before != implementation:
        model.set_attn_implementation(implementation)
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
        if before != implementation:
            model.set_attn_implementation(before)
