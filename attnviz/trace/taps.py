"""Named sites of a model's layers, whose tensors are read or replaced while the model runs."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnviz.models.checkpoint import Checkpoint
from attnviz.models.families.base import LayerModules

Key = TypeVar("Key")


@dataclass(frozen=True)
class Site:
    """A tensor that a module takes or gives, by side as for :func:`at_site`; perhaps in the run of one layer alone."""

    module: nn.Module
    side: str
    of: LayerModules | None = None


def layer_sites(of: LayerModules, pre_norm: bool) -> dict[str, Site]:
    """The sites of a layer by name, most as in :class:`attnviz.trace.recorder.LayerRecord`.

    ``arguments`` are those of the whole layer, ``attended`` is what the attention returns, ``concatenated`` what W_O is
    applied to; at the ``end`` all that a record holds has been passed.
    """
    entered = of.sum_input(pre_norm)
    summed, normed = Site(entered, "input", of), Site(entered, "output", of)
    sites = {
        "arguments": Site(of.block, "arguments", of),
        "residual": Site(of.block, "input", of),
        "attention_input": Site(of.pattern, "input", of),
        "source": Site(of.pattern, "source", of),
        "concatenated": Site(of.o_proj, "input", of),
        "attended": Site(of.pattern, "output", of),
        "output": Site(of.output, "output", of),
        "summed": Site(of.block, "output", of) if of.parallel else summed,
        "normed": summed if of.after_attention(pre_norm) is None else normed,
    }
    if of.parallel:
        sites["network_output"] = Site(of.feed_forward_output_norm or of.network_output, "output", of)
    return {**sites, "end": sites["summed" if of.parallel else "normed"]}


def sites_of(
    checkpoint: Checkpoint, names: Collection[str], layers: Collection[int] | None = None
) -> dict[tuple[int, str], Site]:
    """The sites with these names of all or some layers, by layer and name."""
    pre_norm = checkpoint.architecture.pre_norm
    return {
        (layer, name): site
        for layer, modules in zip(checkpoint.layers, checkpoint.modules, strict=True)
        if layers is None or layer in layers
        for name, site in layer_sites(modules, pre_norm).items()
        if name in names
    }


@contextmanager
def taps(sites: Mapping[Key, Site], visit: Callable[[Key, Any], Any]) -> Iterator[None]:
    """Call ``visit`` with the key and the tensor of each site, whenever it is passed, inside the block.

    A tensor that ``visit`` returns replaces the one at the site. Where several layers share modules, the runs of their
    block are counted from here on, so passes have to be whole.
    """
    runs = Counter[nn.Module]()

    def count(block: nn.Module, _: Any) -> None:
        runs[block] += 1

    def in_own_run(key: Key, of: LayerModules | None, tensor: Any) -> Any:
        if of is None or of.n_runs == 1 or (runs[of.block] - 1) % of.n_runs == of.run:
            return visit(key, tensor)
        return None

    shared = {site.of.block for site in sites.values() if site.of is not None and site.of.n_runs > 1}
    with ExitStack() as stack:
        for block in shared:
            stack.enter_context(block.register_forward_pre_hook(count))
        for key, site in sites.items():
            stack.enter_context(at_site(site.module, site.side, partial(in_own_run, key, site.of)))
        yield


def at_site(module: nn.Module, side: str, visit: Callable[[Any], Any]) -> RemovableHandle:
    """Call ``visit`` with the tensor at a site, whenever it is passed, until the handle is removed.

    ``side`` is ``input`` (the module's first argument), ``source`` (of attention what W_K and W_V are applied to: in
    cross-attention the encoder's final states), ``arguments`` (all of them, positional and named), ``output`` (what it
    returns, or the first of that) or ``pattern`` (the second; of the router of experts ``weights`` the second,
    ``taken`` the third: their numbers). A tensor that ``visit`` returns replaces the one at the site.
    """
    at = {"pattern": 1, "weights": 1, "taken": 2}.get(side, 0)

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        crosses = side == "source" and kwargs.get("key_value_states") is not None
        name = "key_value_states" if crosses else "hidden_states"
        positional = bool(args) and not crosses
        if (replaced := visit(args[0] if positional else kwargs[name])) is None:
            return None
        return ((replaced, *args[1:]), kwargs) if positional else (args, kwargs | {name: replaced})

    def after(_: nn.Module, __: Any, result: Any) -> Any:
        if isinstance(result, Tensor):
            return visit(result)
        replaced = visit(result[at])
        return None if replaced is None else (*result[:at], replaced, *result[at + 1 :])

    if side == "arguments":
        return module.register_forward_pre_hook(lambda _, *arguments: visit(arguments), with_kwargs=True)
    if side in ("input", "source"):
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)
