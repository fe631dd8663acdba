"""The first look of ``attnviz heads``: three sentences, the heads to look at, and the summary by kind."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from attnviz.analysis.findings import (
    HeadFindings,
    clearest_first,
    rank_value,
    selected_verdict,
)
from attnviz.analysis.result import Analysis, Part
from attnviz.commands.heads.relations import relations_of
from attnviz.figures.families import family_of_label
from attnviz.inputs.prompt import sinks_in_words
from attnviz.judge.roles import Role
from attnviz.judge.verdicts import ENOUGH, LEAST_N, NO_LABEL, UNNAMED, Verdict
from attnviz.measures.patterns import SINK, describes
from attnviz.measures.statistics import statistic_named
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, ids_and_names
from attnviz.present.documents import layer_entry
from attnviz.present.fields import Field, Table, entry, listed_of
from attnviz.present.figure_context import capital
from attnviz.present.published import role_numbers, score_and_baseline
from attnviz.present.role_words import family_words, role_words, short_name
from attnviz.present.statistics import statistic_field
from attnviz.present.view import ViewOptions
from attnviz.wording import counted, rounded, visible

MOST_BESIDE_SPANS = 3  # heads that are listed above a table of spans

FEW = 100  # tokens below which a text is called short (our own choice)


LABEL_KINDS = ("local", "syntactic", "long-range", "sink", "repeats", "broad", "other", "unnamed")  # in this order
MISSION = ("local", "syntactic", "long-range")  # of these up to three heads are among those to look at, of others one
_NOT_KNOWN = ("", "not parsed", "corpus only", "too few")  # of what is seen on a text
MOST_LISTED = 6  # heads to look at
MOST_DRAWN = 144  # heads that have a heatmap each by default: those of BERT-base, GPT-2; of more those to look at


class LookRow(NamedTuple):
    """A head, and what it does: over the corpus, or on this text."""

    head: HeadFindings
    judged: Role | Verdict | None


def sentences(analysis: Analysis, choices: ViewOptions) -> list[str]:
    """What was read, what the selected heads do on it, and what to trust."""
    of_parts = [(part, part.select(choices.select)) for part in analysis.parts]
    kinds = [kinds_sentence(part, heads) for part, heads in of_parts if len(heads) > 1]
    decided = f"The model decides {analysis.decision.in_words}." if analysis.decision else ""
    return [subject(analysis), *filter(None, [decided, *kinds, trust_sentence(analysis)])]


def subject(analysis: Analysis) -> str:
    """``minilm, 72 heads, on “The cat ran” (5 tokens)``."""
    heads = counted(len(analysis.heads), "head")
    return f"{analysis.checkpoint.short_name}, {heads}, on {analysis.figure_context.text_line}"


def kinds_sentence(part: Part, heads: Sequence[HeadFindings]) -> str:
    """How many of the heads do what on this text."""
    n, unit = part.context.n_non_sink, part.units.name
    if n < LEAST_N:
        return f"{counted(n, unit)} besides sinks: too few to say what a head does, which takes {LEAST_N}."
    counts = Counter(kind for head in heads for kind in head.kinds)
    ranked = sorted(counts.items(), key=lambda item: (item[0] == UNNAMED, -item[1]))  # those without a pattern last
    keys = part.context.keys
    special = dict.fromkeys(visible(keys.labels[at]) for at, is_special in enumerate(keys.special) if is_special)
    sinks = sinks_in_words(keys, unit, special=" and ".join(special)) or "sinks"
    said = []
    for place, (kind, count) in enumerate(ranked):
        of_all = f" of {len(heads)}{' selected' if len(heads) < len(part.heads) else ''} heads" if place == 0 else ""
        said.append(f"{count}{of_all} {family_words(kind, count, unit, sinks)}")
    twice = " (some count twice)" if counts.total() > len(heads) else ""
    return f"{capital(part.name) or 'On this text'}: {'; '.join(said)}{twice}."


def trust_sentence(analysis: Analysis) -> str:
    """Whether to trust this text or the stored profile, and of which corpora; without one what makes it."""
    n, unit = len(analysis.context.units), analysis.units.name
    few = f"{counted(n, unit)} are few" if 1 < n < FEW else ""
    if analysis.profile is not None:
        trust = f"{few}: trust the column “Over the corpus”," if few else "“Over the corpus” is"
        return f"{trust} a stored profile of {corpora_of(analysis, analysis.heads)}."
    if not analysis.verification.level or analysis.checkpoint.stacks:
        return ""
    begins = f"{few}; to" if few else "To"
    return f"{begins} measure every head over a corpus: {profile_command(analysis.checkpoint)}"


def profile_command(checkpoint: Checkpoint) -> str:
    """The command that measures every head of a model over a corpus."""
    corpus = "CORPUS.conllu" if checkpoint.architecture.has_words else "CORPUS.txt"
    return f"attnviz profile {corpus} {visible(' '.join(checkpoint.model_options))}".strip()


def look_rows(analysis: Analysis, choices: ViewOptions, most: int) -> list[LookRow]:
    """The heads to look at, of every kind of attention equally many, or those that are selected; 0 for all of them.

    Each with what it does over the corpus, or without a profile on this text, for which it is listed.
    """
    _, names = ids_and_names(choices.select)
    parts, heads = analysis.parts_of(choices.select), list[HeadFindings]()
    limit = (MOST_BESIDE_SPANS if analysis.spans and most else most) // len(parts)
    for part in parts:
        ranked = part.ranked(choices.select)
        count = limit or len(ranked)
        heads += ranked[:count] if choices.select else heads_to_look_at(ranked, count)
    return [LookRow(head, head.role if analysis.profile else selected_verdict(head, names)) for head in heads]


def look_table(analysis: Analysis, rows: Sequence[LookRow], choices: ViewOptions) -> Table[LookRow]:
    """What each head does over the corpus, or without a profile on this text."""
    unit, model = analysis.units.name, analysis.checkpoint
    columns: list[Field[LookRow]] = [
        Field("Head", "head.id"),
        Field("Over the corpus" if analysis.profile else "On this text", lambda row: does(analysis, *row)),
        Field("Name", lambda row: short_name(row.judged.role) if row.judged else ""),
        Field("Score", lambda row: score_and_baseline(row.judged)[0] if row.judged else ""),
        Field("Guess", lambda row: score_and_baseline(row.judged)[1] if row.judged else ""),
        Field("n", lambda row: f"{row.judged.n:,}" if row.judged else ""),
    ]
    if analysis.profile:
        columns.append(Field("On this text", lambda row: on_this_text(analysis, row.head)))
    if choices.relation:
        relations = relations_of(analysis, [row.head for row in rows], choices.relation)
        counts = {each.head.id: f"{visible(each.name)} {each.found} of {len(each.pairs)}" for each in relations}
        columns.insert(3, Field("Finds", lambda row: counts.get(row.head.id, "")))
    for name in dict.fromkeys(map(statistic_named, choices.maps)):
        columns.append(statistic_field(name, unit, "head.statistics.{}"))
    title = f"Heads to look at ({listed_of(len(rows), len(analysis.select(choices.select)))})"
    with_role = [str(row.head.id) for row in rows if row.head.role is not None]
    if with_role:
        named = [] if model.name == "minilm" else model.model_options
        title += f"; more of one: {visible(' '.join(['attnviz card', with_role[0], *named]))}"
    return Table(title, columns, rows)


def on_this_text(analysis: Analysis, head: HeadFindings) -> str:
    """Whether a head does on this text what it does over the corpus; the label of a head that does nothing there."""
    word, score = seen(analysis, head)
    if not word:
        word, score = head.shown, head.labelled.judged[0]
        word = word if head.labelled.verdict is None else short_name(head.label)
    return word if score is None else f"{word} ({rounded(score)})"


def in_text(analysis: Analysis, head: HeadFindings) -> bool | None:
    """Whether a head does on this text what it does over the corpus; None where that is not known."""
    word, _ = seen(analysis, head)
    return None if word in _NOT_KNOWN else word.startswith("yes")


def seen(analysis: Analysis, head: HeadFindings) -> tuple[str, float | None]:
    """:func:`on_this_text` of a head with a role, and the score, if that tells of it; '' without a role."""
    role = head.role
    if role is None:
        return "", None
    if role.relation is not None and analysis.parse is None:
        return "not parsed", None
    verdict = next((found for found in head.verdicts if found.role == role.role), None)
    if verdict is None:
        return "none here" if role.relation is not None else "corpus only", None
    if verdict.n < LEAST_N or (role.relation is not None and not verdict.enough):
        return "too few" if verdict.n else "none here", None
    shows = verdict.holds and verdict.direction == role.direction
    if SINK in head.kinds and role.role != SINK:
        return "yes, and sinks" if shows else "mostly sinks", None
    return "yes" if shows else "no", verdict.judged[0]


def score_notes(analysis: Analysis, rows: Sequence[LookRow]) -> list[str]:
    """What scores and guesses are."""
    shown = {row.judged.role for row in rows if row.judged}
    others = {"semantic": "semantic: a cosine", "broad": "broad: of uniform entropy"}
    score = "; ".join(["share of attention, or of n pairs found", *(others[r] for r in others if r in shown)])
    guess = "the same for uniform attention, or the best of six rules"
    weak = "" if analysis.profile else f" n below {ENOUGH}: weak."
    return [f"Score: {score}.", f"Guess: {guess}.{weak}"]


def does(analysis: Analysis, head: HeadFindings, judged: Role | Verdict | None) -> str:
    """What a head does, in words, and whether it does so beside sinks."""
    if judged is None:
        return head.label if head.label in NO_LABEL else f"shows {'no role' if analysis.profile else 'no pattern'}"
    words = role_words(judged.role, judged.direction, "token" if isinstance(judged, Role) else analysis.units.name)
    label = head.role_label if isinstance(judged, Role) else head.label
    return f"{words}, beside sinks" if judged.role != SINK and label.startswith(SINK) else words


def unless_seen(analysis: Analysis, head: HeadFindings) -> str:
    """`` (none here)`` and the like after a role that this text does not show; else ''."""
    return "" if head.role is None or in_text(analysis, head) else f" ({seen(analysis, head)[0]})"


def over_corpus(analysis: Analysis, head: HeadFindings) -> str:
    """``over the corpus: from object to verb (not here), score 0.74, baseline 0.36, n = 1,190``; '' without a role."""
    role = head.role
    if role is None:
        return ""
    return f"over the corpus: {does(analysis, head, role)}{unless_seen(analysis, head)}, {role_numbers(role)}"


def labels_and_roles(analysis: Analysis, heads: Sequence[HeadFindings]) -> str:
    """Heads with their labels, and the roles over the corpus if there are any, for captions."""
    names = ("; ".join(filter(None, (head.shown, over_corpus(analysis, head)))) for head in heads)
    return ", ".join(f"{head.id} ({name})" for head, name in zip(heads, names, strict=True))


def corpora_of(analysis: Analysis, heads: Sequence[HeadFindings]) -> str:
    """The corpora that measured the first roles of these heads; of the whole profile where none has a role."""
    assert analysis.profile is not None
    roles = [head.role for head in heads if head.role is not None]
    return visible(analysis.profile.measured_by(roles) or analysis.profile.measured_on)


def summary_entry(part: Part, heads: Sequence[HeadFindings]) -> dict[str, Any]:
    """``summary`` of heads.json: heads, labels and the best head by kind, and kinds by layer."""
    shown = [(head, set(map(_kind_of, head.kinds))) for head in heads]
    counts = Counter((head.id.layer, kind) for head, of_head in shown for kind in of_head)
    kinds = {}
    for kind in LABEL_KINDS:
        of_kind = [head for head, of_head in shown if kind in of_head]
        best = next((head for head in clearest_first(of_kind, kind) if head.labelled.verdicts), None)
        kinds[kind] = {
            "heads": len(of_kind),
            "labels": dict(Counter(head.label for head in of_kind).most_common()),
            "best": best and {"id": best.id, "see": f"--select {best.id}", **entry(LABEL, best)},
        }
    layers = dict.fromkeys(head.id.layer for head in heads)
    return {
        "heads": len(heads),
        "n": part.context.n_non_sink,
        "kinds": kinds,
        "layers": [layer_entry(layer) | {kind: counts[layer, kind] for kind in LABEL_KINDS} for layer in layers],
    }


def heads_to_look_at(heads: Sequence[HeadFindings], most: int = MOST_LISTED) -> list[HeadFindings]:
    """The clearest heads of each kind, each head once, up to ``most``: first by roles that are evidence, over a corpus.

    Then by roles that only describe, then by the labels of heads without a role.
    """
    places = dict[HeadId, tuple[int, int, int]]()
    for order, kind in enumerate(LABEL_KINDS):
        of_kind = []
        for head in heads:
            judged: Sequence[Role | Verdict] = [head.role] if head.role else head.labelled.verdicts
            clarity = [rank_value(part) for part in judged if _kind_of(part.role) == kind]
            if clarity and head.id not in places:
                evidence = 2 if head.role is None else int(describes(head.role.role))  # the least is the best
                of_kind.append((evidence, -max(clarity), head.id))
        for place, (evidence, _, id) in enumerate(sorted(of_kind)[: 3 if kind in MISSION else 1]):
            places[id] = evidence, place, order
    kept = sorted(places, key=places.__getitem__)[:most]
    by_id = {head.id: head for head in heads}
    return [by_id[id] for id in sorted(kept, key=lambda id: places[id][:0:-1])]  # by kind, then by place


def _kind_of(name: str) -> str:
    kind = family_of_label(name).name
    return kind if kind in LABEL_KINDS else "other"


def listed_heads(analysis: Analysis) -> list[HeadFindings]:
    """The heads to look at, of every kind of attention equally many; the first one where no head stands out."""
    most = MOST_LISTED // len(analysis.parts)
    listed = [head for part in analysis.parts for head in heads_to_look_at(part.heads, most)]
    return listed or list(analysis.heads[:1])


# The label of a head and the verdict behind it; None for what is unknown.
LABEL: tuple[Field[HeadFindings], ...] = (
    Field(name="label", meaning="what the head does on this text"),
    Field(
        "Score",
        lambda head: head.labelled.judged[0],
        name="label_score",
        meaning="share of attention, or of right guesses",
    ),
    Field(
        "Baseline", lambda head: head.labelled.judged[1], name="label_baseline", meaning="the same of the best guess"
    ),
    Field(value="labelled.error_reduction", name="label_error_reduction"),
    Field("n", "labelled.n", name="label_n", meaning="pairs of tokens or words, or positions"),
    Field(value="labelled.certain", name="label_certain"),
)
