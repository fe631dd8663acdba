"""JSON, CSV (a row per head and statistic) and tables of several texts."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from attnviz.commands.heads.texts.measure import HeadSpread, OneText, Spread, TextsAnalysis
from attnviz.models.wording import counted, quoted, rounded, span, visible
from attnviz.present.documents import model_entry, verification_entry
from attnviz.present.fields import HEAD, Field, NamedTable, by_name, entry, pick, plain
from attnviz.present.report import CommandSpec
from attnviz.present.statistics import statistic_field
from attnviz.present.tables import first_rows, notes, verification_line
from attnviz.present.view import ViewOptions

_LISTED = ("sink", "entropy", "previous", "next", "confidence", "distance")


def _content(result: TextsAnalysis, choices: ViewOptions) -> dict[str, Any]:
    file = result.corpus
    return {
        "model": model_entry(result.checkpoint),
        "corpora": [{"path": str(file.path), "sha256": file.sha256}] if file else [],
        "texts": [] if file else [text.text for text in result.texts],
        "options": asdict(result.options),
        "verification": verification_entry(result.verification),
        "lines": [entry(_LINES, text) for text in result.texts],
        "heads": [_head(head) for head in result.select(choices.select)],
    }


def _head(head: HeadSpread) -> dict[str, Any]:
    return {
        **entry(HEAD, head),
        "label": head.label,
        "labels": head.labels,
        "label_score": entry(_SPREAD, head.score),
        "statistics": {
            name: {**entry(_SPREAD, spread), "uniform": head.uniform.get(name)}
            for name, spread in head.statistics.items()
        },
    }


_LINES: tuple[Field[OneText], ...] = (
    Field("Line", lambda text: text.place and text.place.line, name="line"),
    Field("Text", name="text", write=quoted),
    Field("Folder", name="folder", detail=True),
    Field("Tokens", lambda text: text.n_tokens, name="tokens"),
    Field(value=lambda text: text.cut, name="tokens_cut_off"),
    *plain("pattern_error", "output_error"),
)
_SPREAD: tuple[Field[Spread], ...] = (
    *plain("n", "mean", "sd"),
    Field(value=lambda spread: spread.least, name="min"),
    Field(value=lambda spread: spread.largest, name="max"),
)


def _statistics(result: TextsAnalysis, choices: ViewOptions) -> NamedTable[dict[str, Any]]:
    """A row a head and statistic."""
    rows = []
    for head in result.select(choices.select):
        of_head = {"label": head.label, "label_texts": head.labels[head.label]}
        for name, spread in _head(head)["statistics"].items():
            rows.append({**entry(HEAD, head), **of_head, "statistic": name, **spread})
    return NamedTable("", by_name(*(name for name in rows[0] if name != "stack")), rows)


def _tables(result: TextsAnalysis, choices: ViewOptions) -> Iterator[RenderableType]:
    n = len(result.texts)
    on_each = f" on {counted(n, 'text')}" if n > 1 else ""
    yield Text(f"Texts: {result.source}", "bold")
    yield verification_line(result.verification, result.checkpoint, sample=on_each)
    heads = sorted(result.select(choices.select), key=lambda head: head.rank_key, reverse=True)
    uniform = heads[0].uniform
    last: list[object] = ["uniform", "", "", "", ""]
    columns: list[Field[HeadSpread]] = [
        Field("Head", lambda head: head.id),
        Field("Label", lambda head: visible(head.label)),
        Field("Texts", lambda head: f"{head.labels[head.label]}/{n}"),
        Field("Score", lambda head: rounded(head.score.mean)),
        Field("Range", lambda head: span([head.score.least, head.score.largest]), detail=True),
    ]
    for name in _LISTED:
        columns.append(replace(statistic_field(name, partial(_mean_and_sd, name=name)), unit="mean ± sd"))
        last.append(uniform.get(name, ""))
    order = "those of the same label in most texts first"
    yield first_rows("Heads", columns, heads, choices.top, "heads-texts.csv", order=order, last=last)
    lines = pick(_LINES, "line", "text", "tokens", "folder")
    yield first_rows("Texts", lines, result.texts, choices.top, "heads-texts.json", noun="text")
    yield _notes(result)


def _mean_and_sd(head: HeadSpread, name: str) -> str:
    spread = head.statistics[name]
    return rounded(spread.mean) if spread.sd is None else f"{rounded(spread.mean)} ± {rounded(spread.sd)}"


def _notes(result: TextsAnalysis) -> Text:
    cut = sum(text.cut > 0 for text in result.texts)
    return notes(
        "Label: the one that most texts give the head, each by itself, and in how many. Score: of the pattern behind "
        "it, the mean over these texts; Range: from the least to the largest.",
        "mean ± sd: over texts, each counting alike, and the standard deviation between them. heads-texts.csv has "
        "least and largest, and the number of texts, of every statistic.",
        f"{counted(cut, 'text')} cut to what the model can read (--truncate)." if cut else "",
    )


SPEC = CommandSpec(
    content=_content,
    tables=_tables,
    table=_statistics,
    patterns=True,
)
"""The command's presentation."""
