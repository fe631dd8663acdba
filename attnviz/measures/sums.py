"""Counts that are tensors of sums: of batches, processes and earlier runs they add up."""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor


class SumTally:
    """A tally whose counts are tensors of sums."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self._counts: dict[Any, Tensor] = {
            name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()
        }

    def _sum(self, name: Hashable, sums: Tensor) -> None:
        """Add to a count, which begins with the first sums."""
        self._counts[name] = self._counts[name] + sums if name in self._counts else sums.clone()

    def state(self) -> dict[Any, Tensor]:
        """What was counted so far."""
        return self._counts

    def merge(self, state: dict[Any, Tensor]) -> None:
        """Add what another tally of the same kind and shape counted."""
        for name, sums in state.items():
            self._sum(name, sums)
