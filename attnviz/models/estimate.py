"""The memory that weights take, held against what is free before they are read."""

import torch
from torch import nn

from attnviz.errors import OutOfMemoryError
from attnviz.memory import free_memory, memory_size


def refuse_beyond_memory(name: str, empty: nn.Module, device: torch.device) -> None:
    """Raise OutOfMemoryError for weights that take more memory than is free on a device; only of CPUs and GPUs known.

    ``empty`` is the model without its weights, in its final number format; ``name`` is for the message.
    """
    if device.type not in ("cpu", "cuda"):
        return
    free, where = free_memory(), ""
    if device.type == "cuda":  # with torch's unused cache
        free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        free -= torch.cuda.memory_allocated(device)
        where = f" on {device}"
    weights = sum(parameter.numel() * parameter.element_size() for parameter in empty.parameters())
    if weights > free:
        raise OutOfMemoryError(
            f"{name} needs {memory_size(weights)} of memory for its weights, and {memory_size(free)} are free{where}; "
            "--dtype bfloat16 (dtype=...) or --device-map auto (device_map=...) needs less."
        )
