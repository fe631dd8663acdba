"""JSON, CSV and tables of patching, and sentences shared with its figure."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import RenderableType

from attnviz.commands.patch.measure import PatchEffect, Patching
from attnviz.commands.patch.pairs import DIFFERENCE, KL, LOSS
from attnviz.commands.patch.patched import HEAD as HEAD_PART
from attnviz.commands.patch.patched import KV_HEAD
from attnviz.commands.patch.repairs import SelfRepair
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.intervals import ERROR_RATE, LEAST_WITH_EFFECT, texts_needed
from attnviz.measures.paths import READS, RUN
from attnviz.models.head_ids import number_of
from attnviz.present.documents import model_entry, sample_entry
from attnviz.present.fields import HEAD, Field, NamedTable, pick
from attnviz.present.figure_context import capital
from attnviz.present.kv_heads import kv_groups
from attnviz.present.report import CommandSpec
from attnviz.present.tables import first_lines, first_rows, notes
from attnviz.present.view import ViewOptions
from attnviz.wording import about_needed, amount, bracketed, counted, quoted, rounded, visible

_LITTLE = 0.1  # effects that are smaller, of every head and of all together, say that the rest goes another way
_three = partial(rounded, digits=3)
_interval = partial(bracketed, write=_three)


def _repair_entry(head: PatchEffect) -> dict[str, Any] | None:
    repair = head.repair
    if repair is None:
        return None
    changed = [asdict(part) for part in repair.changed]
    return asdict(repair) | {"interval": repair.interval and list(repair.interval), "changed": changed}


_LAYER = Field[PatchEffect]("Layer", lambda effect: number_of(effect.layer), name="layer")
_POSITION: tuple[Field[PatchEffect], ...] = (
    Field("Position", name="position"),
    Field("Token", name="token", if_known=True, write=lambda token: "" if token is None else visible(token)),
)
_EFFECT: tuple[Field[PatchEffect], ...] = (
    Field("Rank", name="rank"),
    Field("Effect", name="effect", write=_three, meaning="share of the prompts' difference that it moves"),
    Field(
        "Interval",
        lambda head: head.interval and list(head.interval),
        name="interval",
        csv={"low": (0,), "high": (1,)},
        write=_interval,
        detail=True,
        meaning=f"its interval at {ERROR_RATE:g}, for all together",
    ),
    Field("Unrelated", name="unrelated", write=_three, meaning="the effect from the prompt of another pair"),
    Field(
        value=lambda head: head.above_unrelated and list(head.above_unrelated),
        name="above_unrelated",
        csv={"above_unrelated_low": (0,), "above_unrelated_high": (1,)},
        meaning="interval of effect less unrelated",
    ),
    Field(
        value=_repair_entry,
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
    Field("Direct", lambda head: _repair(head).direct_effect, "logits", write=_three),
    Field("Total", lambda head: _repair(head).total_effect, "logits", write=_three),
    Field("Repaired", lambda head: _repair(head).repaired, "logits", write=_three),
    Field("Interval", lambda head: _repair(head).interval, "logits", name="interval", write=_interval, detail=True),
    Field("Share", lambda head: _repair(head).share),
    Field("By norm", lambda head: _repair(head).norm, "logits", write=_three, detail=True),
    Field("Most changed", lambda head: _repair(head).most_changed, "logits"),
)


def _fields(result: Patching) -> list[Field[PatchEffect]]:
    """Which part an effect is of, and its numbers."""
    part: list[Field[PatchEffect]] = [_LAYER]
    if result.kind == HEAD_PART:
        part = [*HEAD]
    if result.kind == KV_HEAD:
        groups = {key: " ".join(map(str, heads)) for key, heads in kv_groups(result.checkpoint).items()}
        part.append(Field("KV head", name="kv_head", value=lambda effect: effect.head))
        part.append(Field("Heads", lambda effect: groups[effect.layer, effect.head or 0], name="heads"))
    return [*part, *(_POSITION if result.by_position else ()), *_EFFECT]


def _table(result: Patching) -> NamedTable[PatchEffect]:
    name = "positions" if result.by_position else result.kind.lower().replace(" ", "_") + "s"
    return NamedTable(name, _fields(result), result.effects)


def _repair(head: PatchEffect) -> SelfRepair:
    assert head.repair is not None
    return head.repair


def prompts_line(result: Patching) -> str:
    """Both prompts, or the table of pairs."""
    if result.file is not None:
        return f"{visible(result.file.path.name)} ({counted(len(result.pairs), 'pair')})"
    return f"{quoted(result.pairs[0].clean)} / {quoted(result.pairs[0].corrupt)}"


def end_text(result: Patching) -> str:
    """Where the path of each head ends, in words."""
    head, _, reads = (result.receiver or "").rpartition(".")
    return f"the {READS[reads]} of {head}" if head else f"the {reads}"


def direction_text(result: Patching) -> str:
    """Whose output goes where, and what an effect of 1 is."""
    tokens = ["the last token" if name == "last" else quoted(str(name)) for name in result.options["at"]]
    names = dict.fromkeys(span.partition("=")[0].strip() for span in result.options["spans"])
    tokens += [f"the span {visible(name)}" for name in names]
    at = f", at {' and '.join(tokens)} alone" if tokens else ""
    through = ", directly or through networks" if result.options["networks"] == RUN else " directly"
    path = f", as {end_text(result)} read it{through}," if result.receiver else ""
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


def rest_text(result: Patching) -> str:
    """Where the rest goes, where all heads together carry little; or ''."""
    total = sum(head.effect for head in result.heads)
    little = max((abs(head.effect) for head in result.heads), default=1.0) < _LITTLE and abs(total) < _LITTLE
    if result.site != "z" or result.receiver or result.options["select"] or not little:
        return ""
    return f"The effects of all heads sum to {_three(total)}: --site mlp_out, resid_post (site=...) show the rest."


def unrelated_text(result: Patching) -> str:
    """What the column of unrelated pairs is, or ''."""
    if not result.n_unrelated:
        return ""
    pairs = f"{result.n_unrelated} of {counted(len(result.pairs), 'pair')}"
    text = f"Unrelated: a control, from another prompt of as many tokens ({pairs})"
    if all(effect.above_unrelated is None for effect in result.effects):
        return f"{text}."
    beating = [effect for effect in result.effects if effect.beats_unrelated]
    return f"{text}; {counted(len(beating), _noun(result))} with more effect{_names(result, beating)}."


def _content(result: Patching, _: ViewOptions) -> dict[str, Any]:
    pair = result.pairs[0]
    file = result.file and {"path": str(result.file.path), "sha256": result.file.sha256}
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
        "worse": result.worse and list(result.worse),
        "effect": f"(metric - {base}) / ({other} - {base})",
        "verification": sample_entry(result.verified),
    }


def _tables(result: Patching, choices: ViewOptions) -> Iterator[RenderableType]:
    source, what = f"{result.checkpoint.short_name} on {prompts_line(result)}", f"{capital(metric_text(result))}."
    yield first_lines(source, what, result.verified, result.checkpoint, "prompt" if choices.verbose else None)
    of_file = () if result.file is None else result.file.notes
    if result.options["self_repair"]:
        yield from _repair_tables(result, choices)
        if not choices.verbose:
            yield notes(*of_file)
            return
    fields = _fields(result)
    shown = [
        field.name for field in fields if field.title and field.name not in ("rank", "effect", "interval", "unrelated")
    ]
    columns = pick(fields, "rank", *shown, "effect")
    if any(effect.interval for effect in result.effects):
        columns += pick(fields, "interval")
    if result.n_unrelated:
        columns += pick(fields, "unrelated")
    title = f"{capital(result.kind)}s patched {'at each position' if result.by_position else 'one at a time'}"
    if result.receiver:
        title = f"Paths from heads to {end_text(result)}"
    order = "the effect furthest from 0 first"
    yield first_rows(title, columns, result.effects, choices.rows(6), "patch.csv", _noun(result), order)
    told = f"{capital(direction_text(result))}.", interval_text(result), rest_text(result), unrelated_text(result)
    yield notes(*told, *of_file)


def _repair_tables(result: Patching, choices: ViewOptions) -> Iterator[RenderableType]:
    heads = sorted(result.heads, key=lambda head: -abs(_repair(head).direct_effect))
    order, title = "the largest direct effect first", "Self-repair of removed heads"
    left_out = {"By norm"} if not choices.verbose else set()
    if all(_repair(head).interval is None for head in heads):
        left_out.add("Interval")
    columns = [field for field in _REPAIR if field.title not in left_out]
    yield first_rows(title, columns, heads, choices.rows(6), "patch.csv", order=order)
    yield notes(
        "Direct: lost by its corrupt output alone; total: when all after it runs; repaired: direct − total, by later "
        "parts and the final norm."
    )


SPEC = CommandSpec[Patching](
    content=_content,
    table=lambda result, _: _table(result),
    tables=_tables,
    paper=(
        *("id", "layer", "kv_head", "position", "effect", "low", "high", "unrelated"),
        *("direct_effect", "total_effect", "repaired", "repaired_low", "repaired_high"),
    ),
)
