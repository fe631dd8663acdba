"""A run over corpora, batch by batch, that can be resumed and shared by several processes."""

import hashlib
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from attnviz.arguments import as_found
from attnviz.errors import CorpusError, OutputError, UsageError
from attnviz.models.checkpoint import Checkpoint
from attnviz.models.opening import Model, open_checkpoint, resolve_device
from attnviz.options import ModelOptions
from attnviz.progress import Progress
from attnviz.texts.batches import Batch, batches, encode
from attnviz.texts.lines import broken, filled_lines
from attnviz.texts.long_runs import Measured, Process, Unfinished, gathered
from attnviz.texts.reading import Corpus, Parser, Text, read_texts, rendered, unread_columns
from attnviz.wording import counted, visible

_SAVED_EVERY = 10.0  # seconds between two saves
_STRETCH = 1000  # texts whose tokens are counted together
_COUNT = re.compile(r"[0-9]{1,18}(\.[0-9]*)?([eE][-+]?[0-9]{1,2})?")


class Additive(Protocol):
    """Counts over batches that can be saved, and added up over runs and processes."""

    def state(self) -> dict[Any, Any]:
        """The counts so far: tensors, numbers and dicts of them."""

    def merge(self, state: dict[Any, Any]) -> None:
        """Add the counts of another one of the same kind and shape."""


class Frequencies(NamedTuple):
    """Counts of words by a list."""

    name: str  # that of its file, with the beginning of its hash
    counts: dict[str, float]


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run; names as in :func:`attnviz.commands.profile.measure.profile_heads`."""

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
    frequencies: Frequencies | None = None


def text_notes(settings: RunSettings, measured: Sequence[Measured]) -> tuple[str, ...]:
    """Sentences on unknown tokens, and on columns that are not read."""
    notes = [
        settings.checkpoint.unknown_note(done.unknown, done.tokens, f" of {visible(corpus.path.name)}")
        for corpus, done in zip(settings.corpora, measured, strict=True)
    ]
    if settings.frequencies is not None:
        notes.append(f"Rare tokens are those of {visible(settings.frequencies.name)}.")
    return (*filter(None, notes), *unread_columns(corpus.table for corpus in settings.corpora))


def read_frequencies(path: str | Path | None) -> Frequencies | None:
    """Read a list, in each line a word and its count; the first may be a header. CorpusError for another file."""
    if path is None:
        return None
    path = Path(path)
    counts = dict[str, float]()
    for number, (place, line) in enumerate(filled_lines(path)):
        word, *count = line.rsplit(maxsplit=1)
        if count and _COUNT.fullmatch(count[0]):
            counts[word.strip()] = counts.get(word.strip(), 0) + float(count[0])
        elif number > 0 or not count or any(map(str.isdigit, count[0])):  # no header
            raise broken(place, "a word and its count, from 0 on (house 1234)", as_found(line))
    if not counts:
        raise CorpusError(f"{path}: expected words with their counts (house 1234), found none.")
    return Frequencies(f"{path.name} ({hashlib.sha256(path.read_bytes()).hexdigest()[:12]})", counts)


def token_counts(
    checkpoint: Checkpoint, corpora: Sequence[Corpus], limit: int | None, frequencies: Frequencies | None = None
) -> Tensor:
    """How often each vocabulary entry is in the content of corpora but GAP, or by a list, [vocabulary]."""
    size = max(int(checkpoint.config.vocab_size), len(checkpoint.tokenizer))
    if frequencies is not None:  # the sum of all words that a token is a piece of, also with a capital
        tokenizer = checkpoint.tokenizer
        listed = torch.zeros(size, dtype=torch.float64)
        for word, count in frequencies.counts.items():
            capital = word[:1].upper() + word[1:]
            pieces = tokenizer([word, capital, f" {word}", f" {capital}"], add_special_tokens=False)["input_ids"]
            listed[list(set[int]().union(*pieces))] += count
        for id in (listed[: len(tokenizer)] == 0).nonzero().flatten().tolist():
            if not any(char.isalnum() or char == "\N{REPLACEMENT CHARACTER}" for char in tokenizer.decode([id])):
                listed[id] = torch.inf  # unlisted punctuation is not rare
        return listed
    counts = torch.zeros(size, dtype=torch.long)
    for corpus in corpora:
        if corpus.kind == "gap":
            continue
        texts = read_texts(corpus, limit)
        while stretch := list(islice(texts, _STRETCH)):
            read = [rendered(text, checkpoint.tokenizer) for text in stretch]
            for item in encode(checkpoint, read, lambda *_: None):
                ids = torch.tensor([id for id, sink in zip(item.ids, item.sink, strict=True) if not sink])
                counts += ids.long().bincount(minlength=size)
    return counts


class LongRun:
    """One run over all corpora, on this process's share of the texts; ``measured`` is the progress on each.

    ``count`` adds a batch of the corpus with this index to the ``tallies``, which start at zero. ``prepared`` returns
    a text as it is measured; None for one to leave out.
    """

    def __init__(
        self,
        settings: RunSettings,
        tallies: Mapping[str, Additive],
        count: Callable[[int, Batch], None],
        prepared: Callable[[Text], Text | None],
    ) -> None:
        self._settings, self._tallies, self._count, self._prepared = settings, tallies, count, prepared
        self.measured = [Measured() for _ in settings.corpora]
        self._save_at = time.monotonic() + _SAVED_EVERY

    def measure(self) -> None:
        """Measure all corpora, from where an earlier run stopped, and save the counts now and then.

        CorpusError for a malformed corpus, before anything is measured; OutputError where the file of an unfinished run
        is of other settings.
        """
        settings = self._settings
        for corpus in settings.corpora:
            deque(read_texts(corpus, settings.limit), maxlen=0)
        if (state := settings.unfinished.load()) is not None:
            with settings.unfinished.restoring():
                self._merge(state)
                self.measured = [Measured.of(measured) for measured in state["measured"]]
            done = counted(sum(measured.texts for measured in self.measured), "text")
            settings.warn(
                f"continuing after {done} that an earlier run measured; to start again, delete "
                f"{settings.unfinished.path}"
            )
        for number, (corpus, measured) in enumerate(zip(settings.corpora, self.measured, strict=True)):
            total = corpus.size if settings.limit is None else min(settings.limit, corpus.size)
            for batch in self._batches(corpus, measured):
                self._count(number, batch)
                for item in batch.items:
                    measured.note(item.source, len(item), item.n_unknown)
                if time.monotonic() > self._save_at:
                    try:
                        self._save()
                    except OutputError as error:  # the run itself may yet succeed
                        settings.warn(f"{error} Until that is mended, an interruption loses what was measured.")
                        self._save_at = math.inf
                settings.progress(corpus.path.name, len(measured.numbers) * settings.process.count, total)
        self._save()

    def gather(self) -> bool:
        """Add up the counts of all processes, in the first; True there. CorpusError where nothing could be measured."""
        settings = self._settings
        states = gathered(settings.process, self._state())
        for state in states[1:]:
            self._merge(state)
            for mine, theirs in zip(self.measured, state["measured"], strict=True):
                mine.add(Measured.of(theirs))
        for corpus, done in zip(settings.corpora, self.measured, strict=True):
            if states and not done.texts:
                settings.unfinished.remove()
                raise CorpusError(
                    f"no text of {corpus.path} could be measured: all {done.left_out} are too long, too short, or "
                    "not within what the model can see."
                )
        return bool(states)

    def _batches(self, corpus: Corpus, measured: Measured) -> Iterator[Batch]:
        settings = self._settings
        done = frozenset(measured.numbers)

        def texts() -> Iterator[Text]:
            for text in read_texts(corpus, settings.limit):
                if text.number in done or not settings.process.owns(text.number):
                    continue
                prepared = self._prepared(text)
                if prepared is None:
                    measured.note(text)
                else:
                    yield prepared

        def skipped(text: Text, why: str) -> None:
            measured.note(text)
            settings.warn(f"{text.place}: left out: {why}.")

        return batches(settings.checkpoint, texts(), settings.batch_size, skipped)

    def _save(self) -> None:
        if any(measured.numbers for measured in self.measured):
            self._settings.unfinished.save(self._state())
        self._save_at = time.monotonic() + _SAVED_EVERY

    def _state(self) -> dict[str, Any]:
        tallies = {name: tally.state() for name, tally in self._tallies.items()}
        return {"parts": tallies, "measured": [measured.state() for measured in self.measured]}

    def _merge(self, state: Mapping[str, Any]) -> None:
        for name, tally in self._tallies.items():
            tally.merge(state["parts"][name])


def open_for(process: Process, model: Model | None, opening: ModelOptions) -> Checkpoint:
    """The checkpoint of a model, by name on this process's device: a GPU of its own for each of several."""
    if process.count > 1 and not isinstance(model, Checkpoint | torch.nn.Module):
        if opening.get("device_map") is not None:
            raise UsageError(
                "--device-map (device_map=...) gives all devices to one process; start it without torchrun."
            )
        if resolve_device(str(opening.get("device") or "auto")) == torch.device("cuda"):
            opening = {**opening, "device": f"cuda:{process.local_rank % torch.cuda.device_count()}"}
    return open_checkpoint(model, **opening)[0]
