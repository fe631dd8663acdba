"""Tallies of a comparison over a corpus, and dropout as its noise level."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.commands.compare.measure import LARGEST_DISTANCE, query_differences
from attnviz.judge.roles import (
    Role,
    judged_roles,
    passed_by_head,
    statistic_candidates,
    syntax_candidates,
)
from attnviz.measures.bootstrap import REPLICATES, named_generator, standard_error
from attnviz.measures.relations import RelationTally
from attnviz.measures.sums import SumTally
from attnviz.measures.tallies import StatisticsTally
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.texts.batches import Batch

_NAMES = ("distance", "divergence", "total_variation")


class DifferenceTally(SumTally):
    """Sums of every head's distances, and of dropout noise on the same texts, with bootstrap samples over texts."""

    def __init__(self, n_layers: int, n_heads: int, replicates: int = REPLICATES) -> None:
        shape = 1 + replicates, n_layers, n_heads
        super().__init__(texts=(1 + replicates,), largest=(1,), **dict.fromkeys((*_NAMES, "noise"), shape))
        self.dropout = 0.0  # dropout probability, the largest of any module; 0: no noise was measured
        self._valid = self._weights = torch.empty(0)

    def begin(self, batch: Batch, weights: Tensor, causal: bool) -> None:
        """Begin a batch; ``weights`` as for :func:`attnviz.measures.bootstrap.text_weights`."""
        self._valid, self._weights = batch.valid, weights
        self._counts["texts"] += weights.sum(1)
        for item in batch.items:  # a query that sees one key alone attends to it in any model
            differing = len(item) - 1 if causal or len(item) == 1 else len(item)
            self._counts["largest"] += LARGEST_DISTANCE * math.sqrt(differing / len(item))

    def add(self, layer: int, first: Tensor, second: Tensor) -> None:
        """Compare one layer's patterns on A and on B, [batch, n_heads, n, n]."""
        divergence, variation = differences(first, second, self._valid)
        for name, values in zip(_NAMES, (divergence.sqrt(), divergence, variation), strict=True):
            self._counts[name][:, layer] += self._weights @ values

    def add_noise(self, layer: int, first: Tensor, second: Tensor) -> None:
        """Compare one layer's patterns of two passes with dropout."""
        self._counts["noise"][:, layer] += self._weights @ differences(first, second, self._valid)[0].sqrt()

    def state(self) -> dict[Any, Any]:
        """The sums so far."""
        return {**super().state(), "dropout": self.dropout}

    def merge(self, state: dict[Any, Any]) -> None:
        """Add the sums of another tally of the same shape."""
        self.dropout = max(self.dropout, state["dropout"])
        super().merge({name: state[name] for name in self._counts})

    @property
    def largest(self) -> float:
        """Mean over texts of the largest possible distance."""
        return float(self._counts["largest"] / self._counts["texts"][0])

    def _samples(self, name: str) -> Tensor:
        """Means over texts as measured and in every bootstrap sample, [1 + replicates, n_layers, n_heads]."""
        return self._counts[name] / self._counts["texts"][:, None, None]

    def means(self) -> dict[str, Tensor]:
        """By name, [n_layers, n_heads] each; ``noise`` only where it was measured."""
        return {name: self._samples(name)[0] for name in (*_NAMES, *["noise"] * bool(self.dropout))}

    def errors(self) -> tuple[Tensor, Tensor]:
        """Standard errors of the distance, and of distance minus noise on the same texts, [n_layers, n_heads] each."""
        distance, noise = self._samples("distance")[1:], self._samples("noise")[1:]
        return standard_error(distance), standard_error(distance - noise)


def differences(first: Tensor, second: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Mean Jensen-Shannon divergence (nats) and total variation over the queries of each text.

    From patterns of both sides, [batch, n_heads, n, n], rows sum to 1, and the mask of tokens, boolean [batch, n].
    Returns [batch, n_heads] each, float64, on the CPU.
    """
    device = "cpu" if first.device.type == "mps" else first.device  # which has no float64
    p, q = (pattern.to(device, torch.float64) for pattern in (first, second))
    queries = valid.to(device, torch.float64)[:, None]
    divergence, variation = ((each * queries).sum(-1) / queries.sum(-1) for each in query_differences(p, q))
    return divergence.cpu(), variation.cpu()


def role_tallies(model: Checkpoint) -> tuple[StatisticsTally, RelationTally]:
    """Tallies of roles, as of ``profile``."""
    shape, causal = (model.n_layers, model.n_heads), model.architecture.causal
    return StatisticsTally(*shape, causal, windows=model.windows), RelationTally(*shape, causal)


def clearest_roles(
    statistics: StatisticsTally, relations: RelationTally, heads: Sequence[HeadId]
) -> dict[HeadId, Role | None]:
    """Each head's role of the largest error reduction, judged without an untrained copy; None if none passes."""
    candidates = [*statistic_candidates(statistics), *syntax_candidates(relations.results())]
    passed = passed_by_head(judged_roles(candidates, {}), heads)
    return {head: next(iter(roles), None) for head, roles in passed.items()}


@contextmanager
def dropping_out(checkpoint: Checkpoint, batch: Batch, seed: int, draw: int) -> Iterator[set[float]]:
    """Turn dropout of hidden states on inside the block, though the model is in eval mode.

    It goes by the model's own ``nn.Dropout`` modules. Attention weights are not dropped, so that rows sum to 1.
    The mask of a text depends on the seed, the draw and the text's number, not on the batch.

    Yields:
        the dropout probabilities seen so far; empty after a pass if the model has no dropout.
    """
    dropped: set[float] = set()
    generators = [named_generator(f"dropout:{seed}:{draw}:{item.source.number}") for item in batch.items]
    lengths = [len(item) for item in batch.items]

    def drop(module: nn.Dropout, _: tuple[Any, ...], output: Any) -> Tensor | None:
        if not isinstance(output, Tensor) or output.dim() != 3 or output.shape[:2] != batch.valid.shape:
            return None
        dropped.add(module.p)
        kept = torch.zeros(output.shape)
        for row, (length, generator) in enumerate(zip(lengths, generators, strict=True)):
            kept[row, :length] = (torch.rand(length, output.shape[2], generator=generator) >= module.p).float()
        return output * (kept / (1 - module.p)).to(output)

    with ExitStack() as stack:
        for module in checkpoint.model.modules():
            if isinstance(module, nn.Dropout) and 0 < module.p < 1:
                stack.callback(module.register_forward_hook(drop).remove)
        yield dropped
