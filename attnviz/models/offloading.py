"""Weights that accelerate has spread over devices or offloaded to disk.

accelerate puts a hook on every module: before its forward the weights are moved to where it runs, and afterwards those
that are offloaded (to the CPU or to disk) are dropped again. Between uses they are on torch's meta device, without
values, so a weight outside of the module's own forward is read with :func:`parameter_of`.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.errors import UsageError
from attnviz.models.quantised import dequantised, is_quantised

Device = str | int
"""A device in accelerate's device maps: ``cpu``, ``disk``, ``cuda:1``, or the number of a GPU."""

DeviceMap = str | dict[str, Device]
"""accelerate's name for a way to spread a model, such as ``auto``, or a device by name of module."""


def parameter_of(module: Any, name: str) -> Any:
    """A parameter or buffer of a module, on the device where the module runs; None where it has none of this name.

    An offloaded one is loaded for the caller, the module itself stays without it; a quantised one is dequantised.
    """
    value = getattr(module, name)
    if is_quantised(value):
        return dequantised(module, value)
    if not isinstance(value, Tensor) or not value.is_meta:
        return value
    for hook in _hooks(module):
        if getattr(hook, "weights_map", None) is not None:
            return hook.weights_map[name].to(hook.execution_device)
    return value


def running_device(module: nn.Module) -> torch.device:
    """The device on which a module runs: that of its weights, unless they are offloaded."""
    owner, first = next((each, own) for each in module.modules() for own in each.parameters(recurse=False))
    devices = [getattr(hook, "execution_device", None) for hook in _hooks(owner)] if first.is_meta else []
    return next((torch.device(device) for device in devices if device is not None), first.device)


def with_values(model: nn.Module, named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name; offloaded ones are loaded one at a time."""
    for name, tensor in named:
        path, _, own = name.rpartition(".")
        yield name, parameter_of(model.get_submodule(path), own) if tensor.is_meta else tensor


def is_spread(model: nn.Module) -> bool:
    """Whether accelerate has put its hooks on the model, which then cannot be moved."""
    return any(hasattr(module, "_hf_hook") for module in model.modules())


def weight_devices_of(model: Any) -> tuple[str, ...]:
    """Devices of a model that accelerate has spread, then ``cpu`` and ``disk``; empty for others."""
    device_map: dict[str, Any] = getattr(model, "hf_device_map", None) or {}
    devices = {f"cuda:{device}" if isinstance(device, int) else str(device) for device in device_map.values()}
    return tuple(sorted(devices, key=lambda device: (device == "disk", device == "cpu", device)))


def fitted_map(device_map: dict[str, Device], model: Any, heads: tuple[str, ...]) -> dict[str, Device]:
    """A device map for exactly this model, bare or with a head, from one written for either.

    The device of an empty name, or of a module of which parts are named too, goes to the parts that are not. A head
    that is not named goes where the word embeddings are.

    Args:
        device_map: from names of modules to devices.
        model: the empty model.
        heads: first names of parts that the model may lack.

    Raises:
        UsageError: an unknown name, a part without a device, or everything on disk.
    """
    modules, prefix = dict(model.named_modules()), str(model.base_model_prefix)
    named: dict[str, Device] = {}
    for name, device in device_map.items():
        spelled = (name, f"{prefix}.{name}", "" if name == prefix else name.removeprefix(f"{prefix}."))
        if (own := next((each for each in spelled if each in modules), None)) is not None:
            named[own] = device
        elif name.removeprefix(f"{prefix}.").partition(".")[0] not in heads:
            known = ", ".join(name for name, _ in getattr(model, prefix, model).named_children())
            raise UsageError(f"the device map names {name!r}, which this model has not; its parts are {known}.")
    words = next(name for name, module in modules.items() if module is model.get_input_embeddings())
    for tied, to in getattr(model, "all_tied_weights_keys", {}).items():  # they are one weight, so in one place
        together = _owner(tied.rpartition(".")[0], modules)
        if to.startswith(f"{together}."):
            continue
        named = {name: device for name, device in named.items() if not f"{name}.".startswith(f"{together}.")}
        if (with_it := _device_of(to, _placed(model, named))) is not None:
            named[together] = with_it
    placed = _placed(model, named)
    if missing := [
        name
        for name, device in placed.items()
        if device is None and name.split(".")[0] not in heads and any(True for _ in modules[name].parameters())
    ]:
        left = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise UsageError(
            f'the device map says nothing of {left}; name each, or give all that is not named a device under "".'
        )
    with_words = _device_of(words, placed)
    fitted = {name: with_words if device is None else device for name, device in placed.items()}
    if set(fitted.values()) == {"disk"}:
        raise UsageError("the device map leaves all on disk; expected a part, such as the last norm, on a device.")
    return {name: device for name, device in fitted.items() if device is not None}


def _placed(model: nn.Module, named: dict[str, Device]) -> dict[str, Device | None]:
    """The device of each of the largest modules that are on one device; None where not named."""
    placed: dict[str, Device | None] = {}
    running = next((device for device in named.values() if device not in ("cpu", "disk")), "cpu")

    def place(name: str, module: nn.Module, device: Device | None) -> None:
        device, inside = named.get(name, device), f"{name}." if name else ""
        if any(other.startswith(inside) and other != name for other in named):
            for child_name, child in module.named_children():
                place(inside + child_name, child, device)
            for own in chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
                placed[inside + own[0]] = running
        else:
            placed[name] = device

    place("", model, None)
    return placed


def _device_of(name: str, placed: dict[str, Device | None]) -> Device | None:
    """The device of a module or parameter, by the placed modules."""
    return next((device for part, device in placed.items() if f"{name}.".startswith(f"{part}." if part else "")), None)


def _owner(name: str, modules: dict[str, nn.Module]) -> str:
    """A module, or the outermost of its parents that have parameters of their own, so are on one device."""
    parent = name.rpartition(".")[0]
    has_parameters = parent and next(modules[parent].parameters(recurse=False), None) is not None
    return _owner(parent, modules) if has_parameters else name


def _hooks(module: Any) -> tuple[Any, ...]:
    """The hooks that accelerate has put on a module, which may be several in a row."""
    hook = getattr(module, "_hf_hook", None)
    return tuple(getattr(hook, "hooks", (hook,)))
