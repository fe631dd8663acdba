"""Tables for the terminal, made with rich: what was verified, the heads, the patterns."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnviz.findings import Findings, HeadFindings
from attnviz.heads import HeadId
from attnviz.patterns import ENOUGH, PATTERN_NAMES, Pattern
from attnviz.tokens import visible

__all__ = ["head_table", "pattern_table", "report", "verification_line"]

_WIDE = 110
_STRONGEST = 3
_RELATIONS = 8
_DIRECTION = {"dependent_to_head": "dep→head", "head_to_dependent": "head→dep"}

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
    return Group(
        verification_line(findings),
        Text(),
        head_table(findings, heads, top=top, width=width),
        Text(),
        pattern_table(heads, width=width),
        Text(),
        _notes(findings),
    )


def verification_line(findings: Findings) -> Text:
    """One line: how many heads were compared with the model, and how closely they agree."""
    found, model = findings.verification, findings.checkpoint
    dtype = str(model.dtype).removeprefix("torch.")
    return Text.assemble(
        ("Verified", "bold green"),
        f" {found.heads_compared} heads in {model.n_layers} layers of {visible(model.name)} ({dtype}, {model.device}): "
        f"weights within {_error(found.pattern_error)} of the model's own (tolerance {found.tolerance.pattern:.0e}), "
        f"outputs within {_error(found.output_error)} of the largest (tolerance {found.tolerance.output:.0e}).",
    )


def head_table(findings: Findings, heads: Sequence[HeadFindings], *, top: int, width: int) -> Table:
    """Statistics of the heads, the clearest patterns first."""
    shown = sorted(heads, key=_clearest)[: top or None]
    left_out = len(heads) - len(shown)
    unit = findings.units.name
    wide = width >= _WIDE
    count = f"{len(shown)} of {len(heads)}" if left_out else str(len(heads))
    table = _table(f"Heads ({count}, clearest pattern first)", wide)
    table.add_column("Head", no_wrap=True)
    table.add_column("Label", no_wrap=True)
    if wide:
        for name in ("Score", "Baseline", "n"):
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Entropy\n(nats)", justify="right", no_wrap=True)
    table.add_column(f"Distance\n({unit}s)", justify="right", no_wrap=True)
    for title, _ in (*_SHARES, *_FAR):
        table.add_column(title, justify="right", no_wrap=True)
    for head in shown:
        numbers = [_number(head.statistics[name]) for name in ("entropy", "distance")]
        numbers += [_number(head.statistics[name]) for _, name in (*_SHARES, *_FAR)]
        evidence = _evidence(head.deciding) if wide else []
        _add_row(table, [str(head.id), head.label, *evidence, *numbers])
    table.add_section()
    baseline = ["uniform", "", *([""] * 3 if wide else []), _number(findings.frame.entropy_uniform), "", ""]
    baseline += [
        _number(findings.frame.sink_baseline),
        *(_number(findings.frame.baselines[name]) for name in PATTERN_NAMES),
    ]
    _add_row(table, baseline, style="dim")
    if left_out:
        more = "1 more head is" if left_out == 1 else f"{left_out} more heads are"
        table.caption = f"{more} left out: --top 0 lists all; heads.csv has them."
    return table


def pattern_table(heads: Sequence[HeadFindings], *, width: int) -> Table:
    """Each pattern with its strongest heads, score beside baseline, and how many heads pass."""
    wide = width >= _WIDE
    strongest = _STRONGEST + 2 if wide else _STRONGEST
    table = _table(f"Patterns (the {strongest} strongest heads of each, with their scores)", True)
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
        _add_row(table, _pattern_row(entries, strongest))
    more = len([kind for kind, _ in by_name if kind == "syntactic"]) - _RELATIONS
    if more > 0:
        rarer = "1 rarer relation is" if more == 1 else f"{more} rarer relations are"
        table.caption = f"{rarer} left out; heads.json has them."
    return table


def _pattern_row(entries: list[tuple[HeadFindings, Pattern]], strongest: int) -> list[str]:
    first = entries[0][1]
    measured = sorted(
        (entry for entry in entries if entry[1].score is not None),
        key=lambda entry: (-(entry[1].score or 0.0), entry[1].direction or ""),
    )
    if not measured:
        return [first.name, "not measurable on this text", "–", str(first.n), "–"]
    best = measured[0][1]
    name, baseline = first.name, _number(best.baseline)
    if first.kind == "syntactic":
        name = f"{first.name} {_DIRECTION[best.direction or '']}"
        baseline = f"{best.offset:+d}: {baseline}"
        measured = [entry for entry in measured if entry[1].direction == best.direction]
    shown = "  ".join(f"{head.id} {_number(pattern.score)}" for head, pattern in measured[:strongest])
    passing = sum(pattern.passed for _, pattern in entries)
    return [name, shown, baseline, str(first.n), f"{passing}/{len(entries)}"]


def _notes(findings: Findings) -> Text:
    unit = findings.units.name
    lines = [
        f"Conf to Long are shares from 0 to 1. n: {unit}s (or instances of a relation) behind a score; below {ENOUGH} "
        "it is an indication only. One text shows what heads did here, not what they do."
    ]
    if findings.parse is not None:
        lines.append(
            f"Syntax: parse by {findings.parse.parser}; baseline = best fixed offset (+1: the head is the next word)."
        )
    else:
        lines.append(f"Syntax: not measured: {findings.syntax_note}")
    if findings.tokens.truncated:
        lines.append(f"The text was cut: its last {findings.tokens.truncated} tokens were left out (--truncate).")
    return Text("\n".join(lines), style="dim")


def _clearest(head: HeadFindings) -> tuple[bool, float, HeadId]:
    deciding = head.deciding
    return deciding is None, -(head.strongest.margin if head.strongest else float("-inf")), head.id


def _evidence(pattern: Pattern | None) -> list[str]:
    if pattern is None:
        return ["–", "–", "–"]
    return [_number(pattern.score), _number(pattern.baseline), str(pattern.n)]


def _add_row(table: Table, cells: list[str], style: str | None = None) -> None:
    """Cells as they are: a string would be read as rich's markup, and labels may hold brackets."""
    table.add_row(*(Text(cell) for cell in cells), style=style)


def _error(value: float) -> str:
    return f"{value:.1e}" if value else "0 (bit for bit)"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _table(title: str, wide: bool) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0) if wide else 0,
    )
