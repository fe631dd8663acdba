"""The tables of ``attnviz heads``: heads, roles, patterns, relations and notes."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.answer import WHOLE_NAME, answer, label_text, telling_heads
from attnviz.commands.heads.findings import HeadFindings, as_selected
from attnviz.commands.heads.relations import HeadRelation, relations_of
from attnviz.commands.heads.summary import LABEL, LABEL_NUMBERS, layers_table, role_text
from attnviz.judge.verdicts import ENOUGH, LEAST_N, TOO_SHORT, UNNAMED, Verdict
from attnviz.measures.patterns import NAMES, ON_REPEATS, PATTERNS, REGISTRY, REPEATS
from attnviz.measures.statistics import DIAGONALITY, NOWHERE, SCALARS
from attnviz.models.head_ids import ids_and_names
from attnviz.models.wording import counted, rounded, visible
from attnviz.plugins import live
from attnviz.present.fields import HEAD, Field, named
from attnviz.present.figure_context import capital
from attnviz.present.published import ARROWS, beside, published_table, role_name, score_text
from attnviz.present.statistics import filled, statistic_field
from attnviz.present.tables import column_table, cut_note, first_rows, notes, target_note, titled, verification_line
from attnviz.present.view import ViewOptions

_STRONGEST, _RELATIONS, _FEW_RELATIONS, _MOST_LISTED = 5, 8, 3, 12

_Entry = tuple[HeadFindings, Verdict]
_Pattern = tuple[Verdict, list[_Entry]]


def _statistic(name: str) -> Field[HeadFindings]:
    return statistic_field(name, lambda head: head.statistics.get(name))


FIELDS = live(REGISTRY, lambda: (
    *HEAD,
    _statistic("entropy"),
    Field(name="entropy_uniform"),  # follows entropy; statistics of repeats stand in the verdicts
    *(_statistic(name) for name in SCALARS if name not in ("entropy", *REPEATS, *ON_REPEATS.values())),
    replace(_statistic(NOWHERE), if_known=True),
    replace(_statistic(DIAGONALITY), of_stacks=True),
    Field(name="diagonality_baseline", of_stacks=True, csv={}),
    Field(value=lambda head: list(head.alignment) or None, name="alignment", of_stacks=True, csv={}),
    Field(name="baseline", csv={}),
    Field(name="patterns", csv={}),
    *LABEL,
    Field(
        name="role",
        csv={
            "role": ("name",),
            **{f"role_{name}": (name,) for name in ("direction", "score", "baseline", "n")},
            "role_in_text": ("seen",),
        },
    ),
    Field(
        value=lambda head: None if head.roles is None else [asdict(role) for role in head.roles], name="profile", csv={}
    ),
))  # fmt: skip
"""The fields of a head."""

_OF_ALL_HEADS = ("sink", "entropy", "confidence", "confidence_non_sink")

_WIDE = 140
"""Columns of a terminal from which on all tables are printed."""


def head_tables(analysis: Analysis, choices: ViewOptions, width: int) -> Iterator[RenderableType]:
    """What the heads do, verification, the heads to look at, patterns, published heads, and notes.

    With a number of heads to list, or on a wide terminal, also the tables of statistics, and what every column means.
    """
    _, names = ids_and_names(choices.select)
    parts = [(part, as_selected(of_part, names)) for part in analysis.parts if (of_part := part.select(choices.select))]
    whole = choices.top is not None or width >= _WIDE
    verified = verification_line(analysis.verification, analysis.checkpoint)
    if not analysis.verification.level:
        yield verified
    for part, heads in parts:
        if part.stack is not None:
            yield Text(f"{capital(part.stack.name)} ({part.stack.letter}): {part.figure_context.text_line}", "bold")
        lines = [*answer(part, heads), *[verified] * (part is parts[-1][0] and bool(analysis.verification.level))]
        if lines:
            yield Group(*lines)
    told = [
        each for each in parts if choices.top is not None or choices.select or choices.relations or not _short(each[1])
    ]
    for part, heads in told:
        top = _MOST_LISTED if choices.top is None else choices.top or len(heads)
        if part.stack is not None:
            yield Text(f"{capital(part.stack.name)} ({part.stack.letter})", "bold")
        yield from telling_heads(part, heads, top if choices.select else 0, names, width)
        if whole:
            yield from [] if _short(heads) or len(heads) == 1 else [layers_table(heads, width)]
            clearest = "of what selected them" if names else "pattern"
            yield _head_table(part, heads, top, f"clearest {clearest} first", width)
            yield from [_profile_table(heads[:top], width)] * (part.profile is not None)
        if len(heads) > 1:
            yield _pattern_table(heads, whole, width)
        if choices.relations:
            yield from _relation_table(part, choices, top, width)
    ids = {head.id for _, heads in parts for head in heads}
    if published := [head for head in analysis.published if head.id in ids]:
        yield published_table(published, width)
    notes_below = _notes(analysis) if whole else _short_notes(analysis)
    yield Group(notes_below, *[_next(heads, choices) for _, heads in told[:1] if len(ids) > 1])


def _short(heads: Sequence[HeadFindings]) -> bool:
    """Whether the text is too short to label any head, which the answer says in a sentence."""
    return all(head.label == TOO_SHORT for head in heads)


def _head_table(analysis: Analysis, ranked: Sequence[HeadFindings], top: int | None, order: str, width: int) -> Table:
    """Table of labels, roles and statistics; last line: uniform attention."""
    context = analysis.context
    uniform = {name: context.uniform.get(name) for name in ("entropy", "sink", NOWHERE, DIAGONALITY, *NAMES)}
    columns: list[Field[HeadFindings]] = [
        Field("Head", lambda head: head.id, left=True),
        Field("Label", fit=label_text, left=True, least=WHOLE_NAME),
        *LABEL_NUMBERS,
    ]
    if analysis.profile is not None:
        columns.append(Field("Role over corpus", fit=partial(role_text, analysis), left=True, least=WHOLE_NAME))
        columns.append(Field("its score (baseline)", lambda head: beside(head.role), optional=1))
    last: list[object] = ["uniform", *[""] * (len(columns) - 1)]
    of_text = (*_OF_ALL_HEADS, *[NOWHERE] * context.learned_sinks, "distance", "distance_non_sink")
    of_text = (*of_text, *(spec.statistic for spec in PATTERNS if spec.column))
    for field in named(FIELDS, *(of_text if context.source is None else (DIAGONALITY, *_OF_ALL_HEADS))):
        columns.append(replace(field, unit=filled(field.unit, unit=analysis.units.name)))
        last.append(uniform.get(field.name, ""))
    return first_rows("Heads", columns, ranked, top, "heads.csv", width=width, order=order, last=last)


def _profile_table(heads: Sequence[HeadFindings], width: int) -> Group:
    """Table of a stored profile: the roles that each head passes, score beside baseline."""
    columns: list[Field[HeadFindings]] = [
        Field("Head", lambda head: head.id, left=True),
        Field("Roles", fit=_roles, left=True, least=9),
    ]
    return titled("Profile (roles over a corpus)", column_table("", columns, heads, width=width))


def _roles(head: HeadFindings, room: int) -> str:
    """The roles that fit, at least one, and the number of others."""
    if not head.roles:
        return UNNAMED
    names = [f"{role_name(role.role, role.direction)} {beside(role)}" for role in head.roles]
    lines = ["  ".join(names)]
    lines += ["  ".join([*names[:count], f"{len(names) - count} more"]) for count in range(len(names) - 1, 0, -1)]
    return next((line for line in lines if len(line) <= room), lines[-1])


def _pattern_table(heads: Sequence[HeadFindings], whole: bool, width: int) -> Table:
    """Tables of patterns and of relations: strongest heads, score beside baseline, and how many heads pass."""
    by_name: dict[tuple[bool, str], list[_Entry]] = {}
    for head in heads:
        for verdict in head.patterns:
            by_name.setdefault((verdict.kind == "syntactic", verdict.name), []).append((head, verdict))
    relations = _relations_apart({name: entries for (syntactic, name), entries in by_name.items() if syntactic})
    others = [entries for (syntactic, _), entries in by_name.items() if not syntactic]
    others = [entries for entries in others if whole or entries[0][1].n]
    frequent = [entries for entries in relations if entries[0][1].n >= LEAST_N]
    n_relations = _RELATIONS if whole else _FEW_RELATIONS
    rare, more = len(relations) - len(frequent), len(frequent[n_relations:])
    hidden = [f"{counted(more, 'rarer relation')} left out"] * bool(more)
    hidden += [f"{counted(rare, 'relation')} with n below {LEAST_N} hidden"] * bool(rare)
    return column_table(
        "Patterns (the strongest heads of each, with their scores)",
        _PATTERN_COLUMNS,
        [_ranked(entries) for entries in (*others, *frequent[:n_relations])],
        width=width,
        sections=(lambda row: row[0].kind == "syntactic") if whole else None,
        caption=f"{', '.join(hidden)}; heads.json has them." if hidden and whole else "",
    )


def _relations_apart(by_name: dict[str, list[_Entry]]) -> list[list[_Entry]]:
    """Relations, without subtypes that cover all instances of their base relation."""
    instances = {name: entries[0][1].n for name, entries in by_name.items()}
    bases = {name: name.partition(":")[0] for name in by_name}
    return [by_name[name] for name, base in bases.items() if name == base or instances[name] < instances[base]]


def _ranked(entries: list[_Entry]) -> _Pattern:
    """Verdict of the strongest head, or of any if none is measurable, and the entries, the strongest first."""
    measured = [entry for entry in entries if entry[1].score is not None] or entries
    ranked = sorted(measured, key=lambda entry: (-(entry[1].score or 0.0), entry[1].direction or ""))
    return ranked[0][1], entries


def _pattern(row: _Pattern) -> str:
    best = row[0]
    return best.name if best.direction is None else f"{best.name} {ARROWS[best.direction]}"


def _strongest(row: _Pattern, room: int) -> str:
    """The strongest heads that fit; ties are counted instead of listed if they do not."""
    best, entries = row
    if best.score is None:
        why = "no copy of an earlier token" if best.kind == "repeats" and not best.n else "not measurable on this text"
        return why if len(why) <= room else "not measurable"
    alike = [each for each in entries if each[1].direction == best.direction and each[1].score is not None]
    ranked = sorted(alike, key=lambda entry: (-(entry[1].score or 0.0), entry[0].id))
    groups = [list(group) for _, group in groupby(ranked, key=lambda entry: _scores(entry[1]))]
    line, listed = "", 0
    for group in groups:
        named = "  ".join(f"{head.id} {_scores(verdict)}" for head, verdict in group)
        for text in (named, f"{len(group)} heads {_scores(group[0][1])}"):
            longer = f"{line}  {text}" if line else text
            if (len(longer) <= room and listed + len(group) <= _STRONGEST) or (not line and text != named):
                break
        else:
            return line
        line, listed = longer, listed + len(group)
    return line


def _passing(row: _Pattern) -> str:
    """Number of heads that pass; a dash with too few instances."""
    entries = row[1]
    return f"{sum(verdict.passed for _, verdict in entries)}/{len(entries)}" if row[0].n >= ENOUGH else "–"


_PATTERN_COLUMNS: list[Field[_Pattern]] = [
    Field("Pattern", _pattern, left=True, least=12),
    Field("Strongest heads", fit=_strongest, left=True, least=16),
    Field("Baseline", lambda row: row[0].baseline),
    Field(
        "which", lambda row: row[0].largest_baseline or "uniform" * (row[0].baseline is not None), left=True, optional=1
    ),
    Field("n", lambda row: row[0].n),
    Field("Pass", _passing),
]


def _scores(verdict: Verdict) -> str:
    """The score; for induction and duplicate-token also that of repeated tokens."""
    return score_text(verdict.score, "" if verdict.kind == "repeats" else verdict.name) + (
        f" ({rounded(verdict.on_repeats)})" if verdict.kind == "repeats" else ""
    )


def _relation_table(analysis: Analysis, choices: ViewOptions, top: int, width: int) -> Iterator[RenderableType]:
    """Table of the pairs that each head finds, the largest share first."""
    of_heads = relations_of(analysis, analysis.select(choices.select), choices.relation)
    listed = sorted(of_heads, key=lambda each: (-each.found / len(each.pairs), each.head.id))[:top]
    if listed:
        yield titled(
            "Relations (pairs of the parse that a head finds)", column_table("", _RELATION_COLUMNS, listed, width=width)
        )


_RELATION_COLUMNS: list[Field[HeadRelation]] = [
    Field("Head", lambda each: each.head.id, left=True),
    Field("Relation", lambda each: each.arrow, left=True),
    Field("Found", lambda each: each.found),
    Field("n", lambda each: len(each.pairs)),
]


def _notes(analysis: Analysis) -> Text:
    unit, profile, parse = analysis.units.name, analysis.profile, analysis.parse
    repeats = profiled = ""
    syntax = f"not measured: {analysis.syntax_note}"
    if any(analysis.context.counts[name] for name in REPEATS):
        repeats = f"Of induction and duplicate-token in brackets: mean attention of the n {unit}s with an earlier copy."
    if parse is not None:
        guesses = "baseline = the best of six guesses (+1: the head is the next word)"
        mapped = parse.vocabulary.mapped_from
        whose = "" if mapped is None else f", its {mapped} labels as {parse.vocabulary.name}"
        syntax = f"parse by {parse.parser}, which may be wrong{whose}; {guesses}."
    if profile is not None:
        whose = "shipped with attnviz" if profile.shipped else "your own"
        profiled = (
            f"Role: what the head does over a corpus, from a stored profile ({whose}, measured on "
            f"{visible(profile.measured_on)}). (not here): this text has no case of it. (not parsed), (not looked "
            "for): whether it has one is not known."
        )
    return notes(
        "Label: what the head does on this text, by this text alone: sink if more than 0.6 of the attention rests on "
        "sinks; then, of the patterns that pass, the one with the largest error reduction, (score - baseline) / (1 - "
        f"baseline). n: how many {unit}s (or instances of a relation) a score rests on; below {ENOUGH} an indication "
        f"(?), below {LEAST_N} no label; a relation needs n of {ENOUGH} and {LEAST_N} more right than its baseline. "
        "Pass: heads above the threshold. One text shows what heads did here, not what they do in general.",
        "The columns named content leave sinks out and scale each row to sum to 1 (after Voita et al. 2019).",
        _sinks_note(analysis),
        _target_note(analysis),
        repeats,
        _windows_note(analysis),
        f"Syntax: {syntax}",
        profiled,
        cut_note(analysis.tokens),
        cut_note(None if analysis.target is None else analysis.target.tokens, "target"),
    )


def _short_notes(analysis: Analysis) -> Text:
    """What a reader of the short tables needs."""
    parse, profile, unit = analysis.parse, analysis.profile, analysis.units.name
    syntax = analysis.syntax_note if parse is None else f"{parse.parser}, may be wrong."
    corpora = "" if profile is None else f"Corpus: {', '.join(visible(each.name) for each in profile.corpora)}."
    hidden = "(not here): not seen in this text; (not parsed), (not looked for): not known." if profile else ""
    repeats = f"; of induction and duplicate-token the attention of repeated {unit}s"
    general = (
        "In brackets the baseline (uniform attention or the best guess)"
        f"{repeats * any(analysis.context.counts[name] for name in REPEATS)}. n: {unit}s or instances; below {ENOUGH} "
        "weak (?). A sink that also does something else counts under both kinds."
    )
    return notes(
        " ".join(filter(None, [general, hidden, _sinks_note(analysis), f"Parser: {syntax}", corpora])),
        _target_note(analysis),
        _windows_note(analysis),
        cut_note(analysis.tokens),
        cut_note(None if analysis.target is None else analysis.target.tokens, "target"),
    )


def _next(heads: Sequence[HeadFindings], choices: ViewOptions) -> Text:
    """What to type next, in a line of 100 columns."""
    every_number = "" if choices.top == 0 else " --top 0 (every number),"
    said = f"--select {heads[0].id} (one head), --figures page (all),{every_number} --table tex (LaTeX)."
    return Text.assemble(("Next: ", "bold"), said)


def _sinks_note(analysis: Analysis) -> str:
    """Note on the positions of sinks."""
    tokens = analysis.tokens
    later = any(sink and position and not tokens.special[position] for position, sink in enumerate(tokens.sink))
    how = ", found: most heads of most layers give it over 0.3 of their attention (Gu et al. 2024)" if later else ""
    return f"Sinks: {visible(analysis.sinks)}{how}." if analysis.sinks else ""


def _target_note(analysis: Analysis) -> str:
    """Note on an encoder-decoder's target, or on a decoder's continuation, or ''."""
    written, target = analysis.continuation, analysis.target
    if written is not None:
        end = f", which then ended the text ({written.requested} were asked for)" if written.hit_eos else ""
        last = f"The last {counted(written.count, 'token')} {'was' if written.count == 1 else 'were'}"
        return f"{last} generated by the model, greedily{end}."
    if target is None:
        return ""
    diagonal = "how far a head goes through the source as the target goes on (1: a diagonal; after Shim et al. 2022)"
    return f"{target_note(target.text, target.generated)} Diagonal: {diagonal}."


def _windows_note(analysis: Analysis) -> str:
    """Note on layers with a window shorter than the text, or ''."""
    if not analysis.windowed:
        return ""
    windows = sorted({context.window or 0 for context in analysis.windowed.values()})
    layers, n = counted(len(analysis.windowed), "layer"), analysis.checkpoint.n_layers
    sizes = [str(window if analysis.context.causal else window - 1) for window in windows]
    seen = f"the last {' or '.join(sizes)} tokens alone, itself included"
    if not analysis.context.causal:
        seen = f"itself and {' or '.join(sizes)} tokens on each side alone"
    return (
        f"Windows: in {layers} of {n} a token sees {seen}; baselines of these heads are of uniform attention within "
        "the window, the last row's of all."
    )
