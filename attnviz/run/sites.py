"""Named sites of a model's layers, whose tensors are read or replaced while the model runs."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.base import LayerModules
from attnviz.wording import counted

Key = TypeVar("Key")

_OF_ENCODER = ("key_value_states", "encoder_hidden_states")  # what attention layers call the encoder's final states


@dataclass(frozen=True)
class Site:
    """A tensor that a module takes or gives, by side as for :func:`at_site`; perhaps in the run of one layer alone."""

    module: nn.Module
    side: str
    of: LayerModules | None = None


def sites_of(
    checkpoint: Checkpoint, names: Collection[str], layers: Collection[int] | None = None
) -> dict[tuple[int, str], Site]:
    """Sites of all or some layers, by layer and name, most of these as in :class:`attnviz.run.record.LayerRecord`.

    ``arguments`` are those of the whole layer, ``attended`` is what the attention returns, ``concatenated`` what W_O is
    applied to; at the ``end`` all that a record holds has been passed. A name that a layer lacks is left out.
    """
    pre_norm = checkpoint.architecture.pre_norm
    sites = dict[tuple[int, str], Site]()
    every = checkpoint.modules
    for layer, modules in zip((*checkpoint.layers, *checkpoint.other_layers), every, strict=True):
        if layers is not None and layer not in layers:
            continue
        entered, norm = modules.sum_input(pre_norm), modules.after_attention(pre_norm)
        shared = modules.keys_layer
        places: dict[str, tuple[nn.Module, str]] = {
            "arguments": (modules.block, "arguments"),
            "residual": (modules.block, "input"),
            "attention_input": (modules.attention, "input"),
            "source": (modules.attention, "source") if shared is None else (every[shared].attention, "input"),
            "concatenated": (modules.o_proj, "input"),
            "attended": (modules.attention, "output"),
            "output": (modules.output, "output"),
            "summed": (modules.block, "output") if modules.parallel else (entered, "input"),
            "normed": (entered, "input" if norm is None else "output"),
        }
        places["end"] = places["summed" if modules.parallel else "normed"]
        if not modules.attends:
            places = {"arguments": places["arguments"]}
        elif modules.parallel:
            places["network_output"] = modules.writers["feed-forward"], "output"
        sites |= {(layer, name): Site(*places[name], modules) for name in names if name in places}
    return sites


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
