"""Counts as tensors of sums, which add up over batches, processes and runs."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors on the host, by one transfer for each device and number format; those that are there as they are."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(number)
    copies = dict[int, Tensor]()
    for (device, _), numbers in kinds.items():
        if device.type == "cpu":
            copies |= {number: tensors[number] for number in numbers}
            continue
        flat = torch.cat([tensors[number].flatten() for number in numbers]).cpu()
        parts = torch.split(flat, [tensors[number].numel() for number in numbers])
        copies |= {n: part.view(tensors[n].shape) for n, part in zip(numbers, parts, strict=True)}
    return [copies[number] for number in range(len(tensors))]


class SumTally:
    """A tally whose counts are tensors of sums."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self._counts: dict[Any, Tensor] = {
            name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()
        }

    def _sum(self, name: Hashable, sums: Tensor) -> None:
        """Add to a count, or begin it."""
        self._counts[name] = self._counts[name] + sums if name in self._counts else sums.clone()

    def state(self) -> dict[Any, Tensor]:
        """The counts so far."""
        return self._counts

    def merge(self, state: dict[Any, Tensor]) -> None:
        """Add the counts of another tally of the same kind and shape."""
        for name, sums in state.items():
            self._sum(name, sums)
