"""The findings of one head: its label on this text and, kept apart, its role over a corpus."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from attnviz.arguments import did_you_mean
from attnviz.errors import UsageError
from attnviz.figures.families import family_of_label
from attnviz.judge.roles import Role
from attnviz.judge.rules import BROAD_SHARE
from attnviz.judge.verdicts import BOTH, DIAGONAL, LEAST_N, NO_LABEL, UNNAMED, Label, Verdict
from attnviz.language.universal import RELATIONS
from attnviz.measures.patterns import PATTERNS, RARE_WORD, RETRIEVAL, SINK, WRITTEN
from attnviz.models.head_ids import FORMS, HeadId
from attnviz.present.published import role_name
from attnviz.profiles.parts import SYNTACTIC
from attnviz.wording import visible

# Labels and roles but patterns and relations, which other texts or corpora may have.
_LABELS = ("coreference", "semantic", RETRIEVAL, RARE_WORD, *WRITTEN, DIAGONAL, UNNAMED, *NO_LABEL)


@dataclass(frozen=True)
class HeadFindings:
    """Numbers and verdicts of one head."""

    id: HeadId
    statistics: dict[str, float | None]  # by name (attnviz.measures.statistics.scalars); None where not measurable
    verdicts: tuple[Verdict, ...]
    labelled: Label  # from this text alone
    roles: tuple[Role, ...] | None = None  # over a corpus, by a stored profile, as that orders them; None without one
    alignment: tuple[int, ...] = ()  # of cross-attention, for each unit of the target that of the source it rests on

    def __repr__(self) -> str:
        return f"<HeadFindings of {self.title}>"

    @property
    def label(self) -> str:  # previous-token, syntactic:det, sink; local, unnamed, too short
        return self.labelled.name

    @property
    def judged(self) -> list[Verdict | Role]:  # what its label and its roles are made of
        return [*self.labelled.verdicts, *(self.roles or ())]

    @property
    def kinds(self) -> list[str]:
        """Families of the label: ``sink``, what it does among other tokens (``local``, ``syntactic``, …), or both."""
        return [family_of_label(name).name for name in self.label.split(BOTH)]

    @property
    def role(self) -> Role | None:
        """Its first role over the corpus: what it does, or sink where that is all; None without any."""
        return self.roles[0] if self.roles else None

    @property
    def role_label(self) -> str:
        """Its first role over the corpus as a label, after ``sink; `` where it is that, too; '' without a role."""
        names = [role.role for role in self.roles or ()]
        first = [SINK] if SINK in names[1:] else []
        return BOTH.join([*first, *names[:1]])

    @property
    def strongest(self) -> Verdict | None:
        """The verdict of the label, else the positional one of the largest error reduction."""
        positional = (verdict for verdict in self.verdicts if verdict.kind == "positional")
        measured = [verdict for verdict in positional if verdict.error_reduction is not None]
        return self.labelled.verdict or max(measured, key=lambda verdict: verdict.error_reduction or 0.0, default=None)

    @property
    def rank_key(self) -> tuple[bool, float]:
        """Sort key: heads with a label of a pattern first, by error reduction; broad ones by what exceeds its rule."""
        verdict = self.strongest
        return self.labelled.verdict is not None, float("-inf") if verdict is None else rank_value(verdict)

    @property
    def shown(self) -> str:  # the label for figures, with its mark
        return visible(self.labelled.shown)

    @property
    def title(self) -> str:
        """Id, label, and the role if it is another: ``L2H0 · obj (corpus)``, ``L2H8 · next-token? · det (corpus)``."""
        names = [str(self.id), self.shown]
        if self.role is not None and self.role.role not in self.label.split(BOTH):
            names = names[: 1 if self.label == UNNAMED else 2]
            names.append(f"{role_name(self.role.role, None)} (corpus)")
        return " · ".join(names)

    def found_as(self, names: Collection[str]) -> list[Verdict | Role]:
        """The parts of the label, and the roles, that any of these names selects."""
        wanted = set(map(str.casefold, names))
        return [part for part in self.judged if not wanted.isdisjoint(map(str.casefold, _names_of(part.role)))]

    @property
    def names(self) -> set[str]:  # of its labels and roles, in any form, in lower case
        labels = (*self.label.split(BOTH), *(role.role for role in self.roles or ()))
        return {form.casefold() for label in labels for form in _names_of(label)}

    @property
    def mark(self) -> str:  # a question mark if the label is an indication only
        return self.labelled.shown.removeprefix(self.label)


def clearest_first(heads: Sequence[HeadFindings], kind: str = "") -> list[HeadFindings]:
    """Sort heads by the clarity of their labels, or of their part of a kind; those that cannot be measured last."""

    def clarity(head: HeadFindings) -> tuple[bool, float]:
        verdicts = head.labelled.verdicts
        of_kind = [verdict for verdict in verdicts if family_of_label(verdict.role).name == kind]
        return (True, rank_value(of_kind[0])) if of_kind else head.rank_key

    return sorted(heads, key=clarity, reverse=True)


def sorted_by_selection(heads: Sequence[HeadFindings], names: Collection[str]) -> list[HeadFindings]:
    """Sort heads by what these names select them for, and let those roles lead their roles.

    The clearest of each name come first, in turn, then the next of each; heads that are selected by id come last, by
    their labels.
    """
    ranked = {head.id: head for head in clearest_first(heads)}
    named = []
    for name in names:
        clarity = {id: max(map(rank_value, parts)) for id, head in ranked.items() if (parts := head.found_as([name]))}
        named.append(sorted(clarity, key=clarity.__getitem__, reverse=True))
    in_turn = [id for turn in zip_longest(*named) for id in turn if id is not None]
    shown = []
    for head in map(ranked.__getitem__, dict.fromkeys([*in_turn, *ranked])):
        leading = {part.role for part in head.found_as(names)}
        roles = head.roles and tuple(sorted(head.roles, key=lambda role: role.role not in leading))
        shown.append(replace(head, roles=roles))
    return shown


def selected_verdict(head: HeadFindings, names: Collection[str]) -> Verdict | None:
    """The verdict on the text that one of these names selects, else that of the label."""
    selected = (part for part in head.found_as(names) if isinstance(part, Verdict))
    return next(selected, head.labelled.verdict)


def rank_value(judged: Verdict | Role) -> float:
    """How clear a verdict or role is: its error reduction; of broad, how far it exceeds its threshold."""
    if judged.error_reduction is not None:
        return judged.error_reduction
    return (min(judged.score or 0.0, 1.0) - BROAD_SHARE) / (1 - BROAD_SHARE)


def shorter(name: str) -> str:
    """The last part of a label or a role, a relation by its own name: ``det``, ``previous-token``."""
    return name.rpartition(BOTH)[2].removeprefix(SYNTACTIC)


def evidence(head: HeadFindings) -> str:
    """Score and baseline of the label's pattern, or of the nearest one."""
    verdict = head.strongest
    if head.label in NO_LABEL:
        return f"n = {head.labelled.n}: no label below {LEAST_N}"
    if verdict is None or verdict.score is None:
        return "not measurable on this text"
    if verdict.margin <= 0 and head.labelled.verdict is None:
        return "no positional pattern above uniform attention"
    name = role_name(verdict.name, verdict.direction)
    nearest = "" if head.labelled.verdict else "nearest: "
    repeats = "" if verdict.on_repeats is None else f" ({verdict.on_repeats:.2f} where a token repeats)"
    return f"{nearest}{name} {verdict.score:.2f}{repeats}{_guess(verdict)} · n = {verdict.n}"


def _guess(verdict: Verdict) -> str:
    """`` · uniform attention: 0.12``; '' of broad, whose score is itself a share of uniform attention."""
    baseline, name = verdict.baseline or 0.0, verdict.largest_baseline
    if verdict.kind == "broad":
        return ""
    if name.startswith(("+", "-")):
        name = f"offset {name}"
    name = {"shuffle": "its keys shuffled", "uniform": "uniform attention"}.get(name, name)
    return f" · {name}: {baseline:.2f}" if baseline >= 0.01 else f" · {name}: {baseline:.1g}"


def heads_named(names: Iterable[str], heads: Sequence[HeadFindings]) -> set[HeadId]:
    """The heads that have one of these labels or roles; UsageError where none has."""
    chosen = set[HeadId]()
    for name in map(str.casefold, names):
        ids = {head.id for head in heads if name in head.names}
        if not ids:
            raise UsageError(_no_head_message(name, heads))
        chosen |= ids
    return chosen


def _names_of(label: str) -> Iterator[str]:
    """Forms of a name: whole, short, relation, base relation, kind."""
    relation = label.removeprefix(SYNTACTIC)
    yield from (label, label.removesuffix("-token"), relation, relation.partition(":")[0], family_of_label(label).name)


def _no_head_message(name: str, heads: Sequence[HeadFindings]) -> str:
    labels = Counter(name for head in heads for name in head.label.split(BOTH))
    roles = Counter(role.role for head in heads for role in head.roles or ())
    counts = [
        ", ".join(f"{role_name(name, None)} ({count})" for name, count in names.most_common())
        for names in (labels, roles)
    ]
    of_corpus = f"roles {counts[1]}" if roles else "no roles"
    if all(head.roles is None for head in heads):
        of_corpus = "no roles over a corpus, because no stored profile of this model was read"
    listed = f"labels {counts[0]}; {of_corpus}."
    known = {"syntactic", *RELATIONS, *(form for label in (*PATTERNS, *_LABELS) for form in _names_of(label))}
    if name.removeprefix(SYNTACTIC).partition(":")[0] in known:
        return f"no head here is {visible(name)!r}: {listed}"
    return (
        f"cannot read the selection {visible(name)!r}: expected one of {FORMS}, or what a head is here: {listed}"
        f"{did_you_mean(name, known)}"
    )
