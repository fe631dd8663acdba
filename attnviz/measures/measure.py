"""A measure: what follows the rows of attention of a text, or of the texts of a corpus."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnviz.reference.attention import upcast
from attnviz.run.verify import VerifiedRows

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


def copy_to_host(measures: Sequence["Measure"]) -> None:
    """Copy what they keep on the device to the host, at once."""
    copies = iter(on_host([tensor for measure in measures for tensor in measure.on_device()]))
    for measure in measures:
        measure.take(copies)


def following(measures: Sequence["Measure"]) -> Callable[["PatternRows"], None]:
    """What gives rows to all of these measures."""

    def on_rows(rows: PatternRows) -> None:
        for measure in measures:
            measure.update(rows)

    return on_rows


@dataclass(frozen=True)
class LayerRows:
    """Rows of one layer's patterns; of a batch of texts all rows, as they come over a corpus.

    :class:`attnviz.run.verify.VerifiedRows` are those of one text, chunk by chunk.
    """

    layer: int
    pattern: Tensor  # [batch, n_heads, rows, n_keys]
    first: int = 0  # the first query

    @property
    def in_float32(self) -> Tensor:
        """The pattern in float32 at least, so that sums over it are exact enough."""
        return upcast(self.pattern)

    @property
    def n_queries(self) -> int:
        return self.first + self.pattern.shape[2]

    @property
    def n_keys(self) -> int:
        return self.pattern.shape[3]

    @property
    def last(self) -> bool:
        """Whether they are the layer's last."""
        return True


PatternRows = LayerRows | VerifiedRows


class Measure:
    """What is measured of every head on a text, or over the texts of a corpus: begin, update, merge, results.

    A batch of a corpus is begun with the weights of its texts, [1 + replicates, batch], the first row as measured; one
    text is a batch of its own. What its layers give, ``_keep(name, values)`` with values [batch, …], stays on the
    device until :func:`copy_to_host` is called; ``_counts[name]`` are then the sums in every bootstrap sample,
    [1 + replicates, n_layers, …]. They add up over batches, processes and runs.
    """

    def __init__(self) -> None:
        self._counts: dict[Any, Tensor] = {}
        self._kept: dict[Any, list[Tensor]] = {}
        self._weights = torch.ones(1, 1, dtype=torch.float64)
        self._batch: Batch

    def begin(self, batch: "Batch", weights: Tensor) -> None:
        """Begin a batch, with the :func:`attnviz.measures.bootstrap.text_weights` of its texts."""
        self._batch, self._weights, self._kept = batch, weights, {}

    def update(self, rows: PatternRows) -> None:
        """Measure rows; those of a layer come in order, layer by layer."""

    def _keep(self, name: Hashable, values: Tensor) -> None:
        self._kept.setdefault(name, []).append(values)

    def on_device(self) -> list[Tensor]:
        """What is kept, to be copied to the host at once with that of others."""
        return [tensor for of_layers in self._kept.values() for tensor in of_layers]

    def take(self, copies: Iterator[Tensor]) -> None:
        """Count the copies of :meth:`on_device`, in order."""
        kept, self._kept = self._kept, {}
        for name, of_layers in kept.items():
            self._count(name, torch.stack([next(copies) for _ in of_layers]))

    def _count(self, name: Any, values: Tensor) -> None:
        """Count what was kept, layer by layer, [n_layers, batch, …] on the host."""
        self._sum(name, torch.einsum("rb,lb...->rl...", self._weights, values.double()))

    def _sum(self, name: Hashable, sums: Tensor) -> None:
        """Add to a count, or begin it."""
        self._counts[name] = self._counts[name] + sums if name in self._counts else sums.clone()

    def state(self) -> dict[Any, Tensor]:
        """The counts so far, to save."""
        return self._counts

    def merge(self, state: dict[Any, Tensor]) -> None:
        """Add the counts of another one of the same kind and shape."""
        for name, sums in state.items():
            self._sum(name, sums)
