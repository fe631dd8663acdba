"""Take each head's output from the run of another prompt, and measure how far the prediction moves towards it.

With m the metric, a head's clean output in the corrupt run (denoising) has the effect

    (m patched - m corrupt) / (m clean - m corrupt),     1: it restores all that the prompts differ by

and its corrupt output in the clean run (noising) the mirrored one

    (m patched - m clean) / (m corrupt - m clean),       1: it does as much harm as the whole corrupt prompt

(Meng et al. 2022, Wang et al. 2022; Heimersheim & Nanda 2024). Of several pairs m is the mean over them. KL is the
divergence of the clean run's prediction from another one, so that m clean is 0. Instead of heads' outputs it may be
their queries, keys or values, or what a whole layer reads or writes (:data:`attnviz.run.sites.SITES`); and instead of
all tokens at once each position alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Unpack

import torch

from attnviz.commands.patch.pairs import (
    DIFFERENCE,
    KL,
    UNITS,
    PairedInputs,
    PairFile,
    metric_named,
    pair_samples,
    paired_inputs,
    read_pairs,
)
from attnviz.commands.patch.patched import HEAD, KV_HEAD, Part, PatchedPasses, kind_of_parts, parts_of
from attnviz.commands.patch.repairs import MeanRepairs, SelfRepair
from attnviz.errors import UsageError
from attnviz.inputs.tables import PromptPair
from attnviz.inputs.text import tokenize
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import TextSamples, excludes_zero
from attnviz.measures.paths import FROZEN, receiver_named
from attnviz.measures.predictions import Scoring
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, head_named, selection_texts
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import PATCH_DIRECTIONS, ModelOptions, checked
from attnviz.present.result import Result
from attnviz.progress import Progress
from attnviz.run.passes import SampleVerification
from attnviz.wording import amount, counted, visible

DENOISE, NOISE = PATCH_DIRECTIONS

# arguments that stand in the document as they are given
_OPTIONS = "direction site by answer foil limit seed receiver networks self_repair".split()
# Least difference of the metric of both prompts, in its unit and as a share of it: effects are shares of that.
_LEAST = 1e-3


@dataclass(frozen=True)
class PatchEffect:
    """Effect of patching one head, or another part of a layer, perhaps at one position.

    Intervals are at 0.05 over all that was patched together (:mod:`attnviz.measures.intervals`); None where there are
    too few pairs, or too few that have an effect, or the corrupt prompts are no worse (:attr:`Patching.worse`).
    """

    layer: int
    head: int | None  # or KV head; None for the whole layer
    position: int | None  # in the clean prompt; None for all that are patched
    token: str | None  # there, in the clean prompt; None for all, and where prompts differ
    rank: int  # 1 for the effect furthest from 0
    effect: float  # share of the difference between both prompts; see the module
    interval: Interval | None
    unrelated: float | None  # of patching from another pair's prompt, over the pairs that have one of as many tokens
    above_unrelated: Interval | None  # of the effect less the unrelated one, over the same pairs
    repair: SelfRepair | None = None  # what later heads and networks make good; None where it was not asked for

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


@dataclass(frozen=True, repr=False, eq=False)
class Patching(Result):
    """Result of :func:`patch`: heads, or other parts of layers, ranked by the effect of patching them."""

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
    effects: tuple[PatchEffect, ...]  # of all that was patched, that furthest from 0 first

    @property
    def site(self) -> str:
        return str(self.options["site"])

    @property
    def kind(self) -> str:
        """What was patched of each layer: ``head``, ``KV head``, or the ``layer`` itself."""
        return kind_of_parts(self.checkpoint, self.site)

    @property
    def by_position(self) -> bool:
        return self.options["by"] is not None

    @property
    def heads(self) -> tuple[PatchEffect, ...]:
        """The effects, where each is of a head at all that is patched; else empty."""
        return self.effects if self.kind == HEAD and not self.by_position else ()

    def name(self, effect: PatchEffect) -> str:
        """What was patched, in words: ``L2H1``, ``KV head 1 of L2``, ``L2``, with its position ``L2 at #5 (cat)``."""
        layer = HeadId(effect.layer, 0).layer_name
        name = {HEAD: f"{layer}H{effect.head}", KV_HEAD: f"KV head {effect.head} of {layer}"}.get(self.kind, layer)
        if effect.position is None:
            return name
        return f"{name} at #{effect.position}" + (f" ({visible(effect.token)})" if effect.token else "")

    @property
    def n_different(self) -> int:
        return len({pair._replace(place=None) for pair in self.pairs})

    @property
    def metric(self) -> str:
        return str(self.options["metric"])

    @property
    def unit(self) -> str:
        """Of the metric, after a space; '' of a function."""
        return UNITS.get(self.metric, "")

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
        most = self.effects[0]
        return (
            f"({self.options['direction']}) of {self.checkpoint.short_name}: {self.patched_in_words} on "
            f"{counted(len(self.pairs), 'pair')}, {self.name(most)} first ({most.effect:.3g})"
        )

    @property
    def patched_in_words(self) -> str:
        """How many parts, and positions: ``16 heads at 7 positions``."""
        n_positions = len({effect.position for effect in self.effects})
        parts = counted(len(self.effects) // n_positions, self.kind)
        return f"{parts} at {counted(n_positions, 'position')}" if self.by_position else parts


@checked
def patch(
    clean: Any,
    model: Model | None = None,
    *,
    corrupt: Any = None,
    answer: str | int | Sequence[str | int] | None = None,
    foil: str | int | Sequence[str | int] | None = None,
    label: str | int | None = None,
    labels: Any = None,
    direction: str = DENOISE,
    site: str = "z",
    by: str | None = None,
    at: str | int | Sequence[str | int] = (),
    spans: str | Sequence[str] = (),
    metric: str | Scoring | None = None,
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
    """Take every head's output, or another site, part by part, from the run of another prompt, and measure the change.

    >>> attnviz.patch("one two one", "tiny-gpt2", corrupt="one two two", answer=" two").heads[0]  # doctest: +SKIP

    Arguments are the options of ``attnviz patch --help``. ``clean`` is a prompt, or a table of pairs (a file, or in
    memory), or a list beside ``corrupt=[...]`` and perhaps ``labels=[...]``. ``site`` is a name of
    :data:`attnviz.run.sites.SITES`; ``by="position"`` patches each position alone. ``at`` names tokens of the
    clean prompt as for :func:`attnviz.inputs.prompt.find_queries`; ``spans`` are stretches of both prompts,
    ``NAME=TEXT`` as for :func:`attnviz.analyze`, a name twice where the prompts differ: of the clean, then of the
    corrupt prompt. ``metric`` is ``logit_difference`` (default with a foil), ``loss`` (with an answer alone), ``kl``
    (without), or a function of your own as for :func:`attnviz.ablate`, whose row has the clean prompt as ``text``,
    ``corrupt``, ``answer`` and ``foil``. ``receiver`` is the end of paths (:mod:`attnviz.measures.paths`): ``L2H1.q``,
    ``.k`` or ``.v``, or ``logits``. For ``self_repair`` see :mod:`attnviz.measures.self_repair`. ``progress`` is called
    for the pairs done.

    Raises:
        AttnvizError: see :mod:`attnviz.errors`; VerificationError where the heads, or passes resumed at a layer, do
            not reproduce the model on either prompt.
    """
    given = locals()
    tell: Progress = progress or (lambda *_: None)
    tokens = [at] if isinstance(at, str | int) else list(at)
    options: dict[str, Any] = {name: given[name] for name in _OPTIONS} | {
        "at": tokens,
        "spans": [spans] if isinstance(spans, str) else list(spans),
        "select": selection_texts(select),
        "sender": selection_texts(sender),
        "label": None if label is None else str(label),
    }
    if label is not None and labels is not None:
        raise UsageError("expected label=... for all pairs or labels=[...], one for each, found both.")
    pairs, file = read_pairs(clean, corrupt, answer, foil, label if labels is None else labels, limit)
    measured = metric_named(metric, pairs[0])
    options["metric"] = measured.unit if callable(metric) else measured.name
    _check_together(options, file)
    checkpoint, _ = open_checkpoint(model, **opening, encoder_decoders=False)
    path = None
    if receiver is not None:
        path = receiver_named(receiver, checkpoint)
        parts = [Part(*head) for head in path.senders(checkpoint, options["sender"])]
        options |= {"receiver": str(path), "networks": networks or FROZEN}
    else:
        parts = parts_of(checkpoint, site, options["select"])
    repairs = MeanRepairs(checkpoint, len(pairs)) if self_repair else None
    inputs = paired_inputs(checkpoint, pairs, measured.name, tokens, options["spans"], each=by is not None)
    places = _places(checkpoint, pairs, inputs) if by is not None else []
    if places:
        parts = [part._replace(place=place) for part in parts for place in range(len(places))]
    with torch.inference_mode(mode=False):
        passes = PatchedPasses(
            checkpoint=checkpoint,
            inputs=inputs,
            metric=measured,
            denoises=direction == DENOISE,
            path=path,
            repairs=repairs,
            networks=networks or FROZEN,
            site=site,
        )
        passes.run(parts, batch_size, partial(tell, "patching"))
    clean_metric, corrupt_metric = passes.metric_of_prompts()
    difference = abs(corrupt_metric - clean_metric)
    least = _LEAST * max(1.0, abs(clean_metric), abs(corrupt_metric))
    if difference < least:
        name = options["metric"].replace("_", " ")
        unit = UNITS.get(options["metric"], "")
        named = "--answer and --foil" if file is None else "columns answer and foil"
        other = f", or another metric: {named} measure a difference of logits"
        raise UsageError(
            f"the {'KL divergence' if name == KL else name} is {amount(clean_metric)}{unit} on the clean and "
            f"{amount(corrupt_metric)} on the corrupt prompt: it differs by {amount(difference)}{unit}, and "
            f"effects, which are shares of that, need {amount(least)}. Expected prompts after which the model "
            f"predicts otherwise{'' if options['metric'] == DIFFERENCE else other}."
        )
    samples = pair_samples(inputs, seed)
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
        effects=_ranked(passes, parts, places, samples, is_worse=worse is not None and worse[0] > 0),
    )


def _places(checkpoint: Checkpoint, pairs: Sequence[PromptPair], inputs: PairedInputs) -> list[tuple[int, str | None]]:
    """The positions that are patched one by one, in the clean prompts, with their token; None where these differ."""
    labels = [tokenize(checkpoint, pair.clean).labels for pair in pairs]
    tokens = [{of_pair[position] for of_pair in labels} for position in inputs.positions[0][0]]
    return [
        (position, of_all.pop() if len(of_all) == 1 else None)
        for position, of_all in zip(inputs.positions[0][0], tokens, strict=True)
    ]


def _ranked(
    passes: PatchedPasses,
    parts: Sequence[Part],
    places: Sequence[tuple[int, str | None]],
    samples: TextSamples,
    is_worse: bool,
) -> tuple[PatchEffect, ...]:
    """The effects of all parts, that furthest from 0 first; with intervals where the metric ``is_worse``."""
    difference, (moved, unrelated) = passes.corrupt_change[:, None], passes.moved
    partner = passes.has_partner[:, None].double()
    effects = samples.ratios(moved, difference)
    above = samples.ratios((moved - unrelated) * partner, difference * partner)
    of_others = (unrelated * partner).sum(0) / (difference * partner).sum()
    repairs = {} if passes.repairs is None else passes.repairs.by_head(float(difference.mean()), samples)
    ranked = []
    order = sorted(range(len(parts)), key=lambda at: (-abs(float(effects.estimates[at])), at))
    for rank, at in enumerate(order, start=1):
        layer, head, place = parts[at]
        position, token = (None, None) if place is None else places[place]
        effect = PatchEffect(
            layer=layer,
            head=head,
            position=position,
            token=token,
            rank=rank,
            effect=float(effects.estimates[at]),
            interval=effects.interval(at) if is_worse else None,
            unrelated=float(of_others[at]) if passes.has_partner.any() else None,
            above_unrelated=above.interval(at) if is_worse else None,
            repair=None if head is None else repairs.get(HeadId(layer, head)),
        )
        ranked.append(effect)
    return tuple(ranked)


def _check_together(options: dict[str, Any], file: PairFile | None) -> None:
    """Raise UsageError for what spans, paths and self-repair cannot be given with, and for a path without its end."""
    of_heads = [
        name
        for name, is_given in {
            "--to (receiver=...)": options["receiver"],
            "--self-repair (self_repair=True)": options["self_repair"],
        }.items()
        if is_given
    ]
    of_others = {"a table of pairs": file is not None, "--at (at=...)": options["at"]}
    beside = [name for name, is_given in of_others.items() if is_given] + of_heads
    if options["spans"] and beside:
        raise UsageError(
            "--span (spans=...) is of two prompts, patched for all that reads them; expected it without "
            f"{' and '.join(beside)}."
        )
    if of_heads and (options["site"] != "z" or options["by"] is not None):
        raise UsageError(
            f"{' and '.join(of_heads)} is of what heads write at all tokens that are patched: expected it without "
            "--site (site=...) and --by position (by=...)."
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
