"""Patching of pairs of prompts, a part at a time: what each part moves.

Parts are heads, or their queries, keys or values, or what a whole layer reads or writes, perhaps at one position.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from attnviz.errors import ArchitectureError, UsageError
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import TextSamples, excludes_zero
from attnviz.measures.paths import Receiver, along_paths
from attnviz.measures.predictions import BatchMetrics, Metric
from attnviz.measures.prompt_pairs import KL, LOSS, PairedInputs, pair_samples, partners
from attnviz.measures.self_repair import MeanRepairs, SelfRepair
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.run.edit import Edit, KeptPass, edited_passes, running
from attnviz.run.passes import Pass, Passes, Tell
from attnviz.run.sites import OF_HEADS, site_of
from attnviz.wording import visible

ONE_HEAD, KV_HEAD, LAYER = "head", "KV head", "layer"  # kinds of parts


class Part(NamedTuple):
    """What is patched at a site: a head, or KV head, of a layer, or (None) the whole layer; at one position, or all."""

    layer: int
    head: int | None = None
    position: int | None = None  # in the clean prompt
    kind: str = ONE_HEAD


def parts_of(checkpoint: Checkpoint, site: str, selections: Sequence[str]) -> list[Part]:
    """The parts of a site that selected heads belong to; all that there are without selections.

    ArchitectureError where a selected layer, or every layer, lacks the site; UsageError for a part of a layer.
    """
    counts = {layer: checkpoint.head_counts(layer) for layer in checkpoint.layers}
    kind = ONE_HEAD if site in OF_HEADS else LAYER
    if site in ("k", "v") and any(n_heads != n_kv_heads for n_heads, n_kv_heads in counts.values()):
        kind = KV_HEAD
    selected = select_heads(selections, checkpoint.kinds)
    layers = list(dict.fromkeys(head.layer for head in selected))
    if kind == LAYER and not selections:
        layers = list(checkpoint.every_layer)
    if kind == LAYER and len(selected) < sum(map(checkpoint.n_heads_of, {*layers} & {*checkpoint.layers})):
        raise UsageError(f"{site} is of whole layers: expected --select (select=...) with layers alone, as L2 or L0-3.")
    parts, lacking = list[Part](), list[ArchitectureError]()
    for layer in layers:
        try:
            site_of(checkpoint, layer, site)
        except ArchitectureError as error:
            lacking.append(error)
            continue
        heads = [head.head for head in selected if head.layer == layer]
        if kind == KV_HEAD:
            n_heads, n_kv_heads = counts[layer]
            heads = [head * n_kv_heads // n_heads for head in heads]
        numbers: Iterable[int | None] = [None] if kind == LAYER else dict.fromkeys(heads)
        parts += [Part(layer, number, kind=kind) for number in numbers]
    if lacking and (selections or not parts):
        raise lacking[0]
    return parts


@dataclass(frozen=True)
class PatchEffect:
    """Effect of patching one head, or another part of a layer, perhaps at one position.

    Intervals are at 0.05 over all that was patched together (:mod:`attnviz.measures.intervals`); None where there are
    too few pairs, or too few that have an effect, or the corrupt prompts are no worse (:attr:`PatchedPasses.worse`).
    """

    layer: int
    head: int | None  # or KV head; None for the whole layer
    position: int | None  # in the clean prompt; None for all that are patched
    token: str | None  # there, in the clean prompt; None for all, and where prompts differ
    rank: int  # 1 for the effect furthest from 0
    effect: float  # share of the difference between both prompts (:mod:`attnviz.commands.patch`)
    interval: Interval | None
    unrelated: float | None  # of patching from another pair's prompt, over the pairs that have one of as many tokens
    above_unrelated: Interval | None  # of the effect less the unrelated one, over the same pairs
    repair: SelfRepair | None = None  # what later heads and networks make good; None where it was not asked for
    kind: str = ONE_HEAD

    @property
    def name(self) -> str:
        """What was patched, in words: ``L2H1``, ``KV head 1 of L2``, ``L2``, with its position ``L2 at #5 (cat)``."""
        layer = HeadId(self.layer, 0).layer_name
        name = {ONE_HEAD: f"{layer}H{self.head}", KV_HEAD: f"KV head {self.head} of {layer}"}.get(self.kind, layer)
        if self.position is None:
            return name
        return f"{name} at #{self.position}" + (f" ({visible(self.token)})" if self.token else "")

    @property
    def id(self) -> HeadId:
        """The head; of no use for other parts."""
        assert self.head is not None
        return HeadId(self.layer, self.head)

    @property
    def excludes_zero(self) -> bool:
        return excludes_zero(self.interval)

    @property
    def beats_unrelated(self) -> bool:
        """Whether that interval is on the side of an effect that has an interval without 0."""
        if self.above_unrelated is None or not self.excludes_zero:
            return False
        low, high = self.above_unrelated
        return low > 0 if self.effect > 0 else high < 0


@dataclass(kw_only=True)
class PatchedPasses:
    """Passes over both prompts of each pair, and passes of one with parts of the other."""

    checkpoint: Checkpoint
    inputs: PairedInputs
    metric: Metric
    denoises: bool  # whether clean parts go into the corrupt run
    path: Receiver | None = None  # where the path of each head ends; None for all that read it
    site: str = "z"
    unrelated: bool = True  # whether parts of another pair's prompt are patched, too
    repairs: MeanRepairs | None = None
    seed: int = 0  # of samples of pairs

    def __post_init__(self) -> None:
        inputs = self.inputs
        self._into, self._from = (inputs.corrupt, inputs.clean) if self.denoises else (inputs.clean, inputs.corrupt)
        self._partners = partners(self._from) if self.unrelated else list(range(len(self._from)))
        # whether a pair has an unrelated one, [n_pairs]
        self.has_partner = torch.tensor([partner != pair for pair, partner in enumerate(self._partners)])
        self._worse = 1 if self.metric.name in (LOSS, KL) else -1  # which way the metric goes where it gets worse
        # the metric on clean prompts, [n_pairs]
        self.clean = torch.zeros(len(inputs.clean), dtype=torch.float64)
        self.corrupt_damage = torch.zeros_like(self.clean)  # how much worse it is after corrupt prompts
        self._weights = [torch.ones(len(clean.item), 1, dtype=torch.float64) for clean in inputs.clean]

    def run(self, parts: Sequence[Part], batch_size: int, tell: Tell) -> None:
        """Patch every part alone in all pairs.

        ``damage`` is then how much worse the metric is than in the clean run, by patching from the own pair, and from
        another one, [2, n_parts, n_pairs].
        """
        self.damage = torch.zeros(2, len(parts), len(self._into), dtype=torch.float64)
        sites = {(part.layer, self.site) for part in parts}
        self.unchanged = Passes(self.checkpoint, sites=sites)  # verified is a sample of both prompts'
        with running(self.checkpoint):
            for into in self.unchanged.each(self._into, batch_size, tell):
                pairs = into.inputs.texts
                source = self.unchanged.beside(into, [self._from[pair] for pair in pairs])
                clean, corrupt = (source, into) if self.denoises else (into, source)
                metrics = BatchMetrics(self.checkpoint, clean.inputs, clean.kept.final, self._weights, [self.metric])
                if self.metric.score is not None:
                    self.clean[pairs] = -self._worse * metrics.clean[self.metric.name]
                self.corrupt_damage[pairs] = metrics.changes(corrupt.kept.final, corrupt.inputs)[0, :, 0, 0]
                taken, position = self._taken(into)
                donors = [source]
                if self.has_partner[pairs].any():
                    others = [self._from[self._partners[pair]] for pair in pairs]
                    donors.append(self.unchanged.beside(into, others, verify=False))
                for at, donor in enumerate(donors):
                    for some, final in self._passes(parts, into.kept, donor.kept, taken, position):
                        rows = torch.tensor(some)[:, None]
                        self.damage[at, rows, torch.tensor(pairs)] = metrics.changes(final, into.inputs)[:, :, 0, 0]
                if self.repairs is not None:
                    self.repairs.add(clean.inputs, clean.kept, corrupt.kept, _heads(parts), position >= 0)

    def _passes(
        self, parts: Sequence[Part], into: KeptPass, donor: KeptPass, taken: Tensor, position: Tensor
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield numbers of parts and final states with each patched, [n_parts * rows, n, d_model]."""
        if self.path is not None:
            return along_paths(into, donor, self.path, _heads(parts), position >= 0)
        rows = torch.arange(len(taken), device=taken.device)[:, None]
        values = {layer: donor.values[layer, self.site][rows, taken] for layer in {part.layer for part in parts}}
        edits = []
        for layer, head, place, _ in parts:
            at = position >= 0 if place is None else position == place
            edits.append([Edit(layer, values[layer], self.site, None if head is None else [head], at)])
        return edited_passes(into, edits)

    def _taken(self, into: Pass) -> tuple[Tensor, Tensor]:
        """Which token of the source each token of a batch takes, and its position in the clean prompt; [rows, n] each.

        That is -1 where none is taken.
        """
        taken = torch.zeros(into.inputs.batch.valid.shape, dtype=torch.long)
        position = taken - 1
        for row, pair in enumerate(into.inputs.texts):
            clean, corrupt = (torch.tensor(positions) for positions in self.inputs.positions[pair])
            to, source = (corrupt, clean) if self.denoises else (clean, corrupt)
            taken[row, to], position[row, to] = source, clean
        device = into.kept.final.device
        return taken.to(device), position.to(device)

    def metric_of_prompts(self) -> tuple[float, float]:
        """The metric on clean and corrupt prompts, means over pairs."""
        clean = float(self.clean.mean())
        return clean, clean + self._worse * float(self.corrupt_damage.mean())

    @cached_property
    def _samples(self) -> TextSamples:
        return pair_samples(self.inputs, self.seed)

    @cached_property
    def worse(self) -> Interval | None:
        """Interval of how much worse the metric is after the corrupt prompts, mean over pairs."""
        return self._samples.means(self.corrupt_damage[:, None]).interval(0)

    def effects(self, parts: Sequence[Part]) -> tuple[PatchEffect, ...]:
        """The effects of all parts, that furthest from 0 first; with intervals where the corrupt prompts are worse."""
        difference, partner = self.corrupt_damage[:, None], self.has_partner[:, None].double()
        damage = self.damage.transpose(1, 2)  # [2, n_pairs, n_parts]
        moved, unrelated = difference - damage if self.denoises else damage  # towards the other prompt
        effects = [*self._samples.ratios(moved, difference)]
        above = [*self._samples.ratios((moved - unrelated) * partner, difference * partner)]
        of_others = ((unrelated * partner).sum(0) / (difference * partner).sum()).tolist()
        is_worse = self.worse is not None and self.worse[0] > 0
        repairs = {} if self.repairs is None else self.repairs.by_head(float(difference.mean()), self._samples)
        ranked = []
        order = sorted(range(len(parts)), key=lambda at: (-abs(effects[at].value), at))
        for rank, at in enumerate(order, start=1):
            layer, head, position, kind = parts[at]
            tokens = set() if position is None else {clean.item.labels[position] for clean in self.inputs.clean}
            effect = PatchEffect(
                layer=layer,
                head=head,
                position=position,
                token=tokens.pop() if len(tokens) == 1 else None,
                rank=rank,
                effect=effects[at].value,
                interval=effects[at].interval if is_worse else None,
                unrelated=of_others[at] if self.has_partner.any() else None,
                above_unrelated=above[at].interval if is_worse else None,
                repair=None if head is None else repairs.get(HeadId(layer, head)),
                kind=kind,
            )
            ranked.append(effect)
        return tuple(ranked)


def _heads(parts: Sequence[Part]) -> list[HeadId]:
    return [HeadId(part.layer, part.head) for part in parts if part.head is not None]
