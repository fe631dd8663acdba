"""Which device and number format a model runs in, checked against this machine."""

import re

import torch

from attnviz.errors import DeviceError, UsageError

__all__ = ["DTYPES", "resolve_device", "resolve_dtype"]

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


_DEVICE = re.compile(r"cpu|mps|cuda(:(0|[1-9][0-9]{0,3}))?")


def resolve_device(name: str) -> torch.device:
    """The torch device for ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    ``auto`` takes cuda where there is one, then mps, then cpu.

    Raises:
        UsageError: the name is none of these.
        DeviceError: this machine, or this build of torch, lacks the device.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if not _DEVICE.fullmatch(name):
        raise UsageError(f"unknown device {name!r}: expected one of auto, cpu, cuda, cuda:N, mps.")
    if kind == "cuda":
        _check_cuda(name, int(number or 0))
    if kind == "mps" and not torch.backends.mps.is_available():
        raise DeviceError("the device 'mps' was asked for, but torch finds no Apple GPU here; use --device cpu.")
    return torch.device(name)


def _check_cuda(name: str, index: int) -> None:
    if not torch.cuda.is_available():
        raise DeviceError(
            f"the device {name!r} was asked for, but torch {torch.__version__} finds no CUDA GPU here; "
            "use --device cpu, or install a CUDA build of torch on a machine with a GPU."
        )
    count = torch.cuda.device_count()
    if index >= count:
        raise DeviceError(f"the device {name!r} was asked for, but this machine has cuda:0 to cuda:{count - 1}.")


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The torch dtype for ``float32``, ``float64``, ``bfloat16`` or ``float16``.

    Raises:
        UsageError: the name is none of these.
        DeviceError: the device cannot compute in it.
    """
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}: expected one of {', '.join(DTYPES)}.")
    if device.type == "mps" and name == "float64":
        raise DeviceError("the device 'mps' cannot compute in float64; use --device cpu or --dtype float32.")
    return DTYPES[name]
