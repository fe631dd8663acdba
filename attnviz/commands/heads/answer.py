"""What the heads do, in the first lines that ``attnviz heads`` prints: counts by kind, and the heads to look at."""

from collections.abc import Iterator, Sequence

from rich.console import Group
from rich.text import Text

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings, clearest_first, kind_of, shorter
from attnviz.commands.heads.summary import KINDS, role_text
from attnviz.judge.verdicts import ENOUGH, LEAST_N, UNNAMED, Verdict
from attnviz.measures.patterns import SINK
from attnviz.models.wording import counted, rounded, shortened, visible
from attnviz.present.fields import Field
from attnviz.present.published import beside, score_text
from attnviz.present.tables import column_table, listed_of, notes, titled
from attnviz.profiles.store import StoredRole

_MISSION = ("local", "syntactic", "long-range")
_ALWAYS = (*_MISSION, SINK)
"""Kinds that are counted even where no head is of them."""

_OF_KIND, _FARTHEST = 3, 3
"""Heads of each of the kinds of the mission in the table, of other kinds one; and heads that attend farthest."""

_Row = tuple[str, HeadFindings]


def answer(part: Analysis, heads: Sequence[HeadFindings]) -> Iterator[Text]:
    """How many heads are of each kind, on the text and over a corpus, with the clearest of each."""
    n, unit = part.context.n_non_sink, part.units.name
    few = f" ({counted(n, f'content {unit}')}: indications only)" if n < ENOUGH else ""
    ranked = clearest_first(heads)
    labels = [[(name, verdict.judged[0]) for name, verdict in head.on_text] for head in ranked]
    said = _counts(ranked, labels) if n >= LEAST_N else f"no labels, which need {LEAST_N} content {unit}s."
    yield Text.assemble((f"On this text{few}: ", "bold"), said)
    if part.profile is not None:
        ranked = sorted(heads, key=lambda head: -((head.role and head.role.error_reduction) or 0.0))
        roles = [[(name, role.score) for name, role in head.over_corpus] for head in ranked]
        yield Text.assemble(("Over a corpus: ", "bold"), _counts(ranked, roles))
    elif not part.checkpoint.stacks:
        command = f"attnviz profile CORPUS.conllu --model {visible(part.checkpoint.name)}"
        yield Text.assemble(("Over a corpus: ", "bold"), f"not known of this model; {command} measures it.")


def _counts(heads: Sequence[HeadFindings], found: Sequence[Sequence[tuple[str, float | None]]]) -> str:
    """``2 local (L0H2 previous 1.00) · 0 syntactic · …``, of heads, the clearest first, and what each does."""
    by_kind: dict[str, list[str]] = {kind: [] for kind in (*_ALWAYS, *KINDS)}
    for head, names in zip(heads, found, strict=True):
        for name, score in names:
            kind, does = kind_of(name), shorter(visible(name))
            words = (str(head.id), "" if does == kind else does, "" if score is None else score_text(score, name))
            by_kind.setdefault(kind, []).append(" ".join(filter(None, words)))
    parts = []
    for kind, best in by_kind.items():
        shown = best[: 2 if kind == "syntactic" else 1]
        more = " …" * (kind == "syntactic" and len(best) > len(shown))
        if best or kind in _ALWAYS:
            examples = f" ({', '.join(shown)}{more})" if shown else ""
            parts.append(f"{len(best)} {kind}{examples}")
    return " · ".join([*parts, f"{sum(not names for names in found)} {UNNAMED}"])


def telling_heads(part: Analysis, heads: Sequence[HeadFindings], chosen: int, width: int) -> Iterator[Group]:
    """Table of the heads to look at: the clearest ``chosen`` ones, or with 0 a few of each kind; then the farthest."""
    rows = [(", ".join(_kinds(head)), head) for head in clearest_first(heads)[:chosen]] if chosen else _few(heads)
    columns: list[Field[_Row]] = [
        Field("Kind", lambda row: row[0], left=True, least=5),
        Field("Head", lambda row: row[1].id, left=True),
        Field("On this text", fit=lambda row, room: label_text(row[1], room), left=True, least=9),
        Field("Score", lambda row: _scores([each for _, each in row[1].on_text])),
        Field("n", lambda row: row[1].labelled.n),
    ]
    if part.profile is not None:
        columns += [
            Field("Over the corpus", fit=lambda row, room: role_text(part, row[1], room), left=True, least=9),
            Field("Score", lambda row: _scores([each for _, each in row[1].over_corpus])),
            Field("n", lambda row: f"{row[1].role.n:,}" if row[1].role else ""),
        ]
    if rows:
        title = f"Heads to look at ({listed_of(len(rows), len(heads))}; --select {rows[0][1].id} shows one)"
        far = _farthest(part, heads)
        yield Group(titled(title, column_table("", columns, rows, width=width)), *[notes(far)] * bool(far))


def _kinds(head: HeadFindings) -> list[str]:
    """What a head is on the text or over the corpus, each kind once."""
    named = dict.fromkeys([*head.kinds, *(kind_of(name) for name, _ in head.over_corpus)])
    return [kind for kind in named if kind != UNNAMED] or [UNNAMED]


def _few(heads: Sequence[HeadFindings]) -> list[_Row]:
    """The clearest heads of each kind, each head once; those first that are of it on the text and over the corpus."""
    rows, left = list[_Row](), list(heads)
    for kind in KINDS:
        of_kind = [(_reductions(head, kind), head) for head in left]
        ranked = sorted(
            (each for each in of_kind if each[0]), key=lambda each: (-len(each[0]), -max(each[0]), each[1].id)
        )
        new = [head for _, head in ranked[: _OF_KIND if kind in _MISSION else 1]]
        rows += [(kind, head) for head in new]
        left = [head for head in left if head not in new]
    return rows


def _reductions(head: HeadFindings, kind: str) -> list[float]:
    """Error reductions of what a head does of a kind, on the text and over the corpus."""
    found: list[tuple[str, Verdict | StoredRole]] = [*head.on_text, *head.over_corpus]
    return [each.error_reduction or 0.0 for name, each in found if kind_of(name) == kind]


def label_text(head: HeadFindings, room: int) -> Text:
    """The label, shortened to fit; grey with a question mark if it is an indication only."""
    name, mark = visible(head.label), head.mark
    forms = (name, name.replace("-token", ""), shorter(name))
    form = next((form for form in forms if len(form) + len(mark) <= room), None)
    return Text((form or shortened(shorter(name), room - len(mark))) + mark, "dim" if mark else "")


def _scores(found: Sequence[Verdict | StoredRole]) -> str:
    """Score beside baseline of the last of what was found, which is what a head does beside resting on sinks."""
    return beside(found[-1]) if found else "–"


def _farthest(part: Analysis, heads: Sequence[HeadFindings]) -> str:
    """The heads with the largest long-range score that do not rest on sinks, whether they pass or not; or ''."""
    known = [
        (score, head.statistics["distance_non_sink"] or 0.0, head.id)
        for head in heads if (score := head.statistics["long_range"]) and SINK not in head.kinds
    ]  # fmt: skip
    ranked = sorted(known, key=lambda each: (-each[0], each[2]))[:_FARTHEST]
    named = ", ".join(f"{id} {rounded(score)} ({away:.1f})" for score, away, id in ranked)
    return f"Farthest but for sinks (mean distance in {part.units.name}s): {named}." if named else ""
