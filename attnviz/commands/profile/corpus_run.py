"""Corpora through the model, batch by batch, into the tallies; interrupted and gone on with, alone or with others."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attnviz.commands.profile.examples import NameExamples, RelationExamples, Shape
from attnviz.commands.profile.head_distances import HeadDistanceTally
from attnviz.commands.profile.names import NameTally
from attnviz.commands.profile.pattern_examples import PatternExamples
from attnviz.commands.profile.relations import RelationTally
from attnviz.commands.profile.repeats import SEQUENCES, RepeatTally
from attnviz.commands.profile.tallies import MeaningTally, StatisticsTally, Tally
from attnviz.corpora.batches import Batch, SampledAttention, Text, batches
from attnviz.corpora.bootstrap import text_weights
from attnviz.corpora.long_runs import ChangedCorpusError, Measured, Process, Unfinished, interruptions_noted
from attnviz.corpora.parsing import Parser, ready
from attnviz.corpora.reading import Corpus, read_texts
from attnviz.errors import CorpusError, OutputError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.wording import counted
from attnviz.progress import Progress

__all__ = ["CorpusRun", "RunSettings", "measure_corpora"]

_SENTENCES: tuple[str, ...] = ("statistics", "relations", "meanings", "relation examples", "pattern examples")
_NAMES, _SAMPLED = ("names", "name examples"), ("distances",)
"""Names of the tallies that count sentences, GAP's rows, and the verified batches of sentences only."""

_SAVED_EVERY = 10.0
"""Seconds between two savings of what was measured."""

_APART = 1 << 40
"""Distance between the text numbers of two corpora, so that each text has its own bootstrap weights."""


@dataclass(frozen=True)
class RunSettings:
    """What is to be measured, and how; names as in :func:`attnviz.commands.profile.measure.profile_heads`."""

    checkpoint: Checkpoint
    corpora: tuple[Corpus, ...]
    parse: Parser | None
    limit: int | None
    batch_size: int
    seed: int
    process: Process
    unfinished: Unfinished
    progress: Progress
    warn: Callable[[str], None]
    examples: int = 0

    @property
    def gold(self) -> bool:
        """Whether there are gold trees, with which a parser's are not to be mixed."""
        return any(corpus.kind == "conllu" for corpus in self.corpora)


def measure_corpora(settings: RunSettings) -> "CorpusRun":
    """Measure all corpora, from where an earlier run stopped if their texts are still the same.

    Raises:
        CorpusError: a corpus is malformed; what stands before the place is measured and kept.
    """
    state = settings.unfinished.load()
    if state is not None:
        with settings.unfinished.believed():
            run, done = CorpusRun(settings, state), sum(each["texts"] for each in state["measured"])
        settings.warn(
            f"continuing after {counted(done, 'text')} that an earlier run measured; "
            f"to start again, delete {settings.unfinished.path}"
        )
        try:
            return run.measured_whole()
        except ChangedCorpusError:
            settings.warn("a corpus has changed since it was measured: starting again")
    return CorpusRun(settings).measured_whole()


class CorpusRun:
    """One run over all corpora, on this process's share of the texts; begun anew, or from a state of an earlier run.

    Attributes:
        settings: of the run.
        tallies: what is counted, by name; ``repeats`` those of random sequences.
        measured: how much of each corpus is done.
        attention: the model, with what was verified.
    """

    def __init__(self, settings: RunSettings, state: Mapping[str, Any] | None = None) -> None:
        checkpoint = settings.checkpoint
        shape, causal = (checkpoint.n_layers, checkpoint.n_heads), checkpoint.architecture.causal
        self.settings = settings
        self.tallies: dict[str, Tally] = {
            "statistics": StatisticsTally(*shape, causal, windows=checkpoint.windows),
            "relations": RelationTally(*shape, causal),
            "meanings": MeaningTally(checkpoint), "names": NameTally(*shape, causal),
            "distances": HeadDistanceTally(*shape),
        }  # fmt: skip
        if settings.examples:
            self.tallies |= self._examples()
        self.repeats = RepeatTally(checkpoint, settings.seed)
        self.measured = [Measured() for _ in settings.corpora]
        self.attention = SampledAttention(checkpoint, settings.seed)
        self._saved_at = time.monotonic()
        if state is not None:
            self._add(state)
            self.measured = [Measured.of(each) for each in state["measured"]]

    def _examples(self) -> dict[str, Tally]:
        """What keeps examples; it looks at what the other tallies of a batch have made."""
        settings, checkpoint = self.settings, self.settings.checkpoint
        shape = Shape(
            settings.examples, tuple(corpus.path for corpus in settings.corpora), checkpoint.n_layers,
            checkpoint.n_heads, checkpoint.architecture.causal, settings.seed,
        )  # fmt: skip
        made: Any = self.tallies
        patterns = PatternExamples(shape, checkpoint.tokenizer, made["statistics"], made["meanings"])
        return {
            "relation examples": RelationExamples(shape, made["relations"]), "pattern examples": patterns,
            "name examples": NameExamples(shape),
        }  # fmt: skip

    def absorb(self, state: Mapping[str, Any]) -> None:
        """Add what another process has measured."""
        self._add(state)
        for mine, theirs in zip(self.measured, state["measured"], strict=True):
            mine.texts += theirs["texts"]
            mine.tokens += theirs["tokens"]
            mine.left_out += theirs["left_out"]

    def _add(self, state: Mapping[str, Any]) -> None:
        for name, tally in self.tallies.items():
            tally.absorb(state["tallies"][name])
        self.repeats.absorb(state["repeats"])
        self.attention.absorb(state["attention"])

    def state(self) -> dict[str, Any]:
        """All that was measured, to be saved or to be added to that of another process."""
        return {
            "tallies": {name: tally.state() for name, tally in self.tallies.items()}, "repeats": self.repeats.state(),
            "measured": [each.state() for each in self.measured], "attention": self.attention.state(),
        }  # fmt: skip

    def measured_whole(self) -> "CorpusRun":
        """This run, once its share of every corpus is measured; a ChangedCorpusError where an earlier run's is gone."""
        for number in range(len(self.settings.corpora)):
            self._measure(number)
        return self

    def measure_repeats(self) -> None:
        """Measure this process's share of the random sequences."""
        own = [number for number in range(SEQUENCES) if self.settings.process.owns(number)]
        tell, batch_size = self.settings.progress, self.settings.batch_size
        self.repeats.measure(self.attention, own, batch_size, lambda done: tell("repeats", done, len(own)))

    def keep(self) -> None:
        """Save what was measured, if anything was; raise OutputError where that cannot be."""
        if any(each.numbers for each in self.measured):
            self.settings.unfinished.save(self.state())
        self._saved_at = time.monotonic()

    def _prepared(self, text: Text) -> Text | None:
        """A sentence, or an example of GAP; None where a causal model cannot look from its pronoun to both names."""
        settings = self.settings
        if text.answer is None:
            return ready(text, None if settings.gold else settings.parse)
        pronoun, *names = text.spans
        ahead = any(name[1] > pronoun[0] for name in names)
        if ahead and settings.checkpoint.architecture.causal:
            return None
        return text if settings.parse is None else settings.parse.with_subjects(text)

    def _measure(self, number: int) -> None:
        """Count this process's share of a corpus with the tallies of its kind."""
        settings, measured = self.settings, self.measured[number]
        broken: list[CorpusError] = []

        def own() -> Iterator[Text]:
            texts = _until(read_texts(settings.corpora[number], settings.limit), broken)
            mine = (text for text in texts if settings.process.owns(text.number))
            for text in measured.remaining(mine, lambda: not broken):
                prepared = self._prepared(text)
                if prepared is None:
                    measured.note(text)
                else:
                    yield prepared

        def skipped(text: Text, why: str) -> None:
            measured.note(text)
            settings.warn(f"{text.place}: left out: {why}.")

        with interruptions_noted() as interrupted:
            for batch in batches(settings.checkpoint, own(), settings.batch_size, skipped):
                self._count(number, batch)
                self._finish(number, batch)
                if interrupted():
                    self.keep()
                    raise KeyboardInterrupt
        if broken:
            self.keep()
            raise broken[0]

    def _count(self, number: int, batch: Batch) -> None:
        """One batch through the model, and its patterns to the tallies of its kind of corpus."""
        names = _SENTENCES + (_SAMPLED if self.attention.next_is_verified else ())
        names = _NAMES if self.settings.corpora[number].kind == "gap" else names
        tallies = [self.tallies[name] for name in names if name in self.tallies]
        weights = text_weights(self.settings.seed, [number * _APART + item.source.number for item in batch.items])
        for tally in tallies:
            tally.begin(batch, weights)

        def visit(layer: int, pattern: Tensor) -> None:
            for tally in tallies:
                tally.add(layer, pattern, batch)

        self.attention.run(batch, visit)

    def _finish(self, number: int, batch: Batch) -> None:
        """Note a batch as measured, tell of it, and save now and then."""
        settings, corpus, measured = self.settings, self.settings.corpora[number], self.measured[number]
        for item in batch.items:
            measured.note(item.source, len(item))
        total = corpus.size if settings.limit is None else min(settings.limit, corpus.size)
        settings.progress(corpus.path.name, len(measured.numbers) * settings.process.count, total)
        if time.monotonic() - self._saved_at > _SAVED_EVERY:
            try:
                self.keep()
            except OutputError as error:  # the run itself may yet succeed
                settings.warn(f"{error} Until that is mended, an interruption loses what was measured.")
                self._saved_at = math.inf


def _until(texts: Iterator[Text], broken: list[CorpusError]) -> Iterator[Text]:
    """The texts before the first that is malformed; the error is put into ``broken``."""
    try:
        yield from texts
    except CorpusError as error:
        broken.append(error)
