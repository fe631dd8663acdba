"""The memory that weights take, held against what is free before they are read."""

import torch
from torch import nn

from attnviz.errors import OutOfMemoryError
from attnviz.memory import free_memory, memory_size


def refuse_beyond_memory(name: str, empty: nn.Module, device: torch.device) -> None:
    """Refuse weights that take more memory than there is on a device.

    Args:
        name: of the model, for the message.
        empty: the model without its weights, in its final number format.
        device: on which it will run; on other devices than CPU and CUDA free memory is not known.

    Raises:
        OutOfMemoryError: with needed and free memory, and what needs less.
    """
    if device.type not in ("cpu", "cuda"):
        return
    free, where = (free_memory(), "") if device.type == "cpu" else (_free_on_gpu(device), f" on {device}")
    weights = sum(parameter.numel() * parameter.element_size() for parameter in empty.parameters())
    if weights > free:
        raise OutOfMemoryError(
            f"{name} needs {memory_size(weights)} of memory for its weights, and {memory_size(free)} are free{where}; "
            "--dtype bfloat16 (dtype=...) or --device-map auto (device_map=...) needs less."
        )


def _free_on_gpu(device: torch.device) -> int:
    """Free memory of a GPU, including torch's unused cache."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
