"""The summary of ``attnviz heads``: counts of kinds, by layer, and the best head of each kind."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings
from attnviz.figures.families import FAMILIES, family_of_label
from attnviz.judge.verdicts import ENOUGH, LEAST_N
from attnviz.models.wording import counted, visible
from attnviz.present.documents import stack_entry
from attnviz.present.fields import Field, entry, named
from attnviz.present.published import role_name, role_numbers
from attnviz.present.tables import column_table
from attnviz.profiles.parts import SYNTACTIC

KINDS = {
    "sink": "s", "local": "l", "repeats": "r", "syntactic": "y", "long-range": "g", "broad": "b", "other": "o",
    "none": "·",
}  # fmt: skip
"""Kinds of heads, in the order of the summary, and their letters in the bars of layers."""

_FAMILIES = {"positional": "local", "no role": "none"}
_COLOURS = {_FAMILIES.get(family.name, family.name): family.colour for family in FAMILIES}

_OfLayer = tuple[int, list[str]]


def kind_of(head: HeadFindings) -> str:
    """Kind of a head's label on the text: positional ones count as local, unlisted families as "other"."""
    family = family_of_label(head.label).name
    kind = _FAMILIES.get(family, family)
    return kind if kind in KINDS else "other"


def role_text(analysis: Analysis, head: HeadFindings, room: int = 999) -> str:
    """``det dep→head``; ``obj dep→head (corpus)`` if the text has no obj, or cannot tell; a dash for none.

    Without direction if there is less room.
    """
    if head.role is None:
        return "–"
    name, where = head.role.role, "" if analysis.has_role(head) else " (corpus)"
    forms = (f"{role_name(name, head.role.direction)}{where}", f"{role_name(name, None)}{where}")
    return next((form for form in forms if len(form) <= room), forms[-1])


def over_corpus(analysis: Analysis, head: HeadFindings) -> str:
    """The role over the corpus with its numbers, or ''."""
    return "" if head.role is None else f"over the corpus {role_text(analysis, head)}, {role_numbers(head.role)}"


def label_and_role(analysis: Analysis, head: HeadFindings) -> str:
    """The label, and the role over the corpus if there is one, for captions."""
    return "; ".join(filter(None, (head.shown, over_corpus(analysis, head))))


def summary_entry(analysis: Analysis, heads: Sequence[HeadFindings]) -> dict[str, Any]:
    """``summary`` of heads.json: heads, labels and the best head by kind, and kinds by layer."""
    return {
        "heads": len(heads),
        "n": analysis.context.n_non_sink,
        "kinds": {kind: _kind_entry([head for head in heads if kind_of(head) == kind]) for kind in KINDS},
        "layers": [
            {"layer": layer, **stack_entry(layer), **{kind: kinds.count(kind) for kind in KINDS}}
            for layer, kinds in _layers(heads)
        ],
    }


def _kind_entry(heads: Sequence[HeadFindings]) -> dict[str, Any]:
    best = _best(heads)
    return {
        "heads": len(heads),
        "labels": dict(Counter(head.label for head in heads).most_common()),
        "best": best and {"id": str(best.id), "see": f"--select {best.id}", **entry(LABEL, best)},
    }


def summary_tables(analysis: Analysis, heads: Sequence[HeadFindings], width: int) -> Iterator[RenderableType]:
    """Counts of kinds in a sentence, by layer with bars, and the best head of each kind."""
    n = analysis.context.n_non_sink
    if n < LEAST_N:
        unit = counted(n, f"content {analysis.units.name}")
        yield Text(f"{counted(len(heads), 'head')}, none with a label: the text has {unit}, and labels need {LEAST_N}.")
        return
    few = f"\nThe text has {counted(n, f'content {analysis.units.name}')}; below {ENOUGH} labels are indications (?)."
    yield Text(_sentence(heads) + few * (n < ENOUGH))
    present = [kind for kind in KINDS if any(kind_of(head) == kind for head in heads)]
    columns: list[Field[_OfLayer]] = [Field("Layer", lambda row: row[0])]
    columns += [Field("Its heads", lambda row: _bar(row[1]), left=True, optional=1)]
    columns += [Field(kind, partial(_count, kind=kind), unit=KINDS[kind]) for kind in present]
    yield column_table("Labels by layer (one letter per head)", columns, _layers(heads), width=width)
    best = [each for kind in present if (each := _best([head for head in heads if kind_of(head) == kind]))]
    if best:
        yield column_table("The best head of each kind", _BEST, best, width=width)


def _sentence(heads: Sequence[HeadFindings]) -> str:
    """``72 heads: 36 sink, 9 local (5 previous-token, 4 next-token), 27 none``."""
    parts = []
    for kind in KINDS:
        labels = Counter(visible(head.label.removeprefix(SYNTACTIC)) for head in heads if kind_of(head) == kind)
        detailed = kind != "none" and set(labels) - {kind}
        detail = ", ".join(f"{count} {label.removesuffix('-token')}" for label, count in labels.most_common())
        parts += [f"{labels.total()} {kind}{f' ({detail})' if detailed else ''}"] * bool(labels)
    return f"{counted(len(heads), 'head')}: {', '.join(parts)}."


def _layers(heads: Sequence[HeadFindings]) -> list[_OfLayer]:
    """Table of the kinds of heads in each layer."""
    order = list(KINDS)
    by_layer = groupby(sorted(heads, key=lambda head: head.id), key=lambda head: head.id.layer)
    return [(layer, sorted(map(kind_of, of_layer), key=order.index)) for layer, of_layer in by_layer]


def _count(row: _OfLayer, kind: str) -> object:
    return row[1].count(kind) or ""


def _bar(kinds: Sequence[str]) -> Text:
    """A letter per head, on its kind's colour in figures."""
    return Text.assemble(*((KINDS[kind], "" if kind == "none" else f"black on {_COLOURS[kind]}") for kind in kinds))


def _best(heads: Sequence[HeadFindings]) -> HeadFindings | None:
    """The head of the largest error reduction, for broad ones of the largest score; None without verdicts."""
    judged = [(head, head.labelled.verdict) for head in heads if head.labelled.verdict is not None]
    ranked = sorted(judged, key=lambda each: (-(each[1].error_reduction or 0.0), -(each[1].score or 0.0), each[0].id))
    return ranked[0][0] if ranked else None


def _judged(head: HeadFindings) -> tuple[float | None, float | None]:
    """Score and baseline of the verdict behind the label."""
    verdict = head.labelled.verdict
    return (None, None) if verdict is None else verdict.judged


LABEL: tuple[Field[HeadFindings], ...] = (
    Field(name="label"),
    Field("Score", lambda head: _judged(head)[0], name="label_score"),
    Field("Baseline", lambda head: _judged(head)[1], name="label_baseline"),
    Field(value=lambda head: head.labelled.error_reduction, name="label_error_reduction"),
    Field("n", lambda head: head.labelled.n, name="label_n"),
    Field(value=lambda head: head.labelled.certain, name="label_certain"),
)
"""The label of a head and the verdict behind it; None for what is unknown."""

LABEL_NUMBERS = named(LABEL, "label_score", "label_baseline", "label_n")

_BEST: list[Field[HeadFindings]] = [
    Field("Kind", kind_of, left=True),
    Field("Head", lambda head: head.id, left=True),
    Field("Label", lambda head: head.shown, left=True, least=8),
    *LABEL_NUMBERS,
    Field("To see it, add", lambda head: f"--select {head.id}", left=True),
]
