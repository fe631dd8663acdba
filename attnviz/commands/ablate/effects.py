"""What happens without a head: every head removed, measured, ranked, and set against heads that go together."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnviz.commands.ablate.gradient_importance import GradientTally, layer_normalised
from attnviz.commands.ablate.hooks import Replacement
from attnviz.commands.ablate.inputs import STATES, Row, Sources, kind_of, rows_of
from attnviz.commands.ablate.metrics import measures_of
from attnviz.commands.ablate.passes import HeadSet, Passes, mean_values
from attnviz.commands.ablate.results import Curve, CurvePoint, Estimate, HeadDamage, Options, SetDamage
from attnviz.corpora.bootstrap import ENOUGH_TEXTS, text_weights
from attnviz.errors import UsageError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.head_ids import HeadId, select_heads
from attnviz.progress import Progress

__all__ = ["MANY", "REPLICATES", "measure_ablation"]

REPLICATES = 1000
"""Bootstrap samples of the texts, enough for the ends of a 95 % interval."""

MANY = 2000
"""Rows from which on it is said how many there are; attnviz's own choice."""

_TAIL = 0.025


def measure_ablation(
    checkpoint: Checkpoint,
    sources: Sources,
    options: Options,
    progress: Progress,
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Remove heads, and measure: the whole chain, to the arguments of :class:`attnviz.commands.ablate.results.Ablated`.

    Args:
        checkpoint: the model, with its language-modelling head where it has one.
        sources: the texts.
        options: how.
        progress: told of each stage, how much of it is done, of how much.
        warn: told what is left out.

    Raises:
        AttnvizError: see :func:`attnviz.commands.ablate.measure.ablate`.
    """
    heads = select_heads(options.select, checkpoint.n_layers, checkpoint.n_heads)
    if options.together and len(heads) < 2:
        raise UsageError(f"expected two heads or more to remove together, found {heads[0]} alone; --select more.")
    kind = kind_of(checkpoint)
    rows, texts = rows_of(checkpoint, sources, kind, warn)
    replacement = _replacement(checkpoint, sources, rows, options, progress)
    passes = Passes(checkpoint, rows, replacement, options.batch_size)
    if len(rows) > MANY:
        warn(f"{len(rows):,} inputs, each with {len(heads)} heads to remove; a --limit reads fewer sentences")
    tally = GradientTally(checkpoint, kind, passes.counts.tolist(), options.seed) if options.gradient else None
    singles: list[HeadSet] = [frozenset([head]) for head in heads]
    groups = [frozenset(heads)] if options.together else _layer_sets(heads) if options.curve else []
    sums = passes.run([*singles, *groups], lambda done, total: progress("removing", done, total), gradients=tally)
    weights = _weights(options.seed, [text.number for text in texts])
    bootstrap = _Bootstrap(weights, passes.counts, [measure.name for measure in measures_of(kind)])
    of_heads = dict(zip(heads, sums[: len(heads)], strict=True))
    sets = [bootstrap.of_set(group, total, of_heads) for group, total in zip(groups, sums[len(heads) :], strict=True)]
    ranked = _ranked(of_heads, bootstrap, tally)
    curve = None
    if options.curve and not options.together and len(heads) > 1:
        curve = _curve(passes, [head.id for head in ranked], of_heads, bootstrap, options.seed, progress)
    baseline = passes.baseline
    return {
        "checkpoint": checkpoint,
        "sources": sources,
        "options": options,
        "kind": kind,
        "counts": (len(texts), int(passes.counts.sum())),
        "clean_loss": None if baseline is None else float(baseline.sum() / passes.counts.sum()),
        "checked": passes.checked,
        "heads": ranked,
        "layers": [] if options.together else sets,
        "together": sets[0] if options.together else None,
        "curve": curve,
    }


def _replacement(
    checkpoint: Checkpoint, sources: Sources, rows: Sequence[Row], options: Options, progress: Progress
) -> Replacement:
    if options.method != "mean":
        return Replacement(options.method)
    measured = {row.item.source.number for row in rows}
    whole, _ = rows_of(checkpoint, sources, STATES, lambda _: None)
    whole = [row for row in whole if row.item.source.number in measured]
    means = mean_values(checkpoint, whole, options.batch_size, lambda done, total: progress("means", done, total))
    return Replacement("mean", means)


def _layer_sets(heads: Sequence[HeadId]) -> list[HeadSet]:
    """The heads of each layer, of which there are two or more."""
    layers = sorted({head.layer for head in heads})
    sets = [frozenset(head for head in heads if head.layer == layer) for layer in layers]
    return [each for each in sets if len(each) > 1]


def _weights(seed: int, numbers: Sequence[int]) -> Tensor:
    """Bootstrap weights of the texts, without replicates where there are too few."""
    return text_weights(seed, numbers, REPLICATES if len(numbers) >= ENOUGH_TEXTS else 0)


class _Bootstrap:
    """From sums over each text to means per token, with intervals."""

    def __init__(self, weights: Tensor, counts: Tensor, names: Sequence[str]) -> None:
        self._weights, self._names = weights, names
        self._tokens = weights @ counts

    def estimates(self, sums: Tensor) -> dict[str, Estimate]:
        """Of sums [n_texts, 2], by the name of the measure."""
        means = (self._weights @ sums) / self._tokens[:, None]  # [1 + replicates, 2]
        found = {}
        for name, (value, *replicates) in zip(self._names, means.T.tolist(), strict=True):
            low = high = None
            if replicates:
                ends = torch.tensor(replicates, dtype=torch.float64)
                low, high = (float(ends.quantile(share)) for share in (_TAIL, 1 - _TAIL))
            found[name] = Estimate(value, low, high)
        return found

    def of_set(self, heads: HeadSet, sums: Tensor, of_heads: dict[HeadId, Tensor]) -> SetDamage:
        """A set beside its heads one at a time."""
        members = tuple(sorted(heads))
        singles = torch.stack([of_heads[head] for head in members]).sum(0)
        layers = {head.layer for head in members}
        return SetDamage(
            heads=members,
            layer=members[0].layer if len(layers) == 1 else None,
            damage=self.estimates(sums),
            singles=self.estimates(singles),
            excess=self.estimates(sums - singles),
        )


def _ranked(of_heads: dict[HeadId, Tensor], bootstrap: _Bootstrap, tally: GradientTally | None) -> list[HeadDamage]:
    """The heads, the one that matters most first."""
    gradient = None if tally is None else tally.by_text().mean(0)
    normalised = None if gradient is None else layer_normalised(gradient)
    found = {head: bootstrap.estimates(sums) for head, sums in of_heads.items()}
    first = next(iter(next(iter(found.values()))))
    order = sorted(found, key=lambda head: (-found[head][first].value, head))
    return [
        HeadDamage(
            id=head,
            rank=rank,
            damage=found[head],
            gradient=None if gradient is None else float(gradient[head.layer, head.head]),
            gradient_normalised=None if normalised is None else float(normalised[head.layer, head.head]),
        )
        for rank, head in enumerate(order, start=1)
    ]


def _curve(
    passes: Passes,
    ranked: Sequence[HeadId],
    of_heads: dict[HeadId, Tensor],
    bootstrap: _Bootstrap,
    seed: int,
    progress: Progress,
) -> Curve:
    """Remove few heads, and eighths of them all: the least important first, and in a random order."""
    order = list(reversed(ranked))
    shuffled = sorted(order)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - an order, not a secret
    n = len(order)
    few = {2**power for power in range(n.bit_length()) if 2**power <= n / 12}
    counts = sorted({1, *few, *(-(-n * eighth // 8) for eighth in range(1, 9))})
    sets: list[HeadSet] = [frozenset(each[:count]) for each in (order, shuffled) for count in counts]
    new = list(dict.fromkeys(heads for heads in sets if len(heads) > 1))  # one head alone is measured already
    sums = passes.run(new, lambda done, total: progress("curve", done, total), verify=False)
    known = {frozenset([head]): each for head, each in of_heads.items()} | dict(zip(new, sums, strict=True))
    damages = [bootstrap.of_set(heads, known[heads], of_heads) for heads in sets]
    points = zip(counts, damages[: len(counts)], damages[len(counts) :], strict=True)
    return Curve(tuple(order), tuple(shuffled), tuple(CurvePoint(*point) for point in points))
