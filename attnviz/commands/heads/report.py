"""How ``attnviz heads`` tells what it measured: JSON, CSV, attention weights, tables."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from operator import itemgetter
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from safetensors.torch import save

from attnviz.commands.heads.lines_view import lines_left_out
from attnviz.commands.heads.measure import Analysis, HeadFindings
from attnviz.model.head_ids import HeadId
from attnviz.model.tokens import visible
from attnviz.model.wording import counted
from attnviz.patterns.profile_store import HeadProfile, StoredRole
from attnviz.patterns.published import published_entries
from attnviz.patterns.registry import PATTERNS, REPEATS, SHARES
from attnviz.patterns.syntax import Parse
from attnviz.patterns.verdicts import ENOUGH, Verdict
from attnviz.results.documents import model_entry, tokens_entry, verification_entry
from attnviz.results.published import ARROWS, published_table, role_name
from attnviz.results.report import Report
from attnviz.results.tables import Column, column_table, left_out, notes, number, titled, verification_line
from attnviz.results.view import Choices

__all__ = ["REPORT"]

_SCALARS = (
    "id", "layer", "head", "entropy", "entropy_uniform", "distance", "confidence", "sink", *SHARES, "label",
)  # fmt: skip

_WIDE, _WIDEST = 110, 160
"""Columns of a terminal from which on heads have their evidence beside them, and the roles of a stored profile."""

_BESIDE = 114
"""What the other columns of that table take at most."""

_STRONGEST, _RELATIONS = 3, 8
_COLUMNS = {"Conf": "confidence", "Sink": "sink", **{spec.column: spec.statistic for spec in PATTERNS if spec.column}}

_Entry = tuple[HeadFindings, Verdict]


def _content(analysis: Analysis, choices: Choices) -> dict[str, Any]:
    """The document of heads.json; what cannot be measured is None."""
    heads = analysis.select(choices.select)
    listed = {head.id for head in heads}
    return {
        "model": model_entry(analysis.checkpoint),
        "text": analysis.text,
        "pair": analysis.pair,
        "options": {
            **asdict(analysis.options),
            "tokens_cut_off": analysis.tokens.truncated,
            "parser": analysis.parse.parser if analysis.parse else None,
        },
        "tokens": tokens_entry(analysis.tokens),
        "verification": verification_entry(analysis.verification),
        "heads": [_head(head, analysis) for head in heads],
        "words": list(analysis.units.labels) if analysis.options.words else None,
        "parse": None if analysis.parse is None else _parse(analysis.parse),
        "syntax_note": analysis.syntax_note or None,
        "profile": None if analysis.profile is None else analysis.profile.origin,
        "published": published_entries(head for head in analysis.published if head.id in listed),
    }


def _head(head: HeadFindings, analysis: Analysis) -> dict[str, Any]:
    return {
        "id": str(head.id),
        "layer": head.id.layer,
        "head": head.id.head,
        "entropy": head.statistics["entropy"],
        "entropy_uniform": analysis.context.entropy_uniform,
        **{name: head.statistics[name] for name in ("distance", "confidence", "sink", *SHARES)},
        "baseline": {name: analysis.context.baselines[name] for name in SHARES},
        "patterns": [_verdict(verdict) for verdict in head.patterns],
        "label": head.label,
        "profile": None if head.profile is None else [asdict(role) for role in head.profile.roles],
    }


def _parse(parse: Parse) -> dict[str, Any]:
    """Words by their tokens and arcs between words, by places; the parser's own arcs where they were mapped."""
    return {
        "parser": parse.parser,
        "vocabulary": parse.vocabulary.name,
        "mapped_from": parse.vocabulary.mapped_from,
        "words": [{"text": word.text, "tokens": list(word.positions)} for word in parse.words],
        "arcs": [asdict(arc) for arc in parse.arcs],
        "own_arcs": None if parse.vocabulary.mapped_from is None else [asdict(arc) for arc in parse.own_arcs],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    more = {"syntactic": ["direction", "offset", "baselines"], "repeats": ["on_repeats", "baseline_on_repeats"]}
    names = ["name", "score", "baseline", "n", "passed", "kind", "enough", "threshold", *more.get(verdict.kind, [])]
    return {name: getattr(verdict, name) for name in names}


def _attention_bytes(analysis: Analysis, _: Choices) -> bytes:
    """All patterns in safetensors: one tensor [n_heads, n, n] a layer, named ``layer.0`` and so on."""
    tensors = {
        f"layer.{layer}": analysis.layer_patterns(layer).contiguous() for layer in range(analysis.checkpoint.n_layers)
    }
    labels = json.dumps(list(analysis.units.labels))
    content: bytes = save(tensors, {"unit": analysis.units.name, "labels": labels, "model": analysis.checkpoint.name})
    return content


def _tables(analysis: Analysis, choices: Choices, width: int) -> Iterator[RenderableType]:
    """What was verified, the heads, what the profile says of them, the patterns, published heads, small print."""
    heads = analysis.select(choices.select)
    listed = sorted(heads, key=_clearest)[: choices.top or None]
    yield verification_line(analysis.verification, analysis.checkpoint)
    yield _head_table(analysis, listed, len(heads), width)
    if analysis.profile is not None and width < _WIDEST:
        yield _profile_table(listed, width)
    yield _pattern_table(heads, width >= _WIDE)
    ids = {head.id for head in heads}
    if published := [head for head in analysis.published if head.id in ids]:
        yield published_table(published)
    yield _notes(analysis)


def _head_table(analysis: Analysis, listed: Sequence[HeadFindings], total: int, width: int) -> Table:
    """Statistics of the heads, the clearest patterns first, and below them those of uniform attention."""
    context, wide = analysis.context, width >= _WIDE
    evidence = [_of_deciding("Score", "score"), _of_deciding("Baseline", "baseline"), _of_deciding("n", "n")]
    columns: list[Column[HeadFindings]] = [
        Column("Head", lambda head: head.id, left=True),
        Column("Label", lambda head: visible(head.label), left=True),
        *(evidence if wide else ()),
        _statistic("Entropy", "entropy", "nats"),
        _statistic("Distance", "distance", f"{analysis.units.name}s"),
        *(_statistic(title, name) for title, name in _COLUMNS.items()),
    ]
    if analysis.profile is not None and width >= _WIDEST:
        columns.append(Column("Profile", lambda head: _roles(head.profile, width - _BESIDE), left=True))
    baselines = {**context.baselines, "sink": context.sink_baseline}
    uniform = [baselines.get(name) if name != "confidence" else "" for name in _COLUMNS.values()]
    last = ["uniform", "", *([""] * 3 if wide else []), context.entropy_uniform, "", *uniform]
    count = f"{len(listed)} of {total}" if len(listed) < total else str(total)
    caption = left_out(len(listed), total, "head", "heads.csv")
    title = f"Heads ({count}, clearest pattern first)"
    return column_table(title, columns, listed, last=last, caption=caption, wide=wide)


def _statistic(title: str, name: str, unit: str = "") -> Column[HeadFindings]:
    return Column(title, lambda head: head.statistics[name], unit)


def _of_deciding(title: str, name: str) -> Column[HeadFindings]:
    return Column(title, lambda head: head.deciding and getattr(head.deciding, name))


def _clearest(head: HeadFindings) -> tuple[bool, float, HeadId]:
    return head.deciding is None, -(head.strongest.margin if head.strongest else float("-inf")), head.id


def _pattern_table(heads: Sequence[HeadFindings], wide: bool) -> Table:
    """Each pattern with its strongest heads, score beside baseline, and how many heads pass; relations apart."""
    strongest = _STRONGEST + 2 * wide
    by_name: dict[tuple[bool, str], list[_Entry]] = {}
    for head in heads:
        for verdict in head.patterns:
            by_name.setdefault((verdict.kind == "syntactic", verdict.name), []).append((head, verdict))
    relations = _relations_apart({name: entries for (syntactic, name), entries in by_name.items() if syntactic})
    others = [entries for (syntactic, _), entries in by_name.items() if not syntactic]
    columns: list[Column[list[str]]] = [
        Column(title, itemgetter(place), left=place < 2)
        for place, title in enumerate(("Pattern", "Strongest heads", "Baseline", "n", "Pass"))
    ]
    rows = [_pattern_row(entries, strongest) for entries in (*others, *relations[:_RELATIONS])]
    more = len(relations) - _RELATIONS
    table = column_table(
        f"Patterns (the {strongest} strongest heads of each, with their scores)",
        columns,
        rows,
        caption=f"{counted(more, 'rarer relation')} left out; heads.json has them." if more > 0 else "",
    )
    if relations and others:
        table.rows[len(others) - 1].end_section = True
    return table


def _relations_apart(by_name: dict[str, list[_Entry]]) -> list[list[_Entry]]:
    """All relations but the subtypes that are all that the text has of their base relation."""

    def instances(name: str) -> int:
        return by_name[name][0][1].n

    return [
        entries
        for name, entries in by_name.items()
        if ":" not in name or instances(name) < instances(name.partition(":")[0])
    ]


def _pattern_row(entries: list[_Entry], strongest: int) -> list[str]:
    first = entries[0][1]
    measured = sorted(
        (entry for entry in entries if entry[1].score is not None),
        key=lambda entry: (-(entry[1].score or 0.0), entry[1].direction or ""),
    )
    if not measured:
        why = "no token repeats" if first.kind == "repeats" and not first.n else "not measurable on this text"
        return [first.name, why, "–", str(first.n), "–"]
    best = measured[0][1]
    name, baseline = first.name, number(best.baseline)
    if first.kind == "syntactic":
        name = f"{first.name} {ARROWS[best.direction or '']}"
        baseline = f"{best.largest_baseline}: {baseline}"
        measured = [entry for entry in measured if entry[1].direction == best.direction]
    if first.kind == "repeats":
        strongest -= 1  # a second number stands beside each
    scores = "  ".join(f"{head.id} {_scores(verdict)}" for head, verdict in measured[:strongest])
    passing = sum(verdict.passed for _, verdict in entries)
    return [name, scores, baseline, str(first.n), f"{passing}/{len(entries)}"]


def _scores(verdict: Verdict) -> str:
    """The score, and for induction and duplicate-token the attention of those tokens that repeat."""
    return number(verdict.score) + (f" ({number(verdict.on_repeats)})" if verdict.kind == "repeats" else "")


def _profile_table(heads: Sequence[HeadFindings], width: int) -> Group:
    """What a stored profile says of each head: the roles that pass, score beside baseline."""
    room = width - len(" L00H00 ")
    columns: list[Column[HeadFindings]] = [
        Column("Head", lambda head: head.id, left=True),
        Column("Roles", lambda head: _roles(head.profile, room), left=True),
    ]
    return titled("Profile (roles over a corpus)", column_table("", columns, heads))


def _roles(profile: HeadProfile | None, room: int) -> str:
    """As many roles as the room has place for, at least one, and how many more there are."""
    if profile is None or not profile.roles:
        return "none"
    names = [_role(role) for role in profile.roles]
    lines = ["  ".join(names)]
    lines += ["  ".join([*names[:count], f"+{len(names) - count}"]) for count in range(len(names) - 1, 0, -1)]
    return next((line for line in lines if len(line) <= room), lines[-1])


def _role(role: StoredRole) -> str:
    return f"{role_name(role.role, role.direction)} {number(role.score)} ({number(role.baseline)})"


def _notes(analysis: Analysis) -> Text:
    unit, profile, parse = analysis.units.name, analysis.profile, analysis.parse
    cut = analysis.tokens.truncated
    repeats = profiled = ""
    syntax = f"not measured: {analysis.syntax_note}"
    if any(analysis.context.counts[name] for name in REPEATS):
        repeats = f"In brackets: mean attention of the n {unit}s with an earlier copy, which a label rests on."
    if parse is not None:
        guesses = "baseline = the best of six guesses (+1: the head is the next word)"
        syntax = f"parse by {parse.parser}{_relations(parse)}; {guesses}."
    if profile is not None:
        whose = "shipped with attnviz" if profile.shipped else "your own"
        profiled = (
            f"Profile: {whose}, measured on {visible(profile.measured_on)}; in brackets the baseline. Labels of "
            "relations rest on it (--no-profile: on this text)."
        )
    return notes(
        f"Conf to Long are shares from 0 to 1. n: {unit}s (or instances of a relation) behind a score; below {ENOUGH} "
        "it is an indication only. One text shows what heads did here, not what they do.",
        repeats,
        f"Syntax: {syntax}",
        profiled,
        f"The text was cut: its last {counted(cut, 'token')} were left out (--truncate)." if cut else "",
    )


def _relations(parse: Parse) -> str:
    """Whose relations they are, where the parser's own were mapped."""
    mapped = parse.vocabulary.mapped_from
    return "" if mapped is None else f", its {mapped} labels as {parse.vocabulary.name}"


def _afterwards(analysis: Analysis, choices: Choices, document: dict[str, Any]) -> Iterator[str]:
    """Which heads have no picture of their lines, where some were left out."""
    if any(name.startswith("lines") for name in document["figures"]) and (message := lines_left_out(analysis, choices)):
        yield message


REPORT = Report(
    content=_content,
    columns=_SCALARS,
    rows=lambda document: document["heads"],
    tables=_tables,
    same=("attnviz", "model", "text", "pair", "options", "profile"),
    tensors=("attention.safetensors", _attention_bytes),
    afterwards=_afterwards,
)
"""How the command tells its results."""
