"""Analyse several texts: statistics of every head with their spread."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from attnviz.commands.heads.analysis import Analysis, Options
from attnviz.commands.heads.findings import HeadFindings
from attnviz.commands.heads.measure import Reader, profile_of
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
from attnviz.present.output_folder import text_folder
from attnviz.present.result import OfHeads, Result
from attnviz.progress import Progress
from attnviz.run.checks import LayerCheck, Verification, worse_of
from attnviz.run.record import block_memory
from attnviz.wording import counted, rounded, visible


@dataclass(frozen=True)
class Spread:
    """Spread of one statistic of one head over the texts that have it, equally weighted."""

    n: int  # texts on which it can be measured
    mean: float | None  # over these, as the next three; None without any
    sd: float | None  # standard deviation between texts, with n - 1 below; None for fewer than two
    least: float | None
    largest: float | None

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

    @property
    def labelled(self) -> bool:  # whether its label names a pattern
        return self.label not in (UNNAMED, *NO_LABEL)


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
        uniform = {}
        for name in rows[0].uniform:
            values = [value for row in rows if (value := row.uniform[name]) is not None and math.isfinite(value)]
            if values:
                uniform[name] = fmean(values)
        return cls(
            rows[0].id,
            labels,
            score=Spread.of(row.score for row in rows if row.label == next(iter(labels))),
            statistics={name: Spread.of(row.statistics[name] for row in rows) for name in rows[0].statistics},
            uniform=uniform,
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
        return self.label not in (UNNAMED, *NO_LABEL), self.labels[self.label], self.score.mean or 0.0


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
    TARGET``, or have their targets in ``pair_column``. The others are as for :func:`analyze`, and
    :class:`attnviz.options.CorpusOptions`.

    Raises:
        TextError: a text that the model cannot read, with its line, or its number in the list.
        CorpusError: a file that cannot be read, or holds no text.
        AttnvizError: as :func:`analyze`.
    """
    columns, opening = Columns.taken(reading, label_column)
    read = open_one(texts, columns, labels=labels)
    lines = list(read_texts(read))
    chunk_memory = block_memory(memory)
    asked = {"alignments": alignments, "truncate": truncate, "max_new_tokens": max_new_tokens, "words": words}
    asked |= {"parser": parser, "no_syntax": not syntax}
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
