"""The tables of ``attnviz heads``: heads, roles, patterns, relations and notes."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter

from rich.console import Group, RenderableType
from rich.text import Text

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings, rank_value, selected_verdict, shorter, sorted_by_selection
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
from attnviz.models.head_ids import HeadId, ids_and_names
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
_FEW_PAIRS = _BESIDE_SPANS = 3  # pairs of spans, and heads beside them, on the first screen
_FARTHEST, _UNLIMITED = 3, 99  # heads that attend farthest; and rows of a table that has no limit
_ALWAYS = (*MISSION, SINK)  # kinds that are counted even where no head is of them

_Row = tuple[Analysis, str, HeadFindings]  # a part of the model, the kind that a head is listed for, and the head


def head_tables(analysis: Analysis, choices: ViewOptions) -> Iterator[RenderableType]:
    """Verification, what the heads do, and those to look at; if verbose also patterns, every statistic, and notes."""
    _, names = ids_and_names(choices.select)
    parts = [
        (part, sorted_by_selection(part.select(choices.select), names)) for part in analysis.parts_of(choices.select)
    ]
    whole, chosen = choices.verbose, analysis.select(choices.select)
    lines = [verification_line(analysis.verification, analysis.checkpoint)]
    for part, heads in parts:
        lines += _headline(part, heads, whole)
    yield Group(*lines)
    if not (whole or choices.select or choices.relation):
        parts = [(part, heads) for part, heads in parts if any(head.label != TOO_SHORT for head in heads)]
    if not whole:
        n_rows = _BESIDE_SPANS if analysis.spans else MOST_LISTED // max(1, len(parts))
        tables = [(part, _rows(heads, n_rows if choices.select else 0, n_rows, names)) for part, heads in parts]
        if tables:
            yield from _table_of_heads(tables, names, sum(len(heads) for _, heads in parts), choices)
        yield from _contact_table(analysis, chosen, choices.rows(n_rows))
        yield from span_tables(analysis, chosen, choices.rows(_FEW_PAIRS), whole)
        target = analysis.target
        yield notes(
            f"Heads can be of two kinds. ?: n below {ENOUGH}, weak. Baseline: uniform (long-range: shuffled) or a "
            "guess.",
            "" if target is None else target_note(target.text, target.generated),
            "" if target is None else cut_note(target.tokens, "target"),
        )
        return
    for part, heads in parts:
        top = _MOST_LISTED if choices.top is None else choices.top or len(heads)
        if part.stack is not None:
            yield Text(f"{_kind_of_attention(part)}: {part.figure_context.text_line}", "bold")
        rows = _rows(heads, top if choices.select else 0, _UNLIMITED, names)
        yield from _table_of_heads([(part, rows)], names, len(heads), choices)
        yield _notes_on_heads(part, heads, [head for _, head in rows])
        clearest = "of what selected them" if names else "pattern"
        yield _head_table(part, heads, top, f"clearest {clearest} first")
        if len(heads) > 1:
            yield _pattern_table(heads)
    yield from _contact_table(analysis, chosen, choices.top)
    yield from span_tables(analysis, chosen, choices.top, whole)
    yield _notes(analysis)


def _kind_of_attention(part: Analysis) -> str:
    assert part.stack is not None
    return f"{capital(part.stack.name)} ({part.stack.letter})"


def _head_table(analysis: Analysis, ranked: Sequence[HeadFindings], top: int | None, order: str) -> RenderableType:
    context = analysis.context
    columns: list[Field[HeadFindings]] = [
        Field("Head", lambda head: head.id),
        Field("Label", _label_text),
        *LABEL_NUMBERS,
    ]
    if analysis.profile is not None:
        columns += [
            Field("Role over corpus", partial(role_text, analysis)),
            Field("Corpus score", lambda head: score_and_baseline(head.role)[0], detail=True),
            Field("Corpus baseline", lambda head: _dashless(head.role), detail=True),
        ]
    last: list[object] = ["uniform", *[""] * (len(columns) - 1)]
    listed = ["sink", "entropy", "confidence", "confidence_non_sink"]
    if context.source is not None:
        listed.insert(0, DIAGONALITY)
    else:
        listed += [NOWHERE] if context.learned_sinks else []
        listed += ["distance", "distance_non_sink", *(spec.statistic for spec in PATTERNS if spec.column)]
    for name in listed:
        columns.append(_column(name, analysis.units.name))
        has_uniform = name in ("entropy", "sink", NOWHERE, DIAGONALITY, *NAMES)
        last.append(context.uniform.get(name) if has_uniform else "")
    return first_rows("Heads", columns, ranked, top, "heads.csv", order=order, last=last)


def _column(name: str, unit: str = "token") -> Field[HeadFindings]:
    return statistic_field(name, lambda head: head.statistics.get(name), unit)


def _contact_table(analysis: Analysis, heads: Sequence[HeadFindings], top: int | None) -> Iterator[RenderableType]:
    if analysis.context.contacts is None:
        return
    columns = [Field[HeadFindings]("Head", lambda head: head.id), *map(_column, CONTACTS)]
    ranked = sorted(heads, key=lambda head: -(head.statistics["contacts_l"] or 0.0))
    last = ["chance", *analysis.context.contacts.chance.values()]
    yield first_rows("Heads that find contacts", columns, ranked, top, "heads.csv", order="best first", last=last)


def _pattern_table(heads: Sequence[HeadFindings]) -> RenderableType:
    """Patterns and relations: the strongest heads of each, score beside baseline, and how many heads show it."""
    by_name: dict[tuple[bool, str], list[tuple[HeadFindings, Verdict]]] = {}
    for head in heads:
        for verdict in head.verdicts:
            by_name.setdefault((verdict.kind == "syntactic", verdict.name), []).append((head, verdict))
    patterns, relations = [], []
    for (is_relation, name), entries in by_name.items():
        n, base = entries[0][1].n, name.partition(":")[0]
        if not is_relation:
            patterns.append(entries)
        elif n >= LEAST_N and (name == base or n < by_name[True, base][0][1].n):  # no subtype that is all of its base
            relations.append(entries)
    rows = []
    for entries in [*patterns, *relations[:_RELATIONS]]:
        measured = [verdict for _, verdict in entries if verdict.score is not None] or [entries[0][1]]
        best = min(measured, key=lambda verdict: (-(verdict.score or 0.0), verdict.direction or ""))
        n_showing = sum(verdict.holds for _, verdict in entries)
        rows.append(
            (
                best.name if best.direction is None else f"{best.name} {ARROWS[best.direction]}",
                _strongest(best, entries),
                best.baseline,
                "" if best.baseline is None else best.largest_baseline,
                best.n,
                f"{n_showing}/{len(entries)}" if best.n >= ENOUGH else "–",
            )
        )
    titles = ("Pattern", "Strongest heads", "Baseline", "which", "n", "Show")
    columns = [Field(title, itemgetter(at), detail=title == "which") for at, title in enumerate(titles)]
    return RowTable("Patterns (the strongest heads of each, with their scores)", columns, rows)


def _strongest(best: Verdict, entries: Sequence[tuple[HeadFindings, Verdict]]) -> str | Text:
    """The strongest heads of a pattern; those that cannot be told apart are counted."""
    if best.score is None:
        return "no copy of an earlier token" if best.kind == "repeats" and not best.n else "not measurable on this text"
    alike = [entry for entry in entries if entry[1].direction == best.direction and entry[1].score is not None]
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


def _scores(verdict: Verdict) -> str:
    """The score; for induction and duplicate-token also that of repeated tokens."""
    on_repeats = f" ({rounded(verdict.on_repeats)})" if verdict.kind == "repeats" else ""
    return rounded(verdict.score) + on_repeats


def _notes(analysis: Analysis) -> Text:
    parse, profile, target, unit = analysis.parse, analysis.profile, analysis.target, analysis.units.name
    corpora = hidden = repeats = sinks = ""
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
    if analysis.sinks:
        tokens = analysis.tokens
        later = any(sink and position and not tokens.special[position] for position, sink in enumerate(tokens.sink))
        how = ", found: most heads of most layers give it over 0.3 of their attention (Gu et al. 2024)" if later else ""
        sinks = f"Sinks: {visible(analysis.sinks)}{how}."
    syntax, written, read = analysis.syntax_note, analysis.continuation, ""
    if parse is not None:
        mapped = parse.vocabulary.mapped_from
        syntax = f"{parse.parser}, may be wrong{f' ({mapped} labels as {parse.vocabulary.name})' if mapped else ''}."
    if written is not None:
        end = f", which then ended the text ({written.requested} were asked for)" if written.hit_eos else ""
        last = f"The last {counted(written.count, 'token')} {'was' if written.count == 1 else 'were'}"
        read = f"{last} generated by the model, greedily{end}."
    elif target is not None:
        diagonal = (
            "how far a head goes through the source as the target goes on (1: a diagonal; after Shim et al. 2022)"
        )
        read = f"{target_note(target.text, target.generated)} Diagonal: {diagonal}."
    return notes(
        label,
        content,
        " ".join(filter(None, [general, hidden, sinks, f"Parser: {syntax}", corpora])),
        read,
        _windows_note(analysis),
        cut_note(target.tokens, "target") if target else "",
    )


def _windows_note(analysis: Analysis) -> str:
    if not analysis.windowed:
        return ""
    causal, windows = analysis.context.causal, {context.window or 0 for context in analysis.windowed.values()}
    sizes = " or ".join(str(window if causal else window - 1) for window in sorted(windows))
    seen = (
        f"the last {sizes} tokens alone, itself included" if causal else f"itself and {sizes} tokens on each side alone"
    )
    return (
        f"Windows: in {counted(len(analysis.windowed), 'layer')} of {analysis.checkpoint.n_layers} a token sees "
        f"{seen}; baselines of these heads are of uniform attention within the window, the last row's of all."
    )


def _headline(part: Analysis, heads: Sequence[HeadFindings], whole: bool) -> Iterator[Text]:
    """How many heads are of each kind, on the text and over a corpus; if ``whole`` with the clearest of each."""
    if len(heads) == 1:
        return
    n, unit = part.context.n_non_sink, part.units.name
    where = "On this text" if part.stack is None else _kind_of_attention(part)
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
    by_kind: dict[str, list[tuple[float, HeadId, str]]] = {kind: [] for kind in (*_ALWAYS, *LABEL_KINDS)}
    for head, judged in heads:
        for kind in dict.fromkeys(family_of_label(name).name for name, _ in judged):
            name, best = next(part for part in judged if family_of_label(part[0]).name == kind)
            does = shorter(visible(name))
            words = (str(head.id), "" if does == kind else does, rounded(score_and_baseline(best)[0]))
            by_kind.setdefault(kind, []).append((-rank_value(best), head.id, " ".join(filter(None, words))))
    parts = []
    for kind, of_kind in by_kind.items():
        ranked = [words for _, _, words in sorted(of_kind)]
        shown = ranked[: 2 if kind == "syntactic" else 1]
        more = " …" if kind == "syntactic" and len(ranked) > len(shown) else ""
        if ranked or kind in always:
            examples = f" ({', '.join(shown)}{more})" if shown and whole else ""
            parts.append(f"{len(ranked)} {kind}{examples}")
    return " · ".join([*parts, f"{sum(not judged for _, judged in heads)} {otherwise}"])


def _rows(
    heads: Sequence[HeadFindings], chosen: int, most: int, names: Collection[str]
) -> list[tuple[str, HeadFindings]]:
    """The first ``chosen`` heads with their kinds, those of ``names`` first; for 0 up to ``most`` to look at."""
    if not chosen:
        return heads_to_look_at(heads, most)
    rows = []
    for head in heads[:chosen]:
        judged = [name for name, _ in (*head.found_as(names), *head.on_text, *head.over_corpus)]
        kinds = dict.fromkeys(family_of_label(name).name for name in judged)
        rows.append((", ".join(kind for kind in kinds if kind != UNNAMED) or UNNAMED, head))
    return rows


def _table_of_heads(
    tables: Sequence[tuple[Analysis, Sequence[tuple[str, HeadFindings]]]],
    names: Collection[str],
    n_heads: int,
    choices: ViewOptions,
) -> Iterator[RenderableType]:
    """Table of the heads to look at: what they do on the text, and beside it over a corpus."""
    rows: list[_Row] = [(part, kind, head) for part, listed in tables for kind, head in listed]
    if not rows:
        return
    columns: list[Field[_Row]] = [
        Field("Kind", lambda row: row[1]),
        Field("Head", lambda row: row[2].id),
        Field("On this text", lambda row: _label_text(row[2])),
    ]
    if choices.relation:
        counts = {}
        for part, listed in tables:
            for relation in relations_of(part, [head for _, head in listed], choices.relation):
                counts[relation.head.id] = f"{visible(relation.name)} {relation.found} of {len(relation.pairs)}"
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
    yield RowTable(f"Heads to look at ({listed_of(len(rows), n_heads)})", columns, rows)


def _dashless(judged: Verdict | Role | None) -> float | str:
    baseline = score_and_baseline(judged)[1]
    return "" if baseline is None else baseline


def _label_text(head: HeadFindings) -> Text:
    return Text(head.shown, "dim" if head.mark else "")  # grey if it is an indication only


def _notes_on_heads(part: Analysis, heads: Sequence[HeadFindings], listed: Sequence[HeadFindings]) -> Text:
    uniform = part.context.uniform["distance_non_sink"] or 0.0
    distances = [(head.statistics["distance_non_sink"] or 0.0, head.id) for head in heads if SINK not in head.kinds]
    ranked = sorted((-away, id) for away, id in distances if away > uniform)[:_FARTHEST]
    named = ", ".join(f"{id} {-away:.2f}" for away, id in ranked)
    farthest = f"Farthest (no sinks), mean {part.units.name}s away (uniform attention {uniform:.2f}): {named}."
    verdicts = [head.labelled.verdict for head in listed if head.labelled.verdict]
    relations = [
        *((verdict.name, verdict.direction) for verdict in verdicts),
        *((head.role.role.removeprefix(SYNTACTIC), head.role.direction) for head in listed if head.role),
    ]
    known = dict.fromkeys(relation for relation in relations if relation_words(*relation))
    both = {name for name, times in Counter(name for name, _ in known).items() if times > 1}
    words = [
        f"{visible(role_name(name, direction if name in both else None))}: {relation_words(name, direction)}"
        for name, direction in known
    ]
    return notes(farthest if named else "", f"{'; '.join(words)}." if words else "")
