"""Corpora through the model, batch by batch, into the tallies; interrupted and gone on with, alone or with others."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from attnviz.commands.profile.tallies import Tally
from attnviz.corpora.batches import Batch, Text, batches
from attnviz.corpora.bootstrap import text_weights
from attnviz.corpora.interrupts import interruptions_noted
from attnviz.corpora.processes import Process
from attnviz.corpora.resuming import Measured, Unfinished
from attnviz.corpora.sampling import SampledAttention
from attnviz.errors import CorpusError, OutputError
from attnviz.model.checkpoint import Checkpoint

__all__ = ["Measuring"]

_SAVED_EVERY = 10.0
"""Seconds between two savings of what was measured."""

_APART = 1 << 40
"""So far apart are the numbers of texts of two corpora, for the bootstrap."""


class Measuring:
    """One run over corpora.

    Args:
        checkpoint: the model.
        tallies: what is counted, by name.
        n_corpora: how many corpora there are.
        process: this process among those that share the work.
        unfinished: where what was measured is kept until all is done.
        batch_size: texts that the model reads at once.
        seed: of the bootstrap and of the verified sample.
        tell: told of each corpus by its number, and how many of its texts are done.
        warn: told of each text that the model cannot read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        tallies: Mapping[str, Tally],
        *,
        n_corpora: int,
        process: Process,
        unfinished: Unfinished,
        batch_size: int,
        seed: int,
        tell: Callable[[int, int], None],
        warn: Callable[[str], None],
    ) -> None:
        self.checkpoint, self.tallies, self.process = checkpoint, tallies, process
        self.measured = [Measured() for _ in range(n_corpora)]
        self.attention = SampledAttention(checkpoint, seed)
        self._unfinished, self._batch_size, self._seed = unfinished, batch_size, seed
        self._tell, self._warn = tell, warn
        self._saved_at = time.monotonic()

    def take_up(self, state: Mapping[str, Any]) -> None:
        """Go on from what an earlier run has left."""
        self._absorb(state)
        self.measured = [Measured.of(each) for each in state["measured"]]

    def absorb(self, state: Mapping[str, Any]) -> None:
        """Add what another process has measured."""
        self._absorb(state)
        for mine, theirs in zip(self.measured, state["measured"], strict=True):
            mine.texts += theirs["texts"]
            mine.tokens += theirs["tokens"]
            mine.left_out += theirs["left_out"]

    def _absorb(self, state: Mapping[str, Any]) -> None:
        for name, tally in self.tallies.items():
            tally.absorb(state["tallies"][name])
        self.attention.absorb(state["attention"])

    def state(self) -> dict[str, Any]:
        """All that was measured, to be saved or to be added to that of another process."""
        return {
            "tallies": {name: tally.state() for name, tally in self.tallies.items()},
            "measured": [each.state() for each in self.measured],
            "attention": self.attention.state(),
        }

    def measure(
        self,
        corpus: int,
        texts: Iterator[Text],
        tallies: Sequence[str],
        prepare: Callable[[Text], Text | None],
        sampled: Sequence[str] = (),
    ) -> None:
        """Measure this process's share of a corpus.

        Args:
            corpus: its number.
            texts: all of it.
            tallies: names of those that count it.
            prepare: the text as it is measured, or None to leave it out.
            sampled: names of those that count the verified batches only.

        Raises:
            CorpusError: the corpus is malformed; what stands before the place is measured and kept.
            ChangedCorpusError: what an earlier run has measured is not in the corpus any more.
        """
        measured = self.measured[corpus]
        broken: list[CorpusError] = []

        def own() -> Iterator[Text]:
            mine = (text for text in _until(texts, broken) if self.process.owns(text.number))
            for text in measured.remaining(mine, lambda: not broken):
                ready = prepare(text)
                if ready is None:
                    measured.note(text)
                else:
                    yield ready

        def skipped(text: Text, why: str) -> None:
            measured.note(text)
            self._warn(f"{text.place}: left out: {why}.")

        with interruptions_noted() as interrupted:
            for batch in batches(self.checkpoint, own(), self._batch_size, skipped):
                self._one(corpus, batch, [*tallies, *(sampled if self.attention.next_is_verified else ())])
                self._done(corpus, batch)
                if interrupted():
                    self.keep()
                    raise KeyboardInterrupt
        if broken:
            self.keep()
            raise broken[0]

    def keep(self) -> None:
        """Save what was measured, if anything was.

        Raises:
            OutputError: that cannot be.
        """
        if any(each.numbers for each in self.measured):
            self._unfinished.save(self.state())
        self._saved_at = time.monotonic()

    def _one(self, corpus: int, batch: Batch, names: Sequence[str]) -> None:
        counted = [self.tallies[name] for name in names]
        weights = text_weights(self._seed, [corpus * _APART + item.source.number for item in batch.items])
        for tally in counted:
            tally.begin(batch, weights)

        def visit(layer: int, pattern: Tensor) -> None:
            for tally in counted:
                tally.add(layer, pattern, batch)

        self.attention.run(batch, visit)

    def _done(self, corpus: int, batch: Batch) -> None:
        for item in batch.items:
            self.measured[corpus].note(item.source, len(item))
        self._tell(corpus, len(self.measured[corpus].numbers))
        if time.monotonic() - self._saved_at > _SAVED_EVERY:
            try:
                self.keep()
            except OutputError as error:  # the run itself may yet succeed
                self._warn(f"{error} Until that is mended, an interruption loses what was measured.")
                self._saved_at = math.inf


def _until(texts: Iterator[Text], broken: list[CorpusError]) -> Iterator[Text]:
    """The texts before the first that is malformed; the error is put into ``broken``."""
    try:
        yield from texts
    except CorpusError as error:
        broken.append(error)
