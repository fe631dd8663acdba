"""The tables of ``attnviz heads``: heads, roles, patterns, relations and notes."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import (
    HeadFindings,
    rank_value,
    selected_verdict,
    shorter,
    sorted_by_selection,
)
from attnviz.commands.heads.relations import relations_of
from attnviz.commands.heads.spans import span_tables
from attnviz.commands.heads.summary import (
    LABEL_KINDS,
    LABEL_NUMBERS,
    MISSION,
    MOST_LISTED,
    corpora_of,
    heads_to_look_at,
    no_role,
    role_text,
)
from attnviz.figures.families import family_of_label
from attnviz.judge.roles import Role
from attnviz.judge.verdicts import ENOUGH, LEAST_N, TOO_SHORT, UNNAMED, Verdict
from attnviz.language.universal import relation_words
from attnviz.measures.contacts import CONTACTS
from attnviz.measures.patterns import NAMES, PATTERNS, REPEATS, SINK
from attnviz.measures.statistics import DIAGONALITY, NOWHERE, statistic_named
from attnviz.models.head_ids import ids_and_names
from attnviz.present.fields import Field
from attnviz.present.figure_context import capital
from attnviz.present.published import ARROWS, role_name, score_and_baseline
from attnviz.present.statistics import statistic_field
from attnviz.present.tables import (
    RowTable,
    cut_note,
    first_rows,
    glued,
    listed_of,
    notes,
    target_note,
    verification_line,
)
from attnviz.present.view import ViewOptions
from attnviz.profiles.parts import SYNTACTIC
from attnviz.wording import counted, rounded, visible

_STRONGEST, _RELATIONS, _MOST_LISTED = 5, 8, 12
_FEW_PAIRS = _BESIDE_SPANS = 3
"""Pairs of spans, and heads beside them, on the first screen."""

_Entry = tuple[HeadFindings, Verdict]
_Pattern = tuple[Verdict, list[_Entry]]


def head_tables(analysis: Analysis, choices: ViewOptions) -> Iterator[RenderableType]:
    """Verification, what the heads do, and those to look at; if verbose also patterns, every statistic, and notes."""
    _, names = ids_and_names(choices.select)
    parts = [
        (part, sorted_by_selection(part.select(choices.select), names)) for part in analysis.parts_of(choices.select)
    ]
    whole = choices.verbose
    lines = [verification_line(analysis.verification, analysis.checkpoint)]
    for part, heads in parts:
        lines += _headline(part, heads, whole)
    yield Group(*lines)
    labelled = [each for each in parts if any(head.label != TOO_SHORT for head in each[1])]
    listed = parts if whole or choices.select or choices.relation else labelled
    if not whole:
        n_rows = _BESIDE_SPANS if analysis.spans else MOST_LISTED // max(1, len(listed))
        tables = [(part, _rows(heads, n_rows if choices.select else 0, n_rows, names)) for part, heads in listed]
        if tables:
            yield from _table_of_heads(tables, names, sum(len(heads) for _, heads in listed), choices)
        yield from _contact_table(analysis, choices, choices.rows(n_rows))
        yield from span_tables(analysis, analysis.select(choices.select), choices.rows(_FEW_PAIRS), whole)
        yield _short_notes(analysis)
        return
    for part, heads in listed:
        top = _MOST_LISTED if choices.top is None else choices.top or len(heads)
        if part.stack is not None:
            yield Text(f"{_kind_of_attention(part)}: {part.figure_context.text_line}", "bold")
        rows = _rows(heads, top if choices.select else 0, _UNLIMITED, names)
        yield from _table_of_heads([(part, rows)], names, len(heads), choices)
        yield notes(_farthest(part, heads), _in_words([head for _, head in rows]))
        clearest = "of what selected them" if names else "pattern"
        yield _head_table(part, heads, top, f"clearest {clearest} first")
        if len(heads) > 1:
            yield _pattern_table(heads)
    yield from _contact_table(analysis, choices, choices.top)
    yield from span_tables(analysis, analysis.select(choices.select), choices.top, whole)
    yield _notes(analysis)


def _kind_of_attention(part: Analysis) -> str:
    assert part.stack is not None
    return f"{capital(part.stack.name)} ({part.stack.letter})"


def _head_table(analysis: Analysis, ranked: Sequence[HeadFindings], top: int | None, order: str) -> RenderableType:
    context = analysis.context
    uniform = {name: context.uniform.get(name) for name in ("entropy", "sink", NOWHERE, DIAGONALITY, *NAMES)}
    columns: list[Field[HeadFindings]] = [
        Field("Head", lambda head: head.id),
        Field("Label", _label_text),
        *LABEL_NUMBERS,
    ]
    if analysis.profile is not None:
        columns.append(Field("Role over corpus", partial(role_text, analysis)))
        columns += [
            Field("Corpus score", lambda head: score_and_baseline(head.role)[0], detail=True),
            Field("Corpus baseline", lambda head: _dashless(head.role), detail=True),
        ]
    last: list[object] = ["uniform"]
    last += [""] * (len(columns) - 1)
    listed = ["sink", "entropy", "confidence", "confidence_non_sink"]
    if context.source is not None:
        listed.insert(0, DIAGONALITY)
    else:
        listed += [NOWHERE] if context.learned_sinks else []
        listed += ["distance", "distance_non_sink", *(spec.statistic for spec in PATTERNS if spec.column)]
    for name in listed:
        columns.append(statistic_field(name, lambda head, name=name: head.statistics.get(name), analysis.units.name))  # type: ignore[misc]
        last.append(uniform.get(name, ""))
    return first_rows("Heads", columns, ranked, top, "heads.csv", order=order, last=last)


def _contact_table(analysis: Analysis, choices: ViewOptions, top: int | None) -> Iterator[RenderableType]:
    """The heads that find most contacts; none without a file of contacts."""
    if analysis.context.contacts is None:
        return
    columns: list[Field[HeadFindings]] = [Field("Head", lambda head: head.id)]
    for name in CONTACTS:
        columns.append(statistic_field(name, lambda head, name=name: head.statistics[name]))  # type: ignore[misc]
    ranked = sorted(analysis.select(choices.select), key=lambda head: -(head.statistics["contacts_l"] or 0.0))
    last = ["chance", *analysis.context.contacts.chance.values()]
    yield first_rows("Heads that find contacts", columns, ranked, top, "heads.csv", order="best first", last=last)


def _pattern_table(heads: Sequence[HeadFindings]) -> RenderableType:
    """Tables of patterns and of relations: strongest heads, score beside baseline, and how many heads show it."""
    by_name: dict[tuple[bool, str], list[_Entry]] = {}
    for head in heads:
        for verdict in head.verdicts:
            by_name.setdefault((verdict.kind == "syntactic", verdict.name), []).append((head, verdict))
    relations = _relations_apart({name: entries for (syntactic, name), entries in by_name.items() if syntactic})
    others = [entries for (syntactic, _), entries in by_name.items() if not syntactic]
    frequent = [entries for entries in relations if entries[0][1].n >= LEAST_N]
    shown = [*others, *frequent[:_RELATIONS]]
    title = "Patterns (the strongest heads of each, with their scores)"
    return RowTable(title, _PATTERN_COLUMNS, list(map(_ranked, shown)))


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


def _strongest(row: _Pattern) -> str | Text:
    """The strongest heads; those that cannot be told apart are counted."""
    best, entries = row
    if best.score is None:
        return "no copy of an earlier token" if best.kind == "repeats" and not best.n else "not measurable on this text"
    alike = [each for each in entries if each[1].direction == best.direction and each[1].score is not None]
    ranked = sorted(alike, key=lambda entry: (-(entry[1].score or 0.0), entry[0].id))
    groups = [list(group) for _, group in groupby(ranked, key=lambda entry: _scores(entry[1]))]
    if len(groups[0]) > _STRONGEST:
        return f"{len(groups[0])} heads {_scores(best)}"
    listed: list[str] = []
    for group in groups:
        if len(listed) + len(group) > _STRONGEST:
            break
        listed += [f"{head.id} {_scores(verdict)}" for head, verdict in group]
    return glued(listed)


def _showing(row: _Pattern) -> str:
    entries = row[1]
    return f"{sum(verdict.holds for _, verdict in entries)}/{len(entries)}" if row[0].n >= ENOUGH else "–"


_PATTERN_COLUMNS: list[Field[_Pattern]] = [
    Field("Pattern", _pattern),
    Field("Strongest heads", _strongest),
    Field("Baseline", lambda row: row[0].baseline),
    Field("which", lambda row: "" if row[0].baseline is None else row[0].largest_baseline, detail=True),
    Field("n", lambda row: row[0].n),
    Field("Show", _showing),
]


def _scores(verdict: Verdict) -> str:
    """The score; for induction and duplicate-token also that of repeated tokens."""
    if verdict.kind != "repeats":
        return rounded(verdict.score)
    return f"{rounded(verdict.score)} ({rounded(verdict.on_repeats)})"


def _notes(analysis: Analysis) -> Text:
    parse, profile, unit = analysis.parse, analysis.profile, analysis.units.name
    corpora = hidden = repeats = ""
    label = (
        "Label: what the head does on this text, by this text alone: sink if more than 0.6 of the attention rests "
        "on sinks; then, of the patterns that it shows, the one with the largest error reduction, (score - baseline) / "
        f"(1 - baseline); below n = {LEAST_N} no label. Show: heads above the threshold, for n of {ENOUGH} or more."
    )
    content = "The columns named content leave sinks out and scale each row to sum to 1 (after Voita et al. 2019)."
    if profile is not None:
        hidden = "(not here): not seen in this text; (not parsed), (not looked for): not known."
        whose = "shipped with attnviz" if profile.shipped else "your own"
        corpora = f"Corpus: {corpora_of(analysis, analysis.heads)} (profile {whose})."
    if any(analysis.parts[0].context.counts[name] for name in REPEATS):
        repeats = f" In brackets, of induction and duplicate-token: the attention of repeated {unit}s."
    general = (
        f"Baseline: uniform attention (long-range: the head's weights, keys shuffled), or the best guess.{repeats} n: "
        f"{unit}s or instances; below {ENOUGH} weak (?). A sink that also does something else counts under both kinds."
    )
    syntax = analysis.syntax_note
    if parse is not None:
        mapped = parse.vocabulary.mapped_from
        syntax = f"{parse.parser}, may be wrong{f' ({mapped} labels as {parse.vocabulary.name})' if mapped else ''}."
    return notes(
        label,
        content,
        " ".join(filter(None, [general, hidden, _sinks_note(analysis), f"Parser: {syntax}", corpora])),
        _target_note(analysis),
        _windows_note(analysis),
        cut_note(analysis.target.tokens, "target") if analysis.target else "",
    )


def _short_notes(analysis: Analysis) -> Text:
    """One line; and what was written, cut or generated."""
    target = analysis.target
    return notes(
        f"Heads can be of two kinds. ?: n below {ENOUGH}, weak. Baseline: uniform (long-range: shuffled) or a guess.",
        "" if target is None else target_note(target.text, target.generated),
        "" if target is None else cut_note(target.tokens, "target"),
    )


def _sinks_note(analysis: Analysis) -> str:
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


_ALWAYS = (*MISSION, SINK)  # kinds that are counted even where no head is of them

_FARTHEST, _UNLIMITED = 3, 99  # heads that attend farthest; and rows of a table that has no limit

_Row = tuple[Analysis, str, HeadFindings]  # a part of the model, the kind that a head is listed for, and the head


def _headline(part: Analysis, heads: Sequence[HeadFindings], whole: bool) -> Iterator[Text]:
    """How many heads are of each kind, on the text and over a corpus; if ``whole`` with the clearest of each."""
    if len(heads) == 1:
        return
    n, unit = part.context.n_non_sink, part.units.name
    where = "On this text"
    if part.stack is not None:
        where = _kind_of_attention(part)
    if len(heads) < len(part.heads):
        where = f"{where}, {counted(len(heads), 'selected head')}"
    if whole and LEAST_N <= n < ENOUGH:
        where = f"{where} ({counted(n, f'content {unit}')}: indications only)"
    said = f"no labels, which need {LEAST_N} content {unit}s."
    if n >= LEAST_N:
        always = [kind for kind in _ALWAYS if kind != "syntactic" or part.checkpoint.architecture.has_words]
        said = _counts([(head, head.on_text) for head in heads], whole, always, UNNAMED)
    yield Text.assemble((f"{where}: ", "bold"), said)
    if part.profile is not None:
        parts = part.profile.parts
        measured = [kind for kind in _ALWAYS if ("syntax" if kind == "syntactic" else "statistics") in parts]
        said = _counts([(head, head.over_corpus) for head in heads], whole, measured, no_role(part))
        yield Text.assemble(("Over a corpus: ", "bold"), said)
    elif not part.checkpoint.stacks and part.verification.level:
        corpus = "CORPUS.conllu" if part.checkpoint.architecture.has_words else "CORPUS.txt"
        command = f"attnviz profile {corpus} {visible(' '.join(part.checkpoint.model_options))}"
        yield Text.assemble(("Over a corpus: ", "bold"), f"not known; {command} measures it.")


def _counts(
    heads: Sequence[tuple[HeadFindings, Sequence[tuple[str, Verdict | Role]]]],
    whole: bool,
    always: Collection[str],
    otherwise: str,
) -> str:
    """``2 local · 0 syntactic · …``, if ``whole`` with the clearest head of each kind in brackets."""
    by_kind: dict[str, list[tuple[float, HeadFindings, str]]] = {kind: [] for kind in (*_ALWAYS, *LABEL_KINDS)}
    for head, found in heads:
        for kind in dict.fromkeys(family_of_label(name).name for name, _ in found):
            name, best = next(each for each in found if family_of_label(each[0]).name == kind)
            does = shorter(visible(name))
            words = (str(head.id), "" if does == kind else does, rounded(score_and_baseline(best)[0]))
            by_kind.setdefault(kind, []).append((-rank_value(best), head, " ".join(filter(None, words))))
    parts = []
    for kind, of_kind in by_kind.items():
        ranked = [words for _, _, words in sorted(of_kind, key=lambda each: (each[0], each[1].id))]
        shown = ranked[: 2 if kind == "syntactic" else 1]
        more = " …" if kind == "syntactic" and len(ranked) > len(shown) else ""
        if ranked or kind in always:
            examples = f" ({', '.join(shown)}{more})" if shown and whole else ""
            parts.append(f"{len(ranked)} {kind}{examples}")
    return " · ".join([*parts, f"{sum(not found for _, found in heads)} {otherwise}"])


def _rows(
    heads: Sequence[HeadFindings], chosen: int, most: int, names: Collection[str]
) -> list[tuple[str, HeadFindings]]:
    """The first ``chosen`` heads with their kinds, those of ``names`` first; for 0 up to ``most`` to look at."""
    if not chosen:
        return heads_to_look_at(heads, most)
    return [(", ".join(_kinds_anywhere(head, names)), head) for head in heads[:chosen]]


def _table_of_heads(
    tables: Sequence[tuple[Analysis, Sequence[tuple[str, HeadFindings]]]],
    names: Collection[str],
    n_heads: int,
    choices: ViewOptions,
) -> Iterator[RenderableType]:
    """Table of the heads to look at: what they do on the text, and beside it over a corpus."""
    rows: list[_Row] = [(part, kind, head) for part, listed in tables for kind, head in listed]
    columns: list[Field[_Row]] = [
        Field("Kind", lambda row: row[1]),
        Field("Head", lambda row: row[2].id),
        Field("On this text", lambda row: _label_text(row[2])),
    ]
    if choices.relation:
        found = [
            each
            for part, listed in tables
            for each in relations_of(part, [head for _, head in listed], choices.relation)
        ]
        counts = {each.head.id: f"{visible(each.name)} {each.found} of {len(each.pairs)}" for each in found}
        columns.append(Field("Finds", lambda row: counts.get(row[2].id, "")))
    columns += [
        Field("Score", lambda row: score_and_baseline(selected_verdict(row[2], names))[0]),
        Field("Baseline", lambda row: _dashless(selected_verdict(row[2], names))),
    ]
    for name in dict.fromkeys(map(statistic_named, choices.maps)):
        unit = tables[0][0].units.name
        columns.append(statistic_field(name, lambda row, name=name: row[2].statistics.get(name), unit))  # type: ignore[misc]
    if choices.verbose:
        columns.append(Field("n", lambda row: getattr(selected_verdict(row[2], names), "n", row[2].labelled.n)))
    if any(part.profile is not None for part, _, _ in rows):
        columns += [
            Field("Over a corpus", lambda row: role_text(row[0], row[2])),
            Field("Corpus score", lambda row: score_and_baseline(row[2].role)[0]),
            Field("Corpus baseline", lambda row: _dashless(row[2].role), detail=True),
        ]
        if choices.verbose:
            columns.append(Field("Corpus n", lambda row: f"{row[2].role.n:,}" if row[2].role else ""))
    if rows:
        yield RowTable(f"Heads to look at ({listed_of(len(rows), n_heads)})", columns, rows)


def _dashless(judged: Verdict | Role | None) -> float | str:
    """The baseline, or '' for none."""
    baseline = score_and_baseline(judged)[1]
    return "" if baseline is None else baseline


def _in_words(heads: Sequence[HeadFindings]) -> str:
    """What the relations are that these heads find: ``obj: object→verb; det: determiner→noun``; or ''."""
    verdicts = [
        (head.labelled.verdict.name, head.labelled.verdict.direction) for head in heads if head.labelled.verdict
    ]
    roles = [(head.role.role.removeprefix(SYNTACTIC), head.role.direction) for head in heads if head.role]
    found = dict.fromkeys(each for each in [*verdicts, *roles] if relation_words(*each))
    both = {name for name, times in Counter(name for name, _ in found).items() if times > 1}
    named = [
        f"{visible(role_name(name, direction if name in both else None))}: {relation_words(name, direction)}"
        for name, direction in found
    ]
    return f"{'; '.join(named)}." if named else ""


def _kinds_anywhere(head: HeadFindings, names: Collection[str]) -> list[str]:
    """What a head is on the text or over the corpus, each kind once, those that these names select first."""
    found = [name for name, _ in (*head.found_as(names), *head.on_text, *head.over_corpus)]
    named = dict.fromkeys(family_of_label(name).name for name in found)
    return [kind for kind in named if kind != UNNAMED] or [UNNAMED]


def _label_text(head: HeadFindings) -> Text:
    """The label; grey with a question mark if it is an indication only."""
    return Text(head.shown, "dim" if head.mark else "")


def _farthest(part: Analysis, heads: Sequence[HeadFindings]) -> str:
    """The heads that attend farther than uniform attention and do not rest on sinks, the farthest first; or ''."""
    uniform = part.context.uniform["distance_non_sink"] or 0.0
    distances = [(head.statistics["distance_non_sink"] or 0.0, head.id) for head in heads if SINK not in head.kinds]
    far = [(away, id) for away, id in distances if away > uniform]
    ranked = sorted(far, key=lambda each: (-each[0], each[1]))[:_FARTHEST]
    named = ", ".join(f"{id} {away:.2f}" for away, id in ranked)
    uniform_beside = f"mean {part.units.name}s away (uniform attention {uniform:.2f})"
    return f"Farthest (no sinks), {uniform_beside}: {named}." if named else ""
