"""Weights that accelerate has spread over devices or offloaded to disk.

accelerate puts a hook on every module: before its forward the weights are moved to where it runs, and afterwards those
that are offloaded (to the CPU or to disk) are dropped again. Between uses they are on torch's meta device, without
values, so a weight outside of the module's own forward is read with :func:`parameter_of`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.models.quantised import dequantised, is_quantised


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
    owner, first = next((part, weight) for part in module.modules() for weight in part.parameters(recurse=False))
    devices = [getattr(hook, "execution_device", None) for hook in _hooks(owner)] if first.is_meta else []
    return next((torch.device(device) for device in devices if device is not None), first.device)


def with_values(model: nn.Module, named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name; offloaded ones are loaded one at a time."""
    for name, tensor in named:
        path, _, last = name.rpartition(".")
        yield name, parameter_of(model.get_submodule(path), last) if tensor.is_meta else tensor


def is_spread(model: nn.Module) -> bool:
    """Whether accelerate has put its hooks on the model, which then cannot be moved."""
    return any(hasattr(module, "_hf_hook") for module in model.modules())


def weight_devices_of(model: Any) -> tuple[str, ...]:
    """Devices of a model that accelerate has spread, then ``cpu`` and ``disk``; empty for others."""
    device_map: dict[str, Any] = getattr(model, "hf_device_map", None) or {}
    devices = {f"cuda:{device}" if isinstance(device, int) else str(device) for device in device_map.values()}
    return tuple(sorted(devices, key=lambda device: (device == "disk", device == "cpu", device)))


def _hooks(module: Any) -> tuple[Any, ...]:
    """The hooks that accelerate has put on a module, which may be several in a row."""
    hook = getattr(module, "_hf_hook", None)
    return tuple(getattr(hook, "hooks", (hook,)))
