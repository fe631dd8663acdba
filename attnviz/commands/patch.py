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
from typing import Any, ClassVar, Literal, Unpack

import torch
from rich.console import RenderableType

from attnviz.errors import UsageError
from attnviz.inputs.refusals import TABLE_OF_PAIRS, refuse
from attnviz.inputs.tables import PromptPair
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.estimates import Interval
from attnviz.measures.intervals import LEAST_WITH_EFFECT
from attnviz.measures.patching import KV_HEAD, ONE_HEAD, Part, PatchedPasses, PatchEffect, parts_of
from attnviz.measures.paths import FROZEN, RUN, Receiver, receiver_named
from attnviz.measures.predictions import Scoring
from attnviz.measures.prompt_pairs import (
    DIFFERENCE,
    KL,
    LOSS,
    UNITS,
    PairFile,
    holds_ids,
    metric_named,
    paired_inputs,
    read_pairs,
    texts_of_ids,
)
from attnviz.measures.self_repair import MeanRepairs
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, head_named, number_of, selection_texts
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import ModelOptions, PatchDirection, PatchMetric, PatchSite, PathNetworks, checked
from attnviz.present.documents import model_entry, sample_entry
from attnviz.present.fields import HEAD, Field, Table, interval_field, values_of
from attnviz.present.figure_context import capital
from attnviz.present.kv_heads import kv_groups
from attnviz.present.report import CommandSpec
from attnviz.present.result import Result
from attnviz.present.self_repair import SELF_REPAIR, repair_tables
from attnviz.present.sentences import first_lines, first_look, resumed_line, too_few, without_zero
from attnviz.present.tables import notes
from attnviz.present.view import ViewOptions
from attnviz.progress import Progress, tell
from attnviz.run.passes import SampleVerification
from attnviz.wording import amount, bracketed, counted, quoted, rounded, visible

# arguments that stand in the document as they are given
_OPTIONS = "direction site by answer foil limit seed receiver networks self_repair".split()
_PATCHED = "spans at by receiver sender networks select self_repair".split()  # those that say what is patched
# Least difference of the metric of both prompts, in its unit and as a share of it: effects are shares of that.
_LEAST = 1e-3


@dataclass(frozen=True, repr=False, eq=False)
class Patching(Result):
    """Result of :func:`patch`: heads, or other parts of layers, ranked by the effect of patching them."""

    command: ClassVar[str] = "patch"

    checkpoint: Checkpoint
    pairs: tuple[PromptPair, ...]  # in the order of the file
    file: PairFile | None  # None for a single pair
    options: dict[str, Any]  # arguments of :func:`patch` by name; the metric is filled in
    path: Receiver | None  # where the path of each head ends; None where heads are patched for all that read them
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
        return self.effects[0].kind

    @property
    def by_position(self) -> bool:
        return self.options["by"] is not None

    @property
    def heads(self) -> tuple[PatchEffect, ...]:
        """The effects, where each is of a head at all that is patched; else empty."""
        return self.effects if self.kind == ONE_HEAD and not self.by_position else ()

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
    def denoises(self) -> bool:
        """Whether clean outputs go into the corrupt run; else corrupt ones into the clean run."""
        return bool(self.options["direction"] == "denoise")

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
            f"{counted(len(self.pairs), 'pair')}, {most.name} first ({most.effect:.3g})"
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
    direction: PatchDirection = "denoise",
    site: PatchSite = "z",
    by: Literal["position"] | None = None,
    at: str | int | Sequence[str | int] = (),
    spans: str | Sequence[str] = (),
    metric: PatchMetric | Scoring | None = None,
    select: str | HeadId | Sequence[str | HeadId] = (),
    receiver: str | None = None,
    sender: str | HeadId | Sequence[str | HeadId] = (),
    networks: PathNetworks | None = None,
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
    tokens = [at] if isinstance(at, str | int) else list(at)
    options: dict[str, Any] = {name: given[name] for name in _OPTIONS} | {
        "at": tokens,
        "spans": [spans] if isinstance(spans, str) else list(spans),
        "select": selection_texts(select),
        "sender": selection_texts(sender),
        "label": None if label is None else str(label),
    }
    checkpoint = None
    if holds_ids(clean):
        checkpoint, _ = open_checkpoint(model, **opening, encoder_decoders=False)
        clean, corrupt = texts_of_ids(checkpoint, clean, "clean"), texts_of_ids(checkpoint, corrupt, "corrupt")
    pairs, file = read_pairs(clean, corrupt, answer, foil, label if labels is None else labels, limit)
    used_metric = metric_named(metric, pairs[0])
    options["metric"] = used_metric.unit if callable(metric) else used_metric.name
    asked = {name: options[name] for name in _PATCHED} | {
        "site": None if site == "z" else site,
        "metric": None if used_metric.name == DIFFERENCE else metric,
        "foil": pairs[0].foil,
        "label": label,
        "labels": labels,
    }
    refuse(asked, None, "" if file is None else TABLE_OF_PAIRS)
    if checkpoint is None:
        checkpoint, _ = open_checkpoint(model, **opening, encoder_decoders=False)
    path = None if receiver is None else receiver_named(receiver, checkpoint, networks or FROZEN)
    if path is None:
        parts = parts_of(checkpoint, site, options["select"])
    else:
        parts = [Part(*head) for head in path.senders(checkpoint, options["sender"])]
        options |= {"receiver": str(path), "networks": path.networks}
    repairs = MeanRepairs(checkpoint, len(pairs)) if self_repair else None
    inputs = paired_inputs(checkpoint, pairs, used_metric.name, tokens, options["spans"], each=by is not None)
    if by is not None:
        parts = [part._replace(position=position) for part in parts for position in inputs.positions[0][0]]
    passes = PatchedPasses(
        checkpoint=checkpoint,
        inputs=inputs,
        metric=used_metric,
        denoises=direction == "denoise",
        path=path,
        site=site,
        repairs=repairs,
        seed=seed,
    )
    with torch.inference_mode(mode=False):
        passes.run(parts, batch_size, partial(tell, progress, "patching"))
    of_clean, of_corrupt = passes.metric_of_prompts()
    difference, least = abs(of_corrupt - of_clean), _LEAST * max(1.0, abs(of_clean), abs(of_corrupt))
    if difference < least:
        unit, name = UNITS.get(used_metric.name, ""), {KL: "KL divergence"}.get(used_metric.name, options["metric"])
        other = "; or another metric: --answer and --foil, or columns of these names, measure a difference of logits"
        raise UsageError(
            f"the {name.replace('_', ' ')} is {amount(of_clean)}{unit} on the clean and {amount(of_corrupt)} on the "
            f"corrupt prompt: it differs by {amount(difference)}{unit}, and effects, which are shares of that, need "
            f"{amount(least)}. Expected prompts after which the model predicts otherwise"
            f"{'' if used_metric.name == DIFFERENCE else other}."
        )
    return Patching(
        checkpoint=checkpoint,
        pairs=tuple(pairs),
        file=file,
        options=options,
        path=path,
        clean=of_clean,
        corrupt=of_corrupt,
        worse=passes.worse,
        n_unrelated=int(passes.has_partner.sum()),
        verified=passes.unchanged.verified,
        effects=passes.effects(parts),
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
    SELF_REPAIR,
)


def _part_fields(result: Patching) -> list[Field[Any]]:
    """Which part an effect is of."""
    position = _POSITION if result.by_position else ()
    if result.kind == ONE_HEAD:
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
    if result.path is not None:
        title = f"Paths from heads to {result.path.in_words}"
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
    source, what = f"{result.checkpoint.short_name} on {prompts_text(result)}", f"{capital(metric_text(result))}."
    noun = "prompt" if choices.verbose else None
    yield first_lines(source, [what], resumed_line(result.verified, result.checkpoint, noun))
    of_file = () if result.file is None else result.file.notes
    if result.options["self_repair"]:
        yield from repair_tables(result.heads, choices)
        if not choices.verbose:
            yield notes(*of_file)
            return
    part = [field.name for field in _part_fields(result) if field not in HEAD[1:]]  # the id says layer and head
    shown = ["rank", *part, "effect"]
    if any(effect.interval for effect in result.effects):
        shown.append("interval")
    if result.n_unrelated:
        shown.append("unrelated")
    table, order = _table(result, choices).pick(*shown), "the effect furthest from 0 first"
    yield table.first(choices.rows(6), "patch.csv", _noun(result), order)
    told = f"{capital(direction_text(result))}.", interval_text(result), rest_text(result), _unrelated_text(result)
    yield notes(*told, *of_file)


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


def prompts_text(result: Patching) -> str:
    """Both prompts, or the table of pairs."""
    if result.file is not None:
        return f"{visible(result.file.path.name)} ({counted(len(result.pairs), 'pair')})"
    return f"{quoted(result.pairs[0].clean)} / {quoted(result.pairs[0].corrupt)}"


def direction_text(result: Patching) -> str:
    """Whose output goes where, and what an effect of 1 is."""
    tokens = ["the last token" if name == "last" else quoted(str(name)) for name in result.options["at"]]
    names = dict.fromkeys(span.partition("=")[0].strip() for span in result.options["spans"])
    tokens += [f"the span {visible(name)}" for name in names]
    at = f", at {' and '.join(tokens)} alone" if tokens else ""
    path = ""
    if result.path is not None:
        through = ", directly or through networks" if result.path.networks == RUN else " directly"
        path = f", as {result.path.in_words} read it{through},"
    what = "a head’s {} output" if result.site == "z" else f"{{}} {result.site} of a {result.kind}"
    alone = " one position at a time" if result.by_position else ""
    if result.denoises:
        return f"{what.format('clean')}{path} goes into the corrupt run{at}{alone}; 1: all is restored"
    return f"{what.format('corrupt')}{path} goes into the clean run{at}{alone}; 1: as bad as the corrupt prompt"


def metric_text(result: Patching) -> str:
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


def interval_text(result: Patching) -> str:
    """Which heads have intervals without 0, or why there are none."""
    if result.worse is None:
        if result.n_different >= ENOUGH_TEXTS:
            return f"No intervals: the prompts of fewer than {LEAST_WITH_EFFECT} pairs differ in what is predicted."
        return first_look(result.n_different, "pair")
    if result.worse[0] <= 0:
        return (
            f"No intervals: over these pairs the prediction is not worse after the corrupt prompts (by "
            f"{_interval(result.worse)}{result.unit}), so nothing restores it."
        )
    kind = result.kind
    if all(effect.interval is None and _three(effect.effect) == _three(0.0) for effect in result.effects):
        return f"No {kind} has an effect here: nothing that is patched changes the prediction."
    clear = [effect for effect in result.effects if effect.excludes_zero]
    if not clear:
        return too_few(
            [(effect.effect, effect.interval) for effect in result.effects], kind, "pair", result.n_different
        )
    return f"{counted(len(clear), _noun(result))} {without_zero(kind)}{_names(clear)}."


def _noun(result: Patching) -> str:
    return "effect" if result.by_position else result.kind


def _names(effects: Sequence[PatchEffect]) -> str:
    """What was patched, after a colon; '' where there is nothing or much."""
    return f": {', '.join(effect.name for effect in effects)}" if 0 < len(effects) <= 6 else ""


def rest_text(result: Patching) -> str:
    """Where the rest goes, where all heads together carry little; or ''."""
    total = sum(head.effect for head in result.heads)
    little = max((abs(head.effect) for head in result.heads), default=1.0) < _LITTLE and abs(total) < _LITTLE
    if result.site != "z" or result.path or result.options["select"] or not little:
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
    return f"{text}; {counted(len(beating), _noun(result))} with more effect{_names(beating)}."
