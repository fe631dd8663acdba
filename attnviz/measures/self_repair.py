"""Self-repair: how much of a removed head's direct effect on a difference of logits later layers make good.

f is the logit of an answer less that of a foil, read at one position of a run, the base. A head is removed: its output
is that of another run (McGrath et al. 2023, "The Hydra Effect"; Rushing & Nanda 2024, "Explorations of Self-Repair in
Language Models"). With the final norm held at the scale that it has in the base, f is linear in the residual stream,
so each head and network has a part of it, its direct effect, and

    direct   = what f loses by the changed output of the removed head alone, nothing after it changed
    total    = what f loses when all after it runs
    repaired = direct - total = what the direct effects of later heads and networks gain + what the norm's scale adds

The norm is counted with the repair, since it acts on what the head left out, as both papers do. The head's later
effects that are no repair (others that read it fail, too) count against it, so repaired may be negative.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from attnviz.errors import UsageError, VerificationError
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import TextSamples
from attnviz.measures.paths import sent
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId
from attnviz.run.contributions import why_not_linear
from attnviz.run.edit import Edit, KeptPass, edited, split_variants
from attnviz.run.passes import InputBatch
from attnviz.run.sites import WRITERS, Site, SiteKey, sites_of, taps, what_to_try
from attnviz.run.stream import Source, of_stream, source_name
from attnviz.wording import rounded, signed

_ROUNDINGS = 8  # of the stream, by the root of how often it is written: how far the sum of all parts may be off
_END = -1  # after all layers
MOST_CHANGED = 5  # later heads and networks that are listed of those whose direct effect changes most
# Direct effects that are smaller, as a share of what both prompts differ by, have no repaired share: it is noise.
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Repair:
    """What a removed head's direct effect became, in logits, [rows] each."""

    head: HeadId
    direct: Tensor  # what the answer's logit less the foil's loses by the head's own output alone
    total: Tensor  # the same when all after it runs
    norm: Tensor  # what the final norm's other scale adds
    # By later head, or ``("feed-forward", layer)`` and the like, what its direct effect gains.
    changes: dict[Source, Tensor]


def self_repairs(
    base: KeptPass,
    other: KeptPass,
    removed: Sequence[HeadId],
    read: Tensor,
    answers: Tensor,
    foils: Tensor,
    at: Tensor,
) -> Iterator[Repair]:
    """Remove heads from a run one at a time, inside :func:`attnviz.run.edit.running`.

    ``read``: the position that logits are read at, ``answers``, ``foils``: two tokens; [rows] each. ``at``: positions
    at which a head is removed, boolean [rows, n]. VerificationError: with nothing removed the final
    states are not the model's, or the parts do not sum to the change of the residual stream.
    """
    reading = _Reading(base, read, answers, foils)
    for _, of_layer in groupby(sorted(removed), lambda head: head.layer):
        for heads in split_variants(list(of_layer), base):
            yield from reading.without(other, heads, at)


class _Reading:
    """A difference of logits, read at one position of each row, as a linear map of the residual stream there."""

    def __init__(self, base: KeptPass, read: Tensor, answers: Tensor, foils: Tensor) -> None:
        self._base, checkpoint = base, base.checkpoint
        self._rows, self._read = torch.arange(len(read), device=read.device), read
        weight: Any = getattr(checkpoint.language_head, "weight", None)
        self._of_final = weight[answers].double() - weight[foils].double()  # [rows, d_model]
        final_norm = checkpoint.final_norm
        assert final_norm is not None
        self._final_norm = final_norm
        self._stream = base.stream(None)[self._rows, read].double()
        # by the stream, [rows, d_model]
        self._gradient = of_stream(checkpoint, self._of_final.T).T / checkpoint.norm(final_norm).scale(self._stream)
        self._by_head: dict[int, Tensor] = {}  # of a layer's weighted values, [rows, n_heads, d_head]

    def without(self, other: KeptPass, heads: Sequence[HeadId], at: Tensor) -> Iterator[Repair]:
        """Remove heads of one layer, each from a copy; the first copy of the pass is unchanged."""
        base, checkpoint, layer = self._base, self._base.checkpoint, heads[0].layer
        instead = other.values[layer, "z"]
        variants: list[list[Edit]] = [[], *([Edit(layer, instead, heads=[head.head], at=at)] for head in heads)]
        seen: dict[SiteKey, Tensor] = {}

        def keep(key: SiteKey, tensor: Tensor) -> None:
            at_all = tensor.reshape(len(variants), *base.final.shape[:2], -1)
            seen[key] = at_all[:, self._rows, self._read].double()  # [copies, rows, width]

        sites: dict[SiteKey, Site] = {(_END, "stream"): Site(self._final_norm, "input")}
        after = checkpoint.every_layer[checkpoint.every_layer.index(layer) :]
        sites |= sites_of(checkpoint, WRITERS, after) | sites_of(checkpoint, ["concatenated"], after[1:])
        with taps(sites, keep), edited(checkpoint, variants):
            final = base.resume(layer, len(variants)).reshape(len(variants), *base.final.shape)
        base.check_unchanged(final[0], f"a pass resumed at layer {layer} with no head removed")
        stream = seen.pop((_END, "stream"))
        changes = self._changes(seen)
        logits = (final[:, self._rows, self._read].double() * self._of_final).sum(-1)  # [copies, rows]
        linear = ((stream - self._stream) * self._gradient).sum(-1)
        spread = (self._gradient * self._stream).norm(dim=-1)
        rounding = _ROUNDINGS * (2 * len(after)) ** 0.5 * torch.finfo(base.final.dtype).eps * spread
        for copy, head in enumerate(heads, start=1):
            added = sent(base, other, head, at)[self._rows, self._read].double()
            direct = -(added * self._gradient).sum(-1)
            total, whole = logits[0] - logits[copy], linear[copy]
            of_head = {source: change[copy] for source, change in changes.items()}
            parts = sum(of_head.values(), -direct)
            limit = checkpoint.tolerance.output * torch.maximum(whole.abs(), parts.abs()) + rounding
            if not bool(((whole - parts).abs() <= limit).all()):
                raise VerificationError(
                    f"without {head}, what it and later heads and networks write changes the logits by "
                    f"{parts.tolist()}, but the residual stream by {whole.tolist()}. Nothing was written. "
                    f"{what_to_try(checkpoint)}"
                )
            yield Repair(head, direct, total, -total - whole, of_head)

    def _changes(self, seen: dict[SiteKey, Tensor]) -> dict[Source, Tensor]:
        """By head or network what its direct effect gains in each copy, [copies, rows]."""
        checkpoint = self._base.checkpoint
        factor, changes = checkpoint.residual_multiplier, dict[Source, Tensor]()
        for (layer, kind), values in seen.items():
            gained = factor * (values - values[0])
            if kind != "concatenated":
                changes[kind, layer] = (gained * self._gradient).sum(-1)
                continue
            if layer not in self._by_head:
                weight = checkpoint.parameters(layer).output_weight.double()
                self._by_head[layer] = torch.einsum("hdm,rm->rhd", weight, self._gradient)
            read = self._by_head[layer]
            of_heads = (gained.reshape(*gained.shape[:2], *read.shape[1:]) * read).sum(-1)
            changes |= {HeadId(layer, head): of_heads[..., head] for head in range(read.shape[1])}
        return changes


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
        why = why_not_linear(checkpoint)
        if any(modules.attention_output_norm is not None for modules in checkpoint.modules):
            why = why or "here a norm follows attention, so that no head's part of the logits is its own alone"
        if why:
            raise UsageError(f"leave out --self-repair (self_repair=True): {why}.")
        self._n_pairs = n_pairs
        self._effects: dict[HeadId, Tensor] = {}  # direct, total, norm, [3, n_pairs]
        self._changes: dict[HeadId, dict[Source, float]] = {}  # sums over pairs

    def add(self, inputs: InputBatch, clean: KeptPass, corrupt: KeptPass, heads: Sequence[HeadId], at: Tensor) -> None:
        """Remove each head from the clean passes of some pairs, ``at`` some positions [rows, n] alone."""
        rows = [(*text.positions, *text.labels, *text.foils) for text in inputs.inputs]
        read, answers, foils = torch.tensor(rows, device=clean.final.device).T
        for repair in self_repairs(clean, corrupt, heads, read, answers, foils, at):
            effects = self._effects.setdefault(repair.head, torch.zeros(3, self._n_pairs, dtype=torch.float64))
            effects[:, inputs.texts] = torch.stack([repair.direct, repair.total, repair.norm]).cpu()
            changes = self._changes.setdefault(repair.head, dict.fromkeys(repair.changes, 0.0))
            for source, change in repair.changes.items():
                changes[source] += float(change.sum())

    def by_head(self, difference: float, samples: TextSamples) -> dict[HeadId, SelfRepair]:
        """Means over all pairs, whose metric differs by a mean ``difference``."""
        effects = torch.stack([*self._effects.values()])  # [n_heads, 3, n_pairs]
        means, estimates = effects.mean(-1).tolist(), samples.means((effects[:, 0] - effects[:, 1]).T)
        least = _LEAST_SHARE * abs(difference)
        repairs = {}
        for head, (direct, total, norm), repaired in zip(self._effects, means, estimates, strict=True):
            changes = sorted(self._changes[head].items(), key=lambda change: -abs(change[1]))[:MOST_CHANGED]
            repairs[head] = SelfRepair(
                direct_effect=direct,
                total_effect=total,
                repaired=direct - total,
                interval=repaired.interval,
                share=(direct - total) / direct if abs(direct) >= least else None,
                norm=norm,
                changed=tuple(PartChange(source_name(source), change / self._n_pairs) for source, change in changes),
            )
        return repairs
