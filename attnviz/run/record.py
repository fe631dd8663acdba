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
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.arguments import n_bytes
from attnviz.errors import VerificationError
from attnviz.memory import MOST_MASKS, row_blocks
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.base import LayerModules
from attnviz.reference.positions import apply_rotary, cos_and_sin_of_all
from attnviz.run.finite import refuse_not_finite
from attnviz.run.sites import SiteKey, at_site, place_of, sites_of, taps
from attnviz.run.transformers_compat import UPCAST, LazyMask, attention_replaced, running_plainly

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


@contextmanager
def inference(device: torch.device) -> Iterator[None]:
    """Torch's inference mode, without autocast."""
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        yield


@dataclass(frozen=True)
class AttentionCall:
    """What a layer of the model hands to its attention function."""

    layer: int
    query: Tensor  # [batch, n_heads, n_queries, d_head]
    key: Tensor  # [batch, n_kv_heads, n_keys, d_head]; heads in groups share keys and values
    value: Tensor
    scale: float  # what scores are multiplied by; not a number where the attention does not say
    cap: float | None  # what they are bounded by; None for nothing
    attention: str = "eager"  # the implementation, in transformers' words
    attention_input: Tensor | None = None  # as in LayerRecord; None if unknown
    source: Tensor | None = None


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


OnLayer = Callable[[int, Tensor], None]  # is called with a layer, and a tensor of it


class Observer:
    """Callbacks of a recorded pass, in this order for every layer."""

    overwrites = False  # rows() overwrites the model's own weights, which the model then does not return
    probes = False  # an implementation that returns no weights is called once more, on random values

    def begin(self, call: AttentionCall) -> None:
        """A layer is about to attend."""

    def rows(self, layer: int, rows: Rows) -> None:
        """The next query rows of the layer."""

    def end(self, record: LayerRecord) -> None:
        """The norm after the attention, or a parallel block, has run."""


# Sites of a layer that a pass looks at.
_RECORDED = "residual attention_input source concatenated attended output summed normed network_output end".split()
_EVERY_RECORD = {"attention_input", "weighted", "concatenated", "output", "summed", "normed"}


class _RecordedPass:
    """Stands for the model's attention during one pass, and calls it; tells the observer, and collects records.

    ``memory`` are the bytes of a chunk of rows, None for the default of the device.
    """

    def __init__(self, checkpoint: Checkpoint, observer: Observer, memory: float | None) -> None:
        self.checkpoint, self.observer, self.masks = checkpoint, observer, _MaskRows()
        self.memory = default_memory(checkpoint.device) if memory is None else memory
        self.attending: int | None = None  # the layer that attends
        self.seen = defaultdict[int, dict[str, Tensor]](dict)  # by layer, the fields of its record
        self.encoded, self.ended = list[Tensor](), list[int]()

    def attend(self, way: str, module: Any, original: Callable[..., Any], *given: Any, **more: Any) -> Any:
        """See :data:`attnviz.run.transformers_compat.Attend`."""
        if way == "eager":
            return self._in_chunks(original, *given, scale=more.get("scaling"), **more)
        if way == UPCAST:
            return self._in_chunks(original, *given, scale=module.scaling)
        if way == "_attn":
            query, key, value, *_ = given
            weighted, weights = original(*given, **more)
            self._ran_whole(weights, query, key, value, weighted)
            return weighted, weights
        if way == "forward":
            return self._around(module, original, *given, **more)
        return self._as_loaded(way, original, *given, **more)

    def _begin(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float | None, cap: float | None, attention: str
    ) -> int:
        """Tell the observer that a layer is about to attend, and return which."""
        layer = self.attending
        if layer is None:
            raise VerificationError(
                "the model attends outside of its layers; nothing can be verified against this model."
            )
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        x, source = (self.seen[layer].get(name) for name in ("attention_input", "source"))
        self.observer.begin(AttentionCall(layer, query, key, value, scale, cap, attention, x, source))
        return layer

    def _row_chunks(self, query: Tensor, key: Tensor, n_bytes: int) -> Iterator[tuple[int, int]]:
        """The first and past-the-last query of each chunk, for weights of so many bytes."""
        return row_blocks(query.shape[-2], query.shape[:2].numel() * key.shape[-2] * n_bytes, self.memory)

    def _as_loaded(
        self,
        name: str,
        original: Callable[..., Any],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *mask: Any,
        **more: Any,
    ) -> Any:
        """An implementation that returns no weights."""
        result = original(query, key, value, *mask, **more)
        layer = self._begin(query, key, value, more.get("scaling"), more.get("softcap"), name)
        probed = None
        if self.observer.probes:
            random = random_values(value).repeat(*value.shape[:-2], 1, 1)  # which the function may overwrite
            probed = original(query, key, random, *mask, **more)[0]
        for first, last in self._row_chunks(query, key, max(4, query.element_size())):
            self.observer.rows(layer, Rows(first, last, probe=None if probed is None else probed[:, first:last]))
        self.seen[layer]["weighted"] = result[0]
        return result

    def _in_chunks(
        self,
        original: Callable[..., Any],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        scale: float | None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Eager attention, a chunk of query rows at a time."""
        layer, bias = self._begin(query, key, value, scale, more.get("softcap"), "eager"), more.get("position_bias")
        n, weighted, weights = query.shape[-2], list[Tensor](), Tensor()
        for first, last in self._row_chunks(query, key, query.element_size()):
            rows, n_keys = self.masks.of(mask, first, last, key.shape[-2])
            if bias is not None:
                more["position_bias"] = bias[:, :, first:last, :n_keys] if bias.shape[-2] == n else bias[..., :n_keys]
            result, weights = original(query[:, :, first:last], key[:, :, :n_keys], value[:, :, :n_keys], rows, **more)
            _refuse_no_pattern(layer, weights, (*query.shape[:2], last - first, n_keys))
            weighted.append(result)
            self.observer.rows(layer, Rows(first, last, n_keys, weights))
        together = weighted[0] if len(weighted) == 1 else torch.cat(weighted, 1)
        self.seen[layer]["weighted"] = together
        return together, None if self.observer.overwrites or len(weighted) > 1 else weights

    def _around(self, module: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The forward of an attention that bypasses the interface, read around its linear maps."""
        model, seen = self.checkpoint, dict[str, Tensor]()
        layers = zip((*model.layers, *model.other_layers), model.modules, strict=True)
        layer, modules = next(of_layer for of_layer in layers if of_layer[1].attention is module)
        places = {name: replace(place_of(model, layer, modules, name), of=None) for name in ("q", "k", "v", "z")}

        def keep(name: str, tensor: Tensor) -> None:
            seen.setdefault(name, tensor)  # of two runs: DeBERTa's maps read its relative positions after the text

        _, *names = signature(type(module).forward).parameters
        with taps(places, keep):
            result = original(**dict(zip(names, args, strict=False)) | kwargs | {"output_attentions": True})
        weights: Any = result[1] if len(result) > 1 else None
        seen.setdefault("z", result[0])  # W_O may be outside
        query, key, *others = (place.value(seen[name], seen[name]).transpose(1, 2) for name, place in places.items())
        rotary = model.architecture.rotary(model.model, 0, model.d_head)
        if rotary is not None:
            query, key = apply_rotary(query, rotary), apply_rotary(key, rotary)
        self._ran_whole(weights, query, key, *others)
        return result

    def _ran_whole(self, weights: Any, query: Tensor, key: Tensor, value: Tensor, weighted: Tensor) -> None:
        """Tell the observer of all queries [batch, n_heads, n, d_head], in chunks of their rows."""
        layer, n_keys = self._begin(query, key, value, math.nan, None, "eager"), key.shape[-2]
        _refuse_no_pattern(layer, weights, (*query.shape[:3], n_keys))
        for first, last in self._row_chunks(query, key, weights.element_size()):
            self.observer.rows(layer, Rows(first, last, n_keys, weights[:, :, first:last]))
        self.seen[layer]["weighted"] = weighted.transpose(1, 2)

    def visit(self, of: LayerModules, site: SiteKey, tensor: Tensor) -> None:
        """The tensor of a site of :data:`_RECORDED`, as the model passes it."""
        layer, name = site
        seen = self.seen[layer]
        if name == "attended":
            self.attending = None
        elif name == "end":
            self.ended.append(layer)
            self.observer.end(self._record(layer, of))
        elif name != "source" or tensor is not seen.get("attention_input"):  # of self-attention both are one
            seen[name] = tensor if tensor.ndim > 2 else tensor.view_as(seen["residual"])  # OPT's network sees no batch
            self.attending = layer if name == "attention_input" else self.attending

    def _record(self, layer: int, of: LayerModules) -> LayerRecord:
        seen, pre_norm = self.seen.pop(layer), self.checkpoint.architecture.pre_norm
        missing = (_EVERY_RECORD | {"network_output"} if of.parallel else _EVERY_RECORD) - set(seen)
        if missing:
            what = "whole" if of.parallel else "the norm after its attention"
            raise VerificationError(
                f"layer {layer} of the model ran {what} without {' and '.join(sorted(missing))}; "
                "nothing can be verified against this model."
            )
        source = seen.get("source")
        own = source is None or any(torch.equal(source, states.to(source.device)) for states in self.encoded)
        if self.checkpoint.stacks and not own:
            raise VerificationError(
                f"layer {layer}: the states that cross-attention was given are not the encoder's own output, so that "
                "they stand for no tokens of the source. Nothing was written."
            )
        device = seen["normed"].device
        tensors = {name: tensor if tensor.device == device else tensor.to(device) for name, tensor in seen.items()}
        norm = of.after_attention(pre_norm)
        return LayerRecord(layer=layer, norm=norm, output_norm=of.attention_output_norm, **tensors)


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
        rows = mask.rows(first, last) if isinstance(mask, LazyMask) else whole
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
    checkpoint = replace(checkpoint, looked_up=checkpoint.modules)
    recorded = _RecordedPass(checkpoint, observer, memory)
    sites = sites_of(checkpoint, _RECORDED)

    def visit(site: SiteKey, tensor: Tensor) -> None:
        of = sites[site].of
        assert of is not None
        recorded.visit(of, site, tensor)

    with ExitStack() as stack:
        for kept in KEPT_IN_A_PASS:
            stack.callback(kept.cache_clear)
        stack.enter_context(attention_replaced(checkpoint, recorded.attend))
        if checkpoint.stacks:
            encoder: Any = checkpoint.model.encoder
            stack.enter_context(at_site(encoder, "output", recorded.encoded.append))
        stack.enter_context(taps(sites, visit))
        stack.enter_context(inference(checkpoint.device))
        result = checkpoint.running(**inputs, use_cache=False)
    ended = recorded.ended
    if ended != [layer for layer in checkpoint.every_layer if layer in checkpoint.layers]:
        raise VerificationError(
            f"expected one attention pattern from each of {checkpoint.n_layers} layers, in order, "
            f"found them from layers [{', '.join(map(str, ended))}]; nothing can be verified against this model."
        )
    states: Tensor = result[0]
    if check_finite:
        refuse_not_finite(states, "final hidden state")
    return states


@contextmanager
def in_blocks(checkpoint: Checkpoint) -> Iterator[None]:
    """Run the model as it was loaded, eager attention in chunks of query rows, without recording it."""
    if checkpoint.attention != "eager":
        with running_plainly(checkpoint):
            yield
        return
    unrecorded = _RecordedPass(checkpoint, Observer(), None)
    unrecorded.attending = -1
    with attention_replaced(checkpoint, unrecorded.attend):
        yield
