"""Tables for the terminal, made with rich: what was verified, the heads, the patterns."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.commands.heads.findings import Findings, HeadFindings
from attnviz.model.head_ids import HeadId
from attnviz.model.tokens import visible
from attnviz.patterns.profile_store import SYNTACTIC, HeadProfile, StoredRole
from attnviz.patterns.published import PublishedHead
from attnviz.patterns.registry import PATTERN_NAMES, REPEATS
from attnviz.patterns.verdicts import ENOUGH, Pattern
from attnviz.results.tables import add_row, error, number, plain_table

__all__ = [
    "head_table",
    "pattern_table",
    "profile_table",
    "published_table",
    "report",
    "verification_line",
]

_WIDE = 110
_WIDEST = 160
"""From here on the roles of a stored profile are a column of the heads' table."""

_BESIDE = 114
"""What the other columns of that table take at most."""

_STRONGEST = 3
_RELATIONS = 8
_DIRECTION = {
    "dependent_to_head": "dep→head",
    "head_to_dependent": "head→dep",
    "pronoun_to_name": "pronoun→name",
    "name_to_pronoun": "name→pronoun",
}

_SHARES = (("Conf", "confidence"), ("Sink", "sink"), ("Prev", "previous"), ("Curr", "current"), ("Next", "next"))
_FAR = (("Local", "local"), ("Long", "long_range"))


def report(findings: Findings, heads: Sequence[HeadFindings], *, top: int, width: int) -> RenderableType:
    """Everything that ``attnviz heads`` prints: the verified line, the head table, the pattern summary.

    Args:
        findings: of one text.
        heads: those to list.
        top: how many to list at most; 0 for all.
        width: columns of the terminal.
    """
    parts: list[RenderableType] = [verification_line(findings), head_table(findings, heads, top=top, width=width)]
    if findings.profile is not None and width < _WIDEST:
        parts.append(profile_table(_listed(heads, top), width=width))
    parts.append(pattern_table(heads, width=width))
    listed = {head.id for head in heads}
    published = [head for head in findings.published if head.id in listed]
    if published:
        parts.append(published_table(published))
    return Group(*(part for each in parts for part in (each, Text())), _notes(findings))


def verification_line(findings: Findings) -> Text:
    """One line: how many heads were compared with the model, and how closely they agree."""
    found, model = findings.verification, findings.checkpoint
    dtype = str(model.dtype).removeprefix("torch.")
    return Text.assemble(
        ("Verified", "bold green"),
        f" {found.heads_compared} heads in {model.n_layers} layers of {visible(model.name)} ({dtype}, {model.device}): "
        f"weights within {error(found.pattern_error)} of the model's own (tolerance {found.tolerance.pattern:.0e}), "
        f"outputs within {error(found.output_error)} of the largest (tolerance {found.tolerance.output:.0e}).",
    )


def head_table(findings: Findings, heads: Sequence[HeadFindings], *, top: int, width: int) -> Table:
    """Statistics of the heads, the clearest patterns first."""
    shown = _listed(heads, top)
    left_out = len(heads) - len(shown)
    unit = findings.units.name
    wide = width >= _WIDE
    count = f"{len(shown)} of {len(heads)}" if left_out else str(len(heads))
    table = plain_table(f"Heads ({count}, clearest pattern first)", wide)
    table.add_column("Head", no_wrap=True)
    table.add_column("Label", no_wrap=True)
    if wide:
        for name in ("Score", "Baseline", "n"):
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Entropy\n(nats)", justify="right", no_wrap=True)
    table.add_column(f"Distance\n({unit}s)", justify="right", no_wrap=True)
    for title, _ in (*_SHARES, *_FAR):
        table.add_column(title, justify="right", no_wrap=True)
    beside = findings.profile is not None and width >= _WIDEST
    if beside:
        table.add_column("Profile", no_wrap=True)
    for head in shown:
        numbers = [number(head.statistics[name]) for name in ("entropy", "distance")]
        numbers += [number(head.statistics[name]) for _, name in (*_SHARES, *_FAR)]
        evidence = _evidence(head.deciding) if wide else []
        roles = [_roles(head.profile, width - _BESIDE)] if beside else []
        add_row(table, [str(head.id), visible(head.label), *evidence, *numbers, *roles])
    table.add_section()
    baseline = ["uniform", "", *([""] * 3 if wide else []), number(findings.frame.entropy_uniform), "", ""]
    baseline += [
        number(findings.frame.sink_baseline),
        *(number(findings.frame.baselines[name]) for name in PATTERN_NAMES),
    ]
    add_row(table, baseline, style="dim")
    if left_out:
        more = "1 more head is" if left_out == 1 else f"{left_out} more heads are"
        table.caption = f"{more} left out: --top 0 lists all; heads.csv has them."
    return table


def pattern_table(heads: Sequence[HeadFindings], *, width: int) -> Table:
    """Each pattern with its strongest heads, score beside baseline, and how many heads pass."""
    wide = width >= _WIDE
    strongest = _STRONGEST + 2 if wide else _STRONGEST
    table = plain_table(f"Patterns (the {strongest} strongest heads of each, with their scores)", True)
    table.add_column("Pattern", no_wrap=True)
    table.add_column("Strongest heads", no_wrap=True)
    table.add_column("Baseline", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("Pass", justify="right", no_wrap=True)
    by_name: dict[tuple[str, str], list[tuple[HeadFindings, Pattern]]] = {}
    for head in heads:
        for pattern in head.patterns:
            by_name.setdefault((pattern.kind, pattern.name), []).append((head, pattern))
    relations = 0
    previous_kind = ""
    for (kind, _), entries in by_name.items():
        relations += kind == "syntactic"
        if relations > _RELATIONS:
            break
        if kind == "syntactic" and previous_kind != kind:
            table.add_section()
        previous_kind = kind
        add_row(table, _pattern_row(entries, strongest))
    more = len([kind for kind, _ in by_name if kind == "syntactic"]) - _RELATIONS
    if more > 0:
        rarer = "1 rarer relation is" if more == 1 else f"{more} rarer relations are"
        table.caption = f"{rarer} left out; heads.json has them."
    return table


def profile_table(heads: Sequence[HeadFindings], *, width: int) -> Group:
    """What a stored profile says of each head: the roles that pass, score beside baseline."""
    table = plain_table("")
    table.add_column("Head", no_wrap=True)
    table.add_column("Roles", no_wrap=True)
    for head in heads:
        add_row(table, [str(head.id), _roles(head.profile, width - len(" L00H00 "))])
    return Group(Text("Profile (roles over a corpus)", style="bold"), table)


def published_table(published: Sequence[PublishedHead]) -> Group:
    """What papers say of heads of this model, with what to know before one quotes it.

    Args:
        published: at least one.
    """
    papers = ", ".join(sorted({head.paper for head in published}))
    table = plain_table("")
    table.add_column("Role", no_wrap=True)
    table.add_column("Heads", no_wrap=True)
    by_role: dict[tuple[str, str | None], list[PublishedHead]] = {}
    for head in published:
        by_role.setdefault((head.role, head.direction), []).append(head)
    for (role, direction), heads in by_role.items():
        add_row(table, [_role_name(role, direction), "  ".join(_published(head) for head in heads)])
    notes = sorted({head.measured for head in published})
    notes += [f"{_role_name(head.role, None)}: {head.note}" for head in published if head.note]
    if any(head.by_name for head in published):
        notes.append("That this is the papers' model is judged by its name: a fine-tuned one may be another.")
    title = Text(f"Published ({papers}; not measured here)", style="bold")
    return Group(title, table, Text("\n".join(notes), style="dim"))


def _published(head: PublishedHead) -> str:
    scores = "" if head.score is None else f" {head.score:.3f} ({head.baseline:.3f})"
    return f"({head.id})" if head.weaker else f"{head.id}{scores}"


def _roles(profile: HeadProfile | None, room: int) -> str:
    """As many roles as the room has place for, at least one, and how many more there are."""
    if profile is None or not profile.roles:
        return "none"
    names = [_role(role) for role in profile.roles]
    lines = ["  ".join([*names[:count], *_more(len(names) - count)]) for count in range(len(names), 0, -1)]
    return next((line for line in lines if len(line) <= room), lines[-1])


def _more(count: int) -> list[str]:
    return [f"+{count}"] if count else []


def _role(role: StoredRole) -> str:
    return f"{_role_name(role.role, role.direction)} {number(role.score)} ({number(role.baseline)})"


def _role_name(role: str, direction: str | None) -> str:
    name = visible(role.removeprefix(SYNTACTIC))
    return name if direction is None else f"{name} {_DIRECTION.get(direction, visible(direction))}"


def _pattern_row(entries: list[tuple[HeadFindings, Pattern]], strongest: int) -> list[str]:
    first = entries[0][1]
    measured = sorted(
        (entry for entry in entries if entry[1].score is not None),
        key=lambda entry: (-(entry[1].score or 0.0), entry[1].direction or ""),
    )
    if not measured:
        why = "no token repeats" if first.kind == "repeats" and not first.n else "not measurable on this text"
        return [first.name, why, "–", str(first.n), "–"]
    best = measured[0][1]
    name, baseline = first.name, number(best.baseline)
    if first.kind == "syntactic":
        name = f"{first.name} {_DIRECTION[best.direction or '']}"
        baseline = f"{best.offset:+d}: {baseline}"
        measured = [entry for entry in measured if entry[1].direction == best.direction]
    if first.kind == "repeats":
        strongest -= 1  # a second number stands beside each
    shown = "  ".join(f"{head.id} {_scores(pattern)}" for head, pattern in measured[:strongest])
    passing = sum(pattern.passed for _, pattern in entries)
    return [name, shown, baseline, str(first.n), f"{passing}/{len(entries)}"]


def _notes(findings: Findings) -> Text:
    unit = findings.units.name
    lines = [
        f"Conf to Long are shares from 0 to 1. n: {unit}s (or instances of a relation) behind a score; below {ENOUGH} "
        "it is an indication only. One text shows what heads did here, not what they do."
    ]
    if any(findings.frame.counts[name] for name in REPEATS):
        lines.append(f"In brackets: mean attention of the n {unit}s with an earlier copy, which a label rests on.")
    if findings.parse is not None:
        lines.append(
            f"Syntax: parse by {findings.parse.parser}; baseline = best fixed offset (+1: the head is the next word)."
        )
    else:
        lines.append(f"Syntax: not measured: {findings.syntax_note}")
    if findings.profile is not None:
        whose = "shipped with attnviz" if findings.profile.shipped else "your own"
        lines.append(
            f"Profile: {whose}, measured on {visible(findings.profile.measured_on)}; in brackets "
            "the baseline. Labels of relations rest on it (--no-profile: on this text)."
        )
    if findings.tokens.truncated:
        lines.append(f"The text was cut: its last {findings.tokens.truncated} tokens were left out (--truncate).")
    return Text("\n".join(lines), style="dim")


def _listed(heads: Sequence[HeadFindings], top: int) -> list[HeadFindings]:
    return sorted(heads, key=_clearest)[: top or None]


def _clearest(head: HeadFindings) -> tuple[bool, float, HeadId]:
    deciding = head.deciding
    return deciding is None, -(head.strongest.margin if head.strongest else float("-inf")), head.id


def _evidence(pattern: Pattern | None) -> list[str]:
    if pattern is None:
        return ["–", "–", "–"]
    return [number(pattern.score), number(pattern.baseline), str(pattern.n)]


def _scores(pattern: Pattern) -> str:
    """The score, and for induction and duplicate-token the attention of those tokens that repeat."""
    if pattern.kind != "repeats":
        return number(pattern.score)
    return f"{number(pattern.score)} ({number(pattern.on_repeats)})"
