"""How ``attnviz heads`` tells what it measured: JSON, CSV, attention weights, tables."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from safetensors.torch import save

from attnviz.commands.heads.hints import hints
from attnviz.commands.heads.measure import Analysis, HeadFindings
from attnviz.commands.heads.naming import role_text, shorter
from attnviz.commands.heads.pattern_table import pattern_table
from attnviz.commands.heads.relations_report import relation_entries, relation_table
from attnviz.commands.heads.summary import label_entry, summary_entry, summary_tables, windows_note
from attnviz.commands.heads.target_report import (
    between_entry,
    cuts,
    stack_of,
    target_entry,
    target_note,
    tensor_name,
    text_tokens,
)
from attnviz.model.head_ids import HeadId
from attnviz.model.wording import shortened, visible
from attnviz.patterns.profile_store import StoredRole
from attnviz.patterns.published import published_entries
from attnviz.patterns.registry import PATTERNS, REPEATS, SHARES
from attnviz.patterns.statistics import DIAGONALITY
from attnviz.patterns.syntax import Parse
from attnviz.patterns.verdicts import ENOUGH, LEAST_N, Verdict
from attnviz.results.documents import model_entry, stack_entry, verification_entry
from attnviz.results.facts import capital
from attnviz.results.published import published_table, role_name
from attnviz.results.report import Report
from attnviz.results.tables import Column, column_table, left_out, notes, number, titled, verification_line
from attnviz.results.view import Choices

__all__ = ["REPORT"]

_LABEL = ("label", "label_score", "label_baseline", "label_gain", "label_n", "label_certain")
_SCALARS = (
    "id", "layer", "head", "entropy", "entropy_uniform", "entropy_content", "distance", "distance_content",
    "confidence", "confidence_content", "sink", *SHARES, *_LABEL, "role", "role_score", "role_baseline",
)  # fmt: skip


def _content(analysis: Analysis, choices: Choices) -> dict[str, Any]:
    """The document of heads.json; what cannot be measured is None."""
    heads = analysis.select(choices.select)
    listed = {head.id for head in heads}
    pairs = relation_entries(analysis, choices)
    parts = [(part, part.select(choices.select)) for part in analysis.parts]
    return {
        "model": model_entry(analysis.checkpoint),
        "text": analysis.text,
        "pair": analysis.pair,
        **target_entry(analysis),
        "options": {
            **asdict(analysis.options),
            "tokens_cut_off": analysis.tokens.truncated,
            "parser": analysis.parse.parser if analysis.parse else None,
        },
        "tokens": text_tokens(analysis),
        "verification": verification_entry(analysis.verification, stack_of),
        "summary": {_name(part): summary_entry(part, of_part) for part, of_part in parts if of_part}
        if analysis.target is not None
        else summary_entry(analysis, heads),
        "heads": [_head(head, part) | pairs(head.id) for part, of_part in parts for head in of_part],
        "words": list(analysis.units.labels) if analysis.options.words else None,
        "parse": None if analysis.parse is None else _parse(analysis.parse),
        "syntax_note": analysis.syntax_note or None,
        "profile": None if analysis.profile is None else analysis.profile.origin,
        "published": published_entries(head for head in analysis.published if head.id in listed),
    }


def _name(part: Analysis) -> str:
    return "" if part.stack is None else part.stack.name


def _head(head: HeadFindings, analysis: Analysis) -> dict[str, Any]:
    names = ("entropy_content", "distance", "distance_content", "confidence", "confidence_content", "sink", *SHARES)
    return {
        "id": str(head.id),
        "layer": head.id.layer,
        **stack_entry(head.id.layer),
        "head": head.id.head,
        "entropy": head.statistics["entropy"],
        "entropy_uniform": analysis.context_of(head.id.layer).entropy_uniform,
        **{name: head.statistics[name] for name in names},
        **between_entry(head, analysis),
        "baseline": {name: analysis.context_of(head.id.layer).baselines[name] for name in SHARES},
        "patterns": [_verdict(verdict) for verdict in head.patterns],
        **label_entry(head),
        "role": _role_entry(head, analysis),
        "profile": None if head.profile is None else [asdict(role) for role in head.profile.roles],
    }


def _role_entry(head: HeadFindings, analysis: Analysis) -> dict[str, Any] | None:
    """What the head does over the corpus, with its own numbers, and whether this text has it."""
    if head.role is None:
        return None
    names = ("direction", "score", "baseline", "gain", "n")
    numbers = {name: getattr(head.role, name) for name in names}
    return {"name": head.role.role, **numbers, "in_text": analysis.has_role(head)}


def _rows(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for head in document["heads"]:
        role = head["role"] or dict.fromkeys(("name", "score", "baseline"))
        yield {**head, "role": role["name"], "role_score": role["score"], "role_baseline": role["baseline"]}


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
    more = {
        "syntactic": ["direction", "offset", "baselines"],
        "repeats": ["on_repeats", "baseline_on_repeats", "types"],
        "broad": ["on_content"],
        "positional": ["on_top"],
    }
    names = ["name", "score", "baseline", "n", "passed", "kind", "enough", "threshold", *more.get(verdict.kind, [])]
    return {name: getattr(verdict, name) for name in names}


def _attention_bytes(analysis: Analysis, _: Choices) -> bytes:
    """All patterns in safetensors: one tensor [n_heads, n_queries, n_keys] a layer."""
    layers = analysis.checkpoint.layers
    names = [tensor_name(layer) for layer in layers]
    tensors = {name: analysis.layer_patterns(layer).contiguous() for name, layer in zip(names, layers, strict=True)}
    said = {"unit": analysis.units.name, "labels": json.dumps(list(analysis.units.labels))}
    said |= {"model": analysis.checkpoint.name}
    if analysis.target is not None:
        said["target_labels"] = json.dumps(list(analysis.target.context.units.labels))
    content: bytes = save(tensors, said)
    return content


def _tables(analysis: Analysis, choices: Choices, width: int) -> Iterator[RenderableType]:
    """What was verified, the summary, the heads, their roles, the patterns, published heads, small print."""
    heads = analysis.select(choices.select)
    yield verification_line(analysis.verification, analysis.checkpoint)
    for part in analysis.parts:
        if of_part := part.select(choices.select):
            yield from _tables_of(part, of_part, choices, width)
    ids = {head.id for head in heads}
    if published := [head for head in analysis.published if head.id in ids]:
        yield published_table(published)
    yield _notes(analysis)


def _tables_of(part: Analysis, heads: Sequence[HeadFindings], choices: Choices, width: int) -> Iterator[RenderableType]:
    """Those of one kind of attention, or of a model that has but one."""
    listed = sorted(heads, key=_clearest)[: choices.top or None]
    if part.stack is not None:
        yield Text(f"{capital(part.stack.name)} ({part.stack.letter}): {part.facts.text_line}", "bold")
    yield from summary_tables(part, heads, width)
    yield _head_table(part, listed, len(heads), width)
    if part.profile is not None:
        yield _profile_table(listed, width)
    yield pattern_table(heads, width)
    if choices.relations:
        yield from relation_table(part, choices, width)


def _clearest(head: HeadFindings) -> tuple[bool, float, HeadId]:
    named, gain = head.clearness
    return not named, -gain, head.id


def _head_table(analysis: Analysis, listed: Sequence[HeadFindings], total: int, width: int) -> Table:
    """Labels, roles and statistics of the heads, the clearest first, and below them those of uniform attention."""
    context, units = analysis.context, f"{analysis.units.name}s"
    uniform = {**context.baselines, "sink": context.sink_baseline, "entropy": context.entropy_uniform}
    uniform[DIAGONALITY] = context.diagonality_baseline
    columns: list[Column[HeadFindings]] = [
        Column("Head", lambda head: head.id, left=True),
        Column("Label", _label, left=True, least=9, fit=_label),
        *(_of_label(title, name) for title, name in (("Score", "score"), ("Baseline", "baseline"), ("n", "n"))),
    ]
    if analysis.profile is not None:
        role: Callable[..., str] = partial(role_text, analysis)
        columns.append(Column("Role over corpus", role, left=True, least=20, fit=role))
        columns.append(Column("its score (baseline)", _role_numbers, optional=1))
    last: list[object] = ["uniform", *[""] * (len(columns) - 1)]
    for title, name, unit, optional in _columns(units, context.source is not None):
        columns.append(Column(title, partial(_statistic, name=name), unit, optional=optional))
        last.append(uniform.get(name, ""))
    count = f"{len(listed)} of {total}" if len(listed) < total else str(total)
    return column_table(
        f"Heads ({count}, clearest pattern first)", columns, listed, width=width,
        last=last, caption=left_out(len(listed), total, "head", "heads.csv"),
    )  # fmt: skip


def _columns(units: str, between: bool) -> list[tuple[str, str, str, int]]:
    """Title, statistic, unit, and which goes first on a narrow terminal: the largest number.

    ``between`` says whether it is of two texts, of which shares and distances have no meaning.
    """
    if between:
        return [
            ("Diagonal", DIAGONALITY, "", 1),
            ("Sink", "sink", "", 2),
            ("Entropy", "entropy", "nats", 3),
            ("Conf", "confidence", "", 5),
            ("Conf, content", "confidence_content", "", 4),
        ]
    shares = [(spec.column, spec.statistic) for spec in PATTERNS if spec.column]
    return [
        ("Sink", "sink", "", 2),
        ("Entropy", "entropy", "nats", 3),
        ("Conf", "confidence", "", 6),
        ("Conf, content", "confidence_content", "", 4),
        ("Distance", "distance", units, 7),
        ("Distance, content", "distance_content", units, 5),
        *((title, name, "", 8 + place) for place, (title, name) in enumerate(shares)),
    ]


def _statistic(head: HeadFindings, name: str) -> float | None:
    return head.statistics[name]


def _label(head: HeadFindings, room: int = 99) -> Text:
    """The label, shorter where there is no room; grey and with a question mark where it is an indication only."""
    name, mark = visible(head.label), head.labelled.shown.removeprefix(head.label)
    forms = (name, shorter(name))
    form = next((form for form in forms if len(form) + len(mark) <= room), shortened(forms[-1], room - len(mark)))
    return Text(form + mark, "dim" if mark else "")


def _of_label(title: str, name: str) -> Column[HeadFindings]:
    return Column(title, lambda head: label_entry(head)[f"label_{name}"])


def _role_numbers(head: HeadFindings) -> str:
    return "–" if head.role is None else f"{number(head.role.score)} ({number(head.role.baseline)})"


def _profile_table(heads: Sequence[HeadFindings], width: int) -> Group:
    """What a stored profile says of each head: the roles that pass, score beside baseline."""
    columns: list[Column[HeadFindings]] = [
        Column("Head", lambda head: head.id, left=True),
        Column("Roles", _roles, left=True, least=9, fit=_roles),
    ]
    return titled("Profile (roles over a corpus)", column_table("", columns, heads, width=width))


def _roles(head: HeadFindings, room: int = 999) -> str:
    """As many roles as the room has place for, at least one, and how many more there are."""
    if head.profile is None or not head.profile.roles:
        return "none"
    names = [_role(role) for role in head.profile.roles]
    lines = ["  ".join(names)]
    lines += ["  ".join([*names[:count], f"{len(names) - count} more"]) for count in range(len(names) - 1, 0, -1)]
    return next((line for line in lines if len(line) <= room), lines[-1])


def _role(role: StoredRole) -> str:
    return f"{role_name(role.role, role.direction)} {number(role.score)} ({number(role.baseline)})"


def _notes(analysis: Analysis) -> Text:
    unit, profile, parse = analysis.units.name, analysis.profile, analysis.parse
    repeats = profiled = ""
    syntax = f"not measured: {analysis.syntax_note}"
    if any(analysis.context.counts[name] for name in REPEATS):
        repeats = f"In brackets: mean attention of the n {unit}s that have an earlier copy; labels rest on it."
    if parse is not None:
        guesses = "baseline = the best of six guesses (+1: the head is the next word)"
        syntax = f"parse by {parse.parser}, which may be wrong{_relations(parse)}; {guesses}."
    if profile is not None:
        whose = "shipped with attnviz" if profile.shipped else "your own"
        profiled = (
            f"Role: what the head does over a corpus, from a stored profile ({whose}, measured on "
            f"{visible(profile.measured_on)}); of several roles, the one with the largest error reduction, baseline "
            "in brackets. (corpus): the parse of this text has no case of it, or it cannot show it."
        )
    return notes(
        "Label: what the head does on this text, judged by this text alone. It is sink if more than 0.6 of the "
        "attention rests on sinks; else, of the patterns that pass, the one with the largest error reduction, (score "
        "- baseline) / (1 - baseline). Scores of positions leave sinks out. "
        f"n: how many {unit}s (or instances of a relation) a score rests on. Below {ENOUGH} a label is an indication "
        f"(?), below {LEAST_N} there is none. Pass: heads above the threshold. A relation becomes a label only if n is "
        f"at least {ENOUGH} and the head is right {LEAST_N} times more often than its baseline. "
        "One text shows what heads did here, not what they do in general.",
        "Conf, Distance: over all attention. The columns named content leave sinks out and scale each row to sum to 1 "
        "(after Voita et al. 2019).",
        target_note(analysis),
        repeats,
        windows_note(analysis),
        f"Syntax: {syntax}",
        profiled,
        *cuts(analysis),
    )


def _relations(parse: Parse) -> str:
    """Whose relations they are, where the parser's own were mapped."""
    mapped = parse.vocabulary.mapped_from
    return "" if mapped is None else f", its {mapped} labels as {parse.vocabulary.name}"


REPORT = Report(
    content=_content,
    columns=_SCALARS,
    rows=_rows,
    tables=_tables,
    same=("attnviz", "model", "text", "pair", "target", "generate", "options", "profile"),
    more_columns=lambda content: ("stack", "diagonality") if "target" in content else (),
    tensors=("attention.safetensors", _attention_bytes),
    afterwards=hints,
)
"""How the command tells its results."""
