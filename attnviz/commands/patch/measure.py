"""Take each head's output from the run of another prompt, and measure how far the prediction moves towards it.

With m the metric, a head's clean output in the corrupt run (denoising) has the effect

    (m patched - m corrupt) / (m clean - m corrupt),     1: it restores all that the prompts differ by

and its corrupt output in the clean run (noising) the mirrored one

    (m patched - m clean) / (m corrupt - m clean),       1: it does as much harm as the whole corrupt prompt

(Meng et al. 2022, Wang et al. 2022; Heimersheim & Nanda 2024). Of several pairs m is the mean over them. KL is the
divergence of the clean run's prediction from another one, so that m clean is 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from attnviz.commands.patch.pairs import (
    DIFFERENCE,
    KL,
    UNITS,
    PairedInputs,
    PairFile,
    PairSamples,
    metric_named,
    paired_inputs,
    partners,
    read_pairs,
)
from attnviz.commands.patch.repairs import MeanRepairs, SelfRepair
from attnviz.errors import UsageError
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import excludes_zero
from attnviz.measures.paths import FROZEN, Receiver, along_paths, receiver_named
from attnviz.measures.predictions import METRICS, BatchMetrics
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, head_named, select_heads, selection_texts
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import PATCH_DIRECTIONS, ModelOptions, checked
from attnviz.present.result import Result
from attnviz.progress import Progress
from attnviz.run.edit import Edit, KeptPass, edited_passes, run_model, running
from attnviz.run.passes import (
    InputBatch,
    ModelInput,
    Pass,
    Passes,
    SampleVerification,
    Tell,
    input_batches,
)
from attnviz.texts.batches import collate
from attnviz.texts.tables import PromptPair
from attnviz.wording import amount, counted

DENOISE, NOISE = PATCH_DIRECTIONS

# Least difference of the metric of both prompts, in its unit and as a share of it: effects are shares of that.
_LEAST = 1e-3


@dataclass(frozen=True)
class PatchEffect:
    """Effect of patching one head.

    Intervals are at 0.05 over all patched heads together (:mod:`attnviz.measures.intervals`); None where there are too
    few pairs, or too few that have an effect of the head, or the corrupt prompts are no worse (:attr:`Patching.worse`).
    """

    id: HeadId
    rank: int  # 1 for the effect furthest from 0
    effect: float  # share of the difference between both prompts; see the module
    interval: Interval | None
    unrelated: float | None  # of patching from another pair's prompt, over the pairs that have one of as many tokens
    above_unrelated: Interval | None  # of the effect less the unrelated one, over the same pairs
    repair: SelfRepair | None = None  # what later heads and networks make good; None where it was not asked for

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


@dataclass(frozen=True, repr=False, eq=False)
class Patching(Result):
    """Result of :func:`patch`: heads ranked by the effect of patching them."""

    command: ClassVar[str] = "patch"

    checkpoint: Checkpoint
    pairs: tuple[PromptPair, ...]  # in the order of the file
    file: PairFile | None  # None for a single pair
    options: dict[str, Any]  # arguments of :func:`patch` by name; the metric is filled in
    clean: float  # the metric on clean prompts, in logits or nats, mean over pairs
    corrupt: float
    worse: Interval | None  # at 0.05, of how much worse the metric is after the corrupt prompts; None for few pairs
    n_unrelated: int  # pairs with another one of as many tokens
    verified: SampleVerification
    heads: tuple[PatchEffect, ...]  # that were patched, the effect furthest from 0 first

    @property
    def n_different(self) -> int:
        return len({pair._replace(place=None) for pair in self.pairs})

    @property
    def metric(self) -> str:
        return str(self.options["metric"])

    @property
    def receiver(self) -> str | None:
        """Where the path of each head ends: ``L2H1.k``, ``logits``; None where heads are patched for all that read."""
        return self.options["receiver"]  # type: ignore[no-any-return]

    @property
    def denoises(self) -> bool:
        """Whether clean outputs go into the corrupt run; else corrupt ones into the clean run."""
        return bool(self.options["direction"] == DENOISE)

    def head(self, head: str | HeadId) -> PatchEffect:
        """Effect of patching one head; UsageError where it was not patched."""
        patched = {effect.id: effect for effect in self.heads}
        wanted = head_named(head, self.checkpoint.kinds)
        if wanted not in patched:
            raise UsageError(f"head {wanted} was not patched; {counted(len(patched), 'other head')} were.")
        return patched[wanted]

    @property
    def in_words(self) -> str:
        most = self.heads[0]
        return (
            f"({self.options['direction']}) of {self.checkpoint.short_name}: "
            f"{counted(len(self.heads), 'head')} on {counted(len(self.pairs), 'pair')}, {most.id} first "
            f"({most.effect:.3g})"
        )


@checked
def patch(
    clean: str | Path,
    model: Model | None = None,
    *,
    corrupt: str | None = None,
    answer: str | int | None = None,
    foil: str | int | None = None,
    label: str | int | None = None,
    direction: str = DENOISE,
    at: str | int | Sequence[str | int] = (),
    spans: str | Sequence[str] = (),
    metric: str | None = None,
    select: str | HeadId | Sequence[str | HeadId] = (),
    receiver: str | None = None,
    sender: str | HeadId | Sequence[str | HeadId] = (),
    networks: str | None = None,
    self_repair: bool = False,
    limit: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    progress: Progress | None = None,
    **opening: Unpack[ModelOptions],
) -> Patching:
    """Take every head's output, one head at a time, from the run of another prompt, and measure what that changes.

    >>> attnviz.patch("one two one", "tiny-gpt2", corrupt="one two two", answer=" two").heads[0]  # doctest: +SKIP

    Arguments are the options of ``attnviz patch --help``. ``clean`` is a prompt, or a table of pairs. ``at`` names
    tokens of the clean prompt as for :func:`attnviz.models.tokens.find_queries`; ``spans`` are stretches of both
    prompts, ``NAME=TEXT`` as for :func:`attnviz.analyze`, a name twice where the prompts differ: of the clean, then of
    the corrupt prompt. ``metric`` is ``logit_difference`` (default with a foil), ``loss`` (with an answer alone) or
    ``kl`` (without). ``receiver`` is the end of paths (:mod:`attnviz.measures.paths`): ``L2H1.q``, ``.k`` or ``.v``, or
    ``logits``. For ``self_repair`` see :mod:`attnviz.measures.self_repair`. ``progress`` is called for the pairs done.

    Raises:
        AttnvizError: see :mod:`attnviz.errors`; VerificationError where the heads, or passes resumed at a layer, do
            not reproduce the model on either prompt.
    """
    tell: Progress = progress or (lambda *_: None)
    tokens = [at] if isinstance(at, str | int) else list(at)
    options: dict[str, Any] = {
        "direction": direction,
        "at": tokens,
        "spans": [spans] if isinstance(spans, str) else list(spans),
        "metric": metric,
        "select": selection_texts(select),
        "answer": answer,
        "foil": foil,
        "label": None if label is None else str(label),
        "limit": limit,
        "seed": seed,
        "receiver": receiver,
        "sender": selection_texts(sender),
        "networks": networks,
        "self_repair": self_repair,
    }
    pairs, file = read_pairs(clean, corrupt, answer, foil, label, limit)
    options["metric"] = metric_named(metric, pairs[0])
    _check_together(options, file)
    checkpoint, _ = open_checkpoint(model, **opening, encoder_decoders=False)
    path = None
    heads = select_heads(options["select"], checkpoint.kinds)
    if receiver is not None:
        path = receiver_named(receiver, checkpoint)
        heads = path.senders(checkpoint, options["sender"])
        options |= {"receiver": str(path), "networks": networks or FROZEN}
    repairs = MeanRepairs(checkpoint, len(pairs)) if self_repair else None
    inputs = paired_inputs(checkpoint, pairs, options["metric"], tokens, options["spans"])
    with torch.inference_mode(mode=False):
        passes = PatchedPasses(
            checkpoint=checkpoint,
            inputs=inputs,
            metric=options["metric"],
            denoises=direction == DENOISE,
            path=path,
            repairs=repairs,
            networks=networks or FROZEN,
        )
        passes.measure_prompts(batch_size)
        clean_metric, corrupt_metric = passes.metric_of_prompts()
        difference = abs(corrupt_metric - clean_metric)
        least = _LEAST * max(1.0, abs(clean_metric), abs(corrupt_metric))
        if difference < least:
            name = options["metric"].replace("_", " ")
            unit = UNITS[options["metric"]]
            given = "--answer and --foil" if file is None else "columns answer and foil"
            other = f", or another metric: {given} measure a difference of logits"
            raise UsageError(
                f"the {'KL divergence' if name == KL else name} is {amount(clean_metric)} {unit} on the clean and "
                f"{amount(corrupt_metric)} on the corrupt prompt: it differs by {amount(difference)} {unit}, and "
                f"effects, which are shares of that, need {amount(least)}. Expected prompts after which the model "
                f"predicts otherwise{'' if options['metric'] == DIFFERENCE else other}."
            )
        passes.run(heads, batch_size, partial(tell, "patching"))
    samples = PairSamples.of(inputs, seed)
    worse = passes.worse(samples)
    return Patching(
        checkpoint=checkpoint,
        pairs=tuple(pairs),
        file=file,
        options=options,
        clean=clean_metric,
        corrupt=corrupt_metric,
        worse=worse,
        n_unrelated=int(passes.has_partner.sum()),
        verified=passes.unchanged.verified,
        heads=passes.ranked(heads, samples, is_worse=worse is not None and worse[0] > 0),
    )


def _check_together(options: dict[str, Any], file: PairFile | None) -> None:
    """Raise UsageError for what spans, paths and self-repair cannot be given with, and for a path without its end."""
    beside_spans = {
        "a table of pairs": file is not None,
        "--at (at=...)": options["at"],
        "--to (receiver=...)": options["receiver"],
        "--self-repair (self_repair=True)": options["self_repair"],
    }
    beside = [name for name, given in beside_spans.items() if given]
    if options["spans"] and beside:
        raise UsageError(
            "--span (spans=...) is of two prompts, whose heads are patched for all that read them; expected it without "
            f"{' and '.join(beside)}."
        )
    end = "name its end, too: --to L2H1.k (receiver=...)"
    if options["receiver"] is None:
        if options["sender"]:
            raise UsageError(f"--from (sender=...) begins a path; {end}.")
        if options["networks"]:
            raise UsageError(f"--networks (networks=...) is of a path; {end}.")
    elif options["self_repair"]:
        raise UsageError("leave out --to (receiver=...): --self-repair removes a head for all that read it.")
    elif options["select"]:
        raise UsageError("leave out --select (select=...): --from (sender=...) names the heads that a path begins at.")
    if options["self_repair"] and options["metric"] != DIFFERENCE:
        raise UsageError(
            "--self-repair divides a difference of logits among heads; expected --answer and --foil, and no other "
            f"--metric, found the metric {options['metric']}."
        )


class PatchedPasses:
    """Passes over both prompts of each pair, and passes of one with heads of the other."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        inputs: PairedInputs,
        metric: str,
        denoises: bool,
        path: Receiver | None,
        repairs: MeanRepairs | None = None,
        unrelated: bool = True,
        networks: str = FROZEN,
    ) -> None:
        self._checkpoint, self._inputs, self._denoises = checkpoint, inputs, denoises
        self._path, self._repairs, self._networks = path, repairs, networks
        self.unchanged = Passes(checkpoint)  # verified is a sample of both prompts'
        self._metric = metric
        self._into, self._from = (inputs.corrupt, inputs.clean) if denoises else (inputs.clean, inputs.corrupt)
        self._partners = partners(self._from) if unrelated else list(range(len(self._from)))
        # whether a pair has an unrelated one, [n_pairs]
        self.has_partner = torch.tensor([partner != pair for pair, partner in enumerate(self._partners)])
        # the metric on clean prompts, [n_pairs]; a logit difference as the foil less the answer
        self.clean = torch.zeros(len(inputs.clean), dtype=torch.float64)
        self._corrupt_change = torch.zeros_like(self.clean)
        self._weights = [torch.ones(len(clean.item), 1, dtype=torch.float64) for clean in inputs.clean]

    def run(self, heads: Sequence[HeadId], batch_size: int, tell: Tell) -> None:
        """Patch every head alone in all pairs, whose prompts were measured.

        ``changes`` are then those of the metric from the clean run's, by patching from the own pair, and another,
        [2, n_heads, n_pairs]; their sign cancels in effects.
        """
        self.changes = torch.zeros(2, len(heads), len(self._into), dtype=torch.float64)
        with running(self._checkpoint):
            for into in self.unchanged.each(self._into, batch_size, tell):
                pairs = into.inputs.texts
                source = self.unchanged.beside(into, [self._from[pair] for pair in pairs])
                clean, corrupt = (source, into) if self._denoises else (into, source)
                metrics = self._metrics(clean.inputs, clean.kept.final)
                donors = [source]
                if self.has_partner[pairs].any():
                    others = [self._from[self._partners[pair]] for pair in pairs]
                    donors.append(self.unchanged.beside(into, others, verify=False))
                mask = self._mask(pairs, into.inputs)
                for at, donor in enumerate(donors):
                    for some, final in self._patched(heads, into, donor.kept, mask):
                        rows = torch.tensor(some)[:, None]
                        self.changes[at, rows, torch.tensor(pairs)] = metrics.changes(final, into.inputs)[:, :, 0, 0]
                if self._repairs is not None:
                    self._repairs.add(clean.inputs, clean.kept, corrupt.kept, heads, mask)

    def measure_prompts(self, batch_size: int) -> None:
        """The metric after both prompts of all pairs."""
        with running(self._checkpoint):
            for inputs in input_batches(self._checkpoint, self._into, batch_size):
                pairs = [text.text for text in inputs.inputs]
                clean = self._batch([self._inputs.clean[pair] for pair in pairs])
                corrupt = self._batch([self._inputs.corrupt[pair] for pair in pairs])
                final = run_model(self._checkpoint, clean.batch.inputs)
                metrics = self._metrics(clean, final)
                if self._metric != KL:
                    self.clean[pairs] = -metrics.clean[self._metric]
                final = run_model(self._checkpoint, corrupt.batch.inputs)
                self._corrupt_change[pairs] = metrics.changes(final, corrupt)[0, :, 0, 0]

    def _patched(
        self, heads: Sequence[HeadId], into: Pass, donor: KeptPass, mask: Tensor | None
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield numbers of heads and final states with each patched, [n_heads * rows, n, d_model]."""
        kept = into.kept
        if self._path is not None:
            return along_paths(self._checkpoint, kept, donor, self._path, heads, mask, self._networks)
        values = donor.values
        if self._inputs.positions:  # what the donor's heads give, at the tokens of the other run where it is patched
            values = {key: torch.zeros_like(value) for key, value in kept.values.items()}
            for row, text in enumerate(into.inputs.inputs):
                clean, corrupt = map(list, self._inputs.positions[text.text])
                to, source = (corrupt, clean) if self._denoises else (clean, corrupt)
                for key, value in values.items():
                    value[row, to] = donor.values[key][row, source]
        edits = [[Edit(head.layer, values[head.layer, "z"], heads=[head.head], at=mask)] for head in heads]
        return edited_passes(self._checkpoint, kept, edits)

    def _metrics(self, inputs: InputBatch, final: Tensor) -> BatchMetrics:
        return BatchMetrics(self._checkpoint, inputs, final, self._weights, [METRICS[self._metric]])

    def _batch(self, inputs: Sequence[ModelInput]) -> InputBatch:
        return InputBatch(inputs, collate(self._checkpoint, [text.item for text in inputs]))

    def _mask(self, pairs: Sequence[int], into: InputBatch) -> Tensor | None:
        """Where heads are patched, [rows, n]; None for all tokens."""
        if not self._inputs.positions:
            return None
        mask = torch.zeros_like(into.batch.valid)
        for row, pair in enumerate(pairs):
            clean, corrupt = self._inputs.positions[pair]
            mask[row, list(corrupt if self._denoises else clean)] = True
        return mask

    def metric_of_prompts(self) -> tuple[float, float]:
        """The metric on clean and corrupt prompts, means over pairs."""
        sign = -1 if self._metric == DIFFERENCE else 1  # what is computed is the foil less the answer
        clean = 0.0 if self._metric == KL else float(self.clean.mean())
        return sign * clean, sign * (clean + float(self._corrupt_change.mean()))

    def worse(self, samples: PairSamples) -> Interval | None:
        """Interval of how much worse the metric is after the corrupt prompts, mean over pairs."""
        return samples.means(self._corrupt_change[:, None]).interval(0)

    def ranked(self, heads: Sequence[HeadId], samples: PairSamples, is_worse: bool) -> tuple[PatchEffect, ...]:
        """The effects of the heads, that furthest from 0 first; with intervals where the metric ``is_worse``."""
        difference = self._corrupt_change[:, None]
        changes = self.changes.transpose(1, 2)  # [2, n_pairs, n_heads]
        moved, unrelated = difference - changes if self._denoises else changes  # how far towards the other prompt's
        partner = self.has_partner[:, None].double()
        effects = samples.ratios(moved, difference)
        above = samples.ratios((moved - unrelated) * partner, difference * partner)
        of_others = (unrelated * partner).sum(0) / (difference * partner).sum()
        repairs = {} if self._repairs is None else self._repairs.by_head(float(difference.mean()), samples)
        order = sorted(range(len(heads)), key=lambda at: (-abs(float(effects.estimates[at])), heads[at]))
        return tuple(
            PatchEffect(
                id=heads[at],
                rank=rank,
                effect=float(effects.estimates[at]),
                interval=effects.interval(at) if is_worse else None,
                unrelated=float(of_others[at]) if self.has_partner.any() else None,
                above_unrelated=above.interval(at) if is_worse else None,
                repair=repairs.get(heads[at]),
            )
            for rank, at in enumerate(order, start=1)
        )
