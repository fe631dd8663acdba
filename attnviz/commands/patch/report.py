"""JSON, CSV and tables of patching, and sentences shared with its figure."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import RenderableType

from attnviz.commands.patch.measure import PatchEffect, Patching
from attnviz.commands.patch.pairs import DIFFERENCE, KL, LOSS, UNITS
from attnviz.commands.patch.repairs import SelfRepair
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.measures.intervals import ERROR_RATE, LEAST_WITH_EFFECT, texts_needed
from attnviz.measures.paths import READS, RUN
from attnviz.present.documents import model_entry
from attnviz.present.fields import HEAD, Field, NamedTable, pick
from attnviz.present.figure_context import capital
from attnviz.present.report import CommandSpec
from attnviz.present.samples import first_lines, sample_entry
from attnviz.present.tables import first_rows, notes
from attnviz.present.view import ViewOptions
from attnviz.wording import about_needed, amount, bracketed, counted, quoted, rounded, visible

_three = partial(rounded, digits=3)
_interval = partial(bracketed, write=_three)


def _repair_entry(head: PatchEffect) -> dict[str, Any] | None:
    repair = head.repair
    if repair is None:
        return None
    changed = [asdict(part) for part in repair.changed]
    return asdict(repair) | {"interval": repair.interval and list(repair.interval), "changed": changed}


_FIELDS: tuple[Field[PatchEffect], ...] = (
    *HEAD,
    Field("Rank", name="rank"),
    Field("Effect", name="effect", write=_three, meaning="share of the prompts' difference that the head moves"),
    Field(
        "Interval",
        lambda head: head.interval and list(head.interval),
        name="interval",
        csv={"low": (0,), "high": (1,)},
        write=_interval,
        detail=True,
        meaning=f"its interval at {ERROR_RATE:g}, for all heads together",
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
    *pick(_FIELDS, "id"),
    Field("Direct", lambda head: _repair(head).direct_effect, "logits", write=_three),
    Field("Total", lambda head: _repair(head).total_effect, "logits", write=_three),
    Field("Repaired", lambda head: _repair(head).repaired, "logits", write=_three),
    Field("Interval", lambda head: _repair(head).interval, "logits", name="interval", write=_interval, detail=True),
    Field("Share", lambda head: _repair(head).share),
    Field("By norm", lambda head: _repair(head).norm, "logits", write=_three, detail=True),
    Field("Most changed", lambda head: _repair(head).most_changed, "logits"),
)


def _repair(head: PatchEffect) -> SelfRepair:
    assert head.repair is not None
    return head.repair


def prompts_line(result: Patching) -> str:
    """Both prompts, or the table of pairs."""
    if result.file is not None:
        return f"{visible(result.file.path.name)} ({counted(len(result.pairs), 'pair')})"
    return f"{quoted(result.pairs[0].clean)} / {quoted(result.pairs[0].corrupt)}"


def end_text(result: Patching) -> str:
    """Where the path of each head ends, in words; '' where heads are patched for all that read them."""
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
    if result.denoises:
        return f"a head’s clean output{path} goes into the corrupt run{at}; 1: all is restored"
    return f"a head’s corrupt output{path} goes into the clean run{at}; 1: as bad as the corrupt prompt"


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
    }[result.metric]
    unit = UNITS[result.metric]
    return f"{what}: {amount(result.clean)} {unit} after the clean, {amount(result.corrupt)} after the corrupt prompt"


def interval_text(result: Patching) -> str:
    """Which heads have intervals without 0, or why there are none."""
    if result.worse is None:
        if result.n_different >= ENOUGH_TEXTS:
            return f"No intervals: the prompts of fewer than {LEAST_WITH_EFFECT} pairs differ in what is predicted."
        return f"{counted(result.n_different, 'pair')}: a first look, without intervals (from {ENOUGH_TEXTS} on)."
    if result.worse[0] <= 0:
        return (
            f"No intervals: over these pairs the prediction is not worse after the corrupt prompts (by "
            f"{_interval(result.worse)} {UNITS[result.metric]}), so no head restores it."
        )
    if all(head.interval is None and _three(head.effect) == _three(0.0) for head in result.heads):
        return "No head has an effect here: no output that is patched changes the prediction."
    clear = [head for head in result.heads if head.excludes_zero]
    together = f"with an interval without 0, at {ERROR_RATE} over all heads together"
    if not clear:
        needed = texts_needed([(head.effect, head.interval) for head in result.heads], result.n_different)
        return f"Too few pairs to name a head: none {together}{about_needed(needed, 'pair')}."
    return f"{counted(len(clear), 'head')} {together}{_names(clear)}."


def _names(heads: Sequence[PatchEffect]) -> str:
    """Heads after a colon; '' where these are none or many."""
    return f": {', '.join(str(head.id) for head in heads)}" if 0 < len(heads) <= 6 else ""


def unrelated_text(result: Patching) -> str:
    """What the column of unrelated pairs is, or ''."""
    if not result.n_unrelated:
        return ""
    pairs = f"{result.n_unrelated} of {counted(len(result.pairs), 'pair')}"
    text = f"Unrelated: a control, from another prompt of as many tokens ({pairs})"
    if all(head.above_unrelated is None for head in result.heads):
        return f"{text}."
    beating = [head for head in result.heads if head.beats_unrelated]
    return f"{text}; {counted(len(beating), 'head')} with more effect{_names(beating)}."


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
    columns = pick(_FIELDS, "rank", "id", "effect")
    if any(head.interval for head in result.heads):
        columns += pick(_FIELDS, "interval")
    if result.n_unrelated:
        columns += pick(_FIELDS, "unrelated")
    title = f"Paths from heads to {end_text(result)}" if result.receiver else "Heads patched one at a time"
    order = "the effect furthest from 0 first"
    yield first_rows(title, columns, result.heads, choices.rows(6), "patch.csv", order=order)
    yield notes(f"{capital(direction_text(result))}.", interval_text(result), unrelated_text(result), *of_file)


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
    table=lambda result, _: NamedTable("heads", _FIELDS, result.heads),
    tables=_tables,
    paper=tuple("id effect low high unrelated direct_effect total_effect repaired repaired_low repaired_high".split()),
)
