"""The form ``attnviz heads --each-line``: several texts in one run, and the spread of every head between them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar, Unpack

import torch
from rich.console import RenderableType
from torch import Tensor

from attnviz.analysis.findings import HeadFindings
from attnviz.analysis.result import Analysis, Options
from attnviz.commands.heads.measure import Reader, profile_of
from attnviz.commands.heads.spans import lookback_fields, spans_entry
from attnviz.inputs.encoding import unknown_note_of
from attnviz.inputs.lines import Place
from attnviz.inputs.reading import Corpus, open_one, read_texts, unread_columns
from attnviz.inputs.refusals import refuse
from attnviz.inputs.tables import Columns
from attnviz.judge.rules import MARGIN
from attnviz.judge.verdicts import NO_LABEL, UNNAMED
from attnviz.measures.alignments import ALIGNMENT, ROWS, aligned_pairs, alignment_rates
from attnviz.measures.decisions import Decision
from attnviz.measures.intervals import TextSamples
from attnviz.measures.spans import SpanShares
from attnviz.measures.statistics import scalars
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, number_of
from attnviz.models.opening import Model, open_checkpoint
from attnviz.options import CorpusOptions, checked
from attnviz.present.documents import json_text, model_entry, verification_entry
from attnviz.present.fields import HEAD, ID, Field, Table, entry, pick, plain
from attnviz.present.output_folder import text_folder
from attnviz.present.report import CommandSpec
from attnviz.present.result import OfHeads, Result
from attnviz.present.sentences import first_lines, verification_line
from attnviz.present.statistics import statistic_field
from attnviz.present.tables import notes
from attnviz.present.view import ViewOptions
from attnviz.progress import Progress
from attnviz.run.checks import LayerCheck, Verification, worse_of
from attnviz.run.record import block_memory
from attnviz.wording import counted, quoted, rounded, span, visible

LISTED = ("sink", "entropy", "previous", "next", "confidence", "distance")
_FEW = 6  # heads on the first screen


@dataclass(frozen=True)
class Spread:
    """Spread of one statistic of one head over the texts that have it, equally weighted."""

    n: int  # texts on which it can be measured
    mean: float | None  # over these, as the next three; None without any
    sd: float | None  # standard deviation between texts, with n - 1 below; None for fewer than two
    min: float | None
    max: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread":
        """Spread of these values, without None."""
        known = [value for value in values if value is not None]
        if not known:
            return cls(0, None, None, None, None)
        return cls(len(known), fmean(known), stdev(known) if len(known) > 1 else None, min(known), max(known))

    @property
    def in_words(self) -> str:  # 0.41 ± 0.03
        return rounded(self.mean) if self.sd is None else f"{rounded(self.mean)} ± {rounded(self.sd)}"


def names_pattern(label: str) -> bool:
    """Whether a label is that of a pattern."""
    return label not in (UNNAMED, *NO_LABEL)


@dataclass(frozen=True)
class HeadOnText:
    """What one head does on one text."""

    id: HeadId
    label: str
    score: float | None  # of the label's pattern; None without one
    statistics: dict[str, float | None]  # by name (attnviz.measures.statistics.scalars)
    uniform: dict[str, float | None]  # of some of them, under uniform attention

    @classmethod
    def of(
        cls, head: HeadFindings, analysis: Analysis, aligned: Mapping[HeadId, dict[str, float | None]]
    ) -> "HeadOnText":
        """From the findings of one text, and its rates of alignment, if any."""
        context = analysis.context_of(head.id.layer)
        uniform = {name: context.uniform[name] for name in ("entropy", "sink", *context.counts)}
        statistics = {name: head.statistics.get(name) for name in (*scalars(), *analysis.optional)}
        statistics |= aligned.get(head.id, dict.fromkeys(ALIGNMENT if aligned else ()))
        return cls(head.id, head.label, head.labelled.judged[0], statistics, uniform)


@dataclass(frozen=True)
class OneText:
    """One of the texts."""

    text: str
    pair: str | None  # its second segment
    place: Place | None  # FILE:LINE; None for a text of a list
    id: str | None  # of its row, as its label; None where the file has none
    label: str | None
    tokens: tuple[str, ...]  # that the model reads, as labels
    cut: int  # tokens that were cut off
    pattern_error: float  # largest errors of verification
    output_error: float
    heads: tuple[HeadOnText, ...]  # in the model's order
    spans: SpanShares | None  # of a chat, attention between its messages; None without spans
    decision: Decision | None  # of a classifier

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def folder(self) -> str:  # name of the folder of its own results, which equal texts share
        return text_folder([self.text] if self.pair is None else [self.text, self.pair])


@dataclass(frozen=True)
class HeadSpread:
    """One head over all texts."""

    id: HeadId
    labels: dict[str, int]  # number of texts by label, the most frequent first
    score: Spread  # of the most frequent label's pattern, over the texts with this label
    statistics: dict[str, Spread]  # by name (attnviz.measures.statistics.scalars)
    uniform: dict[str, float]  # mean over texts under uniform attention; only of those for which it is defined

    @classmethod
    def of(cls, rows: Sequence[HeadOnText]) -> "HeadSpread":
        """From what the head does on each text."""
        labels = dict(Counter(row.label for row in rows).most_common())
        even = {name: Spread.of(row.uniform[name] for row in rows).mean for name in rows[0].uniform}
        return cls(
            rows[0].id,
            labels,
            score=Spread.of(row.score for row in rows if row.label == next(iter(labels))),
            statistics={name: Spread.of(row.statistics[name] for row in rows) for name in rows[0].statistics},
            uniform={name: mean for name, mean in even.items() if mean is not None},
        )

    def __repr__(self) -> str:
        n = counted(sum(self.labels.values()), "text")
        return f"<HeadSpread of {self.id}: {self.label} on {self.labels[self.label]} of {n}>"

    @property
    def label(self) -> str:  # the most frequent one
        return next(iter(self.labels))

    @property
    def rank_key(self) -> tuple[bool, int, float]:
        """Sort key: heads whose label names a pattern first, by number of texts."""
        return names_pattern(self.label), self.labels[self.label], self.score.mean or 0.0


@dataclass(frozen=True, repr=False, eq=False)
class TextsAnalysis(Result, OfHeads[HeadSpread]):
    """Result of :func:`analyze_each`; every head of every text is verified."""

    command: ClassVar[str] = "heads.texts"
    noun: ClassVar[str] = "Analysis"

    checkpoint: Checkpoint
    corpus: Corpus | None  # the file of the texts; None for a list
    texts: tuple[OneText, ...]
    heads: tuple[HeadSpread, ...]  # in the model's order
    verification: Verification  # the largest errors of each layer on any text
    options: Options
    text_notes: tuple[str, ...] = ()  # how the texts were read
    gold: Path | None = None  # the file of gold word alignments

    @property
    def aligned(self) -> list[HeadSpread]:
        """With gold alignments, cross-attention heads by the error rate of their better rows, the least first."""
        measured = [head for head in self.heads if head.statistics["aer_output"].n]
        return sorted(measured, key=lambda head: min(head.statistics[f"aer_{rows}"].mean or 0.0 for rows in ROWS))

    @property
    def alignment_heads(self) -> list[list[int]]:
        """Layer and head of those that align better than the baseline, as ``alignment_heads`` of Whisper has them.

        By a gain over 0.1, with an interval above 0 at 0.05 over all heads and both rows together, of 30 texts on.
        """
        heads = [head.id for head in self.aligned]
        rows = [(head, f"gain_{rows}") for head in heads for rows in ROWS]
        if not rows:
            return []
        of_texts = [{head.id: head.statistics for head in text.heads} for text in self.texts]
        values = [[text[head][row] for head, row in rows] for text in of_texts]
        gains = torch.tensor([[value or 0.0 for value in text] for text in values], dtype=torch.float64)
        known = torch.tensor([[value is not None for value in text] for text in values]).double()
        means = TextSamples(0, range(len(values))).ratios(gains, known)
        gained = set()
        for column, (head, _) in enumerate(rows):
            low, _ = means.interval(column) or (0.0, 0.0)
            if low > 0 and means.estimates[column] > MARGIN:
                gained.add(head)
        return [[number_of(head.layer), head.head] for head in heads if head in gained]

    @property
    def source(self) -> str:  # one line: model, file and number of texts
        file = [visible(self.corpus.path.name)] if self.corpus else []
        n_tokens = sum(text.n_tokens for text in self.texts)
        counts = f"{counted(len(self.texts), 'text')}, {counted(n_tokens, 'token')}"
        return " · ".join([self.checkpoint.short_name, *file, counts])

    @property
    def in_words(self) -> str:
        return f"of {self.source}: {counted(len(self.heads), 'head')} verified on each"


@checked
def analyze_each(
    texts: Any,
    model: Model | None = None,
    *,
    labels: Any = None,
    label_column: str | None = None,
    alignments: str | Path | None = None,
    words: bool = False,
    syntax: bool = True,
    parser: str | None = None,
    truncate: bool = False,
    max_new_tokens: int | None = None,
    memory: int | str | None = None,
    visit: Callable[[OneText, Analysis], None] | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    **reading: Unpack[CorpusOptions],
) -> TextsAnalysis:
    """Analyse several texts with one model, each by itself, and the spread of every statistic.

    All texts are checked before the first is measured. Analyses are dropped after ``visit``, which is called with each
    text and its analysis in order; keep there what you need.

    >>> pages = []
    >>> attnviz.analyze_each(  # doctest: +SKIP
    ...     "sentences.txt", visit=lambda text, analysis: pages.append(analysis.document())
    ... )

    Texts are in memory, or a file of texts, a treebank or a file of chats, as for :func:`attnviz.profile_heads`; blank
    lines are skipped. A ``Text`` of :mod:`attnviz.inputs.prompt` says where it stands. ``label_column`` of a table, or
    ``labels``, has classes, which are kept beside the texts; default ``label``. ``alignments`` is, of an
    encoder-decoder, a file of gold word alignments, a line for each text (``0-0 1-2 2?3``): texts are then ``SOURCE |||
    TARGET``, or have their targets in ``pair_column``. The others are as for :func:`attnviz.analyze`, and
    :class:`attnviz.options.CorpusOptions`.

    Raises:
        TextError: a text that the model cannot read, with its line, or its number in the list.
        CorpusError: a file that cannot be read, or holds no text.
        AttnvizError: as :func:`attnviz.analyze`.
    """
    asked = {**locals(), "no_syntax": not syntax}
    columns, opening = Columns.taken(reading, label_column)
    read = open_one(texts, columns, labels=labels)
    lines = list(read_texts(read))
    chunk_memory = block_memory(memory)
    refuse(asked)
    checkpoint, source = open_checkpoint(model, several_devices=True, **opening)
    refuse(asked, checkpoint)
    reader = Reader(
        checkpoint,
        stored=profile_of(checkpoint, source, warn),
        options=Options(words),
        syntax=syntax,
        parser=parser,
        truncate=truncate,
        max_new_tokens=max_new_tokens,
        memory=chunk_memory,
    )
    file = None if alignments is None else Path(alignments)
    gold = list[Tensor]()
    if file is not None:
        lines, gold = aligned_pairs(lines, file)
    done = list[OneText]()
    worst = dict[int, LayerCheck]()
    n_unknown = 0
    for line, analysis in zip(lines, reader.read_each(lines, progress, bool(gold)), strict=True):
        verification, tokens = analysis.verification, analysis.tokens
        worst |= {check.layer: worse_of(worst.get(check.layer), check) for check in verification.layers}
        aligned = alignment_rates(analysis.verified, line, gold[len(done)]) if gold else {}
        one = OneText(
            text=analysis.text,
            pair=line.pair,
            place=line.place if line.place and line.place.path else None,
            id=line.id,
            label=line.label,
            tokens=tuple(tokens.labels),
            cut=tokens.truncated,
            pattern_error=verification.pattern_error,
            output_error=verification.output_error,
            heads=tuple(HeadOnText.of(head, analysis, aligned) for head in analysis.heads),
            spans=analysis.spans,
            decision=analysis.decision,
        )
        done.append(one)
        n_unknown += tokens.n_unknown
        if visit is not None:
            visit(one, analysis)
    unknown = unknown_note_of(checkpoint, n_unknown, sum(one.n_tokens for one in done))
    notes = filter(None, [unknown, *unread_columns([read.table])])
    return TextsAnalysis(
        checkpoint,
        corpus=read if read.rows.content is None else None,
        texts=tuple(done),
        heads=tuple(HeadSpread.of(of_head) for of_head in zip(*(one.heads for one in done), strict=True)),
        verification=Verification(checkpoint.tolerance, tuple(worst[layer] for layer in checkpoint.layers)),
        options=reader.options,
        text_notes=tuple(notes),
        gold=file,
    )


# --- tables

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
    labelled = sum(names_pattern(head.label) for head in text.heads)
    heads = f"{labelled} of {counted(len(text.heads), 'head')} labelled"
    return f"{place}{counted(text.n_tokens, 'token')}, {heads}: {quoted(text.text)}"


_ID = Field[HeadSpread](value="id", name="head", meaning=ID)
_LABEL = Field[HeadSpread](name="label", write=visible, meaning="the one that most texts give")
_SCORE = Field[HeadSpread](value="score.mean", name="score", meaning="of its pattern, the mean over texts")


def _in_paper(result: TextsAnalysis, choices: ViewOptions) -> Table[HeadSpread]:
    """The table of heads for a paper: numbers of texts and means."""
    texts = Field[HeadSpread](value=lambda head: head.labels[head.label], name="texts", meaning="how many give it")
    names = LISTED if result.gold is None else ALIGNMENT
    means = (statistic_field(name, path="statistics.{}.mean") for name in names)
    return Table("", [_ID, _LABEL, texts, _SCORE, *means], result.select(choices.select), name="heads")


def _spreads(names: Sequence[str]) -> list[Field[HeadSpread]]:
    """The columns of these statistics, for the terminal."""
    return [replace(statistic_field(name, path="statistics.{}.in_words"), unit="mean ± sd") for name in names]


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
        "label_score": head.score,
        "statistics": {
            name: {**asdict(spread), "uniform": head.uniform.get(name)} for name, spread in head.statistics.items()
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
        Field("Range", lambda head: span([head.score.min, head.score.max]), detail=True),
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
