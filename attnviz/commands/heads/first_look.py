"""The first look of ``attnviz heads``: three sentences and the heads to look at, for the terminal and the page."""

from collections import Counter
from collections.abc import Collection, Sequence

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings, selected_verdict, sorted_by_selection
from attnviz.commands.heads.relations import relations_of
from attnviz.commands.heads.summary import heads_to_look_at
from attnviz.judge.roles import Role
from attnviz.judge.verdicts import ENOUGH, LEAST_N, NO_LABEL, UNNAMED, Verdict
from attnviz.measures.patterns import SINK
from attnviz.measures.statistics import statistic_named
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import ids_and_names
from attnviz.models.tokens import sinks_in_words
from attnviz.present.fields import Field
from attnviz.present.figure_context import capital
from attnviz.present.published import score_and_baseline
from attnviz.present.role_words import family_words, role_words, short_name
from attnviz.present.statistics import statistic_field
from attnviz.present.tables import RowTable, listed_of
from attnviz.present.view import ViewOptions
from attnviz.profiles.parts import SYNTACTIC
from attnviz.wording import counted, quoted, rounded, visible

MOST_BESIDE_SPANS = 3  # heads that are listed above a table of spans

FEW = 100  # tokens of content below which a text is called short (our own choice)

LookRow = tuple[Analysis, HeadFindings]  # a part of the model, and one of its heads


def sentences(analysis: Analysis, heads: Sequence[HeadFindings]) -> list[str]:
    """What was read, what these heads do on it, and what to trust."""
    ids = {head.id for head in heads}
    of_parts = [(part, [head for head in part.heads if head.id in ids]) for part in analysis.parts]
    kinds = [kinds_sentence(part, chosen) for part, chosen in of_parts if len(chosen) > 1]
    return [subject(analysis), *kinds, *filter(None, [trust_sentence(analysis)])]


def subject(analysis: Analysis) -> str:
    """``minilm, 72 heads, on “The cat ran” (3 tokens, [CLS] and [SEP])``."""
    what = f"{analysis.checkpoint.short_name}, {counted(len(analysis.heads), 'head')}, on"
    if analysis.target is not None:
        return f"{what} {analysis.parts[-1].figure_context.text_line}"
    units = analysis.context.units
    size = counted(len(units) - sum(units.special), units.name)
    return f"{what} {quoted(analysis.text)} ({', '.join(filter(None, [size, _special_tokens(analysis)]))})"


def kinds_sentence(part: Analysis, heads: Sequence[HeadFindings]) -> str:
    """How many of the heads do what on this text."""
    n, unit = part.context.n_non_sink, part.units.name
    if n < LEAST_N:
        return f"{counted(n, unit)} besides sinks: too few to say what a head does, which takes {LEAST_N}."
    counts = Counter(kind for head in heads for kind in head.kinds)
    ranked = sorted(counts.items(), key=lambda item: (item[0] == UNNAMED, -item[1]))  # those without a pattern last
    sinks = sinks_in_words(part.context.keys, unit, special=_special_tokens(part)) or "sinks"
    said = [f"{count} {family_words(kind, count, unit, sinks)}" for kind, count in ranked]
    of_all = f"{counts[ranked[0][0]]} of {len(heads)}{' selected' if len(heads) < len(part.heads) else ''} heads"
    said[0] = said[0].replace(str(counts[ranked[0][0]]), of_all, 1)
    twice = " (a head can count twice)" if counts.total() > len(heads) else ""
    where = "" if part.stack is None else f"{capital(part.stack.name)}: "
    return f"{where}{'; '.join(said)}{twice}."


def trust_sentence(analysis: Analysis) -> str:
    """Whether to trust this text or the stored profile, and of which corpora; without one what makes it."""
    n, unit, profile = analysis.context.n_non_sink, analysis.units.name, analysis.profile
    few = f"{counted(n, unit)} {'is' if n == 1 else 'are'} few" if LEAST_N <= n < FEW else ""
    if profile is not None:
        trust = f"{few}: trust “corpus”," if few else "“corpus” is"
        return f"{trust} a stored profile over {visible(profile.measured_on)}."
    if analysis.checkpoint.stacks or not analysis.verification.level:
        return ""
    begins = f"{few}; to" if few else "To"
    return f"{begins} measure every head over a corpus: {profile_command(analysis.checkpoint)}"


def profile_command(checkpoint: Checkpoint) -> str:
    """The command that measures every head of a model over a corpus."""
    corpus = "CORPUS.conllu" if checkpoint.architecture.has_words else "CORPUS.txt"
    return f"attnviz profile {corpus} {visible(' '.join(checkpoint.model_options))}".strip()


def look_rows(analysis: Analysis, choices: ViewOptions, most: int) -> list[LookRow]:
    """The heads to look at, of every kind of attention equally many, or those that are selected; 0 for all of them."""
    _, names = ids_and_names(choices.select)
    parts, rows = analysis.parts_of(choices.select), list[LookRow]()
    beside_spans = MOST_BESIDE_SPANS if analysis.spans and most else most
    for part in parts:
        heads = sorted_by_selection(part.select(choices.select), names)
        limit = beside_spans // len(parts) or len(heads)
        chosen = heads[:limit] if choices.select else [head for _, head in heads_to_look_at(heads, limit)]
        rows += [(part, head) for head in chosen]
    return rows


def look_table(
    rows: Sequence[LookRow], n_heads: int, names: Collection[str], choices: ViewOptions
) -> RowTable[LookRow]:
    """What each head does over the corpus, or without a profile on this text.

    ``names`` are those that selected the heads, which say for what a head is listed.
    """
    unit, has_profile = rows[0][0].units.name, any(part.profile is not None for part, _ in rows)

    def judged(row: LookRow) -> Role | Verdict | None:
        return row[1].role if has_profile else selected_verdict(row[1], names)

    def numbers(row: LookRow) -> tuple[float | None, float | None]:
        return score_and_baseline(judged(row))

    def n_of(row: LookRow) -> str:
        found = judged(row)
        return "" if found is None else f"{found.n:,}"

    columns: list[Field[LookRow]] = [
        Field("Head", lambda row: row[1].id),
        Field("Over the corpus" if has_profile else "On this text", lambda row: _does(*row, judged(row))),
        Field("Name", lambda row: short_name(_role_of(judged(row)))),
        Field("Score", lambda row: _blank(numbers(row)[0])),
        Field("Guess", lambda row: _blank(numbers(row)[1])),
        Field("n", n_of),
    ]
    if has_profile:
        columns.append(Field("On this text", lambda row: on_this_text(*row)))
    if choices.relation:
        counts = {}
        for part in dict.fromkeys(part for part, _ in rows):
            for relation in relations_of(part, [head for of, head in rows if of is part], choices.relation):
                counts[relation.head.id] = f"{visible(relation.name)} {relation.found} of {len(relation.pairs)}"
        columns.insert(3, Field("Finds", lambda row: counts.get(row[1].id, "")))
    for name in dict.fromkeys(map(statistic_named, choices.maps)):
        columns.append(statistic_field(name, lambda row, name=name: row[1].statistics.get(name), unit))  # type: ignore[misc]
    return RowTable(
        f"Heads to look at ({listed_of(len(rows), n_heads)}); a score is from n tokens or pairs", columns, rows
    )


def on_this_text(part: Analysis, head: HeadFindings) -> str:
    """Whether a head does on this text what it does over the corpus; the label of a head that does nothing there."""
    resting = SINK in head.kinds
    role = head.role
    if role is None:
        verdict = head.labelled.verdict
        return head.shown if verdict is None else f"{short_name(head.label)} ({rounded(verdict.judged[0])})"
    wanted = role.relation or role.role
    verdict = next((found for found in head.verdicts if found.name == wanted), None)
    if role.relation is not None and part.parse is None:
        return "not parsed"
    if verdict is None:
        return "none here" if role.relation is not None else "not looked for"
    if verdict.n < LEAST_N or (role.relation is not None and not verdict.enough):
        return "too few" if verdict.n else "none here"
    shows = verdict.holds and verdict.direction == role.direction
    if resting and wanted != SINK:
        return "yes, and sinks" if shows else "mostly sinks"
    return f"{'yes' if shows else 'no'} ({rounded(verdict.judged[0])})"


def guess_note(analysis: Analysis, rows: Sequence[LookRow]) -> str:
    """What a guess is, and the command that shows one of the heads."""
    note = "Guess: uniform attention, or the best of six rules."
    if analysis.profile is None:
        return f"{note} n below {ENOUGH}: weak."
    shown = next((head.id for _, head in rows if head.role is not None and not head.role.describes), None)
    if shown is None:
        return note
    named = [] if analysis.checkpoint.name == "minilm" else analysis.checkpoint.model_options
    return f"{note} One head: {visible(' '.join(['attnviz card', str(shown), *named]))}"


def _special_tokens(analysis: Analysis) -> str:
    units = analysis.context.keys
    labels = zip(units.labels, units.special, strict=True)
    return " and ".join(dict.fromkeys(visible(label) for label, special in labels if special))


def _does(part: Analysis, head: HeadFindings, judged: Role | Verdict | None) -> str:
    """What a head does, in words, and whether it does so beside sinks."""
    if judged is None:
        return head.label if head.label in NO_LABEL else f"shows {'no role' if part.profile else 'no pattern'}"
    role = _role_of(judged)
    words = role_words(role, judged.direction, "token" if isinstance(judged, Role) else part.units.name)
    label = head.role_label if isinstance(judged, Role) else head.label
    return f"{words}, beside sinks" if role != SINK and label.startswith(SINK) else words


def _role_of(judged: Role | Verdict | None) -> str:
    if judged is None:
        return UNNAMED
    if isinstance(judged, Role):
        return judged.role
    return f"{SYNTACTIC}{judged.name}" if judged.kind == "syntactic" else judged.name


def _blank(value: float | None) -> float | str:
    return "" if value is None else value
