"""Analyse several texts: statistics of every head with their spread."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from attnviz.commands.heads.analysis import Analysis, Options
from attnviz.commands.heads.findings import HeadFindings
from attnviz.commands.heads.measure import Reader, check_parser, listed, profile_of
from attnviz.errors import UsageError
from attnviz.judge.rules import MARGIN
from attnviz.judge.verdicts import NO_LABEL, UNNAMED
from attnviz.measures.alignments import ALIGNMENT, ROWS, aligned_pairs, alignment_rates
from attnviz.measures.bootstrap import text_weights
from attnviz.measures.intervals import SAMPLES, of_ratios
from attnviz.measures.patterns import NAMES
from attnviz.measures.spans import SpanShares
from attnviz.measures.statistics import SCALARS
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.head_ids import HeadId, number_of
from attnviz.models.opening import Model, open_checkpoint, refuse_target
from attnviz.options import CorpusOptions, checked
from attnviz.present.output_folder import text_folder
from attnviz.present.result import OfHeads, Result
from attnviz.progress import Progress
from attnviz.texts.lines import Place
from attnviz.texts.reading import Corpus, Text, check_columns, open_corpus, read_texts, unread_columns
from attnviz.texts.tables import Columns
from attnviz.trace.checks import LayerCheck, Verification, worse_of
from attnviz.trace.recorder import block_memory
from attnviz.wording import counted, visible


@dataclass(frozen=True)
class Spread:
    """Spread of one statistic of one head over the texts that have it, equally weighted.

    Attributes:
        n: texts on which it can be measured.
        mean, least, largest: over these; None without any.
        sd: standard deviation between texts, with n - 1 below; None for fewer than two.
    """

    n: int
    mean: float | None
    sd: float | None
    least: float | None
    largest: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> "Spread":
        """Spread of these values, without None."""
        known = [value for value in values if value is not None]
        if not known:
            return cls(0, None, None, None, None)
        return cls(len(known), fmean(known), stdev(known) if len(known) > 1 else None, min(known), max(known))


@dataclass(frozen=True)
class HeadOnText:
    """What one head does on one text.

    Attributes:
        label: on this text.
        score: of the label's pattern; None without one.
        statistics: by name (:data:`attnviz.measures.statistics.SCALARS`).
        uniform: of some of them, under uniform attention.
    """

    id: HeadId
    label: str
    score: float | None
    statistics: dict[str, float | None]
    uniform: dict[str, float | None]

    @property
    def labelled(self) -> bool:
        """Whether its label names a pattern."""
        return self.label not in (UNNAMED, *NO_LABEL)


@dataclass(frozen=True)
class OneText:
    """One of the texts.

    Attributes:
        pair: its second segment; None without one.
        place: its location, ``FILE:LINE``; None for a text of a list.
        id, label: of its row; None where the file has none.
        tokens: that the model reads, as labels.
        cut: tokens that were cut off.
        pattern_error, output_error: largest errors of verification.
        heads: one entry a head, in the model's order.
        spans: of a chat, attention between its messages; None without spans.
    """

    text: str
    pair: str | None
    place: Place | None
    id: str | None
    label: str | None
    tokens: tuple[str, ...]
    cut: int
    pattern_error: float
    output_error: float
    heads: tuple[HeadOnText, ...]
    spans: SpanShares | None

    @property
    def n_tokens(self) -> int:
        """How many tokens the model reads."""
        return len(self.tokens)

    @property
    def folder(self) -> str:
        """Name of the folder of its own results, which equal texts share."""
        return text_folder([self.text] if self.pair is None else [self.text, self.pair])


@dataclass(frozen=True)
class HeadSpread:
    """One head over all texts.

    Attributes:
        labels: number of texts by label, the most frequent first.
        score: of the most frequent label's pattern, over the texts with this label.
        statistics: by name (:data:`attnviz.measures.statistics.SCALARS`).
        uniform: mean over texts under uniform attention; only of statistics for which it is defined.
    """

    id: HeadId
    labels: dict[str, int]
    score: Spread
    statistics: dict[str, Spread]
    uniform: dict[str, float]

    def __repr__(self) -> str:
        n = counted(sum(self.labels.values()), "text")
        return f"<HeadSpread of {self.id}: {self.label} on {self.labels[self.label]} of {n}>"

    @property
    def label(self) -> str:
        """The most frequent label."""
        return next(iter(self.labels))

    @property
    def rank_key(self) -> tuple[bool, int, float]:
        """Sort key: heads whose label names a pattern first, by number of texts."""
        return self.label not in (UNNAMED, *NO_LABEL), self.labels[self.label], self.score.mean or 0.0


@dataclass(frozen=True, repr=False, eq=False)
class TextsAnalysis(Result, OfHeads[HeadSpread]):
    """Result of :func:`analyze_each`; every head of every text is verified.

    Attributes:
        checkpoint: the model.
        corpus: the file of the texts; None for a list.
        texts: in order.
        heads: one entry a head, in the model's order.
        verification: the largest errors of each layer on any text.
        options: how every text was measured.
        text_notes: sentences on how the texts were read.
        gold: the file of gold word alignments; None without one.
    """

    command: ClassVar[str] = "heads.texts"

    checkpoint: Checkpoint
    corpus: Corpus | None
    texts: tuple[OneText, ...]
    heads: tuple[HeadSpread, ...]
    verification: Verification
    options: Options
    text_notes: tuple[str, ...] = ()
    gold: Path | None = None

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
        found = [{head.id: head.statistics for head in text.heads} for text in self.texts]
        gains = torch.tensor([[text[head][row] or 0.0 for head, row in rows] for text in found], dtype=torch.float64)
        known = torch.tensor([[text[head][row] is not None for head, row in rows] for text in found]).double()
        means = of_ratios(gains, known, text_weights(0, range(len(found)), SAMPLES))
        gained = set()
        for at, (head, _) in enumerate(rows):
            low, _ = means.interval(at) or (0.0, 0.0)
            if low > 0 and means.estimates[at] > MARGIN:
                gained.add(head)
        return [[number_of(head.layer), head.head] for head in heads if head in gained]

    @property
    def source(self) -> str:
        """One line: model, file and number of texts."""
        file = [visible(self.corpus.path.name)] if self.corpus else []
        n_tokens = sum(text.n_tokens for text in self.texts)
        counts = f"{counted(len(self.texts), 'text')}, {counted(n_tokens, 'token')}"
        return " · ".join([self.checkpoint.short_name, *file, counts])

    def __repr__(self) -> str:
        """One line: what was read, and the verified heads."""
        return f"<TextsAnalysis of {self.source}: {counted(len(self.heads), 'head')} verified on each>"


@checked
def analyze_each(
    texts: Sequence[str | Text] | str | Path,
    model: Model | None = None,
    *,
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

    All texts are checked before the first is measured. Analyses are dropped after ``visit``; keep there what you
    need.

    >>> pages = []
    >>> attnviz.analyze_each(  # doctest: +SKIP
    ...     "sentences.txt", visit=lambda text, analysis: pages.append(analysis.document())
    ... )

    Args:
        texts: a list of texts, or a file of texts, a treebank or a file of chats, as for :func:`attnviz.profile_heads`;
            blank lines of a file are skipped. A ``Text`` of :mod:`attnviz.texts.reading` says where it stands.
        label_column: of a table, the column of classes, which are kept beside the texts; default ``label``.
        alignments: of an encoder-decoder, a file of gold word alignments, a line for each text (``0-0 1-2 2?3``).
            Texts are then ``SOURCE ||| TARGET``, or have their targets in ``pair_column``.
        model: as for :func:`analyze`.
        words: likewise.
        syntax: likewise.
        parser: likewise.
        truncate: likewise.
        max_new_tokens: likewise.
        memory: likewise.
        visit: called with each text and its analysis, in order.
        progress: callback with how many texts are done.
        warn: as for :func:`analyze`.
        reading: see :class:`attnviz.options.CorpusOptions`.

    Raises:
        TextError: a text that the model cannot read, with its line, or its number in the list.
        CorpusError: a file that cannot be read, or holds no text.
        AttnvizError: as :func:`analyze`.
    """
    columns, opening = Columns.taken(reading, label_column)
    if isinstance(texts, str | Path):
        corpus = open_corpus(Path(texts), columns)
        lines = list(read_texts(corpus))
    else:
        corpus, lines = None, listed(texts)
    check_columns([corpus] if corpus else [], columns)
    options, of_block = Options(words), block_memory(memory)
    check_parser(parser, syntax)
    checkpoint, source = open_checkpoint(model, several_devices=True, **opening)
    stored = profile_of(checkpoint, source, warn)
    reader = Reader(checkpoint, stored, options, syntax, parser, truncate, max_new_tokens, of_block)
    refuse_target(checkpoint, None, max_new_tokens)
    file, gold = None if alignments is None else Path(alignments), list[Tensor]()
    if file is not None:
        if not checkpoint.stacks or truncate or max_new_tokens is not None:
            raise UsageError(
                "--alignments (alignments=...) is of encoder-decoders, which read all of given targets: found "
                f"{checkpoint.architecture.name}; leave it out, or --truncate and --max-new-tokens."
            )
        lines, gold = aligned_pairs(lines, file)
    n_unknown = 0
    done, worst = list[OneText](), dict[int, LayerCheck]()
    for line, analysis in zip(lines, reader.read_each(lines, progress, bool(gold)), strict=True):
        checks = analysis.verification.layers
        worst |= {check.layer: worse_of(worst.get(check.layer), check) for check in checks}
        aligned = alignment_rates(analysis.verified, line, gold[len(done)]) if gold else {}
        of_heads = tuple(_on_text(head, analysis, aligned) for head in analysis.heads)
        errors = analysis.verification.pattern_error, analysis.verification.output_error
        row, tokens = (line.pair, line.place, line.id, line.label), analysis.tokens
        one = OneText(analysis.text, *row, tuple(tokens.labels), tokens.truncated, *errors, of_heads, analysis.spans)
        done.append(one)
        n_unknown += tokens.n_unknown
        if visit is not None:
            visit(one, analysis)
    verification = Verification(checkpoint.tolerance, tuple(worst[layer] for layer in checkpoint.layers))
    heads = tuple(_spread(of_head) for of_head in zip(*(one.heads for one in done), strict=True))
    unknown = checkpoint.unknown_note(n_unknown, sum(one.n_tokens for one in done))
    notes = filter(None, [unknown, *unread_columns([corpus.table] if corpus else [])])
    return TextsAnalysis(checkpoint, corpus, tuple(done), heads, verification, options, tuple(notes), file)


def _on_text(head: HeadFindings, analysis: Analysis, aligned: Mapping[HeadId, dict[str, float | None]]) -> HeadOnText:
    context, verdict = analysis.context_of(head.id.layer), head.labelled.verdict
    uniform = {name: context.uniform[name] for name in ("entropy", "sink", *NAMES)}
    statistics = {name: head.statistics.get(name) for name in (*SCALARS, *analysis.optional)}
    statistics |= aligned.get(head.id, dict.fromkeys(ALIGNMENT if aligned else ()))
    return HeadOnText(head.id, head.label, None if verdict is None else verdict.judged[0], statistics, uniform)


def _spread(rows: Sequence[HeadOnText]) -> HeadSpread:
    """Combine the numbers of one head over all texts."""
    labels = dict(Counter(row.label for row in rows).most_common())
    most = next(iter(labels))
    statistics = {name: Spread.of([row.statistics[name] for row in rows]) for name in rows[0].statistics}
    uniform = {name: [row.uniform[name] for row in rows] for name in rows[0].uniform}
    known = {name: [each for each in of if each is not None and math.isfinite(each)] for name, of in uniform.items()}
    score = Spread.of([row.score for row in rows if row.label == most])
    means = {name: fmean(values) for name, values in known.items() if values}
    return HeadSpread(rows[0].id, labels, score, statistics, means)
