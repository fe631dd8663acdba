"""A run over corpora, parsed and batch by batch, into what counts them; gone on with, alone or with others."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch

from attnviz.corpora.batches import Batch, batches
from attnviz.corpora.long_runs import Measured, Process, Unfinished, gathered, interruptions_noted
from attnviz.corpora.reading import LONGEST, SHORTEST, Corpus, Span, Text, read_texts
from attnviz.errors import CorpusError, OutputError, UsageError
from attnviz.model.checkpoint import Checkpoint
from attnviz.model.opening import resolve_device
from attnviz.model.wording import counted
from attnviz.patterns.parsers import Vocabulary, load_parser, parsed_words
from attnviz.patterns.syntax import Arc, is_scored
from attnviz.progress import Progress

_SAVED_EVERY = 10.0
"""Seconds between two savings of what was measured."""


class Parser:
    """A spaCy pipeline, with its ``name`` and version, and the ``vocabulary`` of its relations."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self.name = "{lang}_{name} {version}".format(**pipeline.meta)
        self.vocabulary = Vocabulary.of(pipeline)

    def __call__(self, text: Text) -> Text:
        """The text with the spans of its words, and its relations without those of punctuation and the root."""
        words = parsed_words(self._pipeline, text.text)
        arcs = (
            Arc(place, word.head, word.relation)
            for place, word in enumerate(words)
            if is_scored(word.relation) and not word.is_space
        )
        return replace(text, spans=tuple((word.start, word.end) for word in words), arcs=tuple(arcs))

    def with_subjects(self, text: Text) -> Text:
        """An example of GAP with whether each of its names is the subject of a clause."""
        parsed = self(replace(text, spans=()))

        def subject(name: Span) -> bool:
            inside = {place for place, (start, end) in enumerate(parsed.spans) if start < name[1] and end > name[0]}
            return any(
                arc.relation.partition(":")[0] == "nsubj" and arc.dependent in inside and arc.head not in inside
                for arc in parsed.arcs
            )

        return replace(text, subjects=(subject(text.spans[1]), subject(text.spans[2])))


def find_parser(corpora: Sequence[Corpus], name: str | None) -> Parser | None:
    """A parser for sentences without trees, and for the subjects of GAP's, by default an installed English pipeline.

    Raises:
        ParserError: the pipeline that was named cannot be used.
    """
    if not {"txt", "gap"} & {corpus.kind for corpus in corpora}:
        return None
    pipeline = load_parser(name)
    return None if pipeline is None else Parser(pipeline)


def ready(text: Text, parse: Parser | None) -> Text | None:
    """A sentence as it is measured, parsed if it has no tree and is to be; None for a tree of another size."""
    if text.spans:
        return text if SHORTEST <= len(text.spans) <= LONGEST else None
    return text if parse is None else parse(text)


class Part(Protocol):
    """Something that is counted over batches; counts of several runs or processes add up."""

    def state(self) -> dict[Any, Any]:
        """What was counted so far: tensors, numbers and dicts of them."""

    def absorb(self, state: dict[Any, Any]) -> None:
        """Add what another part of the same kind and shape counted."""


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


class LongRun(ABC):
    """One run over all corpora, on this process's share of the texts; begun anew, or from a state of an earlier run.

    ``parts`` are what is counted, by name; ``measured`` tells how much of each corpus is done.
    """

    def __init__(self, settings: RunSettings, state: Mapping[str, Any] | None = None) -> None:
        self.settings = settings
        self.parts = self._begin()
        self.measured = [Measured() for _ in settings.corpora]
        self._saved_at = time.monotonic()
        if state is not None:
            self._add(state)
            self.measured = [Measured.of(each) for each in state["measured"]]

    @abstractmethod
    def _begin(self) -> dict[str, Part]:
        """Everything that will be counted, at zero."""

    @abstractmethod
    def _count(self, number: int, batch: Batch) -> None:
        """Count one batch of the corpus with this number."""

    def prepared(self, text: Text) -> Text | None:
        """A text as it is measured; None for one to leave out."""
        return ready(text, self.settings.parse)

    @classmethod
    def measure(cls, settings: RunSettings) -> Self:
        """Measure all corpora, from where an earlier run stopped if their texts are still the same, and keep that.

        Raises:
            CorpusError: a corpus is malformed; what stands before the place is measured and kept.
            OutputError: what an earlier run has measured of a corpus is not in it any more; it is left as it is.
        """
        state = settings.unfinished.load()
        if state is not None:
            with settings.unfinished.believed():
                run, done = cls(settings, state), sum(each["texts"] for each in state["measured"])
            run._refuse_changed()
            settings.warn(
                f"continuing after {counted(done, 'text')} that an earlier run measured; "
                f"to start again, delete {settings.unfinished.path}"
            )
            return run._measured_whole()
        return cls(settings)._measured_whole()

    def gather(self) -> bool:
        """Add up what all processes have counted, in the first; whether this is the first.

        Raises:
            CorpusError: nothing of a corpus could be measured.
        """
        states = gathered(self.settings.process, self.state())
        for state in states[1:]:
            self.absorb(state)
        for corpus, done in zip(self.settings.corpora, self.measured, strict=True):
            if states and not done.texts:
                self.settings.unfinished.remove()
                raise CorpusError(
                    f"no text of {corpus.path} could be measured: all {done.left_out} are too long, too short, or "
                    "not within what the model can see."
                )
        return bool(states)

    def absorb(self, state: Mapping[str, Any]) -> None:
        """Add what another process has measured."""
        self._add(state)
        for mine, theirs in zip(self.measured, state["measured"], strict=True):
            mine.texts += theirs["texts"]
            mine.tokens += theirs["tokens"]
            mine.left_out += theirs["left_out"]

    def _add(self, state: Mapping[str, Any]) -> None:
        for name, part in self.parts.items():
            part.absorb(state["parts"][name])

    def state(self) -> dict[str, Any]:
        """All that was measured, to be saved or to be added to that of another process."""
        parts = {name: part.state() for name, part in self.parts.items()}
        return {"parts": parts, "measured": [each.state() for each in self.measured]}

    def keep(self) -> None:
        """Save what was measured, if anything was; raise OutputError where that cannot be."""
        if any(each.numbers for each in self.measured):
            self.settings.unfinished.save(self.state())
        self._saved_at = time.monotonic()

    def _measured_whole(self) -> Self:
        """This run, once its share of every corpus is measured."""
        for number in range(len(self.settings.corpora)):
            self._measure(number)
        self.keep()
        return self

    def _own_texts(self, number: int) -> Iterator[Text]:
        """This process's share of a corpus."""
        texts = read_texts(self.settings.corpora[number], self.settings.limit)
        return (text for text in texts if self.settings.process.owns(text.number))

    def _refuse_changed(self) -> None:
        """Refuse to go on with corpora that are not those of the earlier run; nothing of it is lost."""
        for number, (corpus, measured) in enumerate(zip(self.settings.corpora, self.measured, strict=True)):
            if found := measured.changed(self._own_texts(number)):
                raise OutputError(
                    f"{self.settings.unfinished.path} holds what an interrupted run has measured of {corpus.path}, "
                    f"which has changed since: {found}. Give the corpus as it was to go on, choose another folder with "
                    "-o, or delete that file to begin anew."
                )

    def _measure(self, number: int) -> None:
        """Count this process's share of a corpus with the tallies of its kind."""
        settings, measured = self.settings, self.measured[number]
        broken: list[CorpusError] = []

        def own() -> Iterator[Text]:
            try:
                for text in measured.remaining(self._own_texts(number)):
                    if (prepared := self.prepared(text)) is None:
                        measured.note(text)
                    else:
                        yield prepared
            except CorpusError as error:  # what stands before the place is measured
                broken.append(error)

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


def own_device(process: Process, name: str, device_map: object = None) -> str | None:
    """The name of the device to use: of several processes each takes a GPU of its own; None with a device map.

    Raises:
        UsageError: a device map for several processes; others as for :func:`attnviz.model.opening.resolve_device`.
    """
    if device_map is not None and process.count > 1:
        raise UsageError("--device-map (device_map=...) gives all devices to one process; start it without torchrun.")
    if device_map is not None:
        return None if name == "auto" else name  # which is refused where the map is read
    device = resolve_device(name)
    if device == torch.device("cuda") and process.count > 1:
        return f"cuda:{process.local_rank % torch.cuda.device_count()}"
    return str(device)
