"""The tables of ``attnviz heads``: heads, roles, patterns, relations and notes."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from rich.console import Group, RenderableType
from rich.text import Text

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings, sorted_by_selection
from attnviz.commands.heads.first_look import LABEL, MOST_LISTED, look_rows, look_table, score_notes, sentences
from attnviz.commands.heads.spans import span_tables
from attnviz.judge.verdicts import ENOUGH, LEAST_N, Verdict
from attnviz.measures.contacts import CONTACTS
from attnviz.measures.patterns import NAMES, PATTERNS, REPEATS, SINK
from attnviz.measures.statistics import DIAGONALITY, NOWHERE
from attnviz.models.head_ids import ids_and_names
from attnviz.present.fields import Field, pick
from attnviz.present.figure_context import capital
from attnviz.present.published import role_name
from attnviz.present.statistics import statistic_field
from attnviz.present.tables import (
    RowTable,
    checked_line,
    cut_note,
    first_rows,
    glued,
    notes,
    target_note,
    verification_line,
)
from attnviz.present.view import ViewOptions
from attnviz.profiles.parts import SYNTACTIC
from attnviz.reference.attention import Chunk
from attnviz.wording import counted, rounded, visible

_STRONGEST, _RELATIONS, _MOST_LISTED = 5, 8, 12
_FEW_PAIRS = 3  # pairs of spans on the first screen
_FARTHEST = 3  # heads that attend farthest


def head_tables(analysis: Analysis, choices: ViewOptions) -> Iterator[RenderableType]:
    """What the heads do and those to look at; if verbose also patterns, every statistic, and notes."""
    _, names = ids_and_names(choices.select)
    chosen, target = analysis.select(choices.select), analysis.target
    rows = look_rows(analysis, choices, 0 if choices.verbose else MOST_LISTED)
    of_target = []
    if target is not None:
        of_target = [target_note(target.text, target.generated), cut_note(target.tokens, "target")]
    first, *others = sentences(analysis, choices)
    yield Text.assemble((first, "bold"), "\n\n", "\n".join(others))
    if rows:
        yield look_table(rows, len(chosen), choices)
    if not choices.verbose:
        yield from _contact_table(analysis, chosen, choices.rows(MOST_LISTED))
        yield from span_tables(analysis, chosen, choices.rows(_FEW_PAIRS), whole=False)
        below = notes(*of_target, *(score_notes(rows) if rows else ()))
        yield Group(below, checked_line(analysis.verification, analysis.checkpoint))
        return
    for part in analysis.parts_of(choices.select):
        heads = sorted_by_selection(part.select(choices.select), names)
        if part.stack is not None:
            yield Text(f"{capital(part.stack.name)} ({part.stack.letter}): {part.figure_context.text_line}", "bold")
        yield _farthest(part, heads)
        top = _MOST_LISTED if choices.top is None else choices.top or len(heads)
        clearest = "of what selected them" if names else "pattern"
        yield _head_table(part, heads, top, f"clearest {clearest} first")
        if len(heads) > 1:
            yield _pattern_table(heads)
    yield from _contact_table(analysis, chosen, choices.top)
    yield from span_tables(analysis, chosen, choices.top, whole=True)
    yield notes(*_notes(analysis), *of_target)
    yield verification_line(analysis.verification, analysis.checkpoint)


def _head_table(analysis: Analysis, ranked: Sequence[HeadFindings], top: int | None, order: str) -> RenderableType:
    context, unit = analysis.context, analysis.units.name
    listed = ["sink", "entropy", "confidence", "confidence_non_sink"]
    if context.source is not None:
        listed.insert(0, DIAGONALITY)
    else:
        listed += [NOWHERE] if context.learned_sinks else []
        listed += ["distance", "distance_non_sink", *(spec.statistic for spec in PATTERNS if spec.column)]
    columns: list[Field[HeadFindings]] = [
        Field("Head", lambda head: head.id),
        Field("Label", lambda head: Text(head.shown, "dim" if head.mark else "")),  # grey if it is an indication only
        *pick(LABEL, "label_score", "label_baseline", "label_n"),
        *(_column(name, unit) for name in listed),
    ]
    uniform = {name: context.uniform.get(name) for name in ("entropy", "sink", NOWHERE, DIAGONALITY, *NAMES)}
    last = ["uniform", "", "", "", "", *(uniform.get(name, "") for name in listed)]
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
    of_roles: dict[str, list[tuple[HeadFindings, Verdict]]] = {}
    for head in heads:
        for verdict in head.verdicts:
            of_roles.setdefault(verdict.role, []).append((head, verdict))
    patterns, relations = [], []
    for role, entries in of_roles.items():
        n, base = entries[0][1].n, role.removeprefix(SYNTACTIC).partition(":")[0]
        if entries[0][1].relation is None:
            patterns.append(entries)
        elif n >= LEAST_N and (role == SYNTACTIC + base or n < of_roles[SYNTACTIC + base][0][1].n):
            relations.append(entries)  # no subtype that is all of its base
    rows = []
    for entries in [*patterns, *relations[:_RELATIONS]]:
        measured = [verdict for _, verdict in entries if verdict.score is not None] or [entries[0][1]]
        best = min(measured, key=lambda verdict: (-(verdict.score or 0.0), verdict.direction or ""))
        guess = "" if best.baseline is None else best.largest_baseline
        showing = f"{sum(verdict.holds for _, verdict in entries)}/{len(entries)}" if best.n >= ENOUGH else "–"
        name = role_name(best.name, best.direction)
        rows.append((name, _strongest(best, entries), best.baseline, guess, best.n, showing))
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


def _notes(analysis: Analysis) -> Iterator[str]:
    parse, unit = analysis.parse, analysis.units.name
    yield (
        "Label: what the head does on this text, by this text alone: sink if more than 0.6 of the attention rests "
        "on sinks; then, of the patterns that it shows, the one with the largest error reduction, (score - baseline) / "
        f"(1 - baseline); below n = {LEAST_N} no label. Show: heads above the threshold, for n of {ENOUGH} or more."
    )
    yield "The columns named content leave sinks out and scale each row to sum to 1 (after Voita et al. 2019)."
    repeats = sinks = ""
    if any(analysis.parts[0].context.counts[name] for name in REPEATS):
        repeats = f" In brackets, of induction and duplicate-token: the attention of repeated {unit}s."
    if analysis.sinks:
        tokens = analysis.tokens
        later = any(sink and position and not tokens.special[position] for position, sink in enumerate(tokens.sink))
        how = ", found: most heads of most layers give it over 0.3 of their attention (Gu et al. 2024)" if later else ""
        sinks = f" Sinks: {visible(analysis.sinks)}{how}."
    syntax = analysis.syntax_note
    if parse is not None:
        mapped = parse.vocabulary.mapped_from
        syntax = f"{parse.parser}, may be wrong{f' ({mapped} labels as {parse.vocabulary.name})' if mapped else ''}."
    yield (
        f"Baseline: uniform attention (long-range: the head's weights, keys shuffled), or the best guess.{repeats} n: "
        f"{unit}s or instances; below {ENOUGH} weak (?). A sink that also does something else counts under both kinds."
        f"{sinks} Parser: {syntax}"
    )
    yield _windows_note(analysis)


def _windows_note(analysis: Analysis) -> str:
    if not analysis.windowed:
        return ""
    causal, windows = analysis.context.causal, {context.window or 0 for context in analysis.windowed.values()}
    sizes = " or ".join(str(window if causal else window - 1) for window in sorted(windows))
    seen = (
        f"the last {sizes} tokens alone, itself included" if causal else f"itself and {sizes} tokens on each side alone"
    )
    if all(isinstance(window, Chunk) for window in windows):
        seen = f"its own chunk of {sizes} tokens alone, up to itself"
    return (
        f"Windows: in {counted(len(analysis.windowed), 'layer')} of {analysis.checkpoint.n_layers} a token sees "
        f"{seen}; baselines of these heads are of uniform attention within the window, the last row's of all."
    )


def _farthest(part: Analysis, heads: Sequence[HeadFindings]) -> Text:
    uniform = part.context.uniform["distance_non_sink"] or 0.0
    distances = [(head.statistics["distance_non_sink"] or 0.0, head.id) for head in heads if SINK not in head.kinds]
    ranked = sorted((-away, id) for away, id in distances if away > uniform)[:_FARTHEST]
    named = ", ".join(f"{id} {-away:.2f}" for away, id in ranked)
    mean = f"mean {part.units.name}s away (uniform attention {uniform:.2f})"
    return notes(f"Farthest (no sinks), {mean}: {named}." if named else "")
