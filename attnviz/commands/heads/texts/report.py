"""JSON, CSV (a row per head and statistic) and tables of several texts."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import RenderableType

from attnviz.commands.heads.spans import lookback_fields, spans_entry
from attnviz.commands.heads.texts.measure import HeadSpread, OneText, Spread, TextsAnalysis
from attnviz.measures.alignments import ALIGNMENT
from attnviz.present.documents import json_text, model_entry, verification_entry
from attnviz.present.fields import HEAD, ID, Field, Table, entry, pick, plain
from attnviz.present.report import CommandSpec
from attnviz.present.sentences import first_lines, verification_line
from attnviz.present.statistics import statistic_field
from attnviz.present.tables import notes
from attnviz.present.view import ViewOptions
from attnviz.wording import counted, quoted, rounded, span, visible

LISTED = ("sink", "entropy", "previous", "next", "confidence", "distance")

# The fields of a text in documents.
LINES: tuple[Field[OneText], ...] = (
    Field(value="place.line", name="line"),
    Field(name="id", if_known=True),
    Field("Class", name="label", if_known=True),
    Field(name="text", write=quoted),
    Field(name="pair", if_known=True, write=lambda pair: pair and quoted(pair)),
    Field(name="decision", if_known=True, write=lambda decision: decision and decision.in_words),
    Field(value="n_tokens", name="tokens"),
    Field(value="cut", name="tokens_cut_off"),
    *plain("folder", "pattern_error", "output_error"),
)

NAMED = ("line", "id", "label", "text", "pair")  # those that say which text it is


def text_row(text: OneText) -> str:
    """A line for a text: its place, tokens, how many heads have a label there, and how it begins."""
    place = "" if text.place is None else f"{text.place}: "
    labelled = sum(head.labelled for head in text.heads)
    heads = f"{labelled} of {counted(len(text.heads), 'head')} labelled"
    return f"{place}{counted(text.n_tokens, 'token')}, {heads}: {quoted(text.text)}"


_ID = Field[HeadSpread](value="id", name="head", meaning=ID)
_LABEL = Field[HeadSpread](name="label", write=visible, meaning="the one that most texts give")
_SCORE = Field[HeadSpread](value="score.mean", name="score", meaning="of its pattern, the mean over texts")


def _in_paper(result: TextsAnalysis, choices: ViewOptions) -> Table[HeadSpread]:
    """The table of heads for a paper: numbers of texts and means."""
    texts = Field[HeadSpread](value=lambda head: head.labels[head.label], name="texts", meaning="how many give it")
    names = LISTED if result.gold is None else ALIGNMENT
    means = (statistic_field(name, lambda head, name=name: head.statistics[name].mean) for name in names)  # type: ignore[misc]
    return Table("", [_ID, _LABEL, texts, _SCORE, *means], result.select(choices.select), name="heads")


def _spreads(names: Sequence[str]) -> Iterator[Field[HeadSpread]]:
    """The columns of these statistics, for the terminal."""
    for name in names:
        field = statistic_field(name, lambda head, name=name: head.statistics[name].in_words)  # type: ignore[misc]
        yield replace(field, unit="mean ± sd")


_SPREAD: tuple[Field[Spread], ...] = (
    *plain("n", "mean", "sd"),
    Field(value="least", name="min"),
    Field(value="largest", name="max"),
)


def _content(result: TextsAnalysis, choices: ViewOptions) -> dict[str, Any]:
    file = result.corpus
    return {
        "model": model_entry(result.checkpoint),
        "corpora": [file.entry] if file else [],
        "texts": [] if file else [text.text for text in result.texts],
        "options": asdict(result.options),
        "verification": verification_entry(result.verification),
        "lines": [entry(LINES, text) for text in result.texts],
        "heads": [_head(head) for head in result.select(choices.select)],
        **({"alignment_heads": result.alignment_heads, "alignments": str(result.gold)} if result.gold else {}),
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


def _statistics(result: TextsAnalysis, choices: ViewOptions) -> Table[dict[str, Any]]:
    rows = []
    for head in result.select(choices.select):
        of_head = {"label": head.label, "label_texts": head.labels[head.label]}
        for name, spread in _head(head)["statistics"].items():
            rows.append({**entry(HEAD, head), **of_head, "statistic": name, **spread})
    return Table("", plain(*(name for name in rows[0] if name != "stack")), rows)


def _tables(result: TextsAnalysis, choices: ViewOptions) -> Iterator[RenderableType]:
    n, gold, whole = len(result.texts), result.gold, choices.verbose
    on_texts = f" on {counted(n, 'text')}" if n > 1 else ""
    verified = verification_line(result.verification, result.checkpoint, sample=on_texts)
    yield first_lines(f"Texts: {result.source}", [], verified)
    heads = sorted(result.select(choices.select), key=lambda head: head.rank_key, reverse=True)
    order = "those of the same label in most texts first"
    names = LISTED if whole else LISTED[:3]
    fields: list[Field[HeadSpread]] = [
        _ID,
        _LABEL,
        Field("Texts", lambda head: f"{head.labels[head.label]}/{n}"),
        _SCORE,
        Field("Range", lambda head: span([head.score.least, head.score.largest]), detail=True),
        *_spreads(names),
    ]
    last = ["uniform", "", "", "", "", *(heads[0].uniform.get(name, "") for name in names)]
    rows = choices.rows(_FEW)
    if gold is not None:
        heads, order, last = [head for head in result.aligned if head in heads], "least error rate first", []
        fields = [_ID, *_spreads(ALIGNMENT)]
    yield Table("Heads", fields, heads, last).first(rows, "heads-texts.csv", order=order)
    if whole:
        columns = [
            field
            for field in pick(LINES, *NAMED, "decision", "tokens")
            if any(field.value_for(text) is not None for text in result.texts)
        ]
        yield Table("Texts", columns, result.texts).first(rows, "heads-texts.json", "text")
    if gold is not None:
        baseline = rounded(result.aligned[0].statistics["aer_baseline"].mean)
        how = f"AER: alignment error rate (baseline {baseline}). Output: rows that predict a word; input: that read it."
        yield notes(how, f"alignment_heads (from 30 pairs on): {result.alignment_heads}")
    if cut := sum(text.cut > 0 for text in result.texts):
        yield notes(f"{counted(cut, 'text')} cut to what the model can read (--truncate).")
    if any(text.spans for text in result.texts):
        of_all = "Which heads read which message, over all chats: attnviz profile FILE"
        yield notes(f"{of_all}; of each: span_pairs in heads.jsonl.")
    if whole:
        yield notes(
            "Label: the one that most texts give the head, each by itself, and in how many. Score: of the pattern "
            "behind it, the mean over these texts; Range: from the least to the largest.",
            "mean ± sd: over texts, each counting alike, and the standard deviation between them. heads-texts.csv has "
            "least and largest, and the number of texts, of every statistic; heads.jsonl has those of each text.",
        )


_FEW = 6  # heads on the first screen


def _json_lines(result: TextsAnalysis, choices: ViewOptions) -> Iterator[str]:
    chosen = {head.id for head in result.select(choices.select)}
    for text in result.texts:
        of_text = [head for head in text.heads if head.id in chosen]
        lookback = lookback_fields(text.spans)
        line = {
            **entry(pick(LINES, *NAMED, "decision"), text),
            "tokens": list(text.tokens),
            "tokens_cut_off": text.cut,
            **spans_entry(text.spans, [head.id for head in of_text], lambda span: span.tokens),
            "heads": [
                {
                    **entry(HEAD, head),
                    "label": head.label,
                    "score": head.score,
                    **head.statistics,
                    **entry(lookback, head),
                }
                for head in of_text
            ],
        }
        yield json_text(line, None)


# The command's presentation.
SPEC = CommandSpec(
    content=_content,
    further=lambda result, choices: [("heads.jsonl", "".join(_json_lines(result, choices)))],
    tables=_tables,
    table=_statistics,
    in_paper=_in_paper,
    patterns=True,
)
