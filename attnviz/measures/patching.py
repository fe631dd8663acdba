"""Patching of pairs of prompts, a part at a time: what each part moves, and what later parts make good of a head."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attnviz.errors import ArchitectureError, UsageError
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import TextSamples
from attnviz.measures.paths import FROZEN, Receiver, along_paths
from attnviz.measures.predictions import BatchMetrics, Metric
from attnviz.measures.prompt_pairs import KL, LOSS, PairedInputs, partners
from attnviz.measures.self_repair import self_repairs, why_no_repair
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, select_heads
from attnviz.run.edit import Edit, KeptPass, edited_passes, running
from attnviz.run.passes import InputBatch, Pass, Passes, Tell
from attnviz.run.sites import OF_HEADS, site_of
from attnviz.run.stream import Source, source_name
from attnviz.wording import rounded, signed

MOST_CHANGED = 5  # later heads and networks that are listed of those whose direct effect changes most

# Direct effects that are smaller, as a share of what both prompts differ by, have no repaired share: it is noise.
_LEAST_SHARE = 0.01

HEAD, KV_HEAD, LAYER = "head", "KV head", "layer"  # kinds of parts


class Part(NamedTuple):
    """What is patched at a site: a head, or KV head, of a layer, or (None) the whole layer; at one place, or at all."""

    layer: int
    head: int | None = None
    place: int | None = None  # number among the tokens that are patched


def kind_of_parts(checkpoint: Checkpoint, site: str) -> str:
    """What a site has a part for: each head, KV head or layer."""
    if site not in OF_HEADS:
        return LAYER
    counts = (checkpoint.architecture.head_counts(checkpoint.config, int(layer)) for layer in checkpoint.layers)
    shared = site in ("k", "v") and any(n_heads != n_kv_heads for n_heads, n_kv_heads in counts)
    return KV_HEAD if shared else HEAD


def parts_of(checkpoint: Checkpoint, site: str, selections: Sequence[str]) -> list[Part]:
    """The parts of a site that selected heads belong to; all that there are without selections.

    ArchitectureError where a selected layer, or every layer, lacks the site; UsageError for a part of a layer.
    """
    kind, selected = kind_of_parts(checkpoint, site), select_heads(selections, checkpoint.kinds)
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
        n_heads, n_kv_heads = checkpoint.architecture.head_counts(checkpoint.config, layer)
        heads = [head.head for head in selected if head.layer == layer]
        if kind == KV_HEAD:
            heads = [head * n_kv_heads // n_heads for head in heads]
        parts += [Part(layer)] if kind == LAYER else [Part(layer, head) for head in dict.fromkeys(heads)]
    if lacking and (selections or not parts):
        raise lacking[0]
    return parts


@dataclass(kw_only=True)
class PatchedPasses:
    """Passes over both prompts of each pair, and passes of one with parts of the other."""

    checkpoint: Checkpoint
    inputs: PairedInputs
    metric: Metric
    denoises: bool  # whether clean parts go into the corrupt run
    path: Receiver | None = None  # where the path of each head ends; None for all that read it
    networks: str = FROZEN  # those along the path
    site: str = "z"
    unrelated: bool = True  # whether parts of another pair's prompt are patched, too
    repairs: "MeanRepairs | None" = None

    def __post_init__(self) -> None:
        inputs = self.inputs
        self._into, self._from = (inputs.corrupt, inputs.clean) if self.denoises else (inputs.clean, inputs.corrupt)
        self._partners = partners(self._from) if self.unrelated else list(range(len(self._from)))
        # whether a pair has an unrelated one, [n_pairs]
        self.has_partner = torch.tensor([partner != pair for pair, partner in enumerate(self._partners)])
        # the metric on clean prompts, [n_pairs]; all as a loss, so that a difference is the foil less the answer
        self.clean = torch.zeros(len(inputs.clean), dtype=torch.float64)
        self.corrupt_change = torch.zeros_like(self.clean)  # of the metric after corrupt prompts
        self._weights = [torch.ones(len(clean.item), 1, dtype=torch.float64) for clean in inputs.clean]

    def run(self, parts: Sequence[Part], batch_size: int, tell: Tell) -> None:
        """Patch every part alone in all pairs.

        ``changes`` are then those of the metric from the clean run's, by patching from the own pair, and another,
        [2, n_parts, n_pairs]; their sign cancels in effects.
        """
        self.changes = torch.zeros(2, len(parts), len(self._into), dtype=torch.float64)
        sites = {(part.layer, self.site) for part in parts}
        self.unchanged = Passes(self.checkpoint, sites=sites)  # verified is a sample of both prompts'
        with running(self.checkpoint):
            for into in self.unchanged.each(self._into, batch_size, tell):
                pairs = into.inputs.texts
                source = self.unchanged.beside(into, [self._from[pair] for pair in pairs])
                clean, corrupt = (source, into) if self.denoises else (into, source)
                final = clean.kept.final
                metrics = BatchMetrics(self.checkpoint, clean.inputs, final, self._weights, [self.metric])
                if self.metric.score is not None:
                    self.clean[pairs] = -metrics.clean[self.metric.name]
                self.corrupt_change[pairs] = metrics.changes(corrupt.kept.final, corrupt.inputs)[0, :, 0, 0]
                donors = [source]
                if self.has_partner[pairs].any():
                    others = [self._from[self._partners[pair]] for pair in pairs]
                    donors.append(self.unchanged.beside(into, others, verify=False))
                for at, donor in enumerate(donors):
                    for some, final in self._passes(parts, into, donor.kept):
                        rows = torch.tensor(some)[:, None]
                        self.changes[at, rows, torch.tensor(pairs)] = metrics.changes(final, into.inputs)[:, :, 0, 0]
                if self.repairs is not None:
                    _, place = self._places(into)
                    where = None if place is None else place >= 0
                    self.repairs.add(clean.inputs, clean.kept, corrupt.kept, _heads(parts), where)

    def _passes(self, parts: Sequence[Part], into: Pass, donor: KeptPass) -> Iterator[tuple[list[int], Tensor]]:
        """Yield numbers of parts and final states with each patched, [n_parts * rows, n, d_model]."""
        taken, place = self._places(into)
        if self.path is not None:
            at = None if place is None else place >= 0
            return along_paths(self.checkpoint, into.kept, donor, self.path, _heads(parts), at, self.networks)
        values = {part.layer: donor.values[part.layer, self.site] for part in parts}
        if taken is not None:
            rows = torch.arange(len(taken), device=taken.device)[:, None]
            values = {layer: value[rows, taken] for layer, value in values.items()}
        edits = [[self._edit(part, values[part.layer], place)] for part in parts]
        return edited_passes(self.checkpoint, into.kept, edits)

    def _edit(self, part: Part, instead: Tensor, place: Tensor | None) -> Edit:
        at = place
        if place is not None:
            at = place >= 0 if part.place is None else place == part.place
        return Edit(part.layer, instead, self.site, None if part.head is None else [part.head], at)

    def _places(self, into: Pass) -> tuple[Tensor | None, Tensor | None]:
        """Which token of the source each token of a batch takes, and the number of its place or -1; [rows, n] each.

        None for the same, and for all.
        """
        if not self.inputs.positions:
            return None, None
        taken = torch.zeros(into.inputs.batch.valid.shape, dtype=torch.long)
        place = taken - 1
        for row, pair in enumerate(into.inputs.texts):
            clean, corrupt = (torch.tensor(positions) for positions in self.inputs.positions[pair])
            to, source = (corrupt, clean) if self.denoises else (clean, corrupt)
            taken[row, to], place[row, to] = source, torch.arange(len(to))
        device = into.kept.final.device
        return taken.to(device), place.to(device)

    @property
    def moved(self) -> Tensor:
        """How far the metric moves towards the other prompt's, patched from the own pair and from another one.

        [2, n_pairs, n_parts]
        """
        changes = self.changes.transpose(1, 2)
        return self.corrupt_change[:, None] - changes if self.denoises else changes

    def metric_of_prompts(self) -> tuple[float, float]:
        """The metric on clean and corrupt prompts, means over pairs."""
        sign = 1 if self.metric.name in (LOSS, KL) else -1
        clean = float(self.clean.mean())
        return sign * clean, sign * (clean + float(self.corrupt_change.mean()))

    def worse(self, samples: TextSamples) -> Interval | None:
        """Interval of how much worse the metric is after the corrupt prompts, mean over pairs."""
        return samples.means(self.corrupt_change[:, None]).interval(0)


def _heads(parts: Sequence[Part]) -> list[HeadId]:
    return [HeadId(part.layer, part.head) for part in parts if part.head is not None]


@dataclass(frozen=True)
class PartChange:
    """What the direct effect of a later head or network gains when a head is removed."""

    part: str  # L3H2, or feed-forward L3
    change: float  # in logits


@dataclass(frozen=True)
class SelfRepair:
    """What becomes of a head's direct effect when its output is that of the corrupt run: logits, means over pairs."""

    direct_effect: float  # what the difference of logits loses by the head's own output alone
    total_effect: float  # what it loses when all after the head runs
    repaired: float  # direct less total effect
    interval: Interval | None  # of what is repaired, as of PatchEffect
    share: float | None  # of the direct effect that is repaired; None where that is small
    norm: float  # the part of what is repaired that is the final norm's other scale
    changed: tuple[PartChange, ...]  # the later heads and networks whose direct effect changes most, that first

    @property
    def most_changed(self) -> str:
        if not self.changed or rounded(self.changed[0].change) == rounded(0.0):
            return ""
        return f"{self.changed[0].part} {signed(self.changed[0].change)}"


class MeanRepairs:
    """Sums over pairs what each head's removal from the clean run does."""

    def __init__(self, checkpoint: Checkpoint, n_pairs: int) -> None:
        """Raise UsageError where no logits of this model are a sum of parts."""
        if why := why_no_repair(checkpoint):
            raise UsageError(f"leave out --self-repair (self_repair=True): {why}.")
        self._checkpoint, self._n_pairs = checkpoint, n_pairs
        self._effects: dict[HeadId, Tensor] = {}  # direct, total, norm, [3, n_pairs]
        self._changes: dict[HeadId, dict[Source, float]] = {}  # sums over pairs

    def add(
        self, inputs: InputBatch, clean: KeptPass, corrupt: KeptPass, heads: Sequence[HeadId], at: Tensor | None
    ) -> None:
        """Remove each head from the clean passes of some pairs, ``at`` some positions [rows, n] alone."""
        pairs = [text.text for text in inputs.inputs]
        rows = [(*text.positions, *text.labels, *text.foils) for text in inputs.inputs]
        read, answers, foils = torch.tensor(rows, device=clean.final.device).T
        for repair in self_repairs(self._checkpoint, clean, corrupt, heads, read, answers, foils, at):
            effects = self._effects.setdefault(repair.head, torch.zeros(3, self._n_pairs, dtype=torch.float64))
            effects[:, pairs] = torch.stack([repair.direct, repair.total, repair.norm]).cpu()
            changes = self._changes.setdefault(repair.head, dict.fromkeys(repair.changes, 0.0))
            for source, change in repair.changes.items():
                changes[source] += float(change.sum())

    def by_head(self, difference: float, samples: TextSamples) -> dict[HeadId, SelfRepair]:
        """Means over all pairs, whose metric differs by a mean ``difference``."""
        effects = torch.stack([*self._effects.values()])  # [n_heads, 3, n_pairs]
        repaired = samples.means((effects[:, 0] - effects[:, 1]).T)
        least = _LEAST_SHARE * abs(difference)
        repairs = {}
        means = zip(self._effects, effects.mean(-1).tolist(), strict=True)
        for number, (head, (direct, total, norm)) in enumerate(means):
            changes = sorted(self._changes[head].items(), key=lambda change: -abs(change[1]))[:MOST_CHANGED]
            repairs[head] = SelfRepair(
                direct_effect=direct,
                total_effect=total,
                repaired=direct - total,
                interval=repaired.interval(number),
                share=(direct - total) / direct if abs(direct) >= least else None,
                norm=norm,
                changed=tuple(PartChange(source_name(source), change / self._n_pairs) for source, change in changes),
            )
        return repairs
