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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np
import torch
from rich.console import RenderableType

from attnviz.errors import UsageError
from attnviz.inputs.tables import PromptPair
from attnviz.inputs.text import tokenize
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import ERROR_RATE, LEAST_WITH_EFFECT, TextSamples, excludes_zero, texts_needed
from attnviz.measures.patching import HEAD as OF_HEAD
from attnviz.measures.patching import (
    KV_HEAD,
    LAYER,
    MeanRepairs,
    Part,
    PatchedPasses,
    SelfRepair,
    kind_of_parts,
    parts_of,
)
from attnviz.measures.paths import FROZEN, READS, RUN, receiver_named
from attnviz.measures.predictions import Scoring
from attnviz.measures.prompt_pairs import (
    DIFFERENCE,
    KL,
    LOSS,
    UNITS,
    PairedInputs,
    PairFile,
    holds_ids,
    metric_named,
    pair_samples,
    paired_inputs,
    read_pairs,
    texts_of_ids,
)
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, head_named, number_of, selection_texts
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import PATCH_DIRECTIONS, ModelOptions, checked
from attnviz.present.documents import model_entry, sample_entry
from attnviz.present.fields import HEAD, Field, Table, interval_field, pick, values_of
from attnviz.present.figure_context import capital, caption_of
from attnviz.present.kv_heads import kv_groups
from attnviz.present.report import CommandSpec
from attnviz.present.result import Result
from attnviz.present.sentences import first_lines, resumed_line
from attnviz.present.tables import notes
from attnviz.present.view import Drawing, ViewOptions, in_figures
from attnviz.progress import Progress
from attnviz.run.passes import SampleVerification
from attnviz.wording import about_needed, amount, bracketed, counted, quoted, rounded, visible

if TYPE_CHECKING:
    from attnviz.figures.head_map import HeadMap, HeadMapPlan

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
        return self.effects if self.kind == OF_HEAD and not self.by_position else ()

    def name(self, effect: PatchEffect) -> str:
        """What was patched, in words: ``L2H1``, ``KV head 1 of L2``, ``L2``, with its position ``L2 at #5 (cat)``."""
        layer = HeadId(effect.layer, 0).layer_name
        name = {OF_HEAD: f"{layer}H{effect.head}", KV_HEAD: f"KV head {effect.head} of {layer}"}.get(self.kind, layer)
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
    memory), or a list of texts or token ids beside ``corrupt=[...]`` and perhaps ``labels=[...]``. ``site`` is a name
    of :data:`attnviz.run.sites.SITES`; ``by="position"`` patches each position alone. ``at`` names tokens of the clean
    prompt as for :func:`attnviz.inputs.prompt.find_queries`; ``spans`` are stretches of both prompts, ``NAME=TEXT`` as
    for :func:`attnviz.analyze`, a name twice where the prompts differ: of the clean, then of the corrupt prompt.
    ``metric`` is ``logit_difference`` (default with a foil), ``loss`` (with an answer alone), ``kl`` (without), or a
    function of your own as for :func:`attnviz.ablate`, whose row has the clean prompt as ``text``, ``corrupt``,
    ``answer`` and ``foil``. ``receiver`` is the end of paths (:mod:`attnviz.measures.paths`): ``L2H1.q``, ``.k`` or
    ``.v``, or ``logits``. For ``self_repair`` see :mod:`attnviz.measures.self_repair`. ``progress`` is called for the
    pairs done.

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
    opened = None
    if holds_ids(clean):
        opened, _ = open_checkpoint(model, **opening, encoder_decoders=False)
        clean, corrupt = texts_of_ids(opened, clean, "clean"), texts_of_ids(opened, corrupt, "corrupt")
    pairs, file = read_pairs(clean, corrupt, answer, foil, label if labels is None else labels, limit)
    measured = metric_named(metric, pairs[0])
    options["metric"] = measured.unit if callable(metric) else measured.name
    _check_together(options, file)
    checkpoint = opened or open_checkpoint(model, **opening, encoder_decoders=False)[0]
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
    given = {"--to (receiver=...)": options["receiver"], "--self-repair (self_repair=True)": options["self_repair"]}
    of_others = {"a table of pairs": file is not None, "--at (at=...)": options["at"]}
    of_heads = list(filter(given.get, given))
    beside = [*filter(of_others.get, of_others), *of_heads]
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


# What is written

_LITTLE = 0.1  # effects that are smaller, of every head and of all together, say that the rest goes another way
_three = partial(rounded, digits=3)
_interval = partial(bracketed, write=_three)


_POSITION: tuple[Field[PatchEffect], ...] = (
    Field(name="position"),
    Field(name="token", if_known=True, write=lambda token: "" if token is None else visible(token)),
)
_EFFECT: tuple[Field[PatchEffect], ...] = (
    Field(name="rank"),
    Field(name="effect", write=_three, meaning="share of the prompts' difference that it moves"),
    interval_field(write=_interval, over="for all together", detail=True),
    Field(name="unrelated", write=_three, meaning="the effect from the prompt of another pair"),
    Field(
        name="above_unrelated",
        csv={"above_unrelated_low": (0,), "above_unrelated_high": (1,)},
        meaning="interval of effect less unrelated",
    ),
    Field(
        value="repair",
        name="self_repair",
        csv={name: (name,) for name in ("direct_effect", "total_effect", "repaired")}
        | {"repaired_low": ("interval", 0), "repaired_high": ("interval", 1)}
        | {"repaired_share": ("share",), "repaired_by_norm": ("norm",)},
        if_known=True,
        meaning="logits lost with all after the head as it was (total effect: when that runs)",
    ),
)

_REPAIR: tuple[Field[PatchEffect], ...] = (
    *pick(HEAD, "id"),
    Field("Direct", "repair.direct_effect", "logits", write=_three),
    Field("Total", "repair.total_effect", "logits", write=_three),
    Field("Repaired", "repair.repaired", "logits", write=_three),
    Field("Interval", "repair.interval", "logits", write=_interval, detail=True),
    Field("Share", "repair.share"),
    Field("By norm", "repair.norm", "logits", write=_three, detail=True),
    Field("Most changed", "repair.most_changed", "logits"),
)


def _part_fields(result: Patching) -> list[Field[Any]]:
    """Which part an effect is of."""
    position = _POSITION if result.by_position else ()
    if result.kind == OF_HEAD:
        return [*HEAD, *position]
    part: list[Field[Any]] = [Field(value=lambda effect: number_of(effect.layer), name="layer")]
    if result.kind == KV_HEAD:
        groups = {key: " ".join(map(str, heads)) for key, heads in kv_groups(result.checkpoint).items()}
        part.append(Field("KV head", "head", name="kv_head"))
        part.append(Field(value=lambda effect: groups[effect.layer, effect.head or 0], name="heads"))
    return [*part, *position]


def _table(result: Patching, _: ViewOptions) -> Table[PatchEffect]:
    name = "positions" if result.by_position else result.kind.lower().replace(" ", "_") + "s"
    title = f"{capital(result.kind)}s patched {'at each position' if result.by_position else 'one at a time'}"
    if result.receiver:
        title = f"Paths from heads to {_receiver_text(result)}"
    return Table(title, [*_part_fields(result), *_EFFECT], result.effects, name=name)


def _content(result: Patching, _: ViewOptions) -> dict[str, Any]:
    pair = result.pairs[0]
    file = result.file and values_of(result.file, "path", "sha256")
    base, other = ("corrupt", "clean") if result.denoises else ("clean", "corrupt")
    return {
        "model": model_entry(result.checkpoint),
        "prompts": None if file else {"clean": pair.clean, "corrupt": pair.corrupt},
        "file": file,
        "options": result.options,
        "pairs": len(result.pairs),
        "pairs_with_unrelated": result.n_unrelated,
        "clean": result.clean,
        "corrupt": result.corrupt,
        "worse": result.worse,
        "effect": f"(metric - {base}) / ({other} - {base})",
        "verification": sample_entry(result.verified),
    }


def _tables(result: Patching, choices: ViewOptions) -> Iterator[RenderableType]:
    source, what = f"{result.checkpoint.short_name} on {_prompts_text(result)}", f"{capital(_metric_text(result))}."
    noun = "prompt" if choices.verbose else None
    yield first_lines(source, [what], resumed_line(result.verified, result.checkpoint, noun))
    of_file = () if result.file is None else result.file.notes
    if result.options["self_repair"]:
        yield from _repair_tables(result, choices)
        if not choices.verbose:
            yield notes(*of_file)
            return
    part = [field.name for field in _part_fields(result) if field not in HEAD[1:]]
    shown = ["rank", *part, "effect"]
    if any(effect.interval for effect in result.effects):
        shown.append("interval")
    if result.n_unrelated:
        shown.append("unrelated")
    table, order = _table(result, choices).pick(*shown), "the effect furthest from 0 first"
    yield table.first(choices.rows(6), "patch.csv", _noun(result), order)
    told = f"{capital(_direction_text(result))}.", _interval_text(result), _rest_text(result), _unrelated_text(result)
    yield notes(*told, *of_file)


def _repair_tables(result: Patching, choices: ViewOptions) -> Iterator[RenderableType]:
    heads = sorted(result.heads, key=lambda head: -abs(attrgetter("repair.direct_effect")(head)))
    left_out = set() if choices.verbose else {"By norm"}
    if not any(map(attrgetter("repair.interval"), heads)):
        left_out.add("Interval")
    columns = [field for field in _REPAIR if field.title not in left_out]
    table, order = Table("Self-repair of removed heads", columns, heads), "the largest direct effect first"
    yield table.first(choices.rows(6), "patch.csv", order=order)
    yield notes(
        "Direct: lost by its corrupt output alone; total: when all after it runs; repaired: direct − total, by later "
        "parts and the final norm."
    )


SPEC = CommandSpec[Patching](
    content=_content,
    table=_table,
    tables=_tables,
    paper=(
        *("id", "layer", "kv_head", "position", "effect", "low", "high", "unrelated"),
        *("direct_effect", "total_effect", "repaired", "repaired_low", "repaired_high"),
    ),
)


# What is said


def _prompts_text(result: Patching) -> str:
    """Both prompts, or the table of pairs."""
    if result.file is not None:
        return f"{visible(result.file.path.name)} ({counted(len(result.pairs), 'pair')})"
    return f"{quoted(result.pairs[0].clean)} / {quoted(result.pairs[0].corrupt)}"


def _receiver_text(result: Patching) -> str:
    """Where the path of each head ends, in words."""
    head, _, reads = (result.receiver or "").rpartition(".")
    return f"the {READS[reads]} of {head}" if head else f"the {reads}"


def _direction_text(result: Patching) -> str:
    """Whose output goes where, and what an effect of 1 is."""
    tokens = ["the last token" if name == "last" else quoted(str(name)) for name in result.options["at"]]
    names = dict.fromkeys(span.partition("=")[0].strip() for span in result.options["spans"])
    tokens += [f"the span {visible(name)}" for name in names]
    at = f", at {' and '.join(tokens)} alone" if tokens else ""
    through = ", directly or through networks" if result.options["networks"] == RUN else " directly"
    path = f", as {_receiver_text(result)} read it{through}," if result.receiver else ""
    what = "a head’s {} output" if result.site == "z" else f"{{}} {result.site} of a {result.kind}"
    alone = " one position at a time" if result.by_position else ""
    if result.denoises:
        return f"{what.format('clean')}{path} goes into the corrupt run{at}{alone}; 1: all is restored"
    return f"{what.format('corrupt')}{path} goes into the clean run{at}{alone}; 1: as bad as the corrupt prompt"


def _metric_text(result: Patching) -> str:
    """What is measured, and what it is on both prompts."""
    pair = result.pairs[0]
    answer, foil = (quoted(str(token)) for token in (pair.answer, pair.foil))
    if result.file is not None:
        answer, foil = "the answer", "the foil"
    what = {
        DIFFERENCE: f"logit of {answer} less that of {foil}",
        LOSS: f"loss of {answer}",
        KL: "KL divergence from the clean prediction",
    }.get(result.metric, f"metric {result.metric}")
    clean, corrupt = amount(result.clean), amount(result.corrupt)
    return f"{what}: {clean}{result.unit} after the clean, {corrupt} after the corrupt prompt"


def _interval_text(result: Patching) -> str:
    """Which heads have intervals without 0, or why there are none."""
    if result.worse is None:
        if result.n_different >= ENOUGH_TEXTS:
            return f"No intervals: the prompts of fewer than {LEAST_WITH_EFFECT} pairs differ in what is predicted."
        return f"{counted(result.n_different, 'pair')}: a first look, without intervals (from {ENOUGH_TEXTS} on)."
    if result.worse[0] <= 0:
        return (
            f"No intervals: over these pairs the prediction is not worse after the corrupt prompts (by "
            f"{_interval(result.worse)}{result.unit}), so nothing restores it."
        )
    kind = result.kind
    if all(effect.interval is None and _three(effect.effect) == _three(0.0) for effect in result.effects):
        return f"No {kind} has an effect here: nothing that is patched changes the prediction."
    clear = [effect for effect in result.effects if effect.excludes_zero]
    together = f"with an interval without 0, at {ERROR_RATE} over all {kind}s together"
    if not clear:
        needed = texts_needed([(effect.effect, effect.interval) for effect in result.effects], result.n_different)
        return f"Too few pairs to name a {kind}: none {together}{about_needed(needed, 'pair')}."
    return f"{counted(len(clear), _noun(result))} {together}{_names(result, clear)}."


def _noun(result: Patching) -> str:
    return "effect" if result.by_position else result.kind


def _names(result: Patching, effects: Sequence[PatchEffect]) -> str:
    """What was patched, after a colon; '' where there is nothing or much."""
    return f": {', '.join(map(result.name, effects))}" if 0 < len(effects) <= 6 else ""


def _rest_text(result: Patching) -> str:
    """Where the rest goes, where all heads together carry little; or ''."""
    total = sum(head.effect for head in result.heads)
    little = max((abs(head.effect) for head in result.heads), default=1.0) < _LITTLE and abs(total) < _LITTLE
    if result.site != "z" or result.receiver or result.options["select"] or not little:
        return ""
    return f"The effects of all heads sum to {_three(total)}: --site mlp_out, resid_post (site=...) show the rest."


def _unrelated_text(result: Patching) -> str:
    """What the column of unrelated pairs is, or ''."""
    if not result.n_unrelated:
        return ""
    pairs = f"{result.n_unrelated} of {counted(len(result.pairs), 'pair')}"
    text = f"Unrelated: a control, from another prompt of as many tokens ({pairs})"
    if all(effect.above_unrelated is None for effect in result.effects):
        return f"{text}."
    beating = [effect for effect in result.effects if effect.beats_unrelated]
    return f"{text}; {counted(len(beating), _noun(result))} with more effect{_names(result, beating)}."


# What is drawn


def _map(result: Patching, choices: ViewOptions) -> "HeadMap":
    """Layers × heads, or of whole layers one column; by position heads, or layers, × positions."""
    from matplotlib.colors import Normalize

    from attnviz.figures.head_map import HeadMap

    model, kind = result.checkpoint, result.kind
    effects = {(effect.layer, effect.head, effect.position): effect.effect for effect in result.effects}
    layers = list(model.every_layer if kind == LAYER else model.layers)
    numbers: list[int | None] = [*range(model.n_heads)]
    if kind != OF_HEAD:
        numbers = sorted({number for _, number, _ in effects}, key=lambda number: number or 0)
    rows: list[str] = []
    columns = [result.site] if kind == LAYER else []
    axes = "layer", "" if kind == LAYER else kind
    places: list[int | None] = [None]
    parts = [(layer, number) for layer in layers for number in numbers]
    if result.by_position:
        tokens = {effect.position: effect.token or str(effect.position) for effect in result.effects}
        places = sorted(tokens, key=lambda position: position or 0)
        parts = [part for part in parts if (*part, places[0]) in effects]
        if kind != LAYER:
            letter = "H" if kind == OF_HEAD else " KV"
            rows = [f"{HeadId(layer, 0).layer_name}{letter}{number}" for layer, number in parts]
        layers, columns, axes = [layer for layer, _ in parts], [tokens[place] for place in places], (kind, "position")
    cells = [effects.get((*part, place), np.nan) for part in parts for place in places]
    values = np.array(cells).reshape(len(layers), -1)
    top = max(float(np.nanmax(np.abs(values))), 1e-6)
    return HeadMap(
        values,
        layers,
        rows=tuple(rows),
        columns=tuple(columns),
        axes=axes,
        norm=Normalize(-top, top, clip=True),
        bar="effect, share of the difference",
        colours=choices.style.diverging_map(),
    )


def _plan_effects(result: Patching, choices: ViewOptions) -> "Iterator[HeadMapPlan]":
    from attnviz.figures.head_map import HeadMapPlan

    model = result.checkpoint
    drawn = _map(result, choices)
    left = int(np.isnan(drawn.values).sum())
    hatched = f"hatched: {counted(left, result.kind)} not patched" if left else ""
    facts = (_metric_text(result), _direction_text(result), hatched, _interval_text(result), _rest_text(result))
    what = f"patching each {result.kind}" + ("" if result.site == "z" else f"’s {result.site}")
    if result.by_position:
        what += " at each position"
    if result.receiver:
        what = f"each head’s path to {_receiver_text(result)}"
    title = f"{model.short_name}: effect of {what}"
    yield HeadMapPlan(
        stem="patch",
        caption=caption_of(
            f"{title}, on {_prompts_text(result)}", *facts, "effects are shares of the difference of both prompts"
        ),
        title=title,
        notes=(_prompts_text(result), *(f"{capital(fact.removesuffix('.'))}." for fact in facts if fact)),
        maps=(drawn,),
    )


PATCH = Drawing(_plan_effects, in_figures("head_map.head_map_figure"), in_figures("head_map.draw_head_map"))
