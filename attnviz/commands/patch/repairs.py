"""Self-repair of heads, means over pairs of prompts; see :mod:`attnviz.measures.self_repair`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.errors import UsageError
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import TextSamples
from attnviz.measures.self_repair import self_repairs, why_no_repair
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.run.edit import KeptPass
from attnviz.run.passes import InputBatch
from attnviz.run.stream import Source, source_name
from attnviz.wording import rounded, signed

MOST_CHANGED = 5  # later heads and networks that are listed of those whose direct effect changes most

# Direct effects that are smaller, as a share of what both prompts differ by, have no repaired share: it is noise.
_LEAST_SHARE = 0.01


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
