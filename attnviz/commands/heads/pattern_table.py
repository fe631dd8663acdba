"""The table of patterns: each with its strongest heads, score beside baseline, and how many heads pass."""

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table

from attnviz.commands.heads.measure import HeadFindings
from attnviz.model.wording import counted
from attnviz.patterns.verdicts import LEAST_N, Verdict
from attnviz.results.published import ARROWS
from attnviz.results.tables import Column, column_table, number

__all__ = ["pattern_table"]

_STRONGEST, _RELATIONS = 5, 8

_Entry = tuple[HeadFindings, Verdict]
_Pattern = tuple[Verdict, list[_Entry]]


def pattern_table(heads: Sequence[HeadFindings], width: int) -> Table:
    """Each pattern with its strongest heads, score beside baseline, and how many heads pass; relations apart."""
    by_name: dict[tuple[bool, str], list[_Entry]] = {}
    for head in heads:
        for verdict in head.patterns:
            by_name.setdefault((verdict.kind == "syntactic", verdict.name), []).append((head, verdict))
    relations = _relations_apart({name: entries for (syntactic, name), entries in by_name.items() if syntactic})
    others = [entries for (syntactic, _), entries in by_name.items() if not syntactic]
    frequent = [entries for entries in relations if entries[0][1].n >= LEAST_N]
    rare, more = len(relations) - len(frequent), len(frequent[_RELATIONS:])
    hidden = [f"{counted(more, 'rarer relation')} left out"] * bool(more)
    hidden += [f"{counted(rare, 'relation')} with n below {LEAST_N} hidden"] * bool(rare)
    return column_table(
        "Patterns (the strongest heads of each, with their scores)",
        _PATTERN_COLUMNS,
        [_ranked(entries) for entries in (*others, *frequent[:_RELATIONS])],
        width=width,
        sections=lambda row: row[0].kind == "syntactic",
        caption=f"{', '.join(hidden)}; heads.json has them." if hidden else "",
    )


def _relations_apart(by_name: dict[str, list[_Entry]]) -> list[list[_Entry]]:
    """All relations but the subtypes that are all that the text has of their base relation."""

    def instances(name: str) -> int:
        return by_name[name][0][1].n

    return [
        entries
        for name, entries in by_name.items()
        if ":" not in name or instances(name) < instances(name.partition(":")[0])
    ]


def _ranked(entries: list[_Entry]) -> _Pattern:
    """The verdict of the strongest head, or of any where none can be measured, and the entries, the strongest first."""
    measured = [entry for entry in entries if entry[1].score is not None] or entries
    ranked = sorted(measured, key=lambda entry: (-(entry[1].score or 0.0), entry[1].direction or ""))
    return ranked[0][1], entries


def _pattern(row: _Pattern) -> str:
    best = row[0]
    return best.name if best.direction is None else f"{best.name} {ARROWS[best.direction]}"


def _strongest(row: _Pattern, room: int = 999) -> str:
    """As many of the strongest heads as there is room for; those that others equal are counted, and not told apart."""
    best, entries = row
    if best.score is None:
        why = "no token repeats" if best.kind == "repeats" and not best.n else "not measurable on this text"
        return why if len(why) <= room else "not measurable"
    alike = [each for each in entries if each[1].direction == best.direction and each[1].score is not None]
    ranked = sorted(alike, key=lambda entry: (-(entry[1].score or 0.0), entry[0].id))
    groups = [list(group) for _, group in groupby(ranked, key=lambda entry: _scores(entry[1]))]
    line, told = "", 0
    for group in groups:
        named = "  ".join(f"{head.id} {_scores(verdict)}" for head, verdict in group)
        for text in (named, f"{len(group)} heads {_scores(group[0][1])}"):
            longer = f"{line}  {text}" if line else text
            if (len(longer) <= room and told + len(group) <= _STRONGEST) or (not line and text != named):
                break
        else:
            return line
        line, told = longer, told + len(group)
    return line


def _passing(row: _Pattern) -> str:
    """How many heads pass; a dash where there are too few instances for any."""
    entries = row[1]
    return f"{sum(verdict.passed for _, verdict in entries)}/{len(entries)}" if row[0].n >= LEAST_N else "–"


_PATTERN_COLUMNS: list[Column[_Pattern]] = [
    Column("Pattern", _pattern, left=True, least=12),
    Column("Strongest heads", _strongest, left=True, least=16, fit=_strongest),
    Column("Baseline", lambda row: row[0].baseline),
    Column(
        "which", lambda row: row[0].largest_baseline or "uniform" * (row[0].baseline is not None), left=True, optional=1
    ),
    Column("n", lambda row: row[0].n),
    Column("Pass", _passing),
]


def _scores(verdict: Verdict) -> str:
    """The score, and for induction and duplicate-token the attention of those tokens that repeat."""
    return number(verdict.score) + (f" ({number(verdict.on_repeats)})" if verdict.kind == "repeats" else "")
