"""Counts as tensors of sums, which add up over batches, processes and runs."""

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from attnviz.inputs.batches import Batch


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors on the host, by one transfer for each device and dtype; those that are there as they are."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(number)
    copies = list(tensors)
    for (device, _), numbers in kinds.items():
        if device.type != "cpu":
            flat = torch.cat([tensors[number].flatten() for number in numbers]).cpu()
            parts = torch.split(flat, [tensors[number].numel() for number in numbers])
            for number, part in zip(numbers, parts, strict=True):
                copies[number] = part.view(tensors[number].shape)
    return copies


class OnDevice(Protocol):
    """What keeps numbers on the device until a pass, or a batch, has ended."""

    def on_device(self) -> list[Tensor]:
        """The numbers, to be copied to the host at once with those of others."""

    def take(self, copies: Iterator[Tensor]) -> None:
        """The copies of :meth:`on_device`, in order."""


def copy_to_host(keepers: Sequence[OnDevice]) -> None:
    """Copy what they keep on the device to the host, at once."""
    copies = iter(on_host([tensor for keeper in keepers for tensor in keeper.on_device()]))
    for keeper in keepers:
        keeper.take(copies)


def as_of(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor in the dtype and on the device of another one."""
    return tensor if (tensor.dtype, tensor.device) == (like.dtype, like.device) else tensor.to(like)


class Counts:
    """Counts over texts by name, which add up over batches, processes and runs."""

    def __init__(self) -> None:
        self._counts: dict[Any, Tensor] = {}

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


class SumTally(Counts):
    """A measure over texts: sums of what each text gives, in every bootstrap sample.

    A batch is begun with the weights of its texts, [1 + replicates, batch], the first row as measured. What its layers
    give, ``_keep(name, values)`` with values [batch, …], stays on the device until :func:`copy_to_host` is called; the
    sums are then ``_counts[name]``, [1 + replicates, n_layers, …].
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, list[Tensor]] = {}
        self._weights = torch.empty(0)
        self._batch: Batch

    def begin(self, batch: "Batch", weights: Tensor) -> None:
        """Begin a batch, with the :func:`attnviz.measures.bootstrap.text_weights` of its texts."""
        self._batch, self._weights, self._kept = batch, weights, {}

    def add(self, layer: int, pattern: Tensor) -> None:
        """Count one layer's patterns of the batch, [batch, n_heads, n, n]; layers come in order."""

    def _keep(self, name: str, values: Tensor) -> None:
        self._kept.setdefault(name, []).append(values)

    def on_device(self) -> list[Tensor]:
        """The values of a batch, to be copied at once with those of others."""
        return [tensor for of_layers in self._kept.values() for tensor in of_layers]

    def take(self, copies: Iterator[Tensor]) -> None:
        """Count the copies of :meth:`on_device`."""
        kept, self._kept = self._kept, {}
        for name, of_layers in kept.items():
            self._count(name, torch.stack([next(copies) for _ in of_layers]))

    def _count(self, name: str, values: Tensor) -> None:
        """Count the values of a batch that were kept, layer by layer, [n_layers, batch, …] on the host."""
        self._sum(name, torch.einsum("rb,lb...->rl...", self._weights, values.double()))
