"""JSON, CSV and tables of patching, and sentences shared with its figure."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.patch.measure import PatchEffect, Patching
from attnviz.commands.patch.pairs import DIFFERENCE, KL, LOSS, UNITS
from attnviz.judge.roles import ERROR_RATE
from attnviz.measures.bootstrap import ENOUGH_TEXTS
from attnviz.models.wording import amount, counted, error, quoted, rounded, visible
from attnviz.present.documents import model_entry, verification_entry
from attnviz.present.fields import HEAD, Field, NamedTable, pick
from attnviz.present.figure_context import capital
from attnviz.present.report import CommandSpec
from attnviz.present.tables import first_rows, notes, verification_line
from attnviz.present.view import ViewOptions

_FIELDS: tuple[Field[PatchEffect], ...] = (
    *HEAD,
    Field("Rank", name="rank"),
    Field("Effect", name="effect", write=partial(rounded, digits=3)),
    Field(
        "Interval",
        lambda head: head.interval and list(head.interval),
        name="interval",
        csv={"low": (0,), "high": (1,)},
        write=lambda ends: "[" + ", ".join(rounded(end, 3) for end in ends) + "]",
        detail=True,
    ),
    Field("Unrelated", name="unrelated", write=partial(rounded, digits=3)),
)


def prompts_line(result: Patching) -> str:
    """Both prompts, or the table of pairs."""
    if result.file is not None:
        return f"{visible(result.file.path.name)} ({counted(len(result.pairs), 'pair')})"
    return f"{quoted(result.pairs[0].clean)} / {quoted(result.pairs[0].corrupt)}"


def direction_text(result: Patching) -> str:
    """Whose output goes where, and what an effect of 1 is."""
    tokens = ["the last token" if each == "last" else quoted(str(each)) for each in result.options["at"]]
    at = f", at {' and '.join(tokens)} alone" if tokens else ""
    if result.denoises:
        return f"a head’s output on the clean prompt goes into the corrupt run{at}; 1: all is restored"
    return f"a head’s output on the corrupt prompt goes into the clean run{at}; 1: as bad as the corrupt prompt"


def metric_text(result: Patching) -> str:
    """What is measured, and what it is on both prompts."""
    pair = result.pairs[0]
    answer, foil = (quoted(str(each)) for each in (pair.answer, pair.foil))
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
    n = len(result.pairs)
    if n < ENOUGH_TEXTS:
        return f"{counted(n, 'pair')}: too few for intervals (at least {ENOUGH_TEXTS}), so this is a first look."
    clear = [str(head.id) for head in result.heads if head.excludes_zero]
    which = f": {', '.join(clear)}" if 0 < len(clear) <= _NAMED else ""
    return (
        f"{counted(len(clear), 'head')} with an interval that excludes 0, at {ERROR_RATE} over all heads together "
        f"(Bonferroni){which}."
    )


_NAMED = 12
"""Heads that a sentence names."""


def unrelated_text(result: Patching) -> str:
    """What the column of unrelated pairs is, or ''."""
    if not result.n_unrelated:
        return ""
    return (
        f"Unrelated: a control, the output comes from another pair’s prompt of as many tokens, which "
        f"{result.n_unrelated} of {counted(len(result.pairs), 'pair')} have."
    )


def _content(result: Patching, _: ViewOptions) -> dict[str, Any]:
    checked, pair = result.verified, result.pairs[0]
    file = result.file and {"path": str(result.file.path), "sha256": result.file.sha256}
    return {
        "model": model_entry(result.checkpoint),
        "prompts": None if file else {"clean": pair.clean, "corrupt": pair.corrupt},
        "file": file,
        "options": result.options,
        "pairs": len(result.pairs),
        "pairs_with_unrelated": result.n_unrelated,
        "clean": result.clean,
        "corrupt": result.corrupt,
        "effect": "(metric - corrupt) / (clean - corrupt)"
        if result.denoises
        else "(metric - clean) / (corrupt - clean)",
        "verification": verification_entry(checked.attention)
        | {"rows_verified": checked.n_inputs}
        | {"values_error": checked.values_error, "resumed_error": checked.resumed_error},
    }


def _tables(result: Patching, choices: ViewOptions) -> Iterator[RenderableType]:
    checked = result.verified
    more = (
        f", replaced values by at most {error(checked.values_error)}, final states of resumed passes by at most "
        f"{error(checked.resumed_error)}, on {counted(checked.n_inputs, 'prompt')}"
    )
    yield Text.assemble(
        (f"{result.checkpoint.short_name} on {prompts_line(result)}", "bold"),
        f"\n{capital(metric_text(result))}.\n",
        verification_line(checked.attention, result.checkpoint, more if choices.verbose else ""),
    )
    columns = pick(_FIELDS, "rank", "id", "effect")
    if result.heads[0].interval is not None:
        columns += pick(_FIELDS, "interval")
    if result.n_unrelated:
        columns += pick(_FIELDS, "unrelated")
    order = "the effect furthest from 0 first"
    yield first_rows("Heads patched one at a time", columns, result.heads, choices.rows(8), "patch.csv", order=order)
    yield notes(f"{capital(direction_text(result))}.", interval_text(result), unrelated_text(result))


SPEC = CommandSpec[Patching](
    content=_content,
    table=lambda result, _: NamedTable("heads", _FIELDS, result.heads),
    tables=_tables,
)
