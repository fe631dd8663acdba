"""Named sites of a model's blocks, whose tensors are read or replaced while the model runs."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnviz.arguments import as_found
from attnviz.errors import ArchitectureError, UsageError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.base import LayerModules, first_of, heads_apart
from attnviz.models.head_ids import HeadId
from attnviz.wording import counted

Key = TypeVar("Key")
SiteKey = tuple[int, str]  # a layer, and the name of a site in it

# Of a block, in the order in which they are computed; the names are TransformerLens'. The stream is what blocks read
# and pass on: of BERT and its relatives it is normed once something is added.
SITES = {
    "resid_pre": "the residual stream that the block reads, [batch, n, d_model]",
    "q": "x W_Q + b_Q, before rotary positions and norms of heads, [batch, n, n_heads, d_head]",
    "k": "x W_K + b_K, likewise, [batch, n, n_kv_heads, d_head]",
    "v": "x W_V + b_V, [batch, n, n_kv_heads, d_head]",
    "scores": "what the softmax is taken of, [batch, n_heads, n, n]",
    "pattern": "attention after the softmax, [batch, n_heads, n, n]",
    "z": "values weighted by the pattern, which W_O is applied to, [batch, n, n_heads, d_head]",
    "head_out": "z W_O of each head, without b_O, [batch, n, n_heads, d_model]",
    "attn_out": "what the attention adds to the stream, [batch, n, d_model]",
    "resid_mid": "the stream after the attention, [batch, n, d_model]",
    "mlp_out": "what the feed-forward network adds to the stream, [batch, n, d_model]",
    "resid_post": "the stream that the block passes on, [batch, n, d_model]",
}
OF_HEADS = ("q", "k", "v", "z")  # sites that have a part for each head, or KV head
COMPUTED = ("scores", "pattern", "head_out")  # which no module gives: the verified run has them, to be read

_OF_ENCODER = ("key_value_states", "encoder_hidden_states")  # what attention layers call the encoder's final states


@dataclass(frozen=True)
class Site:
    """A tensor that a module takes or gives, by side as for :func:`at_site`; perhaps in the run of one layer alone.

    The value of a site of :data:`SITES` is made of it, and it of the value.
    """

    module: nn.Module
    side: str
    of: LayerModules | None = None
    n_heads: int | None = None  # heads, or KV heads, that the value has a part for; None for one vector a token
    columns: Callable[[int], Tensor] | None = None  # those of a map for several, by its width; None for all
    factor: float = 1.0  # what the value is multiplied by
    on_stream: bool = False  # whether the value is the sum with the stream that the block reads

    def value(self, tensor: Tensor, stream: Tensor) -> Tensor:
        """The value of the site, in its shape, from the tensor of the module, and the stream that the block reads."""
        if self.n_heads is not None:
            part = tensor if self.columns is None else tensor[..., self.columns(tensor.shape[-1]).to(tensor.device)]
            return part.reshape(*part.shape[:-1], self.n_heads, -1)
        scaled = tensor if self.factor == 1 else tensor * self.factor
        return stream + scaled if self.on_stream else scaled

    def tensor(self, value: Tensor, before: Tensor, stream: Tensor) -> Tensor:
        """The tensor of the module with which the site has a value; ``before`` is the module's own."""
        if self.columns is not None:
            replaced = before.clone()
            replaced[..., self.columns(before.shape[-1]).to(before.device)] = value.flatten(-2)
            return replaced
        if self.n_heads is not None:
            return value.flatten(-2)
        added = value - stream if self.on_stream else value
        return added if self.factor == 1 else added / self.factor


WRITERS = ("mixer", "feed-forward", "experts", "words by layer")  # what adds to the stream, but for heads
NORMS = ("attention_norm", "attention_output_norm", "feed_forward_norm")


def sites_of(
    checkpoint: Checkpoint, names: Collection[str], layers: Collection[int] | None = None
) -> dict[SiteKey, Site]:
    """Sites of all or some layers, by layer and name, most of these as in :class:`attnviz.run.record.LayerRecord`.

    ``arguments`` are those of the whole layer, ``stream`` is the first of them, ``attended`` what the attention
    returns, ``concatenated`` what W_O is applied to, :data:`WRITERS` are what these give, and :data:`NORMS` what these
    take; at the ``end`` all that a record holds has been passed. A name that a layer lacks is left out.
    """
    sites = dict[SiteKey, Site]()
    if layers is not None and not layers:
        return sites
    every = checkpoint.modules
    for layer, modules in zip((*checkpoint.layers, *checkpoint.other_layers), every, strict=True):
        if layers is None or layer in layers:
            places = _places(modules, every, checkpoint.architecture.pre_norm)
            sites |= {(layer, name): Site(*places[name], modules) for name in names if name in places}
    return sites


def _places(modules: LayerModules, every: Sequence[LayerModules], pre_norm: bool) -> dict[str, tuple[nn.Module, str]]:
    """Module and side of the sites of a layer by name."""
    places: dict[str, tuple[nn.Module, str]] = {
        "arguments": (modules.block, "arguments"),
        "stream": (modules.block, "input"),
    }
    places |= {name: (module, "output") for name, module in modules.writers.items()}
    norms = {name: getattr(modules, name) for name in NORMS}
    places |= {name: (norm, "input") for name, norm in norms.items() if norm is not None}
    if not modules.attends:
        return places
    entered, norm, shared = modules.sum_input(pre_norm), modules.after_attention(pre_norm), modules.keys_layer
    places |= {
        "residual": places["stream"],
        "attention_input": (modules.attention, "input"),
        "source": (modules.attention, "source") if shared is None else (every[shared].attention, "input"),
        "concatenated": (modules.o_proj, "input"),
        "attended": (modules.attention, "output"),
        "output": (modules.output, "output"),
        "summed": (modules.block, "output") if modules.parallel else (entered, "input"),
        "normed": (entered, "input" if norm is None else "output"),
    }
    if modules.parallel:
        places["network_output"] = places["feed-forward"]
    return places | {"end": places["summed" if modules.parallel else "normed"]}


def site_of(checkpoint: Checkpoint, layer: int, name: str) -> Site:
    """A site of :data:`SITES` of a layer; UsageError for no such one, ArchitectureError where the layer lacks it."""
    architecture = checkpoint.architecture
    modules = architecture.modules_of(checkpoint.model, layer)
    if name not in SITES:
        raise UsageError(f"expected a site, one of {', '.join(SITES)}, found {as_found(name)}.")
    why = _why_missing(checkpoint, layer, modules, name)
    if why:
        of = HeadId((*checkpoint.layers, *checkpoint.other_layers)[layer], 0).layer_name
        raise ArchitectureError(f"{of} of this {architecture.name} has no {name}: {why}.")
    return place_of(checkpoint, layer, modules, name)


def place_of(checkpoint: Checkpoint, layer: int, modules: LayerModules, name: str) -> Site:
    """The site that :func:`site_of` gives, whether or not it means what :data:`SITES` says in this layer."""
    architecture = checkpoint.architecture
    n_heads, n_kv_heads = architecture.head_counts(checkpoint.config, layer)
    if name in ("q", "k", "v"):
        number = "qkv".index(name)
        linear = modules.projections[min(number, len(modules.projections) - 1)]
        columns = _columns(checkpoint, layer, modules, number)
        return Site(linear, "output", modules, n_kv_heads if number else n_heads, columns)
    if name == "z":
        return Site(modules.o_proj, "input", modules, n_heads)
    if name in ("resid_pre", "resid_post"):
        return Site(modules.block, "input" if name == "resid_pre" else "output", modules)
    writer: Any = first_of(modules.attention_output_norm, modules.output)
    if name == "mlp_out":
        writer = modules.writers["feed-forward"]
    elif name == "resid_mid" and not architecture.pre_norm:
        norm: Any = modules.attention_norm
        return Site(norm, "output", modules)
    factor = checkpoint.residual_multiplier
    return Site(writer, "output", modules, factor=factor, on_stream=name == "resid_mid")


def _why_missing(checkpoint: Checkpoint, layer: int, modules: LayerModules, name: str) -> str:
    """Why a layer has no such site that a module gives, or ''."""
    linear = modules.projections
    stack = checkpoint.layers[layer].stack.letter if checkpoint.stacks else ""  # type: ignore[attr-defined]
    of_distances = getattr(modules.attention, "share_att_key", False)
    reasons = {
        "it is computed inside the attention, and read in a verified run alone": name in COMPUTED,
        "it mixes tokens in another way than by attention": name in (*OF_HEADS, "attn_out") and not modules.attends,
        f"its keys and values are those of layer {modules.keys_layer}": (
            name in ("k", "v") and modules.keys_layer is not None
        ),
        "its values are its keys": name == "v" and len(linear) == 3 and linear[1] is linear[2],
        "a part of its keys is one for all heads": name == "k" and len(linear) == 2,
        "one map makes it of tokens and of their distances": name in ("q", "k") and of_distances,
        "its attention and its network read the same stream, side by side": name == "resid_mid" and modules.parallel,
        "it has experts beside a network": name == "mlp_out" and modules.experts is not None,
        "its network comes after the cross-attention": name == "mlp_out" and stack == "D",
        "it is a part of a block": name == "resid_post" and stack != "",
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _columns(checkpoint: Checkpoint, layer: int, modules: LayerModules, number: int) -> Callable[[int], Tensor] | None:
    """The columns of q, k or v, by its number, among what its map gives, by the width of that; None for all."""
    architecture, config = checkpoint.architecture, checkpoint.config
    n_heads, n_kv_heads = architecture.head_counts(config, layer)
    heads = n_heads, n_kv_heads, n_kv_heads

    is_fused = len(modules.projections) == 1

    def columns(width: int) -> Tensor:
        every = torch.arange(width)
        if is_fused:
            d_head = width // sum(heads)
            in_order = heads_apart(every, n_heads, n_kv_heads) if architecture.fused_by_head else every
            return in_order[sum(heads[:number]) * d_head : sum(heads[: number + 1]) * d_head]
        if number == 0:  # before its gate
            return every.reshape(n_heads, 2, -1)[:, 0].flatten()
        return every.reshape(n_heads, -1)[:, config.qk_nope_head_dim :].flatten()  # after its key

    is_part = architecture.gated if number == 0 else len(modules.projections) == 2
    return columns if is_fused or is_part else None


@contextmanager
def at_named(
    checkpoint: Checkpoint,
    wanted: Collection[SiteKey],
    visit: Callable[[SiteKey, Tensor], Tensor | None],
) -> Iterator[None]:
    """Call ``visit`` with layer and name, and the value in the shape of :data:`SITES`, when passes inside compute it.

    A tensor that it returns replaces the value, for all that is computed from it.
    """
    sites = {key: site_of(checkpoint, *key) for key in wanted}
    streams = dict[int, Tensor]()

    def pass_on(key: SiteKey, tensor: Tensor) -> Tensor | None:
        layer, name = key
        if name == "stream":
            streams[layer] = tensor
            return None
        stream, site = streams.get(layer, tensor), sites[key]
        before = tensor  # some networks see no batch, and DeepSeek's keys have an axis more
        if tensor.ndim != stream.ndim:
            before = tensor.reshape(*stream.shape[:-1], -1)
        value = visit(key, site.value(before, stream))
        return None if value is None else site.tensor(value, before, stream).reshape(tensor.shape)

    with taps(sites | sites_of(checkpoint, ["stream"], {layer for layer, _ in wanted}), pass_on):
        yield


@contextmanager
def taps(sites: Mapping[Key, Site], visit: Callable[[Key, Any], Any]) -> Iterator[None]:
    """Call ``visit`` with the key and the tensor of each site, whenever it is passed, inside the block.

    A tensor that ``visit`` returns replaces the one at the site. Where several layers share modules, the runs of their
    block are counted from here on, so passes have to be whole.
    """
    runs, thread = Counter[nn.Module](), get_ident()

    def count(block: nn.Module, _: Any) -> None:
        if get_ident() == thread:
            runs[block] += 1

    def in_own_run(key: Key, of: LayerModules | None, tensor: Any) -> Any:
        in_its_run = of is None or of.n_runs == 1 or (runs[of.block] - 1) % of.n_runs == of.run
        if of is not None and of.parallel and sites[key].module is of.network_output:
            tensor = tensor.clone()  # Falcon adds to it in place
        return visit(key, tensor) if in_its_run else None

    shared = {site.of.block for site in sites.values() if site.of is not None and site.of.n_runs > 1}
    with ExitStack() as stack:
        for block in shared:
            stack.enter_context(block.register_forward_pre_hook(count))
        for key, site in sites.items():
            stack.enter_context(at_site(site.module, site.side, partial(in_own_run, key, site.of)))
        yield


@contextmanager
def recording(sites: Mapping[Key, Site]) -> Iterator[dict[Key, Any]]:
    """The tensor of each site, by key, as the last pass inside the block has passed it."""
    seen = dict[Key, Any]()
    with taps(sites, seen.__setitem__):
        yield seen


@contextmanager
def recording_all(sites: Mapping[Key, Site]) -> Iterator[dict[Key, list[Any]]]:
    """All tensors of each site, by key, in order: also of a module that runs several times in a pass."""
    seen: dict[Key, list[Any]] = {key: [] for key in sites}
    with taps(sites, lambda key, tensor: seen[key].append(tensor)):
        yield seen


def at_site(module: nn.Module, side: str, visit: Callable[[Any], Any]) -> RemovableHandle:
    """Call ``visit`` with the tensor at a site, whenever it is passed, until the handle is removed.

    ``side`` is ``input`` (the module's first argument), ``source`` (of attention what W_K and W_V are applied to: in
    cross-attention the encoder's final states), ``arguments`` (all of them, positional and named) or ``output`` (what
    it returns, or the first of that). A tensor that ``visit`` returns replaces the one at the site. Other threads may
    run the module meanwhile: what they pass is left alone.
    """
    thread = get_ident()

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if get_ident() != thread:
            return None
        if side == "arguments":
            return visit((args, kwargs))
        crosses = [name for name in _OF_ENCODER if side == "source" and kwargs.get(name) is not None]
        name = crosses[0] if crosses else "hidden_states"
        positional = bool(args) and not crosses
        replaced = visit(args[0] if positional else kwargs[name])
        if replaced is None:
            return None
        return ((replaced, *args[1:]), kwargs) if positional else (args, kwargs | {name: replaced})

    def after(_: nn.Module, __: Any, result: Any) -> Any:
        if get_ident() != thread:
            return None
        if isinstance(result, Tensor):
            return visit(result)
        replaced = visit(result[0])
        return None if replaced is None else (replaced, *result[1:])

    if side in ("input", "source", "arguments"):
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)


def what_to_try(checkpoint: Checkpoint) -> str:
    """The end of a message about a model that differs: to remove hooks that may change it, else to compute finer."""
    whole: nn.Module = checkpoint.model if checkpoint.whole is None else checkpoint.whole
    hooked = []
    for name, module in whole.named_modules():
        hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        if any(hook.__module__.partition(".")[0] not in ("attnviz", "transformers") for hook in hooks):
            hooked.append(name or type(module).__name__)
    if not hooked:
        return "Try --dtype float64: it makes rounding smaller, but not an error."
    more = f" and {counted(len(hooked) - 3, 'module')} more" if len(hooked) > 3 else ""
    names = ", ".join(hooked[:3]) + more
    return f"Hooks run on {names}, which may change what the model computes: remove them, and run it again."
