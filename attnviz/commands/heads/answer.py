"""What the heads do, in the first lines that ``attnviz heads`` prints: counts by kind, and the heads to look at."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from rich.console import Group
from rich.text import Text

from attnviz.commands.heads.analysis import Analysis
from attnviz.commands.heads.findings import HeadFindings, kind_of, rank_value, shorter
from attnviz.commands.heads.summary import KINDS, on_two_lines, role_text
from attnviz.judge.verdicts import ENOUGH, LEAST_N, UNNAMED, Verdict
from attnviz.language.universal import relation_words
from attnviz.measures.patterns import SINK
from attnviz.models.wording import counted, visible
from attnviz.present.fields import Field
from attnviz.present.published import beside, role_name
from attnviz.present.tables import column_table, first_that_fits, listed_of, notes, titled
from attnviz.profiles.parts import SYNTACTIC
from attnviz.profiles.store import StoredRole

_MISSION = ("local", "syntactic", "long-range")
_ALWAYS = (*_MISSION, SINK)
"""Kinds that are counted even where no head is of them."""

_OF_KIND, _FARTHEST = 3, 3
"""Heads of each of the kinds of the mission in the table, of other kinds one; and heads that attend farthest."""

_NARROW, WHOLE_NAME, _CUT_NAME = 80, 15, 9
"""Columns of a terminal on which names of labels and roles are whole, and least columns of a name there and below."""

_Row = tuple[str, HeadFindings]


def answer(part: Analysis, heads: Sequence[HeadFindings]) -> Iterator[Text]:
    """How many heads are of each kind, on the text and over a corpus, with the clearest of each. One is not counted."""
    n, unit = part.context.n_non_sink, part.units.name
    few = f" ({counted(n, f'content {unit}')}: indications only)" if LEAST_N <= n < ENOUGH else ""
    chosen = "" if len(heads) == len(part.heads) else f", {counted(len(heads), 'selected head')}"
    said = f"no labels, which need {LEAST_N} content {unit}s."
    if n >= LEAST_N:
        said = _counts([(head, head.on_text) for head in heads])
    if len(heads) > 1:
        yield Text.assemble((f"On this text{chosen}{few}: ", "bold"), said)
    if part.profile is not None and len(heads) > 1:
        yield Text.assemble(("Over a corpus: ", "bold"), _counts([(head, head.over_corpus) for head in heads]))
    elif part.profile is None and not part.checkpoint.stacks:
        corpus = "CORPUS.conllu" if part.checkpoint.architecture.has_words else "CORPUS.txt"
        command = f"attnviz profile {corpus} {visible(' '.join(part.checkpoint.model_options))}"
        yield Text.assemble(("Over a corpus: ", "bold"), f"not known of this model; {command} measures it.")


def _counts(heads: Sequence[tuple[HeadFindings, Sequence[tuple[str, Verdict | StoredRole]]]]) -> str:
    """``2 local (L0H2 previous-token 1.00) · 0 syntactic · …``, the clearest head of each kind in brackets.

    A head counts once for each kind of what was found of it.
    """
    by_kind: dict[str, list[tuple[float, HeadFindings, str]]] = {kind: [] for kind in (*_ALWAYS, *KINDS)}
    for head, found in heads:
        for kind in dict.fromkeys(kind_of(name) for name, _ in found):
            name, best = next(each for each in found if kind_of(each[0]) == kind)
            does = shorter(visible(name))
            words = (str(head.id), "" if does == kind else does, beside(best).partition(" ")[0])
            by_kind.setdefault(kind, []).append((-rank_value(best), head, " ".join(filter(None, words))))
    parts = []
    for kind, of_kind in by_kind.items():
        ranked = [words for _, _, words in sorted(of_kind, key=lambda each: (each[0], each[1].id))]
        shown = ranked[: 2 if kind == "syntactic" else 1]
        more = " …" * (kind == "syntactic" and len(ranked) > len(shown))
        if ranked or kind in _ALWAYS:
            examples = f" ({', '.join(shown)}{more})" if shown else ""
            parts.append(f"{len(ranked)} {kind}{examples}")
    return " · ".join([*parts, f"{sum(not found for _, found in heads)} {UNNAMED}"])


def telling_heads(
    part: Analysis, heads: Sequence[HeadFindings], chosen: int, names: Collection[str], width: int
) -> Iterator[Group]:
    """Table of the heads to look at: the first ``chosen``, or with 0 a few of each kind; then the farthest.

    ``names`` are labels and roles that selected them: their kinds stand first, beside the scores on the text.
    """
    rows = [(", ".join(_kinds_anywhere(head, names)), head) for head in heads[:chosen]] if chosen else _few(heads)
    least = WHOLE_NAME if width >= _NARROW else _CUT_NAME
    columns: list[Field[_Row]] = [
        Field("Kind", fit=_kind_text, left=True, least=10 if width >= _NARROW else 5),
        Field("Head", lambda row: row[1].id, left=True),
        Field("On this text", fit=lambda row, room: label_text(row[1], room), left=True, least=least),
        Field("Score", lambda row: beside(selected_verdict(row[1], names))),
        Field(
            "n",
            lambda row: getattr(selected_verdict(row[1], names), "n", row[1].labelled.n),
            optional=2,
        ),
    ]
    if part.profile is not None:
        columns += [
            Field("Over the corpus", fit=lambda row, room: role_text(part, row[1], room), left=True, least=least),
            Field("Score", lambda row: beside(row[1].role), optional=1),
            Field("n", lambda row: f"{row[1].role.n:,}" if row[1].role else "", optional=3),
        ]
    if rows:
        title = f"Heads to look at ({listed_of(len(rows), len(heads))})"
        below = notes(_farthest(part, heads), _in_words([head for _, head in rows]))
        yield Group(titled(title, column_table("", columns, rows, width=width)), *[below] * bool(below))


def _kind_text(row: _Row, room: int) -> str:
    return first_that_fits((row[0], row[0].replace(", ", ",\n")), room)


def _in_words(heads: Sequence[HeadFindings]) -> str:
    """What the relations are that these heads find: ``obj: object→verb; det: determiner→noun``; or ''.

    Of a relation that they find in both directions each stands with its arrow, as in the table.
    """
    labels = [(verdict.name, verdict.direction) for head in heads if (verdict := head.labelled.verdict)]
    roles = [(role.role.removeprefix(SYNTACTIC), role.direction) for head in heads if (role := head.role)]
    found = dict.fromkeys(each for each in [*labels, *roles] if relation_words(*each))
    both = {name for name, times in Counter(name for name, _ in found).items() if times > 1}
    named = [
        f"{visible(role_name(name, direction if name in both else None))}: {relation_words(name, direction)}"
        for name, direction in found
    ]
    return f"{'; '.join(named)}." if named else ""


def selected_verdict(head: HeadFindings, names: Collection[str]) -> Verdict | None:
    """The verdict on the text that one of these names selects, else that of the label."""
    selected = (found for _, found in head.found_as(names) if isinstance(found, Verdict))
    return next(selected, head.labelled.verdict)


def _kinds_anywhere(head: HeadFindings, names: Collection[str]) -> list[str]:
    """What a head is on the text or over the corpus, each kind once, those that these names select first."""
    found = [name for name, _ in (*head.found_as(names), *head.on_text, *head.over_corpus)]
    named = dict.fromkeys(map(kind_of, found))
    return [kind for kind in named if kind != UNNAMED] or [UNNAMED]


def _few(heads: Sequence[HeadFindings]) -> list[_Row]:
    """The clearest heads of each kind, each head once; those first that are of it on the text and over the corpus."""
    rows, left = list[_Row](), list(heads)
    for kind in KINDS:
        found = [(head, _of_kind(head.on_text, kind), _of_kind(head.over_corpus, kind)) for head in left]
        ranked = sorted(
            (each for each in found if each[1] or each[2]),
            key=lambda each: (not (each[1] and each[2]), -max([*each[1], *each[2]]), each[0].id),
        )
        new = [head for head, *_ in ranked[: _OF_KIND if kind in _MISSION else 1]]
        rows += [(kind, head) for head in new]
        left = [head for head in left if head not in new]
    return rows


def _of_kind(found: Sequence[tuple[str, Verdict | StoredRole]], kind: str) -> list[float]:
    """How clear what was found of a kind is."""
    return [rank_value(each) for name, each in found if kind_of(name) == kind]


def label_text(head: HeadFindings, room: int) -> Text:
    """The label, its two parts on two lines where it must; grey with a question mark if it is an indication only."""
    lines = on_two_lines(head.shown)
    forms = (head.shown, lines, lines.replace(SYNTACTIC, ""))
    return Text(first_that_fits(forms, room), "dim" if head.mark else "")


def _farthest(part: Analysis, heads: Sequence[HeadFindings]) -> str:
    """The heads that attend farther than uniform attention and do not rest on sinks, the farthest first; or ''."""
    uniform = part.context.uniform["distance_non_sink"] or 0.0
    known = [
        (away, head.id)
        for head in heads
        if (away := head.statistics["distance_non_sink"]) is not None and away > uniform and SINK not in head.kinds
    ]
    ranked = sorted(known, key=lambda each: (-each[0], each[1]))[:_FARTHEST]
    named = ", ".join(f"{id} {away:.2f}" for away, id in ranked)
    beside = f"mean {part.units.name}s away (uniform attention {uniform:.2f})"
    return f"Farthest (no sinks), {beside}: {named}." if named else ""
