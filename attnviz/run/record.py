"""One forward pass, recorded: every layer's attention in chunks of query rows, its input, output, residual and norm.

The model runs with the implementation of attention that it was loaded with. A function of ours takes the place of that
implementation in transformers' attention interface, and calls it. Eager attention is called on a chunk of queries at a
time, so that no pattern of a whole layer has to be in memory, and each chunk of weights is handed to an observer. Keys
that the model's own mask hides from a whole chunk are left out, which gives the same numbers in half the time.

Others (sdpa, flash, a function of the user's) return no weights. Their result is handed on; then they are called once
more with the same queries, keys and mask on random values R: the result, A R, is that of a pattern A alone but for a
chance of nothing (Freivalds 1977, "Probabilistic Machines Can Use Less Running Time").
"""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from inspect import signature
from threading import Lock, get_ident
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.arguments import n_bytes
from attnviz.errors import ArchitectureError, VerificationError
from attnviz.memory import MOST_MASKS, row_blocks
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.base import LayerModules, heads_apart
from attnviz.models.libraries import running_own_code
from attnviz.reference.positions import Rotary, apply_rotary, cos_and_sin_of_all
from attnviz.run.finite import refuse_not_finite
from attnviz.run.sites import Site, at_site, sites_of, taps

# Default bytes of a chunk of rows: small enough for a processor's cache; on a GPU large, so that it has enough to do,
# but at most a quarter of what is free.
_OF_PROCESSOR, _OF_GPU = 48 * 2**20, 2**30


def block_memory(size: object) -> int | None:
    """Bytes of a chunk of rows, from a number or ``64M``; None for the default of the device; UsageError else."""
    return None if size is None else n_bytes("memory", size)


def default_memory(device: torch.device) -> float:
    """Bytes of a chunk of rows on a device."""
    if device.type != "cuda":
        return _OF_PROCESSOR
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_OF_GPU, free / 4)


@dataclass(frozen=True)
class AttentionCall:
    """What a layer of the model hands to its attention function."""

    layer: int
    query: Tensor  # [batch, n_heads, n_queries, d_head]
    key: Tensor  # [batch, n_kv_heads, n_keys, d_head]; heads in groups share keys and values
    value: Tensor
    scale: float  # what scores are multiplied by; not a number where the attention does not say
    cap: float | None  # what they are bounded by; None for nothing

    @property
    def n_queries(self) -> int:
        return self.query.shape[-2]


@dataclass(frozen=True)
class LayerRecord:
    """Inputs and outputs of a layer's attention, and stream and norm after it; [batch, n, d_model] where not said."""

    layer: int
    attention_input: Tensor  # what W_Q, W_K and W_V are applied to
    weighted: Tensor  # [batch, n, n_heads, d_head]: every head's weighted values, as the model's attention gave them
    concatenated: Tensor  # [batch, n, n_heads * d_head]: what W_O is applied to, through the gate if there is one
    output: Tensor  # the model's own, after W_O and b_O, before the residual
    residual: Tensor  # what the output is added to
    summed: Tensor  # residual + output, the input of the norm after the attention
    normed: Tensor  # the output of this norm; ``summed`` again where there is none
    norm: nn.Module | None
    output_norm: nn.Module | None = None  # of the output before it is added (Gemma)
    # What W_K and W_V are applied to, if it is another input: of cross-attention the encoder's final states
    # [batch, n_keys, d_model]; of a layer with the keys of an earlier one, what they are made of there.
    source: Tensor | None = None
    # Of a feed-forward network in parallel, which ``summed`` includes; ``normed`` is then of the residual alone.
    network_output: Tensor | None = None

    @property
    def gated(self) -> Tensor:
        """What W_O is applied to, a head at a time, [batch, n, n_heads, d_head]."""
        return self.concatenated.reshape(self.weighted.shape)

    @property
    def norm_input(self) -> Tensor:
        return self.summed if self.network_output is None else self.residual


@dataclass(frozen=True)
class Rows:
    """Query rows of a layer from ``first`` to before ``last``, as the model's attention shows them."""

    first: int
    last: int
    n_keys: int | None = None  # keys after these are hidden from all of the rows; None if the model does not say
    weights: Tensor | None = None  # the model's own pattern, [batch, n_heads, rows, n_keys], if it returns one
    # Else, if the observer probes, the pattern times random_values, [batch, rows, n_heads, d_head].
    probe: Tensor | None = None


class Observer:
    """Callbacks of a recorded pass, in this order for every layer."""

    overwrites = False  # rows() overwrites the model's own weights, which the model then does not return
    probes = False  # an implementation that returns no weights is called once more, on random values

    def begin(self, call: AttentionCall, attention_input: Tensor | None, source: Tensor | None) -> None:
        """A layer is about to attend; its input and source are as in :class:`LayerRecord`, None if unknown."""

    def rows(self, layer: int, rows: Rows) -> None:
        """The next query rows of the layer."""

    def end(self, record: LayerRecord) -> None:
        """The norm after the attention, or a parallel block, has run."""


# Sites of a layer that a pass looks at.
_RECORDED = "residual attention_input source concatenated attended output summed normed network_output end".split()


@dataclass
class _State:
    """Of a pass the layer that is attending, and by layer the fields of its record."""

    attending: int | None = None
    seen: defaultdict[int, dict[str, Tensor]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def layer(self) -> int:
        """The layer that is attending; VerificationError if none is."""
        if self.attending is None:
            raise VerificationError(
                "the model attends outside of its layers; nothing can be verified against this model."
            )
        return self.attending


class _BlockAttention:
    """Replaces the model's attention during one pass, and calls it: eager attention in chunks of query rows.

    ``memory`` are the bytes of a chunk; ``state`` gives a layer's inputs, and gets its weighted values.
    """

    def __init__(self, checkpoint: Checkpoint, observer: Observer, memory: float, state: _State) -> None:
        architecture, model = checkpoint.architecture, checkpoint.model
        measured: Any = model.decoder if architecture.reads_sound else model
        modules = list(measured.modules())
        self.modules = frozenset(map(id, modules))  # all but those of the encoder of a sound
        self.configs = frozenset(id(module.config) for module in modules if hasattr(module, "config"))
        self.rotary: Rotary | None = None  # of every layer, where a forward that bypasses the interface shows none
        if architecture.bypassing == "forward":
            self.rotary = architecture.rotary(model, 0, checkpoint.d_head)
        self.observer, self.memory, self.state = observer, memory, state
        self.masks, self.thread = _MaskRows(), get_ident()

    def _begin(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, cap: float | None) -> int:
        """Tell the observer that a layer is about to attend, and return which."""
        layer = self.state.layer
        seen = self.state.seen[layer]
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        call = AttentionCall(layer=layer, query=query, key=key, value=value, scale=scale, cap=cap)
        self.observer.begin(call, seen.get("attention_input"), seen.get("source"))
        return layer

    def attend_as_loaded(
        self, original: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, *mask: Any, **more: Any
    ) -> Any:
        """Called by transformers instead of an implementation other than eager."""
        result = original(query, key, value, *mask, **more)
        layer = self._begin(query, key, value, more.get("scaling"), more.get("softcap"))
        probed = None
        if self.observer.probes:
            random = random_values(value).repeat(*value.shape[:-2], 1, 1)  # which the function may overwrite
            probed = original(query, key, random, *mask, **more)[0]
        row_bytes = query.shape[:2].numel() * key.shape[-2] * max(4, query.element_size())
        for first, last in row_blocks(query.shape[-2], row_bytes, self.memory):
            self.observer.rows(layer, Rows(first, last, probe=None if probed is None else probed[:, first:last]))
        self.state.seen[layer]["weighted"] = result[0]
        return result

    def upcast(
        self, modules: LayerModules, original: Callable[..., Any], query: Tensor, key: Tensor, value: Tensor, *mask: Any
    ) -> Any:
        """Replaces GPT-2's ``_upcast_and_reordered_attn``, which bypasses the interface."""
        scale: Any = modules.attention.scaling
        return self.attend_in_chunks(original, query, key, value, mask[0] if mask else None, {}, scale)

    def whole(self, modules: LayerModules, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Replaces the forward of an attention that bypasses the interface; reads around its linear maps."""
        seen = list[tuple[int, Tensor]]()
        sites = [*(Site(module, "output") for module in modules.projections), Site(modules.o_proj, "input")]
        _, *names = signature(type(modules.attention).forward).parameters
        with taps(dict(enumerate(sites)), lambda *passed: seen.append(passed)):
            result = original(**dict(zip(names, args, strict=False)) | kwargs | {"output_attentions": True})
        weights: Any = result[1] if len(result) > 1 else None
        n_heads = weights.shape[1] if isinstance(weights, Tensor) else 1
        # W_O may be outside; of two runs the first counts: DeBERTa's maps read its relative positions after the text
        by_site = {len(modules.projections): result[0]} | dict(reversed(seen))
        *maps, weighted = (by_site[site] for site in range(len(sites)))
        d_head = weighted.shape[-1] // n_heads
        if len(maps) == 1:  # all three, head by head
            n_shared = (maps[0].shape[-1] // d_head - n_heads) // 2
            in_order = heads_apart(maps[0].movedim(-1, 0), n_heads, n_shared).movedim(0, -1)
            maps = list(torch.split(in_order, [n * d_head for n in (n_heads, n_shared, n_shared)], -1))
        query, key, *others = (x.reshape(*x.shape[:-1], -1, d_head).transpose(1, 2) for x in (*maps, weighted))
        if self.rotary is not None:
            query, key = apply_rotary(query, self.rotary), apply_rotary(key, self.rotary)
        self._ran_whole(weights, query, key, *others)
        return result

    def inside(self, _: LayerModules, original: Callable[..., Any], query: Tensor, key: Tensor, *more: Any) -> Any:
        """Replaces ``_attn``, which bypasses the interface inside an attention."""
        weighted, weights = original(query, key, *more)
        self._ran_whole(weights, query, key, more[0], weighted)
        return weighted, weights

    def _ran_whole(self, weights: Any, query: Tensor, key: Tensor, value: Tensor, weighted: Tensor) -> None:
        """Tell the observer of all queries [batch, n_heads, n, d_head], in chunks of their rows."""
        n_keys = key.shape[-2]
        _refuse_no_pattern(self.state.layer, weights, (*query.shape[:3], n_keys))
        layer = self._begin(query, key, value, math.nan, None)
        for first, last in row_blocks(query.shape[-2], weights[:, :, 0].nbytes, self.memory):
            self.observer.rows(layer, Rows(first, last, n_keys, weights[:, :, first:last]))
        self.state.seen[layer]["weighted"] = weighted.transpose(1, 2)

    def attend_in_chunks(
        self,
        original: Callable[..., Any],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        more: dict[str, Any],
        scale: float | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Called by transformers instead of eager attention."""
        layer, bias = self._begin(query, key, value, scale, more.get("softcap")), more.get("position_bias")
        n, weighted, weights = query.shape[-2], list[Tensor](), Tensor()
        for first, last in row_blocks(n, query.shape[:2].numel() * key.shape[-2] * query.element_size(), self.memory):
            rows, n_keys = self.masks.of(mask, first, last, key.shape[-2])
            if bias is not None:
                more["position_bias"] = bias[:, :, first:last, :n_keys] if bias.shape[-2] == n else bias[..., :n_keys]
            result, weights = original(query[:, :, first:last], key[:, :, :n_keys], value[:, :, :n_keys], rows, **more)
            _refuse_no_pattern(layer, weights, (*query.shape[:2], last - first, n_keys))
            weighted.append(result)
            self.observer.rows(layer, Rows(first, last, n_keys, weights))
        together = weighted[0] if len(weighted) == 1 else torch.cat(weighted, 1)
        self.state.seen[layer]["weighted"] = together
        return together, None if self.observer.overwrites or len(weighted) > 1 else weights


def random_values(like: Tensor) -> Tensor:
    """Fixed random numbers between -1 and 1, [n, d], the same for every text and head of some values [.., n, d]."""
    return _random_values(*like.shape[-2:], like.dtype, like.device)


@lru_cache(maxsize=4)
def _random_values(n: int, d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return 2 * random_numbers(n, d, dtype, device) - 1


@lru_cache(maxsize=16)
def random_numbers(n: int, d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Fixed random numbers between 0 and 1, [n, d]."""
    return torch.rand(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device, dtype)


# Functions that keep tensors on the device, [n, d] at most, until a pass ends.
KEPT_IN_A_PASS = (_random_values, random_numbers, cos_and_sin_of_all)


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
    """A lazy mask: ``rows`` makes any of its rows; its own values are NaN, so that plain use shows."""

    rows: Callable[[int, int], Tensor]

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """The same mask, whose rows are converted when they are made."""
        moved = super().to(*args, **kwargs)
        if moved is not self:
            moved.rows = lambda first, last: self.rows(first, last).to(*args, **kwargs)  # type: ignore[attr-defined]
        return moved

    def __getitem__(self, index: Any) -> Any:
        """As lazy where all of it is taken, as Gemma 4 does."""
        taken: Any = super().__getitem__(index)
        if taken.shape == self.shape and hasattr(self, "rows"):  # what is computed from a mask has none
            taken.rows = self.rows
        return taken

    def masked_fill(self, mask: Tensor, value: Any) -> Tensor:
        """With more keys hidden, as DeepSeek V3.2's indexer does, lazy too."""
        if not hasattr(self, "rows"):
            return super().masked_fill(mask, value)
        return _lazy(
            lambda first, last: self.rows(first, last).masked_fill(mask[..., first:last, :], value),
            self.shape[0],
            *self.shape[2:],
        )

    def __and__(self, other: Any) -> Any:
        """Likewise, of a mask of booleans."""
        if not hasattr(self, "rows"):
            return super().__and__(other)
        return _lazy(
            lambda first, last: self.rows(first, last) & other[..., first:last, :], self.shape[0], *self.shape[2:]
        )

    def repeat(self, *sizes: int) -> Tensor:  # type: ignore[override]
        """The mask of copies of the texts, lazy too."""
        if set(sizes[1:]) != {1}:
            raise ValueError(f"expected copies of texts alone (n, 1, 1, 1). Got {sizes}.")
        return _lazy(
            lambda first, last: self.rows(first, last).repeat(*sizes), sizes[0] * self.shape[0], *self.shape[2:]
        )


def _lazy(rows: Callable[[int, int], Tensor], n_texts: int, n_queries: int, n_keys: int) -> _Mask:
    """A lazy mask, [n_texts, 1, n_queries, n_keys]."""
    one = rows(0, 1)
    empty = torch.full((1, 1, 1, 1), torch.nan, dtype=one.dtype, device=one.device)
    mask = empty.expand(n_texts, 1, n_queries, n_keys).as_subclass(_Mask)
    mask.rows = rows
    return mask


def _lazy_mask(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor | None:
    """The same mask as transformers' ``eager_mask`` makes, ``original``, a chunk of rows at a time."""
    n_bytes = 8 * kwargs.get("q_length", 0) * kwargs.get("kv_length", 0) * kwargs.get("batch_size", 1)
    if args or n_bytes <= MOST_MASKS:  # as earlier versions of transformers call it, or small
        whole: Tensor | None = original(*args, **kwargs)
        return whole
    offset = int(kwargs.get("q_offset", 0))

    def rows(first: int, last: int) -> Any:
        return original(**{**kwargs, "q_offset": offset + first, "q_length": last - first})

    one = rows(0, 1)
    return None if one is None else _lazy(rows, one.shape[0], int(kwargs["q_length"]), one.shape[-1])


class _MaskRows:
    """Rows of the masks of one pass, each made and looked at once for all layers that share a mask."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], tuple[Tensor, Tensor | None, int]] = {}
        self._nbytes = 0

    def of(self, mask: Tensor | None, first: int, last: int, n_keys: int) -> tuple[Tensor | None, int]:
        """Rows of a mask, and how many keys to compute: one more than its rows see, to notice a look ahead."""
        if mask is None:
            return None, n_keys
        known = self._known.get((id(mask), first, last))
        if known is not None and known[1] is not None:
            return known[1], known[2]
        whole = mask if mask.shape[-2] == 1 else mask[..., first:last, :]
        rows = mask.rows(first, last) if isinstance(mask, _Mask) else whole
        if known is not None:
            n_keys = known[2]
        elif last + 1 < n_keys and rows.shape[-2] == last - first:
            hidden = rows[..., last + 1 :]
            if bool((hidden <= torch.finfo(rows.dtype).min).all()):
                n_keys = last + 1
        rows = rows[..., :n_keys]
        if known is None:
            keep = self._nbytes + rows.nbytes <= MOST_MASKS
            self._nbytes += rows.nbytes if keep else 0
            self._known[id(mask), first, last] = mask, rows if keep else None, n_keys
        return rows, n_keys


def record_attention(
    checkpoint: Checkpoint,
    inputs: dict[str, Tensor],
    observer: Observer,
    memory: float | None = None,
    check_finite: bool = True,
) -> Tensor:
    """Run the model once on what its forward takes, calling the observer for each layer; return the final states.

    ``memory`` are the bytes of a chunk of rows, see :func:`attnviz.memory.row_blocks`. Without ``check_finite`` the
    caller has to look at the final states, [batch, n, d_model]. The model runs in eval mode, and gets its own settings
    back afterwards, whatever happens.

    VerificationError: a layer gave no pattern, or ran more or less than once, or the final state is not finite.
    """
    state, visited, encoded = _State(), list[int](), list[Tensor]()
    memory = default_memory(checkpoint.device) if memory is None else memory
    sites = sites_of(checkpoint, _RECORDED)
    modules = {layer: site.of for (layer, _), site in sites.items() if site.of is not None}

    def visit(site: tuple[int, str], tensor: Tensor) -> None:
        layer, name = site
        seen = state.seen[layer]
        if name == "attended":
            state.attending = None
        elif name == "end":
            visited.append(layer)
            record = _record_of(layer, modules[layer], checkpoint.architecture.pre_norm, state.seen.pop(layer))
            source: Any = record.source
            of_encoder = len(encoded) == 1 and source is not None and torch.equal(source, encoded[0].to(source.device))
            if checkpoint.stacks and source is not None and not of_encoder:
                raise VerificationError(
                    f"layer {layer}: the states that cross-attention was given are not the encoder's own output, so "
                    "that they stand for no tokens of the source. Nothing was written."
                )
            observer.end(record)
        elif name != "source" or tensor is not seen.get("attention_input"):  # of self-attention both are one
            seen[name] = tensor if tensor.ndim > 2 else tensor.view_as(seen["residual"])  # OPT's network sees no batch
            state.attending = layer if name == "attention_input" else state.attending

    with ExitStack() as stack:
        for kept in KEPT_IN_A_PASS:
            stack.callback(kept.cache_clear)
        stack.enter_context(_attending(_BlockAttention(checkpoint, observer, memory, state), checkpoint))
        if checkpoint.stacks:
            encoder: Any = checkpoint.model.encoder
            stack.enter_context(at_site(encoder, "output", encoded.append))
        stack.enter_context(taps(sites, visit))
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.autocast(checkpoint.device.type, enabled=False))
        result = checkpoint.running(**inputs, use_cache=False)
    if visited != [layer for layer in checkpoint.every_layer if layer in checkpoint.layers]:
        raise VerificationError(
            f"expected one attention pattern from each of {checkpoint.n_layers} layers, in order, "
            f"found them from layers [{', '.join(map(str, visited))}]; nothing can be verified against this model."
        )
    states: Tensor = result[0]
    if check_finite:
        refuse_not_finite(states, "final hidden state")
    return states


def _record_of(layer: int, modules: LayerModules, pre_norm: bool, seen: dict[str, Tensor]) -> LayerRecord:
    wanted = {"attention_input", "weighted", "concatenated", "output", "summed", "normed"}
    missing = (wanted | {"network_output"} if modules.parallel else wanted) - set(seen)
    if missing:
        what = "whole" if modules.parallel else "the norm after its attention"
        raise VerificationError(
            f"layer {layer} of the model ran {what} without {' and '.join(sorted(missing))}; "
            "nothing can be verified against this model."
        )
    device = seen["normed"].device
    tensors = {name: tensor if tensor.device == device else tensor.to(device) for name, tensor in seen.items()}
    norm = modules.after_attention(pre_norm)
    return LayerRecord(layer=layer, norm=norm, output_norm=modules.attention_output_norm, **tensors)


@contextmanager
def _attending(attention: _BlockAttention, checkpoint: Checkpoint) -> Iterator[None]:
    """Have the attention take the place of the model's own during one pass, in eval mode."""
    bypassing = list[tuple[LayerModules, str]]()  # layers whose attention bypasses the interface, and by which method
    if checkpoint.attention == "eager":
        method = checkpoint.architecture.bypassing
        layers = {layer.attention: layer for layer in checkpoint.modules}
        for attends, layer in layers.items():
            if method or getattr(attends, "reorder_and_upcast_attn", False):
                bypassing.append((layer, method or "_upcast_and_reordered_attn"))
    with ExitStack() as stack:
        stack.enter_context(running_plainly(checkpoint))
        if bypassing:
            _replace_methods(attention, checkpoint.model, bypassing, stack)
        else:
            stack.enter_context(_exchanged(attention, checkpoint.attention))
        yield


def _replace_methods(
    attention: _BlockAttention, model: Any, bypassing: Sequence[tuple[LayerModules, str]], stack: ExitStack
) -> None:
    """Replace the method by which each of some layers bypasses transformers' interface, until the stack is left."""
    configs = [module.config for module in model.modules() if getattr(module, "config", None)]
    for config in {id(config): config for config in configs}.values():
        stack.callback(setattr, config, "_attn_implementation", getattr(config, "_attn_implementation", None))
        config._attn_implementation = "eager"  # some of these models do not take set_attn_implementation
    for modules, name in bypassing:
        instead = getattr(attention, _INSTEAD[name])
        module = modules.attention
        earlier = vars(module).get(name)  # accelerate sets a forward of its own, too
        setattr(module, name, partial(instead, modules, getattr(module, name)))
        stack.callback(*((delattr, module, name) if earlier is None else (setattr, module, name, earlier)))


_running, _lock = list[_BlockAttention](), Lock()


@contextmanager
def _exchanged(attention: _BlockAttention, name: str) -> Iterator[None]:
    """Have transformers call this attention in the pass of this thread where its interface has one of this name.

    The name stays, since some models attend otherwise under another one. What is looked up is exchanged for as long as
    any pass runs, and in the threads of passes alone.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if name != "eager" and name not in ALL_ATTENTION_FUNCTIONS:
        raise VerificationError(
            f"the model is set to the attention {name!r}, which transformers does not know; expected one that was "
            "registered: AttentionInterface.register(NAME, FUNCTION)."
        )
    instead = {AttentionInterface: _attention_by_name, AttentionMaskInterface: _mask_by_name}
    with _lock:
        if not _running:
            for interface, by_name in instead.items():
                interface.__getitem__ = by_name
        _running.append(attention)
    try:
        yield
    finally:
        with _lock:
            _running.remove(attention)
            if not _running:
                for interface in instead:
                    del interface.__getitem__


def _passes_here() -> list[_BlockAttention]:
    return [attention for attention in reversed(_running) if attention.thread == get_ident()]


def _attention_by_name(interface: Any, name: str) -> Any:
    """Replaces the look-up in transformers' attention interface: in the thread of a pass, its attention is called."""
    from transformers import AttentionInterface

    passes = _passes_here()
    try:
        original = super(AttentionInterface, interface).__getitem__(name)
    except KeyError:
        if name != "eager" or not passes:
            raise
        original = _eager
    return partial(_attend, original, name) if passes else original


def _eager(module: Any, *given: Any, **more: Any) -> Any:
    """The eager attention of the file of a module's class, or of a base class, where none is registered."""
    for kind in type(module).__mro__:
        original = getattr(sys.modules[kind.__module__], "eager_attention_forward", None)
        if original is not None:
            return original(module, *given, **more)
    raise ArchitectureError(f"{type(module).__name__} has no eager attention of its own to call.")


def _attend(original: Callable[..., Any], name: str, module: Any, *given: Any, **more: Any) -> Any:
    """The attention of the pass that runs this module here; else of another model, which runs untouched."""
    for attention in _passes_here():
        if id(module) in attention.modules:
            call = partial(original, module)
            if name == "eager":
                query, key, value, mask = given
                return attention.attend_in_chunks(call, query, key, value, mask, more, more.get("scaling"))
            return attention.attend_as_loaded(call, *given, **more)
    return original(module, *given, **more)


def _mask_by_name(interface: Any, name: str) -> Any:
    """Replaces the look-up in transformers' interface of masks: in the thread of a pass, eager ones may be lazy."""
    from transformers.masking_utils import AttentionMaskInterface

    original = super(AttentionMaskInterface, interface).__getitem__(name)
    return partial(_mask, original) if name == "eager" and _passes_here() else original


def _mask(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The mask of a pass of this model here, perhaps lazy; else of another model, which runs untouched."""
    ours = any(id(kwargs.get("config")) in attention.configs for attention in _passes_here())
    return _lazy_mask(original, *args, **kwargs) if ours else original(*args, **kwargs)


@contextmanager
def in_blocks(checkpoint: Checkpoint) -> Iterator[None]:
    """Run the model as it was loaded, eager attention in chunks of query rows, without recording it."""
    if checkpoint.attention != "eager":
        with running_plainly(checkpoint):
            yield
        return
    attention = _BlockAttention(checkpoint, Observer(), default_memory(checkpoint.device), _State(-1))
    with _attending(attention, checkpoint):
        yield


# Methods that bypass the interface, and those of _BlockAttention that replace them.
_INSTEAD = {"forward": "whole", "_attn": "inside", "_upcast_and_reordered_attn": "upcast"}


@contextmanager
def running_plainly(checkpoint: Checkpoint) -> Iterator[None]:
    """Set plain experts, outputs by name and eval mode, run no compiled code, and restore all at the end.

    CheckpointError: by the block, where the model's own code raises anything.
    """
    model: Any = checkpoint.model
    experts, by_name = model.config._experts_implementation, model.config.return_dict
    training = [module for module in model.modules() if module.training]
    uncompiled = torch.compiler.set_stance("force_eager") if checkpoint.compiled else nullcontext()
    try:
        model.config.return_dict = True  # BART's own code fails on tuples
        model.config._experts_implementation = "eager"  # torch's grouped product takes neither float64 nor every width
        model.eval()
        with uncompiled, running_own_code():
            yield
    finally:
        for module in training:
            module.training = True
        model.config._experts_implementation, model.config.return_dict = experts, by_name
