"""Verified layers and contexts made from numbers, for tests of what is computed from them."""

from collections.abc import Collection, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from attnviz.inputs.prompt import Positions
from attnviz.language.syntax import Parse
from attnviz.measures.measure import copy_to_host
from attnviz.measures.patterns import MaskInput
from attnviz.measures.relations import RelatedWords, RelationCount, RelationTally
from attnviz.measures.statistics import HeadStatistics, TextContext
from attnviz.reference.tolerances import Tolerance
from attnviz.run.checks import LayerCheck
from attnviz.run.verify import VerifiedRows


def verified(patterns: Any, dtype: torch.dtype = torch.float32, block: int | None = None) -> list[VerifiedRows]:
    """The blocks of rows of a layer that passed, with the given patterns [n_heads, n, n] (or [n, n], one head).

    Blocks have so many rows each; default one with all.
    """
    pattern = torch.as_tensor(patterns, dtype=torch.float64)
    pattern = (pattern if pattern.ndim == 3 else pattern[None])[None].to(dtype)
    n_heads, n_queries, n_keys = pattern.shape[1:]
    check = LayerCheck(layer=0, heads_compared=n_heads, pattern_error=0.0, output_error=0.0, output_scale=1.0)
    tolerance, size = Tolerance(1e-4, 1e-4, "a test"), block or n_queries
    return [
        VerifiedRows(check, tolerance, pattern[:, :, first : first + size], first, n_queries, n_keys)
        for first in range(0, n_queries, size)
    ]


def context_of(
    sink: Sequence[bool],
    causal: bool = False,
    local_window: int = 1,
    long_range_from: int = 4,
    members: Sequence[tuple[int, ...]] | None = None,
    tokens: Sequence[object] | None = None,
) -> TextContext:
    """A text whose units have the given sink flags; each is one token unless ``members`` says otherwise."""
    n = len(sink)
    units = Positions(
        "token",
        tuple(str(i) for i in range(n)),
        (False,) * n,
        tuple(sink),
        tuple(members) if members else tuple((i,) for i in range(n)),
    )
    seen = MaskInput(units.labels, range(n) if tokens is None else tokens, causal, local_window, long_range_from)
    return TextContext(units, causal, seen)


def random_patterns(n: int, n_heads: int = 2, causal: bool = False, seed: int = 0, sharpness: float = 3.0) -> Tensor:
    """Row-stochastic patterns [n_heads, n, n] in float64, far from uniform."""
    scores = sharpness * torch.randn(n_heads, n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if causal:
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1)


def counted_relations(
    layers: Sequence[VerifiedRows], parse: Parse, sinks: Collection[int], causal: bool
) -> list[RelationCount]:
    """The relations of one text, from all blocks of rows of its layers."""
    shape = {"n_layers": 1 + max(rows.layer for rows in layers), "n_heads": layers[0].pattern.shape[1]}
    checkpoint: Any = SimpleNamespace(**shape, architecture=SimpleNamespace(causal=causal))
    tally = RelationTally(checkpoint)
    tally.begin_words(RelatedWords.of([([word.positions for word in parse.words], parse.arcs, sinks)]))
    for rows in layers:
        tally.update(rows)
    copy_to_host([tally])
    return tally.results()


def measure(rows: Iterable[VerifiedRows], context: TextContext) -> dict[str, list[float | None]]:
    """The statistics of every head of one verified layer, from all chunks of its rows; see :class:`HeadStatistics`."""
    chunks = list(rows)
    statistics = HeadStatistics(lambda _: context)
    for chunk in chunks:
        statistics.update(chunk)
    copy_to_host([statistics])
    return statistics.results()[chunks[0].layer]
