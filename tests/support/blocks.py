"""Blocks of query rows of a chosen size, whatever the memory."""

import math
from collections.abc import Iterator

import pytest
from torch import Tensor
from torch.nn.functional import pad

from attnviz.measures import statistics
from attnviz.run import record, transformers_compat, verify


def in_blocks(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Blocks of so many rows, but where a layer is asked for whole."""

    def blocks(n: int, row_bytes: int, memory: float = 0) -> Iterator[tuple[int, int]]:
        step = n if memory == math.inf else size
        yield from ((first, min(first + step, n)) for first in range(0, n, step))

    for module in (record, verify, statistics):
        monkeypatch.setattr(module, "row_blocks", blocks)
    for module in (record, transformers_compat):
        monkeypatch.setattr(module, "MOST_MASKS", 0)  # masks come in blocks, too


def hidden_keys(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Which keys are hidden, over all of the scores' keys: masks are of the last alone."""
    if allowed is None:
        return scores.isnan()
    return pad(~allowed, (scores.shape[-1] - allowed.shape[-1], 0))
